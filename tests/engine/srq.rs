//! Shared receive queues.

use roce::engine::{AsyncEvent, Event, SrqCreate, SrqHandle};
use roce::verbs::{EventType, PostError, QpState, QpType, RecvWr, WcStatus, WrId};
use roce::wire::Opcode;

use super::script::*;

/// A queue pair on a shared queue.
fn shared(kind: QpType, limit: u32, other_domain: bool) -> (Script, SrqHandle) {
    let mut setup = Setup::new(kind);
    setup.config.advertise_credits = true;
    let mut engine = roce::engine::Engine::new(setup.config, 3);
    let pd = engine.create_pd().unwrap();
    let srq_pd = if other_domain { engine.create_pd().unwrap() } else { pd };
    let (cq, recv_cq) = (engine.create_cq(64).unwrap(), engine.create_cq(64).unwrap());
    let create = SrqCreate { max_wr: 8, max_sge: 2, limit, xrc: None };
    let srq = engine.create_srq(srq_pd, create).unwrap();
    let init = roce::verbs::QpInitAttr { qp_type: setup.kind, cap: setup.cap, sq_sig_all: false };
    let create = roce::engine::QpCreate { init, send_cq: cq, recv_cq, srq: Some(srq), xrcd: None };
    let qp = engine.create_qp(pd, create).unwrap();
    let cqs = (cq, recv_cq);
    (Script::with_qp(engine, pd, cqs, qp, setup.attr, ALL, QpState::Rts), srq)
}

fn fill(s: &mut Script, srq: SrqHandle, ids: std::ops::Range<u64>) {
    for id in ids {
        let sges = [s.sge(id * 100, 100)];
        s.engine.post_srq_recv(srq, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }
}

#[test]
fn receives_come_from_the_srq_and_no_credits_are_advertised() {
    // Rule: P-13.3.
    let (mut s, srq) = shared(QpType::Rc, 0, false);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([rnr(RQ, 12, 0)]);
    fill(&mut s, srq, 0..2);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([ack(RQ, 1)]);
    s.receives(&[(0, OK)]);
    let wr = RecvWr { id: WrId(1), sges: &[] };
    assert_eq!(s.engine.post_recv(s.qp, &wr), Err(PostError::NoReceiveQueue));
}

#[test]
fn srq_limit_event_is_raised_once() {
    let (mut s, srq) = shared(QpType::Rc, 3, false);
    fill(&mut s, srq, 0..4);
    let reached = Event::Async(AsyncEvent::Srq(EventType::SrqLimitReached, srq));
    let mut psn = RQ;
    let mut take = |s: &mut Script| {
        s.send(pkt(Opcode::RC_SEND_ONLY, psn).fill(4));
        psn += 1;
        s.take_events()
    };
    assert_eq!(take(&mut s), []);
    assert_eq!(take(&mut s), [reached]);
    assert_eq!(take(&mut s), []);
    fill(&mut s, srq, 4..8);
    s.engine.modify_srq(srq, None, Some(5)).unwrap();
    assert_eq!(take(&mut s), [reached]);
    assert_eq!(take(&mut s), []);
}

#[test]
fn the_error_state_leaves_the_shared_queue_alone() {
    let (mut s, srq) = shared(QpType::Rc, 0, false);
    fill(&mut s, srq, 0..3);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
    // Too long for its receive: that one fails, the rest stay.
    s.receives(&[(0, WcStatus::LocLenErr)]);
    s.events(&[EventType::QpLastWqeReached]);
    s.state(QpState::Err);
    // The same by command, of one that was begun.
    let (mut s, srq) = shared(QpType::Rc, 0, false);
    let sges = [s.sge(0, 1000)];
    for id in 0..3 {
        s.engine.post_srq_recv(srq, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
    s.enter(QpState::Err);
    s.receives(&[(0, FLUSHED)]);
    s.events(&[EventType::QpLastWqeReached]);
}

// Programs wait for the event before they destroy a queue pair; UCX aborts if it comes twice, as it
// does from rxe.
#[test]
fn last_wqe_reached_is_raised_once() {
    let (mut s, srq) = shared(QpType::Rc, 0, false);
    fill(&mut s, srq, 0..3);
    s.enter(QpState::Err);
    s.events(&[EventType::QpLastWqeReached]);
    s.enter(QpState::Err);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4).ack_req());
    s.events(&[]);
    s.receives(&[]);
}

#[test]
fn buffers_belong_to_the_domain_of_the_shared_queue() {
    for kind in [QpType::Rc, QpType::Ud] {
        let (mut s, srq) = shared(kind, 0, true);
        // A buffer of the queue pair's own domain will not do.
        fill(&mut s, srq, 0..1);
        s.send(match kind {
            QpType::Rc => pkt(Opcode::RC_SEND_ONLY, RQ).fill(4),
            _ => pkt(Opcode::UD_SEND_ONLY, 1).deth(0x1111, PEER).fill(4),
        });
        s.receives(&[(0, WcStatus::LocProtErr)]);
    }
}

#[test]
fn a_shared_queue_changes_its_size() {
    let (mut s, srq) = shared(QpType::Rc, 0, false);
    fill(&mut s, srq, 0..8);
    let wr = RecvWr { id: WrId(9), sges: &[] };
    assert_eq!(s.engine.post_srq_recv(srq, &wr), Err(PostError::QueueFull));
    assert!(s.engine.modify_srq(srq, Some(7), None).is_err());
    s.engine.modify_srq(srq, Some(9), None).unwrap();
    s.engine.post_srq_recv(srq, &wr).unwrap();
    assert!(s.engine.modify_srq(srq, None, Some(10)).is_err(), "a limit beyond the size");
    for n in 0..9 {
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ + n));
    }
    s.receives(&[0, 1, 2, 3, 4, 5, 6, 7, 9].map(|id| (id, OK)));
    assert!(s.engine.destroy_srq(srq).is_err(), "it is in use");
    s.engine.destroy_qp(s.qp).unwrap();
    s.engine.destroy_srq(srq).unwrap();
}

#[test]
fn datagrams_come_from_the_shared_queue_too() {
    let (mut s, srq) = shared(QpType::Ud, 2, false);
    fill(&mut s, srq, 0..2);
    s.send(pkt(Opcode::UD_SEND_ONLY, 1).deth(0x1111, PEER).fill(4));
    s.receives(&[(0, OK)]);
    let reached = Event::Async(AsyncEvent::Srq(EventType::SrqLimitReached, srq));
    assert_eq!(s.take_events(), [reached]);
}
