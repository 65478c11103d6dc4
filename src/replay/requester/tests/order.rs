//! PSNs and opcodes, one behind the other.

use super::*;

#[test]
fn messages_in_order_are_agreed() {
    let mut c = Connection::new();
    begin(&mut c, 0xff_fffe);
    c.send_only(0);
    c.send(Opcode::RC_SEND_FIRST, 1, MTU);
    c.send(Opcode::RC_SEND_MIDDLE, 2, MTU);
    c.send(Opcode::RC_SEND_LAST, 3, MTU);
    c.read(4, reth(0x1000, 2500));
    c.request(Opcode::RC_FETCH_ADD, 7, atomic(0x2000), &[]);
    c.with_reth(Opcode::RC_RDMA_WRITE_FIRST, 8, reth(0x1000, 1500), MTU);
    c.request(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, 9, imm(), &[5; 476]);
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 4, MTU);
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 5, MTU);
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_LAST, 6, 452);
    c.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, 7, atomic_ack(3), &[]);
    c.ack(9);
    c.send_only(10);
    c.assert_agreed();
}

#[test]
fn capture_that_begins_inside_a_message_is_undecided_there() {
    let mut c = Connection::new();
    let frame = c.send(Opcode::RC_SEND_MIDDLE, 5, MTU);
    c.send(Opcode::RC_SEND_LAST, 6, 10);
    c.ack(6);
    c.send_only(7);
    let steps = c.judge();
    assert_eq!(undecided(&steps), [(frame, Undecided::BeforeCapture)]);
    assert_eq!((differences(&steps), steps.len()), (vec![], 3));
}

#[test]
fn credits_of_a_message_that_began_before_the_capture_count_for_nothing() {
    let mut c = Connection::new();
    c.send(Opcode::RC_SEND_MIDDLE, 5, MTU);
    c.answer(5, Answer::Ack(Credits::advertise(0)), 0);
    c.send(Opcode::RC_SEND_LAST, 6, 10);
    c.send_only(7);
    c.send_only(8);
    assert_eq!(differences(&c.judge_at_requester()), []);
}

#[test]
fn middle_behind_only_breaks_the_sequence() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    let frame = c.send(Opcode::RC_SEND_MIDDLE, 8, MTU);
    c.ack(7);
    c.assert_breaks(frame, &rules::OPCODE_SEQUENCE);
}

#[test]
fn only_inside_a_message_breaks_the_sequence() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send(Opcode::RC_SEND_FIRST, 7, MTU);
    let frame = c.send_only(8);
    c.ack(7);
    c.assert_breaks(frame, &rules::OPCODE_SEQUENCE);
}

#[test]
fn send_inside_a_write_breaks_the_sequence() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.with_reth(Opcode::RC_RDMA_WRITE_FIRST, 7, reth(0, 3000), MTU);
    let frame = c.send(Opcode::RC_SEND_MIDDLE, 8, MTU);
    c.ack(7);
    c.assert_breaks(frame, &rules::OPCODE_SEQUENCE);
}

#[test]
fn packet_that_comes_late_is_held_against_its_neighbors() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send(Opcode::RC_SEND_FIRST, 7, MTU);
    let frame = c.send_only(9);
    c.send(Opcode::RC_SEND_MIDDLE, 8, MTU);
    assert_eq!(differences(&c.judge()), [(frame, rules::OPCODE_SEQUENCE.id)]);
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send(Opcode::RC_SEND_FIRST, 7, MTU);
    c.send_only(9);
    c.send(Opcode::RC_SEND_LAST, 8, 3);
    let steps = c.judge();
    assert_eq!((differences(&steps), undecided(&steps), steps.len()), (vec![], vec![], 5));
}

#[test]
fn psn_that_never_comes_is_skipped() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    let frame = c.send_only(8);
    c.nak(7, NakCode::PsnSequenceError);
    for _ in 0..3 {
        c.wait_micros(5000).send_only(8);
    }
    c.assert_breaks(frame, &rules::PSN_ORDER);
}

#[test]
fn psn_that_was_lost_or_not_captured_is_undecided() {
    for is_acknowledged in [true, false] {
        let mut c = Connection::new();
        begin(&mut c, 5);
        let frame = c.send_only(8);
        if is_acknowledged {
            c.ack(8);
        }
        let steps = c.judge();
        assert_eq!(undecided(&steps), [(frame, Undecided::MissingPackets)]);
        assert_eq!(differences(&steps), []);
    }
}

#[test]
fn psn_inside_those_of_a_read_breaks_the_order() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.read(7, reth(0, 3000));
    let frame = c.send_only(8);
    c.assert_breaks(frame, &rules::PSN_ORDER);
}

#[test]
fn new_message_with_an_old_psn_is_a_changed_retransmission() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.nak(7, NakCode::PsnSequenceError);
    let frame = c.send(Opcode::RC_SEND_ONLY, 7, 101);
    c.assert_breaks(frame, &rules::RETRANSMISSION_CHANGED);
}
