//! The whole table of opcodes: as a text to read and to review when it changes, and against those
//! of others.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use std::collections::BTreeMap;
use std::fmt::Write;

use roce::wire::{Headers, Layer, Opcode, OpcodeInfo, PayloadRule, Receive, Role, Service};

mod common;
use common::{extension_len, headers_of, opcodes, testdata};

/// The table as `testdata/opcodes.txt` holds it, all 256 values.
fn table() -> String {
    let mut text = String::from(
        "# Every opcode, as the crate knows it. ROCE_BLESS=1 cargo test --test opcodes writes this file anew.\n\
         # Value and name | service, operation, position | headers and their length | payload | sender | receive queue\n",
    );
    for value in 0..=u8::MAX {
        match Opcode(value).info() {
            Some(info) => writeln!(text, "{}", line(info)).unwrap(),
            None => writeln!(text, "{value:#04x} -").unwrap(),
        }
    }
    text
}

fn line(info: &OpcodeInfo) -> String {
    let layers = info.headers.layers();
    let headers: String = layers.map(|(_, layer)| format!(" {layer}")).collect();
    let payload = match info.payload {
        PayloadRule::FullMtu => "MTU".to_owned(),
        PayloadRule::UpToMtu(least) => format!("{least}..MTU"),
        PayloadRule::Exactly(exact) => exact.to_string(),
        PayloadRule::Bitmap => "8..32".to_owned(),
    };
    let role = match info.role {
        Role::Request => "requester",
        Role::Response => "responder",
        Role::Notification => "anyone",
    };
    let receive = match info.receive {
        Receive::Untouched => "-",
        Receive::Taken => "takes",
        Receive::Completed => "completes",
        Receive::TakenAndCompleted => "takes and completes",
    };
    let (value, name, len) = (info.opcode.0, info.name, info.header_len);
    let kind = format!("{:?} {:?} {:?}", info.service, info.operation, info.position);
    let headers = format!("BTH{headers}, {len}");
    format!(
        "{value:#04x} {name:<34} | {kind:<25} | {headers:<31} | {payload:>6} | {role:<9} | {receive}"
    )
}

#[test]
fn the_table_is_what_was_reviewed() {
    let (path, table) = (testdata("opcodes.txt"), table());
    if std::env::var_os("ROCE_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let reviewed = std::fs::read_to_string(&path).unwrap();
    for (found, expected) in table.lines().zip(reviewed.lines()) {
        assert_eq!(found, expected, "ROCE_BLESS=1 writes {path:?} anew");
    }
    assert_eq!(table.lines().count(), reviewed.lines().count());
}

#[test]
fn every_opcode_has_the_headers_that_others_give_it() {
    let assigned: Vec<u8> = Opcode::assigned().map(|info| info.opcode.0).collect();
    assert_eq!(assigned, opcodes());
    for info in Opcode::assigned() {
        let layers: Vec<Layer> = info.headers.layers().map(|(_, layer)| layer).collect();
        assert_eq!(layers, headers_of(info.opcode.0), "{}", info.name);
        let mut offset = 12;
        for (header, layer) in info.headers.layers() {
            assert_eq!(info.headers.offset_of(header), Some(offset), "{} {layer}", info.name);
            assert_eq!(header.byte_len(), extension_len(layer), "{layer}");
            offset += extension_len(layer);
        }
        assert_eq!(info.header_len, offset, "{}", info.name);
    }
    assert_eq!(Headers::all().layers().count(), 11);
}

/// Differences between tshark 4.0 and the crate: the opcode, tshark's name, the crate's name, and
/// the reason.
#[rustfmt::skip]
const DIFFERENCES: [(u8, Option<&str>, Option<&str>, &str); 10] = [
    (0x15, Some("RC_RESERVED"), None, "tshark names a value that is reserved"),
    (0x1c, None, Some("RC_FLUSH"), "newer than this tshark"),
    (0x1d, None, Some("RC_ATOMIC_WRITE"), "newer than this tshark"),
    (0x5c, None, Some("RD_FLUSH"), "newer than this tshark"),
    (0x5d, None, Some("RD_ATOMIC_WRITE"), "newer than this tshark"),
    (0x80, Some("CNP"), Some("IB_CNP"), "InfiniBand's own; RoCEv2 has another"),
    (0x81, None, Some("CNP"), "RoCEv2's, which this tshark does not know"),
    (0xbc, None, Some("XRC_FLUSH"), "newer than this tshark"),
    (0xbd, None, Some("XRC_ATOMIC_WRITE"), "newer than this tshark"),
    (0xd1, None, Some("RC_SELECTIVE_ACKNOWLEDGE"), "this crate's own"),
];

/// A name of tshark's in the kernel's spelling: `Reliable Connection (RC) - CmpSwap` is
/// `RC_COMPARE_SWAP`.
fn kernel_name(tshark: &str) -> String {
    let Some((service, operation)) = tshark.split_once(" - ") else {
        return tshark.to_uppercase();
    };
    let (_, service) = service.split_once('(').unwrap();
    let operation = operation.replace("CmpSwap", "compare swap").replace("FetchAdd", "fetch add");
    format!("{}_{}", service.trim_end_matches(')'), operation.to_uppercase().replace(' ', "_"))
}

#[test]
fn tshark_gives_the_same_meaning_to_every_opcode() {
    let file = include_str!("../testdata/tshark-opcodes.tsv");
    let theirs: BTreeMap<u8, String> = file
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(fields[..2], ["V", "infiniband.bth.opcode"], "{line}");
            (fields[2].parse().unwrap(), kernel_name(fields[3]))
        })
        .collect();
    assert_eq!(theirs.len(), 84);
    for value in 0..=u8::MAX {
        let ours = Opcode(value).info().map(|info| info.name);
        let theirs = theirs.get(&value).map(String::as_str);
        match DIFFERENCES.iter().find(|difference| difference.0 == value) {
            Some(&(_, tshark, crate_, why)) => {
                assert_eq!((theirs, ours), (tshark, crate_), "{value:#04x}: {why}")
            }
            None => assert_eq!(ours, theirs, "{value:#04x}"),
        }
    }
}

#[test]
fn a_name_says_what_the_columns_say() {
    for info in Opcode::assigned().filter(|info| info.service != Service::Cnp) {
        let has = |part: &str| info.name.contains(part);
        let operation = format!("{:?}", info.operation).to_uppercase();
        assert!(info.name.replace('_', "").contains(&operation), "{} is a {operation}", info.name);
        let positions = [("FIRST", true, false), ("MIDDLE", false, false), ("LAST", false, true)];
        let (begins, ends) = positions
            .iter()
            .find(|(part, ..)| has(part))
            .map_or((true, true), |&(_, begins, ends)| (begins, ends));
        assert_eq!((info.position.begins(), info.position.ends()), (begins, ends), "{}", info.name);
        assert_eq!(has("IMMEDIATE"), info.headers.contains(Headers::IMM_DT), "{}", info.name);
        assert_eq!(has("INVALIDATE"), info.headers.contains(Headers::IETH), "{}", info.name);
        let answers = ["RESPONSE", "ACKNOWLEDGE"].iter().any(|part| has(part));
        assert_eq!(info.role == Role::Response, answers, "{}", info.name);
        // A receive is taken by what begins a SEND and by every immediate value that comes with a
        // WRITE.
        let sends = has("SEND");
        assert_eq!(
            info.receive.takes(),
            (sends && begins) || (has("WRITE") && has("IMMEDIATE")),
            "{}",
            info.name
        );
        assert_eq!(
            info.receive.completes(),
            (sends && ends) || (has("WRITE") && has("IMMEDIATE")),
            "{}",
            info.name
        );
        let multi = sends || has("RDMA_WRITE") || has("RESPONSE");
        let payload = match (multi, begins, ends) {
            (true, true, true) => PayloadRule::UpToMtu(0),
            (true, false, true) => PayloadRule::UpToMtu(1),
            (true, ..) => PayloadRule::FullMtu,
            _ if has("SELECTIVE") => PayloadRule::Bitmap,
            (false, ..) => PayloadRule::Exactly(if has("ATOMIC_WRITE") { 8 } else { 0 }),
        };
        assert_eq!(info.payload, payload, "{}", info.name);
    }
}
