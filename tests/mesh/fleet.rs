//! A fleet of 64 hosts under virtual time: a Clos network of two tiers, whose leaf switches choose
//! a spine switch by addresses and source port. The probers, the responders and the diagnosis are
//! the real ones.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::net::Ipv4Addr;
use std::time::Duration;

use roce::ping::mesh::{Cell, Mesh};
use roce::ping::{
    Answer, Bytes, Event, PathStats, ProbeId, Prober, ProberConfig, Responder, ResponderConfig,
    Source,
};
use roce::time::Instant;
use roce::wire::{Bits, Gid, Qpn, source_port};

pub(crate) const LEAVES: usize = 8;
pub(crate) const PER_LEAF: usize = 8;
pub(crate) const HOSTS: usize = LEAVES * PER_LEAF;
const SPINES: u64 = 4;

/// Peers that each host probes, paths to each, and probes on each path.
const PEERS: usize = 6;
const PATHS: usize = 4;
const PROBES: u64 = 20;

/// Loss that every network has.
const ORDINARY_LOSS: f64 = 1e-4;

/// SplitMix64.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        ((self.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }

    /// A number from `from` to `to`.
    pub(crate) fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fault of the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Injected {
    Nothing,
    /// The NIC of a host loses packets, both ways.
    LossyNic {
        host: usize,
        loss: f64,
    },
    /// A link between a leaf switch and a spine switch loses packets, both ways.
    LossyLink {
        leaf: usize,
        spine: u64,
        loss: f64,
    },
    /// A link that takes longer.
    SlowLink {
        leaf: usize,
        spine: u64,
        more: Duration,
    },
    /// The link of a host to its leaf switch takes longer, both ways.
    SlowNic {
        host: usize,
        more: Duration,
    },
    /// The responder of a host does not get to some probes.
    DeafHost {
        host: usize,
        share: f64,
    },
    /// The programs of a host are scheduled late.
    SlowHost {
        host: usize,
        more: Duration,
    },
}

enum What {
    Timer,
    Arrives { from: usize, bytes: Bytes },
    Processes { from: usize, bytes: Bytes, received: Instant },
    ProbeSent { id: ProbeId },
    AckSent { to: usize, id: u64 },
}

/// An event at a time; of the same time, the one that was decided first.
struct Entry {
    at: u64,
    number: u64,
    host: usize,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct Host {
    prober: Prober,
    peers: Vec<usize>,
    responders: BTreeMap<usize, Responder>,
    /// The clock of its NIC and that of its programs agree with no other.
    nic_clock: u64,
    program_clock: u64,
}

pub(crate) struct Fleet {
    injected: Injected,
    dice: Dice,
    salt: u64,
    hosts: Vec<Host>,
    queue: BinaryHeap<Reverse<Entry>>,
    number: u64,
    now: u64,
}

fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, (host / PER_LEAF) as u8, (host % PER_LEAF) as u8 + 1))
}

fn source(host: usize) -> Source {
    Source { gid: gid(host), qpn: Qpn::new(host as u32 + 100) }
}

pub(crate) fn leaf_of(host: usize) -> usize {
    host / PER_LEAF
}

impl Fleet {
    pub(crate) fn new(seed: u64, injected: Injected) -> Self {
        let mut dice = Dice::new(seed);
        let salt = dice.next();
        let mut hosts = Vec::new();
        for host in 0..HOSTS {
            let mut peers = Vec::new();
            while peers.len() < PEERS {
                let peer = dice.below(HOSTS);
                if peer != host && !peers.contains(&peer) {
                    peers.push(peer);
                }
            }
            let (nic_clock, program_clock) = (dice.next() >> 20, dice.next() >> 20);
            let gids: Vec<Gid> = peers.iter().map(|&peer| gid(peer)).collect();
            let config = ProberConfig::new(dice.next())
                .interval(Duration::from_millis(10))
                .timeout(Duration::from_millis(100))
                .count(PROBES * PATHS as u64)
                .paths(PATHS);
            let prober = Prober::new(config, &gids, Instant::from_nanos(program_clock));
            hosts.push(Host {
                prober,
                peers,
                responders: BTreeMap::new(),
                nic_clock,
                program_clock,
            });
        }
        let queue = BinaryHeap::new();
        let mut fleet = Self { injected, dice, salt, hosts, queue, number: 0, now: 0 };
        (0..HOSTS).for_each(|host| fleet.after(0, host, What::Timer));
        fleet
    }

    /// Returns the spine switch of packets between leaves.
    fn spine(&self, from: usize, to: usize, label: u32) -> u64 {
        let port = u64::from(source_port(Bits::low(label)));
        mix(self.salt ^ (from as u64) << 32 ^ (to as u64) << 16 ^ port) % SPINES
    }

    /// Whether packets one way take a link.
    fn takes(&self, from: usize, to: usize, label: u32, leaf: usize, spine: u64) -> bool {
        let [up, down] = [leaf_of(from), leaf_of(to)];
        up != down && (up == leaf || down == leaf) && self.spine(from, to, label) == spine
    }

    /// Whether the probes of a cell or their answers take a link.
    pub(crate) fn crosses(&self, cell: &Cell, leaf: usize, spine: u64) -> bool {
        let label = u32::from(cell.source_port & 0x3fff);
        self.takes(cell.from, cell.to, label, leaf, spine)
            || self.takes(cell.to, cell.from, label, leaf, spine)
    }

    fn after(&mut self, delay: u64, host: usize, what: What) {
        self.number += 1;
        let (at, number) = (self.now + delay, self.number);
        self.queue.push(Reverse(Entry { at, number, host, what }));
    }

    fn nic_time(&self, host: usize) -> Instant {
        Instant::from_nanos(self.now + self.hosts[host].nic_clock)
    }

    fn program_time(&self, host: usize) -> Instant {
        Instant::from_nanos(self.now + self.hosts[host].program_clock)
    }

    /// A packet leaves a host.
    fn send(&mut self, from: usize, to: usize, label: u32, bytes: &Bytes) {
        let mut loss = ORDINARY_LOSS;
        let mut delay = if leaf_of(from) == leaf_of(to) { 1500 } else { 3500 };
        delay += self.dice.below(1000) as u64;
        match self.injected {
            Injected::LossyNic { host, loss: own } if host == from || host == to => loss += own,
            Injected::SlowNic { host, more } if host == from || host == to => {
                delay += more.as_nanos() as u64;
            }
            Injected::LossyLink { leaf, spine, loss: own }
                if self.takes(from, to, label, leaf, spine) =>
            {
                loss += own;
            }
            Injected::SlowLink { leaf, spine, more }
                if self.takes(from, to, label, leaf, spine) =>
            {
                delay += more.as_nanos() as u64;
            }
            _ => {}
        }
        if !self.dice.chance(loss) {
            self.after(delay, to, What::Arrives { from, bytes: *bytes });
        }
    }

    /// Returns the time until a program of a host sees a completion.
    fn scheduled(&mut self, host: usize) -> u64 {
        let usual = 2000 + self.dice.below(6000) as u64;
        // Now and then a program waits for a processor.
        let seldom = if self.dice.chance(0.01) { 300_000 } else { 0 };
        let more = match self.injected {
            Injected::SlowHost { host: slow, more } if slow == host => more.as_nanos() as u64,
            _ => 0,
        };
        usual + seldom + more
    }

    fn handle(&mut self, host: usize, what: What) {
        match what {
            What::Timer => self.probe(host),
            What::Arrives { from, bytes } => {
                let (received, delay) = (self.nic_time(host), self.scheduled(host));
                self.after(delay, host, What::Processes { from, bytes, received });
            }
            What::Processes { from, bytes, received } => self.process(host, from, &bytes, received),
            What::ProbeSent { id } => {
                let at = self.nic_time(host);
                self.hosts[host].prober.handle_sent(id, at);
            }
            What::AckSent { to, id } => {
                let at = self.nic_time(host);
                let responder = self.hosts[host].responders.get_mut(&to).unwrap();
                if let Some(timing) = responder.handle_sent(id, at) {
                    self.send(host, to, timing.flow_label.get(), &timing.bytes);
                }
            }
        }
    }

    fn probe(&mut self, host: usize) {
        let now = self.program_time(host);
        self.hosts[host].prober.handle_timeout(now);
        while let Some(probe) = self.hosts[host].prober.poll_transmit(now) {
            let to = self.hosts[host].peers[probe.target];
            self.after(300, host, What::ProbeSent { id: probe.id });
            self.send(host, to, probe.id.flow_label.get(), &probe.bytes);
        }
        if let Some(next) = self.hosts[host].prober.poll_timeout() {
            let delay = next.saturating_since(now).as_nanos() as u64;
            self.after(delay.max(1), host, What::Timer);
        }
    }

    fn process(&mut self, host: usize, from: usize, bytes: &[u8], received: Instant) {
        let now = self.program_time(host);
        // Answers are shorter than probes.
        if bytes.len() < roce::ping::limits::PROBE_BYTES {
            return self.hosts[host].prober.handle_packet(gid(from), bytes, received, now);
        }
        if let Injected::DeafHost { host: deaf, share } = self.injected
            && deaf == host
            && self.dice.chance(share)
        {
            return;
        }
        let responder = self.hosts[host].responders.entry(from).or_insert_with(|| {
            Responder::new(ResponderConfig::new(host as u64, source(from)), now)
        });
        let answer = responder.handle_packet(source(from), bytes, received, now);
        let Some(Answer { to, flow_label, id: Some(id), bytes }) = answer else {
            panic!("a probe of the simulation is answered: {:?}", responder.counters());
        };
        assert_eq!(to, source(from));
        self.after(300, host, What::AckSent { to: from, id });
        self.send(host, from, flow_label.get(), &bytes);
    }

    /// Runs until every probe has ended; returns what became of them.
    pub(crate) fn run(&mut self) -> Mesh {
        while let Some(Reverse(Entry { at, host, what, .. })) = self.queue.pop() {
            self.now = at;
            self.handle(host, what);
        }
        let mut mesh = Mesh::new(
            (0..HOSTS).map(|host| format!("leaf{}-host{}", leaf_of(host), host % PER_LEAF)),
        );
        mesh.racks = (0..HOSTS).map(|host| Some(format!("leaf{}", leaf_of(host)))).collect();
        for from in 0..HOSTS {
            let host = &mut self.hosts[from];
            assert!(host.prober.is_done());
            let labels = host.prober.config().flow_labels.clone();
            let mut stats = vec![PathStats::default(); PEERS * PATHS];
            while let Some(event) = host.prober.poll_event() {
                if let Event::Ended { target, path, ending, .. } = event {
                    stats[target * PATHS + path].add(&ending);
                }
            }
            for (at, stats) in stats.into_iter().enumerate() {
                assert_eq!(stats.sent() + stats.not_sent, PROBES);
                let (to, label) = (host.peers[at / PATHS], labels[at % PATHS]);
                mesh.cells.push(Cell { from, to, source_port: source_port(label), stats });
            }
        }
        mesh
    }
}
