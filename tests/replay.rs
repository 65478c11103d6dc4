//! `roce replay` on captures of real devices: every packet is agreed or a known deviation.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod common;
#[path = "common/fleet.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod fleet;

use std::net::Ipv4Addr;
use std::path;

use common::command::roce;
use common::tmp::Scratch;
use roce::capture::PcapWriter;
use roce::replay::{Counts, Options, ReplayReport, Style, Undecided, replay_capture};
use roce::time::Instant;
use roce::wire::{BthRepr, Gid, ICRC_ROOM, LinkType, Opcode, Path, Psn, Qpn};

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

/// Asserts that nothing in a capture is wrong or new.
fn agrees(path: &path::Path) {
    let mut options = rxe();
    if path.ends_with("rxe_cm_rawpeer.pcap") {
        options.profiles.set(RAW_PEER.into(), "rawcm").unwrap();
    }
    let counts = replay(path.to_str().unwrap(), &options);
    assert_eq!(counts.different, 0, "{}: {counts}", path.display());
    assert!(counts.agreed > 0, "{}: {counts}", path.display());
    let missing = [Undecided::MissingPackets, Undecided::BeforeCapture, Undecided::Cut];
    assert!(counts.reasons.keys().all(|why| missing.contains(why)), "{counts}");
}

/// Captures of others are not committed: they are in the folder that `ROCE_CAPTURES` names, if it
/// names one.
#[test]
fn captures_of_the_connection_manager_and_of_other_devices_agree() {
    for name in ["rxe_cm_programs", "rxe_cm_ud", "rxe_cm_rawpeer"] {
        agrees(path::Path::new(&format!("testdata/cm/{name}.pcap")));
    }
    let Some(folder) = std::env::var_os("ROCE_CAPTURES") else { return };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let captures = files.filter(|path| path.extension().is_some_and(|known| known == "pcap"));
    assert!(captures.inspect(|path| agrees(path)).count() > 0);
}

#[test]
fn files_that_cannot_be_read_give_errors_and_no_report() {
    let roce = roce(&["replay", "Cargo.toml", "there/is/no/such.pcap"]);
    assert_eq!(roce.status.code(), Some(2));
    assert!(roce.stdout.is_empty(), "{}", String::from_utf8_lossy(&roce.stdout));
    assert_eq!(String::from_utf8(roce.stderr).unwrap().lines().count(), 2);
}

/// The header of a little-endian pcap with link type 1.
const PCAP: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];

/// Returns the output of `roce replay` for a capture without packets to judge.
fn hint_for(capture: &[u8]) -> String {
    let roce = roce(&["replay", Scratch::new("replay.pcap", capture).path()]);
    assert_eq!(roce.status.code(), Some(0));
    assert!(roce.stdout.is_empty(), "{}", String::from_utf8_lossy(&roce.stdout));
    String::from_utf8(roce.stderr).unwrap()
}

#[test]
fn capture_without_roce_is_named_with_what_to_check() {
    let hint = hint_for(&PCAP);
    assert!(hint.contains("no RoCE packet found in 0 frames"), "{hint}");
    assert!(hint.contains("UDP port 4791"), "{hint}");
}

#[test]
fn capture_cut_before_the_transport_header_is_named_as_such() {
    // One frame of 100 bytes, of which the Ethernet and the IPv4 header of a UDP packet were
    // captured.
    let mut capture = PCAP.to_vec();
    capture.extend([0, 0, 0, 0, 0, 0, 0, 0, 34, 0, 0, 0, 100, 0, 0, 0]);
    capture.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    capture.extend([0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let hint = hint_for(&capture);
    assert!(hint.contains("no RoCE packet found in 1 frames: 1 of them are cut"), "{hint}");
}

/// Returns the output of `roce replay`.
fn printed(arguments: &[&str]) -> String {
    String::from_utf8(roce(&[&["replay"], arguments].concat()).stdout).unwrap()
}

#[test]
fn verdicts_and_their_order_do_not_depend_on_the_number_of_threads() {
    let fleet = Scratch::new("fleet.pcapng", fleet::capture(500));
    let ours = |name: &str| format!("testdata/captures/{name}.pcap");
    let one = [fleet.path().to_owned(), ours("rxe_all_ops"), ours("rxe_lossy"), ours("rxe_cm")];
    let several = one.clone();
    for files in one.iter().map(std::slice::from_ref).chain([several.as_slice()]) {
        for form in ["--verbose", "--json"] {
            let run = |threads: &str| {
                let mut arguments = vec!["--jobs", threads, form];
                arguments.extend(files.iter().map(String::as_str));
                printed(&arguments)
            };
            let [serial, parallel] = ["1", "4"].map(run);
            assert!(serial.contains("agreed"), "{files:?}: {serial}");
            assert!(serial == parallel, "{files:?} {form}");
        }
    }
}

/// A capture of packets of a sender to many queue pairs: each begins a connection, and has this
/// opcode.
fn capture_of(opcodes: impl Iterator<Item = Opcode>) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    for (number, opcode) in (1..).zip(opcodes) {
        let mut packet = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(number), Psn::new(0))
            .emit()
            .as_bytes()
            .to_vec();
        packet[0] = opcode.0;
        packet.resize(packet.len() + ICRC_ROOM, 0);
        let address = |host| Gid::from(Ipv4Addr::new(192, 0, 2, host));
        let path = Path { source: address(1), destination: address(2), ..Path::NOWHERE };
        let headers = path.seal(&mut packet);
        let (ip, udp) = headers.as_bytes();
        let frame = [ip, udp, &packet].concat();
        let time = Instant::from_nanos(u64::from(number) * 1000);
        writer.write(time, frame.len() as u32, &frame).unwrap();
    }
    writer.into_inner()
}

#[test]
fn packets_with_a_reserved_opcode_are_counted() {
    let reserved = Opcode(0x1b);
    assert!(reserved.info().is_none());
    let capture = capture_of([Opcode::RC_SEND_ONLY, reserved, reserved].into_iter());
    let file = Scratch::new("reserved.pcap", &capture);
    let text = printed(&[file.path()]);
    let expected = "judged 1 of 3 packets; not judged: 2 with a reserved opcode\n";
    assert!(text.contains(expected), "{text}");
    let json = printed(&["--json", file.path()]);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let packets = &report["packets"];
    assert_eq!((&packets["captured"], &packets["judged"]), (&3.into(), &1.into()), "{json}");
    assert_eq!(packets["left_out"]["reserved_opcode"], 2, "{json}");
}

#[test]
fn packets_of_connections_beyond_limits_are_counted() {
    let count =
        roce::analysis::limits::ENDPOINTS_MAX + roce::analysis::limits::ENDED_CONNECTIONS_MAX;
    let count = count + 1000;
    let capture = capture_of(std::iter::repeat_n(Opcode::RC_SEND_ONLY, count));
    let mut report = ReplayReport::default();
    let survey = replay_capture(&capture, &Options::default(), &mut report).unwrap();
    report.finish(&survey);
    let packets = &report.packets;
    assert_eq!(packets.captured, count as u64);
    assert!(packets.left_out.beyond_limits > 0, "{packets:?}");
    assert_eq!(packets.judged + packets.left_out.total(), packets.captured, "{packets:?}");
    assert_eq!(report.counts.total(), packets.judged, "{packets:?}");
    let mut text = String::new();
    report.text(Style::default(), &mut text);
    assert!(text.contains(&format!("judged {} of {count} packets", packets.judged)), "{text}");
}
