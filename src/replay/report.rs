//! The report of a replay: for people, for programs, for test runners.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::connection::Surveyed;
use super::judge::Sink;
use super::limits::{FRAMES_MAX, LISTED_MAX};
use super::survey::{LeftOut, Survey};
use super::verdict::{Difference, Step, Subject, Undecided, Verdict};
use crate::analysis::FlowNumber;
use crate::decode::{address_text, escape_markup, packet_line};
use crate::observe::end::End;
use crate::wire::Service;

/// Number of packets by verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Packets that a correct device could have sent.
    pub agreed: u64,
    /// Packets that break a rule as such devices are known to do.
    pub known: u64,
    /// Packets of which the capture does not tell.
    pub undecided: u64,
    /// Packets that no correct device sends.
    pub different: u64,
    /// Undecided packets by reason.
    pub reasons: BTreeMap<Undecided, u64>,
    /// Agreed packets by what was judged.
    pub subjects: BTreeMap<Subject, u64>,
}

impl Counts {
    /// All packets that were judged.
    pub fn total(&self) -> u64 {
        self.agreed + self.known + self.undecided + self.different
    }

    fn add(&mut self, step: &Step) {
        *self.subjects.entry(step.subject).or_default() += 1;
        match &step.verdict {
            Verdict::Agreed => self.agreed += 1,
            Verdict::Known { .. } => self.known += 1,
            Verdict::Undecided(why) => {
                self.undecided += 1;
                *self.reasons.entry(*why).or_default() += 1;
            }
            Verdict::Different(_) => self.different += 1,
        }
    }
}

impl core::fmt::Display for Counts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { agreed, known, undecided, different, .. } = self;
        let all = self.total();
        let s = |number: u64| if number == 1 { "" } else { "s" };
        write!(
            f,
            "{all} packet{}: {agreed} agreed, {known} known deviation{}, {undecided} undecided",
            s(all),
            s(*known),
        )?;
        let reasons: Vec<String> =
            self.reasons.iter().map(|(why, count)| format!("{count} {}", why.text())).collect();
        if !reasons.is_empty() {
            write!(f, " ({})", reasons.join(", "))?;
        }
        write!(f, ", {different} difference{}", s(*different))
    }
}

/// A difference or a known deviation, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Listed {
    /// The frame; see [`Step::frame`].
    pub frame: u64,
    /// The connection.
    pub flow: FlowNumber,
    /// Sender.
    pub sender: String,
    /// Receiver.
    pub receiver: String,
    /// Kind of packet.
    pub subject: Subject,
    /// The rule: its name, what it says, where it is from.
    pub rule: &'static super::Rule,
    /// The mistake, with the numbers.
    pub found: String,
    /// The captured packet as a line; nothing if a packet is missing.
    pub captured: Option<String>,
    /// A packet that would have been right, as a line, where there is one.
    pub expected: Option<String>,
    /// Other frames to look at.
    pub frames: Vec<u64>,
    /// Reason why it is known, if it is.
    pub known: Option<String>,
}

/// Number of packets that were judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Packets {
    /// All packets of the capture.
    pub captured: u64,
    /// Packets that were judged: all but those that were left out, and those that are undecided
    /// because of a limit.
    pub judged: u64,
    /// Packets that were not looked at.
    pub left_out: LeftOut,
}

/// Collects the verdicts of a replay.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Number of packets that were judged.
    pub packets: Packets,
    /// Number of packets by verdict.
    pub counts: Counts,
    /// Differences and known deviations, in the order in which they became clear.
    pub listed: Vec<Listed>,
    /// Differences and known deviations beyond the most that are listed.
    pub not_listed: u64,
    /// XRC connections: their requests are executed as those of RC, because neither the domain nor
    /// the shared receive queue appears in an answer.
    pub xrc_connections: usize,
    /// Sentences on what the capture cannot show.
    pub kind: Vec<String>,
    #[serde(skip)]
    steps: Vec<Step>,
}

/// Style of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Whether verdicts are colored.
    pub color: bool,
    /// Whether known deviations are shown with their packets, and not only counted by rule.
    pub verbose: bool,
}

impl Sink for ReplayReport {
    fn step(&mut self, step: Step) {
        self.counts.add(&step);
        if matches!(step.verdict, Verdict::Different(_) | Verdict::Known { .. }) {
            if self.steps.len() < LISTED_MAX {
                self.steps.push(step);
            } else {
                self.not_listed += 1;
            }
        }
    }
}

impl ReplayReport {
    /// The capture is over: what was found is told in the names of its connections.
    pub fn finish(&mut self, survey: &Survey) {
        let mut steps = core::mem::take(&mut self.steps);
        steps.sort_by_key(|step| step.frame);
        self.listed.extend(steps.iter().filter_map(|step| listed(step, survey)));
        self.kind = survey.kind.sentences();
        let is_xrc = |connection: &&Surveyed| connection.service == Service::Xrc;
        self.xrc_connections = survey.connections().iter().filter(is_xrc).count();
        let (captured, left_out) = (survey.packets, survey.left_out.clone());
        let beyond = self.counts.reasons.get(&Undecided::BeyondLimits).copied().unwrap_or(0);
        let judged = captured.saturating_sub(left_out.total() + beyond);
        self.packets = Packets { captured, judged, left_out };
    }

    /// Appends all that is to be told to people.
    pub fn text(&self, style: Style, out: &mut String) {
        for sentence in &self.kind {
            let _ = writeln!(out, "{sentence}");
        }
        for listed in &self.listed {
            if listed.known.is_none() || style.verbose {
                listed.text(style, out);
            }
        }
        if self.not_listed > 0 {
            let _ = writeln!(out, "… and {} more that are not listed", self.not_listed);
        }
        if !style.verbose {
            self.known_text(style, out);
        }
        if self.xrc_connections > 0 {
            let count = self.xrc_connections;
            let _ = writeln!(
                out,
                "{count} XRC connections are replayed as RC: domains and shared receive queues are not compared"
            );
        }
        self.packets_text(out);
        let _ = writeln!(out, "{}", self.counts);
    }

    /// Appends how many packets were judged, if not all were.
    fn packets_text(&self, out: &mut String) {
        let Packets { captured, judged, left_out } = &self.packets;
        if captured == judged {
            return;
        }
        let mut why: Vec<String> = Vec::new();
        let beyond = captured.saturating_sub(judged + left_out.total());
        let undecided = [(beyond, "of connections beyond limits, undecided")];
        for (count, what) in left_out.counts().into_iter().chain(undecided) {
            if count > 0 {
                why.push(format!("{count} {what}"));
            }
        }
        let why = why.join(", ");
        let _ = writeln!(out, "judged {judged} of {captured} packets; not judged: {why}");
    }

    /// Known deviations, by rule.
    fn known_text(&self, style: Style, out: &mut String) {
        let mut by_rule: BTreeMap<(&str, &str), (u64, Vec<u64>)> = BTreeMap::new();
        for listed in &self.listed {
            let Some(reason) = &listed.known else { continue };
            let (count, frames) = by_rule.entry((listed.rule.id, reason)).or_default();
            *count += 1;
            if frames.len() < FRAMES_MAX {
                frames.push(listed.frame);
            }
        }
        for ((rule, reason), (count, frames)) in by_rule {
            let word = paint("known", "33", style);
            let more = if count > frames.len() as u64 { ", …" } else { "" };
            let _ = writeln!(out, "{word}  {rule}  ×{count}  (frames {}{more})", numbers(&frames));
            let _ = writeln!(out, "    {reason}");
        }
    }

    /// All of it as one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// All of it as a test suite: a test per connection and rule that was broken, and one that all
    /// packets agree.
    pub fn junit(&self, name: &str) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let failures = self.listed.iter().filter(|listed| listed.known.is_none()).count();
        let _ = writeln!(
            out,
            "<testsuite name=\"roce replay\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{}\">",
            self.listed.len() + 1 + usize::from(self.counts.undecided > 0),
            usize::from(self.counts.undecided > 0)
        );
        let class = escape_markup(name);
        for listed in &self.listed {
            let title = escape_markup(&format!("frame {}: {}", listed.frame, listed.rule.id));
            let mut told = String::new();
            listed.text(Style::default(), &mut told);
            let told = escape_markup(&told);
            let _ = write!(out, "  <testcase classname=\"{class}\" name=\"{title}\">");
            let _ = match listed.known {
                Some(_) => writeln!(out, "<system-out>{told}</system-out></testcase>"),
                None => {
                    let text = escape_markup(listed.rule.text);
                    writeln!(out, "<failure message=\"{text}\">{told}</failure></testcase>")
                }
            };
        }
        let counts = escape_markup(&self.counts.to_string());
        let _ = writeln!(
            out,
            "  <testcase classname=\"{class}\" name=\"packets\"><system-out>{counts}</system-out></testcase>"
        );
        if self.counts.undecided > 0 {
            let _ = writeln!(
                out,
                "  <testcase classname=\"{class}\" name=\"undecided packets\"><skipped message=\"{counts}\"/></testcase>"
            );
        }
        out.push_str("</testsuite>\n");
        out
    }
}

impl Listed {
    /// Appends it for people: both packets, one below the other, and the rule.
    pub fn text(&self, style: Style, out: &mut String) {
        let word = match self.known {
            Some(_) => paint("known", "33", style),
            None => paint("DIFFERENCE", "31", style),
        };
        let Self { frame, flow, sender, receiver, rule, found, .. } = self;
        let _ = writeln!(out, "{word}  frame {frame}  #{flow} {sender} → {receiver}  {}", rule.id);
        let _ = writeln!(out, "    {found}");
        let captured = self.captured.as_deref().unwrap_or("(no packet)");
        let _ = writeln!(out, "    captured  {captured}");
        if let Some(expected) = &self.expected {
            let _ = writeln!(out, "    expected  {expected}");
        }
        let _ = writeln!(out, "    rule      {} ({})", rule.text, rule.citation);
        if !self.frames.is_empty() {
            let _ = writeln!(out, "    see       frames {}", numbers(&self.frames));
        }
        if let Some(reason) = &self.known {
            let _ = writeln!(out, "    known     {reason}");
        }
    }
}

/// One step as a line: every packet, for who wants to see all.
pub fn step_line(step: &Step, survey: &Survey, out: &mut String) {
    let (word, more) = match &step.verdict {
        Verdict::Agreed => ("agreed", String::new()),
        Verdict::Known { difference, .. } => ("known", told(difference)),
        Verdict::Undecided(why) => ("undecided", why.text().to_owned()),
        Verdict::Different(difference) => ("DIFFERENCE", told(difference)),
    };
    let (sender, receiver) = ends(step, survey);
    let Step { frame, flow, subject, .. } = step;
    let _ = writeln!(
        out,
        "{frame:>8}  {word:<10}  {:<10}  #{flow} {sender} → {receiver}  {more}",
        subject.name()
    );
}

fn told(difference: &Difference) -> String {
    format!("{}: {}", difference.rule.id, difference.found)
}

fn paint(word: &str, code: &str, style: Style) -> String {
    let padded = format!("{word:<10}");
    if style.color { format!("\x1b[{code}m{padded}\x1b[0m") } else { padded }
}

fn numbers(frames: &[u64]) -> String {
    let all: Vec<String> = frames.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// Returns the sender and the receiver of a packet.
fn ends(step: &Step, survey: &Survey) -> (String, String) {
    let Some(connection) = survey.connection(step.flow) else { return Default::default() };
    let text = |end: End| {
        let end = &connection.ends[end];
        let address = address_text(end.address);
        end.qpn.map_or_else(|| address.clone(), |qpn| format!("{address} {qpn}"))
    };
    (text(step.sender), text(step.sender.other()))
}

fn listed(step: &Step, survey: &Survey) -> Option<Listed> {
    let (difference, known) = match &step.verdict {
        Verdict::Known { difference, reason } => (difference, Some(reason.clone())),
        Verdict::Different(difference) => (difference, None),
        Verdict::Agreed | Verdict::Undecided(_) => return None,
    };
    let (sender, receiver) = ends(step, survey);
    let mut frames = difference.frames.clone();
    frames.retain(|&frame| frame != 0);
    frames.truncate(FRAMES_MAX);
    Some(Listed {
        frame: step.frame,
        flow: step.flow,
        sender,
        receiver,
        subject: step.subject,
        rule: difference.rule,
        found: difference.found.clone(),
        captured: difference.captured.as_deref().map(packet_line),
        expected: difference.expected.as_deref().map(packet_line),
        frames,
        known,
    })
}
