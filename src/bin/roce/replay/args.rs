//! The arguments of `roce replay`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use roce::wire::ROCE_PORT;

use super::judge::{Address, Profile, RegionArg};
use super::live::LiveArgs;
use crate::batches;
use crate::output::Color;

/// Judge every packet of captures: could a correct device have sent it?
///
/// Rebuilds the queue pairs of a capture in an engine that keeps to the specification, gives it the
/// captured requests, and compares its answers with the captured ones by meaning: kind, PSN,
/// syndrome, MSN, data. Requests are checked against the rules for requesters. Each packet
/// gets one verdict:
///
///   agreed      a correct device could have sent it
///   known       it breaks a rule, and the table of its device says that such devices do
///   undecided   the capture does not tell, because packets are missing or cut
///   DIFFERENCE  no correct device sends it; both packets, the rule, and where the rule is from
///
/// What a capture does not show (registered memory, receives, memory contents) is taken from the
/// answers; answers that contradict each other are differences. Files are read twice, so they
/// cannot be pipes. Captures of one network at several points are merged by time: name them all.
///
/// --to DEVICE sends the requests of one side of each connection to a live peer instead, rewritten:
/// addresses, queue pairs, sequence numbers, keys and memory are those of the peer, checksums are
/// made anew. --host HOST asks a server there (roce serve --offer) for queue pairs and memory;
/// --connect HOST:PORT connects to any listener by the connection manager; without one, --peer
/// and --map say what to map onto. Answers that arrive are compared with those
/// of the capture. --write OUT writes the rewritten capture instead of sending it.
///
/// Exit status: 0 if there are no differences, 1 if there are, 2 if a capture could not be read
/// or not be replayed, 130 after Ctrl-C.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Captures to read. Several are merged by time.
    #[arg(value_name = "FILE", required_unless_present = "rules")]
    pub(super) files: Vec<PathBuf>,

    /// Deviations that are known of a device, of all devices (rxe) or of the one at an address
    /// (10.9.0.1=rxe); can be given several times.
    #[arg(long = "device-profile", value_name = "[ADDRESS=]DEVICE")]
    pub(super) profiles: Vec<Profile>,

    /// The capture was made at the host with this address: it sent no other responses than those in
    /// the capture, and received every request in it.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) at: Option<Address>,

    /// Memory that a host registered, so that every access with this key is decided; can be given
    /// several times. ACCESS is any of r (READ), w (WRITE), a (ATOMIC).
    #[arg(long = "region", value_name = "HOST,RKEY,ADDRESS,LENGTH,ACCESS")]
    pub(super) regions: Vec<RegionArg>,

    /// Programs write to their registered memory at any time, so READ data and ATOMIC results are
    /// not compared.
    #[arg(long)]
    pub(super) program_writes: bool,

    /// Print the verdict on every packet.
    #[arg(short, long)]
    pub(super) verbose: bool,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub(super) json: bool,

    /// Write the report as a test suite in JUnit's format.
    #[arg(long, value_name = "OUT")]
    pub(super) junit: Option<PathBuf>,

    /// List the rules, with their citations, and exit.
    #[arg(long)]
    pub(super) rules: bool,

    /// Threads to decode and judge on; by default as many as there are cores.
    #[arg(short, long, value_name = "N", value_parser = batches::parse_jobs)]
    pub(super) jobs: Option<NonZeroUsize>,

    /// UDP destination port of RoCEv2.
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,

    /// End a capture at the first damaged record, instead of searching for the next valid one.
    #[arg(long)]
    pub(super) strict: bool,

    #[command(flatten)]
    pub(super) live: LiveArgs,

    /// Use of colors.
    #[arg(long, alias = "colour", value_enum, value_name = "WHEN", default_value_t)]
    pub(super) color: Color,
}

const EXAMPLES: &str = "\
Examples:
  roce replay capture.pcap
  roce replay --device-profile rxe soft-roce.pcap
  roce replay --device-profile 10.9.0.2=rxe -v capture.pcap
  roce replay --at 10.9.0.2 at-server.pcap
  roce replay --region 10.9.0.2,0x1234,0x7f0000000000,4096,rw capture.pcap
  roce replay --json capture.pcap | jq '.listed[] | [.frame, .rule.id, .found]'
  roce replay --junit replay.xml capture.pcap
  roce replay --rules";
