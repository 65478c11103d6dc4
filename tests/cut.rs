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
    let file = Scratch::new("damaged.pcap", &damaged(24));
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
