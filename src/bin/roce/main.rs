//! `roce`: see, speak, replay, compare RoCEv2, and stand in for an RNIC.

mod batches;
mod bench;
mod conform;
mod decode;
mod demo;
mod device;
mod devices;
mod doctor;
mod flows;
mod help;
mod input;
mod interrupt;
mod links;
mod man;
mod mesh;
mod metrics_server;
mod outfile;
mod output;
mod parallel;
mod ping;
mod progress;
mod replay;
mod resolve;
mod run;
mod serve;
mod shell;
mod table_names;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(not(feature = "parquet"))]
#[path = "tables/absent.rs"]
mod tables;
mod version;
mod welcome;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use output::say;
use roce::decode::{PrintableLines, is_plain};

/// A RoCEv2 protocol stack in pure userspace.
///
/// Exit status: 0 on success, 1 when the command found something wrong, 2 on errors, 130 after
/// Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "roce", version, max_term_width = 100, subcommand_required = true)]
#[command(after_help = "\
`roce help COMMAND` prints the help of a command; that of `roce devices` lists the forms of devices. Pages: `roce help faults` (--fault of roce run), `roce help filter` \
(filters of roce decode and roce flows), `roce help parquet` (tables).")]
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
    Doctor(doctor::Args),
    Run(run::Args),
    Completions(shell::CompletionsArgs),
    Man(man::ManArgs),
}

/// The exit status of what could not be done.
fn could_not() -> ExitCode {
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let result = match arguments.get(1..).unwrap_or_default() {
        [] => welcome::print(),
        [only] if only == "--version" => version::print(),
        given => match help::page(given) {
            Some(printed) => printed,
            None => match parse(&arguments) {
                Ok(cli) => run(cli.command),
                Err(told) => return tell(&told),
            },
        },
    };
    match result {
        Ok(status) => status,
        // The reader of the pipe has closed it.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say!("{}", output::chain(&error));
            could_not()
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    // Texts are reflowed only if they may be shown: that takes milliseconds.
    let reflowed = |_| help::reflow(Cli::command()).try_get_matches_from(arguments);
    let matches = Cli::command().try_get_matches_from(arguments).or_else(reflowed)?;
    Cli::from_arg_matches(&matches)
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
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
        Command::Doctor(args) => doctor::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => man::man(&args),
    }
}

/// Prints what the arguments ask for (help, version) or what is wrong with them.
fn tell(told: &clap::Error) -> ExitCode {
    let is_asked_for = !told.use_stderr();
    let printed = if is_asked_for { output::check_open() } else { Ok(()) };
    let print = || match is_asked_for {
        true => told.print(),
        // It repeats arguments, which may come from anywhere.
        false if std::env::args().any(|argument| !argument.chars().all(is_plain)) => {
            write!(io::stderr(), "{}", PrintableLines(&told.render().to_string()))
        }
        false => told.print(),
    };
    match printed.and_then(|()| print()).and_then(|()| io::stdout().flush()) {
        Err(error) if is_asked_for && error.kind() != io::ErrorKind::BrokenPipe => {
            say!("cannot write to standard output: {error}");
            could_not()
        }
        _ if is_asked_for => ExitCode::SUCCESS,
        _ => could_not(),
    }
}
