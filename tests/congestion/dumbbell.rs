//! N hosts that send through one egress port of a switch, to one receiver each: a bottleneck in
//! virtual time, with a queue that marks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use roce::engine::congestion::{Congestion, Hop};
use roce::engine::{Config, Counter};
use roce::verbs::QpType;

use crate::Dice;
use crate::host::{Host, Sent, at};

/// Picoseconds of a nanosecond: packets last parts of these.
const PS: u64 = 1000;

pub struct Plan {
    /// Congestion control of each flow, or one of all.
    pub congestion: Vec<Congestion>,
    /// Rate of all links, in bit/s.
    pub rate: u64,
    /// Thresholds of the queue in bytes, and the chance of a mark at the second.
    pub kmin: f64,
    pub kmax: f64,
    pub pmax: f64,
    /// Delay of a link, in nanoseconds.
    pub delay: u64,
    /// Bytes of a message, and messages that are posted at once.
    pub message: u32,
    pub depth: usize,
    /// Times at which the senders begin, in nanoseconds.
    pub starts: Vec<u64>,
    /// End, and the time from which on is measured, in nanoseconds.
    pub end: u64,
    pub warm: u64,
    pub seed: u64,
    /// Interval between CNPs, in microseconds.
    pub cnp_interval: u64,
}

/// Measurements after the warm-up.
#[derive(Debug, Default)]
pub struct Results {
    /// Rates of the flows on the wire, in Gb/s.
    pub rates: Vec<f64>,
    /// Share of the time in which the bottleneck sent.
    pub used: f64,
    pub marked: f64,
    pub alpha: f64,
    /// Mean of the queue after the warm-up, and its maximum from the beginning, in bytes.
    pub queue: f64,
    pub peak: u64,
    /// Maximum of the queue after the warm-up.
    pub steady_peak: u64,
    /// Bytes on the wire of each flow at each millisecond.
    pub delivered: Vec<Vec<u64>>,
    /// Rates that the controllers allowed, each 100 µs, in Gb/s.
    pub allowed: Vec<Vec<f64>>,
    pub packet: f64,
}

impl Results {
    pub fn jain(&self) -> f64 {
        let sum: f64 = self.rates.iter().sum();
        let squares: f64 = self.rates.iter().map(|rate| rate * rate).sum();
        sum * sum / (self.rates.len() as f64 * squares)
    }

    /// Rate of a flow between two milliseconds, in Gb/s.
    pub fn rate_between(&self, flow: usize, from: usize, to: usize) -> f64 {
        let bytes = self.delivered[to][flow] - self.delivered[from][flow];
        bytes as f64 * 8.0 / (to - from) as f64 / 1e6
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start(usize),
    /// The host's port is free, or a deadline has come.
    Pump(usize),
    AtSwitch(usize, u64),
    PortFree,
    AtReceiver(usize, u64),
    AtSender(usize, u64),
    Look,
}

struct Flow {
    sender: Host,
    receiver: Host,
    port_free: u64,
    /// Time of the next `Pump` that counts.
    pump_at: u64,
    /// Telemetry of the last packet.
    telemetry: Option<Hop>,
    bytes: u64,
    warm_bytes: u64,
}

pub struct World {
    plan: Plan,
    flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    now: u64,
    /// Packets on their way, by number.
    packets: Vec<Option<(Sent, u8, Option<Hop>)>>,
    unused: Vec<u64>,
    queue: VecDeque<(usize, u64)>,
    queued: u64,
    busy: bool,
    port_sent: u64,
    dice: Dice,
    results: Results,
    counted: (u64, u64, u64),
    queue_time: f64,
    queue_since: u64,
    busy_time: u64,
    alphas: (f64, u64),
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let configure = |config: &mut Config, flow: usize| {
            config.congestion = plan.congestion[flow % plan.congestion.len()].clone();
            config.line_rate = Some(plan.rate);
            config.cnp_interval = std::time::Duration::from_micros(plan.cnp_interval);
        };
        let flow = |flow: usize| {
            let number = u8::try_from(2 * flow).unwrap();
            let host = |number| Host::new(number, QpType::Rc, |config| configure(config, flow));
            let (mut sender, mut receiver) = (host(number + 1), host(number + 2));
            sender.connect(&receiver);
            receiver.connect(&sender);
            let (port_free, pump_at, bytes, warm_bytes) = (0, u64::MAX, 0, 0);
            Flow { sender, receiver, port_free, pump_at, telemetry: None, bytes, warm_bytes }
        };
        let mut world = Self {
            flows: (0..plan.starts.len()).map(flow).collect(),
            events: BinaryHeap::new(),
            number: 0,
            now: 0,
            packets: Vec::new(),
            unused: Vec::new(),
            queue: VecDeque::new(),
            queued: 0,
            busy: false,
            port_sent: 0,
            dice: Dice::new(plan.seed + 1),
            results: Results::default(),
            counted: (0, 0, 0),
            queue_time: 0.0,
            queue_since: 0,
            busy_time: 0,
            alphas: (0.0, 0),
            plan,
        };
        for flow in 0..world.flows.len() {
            let start = world.plan.starts[flow] * PS + world.dice.below(1_000_000);
            world.push(start, Event::Start(flow));
        }
        world.push(0, Event::Look);
        world
    }

    fn push(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn keep(&mut self, packet: Sent) -> u64 {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.packets.push(None);
            self.packets.len() as u64 - 1
        });
        self.packets[id as usize] = Some((packet, 0, None));
        id
    }

    /// Picoseconds that bytes last.
    fn duration(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000_000 / u128::from(self.plan.rate)) as u64
    }

    pub fn run(mut self) -> Results {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now > self.plan.end * PS {
                break;
            }
            self.now = now;
            match event {
                Event::Start(flow) => {
                    let memory = self.flows[flow].receiver.memory();
                    for _ in 0..self.plan.depth {
                        self.flows[flow].sender.write(memory, self.plan.message);
                    }
                    self.pump(flow);
                }
                Event::Pump(flow) => {
                    if self.flows[flow].pump_at == now {
                        self.flows[flow].pump_at = u64::MAX;
                        self.pump(flow);
                    }
                }
                Event::AtSwitch(flow, id) => self.enqueue(flow, id),
                Event::PortFree => self.dequeue(),
                Event::AtReceiver(flow, id) => self.receive(flow, id),
                Event::AtSender(flow, id) => self.acknowledge(flow, id),
                Event::Look => self.look(),
            }
        }
        self.finish()
    }

    fn is_warm(&self) -> bool {
        self.now >= self.plan.warm * PS
    }

    /// Sends the next packet of a host, if its port is free and its engine has one.
    fn pump(&mut self, flow: usize) {
        let now = at(self.now / PS);
        let host = &mut self.flows[flow];
        if self.now < host.port_free {
            let free = host.port_free;
            return self.pump_later(flow, free);
        }
        if host.sender.engine.poll_timeout().is_some_and(|timeout| timeout <= now) {
            host.sender.engine.handle_timeout(now);
        }
        if let Some(packet) = host.sender.next(now) {
            let free = self.now + self.duration(packet.wire());
            self.flows[flow].port_free = free;
            let id = self.keep(packet);
            self.push(free + self.plan.delay * PS, Event::AtSwitch(flow, id));
            self.pump_later(flow, free);
        } else if let Some(timeout) = self.flows[flow].sender.engine.poll_timeout() {
            self.pump_later(flow, timeout.as_nanos() * PS);
        }
    }

    fn pump_later(&mut self, flow: usize, time: u64) {
        let time = time.max(self.now);
        if self.flows[flow].pump_at > time {
            self.flows[flow].pump_at = time;
            self.push(time, Event::Pump(flow));
        }
    }

    fn count_queue(&mut self) {
        if self.is_warm() {
            let since = self.queue_since.max(self.plan.warm * PS);
            self.queue_time += self.queued as f64 * (self.now - since) as f64;
        }
        self.queue_since = self.now;
    }

    fn enqueue(&mut self, flow: usize, id: u64) {
        self.count_queue();
        self.queued += self.packets[id as usize].as_ref().unwrap().0.wire();
        self.results.peak = self.results.peak.max(self.queued);
        if self.is_warm() {
            self.results.steady_peak = self.results.steady_peak.max(self.queued);
        }
        self.queue.push_back((flow, id));
        if !self.busy {
            self.busy = true;
            self.dequeue();
        }
    }

    /// The egress port takes the next packet, and marks it by the queue that it leaves behind.
    fn dequeue(&mut self) {
        self.count_queue();
        let Some((flow, id)) = self.queue.pop_front() else {
            self.busy = false;
            return;
        };
        let wire = self.packets[id as usize].as_ref().unwrap().0.wire();
        self.queued -= wire;
        self.port_sent += wire;
        let (queue, plan) = (self.queued as f64, &self.plan);
        let chance = if queue <= plan.kmin {
            0.0
        } else if queue <= plan.kmax {
            plan.pmax * (queue - plan.kmin) / (plan.kmax - plan.kmin)
        } else {
            1.0
        };
        let is_marked = chance > 0.0 && self.dice.share() < chance;
        let (sent, queue, rate) = (self.port_sent, self.queued, plan.rate);
        let hop = Hop { time: at(self.now / PS), sent, queue, rate };
        let (packet, ecn, telemetry) = self.packets[id as usize].as_mut().unwrap();
        // A switch marks only packets that are ECN-capable.
        let is_marked = is_marked && packet.ecn() != 0;
        *ecn = if is_marked { 3 } else { packet.ecn() };
        *telemetry = Some(hop);
        let duration = self.duration(wire);
        if self.is_warm() {
            self.counted.0 += 1;
            self.counted.1 += u64::from(is_marked);
            self.counted.2 += wire;
            self.busy_time += duration;
        }
        self.push(self.now + duration + self.plan.delay * PS, Event::AtReceiver(flow, id));
        self.push(self.now + duration, Event::PortFree);
    }

    fn receive(&mut self, flow: usize, id: u64) {
        let now = at(self.now / PS);
        let (packet, ecn, telemetry) = self.packets[id as usize].take().unwrap();
        self.unused.push(id);
        let receiver = &mut self.flows[flow].receiver;
        receiver.take(now, &packet, ecn);
        self.flows[flow].bytes += packet.wire();
        self.flows[flow].telemetry = telemetry;
        // ACKs and CNPs meet no queue.
        while let Some(answer) = self.flows[flow].receiver.next(now) {
            let id = self.keep(answer);
            self.packets[id as usize].as_mut().unwrap().2 = self.flows[flow].telemetry;
            self.push(self.now + 2 * self.plan.delay * PS, Event::AtSender(flow, id));
        }
    }

    fn acknowledge(&mut self, flow: usize, id: u64) {
        let now = at(self.now / PS);
        let (packet, ecn, telemetry) = self.packets[id as usize].take().unwrap();
        self.unused.push(id);
        let hops = if packet.is_cnp() { None } else { telemetry };
        let received = packet.received(ecn);
        let sender = &mut self.flows[flow].sender;
        sender.engine.handle_packet_with_telemetry(now, &received, hops.as_slice());
        let memory = self.flows[flow].receiver.memory();
        for _ in 0..self.flows[flow].sender.completions() {
            self.flows[flow].sender.write(memory, self.plan.message);
        }
        self.pump(flow);
    }

    /// Samples α each 100 µs, and what was delivered each millisecond.
    fn look(&mut self) {
        if self.now.is_multiple_of(1_000_000_000) {
            self.results.delivered.push(self.flows.iter().map(|flow| flow.bytes).collect());
        }
        if self.now == self.plan.warm * PS {
            self.flows.iter_mut().for_each(|flow| flow.warm_bytes = flow.bytes);
        }
        let allowed = |flow: &Flow| flow.sender.rate() as f64 / 1e9;
        self.results.allowed.push(self.flows.iter().map(allowed).collect());
        if self.is_warm() {
            for flow in &self.flows {
                let state = flow.sender.engine.rate(flow.sender.qp).unwrap();
                self.alphas.0 += f64::from(state.alpha.unwrap_or(0)) / 1e6;
                self.alphas.1 += 1;
            }
        }
        self.push(self.now + 100_000_000, Event::Look);
    }

    fn finish(mut self) -> Results {
        let span = ((self.plan.end - self.plan.warm) * PS) as f64;
        let rate = |flow: &Flow| (flow.bytes - flow.warm_bytes) as f64 * 8000.0 / span;
        self.results.rates = self.flows.iter().map(rate).collect();
        self.results.used = self.busy_time as f64 / span;
        self.results.marked = self.counted.1 as f64 / self.counted.0 as f64;
        self.results.alpha = self.alphas.0 / self.alphas.1 as f64;
        self.results.queue = self.queue_time / span;
        self.results.packet = self.counted.2 as f64 / self.counted.0 as f64;
        for flow in &self.flows {
            assert_eq!(flow.sender.count(Counter::Retry), 0, "nothing is lost");
        }
        self.results
    }
}
