//! Sightings by hand.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

use std::net::Ipv4Addr;

use super::*;
use crate::wire::{Psn, Qpn};

/// A SEND from host 1 to host 2, or the other way round, as a file sees it.
fn seen(file: u16, time: u64, from: u8, psn: u32) -> PacketFacts {
    let host = |last| Gid::from(Ipv4Addr::new(192, 0, 2, last));
    PacketFacts {
        frame: time,
        file,
        time: Instant::from_nanos(time),
        source: host(from),
        destination: host(3 - from),
        dest_qp: Qpn::new(from.into()),
        psn: Psn::new(psn),
        digest: psn,
        ..PacketFacts::send_only()
    }
}

/// Runs sightings through, sorted by time as files are merged.
fn run(files: usize, mut all: Vec<PacketFacts>) -> (Vec<Shown>, VantageReport) {
    all.sort_by_key(|facts| facts.time);
    let mut vantage = Vantage::new(files, 50_000);
    let mut shown: Vec<Shown> = all.into_iter().flat_map(|facts| vantage.push(facts)).collect();
    let (rest, report) = vantage.finish();
    shown.extend(rest);
    (shown, report)
}

/// PSN, time, and whether it was lost, copied or overtaken.
fn summary(shown: &[Shown]) -> Vec<(u32, u64, &'static str)> {
    let word = |sightings: &Sightings| match sightings {
        Sightings { lost: Some(_), .. } => "lost",
        Sightings { is_copy: true, .. } => "copy",
        Sightings { reordered: Some(_), .. } => "reordered",
        Sightings { is_delivered: true, .. } => "delivered",
        _ => "unknown",
    };
    let line = |shown: &Shown| {
        let facts = &shown.facts;
        (facts.psn.get(), facts.time.as_nanos(), word(facts.sightings()))
    };
    shown.iter().map(line).collect()
}

#[test]
fn clock_offset_is_half_the_sum_of_both_directions() {
    // The second file's clock is 1 s behind... of which 100 ms, and packets take 4 µs and more.
    let behind = 100_000_000;
    let mut all = Vec::new();
    for (psn, (time, transit)) in
        [(1_000_000_000, 4_000), (1_000_010_000, 9_000)].into_iter().enumerate()
    {
        all.push(seen(0, time, 1, psn as u32));
        all.push(seen(1, time + transit - behind, 1, psn as u32));
        all.push(seen(1, time + 500 - behind, 2, 100 + psn as u32));
        all.push(seen(0, time + 500 + transit, 2, 100 + psn as u32));
    }
    let (shown, report) = run(2, all);
    assert_eq!(report.clock_offsets, [Some(0), Some(-100_000_000)]);
    assert_eq!(report.seen_elsewhere, [4, 4]);
    let transits: Vec<_> =
        report.transits.iter().map(|t| (t.from, t.to, t.nanos.percentiles())).collect();
    let numbers = transits.iter().map(|(from, to, p)| (*from, *to, p.count, p.min, p.max));
    assert_eq!(numbers.collect::<Vec<_>>(), [(0, 1, 2, 4_000, 9_000), (1, 0, 2, 4_000, 9_000)]);
    // Each once, by the first file's clock, in order.
    let times: Vec<_> = shown.iter().map(|shown| shown.facts.time.as_nanos()).collect();
    assert_eq!(times, [1_000_000_000, 1_000_000_500, 1_000_010_000, 1_000_010_500]);
}

#[test]
fn packet_that_the_next_point_does_not_see_was_lost_between_them() {
    let mut all = Vec::new();
    for psn in 0..5 {
        let time = 1_000_000 + u64::from(psn) * 1_000;
        all.push(seen(0, time, 1, psn));
        all.extend((psn != 2).then(|| seen(1, time + 2_000, 1, psn)));
        all.extend((psn != 2 && psn != 3).then(|| seen(2, time + 4_000, 1, psn)));
    }
    let (shown, _) = run(3, all);
    let lost: Vec<_> = shown.iter().filter_map(|shown| shown.facts.sightings().lost).collect();
    let at = |from, to, frame| LostBetween { from, to, frame };
    assert_eq!(lost, [at(0, 1, 1_002_000), at(1, 2, 1_005_000)]);
    assert_eq!(shown.len(), 5);
}

#[test]
fn file_says_nothing_outside_its_own_time() {
    // The second file begins later and ends earlier.
    let mut all = Vec::new();
    for psn in 0..9 {
        let time = 1_000_000 + u64::from(psn) * 10_000;
        all.push(seen(0, time, 1, psn));
        all.extend((3..6).contains(&psn).then(|| seen(1, time + 2_000, 1, psn)));
    }
    let (shown, _) = run(2, all);
    assert_eq!(shown.len(), 9);
    assert!(shown.iter().all(|shown| shown.facts.sightings().lost.is_none()));
}

#[test]
fn retransmission_that_equals_a_lost_packet_is_matched_with_its_own_sighting() {
    let mut all = vec![seen(0, 1_000, 1, 7), seen(0, 1_000_000, 1, 7), seen(1, 1_004_000, 1, 7)];
    for psn in [1, 8] {
        all.push(seen(0, u64::from(psn) * 200_000, 1, psn));
        all.push(seen(1, u64::from(psn) * 200_000 + 4_000, 1, psn));
    }
    all.push(seen(0, 500, 1, 0));
    all.push(seen(1, 900, 1, 0));
    let (shown, report) = run(2, all);
    let expected = [
        (0, 500, "delivered"),
        (7, 1_000, "lost"),
        (1, 200_000, "delivered"),
        (7, 1_000_000, "delivered"),
        (8, 1_600_000, "delivered"),
    ];
    assert_eq!(summary(&shown), expected);
    assert_eq!(report.transits[0].nanos.percentiles().max, 4_000);
}

#[test]
fn copy_of_a_retransmission_is_no_late_arrival_of_the_lost_packet() {
    let mut all = vec![seen(0, 1_000, 1, 0), seen(1, 5_000, 1, 0), seen(1, 2_000_000, 1, 99)];
    all.extend([seen(0, 10_000, 1, 7), seen(0, 1_000_000, 1, 7)]);
    all.extend([seen(1, 1_004_000, 1, 7), seen(1, 1_004_700, 1, 7)]);
    let (shown, _) = run(2, all);
    let expected = [
        (0, 1_000, "delivered"),
        (7, 10_000, "lost"),
        (7, 1_000_000, "delivered"),
        (7, 1_004_700, "copy"),
        (99, 2_000_000, "delivered"),
    ];
    assert_eq!(summary(&shown)[..4], expected[..4]);
}

#[test]
fn packet_that_is_overtaken_and_one_that_is_late_are_told() {
    let mut all = Vec::new();
    for psn in 0..20 {
        let time = 1_000_000 + u64::from(psn) * 1_000;
        let transit = if psn == 4 { 150_000 } else { 4_000 };
        all.push(seen(0, time, 1, psn));
        all.push(seen(1, time + transit, 1, psn));
    }
    let (shown, report) = run(2, all);
    let overtaken: Vec<_> =
        shown.iter().filter(|shown| shown.facts.sightings().reordered.is_some()).collect();
    assert_eq!(overtaken.iter().map(|shown| shown.facts.psn.get()).collect::<Vec<_>>(), [4]);
    assert_eq!(report.transits[0].delayed, 1);
    assert_eq!(report.transits[0].delays[0].frames, [1_004_000, 1_154_000]);
}

#[test]
fn files_with_different_traffic_miss_nothing() {
    let mut all: Vec<_> = (0..9).map(|psn| seen(0, 1_000_000 + u64::from(psn), 1, psn)).collect();
    all.extend((0..9).map(|psn| PacketFacts {
        source_port: 7,
        ..seen(1, 1_000_000 + u64::from(psn), 1, 100 + psn)
    }));
    let (shown, report) = run(2, all);
    assert_eq!(shown.len(), 18);
    assert!(shown.iter().all(|shown| *shown.facts.sightings() == Sightings::default()));
    assert_eq!(report.seen_elsewhere, [0, 0]);
}

#[test]
fn window_is_bounded_in_packets_and_in_time() {
    let mut vantage = Vantage::new(2, 50_000);
    let mut shown = 0;
    for number in 0..70_000_u64 {
        shown += vantage.push(seen(0, 1_000 + number, 1, (number & 0xff_ffff) as u32)).len();
        assert!(vantage.held.len() <= VANTAGE_PACKETS_MAX);
        assert!(vantage.held.len() + vantage.ready.len() + shown == number as usize + 1);
    }
    assert!(shown > 30_000);
    let late = vantage.push(seen(0, 10_000_000_000, 1, 5)).len();
    assert!(late > 0 && vantage.held.len() < 10, "{late} {}", vantage.held.len());
    assert_eq!(shown + late + vantage.finish().0.len(), 70_001);
}

#[test]
fn clocks_are_known_from_packets_that_were_retransmitted() {
    // File 1 is 2.5 ms behind. What host 1 sends first is lost; that it was seen 1.1 ms before
    // would be nearer to no difference of the clocks.
    let all = vec![
        seen(1, 7_000_000, 1, 77),
        seen(0, 10_000_000, 1, 5),
        seen(0, 11_400_000, 1, 5),
        seen(1, 8_904_000, 1, 5),
        seen(1, 8_905_000, 2, 9),
        seen(0, 11_409_000, 2, 9),
    ];
    let (shown, report) = run(2, all);
    assert_eq!(report.clock_offsets, [Some(0), Some(-2_500_000)]);
    let shown = summary(&shown);
    assert!(shown.contains(&(5, 10_000_000, "lost")), "{shown:?}");
    assert!(shown.contains(&(5, 11_400_000, "delivered")), "{shown:?}");
}

#[test]
fn file_that_alone_sees_the_answers_is_nearer_to_their_sender() {
    // The first transmissions take 5 ms, the answer is lost behind the second file, and nothing
    // comes through any more. The second transmissions are nearer to what that file saw.
    let mut all = vec![seen(1, 106_000_000, 2, 9)];
    for psn in 0..4 {
        let time = 100_000_000 + u64::from(psn) * 1_000;
        all.extend([seen(0, time, 1, psn), seen(1, time + 5_000_000, 1, psn)]);
        all.push(seen(0, time + 5_400_000, 1, psn));
    }
    let (shown, _) = run(2, all);
    let words: Vec<_> = summary(&shown).into_iter().map(|(_, _, word)| word).collect();
    assert_eq!(words.iter().filter(|word| **word == "delivered").count(), 4, "{words:?}");
    assert!(!words.contains(&"copy"), "{words:?}");
}

#[test]
fn packet_that_was_on_its_way_when_the_next_file_ended_is_not_lost() {
    // Packets take 4 µs, one takes 20. The second file ends with PSN 30; PSN 31 to 33 were sent
    // before that.
    let mut all: Vec<PacketFacts> =
        (0..34).map(|n| seen(0, 1_000 * (1 + n), 1, n as u32)).collect();
    let arrival = |n: u64| 1_000 * (1 + n) + if n == 10 { 20_000 } else { 4_000 };
    all.extend((0..=30).filter(|&n| n != 20).map(|n| seen(1, arrival(n), 1, n as u32)));
    let (shown, _) = run(2, all);
    let words: Vec<_> = summary(&shown).into_iter().map(|(psn, _, word)| (psn, word)).collect();
    let lost: Vec<u32> = words.iter().filter(|it| it.1 == "lost").map(|it| it.0).collect();
    assert_eq!(lost, [20], "{words:?}");
    let last = shown.iter().filter(|shown| shown.facts.psn.get() > 30);
    assert!(last.map(|shown| shown.facts.sightings().unseen).all(|unseen| unseen.is_some()));
}

#[test]
fn packet_that_is_marked_on_its_way_is_marked() {
    let mut all: Vec<PacketFacts> = (0..4).map(|n| seen(0, 1_000 * (1 + n), 1, n as u32)).collect();
    all.extend(
        (0..4).map(|n| PacketFacts {
            is_ce_marked: n == 2,
            ..seen(1, 5_000 + 1_000 * n, 1, n as u32)
        }),
    );
    let (shown, _) = run(2, all);
    let marked = shown.iter().filter(|shown| shown.facts.is_ce_marked);
    assert_eq!(marked.map(|shown| shown.facts.psn.get()).collect::<Vec<_>>(), [2]);
}
