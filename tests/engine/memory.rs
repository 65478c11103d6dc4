//! Memory regions and windows. V-03.

use roce::engine::{KeyError, MrAttr, MwHandle, QpCreate};
use roce::memory::Buffer;
use roce::verbs::{Access, MwBind, MwType, QpInitAttr, QpState, QpType, SendOp, WcStatus};
use roce::wire::aeth::NakCode;
use roce::wire::{Opcode, RKey};

use super::script::*;

const RW: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn window(s: &mut Script, kind: MwType) -> (MwHandle, RKey) {
    let mw = s.engine.create_mw(s.pd, kind).unwrap();
    (mw, s.engine.mw_key(mw).unwrap())
}

fn bind_op(s: &Script, mw: RKey, rkey: RKey, range: (u64, u64), access: Access) -> SendOp {
    let bind = MwBind { mr: s.mr.lkey(), addr: s.va(range.0), length: range.1, access };
    SendOp::BindMw { mw, rkey, bind }
}

/// Binds a window, which must go well, and returns its key.
#[track_caller]
fn bind(s: &mut Script, mw: RKey, low: u8, range: (u64, u64), access: Access) -> RKey {
    let key = RKey::new(mw.get() & !0xff | u32::from(low));
    let op = bind_op(s, mw, key, range, access);
    s.post(77, op, 0);
    s.expect_nothing();
    s.completes(&[(77, OK)]);
    key
}

/// Reads through a key; whether it was granted.
#[track_caller]
fn readable(s: &mut Script, psn: &mut u32, va: u64, key: RKey, len: u32) -> bool {
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, *psn).reth(va, key, len));
    *psn += 1;
    let sent = s.expect_count(1);
    sent[0].bth.opcode == Opcode::RC_RDMA_READ_RESPONSE_ONLY
}

#[test]
fn remote_write_needs_local_write() {
    // Rule: V-03.2.
    let mut s = Script::rc();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let attr = MrAttr { region: s.buffer.region(), base: s.va(0), access };
        assert_eq!(s.engine.register(s.pd, attr), Err(KeyError::NeedsLocalWrite));
    }
}

#[test]
fn each_right_opens_its_own_operation() {
    // Rule: V-03.1.
    // The matrix of rights and operations.
    let rights = [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
        Access::FLUSH_GLOBAL,
        Access::FLUSH_PERSISTENT,
    ];
    for (granted, right) in rights.into_iter().enumerate() {
        for asked in 0..5 {
            let mut s = Script::with(|setup| setup.access = right | Access::LOCAL_WRITE);
            let (va, key) = (s.va(0), s.rkey());
            s.send(match asked {
                0 => pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 8),
                1 => pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(va, key, 8).fill(8),
                2 => pkt(Opcode::RC_FETCH_ADD, RQ).atomic(va, key, 1, 0),
                3 => pkt(Opcode::RC_FLUSH, RQ).feth(1, 0).reth(va, key, 8),
                _ => pkt(Opcode::RC_FLUSH, RQ).feth(2, 0).reth(va, key, 8),
            });
            let refused = s.engine.qp_state(s.qp) == Some(QpState::Err);
            assert_eq!(refused, granted != asked, "right {granted} asked {asked}");
        }
    }
}

#[test]
fn a_region_may_begin_at_any_address() {
    for base in [0, 0x1000, u64::MAX - 99] {
        let mut s = Script::rc();
        let buffer = Buffer::from_bytes(&pattern(99));
        let access = ALL | if base == 0 { Access::ZERO_BASED } else { Access::empty() };
        let attr = MrAttr { region: buffer.region(), base, access };
        let mr = s.engine.register(s.pd, attr).unwrap();
        let mut psn = RQ;
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, psn).reth(base + 5, mr.rkey(), 10));
        s.expect([read_only(RQ, 1).data(&pattern(99)[5..15])]);
        psn += 1;
        assert!(readable(&mut s, &mut psn, base, mr.rkey(), 99));
        assert!(!readable(&mut s, &mut psn, base + 1, mr.rkey(), 99));
    }
}

#[test]
fn a_region_that_passes_the_end_of_all_addresses_is_refused() {
    let mut s = Script::rc();
    let attr = MrAttr { region: s.buffer.region(), base: u64::MAX - 5, access: ALL };
    assert_eq!(s.engine.register(s.pd, attr), Err(KeyError::TooLong));
    // And changing one to such changes nothing of it.
    let bad = MrAttr { region: s.buffer.region(), base: u64::MAX, access: Access::empty() };
    assert_eq!(s.engine.reregister(s.mr, None, Some(bad), None), Err(KeyError::TooLong));
    let mut psn = RQ;
    let (va, key) = (s.va(0), s.rkey());
    assert!(readable(&mut s, &mut psn, va, key, 8));
}

#[test]
fn a_region_that_changes_keeps_its_key() {
    let mut s = Script::rc();
    let (mut psn, va, key) = (RQ, s.va(0), s.rkey());
    s.engine.reregister(s.mr, None, None, Some(Access::REMOTE_READ)).unwrap();
    assert!(readable(&mut s, &mut psn, va, key, 8));
    s.engine.reregister(s.mr, None, None, Some(Access::LOCAL_WRITE)).unwrap();
    assert!(!readable(&mut s, &mut psn, va, key, 8));
}

#[test]
fn deregistered_key_gives_no_access_and_is_not_reused() {
    let mut s = Script::rc();
    let old = s.rkey();
    s.engine.deregister(s.mr).unwrap();
    assert_eq!(s.engine.deregister(s.mr), Err(KeyError::NotFound));
    let attr = MrAttr { region: s.buffer.region(), base: s.va(0), access: ALL };
    let new = s.engine.register(s.pd, attr).unwrap();
    assert_ne!(new.rkey().get() >> 8, old.get() >> 8);
    let (mut psn, va) = (RQ, s.va(0));
    assert!(readable(&mut s, &mut psn, va, new.rkey(), 8));
    assert!(!readable(&mut s, &mut psn, va, old, 8));
}

#[test]
fn a_window_shows_its_own_range_and_rights() {
    // Rule: Q-06.
    for kind in [MwType::Type1, MwType::Type2] {
        let probe = |va: u64, len, expected: bool| {
            let mut s = Script::rc();
            let (_, mw) = window(&mut s, kind);
            let key = bind(&mut s, mw, 9, (100, 50), Access::REMOTE_READ);
            let (mut psn, va) = (RQ, s.va(va));
            assert_eq!(readable(&mut s, &mut psn, va, key, len), expected, "{kind:?} {va} {len}");
        };
        probe(100, 50, true);
        probe(149, 1, true);
        probe(99, 1, false);
        probe(100, 51, false);
        probe(150, 1, false);
        let mut s = Script::rc();
        let (_, mw) = window(&mut s, kind);
        let key = bind(&mut s, mw, 9, (100, 50), Access::REMOTE_READ);
        s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(s.va(100), key, 4).fill(4));
        s.expect([nak(RQ, NakCode::RemoteAccessError, 0)]);
    }
}

#[test]
fn a_window_that_is_not_bound_shows_nothing() {
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type1);
    let (mut psn, va) = (RQ, s.va(0));
    assert!(!readable(&mut s, &mut psn, va, mw, 1));
}

#[test]
fn a_region_with_a_window_stays() {
    // Rule: V-03.3.
    let mut s = Script::rc();
    let (handle, mw) = window(&mut s, MwType::Type2);
    let key = bind(&mut s, mw, 1, (0, 10), RW);
    assert_eq!(s.engine.deregister(s.mr), Err(KeyError::InUse));
    let changed = s.engine.reregister(s.mr, None, None, Some(Access::empty()));
    assert_eq!(changed, Err(KeyError::InUse));
    s.post(1, SendOp::LocalInv { rkey: key }, 0);
    s.expect_nothing();
    s.completes(&[(1, OK)]);
    bind(&mut s, key, 2, (0, 10), RW);
    s.engine.destroy_mw(handle).unwrap();
    s.engine.deregister(s.mr).unwrap();
}

#[test]
fn a_window_of_type_1_is_bound_anew_and_unbound_by_nothing() {
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type1);
    let key = bind(&mut s, mw, 1, (0, 10), RW);
    let key = bind(&mut s, key, 2, (20, 10), RW);
    let (mut psn, va) = (RQ, s.va(20));
    assert!(readable(&mut s, &mut psn, va, key, 10));
    let key = bind(&mut s, key, 3, (0, 0), RW);
    s.engine.deregister(s.mr).unwrap();
    assert!(!readable(&mut s, &mut psn, va, key, 1));
}

/// A request of the send queue fails, and the queue pair with it.
#[track_caller]
fn fails(mut s: Script, op: SendOp) {
    s.post(1, op, 0);
    s.post(2, SEND, 0);
    s.expect_nothing();
    s.completes(&[(1, WcStatus::MwBindErr), (2, FLUSHED)]);
    s.state(QpState::Err);
}

#[test]
fn a_window_is_named_by_its_index_and_keyed_by_eight_bits() {
    for kind in [MwType::Type1, MwType::Type2] {
        let mut s = Script::rc();
        let (handle, mw) = window(&mut s, kind);
        let key = bind(&mut s, mw, !mw.get().to_le_bytes()[0], (0, 10), RW);
        if kind == MwType::Type2 {
            s.post(1, SendOp::LocalInv { rkey: key }, 0);
            s.expect_nothing();
            s.completes(&[(1, OK)]);
        }
        // By a key that it has no longer; and of the new one the upper bits do not count.
        let new = RKey::new(!mw.get() & !0xff | 0x5a);
        let op = bind_op(&s, mw, new, (0, 10), RW);
        s.post(2, op, 0);
        s.expect_nothing();
        s.completes(&[(2, OK)]);
        assert_eq!(s.engine.mw_key(handle), Some(RKey::new(mw.get() & !0xff | 0x5a)));
    }
}

#[test]
fn bindings_that_cannot_be_are_errors() {
    let with = |kind, range, access| {
        let mut s = Script::rc();
        let (_, mw) = window(&mut s, kind);
        let op = bind_op(&s, mw, mw, range, access);
        fails(s, op);
    };
    with(MwType::Type2, (0, 0), RW);
    with(MwType::Type1, (0, 10), RW | Access::ZERO_BASED);
    with(MwType::Type1, (0, SIZE as u64 + 1), RW);
    with(MwType::Type2, (SIZE as u64, 1), RW);
    with(MwType::Type2, (0, u64::MAX), RW);

    // Over one that is bound already.
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type2);
    let key = bind(&mut s, mw, 1, (0, 10), RW);
    let op = bind_op(&s, key, RKey::new(key.get() ^ 7), (0, 10), RW);
    fails(s, op);

    // By an index that is no window's.
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type2);
    let op = bind_op(&s, RKey::new(mw.get() ^ 0x100), mw, (0, 10), RW);
    fails(s, op);

    // Regions that let no window be bound, or none that writes.
    for (access, wanted) in [
        (ALL.difference(Access::MW_BIND), Access::REMOTE_READ),
        (Access::MW_BIND, Access::REMOTE_WRITE),
        (ALL | Access::ZERO_BASED, Access::REMOTE_READ),
    ] {
        let mut s = Script::with(|setup| setup.access = access);
        let (_, mw) = window(&mut s, MwType::Type2);
        let op = bind_op(&s, mw, mw, (0, 10), wanted);
        fails(s, op);
    }

    // A window of another domain, or none at all.
    let mut s = Script::rc();
    let other = s.engine.create_pd().unwrap();
    let mw = s.engine.create_mw(other, MwType::Type2).unwrap();
    let key = s.engine.mw_key(mw).unwrap();
    let op = bind_op(&s, key, key, (0, 10), RW);
    fails(s, op);
    let s = Script::rc();
    let op = bind_op(&s, s.rkey(), s.rkey(), (0, 10), RW);
    fails(s, op);
}

#[test]
fn only_what_was_bound_by_the_queue_pair_is_invalidated_by_it() {
    // Rule: Q-12.
    let s = Script::rc();
    let key = s.rkey();
    fails(s, SendOp::LocalInv { rkey: key });
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type1);
    let key = bind(&mut s, mw, 1, (0, 10), RW);
    fails(s, SendOp::LocalInv { rkey: key });
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type2);
    fails(s, SendOp::LocalInv { rkey: mw });
    // The key that it was bound with before, or is never bound with.
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type2);
    let key = bind(&mut s, mw, 1, (0, 10), RW);
    fails(s, SendOp::LocalInv { rkey: RKey::new(key.get() ^ 2) });
}

#[test]
fn a_window_of_type_2_is_for_the_queue_pair_that_bound_it() {
    // Rule: V-03.4.
    for kind in [MwType::Type1, MwType::Type2] {
        let mut s = Script::rc();
        let (_, mw) = window(&mut s, kind);
        let key = bind(&mut s, mw, 1, (0, 10), RW);
        let init = QpInitAttr { qp_type: QpType::Rc, cap: Default::default(), sq_sig_all: false };
        let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
        let other = s.engine.create_qp(s.pd, create).unwrap();
        s.climb(other, QpState::Rts);
        (s.qp, s.qpn) = (other, s.engine.qp_number(other).unwrap());
        let (mut psn, va) = (RQ, s.va(0));
        assert_eq!(readable(&mut s, &mut psn, va, key, 4), kind == MwType::Type1);
    }
}

#[test]
fn a_window_may_count_from_zero() {
    // Rule: Q-22.
    let mut s = Script::rc();
    s.buffer.write(0, &pattern(200)).unwrap();
    let (_, mw) = window(&mut s, MwType::Type2);
    let key = bind(&mut s, mw, 1, (100, 50), RW | Access::ZERO_BASED);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(3, key, 10));
    s.expect([read_only(RQ, 1).data(&pattern(200)[103..113])]);
    // Again, too.
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(3, key, 10));
    s.expect([read_only(RQ, 1).data(&pattern(200)[103..113])]);
}

#[test]
fn a_peer_invalidates_with_a_send() {
    for opcode in [Opcode::RC_SEND_ONLY_WITH_INVALIDATE, Opcode::RC_SEND_LAST_WITH_INVALIDATE] {
        let mut s = Script::rc();
        let (_, mw) = window(&mut s, MwType::Type2);
        let key = bind(&mut s, mw, 1, (0, 10), RW);
        s.recv(1, 0, 1000);
        let mut psn = RQ;
        if opcode == Opcode::RC_SEND_LAST_WITH_INVALIDATE {
            s.send(pkt(Opcode::RC_SEND_FIRST, psn).fill(256));
            psn += 1;
        }
        s.send(pkt(opcode, psn).inv(key).fill(4).ack_req());
        s.expect([ack(psn, 1)]);
        let wc = s.received();
        assert_eq!((wc.invalidated(), wc.imm()), (Some(key), None));
        psn += 1;
        let va = s.va(0);
        assert!(!readable(&mut s, &mut psn, va, key, 1));
    }
}

#[test]
fn failed_remote_invalidation_is_not_naked() {
    // Rule: Q-11.
    // No NAK: the receive fails, the queue pair too, and the peer finds out by itself.
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    s.recv(2, 0, 100);
    s.send(pkt(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, RQ).inv(s.rkey()).fill(4).ack_req());
    s.expect_nothing();
    s.receives(&[(1, WcStatus::LocAccessErr), (2, FLUSHED)]);
    s.state(QpState::Err);
}

#[test]
fn a_local_invalidation_waits_for_all_before_it() {
    let mut s = Script::rc();
    let (_, mw) = window(&mut s, MwType::Type2);
    let key = bind(&mut s, mw, 1, (0, 10), RW);
    s.post(1, SEND, 4);
    s.post(2, SendOp::LocalInv { rkey: key }, 0);
    s.post(3, SEND, 4);
    s.expect_count(1);
    let (mut psn, va) = (RQ, s.va(0));
    assert!(readable(&mut s, &mut psn, va, key, 1), "not yet");
    s.send(ack(SQ, 1));
    s.expect_count(1);
    s.completes(&[(1, OK), (2, OK)]);
    assert!(!readable(&mut s, &mut psn, va, key, 1));
}

#[test]
fn domains_that_are_in_use_stay() {
    let mut s = Script::rc();
    assert!(s.engine.destroy_pd(s.pd).is_err());
    let empty = s.engine.create_pd().unwrap();
    s.engine.destroy_pd(empty).unwrap();
    assert!(s.engine.destroy_pd(empty).is_err());
}
