//! Losses on either side of the capture point.

use super::*;

#[test]
fn gap_and_nak_are_a_loss_before_the_capture_point() {
    let mut script = Script::new();
    script.send(10);
    script.send(12);
    script.send(14);
    script.sequence_nak(11);
    for psn in 11..15 {
        // PSN 11 and 13 were never captured before, but the requester must have sent them.
        let note = script.send(psn);
        assert_eq!(note.retransmission, Some(RetransmissionCause::SequenceNak), "PSN {psn}");
    }
    script.ack(14);
    let (report, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|l| (l.sequence % 64, l.frame, l.proof)).collect();
    assert_eq!(lost, [(11, None, 4), (13, None, 4)]);
    for loss in &told.losses {
        assert_eq!(
            (loss.place, loss.certainty),
            (LossPlace::BeforeCapturePoint, Certainty::Proven)
        );
    }
    assert_eq!(only_direction(&report).not_captured, 0);
    assert_eq!(report.findings.len(), 1);
    let text = "2 of 11 packets lost, all before the capture point, recovered by 1 sequence NAK";
    assert!(report.findings[0].text.contains(text), "{}", report.findings[0].text);
}

#[test]
fn late_packet_is_reordered_and_not_lost() {
    let mut script = Script::new();
    script.send(10);
    script.send(12);
    let late = script.send(11);
    assert!(late.reordered && late.retransmission.is_none() && !late.duplicate);
    assert!(!script.send(13).reordered);
    script.ack(13);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.reordered, direction.lost_requests, direction.not_captured), (1, 0, 0));
    assert!(told.losses.is_empty());
    assert_eq!(outcomes(&told).len(), 4);
    assert!(told.messages.iter().all(|message| message.outcome == Outcome::Completed));
}

#[test]
fn nak_because_of_reordering_is_no_loss() {
    let mut script = Script::new();
    script.send(10);
    script.send(12);
    script.send(11);
    script.sequence_nak(11);
    let again = script.send(11);
    assert_eq!(again.retransmission, Some(RetransmissionCause::SequenceNak));
    script.send(12);
    script.ack(12);
    let (report, told) = script.finish();
    assert!(told.losses.is_empty(), "{:?}", told.losses);
    assert_eq!(only_direction(&report).reordered, 1);
}

#[test]
fn acknowledged_packet_that_was_never_captured_is_the_captures_loss() {
    let mut script = Script::new();
    script.send(10);
    script.send(12);
    script.ack(12);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.not_captured, direction.lost_requests), (1, 0));
    assert!(told.losses.is_empty());
    assert_eq!(report.findings[0].kind, FindingKind::CaptureLoss);
    assert_eq!(report.findings[0].frames, [3]);
}

#[test]
fn ack_that_was_captured_and_ignored_may_have_come_too_late() {
    let mut script = Script::new();
    script.send(10);
    script.ack(10);
    let again = script.wait_micros(5000).send(10);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    assert!(!script.ack(10).duplicate);
    let (report, told) = script.finish();
    assert!(told.losses.is_empty(), "{:?}", told.losses);
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!(finding.kind, FindingKind::Retransmissions);
    let text = "1 of 2 request packets are retransmissions, after 1 timeout of 5 ms";
    assert!(finding.text.ends_with(text), "{}", finding.text);
    assert_eq!(told.messages.len(), 1, "it completed once");
}

#[test]
fn ack_of_what_was_not_retransmitted_yet_proves_that_the_first_ack_was_lost() {
    let mut script = Script::new();
    script.send(8);
    script.ack(8);
    script.send_first(10 - 1);
    script.send_last(10);
    script.wait_micros(5000).send_first(9);
    script.ack(10);
    script.send_last(10);
    script.ack(10);
    let (_, told) = script.finish();
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.role, loss.frame), (PacketRole::Ack, None));
    assert_eq!((loss.place, loss.certainty), (LossPlace::BeforeCapturePoint, Certainty::Proven));
}

#[test]
fn corrupted_packet_is_dropped_by_its_receiver() {
    let mut script = Script::new();
    (8..11).for_each(|psn| _ = script.send(psn));
    let facts = script.facts(0, Opcode::RC_SEND_ONLY, 11, 100);
    script.put(PacketFacts { icrc: IcrcVerdict::Bad, digest: 1, ..facts });
    script.send(12);
    script.sequence_nak(11);
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::SequenceNak));
    script.send(12);
    script.ack(12);
    let (report, told) = script.finish();
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.frame, loss.proof, loss.certainty), (Some(4), 6, Certainty::Proven));
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Corruption, FindingKind::Loss]);
    assert_eq!(report.findings[0].frames, [4]);
    assert_eq!(only_direction(&report).icrc_errors, 1);
}

#[test]
fn last_packet_corrupted_is_retransmitted_after_a_timeout() {
    let mut script = Script::new();
    (8..11).for_each(|psn| _ = script.send(psn));
    script.ack(10);
    let facts = script.facts(0, Opcode::RC_SEND_ONLY, 11, 100);
    script.put(PacketFacts { icrc: IcrcVerdict::Bad, digest: 1, ..facts });
    let again = script.wait_micros(5000).send(11);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    script.ack(11);
    let (report, told) = script.finish();
    assert_eq!((told.losses.len(), told.losses[0].frame), (1, Some(5)));
    assert_eq!(only_direction(&report).retransmissions.timeout.rewinds, 1);
}

#[test]
fn nak_of_what_was_acknowledged_is_a_finding() {
    let mut script = Script::new();
    (10..14).for_each(|psn| _ = script.send(psn));
    script.ack(13);
    script.sequence_nak(11);
    let (report, _) = script.finish();
    let finding = &report.findings[0];
    assert_eq!(
        (finding.kind, finding.certainty),
        (FindingKind::ProtocolViolation, Certainty::Likely)
    );
    assert_eq!(finding.frames, [5, 6]);
}

#[test]
fn several_packets_in_a_gap_are_told_apart() {
    let mut script = Script::new();
    script.send(10);
    script.send(14);
    // 12 is late, 11 and 13 do not come.
    assert!(script.send(12).reordered);
    script.sequence_nak(11);
    (11..15).for_each(|psn| _ = script.send(psn));
    script.ack(14);
    let (report, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|loss| loss.sequence % 64).collect();
    assert_eq!(lost, [11, 13]);
    let direction = only_direction(&report);
    assert_eq!((direction.reordered, direction.lost_requests, direction.not_captured), (1, 2, 0));
}

#[test]
fn last_read_response_that_never_comes_is_a_lost_response() {
    let mut script = Script::new();
    script.send_first(8);
    script.send_last(9);
    script.ack(9);
    script.read(10, 3 * MTU);
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 10, MTU, ack);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 11, MTU, ack);
    let again = script.wait_micros(5000).read(12, MTU);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    script.read_responses(12..=12, MTU);
    let (_, told) = script.finish();
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.role, loss.sequence % 64, loss.frame), (PacketRole::Response, 12, None));
    assert_eq!(told.messages.len(), 2);
}

#[test]
fn read_response_that_was_captured_and_ignored_may_have_come_too_late() {
    let mut script = Script::new();
    script.read(10, 100);
    script.read_responses(10..=10, 100);
    let again = script.wait_micros(5000).read(10, 100);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    script.read_responses(10..=10, 100);
    let (report, told) = script.finish();
    assert!(told.losses.is_empty(), "{:?}", told.losses);
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Retransmissions]);
}

#[test]
fn corrupted_acknowledgement_is_dropped_by_the_requester() {
    let mut script = Script::new();
    (8..11).for_each(|psn| _ = script.send(psn));
    script.ack(10);
    script.send(11);
    let facts = script.facts(1, Opcode::RC_ACKNOWLEDGE, 11, 0);
    let aeth = Some((Syndrome::from(Answer::Ack(Credits::UNLIMITED)), Msn::new(0)));
    script.put(PacketFacts { icrc: IcrcVerdict::Bad, aeth, ..facts });
    let again = script.wait_micros(5000).send(11);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    script.ack(11);
    let (report, told) = script.finish();
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!(
        (loss.role, loss.frame, loss.certainty),
        (PacketRole::Ack, Some(6), Certainty::Proven)
    );
    assert_eq!(report.findings[0].kind, FindingKind::Corruption);
}

#[test]
fn damaged_psn_of_a_corrupted_packet_is_not_believed() {
    let mut script = Script::new();
    script.sends(9..11);
    // PSN 11, of which a bit is wrong.
    let corrupt =
        PacketFacts { icrc: IcrcVerdict::Bad, ..script.facts(0, Opcode::RC_SEND_ONLY, 13, 100) };
    script.put(corrupt);
    script.send(12);
    script.sequence_nak(11);
    script.sends(11..13);
    script.ack(12);
    assert_eq!(script.send(13).retransmission, None);
    script.ack(13);
    let (report, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|loss| (loss.sequence % 64, loss.frame)).collect();
    assert_eq!(lost, [(11, None)]);
    assert_eq!(only_direction(&report).icrc_errors, 1);
}

#[test]
fn corrupted_packet_of_no_connection_is_a_finding() {
    let mut script = Script::new();
    script.send(10);
    script.ack(10);
    let mut corrupt = script.facts(0, Opcode::RC_SEND_ONLY, 11, 100);
    (corrupt.icrc, corrupt.dest_qp) = (IcrcVerdict::Bad, Qpn::new(0x8012));
    script.analysis.handle_packet(&corrupt, &mut ());
    let (report, _) = script.finish();
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!((finding.kind, finding.flow), (FindingKind::Corruption, None));
    assert_eq!(finding.frames, [3]);
    assert_eq!(report.totals.all.icrc_errors, 1);
}

#[test]
fn responder_that_was_not_asked_for_an_ack_has_lost_none() {
    let mut script = Script::new();
    script.send(9);
    script.ack(9);
    script.send_first(10);
    script.send_middle(11);
    // The last packet, which asks for an acknowledgement, was lost before the capture point.
    script.wait_micros(5000);
    script.send_first(10);
    script.ack(11);
    script.send_middle(11);
    script.ack(11);
    script.send_last(12);
    script.ack(12);
    let (_, told) = script.finish();
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.sequence % 64, loss.role, loss.frame), (12, PacketRole::Request, None));
    assert_eq!((loss.place, loss.certainty), (LossPlace::BeforeCapturePoint, Certainty::Likely));
}

#[test]
fn retransmission_that_is_corrupted_is_another_loss() {
    let mut script = Script::new();
    script.send(10);
    script.sends(12..14);
    script.sequence_nak(11);
    let corrupt =
        PacketFacts { icrc: IcrcVerdict::Bad, ..script.facts(0, Opcode::RC_SEND_ONLY, 11, 100) };
    script.put(corrupt);
    script.sends(12..14);
    script.wait_micros(5000);
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::Timeout));
    script.sends(12..14);
    script.ack(13);
    let (_, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|loss| (loss.sequence % 64, loss.frame)).collect();
    assert_eq!(lost, [(11, None), (11, Some(5))]);
}

#[test]
fn every_read_whose_response_is_missing_is_told() {
    let mut script = Script::new();
    script.send_first(8);
    script.send_last(9);
    script.ack(9);
    for psn in 10..13 {
        script.read(psn, MTU);
    }
    script.read_responses(12..=12, MTU);
    assert_eq!(script.read(10, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    let lost = |told: &Recorder| -> Vec<(u64, PacketRole)> {
        told.losses.iter().map(|loss| (loss.sequence & 0xff_ffff, loss.role)).collect()
    };
    let all = [(10, PacketRole::Response), (11, PacketRole::Response)];
    script.read(11, MTU);
    script.read(12, MTU);
    script.read_responses(10..=10, MTU);
    assert_eq!(lost(&script.finish().1), all, "once");
}

#[test]
fn gap_behind_a_read_is_no_response_where_the_path_mtu_has_room_for_all() {
    let mut script = Script::new();
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.read(10, 4096);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 10, 4096, ack);
    // PSN 12 is late: PSN 11 would have two responses at a path MTU of 2048.
    script.read(11, 4096);
    assert!(script.read(13, 4096).retransmission.is_none());
    assert!(script.read(14, 4096).retransmission.is_none());
    assert!(script.read(12, 4096).reordered);
    for psn in 11..15 {
        script.answer(Opcode::RC_RDMA_READ_RESPONSE_ONLY, psn, 4096, ack);
    }
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.reordered, direction.lost_requests, direction.lost_responses), (1, 0, 0));
    assert!(told.messages.iter().all(|message| message.outcome == Outcome::Completed));
}

#[test]
fn packet_that_overtakes_many_is_one_out_of_order_and_nothing_is_lost() {
    let mut script = Script::new();
    script.sends(10..20);
    script.send(40);
    // The responder asks for PSN 20, which is on its way, as are those behind it.
    script.sequence_nak(20);
    script.sends(20..40);
    script.sends(41..50);
    script.ack(49);
    let report = script.finish().0;
    let direction = only_direction(&report);
    assert_eq!((direction.reordered, direction.lost_requests, direction.lost_or_late), (1, 0, 0));
    assert_eq!(direction.retransmissions.total().packets, 0);
}

#[test]
fn packet_that_was_held_back_until_others_are_retransmitted_is_alone_out_of_order() {
    let mut script = Script::new();
    script.sends(10..20);
    script.sends(21..40);
    script.sequence_nak(20);
    script.sends(20..23);
    // Sent before the requester went back.
    script.send(40);
    script.sends(23..41);
    script.ack(40);
    let report = script.finish().0;
    let direction = only_direction(&report);
    let lost = direction.lost_requests + direction.lost_or_late;
    assert_eq!((direction.reordered, lost), (1, 1));
}

#[test]
fn packets_that_fill_a_gap_and_repeat_what_came_are_retransmitted() {
    let mut script = Script::new();
    script.sends(10..20);
    script.send(24);
    script.sequence_nak(20);
    script.sends(20..26);
    script.ack(25);
    let report = script.finish().0;
    let direction = only_direction(&report);
    assert_eq!((direction.reordered, direction.lost_requests), (0, 4));
    assert_eq!(direction.retransmissions.sequence_nak.packets, 5);
}
