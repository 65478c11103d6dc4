//! Requests that come again. P-02, P-04.

use roce::engine::Counter;
use roce::verbs::QpState;
use roce::wire::{Opcode, RKey};

use super::script::*;

#[test]
fn duplicate_send_is_acknowledged_and_not_executed() {
    // Rules: P-04.1, Q-23.
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    s.recv(2, 0, 100);
    let send = pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req();
    s.send(send.clone());
    s.expect([ack(RQ, 1)]);
    s.send(send);
    s.expect([ack(RQ, 1)]);
    s.receives(&[(1, OK)]);
    assert_eq!(s.count(Counter::Duplicate), 1);
}

#[test]
fn duplicate_write_does_not_touch_memory() {
    // Rule: P-04.1.
    let mut s = Script::rc();
    let write = pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(s.va(0), s.rkey(), 8).fill(8).ack_req();
    s.send(write.clone());
    s.expect([ack(RQ, 1)]);
    s.set_word(0, 7);
    s.send(write);
    s.expect([ack(RQ, 1)]);
    assert_eq!(s.word(0), 7);
}

#[test]
fn duplicate_is_acknowledged_through_the_last_executed_psn() {
    let mut s = Script::rc();
    for id in 0..3 {
        s.recv(id, 0, 100);
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ + id as u32).fill(4));
    }
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([ack(RQ + 2, 3)]);
}

#[test]
fn ack_of_a_duplicate_covers_no_later_read() {
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    s.recv(2, 0, 100);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(s.va(0), s.rkey(), 4));
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4).ack_req());
    s.expect_count(2);
    // Its answer may be what was lost.
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    s.expect([ack(RQ, 3)]);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4));
    s.expect([ack(RQ + 2, 3)]);
    // A pending ACK is not taken back.
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4));
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    s.expect([ack(RQ + 2, 3)]);
}

#[test]
fn duplicate_atomic_returns_the_saved_value() {
    // Rule: P-04.2.
    let mut s = Script::rc();
    s.set_word(0, 40);
    let add = pkt(Opcode::RC_FETCH_ADD, RQ).atomic(s.va(0), s.rkey(), 2, 0);
    let answer = response(Opcode::RC_ATOMIC_ACKNOWLEDGE, RQ, 1).original(40);
    for _ in 0..3 {
        s.send(add.clone());
        s.expect([answer.clone()]);
    }
    assert_eq!(s.word(0), 42);
    let store = pkt(Opcode::RC_ATOMIC_WRITE, RQ + 1).reth(s.va(0), s.rkey(), 8).fill(8);
    s.send(store.clone());
    s.expect([read_only(RQ + 1, 2)]);
    s.set_word(0, 1);
    s.send(store);
    s.expect([read_only(RQ + 1, 2)]);
    assert_eq!(s.word(0), 1);
}

#[test]
fn duplicate_read_is_served_whole_or_in_part() {
    // Rule: P-04.3.
    let mut s = Script::rc();
    s.buffer.write(0, &pattern(600)).unwrap();
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 600));
    s.expect_count(3);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 600));
    s.expect_count(3);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(va + 256, key, 344));
    let data = pattern(600);
    s.expect([
        response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, RQ + 1, 1).data(&data[256..512]),
        response(Opcode::RC_RDMA_READ_RESPONSE_LAST, RQ + 2, 1).data(&data[512..]),
    ]);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 2).reth(va + 512, key, 88));
    s.expect([read_only(RQ + 2, 1).data(&data[512..])]);
}

#[test]
fn duplicate_read_of_no_bytes_is_answered_whatever_its_key() {
    // Rules: P-04.3, C9-88.
    let mut s = Script::rc();
    for _ in 0..2 {
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(1, RKey::new(5), 0));
        s.expect([read_only(RQ, 1)]);
    }
    assert_eq!((s.count(Counter::Duplicate), s.count(Counter::NoReplay)), (1, 0));
}

#[test]
fn duplicate_read_of_another_range_is_dropped() {
    // Rule: P-04.4.
    let (mut s, other) = (Script::rc(), RKey::new(5));
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 600));
    s.expect_count(3);
    for (psn, va, key, len) in [
        (RQ, va, key, 601),
        (RQ, va + 1, key, 600),
        (RQ, va, other, 600),
        (RQ + 1, va, key, 600),
        (RQ + 1, va + 256, key, 345),
    ] {
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, psn).reth(va, key, len));
    }
    s.expect_nothing();
    assert_eq!(s.count(Counter::NoReplay), 5);
    s.state(QpState::Rts);
}

#[test]
fn errors_of_duplicates_are_never_naked() {
    // Rule: P-04.4.
    let mut s = Script::rc();
    let read = pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 600);
    s.send(read.clone());
    s.expect_count(3);
    s.send(read.clone());
    // It goes away between the question and the answer, and then altogether.
    let mut batch = roce::engine::Batch::new(1);
    assert_eq!(s.engine.poll_transmit(roce::time::Instant::ZERO, &mut batch), 1);
    s.engine.deregister(s.mr).unwrap();
    s.expect_nothing();
    s.send(read);
    s.expect_nothing();
    assert_eq!(s.count(Counter::NoReplay), 2);
    s.events(&[]);
    s.state(QpState::Rts);
}

#[test]
fn responder_resources_are_recycled() {
    let mut s = Script::with(|setup| setup.attr.max_dest_rd_atomic = 2);
    for n in 0..3 {
        s.send(pkt(Opcode::RC_FETCH_ADD, RQ + n).atomic(s.va(0), s.rkey(), 1, 0));
        s.expect_count(1);
    }
    s.send(pkt(Opcode::RC_FETCH_ADD, RQ).atomic(s.va(0), s.rkey(), 1, 0));
    s.expect_nothing();
    assert_eq!(s.count(Counter::NoReplay), 1);
    s.send(pkt(Opcode::RC_FETCH_ADD, RQ + 1).atomic(s.va(0), s.rkey(), 1, 0));
    s.expect([response(Opcode::RC_ATOMIC_ACKNOWLEDGE, RQ + 1, 2).original(1)]);
    assert_eq!(s.word(0), 3);
}

#[test]
fn duplicate_flush_is_answered_without_a_responder_resource() {
    // Rule: Q-18.
    let mut s = Script::rc();
    let (va, key) = (s.va(0), s.rkey());
    let read = pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 4);
    s.send(read.clone());
    for n in 1..20 {
        s.send(pkt(Opcode::RC_FLUSH, RQ + n).feth(1, 0).reth(va, key, 4));
        s.sent();
    }
    s.send(pkt(Opcode::RC_FLUSH, RQ + 1).feth(1, 0).reth(va, key, 4));
    s.expect([read_only(RQ + 1, 20)]);
    s.send(read);
    s.expect([read_only(RQ, 1).data(&s.read(0, 4))]);
}

#[test]
fn response_to_a_duplicate_does_not_count_against_max_dest_rd_atomic() {
    // The requester got the first answer while a second was still pending, and may send the next
    // request.
    let mut s = Script::with(|setup| setup.attr.max_dest_rd_atomic = 1);
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 4));
    s.expect_count(1);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 4));
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(va, key, 4));
    s.expect([read_only(RQ, 1).data(&[0; 4]), read_only(RQ + 1, 2).data(&[0; 4])]);
    s.state(QpState::Rts);
}

#[test]
fn a_flood_of_duplicates_is_bounded() {
    let mut s = Script::rc();
    let read = pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 256);
    for _ in 0..1000 {
        s.send(read.clone());
    }
    let sent = s.sent().len();
    assert!(sent <= 12, "{sent}");
    assert_eq!(s.count(Counter::Backlog), 1000 - sent as u64);
    s.send(read);
    s.expect_count(1);
}

#[test]
fn flood_of_flushes_is_bounded() {
    let mut s = Script::rc();
    let flush = |s: &Script, n| pkt(Opcode::RC_FLUSH, RQ + n).feth(1, 0).reth(s.va(0), s.rkey(), 4);
    for n in 0..100 {
        let packet = flush(&s, n);
        s.send(packet);
    }
    let sent = s.sent();
    let kept = s.engine.query_qp(s.qp).unwrap().rq_psn.get() - RQ;
    assert!(kept <= 12, "{kept}");
    // All that were taken are answered; then the first that was not is asked for, once.
    let answers = sent.iter().filter(|packet| packet.bth.opcode != Opcode::RC_ACKNOWLEDGE);
    assert_eq!(answers.count(), kept as usize);
    assert_eq!(s.count(Counter::Backlog), 1);
    let duplicate = flush(&s, kept);
    s.send(duplicate);
    s.expect([read_only(RQ + kept, kept + 1)]);
    s.state(QpState::Rts);
}

#[test]
fn a_duplicate_changes_neither_sequence_nor_count() {
    // Rule: P-12.2.
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    s.recv(2, 0, 100);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    for _ in 0..5 {
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    }
    s.sent();
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4).ack_req());
    s.expect([ack(RQ + 1, 2)]);
}

#[test]
fn ack_of_a_duplicate_does_not_acknowledge_a_read() {
    let asks: [fn(&Script) -> Pkt; 4] = [
        |s| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(s.va(0), s.rkey(), 4),
        |s| pkt(Opcode::RC_FETCH_ADD, RQ + 1).atomic(s.va(0), s.rkey(), 1, 0),
        |s| pkt(Opcode::RC_ATOMIC_WRITE, RQ + 1).reth(s.va(0), s.rkey(), 8).fill(8),
        |s| pkt(Opcode::RC_FLUSH, RQ + 1).feth(1, 0).reth(s.va(0), s.rkey(), 4),
    ];
    for ask in asks {
        let mut s = Script::rc();
        s.recv(1, 0, 100);
        s.recv(2, 0, 100);
        let send = pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req();
        let ask = ask(&s);
        s.send(send.clone());
        s.send(ask.clone());
        let answer = s.expect_count(2).remove(1);
        // Both were lost; the send comes again. To acknowledge more would be to say that the answer
        // was lost.
        s.send(send.clone());
        s.expect([ack(RQ, 2)]);
        s.send(ask);
        s.expect([answer]);
        // What is behind the answer speaks for all before it, and is not taken back.
        let last = pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4).ack_req();
        s.send(last.clone());
        s.send(send);
        s.expect([ack(RQ + 2, 3)]);
        s.send(last);
        s.expect([ack(RQ + 2, 3)]);
    }
}
