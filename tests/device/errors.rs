//! Errors are reported, and handles of destroyed objects do no harm.

use roce::verbs::{
    Access, AhHandle, AttrMask, CreateError, Data, DestroyError, KeyError, ModifyError, Notify,
    PostError, QpAttr, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Target, UdTarget, Wc,
    WcStatus, WrId,
};
use roce::wire::RKey;

use crate::stage::*;

#[test]
fn what_others_use_cannot_be_destroyed() {
    let pair = Pair::new(QpType::Rc);
    let a = &pair.a;
    assert_eq!(a.nic.destroy_pd(a.pd), Err(DestroyError::Busy));
    assert_eq!(a.nic.destroy_cq(a.cq), Err(DestroyError::Busy));
    a.nic.destroy_qp(pair.a_qp).unwrap();
    a.nic.destroy_cq(a.cq).unwrap();
    assert_eq!(a.nic.destroy_pd(a.pd), Err(DestroyError::Busy), "memory belongs to it");
    a.nic.deregister(a.mr).unwrap();
    a.nic.destroy_pd(a.pd).unwrap();
}

#[test]
fn what_is_gone_is_not_found() {
    let pair = Pair::new(QpType::Ud);
    let (a, qp) = (&pair.a, pair.a_qp);
    let Target::Ud(UdTarget { ah, .. }) = pair.target else { panic!("a datagram has an address") };
    a.nic.destroy_ah(ah).unwrap();
    assert_eq!(a.nic.destroy_ah(ah), Err(DestroyError::NotFound));
    let sges = [a.sge(0, 8)];
    let wr = SendWr { target: pair.target, ..SendWr::new(WrId(1), SEND, Data::Gather(&sges)) };
    // It is refused at once, or fails.
    match a.nic.post_send(qp, &wr) {
        Ok(()) => assert!(!a.next(1).is_success()),
        Err(error) => assert_eq!(error, PostError::UnknownAddress),
    }

    a.nic.destroy_qp(qp).unwrap();
    assert_eq!(a.nic.destroy_qp(qp), Err(DestroyError::NotFound));
    a.nic.post_send(qp, &wr).unwrap_err();
    a.nic.post_recv(qp, &RecvWr { id: WrId(1), sges: &sges }).unwrap_err();
    assert_eq!((a.nic.qp_number(qp), a.nic.qp_kind(qp)), (None, None));
    assert_eq!((a.nic.query_qp(qp), a.nic.qp_state(qp)), (None, None));
    let nothing = a.nic.modify_qp(qp, &QpAttr::default(), AttrMask::STATE);
    assert_eq!(nothing, Err(ModifyError::NotFound));

    a.nic.destroy_cq(a.cq).unwrap();
    assert_eq!(a.nic.poll_cq(a.cq, &mut [Wc::default()]), 0);
    a.nic.request_notify(a.cq, Notify::Next);
    let error = a.nic.create_simple_qp(a.pd, a.cq, QpType::Rc).unwrap_err();
    assert!(matches!(error, CreateError::NotFound(_)), "{error}");

    a.nic.deregister(a.mr).unwrap();
    assert_eq!(a.nic.deregister(a.mr), Err(KeyError::NotFound));
    a.nic.destroy_pd(a.pd).unwrap();
    assert_eq!(a.nic.destroy_pd(a.pd), Err(DestroyError::NotFound));
    let error = a.nic.register(a.pd, &a.buffer, Access::empty()).unwrap_err();
    assert_eq!(error, KeyError::NoPd);
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let pair = Pair::new(QpType::Rc);
    let a = &pair.a;
    let error = a.nic.register(a.pd, &a.buffer, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(error, KeyError::NeedsLocalWrite);
    let qp = a.nic.create_simple_qp(a.pd, a.cq, QpType::Rc).unwrap();
    let sges = [a.sge(0, 1); 64];
    let send = |qp, data| a.nic.post_send(qp, &SendWr::new(WrId(1), SEND, data)).unwrap_err();
    let many = send(pair.a_qp, Data::Gather(&sges));
    assert!(matches!(many, PostError::TooManySges { count: 64, .. }), "{many}");
    let long = send(pair.a_qp, Data::Inline(&[0; 4096]));
    assert!(matches!(long, PostError::InlineTooLong { .. }), "{long}");
    // A state in which nothing is sent.
    send(qp, Data::Gather(&sges[..1]));
    // Addresses outside registered memory are not read.
    let flags = SendFlags::INLINE;
    let blind = SendWr { flags, ..SendWr::new(WrId(1), SEND, Data::Gather(&sges[..1])) };
    let error = a.nic.post_send(pair.a_qp, &blind).unwrap_err();
    assert!(matches!(error, PostError::WrongLength { .. }), "{error}");
    let ud = UdTarget { ah: AhHandle::from_c(0), qpn: roce::wire::Qpn::new(1), qkey: a.how().qkey };
    let astray = SendWr { target: Target::Ud(ud), ..SendWr::new(WrId(1), SEND, Data::EMPTY) };
    let error = a.nic.post_send(pair.a_qp, &astray).unwrap_err();
    assert_eq!(error, PostError::MissingAddress(QpType::Rc));
}

#[test]
fn a_list_that_goes_wrong_says_where() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    let sges = [a.sge(0, 1); 64];
    let mut wrs = vec![SendWr::new(WrId(0), SEND, Data::Gather(&sges[..1])); 20];
    wrs[18].data = Data::Gather(&sges);
    for id in 0..20 {
        b.recv(pair.b_qp, id, 0, 64);
    }
    let (taken, error) = a.nic.post_sends(pair.a_qp, &wrs).unwrap_err();
    assert_eq!(taken, 18, "{error}");
    for id in 0..18 {
        a.done(0);
        b.done(id);
    }
    assert_eq!(a.nic.poll_cq(a.cq, &mut [Wc::default()]), 0);
}

#[test]
fn a_queue_that_is_full_says_so() {
    let pair = Pair::new(QpType::Rc);
    let b = &pair.b;
    let sges = [b.sge(0, 64)];
    let wr = RecvWr { id: WrId(1), sges: &sges };
    let errors = (0..100_000).map(|_| b.nic.post_recv(pair.b_qp, &wr));
    let error = errors.filter_map(Result::err).next();
    assert_eq!(error, Some(PostError::QueueFull));
}

#[test]
fn a_transition_that_is_none_is_explained() {
    let [a, _b] = devices().map(Side::new);
    let qp = a.nic.create_simple_qp(a.pd, a.cq, QpType::Rc).unwrap();
    let attr = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
    let error = a.nic.modify_qp(qp, &attr, AttrMask::STATE).unwrap_err();
    let (from, to) = (QpState::Reset, QpState::Rts);
    assert_eq!(error, ModifyError::Transition { qp_type: QpType::Rc, from, to });
    let attr = QpAttr { qp_state: QpState::Init, ..QpAttr::default() };
    let error = a.nic.modify_qp(qp, &attr, AttrMask::STATE | AttrMask::PORT).unwrap_err();
    let missing = AttrMask::PKEY_INDEX | AttrMask::ACCESS_FLAGS;
    let to = QpState::Init;
    assert_eq!(error, ModifyError::Missing { qp_type: QpType::Rc, from, to, missing });
}

#[test]
fn a_request_that_the_peer_refuses_ends_the_connection() {
    let pair = Pair::new(QpType::Rc);
    let a = &pair.a;
    let (remote_addr, rkey) = pair.there(0);
    let beyond = SendOp::Read { remote_addr: remote_addr + MEMORY as u64, rkey };
    a.post(pair.a_qp, 1, beyond, 0, 8);
    a.post(pair.a_qp, 2, SEND, 0, 8);
    assert_eq!(a.next(1).status, WcStatus::RemAccessErr);
    assert_eq!(a.next(2).status, WcStatus::WrFlushErr);
    assert_eq!(a.nic.qp_state(pair.a_qp), Some(QpState::Err));
    let other = RKey::new(rkey.get() ^ 0x5500_0000);
    let pair = Pair::new(QpType::Rc);
    let write = SendOp::Write { remote_addr: pair.b.buffer.addr(), rkey: other, imm: None };
    pair.a.post(pair.a_qp, 3, write, 0, 8);
    assert_eq!(pair.a.next(3).status, WcStatus::RemAccessErr);
}
