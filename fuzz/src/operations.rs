//! Two engines and the model, told the same operations one by one.
//!
//! An input is a list of operations of eight bytes each. After each one the engines pass packets to
//! each other until nothing happens any more, or a requester waits for a receive; then both must
//! agree with the model on what was taken, what completed and how, the states of all queue pairs,
//! and every byte of memory.

use std::net::Ipv4Addr;
use std::time::Duration;

use roce::engine::{
    Batch, Config, CqHandle, Engine, MrAttr, PdHandle, QpCreate, QpHandle, Received, SrqCreate,
    SrqHandle,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, AhAttr, AhHandle, AttrMask, FlushLevel, FlushPlacement, Mtu, MwType,
    QpAttr, QpCap, QpInitAttr, QpState, QpType, RetryCount, RnrRetry, SendFlags, Target, UdTarget,
    Wc,
};
use roce::wire::aeth::RnrTimer;
use roce::wire::{Bits, Gid, Psn, QKey, Qpn};

use super::model::{Local, Model, Piece, Qp, Recv, Remote, Request, Work};
use super::names::{BASE, Names, drain};

/// The most operations of an input that are looked at.
const OPERATIONS_MAX: usize = 64;
/// The length of every region.
const REGION: usize = 2048;
/// Depth of the send and receive queues.
const DEPTH: usize = 5;
/// Identifiers of receives have this bit.
const RECV: u64 = 1 << 32;
/// A key that no region has.
const NO_KEY: usize = usize::MAX;
/// Longer than it takes a requester to give up.
const SETTLING_TIME: Duration = Duration::from_millis(3);
const MTU: usize = 256;
const PORT_MTU: Mtu = Mtu::M512;
const QKEY: QKey = QKey::new(0x1111);
/// Bytes that stand for the IPv4 header of a datagram.
const HEADER: [u8; 20] = [0x45; 20];

const ALL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND).union(Access::REMOTE);

/// The regions of each host: whether in the domain of its queue pairs, and the rights.
const REGIONS: [(bool, Access); 4] = [
    (true, ALL),
    (true, Access::REMOTE_READ),
    (true, Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::MW_BIND)),
    (false, ALL),
];
const WINDOWS: [MwType; 2] = [MwType::Type1, MwType::Type2];
const KEYS: usize = REGIONS.len() + WINDOWS.len();

/// The connections: their kind, and whether the receives of the second host are shared.
const LINKS: [(QpType, bool); 6] = [
    (QpType::Rc, false),
    (QpType::Rc, true),
    (QpType::Rc, true),
    (QpType::Uc, false),
    (QpType::Ud, false),
    (QpType::XrcSend, true),
];

/// Does what an input says to two engines and to the model, which must agree.
pub fn operations(input: &[u8]) {
    let mut machine = Machine::new();
    for bytes in input.chunks_exact(8).take(OPERATIONS_MAX) {
        let bytes = bytes.try_into().expect("chunks of eight");
        machine.operate(bytes);
        machine.settle();
        machine.compare();
    }
}

struct Host {
    engine: Engine,
    gid: Gid,
    pd: PdHandle,
    other_pd: PdHandle,
    /// The way to the other host.
    way: Option<AhHandle>,
}

/// One end of a connection.
struct End {
    qp: QpHandle,
    qpn: Qpn,
    cq: CqHandle,
}

struct Machine {
    hosts: [Host; 2],
    ends: Vec<[End; 2]>,
    /// A shared receive queue of each kind at the second host, and where the receives of the second
    /// complete.
    srq: SrqHandle,
    xrc: (SrqHandle, CqHandle),
    buffers: Vec<Buffer>,
    names: Names,
    model: Model,
    now: Instant,
    batch: Batch,
    posted: u64,
    /// The last send that was posted, and to which queue pair, to understand a failure by.
    last: Option<(usize, Work)>,
}

/// Returns the local and the remote key that a byte chooses for a side: mostly those of memory with
/// all rights.
fn keys(byte: u8, side: usize) -> [usize; 2] {
    let own = |key: usize| side * KEYS + key;
    let near = match byte & 0xf {
        0..=9 => own(0),
        10 | 11 => own(1),
        12 => own(2),
        13 => own(3),
        14 => own(4),
        _ => NO_KEY,
    };
    let far = match byte >> 4 {
        0..=6 => (1 - side) * KEYS,
        15 => own(0),
        other => (1 - side) * KEYS + usize::from(other) % KEYS,
    };
    [near, far]
}

/// Registers regions and creates windows of all kinds at both hosts.
fn memory(hosts: &mut [Host; 2]) -> (Names, Model, Vec<Buffer>) {
    let (mut names, mut model, mut buffers) = (Names::default(), Model::default(), Vec::new());
    for (number, host) in hosts.iter_mut().enumerate() {
        for (own, rights) in REGIONS {
            let (pd, domain) = if own { (host.pd, number) } else { (host.other_pd, 2) };
            let bytes: Vec<u8> = (0..REGION).map(|at| (at * 7 + at / 256) as u8).collect();
            let buffer = Buffer::from_bytes(&bytes);
            let attr = MrAttr { region: buffer.region(), base: BASE, access: rights };
            names.add_region(host.engine.register(pd, attr).expect("there is room"));
            model.add_region(domain, rights, bytes);
            buffers.push(buffer);
        }
        for kind in WINDOWS {
            let window = host.engine.create_mw(host.pd, kind).expect("there is room");
            names.add_window(host.engine.mw_key(window).expect("it was made"));
            model.add_window(number, kind);
            buffers.push(Buffer::new(0));
        }
    }
    (names, model, buffers)
}

impl Machine {
    fn new() -> Self {
        let mut hosts = [1, 2].map(host);
        let (names, mut model, buffers) = memory(&mut hosts);
        let Host { engine, pd, .. } = &mut hosts[1];
        let (max_wr, max_sge, limit) = (DEPTH as u32, 2, 0);
        let create = SrqCreate { max_wr, max_sge, limit, xrc: None };
        let srq = engine.create_srq(*pd, create).expect("a small one");
        let xrcd = engine.create_xrcd().expect("the first");
        let cq = engine.create_cq(64).expect("a small one");
        let create = SrqCreate { xrc: Some((xrcd, cq)), ..create };
        let xrc = (engine.create_srq(*pd, create).expect("a small one"), cq);
        model.area = [[0; 20], HEADER].concat();
        let now = Instant::from_nanos(1);
        let (ends, batch) = (Vec::new(), Batch::new(64));
        let mut machine = Self {
            hosts,
            ends,
            srq,
            xrc,
            buffers,
            names,
            model,
            now,
            batch,
            posted: 0,
            last: None,
        };
        for host in 0..2 {
            let gid = machine.hosts[1 - host].gid;
            let Host { engine, pd, way, .. } = &mut machine.hosts[host];
            *way = engine.create_ah(*pd, AhAttr::new(gid, 0)).ok();
        }
        let shared = [machine.model.add_queue(), machine.model.add_queue()];
        for (link, (kind, is_shared)) in LINKS.into_iter().enumerate() {
            let ends = [0, 1].map(|side| {
                let srq = (is_shared && side == 1 && kind == QpType::Rc).then_some(srq);
                let target = kind == QpType::XrcSend && side == 1;
                end(&mut machine.hosts[side], kind, srq, target.then_some(xrcd))
            });
            machine.ends.push(ends);
            machine.add_qps(link, shared);
            machine.connect(link);
        }
        machine
    }

    /// Adds both queue pairs of a connection to the model, with the two shared receive queues.
    fn add_qps(&mut self, link: usize, shared: [usize; 2]) {
        let (kind, is_shared) = LINKS[link];
        for side in [0, 1] {
            let is_shared = is_shared && side == 1;
            let queue = match kind {
                QpType::XrcSend if is_shared => shared[1],
                _ if is_shared => shared[0],
                _ => self.model.add_queue(),
            };
            let qp = Qp::new(kind, side, link * 2 + 1 - side, queue);
            self.model.add_qp(Qp {
                rights: ALL,
                mtu: if kind == QpType::Ud { PORT_MTU.bytes() } else { MTU },
                shared: is_shared,
                send_depth: DEPTH,
                recv_depth: DEPTH,
                // Two that wait for one receive would be served by chance.
                patient: link == 0,
                ..qp
            });
        }
    }

    /// Takes both ends of a connection to RTS.
    fn connect(&mut self, link: usize) {
        for side in [0, 1] {
            let peer = &self.ends[link][1 - side];
            let attr = QpAttr {
                qp_access_flags: ALL,
                path_mtu: Mtu::M256,
                dest_qp_num: peer.qpn,
                rq_psn: Psn::new(0xff_fffe),
                sq_psn: Psn::new(0xff_fffe),
                ah_attr: AhAttr::new(self.hosts[1 - side].gid, 0),
                qkey: QKEY,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                // 0.64 ms, and 0.26 ms.
                min_rnr_timer: RnrTimer(Bits::low(12)),
                timeout: AckTimeout(Bits::low(6)),
                retry_cnt: RetryCount(Bits::low(1)),
                rnr_retry: RnrRetry(Bits::low(if link == 0 { 7 } else { 0 })),
                ..QpAttr::default()
            };
            let (engine, qp) = (&mut self.hosts[side].engine, self.ends[link][side].qp);
            engine.bring_up(qp, QpState::Rts, &attr).expect("everything is given");
        }
    }

    /// Puts one end in another state.
    fn enter(&mut self, link: usize, side: usize, qp_state: QpState) {
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        let (engine, qp) = (&mut self.hosts[side].engine, self.ends[link][side].qp);
        engine.modify_qp(qp, &attr, AttrMask::STATE).expect("a way that there is");
    }

    /// Does what eight bytes say.
    fn operate(&mut self, [what, who, flags, len, near, far, key, low]: [u8; 8]) {
        let (link, side) = (usize::from(who) / 2 % LINKS.len(), usize::from(who) % 2);
        let qp = link * 2 + side;
        let bit = |bit: u8| flags >> bit & 1 == 1;
        let len = [0, 1, 8, 64, 255, 256, 257, 512, 600, 1000][usize::from(len) % 10];
        let own = |key: usize| side * KEYS + key % KEYS;
        let [near_key, far_key] = keys(key, side);
        let near = Piece { key: near_key, at: usize::from(near) * 4, len };
        let at = usize::from(far) * 8 + usize::from(bit(0)) * 4 * usize::from(bit(1));
        let remote = Remote { key: far_key, low, at };
        let imm = bit(2).then_some([low, 1, 2, 3]);
        let word = Piece { len: 8, ..near };
        let window = own(REGIONS.len() + usize::from(bit(3)));
        let request = match what % 20 {
            0 | 1 => Request::Send { imm },
            2 | 3 => Request::Write { to: remote, imm },
            4 | 5 => Request::Read { from: remote },
            6 => Request::Swap { at: remote, compare: u64::from(low), swap: u64::from(far) },
            7 => Request::Add { at: remote, add: u64::from(low) << 56 | 1 },
            8 => Request::Store { at: remote },
            9 => {
                let placement = FlushPlacement::from_bits_truncate(u32::from(low) % 4);
                let level = if bit(0) { FlushLevel::Mr } else { FlushLevel::Range };
                Request::Flush { at: remote, len, placement, level }
            }
            10 => Request::SendWithInv { key: remote.key, low },
            11 => Request::Invalidate { key: window, low },
            12 | 13 => {
                // It may be done before what waits; so nothing shall.
                if !self.model.qps[qp].sends.is_empty() {
                    return;
                }
                let rights = ALL.difference(Access::MW_BIND);
                let rights = if bit(0) { rights } else { Access::REMOTE_READ };
                let (region, at) = (near.key, near.at);
                // Mostly by the key that it has.
                let now = if bit(1) { self.model.window_low(window) } else { low };
                Request::Bind { window, now, low, region, at, len, rights }
            }
            14..=16 => return self.receive(link, side, near, bit(0)),
            17 => return self.change(link, side, flags),
            _ => return self.restart(link, flags),
        };
        let piece = match request {
            Request::Swap { .. } | Request::Add { .. } | Request::Store { .. } => word,
            _ => near,
        };
        let inline = bit(4) && piece.len <= 64;
        let local = match request {
            Request::Send { .. } | Request::Write { .. } | Request::Store { .. } if inline => {
                Local::Inline(vec![low; piece.len])
            }
            _ => Local::Pieces(split(piece, bit(5))),
        };
        let mut given = SendFlags::empty();
        given.set(SendFlags::SIGNALED, bit(6));
        // Without a fence, what is behind a read may be executed before its answer comes.
        let Qp { state, ref sends, .. } = self.model.qps[qp];
        let waits = state != QpState::Rts || !sends.is_empty();
        given.set(SendFlags::FENCE, bit(7) || waits);
        self.send(link, side, request, local, given);
    }

    fn send(&mut self, link: usize, side: usize, request: Request, local: Local, flags: SendFlags) {
        let kind = LINKS[link].0;
        if (kind, side) == (QpType::XrcSend, 1) {
            return;
        }
        self.posted += 1;
        let work = Work { id: self.posted, request, local, flags };
        let target = match kind {
            QpType::XrcSend => Target::Xrc(self.hosts[1].engine.srq_number(self.xrc.0)),
            QpType::Ud => {
                let ah = self.hosts[side].way.expect("both have one");
                Target::Ud(UdTarget { ah, qpn: self.ends[link][1 - side].qpn, qkey: QKEY })
            }
            _ => Target::Peer,
        };
        let (engine, qp) = (&mut self.hosts[side].engine, self.ends[link][side].qp);
        let taken = self.names.post(engine, qp, target, &work);
        let expected = self.model.post(link * 2 + side, work.clone());
        assert_eq!(taken.is_ok(), expected, "{work:?}: {taken:?}");
        self.last = Some((link * 2 + side, work));
    }

    fn receive(&mut self, link: usize, side: usize, piece: Piece, twice: bool) {
        if (LINKS[link].0, side) == (QpType::XrcSend, 0) {
            return;
        }
        self.posted += 1;
        let recv = Recv { id: RECV | self.posted, pieces: split(piece, twice) };
        let (engine, names) = (&mut self.hosts[side].engine, &self.names);
        let taken = match (LINKS[link], side) {
            ((QpType::XrcSend, _), _) => names.post_srq_recv(engine, self.xrc.0, &recv),
            ((_, true), 1) => names.post_srq_recv(engine, self.srq, &recv),
            _ => names.post_recv(engine, self.ends[link][side].qp, &recv),
        };
        let expected = self.model.post_recv(link * 2 + side, recv.clone());
        assert_eq!(taken.is_ok(), expected, "{recv:?}: {taken:?}");
    }

    /// Changes the state of one end: to ERR, into SQD and out again, out of SQE.
    fn change(&mut self, link: usize, side: usize, flags: u8) {
        let number = link * 2 + side;
        let qp = &self.model.qps[number];
        let target = (LINKS[link].0, side) == (QpType::XrcSend, 1);
        match qp.state {
            QpState::Rts if flags.is_multiple_of(2) && qp.sends.is_empty() && !target => {
                self.model.qps[number].state = QpState::Sqd;
                self.enter(link, side, QpState::Sqd);
            }
            QpState::Sqd | QpState::Sqe if flags.is_multiple_of(2) => {
                self.model.qps[number].state = QpState::Rts;
                self.enter(link, side, QpState::Rts);
            }
            QpState::Err => {}
            _ => {
                self.model.fail(number);
                self.enter(link, side, QpState::Err);
            }
        }
    }

    /// Resets both ends and connects them again. Not too often, or nothing else would happen.
    fn restart(&mut self, link: usize, flags: u8) {
        if !flags.is_multiple_of(4) {
            return;
        }
        for side in [0, 1] {
            self.model.reset(link * 2 + side);
            self.enter(link, side, QpState::Reset);
            self.model.qps[link * 2 + side].state = QpState::Rts;
        }
        self.connect(link);
    }

    /// Passes packets until nothing happens any more, or only again what happened before.
    fn settle(&mut self) {
        self.model.run();
        let end = self.now.saturating_add(SETTLING_TIME);
        loop {
            while self.exchange() {}
            let timers = self.hosts.iter().filter_map(|host| host.engine.poll_timeout());
            let Some(next) = timers.min().filter(|next| *next < end) else { break };
            self.now = self.now.max(next);
            for host in &mut self.hosts {
                host.engine.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    fn exchange(&mut self) -> bool {
        let mut moved = false;
        for from in [0, 1] {
            self.batch.clear();
            // As a NIC that is polled does it, one of the two: acknowledgements may be delayed.
            let engine = &mut self.hosts[from].engine;
            moved |= 0 < match from {
                0 => engine.poll_transmit_delaying_acks(self.now, &mut self.batch),
                _ => engine.poll_transmit(self.now, &mut self.batch),
            };
            for (path, bytes) in self.batch.iter() {
                let received = Received { network: &HEADER, ..Received::unchanged(path, bytes) };
                let _ = self.hosts[1 - from].engine.handle_packet(self.now, &received);
            }
        }
        moved
    }

    /// Both have the same completions since the last time, the same states and the same memory.
    fn compare(&mut self) {
        let last = &self.last;
        let mut of_xrc = Vec::new();
        drain(&mut self.hosts[1].engine, self.xrc.1, &mut of_xrc);
        for (number, qp) in self.model.qps.iter_mut().enumerate() {
            let (link, side) = (number / 2, number % 2);
            let (end, engine) = (&self.ends[link][side], &mut self.hosts[side].engine);
            assert_eq!(engine.qp_state(end.qp), Some(qp.state), "state of {number}, {last:?}");
            let mut all: Vec<Wc> = Vec::new();
            drain(engine, end.cq, &mut all);
            if (LINKS[link].0, side) == (QpType::XrcSend, 1) {
                all.append(&mut of_xrc);
            }
            let (received, sent): (Vec<Wc>, Vec<Wc>) =
                all.into_iter().partition(|wc| wc.id.0 & RECV != 0);
            for (wcs, dones) in [(sent, &mut qp.sent), (received, &mut qp.received)] {
                let same = wcs.len() == dones.len()
                    && wcs.iter().zip(&*dones).all(|(wc, done)| self.names.agree(done, wc));
                assert!(same, "queue pair {number}: {wcs:?} instead of {dones:?}, {last:?}");
                dones.clear();
            }
            qp.polled();
        }
        for (key, (buffer, bytes)) in self.buffers.iter().zip(&self.model.memory).enumerate() {
            assert!(buffer.to_vec() == *bytes, "memory of region {key} differs, {last:?}");
        }
    }
}

fn host(number: u8) -> Host {
    let gid = Gid::from(Ipv4Addr::new(192, 0, 2, number));
    let mut config = Config::new(gid);
    config.port_mtu = PORT_MTU;
    // As a NIC that runs has it.
    config.peer_window_bytes = Some(106_496);
    config.ack_delay = Duration::from_micros(25);
    let mut engine = Engine::new(config, u64::from(number));
    let pd = engine.create_pd().expect("the first");
    let other_pd = engine.create_pd().expect("the second");
    Host { engine, gid, pd, other_pd, way: None }
}

fn end(
    host: &mut Host,
    kind: QpType,
    srq: Option<SrqHandle>,
    xrcd: Option<roce::engine::XrcdHandle>,
) -> End {
    let cq = host.engine.create_cq(64).expect("a small one");
    let cap = QpCap {
        max_send_wr: DEPTH as u32,
        max_recv_wr: DEPTH as u32,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    let qp_type = if xrcd.is_some() { QpType::XrcRecv } else { kind };
    let init = QpInitAttr { qp_type, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq, xrcd };
    let qp = host.engine.create_qp(host.pd, create).expect("a small one");
    End { qp, qpn: host.engine.qp_number(qp).expect("it was made"), cq }
}

/// A piece of memory as one or as two.
fn split(piece: Piece, twice: bool) -> Vec<Piece> {
    let half = piece.len / 3;
    if !twice {
        return vec![piece];
    }
    let rest = Piece { at: piece.at + half, len: piece.len - half, ..piece };
    vec![Piece { len: half, ..piece }, rest]
}
