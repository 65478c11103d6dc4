//! `roce conform`: scenarios on two devices, and their differences.

mod run;
mod serve;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use roce::conform::Side;
use roce::conform::agent::Agent;
use roce::conform::wire::{behind, watch};
use roce::connect::ConnectionManager;
use roce::link::raw::bump::Bump;
use roce::nic::SoftNic;

use crate::bench::{AnyGidArgs, TokenArgs};
use crate::device::{self, SoftNicArgs, Spec, forms};
use crate::output::Color;

/// Run conformance scenarios on two devices and report differences
///
/// A scenario is a few lines of TOML: the work requests of a requester and a responder, faults for
/// certain packets, and the expected result. It runs on two devices. Their completions, memory, QP
/// states, asynchronous events and, where they are visible, packets are compared with what the
/// scenario expects and with a reference: two soft NICs in memory, or a recorded run.
///
/// Without a device, it runs on two soft NICs in memory. With HOST, the peer is a roce conform
/// serve on that host. The device is the requester in a first run and the responder in a second.
///
/// Ctrl-C, or a peer that dies, ends the run: it reports the scenarios run so far.
///
/// Exit status: 0 when there are no differences but known deviations, 1 when there are others, 2
/// when nothing could be run or the peer was lost, 130 after Ctrl-C.
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
  roce conform --filter 'lost/*' -v                   # show every packet
  roce conform -d udp:127.0.0.1 --peer udp:127.0.0.2  # over sockets
  roce conform serve -d udp:10.0.0.1                  # on one machine
  roce conform -d udp:10.0.0.2 10.0.0.1 --junit conform.xml    # on the other
  roce conform -R -d udp:10.0.0.2 10.0.0.1            # connected by rdma_cm; serve -R there
  roce conform --scenario mine.toml
  roce conform -d verbs:mlx5_0 10.0.0.1               # an RNIC with the device there
  roce conform -d raw:eth0 --wire eth1,eth2 10.0.0.1  # packets pass eth1 and eth2";

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<RunArgs>),
    Serve(ServeArgs),
}

/// Run scenarios (the default)
#[derive(Clone, Debug, ClapArgs)]
struct RunArgs {
    /// Host of a roce conform serve.
    host: Option<String>,

    // The device under test.
    #[arg(short = 'd', long, alias = "ib-dev", value_name = "DEVICE",
          help = concat!("Local device: ", forms!()))]
    device: Option<Spec>,

    /// Peer device, if it is on this machine too.
    #[arg(long, value_name = "DEVICE", requires = "device", conflicts_with = "host")]
    peer: Option<Spec>,

    #[command(flatten)]
    token: TokenArgs,

    #[command(flatten)]
    any_gid: AnyGidArgs,

    /// TCP port of roce conform serve.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// GID index of the device; by default the first IPv4 GID.
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u8>,

    /// Have the connection manager (rdma_cm) connect the queue pairs of RC, on both sides: roce
    /// conform serve needs -R, too.
    #[arg(short = 'R', long = "rdma-cm", alias = "rdma_cm", requires = "device")]
    rdma_cm: bool,

    /// Bridge these two interfaces, to capture packets of the local device and inject faults: its
    /// port is cabled to INNER, the network to OUTER. Needs CAP_NET_RAW.
    #[arg(long, value_name = "INNER,OUTER", requires = "device")]
    wire: Option<Bumped>,

    /// Role of the local device.
    #[arg(long, value_enum, default_value_t)]
    role: Role,

    /// Run the scenarios of this file instead of the built-in ones. Can be given several times.
    #[arg(long, value_name = "FILE")]
    scenario: Vec<PathBuf>,

    /// Run only scenarios whose names match; `*` matches anything. Can be given several times.
    #[arg(long, value_name = "GLOB")]
    filter: Vec<String>,

    /// List the scenarios with their descriptions.
    #[arg(long)]
    list: bool,

    /// Compare with this recorded run instead of two soft NICs in memory.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,

    /// Record the run with the local device in its first role, for --reference.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Table of known deviations of the local device; by default the built-in one for its name.
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,

    /// Print the report as JSON.
    #[arg(long)]
    json: bool,

    /// Write a JUnit report to this file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Show scenarios without differences too, with all completions and packets.
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Use of colors.
    #[arg(long, alias = "colour", value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

/// Serve roce conform clients on other machines
///
/// Runs the other side of the scenarios that clients send. Several clients can be connected; their
/// scenarios take turns on the device. Clients are not trusted: a scenario is checked as if it were
/// read from a file, and packets go only to the address that its client connects from. Ctrl-C ends
/// it.
#[derive(Debug, ClapArgs)]
struct ServeArgs {
    // The device that clients use.
    #[arg(short = 'd', long, alias = "ib-dev", value_name = "DEVICE",
          help = concat!("Device: ", forms!()))]
    device: Spec,

    /// The address to listen on; by default that of the device.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,

    /// Let clients have packets sent to any GID, and not only to the address that they connect
    /// from. For trusted networks on which control connections use other addresses than RDMA.
    #[arg(long)]
    any_gid: bool,

    #[command(flatten)]
    token: TokenArgs,

    /// The TCP port to listen on; 0 is any that is free.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// GID index of the device; by default the first IPv4 GID.
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u8>,

    /// Have the connection manager (rdma_cm) connect the queue pairs of RC; clients need -R, too.
    #[arg(short = 'R', long = "rdma-cm", alias = "rdma_cm")]
    rdma_cm: bool,

    /// Bridge these two interfaces, to capture packets of the local device and inject faults: its
    /// port is cabled to INNER, the network to OUTER. Needs CAP_NET_RAW.
    #[arg(long, value_name = "INNER,OUTER")]
    wire: Option<Bumped>,

    /// Offer queue pairs and memory to roce replay --to --host as well, as roce serve --offer does,
    /// on this TCP port. What it sends is seen by scenarios that run at the same time.
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "18515"
    )]
    offer: Option<u16>,

    /// Exit when the first client that ran a scenario has disconnected.
    #[arg(long)]
    once: bool,
}

/// The TCP port of roce conform serve, unless told otherwise.
const PORT: u16 = 18516;

/// Role of the device here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Requester.
    Requester,
    /// Responder.
    Responder,
    /// Requester, then responder.
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
        let (inner, outer) =
            text.split_once(',').ok_or("expected two interfaces: `INNER,OUTER`")?;
        Ok(Self { inner: inner.trim().to_owned(), outer: outer.trim().to_owned() })
    }
}

/// A device that plays, with its connection manager if that is to connect its queue pairs.
fn agent(
    spec: &Spec,
    gid_index: Option<u8>,
    bumped: Option<&Bumped>,
    rdma_cm: bool,
) -> anyhow::Result<Agent> {
    let mut agent = agent_without_cm(spec, gid_index, bumped)?;
    if gid_index.is_some() {
        device::choose_gid(gid_index, &*agent.device, Ipv4Addr::UNSPECIFIED.into())?;
    }
    if rdma_cm {
        let manager = ConnectionManager::start(Arc::clone(&agent.device));
        agent.manager =
            Some(manager.with_context(|| format!("-R: {spec} has no connection manager"))?);
    }
    Ok(agent)
}

/// A device that plays, with its wire: the one it is told, or around its link if it is soft.
fn agent_without_cm(
    spec: &Spec,
    gid_index: Option<u8>,
    bumped: Option<&Bumped>,
) -> anyhow::Result<Agent> {
    let manager = None;
    if let Some(Bumped { inner, outer }) = bumped {
        let bump = Bump::open(inner, outer).context("--wire")?;
        let wire = Some(behind(bump).context("--wire")?);
        return Ok(Agent {
            device: device::start(spec, &SoftNicArgs::default())?,
            wire,
            gid_index,
            manager,
        });
    }
    let Spec::Soft(at) = spec else {
        return Ok(Agent {
            device: device::start(spec, &SoftNicArgs::default())?,
            wire: None,
            gid_index,
            manager,
        });
    };
    let link = at.open(None).with_context(|| format!("-d {spec}"))?;
    let (link, wire) = watch(link);
    let nic = SoftNic::start(link).with_context(|| format!("cannot start a NIC on {spec}"))?;
    Ok(Agent { device: Arc::new(nic), wire: Some(wire), gid_index, manager })
}
