//! `roce`: see, speak, replay, compare RoCEv2, and stand in for an RNIC.

mod batches;
mod bench;
mod conform;
mod decode;
mod demo;
mod device;
mod devices;
mod flows;
mod input;
mod interrupt;
mod links;
mod man;
mod mesh;
mod outfile;
mod output;
mod parallel;
mod ping;
mod progress;
mod replay;
mod run;
mod serve;
mod shell;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(not(feature = "parquet"))]
#[path = "tables/absent.rs"]
mod tables;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A RoCEv2 protocol stack in pure userspace.
///
/// Exit status: 0 on success, 1 when the command found something wrong, 2 on errors, 130 after Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "roce", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Decode(decode::Args),
    Flows(flows::Args),
    Replay(Box<replay::Args>),
    Serve(serve::Args),
    Bench(bench::Args),
    Ping(ping::Args),
    Mesh(mesh::Args),
    Conform(Box<conform::Args>),
    Devices(devices::Args),
    Run(run::Args),
    Completions(shell::CompletionsArgs),
    Man(man::ManArgs),
}

/// The exit status of what could not be done.
fn could_not() -> ExitCode {
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Decode(args) => decode::run(args),
        Command::Flows(args) => flows::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Ping(args) => ping::run(&args),
        Command::Mesh(args) => mesh::run(&args),
        Command::Conform(args) => conform::run(*args),
        Command::Devices(args) => devices::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => man::man(&args),
    };
    match result {
        Ok(status) => status,
        // The reader of the pipe has closed it.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roce: {error:#}");
            could_not()
        }
    }
}
