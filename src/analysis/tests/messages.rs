//! Begins, ends and outcomes of messages.

use super::*;

#[test]
fn ack_completes_all_before_it() {
    let mut script = Script::new();
    script.send_first(1);
    script.send_middle(2);
    script.send_last(3);
    script.with_reth(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 4, 50, 50);
    script.send(5);
    script.ack(4);
    let done = [
        (Operation::Send, u64::from(2 * MTU) + 100, Outcome::Completed),
        (Operation::Write, 50, Outcome::Completed),
    ];
    assert_eq!(outcomes(&script.told), done);
    let (report, told) = script.finish();
    assert_eq!(told.messages[2].outcome, Outcome::InFlight);
    assert!(told.messages[1].immediate && !told.messages[0].immediate);
    assert_eq!((told.messages[0].first_frame, told.messages[0].end_frame), (1, Some(6)));
    let direction = only_direction(&report);
    let counts = direction.operations.iter().map(|o| (o.messages, o.completed)).collect::<Vec<_>>();
    assert_eq!(counts, [(2, 1), (1, 1)]);
    assert_eq!(direction.goodput_bytes, u64::from(2 * MTU) + 150);
    assert_eq!(direction.latency.count(), 2);
    assert_eq!(report.connections[0].path_mtu, Some(1024));
}

#[test]
fn read_before_an_ack_completes_only_with_its_response() {
    let mut script = Script::new();
    script.read(1, 100);
    script.send(2);
    script.ack(2);
    assert!(script.told.messages.is_empty());
    let again = script.read(1, 100);
    assert_eq!(again.retransmission, Some(RetransmissionCause::ImpliedNak));
    script.read_responses(1..=1, 100);
    let (_, told) = script.finish();
    let operations: Vec<_> = told.messages.iter().map(|m| m.operation).collect();
    assert_eq!(operations, [Operation::ReadRequest, Operation::Send]);
    // The SEND ended with its own acknowledgement.
    assert_eq!(told.messages[1].end_frame, Some(3));
}

#[test]
fn reads_take_a_psn_for_each_response_even_if_the_mtu_is_not_known() {
    for later in [10 + 5, 10 + 10] {
        let mut script = Script::new();
        script.read(10, 5 * MTU);
        let note = script.send(later);
        assert_eq!((note.retransmission, note.reordered), (None, false));
        let (report, _) = script.finish();
        let mtu = if later == 15 { 1024 } else { 512 };
        assert_eq!(report.connections[0].path_mtu, Some(mtu));
    }
    let mut script = Script::new();
    script.read(10, 2 * MTU);
    script.read(12, 2 * MTU);
    script.read_responses(10..=11, MTU);
    script.read_responses(12..=13, MTU);
    let (report, told) = script.finish();
    assert_eq!(told.messages.len(), 2);
    let direction = only_direction(&report);
    assert_eq!((direction.read_atomic_depth, direction.not_captured), (2, 0));
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn atomics_complete_with_their_acknowledgement() {
    let mut script = Script::new();
    script.with_reth(Opcode::RC_COMPARE_SWAP, 1, 0, 8);
    script.with_reth(Opcode::RC_FETCH_ADD, 2, 0, 8);
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, 1, 0, ack);
    script.answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, 2, 0, ack);
    let (_, told) = script.finish();
    let expected = [
        (Operation::CompareSwap, 8, Outcome::Completed),
        (Operation::FetchAdd, 8, Outcome::Completed),
    ];
    assert_eq!(outcomes(&told), expected);
}

#[test]
fn refusal_ends_a_message_and_flushes_those_behind() {
    let mut script = Script::new();
    script.send(1);
    script.with_reth(Opcode::RC_RDMA_WRITE_ONLY, 2, 50, 50);
    script.send(3);
    script.nak(2, NakCode::RemoteAccessError);
    let (report, told) = script.finish();
    let ends: Vec<_> = told.messages.iter().map(|message| message.outcome).collect();
    let refused = Outcome::Refused(NakCode::RemoteAccessError);
    assert_eq!(ends, [Outcome::Completed, refused, Outcome::Flushed]);
    let finding = &report.findings[0];
    assert_eq!((finding.kind, &finding.frames[..]), (FindingKind::RequestRefused, &[2, 4][..]));
    let text = "WRITE of 50 bytes (PSN 2) refused: remote access error; it names rkey 0x00000007, address 0x1000";
    assert!(finding.text.contains(text), "{}", finding.text);
}

#[test]
fn message_whose_start_was_lost_before_the_point_is_one_message() {
    let mut script = Script::new();
    script.send(9);
    // 10 and 11 are missing.
    script.send_middle(12);
    script.send_last(13);
    script.sequence_nak(10);
    script.send_first(10);
    script.send_middle(11);
    script.send_middle(12);
    script.send_last(13);
    script.ack(13);
    let (report, told) = script.finish();
    let long = (Operation::Send, u64::from(3 * MTU) + 100, Outcome::Completed);
    assert_eq!(outcomes(&told), [(Operation::Send, 100, Outcome::Completed), long]);
    assert_eq!(only_direction(&report).operations[0].messages, 2);
}

#[test]
fn capture_that_begins_in_a_message_counts_what_it_saw() {
    let mut script = Script::new();
    script.send_middle(5);
    script.send_last(6);
    script.ack(6);
    let (_, told) = script.finish();
    assert_eq!(outcomes(&told), [(Operation::Send, u64::from(MTU) + 100, Outcome::Completed)]);
}

#[test]
fn credits_and_coalescing_are_counted() {
    let mut script = Script::new();
    (1..=6).for_each(|psn| _ = script.send(psn));
    let credits = Answer::Ack(Credits(Bits::low(4)));
    script.answer(Opcode::RC_ACKNOWLEDGE, 6, 0, credits);
    let (report, _) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.acks, direction.least_credits), (1, Some(4)));
    assert!((direction.packets_per_ack - 6.0).abs() < 1e-9);
}

#[test]
fn read_of_unknown_size_may_be_retransmitted() {
    let mut script = Script::new();
    script.send(9);
    script.rnr(9);
    script.send(9);
    script.read(10, 3 * MTU);
    script.rnr(9);
    script.wait_micros(700);
    script.send(9);
    script.read(10, 3 * MTU);
    script.ack(9);
    script.read_responses(10..=12, MTU);
    script.send(13);
    script.ack(13);
    let (report, told) = script.finish();
    let direction = only_direction(&report);
    assert_eq!((direction.not_captured, direction.lost_requests), (0, 0));
    assert!(told.messages.iter().all(|message| message.outcome == Outcome::Completed));
}

#[test]
fn size_of_a_read_that_was_guessed_is_corrected() {
    // Behind a READ of three packets of 4096 bytes, three PSNs are missing: it could as well be one
    // of six of 2048.
    for (length, missing) in [(12_000, 13..16), (12_000, 13..14)] {
        let mut script = Script::new();
        script.send(9);
        script.ack(9);
        script.read(10, length);
        script.send(missing.end);
        let ack = Answer::Ack(Credits::UNLIMITED);
        script.answer(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 10, 4096, ack);
        script.answer(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 11, 4096, ack);
        script.answer(Opcode::RC_RDMA_READ_RESPONSE_LAST, 12, 12_000 - 8192, ack);
        script.sequence_nak(13);
        script.sends(missing.clone());
        script.send(missing.end);
        script.ack(missing.end);
        let (_, told) = script.finish();
        let lost: Vec<_> = told.losses.iter().map(|loss| loss.sequence % 64).collect();
        assert_eq!(lost, missing.map(u64::from).collect::<Vec<_>>());
    }
}

#[test]
fn response_that_ends_a_read_tells_its_size() {
    let mut script = Script::new();
    script.read(10, 4000);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 10, 4000, Answer::Ack(Credits::UNLIMITED));
    // PSN 11 is missing; the READ had none but 10.
    script.send(12);
    script.sequence_nak(11);
    script.send(11);
    script.send(12);
    script.ack(12);
    let (_, told) = script.finish();
    let lost: Vec<_> = told.losses.iter().map(|loss| (loss.sequence % 64, loss.place)).collect();
    assert_eq!(lost, [(11, LossPlace::BeforeCapturePoint)]);
}

#[test]
fn read_that_is_delivered_twice_is_one_copy() {
    let mut script = Script::new();
    script.read(10, 4 * MTU);
    script.read_responses(10..=13, MTU);
    // The responder has it once more, and answers in full; the network doubles one of these
    // responses.
    let ack = Answer::Ack(Credits::UNLIMITED);
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 10, MTU, ack);
    for psn in [11, 11, 12] {
        script.answer(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, psn, MTU, ack);
    }
    script.answer(Opcode::RC_RDMA_READ_RESPONSE_LAST, 13, MTU, ack);
    let (report, _) = script.finish();
    assert_eq!(only_direction(&report).duplicate_packets, 2);
}
