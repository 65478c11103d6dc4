//! `roce replay` on captures of real devices: every packet is agreed or a known deviation.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::Ipv4Addr;
use std::path::Path;

use roce::replay::{Counts, Options, ReplayReport, Style, Undecided, replay_capture};

/// The hand-made connection manager of a capture.
const RAW_PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Replays a file as captures of rxe, prints the counts, and returns them.
fn replay(path: &str, options: &Options) -> Counts {
    let bytes = std::fs::read(path).unwrap();
    let mut report = ReplayReport::default();
    let survey = replay_capture(&bytes, options, &mut report).unwrap();
    report.finish(&survey);
    let mut text = String::new();
    report.text(Style::default(), &mut text);
    println!("{path}\n{text}");
    report.counts
}

fn rxe() -> Options {
    let mut options = Options::default();
    options.profiles.set_all("rxe").unwrap();
    options
}

#[test]
fn captures_of_rxe_agree_or_deviate_as_known() {
    for (name, known) in [("rxe_all_ops", 7), ("rxe_lossy", 0), ("rxe_cm", 0)] {
        let counts = replay(&format!("testdata/captures/{name}.pcap"), &rxe());
        assert_eq!((counts.different, counts.known), (0, known), "{name}: {counts}");
        assert!(counts.agreed > 50, "{name}: {counts}");
    }
}

#[test]
fn without_a_profile_a_deviation_is_a_difference() {
    let counts = replay("testdata/captures/rxe_all_ops.pcap", &Options::default());
    assert_eq!((counts.different, counts.known), (7, 0), "{counts}");
}

/// Captures that are not part of the project, where they are.
#[test]
fn captures_of_other_devices_agree() {
    let shared = Path::new("../shared/captures");
    let public = shared.join("public");
    let mut seen = 0;
    for directory in [shared, &public] {
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        for entry in entries.map(Result::unwrap) {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "pcap") {
                continue;
            }
            let mut options = rxe();
            if path.ends_with("rxe_cm_rawpeer.pcap") {
                options.profiles.set(RAW_PEER.into(), "rawcm").unwrap();
            }
            let counts = replay(path.to_str().unwrap(), &options);
            assert_eq!(counts.different, 0, "{}: {counts}", path.display());
            let missing = [Undecided::MissingPackets, Undecided::BeforeCapture, Undecided::Cut];
            assert!(counts.reasons.keys().all(|why| missing.contains(why)), "{counts}");
            seen += 1;
        }
    }
    println!("{seen} captures outside the project");
}

#[test]
fn files_that_cannot_be_read_give_errors_and_no_report() {
    let roce = std::process::Command::new(env!("CARGO_BIN_EXE_roce"))
        .args(["replay", "Cargo.toml", "there/is/no/such.pcap"])
        .output()
        .unwrap();
    assert_eq!(roce.status.code(), Some(2));
    assert!(roce.stdout.is_empty(), "{}", String::from_utf8_lossy(&roce.stdout));
    assert_eq!(String::from_utf8(roce.stderr).unwrap().lines().count(), 2);
}

#[test]
fn capture_without_roce_is_named_with_what_to_check() {
    let capture = std::env::temp_dir().join(format!("roce-replay-{}.pcap", std::process::id()));
    // An empty capture: a header of a little-endian pcap with link type 1.
    let header =
        [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    std::fs::write(&capture, header).unwrap();
    let roce = std::process::Command::new(env!("CARGO_BIN_EXE_roce"))
        .arg("replay")
        .arg(&capture)
        .output()
        .unwrap();
    std::fs::remove_file(&capture).unwrap();
    assert_eq!(roce.status.code(), Some(0));
    let hint = String::from_utf8(roce.stderr).unwrap();
    assert!(hint.contains("no RoCE packet found in 0 frames"), "{hint}");
    assert!(hint.contains("UDP port 4791"), "{hint}");
}
