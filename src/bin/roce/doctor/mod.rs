//! `roce doctor`: what this machine can do, and what to change where it cannot.

mod calls;
mod library;
mod network;
mod rights;
mod rnics;
mod system;

use std::env;
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;
use serde::Serialize;

use crate::{output, version};

/// Check what this machine can do, and what to change
///
/// Looks at everything that `roce run` and soft NICs depend on: the kernel, the library,
/// interfaces, UDP port 4791, socket buffers, namespaces, system call filters, and RDMA devices.
/// Every problem is told with its cure. Nothing is changed, and nothing is sent but to loopback.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce doctor                        # all checks, a line each
  roce doctor --json | jq '.findings[] | select(.status != \"ok\")'

A FAILURE keeps `roce run` from working, a warning makes it slower or less complete, a note is good to know.
Exit status: 0 if `roce run` works, 1 if it cannot, 2 on errors.")]
pub(crate) struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// It is as it should be.
    Ok,
    /// It is good to know.
    Note,
    /// Something is slower or less complete.
    Warning,
    /// `roce run` cannot work.
    Failure,
}

/// Result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    status: Status,
    finding: String,
    /// Change that makes it right, in one line.
    cure: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, finding: finding.into(), cure: None }
    }

    fn note(check: &'static str, finding: impl Into<String>) -> Self {
        Self { check, status: Status::Note, finding: finding.into(), cure: None }
    }

    fn warning(check: &'static str, finding: impl Into<String>, cure: impl Into<String>) -> Self {
        let cure = Some(cure.into());
        Self { check, status: Status::Warning, finding: finding.into(), cure }
    }

    fn failure(check: &'static str, finding: impl Into<String>, cure: impl Into<String>) -> Self {
        let cure = Some(cure.into());
        Self { check, status: Status::Failure, finding: finding.into(), cure }
    }
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    commit: &'static str,
    /// Whether `roce run` works.
    can_run: bool,
    findings: Vec<Finding>,
}

/// The variable that tells a copy of this command which probe to try.
const PROBE: &str = "ROCE_DOCTOR_PROBE";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Ok(probe) = env::var(PROBE) {
        return try_probe(&probe).map(|()| ExitCode::SUCCESS);
    }
    let mut findings = vec![system::kernel(), system::surroundings()];
    findings.extend(library::check());
    findings.extend(network::check());
    findings.push(calls::check());
    findings.extend([
        rights::namespaces(),
        rights::capabilities(),
        rights::xdp(),
        rights::memlock(),
    ]);
    findings.extend(rights::apparmor());
    findings.extend(rnics::check());
    let can_run = findings.iter().all(|finding| finding.status < Status::Failure);
    let report = Report {
        version: crate::run::library::VERSION,
        commit: version::commit(),
        can_run,
        findings,
    };
    let mut out = output::stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.print(&mut out)?;
    }
    out.flush()?;
    Ok(if can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = output::width().unwrap_or(100).max(60);
        for finding in &self.findings {
            let status = match finding.status {
                Status::Ok => "ok",
                Status::Note => "note",
                Status::Warning => "warning",
                Status::Failure => "FAILURE",
            };
            let head = format!("{status:8} {:12} ", finding.check);
            out.write_all(output::paragraph(&head, &finding.finding, width).as_bytes())?;
            if let Some(cure) = &finding.cure {
                let head = format!("{:22}cure: ", "");
                out.write_all(output::paragraph(&head, cure, width).as_bytes())?;
            }
        }
        let failures = self.findings.iter().filter(|it| it.status == Status::Failure).count();
        let warnings = self.findings.iter().filter(|it| it.status == Status::Warning).count();
        let counted = |number, noun| output::counted(number as u64, noun);
        match self.can_run {
            true => writeln!(out, "\nroce run works here; {}.", counted(warnings, "warning")),
            false => {
                writeln!(out, "\nroce run cannot work here: {}.", counted(failures, "failure"))
            }
        }
    }
}

/// Runs a copy of this command that tries something which could end it. Returns why it failed.
fn probe(name: &str, prepare: impl FnOnce(&mut Command)) -> Result<(), String> {
    let mut copy = Command::new("/proc/self/exe");
    copy.args(["doctor"]).env(PROBE, name).stdin(Stdio::null());
    prepare(&mut copy);
    let output = copy.output().map_err(|error| format!("a copy of this command: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default().trim_start_matches("roce: ");
    Err(if said.is_empty() { output.status.to_string() } else { said.to_owned() })
}

/// Runs the probe of this name, which succeeds, fails with an error, or ends this process.
fn try_probe(name: &str) -> Result<()> {
    match name {
        library::PROBE => library::try_probe(),
        call => calls::try_probe(call),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_says_whether_programs_can_run() {
        let print = |finding: Finding| {
            let can_run = finding.status < Status::Failure;
            let report = Report { version: "1", commit: "2", can_run, findings: vec![finding] };
            let mut out = Vec::new();
            report.print(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let warned = print(Finding::warning("buffers", "small", "enlarge"));
        assert!(warned.contains("cure: enlarge\n\nroce run works here; 1 warning."), "{warned}");
        let failed = print(Finding::failure("port", "taken", "free it"));
        assert!(failed.ends_with("roce run cannot work here: 1 failure.\n"), "{failed}");
    }
}
