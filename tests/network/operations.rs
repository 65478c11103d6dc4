//! Every operation, by every kind of link, over IPv4 and IPv6, with every path MTU.

use std::cell::Cell;

use roce::device::Device;
use roce::engine::QpHandle;
use roce::verbs::{
    Access, AhAttr, Data, FlushLevel, FlushPlacement, Mtu, MwBind, MwType, QpState, QpType,
    SendFlags, SendOp, SendWr, Target, UdTarget, WcOpcode, WcStatus, WrId,
};
use roce::wire::RKey;

use crate::stage::{Kind, SEND, Side, Stage, Version, connect, connect_attr, pair, pattern};

const MTUS: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

/// Offset at the peer at which data arrive.
const THERE: usize = 1 << 16;

/// Two queue pairs of one kind, connected with one path MTU.
struct Case<'s> {
    a: &'s Side,
    b: &'s Side,
    a_qp: QpHandle,
    b_qp: QpHandle,
    kind: QpType,
    mtu: usize,
    target: Target,
    /// Identifier of the last work request.
    id: Cell<u64>,
}

/// An operation, and the types of queue pairs that have it.
type Operation = (&'static [QpType], fn(&Case<'_>));

const OPERATIONS: [Operation; 13] = [
    (&[QpType::Rc, QpType::Uc, QpType::Ud], send),
    (&[QpType::Rc, QpType::Uc, QpType::Ud], send_imm),
    (&[QpType::Rc, QpType::Uc, QpType::Ud], send_inline),
    (&[QpType::Rc, QpType::Uc, QpType::Ud], gather_and_scatter),
    (&[QpType::Rc, QpType::Uc], write),
    (&[QpType::Rc, QpType::Uc], write_imm),
    (&[QpType::Rc, QpType::Uc], write_inline),
    (&[QpType::Rc], read),
    (&[QpType::Rc], atomics),
    (&[QpType::Rc], atomic_write_and_flush),
    (&[QpType::Rc, QpType::Uc], window),
    (&[QpType::Rc], window_that_the_peer_invalidates),
    // The last: the queue pairs cannot be used afterwards.
    (&[QpType::Rc], refusal),
];

impl<'s> Case<'s> {
    fn new(stage: &'s Stage, kind: QpType, mtu: Mtu) -> Self {
        let Stage { a, b, .. } = stage;
        let (a_qp, b_qp) = (a.qp(kind), b.qp(kind));
        let how = connect_attr(mtu);
        let target = if kind == QpType::Ud {
            a.nic.open_datagram(a_qp, &how).unwrap();
            b.nic.open_datagram(b_qp, &how).unwrap();
            let to = b.nic.endpoint(b_qp).unwrap();
            let ah = a.nic.create_ah(a.pd, AhAttr::new(to.gid, 0)).unwrap();
            Target::Ud(UdTarget { ah, qpn: to.qpn, qkey: how.qkey })
        } else {
            connect(a, a_qp, b, b_qp, &how);
            Target::Peer
        };
        let mtu = mtu.bytes();
        Self { a, b, a_qp, b_qp, kind, mtu, target, id: Cell::new(mtu as u64 * 1000) }
    }

    fn next(&self) -> u64 {
        self.id.set(self.id.get() + 1);
        self.id.get()
    }

    /// Lengths of messages of no packet's payload, of less than one, of one and of several.
    fn lengths(&self) -> Vec<usize> {
        let mtu = self.mtu;
        match self.kind {
            QpType::Ud => vec![0, 1, mtu - 1, mtu],
            _ => vec![0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5],
        }
    }

    /// Returns the length of the header before a message in a receive buffer.
    fn header(&self) -> usize {
        if self.kind == QpType::Ud { 40 } else { 0 }
    }

    /// New bytes to be sent, and others where they will arrive.
    fn fresh(&self, len: usize) -> Vec<u8> {
        let bytes = pattern(self.next(), len);
        self.a.buffer.write(0, &bytes).unwrap();
        self.b.buffer.write(THERE, &vec![0xee; len + 64]).unwrap();
        bytes
    }

    /// Asserts that the bytes arrived, and none behind them.
    #[track_caller]
    fn arrived(&self, bytes: &[u8]) {
        let there = self.b.read(THERE + self.header(), bytes.len() + 8);
        let (wanted, behind) = there.split_at(bytes.len());
        assert!(wanted == bytes, "{} bytes are wrong", bytes.len());
        assert!(behind == [0xee; 8] || self.kind == QpType::Ud, "behind {}", bytes.len());
    }

    fn post(&self, wr: SendWr<'_>) {
        self.a.nic.post_send(self.a_qp, &SendWr { target: self.target, ..wr }).unwrap();
    }

    fn remote(&self, offset: usize) -> (u64, RKey) {
        (self.b.buffer.addr() + offset as u64, self.b.mr.rkey())
    }

    /// Sends what was made fresh and checks what either side is told.
    #[track_caller]
    fn sends(&self, bytes: &[u8], op: SendOp, data: Data<'_>, flags: SendFlags) {
        let id = self.next();
        let room = self.b.sge(THERE, bytes.len() + self.header());
        self.b.recv(self.b_qp, id, &[room]);
        let wr = SendWr::new(WrId(id), op, data);
        self.post(SendWr { flags: wr.flags | flags, ..wr });
        self.received(id, bytes.len(), op);
        assert_eq!(self.a.done(id).opcode, WcOpcode::Send);
        self.arrived(bytes);
    }

    #[track_caller]
    fn received(&self, id: u64, len: usize, op: SendOp) {
        let wc = self.b.done(id);
        let write = matches!(op, SendOp::Write { .. });
        let opcode = if write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let len = len + self.header();
        assert_eq!((wc.opcode, wc.byte_len as usize, wc.imm()), (opcode, len, op.imm()));
        assert_eq!(Some(wc.qp_num), self.b.nic.qp_number(self.b_qp));
        if self.kind == QpType::Ud {
            assert_eq!(Some(wc.src_qp), self.a.nic.qp_number(self.a_qp));
        }
    }

    #[track_caller]
    fn writes(&self, bytes: &[u8], imm: Option<[u8; 4]>, data: Data<'_>) {
        let id = self.next();
        let (remote_addr, rkey) = self.remote(THERE + self.header());
        let op = SendOp::Write { remote_addr, rkey, imm };
        // One without data, if there is none to be told.
        self.b.recv(self.b_qp, id, &[]);
        self.post(SendWr::new(WrId(id), op, data));
        if imm.is_none() {
            // On an unreliable connection there is no ACK: what is sent behind it shows that it has
            // arrived.
            self.post(SendWr::new(WrId(id + 1), SEND, Data::EMPTY));
            self.received(id, 0, SEND);
        } else {
            self.received(id, bytes.len(), op);
        }
        assert_eq!(self.a.done(id).opcode, WcOpcode::RdmaWrite);
        if imm.is_none() {
            self.a.done(self.next());
        }
        self.arrived(bytes);
    }
}

fn send(case: &Case<'_>) {
    for len in case.lengths() {
        let bytes = case.fresh(len);
        let sges = [case.a.sge(0, len)];
        case.sends(&bytes, SEND, Data::Gather(&sges), SendFlags::empty());
    }
}

fn send_imm(case: &Case<'_>) {
    for len in case.lengths() {
        let bytes = case.fresh(len);
        let sges = [case.a.sge(0, len)];
        let op = SendOp::Send { imm: Some((len as u32).to_be_bytes()) };
        case.sends(&bytes, op, Data::Gather(&sges), SendFlags::SOLICITED);
    }
}

fn send_inline(case: &Case<'_>) {
    for len in [0, 1, 31, 64] {
        let bytes = case.fresh(len);
        // It need not stay, nor be registered.
        case.sends(&bytes, SEND, Data::Inline(&bytes), SendFlags::INLINE);
    }
}

fn gather_and_scatter(case: &Case<'_>) {
    let len = if case.kind == QpType::Ud { 200 } else { 2 * case.mtu + 100 };
    let bytes = case.fresh(len);
    let (a, b, header) = (case.a, case.b, case.header());
    let from = [a.sge(0, 1), a.sge(1, 0), a.sge(1, 98), a.sge(99, len - 99)];
    let first = header + len - 50;
    let to = [b.sge(THERE, first), b.sge(THERE + first, 3), b.sge(THERE + first + 3, 47)];
    let id = case.next();
    b.recv(case.b_qp, id, &to);
    case.post(SendWr::new(WrId(id), SEND, Data::Gather(&from)));
    case.received(id, len, SEND);
    a.done(id);
    case.arrived(&bytes);
}

fn write(case: &Case<'_>) {
    for len in case.lengths() {
        let bytes = case.fresh(len);
        let sges = [case.a.sge(0, len / 2), case.a.sge(len / 2, len - len / 2)];
        case.writes(&bytes, None, Data::Gather(&sges));
    }
}

fn write_imm(case: &Case<'_>) {
    for len in case.lengths() {
        let bytes = case.fresh(len);
        let sges = [case.a.sge(0, len)];
        case.writes(&bytes, Some(*b"\0\xffok"), Data::Gather(&sges));
    }
}

fn write_inline(case: &Case<'_>) {
    let bytes = case.fresh(40);
    case.writes(&bytes, None, Data::Inline(&bytes));
}

fn read(case: &Case<'_>) {
    for len in case.lengths() {
        let (id, bytes) = (case.next(), pattern(case.next(), len));
        case.b.buffer.write(THERE, &bytes).unwrap();
        case.a.buffer.write(0, &vec![0xee; len + 8]).unwrap();
        let (remote_addr, rkey) = case.remote(THERE);
        let sges = [case.a.sge(0, len / 3), case.a.sge(len / 3, len - len / 3)];
        case.a.send(case.a_qp, id, SendOp::Read { remote_addr, rkey }, &sges);
        let wc = case.a.done(id);
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaRead, len));
        let here = case.a.read(0, len + 8);
        assert!(here[..len] == bytes && here[len..] == [0xee; 8], "{len} bytes are wrong");
    }
}

fn atomics(case: &Case<'_>) {
    let (a, id) = (case.a, case.next());
    case.b.buffer.write(THERE, &40_u64.to_ne_bytes()).unwrap();
    let (remote_addr, rkey) = case.remote(THERE);
    let add = |add| SendOp::FetchAdd { remote_addr, rkey, add };
    let swap = |compare, swap| SendOp::CompareSwap { remote_addr, rkey, compare, swap };
    // All at once: they are done in order.
    let steps = [
        (add(2), 40, WcOpcode::FetchAdd),
        (swap(41, 1), 42, WcOpcode::CompSwap),
        (swap(42, u64::MAX), 42, WcOpcode::CompSwap),
        (add(8), u64::MAX, WcOpcode::FetchAdd),
    ];
    for (at, (op, ..)) in steps.iter().enumerate() {
        a.send(case.a_qp, id + at as u64, *op, &[a.sge(8 * at, 8)]);
    }
    for (at, (_, was, opcode)) in steps.iter().enumerate() {
        let wc = a.done(id + at as u64);
        assert_eq!((wc.opcode, wc.byte_len, a.word(8 * at)), (*opcode, 8, *was));
        case.next();
    }
    assert_eq!(case.b.word(THERE), 7);
}

fn atomic_write_and_flush(case: &Case<'_>) {
    let bytes = case.fresh(8);
    let id = case.next();
    let (remote_addr, rkey) = case.remote(THERE);
    case.a.send(case.a_qp, id, SendOp::AtomicWrite { remote_addr, rkey }, &[case.a.sge(0, 8)]);
    let levels = [
        (FlushPlacement::GLOBAL, FlushLevel::Range),
        (FlushPlacement::PERSISTENT, FlushLevel::Range),
        (FlushPlacement::GLOBAL, FlushLevel::Mr),
    ];
    for (placement, level) in levels {
        let op = SendOp::Flush { remote_addr, rkey, length: 8, placement, level };
        case.post(SendWr::new(WrId(case.next()), op, Data::EMPTY));
    }
    assert_eq!(case.a.done(id).opcode, WcOpcode::AtomicWrite);
    for at in 1..=3 {
        assert_eq!(case.a.done(id + at).opcode, WcOpcode::Flush);
    }
    case.arrived(&bytes);
}

/// Binds a window to what is at the peer's, under a new key.
fn bind(case: &Case<'_>, mw: RKey, length: usize) -> RKey {
    let (id, rkey) = (case.next(), RKey::new(mw.get() ^ 0x5a));
    let (addr, length) = (case.remote(THERE).0, length as u64);
    let bind = MwBind { mr: case.b.mr.lkey(), addr, length, access: Access::REMOTE_WRITE };
    let op = SendOp::BindMw { mw, rkey, bind };
    case.b.nic.post_send(case.b_qp, &SendWr::new(WrId(id), op, Data::EMPTY)).unwrap();
    assert_eq!(case.b.done(id).opcode, WcOpcode::BindMw);
    rkey
}

/// Writes through a window, and says so.
fn write_through(case: &Case<'_>, rkey: RKey) {
    let bytes = case.fresh(case.mtu + 9);
    let (id, imm) = (case.next(), Some([7; 4]));
    let op = SendOp::Write { remote_addr: case.remote(THERE).0, rkey, imm };
    case.b.recv(case.b_qp, id, &[]);
    case.a.send(case.a_qp, id, op, &[case.a.sge(0, bytes.len())]);
    case.received(id, bytes.len(), op);
    case.a.done(id);
    case.arrived(&bytes);
}

fn window(case: &Case<'_>) {
    let b = case.b;
    let mw = b.nic.create_mw(b.pd, MwType::Type2).unwrap();
    let rkey = bind(case, b.nic.mw_key(mw).unwrap(), case.mtu + 9);
    write_through(case, rkey);
    let id = case.next();
    let op = SendOp::LocalInv { rkey };
    b.nic.post_send(case.b_qp, &SendWr::new(WrId(id), op, Data::EMPTY)).unwrap();
    assert_eq!(b.done(id).opcode, WcOpcode::LocalInv);
    b.nic.destroy_mw(mw).unwrap();
}

fn window_that_the_peer_invalidates(case: &Case<'_>) {
    let (a, b) = (case.a, case.b);
    let mw = b.nic.create_mw(b.pd, MwType::Type2).unwrap();
    let rkey = bind(case, b.nic.mw_key(mw).unwrap(), case.mtu + 9);
    write_through(case, rkey);
    let bytes = case.fresh(2 * case.mtu);
    let id = case.next();
    b.recv(case.b_qp, id, &[b.sge(THERE, bytes.len())]);
    a.send(case.a_qp, id, SendOp::SendWithInv { rkey }, &[a.sge(0, bytes.len())]);
    assert_eq!(b.done(id).invalidated(), Some(rkey));
    a.done(id);
    case.arrived(&bytes);
    // It can be bound again.
    let again = bind(case, rkey, case.mtu + 9);
    write_through(case, again);
    b.nic.destroy_mw(mw).unwrap();
}

fn refusal(case: &Case<'_>) {
    let (a, b, id) = (case.a, case.b, case.next());
    let bytes = case.fresh(2 * case.mtu);
    let (remote_addr, rkey) = case.remote(THERE);
    let wrong = SendOp::Write { remote_addr, rkey: RKey::new(rkey.get() ^ 0xff), imm: None };
    b.recv(case.b_qp, id, &[b.sge(THERE, 64)]);
    a.recv(case.a_qp, id + 9, &[]);
    a.send(case.a_qp, id + 1, wrong, &[a.sge(0, bytes.len())]);
    a.send(case.a_qp, id + 2, SEND, &[a.sge(0, 8)]);
    let seen = [a.complete(), a.complete(), a.complete()].map(|wc| (wc.id.0 - id, wc.status));
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(seen[0], (1, WcStatus::RemAccessErr));
    assert!(seen.contains(&(2, flushed)) && seen.contains(&(9, flushed)), "{seen:?}");
    let wc = b.complete();
    assert_eq!((wc.id, wc.status), (WrId(id), flushed));
    assert_eq!(b.nic.qp_state(case.b_qp), Some(QpState::Err));
    assert!(b.read(THERE, 64) == [0xee; 64], "nothing was written");
}

/// Runs all operations on one pair of links.
fn everything(kinds: [Kind; 2], version: Version) {
    let stage = Stage::new(kinds, version);
    for mtu in MTUS {
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let case = Case::new(&stage, kind, mtu);
            let apply = OPERATIONS.iter().filter(|(kinds, _)| kinds.contains(&kind));
            apply.for_each(|(_, operation)| operation(&case));
            stage.a.nic.destroy_qp(case.a_qp).unwrap();
            stage.b.nic.destroy_qp(case.b_qp).unwrap();
        }
    }
    // And the other way, on the same links.
    let (b_qp, a_qp) = pair(&stage.b, &stage.a, QpType::Rc, &connect_attr(Mtu::M4096));
    stage.a.recv(a_qp, 1, &[stage.a.sge(0, 100)]);
    stage.b.send(b_qp, 2, SEND, &[stage.b.sge(0, 100)]);
    stage.a.done(1);
    stage.b.done(2);
}

namespace_tests! {
    udp_of_ipv4: everything([Kind::Udp, Kind::Udp], Version::V4);
    udp_of_ipv6: everything([Kind::Udp, Kind::Udp], Version::V6);
    raw_of_ipv4: everything([Kind::Raw, Kind::Raw], Version::V4);
    raw_of_ipv6: everything([Kind::Raw, Kind::Raw], Version::V6);
    udp_to_raw_of_ipv4: everything([Kind::Udp, Kind::Raw], Version::V4);
    udp_to_raw_of_ipv6: everything([Kind::Udp, Kind::Raw], Version::V6);
    raw_to_udp_of_ipv4: everything([Kind::Raw, Kind::Udp], Version::V4);
    raw_to_udp_of_ipv6: everything([Kind::Raw, Kind::Udp], Version::V6);
}
