//! An engine with queue pairs of every kind in every state, and a peer that means it ill.
//!
//! The input is a list of steps. Most are packets: bytes as they are, or packets that name the
//! right queue pair, PSN and peer, so that they get past the first checks, and are wrong further
//! in. In between work is posted, time passes, packets are fetched, queues are polled, queue pairs
//! change their states. Whatever comes:
//!
//! - a packet is accepted, or dropped and counted once, under the name that is told;
//! - every packet that goes out can be parsed, is padded rightly, and goes to the peer;
//! - fetching packets comes to an end, and pending responses and events are bounded;
//! - no byte changes to which the peer has no right;
//! - an [honest peer's](super::honest) connection to the same engine works all the while;
//! - what was posted completes once: when everything ends in error, nothing is missing.

mod build;
mod objects;
mod packets;

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
    RKey, RdethRepr, RethRepr, Role, SackEthRepr, XrcSrqn, XrcethRepr,
};

/// All access rights of a peer.
const ALL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND).union(Access::REMOTE);

const KINDS: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

/// The size of each buffer, and what one is full of that must not change.
const SIZE: u32 = 2048;
const UNTOUCHED: u8 = 0x5a;

/// The part of a buffer that a window shows.
const WINDOW: core::ops::Range<u32> = 64..128;

const QKEY: QKey = QKey::new(0x1111);
const FIRST_PEER: u32 = 0x100;

/// Maximum number of queue pairs.
const PEERS_MAX: u32 = 80;

/// More steps than this teach nothing new.
const STEPS_MAX: usize = 200;

/// The size of the completion queues. Each step posts one work request at most.
const CQES: usize = STEPS_MAX + 56;

/// More packets than this no queue pair has to send without being told anything new: four requests,
/// and eight answers that may be pending, each as long as a buffer; some acknowledgements between
/// them.
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

/// Rest of an input; zeros when it is used up.
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
    /// Number of queue pairs that there ever were; each has a peer of its own.
    peers: u32,
    /// Memory that may be reached, that may only be read, that is another's, that was given up, and
    /// that a window opens.
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

/// Maximum number of these objects at a time.
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

    /// Modifies a queue pair to a state, if that is possible, with all attributes that the
    /// transition needs.
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

    /// A local buffer, good or not; never one that only a window may show.
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

    /// Takes all completions and events. Each completion is of work that was posted and has not
    /// completed before.
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

    /// Ends everything in error: all that was posted has completed, and nothing changed that must
    /// not.
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
