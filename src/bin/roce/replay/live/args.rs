//! The options of a live replay.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use roce::analysis::FlowNumber;
use roce::link;
use roce::replay::live::{MutateSpec, Speed};

use super::map::MapRule;
use super::offer::Server;
use crate::bench::{AnyGidArgs, PORT, TokenArgs};
use crate::device::forms;
use crate::outfile;

/// The options of a live replay.
#[derive(Debug, Args)]
#[command(next_help_heading = "Onto a wire")]
pub(crate) struct LiveArgs {
    // The link to send by.
    #[arg(long, value_name = "DEVICE",
          help = concat!("Send to a live peer, from this device: ", forms!(links)))]
    pub(super) to: Option<link::Spec>,

    /// Write the rewritten capture (.pcap or .pcapng) instead of sending it.
    #[arg(long, value_name = "OUT", conflicts_with = "to")]
    pub(super) write: Option<PathBuf>,

    /// The host where a server runs (roce serve --offer): it offers queue pairs and memory to map
    /// onto, and tells what they hold in the end.
    #[arg(long, value_name = "HOST", requires = "to")]
    pub(super) host: Option<String>,

    /// Connect by the connection manager (rdma_cm) to the peer that listens at HOST:PORT, rping -s
    /// for example, and map onto that connection: its queue pairs and PSN. Keys and addresses are
    /// those of --map.
    #[arg(long, value_name = "HOST:PORT", requires = "to", conflicts_with_all = ["host", "peer", "mutate"])]
    pub(super) connect: Option<String>,

    /// The TCP port of that server.
    #[arg(short = 'p', long = "host-port", value_name = "PORT", default_value_t = PORT)]
    pub(super) host_port: u16,

    #[command(flatten)]
    pub(super) token: TokenArgs,

    #[command(flatten)]
    pub(super) any_gid: AnyGidArgs,

    /// Write what was sent and received into a capture (.pcap or .pcapng).
    #[arg(long, value_name = "OUT", requires = "to")]
    pub(super) record: Option<PathBuf>,

    /// The address of the peer; with --host, that of the host by default.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) peer: Option<IpAddr>,

    /// Replace a value of the capture: WHAT:OLD=NEW, or WHAT=NEW for all. WHAT is ip, mac, vlan (a
    /// number, or none), port (UDP source), qpn (destination), srcqp, psn (of the first request),
    /// qkey, rkey, va, srq. A VA is mapped with all that follow it up to the next one that is
    /// mapped. Can be given several times.
    #[arg(long = "map", value_name = "WHAT:OLD=NEW")]
    pub(super) maps: Vec<MapRule>,

    /// Play this connection only, as roce flows numbers it; can be given several times [default:
    /// all that can be played].
    #[arg(long = "flow", value_name = "N")]
    pub(super) flows: Vec<FlowNumber>,

    /// Play the requests of this end of each connection: 1, 2 or an address [default: the end that
    /// sent the first request].
    #[arg(long, value_name = "END")]
    pub(super) side: Option<SideArg>,

    /// Speed: 1 keeps the times of the capture, 10 is ten times as fast, max does not wait.
    #[arg(long, value_name = "FACTOR", value_parser = parse_speed, default_value = "1")]
    pub(super) speed: Speed,

    /// Send by the clock alone, without waiting for the answers that the capture has.
    #[arg(long)]
    pub(super) open_loop: bool,

    /// Time to wait for an answer, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(super) timeout: u64,

    /// Mutate packets, and check that the peer survives: any, or a list of fields by their names
    /// (infiniband.bth.psn, or short: psn, opcode, qpn, padcnt, pkey, tver, ackreq, key, va,
    /// dmalen, syndrome, crc), each with =VALUE, =+N, =-N, =flip, =neighbor or =random (any of
    /// these by default); and icrc, length, drop, double, swap.
    #[arg(long, value_name = "SPEC", requires = "host")]
    pub(super) mutate: Option<MutateSpec>,

    /// The seed of the first mutated run; each run has the next.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "mutate")]
    pub(super) seed: u64,

    /// Number of mutated runs [default: 1, or as many as --duration allows].
    #[arg(long, value_name = "N", requires = "mutate", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) runs: Option<u64>,

    /// Number of seconds for which mutated runs are made.
    #[arg(long, value_name = "SECONDS", requires = "mutate")]
    pub(super) duration: Option<u64>,

    /// Change every packet of a mutated run, and not one.
    #[arg(long, requires = "mutate")]
    pub(super) per_packet: bool,

    /// Check only that the peer survives mutated runs, not that its answers keep to the rules.
    #[arg(long, requires = "mutate")]
    pub(super) no_rules: bool,

    /// Shell command that restarts a peer that died, so that the smallest sequence can be found.
    #[arg(long, value_name = "COMMAND", requires = "mutate")]
    pub(super) restart: Option<String>,

    /// Write the smallest sequence that kills the peer into this directory: seed-N.pcapng, and
    /// seed-N.toml for roce conform.
    #[arg(long, value_name = "DIR", requires = "mutate")]
    pub(super) found: Option<PathBuf>,

    /// Play the capture N times; sequence numbers count on.
    #[arg(long = "loop", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
}

/// An end of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideArg {
    /// Index in the report of roce flows, from 0.
    Index(u8),
    /// Address.
    Address(IpAddr),
}

impl std::str::FromStr for SideArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" => Ok(Self::Index(0)),
            "2" => Ok(Self::Index(1)),
            _ => text.parse().map(Self::Address).map_err(|_| "1, 2 or an IP address".to_owned()),
        }
    }
}

fn parse_speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    let factor = text.parse::<f64>().ok().filter(|it| it.is_finite() && (0.001..=1e6).contains(it));
    factor.map(Speed::Times).ok_or_else(|| "a number from 0.001 to 1000000, or max".to_owned())
}

impl LiveArgs {
    /// Whether the capture is to be sent or rewritten.
    pub(crate) fn is_wanted(&self) -> bool {
        self.to.is_some() || self.write.is_some()
    }

    /// Checks what can be checked before the capture is read.
    pub(super) fn check(&self, file: &Path) -> Result<()> {
        self.write.as_deref().map_or(Ok(()), |out| check_out("--write", out, file))?;
        self.record.as_deref().map_or(Ok(()), |out| check_out("--record", out, file))
    }

    /// The peer to connect to by the connection manager.
    pub(super) fn listener(&self) -> Result<Option<SocketAddr>> {
        let Some(at) = &self.connect else { return Ok(None) };
        let mut found = at.to_socket_addrs().with_context(|| {
            format!("--connect {at}: expected HOST:PORT, for example 192.0.2.2:7174")
        })?;
        let first = found.next().with_context(|| format!("--connect: '{at}' has no address"))?;
        Ok(Some(SocketAddr::new(first.ip().to_canonical(), first.port())))
    }

    /// The server that offers queue pairs and memory.
    pub(super) fn server(&self) -> Result<Option<Server>> {
        let any_gid = self.any_gid.any_gid || self.peer.is_some();
        let find = |host: &String| Server::find(host, self.host_port, self.token.get()?, any_gid);
        self.host.as_ref().map(find).transpose()
    }
}

/// Checks that a capture may be written.
fn check_out(flag: &str, out: &Path, file: &Path) -> Result<()> {
    let ending = out.extension().and_then(|it| it.to_str()).unwrap_or_default();
    ensure!(
        matches!(ending, "pcap" | "pcapng"),
        "{flag} {}: name it .pcap or .pcapng",
        out.display()
    );
    outfile::check_capture(flag, out)?;
    outfile::check_not_read(flag, out, &[file.to_owned()])
}
