//! The arguments of `roce flows`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use roce::analysis::SortBy;
use roce::wire::ROCE_PORT;

use super::fail_on::FailOn;
use super::select::Selector;
use super::threshold::Threshold;
use crate::batches;
use crate::output::Color;
use crate::table_names::TableNames;

/// Say what went wrong in captures: connections, losses, retransmissions, findings
///
/// Finds the connections of a capture, follows the packet sequence numbers of both ends, and
/// prints first what went wrong, worst first, with the frames that prove it, and then one line per
/// connection:
///
///   #         its number: -q#3 shows connection 3 packet by packet
///   ends      addresses and queue pairs; the end that sent the first request comes first
///   goodput   payload of completed messages per second, each byte counted once
///   retrans   packets that a requester retransmitted, for whatever cause
///   lost      packets that were lost, as far as the capture proves it
///   NAK, RNR  negative acknowledgements; receiver not ready
///   p50, p99  latency of messages, from the first packet to the completing ACK or response
///
/// A finding that the packets suggest but do not prove says "likely". Captures of one network at
/// several points are merged by time: name them all.
///
/// Exit status: 0 if there are no findings, 1 if there are (of any kind, or of those that --fail-on
/// names), 2 if a capture could not be read, 130 after Ctrl-C, which prints
/// what was found so far.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Captures to read; - is standard input. Several are merged by time.
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub(super) json: bool,

    /// Show one connection as a ladder: by its number (-q#3), a queue pair (-q 0x11) or an address
    /// (-q 10.9.0.1).
    #[arg(short = 'q', long = "connection", value_name = "QP|ADDRESS|#N")]
    pub(super) select: Option<Selector>,

    /// Show every packet of a ladder instead of folding runs of equal ones.
    #[arg(long, requires = "select")]
    pub(super) full: bool,

    /// Write the report as one HTML page with plots, which needs no network access.
    #[arg(long, value_name = "OUT")]
    pub(super) html: Option<PathBuf>,

    /// Write tables for query engines too, one row per message, per connection and per finding, as
    /// Parquet files below DIR/messages, DIR/connections and DIR/findings:
    /// host=HOST/date=DATE/capture=NAME/part-0.parquet (roce help parquet). NAME and DATE are those
    /// of the first capture.
    #[arg(long, value_name = "DIR")]
    pub(super) parquet: Option<PathBuf>,

    #[command(flatten)]
    pub(super) names: TableNames,

    /// Look only at packets that match this filter; see roce decode --help.
    #[arg(short = 'Y', long, value_name = "EXPR")]
    pub(super) filter: Option<String>,

    /// Value from which on something is a finding; can be given several times. Names: stall,
    /// loss-share, cnps-per-1000-marks, delay.
    #[arg(long = "threshold", value_name = "NAME=VALUE")]
    pub(super) thresholds: Vec<Threshold>,

    /// Exit with status 1 only if there are findings of these kinds, named as in --json, separated
    /// by commas: retry_limit, loss, corruption, ...; any stands for all.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(super) fail_on: Vec<FailOn>,

    /// The order of the connections.
    #[arg(long, value_enum, value_name = "ORDER", default_value_t)]
    pub(super) sort: Sort,

    /// List at most this many findings and this many connections; 0 lists all.
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(super) top: usize,

    /// UDP destination port of RoCEv2.
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,

    /// Threads to decode with [default: as many as there are cores].
    #[arg(short, long, value_name = "N", value_parser = batches::parse_jobs)]
    pub(super) jobs: Option<NonZeroUsize>,

    /// End a capture at the first damaged record, instead of searching for the next valid one.
    #[arg(long)]
    pub(super) strict: bool,

    /// Use of colors.
    #[arg(long, alias = "colour", value_enum, value_name = "WHEN", default_value_t)]
    pub(super) color: Color,
}

const EXAMPLES: &str = "\
Examples:
  roce flows capture.pcap
  roce flows --sort bytes --top 10 big.pcap.zst
  roce flows -q 0x11 capture.pcap | less -R
  roce flows --html report.html at-client.pcap at-switch.pcap at-server.pcap
  roce flows --threshold stall=50ms --threshold loss-share=0.001 capture.pcap
  roce flows --fail-on retry_limit,unanswered,corruption nightly.pcap
  roce flows --json capture.pcap | jq '.findings[].text'
  tcpdump -i eth0 -w - udp port 4791 | roce flows -";

/// The order of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// Worst findings first.
    #[default]
    Trouble,
    /// Most bytes first.
    Bytes,
    /// Order of their first packets.
    Number,
}

impl From<Sort> for SortBy {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Trouble => Self::Trouble,
            Sort::Bytes => Self::Bytes,
            Sort::Number => Self::Number,
        }
    }
}
