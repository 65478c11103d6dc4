//! Rewinds and their causes, and copies that the network made.

use super::*;

#[test]
fn go_back_n_after_a_nak_is_one_rewind() {
    let mut script = Script::new();
    script.send_first(10);
    script.send_middle(11);
    script.send_last(12);
    let nak = script.sequence_nak(11);
    assert_eq!((nak.role, nak.sender), (PacketRole::Nak, End::B));
    for (note, psn) in [(script.send_middle(11), 11), (script.send_last(12), 12)] {
        assert_eq!(note.retransmission, Some(RetransmissionCause::SequenceNak));
        assert_eq!(note.sequence % (1 << 24), psn);
    }
    script.ack(12);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    let counted = direction.retransmissions.sequence_nak;
    assert_eq!((counted.rewinds, counted.packets), (1, 2));
    assert_eq!(counted, direction.retransmissions.total());
    assert_eq!(counted.wait_nanos, 3000);
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.frame, loss.proof, loss.role), (Some(2), 4, PacketRole::Request));
    assert_eq!(loss.place, LossPlace::AfterCapturePoint);
    assert_eq!(outcomes(&told), [(Operation::Send, 2148, Outcome::Completed)]);
    assert_eq!(told.messages[0].retransmitted_packets, 2);
}

#[test]
fn packet_after_a_silence_is_a_timeout() {
    let mut script = Script::new();
    script.send(10);
    script.ack(10);
    script.send(11);
    let again = script.wait_micros(4000).send(11);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Timeout));
    script.ack(11);
    let (report, told) = script.finish();
    let timeouts = only_direction(&report).retransmissions.timeout;
    assert_eq!((timeouts.rewinds, timeouts.packets), (1, 1));
    assert_eq!(timeouts.wait_nanos, 4_001_000);
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.frame, loss.certainty), (Some(3), Certainty::Likely));
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Loss]);
}

#[test]
fn copy_of_the_network_is_no_retransmission() {
    let mut script = Script::new();
    script.send(10);
    let copy = script.send(10);
    assert!(copy.duplicate && copy.retransmission.is_none());
    assert!(!script.ack(10).duplicate);
    // The responder acknowledges the copy too.
    assert!(!script.ack(10).duplicate);
    script.send(11);
    script.ack(11);
    assert!(script.ack(11).duplicate, "a copy of the acknowledgement");
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!(direction.duplicate_packets, 2);
    assert_eq!((direction.request_packets, direction.acks), (2, 3));
    assert_eq!(direction.retransmissions.total(), Retransmitted::default());
    assert!(told.losses.is_empty());
    assert_eq!(told.messages.len(), 2);
}

#[test]
fn run_of_packets_that_comes_again_is_retransmitted() {
    let mut script = Script::new();
    (10..30).for_each(|psn| _ = script.send(psn));
    // Nothing asks for it that the capture shows.
    script.wait_micros(200).send(15);
    for psn in 16..30 {
        let again = script.send(psn);
        assert!(!again.duplicate && again.retransmission.is_some(), "{psn}: {again:?}");
    }
    script.ack(29);
    let (report, _) = script.finish();
    assert_eq!(only_direction(&report).duplicate_packets, 1);
}

#[test]
fn late_copy_among_new_packets_is_a_copy() {
    let mut script = Script::new();
    (10..14).for_each(|psn| _ = script.send(psn));
    assert!(script.send(11).duplicate);
    assert_eq!(script.send(14).retransmission, None);
    script.ack(14);
    let (report, _) = script.finish();
    assert_eq!(only_direction(&report).duplicate_packets, 1);
}

#[test]
fn retransmission_after_rnr_waits_for_the_receiver() {
    let mut script = Script::new();
    script.send(10);
    script.rnr(10);
    let again = script.wait_micros(700).send(10);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Rnr));
    script.rnr(10);
    let again = script.wait_micros(700).send(10);
    assert_eq!(again.retransmission, Some(RetransmissionCause::Rnr));
    script.ack(10);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.rnr_naks, direction.retransmissions.rnr.rewinds), (2, 2));
    assert_eq!(direction.rnr_wait_nanos, 2 * 701_000);
    assert!(told.losses.is_empty());
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!(finding.kind, FindingKind::ReceiverNotReady);
    assert!(finding.text.contains("2 RNR NAKs of 0.64 ms"), "{}", finding.text);
    assert_eq!(finding.frames, [2, 3, 4, 5]);
}

#[test]
fn rnr_retries_exceeded_after_silence() {
    let mut script = Script::new();
    for _ in 0..3 {
        script.send(10);
        script.rnr(10);
        script.wait_micros(700);
    }
    script.wait_micros(100_000).on(Pair { hosts: [3, 4], ..PAIR }).send(1);
    let (report, told) = script.finish();
    assert_eq!(told.messages[0].outcome, Outcome::RnrRetryExceeded);
    assert_eq!(report.findings[0].kind, FindingKind::RnrRetryLimit);
    assert_eq!(report.findings[0].certainty, Certainty::Likely);
}

#[test]
fn retries_exceeded_flushes_what_is_behind() {
    let mut script = Script::new();
    script.send(9);
    script.ack(9);
    for _ in 0..4 {
        script.send(10);
        script.send(11);
        script.wait_micros(5000);
    }
    script.wait_micros(100_000).on(Pair { hosts: [3, 4], ..PAIR }).send(1);
    let (report, told) = script.finish();
    let ends: Vec<_> = told.messages.iter().map(|message| message.outcome).collect();
    use Outcome::{Completed, Flushed, InFlight, RetryExceeded};
    assert_eq!(ends, [Completed, RetryExceeded, Flushed, InFlight]);
    let finding = &report.findings[0];
    assert_eq!(finding.kind, FindingKind::RetryLimit);
    let text = "last acknowledged PSN 9; SEND of 100 bytes (PSN 10) had no answer to 3 packets \
                retransmitted in 3 rounds";
    assert!(finding.text.contains(text), "{}", finding.text);
}

#[test]
fn missing_read_response_makes_the_requester_go_back() {
    let mut script = Script::new();
    script.send_first(8);
    script.send_last(9);
    script.ack(9);
    script.read(10, 4 * MTU);
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 10, MTU, ack);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 11, MTU, ack);
    // The response with PSN 12 is missing.
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_LAST, 13, MTU, ack);
    let again = script.read(12, 2 * MTU);
    assert_eq!(again.retransmission, Some(RetransmissionCause::ImpliedNak));
    script.read_responses(12..=13, MTU);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!(direction.retransmissions.implied_nak.rewinds, 1);
    assert_eq!(direction.duplicate_packets, 0);
    let [loss] = told.losses.as_slice() else { panic!("{:?}", told.losses) };
    assert_eq!((loss.role, loss.sequence % (1 << 24)), (PacketRole::Response, 12));
    assert_eq!((loss.sender, loss.place), (End::B, LossPlace::BeforeCapturePoint));
    // One message, however often it was requested.
    let expected = [
        (Operation::Send, u64::from(MTU) + 100, Outcome::Completed),
        (Operation::ReadRequest, u64::from(4 * MTU), Outcome::Completed),
    ];
    assert_eq!(outcomes(&told), expected);
}

#[test]
fn read_replayed_for_a_copy_of_its_request_is_no_copy() {
    let mut script = Script::new();
    script.read(10, 100);
    assert!(script.read(10, 100).duplicate);
    script.read_responses(10..=10, 100);
    script.read_responses(10..=10, 100);
    let (report, told) = script.finish();
    assert_eq!(only_direction(&report).duplicate_packets, 1);
    assert_eq!(outcomes(&told), [(Operation::ReadRequest, 100, Outcome::Completed)]);
}

#[test]
fn psns_wrap() {
    let mut script = Script::new();
    let psn = |i: u32| Psn::new(0xff_fffe).plus(i).get();
    for i in 0..6 {
        let note = script.send(psn(i));
        assert_eq!((note.retransmission, note.reordered), (None, false));
    }
    script.sequence_nak(psn(1));
    for i in 1..6 {
        let note = script.send(psn(i));
        assert_eq!(note.retransmission, Some(RetransmissionCause::SequenceNak));
    }
    script.ack(psn(5));
    let (report, told) = script.finish();
    assert_eq!(only_direction(&report).retransmissions.sequence_nak.rewinds, 1);
    assert_eq!(told.messages.len(), 6);
    let sequences: Vec<_> = told.notes.iter().map(|(_, note)| note.sequence).collect();
    assert_eq!(sequences[..6], [0, 1, 2, 3, 4, 5].map(|i| sequences[0] + i));
}

#[test]
fn implied_nak_stands_beside_a_later_nak() {
    let mut script = Script::new();
    script.send_first(9);
    script.send_last(10);
    script.ack(10);
    script.read(11, 3 * MTU);
    script.send(14);
    script.send(15);
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 11, MTU, ack);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_LAST, 13, MTU, ack);
    // PSN 14 was lost as well.
    script.sequence_nak(14);
    assert_eq!(script.read(12, 2 * MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    assert_eq!(script.send(14).retransmission, Some(RetransmissionCause::ImpliedNak));
}

#[test]
fn responses_to_requests_before_the_rewind_imply_no_further_nak() {
    let mut script = Script::new();
    script.send_first(9);
    script.send_last(10);
    script.ack(10);
    script.read(11, MTU);
    script.read(12, MTU);
    script.read(13, MTU);
    script.read_responses(12..=12, MTU);
    assert_eq!(script.read(11, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    // It was requested before PSN 11 was requested again, which is lost too.
    script.read_responses(13..=13, MTU);
    script.wait_micros(5000);
    assert_eq!(script.read(11, MTU).retransmission, Some(RetransmissionCause::Timeout));
}

#[test]
fn nak_that_was_acted_on_causes_no_later_retransmission() {
    let mut script = Script::new();
    script.send(10);
    script.sends(12..15);
    script.sequence_nak(11);
    // PSN 11 is lost once more.
    for psn in 12..15 {
        assert_eq!(script.send(psn).retransmission, Some(RetransmissionCause::SequenceNak));
    }
    script.wait_micros(5000);
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::Timeout));
}

#[test]
fn rnr_nak_of_a_retransmission_counts_anew() {
    let mut script = Script::new();
    script.send(9);
    script.ack(9);
    script.read(10, 100);
    script.send(11);
    script.rnr(11);
    // The response of the READ is missing, so that the requester goes back at once.
    assert_eq!(script.read(10, 100).retransmission, Some(RetransmissionCause::ImpliedNak));
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::ImpliedNak));
    script.read_responses(10..=10, 100);
    assert!(!script.rnr(11).duplicate);
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::Rnr));
}

#[test]
fn requester_that_went_back_drops_responses_until_one_comes_in_order() {
    let mut script = Script::new();
    script.send_first(8);
    script.send_last(9);
    script.ack(9);
    script.read(10, MTU);
    script.read(11, MTU);
    script.send(12);
    // The response to PSN 10 is late.
    script.read_responses(11..=11, MTU);
    assert_eq!(script.read(10, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    script.ack(12);
    script.read_responses(10..=10, MTU);
    // The requester has not taken the response to PSN 11, and this request for it is lost.
    assert_eq!(script.read(11, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    assert_eq!(script.send(12).retransmission, Some(RetransmissionCause::ImpliedNak));
    script.ack(12);
    assert_eq!(script.read(11, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    let (report, told) = script.finish();
    assert_eq!(only_direction(&report).retransmissions.implied_nak.rewinds, 2);
    assert!(!told.messages.iter().any(|m| m.first_psn.get() == 11 && m.end.is_some()));
}

#[test]
fn nak_of_a_late_packet_counts_although_the_packet_is_acknowledged() {
    let mut script = Script::new();
    script.send(10);
    script.send(12);
    assert!(script.send(11).reordered);
    script.sequence_nak(11);
    script.ack(11);
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::SequenceNak));
    assert_eq!(script.send(12).retransmission, Some(RetransmissionCause::SequenceNak));
}

#[test]
fn wrong_guess_of_the_path_mtu_is_taken_back_for_the_read_behind() {
    let mut script = Script::new();
    script.read(10, MTU);
    // PSN 11 is missing: two responses of 512 bytes would fit.
    script.read(12, MTU);
    script.read_responses(10..=10, MTU);
    assert_eq!(script.send(13).retransmission, None);
    script.sequence_nak(11);
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::SequenceNak));
    assert!(script.read(12, MTU).retransmission.is_some());
    script.read_responses(12..=12, MTU);
    assert_eq!(script.read(14, 2 * MTU).retransmission, None);
}

#[test]
fn late_response_does_not_hide_the_one_that_is_missing_behind_it() {
    let mut script = Script::new();
    script.send_first(8);
    script.send_last(9);
    script.ack(9);
    script.read(10, MTU);
    script.read(11, MTU);
    script.read(12, MTU);
    // The response to PSN 10 is late, the one to PSN 11 is lost. The requester goes back for the
    // one to PSN 12.
    script.read_responses(12..=12, MTU);
    script.read_responses(10..=10, MTU);
    assert_eq!(script.read(10, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    assert_eq!(script.read(11, MTU).retransmission, Some(RetransmissionCause::ImpliedNak));
    let (_, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|loss| (loss.role, loss.sequence & 0xff)).collect();
    assert_eq!(lost, [(PacketRole::Response, 11)]);
}

#[test]
fn late_packet_behind_the_one_that_a_nak_names_does_not_use_up_the_nak() {
    let mut script = Script::new();
    script.send(10);
    script.send(13);
    script.sequence_nak(11);
    // PSN 12 was only late; its retransmission follows that of PSN 11.
    script.send(12);
    let named = script.send(11);
    assert_eq!(named.retransmission, Some(RetransmissionCause::SequenceNak));
    assert!(!named.reordered);
    assert_eq!(script.send(12).retransmission, Some(RetransmissionCause::SequenceNak));
}

#[test]
fn retransmission_whose_followers_are_lost_is_not_late() {
    // Soon after the NAK the requester may not have had it.
    for (micros, expected) in [(100, (0, 1)), (1, (1, 0))] {
        let mut script = Script::new();
        for pair in [PAIR, PAIR.reversed()] {
            script.on(pair).send(10);
            script.wait_micros(10).ack(10);
        }
        script.on(PAIR).send(12);
        script.sequence_nak(11);
        script.send(11);
        script.wait_micros(micros).send(13);
        let (report, _) = script.finish();
        let direction = only_direction(&report);
        let rewinds = direction.retransmissions.sequence_nak.rewinds;
        assert_eq!((direction.reordered, rewinds), expected, "{micros}");
    }
}

#[test]
fn loss_is_told_once_if_the_request_for_it_comes_after_those_behind_it() {
    let mut script = Script::new();
    script.send_first(8);
    script.send_last(9);
    script.ack(9);
    script.read(10, MTU);
    script.send(11);
    script.ack(11);
    // The new request for PSN 10 is late.
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::ImpliedNak));
    script.ack(11);
    script.read(10, MTU);
    let (_, told) = script.finish();
    assert_eq!(told.losses.len(), 1);
}

#[test]
fn response_lost_behind_the_point_after_a_timeout_implies_a_nak() {
    let mut script = Script::new();
    script.read(10, 4 * MTU);
    script.read_responses(10..=13, MTU);
    // The requester got none of them, and asks for all after its timeout.
    script.wait_micros(67_000);
    assert_eq!(script.read(10, 4 * MTU).retransmission, Some(RetransmissionCause::Timeout));
    script.read_responses_again(10..=13);
    // It got the first, and not the second, as the third tells it.
    script.wait_micros(200);
    let note = script.read(11, 3 * MTU);
    assert_eq!(note.retransmission, Some(RetransmissionCause::ImpliedNak));
}

/// A connection whose round trips take at least 400 µs.
fn script_with_round_trips() -> Script {
    let mut script = Script::new();
    script.send(9);
    script.wait_micros(400);
    script.ack(9);
    script
}

#[test]
fn request_that_is_acknowledged_twice_was_repeated_without_need() {
    for (apart, is_spurious) in [(1_000, true), (10, false)] {
        let mut script = script_with_round_trips();
        script.send(10);
        script.wait_micros(5_000);
        script.send(10);
        script.wait_micros(500);
        script.ack(10);
        // Soon after the first it may be a copy.
        script.wait_micros(apart);
        script.ack(10);
        let (report, _) = script.finish();
        let Retransmissions { timeout, spurious, .. } = only_direction(&report).retransmissions;
        let real = if is_spurious { (0, 1) } else { (1, 0) };
        assert_eq!((timeout.packets, spurious.packets), real, "{apart}");
    }
}

#[test]
fn acknowledgements_of_all_repeated_packets_do_not_make_a_timeout_spurious() {
    let mut script = script_with_round_trips();
    script.sends(10..14);
    // The responder had them all, and its acknowledgement was lost before the point.
    script.wait_micros(5_000);
    script.sends(10..14);
    for _ in 10..14 {
        script.wait_micros(500);
        script.ack(13);
    }
    let (report, _) = script.finish();
    let Retransmissions { timeout, spurious, .. } = only_direction(&report).retransmissions;
    assert_eq!((timeout.packets, spurious), (4, Retransmitted::default()));
}

#[test]
fn timeout_is_not_spurious_if_the_point_missed_its_last_packet() {
    let mut script = Script::new();
    script.sends(10..13);
    // The first transmission of PSN 13 was lost before the point.
    script.wait_micros(5_000);
    script.sends(10..14);
    script.ack(12);
    script.ack(12);
    script.ack(13);
    let (report, _) = script.finish();
    let Retransmissions { timeout, spurious, .. } = only_direction(&report).retransmissions;
    assert_eq!((timeout.packets, spurious), (3, Retransmitted::default()));
}

#[test]
fn timeout_is_not_spurious_if_the_acknowledgement_had_passed() {
    let mut script = Script::new();
    script.sends(10..14);
    script.ack(13);
    script.wait_micros(5_000);
    script.sends(10..14);
    script.ack(13);
    let (report, _) = script.finish();
    let Retransmissions { timeout, spurious, .. } = only_direction(&report).retransmissions;
    assert_eq!((timeout.packets, spurious), (4, Retransmitted::default()));
}

#[test]
fn read_that_is_answered_twice_was_repeated_without_need() {
    let mut script = Script::new();
    script.read(10, 3 * MTU);
    script.wait_micros(5_000);
    script.read(10, 3 * MTU);
    script.read_responses(10..=12, MTU);
    script.read_responses_again(10..=12);
    let (report, _) = script.finish();
    let Retransmissions { timeout, spurious, .. } = only_direction(&report).retransmissions;
    assert_eq!((timeout.packets, spurious.packets), (0, 1));
}

#[test]
fn both_ends_show_that_the_answer_left_before_the_retransmission_came() {
    for (left, is_spurious) in [(6_050, true), (6_150, false)] {
        let mut script = Script::new();
        let at = |micros: u64| Some(Instant::from_nanos(1_000_000_000 + micros * 1000));
        let delivered = |far| Sightings { is_delivered: true, far, ..Sightings::default() };
        let mut put = |from: usize, opcode: Opcode, psn: u32, far: u64, wait: u64| {
            script.wait_micros(wait);
            let mut facts = script.facts(from, opcode, psn, 100);
            facts.sightings = Some(Box::new(delivered(at(far))));
            if from == 1 {
                facts.payload_len = 0;
                facts.aeth = Some((Syndrome::from(Answer::Ack(Credits::UNLIMITED)), Msn::new(1)));
            }
            script.put(facts);
        };
        put(0, Opcode::RC_SEND_ONLY, 10, 100, 0);
        put(0, Opcode::RC_SEND_ONLY, 11, 101, 0);
        put(0, Opcode::RC_SEND_ONLY, 10, 6_100, 6_000);
        put(1, Opcode::RC_ACKNOWLEDGE, 11, left, 100);
        // What it retransmits after that belongs to the same round.
        put(0, Opcode::RC_SEND_ONLY, 11, 6_300, 0);
        let (report, _) = script.finish();
        let Retransmissions { timeout, spurious, .. } = only_direction(&report).retransmissions;
        let (needed, not_needed) = if is_spurious { (0, 1) } else { (1, 0) };
        assert_eq!((timeout.rewinds, timeout.packets), (needed, 2 * needed), "{left}");
        assert_eq!((spurious.rewinds, spurious.packets), (not_needed, 2 * not_needed), "{left}");
        assert_eq!(spurious.bytes, 2 * 162 * not_needed, "{left}");
        assert_eq!(spurious.wait_nanos > 5_000_000, is_spurious, "{left}");
    }
}

#[test]
fn nak_does_not_drop_what_was_retransmitted_since() {
    let mut script = Script::new();
    script.send(9);
    script.wait_micros(100);
    script.ack(9);
    script.sends(10..12);
    script.read(12, 100);
    script.wait_micros(100);
    script.sequence_nak(10);
    script.sends(10..12);
    script.read(12, 100);
    // The first one was late: the responder reports the next gap, before it gets the rest again.
    script.wait_micros(20);
    script.sequence_nak(11);
    script.send(11);
    script.read(12, 100);
    script.wait_micros(100);
    // It answers both repetitions.
    script.read_responses(12..=12, 100);
    script.wait_micros(20);
    script.read_responses(12..=12, 100);
    let (report, _) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.duplicate_packets, direction.lost_responses), (0, 0));
}

#[test]
fn copy_of_a_retransmission_does_not_make_that_a_late_packet() {
    let mut script = Script::new();
    script.send(9);
    script.ack(9);
    // PSN 10 is lost before the point.
    script.send(11);
    script.wait_micros(5);
    script.sequence_nak(10);
    script.wait_micros(5);
    assert_eq!(script.send(10).retransmission, Some(RetransmissionCause::SequenceNak));
    let mut copy = script.facts(0, Opcode::RC_SEND_ONLY, 10, 100);
    copy.time = Instant::from_nanos(copy.time.as_nanos() - 300);
    assert!(script.put(copy).duplicate);
    script.send(11);
    script.ack(11);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.lost_requests, direction.reordered), (1, 0));
    assert_eq!((direction.duplicate_packets, told.losses.len()), (1, 1));
}

#[test]
fn packets_that_are_lost_twice_do_not_make_those_between_them_late() {
    let mut script = Script::new();
    for psn in [10, 13, 15, 16, 17, 18, 19] {
        script.send(psn);
    }
    script.sequence_nak(11);
    // 11, 13, 15 and 17 are lost on their way from the requester this time.
    script.wait_micros(50);
    for psn in [12, 14, 16, 18, 19] {
        assert!(script.send(psn).retransmission.is_some(), "{psn}");
    }
    let (report, _) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.reordered, direction.retransmissions.sequence_nak.packets), (0, 5));
}

#[test]
fn timeout_before_the_answer_is_due_shows_no_loss() {
    let mut script = Script::new();
    script.send(10);
    script.wait_micros(1000).ack(10);
    for psn in 11..21 {
        script.wait_micros(200).send(psn);
    }
    assert_eq!(script.send(11).retransmission, Some(RetransmissionCause::Timeout));
    script.wait_micros(500).ack(15);
    script.ack(20);
    let (_, told) = script.finish();
    assert!(told.losses.is_empty(), "{:?}", told.losses);
}

#[test]
fn answer_that_waits_for_a_paused_requester_is_not_lost() {
    let mut script = Script::new();
    let (there, back) = (PAIR, PAIR.reversed());
    script.send(10);
    script.ack(10);
    script.on(back).send(20);
    script.ack(20);
    // The second host is paused from here on.
    script.send(21);
    script.ack(21);
    script.on(there).send(11);
    for _ in 0..3 {
        script.wait_micros(67_000).send(11);
    }
    script.on(back).wait_micros(50_000).send(21);
    script.on(there).ack(11);
    script.on(back).ack(21);
    let (report, told) = script.finish();
    assert!(told.losses.is_empty(), "{:?}", told.losses);
    let [connection] = report.connections.as_slice() else { panic!("{:?}", report.connections) };
    let spurious = connection.directions.each_ref().map(|it| it.retransmissions.spurious.packets);
    assert_eq!(spurious[1], 1, "{spurious:?}");
}

#[test]
fn packet_that_is_late_behind_the_first_retransmission_shows_no_loss() {
    let mut script = Script::new();
    script.send(10);
    script.sends(12..20);
    script.sends(21..23);
    script.sequence_nak(11);
    script.wait_micros(100).send(11);
    // Sent before 21, and held back.
    script.send(20);
    script.sends(12..23);
    script.ack(22);
    let (report, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|loss| loss.sequence % 64).collect();
    assert_eq!(lost, [11], "{:?}", told.losses);
    assert_eq!(only_direction(&report).reordered, 1);
}
