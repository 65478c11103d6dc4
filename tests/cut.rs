//! `roce decode` on several captures and on damaged ones, and the captures it writes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
use common::command::{roce, stdout};
use common::testdata;
use common::tmp::Scratch;
use roce::capture::{LinkType, PcapWriter};
use roce::time::Instant;

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
    let (a, b) = (Scratch::new("a.pcap", &pcap(&[1, 5])), Scratch::new("b.pcap", &pcap(&[2, 4])));
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
