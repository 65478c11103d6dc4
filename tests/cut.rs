//! `roce decode` on several captures and on damaged ones, and the captures it writes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
use common::command::{command, roce, stdout};
use common::process::{Child, Command};
use common::testdata;
use common::tmp::Scratch;
use roce::capture::{LinkType, PcapWriter};
use roce::decode::{Decoder, Filter};
use roce::time::Instant;
use roce::wire::ROCE_PORT;
use rustix::process::Signal;

/// A pcap of frames of one byte at these times, in microseconds.
fn pcap(times: &[u64]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::ETHERNET).unwrap();
    for &time in times {
        writer.write(Instant::from_nanos(time * 1000), 60, &[0; 60]).unwrap();
    }
    writer.into_inner()
}

#[test]
fn several_captures_are_merged_by_time() {
    let (a, b) = (Scratch::new("a.pcap", pcap(&[1, 5])), Scratch::new("b.pcap", pcap(&[2, 4])));
    let fields = ["-e", "frame.number", "-e", "frame.time_epoch", "-e", "frame.file"];
    let args: Vec<_> = ["decode", a.path(), b.path()].into_iter().chain(fields).collect();
    let expected: String = [(1, a.path()), (2, b.path()), (4, b.path()), (5, a.path())]
        .iter()
        .zip(1..)
        .map(|((time, file), number)| format!("{number}\t0.00000{time}000\t{file}\n"))
        .collect();
    assert_eq!(stdout(&args), expected);
    let filter = format!("frame.file == \"{}\"", b.path());
    assert_eq!(stdout(&["decode", "-Y", &filter, a.path(), b.path()]).lines().count(), 2);
    assert_eq!(stdout(&["decode", "-Y", &filter, b.path()]).lines().count(), 2);
    let json = stdout(&["decode", "--json", "-c", "1", a.path(), b.path()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["frame.file"], a.path());
    let alone = stdout(&["decode", "--json", "-c", "1", a.path()]);
    assert!(!alone.contains("frame.file"), "one file has no need of its name: {alone}");
}

#[test]
fn standard_input_can_be_merged_but_only_once() {
    let output = roce(&["decode", "-", "-"]);
    assert_eq!(output.status.code(), Some(2));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("standard input") && err.contains("twice"), "{err}");
    let file = testdata("captures").join("rxe_cm.pcap");
    let file = file.to_str().unwrap();
    let twice = stdout(&["decode", "-e", "infiniband.bth.psn", file, file]);
    assert_eq!(twice.lines().count(), 2 * 182);
    let pairs: Vec<_> = twice.lines().collect();
    assert!(pairs.chunks(2).all(|pair| pair[0] == pair[1]), "equal times come in turn");
}

/// `rxe_cm.pcap` with the captured length of its record at `offset` damaged.
fn damaged(offset: usize) -> Vec<u8> {
    let mut bytes = std::fs::read(testdata("captures").join("rxe_cm.pcap")).unwrap();
    bytes[offset + 8..offset + 12].fill(0xff);
    bytes
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn damaged_record_is_skipped_and_named() {
    let file = Scratch::new("damaged.pcap", damaged(24));
    let output = roce(&["decode", file.path()]);
    let err = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert_eq!(text(output.stdout).lines().count(), 181, "all but the damaged one");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.starts_with(&format!("roce: {}: record at offset 24 claims", file.path())),
        "{err}"
    );
    assert!(err.contains(": skipped ") && err.contains("the next record is at offset"), "{err}");

    let output = roce(&["decode", "--summary", file.path()]);
    let summary = text(output.stdout);
    assert!(summary.contains("frames         181,"), "{summary}");
    assert!(summary.contains("bytes of damage at 1 places"), "{summary}");
    let json = text(roce(&["decode", "--summary", "--json", file.path()]).stdout);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["skipped"]["places"], &json["frames"]), (&1.into(), &181.into()));

    let output = roce(&["decode", "--strict", "--summary", file.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(output.stdout).starts_with("frames         0,"));
}

#[test]
fn file_that_is_all_damage_does_not_flood_the_terminal() {
    let whole = std::fs::read(testdata("captures").join("rxe_all_ops.pcap")).unwrap();
    let (mut bytes, mut at, mut count) = (whole.clone(), 24, 0);
    while at < whole.len() {
        let captured = u32::from_le_bytes(whole[at + 8..at + 12].try_into().unwrap()) as usize;
        if count % 8 == 0 {
            bytes[at..at + 16].fill(0xff);
        }
        count += 1;
        at += 16 + captured;
    }
    let file = Scratch::new("all.pcap", &bytes);
    for jobs in ["1", "2"] {
        let output = roce(&["decode", "-j", jobs, "-e", "frame.len", file.path()]);
        let err = text(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert_eq!(err.lines().count(), 21, "{err}");
        let more = format!("at {} more places", 3742_usize.div_ceil(8) - 20);
        assert!(err.contains(&more), "{err}");
        assert_eq!(text(output.stdout).lines().count(), 3742 - 3742_usize.div_ceil(8));
    }
}

/// Returns the number of frames of `rxe_all_ops.pcap` that pass each of these filters.
fn passing<const N: usize>(filters: [&str; N]) -> [usize; N] {
    let filters = filters.map(|filter| Filter::parse(filter).unwrap());
    let file = testdata("captures").join("rxe_all_ops.pcap");
    let mut reader = roce::capture::open(&file).unwrap();
    let (mut decoder, mut counts) = (Decoder::new(ROCE_PORT), [0; N]);
    while let Some(record) = reader.next().unwrap() {
        let packet = decoder.decode(&record);
        for (count, filter) in counts.iter_mut().zip(&filters) {
            *count += usize::from(filter.matches(&packet));
        }
    }
    counts
}

/// Filters that Wireshark has too, and as many frames as tshark 4.0.17 finds with them.
const AS_TSHARK: [(&str, usize); 28] = [
    ("infiniband.aeth.syndrome & 0x60 == 0x60", 12),
    ("infiniband.aeth.syndrome & 0x60", 20),
    ("infiniband.bth.opcode & 1 == 1 && ip", 1582),
    ("infiniband.bth.opcode in {17, 4..6}", 615),
    ("infiniband.bth.opcode in {4 .. 6,17,17}", 615),
    ("infiniband.bth.opcode not in {17, 4..6}", 3127),
    ("udp.port in {4791}", 2660),
    ("ip.src in {10.9.0.1..10.9.0.1}", 2363),
    ("ip.src in {10.9.0.0/24}", 3353),
    ("ip.src in {192.0.2.0/24, 10.9.0.1}", 2363),
    ("ip.src == ip.dst", 0),
    ("frame.len > frame.cap_len", 0),
    ("frame.len == frame.cap_len", 3742),
    ("infiniband.bth.psn == infiniband.bth.opcode", 11),
    ("udp.dstport != udp.srcport", 2660),
    ("ip.addr === 10.9.0.1", 0),
    ("ip.addr !== 10.9.0.1", 3353),
    ("ip.addr != 10.9.0.1", 0),
    ("ip.addr any_ne 10.9.0.1", 3353),
    ("frame contains 00:11", 857),
    ("udp contains 12:b7", 2660),
    ("eth.src contains 00:00", 3742),
    ("infiniband.bth contains ff:ff", 2660),
    ("frame contains \"RDMA\"", 0),
    ("frame matches \"^.{12}\\x08\\x00\"", 3353),
    ("frame ~ \"(?-i)ABC\"", 0),
    ("eth matches \"\\x45\"", 3372),
    ("!ip || udp && infiniband.bth.opcode == 100", 394),
];

#[test]
fn filters_find_what_tshark_finds() {
    let found = passing(AS_TSHARK.map(|(filter, _)| filter));
    for ((filter, expected), found) in AS_TSHARK.into_iter().zip(found) {
        assert_eq!(found, expected, "{filter}");
    }
}

/// Pairs of filters that ask the same, one of them in words that Wireshark 4.0 does not have.
const SAME: [[&str; 2]; 8] = [
    ["infiniband.bth.opcode == RC_SEND_ONLY", "infiniband.bth.opcode == 4"],
    [
        "infiniband.bth.opcode in {RC_SEND_ONLY, RC_RDMA_WRITE_FIRST..RC_RDMA_WRITE_LAST}",
        "infiniband.bth.opcode in {4, 6..8}",
    ],
    ["roce.opcode_name matches '^rc_send'", "infiniband.bth.opcode in {0..5, 0x16, 0x17}"],
    ["roce.opcode_name contains ATOMIC", "infiniband.bth.opcode == 0x12"],
    ["infiniband.aeth.syndrome & 0x60 in {0x20, 0x60}", "infiniband.aeth.syndrome & 0x60"],
    ["infiniband.aeth.syndrome bitand 0x60 bitand 0x20", "infiniband.aeth.syndrome & 0x20"],
    ["ip xor udp", "ip && !udp || udp && !ip"],
    ["roce contains 40:00", "infiniband contains 40:00"],
];

#[test]
fn opcodes_have_names_and_bits_have_sets() {
    let (ours, plain) =
        (passing(SAME.map(|[ours, _]| ours)), passing(SAME.map(|[_, plain]| plain)));
    for ((pair, ours), plain) in SAME.into_iter().zip(ours).zip(plain) {
        assert!(ours > 0, "{pair:?}");
        assert_eq!(ours, plain, "{pair:?}");
    }
}

fn capture(name: &str) -> String {
    testdata("captures").join(name).to_str().unwrap().to_owned()
}

/// Whether tshark is here; CI installs it.
fn has_tshark() -> bool {
    Command::new("tshark").arg("--version").output().is_ok()
}

/// Returns the output of a program that reads a capture, and must have no complaint.
fn read_by(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    text(output.stdout)
}

#[test]
fn what_passes_is_written_in_the_format_of_the_ending() {
    let filter = "infiniband.bth.opcode == RC_ACKNOWLEDGE";
    let fields = ["-e", "frame.time_epoch", "-e", "frame.len", "-e", "infiniband.bth.psn"];
    let input = capture("rxe_all_ops.pcap");
    let shown =
        |file: &str, filter: &[&str]| stdout(&[&["decode"], filter, &fields[..], &[file]].concat());
    let expected = shown(&input, &["-Y", filter]);
    assert!(expected.lines().count() > 100);
    for (name, magic) in [
        ("out.pcap", [0x4d, 0x3c, 0xb2, 0xa1]),
        ("out.pcapng", [0x0a, 0x0d, 0x0d, 0x0a]),
        ("out", [0x4d, 0x3c, 0xb2, 0xa1]),
    ] {
        let out = Scratch::name(name);
        assert_eq!(stdout(&["decode", "-Y", filter, "-w", out.path(), &input]), "");
        assert_eq!(std::fs::read(out.as_path()).unwrap()[..4], magic, "{name}");
        assert_eq!(shown(out.path(), &[]), expected, "{name}");
        // Once more over itself: an older capture is replaced.
        assert_eq!(stdout(&["decode", "-c", "3", "-w", out.path(), &input]), "");
        assert_eq!(shown(out.path(), &[]).lines().count(), 3);
        if has_tshark() {
            let read = read_by("tshark", &["-r", out.path(), "-T", "fields", "-e", "frame.number"]);
            assert_eq!(read.lines().count(), 3, "{name}");
        }
    }
    let whole = roce(&["decode", "-Y", filter, "-w", "-", &input]).stdout;
    let out = Scratch::new("stdout", &whole);
    assert_eq!(shown(out.path(), &[]), expected);
}

#[test]
fn merged_captures_keep_their_interfaces() {
    let out = Scratch::name("merged.pcapng");
    let inputs = [capture("rxe_cm.pcap"), capture("odd.pcapng"), capture("rxe_cm.pcap")];
    let [a, b, c] = inputs.each_ref().map(String::as_str);
    let output = roce(&["decode", "-w", out.path(), a, b, c]);
    assert_eq!((output.status.code(), text(output.stderr).as_str()), (Some(0), ""));
    let sizes =
        |files: &[&str]| stdout(&[&["decode", "-t", "-e", "frame.time_epoch"], files].concat());
    assert_eq!(sizes(&[out.path()]), sizes(&[a, b, c]));
    if has_tshark() {
        let info = read_by("capinfos", &["-I", "-c", "-M", out.path()]);
        assert!(info.contains("Number of interfaces in file"), "{info}");
        assert_eq!(info.matches("rxe_cm.pcap").count(), 2, "each pcap is an interface: {info}");
    }
}

#[test]
fn outputs_that_would_destroy_something_are_refused() {
    let input = Scratch::new("in.pcap", std::fs::read(capture("rxe_cm.pcap")).unwrap());
    let notes = Scratch::new("notes.pcap", b"not a capture");
    let refused = |args: &[&str], reason: &str| {
        let output = roce(args);
        let err = text(output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(reason), "{args:?}: {err}");
    };
    let read = "which is read; choose another name";
    refused(&["decode", "-w", input.path(), input.path()], read);
    refused(&["decode", "-w", notes.path(), input.path()], "is no capture");
    refused(&["decode", "-w", "/nowhere/out.pcap", input.path()], "-w /nowhere/out.pcap");
    refused(&["decode", "-w", "out.pcap.gz", input.path()], "compress it");
    refused(&["decode", "-w", "out.pcap", "--json", input.path()], "cannot be used with");
    refused(&["flows", "--html", input.path(), input.path()], read);
    refused(&["flows", "--html", input.path(), &capture("rxe_lossy.pcap")], "is a capture");
    refused(&["flows", "--html", "-", input.path()], "name a file");
    refused(&["replay", "--junit", input.path(), input.path()], read);
    refused(&["replay", "--write", input.path(), input.path()], read);
    assert_eq!(std::fs::read(notes.as_path()).unwrap(), b"not a capture");
    assert_eq!(stdout(&["decode", input.path()]).lines().count(), 182);
}

#[test]
fn packets_know_their_connection_and_why_they_were_retransmitted() {
    let lossy = capture("rxe_lossy.pcap");
    let fields = ["-e", "frame.number", "-e", "roce.flow", "-e", "roce.retransmission"];
    let all = stdout(&[&["decode"], &fields[..], &[&lossy]].concat());
    let count = |filter: &str| {
        let args = ["decode", "-e", "frame.number", "-Y", filter, &lossy];
        stdout(&args).lines().count()
    };
    let columns = || all.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let retransmitted = columns().filter(|columns| !columns[2].is_empty()).count();
    assert!(retransmitted > 500, "{retransmitted} retransmissions in a capture full of them");
    assert_eq!(count("roce.retransmission"), retransmitted);
    let by_cause = ["timeout", "sequence_nak", "implied_nak", "rnr"]
        .map(|cause| count(&format!("roce.retransmission == {cause}")));
    assert_eq!(by_cause.iter().sum::<usize>(), retransmitted, "{by_cause:?}");
    let flow = columns().find(|columns| !columns[2].is_empty()).unwrap()[1].to_owned();
    let of_flow = columns().filter(|columns| columns[1] == flow).count();
    assert_eq!(count(&format!("roce.flow == {flow}")), of_flow);
    // Both directions of a connection have one number.
    let ports = ["-e", "ip.src", "-Y", &format!("roce.flow == {flow}"), &lossy];
    let sources = stdout(&[&["decode"], &ports[..]].concat());
    let sources: std::collections::BTreeSet<_> = sources.lines().collect();
    assert_eq!(sources.len(), 2, "{sources:?}");
    let out = Scratch::name("flow.pcap");
    stdout(&["decode", "-Y", "roce.retransmission", "-w", out.path(), &lossy]);
    assert_eq!(stdout(&["decode", out.path()]).lines().count(), retransmitted);
}

#[test]
fn connections_of_a_pipe_are_refused_with_the_cure() {
    let file = std::fs::File::open(capture("rxe_cm.pcap")).unwrap();
    let output = command(&["decode", "-Y", "roce.flow == 1", "-"]).stdin(file).output().unwrap();
    let err = text(output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("write it to a file"), "{err}");
}

/// Sends SIGINT to a child.
fn interrupt(child: &Child) {
    child.signal(Signal::INT);
}

/// A run that reads a pipe, which stays open.
fn following(args: &[&str]) -> Child {
    command(args)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn ctrl_c_prints_what_there_is_of_a_pipe_that_waits() {
    use std::io::Write as _;
    let bytes = std::fs::read(capture("rxe_all_ops.pcap")).unwrap();
    // All but 64 KiB, which a pipe may hold, have been read when all of this is written; the last
    // record is cut.
    let part = &bytes[..1_400_003];
    let mut child = following(&["decode", "--summary", "--json", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(part).unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(text(output.stderr), "", "that the pipe was left is no fault of it");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary["frames"].as_u64().unwrap() > 2000, "{summary}");
}

#[test]
fn ctrl_c_ends_a_live_capture_and_leaves_whole_files() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let bytes = std::fs::read(capture("rxe_cm.pcap")).unwrap();
    let mut child = following(&["decode", "-l", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&bytes[..bytes.len() - 5]).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..181 {
        lines.next().unwrap().unwrap();
    }
    interrupt(&child);
    assert!(lines.next().is_none());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);

    let out = Scratch::name("live.pcap");
    let mut child = following(&["decode", "-l", "-w", out.path(), "-"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&bytes).unwrap();
    // Until all of it is in the file, which is as long: only the precision of times differs.
    while std::fs::metadata(out.as_path()).map_or(0, |file| file.len()) < bytes.len() as u64 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
    assert_eq!(stdout(&["decode", out.path()]).lines().count(), 182);
}
