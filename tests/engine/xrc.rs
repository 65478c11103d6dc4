//! Extended reliable connections. P-16.

use roce::engine::{Counter, QpCreate, SrqCreate, SrqHandle, XrcdHandle};
use roce::verbs::{
    EventType, MwBind, MwType, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendFlags, SendOp,
    WcStatus, WrId,
};
use roce::wire::aeth::NakCode;
use roce::wire::{Opcode, Packet, XrcSrqn};

use super::script::*;

/// A target whose domain has a shared queue.
struct Target {
    s: Script,
    srq: SrqHandle,
    cq: roce::engine::CqHandle,
    number: XrcSrqn,
    xrcd: XrcdHandle,
}

fn target(advertise: bool) -> Target {
    let mut setup = Setup::new(QpType::XrcRecv);
    setup.config.advertise_credits = advertise;
    let mut engine = roce::engine::Engine::new(setup.config, 3);
    let pd = engine.create_pd().unwrap();
    let (cq, recv_cq) = (engine.create_cq(64).unwrap(), engine.create_cq(64).unwrap());
    let xrcd = engine.create_xrcd().unwrap();
    let init = QpInitAttr { qp_type: setup.kind, cap: setup.cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq, srq: None, xrcd: Some(xrcd) };
    let qp = engine.create_qp(pd, create).unwrap();
    let srq_cq = engine.create_cq(64).unwrap();
    let shared = SrqCreate { max_wr: 8, max_sge: 2, limit: 0, xrc: Some((xrcd, srq_cq)) };
    // Its buffers belong to another domain of protection than the target.
    let srq = engine.create_srq(pd, shared).unwrap();
    let number = engine.srq_number(srq);
    let cqs = (cq, recv_cq);
    let s = Script::with_qp(engine, pd, cqs, qp, setup.attr, ALL, QpState::Rtr);
    Target { s, srq, cq: srq_cq, number, xrcd }
}

fn xack(psn: u32, msn: u32) -> Pkt {
    Pkt { bth: pkt(Opcode::XRC_ACKNOWLEDGE, psn).bth, ..ack(psn, msn) }
}

fn xnak(psn: u32, code: NakCode, msn: u32) -> Pkt {
    Pkt { bth: pkt(Opcode::XRC_ACKNOWLEDGE, psn).bth, ..nak(psn, code, msn) }
}

#[test]
fn the_initiator_names_a_shared_queue_right_behind_the_bth() {
    // Rule: P-16.1.
    let mut s = Setup::new(QpType::XrcSend).build();
    let srq = XrcSrqn::new(0x77);
    s.post(1, SEND, 0);
    s.post(2, WRITE, 0);
    s.post(3, READ, 8);
    s.post(4, ADD, 8);
    let sent = s.expect_count(4);
    let bytes = sent[1].bytes();
    assert_eq!(bytes[12..16], [0, 0, 0, 0x77]);
    assert_eq!(Packet::parse(&bytes).unwrap().header_len(), 32);
    assert_eq!(sent[0].words(), pkt(Opcode::XRC_SEND_ONLY, SQ).xrc(srq).ack_req().words());
    let read = pkt(Opcode::XRC_RDMA_READ_REQUEST, SQ + 2).xrc(srq).ack_req();
    assert_eq!(sent[2].words(), read.reth(REMOTE, REMOTE_KEY, 8).words());
    s.send(xack(SQ + 1, 2));
    s.send(response(Opcode::XRC_RDMA_READ_RESPONSE_ONLY, SQ + 2, 3).fill(8));
    s.send(response(Opcode::XRC_ATOMIC_ACKNOWLEDGE, SQ + 3, 4).original(1));
    s.completes(&[(1, OK), (2, OK), (3, OK), (4, OK)]);
}

#[test]
fn initiator_accepts_no_requests_and_target_no_responses() {
    let mut s = Setup::new(QpType::XrcSend).build();
    let send = pkt(Opcode::XRC_SEND_ONLY, RQ).xrc(XrcSrqn::new(1));
    s.dropped(send.clone(), Counter::WrongState);
    s.dropped(ack(SQ, 1), Counter::WrongService);
    let mut t = target(false);
    t.s.dropped(xack(SQ, 1), Counter::WrongState);
    t.s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ), Counter::WrongService);
}

#[test]
fn a_send_takes_its_receive_from_the_queue_it_names() {
    // Rule: P-16.2.
    let Target { mut s, srq, cq, number, .. } = target(false);
    let sges = [s.sge(64, 100)];
    s.engine.post_srq_recv(srq, &RecvWr { id: WrId(5), sges: &sges }).unwrap();
    s.send(pkt(Opcode::XRC_SEND_ONLY, RQ).xrc(number).fill(9).ack_req());
    s.expect([xack(RQ, 1)]);
    let wc = s.poll(cq);
    assert_eq!((wc[0].id.0, wc[0].byte_len, wc[0].qp_num), (5, 9, s.qpn));
    assert_eq!(s.read(64, 9), pattern(9));
    s.receives(&[]);
    s.events(&[EventType::CommEst]);
    // An empty one is a receiver that is not ready.
    s.send(pkt(Opcode::XRC_SEND_ONLY, RQ + 1).xrc(number).fill(9));
    let not_ready = rnr(RQ + 1, 12, 1);
    s.expect([Pkt { bth: pkt(Opcode::XRC_ACKNOWLEDGE, RQ + 1).bth, ..not_ready }]);
}

#[test]
fn a_queue_of_another_domain_or_none_is_invalid() {
    // Rule: P-16.3.
    for foreign in [false, true] {
        let Target { mut s, cq, .. } = target(false);
        let number = if foreign {
            let xrcd = s.engine.create_xrcd().unwrap();
            let shared = SrqCreate { max_wr: 8, max_sge: 1, limit: 0, xrc: Some((xrcd, cq)) };
            let other = s.engine.create_srq(s.pd, shared).unwrap();
            s.engine.srq_number(other)
        } else {
            XrcSrqn::new(1)
        };
        s.send(pkt(Opcode::XRC_SEND_ONLY, RQ).xrc(number).fill(9));
        s.expect([xnak(RQ, NakCode::InvalidRequest, 0)]);
        s.state(QpState::Err);
    }
}

#[test]
fn reads_writes_and_atomics_need_no_queue() {
    let Target { mut s, .. } = target(false);
    let none = XrcSrqn::new(0);
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::XRC_RDMA_WRITE_ONLY, RQ).xrc(none).reth(va, key, 4).fill(4).ack_req());
    s.send(pkt(Opcode::XRC_RDMA_READ_REQUEST, RQ + 1).xrc(none).reth(va, key, 4));
    s.send(pkt(Opcode::XRC_FETCH_ADD, RQ + 2).xrc(none).atomic(va + 8, key, 4, 0));
    s.expect([
        xack(RQ, 1),
        response(Opcode::XRC_RDMA_READ_RESPONSE_ONLY, RQ + 1, 2).fill(4),
        response(Opcode::XRC_ATOMIC_ACKNOWLEDGE, RQ + 2, 3).original(0),
    ]);
}

#[test]
fn memory_is_that_of_the_queue_that_a_request_names() {
    let Target { mut s, cq, xrcd, .. } = target(false);
    let pd = s.engine.create_pd().unwrap();
    let shared = SrqCreate { max_wr: 8, max_sge: 2, limit: 0, xrc: Some((xrcd, cq)) };
    let srq = s.engine.create_srq(pd, shared).unwrap();
    let number = s.engine.srq_number(srq);
    // The memory moves into the queue's domain, in which the queue pair is not.
    s.engine.reregister(s.mr, Some(pd), None, None).unwrap();
    let (va, key) = (s.va(0), s.rkey());
    s.send(pkt(Opcode::XRC_RDMA_WRITE_ONLY, RQ).xrc(number).reth(va, key, 4).fill(4).ack_req());
    let read = pkt(Opcode::XRC_RDMA_READ_REQUEST, RQ + 1).xrc(number).reth(va, key, 4);
    s.send(read.clone());
    s.send(pkt(Opcode::XRC_FETCH_ADD, RQ + 2).xrc(number).atomic(va + 8, key, 4, 0));
    let answer = response(Opcode::XRC_RDMA_READ_RESPONSE_ONLY, RQ + 1, 2).fill(4);
    s.expect([
        xack(RQ, 1),
        answer.clone(),
        response(Opcode::XRC_ATOMIC_ACKNOWLEDGE, RQ + 2, 3).original(0),
    ]);
    s.send(read);
    s.expect([answer]);
    // Who names no queue has nothing to do with it.
    let none = XrcSrqn::new(0);
    s.send(pkt(Opcode::XRC_RDMA_WRITE_ONLY, RQ + 3).xrc(none).reth(va, key, 4).fill(4));
    s.expect([xnak(RQ + 3, NakCode::RemoteAccessError, 3)]);
}

#[test]
fn a_target_advertises_no_credits() {
    let Target { mut s, .. } = target(true);
    let write = pkt(Opcode::XRC_RDMA_WRITE_ONLY, RQ).xrc(XrcSrqn::new(0));
    s.send(write.reth(0, s.rkey(), 0).ack_req());
    s.expect([xack(RQ, 1)]);
}

#[test]
fn a_receive_that_was_begun_is_flushed_where_its_queue_completes() {
    let Target { mut s, srq, cq, number, .. } = target(false);
    let sges = [s.sge(64, 1000)];
    s.engine.post_srq_recv(srq, &RecvWr { id: WrId(5), sges: &sges }).unwrap();
    s.engine.post_srq_recv(srq, &RecvWr { id: WrId(6), sges: &sges }).unwrap();
    s.send(pkt(Opcode::XRC_SEND_FIRST, RQ).xrc(number).fill(256));
    s.enter(QpState::Err);
    let flushed: Vec<_> = s.poll(cq).iter().map(|wc| (wc.id.0, wc.status)).collect();
    assert_eq!(flushed, [(5, FLUSHED)], "and no other of the shared queue");
    s.receives(&[]);
    s.events(&[EventType::CommEst, EventType::QpLastWqeReached]);
}

#[test]
fn a_target_posts_nothing() {
    let Target { mut s, xrcd, .. } = target(false);
    assert!(s.try_post(1, SEND, &[], SendFlags::SIGNALED).is_err());
    assert!(s.engine.post_recv(s.qp, &RecvWr { id: WrId(1), sges: &[] }).is_err());
    assert!(s.engine.destroy_xrcd(xrcd).is_err(), "it is in use");
}

#[test]
fn the_initiators_failures_are_those_of_any_reliable_connection() {
    let mut s = Setup::new(QpType::XrcSend).build();
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.send(xnak(SQ, NakCode::InvalidRequest, 0));
    s.completes(&[(1, WcStatus::RemInvReqErr), (2, FLUSHED)]);
    s.state(QpState::Err);
    s.events(&[]);
}

#[test]
fn a_target_shows_and_invalidates_what_an_initiator_bound() {
    // A target binds nothing, for want of a send queue.
    for kind in [QpType::XrcSend, QpType::Rc] {
        let Target { mut s, srq, cq, number, .. } = target(false);
        let target = (s.qp, s.qpn, s.kind);
        let cap = QpCap { max_send_wr: 4, ..QpCap::default() };
        let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
        let binder = s.engine.create_qp(s.pd, create).unwrap();
        s.climb(binder, QpState::Rts);
        let mw = s.engine.create_mw(s.pd, MwType::Type2).unwrap();
        let rkey = s.engine.mw_key(mw).unwrap();
        let bind = MwBind { mr: s.mr.lkey(), addr: s.va(0), length: 8, access: ALL };
        (s.qp, s.kind) = (binder, kind);
        s.post(1, SendOp::BindMw { mw: rkey, rkey, bind }, 0);
        s.expect_nothing();
        s.completes(&[(1, OK)]);
        (s.qp, s.qpn, s.kind) = target;
        let sges = [s.sge(64, 100)];
        s.engine.post_srq_recv(srq, &RecvWr { id: WrId(5), sges: &sges }).unwrap();
        let read = pkt(Opcode::XRC_RDMA_READ_REQUEST, RQ).xrc(number).reth(s.va(0), rkey, 4);
        if kind == QpType::Rc {
            // What a connection bound is for its own peer.
            s.send(read);
            s.expect([xnak(RQ, NakCode::RemoteAccessError, 0)]);
            continue;
        }
        s.send(read);
        s.expect([response(Opcode::XRC_RDMA_READ_RESPONSE_ONLY, RQ, 1).data(&[0; 4])]);
        let send = pkt(Opcode::XRC_SEND_ONLY_WITH_INVALIDATE, RQ + 1).xrc(number);
        s.send(send.inv(rkey).fill(9).ack_req());
        s.expect([xack(RQ + 1, 2)]);
        let wc = s.poll(cq);
        assert_eq!((wc[0].status, wc[0].invalidated()), (OK, Some(rkey)));
        let duplicate = pkt(Opcode::XRC_RDMA_READ_REQUEST, RQ + 2).xrc(number);
        s.send(duplicate.reth(s.va(0), rkey, 4));
        s.expect([xnak(RQ + 2, NakCode::RemoteAccessError, 2)]);
    }
}
