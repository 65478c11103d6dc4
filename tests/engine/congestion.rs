//! Congestion marks and notifications.

use roce::engine::Counter;
use roce::verbs::{QpState, QpType};
use roce::wire::{Opcode, Psn};

use super::script::*;

fn cnp() -> Pkt {
    let mut packet = pkt(Opcode::CNP, 0).data(&[0; 16]);
    packet.bth.becn = true;
    packet
}

#[test]
fn congestion_mark_is_answered_by_a_cnp_at_most_once_an_interval() {
    let mut s = Script::rc();
    s.ecn = 3;
    let write = |psn| pkt(Opcode::RC_RDMA_WRITE_ONLY, psn).reth(0, REMOTE_KEY, 0);
    s.send(write(RQ));
    s.expect([cnp()]);
    for n in 1..20 {
        s.at(u64::from(n) * 2);
        s.send(write(RQ + n));
    }
    s.at(49);
    s.send(write(RQ + 20));
    s.expect_nothing();
    s.at(50);
    s.send(write(RQ + 21));
    s.expect([cnp()]);
    assert_eq!(s.count(Counter::CongestionMarked), 22);
    assert_eq!(s.count(Counter::CnpSent), 2);
}

#[test]
fn packets_without_a_congestion_mark_cause_no_cnp() {
    let mut s = Script::rc();
    for ecn in 0..3 {
        s.ecn = ecn;
        s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ + u32::from(ecn)).reth(0, REMOTE_KEY, 0));
    }
    s.expect_nothing();
}

#[test]
fn congestion_marks_on_responses_cause_a_cnp() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.ecn = 3;
    s.send(ack(SQ, 1));
    s.expect([cnp()]);
    s.completes(&[(1, OK)]);
}

#[test]
fn uc_sends_cnps_and_ud_does_not() {
    let mut s = Script::uc();
    s.ecn = 3;
    s.send(pkt(Opcode::UC_RDMA_WRITE_ONLY, RQ).reth(0, REMOTE_KEY, 0));
    s.expect([cnp()]);
    let mut s = Setup::new(QpType::Ud).build();
    s.ecn = 3;
    s.recv(1, 0, 100);
    s.send(pkt(Opcode::UD_SEND_ONLY, 1).deth(0x1111, PEER));
    s.expect_nothing();
}

#[test]
fn cnp_is_counted() {
    let mut s = Script::rc();
    s.send(cnp());
    assert_eq!(s.count(Counter::CnpReceived), 1);
    s.expect_nothing();
    let mut stranger = cnp();
    stranger.bth.dest_qp = s.qpn;
    s.send_from(own_gid(), own_gid(), stranger);
    assert_eq!((s.count(Counter::CnpReceived), s.count(Counter::WrongPeer)), (1, 1));
    // That of native InfiniBand is not ours.
    s.dropped(pkt(Opcode(0x80), 0).data(&[0; 16]), Counter::BadOpcode);
    assert_eq!(cnp().bth.psn, Psn::new(0));
}

#[test]
fn cnp_is_reported_once_for_its_queue_pair() {
    let mut s = Script::rc();
    assert_eq!(s.engine.poll_congestion(), None);
    for _ in 0..1000 {
        s.send(cnp());
    }
    // Once, however many came; and again only if more come.
    assert_eq!(s.engine.poll_congestion(), Some(s.qp));
    assert_eq!(s.engine.poll_congestion(), None);
    s.send(cnp());
    assert_eq!(s.engine.poll_congestion(), Some(s.qp));
    assert_eq!(s.count(Counter::CnpReceived), 1001);
    // A queue pair that is gone needs no slowing, nor the one that takes its place.
    s.send(cnp());
    let qp = s.qp;
    s.engine.destroy_qp(qp).unwrap();
    assert_eq!(s.engine.poll_congestion(), None);
}

#[test]
fn a_queue_pair_that_sends_nothing_cannot_cause_congestion() {
    for state in [QpState::Reset, QpState::Err] {
        let mut s = Script::rc();
        s.enter(state);
        s.dropped(cnp(), Counter::WrongState);
        assert_eq!(s.engine.poll_congestion(), None);
    }
    let mut s = Setup::new(QpType::Ud).build();
    s.dropped(cnp(), Counter::WrongPeer);
}
