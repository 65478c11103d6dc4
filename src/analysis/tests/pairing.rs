//! Pairing of queue pairs.

use super::*;

const OTHER: Pair = Pair { hosts: [1, 2], qps: [0x21, 0x22] };

fn ends(report: &Report) -> Vec<([Option<u32>; 2], Pairing)> {
    let qps = |c: &Connection| c.ends.each_ref().map(|end| end.qpn.map(Qpn::get));
    report.connections.iter().map(|c| (qps(c), c.pairing)).collect()
}

#[test]
fn acknowledgements_pair_queue_pairs() {
    let mut script = Script::new();
    script.send(100);
    script.on(OTHER).send(5000);
    script.on(PAIR).ack(100);
    script.on(OTHER).ack(5000);
    let (report, told) = script.finish();
    let expected = [([Some(0x11), Some(0x12)], Pairing::Acknowledgements); 1]
        .into_iter()
        .chain([([Some(0x21), Some(0x22)], Pairing::Acknowledgements)]);
    assert_eq!(ends(&report), expected.collect::<Vec<_>>());
    let final_flows: Vec<_> = told
        .notes
        .iter()
        .map(|(_, note)| {
            let (flow, swapped) = report.flow_of(note.flow).unwrap();
            (flow.0, note.sender.exchanged_if(swapped).index())
        })
        .collect();
    assert_eq!(final_flows, [(1, 0), (2, 0), (1, 1), (2, 1)]);
}

#[test]
fn equal_psns_are_told_apart_by_later_ones() {
    let mut script = Script::new();
    script.on(PAIR).send(7);
    script.on(OTHER).send(7);
    script.on(PAIR).ack(7);
    script.on(OTHER).ack(7);
    script.on(OTHER).send(8);
    // Only one of the two has sent PSN 8.
    script.on(OTHER).ack(8);
    let (report, told) = script.finish();
    assert_eq!(ends(&report).len(), 2);
    for (qps, pairing) in ends(&report) {
        assert!(qps == [Some(0x11), Some(0x12)] || qps == [Some(0x21), Some(0x22)], "{qps:?}");
        assert_ne!(pairing, Pairing::Unpaired);
    }
    assert_eq!(told.messages.len(), 3);
    assert!(told.messages.iter().all(|message| message.outcome == Outcome::Completed));
}

#[test]
fn response_must_fit_the_request() {
    let mut script = Script::new();
    script.on(PAIR).send(7);
    script.on(OTHER).read(7, 100);
    script.on(OTHER).read_responses(7..=7, 100);
    let (report, told) = script.finish();
    assert_eq!(ends(&report)[1], ([Some(0x21), Some(0x22)], Pairing::Acknowledgements));
    assert_eq!(told.messages[0].operation, Operation::ReadRequest);
}

#[test]
fn both_ends_may_request() {
    let mut script = Script::new();
    script.send(1);
    script.ack(1);
    script.on(PAIR.reversed()).send(900);
    script.on(PAIR.reversed()).ack(900);
    let (report, told) = script.finish();
    assert_eq!(ends(&report), [([Some(0x11), Some(0x12)], Pairing::Acknowledgements)]);
    let requesters: Vec<_> = told.messages.iter().map(|message| message.requester).collect();
    assert_eq!(requesters, End::BOTH);
    assert_eq!(report.connections[0].directions.each_ref().map(|d| d.request_packets), [1, 1]);
}

#[test]
fn responses_alone_belong_to_the_requester_they_go_to() {
    let mut script = Script::new();
    (1..=3).for_each(|psn| _ = script.ack(psn));
    script.sequence_nak(4);
    let (report, told) = script.finish();
    assert_eq!(ends(&report), [([Some(0x11), None], Pairing::Unpaired)]);
    let direction = only_direction(&report);
    assert_eq!((direction.response_packets, direction.acks, direction.naks[0]), (4, 3, 1));
    assert!(told.messages.is_empty());
    assert_eq!(report.flow_of(told.notes[0].1.flow), Some((FlowNumber(1), true)));
}

#[test]
fn requests_alone_are_unpaired() {
    let mut script = Script::new();
    (1..=3).for_each(|psn| _ = script.send(psn));
    let (report, told) = script.finish();
    assert_eq!(ends(&report), [([None, Some(0x12)], Pairing::Unpaired)]);
    assert!(told.messages.iter().all(|message| message.outcome == Outcome::InFlight));
    assert!(report.findings.is_empty());
}

#[test]
fn far_psn_after_a_silence_is_another_connection() {
    let mut script = Script::new();
    script.send(10);
    script.ack(10);
    script.wait_micros(1_000_000);
    script.send(5_000_000);
    script.ack(5_000_000);
    let (report, _) = script.finish();
    assert_eq!(ends(&report).len(), 2);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn many_queue_pairs_that_begin_with_the_same_psn_are_paired_rightly() {
    const COUNT: usize = 40;
    let pairs: [Pair; COUNT] = core::array::from_fn(|i| {
        let i = u32::try_from(i).unwrap();
        // Queue pair numbers and source ports tell nothing about which belong together.
        Pair { hosts: [1, 2], qps: [0x100 + i, 0x200 + (i * 7) % 40] }
    });
    for seed in 0..20u64 {
        let mut script = Script::new();
        let mut random = seed;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        let (mut sent, mut acknowledged) = ([0u32; COUNT], [0u32; COUNT]);
        for _ in 0..4000 {
            let i = next() % COUNT;
            if next() % 2 == 0 && sent[i] < acknowledged[i] + 4 {
                script.on(pairs[i]).send(sent[i]);
                sent[i] += 1;
            } else if acknowledged[i] < sent[i] {
                script.on(pairs[i]).ack(acknowledged[i]);
                acknowledged[i] += 1;
            }
        }
        for i in 0..COUNT {
            while acknowledged[i] < sent[i] {
                script.on(pairs[i]).ack(acknowledged[i]);
                acknowledged[i] += 1;
            }
        }
        let (report, told) = script.finish();
        let mut found = ends(&report);
        found.sort_by_key(|(qps, _)| *qps);
        let expected = pairs.map(|pair| pair.qps.map(Some));
        assert_eq!(found.iter().map(|(qps, _)| *qps).collect::<Vec<_>>(), expected);
        assert!(told.messages.iter().all(|message| message.outcome == Outcome::Completed));
        assert_eq!(told.messages.len(), sent.iter().sum::<u32>() as usize);
        assert!(report.findings.is_empty(), "seed {seed}: {:?}", report.findings);
    }
}

#[test]
fn ports_that_linux_derives_from_both_numbers_pair_before_any_response() {
    let mut script = Script::new();
    // Ports as `rdma_calc_flow_label` gives them.
    let connections = [(PAIR, 0xc132), (OTHER, 0xc462)];
    for (pair, source_port) in connections {
        script.on(pair);
        script.put(PacketFacts { source_port, ..script.facts(0, Opcode::RC_SEND_ONLY, 7, 100) });
    }
    for (pair, source_port) in connections {
        script.on(pair);
        script.put(PacketFacts { source_port, ..script.facts(1, Opcode::RC_SEND_ONLY, 7, 100) });
    }
    let (report, _) = script.finish();
    let expected = [[0x11, 0x12], [0x21, 0x22]].map(|qps| (qps.map(Some), Pairing::SourcePort));
    assert_eq!(ends(&report), expected);
}

#[test]
fn uc_that_requests_each_other_is_paired_by_its_port_only() {
    for (ports, count) in [([0xc001, 0xc002], 2), ([0xc001, 0xc001], 1)] {
        let mut script = Script::new();
        for (from, psn) in [(0, 7), (1, 7), (0, 8)] {
            let packet = script.facts(from, Opcode::UC_SEND_ONLY, psn, 100);
            script.put(PacketFacts { source_port: ports[from], ..packet });
        }
        let (report, _) = script.finish();
        assert_eq!(report.connections.len(), count, "{:?}", ends(&report));
    }
}
