//! Effects of responses.

use roce::engine::Counter;
use roce::verbs::{QpState, RetryCount, SendFlags, WcStatus};
use roce::wire::aeth::NakCode;
use roce::wire::{Bits, Opcode};

use super::script::*;

const FIRST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
const LAST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;

fn middle(psn: u32) -> Pkt {
    pkt(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, psn).fill(256)
}

#[test]
fn ack_is_cumulative() {
    let mut s = Script::rc();
    for id in 0..5 {
        s.post(id, if id % 2 == 0 { SEND } else { WRITE }, 4);
    }
    s.expect_count(5);
    s.send(ack(SQ + 3, 4));
    s.completes(&[(0, OK), (1, OK), (2, OK), (3, OK)]);
    s.send(ack(SQ + 4, 5));
    s.completes(&[(4, OK)]);
    assert_eq!(s.count(Counter::StaleResponse), 0);
}

#[test]
fn ack_inside_a_message_is_progress_only() {
    let mut s = Script::rc();
    s.post(1, SEND, 4 * 256);
    s.expect_count(4);
    s.send(ack(SQ + 1, 0));
    s.completes(&[]);
    // Only what is missing goes out again.
    s.at(TIMEOUT);
    let sent = s.expect_count(2);
    assert_eq!(sent[0].bth.opcode, Opcode::RC_SEND_MIDDLE);
    assert_eq!(sent[0].bth.psn.get(), SQ + 2);
}

#[test]
fn responses_to_nothing_in_flight_are_ignored() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ + 1, 2));
    s.completes(&[]);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK)]);
    for packet in [
        ack(SQ, 1),
        ack(SQ - 1, 0),
        seq_nak(SQ, 0),
        rnr(SQ, 1, 0),
        nak(SQ, NakCode::RemoteAccessError, 0),
        read_only(SQ, 1).fill(4),
    ] {
        s.send(packet);
    }
    assert_eq!(s.count(Counter::StaleResponse), 7);
    s.completes(&[]);
    s.state(QpState::Rts);
    s.expect_nothing();
}

#[test]
fn read_response_acknowledges_requests_before_it() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.post(2, READ, 8);
    s.expect_count(2);
    s.send(read_only(SQ + 1, 2).data(b"response"));
    s.completes(&[(1, OK), (2, OK)]);
    assert_eq!(s.read(0, 8), b"response");
}

#[test]
fn later_ack_does_not_complete_a_read() {
    // Rule: P-05.
    // P-05, and a bug that rxe had: a READ skipped by a later ACK.
    let mut s = Script::rc();
    s.post(1, READ, 300);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.send(ack(SQ + 2, 2));
    s.completes(&[]);
    assert_eq!(s.count(Counter::ImpliedNak), 1);
    let sent = s.expect_count(2);
    assert_eq!(sent[0].bth.opcode, Opcode::RC_RDMA_READ_REQUEST);
    s.send(response(FIRST, SQ, 1).fill(256));
    s.send(response(LAST, SQ + 1, 1).fill(44));
    s.send(ack(SQ + 2, 2));
    s.completes(&[(1, OK), (2, OK)]);
}

#[test]
fn later_ack_does_not_complete_an_atomic() {
    // Rule: P-05.
    // A bug that rxe had: the lost atomic ACK.
    let mut s = Script::rc();
    s.post(1, ADD, 8);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.send(ack(SQ + 1, 2));
    s.completes(&[]);
    s.expect_count(2);
    s.send(response(Opcode::RC_ATOMIC_ACKNOWLEDGE, SQ, 1).original(41));
    s.send(ack(SQ + 1, 2));
    s.completes(&[(1, OK), (2, OK)]);
    assert_eq!(s.word(0), 41);
}

#[test]
fn later_ack_completes_no_flush_and_no_atomic_write() {
    // Rule: Q-18.
    let (remote_addr, rkey) = (REMOTE, REMOTE_KEY);
    let flush = roce::verbs::SendOp::Flush {
        remote_addr,
        rkey,
        length: 4,
        placement: roce::verbs::FlushPlacement::GLOBAL,
        level: roce::verbs::FlushLevel::Range,
    };
    for (op, len) in [(flush, 0), (roce::verbs::SendOp::AtomicWrite { remote_addr, rkey }, 8)] {
        let mut s = Script::rc();
        s.post(1, op, len);
        s.post(2, SEND, 4);
        s.expect_count(2);
        s.send(ack(SQ + 1, 2));
        s.completes(&[]);
        s.expect_count(2);
        s.send(read_only(SQ, 1));
        s.send(ack(SQ + 1, 2));
        s.completes(&[(1, OK), (2, OK)]);
    }
}

#[test]
fn read_retry_requests_only_the_missing_part() {
    // Rule: P-02.2.
    let mut s = Script::rc();
    s.post(1, READ, 5 * 256 + 10);
    s.expect_count(1);
    s.send(response(FIRST, SQ, 1).fill(256));
    s.send(middle(SQ + 1));
    s.send(middle(SQ + 3));
    s.send(middle(SQ + 4));
    assert_eq!(s.count(Counter::ImpliedNak), 2);
    assert_eq!(s.count(Counter::Retry), 1, "one loss is one retry");
    let again = pkt(Opcode::RC_RDMA_READ_REQUEST, SQ + 2).ack_req();
    s.expect([again.reth(REMOTE + 512, REMOTE_KEY, 3 * 256 + 10)]);
    // It comes as a message of its own.
    s.send(response(FIRST, SQ + 2, 1).fill(256));
    s.send(middle(SQ + 3));
    s.send(middle(SQ + 4));
    s.completes(&[]);
    s.send(response(LAST, SQ + 5, 1).fill(10));
    s.completes(&[(1, OK)]);
}

#[test]
fn read_retry_may_request_the_last_packet_alone() {
    let mut s = Script::rc();
    s.post(1, READ, 2 * 256 + 10);
    s.expect_count(1);
    s.send(response(FIRST, SQ, 1).fill(256));
    s.send(middle(SQ + 1));
    s.at(TIMEOUT);
    let again = pkt(Opcode::RC_RDMA_READ_REQUEST, SQ + 2).ack_req();
    s.expect([again.reth(REMOTE + 512, REMOTE_KEY, 10)]);
    s.send(read_only(SQ + 2, 1).fill(10));
    s.completes(&[(1, OK)]);
}

#[test]
fn sequence_nak_acknowledges_requests_before_it() {
    let mut s = Script::rc();
    for id in 0..4 {
        s.post(id, SEND, 4);
    }
    s.expect_count(4);
    s.send(seq_nak(SQ + 2, 2));
    s.completes(&[(0, OK), (1, OK)]);
    let sent = s.expect_count(2);
    assert_eq!(sent[0].bth.psn.get(), SQ + 2);
    // Once for each loss.
    s.send(seq_nak(SQ + 2, 2));
    s.expect_nothing();
    assert_eq!(s.count(Counter::SequenceReceived), 2);
}

#[test]
fn fatal_nak_completes_requests_before_it_and_fails_its_own() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccessError, WcStatus::RemAccessErr),
        (NakCode::RemoteOperationalError, WcStatus::RemOpErr),
        (NakCode::InvalidRdRequest, WcStatus::RemInvRdReqErr),
    ] {
        let mut s = Script::rc();
        for id in 0..4 {
            s.post(id, WRITE, 300);
        }
        s.recv(9, 0, 4);
        s.expect_count(8);
        s.send(nak(SQ + 4, code, 2));
        s.completes(&[(0, OK), (1, OK), (2, status), (3, FLUSHED)]);
        s.receives(&[(9, FLUSHED)]);
        s.state(QpState::Err);
        s.expect_nothing();
    }
}

#[test]
fn reserved_syndromes_are_ignored() {
    // Rule: Q-24.
    // Reserved kinds and codes are fatal to rxe, and ignored by hfi1.
    for syndrome in [0x40, 0x5f, 0x65, 0x7f] {
        let mut s = Script::rc();
        s.post(1, SEND, 4);
        s.expect_count(1);
        s.send(pkt(Opcode::RC_ACKNOWLEDGE, SQ).syndrome(syndrome, 1));
        assert_eq!(s.count(Counter::StaleResponse), 1);
        s.completes(&[]);
        s.state(QpState::Rts);
        s.send(ack(SQ, 1));
        s.completes(&[(1, OK)]);
    }
}

#[test]
fn read_naked_in_the_middle_fails_whatever_psn_the_nak_has() {
    // Rule: Q-13.
    // rxe names the request's PSN, others that of the first answer that could not be given.
    for (retries, named) in [(0, 0), (0, 1), (0, 2), (0, 3), (3, 0), (3, 3)] {
        let mut s = Script::with(|setup| setup.attr.retry_cnt = RetryCount(Bits::low(retries)));
        s.post(7, SEND, 4);
        s.post(1, READ, 4 * 256);
        s.expect_count(2);
        s.send(response(FIRST, SQ + 1, 2).fill(256));
        s.send(nak(SQ + 1 + named, NakCode::RemoteAccessError, 2));
        s.completes(&[(7, OK), (1, WcStatus::RemAccessErr)]);
        s.state(QpState::Err);
    }
}

#[test]
fn response_with_the_wrong_opcode_is_an_error() {
    let wrong = [
        (SEND, read_only(SQ, 1).fill(4)),
        (READ, response(Opcode::RC_ATOMIC_ACKNOWLEDGE, SQ, 1).original(1)),
        (ADD, read_only(SQ, 1).fill(8)),
    ];
    for (op, answer) in wrong {
        let mut s = Script::rc();
        s.post(1, op, 8);
        s.expect_count(1);
        s.send(answer);
        s.completes(&[(1, WcStatus::BadRespErr)]);
        s.state(QpState::Err);
    }
}

#[test]
fn read_response_of_the_wrong_length_is_an_error() {
    let answers = [
        (100, read_only(SQ, 1).fill(99)),
        (100, read_only(SQ, 1).fill(101)),
        (300, response(FIRST, SQ, 1).fill(255)),
        (300, read_only(SQ, 1).fill(256)),
        (100, response(FIRST, SQ, 1).fill(100)),
        (0, read_only(SQ, 1).fill(1)),
    ];
    for (len, answer) in answers {
        let mut s = Script::rc();
        s.post(1, READ, len);
        s.expect_count(1);
        s.send(answer);
        s.completes(&[(1, WcStatus::LocLenErr)]);
        s.state(QpState::Err);
    }
}

#[test]
fn read_data_are_scattered_to_several_buffers() {
    let mut s = Script::rc();
    let sges = [s.sge(1000, 200), s.sge(0, 0), s.sge(2000, 300)];
    s.try_post(1, READ, &sges, SendFlags::SIGNALED).unwrap();
    s.expect_count(1);
    let data = pattern(500);
    s.send(response(FIRST, SQ, 1).data(&data[..256]));
    s.send(response(LAST, SQ + 1, 1).data(&data[256..]));
    s.completes(&[(1, OK)]);
    assert_eq!([s.read(1000, 200), s.read(2000, 300)].concat(), data);
    assert_eq!(s.read(1200, 8), [0; 8]);
}

#[test]
fn read_data_without_a_buffer_are_an_error() {
    let mut s = Script::with(|setup| setup.access = roce::verbs::Access::REMOTE_READ);
    s.post(1, READ, 8);
    s.post(2, SEND, 8);
    // Reading into memory that may only be read is found out when the data come.
    s.expect_count(2);
    s.send(read_only(SQ, 1).fill(8));
    s.completes(&[(1, WcStatus::LocProtErr), (2, FLUSHED)]);
    s.state(QpState::Err);
}

#[test]
fn atomic_result_has_host_byte_order() {
    let mut s = Script::rc();
    s.post(1, ADD, 8);
    s.expect_count(1);
    s.send(response(Opcode::RC_ATOMIC_ACKNOWLEDGE, SQ, 1).original(0x0102_0304_0506_0708));
    let wc = s.poll(s.cq)[0];
    assert_eq!((wc.opcode, wc.byte_len), (roce::verbs::WcOpcode::FetchAdd, 8));
    assert_eq!(s.word(0), 0x0102_0304_0506_0708);
}

#[test]
fn credits_gate_messages_that_take_receives() {
    // Rule: P-13.2.
    // P-13: SSN ≤ LSN + 1.
    let mut s = Script::rc();
    s.post(0, SEND, 4);
    s.expect_count(1);
    // One message done, room for two more: three may go, the last to learn of new room.
    s.send(ack_credits(SQ, 1, 2));
    for id in 1..7 {
        s.post(id, SEND, 4);
    }
    s.expect_count(3);
    s.send(ack_credits(SQ + 1, 2, 1));
    s.expect_nothing();
    s.send(ack_credits(SQ + 3, 4, 0));
    s.expect_count(1);
    s.send(ack(SQ + 4, 5));
    s.expect_count(2);
    assert_eq!(s.poll(s.cq).len(), 5);
}

#[test]
fn messages_that_take_no_receive_need_no_credit() {
    // Rule: P-13.2.
    let mut s = Script::rc();
    s.post(0, SEND, 4);
    s.expect_count(1);
    s.send(ack_credits(SQ, 1, 0));
    s.post(1, WRITE, 4);
    s.post(2, READ, 4);
    s.post(3, SEND, 4);
    s.post(4, SEND, 4);
    s.post(5, WRITE, 4);
    // Both that need none, one beyond the limit, and then in order nothing.
    let sent = s.expect_count(3);
    assert_eq!(sent[2].bth.opcode, Opcode::RC_SEND_ONLY);
    assert!(sent[2].bth.ack_req);
}

#[test]
fn unlimited_credits_are_sticky() {
    // Rule: Q-04.
    let mut s = Script::rc();
    s.post(0, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ, 1));
    for id in 1..6 {
        s.post(id, SEND, 4);
    }
    s.send(ack_credits(SQ, 1, 0));
    s.expect_count(5);
}

#[test]
fn overtaken_ack_takes_no_credit_back() {
    let mut s = Script::rc();
    for id in 0..4 {
        s.post(id, SEND, 4);
    }
    s.expect_count(4);
    s.send(ack_credits(SQ + 3, 4, 1));
    s.send(ack_credits(SQ, 1, 0));
    s.post(4, SEND, 4);
    s.expect_count(1);
}

#[test]
fn credits_come_with_read_responses_and_repeated_acks() {
    let mut s = Script::rc();
    s.post(0, SEND, 4);
    s.expect_count(1);
    s.send(ack_credits(SQ, 1, 0));
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.post(3, SEND, 4);
    s.expect_count(1);
    // An unsolicited ACK carries credits.
    s.send(ack_credits(SQ, 1, 2));
    s.expect_count(2);
    s.post(4, SEND, 4);
    s.post(5, READ, 4);
    s.expect_nothing();
    s.send(ack_credits(SQ + 3, 4, 0));
    s.expect_count(2);
    s.post(6, SEND, 4);
    s.expect_nothing();
    // A read response may stand for the acknowledgement of the send before it.
    let answer = roce::wire::aeth::Answer::Ack(roce::wire::aeth::Credits::advertise(3));
    s.send(pkt(Opcode::RC_RDMA_READ_RESPONSE_ONLY, SQ + 5).aeth(answer, 6).fill(4));
    s.expect_count(1);
}
