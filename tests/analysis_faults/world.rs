//! Two engines, the two hops between them, and three capture points, under virtual time.

use std::time::Duration;

use roce::analysis::RetransmissionCause;
use roce::engine::{
    Batch, Config, Counter, CqHandle, Engine, MrAttr, MrHandle, PdHandle, QpHandle, Received,
};
use roce::link::fault::{Action, Direction, Rule, Rules};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AhAttr, Data, QpAttr, QpState, QpType, RecvWr, SendOp, SendWr, Sge, Target, UdTarget,
    Wc, WrId,
};
use roce::wire::aeth::Answer;
use roce::wire::{
    BthRepr, DethRepr, Gid, ICRC_ROOM, Opcode, Operation, Packet, Path, Psn, QKey, Qpn, RKey,
};

use super::plan::{Class, FaultRule, Op, Post, Scenario};
use super::truth::{Captured, Completed, Injected, Transmission, Truth, WITNESS};
use super::two_hosts::pair::{REMOTE, create_qp};
use super::two_hosts::world::{Net, World as _};
use super::two_hosts::{frames, world};
pub use super::wire::HOP_DELAY;
use super::wire::{Hop, InFlight, gid, sealed};

const BUFFER: usize = 1 << 17;

/// Offset that the peer's WRITEs and ATOMICs target: behind the last byte of the longest message.
const WRITTEN: u64 = BUFFER as u64 / 4 + 4096;
const QKEY: u32 = 0x1234;

/// Steps after which a scenario is taken not to end.
const STEPS_MAX: usize = 200_000;

struct Host {
    engine: Engine,
    gid: Gid,
    pd: PdHandle,
    _buffer: Buffer,
    mr: MrHandle,
    batch: Batch,
}

/// One side of a connection.
struct Side {
    qp: QpHandle,
    cq: CqHandle,
    qpn: Qpn,
    target: Target,
    remote: (u64, RKey),
    requester: Requester,
}

/// State of a requester, from the packets that it emitted and received.
#[derive(Default)]
struct Requester {
    /// Sequence number behind the last that was ever emitted.
    next: u64,
    /// The last one that was emitted.
    last: Option<u64>,
    /// Cause of its next rewind, if it received one.
    pending: Option<RetransmissionCause>,
    /// Cause of its present retransmissions.
    cause: Option<RetransmissionCause>,
}

pub struct World<'s> {
    scenario: &'s Scenario,
    hosts: [Host; 2],
    sides: Vec<[Side; 2]>,
    /// Fault rules by hop.
    rules: [Rules; 2],
    /// The note of a packet is the number of its transmission.
    net: Net<usize>,
    start: Instant,
    truth: Truth,
}

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario) -> Truth {
    let mut world = World::new(scenario);
    assert!(world.run(STEPS_MAX), "{}: it never ends", scenario.name);
    world.finish()
}

fn host(number: u16, ipv6: bool) -> Host {
    let gid = gid(number, ipv6);
    let mut config = Config::new(gid);
    config.window_packets = 32;
    let mut engine = Engine::new(config, u64::from(number));
    let pd = engine.create_pd().unwrap();
    let buffer = Buffer::new(BUFFER);
    // Packets with the same headers shall differ.
    let bytes: Vec<u8> = (0..BUFFER).map(|at| (at.wrapping_mul(0x9e37) >> 7) as u8).collect();
    buffer.write(0, &bytes).unwrap();
    let access = Access::LOCAL_WRITE | REMOTE;
    let attr = MrAttr { region: buffer.region(), base: 0, access };
    let mr = engine.register(pd, attr).unwrap();
    Host { engine, gid, pd, _buffer: buffer, mr, batch: Batch::new(64) }
}

impl<'s> World<'s> {
    fn new(scenario: &'s Scenario) -> Self {
        let hosts = [host(1, scenario.ipv6), host(2, scenario.ipv6)];
        let start = Instant::from_nanos(1_000_000_000);
        let mut world = Self {
            scenario,
            hosts,
            sides: Vec::new(),
            rules: Default::default(),
            net: Net::new(start),
            start,
            truth: Truth::default(),
        };
        // So many that ICRCs are known to be right in these captures.
        for before in [4, 3, 2, 1] {
            world.witness(Instant::from_nanos(start.as_nanos() - before * 1_000_000));
        }
        for connection in 0..scenario.connections.len() {
            world.connect(connection);
        }
        for fault in &scenario.faults {
            let rule = world.rule(fault);
            world.rules[fault.hop as usize].add(rule);
        }
        world
    }

    /// A fault of the scenario as the injector takes it.
    fn rule(&self, fault: &FaultRule) -> Rule {
        let FaultRule { connection, requester, class, offset, nth, action, .. } = *fault;
        let to = if class == Class::Request { 1 - requester } else { requester };
        let first = Psn::new(self.scenario.connections[connection].attr.psns[requester]);
        Rule::new(action)
            .qp(self.sides[connection][to].qpn)
            .psn(first.plus(offset))
            .opcodes("class", |info| Class::of(info.operation) == class)
            .nth(nth)
    }

    /// Lets every point capture a datagram of another host, so that it is known to capture at this
    /// time.
    fn witness(&mut self, time: Instant) {
        if self.truth.transmissions.is_empty() {
            self.truth.transmissions.push(Transmission::witness(time));
        }
        let number = self.truth.captured[0].iter().filter(|seen| seen.transmission == WITNESS);
        let psn = Psn::new(number.count() as u32);
        let bth = BthRepr::new(Opcode::UD_SEND_ONLY, Qpn::new(7), psn);
        let deth = DethRepr { qkey: QKey::new(QKEY), src_qp: Qpn::new(9) };
        let headers = [&bth.emit().as_bytes()[..], &deth.emit().as_bytes()[..]].concat();
        let mut packet = [&headers[..], &[0; 4 + ICRC_ROOM]].concat();
        let source = witness(self.scenario.ipv6);
        let path = Path { source, destination: self.hosts[0].gid, ..Path::NOWHERE };
        let bytes = sealed(&path, &mut packet);
        let delays = [Duration::ZERO, HOP_DELAY, HOP_DELAY * 2];
        for (captured, delay) in self.truth.captured.iter_mut().zip(delays) {
            captured.push(Captured {
                time: time.saturating_add(delay),
                transmission: WITNESS,
                is_copy: false,
                is_corrupted: false,
                is_marked: false,
                bytes: bytes.clone(),
            });
        }
    }

    fn connect(&mut self, index: usize) {
        let plan = &self.scenario.connections[index];
        let made = [0, 1].map(|side| {
            let Host { engine, pd, .. } = &mut self.hosts[side];
            let (qp, cq) = create_qp(engine, *pd, plan.kind, None);
            (qp, cq, engine.qp_number(qp).unwrap())
        });
        let sides = [0, 1].map(|side| {
            let (peer_gid, peer_qpn) = (self.hosts[1 - side].gid, made[1 - side].2);
            let remote = (0, self.hosts[1 - side].mr.rkey());
            let Host { engine, pd, .. } = &mut self.hosts[side];
            let (qp, cq, qpn) = made[side];
            let attr = plan.attr.of_side(side, peer_gid, peer_qpn);
            let attr = QpAttr { qkey: QKey::new(QKEY), ..attr };
            engine.bring_up(qp, QpState::Rts, &attr).unwrap();
            let target = if plan.kind == QpType::Ud {
                let ah = engine.create_ah(*pd, AhAttr::new(peer_gid, 0)).unwrap();
                Target::Ud(UdTarget { ah, qpn: peer_qpn, qkey: QKey::new(QKEY) })
            } else {
                Target::Peer
            };
            Side { qp, cq, qpn, target, remote, requester: Requester::default() }
        });
        self.net.schedules.push([0, 1].map(|side| plan.schedule(side, self.start)));
        self.truth.qpns.push([sides[0].qpn.get(), sides[1].qpn.get()]);
        self.sides.push(sides);
        for (requester, work) in plan.work.iter().enumerate() {
            self.truth.completed.extend(work.iter().map(|post| Completed {
                connection: index,
                requester,
                op: post.op,
                len: post.len,
                status: None,
                begun: false,
            }));
        }
    }

    /// Returns the actions of the rules on a packet that passes a hop.
    fn actions(&mut self, hop: Hop, number: usize) -> Vec<Action> {
        // What was sent, whatever a hop before has done to it.
        let packet = &self.truth.transmissions[number];
        let to = self.sides[packet.connection][1 - packet.sender].qpn;
        let bth = BthRepr::new(packet.opcode, to, Psn::new(packet.psn)).emit();
        let mut actions = Vec::new();
        let rules = &mut self.rules[hop as usize];
        rules.pass(Direction::Outbound, bth.as_bytes(), |_, action| actions.push(action));
        actions
    }

    fn emit(&mut self, from: usize, bytes: Vec<u8>) {
        let time = self.net.wire.leave(from, self.net.now, bytes.len());
        let transmission = self.understand(from, time, &bytes);
        self.truth.transmissions.push(transmission);
        let number = self.truth.transmissions.len() - 1;
        self.depart(time, InFlight::new(from, bytes, number));
    }

    /// Describes a packet that an engine emitted.
    fn understand(&mut self, from: usize, time: Instant, bytes: &[u8]) -> Transmission {
        let packet = Packet::parse(frames::transport(bytes)).unwrap();
        let bth = packet.bth();
        let (opcode, info) = (bth.opcode(), packet.info().unwrap());
        let to = bth.dest_qp();
        let mut connections = self.sides.iter().enumerate();
        let (connection, _) = connections.find(|(_, sides)| sides[1 - from].qpn == to).unwrap();
        let class = Class::of(info.operation);
        let plan = &self.scenario.connections[connection];
        let psns = match (info.operation, packet.reth()) {
            (Operation::ReadRequest, Some(reth)) => {
                let mtu = plan.attr.mtu.bytes() as u32;
                reth.dma_len().div_ceil(mtu).max(1)
            }
            _ => 1,
        };
        let space = if class == Class::Request { from } else { 1 - from };
        let requester = &mut self.sides[connection][space].requester;
        let psn = bth.psn();
        let ahead =
            psn.since(Psn::new(plan.attr.psns[space]).plus((requester.next & 0xff_ffff) as u32));
        let sequence = requester.next.saturating_add_signed(ahead.into());
        let (mut cause, mut rewinds) = (None, false);
        if class == Class::Request {
            if sequence < requester.next {
                rewinds = requester.last.is_some_and(|last| sequence <= last);
                match requester.pending.take() {
                    Some(pending) => {
                        rewinds = true;
                        requester.cause = Some(pending);
                    }
                    None if rewinds => requester.cause = Some(RetransmissionCause::Timeout),
                    None => {}
                }
                cause = requester.cause;
            }
            requester.next = requester.next.max(sequence + u64::from(psns));
            requester.last = Some(sequence + u64::from(psns) - 1);
        }
        let answer = packet.aeth().map(|aeth| aeth.syndrome().answer());
        Transmission {
            connection,
            sender: from,
            class,
            opcode,
            psn: psn.get(),
            psns,
            sequence,
            time,
            cause,
            rewinds,
            lost: None,
            corrupted: None,
            delivered: false,
            is_nak: matches!(answer, Some(Answer::Nak(_) | Answer::RnrNak(_))),
            is_cnp: info.operation == Operation::Cnp,
        }
    }

    /// Takes completions.
    fn poll(&mut self, side: usize) {
        for index in 0..self.sides.len() {
            let mut wcs = [Wc::default(); 64];
            let count = self.hosts[side].engine.poll_cq(self.sides[index][side].cq, &mut wcs);
            for wc in wcs.iter().take(count).filter(|wc| wc.id.0 >> 32 == 0) {
                let here = (index, side);
                let mut posts = self.truth.completed.iter_mut();
                let mut posts =
                    posts.by_ref().filter(|done| (done.connection, done.requester) == here);
                posts.nth(wc.id.0 as usize).unwrap().status = Some(wc.status);
            }
        }
    }

    fn finish(mut self) -> Truth {
        self.witness(self.net.now.max(self.start).saturating_add(Duration::from_millis(300)));
        for (side, host) in self.hosts.iter().enumerate() {
            let counts = counts(&host.engine);
            self.truth.counters[side] = [counts[0], counts[1], counts[2], counts[3]];
        }
        for (point, captured) in self.truth.captured.iter_mut().enumerate() {
            captured.sort_by_key(|frame| frame.time);
            let ahead = self.scenario.clocks[point];
            for frame in captured {
                frame.time =
                    Instant::from_nanos(frame.time.as_nanos().saturating_add_signed(ahead));
            }
        }
        self.truth
    }
}

impl world::World for World<'_> {
    type Note = usize;

    fn net(&mut self) -> &mut Net<usize> {
        &mut self.net
    }

    fn engines(&mut self) -> [&mut Engine; 2] {
        self.hosts.each_mut().map(|host| &mut host.engine)
    }

    fn post_send(&mut self, connection: usize, side: usize, number: usize) {
        let Post { op, len, .. } = self.scenario.connections[connection].work[side][number];
        let Host { engine, mr, .. } = &mut self.hosts[side];
        let here = &self.sides[connection][side];
        // What is written lies behind all that is sent, so that a retransmission finds its bytes as
        // they were.
        let (remote_addr, rkey) = (here.remote.0 + WRITTEN, here.remote.1);
        let is_answered = matches!(op, Op::Read | Op::CompareSwap | Op::FetchAdd);
        let imm = Some([1, 2, 3, 4]);
        let op = match op {
            Op::Send => SendOp::Send { imm: None },
            Op::SendImm => SendOp::Send { imm },
            Op::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Op::WriteImm => SendOp::Write { remote_addr, rkey, imm },
            Op::Read => SendOp::Read { remote_addr, rkey },
            Op::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
            Op::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            Op::WriteWrongKey => {
                SendOp::Write { remote_addr, rkey: RKey::new(rkey.get() ^ 0xff_ff00), imm: None }
            }
        };
        // Every message from a place of its own, so that packets differ.
        let sent = (number as u64 * 520) % (BUFFER as u64 / 8);
        let addr = if is_answered { BUFFER as u64 / 4 * 3 } else { sent };
        let sges = [Sge { addr, length: len, lkey: mr.lkey() }];
        let data = if len == 0 { Data::EMPTY } else { Data::Gather(&sges) };
        let wr = SendWr { target: here.target, ..SendWr::new(WrId(number as u64), op, data) };
        engine.post_send(here.qp, &wr, &[]).unwrap();
    }

    fn post_receive(&mut self, connection: usize, side: usize, number: usize) {
        let Host { engine, mr, .. } = &mut self.hosts[side];
        let sge = Sge { addr: BUFFER as u64 / 2, length: 1 << 15, lkey: mr.lkey() };
        let wr = RecvWr { id: WrId(1 << 32 | number as u64), sges: &[sge] };
        engine.post_recv(self.sides[connection][side].qp, &wr).unwrap();
    }

    fn transmit(&mut self) {
        for from in [0, 1] {
            loop {
                let Host { engine, batch, .. } = &mut self.hosts[from];
                batch.clear();
                if engine.poll_transmit(self.net.now, batch) == 0 {
                    break;
                }
                let mut packets = Vec::new();
                batch.for_each_mut(|path, packet| packets.push(sealed(path, packet)));
                for bytes in packets {
                    self.emit(from, bytes);
                }
            }
            for sides in &mut self.sides {
                // What a NAK asks for is retransmitted at once, or not at all.
                let requester = &mut sides[from].requester;
                if requester.pending != Some(RetransmissionCause::Rnr) {
                    requester.pending = None;
                }
            }
            self.poll(from);
        }
    }

    /// One thing at a time, so that the cause of what an engine emits next is known.
    fn step(&mut self) {
        if !self.arrive() {
            self.handle_timeouts();
        }
    }

    fn capture(&mut self, point: usize, time: Instant, packet: &InFlight<usize>) {
        self.truth.captured[point].push(Captured {
            time,
            transmission: packet.note,
            is_copy: packet.is_copy,
            is_corrupted: packet.is_corrupted,
            is_marked: packet.is_marked,
            bytes: packet.bytes.clone(),
        });
    }

    fn pass(&mut self, hop: Hop, time: Instant, packet: InFlight<usize>) {
        let transmission = packet.note;
        let cut = self.scenario.cut;
        let is_cut =
            cut.is_some_and(|(at, cut)| cut == hop && self.start.saturating_add(at) <= time);
        let actions = if is_cut { vec![Action::Drop] } else { self.actions(hop, transmission) };
        let Truth { transmissions, injected, .. } = &mut self.truth;
        let arrives = self.net.wire.pass(hop, time, packet, &actions, |action| {
            injected.push(Injected { transmission, hop, action });
            if action == Action::Corrupt {
                transmissions[transmission].corrupted.get_or_insert(hop);
            }
            injected.len().wrapping_mul(0x9e37_79b9)
        });
        if !arrives {
            transmissions[transmission].lost = Some(hop);
        }
    }

    /// Notes what the packet makes the requester do.
    fn deliver(&mut self, to: usize, packet: &InFlight<usize>) {
        if packet.is_corrupted {
            return;
        }
        let number = packet.note;
        let connection = self.truth.transmissions[number].connection;
        self.truth.transmissions[number].delivered = true;
        let (ip, rest) = packet.bytes.split_at(frames::network_len(&packet.bytes));
        let Host { engine, .. } = &mut self.hosts[to];
        let before = counts(engine);
        let received = Received {
            source: self.hosts[1 - to].gid,
            destination: self.hosts[to].gid,
            source_port: u16::from_be_bytes([rest[0], rest[1]]),
            ecn: if packet.is_marked { 3 } else { 0 },
            network: ip,
            packet: frames::transport(&packet.bytes),
            payload: None,
        };
        let Host { engine, .. } = &mut self.hosts[to];
        engine.handle_packet(self.net.now, &received);
        let after = counts(engine);
        let requester = &mut self.sides[connection][to].requester;
        let [_, sequence, implied, rnr, retries] = [0, 1, 2, 3, 4].map(|at| after[at] > before[at]);
        if retries && implied {
            requester.pending = Some(RetransmissionCause::ImpliedNak);
        } else if retries && sequence {
            requester.pending = Some(RetransmissionCause::SequenceNak);
        } else if rnr && !implied {
            requester.pending = Some(RetransmissionCause::Rnr);
        }
    }
}

/// The address of a host that has no connection.
pub fn witness(ipv6: bool) -> Gid {
    gid(3, ipv6)
}

fn counts(engine: &Engine) -> [u64; 5] {
    [
        Counter::Timeout,
        Counter::SequenceReceived,
        Counter::ImpliedNak,
        Counter::RnrReceived,
        Counter::Retry,
    ]
    .map(|counter| engine.counters().get(counter))
}
