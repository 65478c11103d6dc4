//! An engine with queue pairs of every kind in every state, and a peer that means it ill.
//!
//! The input is a list of steps. Most are packets: bytes as they are, or packets that name the right queue pair, PSN
//! and peer, so that they get past the first checks, and are wrong further in. In between work is posted, time
//! passes, packets are fetched, queues are polled, queue pairs change their states. Whatever comes:
//!
//! - a packet is accepted, or dropped and counted once, under the name that is told;
//! - every packet that goes out can be parsed, is padded rightly, and goes to the peer;
//! - fetching packets comes to an end, and pending responses and events are bounded;
//! - no byte changes to which the peer has no right;
//! - an [honest peer's](super::honest) connection to the same engine works all the while;
//! - what was posted completes once: when everything ends in error, nothing is missing.

use super::honest::{self, Honest};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use roce::engine::{
    Batch, Config, Counter, Counters, CqHandle, Disposition, Engine, ICRC_ROOM, MrAttr, MrHandle,
    MwHandle, Notify, PORT_SILENCE, PdHandle, QpCreate, QpHandle, Received, SrqCreate, SrqHandle,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, AhAttr, AhHandle, AttrMask, Data, FlushLevel, FlushPlacement, Mtu, MwBind,
    MwType, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, RetryCount, RnrRetry, SendFlags,
    SendOp, SendWr, Sge, Target, UdTarget, Wc, WrId, transition,
};
use roce::wire::aeth::{RnrTimer, Syndrome};
use roce::wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, Bits, BthRepr, DethRepr, EeContext, Extensions,
    FethRepr, Gid, Headers, IethRepr, ImmDtRepr, Msn, Opcode, Packet, PacketRepr, Psn, QKey, Qpn,
    RKey, RdethRepr, RethRepr, Role, XrcSrqn, XrcethRepr,
};

/// Everything a peer may do.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

const KINDS: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

/// The size of each buffer, and what one is full of that must not change.
const SIZE: u32 = 2048;
const UNTOUCHED: u8 = 0x5a;

/// The part of a buffer that a window shows.
const WINDOW: core::ops::Range<u32> = 64..128;

const QKEY: QKey = QKey::new(0x1111);
const FIRST_PEER: u32 = 0x100;

/// At most so many queue pairs are made.
const PEERS_MAX: u32 = 80;

/// More steps than this teach nothing new.
const STEPS_MAX: usize = 200;

/// The size of the completion queues. Each step posts one work request at most.
const CQES: usize = STEPS_MAX + 56;

/// More packets than this no queue pair has to send without being told anything new: four requests, and eight answers
/// that may be pending, each as long as a buffer; some acknowledgements between them.
const PACKETS_MAX: usize = 12 * (SIZE / 256) as usize + 64;

fn own_gid() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 1))
}

fn peer_gid() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 2))
}

fn group() -> Gid {
    Gid::from(Ipv4Addr::new(224, 0, 0, 5))
}

/// What is left of an input; when nothing is, zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u32 {
        u32::from_be_bytes([0, 0, self.byte(), self.byte()])
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// A queue pair, and what the peer knows of it.
struct Conn {
    qp: QpHandle,
    qpn: Qpn,
    kind: QpType,
    attr: QpAttr,
}

/// A buffer, the address of its first byte, and its keys.
struct Memory {
    buffer: Buffer,
    base: u64,
    mr: MrHandle,
}

struct World {
    engine: Engine,
    now: u64,
    pd: PdHandle,
    cqs: Vec<CqHandle>,
    srqs: Vec<SrqHandle>,
    ah: AhHandle,
    conns: Vec<Conn>,
    /// How many queue pairs there ever were; each has a peer of its own.
    peers: u32,
    /// What may be reached, what may only be read, what is another's, what was given up, what shows through a window.
    memories: Vec<Memory>,
    keys: Vec<RKey>,
    /// Work that was posted and is not completed, by whose it is; `None` for a shared queue.
    posted: BTreeMap<u64, Option<QpHandle>>,
    last_id: u64,
    /// The last packet whose first fields were right.
    last: Vec<u8>,
    batch: Batch,
    honest: Option<Honest>,
    /// Objects that come and go.
    passing: Vec<Passing>,
}

/// An object that comes and goes, while packets for it and for others come in.
enum Passing {
    Mr(MrHandle),
    Mw(MwHandle),
    Ah(AhHandle),
    Pd(PdHandle),
    Cq(CqHandle),
    Srq(SrqHandle),
}

/// At most so many of them at a time.
const PASSING_MAX: usize = 12;

/// The port that the packets of a stranger to the honest pair come from.
const STRANGE_PORT: u16 = 12_345;

/// The port that the hostile peer's packets come from; some come from the next.
const PEER_PORT: u16 = 1000;

/// Runs an input.
pub fn hostile(input: &[u8]) {
    let mut input = Input(input);
    let mut world = World::new();
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}

impl World {
    fn new() -> Self {
        let mut config = Config::new(own_gid());
        config.window_packets = 16;
        config.port_mtu = Mtu::M1024;
        // As a NIC that runs has it.
        config.peer_window_bytes = Some(106_496);
        config.ack_delay = Duration::from_micros(25);
        let mut engine = Engine::new(config, 7);
        let pd = engine.create_pd().expect("the first");
        let cqs = (0..2).map(|_| engine.create_cq(CQES).expect("few")).collect();
        let ah = engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).expect("the first");
        let mut world = Self {
            engine,
            now: 1,
            pd,
            cqs,
            srqs: Vec::new(),
            ah,
            conns: Vec::new(),
            peers: 0,
            memories: Vec::new(),
            keys: Vec::new(),
            posted: BTreeMap::new(),
            last_id: 0,
            last: Vec::new(),
            batch: Batch::new(16),
            honest: None,
            passing: Vec::new(),
        };
        world.fill_memory();
        world.connect_all();
        world.bind_windows();
        let pd = world.engine.create_pd().expect("few");
        world.honest = Some(Honest::new(&mut world.engine, pd, own_gid()));
        // The first messages are not disturbed: each learns from which port the other sends.
        world.honest.as_mut().expect("it is there").post(&mut world.engine);
        world.converse();
        world
    }

    fn fill_memory(&mut self) {
        let other = self.engine.create_pd().expect("the second");
        let shown = Access::LOCAL_WRITE | Access::MW_BIND;
        let rights = [
            (self.pd, ALL),
            (self.pd, Access::REMOTE_READ),
            (other, ALL),
            (self.pd, ALL),
            (self.pd, shown),
        ];
        for (base, (pd, access)) in (1..).zip(rights) {
            let base = base << 20;
            let buffer = Buffer::from_bytes(&[UNTOUCHED; SIZE as usize]);
            let attr = MrAttr { region: buffer.region(), base, access };
            let mr = self.engine.register(pd, attr).expect("few");
            self.keys.push(mr.rkey());
            self.memories.push(Memory { buffer, base, mr });
        }
        self.engine.deregister(self.memories[3].mr).expect("nothing is bound to it");
        self.keys.extend([RKey::new(0), RKey::new(0x1234_5678)]);
    }

    /// A queue pair of each kind in each state, one more with a shared queue, and the one for general services.
    fn connect_all(&mut self) {
        let xrcd = self.engine.create_xrcd().expect("the first");
        for xrc in [None, Some((xrcd, self.cqs[1]))] {
            let create = SrqCreate { max_wr: 8, max_sge: 2, limit: 2, xrc };
            self.srqs.push(self.engine.create_srq(self.pd, create).expect("few"));
        }
        for kind in KINDS {
            let create = self.create(kind, None, (kind == QpType::XrcRecv).then_some(xrcd));
            for state in QpState::ALL {
                if state.is_possible(kind) {
                    self.connect(kind, create, *state);
                }
            }
        }
        let shared = self.create(QpType::Rc, Some(self.srqs[0]), None);
        self.connect(QpType::Rc, shared, QpState::Rts);
        let gsi = self.create(QpType::Gsi, None, None);
        self.connect(QpType::Gsi, gsi, QpState::Rts);
        for at in 0..self.conns.len() {
            let Conn { qp, kind, .. } = self.conns[at];
            if kind == QpType::Ud {
                self.engine.attach_multicast(qp, group()).expect("few");
            }
        }
    }

    fn create(
        &self,
        kind: QpType,
        srq: Option<SrqHandle>,
        xrcd: Option<roce::engine::XrcdHandle>,
    ) -> QpCreate {
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 8,
        };
        let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: false };
        QpCreate { init, send_cq: self.cqs[0], recv_cq: self.cqs[1], srq, xrcd }
    }

    fn connect(&mut self, kind: QpType, create: QpCreate, state: QpState) {
        let qp = self.engine.create_qp(self.pd, create).expect("few");
        let number = self.peers;
        self.peers += 1;
        let attr = QpAttr {
            qp_access_flags: ALL,
            path_mtu: Mtu::M256,
            dest_qp_num: Qpn::new(FIRST_PEER + number),
            // Numbers wrap early.
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fffd),
            ah_attr: AhAttr::new(peer_gid(), 0),
            qkey: QKEY,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: RnrTimer(Bits::low(1)),
            timeout: AckTimeout(Bits::low(1)),
            retry_cnt: RetryCount(Bits::low(2)),
            rnr_retry: RnrRetry(Bits::low(2)),
            ..QpAttr::default()
        };
        let qpn = self.engine.qp_number(qp).expect("it was made");
        self.conns.push(Conn { qp, qpn, kind, attr });
        let way = [QpState::Init, QpState::Rtr, QpState::Rts];
        let at = self.conns.len() - 1;
        match state {
            QpState::Reset => {}
            QpState::Init | QpState::Rtr | QpState::Rts => {
                let steps = way.iter().position(|step| *step == state).expect("one of them");
                way[..=steps].iter().for_each(|step| self.modify(at, *step));
            }
            QpState::Sqd | QpState::Err => {
                way.iter().for_each(|step| self.modify(at, *step));
                self.modify(at, state);
            }
            QpState::Sqe => {
                way.iter().for_each(|step| self.modify(at, *step));
                self.fail_sending(at);
            }
        }
        let reached = self.engine.qp_state(qp).expect("it is there");
        let sqd = state == QpState::Sqd && transition::find(kind, QpState::Rts, state).is_none();
        assert!(reached == state || sqd, "{kind} got to {reached}");
    }

    /// Posts a send without memory, by which an unreliable sender gets to SQE.
    fn fail_sending(&mut self, at: usize) {
        let sges = [Sge { addr: 0, length: 4, lkey: self.memories[3].mr.lkey() }];
        let target = self.target(at, self.conns[at].attr.dest_qp_num);
        let send = SendOp::Send { imm: None };
        let wr = SendWr { target, ..SendWr::new(WrId(0), send, Data::Gather(&sges)) };
        self.engine.post_send(self.conns[at].qp, &wr, &[]).expect("the queue is empty");
        self.transmit(usize::MAX);
        let mut one = [Wc::default()];
        assert_eq!(self.engine.poll_cq(self.cqs[0], &mut one), 1);
    }

    /// A window of each type through which part of a buffer shows that is closed otherwise.
    fn bind_windows(&mut self) {
        let shown = &self.memories[4];
        let bind = MwBind {
            mr: shown.mr.lkey(),
            addr: shown.base + u64::from(WINDOW.start),
            length: u64::from(WINDOW.end - WINDOW.start),
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        };
        let binder = self.conns.iter().position(|conn| {
            conn.kind == QpType::Rc && self.engine.qp_state(conn.qp) == Some(QpState::Rts)
        });
        let binder = self.conns[binder.expect("there is one")].qp;
        for kind in [MwType::Type1, MwType::Type2] {
            let mw = self.engine.create_mw(self.pd, kind).expect("few");
            let rkey = self.engine.mw_key(mw).expect("it was made");
            let op = SendOp::BindMw { mw: rkey, rkey, bind };
            let wr = SendWr::new(WrId(0), op, Data::EMPTY);
            self.engine.post_send(binder, &wr, &[]).expect("the queue is empty");
            self.transmit(usize::MAX);
            let mut one = [Wc::default()];
            assert_eq!(self.engine.poll_cq(self.cqs[0], &mut one), 1);
            assert!(one[0].is_success(), "{}", one[0].status);
            self.keys.push(rkey);
        }
    }

    fn time(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 20 {
            0..=6 => self.shaped(input),
            16 => self.churn(input),
            17 => self.replace_qp(input),
            18 => self.forge(input),
            19 => {
                if let Some(honest) = &mut self.honest {
                    honest.post(&mut self.engine);
                }
            }
            7 => self.flood(input),
            8 => {
                let len = usize::from(input.byte());
                let packet = input.bytes(len).to_vec();
                self.deliver(peer_gid(), PEER_PORT, own_gid(), 0, &packet);
            }
            9 => {
                let most = input.pick(&[1, 3, usize::MAX]);
                self.transmit(most);
            }
            10 => self.pass_time(input),
            11 => self.post_send(input),
            12 => self.post_recv(input),
            13 => {
                self.poll();
                let notify = input.pick(&[Notify::Next, Notify::Solicited]);
                self.engine.request_notify(self.cqs[1], notify);
            }
            14 => {
                let at = usize::from(input.byte()) % self.conns.len();
                let to = input.pick(QpState::ALL);
                self.modify(at, to);
            }
            _ => {
                let limit = u32::from(input.byte() % 9);
                let srq = input.pick(&[0, 1]);
                let changed = self.engine.modify_srq(self.srqs[srq], None, Some(limit));
                changed.expect("the limit is within its size");
            }
        }
    }

    /// To a state, if it may; with all that the step needs.
    fn modify(&mut self, at: usize, to: QpState) {
        let Conn { qp, kind, attr, .. } = self.conns[at];
        let from = self.engine.qp_state(qp).expect("it is there");
        let Some(needs) = transition::find(kind, from, to) else { return };
        let attr = QpAttr { qp_state: to, en_sqd_async_notify: true, ..attr };
        let notify = needs.allowed() & AttrMask::EN_SQD_ASYNC_NOTIFY;
        let mask = AttrMask::STATE | needs.required | notify;
        self.engine.modify_qp(qp, &attr, mask).expect("it has all that it needs");
        if to == QpState::Reset {
            // What was posted is forgotten; what has completed already stays to be polled.
            self.poll();
            self.posted.retain(|_, owner| *owner != Some(qp));
        }
    }

    fn pass_time(&mut self, input: &mut Input<'_>) {
        let step = u64::from(input.number()) * 100;
        let next = self.engine.poll_timeout().map_or(self.now, Instant::as_nanos);
        self.now = if step == 0 { self.now.max(next) } else { self.now + step };
        self.engine.handle_timeout(self.time());
    }

    fn target(&self, at: usize, qpn: Qpn) -> Target {
        match self.conns[at].kind {
            QpType::Ud | QpType::Gsi => Target::Ud(UdTarget { ah: self.ah, qpn, qkey: QKEY }),
            QpType::XrcSend => Target::Xrc(XrcSrqn::new(5)),
            _ => Target::Peer,
        }
    }

    /// A buffer of one's own, good or not; never one that only a window may show.
    fn sge(&self, input: &mut Input<'_>) -> Sge {
        let Memory { base, mr, .. } = self.memories[input.pick(&[0, 0, 0, 1, 2, 3])];
        let length = input.pick(&[0, 1, 8, 8, 300, 600, SIZE, SIZE + 1]);
        Sge { addr: base + u64::from(input.byte()), length, lkey: mr.lkey() }
    }

    fn op(&self, input: &mut Input<'_>) -> SendOp {
        let (remote_addr, rkey) = (u64::from(input.byte()), input.pick(&self.keys));
        let imm = input.pick(&[None, Some([1, 2, 3, 4])]);
        let length = input.number();
        let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::Range);
        match input.byte() % 9 {
            0 => SendOp::Send { imm },
            1 => SendOp::SendWithInv { rkey },
            2 => SendOp::Write { remote_addr, rkey, imm },
            3 => SendOp::Read { remote_addr, rkey },
            4 => SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 },
            5 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            6 => SendOp::AtomicWrite { remote_addr, rkey },
            7 => SendOp::Flush { remote_addr, rkey, length, placement, level },
            _ => SendOp::LocalInv { rkey },
        }
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.conns.len();
        let (op, sges) = (self.op(input), [self.sge(input), self.sge(input)]);
        let count = usize::from(input.byte()) % 3;
        let fence = input.pick(&[SendFlags::empty(), SendFlags::FENCE, SendFlags::SOLICITED]);
        let target = self.target(at, self.conns[at].attr.dest_qp_num);
        let flags = SendFlags::SIGNALED | fence;
        let id = self.last_id + 1;
        let wr =
            SendWr { target, flags, ..SendWr::new(WrId(id), op, Data::Gather(&sges[..count])) };
        if self.engine.post_send(self.conns[at].qp, &wr, &[]).is_ok() {
            self.last_id = id;
            self.posted.insert(id, Some(self.conns[at].qp));
        }
    }

    fn post_recv(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % (self.conns.len() + self.srqs.len());
        let sges = [self.sge(input), self.sge(input)];
        let id = self.last_id + 1;
        let wr = RecvWr { id: WrId(id), sges: &sges[..usize::from(input.byte()) % 3] };
        let owner = self.conns.get(at).map(|conn| conn.qp);
        let posted = match owner {
            Some(qp) => self.engine.post_recv(qp, &wr),
            None => self.engine.post_srq_recv(self.srqs[at - self.conns.len()], &wr),
        };
        if posted.is_ok() {
            self.last_id = id;
            self.posted.insert(id, owner);
        }
    }

    /// The last packet again, and again.
    fn flood(&mut self, input: &mut Input<'_>) {
        let packet = core::mem::take(&mut self.last);
        for _ in 0..input.pick(&[0, 1, 2, 3, 8, 63]) {
            self.deliver(peer_gid(), PEER_PORT, own_gid(), 0, &packet);
        }
        self.last = packet;
    }

    /// A packet whose first fields are right, if nothing in the input says otherwise.
    fn shaped(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.conns.len();
        let Conn { qp, qpn, kind, .. } = self.conns[at];
        let class: u8 = match kind {
            QpType::Rc => 0,
            QpType::Uc => 0x20,
            QpType::XrcSend | QpType::XrcRecv => 0xa0,
            _ => 0x60,
        };
        let choice = input.byte();
        let opcode = match choice {
            0xe0..=0xef => Opcode(input.byte()),
            0xf0..=0xff => Opcode::CNP,
            _ => Opcode(class | choice & 0x1f),
        };
        let attr = self.engine.query_qp(qp).expect("it is there");
        let answers = opcode.info().is_some_and(|info| info.role == Role::Response);
        let base = if answers { attr.sq_psn } else { attr.rq_psn };
        // Mostly near; the middle of all numbers is what to get wrong.
        let far = input.pick(&[0, 0, 0, 0, 0, 0, Psn::HALF, Psn::HALF - 1]);
        let near = i32::from(input.byte().cast_signed() / 8);
        let psn = base.plus(far).plus(near.rem_euclid(1 << 24).unsigned_abs());
        let flags = input.byte();
        let everybody = flags & 1 != 0 && kind == QpType::Ud;
        let bth = BthRepr {
            solicited: flags & 2 != 0,
            ack_req: flags & 4 != 0,
            ..BthRepr::new(opcode, if everybody { Qpn::MULTICAST } else { qpn }, psn)
        };
        let mut bytes = self.body(bth, input);
        if flags & 0x30 == 0x30 {
            let place = usize::from(input.byte()) % bytes.len();
            bytes[place] ^= input.byte();
        }
        if flags & 0xc0 == 0xc0 {
            let cut = usize::from(input.byte() % 8);
            bytes.truncate(bytes.len().saturating_sub(cut));
        }
        let source = if flags & 0xf8 == 0x08 { group() } else { peer_gid() };
        let destination = if everybody { group() } else { own_gid() };
        // Mostly from the port that it has used before.
        let port = input.pick(&[PEER_PORT, PEER_PORT, PEER_PORT, PEER_PORT + 1]);
        self.deliver(source, port, destination, flags % 4, &bytes);
        self.last = bytes;
    }

    /// The headers that an opcode wants, and a payload.
    fn body(&self, bth: BthRepr, input: &mut Input<'_>) -> Vec<u8> {
        let headers = bth.opcode.info().map_or(Headers::empty(), |info| info.headers);
        let memory = &self.memories[input.pick(&[0, 0, 0, 1, 2, 3, 4, 4])];
        let into = input.pick(&[0, 0, 8, 64, 120, 2040, 2048, u64::MAX, 3]);
        let va = memory.base.wrapping_add(into);
        // Mostly the key that belongs to it.
        let rkey = match input.byte() % 4 {
            0..=2 => memory.mr.rkey(),
            _ => input.pick(&self.keys),
        };
        let dma_len = input.pick(&[0, 4, 8, 8, 256, 300, 512, SIZE, SIZE + 1, 1 << 31, u32::MAX]);
        let (swap_or_add, compare) = (input.byte().into(), 0x5a5a_5a5a_5a5a_5a5a);
        let srq = self.engine.srq_number(self.srqs[input.pick(&[1, 1, 1, 0])]);
        let qkey = input.pick(&[QKEY, QKEY, QKEY, QKey::GSI]);
        let syndrome = Syndrome(input.byte());
        // Few messages are completed: the right number is often among these.
        let msn = Msn::new(u32::from(input.byte() % 8));
        let feth = u32::from(input.byte());
        let (placement, selectivity) = (Bits::low(feth), Bits::low(feth >> 4));
        let has = |header| headers.contains(header);
        let ext = Extensions {
            rdeth: has(Headers::RDETH).then_some(RdethRepr { ee_context: EeContext::new(1) }),
            deth: has(Headers::DETH).then_some(DethRepr { qkey, src_qp: Qpn::new(5) }),
            xrceth: has(Headers::XRCETH).then_some(XrcethRepr { xrcsrq: srq }),
            feth: has(Headers::FETH).then_some(FethRepr { selectivity, placement }),
            reth: has(Headers::RETH).then_some(RethRepr { va, rkey, dma_len }),
            atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEthRepr {
                va,
                rkey,
                swap_or_add,
                compare,
            }),
            aeth: has(Headers::AETH).then_some(AethRepr { syndrome, msn }),
            atomic_ack_eth: has(Headers::ATOMIC_ACK_ETH)
                .then_some(AtomicAckEthRepr { original: swap_or_add }),
            imm_dt: has(Headers::IMM_DT).then_some(ImmDtRepr { data: [9; 4] }),
            ieth: has(Headers::IETH).then_some(IethRepr { rkey }),
        };
        let len = input.pick(&[256, 0, 4, 8, 16, 1, 44, 255, 257, 1024, 1025]);
        let payload = vec![0xee; len];
        let mut out = Vec::new();
        match PacketRepr::new(bth, ext, &payload) {
            Ok(repr) => repr.emit(&mut out),
            // No headers are known for it.
            Err(_) => out.extend_from_slice(bth.emit().as_bytes()),
        }
        out
    }

    /// Hands a packet to the engine: it is accepted, or dropped and counted once.
    fn deliver(&mut self, source: Gid, source_port: u16, destination: Gid, ecn: u8, packet: &[u8]) {
        let before = self.engine.counters().clone();
        let network = &[0x45; 20][..];
        let received = Received { source, destination, ecn, source_port, network, packet };
        let became = self.engine.handle_packet(self.time(), &received);
        let after = self.engine.counters();
        assert_eq!(after.get(Counter::Received), before.get(Counter::Received) + 1);
        if let Disposition::Dropped(reason) = became {
            // Counters never fall: if these two and their sum are right, no other has changed.
            let total = |of: &Counters| of.iter().map(|(_, count)| count).sum::<u64>();
            assert_eq!(after.get(reason), before.get(reason) + 1, "{}", reason.name());
            assert_eq!(total(after), total(&before) + 2, "{} is not alone", reason.name());
        }
    }

    /// The honest pair goes on until what it has posted is done: that must come.
    fn converse(&mut self) {
        for _ in 0..100 {
            self.engine.end_ack_delays();
            self.transmit(usize::MAX);
            let now = self.time();
            let honest = self.honest.as_mut().expect("it is there");
            honest.spoke = now;
            let packets = honest.exchange(now, own_gid());
            let idle = packets.is_empty();
            for (port, packet) in packets {
                self.deliver(honest::gid(), port, own_gid(), 0, &packet);
            }
            let honest = self.honest.as_mut().expect("it is there");
            if honest.finish(&mut self.engine) && idle {
                return;
            }
        }
        panic!("the honest pair does not finish");
    }

    /// A packet to the honest pair's queue pair, from the honest peer's address, with the right PSN even, but from the
    /// stranger's port.
    fn forge(&mut self, input: &mut Input<'_>) {
        let now = self.time();
        let honest = self.honest.as_mut().expect("it is there");
        if now >= honest.spoke.saturating_add(PORT_SILENCE / 2) {
            // A connection that is idle for long accepts other ports; this one is in use.
            honest.post(&mut self.engine);
            self.converse();
        }
        let honest = self.honest.as_ref().expect("it is there");
        let (qp, qpn) = honest.target();
        let attr = self.engine.query_qp(qp).expect("it is there");
        let opcode = Opcode(input.byte() & 0x1f);
        let answers = opcode.info().is_some_and(|info| info.role == Role::Response);
        let base = if answers { attr.sq_psn } else { attr.rq_psn };
        let near = i32::from(input.byte().cast_signed() / 8);
        let psn = base.plus(near.rem_euclid(1 << 24).unsigned_abs());
        let bytes = self.body(BthRepr::new(opcode, qpn, psn), input);
        self.deliver(honest::gid(), STRANGE_PORT, own_gid(), 0, &bytes);
    }

    /// Makes an object, or destroys one; what depends on others keeps them.
    fn churn(&mut self, input: &mut Input<'_>) {
        let (choice, place) = (input.byte(), usize::from(input.byte()));
        if choice & 0x80 != 0 && !self.passing.is_empty() {
            let at = place % self.passing.len();
            let engine = &mut self.engine;
            let gone = match &self.passing[at] {
                Passing::Mr(mr) => engine.deregister(*mr).is_ok(),
                Passing::Mw(mw) => engine.destroy_mw(*mw).is_ok(),
                Passing::Ah(ah) => engine.destroy_ah(*ah).is_ok(),
                Passing::Pd(pd) => engine.destroy_pd(*pd).is_ok(),
                Passing::Cq(cq) => engine.destroy_cq(*cq).is_ok(),
                Passing::Srq(srq) => engine.destroy_srq(*srq).is_ok(),
            };
            assert!(gone, "nothing depends on it");
            self.passing.swap_remove(at);
            return;
        }
        if self.passing.len() >= PASSING_MAX {
            return;
        }
        let (pd, engine) = (self.pd, &mut self.engine);
        self.passing.push(match choice % 6 {
            0 => {
                let region = self.memories[0].buffer.region();
                let attr = MrAttr { region, base: 1 << 20, access: ALL };
                let mr = engine.register(pd, attr).expect("few");
                self.keys.push(mr.rkey());
                Passing::Mr(mr)
            }
            1 => Passing::Mw(engine.create_mw(pd, MwType::Type2).expect("few")),
            2 => Passing::Ah(engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).expect("few")),
            3 => Passing::Pd(engine.create_pd().expect("few")),
            4 => Passing::Cq(engine.create_cq(4).expect("few")),
            _ => {
                let create = SrqCreate { max_wr: 8, max_sge: 2, limit: 0, xrc: None };
                Passing::Srq(engine.create_srq(pd, create).expect("few"))
            }
        });
    }

    /// Destroys a reliable queue pair with all that it has posted, and makes another, whose slot is often the same.
    fn replace_qp(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.conns.len();
        let Conn { qp, kind, .. } = self.conns[at];
        if kind != QpType::Rc || self.peers >= PEERS_MAX {
            return;
        }
        self.poll();
        self.transmit(usize::MAX);
        self.poll();
        self.engine.destroy_qp(qp).expect("it is in no group");
        self.posted.retain(|_, owner| *owner != Some(qp));
        let create = self.create(QpType::Rc, None, None);
        let state = input.pick(&[QpState::Init, QpState::Rtr, QpState::Rts]);
        self.connect(QpType::Rc, create, state);
        self.conns.swap_remove(at);
    }

    /// Fetches packets, `most` or all.
    fn transmit(&mut self, most: usize) {
        let mut total = 0;
        let mut each = vec![0; usize::try_from(self.peers).expect("few")];
        while total < most {
            self.batch.clear();
            let before = self.engine.counters().get(Counter::Sent);
            let now = self.time();
            // Every other time as a NIC that is polled does it: acknowledgements may be delayed.
            let sent = if most == 1 {
                self.engine.poll_transmit_delaying_acks(now, &mut self.batch)
            } else {
                self.engine.poll_transmit(now, &mut self.batch)
            };
            assert_eq!(sent, self.batch.len());
            let counted = self.engine.counters().get(Counter::Sent) - before;
            assert_eq!(counted, sent as u64, "what is sent is counted");
            if sent == 0 {
                return;
            }
            total += sent;
            for (route, bytes) in self.batch.iter() {
                let packet = Packet::parse(&bytes[..bytes.len() - ICRC_ROOM]).expect("whole");
                assert!(PacketRepr::of(&packet).is_some(), "padded rightly");
                if route.destination == honest::gid() {
                    let honest = self.honest.as_mut().expect("it is there");
                    honest.take(route.source_port, packet.bytes());
                    continue;
                }
                assert_eq!((route.source, route.destination), (own_gid(), peer_gid()));
                let peer = packet.bth().dest_qp().get().wrapping_sub(FIRST_PEER);
                let count = each.get_mut(peer as usize).expect("to this peer only");
                *count += 1;
                assert!(*count <= PACKETS_MAX, "it never ends");
            }
        }
    }

    /// Takes all completions and events. Each completion is of work that was posted and has not completed before.
    fn poll(&mut self) {
        let mut some = [Wc::default(); 32];
        for cq in self.cqs.clone() {
            loop {
                let count = self.engine.poll_cq(cq, &mut some);
                if count == 0 {
                    break;
                }
                for wc in &some[..count] {
                    assert!(self.posted.remove(&wc.id.0).is_some(), "{} completed twice", wc.id.0);
                }
            }
        }
        let mut events = 0;
        while self.engine.poll_event().is_some() {
            events += 1;
            assert!(events <= 8 * STEPS_MAX, "each has a cause");
        }
        let mut congested = 0;
        while self.engine.poll_congestion().is_some() {
            congested += 1;
            assert!(congested <= self.conns.len(), "each is named once");
        }
    }

    /// Everything ends in error: all that was posted has completed, and nothing changed that must not.
    fn end(&mut self) {
        self.transmit(usize::MAX);
        // Whatever happened, a whole round more gets through.
        self.converse();
        self.honest.as_mut().expect("it is there").post(&mut self.engine);
        self.converse();
        for at in 0..self.conns.len() {
            self.modify(at, QpState::Err);
        }
        self.poll();
        for (id, owner) in &self.posted {
            let state = owner.and_then(|qp| self.engine.qp_state(qp));
            assert!(state != Some(QpState::Err), "{id} never completed");
        }
        self.transmit(usize::MAX);
        for at in [1, 2, 3] {
            let bytes = self.memories[at].buffer.to_vec();
            assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "buffer {at} changed");
        }
        let mut shown = self.memories[4].buffer.to_vec();
        shown.drain(WINDOW.start as usize..WINDOW.end as usize);
        assert!(shown.iter().all(|byte| *byte == UNTOUCHED), "more than the window shows changed");
    }
}
