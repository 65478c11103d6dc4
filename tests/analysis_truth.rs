//! Captures at both ends of a network that lost, delayed and reordered packets, with what a
//! middlebox logged that it did: counts of both captures together are exact, and one capture alone
//! claims no more than happened.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use roce::analysis::{Analysis, Certainty, Config, Direction, FindingKind, PacketFacts, Report};
use roce::capture;
use roce::decode::Decoder;
use roce::wire::ROCE_PORT;

/// The packets of a capture of a scenario, taken at the client (`c1`) or at the server (`c2`).
fn packets(scenario: &str, point: &str, file: u16) -> Vec<PacketFacts> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/flows");
    let mut reader = capture::open(&folder.join(format!("{scenario}.{point}.pcap.zst"))).unwrap();
    let mut decoder = Decoder::new(ROCE_PORT);
    let mut all = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        all.extend(PacketFacts::new(&decoder.decode(&record), file));
    }
    all
}

/// Analyzes captures of a scenario together, merged by time.
fn analyze(scenario: &str, points: &[&str]) -> Report {
    let files = (0u16..).zip(points);
    let mut all: Vec<_> = files.flat_map(|(file, point)| packets(scenario, point, file)).collect();
    all.sort_by_key(|facts| facts.time);
    let mut config = Config::default();
    config.files = points.iter().map(|point| (*point).to_string()).collect();
    let mut analysis = Analysis::new(config);
    for (number, mut facts) in (1..).zip(all) {
        facts.frame = number;
        analysis.handle_packet(&facts, &mut ());
    }
    analysis.finish(&mut ())
}

/// The counts of all connections.
fn totals(scenario: &str, points: &[&str]) -> Direction {
    analyze(scenario, points).totals.all
}

/// Lost requests and responses, packets that were overtaken, and copies.
fn faults(totals: &Direction) -> [u64; 4] {
    let Direction { lost_requests, lost_responses, reordered, duplicate_packets, .. } = *totals;
    [lost_requests, lost_responses, reordered, duplicate_packets]
}

const BOTH: [&str; 2] = ["c1", "c2"];

#[test]
fn lost_writes_are_counted_exactly_at_both_ends() {
    let both = totals("loss_w", &BOTH);
    assert_eq!(faults(&both), [142, 0, 0, 0]);
    let causes = both.retransmissions;
    assert_eq!([causes.timeout.rewinds, causes.sequence_nak.rewinds], [2, 103]);
}

#[test]
fn lost_writes_are_bounded_at_one_end() {
    for point in BOTH {
        let one = totals("loss_w", &[point]);
        let [requests, responses, reordered, copies] = faults(&one);
        assert!((100..=142).contains(&requests), "{point}: {requests}");
        assert_eq!([responses, reordered, copies], [0, 0, 0], "{point}");
        assert_eq!(one.retransmissions.timeout.rewinds, 2, "{point}");
    }
}

#[test]
fn lost_reads_are_counted_exactly_at_both_ends_and_at_the_requester() {
    for points in [&BOTH[..], &BOTH[..1]] {
        let totals = totals("loss_r", points);
        assert_eq!(faults(&totals), [4, 166, 0, 0], "{points:?}");
        let causes = totals.retransmissions;
        let rewinds = [causes.timeout, causes.sequence_nak, causes.implied_nak];
        assert_eq!(rewinds.map(|cause| cause.rewinds), [1, 1, 88], "{points:?}");
    }
}

#[test]
fn lost_reads_are_bounded_at_the_responder() {
    let totals = totals("loss_r", &["c2"]);
    let [requests, responses, reordered, copies] = faults(&totals);
    let undecided = responses + totals.lost_or_late;
    assert!(requests <= 4 && (80..=166).contains(&undecided), "{requests} {undecided}");
    assert_eq!([reordered, copies], [0, 0]);
    let causes = totals.retransmissions;
    assert!(causes.implied_nak.packets * 100 >= causes.total().packets * 95, "{causes:?}");
}

#[test]
fn packets_that_were_overtaken_are_not_lost() {
    // The middlebox held back 274 requests and 4 responses; a response that nothing overtook
    // meanwhile is in order.
    let both = faults(&totals("reo", &BOTH));
    assert!(matches!(both, [0, 0, 274..=278, 0]), "{both:?}");
    for point in BOTH {
        let totals = totals("reo", &[point]);
        let [requests, responses, reordered, copies] = faults(&totals);
        assert_eq!([requests, responses, copies], [0, 0, 0], "{point}");
        assert!((50..=278).contains(&reordered), "{point}: {reordered}");
        let causes = totals.retransmissions;
        assert!(
            causes.sequence_nak.packets * 100 >= causes.total().packets * 95,
            "{point}: {causes:?}"
        );
    }
}

#[test]
fn connection_whose_link_was_cut_is_unanswered() {
    // The capture at the client ends before the last of the 960 requests that were lost.
    assert_eq!(faults(&totals("cut", &BOTH)), [832, 1, 0, 0]);
    for points in [&BOTH[..], &BOTH[..1]] {
        let report = analyze("cut", points);
        let worst = report.findings.first().unwrap();
        assert_eq!((worst.kind, worst.certainty), (FindingKind::Unanswered, Certainty::Proven));
        assert!(
            worst.text.contains("packets retransmitted in 6 rounds over 405 ms"),
            "{}",
            worst.text
        );
        assert_eq!(worst.frames.len(), 3, "last ACK, first and last transmission");
    }
}

#[test]
fn connection_whose_packets_are_too_long_for_the_path_reaches_the_retry_limit() {
    let report = analyze("mtu_blackhole", &["c1"]);
    let worst = report.findings.first().unwrap();
    assert_eq!(worst.kind, FindingKind::RetryLimit);
    assert!(worst.text.contains("no packet with 1,024 bytes of payload was ever answered"));
}

#[test]
fn delay_on_the_way_is_not_blamed_on_the_responder() {
    for points in [&BOTH[..], &BOTH[..1], &BOTH[1..]] {
        let report = analyze("delay", points);
        for finding in &report.findings {
            let is_sure = finding.certainty == Certainty::Proven;
            let blames = finding.text.contains("the responder had the request");
            assert!(!(is_sure && blames), "{points:?}: {}", finding.text);
        }
        assert_eq!(faults(&report.totals.all), [0; 4], "{points:?}");
    }
}
