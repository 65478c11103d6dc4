//! UC and UD.

use super::*;

#[test]
fn uc_message_with_a_missing_packet_is_incomplete() {
    let mut script = Script::new();
    script.request(Opcode::UC_SEND_ONLY, 1, 10);
    script.request(Opcode::UC_SEND_FIRST, 2, MTU);
    script.request(Opcode::UC_SEND_LAST, 4, 10);
    script.request(Opcode::UC_SEND_FIRST, 5, MTU);
    script.request(Opcode::UC_SEND_LAST, 6, 10);
    let (report, told) = script.finish();
    let ends: Vec<_> = told.messages.iter().map(|message| message.outcome).collect();
    assert_eq!(ends, [Outcome::Completed, Outcome::Incomplete, Outcome::Completed]);
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.sequence % 64, loss.place), (3, LossPlace::BeforeCapturePoint));
    let direction = only_direction(&report);
    assert_eq!((direction.lost_requests, direction.operations[0].failed), (1, 1));
    assert_eq!(report.findings[0].kind, FindingKind::Loss);
}

#[test]
fn uc_copies_and_late_packets() {
    let mut script = Script::new();
    let send = |script: &mut Script, psn| script.request(Opcode::UC_SEND_ONLY, psn, 10);
    send(&mut script, 1);
    assert!(send(&mut script, 1).duplicate);
    send(&mut script, 3);
    assert!(send(&mut script, 2).reordered);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.duplicate_packets, direction.reordered, direction.psn_gaps), (1, 1, 0));
    assert!(told.losses.is_empty());
}

#[test]
fn ud_is_one_message_a_packet_between_the_queue_pairs_that_the_deth_names() {
    let mut script = Script::new();
    for (from, psn) in [(0, 1), (1, 50), (0, 2), (0, 9)] {
        let source_qp = Some(Qpn::new(PAIR.qps[from]));
        let facts = script.facts(from, Opcode::UD_SEND_ONLY, psn, 10);
        script.put(PacketFacts { source_qp, ..facts });
    }
    let (report, told) = script.finish();
    let [connection] = report.connections.as_slice() else { panic!() };
    assert_eq!(connection.pairing, Pairing::Datagram);
    assert_eq!(
        connection.ends.each_ref().map(|end| end.qpn.map(Qpn::get)),
        [Some(0x11), Some(0x12)]
    );
    assert_eq!(told.messages.len(), 4);
    assert!(told.losses.is_empty(), "the PSNs between may have gone elsewhere");
    assert_eq!(connection.directions[0].psn_gaps, 6);
}

#[test]
fn uc_packet_that_comes_behind_many_others_is_not_lost() {
    let mut script = Script::new();
    for psn in (1..2).chain(3..200) {
        script.request(Opcode::UC_SEND_ONLY, psn, 10);
    }
    assert!(script.request(Opcode::UC_SEND_ONLY, 2, 10).reordered);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.lost_requests, direction.reordered, direction.psn_gaps), (0, 1, 0));
    assert!(told.losses.is_empty());
}
