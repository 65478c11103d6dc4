//! Links of several servers on simulated connections, in virtual time: requests are lost, doubled and late, connections break at
//! any moment and each side notices at another one, servers are killed and start again.
//!
//! `ROCE_SEEDS=10000 cargo test --release --lib group::tests` runs as many seeds, `ROCE_SEED=17` one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::hello::Hello;
use super::link::{Backoff, Change, Link, Next, Own, Pipe, Refusal, Role, Take};
use crate::random::Random;
use crate::time::Instant;

/// Messages that a sender may be ahead.
const WINDOW: usize = 12;
/// How long an attempt waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(20);
/// When faults end and everything is to settle.
const CALM: Duration = Duration::from_millis(400);

/// One direction of a simulated connection.
#[derive(Debug, Default)]
struct Direction {
    flying: VecDeque<Vec<u8>>,
    arrived: VecDeque<Vec<u8>>,
    /// What the sender keeps: it is told of consumed messages late, and several at a time.
    kept: VecDeque<Vec<u8>>,
    taken: usize,
}

/// A simulated connection: side 0 dialed.
#[derive(Debug, Default)]
struct Wire {
    /// By sender.
    directions: [Direction; 2],
    /// Whether nothing gets through any more.
    is_broken: bool,
    /// Whether a side knows.
    has_noticed: [bool; 2],
}

#[derive(Clone, Debug)]
struct End {
    wire: Rc<RefCell<Wire>>,
    side: usize,
}

impl Pipe for End {
    fn queue(&self, message: &[u8]) -> bool {
        let mut wire = self.wire.borrow_mut();
        let noticed = wire.has_noticed[self.side];
        let direction = &mut wire.directions[self.side];
        if noticed || direction.kept.len() >= WINDOW {
            return false;
        }
        direction.kept.push_back(message.to_vec());
        direction.flying.push_back(message.to_vec());
        true
    }

    fn take(&self, out: &mut Vec<u8>) -> Take {
        let mut wire = self.wire.borrow_mut();
        let noticed = wire.has_noticed[self.side];
        let direction = &mut wire.directions[1 - self.side];
        match direction.arrived.pop_front() {
            Some(message) => {
                *out = message;
                direction.taken += 1;
                Take::Message
            }
            None if noticed => Take::Lost,
            None => Take::Nothing,
        }
    }

    fn unconsumed(&self) -> Vec<Vec<u8>> {
        self.wire.borrow().directions[self.side].kept.iter().cloned().collect()
    }

    fn abort(&self) {
        let mut wire = self.wire.borrow_mut();
        wire.is_broken = true;
        wire.has_noticed[self.side] = true;
    }
}

/// What is on its way to a server, or a deadline of its own.
#[derive(Clone, Debug)]
enum Event {
    Request {
        from: usize,
        hello: Hello,
        attempt: u64,
    },
    /// The answer to a request, and the wire that the acceptor has made.
    Reply {
        from: usize,
        hello: Hello,
        attempt: u64,
        end: End,
    },
    Refused {
        from: usize,
        attempt: u64,
    },
    /// The dialer has the answer.
    Ready {
        from: usize,
        attempt: u64,
    },
    /// An attempt takes too long.
    Expired {
        from: usize,
        attempt: u64,
    },
}

#[derive(Debug)]
struct Server {
    incarnation: u64,
    links: Vec<Option<Link<End>>>,
    /// The attempt that each link is busy with, and its wire at the acceptor.
    attempts: Vec<Option<(u64, Option<End>)>>,
}

/// Messages by the incarnations of sender and receiver.
type Log = BTreeMap<(u64, u64), Vec<u64>>;

struct World {
    random: Random,
    now: Instant,
    servers: Vec<Option<Server>>,
    events: BTreeMap<(Instant, u64), (usize, u64, Event)>,
    wires: Vec<Rc<RefCell<Wire>>>,
    sequence: u64,
    sent: Log,
    received: Log,
    lost_connections: usize,
    resumed: usize,
    restarts: usize,
    wrong: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + usize::try_from(random.next() % 3).unwrap();
        let mut world = Self {
            random,
            now: Instant::ZERO,
            servers: (0..count).map(|_| None).collect(),
            events: BTreeMap::new(),
            wires: Vec::new(),
            sequence: 0,
            sent: Log::new(),
            received: Log::new(),
            lost_connections: 0,
            resumed: 0,
            restarts: 0,
            wrong: Vec::new(),
        };
        (0..count).for_each(|own| world.start(own));
        world
    }

    fn below(&mut self, max: u64) -> u64 {
        self.random.next() % max
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.is_rough() && self.below(count) == 0
    }

    fn is_rough(&self) -> bool {
        self.now < Instant::ZERO.saturating_add(CALM)
    }

    fn start(&mut self, own: usize) {
        let (count, incarnation) = (self.servers.len(), self.random.next() | 1);
        let links = (0..count).map(|server| {
            let role = if own > server { Role::Dialer } else { Role::Acceptor };
            let id = |number: usize| u16::try_from(number).unwrap();
            let own_side = Own { server: id(own), thread: 0, incarnation };
            let times = (Duration::from_millis(1), Duration::from_millis(8));
            let backoff = Backoff::new(times.0, times.1, incarnation ^ server as u64);
            (server != own).then(|| Link::new(own_side, role, backoff))
        });
        let links = links.collect();
        self.servers[own] =
            Some(Server { incarnation, links, attempts: (0..count).map(|_| None).collect() });
    }

    /// Sends an event to a server, which may be lost, doubled or late. It is for the present run of the server, or for any.
    fn send(&mut self, to: usize, event: Event) {
        if self.one_in(8) {
            return;
        }
        let copies = if self.one_in(8) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = if self.one_in(10) { 30_000 } else { 300 };
            let delay = Duration::from_micros(1 + self.below(delay));
            self.schedule(to, delay, event.clone());
        }
    }

    fn schedule(&mut self, to: usize, delay: Duration, event: Event) {
        self.sequence += 1;
        let run = self.servers[to].as_ref().map_or(0, |server| server.incarnation);
        let key = (self.now.saturating_add(delay), self.sequence);
        self.events.insert(key, (to, run, event));
    }

    fn link(&mut self, own: usize, peer: usize) -> &mut Link<End> {
        self.servers[own].as_mut().unwrap().links[peer].as_mut().unwrap()
    }

    fn handle(&mut self, own: usize, run: u64, event: Event) {
        let now = self.now;
        let Some(server) = self.servers[own].as_mut() else { return };
        // A request finds the server as it is then, the rest is part of a conversation.
        let is_request = matches!(event, Event::Request { .. });
        if !is_request && server.incarnation != run {
            return;
        }
        let busy_with = |server: &Server, peer: usize, attempt: u64| {
            server.attempts[peer].as_ref().is_some_and(|(known, _)| *known == attempt)
        };
        match event {
            Event::Request { from, hello, attempt } => {
                let answer = server.links[from].as_mut().unwrap().handle_request(&hello);
                match answer {
                    Ok(reply) => {
                        let wire = Rc::new(RefCell::new(Wire::default()));
                        self.wires.push(Rc::clone(&wire));
                        let end = |side| End { wire: Rc::clone(&wire), side };
                        server.attempts[from] = Some((attempt, Some(end(1))));
                        let end = end(0);
                        self.send(from, Event::Reply { from: own, hello: reply, attempt, end });
                        self.schedule(own, TIMEOUT, Event::Expired { from, attempt });
                    }
                    Err(_) => self.send(from, Event::Refused { from: own, attempt }),
                }
            }
            Event::Reply { from, hello, attempt, end } if busy_with(server, from, attempt) => {
                server.attempts[from] = None;
                server.links[from].as_mut().unwrap().handle_connected(end, Some(hello), now);
                self.send(from, Event::Ready { from: own, attempt });
            }
            Event::Ready { from, attempt } if busy_with(server, from, attempt) => {
                let (_, end) = server.attempts[from].take().unwrap();
                server.links[from].as_mut().unwrap().handle_connected(end.unwrap(), None, now);
            }
            Event::Refused { from, attempt } | Event::Expired { from, attempt }
                if busy_with(server, from, attempt) =>
            {
                if let Some((_, Some(end))) = server.attempts[from].take() {
                    end.abort();
                }
                server.links[from].as_mut().unwrap().handle_failed(now);
            }
            _ => {}
        }
    }

    /// Moves messages on a wire; breaks it, and has its sides notice.
    fn move_wire(&mut self, at: usize) {
        let wire = Rc::clone(&self.wires[at]);
        let mut wire = wire.borrow_mut();
        wire.is_broken |= self.one_in(400);
        for side in [0, 1] {
            // The side that has lost its peer notices after a while: its NIC gets no answer.
            if wire.is_broken && !wire.has_noticed[side] && self.below(20) == 0 {
                wire.has_noticed[side] = true;
            }
            let moves = self.below(4);
            let is_deaf = wire.has_noticed[1 - side];
            let is_broken = wire.is_broken;
            let direction = &mut wire.directions[side];
            for _ in 0..moves {
                if is_broken || is_deaf {
                    break;
                }
                let flown = direction.flying.pop_front();
                direction.arrived.extend(flown);
            }
            if !is_broken && self.below(3) == 0 {
                let taken = std::mem::take(&mut wire.directions[side].taken);
                wire.directions[side].kept.drain(..taken);
            }
        }
    }

    /// What the program of a server does.
    fn act(&mut self, own: usize) {
        let now = self.now;
        for peer in 0..self.servers.len() {
            let Some(server) = self.servers[own].as_mut() else { return };
            let incarnation = server.incarnation;
            let Some(link) = server.links[peer].as_mut() else { continue };
            if let Some(hello) = link.poll_dial(now) {
                self.sequence += 1;
                let attempt = self.sequence;
                server.attempts[peer] = Some((attempt, None));
                self.send(peer, Event::Request { from: own, hello, attempt });
                self.schedule(own, TIMEOUT, Event::Expired { from: peer, attempt });
            }
            let (posts, polls) = (self.below(4), self.below(6));
            let is_rough = self.is_rough();
            for _ in 0..if is_rough { posts } else { 0 } {
                let link = self.link(own, peer);
                let pair = (incarnation, link.peer());
                let number = self.sent.get(&pair).map_or(0, Vec::len) as u64;
                let message = [pair.0, pair.1, number].map(u64::to_le_bytes).concat();
                let link = self.servers[own].as_mut().unwrap().links[peer].as_mut().unwrap();
                if link.post(&message) {
                    self.sent.entry(pair).or_default().push(number);
                }
            }
            for _ in 0..polls {
                let mut message = Vec::new();
                match self.link(own, peer).poll(&mut message, now) {
                    Next::Message => self.receive(incarnation, &message),
                    Next::Change(change) => self.count(change),
                    Next::Nothing => break,
                }
            }
            self.link(own, peer).pump();
        }
    }

    fn receive(&mut self, own: u64, message: &[u8]) {
        let words = message.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = words.collect();
        let [from, to, number] = words[..] else { panic!("a message of the simulation") };
        if to != own {
            self.wrong.push(format!("{own:x} got a message to {to:x}"));
        }
        self.received.entry((from, to)).or_default().push(number);
    }

    fn count(&mut self, change: Change) {
        match change {
            Change::Connected { is_same: true, dropped, .. } => {
                self.resumed += 1;
                if dropped != 0 {
                    self.wrong.push("messages to the same run were dropped".to_owned());
                }
            }
            Change::Connected { .. } => {}
            Change::Disconnected => self.lost_connections += 1,
        }
    }

    fn kill(&mut self, own: usize) {
        let Some(server) = self.servers[own].take() else { return };
        self.restarts += 1;
        for link in server.links.iter().flatten() {
            if let Some(end) = link.pipe() {
                end.abort();
            }
        }
        for (_, end) in server.attempts.into_iter().flatten() {
            end.inspect(End::abort);
        }
    }

    fn step(&mut self) {
        self.now = self.now.saturating_add(Duration::from_micros(200));
        while let Some(event) = self.events.first_entry().filter(|event| event.key().0 <= self.now)
        {
            let (to, run, event) = event.remove();
            self.handle(to, run, event);
        }
        (0..self.wires.len()).for_each(|at| self.move_wire(at));
        self.wires.retain(|wire| Rc::strong_count(wire) > 1);
        for own in 0..self.servers.len() {
            if self.servers[own].is_none() {
                if !self.is_rough() || self.below(40) == 0 {
                    self.start(own);
                }
            } else if self.one_in(600) {
                self.kill(own);
            }
            self.act(own);
        }
    }

    /// Whether all that live are connected and have everything.
    fn is_settled(&self) -> bool {
        let live: BTreeSet<u64> =
            self.servers.iter().flatten().map(|server| server.incarnation).collect();
        let links = self.servers.iter().flatten().flat_map(|server| server.links.iter().flatten());
        let mut links = links.map(|link| (link.peer(), link.pipe().is_some()));
        let between = |pair: &(u64, u64)| live.contains(&pair.0) && live.contains(&pair.1);
        self.servers.iter().all(Option::is_some)
            && links.all(|(peer, is_up)| is_up && live.contains(&peer))
            && self
                .sent
                .iter()
                .filter(|(pair, _)| between(pair))
                .all(|(pair, sent)| self.received.get(pair).map_or(0, Vec::len) == sent.len())
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    wrong: Vec<String>,
    received: usize,
    resumed: usize,
    restarts: usize,
}

fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    let mut steps = 0;
    while world.is_rough() || !world.is_settled() {
        world.step();
        steps += 1;
        if steps == 20_000 {
            world.wrong.push("it does not settle".to_owned());
            break;
        }
    }
    let mut wrong = std::mem::take(&mut world.wrong);
    for (pair, received) in &world.received {
        // In order, each once, from the first on; all of them if both live, or it would not have settled.
        let in_order = received.iter().copied().eq(0..received.len() as u64);
        let sent = world.sent.get(pair).map_or(0, Vec::len);
        if !in_order || received.len() > sent {
            wrong.push(format!("{pair:x?}: {} of {sent}: {received:?}", received.len()));
        }
    }
    let received = world.received.values().map(Vec::len).sum();
    Outcome { wrong, received, resumed: world.resumed, restarts: world.restarts }
}

#[test]
fn messages_arrive_once_and_in_order_within_an_incarnation() {
    let (mut bad, mut all) = (Vec::new(), Outcome::default());
    for seed in crate::random::seeds() {
        let outcome = run(seed);
        all.received += outcome.received;
        all.resumed += outcome.resumed;
        all.restarts += outcome.restarts;
        if !outcome.wrong.is_empty() {
            bad.push(format!("seed {seed}: {}", outcome.wrong.join("; ")));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    // The simulation has to have met what it is for.
    let count = crate::random::seeds().count();
    let Outcome { received, resumed, restarts, .. } = all;
    println!("{count} seeds: {received} messages, {resumed} resumed, {restarts} restarts");
    assert!(count < 50 || received > 500 * count && resumed > 5 * count && restarts > 2 * count);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [0, 5, 11] {
        assert_eq!(run(seed), run(seed));
    }
}

fn link(role: Role) -> Link<End> {
    let own = Own { server: 1, thread: 0, incarnation: 77 };
    Link::new(own, role, Backoff::new(Duration::from_millis(4), Duration::from_millis(100), 1))
}

#[test]
fn back_off_doubles_up_to_its_bound() {
    let mut link = link(Role::Dialer);
    let (mut now, mut delays) = (Instant::ZERO, Vec::new());
    for attempt in 1..=10 {
        assert_eq!(link.poll_dial(now).unwrap().attempt, attempt);
        assert_eq!((link.poll_dial(now), link.poll_timeout()), (None, None), "one at a time");
        link.handle_failed(now);
        let due = link.poll_timeout().unwrap();
        assert_eq!(link.poll_dial(now), None);
        delays.push(due.saturating_since(now));
        now = due;
    }
    for (at, delay) in (0..).zip(delays) {
        let full = Duration::from_millis((4 << at).min(100));
        assert!(delay >= full / 2 && delay <= full, "{at}: {delay:?} of {full:?}");
    }
}

#[test]
fn requests_of_the_past_are_refused() {
    let mut link = link(Role::Acceptor);
    let end = |side| End { wire: Rc::default(), side };
    let hello = |incarnation, attempt| Hello {
        server: 2,
        thread: 0,
        incarnation,
        peer: 0,
        received: 0,
        attempt,
    };
    assert_eq!(link.handle_request(&hello(5, 3)).unwrap().peer, 5);
    assert_eq!(link.handle_request(&hello(6, 1)), Err(Refusal::Busy));
    link.handle_connected(end(1), None, Instant::ZERO);
    assert_eq!(link.handle_request(&hello(5, 3)), Err(Refusal::Stale), "answered before");
    link.handle_request(&hello(6, 1)).unwrap();
    link.handle_connected(end(1), None, Instant::ZERO);
    assert_eq!(link.handle_request(&hello(5, 4)), Err(Refusal::Stale), "an earlier run");
    let mut changes = Vec::new();
    while let Next::Change(change) = link.poll(&mut Vec::new(), Instant::ZERO) {
        changes.push(change);
    }
    let connected = |incarnation| Change::Connected { incarnation, is_same: false, dropped: 0 };
    assert_eq!(changes, [connected(5), Change::Disconnected, connected(6)]);
    assert_eq!(self::link(Role::Dialer).handle_request(&hello(5, 1)), Err(Refusal::Role));
    assert!(link.close().is_some());
    assert_eq!(link.handle_request(&hello(7, 1)), Err(Refusal::Closed));
}

#[test]
fn a_peer_that_claims_what_it_was_not_sent_is_not_connected() {
    let mut link = link(Role::Acceptor);
    let end = || End { wire: Rc::default(), side: 1 };
    let hello = |received, attempt| {
        let (incarnation, peer) = (5, 77);
        Hello { server: 2, thread: 0, incarnation, peer, received, attempt }
    };
    link.handle_request(&hello(0, 1)).unwrap();
    link.handle_connected(end(), None, Instant::ZERO);
    assert!(link.post(b"one") && link.post(b"two"));
    link.handle_request(&hello(3, 2)).unwrap();
    link.handle_connected(end(), None, Instant::ZERO);
    assert!(link.pipe().is_none());
    // It got the first: the second is kept for the new connection.
    link.handle_request(&hello(1, 3)).unwrap();
    link.handle_connected(end(), None, Instant::ZERO);
    assert_eq!(link.pipe().unwrap().unconsumed(), [b"two"]);
}

#[test]
fn a_peer_that_has_closed_is_dialed_late() {
    let mut link = link(Role::Dialer);
    let hello = link.poll_dial(Instant::ZERO).unwrap();
    let answer = Hello { incarnation: 5, ..hello };
    link.handle_connected(End { wire: Rc::default(), side: 0 }, Some(answer), Instant::ZERO);
    link.handle_closed(Instant::ZERO);
    let due = link.poll_timeout().unwrap();
    assert!(due >= Instant::ZERO.saturating_add(Duration::from_millis(50)), "{due}");
}
