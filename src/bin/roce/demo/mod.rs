//! `roce demo`: two soft NICs on loopback do every operation, and a few things that fail.

mod print;
mod queues;
mod scenes;
mod stage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use stage::Stage;

use crate::outfile::WholeFile;
use crate::output;

/// Show every RDMA operation: its work request, its packets, its completions
///
/// Two soft NICs on this machine's loopback, over ordinary UDP sockets: no privilege, no kernel
/// module, no hardware. For each operation it prints the work requests, the packets as they were
/// captured, and the completions that both sides poll. The last scenes show errors. With --queues
/// it measures instead how queue depth, batches and completion moderation change the message rate,
/// and prints the counters that explain it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce demo                          # all scenes
  roce demo --list                   # their titles
  roce demo read atomic              # only scenes with one of these words in their titles
  roce demo --queues                 # queue depth, batches and completion moderation, with figures
  roce demo --pcap demo.pcapng       # write a capture; show it with: roce decode -V demo.pcapng")]
pub(crate) struct Args {
    /// Show only scenes whose titles contain one of these words
    #[arg(value_name = "WORD")]
    words: Vec<String>,

    /// Write all packets to a pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// List the scenes
    #[arg(long)]
    list: bool,

    /// Measure the effects of queue depth, batches and completion moderation
    #[arg(long, conflicts_with_all = ["words", "pcap", "list"])]
    queues: bool,

    /// Number of messages for each row of --queues
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "queues",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    messages: u32,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.queues {
        queues::show(args.messages as usize, &mut output::lines())?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = |title: &str| {
        let title = title.to_lowercase();
        args.words.is_empty() || args.words.iter().any(|word| title.contains(&word.to_lowercase()))
    };
    let scenes: Vec<_> = scenes::SCENES.iter().filter(|scene| wanted(scene.title)).collect();
    let mut out = output::lines();
    if args.list {
        for scene in &scenes {
            writeln!(out, "{}", scene.title)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::ensure!(
        !scenes.is_empty(),
        "no title contains any of these words; list the titles with: roce demo --list"
    );
    if let Some(path) = &args.pcap {
        crate::outfile::check_capture("--pcap", path)?;
    }
    let stage = Stage::open()?;
    print::introduce(&stage, &mut out)?;
    for (number, scene) in scenes.iter().enumerate() {
        print::title(number + 1, scene.title, scene.about, &mut out)?;
        let mut play = stage.play(&mut out)?;
        (scene.play)(&mut play).with_context(|| format!("in the scene “{}”", scene.title))?;
        play.end()?;
    }
    if let Some(path) = &args.pcap {
        let named = format!("cannot write {}", path.display());
        WholeFile::write(named, path, &stage.capture())?;
        writeln!(out, "\nThe capture is {}; show it with: roce decode -V {0}", path.display())?;
    }
    writeln!(out, "\n{}", next_steps(args.pcap.as_deref()))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the commands to try after the demo.
fn next_steps(capture: Option<&Path>) -> String {
    let flows = capture.map(|path| format!("roce flows {}", path.display()));
    let capture = match &flows {
        Some(flows) => (&**flows, "connections, losses and their causes"),
        None => ("roce demo --pcap demo.pcapng", "all of this as a capture, for `roce flows`"),
    };
    let steps = [
        ("roce run -- ibv_devinfo", "your own verbs programs on such NICs"),
        capture,
        ("roce doctor", "what this machine can do"),
    ];
    let width = steps.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let line = |(command, what): &(&str, &str)| format!("\n  {command:width$}  {what}");
    format!("Next:{}", steps.iter().map(line).collect::<String>())
}

/// Plays two scenes without output, to check that soft NICs work here: SEND and RDMA READ.
pub(crate) fn try_nics() -> Result<()> {
    let stage = Stage::open()?;
    let mut nowhere = std::io::sink();
    for scene in scenes::SCENES.iter().filter(|it| matches!(it.title, "SEND" | "RDMA READ")) {
        let mut play = stage.play(&mut nowhere)?;
        (scene.play)(&mut play)?;
        play.end()?;
    }
    Ok(())
}
