//! Causes of retransmissions, and what requesters do after refusals.

use super::*;

#[test]
fn retransmission_after_a_nak_or_a_timeout_is_agreed() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.send_only(8);
    c.nak(7, NakCode::PsnSequenceError);
    c.send_only(7);
    c.send_only(8);
    c.wait_micros(5000).send_only(7);
    c.send_only(8);
    c.ack(8);
    c.assert_agreed();
}

#[test]
fn retransmission_without_a_cause_is_found_at_the_requester() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    let frame = c.wait_micros(20).send_only(7);
    c.ack(7);
    c.assert_breaks_at_requester(frame, &rules::RETRANSMISSION_CAUSE);
}

#[test]
fn retransmission_long_before_timeouts_seen_elsewhere_is_without_cause() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.wait_micros(50_000).ack(7);
    c.send_only(8);
    let frame = c.wait_micros(3000).send_only(8);
    c.ack(8);
    for point in [REQUESTER.0, RESPONDER.0] {
        let steps = c.script.judge(Subject::Request, Some(point));
        assert_eq!(differences(&steps), [(frame, rules::RETRANSMISSION_CAUSE.id)]);
    }
    // Elsewhere it is not known that the capture has all responses, and so not how long the
    // requester waits.
    let steps = c.judge();
    assert_eq!((differences(&steps), undecided(&steps)), (vec![], vec![]));
}

#[test]
fn retransmission_of_what_was_acknowledged_is_found_at_the_requester() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.ack(7);
    let frame = c.wait_micros(5000).send_only(7);
    c.assert_breaks_at_requester(frame, &rules::RETRANSMISSION_CAUSE);
}

#[test]
fn retransmission_behind_the_nak_is_found_at_the_requester() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    for psn in 7..10 {
        c.send_only(psn);
    }
    c.nak(7, NakCode::PsnSequenceError);
    let frame = c.send_only(8);
    c.send_only(9);
    c.assert_breaks_at_requester(frame, &rules::RETRANSMISSION_START);
}

#[test]
fn new_request_in_place_of_the_one_that_the_nak_asks_for_is_found_at_the_requester() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.send_only(8);
    c.nak(7, NakCode::PsnSequenceError);
    // It may not have handled the NAK.
    c.wait_micros(1000).send_only(9);
    c.assert_agreed();
    let frame = c.wait_micros(20_000).send_only(10);
    c.assert_breaks_at_requester(frame, &rules::RETRANSMISSION_START);
}

#[test]
fn rnr_timer_is_waited_for() {
    // Timer 12 is 640 µs.
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.rnr(7, 12);
    c.wait_micros(640).send_only(7);
    c.ack(7);
    c.assert_agreed();
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.rnr(7, 12);
    let frame = c.wait_micros(300).send_only(7);
    c.ack(7);
    c.assert_breaks_at_requester(frame, &rules::RNR_TIMER);
}

#[test]
fn missing_read_response_makes_the_requester_go_back() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.read(7, reth(0x1000, 100));
    c.send_only(8);
    c.ack(8);
    c.wait_micros(10).read(7, reth(0x1000, 100));
    c.send_only(8);
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 7, 100);
    c.ack(8);
    c.assert_agreed();
}

#[test]
fn nothing_is_sent_after_a_refusal() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.with_reth(Opcode::RC_RDMA_WRITE_ONLY, 7, reth(0, 100), 100);
    // Sent before the NAK can have reached the requester.
    c.send_only(8);
    c.nak(7, NakCode::RemoteAccessError);
    c.send_only(9);
    c.assert_agreed();
    let frame = c.wait_micros(2000).send_only(10);
    c.assert_breaks_at_requester(frame, &rules::AFTER_FATAL_NAK);
    assert_eq!(undecided(&c.judge()), [(frame, Undecided::MissingPackets)]);
}
