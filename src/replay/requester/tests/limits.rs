//! Agreements of the connection manager, windows, credits.

use super::*;
use crate::replay::management::tests::{Agreed, connect};

/// A connection that the connection manager made, at PSN 5.
fn connected(agreed: Agreed) -> Connection {
    let mut c = Connection::new();
    connect(&mut c.script, REQUESTER, RESPONDER, &agreed);
    c
}

const AGREED: Agreed =
    Agreed { psns: [100, 5], mtu: 3, timeout: 14, retry_count: 2, rnr_retry_count: 1, depth: 2 };

#[test]
fn first_psn_is_the_one_agreed() {
    let mut c = connected(AGREED);
    c.send_only(5);
    c.ack(5);
    c.assert_agreed();
    let mut c = connected(AGREED);
    let frame = c.send_only(4);
    c.ack(4);
    c.assert_breaks(frame, &rules::STARTING_PSN);
}

#[test]
fn first_psn_behind_the_one_agreed_is_found_at_the_requester() {
    let mut c = connected(AGREED);
    let frame = c.send_only(7);
    c.nak(5, NakCode::PsnSequenceError);
    c.assert_breaks_at_requester(frame, &rules::STARTING_PSN);
}

#[test]
fn packet_to_the_queue_pair_of_another_connection_is_found() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.ack(7);
    let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(0x22), Psn::new(900_000));
    c.script.put(REQUESTER.0, RESPONDER.0, bth, Extensions::default(), &[1; 4]);
    let stray = BthRepr { psn: Psn::new(8), ..bth };
    let frame = c.script.put(REQUESTER.0, RESPONDER.0, stray, Extensions::default(), &[1; 4]);
    c.assert_breaks(frame, &rules::REQUEST_QP);
}

#[test]
fn path_mtu_is_the_one_agreed() {
    let mut c = connected(AGREED);
    let frame = c.send(Opcode::RC_SEND_FIRST, 5, 2048);
    c.ack(5);
    c.assert_breaks(frame, &rules::PAYLOAD_LENGTH);
}

#[test]
fn reads_in_flight_are_at_most_those_agreed() {
    let mut c = connected(AGREED);
    c.send_only(5);
    c.ack(5);
    c.read(6, reth(0, 10));
    c.request(Opcode::RC_COMPARE_SWAP, 7, atomic(8), &[]);
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 6, 10);
    c.read(8, reth(0, 10));
    c.assert_agreed();
    let frame = c.read(9, reth(0, 10));
    c.assert_breaks_at_ends(frame, &rules::READS_IN_FLIGHT);
}

#[test]
fn retries_are_counted() {
    let mut c = connected(AGREED);
    c.send_only(5);
    c.ack(5);
    c.send_only(6);
    c.wait_micros(100_000).send_only(6);
    c.wait_micros(100_000).send_only(6);
    c.assert_agreed();
    let frame = c.wait_micros(100_000).send_only(6);
    c.assert_breaks(frame, &rules::RETRY_COUNT);
}

#[test]
fn rnr_retries_are_counted() {
    let mut c = connected(AGREED);
    c.send_only(5);
    c.rnr(5, 12);
    c.wait_micros(700).send_only(5);
    c.assert_agreed();
    c.rnr(5, 12);
    let frame = c.wait_micros(700).send_only(5);
    c.assert_breaks(frame, &rules::RNR_RETRY_COUNT);
}

#[test]
fn timeout_is_the_one_agreed() {
    // 67 ms.
    let mut c = connected(AGREED);
    c.send_only(5);
    let frame = c.wait_micros(10_000).send_only(5);
    c.ack(5);
    c.assert_breaks_at_ends(frame, &rules::RETRANSMISSION_CAUSE);
}

#[test]
fn response_that_is_lost_behind_the_responder_may_imply_a_nak() {
    let mut c = connected(AGREED);
    for micros in [0, 2000] {
        c.wait_micros(micros).read(5, reth(0x1000, 100));
        c.read_response(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 5, 100);
    }
    let steps = c.script.judge(Subject::Request, Some(RESPONDER.0));
    assert_eq!(differences(&steps), []);
}

#[test]
fn at_most_half_of_the_psns_are_in_flight() {
    let mut c = Connection::new();
    c.send(Opcode::RC_SEND_FIRST, 5, 256);
    c.send(Opcode::RC_SEND_LAST, 6, 10);
    c.ack(6);
    c.read(7, reth(0, 1 << 31));
    c.assert_agreed();
    let frame = c.read(7 + (1 << 23), reth(0, 4));
    c.assert_breaks(frame, &rules::PSN_WINDOW);
}

#[test]
fn one_message_may_go_beyond_the_credits() {
    let mut c = Connection::new();
    c.send_only(5);
    c.answer(5, Answer::Ack(Credits::advertise(2)), 1);
    for psn in 6..9 {
        c.send_only(psn);
    }
    // No receive is taken by a WRITE.
    c.with_reth(Opcode::RC_RDMA_WRITE_ONLY, 9, reth(0, 4), 4);
    c.assert_agreed();
    let frame = c.wait_micros(2000).send_only(10);
    // Elsewhere the ACK that told of the limit may have been lost behind the capture point.
    assert_eq!(undecided(&c.judge()), [(frame, Undecided::MissingPackets)]);
    c.assert_breaks_at_requester(frame, &rules::CREDITS);
}
