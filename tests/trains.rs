//! Frames that hold several packets, as captures of hosts with segmentation offload do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use common::command::{roce, stdout};
use common::testdata;
use common::tmp::Scratch;
use roce::capture::{self, PcapWriter, Record};
use roce::decode::{Context, Decoder};
use roce::time::Instant;
use roce::wire::{
    Bth, BthRepr, Gid, ICRC_ROOM, IcrcVerdict, LinkType, Opcode, Operation, Path, Psn, Qpn,
    ROCE_PORT,
};

/// Path of a capture in `testdata/trains`.
fn path(name: &str) -> String {
    testdata("trains").join(format!("{name}.pcap.zst")).to_str().unwrap().to_owned()
}

/// Calls `each` with every packet of a capture, whose frames are changed by `change`.
fn for_each_packet(name: &str, change: impl Fn(&mut Vec<u8>), mut each: impl FnMut(&Context<'_>)) {
    let mut reader = capture::open(path(name).as_ref()).unwrap();
    let mut decoder = Decoder::new(ROCE_PORT);
    while let Some(record) = reader.next().unwrap() {
        let mut data = record.data.to_vec();
        change(&mut data);
        decoder.decode_with(&Record { data: &data, ..record }, |packet| each(packet));
    }
}

/// Captures, and how many packets of which operations their traffic needs: 1 MiB by packets of
/// 4 KiB; 36 SENDs of 8,000 bytes; 60 READs of 3,000 bytes; 150 SENDs of 64 bytes; 8 WRITEs of
/// 16 KiB over IPv6; 10 WRITEs of 20,000 bytes by `ib_write_bw`; 4 WRITEs of 256 KiB.
const TRAFFIC: [(&str, &[(Operation, usize)]); 8] = [
    ("write", &[(Operation::Write, 256)]),
    ("send", &[(Operation::Send, 36 * 8)]),
    ("read", &[(Operation::ReadRequest, 60), (Operation::ReadResponse, 60 * 3)]),
    ("small", &[(Operation::Send, 150)]),
    ("six", &[(Operation::Write, 8 * 16)]),
    ("perftest", &[(Operation::Write, 10 * 20)]),
    ("coalesced.c1", &[(Operation::Write, 4 * 256)]),
    ("coalesced.c2", &[(Operation::Write, 4 * 256)]),
];

#[test]
fn every_packet_of_a_train_is_found_and_its_icrc_is_right() {
    for (name, expected) in TRAFFIC {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for_each_packet(
            name,
            |_| {},
            |packet| {
                assert_eq!(packet.icrc(), Some(IcrcVerdict::Ok), "{name}: {}", packet.number);
                assert!(packet.frame.error().is_none(), "{name}: {}", packet.number);
                let operation = packet.frame.packet().unwrap().info().unwrap().operation;
                *counts.entry(roce::analysis::operation_name(operation)).or_default() += 1;
            },
        );
        for &(operation, count) in expected {
            let found = counts.get(roce::analysis::operation_name(operation));
            assert_eq!(found, Some(&count), "{name}: {counts:?}");
        }
    }
}

#[test]
fn captures_with_trains_have_no_finding_and_no_difference() {
    let single = TRAFFIC.map(|(name, _)| vec![path(name)]);
    let both = vec![path("coalesced.c1"), path("coalesced.c2")];
    // Each of three hosts writes to the next: of some flows one end was captured, of some both.
    let rings: [&[&str]; 4] = [&["1"], &["1", "3"], &["2", "3"], &["1", "2", "3"]];
    let rings =
        rings.map(|hosts| hosts.iter().map(|host| path(&format!("ring.h{host}"))).collect());
    for files in single.into_iter().chain([both]).chain(rings) {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let flows = roce(&[&["flows", "--json"], files.as_slice()].concat());
        let report: serde_json::Value = serde_json::from_slice(&flows.stdout).unwrap();
        assert_eq!(report["findings"], serde_json::json!([]), "{files:?}");
        assert_eq!(flows.status.code(), Some(0), "{files:?}");
        let replay = roce(&[&["replay", "--json"], files.as_slice()].concat());
        let report: serde_json::Value = serde_json::from_slice(&replay.stdout).unwrap();
        assert_eq!(report["counts"]["different"], 0, "{files:?}");
        assert_eq!(report["counts"]["undecided"], 0, "{files:?}: {}", report["counts"]);
    }
}

/// Frames of a capture, as the packets in them were on the wire.
fn frames(name: &str) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for_each_packet(name, |_| {}, |packet| all.push(packet.frame.bytes().to_vec()));
    all
}

/// The sender of this capture segmented and computed checksums itself, and the receiver's kernel
/// coalesced: the trains must be split into what was sent, byte by byte.
#[test]
fn split_packets_are_what_was_on_the_wire() {
    let mut sent = frames("coalesced.c1");
    let mut split = frames("coalesced.c2");
    assert!(sent.len() > 1000);
    sent.sort();
    split.sort();
    assert!(sent == split, "lengths, identifications and checksums are those of the sender");
}

#[test]
fn summary_and_reports_tell_of_trains() {
    let file = path("send");
    let summary = stdout(&["decode", "--summary", &file]);
    assert!(summary.contains("36 frames held 288 packets: segmentation offload"), "{summary}");
    assert!(summary.contains("RoCE frames    41\n"), "{summary}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&["decode", "--summary", "--json", &file])).unwrap();
    assert_eq!(json["trains"], serde_json::json!({"frames": 36, "packets": 288, "cut_off": 0}));
    for command in ["flows", "replay"] {
        let text = stdout(&[command, &file]);
        assert!(text.contains("36 frames held 288 packets: segmentation offload."), "{text}");
    }
    let page = Scratch::new("trains.html", b"");
    assert_eq!(roce(&["flows", "--html", page.path(), &file]).status.code(), Some(0));
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("36 frames held 288 packets: segmentation offload."));
}

#[test]
fn packets_keep_their_frame_number_and_have_an_index() {
    let file = path("small");
    let columns = ["-e", "frame.number", "-e", "roce.train.index", "-e", "roce.train.len"];
    let rows = stdout(&[&["decode", &file], columns.as_slice()].concat());
    let mut trains: BTreeMap<&str, Vec<(u32, u32)>> = BTreeMap::new();
    for row in rows.lines() {
        let cells: Vec<&str> = row.split('\t').collect();
        if let (Ok(index), Ok(len)) = (cells[1].parse(), cells[2].parse()) {
            trains.entry(cells[0]).or_default().push((index, len));
        }
    }
    assert!(!trains.is_empty());
    for (frame, packets) in trains {
        let expected: Vec<_> = (1..).zip(packets.iter().map(|packet| packet.1)).collect();
        assert_eq!(packets, expected, "frame {frame}");
        assert_eq!(packets.len(), packets[0].1 as usize, "frame {frame}");
    }
    let lines = stdout(&["decode", "-#", "-Y", "roce.train.index == 3", &file]);
    let first = lines.lines().next().unwrap().split_whitespace().next().unwrap();
    assert!(first.ends_with(".3"), "{lines}");
    assert_eq!(stdout(&["decode", "-c", "7", &file]).lines().count(), 7, "a part of a train");
    assert_eq!(stdout(&["decode", "-c", "7", "-l", &file]).lines().count(), 7);
}

#[test]
fn written_packets_are_frames_of_their_own() {
    let out = Scratch::new("split.pcap", b"");
    let file = path("read");
    stdout(&["decode", "-w", out.path(), &file]);
    let fields =
        ["-e", "infiniband.bth.psn", "-e", "roce.icrc", "-e", "ip.len", "-e", "udp.length"];
    let of = |file: &str| stdout(&[&["decode", file], fields.as_slice()].concat());
    assert_eq!(of(out.path()), of(&file));
    let numbers = stdout(&["decode", "-e", "frame.number", out.path()]);
    let expected: String = (1..=240).map(|number| format!("{number}\n")).collect();
    assert_eq!(numbers, expected);
    assert!(!stdout(&["decode", "--summary", out.path()]).contains("trains"));
}

/// A packet from BTH through ICRC, with identification `id`.
fn packet(opcode: Opcode, psn: u32, payload: usize, id: u16) -> Vec<u8> {
    let bth = BthRepr::new(opcode, Qpn::new(0x11), Psn::new(psn)).emit();
    let mut bytes = bth.as_bytes().to_vec();
    assert_eq!(bytes.len(), Bth::LEN);
    bytes.extend((0..payload).map(|at| u8::try_from(at % 251).unwrap()));
    bytes.extend([0; ICRC_ROOM]);
    let prefix = path_of_packets().prefix_with_id(bytes.len(), id);
    prefix.seal(&mut bytes);
    bytes
}

fn path_of_packets() -> Path {
    let host = |number| Gid::from(Ipv4Addr::new(192, 0, 2, number));
    Path { source: host(1), destination: host(2), hop_limit: 64, ..Path::NOWHERE }
}

/// A frame of the packets.
fn train(packets: &[Vec<u8>], id: u16) -> Vec<u8> {
    let all = packets.concat();
    let headers = path_of_packets().headers_with_id(all.len(), id);
    let (ip, udp) = headers.as_bytes();
    [ip, udp, &all].concat()
}

/// Sequence number, ICRC verdict and length of the packets in a frame of which so much was
/// captured.
fn packets_of(frame: &[u8], captured: usize) -> Vec<(u32, IcrcVerdict, usize)> {
    let mut found = Vec::new();
    let whole = Record::frame(LinkType::RAW, frame);
    let record = Record { data: &frame[..captured.min(frame.len())], ..whole };
    Decoder::new(ROCE_PORT).decode_with(&record, |context| {
        let Some(packet) = context.frame.packet() else { return };
        found.push((packet.bth().psn().get(), context.icrc().unwrap(), packet.payload_len()));
    });
    found
}

#[test]
fn a_train_that_has_the_length_of_a_packet_is_split() {
    // 16 + 256 and 16 + 240 bytes are as long as one packet of 512.
    let first = packet(Opcode::RC_SEND_MIDDLE, 1, 256, 0);
    let last = packet(Opcode::RC_SEND_LAST, 2, 240, 1);
    let frame = train(&[first, last], 0);
    let expected = [(1, IcrcVerdict::Ok, 256), (2, IcrcVerdict::Ok, 240)];
    assert_eq!(packets_of(&frame, usize::MAX), expected);
}

#[test]
fn packets_with_any_identification_are_split() {
    // As they come from several sends, or from one that gives all the same number.
    for ids in [[7, 8, 9, 10], [7, 7, 7, 7], [7, 0, 1, 40_000]] {
        let packets: Vec<_> =
            (1..).zip(ids).map(|(psn, id)| packet(Opcode::RC_SEND_ONLY, psn, 100, id)).collect();
        let expected: Vec<_> = (1..=4).map(|psn| (psn, IcrcVerdict::Ok, 100)).collect();
        assert_eq!(packets_of(&train(&packets, 7), usize::MAX), expected, "{ids:?}");
    }
}

#[test]
fn a_damaged_packet_of_a_train_is_the_only_bad_one() {
    for damaged in 0..4_u32 {
        let mut packets: Vec<_> = (0..4)
            .map(|at| packet(Opcode::RC_SEND_MIDDLE, at, 1024, u16::try_from(at).unwrap()))
            .collect();
        packets[damaged as usize][500] ^= 1;
        let expected: Vec<_> = (0..4)
            .map(|at| (at, if at == damaged { IcrcVerdict::Bad } else { IcrcVerdict::Ok }, 1024))
            .collect();
        assert_eq!(packets_of(&train(&packets, 0), usize::MAX), expected);
    }
}

#[test]
fn packets_before_the_cut_of_a_train_are_found_and_the_rest_is_named() {
    let packets: Vec<_> = (0..5)
        .map(|at| packet(Opcode::RC_SEND_MIDDLE, at, 1024, u16::try_from(at).unwrap()))
        .collect();
    let frame = train(&packets, 0);
    // Headers, two packets, and 100 bytes of the third.
    let captured = 28 + 2 * (16 + 1024) + 100;
    let expected =
        [(0, IcrcVerdict::Ok, 1024), (1, IcrcVerdict::Ok, 1024), (2, IcrcVerdict::Absent, 1024)];
    assert_eq!(packets_of(&frame, captured), expected);
    // Without a whole packet nothing is proven, and the frame stays what it is.
    assert_eq!(packets_of(&frame, 600).len(), 1);
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    let len = u32::try_from(frame.len()).unwrap();
    writer.write(Instant::from_nanos(1), len, &frame[..captured]).unwrap();
    let file = Scratch::new("cut-train.pcap", writer.into_inner());
    let summary = stdout(&["decode", "--summary", file.path()]);
    let text = "1 frame held 3 packets: segmentation offload; 2 more were cut off";
    assert!(summary.contains(text), "{summary}");
}

#[test]
fn a_packet_that_holds_packets_is_not_split() {
    let inner = [packet(Opcode::RC_SEND_ONLY, 1, 64, 0), packet(Opcode::RC_SEND_ONLY, 2, 64, 1)];
    let inner = inner.concat();
    let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(9)).emit();
    let mut outer = [bth.as_bytes().as_slice(), &inner, &[0; ICRC_ROOM]].concat();
    path_of_packets().prefix(outer.len()).seal(&mut outer);
    let expected = [(9, IcrcVerdict::Ok, inner.len())];
    assert_eq!(packets_of(&train(&[outer], 0), usize::MAX), expected);
}
