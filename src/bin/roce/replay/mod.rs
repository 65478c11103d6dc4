//! `roce replay`: a capture into the engine, or onto a wire.

mod args;
mod judge;
mod live;
mod threads;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use self::args::Args;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.rules {
        return judge::print_rules();
    }
    if args.live.is_wanted() {
        return live::run(&args.files, &args.live, &judge::options(args)?);
    }
    judge::run(args)
}
