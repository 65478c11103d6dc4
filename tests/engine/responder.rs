//! Requests in sequence, executed and refused.

use roce::engine::Counter;
use roce::verbs::{EventType, QpState, WcOpcode};
use roce::wire::aeth::{Answer, Credits, NakCode};
use roce::wire::{Opcode, Psn, RKey};

use super::script::*;

const INVALID: NakCode = NakCode::InvalidRequest;
const ACCESS: NakCode = NakCode::RemoteAccessError;
const BAD_KEY: RKey = RKey::new(0x1234_5678);

#[test]
fn a_send_fills_a_receive() {
    let mut s = Script::rc();
    s.recv(1, 100, 1000);
    let data = pattern(600);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).data(&data[..256]));
    s.send(pkt(Opcode::RC_SEND_MIDDLE, RQ + 1).data(&data[256..512]));
    s.expect_nothing();
    s.send(
        pkt(Opcode::RC_SEND_LAST_WITH_IMMEDIATE, RQ + 2).data(&data[512..]).imm(*b"imm!").ack_req(),
    );
    s.expect([ack(RQ + 2, 1)]);
    let wc = s.received();
    assert_eq!((wc.id.0, wc.byte_len, wc.opcode), (1, 600, WcOpcode::Recv));
    assert_eq!((wc.imm(), wc.qp_num), (Some(*b"imm!"), s.qpn));
    assert_eq!(s.read(100, 600), data);
}

#[test]
fn receive_may_have_several_buffers() {
    let mut s = Script::rc();
    let sges = [s.sge(1000, 100), s.sge(0, 0), s.sge(2000, 200), s.sge(3000, 500)];
    let wr = roce::verbs::RecvWr { id: roce::verbs::WrId(4), sges: &sges };
    s.engine.post_recv(s.qp, &wr).unwrap();
    let data = pattern(500);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).data(&data[..256]));
    s.send(pkt(Opcode::RC_SEND_LAST, RQ + 1).data(&data[256..]));
    assert_eq!(s.received().byte_len, 500);
    assert_eq!([s.read(1000, 100), s.read(2000, 200), s.read(3000, 200)].concat(), data);
}

#[test]
fn a_packet_in_the_middle_may_be_acknowledged_without_counting() {
    // Rule: P-12.1.
    // P-12: a message counts when it ends.
    let mut s = Script::rc();
    s.recv(1, 0, 1000);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256).ack_req());
    s.expect([ack(RQ, 0)]);
    s.send(pkt(Opcode::RC_SEND_LAST, RQ + 1).fill(1).ack_req());
    s.expect([ack(RQ + 1, 1)]);
    s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ + 2).reth(s.va(0), s.rkey(), 4).fill(4).ack_req());
    s.expect([ack(RQ + 2, 2)]);
}

#[test]
fn acks_are_sent_where_requested_and_coalesced() {
    // Rule: T-32.
    let mut s = Script::rc();
    for id in 0..4 {
        s.recv(id, 0, 100);
    }
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    s.expect_nothing();
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4).ack_req());
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4).ack_req());
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 3).fill(4));
    s.expect([ack(RQ + 2, 3)]);
}

#[test]
fn a_write_lands_where_it_says() {
    let mut s = Script::rc();
    let data = pattern(520);
    let (va, key) = (s.va(77), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_WRITE_FIRST, RQ).reth(va, key, 520).data(&data[..256]));
    s.send(pkt(Opcode::RC_RDMA_WRITE_MIDDLE, RQ + 1).data(&data[256..512]));
    s.send(pkt(Opcode::RC_RDMA_WRITE_LAST, RQ + 2).data(&data[512..]).ack_req());
    s.expect([ack(RQ + 2, 1)]);
    assert_eq!(s.read(77, 520), data);
    assert_eq!((s.read(76, 1), s.read(597, 1)), (vec![0], vec![0]));
    s.receives(&[]);
}

#[test]
fn a_write_with_immediate_takes_one_receive_at_its_last_packet() {
    // Rules: P-11.1, P-11.2.
    // P-11.
    let mut s = Script::rc();
    s.recv(1, 5000, 4);
    s.recv(2, 5000, 4);
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_WRITE_FIRST, RQ).reth(va, key, 300).fill(256));
    s.receives(&[]);
    s.send(pkt(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, RQ + 1).imm([1, 2, 3, 4]).fill(44));
    let wc = s.received();
    assert_eq!((wc.id.0, wc.byte_len), (1, 300));
    assert_eq!((wc.opcode, wc.imm()), (WcOpcode::RecvRdmaWithImm, Some([1, 2, 3, 4])));
    assert_eq!(s.read(5000, 4), [0; 4], "the buffer of the receive is untouched");
    let only = pkt(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, RQ + 2).imm([5; 4]);
    s.send(only.reth(1, BAD_KEY, 0));
    let wc = s.received();
    assert_eq!((wc.id.0, wc.byte_len), (2, 0));
}

#[test]
fn a_write_with_immediate_that_finds_no_receive_repeats_only_its_last_packet() {
    let mut s = Script::rc();
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_WRITE_FIRST, RQ).reth(va, key, 300).fill(256));
    let last =
        pkt(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, RQ + 1).imm([1; 4]).fill(44).ack_req();
    s.send(last.clone());
    s.expect([rnr(RQ + 1, 12, 0)]);
    assert_eq!(s.read(0, 256), pattern(256));
    s.recv(1, 0, 0);
    s.send(last);
    s.expect([ack(RQ + 1, 1)]);
    assert_eq!(s.received().byte_len, 300);
}

#[test]
fn send_without_a_receive_is_rnr_naked() {
    // Rule: Q-07.
    // A bug that rxe had: no NAK without a receive WQE.
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([rnr(RQ, 12, 0)]);
    s.state(QpState::Rts);
    // What was in flight behind it gets no NAK of its own.
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4).ack_req());
    s.expect_nothing();
    s.recv(1, 0, 10);
    s.recv(2, 0, 10);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([ack(RQ, 1)]);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4).ack_req());
    s.expect([ack(RQ + 1, 2)]);
    assert_eq!(s.count(Counter::RnrSent), 1);
}

#[test]
fn rnr_nak_comes_before_the_length_check() {
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(4));
    s.expect([rnr(RQ, 12, 0)]);
    s.state(QpState::Rts);
}

#[test]
fn repeated_rnr_nak_is_coalesced() {
    let mut s = Script::rc();
    for _ in 0..1000 {
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    }
    s.expect([rnr(RQ, 12, 0)]);
}

#[test]
fn gap_is_naked_once() {
    // Rules: P-03.1, P-03.2.
    // P-03.
    let mut s = Script::rc();
    s.recv(1, 0, 10);
    s.recv(2, 0, 10);
    for ahead in [3, 1, 2, 0x7f_ffff] {
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ + ahead).fill(4).ack_req());
    }
    s.expect([seq_nak(RQ, 0)]);
    assert_eq!(s.count(Counter::OutOfSequence), 4);
    s.receives(&[]);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([ack(RQ, 1)]);
    // A new gap is a new refusal.
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4));
    s.expect([seq_nak(RQ + 1, 1)]);
    s.state(QpState::Rts);
}

#[test]
fn half_of_all_psns_are_ahead_and_half_behind() {
    // Rule: P-03.3.
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ.wrapping_add(0x80_0000)).fill(4));
    assert_eq!((s.count(Counter::Duplicate), s.count(Counter::OutOfSequence)), (1, 0));
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 0x7f_ffff).fill(4));
    assert_eq!((s.count(Counter::Duplicate), s.count(Counter::OutOfSequence)), (1, 1));
}

#[test]
fn expected_psns_wrap() {
    // Rule: P-01.2.
    let mut s = Script::with(|setup| setup.attr.rq_psn = Psn::new(0xff_ffff));
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, 0xff_ffff).reth(va, key, 300));
    s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, 1).reth(va, key, 0).ack_req());
    let sent = s.expect_count(3);
    let psns: Vec<_> = sent.iter().map(|packet| packet.bth.psn.get()).collect();
    assert_eq!(psns, [0xff_ffff, 0, 1]);
}

#[test]
fn a_read_is_answered_with_data() {
    let mut s = Script::rc();
    let data = pattern(700);
    s.buffer.write(50, &data).unwrap();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(50), s.rkey(), 700));
    s.expect([
        response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, RQ, 1).data(&data[..256]),
        pkt(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, RQ + 1).data(&data[256..512]),
        response(Opcode::RC_RDMA_READ_RESPONSE_LAST, RQ + 2, 1).data(&data[512..]),
    ]);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 3).reth(s.va(51), s.rkey(), 3));
    s.expect([read_only(RQ + 3, 2).data(&data[1..4])]);
}

#[test]
fn ack_does_not_overtake_read_responses() {
    let mut s = Script::rc();
    s.recv(1, 0, 10);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 300));
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4).ack_req());
    let sent = s.expect_count(3);
    assert_eq!(sent[2].words(), ack(RQ + 2, 2).words());
}

#[test]
fn zero_length_requests_skip_the_key_check() {
    // Rule: P-10.
    // P-10.
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(u64::MAX, BAD_KEY, 0).ack_req());
    s.expect([ack(RQ, 1)]);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(u64::MAX, BAD_KEY, 0));
    s.expect([read_only(RQ + 1, 2)]);
    s.state(QpState::Rts);
}

#[test]
fn atomics_return_what_was_there() {
    let mut s = Script::rc();
    s.set_word(64, u64::MAX);
    let (va, key) = (s.va(64), s.rkey());
    s.send(pkt(Opcode::RC_FETCH_ADD, RQ).atomic(va, key, 3, 0));
    s.send(pkt(Opcode::RC_COMPARE_SWAP, RQ + 1).atomic(va, key, 9, 2));
    s.send(pkt(Opcode::RC_COMPARE_SWAP, RQ + 2).atomic(va, key, 10, 2));
    let answer = |psn, msn| response(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, msn);
    s.expect([
        answer(RQ, 1).original(u64::MAX),
        answer(RQ + 1, 2).original(2),
        answer(RQ + 2, 3).original(9),
    ]);
    assert_eq!(s.word(64), 9);
}

#[test]
fn an_atomic_write_and_a_flush_are_answered_by_empty_data() {
    let mut s = Script::rc();
    let (va, key) = (s.va(8), s.rkey());
    s.send(pkt(Opcode::RC_ATOMIC_WRITE, RQ).reth(va, key, 8).data(b"ATOMICAL"));
    s.send(pkt(Opcode::RC_FLUSH, RQ + 1).feth(1, 0).reth(va, key, 100));
    s.send(pkt(Opcode::RC_FLUSH, RQ + 2).feth(3, 1).reth(va, key, 0));
    s.expect([read_only(RQ, 1), read_only(RQ + 1, 2), read_only(RQ + 2, 3)]);
    assert_eq!(s.read(8, 8), b"ATOMICAL");
}

#[test]
fn nak_has_the_msn_of_completed_requests() {
    // Rule: P-12.3.
    let refused: [(fn(&Script) -> Pkt, NakCode); 3] = [
        (|s| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 4).reth(s.va(0), BAD_KEY, 4), ACCESS),
        (|_| pkt(Opcode::RC_SEND_LAST, RQ + 4).fill(4), INVALID),
        (|s| pkt(Opcode::RC_FETCH_ADD, RQ + 4).atomic(s.va(4), s.rkey(), 1, 0), INVALID),
    ];
    for (packet, code) in refused {
        let mut s = Script::rc();
        s.recv(1, 0, 1000);
        s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
        s.send(pkt(Opcode::RC_SEND_LAST, RQ + 1).fill(4));
        s.send(pkt(Opcode::RC_FETCH_ADD, RQ + 2).atomic(s.va(0), s.rkey(), 1, 0));
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 3).reth(s.va(0), s.rkey(), 4));
        s.expect_count(2);
        let packet = packet(&s);
        s.send(packet);
        s.expect([nak(RQ + 4, code, 3)]);
    }
}

#[test]
fn credits_count_the_receives_that_are_posted() {
    // Rule: P-13.3.
    let mut setup = rc();
    setup.config.advertise_credits = true;
    let mut s = setup.build();
    for id in 0..8 {
        s.recv(id, 0, 100);
    }
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    // Of seven that are left, six can be said.
    s.expect([ack_credits(RQ, 1, 7)]);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(s.va(0), s.rkey(), 0));
    let answer = Answer::Ack(Credits::advertise(7));
    s.expect([pkt(Opcode::RC_RDMA_READ_RESPONSE_ONLY, RQ + 1).aeth(answer, 2)]);
}

#[test]
fn first_packet_in_rtr_raises_comm_est() {
    let mut setup = rc();
    setup.until = QpState::Rtr;
    let mut s = setup.build();
    s.recv(1, 0, 10);
    s.recv(2, 0, 10);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.events(&[EventType::CommEst]);
    s.expect([ack(RQ, 1)]);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4));
    s.events(&[]);
}

#[test]
fn reserved_bits_are_ignored() {
    // Rule: W-51.5.
    // W-51: M, F, B and the reserved bits.
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    let mut bytes = pkt(Opcode::RC_SEND_ONLY, RQ).to(s.qpn).fill(4).ack_req().bytes();
    bytes[1] |= 0x40;
    bytes[4] |= 0xff;
    bytes[8] |= 0x7f;
    s.send_bytes(peer_gid(), own_gid(), &bytes);
    s.expect([ack(RQ, 1)]);
    assert_eq!(s.received().byte_len, 4);
}

#[test]
fn queue_pair_moved_to_err_sends_no_response() {
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 600));
    s.enter(QpState::Err);
    s.expect_nothing();
    // But responses that were pending before a NAK are sent before it.
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 4));
    s.send(pkt(Opcode::RC_SEND_LAST, RQ + 1).fill(4));
    s.expect([read_only(RQ, 1).data(&[0; 4]), nak(RQ + 1, INVALID, 1)]);
}
