//! Reports of findings as text, as JSON and as JUnit XML.

use std::fmt::Write;

use serde::Serialize;

use super::Side;
use super::judge::{Finding, Verdict};
use crate::decode::escape_markup;

/// Number of instances by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Instances that met the expectation and agree with the reference.
    pub agreed: usize,
    /// Instances with known deviations only.
    pub known: usize,
    /// Otherwise.
    pub differences: usize,
    /// Not at all.
    pub not_run: usize,
}

impl Summary {
    /// Counts the verdicts of findings.
    pub fn of(findings: &[Finding]) -> Self {
        let mut summary = Self::default();
        for finding in findings {
            match finding.verdict {
                Verdict::Agree => summary.agreed += 1,
                Verdict::Known => summary.known += 1,
                Verdict::Difference => summary.differences += 1,
                Verdict::NotRun(_) => summary.not_run += 1,
            }
        }
        summary
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { agreed, known, differences, not_run } = self;
        let all = agreed + known + differences + not_run;
        let counted = |number: usize, noun: &str| {
            format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
        };
        write!(
            f,
            "{}: {agreed} agreed, {}, {}, {not_run} not run",
            counted(all, "scenario"),
            counted(*known, "known deviation"),
            counted(*differences, "difference")
        )
    }
}

/// Style of a text report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Whether verdicts are colored.
    pub color: bool,
    /// Whether what agrees is told, too, and everything that passed.
    pub verbose: bool,
}

/// Appends what is to be told of an instance; of one that agrees, nothing unless asked.
pub fn text(finding: &Finding, style: Style, out: &mut String) {
    let (word, code) = match finding.verdict {
        Verdict::Agree if !style.verbose => return,
        Verdict::Agree => ("agree", "32"),
        Verdict::Known => ("known", "33"),
        Verdict::Difference => ("DIFFERENCE", "31"),
        Verdict::NotRun(_) => ("not run", "2"),
    };
    let padded = format!("{word:<10}");
    let word = if style.color { format!("\x1b[{code}m{padded}\x1b[0m") } else { padded };
    let [requester, responder] = &finding.devices;
    let _ = writeln!(out, "{word}  {}  ({requester} → {responder})", finding.name);
    if let Verdict::NotRun(why) = &finding.verdict {
        let _ = writeln!(out, "    {why}");
    }
    if finding.verdict == Verdict::Difference {
        let _ = writeln!(out, "    {}", finding.about);
    }
    for difference in &finding.differences {
        indented(&difference.to_string(), out);
    }
    for (difference, reason) in &finding.known {
        indented(&difference.to_string(), out);
        indented(&format!("  known: {reason}"), out);
    }
    if style.verbose {
        trace(finding, out);
    }
}

fn indented(text: &str, out: &mut String) {
    for line in text.lines() {
        let _ = writeln!(out, "    {line}");
    }
}

/// Writes the trace of a finding.
fn trace(finding: &Finding, out: &mut String) {
    for side in Side::BOTH {
        let outcome = finding.trace.side(side);
        for completion in &outcome.completions {
            let _ = writeln!(out, "    {side:<9}  {completion}");
        }
        for event in &outcome.events {
            let _ = writeln!(out, "    {side:<9}  event {event}");
        }
    }
    // Everything that was sent, in order: what was compared leaves out acknowledgements and
    // retransmissions.
    for side in Side::BOTH {
        for run in finding.trace.sent_with_effects(side).chunk_by(|a, b| a == b) {
            let Some((packet, effect)) = run.first() else { continue };
            let effect =
                effect.map_or_else(String::new, |effect| format!("  [{effect} by a fault]"));
            let times = if run.len() > 1 { format!("  ×{}", run.len()) } else { String::new() };
            let _ = writeln!(out, "    {side:<9}  {}{effect}{times}", packet.line);
        }
    }
}

/// Returns the report as JSON. `stopped` says why the run ended early, if it did.
pub fn json(findings: &[Finding], gone: &[(String, String)], stopped: Option<&str>) -> String {
    #[derive(Serialize)]
    struct Report<'a> {
        summary: Summary,
        stopped: Option<&'a str>,
        gone: &'a [(String, String)],
        scenarios: &'a [Finding],
    }
    let report = Report { summary: Summary::of(findings), stopped, gone, scenarios: findings };
    serde_json::to_string_pretty(&report).unwrap_or_default()
}

/// Returns the report as a JUnit test suite. A known deviation is a test that passed, with its
/// reasons as output. A run that ended early has an error for what was not run.
pub fn junit(findings: &[Finding], stopped: Option<&str>) -> String {
    let summary = Summary::of(findings);
    let seconds: f64 = findings.iter().map(|finding| finding.seconds).sum();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        out,
        "<testsuite name=\"roce conform\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{seconds:.3}\">",
        findings.len() + usize::from(stopped.is_some()),
        summary.differences,
        usize::from(stopped.is_some()),
        summary.not_run
    );
    for finding in findings {
        let [requester, responder] = &finding.devices;
        let class = escape_markup(&format!("{requester} to {responder}"));
        let (name, seconds) = (escape_markup(&finding.name), finding.seconds);
        let _ =
            write!(out, "  <testcase classname=\"{class}\" name=\"{name}\" time=\"{seconds:.3}\"");
        let told = |all: Vec<String>| escape_markup(&all.join("\n"));
        match &finding.verdict {
            Verdict::Agree => out.push_str("/>\n"),
            Verdict::Known => {
                let all =
                    finding.known.iter().map(|(it, reason)| format!("{it}\n  known: {reason}"));
                let _ =
                    writeln!(out, "><system-out>{}</system-out></testcase>", told(all.collect()));
            }
            Verdict::Difference => {
                let all = finding.differences.iter().map(ToString::to_string).collect();
                let about = escape_markup(&finding.about);
                let _ = writeln!(
                    out,
                    "><failure message=\"{about}\">{}</failure></testcase>",
                    told(all)
                );
            }
            Verdict::NotRun(why) => {
                let _ = writeln!(out, "><skipped message=\"{}\"/></testcase>", escape_markup(why));
            }
        }
    }
    if let Some(why) = stopped {
        let why = escape_markup(why);
        let _ = writeln!(
            out,
            "  <testcase classname=\"roce conform\" name=\"all scenarios are run\"><error message=\"{why}\"/></testcase>"
        );
    }
    out.push_str("</testsuite>\n");
    out
}
