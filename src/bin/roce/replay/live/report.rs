//! Report of a live replay as text.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use roce::replay::live::WhyUndecided;
use roce::replay::{ReplayReport, Style};

use super::play::Played;
use super::read::describe;
use crate::output::counted;

/// Prints what came of each script and what the rules say about the answers, and returns the exit
/// status.
pub(super) fn report(
    out: &mut impl Write,
    all: &[Played],
    verdicts: &ReplayReport,
) -> Result<ExitCode> {
    let mut different = 0;
    for played in all {
        let Played { script, sent, timeouts, comparison, memory } = played;
        let missing = if *timeouts > 0 {
            format!(", {} in vain", counted(*timeouts, "wait"))
        } else {
            String::new()
        };
        writeln!(out, "{}", describe(script))?;
        let retries = match comparison.retries {
            0 => String::new(),
            1 => ", 1 retry".to_owned(),
            count => format!(", {count} retries"),
        };
        writeln!(
            out,
            "  {} sent, {}{missing}{retries}; messages: {} agreed, {} undecided, {} different",
            counted(*sent, "request"),
            counted(comparison.answers, "answer"),
            comparison.agreed,
            comparison.undecided,
            comparison.different()
        )?;
        for (why, count) in WhyUndecided::ALL.iter().zip(comparison.why_undecided) {
            if count > 0 {
                writeln!(out, "  undecided: {}: {why}", counted(count, "message"))?;
            }
        }
        for difference in &comparison.differences {
            let at = match difference.frame {
                0 => String::new(),
                frame => format!("frame {frame}, "),
            };
            writeln!(out, "  different: {at}PSN {}: {}", difference.psn, difference.found)?;
        }
        if comparison.more_differences > 0 {
            writeln!(out, "  … and {} more", comparison.more_differences)?;
        }
        different += comparison.different();
        let Some(memory) = memory else { continue };
        if memory.wrong.is_empty() {
            writeln!(
                out,
                "  the peer's memory holds what the capture wrote: {}, {}, {}",
                counted(memory.regions as u64, "region"),
                counted(memory.bytes, "byte"),
                counted(memory.receives, "receive")
            )?;
        }
        for wrong in &memory.wrong {
            writeln!(out, "  different: {wrong}")?;
        }
        different += memory.wrong.len() as u64;
    }
    let mut text = String::new();
    verdicts.text(Style::default(), &mut text);
    writeln!(out, "answers, held against the engine:")?;
    out.write_all(text.as_bytes())?;
    different += verdicts.counts.different;
    out.flush()?;
    Ok(if different > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
