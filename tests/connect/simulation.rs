//! Managers in a simulated network that loses, duplicates, delays and reorders, with programs that
//! accept, reject, disconnect and die at any moment. Whatever happens, both ends agree, and nothing
//! is left behind.
//!
//! `CM_SEEDS=10000 cargo test --release --test connect simulation` runs more of them; `CM_SEED=7`
//! runs one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use roce::cm::{
    CmId, Config, ConnParam, Counter, Device, Event, EventKind, Manager, RejectReason,
    Retransmission, State, Usage,
};
use roce::time::Instant;
use roce::wire::Qpn;
use roce::wire::cm::PortSpace;
use roce::wire::mad::MAD_LEN;

use crate::node::{Node, SECOND};

/// Chance that follows from a seed: SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Action of a program on an id, some time after it decided.
#[derive(Clone, Copy, Debug)]
enum IdAction {
    Accept,
    Reject,
    Establish,
    Disconnect,
    Destroy,
}

#[derive(Clone, Debug)]
enum SimEvent {
    Arrive {
        from: usize,
        to: usize,
        mad: Box<[u8; MAD_LEN]>,
    },
    Connect(usize),
    Do {
        host: usize,
        generation: u32,
        id: CmId,
        action: IdAction,
    },
    /// Sends nothing to its peers, as after `kill -9`.
    Kill(usize),
    Restart(usize),
    /// A message of the stranger.
    Strange {
        to: usize,
        mad: Box<[u8; MAD_LEN]>,
    },
}

struct Host {
    node: Option<Node>,
    generation: u32,
    guid: u64,
    qpn: u32,
    last_kill: Option<Instant>,
    /// Time at which each id of this generation began.
    ids: BTreeMap<CmId, Instant>,
    listeners: Vec<CmId>,
}

struct World {
    dice: Dice,
    now: Instant,
    serial: u64,
    happenings: BTreeMap<(Instant, u64), SimEvent>,
    hosts: Vec<Host>,
    loss: u64,
    duplication: u64,
    /// Programs accept every request, and end nothing.
    is_steady: bool,
    /// A digest of every message, in order.
    digest: u64,
    established: u64,
    refused: u64,
    kills: u64,
    stranger: Option<Stranger>,
}

/// A host that sees every message, and sends what it makes of them from its own address.
struct Stranger {
    dice: Dice,
    sent: u64,
    /// Messages that others sent to it.
    received: u64,
}

/// The place of the stranger's address among the hosts'.
const STRANGER: usize = 199;

impl Stranger {
    /// Forges a message from one it sees: the same, one of another kind with the same comm ids, or
    /// a REQ that is its own but for the GUID, comm id and QPN.
    fn forge(&mut self, seen: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
        if !self.dice.percent(30) {
            return None;
        }
        let mut mad = *seen;
        let is_req = seen[17] == 0x10;
        match self.dice.below(3) {
            0 => {}
            1 if is_req => {
                mad[24 + 71] = u8::try_from(STRANGER + 1).unwrap();
                mad[24 + 140 + 19] = u8::try_from(STRANGER + 1).unwrap();
                if self.dice.percent(50) {
                    mad[24 + 3] ^= 0x11;
                }
            }
            1 => mad[17] = 0x11 + u8::try_from(self.dice.below(6)).unwrap(),
            _ => {
                mad[17] = 0x12;
                let reason = [4, 10, 28][usize::try_from(self.dice.below(3)).unwrap()];
                mad[32..36].copy_from_slice(&[2 << 6, 8 << 1, 0, reason]);
            }
        }
        Some(mad)
    }
}

const PORTS: [u16; 2] = [7, 8];

fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 9, 0, u8::try_from(host + 1).unwrap()).into()
}

fn host_at(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(v4) => usize::from(v4.octets()[3]) - 1,
        IpAddr::V6(_) => panic!("no IPv6 here"),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let hosts = 2 + dice.below(4);
        let mut world = Self {
            loss: dice.below(20),
            duplication: dice.below(15),
            is_steady: false,
            dice,
            now: Instant::ZERO,
            serial: 0,
            happenings: BTreeMap::new(),
            hosts: Vec::new(),
            digest: 0,
            established: 0,
            refused: 0,
            kills: 0,
            stranger: None,
        };
        for host in 0..hosts {
            world.hosts.push(Host {
                node: None,
                generation: 0,
                guid: host + 1,
                qpn: 0x100,
                last_kill: None,
                ids: BTreeMap::new(),
                listeners: Vec::new(),
            });
            world.start(usize::try_from(host).unwrap());
        }
        for _ in 0..10 + world.dice.below(20) {
            let (host, after) = (world.any_host(), world.dice.below(40_000));
            world.plan(after, SimEvent::Connect(host));
        }
        for _ in 0..world.dice.below(3) {
            let (host, after) = (world.any_host(), world.dice.below(40_000));
            world.plan(after, SimEvent::Kill(host));
        }
        world
    }

    fn any_host(&mut self) -> usize {
        let count = self.hosts.len() as u64;
        usize::try_from(self.dice.below(count)).unwrap()
    }

    fn plan(&mut self, after_ms: u64, happening: SimEvent) {
        let at = self.now.saturating_add(Duration::from_millis(after_ms));
        self.serial += 1;
        self.happenings.insert((at, self.serial), happening);
    }

    /// Starts a process on a host, with listeners.
    fn start(&mut self, host: usize) {
        let retransmission = match self.dice.below(2) {
            0 => Retransmission::Constant,
            _ => Retransmission::Backoff(Duration::from_millis(50)),
        };
        let mut config = Config::default();
        config.retransmission = retransmission;
        let seed = self.dice.next();
        // Sometimes it is as if a kernel restarted: the same GUID, and the same QPNs from the
        // start.
        let same = self.dice.percent(25);
        let entry = &mut self.hosts[host];
        entry.generation += 1;
        if !same {
            entry.guid += 1000;
        }
        entry.qpn = 0x100;
        entry.ids.clear();
        let mut node = Node::with_config(config, seed, Device::new(entry.guid, address(host)));
        entry.listeners = [PortSpace::TCP, PortSpace::UDP]
            .iter()
            .flat_map(|space| PORTS.map(|port| (*space, port)))
            .map(|(space, port)| node.listen(space, port))
            .collect();
        entry.node = Some(node);
    }

    /// Delivers all messages and events of the hosts, until they are silent.
    fn drain(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(node) = &mut self.hosts[host].node {
                if let Some(sent) = node.manager.poll_transmit() {
                    let to = host_at(crate::node::address(sent.ah.dgid));
                    match &mut self.stranger {
                        Some(stranger) if to == STRANGER => stranger.received += 1,
                        _ => self.send(host, to, sent.mad),
                    }
                } else if let Some(event) = node.manager.poll_event(node.channel) {
                    self.react(host, &event);
                } else {
                    break;
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, mad: [u8; MAD_LEN]) {
        for chunk in mad.chunks(8) {
            let word = u64::from_le_bytes(chunk.try_into().unwrap());
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
        if let Some(mad) = self.stranger.as_mut().and_then(|stranger| stranger.forge(&mad)) {
            let after = self.dice.below(200);
            self.plan(after, SimEvent::Strange { to, mad: Box::new(mad) });
        }
        let copies = u64::from(self.dice.percent(self.duplication)) + 1;
        for _ in 0..copies {
            if self.dice.percent(self.loss) {
                continue;
            }
            // Most arrive in order; some are overtaken, a few by seconds.
            let delay = match self.dice.below(20) {
                0 => self.dice.below(3_000),
                1..4 => self.dice.below(100),
                _ => 1,
            };
            self.plan(delay, SimEvent::Arrive { from, to, mad: Box::new(mad) });
        }
    }

    /// Decides as a program that is told of an event.
    fn react(&mut self, host: usize, event: &Event) {
        let (now, id) = (self.now, event.id);
        let long = self.dice.percent(10);
        let soon = self.dice.below(if long { 8_000 } else { 30 });
        let later = self.dice.below(20_000);
        let is_first = event.kind != EventKind::Established;
        let dice = match self.is_steady {
            true if is_first => 0,
            true => 99,
            false => self.dice.below(100),
        };
        let (after, action) = match event.kind {
            EventKind::ConnectRequest => {
                self.hosts[host].ids.insert(id, now);
                match dice {
                    ..75 => (soon, IdAction::Accept),
                    75..88 => (soon, IdAction::Reject),
                    88..97 => (soon, IdAction::Destroy),
                    _ => return,
                }
            }
            EventKind::ConnectResponse => match dice {
                ..85 => (soon, IdAction::Establish),
                85..92 => (soon, IdAction::Destroy),
                92..97 => (soon, IdAction::Reject),
                _ => return,
            },
            EventKind::Established => {
                self.established += 1;
                match dice {
                    ..25 => (later, IdAction::Disconnect),
                    25..50 => (later, IdAction::Destroy),
                    _ => return,
                }
            }
            EventKind::Disconnected => match dice {
                ..60 => (soon, IdAction::Disconnect),
                60..97 => (soon, IdAction::Destroy),
                _ => return,
            },
            EventKind::Rejected | EventKind::Unreachable | EventKind::AddrError => {
                self.refused += 1;
                (soon, IdAction::Destroy)
            }
            EventKind::TimewaitExit => (soon, IdAction::Destroy),
            _ => return,
        };
        let generation = self.hosts[host].generation;
        self.plan(after, SimEvent::Do { host, generation, id, action });
    }

    fn happen(&mut self, happening: SimEvent) {
        let now = self.now;
        match happening {
            SimEvent::Arrive { from, to, mad } => {
                if let Some(node) = &mut self.hosts[to].node {
                    node.receive(now, address(from), &mad[..]);
                }
            }
            SimEvent::Strange { to, mad } => {
                if let (Some(node), Some(stranger)) = (&mut self.hosts[to].node, &mut self.stranger)
                {
                    node.receive(now, address(STRANGER), &mad[..]);
                    stranger.sent += 1;
                }
            }
            SimEvent::Connect(host) => self.connect(host),
            SimEvent::Do { host, generation, id, action } => {
                if self.hosts[host].generation == generation {
                    self.perform(host, id, action);
                }
            }
            SimEvent::Kill(host) => {
                self.kills += 1;
                self.hosts[host].node = None;
                self.hosts[host].ids.clear();
                self.hosts[host].last_kill = Some(now);
                let after = self.dice.below(5_000);
                self.plan(after, SimEvent::Restart(host));
            }
            SimEvent::Restart(host) => {
                if self.hosts[host].node.is_none() {
                    self.start(host);
                }
            }
        }
    }

    fn connect(&mut self, host: usize) {
        let to = self.any_host();
        let space = if self.dice.percent(80) { PortSpace::TCP } else { PortSpace::UDP };
        // Now and then nothing listens.
        let port =
            if self.dice.percent(95) { PORTS[usize::from(self.dice.percent(50))] } else { 9 };
        let now = self.now;
        let entry = &mut self.hosts[host];
        let Some(node) = &mut entry.node else { return };
        let id = node.create(space);
        node.manager
            .resolve_addr(now, id, None, SocketAddr::new(address(to), port), SECOND)
            .unwrap();
        node.resolve();
        node.manager.resolve_route(id, SECOND).unwrap();
        entry.qpn += 1;
        let param = ConnParam { qpn: Qpn::new(entry.qpn), ..ConnParam::default() };
        node.manager.connect(now, id, &param).unwrap();
        entry.ids.insert(id, now);
    }

    /// An action that comes too late fails, as it would for a program.
    fn perform(&mut self, host: usize, id: CmId, action: IdAction) {
        let now = self.now;
        let entry = &mut self.hosts[host];
        let Some(node) = &mut entry.node else { return };
        let manager = &mut node.manager;
        match action {
            IdAction::Accept => {
                entry.qpn += 1;
                let param = ConnParam { qpn: Qpn::new(entry.qpn), ..ConnParam::default() };
                let _ = manager.accept(now, id, 0, &param);
            }
            IdAction::Reject => {
                let _ = manager.reject(now, id, RejectReason::Consumer, b"no");
            }
            IdAction::Establish => {
                if manager.establish(id).is_ok() && !self.is_steady && self.dice.percent(50) {
                    let (after, generation) = (self.dice.below(20_000), entry.generation);
                    let action = if self.dice.percent(50) {
                        IdAction::Disconnect
                    } else {
                        IdAction::Destroy
                    };
                    self.plan(after, SimEvent::Do { host, generation, id, action });
                }
            }
            IdAction::Disconnect => {
                let _ = manager.disconnect(now, id);
            }
            IdAction::Destroy => {
                if manager.destroy_id(now, id).is_ok() {
                    entry.ids.remove(&id);
                }
            }
        }
    }

    /// Runs for some time, or until nothing will happen any more.
    fn run(&mut self, ms: u64) {
        let end = self.now.saturating_add(Duration::from_millis(ms));
        loop {
            self.drain();
            let timers = self.hosts.iter().filter_map(|h| h.node.as_ref()?.manager.poll_timeout());
            let timer = timers.min();
            let happening = self.happenings.keys().next().map(|key| key.0);
            let next = [timer, happening].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if happening == Some(next) {
                let (_, happening) = self.happenings.pop_first().unwrap();
                self.happen(happening);
            } else {
                for host in &mut self.hosts {
                    if let Some(node) = &mut host.node {
                        node.manager.handle_timeout(next);
                    }
                }
            }
        }
        self.now = end;
    }

    /// Every connection that one end holds for established, the other does, unless that was killed
    /// in the meantime.
    fn check_agreement(&self) {
        for (at, host) in self.hosts.iter().enumerate() {
            let node = host.node.as_ref().unwrap();
            for (&id, &since) in &host.ids {
                let Some(state) = node.manager.connection_state(id) else { continue };
                let is_settled = matches!(
                    state,
                    State::Established
                        | State::ReqRcvd
                        | State::SidrReqRcvd
                        | State::RepRcvd
                        | State::DreqRcvd
                );
                assert!(is_settled, "host {at}: {id:?} is {state:?} after all that time");
                if state != State::Established {
                    continue;
                }
                let (local, remote) = node.manager.comm_ids(id).unwrap();
                let peer = host_at(node.manager.destination(id).unwrap().ip());
                let peer = &self.hosts[peer];
                if peer.last_kill.is_some_and(|kill| kill >= since) {
                    continue;
                }
                let manager = &peer.node.as_ref().unwrap().manager;
                let agrees = peer.ids.keys().any(|id| {
                    manager.comm_ids(*id) == Some((remote, local))
                        && manager.connection_state(*id) == Some(State::Established)
                });
                assert!(agrees, "host {at}: {id:?} is established, its peer is not");
            }
        }
    }

    /// Every program ends: each id is destroyed, and every manager is empty in the end.
    fn check_nothing_is_left(&mut self) {
        for host in 0..self.hosts.len() {
            let ids: Vec<_> = self.hosts[host].ids.keys().copied().collect();
            let listeners = self.hosts[host].listeners.clone();
            for id in ids.into_iter().chain(listeners) {
                self.perform(host, id, IdAction::Destroy);
            }
        }
        self.run(400_000);
        for (at, host) in self.hosts.iter().enumerate() {
            let usage = host.node.as_ref().unwrap().manager.usage();
            // A request that came while the listener closed was answered; nothing else may be
            // there.
            assert_eq!(usage, Usage::default(), "host {at}");
        }
    }
}

/// Runs one seed: what was said, how many connections were established, refused, and processes
/// killed.
fn run(seed: u64) -> (u64, u64, u64, u64) {
    let mut world = World::new(seed);
    world.run(60_000);
    for host in 0..world.hosts.len() {
        if world.hosts[host].node.is_none() {
            world.start(host);
        }
    }
    world.run(600_000);
    world.check_agreement();
    world.check_nothing_is_left();
    (world.digest, world.established, world.refused, world.kills)
}

/// Beside a stranger that sees all comm ids, GUIDs and QPNs, both ends agree as they do without it,
/// and it gets at most three messages for each of its own.
#[test]
fn stranger_ends_no_connection_and_gets_few_answers() {
    let (mut sent, mut wrong_source, mut established) = (0, 0, 0);
    for seed in 0..number("CM_SEEDS").unwrap_or(100) {
        let mut world = World::new(seed);
        world.is_steady = true;
        world.happenings.retain(|_, happening| matches!(happening, SimEvent::Connect(_)));
        let connects = world.happenings.len() as u64;
        world.stranger = Some(Stranger { dice: Dice(!seed), sent: 0, received: 0 });
        world.run(600_000);
        let stranger = world.stranger.take().unwrap();
        assert!(stranger.received <= 3 * stranger.sent, "CM_SEED={seed}");
        sent += stranger.sent;
        let own = world.established + world.refused;
        assert!(own >= connects, "CM_SEED={seed}: {own} of {connects} came to an end");
        for host in &world.hosts {
            let manager = &host.node.as_ref().unwrap().manager;
            wrong_source += manager.counters().get(Counter::WrongSource);
            // Programs end nothing here, and the stranger cannot.
            let ended = |id: &&CmId| manager.connection_state(**id) == Some(State::DreqRcvd);
            assert_eq!(host.ids.keys().find(ended), None, "CM_SEED={seed}");
            established += host.ids.keys().filter(|id| is_established(manager, **id)).count();
        }
        world.check_agreement();
        world.check_nothing_is_left();
    }
    println!("{sent} messages of the stranger, {wrong_source} from a wrong source");
    assert!(sent > 0 && wrong_source > 0 && established > 0);
}

fn is_established(manager: &Manager, id: CmId) -> bool {
    manager.connection_state(id) == Some(State::Established)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn both_ends_agree_and_nothing_is_left_whatever_happens() {
    let (first, count) = match number("CM_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("CM_SEEDS").unwrap_or(300)),
    };
    let mut totals = [0; 3];
    for seed in first..first + count {
        let result = std::panic::catch_unwind(|| run(seed));
        let Ok((_, established, refused, kills)) = result else {
            panic!("CM_SEED={seed} fails");
        };
        totals = [totals[0] + established, totals[1] + refused, totals[2] + kills];
    }
    println!(
        "{count} seeds: {} established, {} refused, {} kills",
        totals[0], totals[1], totals[2]
    );
    if count > 1 {
        assert!(totals.iter().all(|total| *total > count / 2), "{totals:?}");
    }
}

#[test]
fn same_seed_says_the_same_bytes() {
    let digests: Vec<u64> = (1000..1005).map(|seed| run(seed).0).collect();
    assert_eq!(digests, (1000..1005).map(|seed| run(seed).0).collect::<Vec<_>>());
    let mut distinct = digests.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), digests.len());
}

/// The figure, in a simulation: a thousand connections at 10 % loss, 5 % duplicates and
/// reordering.
#[test]
fn thousand_connections_under_loss_are_established_or_refused_on_both_sides() {
    let mut world = World::new(5);
    world.happenings.clear();
    (world.loss, world.duplication, world.is_steady) = (10, 5, true);
    for at in 0..1_000 {
        let host = world.any_host();
        world.plan(at * 5, SimEvent::Connect(host));
    }
    world.run(600_000);
    world.check_agreement();
    assert_eq!(world.established + world.refused, 1_000);
    assert!(world.established > 900, "{}", world.established);
    world.check_nothing_is_left();
}

#[test]
fn digest_sees_every_byte() {
    let mut one = World::new(1);
    let mut other = World::new(1);
    let mut mad = [0; 256];
    mad[1] = 7;
    one.send(0, 1, mad);
    mad[255] = 1;
    other.send(0, 1, mad);
    assert_ne!(one.digest, other.digest);
}
