//! What came of a live replay, in words.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use roce::replay::{ReplayReport, Style};

use super::play::Played;
use super::read::describe;

/// Prints what came of each script and what the rules say about the answers, and returns the exit status.
pub(super) fn report(
    out: &mut impl Write,
    all: &[Played],
    verdicts: &ReplayReport,
) -> Result<ExitCode> {
    let mut different = 0;
    for played in all {
        let Played { script, sent, timeouts, comparison, memory } = played;
        let missing =
            if *timeouts > 0 { format!(", {timeouts} waits in vain") } else { String::new() };
        writeln!(out, "{}", describe(script))?;
        let retries = match comparison.retries {
            0 => String::new(),
            count => format!(", {count} retries"),
        };
        writeln!(
            out,
            "  {sent} requests sent, {} answers{missing}{retries}; messages: {} agreed, {} undecided, {} different",
            comparison.answers,
            comparison.agreed,
            comparison.undecided,
            comparison.different()
        )?;
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
                "  the peer's memory holds what the capture wrote: {} regions, {} bytes, {} receives",
                memory.regions, memory.bytes, memory.receives
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
