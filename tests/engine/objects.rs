//! Creating and destroying objects: what belongs to what, and how many there can be.

use std::net::{Ipv4Addr, Ipv6Addr};

use roce::engine::{
    Config, CreateError, DestroyError, Engine, KeyError, MrAttr, QpCreate, SrqCreate,
};
use roce::memory::Buffer;
use roce::verbs::{
    Access, AhAttr, Data, Errno, Mtu, MwType, PostError, QpCap, QpInitAttr, QpState, QpType,
    RecvWr, SendFlags, SendOp, SendWr, Target, UdTarget, WcStatus, WrId,
};
use roce::wire::{Gid, Opcode, QKey};

use super::script::*;

fn plain(s: &Script, qp_type: QpType) -> QpCreate {
    let init = QpInitAttr { qp_type, cap: QpCap::default(), sq_sig_all: false };
    QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None }
}

#[test]
fn a_queue_pair_needs_everything_that_it_names() {
    let mut s = Script::rc();
    let gone_pd = s.engine.create_pd().unwrap();
    s.engine.destroy_pd(gone_pd).unwrap();
    let gone_cq = s.engine.create_cq(1).unwrap();
    s.engine.destroy_cq(gone_cq).unwrap();
    let shared = SrqCreate { max_wr: 1, max_sge: 1, limit: 0, xrc: None };
    let (srq, gone_srq) =
        (s.engine.create_srq(s.pd, shared).unwrap(), s.engine.create_srq(s.pd, shared).unwrap());
    s.engine.destroy_srq(gone_srq).unwrap();
    let gone_xrcd = s.engine.create_xrcd().unwrap();
    s.engine.destroy_xrcd(gone_xrcd).unwrap();
    let rc = plain(&s, QpType::Rc);
    let missing = [
        (gone_pd, rc, "protection domain"),
        (s.pd, QpCreate { send_cq: gone_cq, ..rc }, "completion queue"),
        (s.pd, QpCreate { recv_cq: gone_cq, ..rc }, "completion queue"),
        (s.pd, QpCreate { srq: Some(gone_srq), ..rc }, "shared receive queue"),
        (s.pd, plain(&s, QpType::XrcRecv), "XRC domain"),
        (s.pd, QpCreate { xrcd: Some(gone_xrcd), ..plain(&s, QpType::XrcRecv) }, "XRC domain"),
    ];
    for (pd, create, what) in missing {
        assert_eq!(s.engine.create_qp(pd, create), Err(CreateError::NotFound(what)));
    }
    for kind in [QpType::Uc, QpType::XrcSend, QpType::RawPacket, QpType::Driver] {
        let refused = s.engine.create_qp(s.pd, QpCreate { srq: Some(srq), ..plain(&s, kind) });
        assert!(matches!(refused, Err(CreateError::Invalid(_))), "{kind}: {refused:?}");
    }
    assert!(s.engine.create_qp(s.pd, QpCreate { srq: Some(srq), ..rc }).is_ok());
    assert_eq!(s.engine.destroy_srq(srq), Err(DestroyError::Busy));
}

#[test]
fn queues_are_no_larger_than_the_device_can_make_them() {
    // Rule: T-49.
    let mut s = Script::rc();
    let limits = s.engine.config().limits;
    let most = QpCap {
        max_send_wr: limits.wrs,
        max_recv_wr: limits.wrs,
        max_send_sge: limits.sges,
        max_recv_sge: limits.sges,
        max_inline_data: limits.inline,
    };
    let with = |s: &mut Script, cap: QpCap| {
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
        let create = QpCreate { init, ..plain(s, QpType::Rc) };
        s.engine.create_qp(s.pd, create)
    };
    for cap in [
        QpCap { max_send_wr: most.max_send_wr + 1, ..QpCap::default() },
        QpCap { max_recv_wr: most.max_recv_wr + 1, ..QpCap::default() },
        QpCap { max_send_sge: most.max_send_sge + 1, ..QpCap::default() },
        QpCap { max_recv_sge: most.max_recv_sge + 1, ..QpCap::default() },
        QpCap { max_inline_data: most.max_inline_data + 1, ..QpCap::default() },
    ] {
        let refused = with(&mut s, cap);
        assert!(matches!(refused, Err(CreateError::TooLarge(_))), "{cap:?}: {refused:?}");
    }
    let largest = with(&mut s, most).unwrap();
    s.engine.destroy_qp(largest).unwrap();
    let cq = s.engine.create_cq(1).unwrap();
    for (capacity, fits) in [(0, false), (limits.cqes, true), (limits.cqes + 1, false)] {
        let resized = s.engine.resize_cq(cq, capacity);
        assert_eq!(resized.is_ok(), fits, "{capacity}: {resized:?}");
    }
    for (max_wr, max_sge) in [(0, 1), (limits.wrs + 1, 1), (1, limits.sges + 1)] {
        let refused = s.engine.create_srq(s.pd, SrqCreate { max_wr, max_sge, limit: 0, xrc: None });
        assert!(matches!(refused, Err(CreateError::TooLarge(_))), "{refused:?}");
    }
    let most = SrqCreate { max_wr: limits.wrs, max_sge: limits.sges, limit: 0, xrc: None };
    let largest = s.engine.create_srq(s.pd, most).unwrap();
    s.engine.destroy_srq(largest).unwrap();
    let shared = SrqCreate { max_wr: 1, max_sge: 1, limit: 0, xrc: None };
    let srq = s.engine.create_srq(s.pd, shared).unwrap();
    for (max_wr, limit) in [(None, Some(1)), (Some(limits.wrs), None), (None, Some(limits.wrs))] {
        assert!(s.engine.modify_srq(srq, max_wr, limit).is_ok(), "{max_wr:?} {limit:?}");
    }
    let srq = s.engine.create_srq(s.pd, shared).unwrap();
    for (max_wr, limit) in [(Some(0), None), (Some(limits.wrs + 1), None), (None, Some(2))] {
        assert!(s.engine.modify_srq(srq, max_wr, limit).is_err());
    }
}

#[test]
fn there_are_only_so_many_of_each() {
    let mut config = Config::new(own_gid());
    let limits = &mut config.limits;
    (limits.pds, limits.keys, limits.cqs, limits.srqs, limits.ahs, limits.qps) = (1, 1, 1, 1, 1, 1);
    let mut engine = Engine::new(config, 1);
    let pd = engine.create_pd().unwrap();
    assert_eq!(engine.create_pd(), Err(CreateError::Full));
    let cq = engine.create_cq(1).unwrap();
    assert_eq!(engine.create_cq(1), Err(CreateError::Full));
    engine.create_mw(pd, MwType::Type1).unwrap();
    assert_eq!(engine.create_mw(pd, MwType::Type1), Err(KeyError::Full));
    let buffer = Buffer::new(8);
    let attr = MrAttr { region: buffer.region(), base: 0, access: Access::empty() };
    assert_eq!(engine.register(pd, attr), Err(KeyError::Full));
    engine.create_xrcd().unwrap();
    assert_eq!(engine.create_xrcd(), Err(CreateError::Full));
    let shared = SrqCreate { max_wr: 1, max_sge: 1, limit: 0, xrc: None };
    engine.create_srq(pd, shared).unwrap();
    assert_eq!(engine.create_srq(pd, shared), Err(CreateError::Full));
    engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).unwrap();
    assert_eq!(engine.create_ah(pd, AhAttr::new(peer_gid(), 0)), Err(CreateError::Full));
    let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::default(), sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let qp = engine.create_qp(pd, create).unwrap();
    assert_eq!(engine.create_qp(pd, create), Err(CreateError::Full));
    // A destroyed one leaves room.
    engine.destroy_qp(qp).unwrap();
    engine.create_qp(pd, create).unwrap();
}

#[test]
fn a_domain_with_anything_in_it_stays() {
    let mut s = Script::rc();
    let busy = Err(DestroyError::Busy);
    let pd = s.engine.create_pd().unwrap();
    let mw = s.engine.create_mw(pd, MwType::Type2).unwrap();
    assert_eq!(s.engine.destroy_pd(pd), busy);
    s.engine.destroy_mw(mw).unwrap();
    assert_eq!(s.engine.destroy_mw(mw), Err(KeyError::NotFound));
    let ah = s.engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).unwrap();
    assert_eq!(s.engine.destroy_pd(pd), busy);
    s.engine.destroy_ah(ah).unwrap();
    let xrcd = s.engine.create_xrcd().unwrap();
    let cq = s.engine.create_cq(1).unwrap();
    let shared = SrqCreate { max_wr: 1, max_sge: 1, limit: 0, xrc: Some((xrcd, cq)) };
    let srq = s.engine.create_srq(pd, shared).unwrap();
    assert_eq!(s.engine.destroy_pd(pd), busy);
    assert_eq!(s.engine.destroy_xrcd(xrcd), busy);
    assert_eq!(s.engine.destroy_cq(cq), busy, "the shared queue completes there");
    s.engine.destroy_srq(srq).unwrap();
    assert_eq!(s.engine.destroy_srq(srq), Err(DestroyError::NotFound));
    let target = QpCreate { xrcd: Some(xrcd), ..plain(&s, QpType::XrcRecv) };
    let target = s.engine.create_qp(pd, target).unwrap();
    assert_eq!(s.engine.destroy_xrcd(xrcd), busy);
    s.engine.destroy_qp(target).unwrap();
    s.engine.destroy_xrcd(xrcd).unwrap();
    s.engine.destroy_cq(cq).unwrap();
    s.engine.destroy_pd(pd).unwrap();
    // What is gone takes nothing in.
    let attr = MrAttr { region: s.buffer.region(), base: 0, access: Access::empty() };
    assert_eq!(s.engine.register(pd, attr), Err(KeyError::NoPd));
    assert_eq!(s.engine.reregister(s.mr, Some(pd), None, None), Err(KeyError::NoPd));
    assert_eq!(s.engine.create_mw(pd, MwType::Type1), Err(KeyError::NoPd));
    assert!(s.engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).is_err());
    assert!(s.engine.create_srq(pd, shared).is_err());
    let wr = RecvWr { id: WrId(1), sges: &[] };
    assert!(s.engine.post_srq_recv(srq, &wr).is_err());
}

#[test]
fn a_region_changes_its_memory_its_base_and_its_domain() {
    let mut s = Script::rc();
    let other = Buffer::from_bytes(b"elsewhere");
    let attr = MrAttr { region: other.region(), base: 0x5000, access: ALL };
    s.engine.reregister(s.mr, None, Some(attr), None).unwrap();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(0x5004, s.rkey(), 5));
    s.expect([read_only(RQ, 1).data(b"where")]);
    let end = MrAttr { region: other.region(), base: u64::MAX - 3, access: ALL };
    assert_eq!(s.engine.reregister(s.mr, None, Some(end), None), Err(KeyError::TooLong));
    // The new domain is not the queue pair's.
    let pd = s.engine.create_pd().unwrap();
    s.engine.reregister(s.mr, Some(pd), None, None).unwrap();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(0x5004, s.rkey(), 5));
    s.expect([nak(RQ + 1, roce::wire::aeth::NakCode::RemoteAccessError, 1)]);
}

#[test]
fn there_is_one_queue_pair_for_general_services() {
    let mut s = Setup::new(QpType::Gsi).build();
    let second = plain(&s, QpType::Gsi);
    assert!(matches!(s.engine.create_qp(s.pd, second), Err(CreateError::Invalid(_))));
    let first = s.qp;
    s.engine.destroy_qp(first).unwrap();
    s.dropped(
        pkt(Opcode::UD_SEND_ONLY, 1).to(s.qpn).deth(QKey::GSI.get(), PEER),
        roce::engine::Counter::NoQp,
    );
    s.engine.create_qp(s.pd, second).unwrap();
}

#[test]
fn an_address_that_the_port_lost_is_not_sent_from() {
    let mut s = Setup::new(QpType::Ud).build();
    let second = Gid::from(Ipv4Addr::new(192, 0, 2, 77));
    assert!(s.engine.create_ah(s.pd, AhAttr::new(peer_gid(), 1)).is_err());
    s.engine.set_gids(vec![own_gid(), second]);
    let ah = s.engine.create_ah(s.pd, AhAttr::new(peer_gid(), 1)).unwrap();
    let target = Target::Ud(UdTarget { ah, qpn: PEER, qkey: QKey::new(1) });
    let post = |s: &mut Script, id| {
        let data = Data::EMPTY;
        let wr = SendWr { target, flags: SendFlags::SIGNALED, ..SendWr::new(WrId(id), SEND, data) };
        s.engine.post_send(s.qp, &wr, &[]).unwrap();
    };
    post(&mut s, 1);
    let mut batch = roce::engine::Batch::new(1);
    assert!(batch.is_empty());
    assert_eq!(s.engine.poll_transmit(roce::time::Instant::ZERO, &mut batch), 1);
    assert!(batch.iter().all(|(route, _)| route.source == second) && !batch.is_empty());
    s.engine.set_gids(vec![own_gid()]);
    post(&mut s, 2);
    s.expect_nothing();
    s.completes(&[(1, OK), (2, WcStatus::LocQpOpErr)]);
    s.state(QpState::Sqe);
}

#[test]
fn a_group_ends_with_its_last_member() {
    let mut s = Setup::new(QpType::Ud).build();
    let group = Gid::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 5));
    s.engine.attach_multicast(s.qp, group).unwrap();
    assert_eq!(s.engine.destroy_qp(s.qp), Err(DestroyError::Busy));
    s.engine.detach_multicast(s.qp, group).unwrap();
    assert_eq!(s.engine.detach_multicast(s.qp, group), Err(DestroyError::NotFound));
    s.engine.destroy_qp(s.qp).unwrap();
}

#[test]
fn programs_in_c_get_the_numbers_they_know() {
    for error in [CreateError::NotFound("x"), CreateError::TooLarge("x"), CreateError::Invalid("x")]
    {
        assert_eq!(error.errno(), Errno::EINVAL);
    }
    assert_eq!(CreateError::Full.errno(), Errno::ENOMEM);
    assert_eq!(DestroyError::NotFound.errno(), Errno::EINVAL);
    assert_eq!(DestroyError::Busy.errno(), Errno::EBUSY);
    for error in [KeyError::NotFound, KeyError::NoPd, KeyError::NeedsLocalWrite, KeyError::TooLong]
    {
        assert_eq!(error.errno(), Errno::EINVAL);
    }
    assert_eq!((KeyError::Full.errno(), KeyError::InUse.errno()), (Errno::ENOMEM, Errno::EBUSY));
    assert_eq!(Script::rc().engine.config().port_mtu, Mtu::M4096);
}

/// An engine that may promise a number of bytes, with a domain and a completion queue.
fn frugal(bytes: u64) -> (Engine, roce::engine::PdHandle, roce::engine::CqHandle) {
    let mut config = Config::new(own_gid());
    config.limits.bytes = bytes;
    let mut engine = Engine::new(config, 1);
    let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(16).unwrap());
    (engine, pd, cq)
}

#[test]
fn objects_are_refused_before_memory_is_gone() {
    const LARGE: u32 = 1000;
    let (mut engine, pd, cq) = frugal(1 << 20);
    let cap = QpCap { max_send_wr: LARGE, max_recv_wr: LARGE, ..QpCap::ORDINARY };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let shared = SrqCreate { max_wr: LARGE, max_sge: 4, limit: 0, xrc: None };
    let refused = CreateError::NoMemory;
    assert_eq!(refused.errno(), Errno::ENOMEM);
    // What is refused takes nothing, and what is destroyed gives back all it took.
    for _ in 0..100 {
        let qps: Vec<_> = std::iter::from_fn(|| engine.create_qp(pd, create).ok()).collect();
        assert_eq!(qps.len(), 3);
        assert_eq!(engine.create_qp(pd, create), Err(refused));
        qps.into_iter().for_each(|qp| engine.destroy_qp(qp).unwrap());

        let srqs: Vec<_> = std::iter::from_fn(|| engine.create_srq(pd, shared).ok()).collect();
        assert_eq!(srqs.len(), 10);
        assert_eq!(engine.create_srq(pd, shared), Err(refused));
        assert_eq!(engine.modify_srq(srqs[0], Some(4 * LARGE), None), Err(refused));
        engine.modify_srq(srqs[0], Some(1), None).unwrap();
        engine.modify_srq(srqs[0], Some(LARGE), None).unwrap();
        srqs.into_iter().for_each(|srq| engine.destroy_srq(srq).unwrap());

        let cqs: Vec<_> = std::iter::from_fn(|| engine.create_cq(5000).ok()).collect();
        assert_eq!(cqs.len(), 4);
        assert_eq!(engine.create_cq(5000), Err(refused));
        assert_eq!(engine.resize_cq(cqs[0], 50_000), Err(refused));
        engine.resize_cq(cqs[0], 1).unwrap();
        engine.resize_cq(cqs[0], 5000).unwrap();
        cqs.into_iter().for_each(|cq| engine.destroy_cq(cq).unwrap());
    }
}

/// Resizing charges the difference: what is allowed to exist may shrink, however little is left.
#[test]
fn queues_shrink_when_nothing_is_left_and_time_stamps_are_charged() {
    let shared = SrqCreate { max_wr: 1000, max_sge: 4, limit: 0, xrc: None };
    let (mut engine, pd, _) = frugal(1 << 20);
    let cq = engine.create_cq(5000).unwrap();
    let srq = engine.create_srq(pd, shared).unwrap();
    let mut fill = Vec::new();
    while let Ok(small) = engine.create_cq(1) {
        fill.push(small);
    }
    assert_eq!(engine.enable_timestamps(roce::time::Instant::ZERO, cq), Err(CreateError::NoMemory));
    assert_eq!(engine.resize_cq(cq, 10_000), Err(CreateError::NoMemory));
    assert_eq!(engine.resize_cq(cq, 4999), Ok(()));
    assert_eq!(engine.modify_srq(srq, Some(999), None), Ok(()));
    fill.into_iter().for_each(|small| engine.destroy_cq(small).unwrap());
    // What time stamps take is given back with the queue.
    for _ in 0..100 {
        let timed = engine.create_cq(5000).unwrap();
        engine.enable_timestamps(roce::time::Instant::ZERO, timed).unwrap();
        engine.enable_timestamps(roce::time::Instant::ZERO, timed).unwrap();
        engine.resize_cq(timed, 6000).unwrap();
        engine.resize_cq(timed, 10).unwrap();
        engine.destroy_cq(timed).unwrap();
    }
}

#[test]
fn an_allocation_that_fails_is_an_error_and_no_abort() {
    // More than any address space has: what the limits would allow, the allocator does not.
    let mut config = Config::new(own_gid());
    config.limits.cqes = usize::MAX;
    let mut engine = Engine::new(config, 1);
    assert_eq!(engine.create_cq(1 << 50), Err(CreateError::NoMemory));
    let cq = engine.create_cq(16).unwrap();
    assert_eq!(engine.resize_cq(cq, 1 << 50), Err(CreateError::NoMemory));
    assert_eq!(engine.resize_cq(cq, 32), Ok(()));
}

#[test]
fn limits_fit_the_memory_that_there_is() {
    use roce::engine::Limits;
    let most = Limits::DEFAULT;
    let (small, medium, huge) = (most.within(1 << 20), most.within(4 << 30), most.within(u64::MAX));
    assert_eq!((huge.qps, huge.keys, huge.cqs), (most.qps, most.keys, most.cqs));
    assert!(small.qps < medium.qps && medium.qps < huge.qps);
    // Queue pairs of an ordinary size, as many as are promised, do not take more than there is.
    let (mut engine, pd, cq) = frugal(1 << 28);
    let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let promised = most.within(1 << 28).qps;
    assert!((1 << 10..1 << 14).contains(&promised), "{promised}");
    assert!((0..promised).all(|_| engine.create_qp(pd, create).is_ok()));
}

/// Both engines' first objects have the same slots: only the tag of the device tells them apart.
#[test]
fn handles_of_another_device_are_unknown() {
    let engine = |seed: u64| Engine::new(Config::new(own_gid()), seed);
    let objects = |engine: &mut Engine| {
        let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(8).unwrap());
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        (pd, create, engine.create_qp(pd, create).unwrap())
    };
    let (mut a, mut b) = (engine(1), engine(2));
    let ((own_pd, own, _), (pd, foreign, qp)) = (objects(&mut a), objects(&mut b));
    let send = SendWr::new(WrId(1), SendOp::Send { imm: None }, Data::EMPTY);
    assert_eq!(a.post_send(qp, &send, &[]), Err(PostError::UnknownQp));
    assert_eq!(a.post_recv(qp, &RecvWr { id: WrId(1), sges: &[] }), Err(PostError::UnknownQp));
    assert_eq!(a.query_qp(qp), None);
    assert_eq!(a.destroy_qp(qp), Err(DestroyError::NotFound));
    let missing = |name| Err(CreateError::NotFound(name));
    assert_eq!(a.create_qp(pd, own), missing("protection domain"));
    assert_eq!(a.create_qp(own_pd, foreign), missing("completion queue"));
    let buffer = Buffer::new(8);
    let attr = MrAttr { region: buffer.region(), base: 0, access: Access::LOCAL_WRITE };
    let mr = b.register(pd, attr).unwrap();
    assert_eq!(a.deregister(mr), Err(KeyError::NotFound));
    assert_eq!(b.deregister(mr), Ok(()));
    assert_eq!(b.destroy_qp(qp), Ok(()));
}
