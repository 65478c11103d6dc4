//! Posting work. V-01.

use roce::verbs::{
    AttrMask, Data, Errno, PostError, QpAttr, QpCreate, QpInitAttr, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Wc, WcStatus, WrId, WrOpcode,
};
use roce::wire::Opcode;

use super::script::*;
use super::states::in_state;

#[test]
fn a_full_queue_says_so() {
    // Rule: V-01.2.
    let mut s = Script::with(|setup| {
        setup.cap.max_send_wr = 3;
        setup.cap.max_recv_wr = 5;
    });
    for id in 0..3 {
        s.post(id, SEND, 4);
    }
    let full = s.try_post(3, SEND, &[], SendFlags::SIGNALED).unwrap_err();
    assert_eq!((full, full.errno()), (PostError::QueueFull, Errno::ENOMEM));
    s.expect_count(3);
    s.send(ack(SQ, 1));
    // It is done, but its slot is free only when its completion was polled.
    assert_eq!(s.try_post(3, SEND, &[], SendFlags::SIGNALED), Err(PostError::QueueFull));
    s.completes(&[(0, OK)]);
    s.post(3, SEND, 4);
    assert!(s.try_post(4, SEND, &[], SendFlags::SIGNALED).is_err());
    for id in 0..5 {
        s.recv(id, 0, 4);
    }
    let wr = RecvWr { id: WrId(5), sges: &[] };
    assert_eq!(s.engine.post_recv(s.qp, &wr), Err(PostError::QueueFull));
    // What was posted before the one that did not fit stays posted.
    s.enter(QpState::Err);
    s.receives(&[0, 1, 2, 3, 4].map(|id| (id, FLUSHED)));
}

#[test]
fn slots_of_unsignaled_sends_are_freed_by_a_later_completion() {
    let mut s = Script::with(|setup| setup.cap.max_send_wr = 4);
    for id in 0..3 {
        s.post_flags(id, SEND, 4, SendFlags::empty());
    }
    s.expect_count(3);
    s.send(ack(SQ + 2, 3));
    // Three are done and nothing tells: one slot is left.
    s.post(3, SEND, 4);
    assert_eq!(s.try_post(9, SEND, &[], SendFlags::SIGNALED), Err(PostError::QueueFull));
    s.expect_count(1);
    s.send(ack(SQ + 3, 4));
    assert_eq!(s.try_post(9, SEND, &[], SendFlags::SIGNALED), Err(PostError::QueueFull));
    s.completes(&[(3, OK)]);
    for id in 4..8 {
        s.post_flags(id, SEND, 4, SendFlags::empty());
    }
    assert_eq!(s.try_post(9, SEND, &[], SendFlags::SIGNALED), Err(PostError::QueueFull));
    // A reset forgets completions, and frees every slot.
    s.enter(QpState::Reset);
    s.climb(s.qp, QpState::Rts);
    for id in 10..14 {
        s.post(id, SEND, 4);
    }
    assert_eq!(s.try_post(9, SEND, &[], SendFlags::SIGNALED), Err(PostError::QueueFull));
}

#[test]
fn the_first_send_on_a_path_is_urgent_and_so_are_many() {
    let mut s = Script::with(|setup| setup.cap.max_send_wr = 128);
    assert!(!s.engine.has_urgent_transmit());
    s.post(0, SEND, 4);
    assert!(s.engine.has_urgent_transmit());
    s.expect_count(1);
    for id in 1..64 {
        s.post(id, SEND, 4);
        assert!(!s.engine.has_urgent_transmit(), "{id}: another is in flight");
    }
    s.post(64, SEND, 4);
    assert!(s.engine.has_urgent_transmit(), "these are many");
    assert!(!s.sent().is_empty());
    assert!(!s.engine.has_urgent_transmit());
    s.send(ack(SQ + 64, 65));
    s.post(65, SEND, 4);
    assert!(s.engine.has_urgent_transmit(), "all others are acknowledged");
}

#[test]
fn an_unreliable_send_is_urgent_when_the_last_one_was_polled() {
    let mut s = Script::of(QpType::Uc, |_| ());
    s.post(0, SEND, 4);
    assert!(s.engine.has_urgent_transmit());
    s.expect_count(1);
    s.post(1, SEND, 4);
    assert!(!s.engine.has_urgent_transmit());
    s.expect_count(1);
    s.completes(&[(0, OK), (1, OK)]);
    s.post(2, SEND, 4);
    assert!(s.engine.has_urgent_transmit());
}

#[test]
fn polled_completions_of_several_queue_pairs_free_slots_of_each() {
    // Two queue pairs on one completion queue: flushed sends of both are polled at once.
    let mut setup = Setup::new(QpType::Rc);
    setup.cap.max_send_wr = 2;
    let cap = setup.cap;
    let mut s = setup.build();
    let create = QpCreate {
        init: QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true },
        send_cq: s.cq,
        recv_cq: s.cq,
        srq: None,
        xrcd: None,
    };
    let other = s.engine.create_qp(s.pd, create).unwrap();
    for (state, mask) in [
        (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
        (QpState::Err, AttrMask::empty()),
    ] {
        let attr = QpAttr { qp_state: state, ..s.attr };
        s.engine.modify_qp(other, &attr, mask | AttrMask::STATE).unwrap();
    }
    s.enter(QpState::Err);
    let send = |id| SendWr::new(WrId(id), SEND, Data::EMPTY);
    for _ in 0..2 {
        for (qp, id) in [(s.qp, 1), (other, 2), (s.qp, 3), (other, 4)] {
            s.engine.post_send(qp, &send(id), &[]).unwrap();
        }
        for qp in [s.qp, other] {
            assert_eq!(s.engine.post_send(qp, &send(5), &[]), Err(PostError::QueueFull));
        }
        let mut polled = [Wc::default(); 8];
        assert_eq!(s.engine.poll_cq(s.cq, &mut polled), 4);
    }
    // Completions outlive a queue pair, and free nothing.
    s.engine.post_send(other, &send(6), &[]).unwrap();
    s.engine.destroy_qp(other).unwrap();
    assert_eq!(s.engine.poll_cq(s.cq, &mut [Wc::default(); 8]), 1);
}

#[test]
fn several_are_posted_together_or_not_at_all() {
    let mut s = Script::with(|setup| setup.cap.max_send_wr = 3);
    let sges = [s.sge(0, 4)];
    let send = |id| SendWr::new(WrId(id), SEND, Data::Gather(&sges));
    let inline = |id| SendWr::new(WrId(id), READ, Data::Inline(&[0; 8]));
    assert_eq!(s.engine.post_sends(s.qp, (0..4).map(send)), Err(PostError::QueueFull));
    let refused = PostError::InlineNotAllowed(WrOpcode::RdmaRead);
    assert_eq!(s.engine.post_sends(s.qp, [send(0), inline(1)]), Err(refused));
    s.expect_nothing();
    s.engine.post_sends(s.qp, (5..8).map(send)).unwrap();
    s.expect_count(3);
    s.send(ack(SQ + 2, 3));
    s.completes(&[(5, OK), (6, OK), (7, OK)]);
    // In error all are flushed, in order.
    s.enter(QpState::Err);
    s.engine.post_sends(s.qp, (8..10).map(send)).unwrap();
    s.completes(&[(8, FLUSHED), (9, FLUSHED)]);
}

#[test]
fn lists_and_inline_data_have_limits() {
    // Rule: V-01.4.
    let mut s = Script::rc();
    let sges = [s.sge(0, 1); 5];
    let many = PostError::TooManySges { count: 5, max: 4 };
    assert_eq!(s.try_post(1, SEND, &sges, SendFlags::SIGNALED), Err(many));
    let wr = RecvWr { id: WrId(1), sges: &sges };
    assert_eq!(s.engine.post_recv(s.qp, &wr), Err(many));
    let wr = SendWr::new(WrId(1), SEND, Data::Inline(&[0; 65]));
    let long = PostError::InlineTooLong { len: 65, max: 64 };
    assert_eq!(s.engine.post_send(s.qp, &wr, &[]), Err(long));
    let wr = SendWr::new(WrId(1), READ, Data::Inline(&[0; 8]));
    let refused = PostError::InlineNotAllowed(WrOpcode::RdmaRead);
    assert_eq!(s.engine.post_send(s.qp, &wr, &[]), Err(refused));
    let halves = [s.sge(0, 1 << 31), s.sge(0, 1)];
    let refused = s.try_post(1, SEND, &halves, SendFlags::SIGNALED);
    assert!(matches!(refused, Err(PostError::MessageTooLong { .. })));
    s.expect_nothing();
    s.completes(&[]);
}

#[test]
fn reads_and_atomics_with_max_rd_atomic_zero_are_not_posted() {
    let mut s = Script::with(|setup| setup.attr.max_rd_atomic = 0);
    let sges = [s.sge(0, 8)];
    for op in [READ, ADD] {
        let refused = s.try_post(1, op, &sges, SendFlags::SIGNALED);
        assert_eq!(refused, Err(PostError::NoRdAtomic));
    }
    s.post(1, SEND, 4);
}

#[test]
fn operations_stay_with_their_kinds_of_queue_pair() {
    let mut uc = Script::uc();
    for op in [READ, ADD, SendOp::SendWithInv { rkey: REMOTE_KEY }] {
        let sges = [uc.sge(0, 8)];
        let refused = uc.try_post(1, op, &sges, SendFlags::SIGNALED);
        assert!(matches!(refused, Err(PostError::NotAllowedOnQpType { .. })));
    }
    let mut rc = Script::rc();
    let sges = [rc.sge(0, 7)];
    let store = SendOp::AtomicWrite { remote_addr: 0, rkey: REMOTE_KEY };
    let short = rc.try_post(1, store, &sges, SendFlags::SIGNALED);
    assert!(matches!(short, Err(PostError::WrongLength { .. })));
}

#[test]
fn an_atomic_with_other_than_eight_bytes_is_a_local_length_error() {
    for len in [0, 7, 9, 16] {
        let mut s = Script::rc();
        s.post(1, SEND, 4);
        s.post(2, ADD, len);
        s.post(3, SEND, 4);
        // What stands before it is answered first.
        s.expect_count(1);
        s.completes(&[]);
        s.send(ack(SQ, 1));
        s.expect_nothing();
        s.completes(&[(1, OK), (2, WcStatus::LocLenErr), (3, FLUSHED)]);
        s.state(QpState::Err);
    }
}

#[test]
fn sends_are_posted_where_the_table_says() {
    // Rule: S-02.1.
    for state in QpState::ALL {
        let Some(mut s) = in_state(QpType::Uc, *state) else { continue };
        let posted = s.try_post(1, SEND, &[], SendFlags::empty());
        let refused = matches!(state, QpState::Reset | QpState::Init | QpState::Rtr);
        let expected = if refused { Err(PostError::WrongState(*state)) } else { Ok(()) };
        assert_eq!(posted, expected, "{state}");
        let sent = s.sent().len();
        assert_eq!(sent, usize::from(*state == QpState::Rts), "{state}");
        let flushed = matches!(state, QpState::Sqe | QpState::Err);
        s.completes(if flushed { &[(1, FLUSHED)] } else { &[] });
    }
}

#[test]
fn receives_may_be_posted_in_init() {
    let mut s = Script::with(|setup| setup.until = QpState::Init);
    s.recv(1, 0, 100);
    s.climb_on();
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
    s.receives(&[(1, OK)]);
}

impl Script {
    fn climb_on(&mut self) {
        self.enter(QpState::Rtr);
        self.enter(QpState::Rts);
    }
}

#[test]
fn queue_pairs_are_served_round_robin() {
    let mut s = Script::rc();
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        cap: roce::verbs::QpCap { max_send_wr: 4, max_send_sge: 1, ..Default::default() },
        sq_sig_all: false,
    };
    let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
    let first = s.qp;
    let second = s.engine.create_qp(s.pd, create).unwrap();
    s.attr.sq_psn = roce::wire::Psn::new(9000);
    s.climb(second, QpState::Rts);
    s.post(1, SEND, 100 * 256);
    s.qp = second;
    s.post(2, SEND, 100 * 256);
    let sent = s.sent();
    let turns: Vec<bool> = sent.iter().map(|packet| packet.bth.psn.get() >= 9000).collect();
    assert_eq!(turns[..48], [[false; 16], [true; 16], [false; 16]].concat());
    assert_ne!(first, second);
}

#[test]
fn endless_responses_do_not_starve_requests_and_vice_versa() {
    // One packet at a time, or as many as a turn has.
    for (batch, before) in [(1, 1), (64, 16)] {
        let mut s = Script::with(|setup| setup.config.quantum = 16);
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 60_000));
        s.post(1, WRITE, 60_000);
        let mut batch = roce::engine::Batch::new(batch);
        let mut requests = Vec::new();
        for _ in 0..200 {
            batch.clear();
            let _sent = s.engine.poll_transmit(roce::time::Instant::ZERO, &mut batch);
            for (_, bytes) in batch.iter() {
                let packet = roce::wire::Packet::parse(&bytes[..bytes.len() - 4]).unwrap();
                requests.push(packet.info().unwrap().role == roce::wire::Role::Request);
            }
            if requests.len() >= 200 {
                break;
            }
        }
        assert!(!requests[0], "answers go first");
        let runs = requests[..128].chunk_by(|a, b| a == b).map(<[bool]>::len);
        assert_eq!(runs.max(), Some(before), "and then in turns");
    }
}
