//! Captures that do not show all: cut, sampled, of one direction, with clocks apart. Derived from
//! good captures, they must tell what they are, and nothing else may be found in them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::command::stdout;
use common::testdata;
use common::tmp::Scratch;
use roce::analysis::{Analysis, Config, FindingKind, PacketFacts, Report};
use roce::capture::{self, PcapWriter, PcapngWriter, Reader};
use roce::decode::Decoder;
use roce::replay::{Options, ReplayReport, replay_capture};
use roce::time::Instant;
use roce::wire::{Frame, LinkType, Network, ROCE_PORT};

/// Captures without findings and differences.
const GOOD: [&str; 7] = ["write", "send", "read", "small", "six", "perftest", "coalesced.c1"];

/// A captured frame.
#[derive(Clone)]
struct Captured {
    time: Instant,
    len: u32,
    data: Vec<u8>,
}

fn frames(path: PathBuf) -> Vec<Captured> {
    let mut reader = capture::open(&path).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.link, LinkType::ETHERNET);
        let (time, len) = (record.time.unwrap(), record.len);
        all.push(Captured { time, len, data: record.data.to_vec() });
    }
    all
}

fn good(name: &str) -> Vec<Captured> {
    frames(testdata("trains").join(format!("{name}.pcap.zst")))
}

fn pcap<'a>(frames: impl IntoIterator<Item = &'a Captured>) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::ETHERNET).unwrap();
    for frame in frames {
        writer.write(frame.time, frame.len, &frame.data).unwrap();
    }
    writer.into_inner()
}

/// Report of captures that are read together.
fn analyze(captures: &[&[u8]]) -> Report {
    let mut config = Config::default();
    config.files = (1..=captures.len()).map(|number| format!("{number}.pcap")).collect();
    let mut analysis = Analysis::new(config);
    let readers = captures.iter().map(|bytes| Reader::new(*bytes).unwrap());
    let mut merge = capture::Merge::new(readers);
    let mut decoder = Decoder::new(ROCE_PORT);
    while let Some(record) = merge.next().unwrap() {
        let file = u16::try_from(record.file).unwrap();
        decoder.decode_with(&record, |packet| match PacketFacts::new(packet, file) {
            Some(facts) => analysis.handle_packet(&facts, &mut ()),
            None => analysis.handle_other_frame(packet.time, packet.wire_len, file),
        });
    }
    analysis.finish(&mut ())
}

fn kinds(report: &Report) -> BTreeSet<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

/// Packets of a capture that a replay finds different.
fn differences(capture: &[u8]) -> u64 {
    let mut report = ReplayReport::default();
    replay_capture(capture, &Options::default(), &mut report).unwrap();
    report.counts.different
}

/// Asserts that nothing is found in a capture, and returns its report.
#[track_caller]
fn assert_clean(capture: &[u8], what: &str) -> Report {
    let report = analyze(&[capture]);
    assert_eq!(report.findings, [], "{what}");
    assert_eq!(report.totals.all.lost_requests + report.totals.all.lost_responses, 0, "{what}");
    assert_eq!(report.totals.all.reordered, 0, "{what}");
    assert_eq!(differences(capture), 0, "{what}");
    report
}

/// Frames of which at most this number of bytes was captured.
fn cut(frames: &[Captured], snap_len: usize) -> Vec<Captured> {
    let mut cut = frames.to_vec();
    cut.iter_mut().for_each(|frame| frame.data.truncate(snap_len));
    cut
}

#[test]
fn cut_captures_have_no_findings_and_no_differences() {
    for name in GOOD {
        let whole = good(name);
        assert_clean(&pcap(&whole), name);
        for snap_len in [58, 96, 128, 256] {
            let report = assert_clean(&pcap(&cut(&whole, snap_len)), &format!("{name} {snap_len}"));
            let kind = &report.capture.kind;
            if report.capture.packets == 0 && kind.unsplit_frames == 0 {
                // The headers of IPv6 and UDP alone are longer.
                assert_eq!((name, snap_len), ("six", 58));
                continue;
            }
            let is_told = kind.cut_packets + kind.unsplit_frames + kind.trains.cut_off > 0;
            assert!(is_told, "{name} {snap_len}: {kind:?}");
        }
    }
}

#[test]
fn path_mtu_of_cut_packets_comes_from_their_headers() {
    let whole = good("coalesced.c1");
    let report = analyze(&[&pcap(&cut(&whole, 96))]);
    assert_eq!(report.connections.len(), 1);
    assert_eq!(report.connections[0].path_mtu, Some(1024));
    let sentences = report.capture.kind.sentences().join(" ");
    assert!(sentences.contains("1,024 of 1,039 packets are cut by a snap length"), "{sentences}");
}

/// Findings of a capture with faults are those that it has when it is whole, or fewer.
#[test]
fn cut_capture_with_faults_has_no_other_findings() {
    let whole = frames(testdata("captures").join("rxe_all_ops.pcap"));
    let (kinds_of_whole, different) =
        (kinds(&analyze(&[&pcap(&whole)])), differences(&pcap(&whole)));
    assert!(!kinds_of_whole.is_empty());
    for snap_len in [58, 96, 128, 256] {
        let cut = pcap(&cut(&whole, snap_len));
        let kinds = kinds(&analyze(&[&cut]));
        assert!(kinds.is_subset(&kinds_of_whole), "{snap_len}: {kinds:?}");
        assert!(kinds.contains(&FindingKind::RequestRefused), "{snap_len}: {kinds:?}");
        assert!(differences(&cut) <= different, "{snap_len}");
    }
}

/// Bytes of the source address of a frame.
fn source(frame: &Captured) -> Option<Vec<u8>> {
    match Frame::parse(LinkType::ETHERNET, &frame.data, ROCE_PORT).network()? {
        Network::Ipv4 { header, .. } => Some(header.source().octets().to_vec()),
        Network::Ipv6 { header, .. } => Some(header.source().octets().to_vec()),
        Network::Grh(_) => None,
    }
}

#[test]
fn captures_of_one_direction_have_no_findings_and_no_differences() {
    for name in GOOD {
        let whole = good(name);
        let sources: BTreeSet<_> = whole.iter().filter_map(source).collect();
        assert_eq!(sources.len(), 2, "{name}");
        for (at, from) in sources.iter().enumerate() {
            let part = whole.iter().filter(|frame| source(frame).as_ref() == Some(from));
            let report = assert_clean(&pcap(part), &format!("{name} {at}"));
            let kind = &report.capture.kind;
            assert!(kind.one_direction.is_some(), "{name} {at}: {:?}", kind.sentences());
        }
        let both = analyze(&[&pcap(&whole)]);
        assert_eq!(both.capture.kind.one_direction, None, "{name}");
    }
}

#[test]
fn sampled_captures_have_no_findings_and_no_differences() {
    let whole = good("coalesced.c1");
    assert_eq!(analyze(&[&pcap(&whole)]).capture.kind.sampled_one_in, None);
    for one_in in [2, 3, 10, 50] {
        for first in 0..3 {
            let part = whole.iter().skip(first).step_by(one_in);
            let report = assert_clean(&pcap(part), &format!("1 of {one_in} from {first}"));
            let told = report.capture.kind.sampled_one_in.unwrap();
            assert!((one_in as u64).abs_diff(told) <= one_in as u64 / 10, "{told} for {one_in}");
        }
        // By chance: a generator of which any bit will do.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let part: Vec<_> = whole
            .iter()
            .filter(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.is_multiple_of(one_in as u64)
            })
            .collect();
        let report = assert_clean(&pcap(part), &format!("1 of {one_in} by chance"));
        let told = report.capture.kind.sampled_one_in.unwrap();
        assert!((one_in as u64).abs_diff(told) <= one_in as u64 / 3, "{told} for {one_in}");
    }
}

/// A peer that never answers is no capture of one direction, wherever it was captured.
#[test]
fn dead_connection_is_not_taken_for_one_direction() {
    for name in ["mtu_blackhole.c1", "cut.c1"] {
        let whole = frames(testdata("flows").join(format!("{name}.pcap.zst")));
        let report = analyze(&[&pcap(&whole)]);
        assert_eq!(report.capture.kind.one_direction, None, "{name}");
        assert!(!report.findings.is_empty(), "{name}");
    }
}

/// Losses are losses: a capture with 142 of them is not sampled.
#[test]
fn lossy_capture_is_not_taken_for_another_kind() {
    for name in ["loss_w.c1", "loss_w.c2", "loss_r.c1", "loss_r.c2", "reo.c1"] {
        let whole = frames(testdata("flows").join(format!("{name}.pcap.zst")));
        let report = analyze(&[&pcap(&whole)]);
        assert_eq!(report.capture.kind.sentences(), Vec::<String>::new(), "{name}");
        assert!(!report.findings.is_empty(), "{name}");
    }
}

#[test]
fn clocks_that_are_apart_are_told_and_rotated_files_are_not() {
    let whole = good("coalesced.c1");
    let mut late = whole.clone();
    for frame in &mut late {
        frame.time = Instant::from_nanos(frame.time.as_nanos() + 3600 * 1_000_000_000);
    }
    let report = analyze(&[&pcap(&whole), &pcap(&late)]);
    let apart = &report.capture.kind.clocks_apart;
    assert_eq!(apart.len(), 1);
    assert_eq!(apart[0].files, ["1.pcap", "2.pcap"]);
    assert_eq!(apart[0].nanos, 3600 * 1_000_000_000);
    assert_eq!(report.findings, []);
    let (first, second) = whole.split_at(whole.len() / 2);
    let report = analyze(&[&pcap(first), &pcap(second)]);
    assert_eq!(report.capture.kind.sentences(), Vec::<String>::new());
    assert_eq!(report.findings, []);
}

#[test]
fn drops_that_a_capture_reports_are_told() {
    let mut writer = PcapngWriter::closing(Vec::new()).unwrap();
    let id = writer.add_interface(LinkType::ETHERNET, "eth0").unwrap();
    for frame in good("coalesced.c1").iter().take(20) {
        writer.write(id, frame.time, frame.len, &frame.data).unwrap();
    }
    writer.close(7).unwrap();
    let file = Scratch::new("drops.pcapng", writer.into_inner());
    for command in ["flows", "replay"] {
        let text = stdout(&[command, file.path()]);
        assert!(text.contains("The capture says that it dropped 7 frames."), "{text}");
    }
}
