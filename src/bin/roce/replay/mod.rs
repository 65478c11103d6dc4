//! `roce replay`: a capture into the engine, or onto a wire.

mod live;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args as ClapArgs;

/// Replay a capture: onto a wire, to a live peer
///
/// --to DEVICE sends the requests of one side of each connection to a live peer, rewritten:
/// addresses, queue pairs, sequence numbers, keys and memory are those of the peer, checksums are
/// made anew. --host HOST asks a server there (roce serve --offer) for queue pairs and memory;
/// without one, --peer and --map say what to map onto. Answers that arrive are compared with those
/// of the capture. --write OUT writes the rewritten capture instead of sending it.
///
/// Exit status: 0 if the peer answered as in the capture, 1 if not, 2 if it could not be replayed,
/// 130 after Ctrl-C.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Captures to read.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    live: live::LiveArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.live.is_wanted() {
        return live::run(&args.files, &args.live);
    }
    bail!("name where to replay the capture to: --to DEVICE, or --write OUT")
}
