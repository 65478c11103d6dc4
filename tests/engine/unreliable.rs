//! Unreliable connections. P-14.

use roce::engine::Counter;
use roce::verbs::{Access, EventType, QpState, QpType, SendFlags, Sge, WcStatus};
use roce::wire::{Opcode, RKey};

use super::script::*;

#[test]
fn a_message_completes_when_it_was_sent() {
    let mut s = Script::uc();
    s.buffer.write(0, &pattern(300)).unwrap();
    s.post(1, SEND, 300);
    s.completes(&[]);
    let data = pattern(300);
    s.expect([
        pkt(Opcode::UC_SEND_FIRST, SQ).data(&data[..256]),
        pkt(Opcode::UC_SEND_LAST, SQ + 1).data(&data[256..]),
    ]);
    s.completes(&[(1, OK)]);
    assert_eq!(s.next_timeout(), None);
}

#[test]
fn nothing_is_ever_acknowledged() {
    // Rules: P-14.3, Q-05.
    let mut s = Script::uc();
    s.recv(1, 0, 1000);
    s.send(pkt(Opcode::UC_SEND_FIRST, RQ).fill(256).ack_req());
    s.send(pkt(Opcode::UC_SEND_LAST, RQ + 1).fill(4).ack_req());
    s.expect_nothing();
    assert_eq!(s.received().byte_len, 260);
}

#[test]
fn a_gap_abandons_the_message_and_its_receive_is_used_again() {
    // Rules: P-14.1, P-14.2.
    let mut s = Script::uc();
    s.recv(1, 0, 1000);
    s.recv(2, 0, 1000);
    s.send(pkt(Opcode::UC_SEND_FIRST, RQ).fill(256));
    // The middle is lost.
    s.send(pkt(Opcode::UC_SEND_LAST, RQ + 2).fill(4));
    assert_eq!(s.count(Counter::OutOfMessage), 1);
    s.send(pkt(Opcode::UC_SEND_MIDDLE, RQ + 3).fill(256));
    assert_eq!(s.count(Counter::OutOfMessage), 2);
    s.receives(&[]);
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ + 9).fill(5));
    let wc = s.received();
    assert_eq!((wc.id.0, wc.byte_len), (1, 5));
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ + 10).fill(6));
    assert_eq!(s.received().id.0, 2);
}

#[test]
fn a_message_may_begin_in_the_middle_of_another() {
    // Rule: Q-21.
    // hfi1 accepts it; rxe drops it together with the old one.
    let mut s = Script::uc();
    s.recv(1, 0, 1000);
    s.send(pkt(Opcode::UC_SEND_FIRST, RQ).fill(256));
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ + 1).fill(7));
    let wc = s.received();
    assert_eq!((wc.id.0, wc.byte_len), (1, 7));
}

#[test]
fn an_abandoned_write_leaves_what_it_wrote() {
    let mut s = Script::uc();
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::UC_RDMA_WRITE_FIRST, RQ).reth(va, key, 600).fill(256));
    s.send(pkt(Opcode::UC_RDMA_WRITE_LAST, RQ + 2).fill(88));
    assert_eq!(s.read(0, 256), pattern(256));
    assert_eq!(s.read(256, 256), [0; 256]);
    s.state(QpState::Rts);
}

#[test]
fn a_message_without_a_receive_is_dropped_whole() {
    let mut s = Script::uc();
    s.send(pkt(Opcode::UC_SEND_FIRST, RQ).fill(256));
    s.recv(1, 0, 1000);
    s.send(pkt(Opcode::UC_SEND_LAST, RQ + 1).fill(4));
    assert_eq!((s.count(Counter::NoReceive), s.count(Counter::OutOfMessage)), (1, 1));
    s.receives(&[]);
    s.expect_nothing();
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ + 2).fill(4));
    assert_eq!(s.received().id.0, 1);
}

#[test]
fn invalid_uc_requests_are_dropped_silently() {
    let mut s = Script::uc();
    s.recv(1, 0, 10);
    let (va, key) = (s.va(0), s.rkey());
    let bad = [
        pkt(Opcode::UC_SEND_FIRST, RQ).fill(255),
        pkt(Opcode::UC_SEND_ONLY, RQ + 1).fill(11),
        pkt(Opcode::UC_RDMA_WRITE_ONLY, RQ + 2).reth(va, RKey::new(1), 4).fill(4),
        pkt(Opcode::UC_RDMA_WRITE_ONLY, RQ + 3).reth(va, key, 5).fill(4),
        pkt(Opcode::UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, RQ + 4).reth(va, key, 5).imm([0; 4]).fill(4),
        pkt(Opcode::UC_RDMA_WRITE_ONLY, RQ + 5).reth(u64::MAX, key, 4).fill(4),
    ];
    let count = bad.len() as u64;
    for packet in bad {
        s.send(packet);
    }
    assert_eq!(s.count(Counter::BadRequest), count);
    s.receives(&[]);
    s.events(&[]);
    s.expect_nothing();
    s.state(QpState::Rts);
    // The receive that some of them took is still there.
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ + 6).fill(10));
    assert_eq!(s.received().id.0, 1);
}

#[test]
fn uc_write_needs_qp_access_flags() {
    let mut s = Script::of(QpType::Uc, |setup| setup.attr.qp_access_flags = Access::empty());
    s.send(pkt(Opcode::UC_RDMA_WRITE_ONLY, RQ).reth(s.va(0), s.rkey(), 4).fill(4));
    assert_eq!(s.count(Counter::BadRequest), 1);
    assert_eq!(s.read(0, 4), [0; 4]);
}

#[test]
fn a_write_with_immediate_completes_a_receive() {
    let mut s = Script::uc();
    s.recv(1, 0, 0);
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::UC_RDMA_WRITE_FIRST, RQ).reth(va, key, 260).fill(256));
    s.send(pkt(Opcode::UC_RDMA_WRITE_LAST_WITH_IMMEDIATE, RQ + 1).imm([7; 4]).fill(4));
    let wc = s.received();
    assert_eq!((wc.byte_len, wc.imm()), (260, Some([7; 4])));
}

#[test]
fn a_receive_at_fault_fails_the_queue_pair() {
    let mut s = Script::uc();
    let sges = [Sge { lkey: roce::verbs::LKey::new(1), ..s.sge(0, 10) }];
    let wr = roce::verbs::RecvWr { id: roce::verbs::WrId(1), sges: &sges };
    s.engine.post_recv(s.qp, &wr).unwrap();
    s.recv(2, 0, 10);
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ).fill(4));
    s.receives(&[(1, WcStatus::LocProtErr), (2, FLUSHED)]);
    s.state(QpState::Err);
    s.expect_nothing();
}

#[test]
fn uc_send_error_enters_sqe() {
    let mut s = Script::uc();
    s.recv(9, 0, 100);
    let bad = s.sge(SIZE as u64, 4);
    s.post(1, SEND, 4);
    s.try_post(2, SEND, &[bad], SendFlags::empty()).unwrap();
    s.post(3, SEND, 4);
    s.expect_count(1);
    s.completes(&[(1, OK), (2, WcStatus::LocProtErr), (3, FLUSHED)]);
    s.state(QpState::Sqe);
    s.receives(&[]);
    s.post(4, SEND, 4);
    s.completes(&[(4, FLUSHED)]);
    // Receiving goes on.
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ).fill(4));
    assert_eq!(s.received().id.0, 9);
    s.enter(QpState::Rts);
    s.post(5, SEND, 0);
    s.expect([pkt(Opcode::UC_SEND_ONLY, SQ + 1)]);
    s.completes(&[(5, OK)]);
}

#[test]
fn first_packet_of_uc_in_rtr_raises_comm_est() {
    let mut s = Script::of(QpType::Uc, |setup| setup.until = QpState::Rtr);
    s.send(pkt(Opcode::UC_SEND_ONLY, RQ).fill(4));
    s.events(&[EventType::CommEst]);
}
