//! The arguments of `roce decode`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgAction, Args as ClapArgs};
use roce::decode::{FieldRef, Filter, unknown_field};
use roce::wire::ROCE_PORT;

use crate::batches;
use crate::output::Color;
use crate::table_names::TableNames;

/// Decode the packets of captures
///
/// Reads pcap and pcapng, plain or compressed with gzip or zstd. Without options, prints one
/// line per packet:
///
///   00:06:59.404559 IP 10.9.0.1.49441 > 10.9.0.2.4791: RC_SEND_ONLY qp 0x11 psn 5 len 64 icrc ok
///
/// A frame with several packets (a train), from a host that leaves segmentation to its NIC or
/// coalesces received packets, is split at the boundaries that ICRCs prove. Its packets keep the
/// frame number; roce.train.index counts them. -w writes each packet as a frame of its own.
///
/// Packets of several captures are merged by time; frame.number counts the frames of all captures,
/// and frame.file is the capture that a packet is from.
///
/// A damaged record is skipped: reading goes on at the next valid one, a line on standard error
/// says what was skipped, and the exit status is 1. With --strict, the capture ends there (2).
///
/// RoCE packets have their ICRC checked: ok, bad, or absent where the capture cut the packet
/// short. Times are UTC.
///
/// Fields have tshark's names (infiniband.bth.psn, ip.src, frame.number); fields that tshark does
/// not have begin with roce (roce.icrc, roce.opcode_name, roce.aeth.kind). --list-fields lists all.
///
/// Filters are Wireshark's: they compare fields with values or with other fields, == != < <= > >=
/// (or eq ne lt le gt ge), after & takes bits of a number; in {1, 5..9} asks for one of several
/// values, contains and matches search text and bytes. Tests are joined by && || ^^ ! (or and or
/// xor not) and parentheses. A name alone asks whether the field is present. Addresses may be
/// prefixes (ip.addr == 10.9.0.0/16), opcodes have names (RC_SEND_ONLY). `roce help filter` is the
/// reference.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Captures to read; - is standard input. Several are merged by time.
    #[arg(value_name = "FILE", required_unless_present = "list_fields")]
    pub(super) files: Vec<PathBuf>,

    /// Show every field of each packet, with its name and its bytes.
    #[arg(short = 'V', long, conflicts_with_all = ["json", "fields", "summary"])]
    pub(super) verbose: bool,

    /// Print one JSON object per packet (with --summary, one object in all).
    #[arg(long)]
    pub(super) json: bool,

    /// Print only this field; can be given several times. Columns are separated by tabs.
    #[arg(short = 'e', long = "field", value_name = "FIELD", conflicts_with = "summary")]
    pub(super) fields: Vec<String>,

    /// Show only packets that match this filter.
    #[arg(short = 'Y', long, value_name = "EXPR")]
    pub(super) filter: Option<String>,

    /// Print a summary instead: packets by opcode, ICRC verdict, conversation, NAK and RNR NAK.
    #[arg(long)]
    pub(super) summary: bool,

    /// UDP destination port of RoCEv2.
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,

    /// Stop after this many packets were shown or counted.
    #[arg(short = 'c', long, value_name = "COUNT")]
    pub(super) count: Option<u64>,

    /// Print the frame number at the start of each line. A packet of a train has its position
    /// behind a period: 12.3.
    #[arg(short = '#', long)]
    pub(super) number: bool,

    /// Print no time; -tt: seconds since 1970; -ttt: since the previous packet; -tttt: date and
    /// time; -ttttt: since the first packet.
    #[arg(short = 't', action = ArgAction::Count)]
    pub(super) time: u8,

    /// Flush after each packet, to follow a live capture through a pipe.
    #[arg(short = 'l', long)]
    pub(super) line_buffered: bool,

    /// Write a table of the packets for query engines instead, one Parquet file per capture:
    /// DIR/packets/host=HOST/date=DATE/capture=NAME/part-0.parquet (roce help parquet). With -e,
    /// only these fields are columns.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["verbose", "json", "summary"])]
    pub(super) parquet: Option<PathBuf>,

    #[command(flatten)]
    pub(super) names: TableNames,

    /// Write the packets to a capture instead: a pcap or a pcapng by the ending of OUT, otherwise
    /// in the format of the input. Times keep their nanoseconds; a pcapng keeps interfaces and
    /// comments. - is standard output.
    #[arg(short, long, value_name = "OUT", conflicts_with_all = ["verbose", "json", "fields", "summary", "parquet"])]
    pub(super) write: Option<PathBuf>,

    /// Threads to decode with [default: as many as there are cores]; pipes and --line-buffered use
    /// one.
    #[arg(short, long, value_name = "N", value_parser = batches::parse_jobs)]
    pub(super) jobs: Option<NonZeroUsize>,

    /// End a capture at the first damaged record, instead of searching for the next valid one.
    #[arg(long)]
    pub(super) strict: bool,

    /// Use of colors.
    #[arg(long, alias = "colour", value_enum, value_name = "WHEN", default_value_t)]
    pub(super) color: Color,

    /// List all field names with their labels, and exit.
    #[arg(long)]
    pub(super) list_fields: bool,
}

const EXAMPLES: &str = "\
Examples:
  roce decode capture.pcapng
  roce decode --summary big.pcap.zst
  roce decode --filter 'roce.icrc == bad || roce.aeth.kind == NAK' capture.pcap
  roce decode -Y 'infiniband.bth.opcode in {RC_SEND_ONLY, 6..8} && frame.len > 1000' a.pcap b.pcap
  roce decode -e frame.number -e infiniband.bth.opcode -e infiniband.bth.psn capture.pcap
  roce decode -Y 'infiniband.bth.destqp == 0x11' -w qp.pcapng left.pcapng right.pcapng
  tcpdump -i eth0 -w - udp port 4791 | roce decode -l -";

/// Parses a filter. The error shows the place in `source` at which parsing stopped.
pub(crate) fn parse_filter(source: &str) -> anyhow::Result<Filter> {
    Filter::parse(source).map_err(|error| {
        let marked = error.point(source).replace('\n', "\n  ");
        anyhow::anyhow!("--filter: {error}\n  {marked}")
    })
}

/// Finds a field that an option `-e` names.
pub(super) fn find_field(name: &str) -> anyhow::Result<FieldRef> {
    let unknown = || format!("-e: {} (--list-fields lists all)", unknown_field(name));
    FieldRef::find(name).with_context(unknown)
}
