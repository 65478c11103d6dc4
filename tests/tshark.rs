//! Field by field, the decoder says what tshark says; where it does not, one table says why.
//!
//! What tshark says was written down by `tools/tshark/golden`, so that no tshark is needed here. To
//! compare other captures, write theirs down too and name both directories:
//!
//! ```text
//! tools/tshark/golden /tmp/golden some/captures/*.pcap
//! ROCE_GOLDEN=/tmp/golden ROCE_CAPTURES=some/captures cargo test --test tshark
//! ```
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use roce::decode::{Decoder, FieldRef, write_columns};
use roce::wire::ROCE_PORT;

mod common;

/// A frame as tshark shows it: a value a field.
type Row = BTreeMap<String, String>;

/// A difference that is meant to be, and why.
struct Exception {
    /// The fields: `*` stands for any start or end of a name.
    fields: &'static [&'static str],
    /// Whether the exception applies to a frame.
    applies: fn(&Row) -> bool,
    reason: &'static str,
    /// Whether only where tshark shows nothing.
    silent: bool,
    /// Whether no committed capture needs it, but one that cannot be committed.
    elsewhere: bool,
}

/// Creates an exception where tshark prints a wrong or useless value.
const fn says(
    fields: &'static [&'static str],
    applies: fn(&Row) -> bool,
    reason: &'static str,
) -> Exception {
    Exception { fields, applies, reason, silent: false, elsewhere: false }
}

/// Creates an exception where tshark prints nothing.
const fn silent(
    fields: &'static [&'static str],
    applies: fn(&Row) -> bool,
    reason: &'static str,
) -> Exception {
    Exception { fields, applies, reason, silent: true, elsewhere: false }
}

impl Exception {
    const fn elsewhere(mut self) -> Self {
        self.elsewhere = true;
        self
    }
}

const ALWAYS: fn(&Row) -> bool = |_| true;

/// Every exception there is.
const EXCEPTIONS: &[Exception] = &[
    // Where tshark is wrong.
    silent(
        &["infiniband*"],
        |row| tshark_sees(row, "udp.srcport", "69"),
        "hns hardware sends from port 69, and tshark takes its packets for TFTP",
    ),
    silent(
        &["infiniband.invariant.crc"],
        ALWAYS,
        "tshark calls short and empty payloads malformed, and does not know CNP, XRC, FLUSH and ATOMIC WRITE, so that \
         it shows no ICRC behind them",
    ),
    silent(
        &["data.*"],
        ALWAYS,
        "tshark gave the payload to another dissector (RPC, SDP, IPoIB, MAD) or called it malformed",
    ),
    says(&["rpcordma.*"], ALWAYS, "payloads that tshark mistakes for RPC over RDMA"),
    says(
        &[
            "infiniband.bth",
            "infiniband.rdeth*",
            "infiniband.deth*",
            "infiniband.reth*",
            "infiniband.aeth*",
            "infiniband.immdt",
            "infiniband.reserved",
            "data.*",
        ],
        is_reliable_datagram,
        "reliable datagrams, which tshark takes for Mellanox's dynamically connected transport with its longer BTH",
    ),
    silent(
        &["infiniband.atomic*"],
        is_reliable_datagram,
        "atomics of reliable datagrams, for the same reason",
    ),
    silent(
        &[
            "infiniband.reth*",
            "infiniband.aeth*",
            "infiniband.atomic*",
            "infiniband.immdt",
            "infiniband.ieth",
        ],
        |row| row.get("infiniband.vendor").is_some_and(|bytes| !bytes.is_empty()),
        "the headers of opcodes that tshark 4.0 does not know (XRC, FLUSH, ATOMIC WRITE)",
    ),
    says(
        &["infiniband.vendor"],
        ALWAYS,
        "what tshark shows of opcodes it does not know (CNP, XRC, FLUSH, ATOMIC WRITE)",
    ),
    says(
        &[
            "infiniband.cm.req.prim_flowlabel",
            "infiniband.cm.req.prim_pktrate",
            "infiniband.cm.req.prim_reserved0",
            "infiniband.cm.req.alt_flowlabel",
            "infiniband.cm.req.alt_pktrate",
            "infiniband.cm.req.alt_reserved0",
        ],
        |row| tshark_sees(row, "infiniband.mad.attributeid", "0x0010"),
        "tshark reads the word of flow label and packet rate at the wrong width: rdma_cm's flow label is source port \
         times 31 plus destination port, which is what stands in the twenty bits read here",
    ),
    says(&["infiniband.cm.rej.reserved0"], ALWAYS, "tshark shows two of the six reserved bits"),
    says(
        &["infiniband.smpdirected.d"],
        ALWAYS,
        "tshark looks for the direction bit of the status in a 64-bit word",
    )
    .elsewhere(),
    silent(
        &["eth.*", "infiniband", "infiniband.bth*", "infiniband.reth", "infiniband.reserved"],
        |row| row["frame.cap_len"] != row["frame.len"],
        "of some headers that were cut, tshark does not show what there is",
    ),
    // Names that stand for no field.
    says(
        &["infiniband.smplid.smpdata"],
        ALWAYS,
        "a name that tshark gives to the subtrees of whole messages; infiniband.mad.data has the bytes",
    ),
    says(
        &["infiniband.smpdirected", "infiniband.sa.drdlid"],
        ALWAYS,
        "names that tshark gives to subtrees",
    )
    .elsewhere(),
    says(&["raw"], ALWAYS, "tshark's name for no link layer"),
    // What is not of the packet.
    says(&["*_resolved"], ALWAYS, "addresses with the vendor's name, from tshark's own list"),
    says(
        &["*.checksum.status"],
        ALWAYS,
        "whether tshark was asked to verify it; it was not, and RoCE has the ICRC",
    ),
    says(
        &["udp.checksum.zero", "ip.ttl.too_small"],
        ALWAYS,
        "opinions of tshark's: RoCEv2 sends no UDP checksum over IPv6, and any TTL",
    ),
    says(
        &["udp.stream", "udp.time_*"],
        ALWAYS,
        "tshark's count of UDP conversations, and times within them: every conversation of the capture would have to \
         be remembered",
    ),
    says(
        &["frame.encap_type", "frame.ignored", "frame.marked", "frame.offset_shift"],
        ALWAYS,
        "tshark's own number of the link type, and marks that a user of Wireshark sets",
    ),
    says(
        &["frame.interface_name", "frame.interface_description"],
        ALWAYS,
        "names of interfaces are not read",
    ),
    says(
        &["frame.interface_id"],
        |row| row.get("erf.types").is_some_and(|types| !types.is_empty()),
        "interfaces that tshark makes up for ERF records",
    )
    .elsewhere(),
    // What is not RoCE.
    says(
        &["data.*"],
        |row| row.get("infiniband.bth").is_none_or(|bth| bth.is_empty()),
        "payload of a frame that is not RoCE, which is not decoded",
    ),
    says(
        &["ip.opt.*", "ip.options.*", "ip.nop", "ipv6.hopopts.*", "ipv6.dstopts.*", "ipv6.opt.*"],
        ALWAYS,
        "options and extension headers are shown as bytes (roce.ip.options, roce.ipv6.extension)",
    ),
    says(
        &["geneve.option", "geneve.option.*", "erspan.pid*", "erspan.platid"],
        ALWAYS,
        "options of tunnels are shown as bytes (geneve.options, roce.erspan.subheader)",
    ),
    says(&["erspan"], ALWAYS, "tshark adds the type to the name of the layer"),
    says(&["gre.checksum.incorrect"], ALWAYS, "the checksum of GRE is not verified"),
    says(
        &["eth.trailer", "eth.fcs*"],
        ALWAYS,
        "what follows the datagram in its frame is not decoded",
    ),
    says(
        &["erf.ehdr.*", "erf.eth.*", "erf.packet_loss"],
        ALWAYS,
        "extension headers and padding of ERF records are skipped",
    ),
    says(
        &["ip.*", "ipv6.*", "udp.*", "data.*", "infiniband.reserved", "arp.*", "icmp*"],
        |row| row.get("infiniband.rwh.etype").is_some_and(|etype| !etype.is_empty()),
        "IPoIB: tshark goes on into the IP datagram, ARP or ICMP message in the payload",
    )
    .elsewhere(),
    says(&["infiniband.payload", "infiniband.rwh.etype"], ALWAYS, "shown for IPoIB only")
        .elsewhere(),
];

fn is_reliable_datagram(row: &Row) -> bool {
    let opcode = row.get("infiniband.bth.opcode").and_then(|opcode| opcode.parse().ok());
    opcode.is_some_and(|opcode: u8| (0x40..0x60).contains(&opcode))
}

/// Whether tshark shows this value.
fn tshark_sees(row: &Row, field: &str, value: &str) -> bool {
    row.get(field).is_some_and(|found| found == value)
}

impl Exception {
    fn covers(&self, name: &str, row: &Row) -> bool {
        let named = |field: &&str| match (field.strip_prefix('*'), field.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (None, Some(start)) => name.starts_with(start),
            (None, None) => name == *field,
        };
        let fits = !self.silent || row.get(name).is_none_or(|theirs| theirs.is_empty());
        fits && self.fields.iter().any(named) && (self.applies)(row)
    }
}

/// Long values are kept as their length and CRC.
fn shortened(value: String) -> String {
    if value.len() <= 64 {
        return value;
    }
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(value.as_bytes());
    format!("#{}:{crc:08x}", value.len())
}

/// Returns tshark's output for a capture: the fields, and a row a frame.
fn golden(path: &Path) -> (Vec<String>, Vec<Row>) {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("# TShark"), "{path:?}");
    let names: Vec<String> = lines.next().unwrap().split('\t').map(str::to_owned).collect();
    let row = |line: &str| names.iter().cloned().zip(line.split('\t').map(str::to_owned)).collect();
    let rows = lines.map(row).collect();
    (names, rows)
}

/// Number of uses of each exception, by its index in the table.
type Used = BTreeMap<usize, usize>;

/// Compares a capture with what tshark said of it; returns how many values agreed.
fn compare(capture: &Path, golden_file: &Path, used: &mut Used, wrong: &mut Vec<String>) -> usize {
    let (names, rows) = golden(golden_file);
    let known: BTreeMap<&str, FieldRef> =
        names.iter().filter_map(|name| Some((name.as_str(), FieldRef::find(name)?))).collect();
    let mut reader = roce::capture::open(capture).unwrap();
    let mut decoder = Decoder::new(ROCE_PORT);
    let (mut agreed, mut frames) = (0, 0);
    while let Some(record) = reader.next().unwrap() {
        let packet = decoder.decode(&record);
        let row = &rows[frames];
        frames += 1;
        for (name, theirs) in row {
            let ours = known.get(name.as_str()).map_or_else(String::new, |field| {
                let mut text = String::new();
                write_columns(&packet, std::slice::from_ref(field), &mut text);
                shortened(text)
            });
            if ours == *theirs {
                agreed += usize::from(!ours.is_empty());
                continue;
            }
            match EXCEPTIONS.iter().position(|exception| exception.covers(name, row)) {
                Some(exception) => *used.entry(exception).or_default() += 1,
                None => wrong.push(format!(
                    "{capture:?} frame {frames}: {name} is '{ours}', and tshark says '{theirs}'"
                )),
            }
        }
    }
    assert_eq!(frames, rows.len(), "{capture:?} has as many frames as tshark found");
    agreed
}

#[test]
fn every_field_of_every_capture_agrees_with_tshark() {
    let mut sets = vec![(common::testdata("captures"), common::testdata("golden"))];
    if let (Some(captures), Some(golden)) =
        (std::env::var_os("ROCE_CAPTURES"), std::env::var_os("ROCE_GOLDEN"))
    {
        sets.push((PathBuf::from(captures), PathBuf::from(golden)));
    }
    let (mut used, mut wrong, mut agreed) = (Used::new(), Vec::new(), 0);
    for (captures, golden) in sets {
        let mut files: Vec<_> =
            std::fs::read_dir(&golden).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{golden:?}");
        for file in files {
            let name = file.file_name().unwrap().to_str().unwrap();
            let capture = captures.join(name.strip_suffix(".tsv.gz").unwrap());
            agreed += compare(&capture, &file, &mut used, &mut wrong);
        }
    }
    for (at, exception) in EXCEPTIONS.iter().enumerate() {
        let times = used.get(&at).copied().unwrap_or(0);
        println!("{times:>6} times {}: {}", exception.fields.join(" "), exception.reason);
        assert!(times > 0 || exception.elsewhere, "no packet needs it: {}", exception.reason);
    }
    println!("{agreed} values agree");
    assert!(
        wrong.is_empty(),
        "{} differ, of them\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(agreed > 300_000, "only {agreed} values were compared");
}

#[test]
fn every_capture_has_its_golden_output() {
    for entry in std::fs::read_dir(common::testdata("captures")).unwrap() {
        let capture = entry.unwrap().path();
        let name = format!("{}.tsv.gz", capture.file_name().unwrap().to_str().unwrap());
        assert!(
            common::testdata("golden").join(&name).exists(),
            "run tools/tshark/golden for {name}"
        );
    }
}
