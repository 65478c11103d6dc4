//! The states of a queue pair. S-01, S-02.

use roce::engine::{Counter, QpCreate};
use roce::verbs::{
    AttrMask, EventType, ModifyError, PostError, QpAttr, QpInitAttr, QpState, QpType, RecvWr,
    SendFlags, WrId, transition,
};
use roce::wire::Opcode;

use super::script::*;

const KINDS: [QpType; 6] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv, QpType::Gsi];

/// A queue pair in a state; `None` where its kind never is in it.
pub fn in_state(kind: QpType, state: QpState) -> Option<Script> {
    if !state.is_possible(kind) {
        return None;
    }
    let mut setup = Setup::new(kind);
    setup.until = state;
    let mut s = setup.build();
    if state == QpState::Sqe {
        // It gets there by a send that fails.
        let target = match kind {
            QpType::Uc => roce::verbs::Target::Peer,
            _ => {
                let ah = s.engine.create_ah(s.pd, roce::verbs::AhAttr::new(peer_gid(), 0)).unwrap();
                let qkey = roce::wire::QKey::new(1);
                roce::verbs::Target::Ud(roce::verbs::UdTarget { ah, qpn: PEER, qkey })
            }
        };
        let sges = [s.sge(SIZE as u64, 1)];
        let data = roce::verbs::Data::Gather(&sges);
        let wr = roce::verbs::SendWr { target, ..roce::verbs::SendWr::new(WrId(0), SEND, data) };
        s.engine.post_send(s.qp, &wr, &[]).unwrap();
        s.expect_nothing();
        s.poll(s.cq);
    }
    s.state(state);
    Some(s)
}

#[test]
fn every_row_of_the_transition_table_is_taken() {
    // Rule: S-01.1.
    for kind in KINDS {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some(mut s) = in_state(kind, *from) else { continue };
                let result = s.modify(s.qp, *to);
                let expected = transition::find(kind, *from, *to).is_some();
                assert_eq!(result.is_ok(), expected, "{kind} {from} to {to}: {result:?}");
                s.state(if expected { *to } else { *from });
            }
        }
    }
}

#[test]
fn what_is_missing_or_too_much_changes_nothing() {
    // Rule: S-01.2.
    for kind in KINDS {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some(needs) = transition::find(kind, *from, *to) else { continue };
                let Some(mut s) = in_state(kind, *from) else { continue };
                let before = s.engine.query_qp(s.qp).unwrap();
                let attr = QpAttr { qp_state: *to, cur_qp_state: *from, ..s.attr };
                let all = needs.required | AttrMask::STATE;
                for flag in needs.required {
                    let refused = s.engine.modify_qp(s.qp, &attr, all - flag);
                    assert!(
                        matches!(refused, Err(ModifyError::Missing { missing, .. }) if missing == flag)
                    );
                }
                for flag in AttrMask::all() - needs.allowed() - transition::ignored(kind) {
                    let refused = s.engine.modify_qp(s.qp, &attr, all | flag);
                    assert!(
                        matches!(refused, Err(ModifyError::Illegal { illegal, .. }) if illegal == flag),
                        "{kind} {from} to {to} with {flag}: {refused:?}"
                    );
                }
                assert_eq!(s.engine.query_qp(s.qp).unwrap(), before, "{kind} {from} to {to}");
            }
        }
    }
}

#[test]
fn attributes_that_a_half_of_an_extended_connection_has_no_use_for_are_ignored() {
    for kind in [QpType::XrcSend, QpType::XrcRecv] {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some(needs) = transition::find(kind, *from, *to) else { continue };
                let Some(mut s) = in_state(kind, *from) else { continue };
                let ignored = transition::ignored(kind);
                assert!(!needs.allowed().intersects(ignored));
                // Not even a value that no device has is looked at.
                let attr = QpAttr {
                    qp_state: *to,
                    max_rd_atomic: if kind == QpType::XrcRecv { 255 } else { 1 },
                    max_dest_rd_atomic: if kind == QpType::XrcSend { 255 } else { 1 },
                    ..s.attr
                };
                let mask = needs.required | AttrMask::STATE | ignored;
                assert_eq!(s.engine.modify_qp(s.qp, &attr, mask), Ok(()), "{kind} {from} to {to}");
                let is = s.engine.query_qp(s.qp).unwrap();
                assert!(is.max_rd_atomic < 255 && is.max_dest_rd_atomic < 255);
            }
        }
    }
}

#[test]
fn optional_attributes_are_taken() {
    for kind in KINDS {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some(needs) = transition::find(kind, *from, *to) else { continue };
                let Some(mut s) = in_state(kind, *from) else { continue };
                let attr = QpAttr { qp_state: *to, cur_qp_state: *from, ..s.attr };
                let result = s.engine.modify_qp(s.qp, &attr, needs.allowed());
                assert_eq!(result, Ok(()), "{kind} {from} to {to}");
            }
        }
    }
}

#[test]
fn values_that_the_port_cannot_serve_are_named() {
    let mut s = Script::with(|setup| {
        setup.until = QpState::Init;
        setup.config.port_mtu = roce::verbs::Mtu::M1024;
    });
    let needs = transition::find(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
    let mask = needs.required | AttrMask::STATE | AttrMask::PKEY_INDEX;
    let good = QpAttr { qp_state: QpState::Rtr, ..s.attr };
    let mut far = good.ah_attr;
    far.sgid_index = 9;
    for (attr, named) in [
        (QpAttr { path_mtu: roce::verbs::Mtu::M2048, ..good }, AttrMask::PATH_MTU),
        (QpAttr { pkey_index: 2, ..good }, AttrMask::PKEY_INDEX),
        (QpAttr { ah_attr: far, ..good }, AttrMask::AV),
        (QpAttr { max_dest_rd_atomic: 129, ..good }, AttrMask::MAX_DEST_RD_ATOMIC),
    ] {
        assert_eq!(s.engine.modify_qp(s.qp, &attr, mask), Err(ModifyError::Value(named)));
        s.state(QpState::Init);
    }
    s.engine.modify_qp(s.qp, &good, mask).unwrap();
    let needs = transition::find(QpType::Rc, QpState::Rtr, QpState::Rts).unwrap();
    let attr = QpAttr { qp_state: QpState::Rts, max_rd_atomic: 129, ..s.attr };
    let refused = s.engine.modify_qp(s.qp, &attr, needs.required | AttrMask::STATE);
    assert_eq!(refused, Err(ModifyError::Value(AttrMask::MAX_QP_RD_ATOMIC)));
    s.state(QpState::Rtr);
    let mut fresh = Setup::new(QpType::Rc);
    fresh.until = QpState::Reset;
    let mut s = fresh.build();
    let needs = transition::find(QpType::Rc, QpState::Reset, QpState::Init).unwrap();
    let attr = QpAttr { qp_state: QpState::Init, port_num: roce::verbs::PortNum(2), ..s.attr };
    let refused = s.engine.modify_qp(s.qp, &attr, needs.required | AttrMask::STATE);
    assert_eq!(refused, Err(ModifyError::Value(AttrMask::PORT)));
}

#[test]
fn wrong_cur_qp_state_is_an_error() {
    let mut s = Script::rc();
    let attr = QpAttr { qp_state: QpState::Rts, cur_qp_state: QpState::Sqd, ..s.attr };
    let (stated, actual) = (QpState::Sqd, QpState::Rts);
    let refused = s.engine.modify_qp(s.qp, &attr, AttrMask::STATE | AttrMask::CUR_STATE);
    assert_eq!(refused, Err(ModifyError::CurState { stated, actual }));
}

#[test]
fn requests_and_responses_are_accepted_where_the_table_says() {
    // Rule: S-02.2.
    for state in QpState::ALL {
        let Some(mut s) = in_state(QpType::Rc, *state) else { continue };
        let rules = state.rules();
        let read = pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(0, s.rkey(), 0);
        let before = s.count(Counter::WrongState);
        s.send(read);
        let dropped = s.count(Counter::WrongState) - before;
        assert_eq!(dropped == 0, rules.requests, "{state}");
        assert_eq!(s.sent().len(), usize::from(rules.requests), "{state}");
        let before = s.count(Counter::WrongState);
        s.send(ack(SQ, 1));
        let dropped = s.count(Counter::WrongState) - before;
        assert_eq!(dropped == 0, rules.responses, "{state}");
    }
}

#[test]
fn sqd_finishes_begun_requests_and_raises_the_event() {
    // Rule: S-02.4.
    let mut s = Script::with(|setup| setup.config.window_packets = 2);
    s.post(1, SEND, 4 * 256);
    s.post(2, SEND, 4);
    s.expect_count(2);
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..s.attr };
    s.engine.modify_qp(s.qp, &attr, mask).unwrap();
    s.post(3, SEND, 4);
    assert!(s.engine.query_qp(s.qp).unwrap().sq_draining);
    s.events(&[]);
    s.send(ack(SQ + 1, 0));
    s.expect_count(2);
    s.events(&[]);
    s.send(ack(SQ + 3, 1));
    s.completes(&[(1, OK)]);
    s.events(&[EventType::SqDrained]);
    assert!(!s.engine.query_qp(s.qp).unwrap().sq_draining);
    s.expect_nothing();
    // Requests are served meanwhile, and sending goes on where it stopped.
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(0, s.rkey(), 0));
    s.expect([read_only(RQ, 1)]);
    s.enter(QpState::Rts);
    let sent = s.expect_count(2);
    assert_eq!(sent[0].bth.psn.get(), SQ + 4);
    s.send(ack(SQ + 5, 3));
    s.completes(&[(2, OK), (3, OK)]);
}

#[test]
fn sqd_retransmits_begun_requests() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.enter(QpState::Sqd);
    s.at(TIMEOUT);
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK)]);
    s.events(&[]);
}

#[test]
fn an_idle_queue_drains_at_once() {
    let mut s = Script::rc();
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..s.attr };
    s.post(1, SEND, 4);
    s.engine.modify_qp(s.qp, &attr, mask).unwrap();
    s.events(&[EventType::SqDrained]);
    s.expect_nothing();
}

#[test]
fn drained_event_is_raised_once() {
    // Rule: Q-35.
    let mut s = Script::rc();
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..s.attr };
    s.engine.modify_qp(s.qp, &attr, mask).unwrap();
    s.events(&[EventType::SqDrained]);
    assert!(!s.engine.query_qp(s.qp).unwrap().en_sqd_async_notify);
    s.enter(QpState::Rts);
    s.enter(QpState::Sqd);
    s.events(&[]);
    s.enter(QpState::Rts);
    // Who leaves before it has drained, or fails, is not told of another time.
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.engine.modify_qp(s.qp, &attr, mask).unwrap();
    s.enter(QpState::Rts);
    s.enter(QpState::Sqd);
    s.send(ack(SQ, 1));
    s.events(&[]);
    s.enter(QpState::Rts);
    s.post(2, SEND, 4);
    s.expect_count(1);
    s.engine.modify_qp(s.qp, &attr, mask).unwrap();
    s.send(nak(SQ + 1, roce::wire::aeth::NakCode::InvalidRequest, 1));
    s.state(QpState::Err);
    assert!(!s.engine.query_qp(s.qp).unwrap().en_sqd_async_notify);
    s.events(&[]);
}

#[test]
fn the_error_state_flushes_everything_in_order() {
    // Rule: P-08.3.
    // A bug that rxe had: the receive queue was not flushed.
    let mut s = Script::rc();
    for id in 0..4 {
        s.post_flags(id, SEND, 4, SendFlags::empty());
        s.recv(10 + id, 0, 1000);
    }
    s.expect_count(4);
    s.post(4, READ, 4);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
    s.enter(QpState::Err);
    s.completes(&[(0, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED), (4, FLUSHED)]);
    s.receives(&[(10, FLUSHED), (11, FLUSHED), (12, FLUSHED), (13, FLUSHED)]);
    s.post_flags(5, SEND, 4, SendFlags::empty());
    s.recv(14, 0, 4);
    s.completes(&[(5, FLUSHED)]);
    s.receives(&[(14, FLUSHED)]);
    s.expect_nothing();
    s.at(100_000);
    s.expect_nothing();
    s.completes(&[]);
}

#[test]
fn reset_discards_completions_that_were_not_polled() {
    // Rule: S-02.3.
    let mut s = Script::rc();
    s.engine.enable_timestamps(roce::time::Instant::ZERO, s.cq).unwrap();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.recv(2, 0, 4);
    s.enter(QpState::Err);
    s.enter(QpState::Reset);
    s.completes(&[]);
    s.receives(&[]);
    let qp = s.qp;
    s.climb(qp, QpState::Rts);
    s.post(3, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ, 1));
    let timed = s.engine.poll_cq_timed(s.cq);
    assert_eq!(timed.map(|(wc, time)| (wc.id, time.is_some())), Some((WrId(3), true)));
}

#[test]
fn reset_discards_everything_without_completions() {
    // Rule: S-02.3.
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.recv(2, 0, 1000);
    s.recv(3, 0, 1000);
    s.expect_count(1);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
    s.enter(QpState::Reset);
    s.completes(&[]);
    s.receives(&[]);
    s.at(100_000);
    s.expect_nothing();
    let attr = s.engine.query_qp(s.qp).unwrap();
    assert_eq!((attr.dest_qp_num.get(), attr.max_rd_atomic), (0, 0));
    // And everything begins anew, with the whole queues.
    s.climb(s.qp, QpState::Rts);
    for id in 0..32 {
        s.recv(id, 0, 1000);
    }
    s.post(9, SEND, 4);
    let sent = s.expect_count(1);
    assert_eq!(sent[0].bth.psn.get(), SQ);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.expect([ack(RQ, 1)]);
    s.receives(&[(0, OK)]);
}

#[test]
fn destroyed_queue_pair_is_unknown() {
    let mut s = Script::rc();
    let qp = s.qp;
    s.post(1, SEND, 4);
    s.engine.destroy_qp(qp).unwrap();
    s.expect_nothing();
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ), Counter::NoQp);
    assert!(s.engine.destroy_qp(qp).is_err());
    let other = qp_of_another(&mut s);
    assert_eq!(s.modify(other, QpState::Init), Ok(()));
    let refused = s.engine.modify_qp(qp, &s.attr.clone(), AttrMask::STATE);
    assert_eq!(refused, Err(ModifyError::NotFound));
    assert!(s.engine.post_recv(qp, &RecvWr { id: WrId(1), sges: &[] }).is_err());
    // A new one at the same place goes by another number.
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ), Counter::NoQp);
}

fn qp_of_another(s: &mut Script) -> roce::engine::QpHandle {
    let init = QpInitAttr { qp_type: QpType::Rc, cap: Default::default(), sq_sig_all: false };
    let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
    s.engine.create_qp(s.pd, create).unwrap()
}

#[test]
fn queue_pair_without_queues_does_no_harm() {
    let mut s = Script::rc();
    let qp = qp_of_another(&mut s);
    s.climb(qp, QpState::Rts);
    (s.qp, s.qpn) = (qp, s.engine.qp_number(qp).unwrap());
    assert_eq!(s.try_post(1, SEND, &[], SendFlags::SIGNALED), Err(PostError::QueueFull));
    let full = s.engine.post_recv(qp, &RecvWr { id: WrId(1), sges: &[] });
    assert_eq!(full, Err(PostError::QueueFull));
    for packet in
        [ack(SQ, 1), ack(SQ - 1, 1), nak(SQ - 1, roce::wire::aeth::NakCode::InvalidRequest, 0)]
    {
        s.send(packet);
    }
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    s.expect([rnr(RQ, 12, 0)]);
    s.enter(QpState::Err);
}
