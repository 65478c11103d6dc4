//! Memory windows: opened, used, closed by either side.

use roce::verbs::{Access, KeyError, MwBind, MwHandle, MwType, QpType, SendOp, WcOpcode, WcStatus};
use roce::wire::RKey;

use crate::stage::*;

const AT: usize = 4096;

/// The next key of a window: the lowest eight bits count.
fn next(key: RKey) -> RKey {
    RKey::new(key.get() & !0xff | key.get().wrapping_add(1) & 0xff)
}

impl Pair {
    /// Opens a window of `b` at [`AT`], of 64 bytes; its key then.
    fn bind(&self, mw: MwHandle, id: u64) -> RKey {
        self.bind_for(mw, id, Access::REMOTE_WRITE | Access::REMOTE_READ)
    }

    /// Binds a window with these rights alone.
    fn bind_for(&self, mw: MwHandle, id: u64, access: Access) -> RKey {
        let b = &self.b;
        let now = b.nic.mw_key(mw).unwrap();
        let rkey = next(now);
        let addr = b.buffer.addr() + AT as u64;
        let bind = MwBind { mr: b.mr.lkey(), addr, length: 64, access };
        let op = SendOp::BindMw { mw: now, rkey, bind };
        b.post(self.b_qp, id, op, 0, 0);
        assert_eq!(b.done(id).opcode, WcOpcode::BindMw);
        assert_eq!(b.nic.mw_key(mw), Some(rkey));
        rkey
    }

    /// Writes through a window.
    fn write(&self, id: u64, rkey: RKey, offset: u64) {
        let remote_addr = self.b.buffer.addr() + AT as u64 + offset;
        self.a.post(self.a_qp, id, SendOp::Write { remote_addr, rkey, imm: None }, 0, 8);
    }
}

#[test]
fn windows_of_both_types_open_memory() {
    for kind in [MwType::Type1, MwType::Type2] {
        let pair = Pair::new(QpType::Rc);
        let mw = pair.b.nic.create_mw(pair.b.pd, kind).unwrap();
        let rkey = pair.bind(mw, 1);
        pair.a.buffer.write(0, b"a window").unwrap();
        pair.write(2, rkey, 8);
        pair.a.done(2);
        pair.b.holds(AT + 8, b"a window");
        // One that shows the same and allows no peer to write, though the region would.
        let glass = pair.b.nic.create_mw(pair.b.pd, kind).unwrap();
        let rkey = pair.bind_for(glass, 3, Access::REMOTE_READ);
        pair.write(4, rkey, 8);
        assert_eq!(pair.a.next(4).status, WcStatus::RemAccessErr, "{kind}");
        pair.b.nic.destroy_mw(mw).unwrap();
        assert_eq!(pair.b.nic.mw_key(mw), None);
        assert_eq!(pair.b.nic.destroy_mw(mw), Err(KeyError::NotFound));
    }
}

#[test]
fn a_window_of_type_1_is_opened_again_and_its_old_key_is_void() {
    let pair = Pair::new(QpType::Rc);
    let mw = pair.b.nic.create_mw(pair.b.pd, MwType::Type1).unwrap();
    let old = pair.bind(mw, 1);
    let new = pair.bind(mw, 2);
    pair.write(3, new, 0);
    pair.a.done(3);
    pair.write(4, old, 0);
    assert_eq!(pair.a.next(4).status, WcStatus::RemAccessErr);
}

#[test]
fn the_owner_closes_a_window() {
    let pair = Pair::new(QpType::Rc);
    let mw = pair.b.nic.create_mw(pair.b.pd, MwType::Type2).unwrap();
    let rkey = pair.bind(mw, 1);
    pair.b.post(pair.b_qp, 2, SendOp::LocalInv { rkey }, 0, 0);
    assert_eq!(pair.b.done(2).opcode, WcOpcode::LocalInv);
    // It can be opened again, under another key.
    let again = pair.bind(mw, 3);
    pair.write(4, again, 0);
    pair.a.done(4);
    pair.write(5, rkey, 0);
    assert_eq!(pair.a.next(5).status, WcStatus::RemAccessErr);
}

#[test]
fn the_peer_closes_a_window() {
    let pair = Pair::new(QpType::Rc);
    let mw = pair.b.nic.create_mw(pair.b.pd, MwType::Type2).unwrap();
    let rkey = pair.bind(mw, 1);
    pair.b.recv(pair.b_qp, 2, 0, 64);
    pair.a.post(pair.a_qp, 2, SendOp::SendWithInv { rkey }, 0, 8);
    pair.a.done(2);
    // Not every device says which key it was: rxe's flag is another one.
    let named = pair.b.done(2).invalidated();
    assert!(named.is_none_or(|named| named == rkey), "{named:?}");
    pair.write(3, rkey, 0);
    assert_eq!(pair.a.next(3).status, WcStatus::RemAccessErr);
}

#[test]
fn a_region_that_windows_show_stays() {
    let pair = Pair::new(QpType::Rc);
    let mw = pair.b.nic.create_mw(pair.b.pd, MwType::Type1).unwrap();
    pair.bind(mw, 1);
    pair.b.nic.deregister(pair.b.mr).expect_err("a window shows it");
    pair.b.nic.destroy_mw(mw).unwrap();
    pair.b.nic.deregister(pair.b.mr).unwrap();
}
