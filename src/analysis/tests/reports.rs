//! Contents of the report: findings about marks, sizes and silences, set-ups, and limits.

use super::*;
use crate::wire::Service;
use crate::wire::mad::AttributeId;

fn kinds(report: &Report) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn marks_and_notifications_are_congestion() {
    let mut script = Script::new();
    for psn in 0..2000 {
        let facts = script.facts(0, Opcode::RC_SEND_ONLY, psn, 1000);
        script.put(PacketFacts { is_ce_marked: psn % 2 == 0, ..facts });
        script.ack(psn);
        if psn % 100 == 99 {
            let cnp = script.facts(1, Opcode::CNP, 0, 16);
            assert_eq!(script.put(cnp).role, PacketRole::Cnp);
        }
    }
    let (report, _) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.ce_marked, direction.cnps), (1000, 20));
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!(finding.kind, FindingKind::Congestion);
    let text = "1,000 of 4,000 packets marked CE, 20 CNPs (20 CNPs per 1,000 marked packets)";
    assert!(finding.text.contains(text), "{}", finding.text);
    assert!(finding.text.contains("the sender did not slow down"), "{}", finding.text);
    assert_eq!(finding.frames[..2], [1, 5]);
}

#[test]
fn responses_of_another_size_are_a_mismatch() {
    let mut script = Script::new();
    script.request(Opcode::RC_SEND_FIRST, 1, 4096);
    script.request(Opcode::RC_SEND_LAST, 2, 10);
    script.ack(2);
    script.read(3, 3 * MTU);
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 3, MTU, ack);
    let (report, _) = script.finish();
    let finding = report.findings.iter().find(|f| f.kind == FindingKind::MtuMismatch).unwrap();
    let text = "READ responses at MTU 1024 on a path whose requests use 4096";
    assert!(finding.text.ends_with(text), "{}", finding.text);
    assert_eq!(finding.frames, [1, 5]);
}

#[test]
fn silence_with_requests_in_flight_is_a_stall() {
    let mut script = Script::new();
    script.send(1);
    script.ack(1);
    // Nothing is in flight.
    script.wait_micros(500_000).send(2);
    script.wait_micros(30_000).ack(2);
    script.send(3);
    script.wait_micros(40_000).on(Pair { hosts: [3, 4], ..PAIR }).send(1);
    let (report, _) = script.finish();
    let stalls = &report.connections[0].directions[0].stalls;
    let found: Vec<_> = stalls.iter().map(|s| (s.before, s.after, s.nanos / 1_000_000)).collect();
    assert_eq!(found, [(5, None, 40), (3, Some(4), 30)]);
    assert_eq!(kinds(&report), [FindingKind::Stall]);
    assert_eq!(report.findings[0].certainty, Certainty::Likely);
}

/// A message of the connection manager from one end.
fn cm(
    script: &Script,
    from: usize,
    attribute: AttributeId,
    change: impl FnOnce(&mut CmFacts),
) -> PacketFacts {
    let mut facts = CmFacts::of(attribute);
    (facts.local_comm_id, facts.remote_comm_id) = ([0xaa, 0xbb][from], [0xbb, 0xaa][from]);
    change(&mut facts);
    let (dest_qp, source_qp) = (Qpn::GSI, Some(Qpn::GSI));
    let packet = script.facts(from, Opcode::UD_SEND_ONLY, 0, 256);
    PacketFacts { dest_qp, source_qp, cm: Some(Box::new(facts)), ..packet }
}

fn connect(script: &mut Script) {
    let qps = script.pair.qps;
    let request = cm(script, 0, AttributeId::CM_REQ, |cm| {
        cm.remote_comm_id = 0;
        cm.qpn = Some(Qpn::new(qps[0]));
        cm.starting_psn = Some(Psn::new(900));
        (cm.application_port, cm.path_mtu) = (Some(7471), Some(2048));
        (cm.ack_timeout, cm.retry_count) = (Some(14), Some(2));
    });
    assert_eq!(script.put(request).role, PacketRole::Management);
    let reply = cm(script, 1, AttributeId::CM_REP, |cm| {
        cm.qpn = Some(Qpn::new(qps[1]));
        cm.starting_psn = Some(Psn::new(100));
    });
    script.put(reply);
}

#[test]
fn set_up_pairs_before_any_response() {
    let mut script = Script::new();
    connect(&mut script);
    // Both ends request, and nothing is answered.
    script.send(100);
    script.on(PAIR.reversed()).send(900);
    let (report, told) = script.finish();
    // Management datagrams are counted, and followed no further.
    let counts = report.connections[0].directions.each_ref().map(|d| d.request_packets);
    assert_eq!((counts, report.connections[0].service), ([1, 1], Service::Ud));
    let connection = &report.connections[1];
    assert_eq!(connection.pairing, Pairing::ConnectionManager);
    assert_eq!(connection.ends.each_ref().map(|e| e.qpn.map(Qpn::get)), [Some(0x11), Some(0x12)]);
    let setup = connection.setup.as_ref().unwrap();
    assert_eq!((setup.request_frame, setup.reply_frame), (Some(1), Some(2)));
    assert_eq!((setup.application_port, connection.path_mtu), (Some(7471), Some(2048)));
    assert_eq!(setup.starting_psns, [Some(Psn::new(100)), Some(Psn::new(900))]);
    assert_eq!(told.messages.len(), 2, "management is no message of a program");
}

#[test]
fn set_up_tells_the_retransmission_timeout() {
    // 4.096 µs × 2^14 are 67 ms, so that what comes again after 5 ms is a copy.
    let mut script = Script::new();
    connect(&mut script);
    script.send(100);
    assert!(script.wait_micros(5000).send(100).duplicate);
    let again = script.wait_micros(70_000).send(100);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    let again = script.wait_micros(70_000).send(100);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    script.wait_micros(1_000_000).on(Pair { hosts: [3, 4], ..PAIR }).send(1);
    let (report, _) = script.finish();
    // And how often it tries, so that giving up is proven.
    assert_eq!(report.findings[0].kind, FindingKind::RetryLimit);
    assert_eq!(report.findings[0].certainty, Certainty::Proven);
}

#[test]
fn queue_pair_number_that_is_set_up_anew_is_another_connection() {
    let mut script = Script::new();
    script.send(100);
    script.ack(100);
    connect(&mut script);
    script.send(101);
    script.ack(101);
    let (report, _) = script.finish();
    let rc: Vec<_> = report.connections.iter().filter(|c| c.service == Service::Rc).collect();
    assert_eq!(
        rc.iter().map(|c| c.pairing).collect::<Vec<_>>(),
        [Pairing::Acknowledgements, Pairing::ConnectionManager]
    );
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn refused_and_unanswered_connections_are_findings() {
    let mut script = Script::new();
    let request = cm(&script, 0, AttributeId::CM_REQ, |cm| {
        (cm.remote_comm_id, cm.application_port) = (0, Some(7471));
        cm.qpn = Some(Qpn::new(0x11));
    });
    script.put(request);
    let refusal = cm(&script, 1, AttributeId::CM_REJ, |cm| cm.reject_reason = Some(8));
    script.put(refusal);
    for _ in 0..3 {
        let request = cm(&script, 0, AttributeId::CM_REQ, |cm| {
            (cm.local_comm_id, cm.remote_comm_id) = (0xcc, 0);
            cm.qpn = Some(Qpn::new(0x13));
        });
        script.put(request);
    }
    let (report, _) = script.finish();
    let texts: Vec<_> = report.findings.iter().map(|f| (f.text.as_str(), &f.frames[..])).collect();
    let expected: [(&str, &[u64]); 2] = [
        ("10.0.0.1 → 10.0.0.2 port 7471: connection refused: invalid service ID", &[1, 2]),
        ("10.0.0.1 → 10.0.0.2: 3 REQs without an answer", &[3]),
    ];
    assert_eq!(texts, expected);
}

#[test]
fn connections_beyond_the_limit_are_summed_up() {
    let mut script = Script::new();
    let count = u32::try_from(limits::ENDPOINTS_MAX).unwrap() + 100;
    for qpn in 0..count {
        let mut facts = script.facts(0, Opcode::RC_SEND_ONLY, 1, 10);
        facts.dest_qp = Qpn::new(qpn + 2);
        script.put(facts);
    }
    let (report, told) = script.finish();
    assert_eq!(report.beyond_limits.connections, 100);
    assert_eq!(report.totals.connections, u64::from(count));
    assert_eq!(report.totals.all.request_packets, u64::from(count));
    assert_eq!(report.connections.len(), limits::ENDPOINTS_MAX);
    assert_eq!(told.messages.len(), count as usize);
    assert_eq!(kinds(&report), [FindingKind::BeyondLimits]);
    let forgotten = (1..=count).filter(|&flow| report.flow_of(FlowNumber(flow)).is_none()).count();
    assert_eq!(forgotten, 100);
}

#[test]
fn report_before_the_end_is_the_report_of_what_there_is() {
    let mut script = Script::new();
    script.send(1);
    script.ack(1);
    let report = script.analysis.snapshot();
    assert_eq!(report.totals.all.acks, 1);
    script.send(2);
    let (report, told) = script.finish();
    assert_eq!(report.totals.all.request_packets, 2);
    assert_eq!(told.messages.len(), 2);
}

#[test]
fn connections_have_series_unless_they_are_left_out() {
    for leaves_out_series in [false, true] {
        let mut script = Script::new();
        script.analysis.config.leaves_out_series = leaves_out_series;
        script.send(10);
        script.ack(10);
        let (report, _) = script.finish();
        let packets = report.connections[0].series.intervals().map(|one| one.packets);
        let expected = if leaves_out_series { vec![] } else { vec![[1, 0], [0, 1]] };
        assert_eq!(packets.collect::<Vec<_>>(), expected);
    }
}

/// Requests to which no answer was captured; the requester repeats only the first one, and falls
/// silent.
fn give_up(script: &mut Script) {
    script.sends(10..30);
    for _ in 0..3 {
        script.wait_micros(2_000);
        script.send(10);
    }
    script.wait_micros(100_000);
}

#[test]
fn requester_that_gave_up_is_no_capture_of_one_direction() {
    let mut script = Script::new();
    give_up(&mut script);
    // The capture goes on.
    script.on(Pair { hosts: [3, 4], qps: [0x31, 0x32] });
    script.request(Opcode::UC_SEND_ONLY, 5, 100);
    let (report, _) = script.finish();
    assert_eq!(report.capture.kind.one_direction, None);
    assert_eq!(kinds(&report), [FindingKind::RetryLimit]);
}

#[test]
fn requester_that_gave_up_is_found_in_a_capture_of_one_direction() {
    let mut script = Script::new();
    give_up(&mut script);
    script.on(Pair { hosts: [3, 4], qps: [0x31, 0x32] }).sends(50..90);
    let (report, _) = script.finish();
    assert_eq!(report.capture.kind.one_direction, Some(2));
    let found: Vec<_> = report.findings.iter().map(|found| (found.kind, found.flow)).collect();
    assert_eq!(found, [(FindingKind::RetryLimit, Some(report.connections[0].flow))]);
    assert!(report.connections[0].findings[0].iter().eq([FindingKind::RetryLimit]));
}
