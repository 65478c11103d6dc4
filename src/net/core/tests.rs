//! Two cores over two engines on a simulated network, in virtual time.
//!
//! `ROCE_SEEDS=10000 cargo test --release --lib net::core` runs as many seeds, `ROCE_SEED=17` one.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use self::world::{Host, World};
use super::*;
use crate::engine::{Batch, Config, Counter, Engine};
use crate::link::fault::Faults;
use crate::memory::Buffer;
use crate::random::Random;
use crate::time::Instant;
use crate::verbs::{
    Access, AckTimeout, AhAttr, CqHandle, Data, LKey, MrAttr, Mtu, PdHandle, QpAttr, QpCap,
    QpCreate, QpHandle, QpInitAttr, QpState, QpType, RecvWr, RetryCount, RnrRetry, SendFlags,
    SendWr, Sge, Target,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Gid, Psn, Qpn};

// Shared with tests/simulation; here, so that the packaged crate has it.
#[path = "world.rs"]
mod world;

const SHARED: usize = 256;

/// Plan that a seed decides.
struct Plan {
    faults: Faults,
    ring: [u32; 2],
    send_max: [u32; 2],
    writes: [u16; 2],
    messages: usize,
    /// Time at which one side is killed.
    kill: Option<Instant>,
    /// Time at which the program of the other side closes, to end as soon as its messages are
    /// delivered.
    close: Option<Instant>,
}

impl Plan {
    fn new(seed: u64, random: &mut Random) -> Self {
        let mut below = |max: u64| random.next() % max;
        let lossy = !seed.is_multiple_of(4);
        let mut chance =
            |max: u32| if lossy { u32::try_from(below(u64::from(max))).unwrap() } else { 0 };
        let faults = Faults {
            delay: Duration::from_micros(5),
            jitter: Duration::from_micros(if lossy { 20 } else { 0 }),
            loss: chance(80_000),
            duplicate: chance(50_000),
            reorder: chance(50_000),
            ..Faults::default()
        };
        let mut ring = || 4096 << below(3);
        let (ring, send_max) = ([ring(), ring()], [ring(), ring()]);
        let mut writes = || 1 + u16::try_from(below(24)).unwrap();
        let writes = [writes(), writes()];
        let messages = 10 + usize::try_from(below(60)).unwrap();
        let mut moment = || Instant::from_nanos(20_000 + below(2_000_000));
        let kill = (seed % 16 == 15).then(&mut moment);
        let close = (seed % 8 == 5).then(&mut moment);
        Self { faults, ring, send_max, writes, messages, kill, close }
    }
}

/// A message of the program, which follows from its number.
fn message(seed: u64, number: u64, eager_max: usize) -> Vec<u8> {
    let mut random = Random::new((seed << 20) | number);
    let mut below = |max: usize| usize::try_from(random.next() % max as u64).unwrap();
    let len = match below(8) {
        0 => 0,
        1..5 => below(200),
        5 | 6 => below(eager_max + 1),
        _ => eager_max + 1 + below(40_000),
    };
    (0..len).map(|_| u8::try_from(random.next() % 256).unwrap()).collect()
}

/// Whether a message is sent from where it lies.
fn is_lent(message: &[u8], eager_max: usize) -> bool {
    (100..=eager_max).contains(&message.len()) && message.first().is_some_and(|byte| byte & 1 == 0)
}

struct Side {
    engine: Engine,
    gid: Gid,
    pd: PdHandle,
    cq: CqHandle,
    qp: QpHandle,
    ring: Buffer,
    ring_key: RKey,
    staging: Buffer,
    staging_key: LKey,
    /// Memory that the peer operates on.
    shared: Buffer,
    shared_key: RKey,
    core: Option<Core>,
    random: Random,
    /// Large messages that the peer may read.
    large: VecDeque<(Buffer, crate::verbs::MrHandle)>,
    /// The next one, if it is registered already.
    waiting: Option<(Buffer, crate::verbs::MrHandle)>,
    /// Messages that are sent from where they lie, and the number of the first.
    lent: VecDeque<(Buffer, crate::verbs::MrHandle)>,
    first_lent: u64,
    to_send: VecDeque<Vec<u8>>,
    received: Vec<Vec<u8>>,
    operations: u64,
    has_end: bool,
    is_dead: bool,
    is_closing: bool,
    batch: Batch,
}

impl Host for Side {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn timeout(&self) -> Option<Instant> {
        self.engine.poll_timeout()
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<&mut Batch> {
        self.batch.clear();
        (self.engine.poll_transmit(now, &mut self.batch) > 0).then_some(&mut self.batch)
    }

    fn takes(&self, to: Gid) -> bool {
        to == self.gid && !self.is_dead
    }
}

const EVERY_RIGHT: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

impl Side {
    fn new(host: u8, plan: &Plan, seed: u64) -> Self {
        let [own, peer] = if host == 1 { [0, 1] } else { [1, 0] };
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, host));
        let mut engine = Engine::new(Config::new(gid), seed ^ u64::from(host));
        let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(4096).unwrap());
        let cap = QpCap {
            max_send_wr: u32::try_from(sends(plan.writes[peer])).unwrap(),
            max_recv_wr: receives(plan.writes[own]),
            max_send_sge: 3,
            max_recv_sge: 1,
            max_inline_data: 256,
        };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create).unwrap();
        // The results of atomics go behind it.
        let staging = OwnMemory::staging_bytes(plan.ring[peer], 1024) + 8;
        let [ring, staging, shared] = [plan.ring[own] as usize, staging, SHARED].map(Buffer::new);
        let mut register = |buffer: &Buffer| {
            let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access: EVERY_RIGHT };
            engine.register(pd, attr).unwrap()
        };
        let (ring_key, staging_key) = (register(&ring).rkey(), register(&staging).lkey());
        let shared_key = register(&shared).rkey();
        Self {
            engine,
            gid,
            pd,
            cq,
            qp,
            ring,
            ring_key,
            staging,
            staging_key,
            shared,
            shared_key,
            core: None,
            random: Random::new(seed.wrapping_mul(31) + u64::from(host)),
            large: VecDeque::new(),
            waiting: None,
            lent: VecDeque::new(),
            first_lent: 0,
            to_send: VecDeque::new(),
            received: Vec::new(),
            operations: 0,
            has_end: false,
            is_dead: false,
            is_closing: false,
            batch: Batch::new(64),
        }
    }

    fn qpn(&self) -> Qpn {
        self.engine.qp_number(self.qp).unwrap()
    }

    fn connect(&mut self, gid: Gid, qpn: Qpn) {
        let attr = QpAttr {
            qp_access_flags: EVERY_RIGHT,
            path_mtu: Mtu::M1024,
            ah_attr: AhAttr::new(gid, 0),
            dest_qp_num: qpn,
            rq_psn: Psn::new(0xff_fff0),
            sq_psn: Psn::new(0xff_fff0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer(Bits::low(12)),
            timeout: AckTimeout(Bits::low(8)),
            retry_cnt: RetryCount(Bits::low(7)),
            rnr_retry: RnrRetry(Bits::low(7)),
            ..QpAttr::default()
        };
        self.engine.bring_up(self.qp, QpState::Rts, &attr).unwrap();
    }

    fn core(&mut self) -> &mut Core {
        self.core.as_mut().unwrap()
    }

    /// Acts as the program, by chance.
    fn act(&mut self, peer: (u64, RKey), seed: u64) {
        if self.is_dead {
            return;
        }
        for _ in 0..1 + self.random.next() % 4 {
            let Some(message) = self.to_send.front() else { break };
            let eager_max = self.core.as_ref().unwrap().eager_max();
            let queued = if is_lent(message, eager_max) {
                let number = self.core.as_mut().unwrap().queue_lent(message.len());
                if number.is_some() {
                    let buffer = Buffer::from_bytes(message);
                    let (region, base) = (buffer.region(), buffer.addr());
                    let attr = MrAttr { region, base, access: Access::empty() };
                    let mr = self.engine.register(self.pd, attr).unwrap();
                    self.lent.push_back((buffer, mr));
                }
                number.is_some()
            } else if message.len() <= eager_max {
                let (head, tail) = message.split_at(message.len() / 3);
                self.core.as_mut().unwrap().queue(&[head, tail])
            } else {
                // It is registered once, however often it has to wait.
                let (buffer, mr) = self.waiting.get_or_insert_with(|| {
                    let buffer = Buffer::from_bytes(message);
                    let (region, base) = (buffer.region(), buffer.addr());
                    let attr = MrAttr { region, base, access: EVERY_RIGHT };
                    (buffer, self.engine.register(self.pd, attr).unwrap())
                });
                let (addr, len, rkey) = (buffer.addr(), buffer.len() as u64, mr.rkey().get());
                let core = self.core.as_mut().unwrap();
                let queued = core.queue_rendezvous(Source { addr, len, rkey });
                if queued {
                    self.large.extend(self.waiting.take());
                }
                queued
            };
            if !queued {
                break;
            }
            self.to_send.pop_front();
        }
        if self.random.next().is_multiple_of(3) && self.operations < 20 {
            let op = SendOp::FetchAdd { remote_addr: peer.0, rkey: peer.1, add: 1 };
            if self.core().operate(op).is_some() {
                self.operations += 1;
            }
        }
        // A program that does not read for a while.
        let reads = !((seed >> 8) ^ (self.received.len() as u64 / 7)).is_multiple_of(3)
            || self.random.next().is_multiple_of(8);
        let mut out = Vec::new();
        while reads && !self.random.next().is_multiple_of(5) {
            match self.core().take(&mut out) {
                Taken::Message => self.received.push(std::mem::take(&mut out)),
                Taken::Nothing => break,
                Taken::End => {
                    self.has_end = true;
                    break;
                }
            }
        }
        if self.to_send.is_empty() && self.operations >= 20 {
            self.core().finish();
        }
    }

    /// A program that closes: it takes what comes, and ends when its messages are delivered or
    /// cannot be.
    fn close(&mut self) {
        if self.is_dead {
            return;
        }
        self.is_closing = true;
        self.core().close();
        let mut out = Vec::new();
        while self.core().take(&mut out) == Taken::Message {
            self.received.push(std::mem::take(&mut out));
        }
        let core = self.core();
        self.is_dead = core.is_closed_and_delivered() || core.failure().is_some();
    }

    /// Takes what has arrived, after the end.
    fn drain(&mut self) {
        let mut out = Vec::new();
        while self.core().take(&mut out) == Taken::Message {
            self.received.push(std::mem::take(&mut out));
        }
    }

    /// Moves completions to the core, and its work to the engine.
    fn progress(&mut self) {
        if self.is_dead {
            return;
        }
        let mut wcs = [Wc::default(); 8];
        let count = self.engine.poll_cq(self.cq, &mut wcs);
        let core = self.core.as_mut().unwrap();
        wcs.iter().take(count).for_each(|wc| core.handle_completion(wc));
        while self.large.len() > usize::from(core.unread()) {
            let (_, mr) = self.large.pop_front().unwrap();
            self.engine.deregister(mr).unwrap();
        }
        while self.first_lent < core.lent_done() {
            // If the NIC read it once more, that would fail.
            let (_, mr) = self.lent.pop_front().unwrap();
            self.engine.deregister(mr).unwrap();
            self.first_lent += 1;
        }
        for _ in 0..core.poll_receives() {
            let wr = RecvWr { id: receive_id(), sges: &[] };
            self.engine.post_recv(self.qp, &wr).unwrap();
        }
        while let Some(post) = core.poll_post() {
            let staged = |offset: u32, length| Sge {
                addr: self.staging.addr() + u64::from(offset),
                length,
                lkey: self.staging_key,
            };
            let sges = match post.local {
                Local::Staging { offset, len } => vec![staged(offset, len)],
                Local::Lent { offset, len, payload, number } => {
                    let at = usize::try_from(number - self.first_lent).unwrap();
                    let (buffer, mr) = &self.lent[at];
                    let lent = Sge { addr: buffer.addr(), length: payload, lkey: mr.lkey() };
                    vec![staged(offset, 8), lent, staged(offset + 8 + payload, len - payload - 8)]
                }
                Local::Operation(_) => {
                    vec![staged(u32::try_from(self.staging.len()).unwrap() - 8, 8)]
                }
                Local::None => Vec::new(),
                Local::Caller => unreachable!("the simulation stages all"),
            };
            let data = Data::Gather(&sges);
            let flags = if post.is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { id: post.id, data, flags, target: Target::Peer, op: post.op };
            self.engine.post_send(self.qp, &wr, &[]).unwrap();
        }
    }

    fn is_done(&self) -> bool {
        let core = self.core.as_ref().unwrap();
        self.is_dead
            || core.failure().is_some()
            || self.has_end && core.is_finished() && core.is_idle()
    }
}

/// Result of a seed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    wrong: Vec<String>,
    received: [usize; 2],
    has_failed: bool,
    time: u64,
}

/// Connects two sides by a plan; returns them with the messages that each is to send.
fn connected(plan: &Plan, seed: u64) -> ([Side; 2], [Vec<Vec<u8>>; 2]) {
    let mut sides = [Side::new(1, plan, seed), Side::new(2, plan, seed)];
    let ends = [0, 1].map(|at: usize| (sides[at].gid, sides[at].qpn()));
    let rings = [0, 1].map(|at: usize| PeerRing {
        addr: sides[at].ring.addr(),
        rkey: sides[at].ring_key,
        size: plan.ring[at],
        writes: plan.writes[at],
        send_max: plan.send_max[at],
    });
    let mut sent = [Vec::new(), Vec::new()];
    for (at, side) in sides.iter_mut().enumerate() {
        side.connect(ends[1 - at].0, ends[1 - at].1);
        let own = OwnMemory {
            ring: side.ring.region(),
            ring_size: plan.ring[at],
            staging: side.staging.region(),
            chunk: 1024,
            writes: plan.writes[at],
            send_max: plan.send_max[at],
        };
        let core = Core::new(own, rings[1 - at], 1 << 20);
        let numbers = 0..plan.messages as u64;
        sent[at] =
            numbers.map(|number| message(seed * 2 + at as u64, number, core.eager_max())).collect();
        side.to_send = sent[at].iter().cloned().collect();
        side.core = Some(core);
    }
    (sides, sent)
}

fn run(seed: u64) -> Outcome {
    let plan = Plan::new(seed, &mut Random::new(seed));
    let (sides, sent) = connected(&plan, seed);
    let shared = [0, 1].map(|at: usize| (sides[at].shared.addr(), sides[at].shared_key));
    let mut world = World::new(sides.into(), plan.faults, seed, Instant::ZERO);
    let (mut outcome, mut idle) = (Outcome::default(), 0);
    for turn in 0.. {
        let (now, sides) = (world.now, &mut world.hosts);
        if sides.iter().all(Side::is_done) {
            break;
        }
        if turn == 100_000 {
            let received: Vec<usize> = sides.iter().map(|side| side.received.len()).collect();
            outcome.wrong.push(format!("no end after {now}: {received:?}"));
            break;
        }
        if plan.kill.is_some_and(|kill| kill <= now) {
            sides[0].is_dead = true;
        }
        let mut moved = false;
        for at in [0, 1] {
            let side = &mut world.hosts[at];
            if at == 1 && plan.close.is_some_and(|close| close <= now) {
                side.close();
            } else {
                side.act(shared[1 - at], seed);
            }
            side.progress();
            let is_alive = !side.is_dead;
            moved |= world.transmit(at, |_, _, _| is_alive);
        }
        // A survivor that is idle probes, as its program does after a while.
        let next = world.next();
        if next.is_none() {
            world.hosts.iter_mut().for_each(|side| side.core().probe());
        }
        // A program looks again after some time even if nothing happens.
        idle = if moved { 0 } else { (idle + 1).min(8) };
        let look = now.saturating_add(Duration::from_micros(10 << idle));
        world.advance(next.unwrap_or(look).min(look));
    }
    let now = world.now;
    let Ok(mut sides) = <[Side; 2]>::try_from(world.hosts) else { unreachable!("there are two") };
    sides.iter_mut().filter(|side| !side.is_dead).for_each(Side::drain);
    judge(&plan, &sides, &sent, &mut outcome);
    judge_undelivered(&sides, &sent, &mut outcome);
    outcome.time = now.as_nanos();
    outcome
}

/// Messages arrive in order, each once; all of them, unless the connection has failed.
fn judge(plan: &Plan, sides: &[Side; 2], all: &[Vec<Vec<u8>>; 2], outcome: &mut Outcome) {
    let failures = sides.each_ref().map(|side| side.core.as_ref().unwrap().failure());
    for at in [0, 1] {
        let (got, sent) = (&sides[at].received, &all[1 - at]);
        outcome.received[at] = got.len();
        if !sent.starts_with(got) {
            outcome.wrong.push(format!("side {at}: what it received is not what was sent"));
        }
        if sides.iter().all(|side| !side.is_dead && !side.is_closing) && failures == [None; 2] {
            if got.len() != sent.len() {
                outcome.wrong.push(format!("side {at}: {} of {} messages", got.len(), sent.len()));
            }
            let mut count = [0; 8];
            sides[at].shared.read(0, &mut count).unwrap();
            if u64::from_ne_bytes(count) != 20
                || sides[at].core.as_ref().unwrap().operations_done() != 20
            {
                outcome.wrong.push(format!("side {at}: {count:?} of 20 operations"));
            }
        }
        judge_kept(&sides[at], &all[at], sides[1 - at].received.len(), outcome);
        // The credits: no WRITE finds the peer without a receive.
        if sides[at].engine.counters().get(Counter::RnrSent) != 0 {
            outcome.wrong.push(format!("side {at} had no receive"));
        }
        match failures[at] {
            Some(Failure::Status(WcStatus::RetryExcErr)) => outcome.has_failed = true,
            Some(Failure::Status(WcStatus::WrFlushErr)) | None => {}
            other => outcome.wrong.push(format!("side {at} failed: {other:?}")),
        }
    }
    if plan.kill.is_some() && sides[0].is_dead && failures[1].is_none() && !sides[1].has_end {
        outcome.wrong.push("the survivor did not notice".to_owned());
    }
}

/// Messages that a side does not count as undelivered have arrived, and a side that closes counts
/// none.
fn judge_undelivered(sides: &[Side; 2], all: &[Vec<Vec<u8>>; 2], outcome: &mut Outcome) {
    for at in [0, 1] {
        let (side, peer) = (&sides[at], &sides[1 - at]);
        let core = side.core.as_ref().unwrap();
        let queued = all[at].len() - side.to_send.len();
        let delivered = queued - core.undelivered();
        // A large message that was not read holds up those behind it.
        if !peer.is_dead && core.unread() == 0 && peer.received.len() < delivered {
            let got = peer.received.len();
            outcome.wrong.push(format!("side {at}: {got} of {delivered} delivered messages"));
        }
        if side.is_closing && core.is_closed_and_delivered() && delivered != queued {
            outcome.wrong.push(format!("side {at}: {delivered} of {queued} at its end"));
        }
        if side.is_closing && side.is_dead && !peer.has_end && core.failure().is_none() {
            let failure = peer.core.as_ref().unwrap().failure();
            if !peer.core.as_ref().unwrap().has_peer_closed() {
                outcome.wrong.push(format!("the peer did not learn of the end: {failure:?}"));
            }
        }
    }
}

/// Checks that the messages which a side keeps are the last of its queue, and that the peer has
/// received all others.
fn judge_kept(side: &Side, sent: &[Vec<u8>], received: usize, outcome: &mut Outcome) {
    let core = side.core.as_ref().unwrap();
    let is_eager = |message: &&Vec<u8>| {
        message.len() <= core.eager_max() && !is_lent(message, core.eager_max())
    };
    let queued = &sent[..sent.len() - side.to_send.len()];
    let eager: Vec<&Vec<u8>> = queued.iter().filter(is_eager).collect();
    let kept = core.unconsumed().messages;
    let received = sent[..received].iter().filter(is_eager).count();
    if !eager.ends_with(&kept.iter().collect::<Vec<_>>()) || eager.len() - kept.len() > received {
        outcome.wrong.push(format!("it kept {} of {} messages", kept.len(), eager.len()));
    }
}

#[test]
fn messages_arrive_once_and_in_order() {
    let (mut bad, mut failed, mut received, mut count) = (Vec::new(), 0, 0, 0);
    for seed in crate::random::seeds() {
        let outcome = run(seed);
        count += 1;
        // A peer that was killed or has ended does not answer.
        failed += u64::from(outcome.has_failed && seed % 16 != 15 && seed % 8 != 5);
        received += outcome.received.iter().sum::<usize>();
        if !outcome.wrong.is_empty() {
            bad.push(format!("seed {seed}: {}", outcome.wrong.join("; ")));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    // A connection may fail if all retransmissions are lost; few do.
    assert!(failed <= 1 + count / 50, "{failed} of {count} connections failed");
    assert!(count == 1 || received as u64 >= count * 20, "{received} messages");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 5, 6, 15] {
        assert_eq!(run(seed), run(seed));
    }
}
