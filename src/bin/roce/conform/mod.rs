//! `roce conform`: scenarios on two devices, and what differs.

mod run;
mod serve;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use roce::conform::Side;
use roce::conform::agent::Agent;
use roce::conform::wire::{behind, watch};
use roce::link::raw::bump::Bump;
use roce::nic::SoftNic;

use crate::device::{self, Spec};
use crate::output::Color;

/// Run scenarios on two devices and tell what differs
///
/// A scenario is a few lines of TOML: who posts what, what the wire does to which packet, what must
/// hold in the end. It is played by two devices, a requester and a responder. Completions, memory,
/// states, events and, where they can be seen, packets are held against what the scenario expects
/// and against a reference: two soft NICs in memory, or what was recorded of others.
///
/// Without a device, two soft NICs in memory play. With HOST, the other side is a roce conform serve
/// there. Each device plays the requester, then the responder.
///
/// Exit status: 0 when all agree or differ as is known, 1 when something differs that is not known,
/// 2 when nothing could be run.
#[derive(Debug, ClapArgs)]
#[command(
    verbatim_doc_comment,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: RunArgs,
}

const EXAMPLES: &str = "\
Examples:
  roce conform                                        # two soft NICs in memory
  roce conform --list
  roce conform --filter 'lost/*' -v                   # with every packet
  roce conform -d udp:127.0.0.1 --peer udp:127.0.0.2  # over sockets
  roce conform serve -d udp:10.0.0.1                  # on one machine
  roce conform -d udp:10.0.0.2 10.0.0.1 --junit conform.xml    # on the other
  roce conform --scenario mine.toml
  roce conform -d verbs:mlx5_0 10.0.0.1               # a card with whatever plays there
  roce conform -d raw:eth0 --wire eth1,eth2 10.0.0.1  # packets pass eth1 and eth2 on their way";

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<RunArgs>),
    Serve(ServeArgs),
}

/// Run scenarios (what roce conform does by itself)
#[derive(Clone, Debug, ClapArgs)]
struct RunArgs {
    /// A host on which roce conform serve runs.
    host: Option<String>,

    /// The device here: udp:ADDRESS, raw:INTERFACE, soft:INTERFACE, or verbs:NAME for a real RNIC.
    #[arg(short = 'd', long, alias = "ib-dev", value_name = "DEVICE")]
    device: Option<Spec>,

    /// The other device, if it is here, too.
    #[arg(long, value_name = "DEVICE", requires = "device", conflicts_with = "host")]
    peer: Option<Spec>,

    /// The TCP port of roce conform serve.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// The address of the device, by its index; by default the first of IPv4.
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u8>,

    /// Interfaces between which the packets of the device here pass, so that they can be seen and
    /// lost: its port is cabled to the first, the network to the second. Needs CAP_NET_RAW.
    #[arg(long, value_name = "INNER,OUTER", requires = "device")]
    wire: Option<Bumped>,

    /// Whom the device here plays.
    #[arg(long, value_enum, default_value_t)]
    role: Role,

    /// Scenarios of your own, instead of those that come with roce. Can be given several times.
    #[arg(long, value_name = "FILE")]
    scenario: Vec<PathBuf>,

    /// Only scenarios whose names fit; `*` stands for anything. Can be given several times.
    #[arg(long, value_name = "GLOB")]
    filter: Vec<String>,

    /// List the scenarios, and what each shows.
    #[arg(long)]
    list: bool,

    /// Compare with what was recorded, and not with two soft NICs in memory.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,

    /// Record what came of it, with the device here as requester, to compare others with.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// What is known of the device here; by default what roce knows of devices of its name.
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,

    /// A report for programs.
    #[arg(long)]
    json: bool,

    /// A report for whoever runs tests.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Tell of what agrees, too, with all its completions and packets.
    #[arg(short = 'v', long)]
    verbose: bool,

    /// When to use colors.
    #[arg(long, alias = "colour", value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

/// Serve roce conform clients on other machines
///
/// Plays the other side of the scenarios that clients send. Several clients can be connected; their
/// scenarios take turns at the device. Clients are not trusted: a scenario is checked as if it were
/// read from a file, and packets go only to the address that its client connects from. Ctrl-C ends it.
#[derive(Debug, ClapArgs)]
struct ServeArgs {
    /// The device: udp:ADDRESS, raw:INTERFACE, soft:INTERFACE, or verbs:NAME for a real RNIC.
    #[arg(short = 'd', long, alias = "ib-dev", value_name = "DEVICE")]
    device: Spec,

    /// The address to listen on; by default that of the device (127.0.0.1 on loopback).
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,

    /// Let clients have packets sent to any GID, and not only to the address that they connect from.
    /// For networks where everybody is trusted and control connections take another way than RDMA.
    #[arg(long)]
    any_gid: bool,

    /// The TCP port to listen on; 0 is any that is free.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// The address of the device, by its index; by default the first of IPv4.
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u8>,

    /// Interfaces between which the packets of the device here pass, so that they can be seen and
    /// lost: its port is cabled to the first, the network to the second. Needs CAP_NET_RAW.
    #[arg(long, value_name = "INNER,OUTER")]
    wire: Option<Bumped>,

    /// End when the first client that played a scenario is gone.
    #[arg(long)]
    once: bool,
}

/// The TCP port of roce conform serve, unless told otherwise.
const PORT: u16 = 18516;

/// Whom the device here plays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Role {
    /// The side that asks.
    Requester,
    /// The side that answers.
    Responder,
    /// One after the other.
    #[default]
    Both,
}

impl Role {
    fn sides(self) -> &'static [Side] {
        match self {
            Self::Requester => &[Side::Requester],
            Self::Responder => &[Side::Responder],
            Self::Both => &Side::BOTH,
        }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        None => run::run(args.run),
        Some(Command::Run(args)) => run::run(*args),
        Some(Command::Serve(args)) => serve::run(&args),
    }
}

/// Two interfaces with a bump between them, as the user wrote them.
#[derive(Clone, Debug)]
struct Bumped {
    inner: String,
    outer: String,
}

impl FromStr for Bumped {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (inner, outer) = text.split_once(',').ok_or("two interfaces are `INNER,OUTER`")?;
        Ok(Self { inner: inner.trim().to_owned(), outer: outer.trim().to_owned() })
    }
}

/// A device that plays, with its wire: the one it is told, or around its link if it is soft.
fn agent(spec: &Spec, gid_index: Option<u8>, bumped: Option<&Bumped>) -> anyhow::Result<Agent> {
    if let Some(Bumped { inner, outer }) = bumped {
        let bump = Bump::open(inner, outer).context("--wire")?;
        let wire = Some(behind(bump).context("--wire")?);
        return Ok(Agent { device: device::start(spec)?, wire, gid_index });
    }
    let Spec::Soft(at) = spec else {
        return Ok(Agent { device: device::start(spec)?, wire: None, gid_index });
    };
    let link = at.open(None).with_context(|| format!("-d {spec}"))?;
    let (link, wire) = watch(link);
    let nic = SoftNic::start(link).with_context(|| format!("cannot start a NIC on {spec}"))?;
    Ok(Agent { device: Arc::new(nic), wire: Some(wire), gid_index })
}
