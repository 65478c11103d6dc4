//! Two engines on a line of some rate and delay, which loses packets by chance. A packet is taken
//! from an engine when the line is free, as an RNIC does it, so that nothing queues.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use roce::capture::PcapWriter;
use roce::engine::{
    Batch, Config, Counter, CqHandle, EarlyTimeouts, Engine, MrAttr, QpCreate, QpHandle,
    ReceiveMode, Received, Recovery,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, Connect, Data, Endpoint, MrHandle, Mtu, QpCap, QpInitAttr, QpType, SendOp,
    SendWr, Sge, Wc, WcStatus, WrId,
};
use roce::wire::{Bits, Gid, Opcode, Path, Psn};

/// Time that a packet of data occupies the line: 4 KiB at 100 Gb/s. They are shorter here, for
/// speed; only their number in flight matters.
pub const PACKET_TIME: Duration = Duration::from_nanos(334);
/// Time that any other packet occupies it.
const SHORT_TIME: Duration = Duration::from_nanos(10);
/// Time of flight, so that 37 packets of data are in flight: 12 µs there and back.
const FLIGHT: Duration = Duration::from_nanos(6_000);
pub const MTU: usize = 256;
pub const MESSAGE: usize = 64 * MTU;
const MESSAGES: usize = 16;
const BYTES: usize = MESSAGE * MESSAGES;
pub const BASE: u64 = 1 << 20;
const OUTSTANDING: usize = 16;

pub struct Side {
    pub engine: Engine,
    pub qp: QpHandle,
    cq: CqHandle,
    pub mr: MrHandle,
    pub buffer: Buffer,
    free_at: Instant,
    /// Packets that it sent, by opcode.
    pub sent: BTreeMap<u8, usize>,
    /// Packets by source port.
    pub ports: BTreeMap<u16, usize>,
}

/// A packet on its way.
struct Flight {
    to: usize,
    path: Path,
    bytes: Vec<u8>,
}

pub struct Line {
    pub sides: [Side; 2],
    pub now: Instant,
    flights: BTreeMap<(Instant, u64), Flight>,
    /// Packets as they were sent, if they are wanted.
    pub capture: Option<PcapWriter<Vec<u8>>>,
    /// Chance of a loss of data, in billionths.
    pub loss: u64,
    /// Delay that a path adds, by its source port's place among eight.
    pub skew: Duration,
    dice: u64,
    number: u64,
    completed: usize,
}

/// Operation that a stream repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Write,
    Read,
}

pub fn selective(config: &mut Config) {
    config.recovery = Recovery::SelectiveRepeat(EarlyTimeouts::IRN);
    config.receive = ReceiveMode::Buffer;
}

impl Line {
    /// Two engines that are configured alike, and agreed if `agrees`.
    pub fn new(configure: [&dyn Fn(&mut Config); 2], agrees: bool) -> Self {
        let gid = |side: usize| Gid::from(Ipv4Addr::new(192, 0, 2, side as u8 + 1));
        let mut sides = [0, 1].map(|side| {
            let mut config = Config::new(gid(side));
            config.window_packets = 128;
            configure[side](&mut config);
            let mut engine = Engine::new(config, side as u64 + 1);
            let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(64).unwrap());
            let buffer = Buffer::from_bytes(&pattern(side as u8 + 1));
            let access = Access::LOCAL_WRITE | Access::REMOTE;
            let attr = MrAttr { region: buffer.region(), base: BASE, access };
            let mr = engine.register(pd, attr).unwrap();
            let cap = QpCap { max_send_wr: 32, max_send_sge: 1, ..QpCap::default() };
            let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
            let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
            let qp = engine.create_qp(pd, create).unwrap();
            let (free_at, sent, ports) = (Instant::ZERO, BTreeMap::new(), BTreeMap::new());
            Side { engine, qp, cq, mr, buffer, free_at, sent, ports }
        });
        let ends = [0, 1].map(|side: usize| {
            let qpn = sides[side].engine.qp_number(sides[side].qp).unwrap();
            Endpoint { gid: gid(side), qpn, psn: Psn::new(100) }
        });
        for (at, side) in sides.iter_mut().enumerate() {
            // Longer than a packet takes there and back; for selective repeat longer than its own
            // timeouts.
            let timeout = AckTimeout(Bits::low(if agrees { 10 } else { 3 }));
            let how = Connect::default().mtu(Mtu::M256).psn(Psn::new(100)).timeout(timeout);
            let how = how.selective_repeat(agrees);
            side.engine.connect(side.qp, &ends[1 - at], &how).unwrap();
        }
        Self {
            sides,
            now: Instant::from_nanos(1),
            flights: BTreeMap::new(),
            capture: None,
            loss: 0,
            skew: Duration::ZERO,
            dice: 0x9e37_79b9_7f4a_7c15,
            number: 0,
            completed: 0,
        }
    }

    fn roll(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice >> 20
    }

    pub fn counter(&self, side: usize, counter: Counter) -> u64 {
        self.sides[side].engine.counters().get(counter)
    }

    /// Posts the next message of the stream from the first side.
    fn post(&mut self, work: Work, number: usize) {
        let at = (number % MESSAGES * MESSAGE) as u64;
        let (remote_addr, rkey) = (BASE + at, self.sides[1].mr.rkey());
        let op = match work {
            Work::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Work::Read => SendOp::Read { remote_addr, rkey },
        };
        let side = &mut self.sides[0];
        let sge = Sge { addr: BASE + at, length: MESSAGE as u32, lkey: side.mr.lkey() };
        let wr = SendWr::new(WrId(number as u64), op, Data::Gather(std::slice::from_ref(&sge)));
        side.engine.post_send(side.qp, &wr, &[]).unwrap();
    }

    /// Sends `count` messages; returns the share of the line's rate that arrived, and checks what
    /// it brought.
    pub fn stream(&mut self, work: Work, count: usize) -> f64 {
        self.stream_with(work, count, |_| {})
    }

    /// Sends `count` messages, and calls `each_step` after each step, while packets are in flight.
    pub fn stream_with(
        &mut self,
        work: Work,
        count: usize,
        mut each_step: impl FnMut(&mut Self),
    ) -> f64 {
        let (start, before) = (self.now, self.completed);
        let source = self.sides[usize::from(work == Work::Read)].buffer.to_vec();
        let mut posted = before;
        while self.completed < before + count {
            while posted < before + count && posted < self.completed + OUTSTANDING {
                self.post(work, posted);
                posted += 1;
            }
            self.step();
            if self.completed < before + count {
                each_step(self);
            }
        }
        let took = self.now.saturating_since(start).as_secs_f64();
        let [own, peer] = [0, 1].map(|side: usize| self.sides[side].buffer.to_vec());
        for number in before..before + count.min(MESSAGES) {
            let at = number % MESSAGES * MESSAGE..(number % MESSAGES + 1) * MESSAGE;
            let [own, peer, source] = [&own, &peer, &source].map(|bytes| &bytes[at.clone()]);
            assert!(own == source && peer == source, "{work:?} {number}: what was sent is there");
        }
        (count * MESSAGE / MTU) as f64 * PACKET_TIME.as_secs_f64() / took
    }

    /// Lets everything happen until the next point in time.
    pub fn step(&mut self) {
        for side in 0..2 {
            self.transmit(side);
        }
        let busy = self.sides.iter().filter(|side| side.engine.has_transmit());
        let busy = busy.map(|side| side.free_at);
        let timers = self.sides.iter().filter_map(|side| side.engine.poll_timeout());
        let arrival = self.flights.first_key_value().map(|((at, _), _)| *at);
        let next = busy.chain(timers).chain(arrival).min().expect("something is to happen");
        self.now = self.now.max(next);
        while let Some(entry) = self.flights.first_entry().filter(|next| next.key().0 <= self.now) {
            let Flight { to, path, bytes } = entry.remove();
            let received = Received::unchanged(&path, &bytes);
            self.sides[to].engine.handle_packet(self.now, &received);
        }
        for side in &mut self.sides {
            side.engine.handle_timeout(self.now);
        }
        self.poll();
    }

    fn poll(&mut self) {
        let mut done = [Wc::default(); 16];
        let Side { engine, cq, .. } = &mut self.sides[0];
        let count = engine.poll_cq(*cq, &mut done);
        for wc in &done[..count] {
            assert_eq!((wc.status, wc.id.0), (WcStatus::Success, self.completed as u64));
            self.completed += 1;
        }
    }

    fn transmit(&mut self, from: usize) {
        while self.sides[from].free_at <= self.now {
            let mut batch = Batch::new(1);
            let side = &mut self.sides[from];
            if side.engine.poll_transmit(self.now, &mut batch) == 0 {
                return;
            }
            let (path, bytes) = batch.iter().next().unwrap();
            let (path, mut bytes) = (*path, bytes.to_vec());
            if let Some(capture) = &mut self.capture {
                let headers = path.seal(&mut bytes);
                let (ip, udp) = headers.as_bytes();
                let whole = [ip, udp, &bytes].concat();
                capture.write(self.now, whole.len() as u32, &whole).unwrap();
            }
            *side.sent.entry(bytes[0]).or_insert(0) += 1;
            *side.ports.entry(path.source_port).or_insert(0) += 1;
            let is_data = bytes.len() > MTU;
            let time = if is_data { PACKET_TIME } else { SHORT_TIME };
            side.free_at = self.now.saturating_add(time);
            if is_data && self.roll() % 1_000_000_000 < self.loss {
                continue;
            }
            let skew = self.skew * u32::from(path.source_port % 8);
            let at = self.now.saturating_add(time + FLIGHT + skew);
            self.number += 1;
            self.flights.insert((at, self.number), Flight { to: 1 - from, path, bytes });
        }
    }

    /// Gives a packet to a side, as from its peer.
    pub fn inject(&mut self, to: usize, packet: &[u8]) -> roce::engine::Disposition {
        let from = 1 - to;
        let attr = self.sides[from].engine.query_qp(self.sides[from].qp).unwrap();
        let source_port = self.sides[from].ports.keys().next().copied().unwrap_or(0xc000);
        let source = Gid::from(Ipv4Addr::new(192, 0, 2, from as u8 + 1));
        let received = Received {
            source,
            destination: attr.ah_attr.dgid,
            source_port,
            ecn: 0,
            network: &[],
            packet,
            payload: None,
        };
        self.sides[to].engine.handle_packet(self.now, &received)
    }

    /// Number of SACKs that a side sent.
    pub fn sacks(&self, side: usize) -> usize {
        self.sides[side].sent.get(&Opcode::RC_SELECTIVE_ACKNOWLEDGE.0).copied().unwrap_or(0)
    }

    /// Number of packets of data that a side sent.
    pub fn data(&self, side: usize) -> usize {
        let is_data = |opcode: u8| {
            let info = Opcode(opcode).info().unwrap();
            info.payload.allows(MTU, MTU) && !matches!(opcode, 0xd1)
        };
        self.sides[side].sent.iter().filter(|(opcode, _)| is_data(**opcode)).map(|(_, n)| n).sum()
    }
}

/// Bytes that tell sides and places apart.
fn pattern(seed: u8) -> Vec<u8> {
    (0..BYTES as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ seed).collect()
}
