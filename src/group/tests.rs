//! Links of several servers on simulated connections, in virtual time: requests are lost, doubled
//! and late, connections break at any moment and each side notices at another one, servers are
//! killed and start again. Servers end their groups at any moment, for good or to start again.
//! Strangers ask for connections in the name of servers, and prove nothing.
//!
//! `ROCE_SEEDS=10000 cargo test --release --lib group::tests` runs as many seeds, `ROCE_SEED=17`
//! one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::hello::{Hello, Nonce};
use super::limits::PARTING_MAX;
use super::link::{Backoff, Change, Link, Made, Next, Own, Pipe, Refusal, Role, Standing, Take};
use crate::net::Unconsumed;
use crate::random::Random;
use crate::time::Instant;

/// Messages that a sender may be ahead.
const WINDOW: usize = 12;
/// Time for which an attempt waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Time at which faults end and everything is to settle.
const CALM: Duration = Duration::from_millis(400);
/// Time that a server that ends waits for its messages to be delivered.
const LINGER: Duration = Duration::from_millis(200);
/// Time that a peer is away until it counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(250);
/// Nonces are for proofs, which the simulation does not make.
const NONCE: Nonce = [0; 16];
/// Marks the first message of an acceptor: how many messages it has received.
const ACCOUNT: &[u8] = b"account";

/// One direction of a simulated connection.
#[derive(Debug, Default)]
struct Direction {
    flying: VecDeque<Vec<u8>>,
    arrived: VecDeque<Vec<u8>>,
    /// Messages that the sender keeps: it is told of consumed messages late, and several at a time.
    kept: VecDeque<Vec<u8>>,
    taken: usize,
    /// Number of messages that were sent, that have arrived, and that the sender knows to have: it
    /// learns that late.
    sent: usize,
    delivered: usize,
    acknowledged: usize,
    /// Whether the sender has closed, and whether the receiver and the sender know that this has
    /// arrived.
    is_closed: bool,
    has_end: bool,
    is_end_acknowledged: bool,
}

/// A simulated connection: side 0 dialed.
#[derive(Debug, Default)]
struct Wire {
    /// Directions by sender.
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
        assert!(!direction.is_closed, "nothing is sent behind the end");
        direction.kept.push_back(message.to_vec());
        direction.flying.push_back(message.to_vec());
        direction.sent += 1;
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
            None if direction.has_end => Take::Closed,
            None if noticed => Take::Lost,
            None => Take::Nothing,
        }
    }

    fn begin(&self) {}

    fn unconsumed(&self) -> Unconsumed {
        let direction = &self.wire.borrow().directions[self.side];
        let messages = direction.kept.iter().filter(|message| !message.starts_with(ACCOUNT));
        let messages: Vec<Vec<u8>> = messages.cloned().collect();
        let unacknowledged = direction.sent - direction.acknowledged;
        let unacknowledged = unacknowledged.min(messages.len());
        Unconsumed { messages, unacknowledged }
    }

    fn close(&self) {
        self.wire.borrow_mut().directions[self.side].is_closed = true;
    }

    fn is_delivered(&self) -> bool {
        self.wire.borrow().directions[self.side].is_end_acknowledged
    }

    fn has_failed(&self) -> bool {
        self.wire.borrow().has_noticed[self.side]
    }

    fn abort(&self) {
        let mut wire = self.wire.borrow_mut();
        wire.is_broken = true;
        wire.has_noticed[self.side] = true;
    }
}

/// A message to a server that is in flight, or a deadline of its own.
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
        refusal: Refusal,
    },
    /// The dialer has the answer, proves itself, and says what it has received.
    Ready {
        from: usize,
        hello: Hello,
        received: u64,
        attempt: u64,
    },
    /// An attempt takes too long.
    Expired {
        from: usize,
        attempt: u64,
    },
}

/// Number of an attempt, its wire, and, at the dialer, the peer's hello.
type Attempt = (u64, Option<End>, Option<Hello>);

#[derive(Debug)]
struct Server {
    incarnation: u64,
    links: Vec<Option<Link<End>>>,
    /// The attempt that each link is busy with.
    attempts: Vec<Option<Attempt>>,
    /// Last message of each link when it dialed.
    dialed: Vec<Option<Hello>>,
    /// Time when it ends whether or not all is delivered, if it is to end.
    deadline: Option<Instant>,
}

/// Messages by the incarnations of sender and receiver.
type Log = BTreeMap<(u64, u64), Vec<u64>>;

/// Faults of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    All,
    /// Requests are lost, but no connection breaks and no server is killed.
    NoBreaks,
}

struct World {
    faults: Faults,
    random: Random,
    now: Instant,
    servers: Vec<Option<Server>>,
    events: BTreeMap<(Instant, u64), (usize, u64, Event)>,
    wires: Vec<Rc<RefCell<Wire>>>,
    sequence: u64,
    sent: Log,
    received: Log,
    /// Servers that do not start again.
    gone: BTreeSet<usize>,
    /// Messages that a server which ended could not deliver, by the incarnations.
    undelivered: BTreeMap<(u64, u64), usize>,
    /// Incarnations that ended by themselves, and not because they were killed.
    ended: BTreeSet<u64>,
    lost_connections: usize,
    resumed: usize,
    restarts: usize,
    wrong: Vec<String>,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + usize::try_from(random.next() % 3).unwrap();
        let mut world = Self {
            faults,
            random,
            now: Instant::ZERO,
            servers: (0..count).map(|_| None).collect(),
            events: BTreeMap::new(),
            wires: Vec::new(),
            sequence: 0,
            sent: Log::new(),
            received: Log::new(),
            gone: BTreeSet::new(),
            undelivered: BTreeMap::new(),
            ended: BTreeSet::new(),
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

    /// Whether a connection or a server is to break now.
    fn breaks(&mut self, count: u64) -> bool {
        self.faults == Faults::All && self.one_in(count)
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
            (server != own).then(|| Link::new(own_side, role, backoff, LOST_AFTER))
        });
        let links = links.collect();
        self.servers[own] = Some(Server {
            incarnation,
            links,
            attempts: (0..count).map(|_| None).collect(),
            dialed: vec![None; count],
            deadline: None,
        });
    }

    /// Sends an event to a server, which may be lost, doubled or late. It is for the present run of
    /// the server, or for any.
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
            server.attempts[peer].as_ref().is_some_and(|(known, ..)| *known == attempt)
        };
        match event {
            // The connection manager knows a copy of a request.
            Event::Request { from, attempt, .. } if busy_with(server, from, attempt) => {}
            Event::Request { from, hello, attempt } => {
                let answer = server.links[from].as_ref().unwrap().answer(&hello, NONCE);
                match answer {
                    Ok(reply) => {
                        let wire = Rc::new(RefCell::new(Wire::default()));
                        self.wires.push(Rc::clone(&wire));
                        let end = |side| End { wire: Rc::clone(&wire), side };
                        if let Some((_, Some(before), _)) = server.attempts[from].take() {
                            before.abort();
                        }
                        server.attempts[from] = Some((attempt, Some(end(1)), None));
                        let end = end(0);
                        self.send(from, Event::Reply { from: own, hello: reply, attempt, end });
                        self.schedule(own, TIMEOUT, Event::Expired { from, attempt });
                    }
                    Err(refusal) => self.send(from, Event::Refused { from: own, attempt, refusal }),
                }
            }
            Event::Reply { from, hello, attempt, end } if busy_with(server, from, attempt) => {
                let link = server.links[from].as_ref().unwrap();
                let received = link.received_of(hello.incarnation);
                let dialed = server.dialed[from].unwrap();
                server.attempts[from] = Some((attempt, Some(end), Some(hello)));
                self.send(from, Event::Ready { from: own, hello: dialed, received, attempt });
            }
            Event::Ready { from, hello, received, attempt } if busy_with(server, from, attempt) => {
                let (_, pipe, _) = server.attempts[from].take().unwrap();
                let made = Made { pipe: pipe.unwrap(), hello, received };
                let account = |received: u64| [ACCOUNT, &received.to_le_bytes()].concat();
                let link = server.links[from].as_mut().unwrap();
                link.handle_connected(made, Some(account), now);
            }
            Event::Refused { from, attempt, refusal } if busy_with(server, from, attempt) => {
                server.attempts[from] = None;
                let link = server.links[from].as_mut().unwrap();
                match refusal {
                    Refusal::Closed => link.handle_refused(now),
                    _ => link.handle_failed(now),
                }
            }
            Event::Expired { from, attempt } if busy_with(server, from, attempt) => {
                if let Some((_, Some(end), _)) = server.attempts[from].take() {
                    end.abort();
                }
                server.links[from].as_mut().unwrap().handle_failed(now);
            }
            _ => {}
        }
    }

    /// The dialer waits for the first message of the acceptor.
    fn finish_dial(&mut self, own: usize, peer: usize) {
        let now = self.now;
        let server = self.servers[own].as_mut().unwrap();
        let Some((_, Some(pipe), Some(hello))) = &server.attempts[peer] else { return };
        let mut message = Vec::new();
        if pipe.take(&mut message) != Take::Message {
            return;
        }
        let received = message.strip_prefix(ACCOUNT).and_then(|rest| rest.first_chunk());
        let received = u64::from_le_bytes(*received.expect("the first message is the account"));
        let made = Made { pipe: pipe.clone(), hello: *hello, received };
        server.attempts[peer] = None;
        let link = server.links[peer].as_mut().unwrap();
        link.handle_connected(made, None::<fn(u64) -> Vec<u8>>, now);
    }

    /// Moves messages on a wire; breaks it, and has its sides notice.
    fn move_wire(&mut self, at: usize) {
        let wire = Rc::clone(&self.wires[at]);
        let mut wire = wire.borrow_mut();
        wire.is_broken |= self.breaks(400);
        for side in [0, 1] {
            // The side that has lost its peer notices after a while: its NIC gets no answer.
            if wire.is_broken && !wire.has_noticed[side] && self.below(20) == 0 {
                wire.has_noticed[side] = true;
            }
            let (moves, acknowledges) = (self.below(4), self.below(3) == 0);
            let is_deaf = wire.has_noticed[1 - side];
            let is_broken = wire.is_broken;
            let direction = &mut wire.directions[side];
            for _ in 0..moves {
                if is_broken || is_deaf {
                    break;
                }
                let flown = direction.flying.pop_front();
                direction.delivered += usize::from(flown.is_some());
                direction.arrived.extend(flown);
                direction.has_end |= direction.is_closed && direction.flying.is_empty();
            }
            if !is_broken && acknowledges {
                direction.acknowledged = direction.delivered;
                direction.is_end_acknowledged = direction.has_end;
            }
            if !is_broken && self.below(3) == 0 {
                let taken = std::mem::take(&mut wire.directions[side].taken);
                wire.directions[side].kept.drain(..taken);
            }
        }
    }

    /// Acts as the program of a server.
    fn act(&mut self, own: usize) {
        let now = self.now;
        for peer in 0..self.servers.len() {
            let Some(server) = self.servers[own].as_mut() else { return };
            let incarnation = server.incarnation;
            let Some(link) = server.links[peer].as_mut() else { continue };
            link.handle_time(now);
            if let Some(hello) = link.poll_dial(now, || NONCE) {
                self.sequence += 1;
                let attempt = self.sequence;
                server.attempts[peer] = Some((attempt, None, None));
                server.dialed[peer] = Some(hello);
                self.send(peer, Event::Request { from: own, hello, attempt });
                self.schedule(own, TIMEOUT, Event::Expired { from: peer, attempt });
            }
            self.finish_dial(own, peer);
            let is_ending = self.servers[own].as_ref().unwrap().deadline.is_some();
            // A program that ends does not poll any more.
            let polls = if is_ending { 0 } else { self.below(6) };
            let posts = if is_ending { 0 } else { self.below(4) };
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
        self.go_on_ending(own);
    }

    /// A server begins to end its group.
    fn begin_end(&mut self, own: usize) {
        let deadline = self.now.saturating_add(LINGER);
        if let Some(server) = self.servers[own].as_mut().filter(|it| it.deadline.is_none()) {
            server.deadline = Some(deadline);
        }
    }

    /// Ends a server as soon as all is delivered, or at its deadline.
    fn go_on_ending(&mut self, own: usize) {
        let now = self.now;
        let Some(server) = self.servers[own].as_mut() else { return };
        let Some(deadline) = server.deadline else { return };
        let mut is_done = true;
        for link in server.links.iter_mut().flatten() {
            link.begin_close();
            // The keeper notices what became of the connection, and of a peer that has left.
            if !link.is_done()
                && let Some(pipe) = link.pipe()
            {
                let (has_end, has_noticed) = {
                    let wire = pipe.wire.borrow();
                    (wire.directions[1 - pipe.side].has_end, wire.has_noticed[pipe.side])
                };
                match (has_end, has_noticed) {
                    (true, _) => link.handle_closed(now),
                    (_, true) => link.handle_lost(now),
                    _ => {}
                }
            }
            is_done &= link.poll_close(now);
        }
        if !is_done && now < deadline {
            return;
        }
        let incarnation = server.incarnation;
        for link in server.links.iter_mut().flatten() {
            let pair = (incarnation, link.peer());
            let undelivered = link.close().len();
            self.undelivered.insert(pair, undelivered);
        }
        self.ended.insert(incarnation);
        self.stop(own);
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
            Change::Connected { .. } | Change::Left { .. } | Change::Lost => {}
            Change::Disconnected => self.lost_connections += 1,
        }
    }

    /// A stranger asks for a connection in the name of a server: it makes up all but the proof.
    fn forge(&mut self) {
        let servers = self.servers.len() as u64;
        let [own, from] = [0, 1].map(|_| usize::try_from(self.below(servers)).unwrap());
        let known = self.servers[from].as_ref().map_or(7, |server| server.incarnation);
        let incarnation = if self.below(2) == 0 { known } else { self.random.next() };
        let attempt = u32::try_from(self.below(1 << 32)).unwrap();
        let server = u16::try_from(from).unwrap();
        let hello = Hello { server, thread: 0, incarnation, attempt, nonce: NONCE };
        let link = self.servers[own].as_ref().and_then(|server| server.links[from].as_ref());
        // The answer proves nothing of the stranger, and so nothing follows.
        let _ = link.map(|link| link.answer(&hello, NONCE));
    }

    fn kill(&mut self, own: usize) {
        self.stop(own);
    }

    /// A server is gone, with its side of all wires.
    fn stop(&mut self, own: usize) {
        let Some(server) = self.servers[own].take() else { return };
        self.restarts += 1;
        for link in server.links.iter().flatten() {
            if let Some(end) = link.pipe() {
                end.abort();
            }
        }
        for (_, end, _) in server.attempts.into_iter().flatten() {
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
                let is_late = !self.is_rough() || self.below(40) == 0;
                if is_late && !self.gone.contains(&own) {
                    self.start(own);
                }
            } else if self.breaks(600) {
                self.kill(own);
            } else if self.one_in(600) {
                self.begin_end(own);
            }
            if self.one_in(50) {
                self.forge();
            }
            self.act(own);
        }
    }

    /// Whether all that live are connected and have everything, of those that have ended, too, and
    /// know who is gone.
    fn is_settled(&self) -> bool {
        let incarnations = self.servers.iter().flatten().map(|server| server.incarnation);
        let live: BTreeSet<u64> = incarnations.collect();
        for (own, server) in self.servers.iter().enumerate() {
            let Some(server) = server else {
                if self.gone.contains(&own) {
                    continue;
                }
                return false;
            };
            for (peer, link) in server.links.iter().enumerate() {
                let Some(link) = link else { continue };
                let is_right = match link.standing() {
                    Standing::Connected => live.contains(&link.peer()),
                    Standing::Left | Standing::Lost => self.gone.contains(&peer),
                    Standing::Disconnected => link.peer() == 0 && self.gone.contains(&peer),
                };
                if !is_right || server.deadline.is_some() {
                    return false;
                }
            }
        }
        let received = |pair: &(u64, u64)| self.received.get(pair).map_or(0, Vec::len);
        self.sent.iter().filter(|(pair, _)| live.contains(&pair.1)).all(|(pair, sent)| {
            let undelivered = self.undelivered.get(pair).copied();
            if live.contains(&pair.0) {
                received(pair) == sent.len()
            } else if self.ended.contains(&pair.0) {
                received(pair) + undelivered.unwrap_or_default() >= sent.len()
            } else {
                true
            }
        })
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    wrong: Vec<String>,
    received: usize,
    resumed: usize,
    restarts: usize,
    /// Number of servers that ended by themselves, and of those that could not deliver all.
    ended: usize,
    undelivered: usize,
}

fn run(seed: u64, faults: Faults) -> Outcome {
    let mut world = World::new(seed, faults);
    let mut steps = 0;
    // Half of the worlds lose a server for good.
    if world.below(2) == 0 {
        let gone = world.below(world.servers.len() as u64);
        world.gone.insert(usize::try_from(gone).unwrap());
    }
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
        // In order, each once, from the first on; all of them if both live, or it would not have
        // settled.
        let in_order = received.iter().copied().eq(0..received.len() as u64);
        let sent = world.sent.get(pair).map_or(0, Vec::len);
        if !in_order || received.len() > sent {
            wrong.push(format!("{pair:x?}: {} of {sent}: {received:?}", received.len()));
        }
    }
    let received = world.received.values().map(Vec::len).sum();
    let is_short = |pair: &&(u64, u64)| world.undelivered.get(pair).is_some_and(|&count| count > 0);
    let undelivered = world.undelivered.keys().filter(is_short).count();
    let (resumed, restarts, ended) = (world.resumed, world.restarts, world.ended.len());
    Outcome { wrong, received, resumed, restarts, ended, undelivered }
}

#[test]
fn messages_arrive_once_and_in_order_within_an_incarnation() {
    let (mut bad, mut all) = (Vec::new(), Outcome::default());
    for seed in crate::random::seeds() {
        let outcome = run(seed, Faults::All);
        all.received += outcome.received;
        all.resumed += outcome.resumed;
        all.restarts += outcome.restarts;
        all.ended += outcome.ended;
        all.undelivered += outcome.undelivered;
        if !outcome.wrong.is_empty() {
            bad.push(format!("seed {seed}: {}", outcome.wrong.join("; ")));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    // The simulation has to have met what it is for.
    let count = crate::random::seeds().count();
    let Outcome { received, resumed, restarts, ended, undelivered, .. } = all;
    println!(
        "{count} seeds: {received} messages, {resumed} resumed, {restarts} restarts, {ended} ended, \
         {undelivered} with undelivered messages"
    );
    assert!(count < 50 || received > 200 * count && resumed > 2 * count);
    assert!(count < 50 || restarts > count && ended > count / 2);
}

#[test]
fn servers_that_end_know_that_all_was_delivered() {
    let mut ended = 0;
    for seed in crate::random::seeds() {
        let outcome = run(seed, Faults::NoBreaks);
        assert_eq!((&outcome.wrong[..], outcome.undelivered), (&[][..], 0), "seed {seed}");
        ended += outcome.ended;
    }
    assert!(ended > 0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [0, 5, 11] {
        assert_eq!(run(seed, Faults::All), run(seed, Faults::All));
    }
}

fn link(role: Role) -> Link<End> {
    let own = Own { server: 1, thread: 0, incarnation: 77 };
    let backoff = Backoff::new(Duration::from_millis(4), Duration::from_millis(100), 1);
    Link::new(own, role, backoff, LOST_AFTER)
}

fn hello(incarnation: u64, attempt: u32) -> Hello {
    Hello { server: 2, thread: 0, incarnation, attempt, nonce: NONCE }
}

fn connect(link: &mut Link<End>, hello: Hello, received: u64) -> Rc<RefCell<Wire>> {
    let wire = Rc::<RefCell<Wire>>::default();
    let pipe = End { wire: Rc::clone(&wire), side: 1 };
    let made = Made { pipe, hello, received };
    link.handle_connected(made, None::<fn(u64) -> Vec<u8>>, Instant::ZERO);
    wire
}

fn changes(link: &mut Link<End>) -> Vec<Change> {
    let mut changes = Vec::new();
    loop {
        match link.poll(&mut Vec::new(), Instant::ZERO) {
            Next::Change(change) => changes.push(change),
            Next::Message => {}
            Next::Nothing => return changes,
        }
    }
}

const CONNECTED_5: Change = Change::Connected { incarnation: 5, is_same: false, dropped: 0 };

#[test]
fn back_off_doubles_up_to_its_bound() {
    let mut link = link(Role::Dialer);
    let (mut now, mut delays) = (Instant::ZERO, Vec::new());
    for attempt in 1..=10 {
        assert_eq!(link.poll_dial(now, || NONCE).unwrap().attempt, attempt);
        let next = (link.poll_dial(now, || NONCE), link.poll_timeout());
        assert_eq!(next, (None, None), "one at a time");
        link.handle_failed(now);
        let due = link.poll_timeout().unwrap();
        assert_eq!(link.poll_dial(now, || NONCE), None);
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
    assert_eq!(link.answer(&hello(5, 3), NONCE).unwrap().incarnation, 77);
    connect(&mut link, hello(5, 3), 0);
    assert_eq!(link.answer(&hello(5, 3), NONCE), Err(Refusal::Stale), "answered before");
    link.answer(&hello(6, 1), NONCE).unwrap();
    connect(&mut link, hello(6, 1), 0);
    assert_eq!(link.answer(&hello(5, 4), NONCE), Err(Refusal::Stale), "an earlier run");
    let connected = |incarnation| Change::Connected { incarnation, is_same: false, dropped: 0 };
    assert_eq!(changes(&mut link), [connected(5), Change::Disconnected, connected(6)]);
    let dialer = self::link(Role::Dialer);
    assert_eq!(dialer.answer(&hello(5, 1), NONCE), Err(Refusal::Role));
    assert!(link.close().is_empty());
    assert_eq!(link.answer(&hello(7, 1), NONCE), Err(Refusal::Closed));
}

#[test]
fn request_without_a_proof_leaves_the_connection_as_it_is() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    changes(&mut link);
    for attempt in 2..200 {
        link.answer(&hello(5, attempt), NONCE).unwrap();
        link.answer(&hello(1000 + u64::from(attempt), 1), NONCE).unwrap();
    }
    assert!(link.post(b"goes on"));
    assert_eq!(wire.borrow().directions[1].flying, [b"goes on"]);
    assert_eq!((link.peer(), changes(&mut link)), (5, vec![]));
    // What was claimed in the name of the peer does not keep it out, either.
    link.answer(&hello(5, 2), NONCE).unwrap();
    connect(&mut link, hello(5, 2), 0);
    assert_eq!(link.pipe().unwrap().unconsumed().messages, [b"goes on"]);
}

#[test]
fn a_peer_that_claims_what_it_was_not_sent_is_not_connected() {
    let mut link = link(Role::Acceptor);
    connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"one") && link.post(b"two"));
    connect(&mut link, hello(5, 2), 3);
    assert!(link.pipe().is_none());
    // It got the first: the second is kept for the new connection.
    connect(&mut link, hello(5, 3), 1);
    assert_eq!(link.pipe().unwrap().unconsumed().messages, [b"two"]);
    connect(&mut link, hello(6, 1), 1);
    assert!(link.pipe().is_none(), "a new run has received nothing");
}

#[test]
fn a_peer_that_has_left_is_dialed_late() {
    let mut link = link(Role::Dialer);
    link.poll_dial(Instant::ZERO, || NONCE).unwrap();
    connect(&mut link, hello(5, 0), 0);
    assert!(link.post(b"not taken"));
    link.handle_closed(Instant::ZERO);
    let due = link.poll_timeout().unwrap();
    assert!(due >= Instant::ZERO.saturating_add(Duration::from_millis(50)), "{due}");
    assert_eq!(link.standing(), Standing::Disconnected, "there is something to poll");
    assert_eq!(changes(&mut link), [CONNECTED_5, Change::Left { dropped: 1 }]);
    assert_eq!(link.standing(), Standing::Left);
    // Its refusals say the same, once.
    link.poll_dial(due, || NONCE).unwrap();
    link.handle_refused(due);
    assert_eq!((changes(&mut link), link.standing()), (vec![], Standing::Left));
}

#[test]
fn a_peer_whose_end_came_with_the_failure_of_the_connection_has_left() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"consumed") && link.post(b"not consumed"));
    wire.borrow_mut().directions[0].arrived.push_back(b"the last".to_vec());
    wire.borrow_mut().directions[0].has_end = true;
    wire.borrow_mut().directions[1].kept.pop_front();
    link.handle_lost(Instant::ZERO);
    let mut message = Vec::new();
    assert_eq!(link.poll(&mut message, Instant::ZERO), Next::Message);
    assert_eq!(message, b"the last");
    assert_eq!(changes(&mut link), [CONNECTED_5, Change::Left { dropped: 1 }]);
    assert_eq!(link.standing(), Standing::Left);
    // An end of its own waits for nothing.
    link.begin_close();
    assert!(link.poll_close(Instant::ZERO) && link.close().is_empty());
}

#[test]
fn a_peer_that_stays_away_is_lost() {
    let mut link = link(Role::Acceptor);
    let later = Instant::ZERO.saturating_add(LOST_AFTER);
    assert!(!link.handle_time(later), "it was never there");
    connect(&mut link, hello(5, 1), 0);
    assert!(!link.handle_time(later));
    link.handle_lost(later);
    assert!(!link.handle_time(later));
    let later = later.saturating_add(LOST_AFTER);
    assert!(link.handle_time(later) && !link.handle_time(later), "it is told once");
    assert_eq!(changes(&mut link), [CONNECTED_5, Change::Disconnected, Change::Lost]);
    assert_eq!(link.standing(), Standing::Lost);
    connect(&mut link, hello(5, 2), 0);
    assert_eq!(link.standing(), Standing::Connected);
}

#[test]
fn what_has_arrived_survives_every_loss_until_it_is_polled() {
    let mut link = link(Role::Acceptor);
    let arrive = |wire: &Rc<RefCell<Wire>>, message: u8| {
        wire.borrow_mut().directions[0].arrived.push_back(vec![message]);
    };
    let mut attempt = 0;
    let mut try_connect = |link: &mut Link<End>| {
        attempt += 1;
        let is_answered = link.answer(&hello(5, attempt), NONCE);
        is_answered.map(|_| connect(link, hello(5, attempt), 0))
    };
    for number in 0..4 {
        arrive(&try_connect(&mut link).unwrap(), number);
        link.handle_lost(Instant::ZERO);
    }
    assert_eq!(try_connect(&mut link).unwrap_err(), Refusal::Busy, "what is kept has a bound");
    let mut got = Vec::new();
    let mut message = Vec::new();
    loop {
        match link.poll(&mut message, Instant::ZERO) {
            Next::Message => got.push(message[0]),
            Next::Change(_) => {}
            Next::Nothing => break,
        }
    }
    assert_eq!(got, [0, 1, 2, 3]);
    try_connect(&mut link).unwrap();
    assert_eq!(link.received_of(5), 4);
}

#[test]
fn end_waits_for_acknowledgements_and_tells_the_peer() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"one") && link.post(b"two"));
    link.begin_close();
    assert!(!link.post(b"three"), "it is too late");
    assert!(!link.poll_close(Instant::ZERO));
    // The connection is lost before the second is acknowledged: it goes over the next one.
    wire.borrow_mut().directions[1].acknowledged = 1;
    link.handle_lost(Instant::ZERO);
    assert!(!link.poll_close(Instant::ZERO));
    link.answer(&hello(5, 2), NONCE).unwrap();
    let wire = connect(&mut link, hello(5, 2), 1);
    assert!(!link.poll_close(Instant::ZERO) && wire.borrow().directions[1].is_closed);
    assert_eq!(wire.borrow().directions[1].flying, [b"two"]);
    wire.borrow_mut().directions[1].acknowledged = 1;
    wire.borrow_mut().directions[1].is_end_acknowledged = true;
    assert!(link.poll_close(Instant::ZERO) && link.is_done());
    assert_eq!(link.answer(&hello(5, 3), NONCE), Err(Refusal::Closed));
    assert!(link.close().is_empty());
}

#[test]
fn connection_of_a_peer_that_has_left_is_kept_until_it_has_all_acknowledgments() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    wire.borrow_mut().directions[0].has_end = true;
    link.handle_closed(Instant::ZERO);
    assert_eq!(link.standing(), Standing::Disconnected, "the change is to be polled first");
    link.begin_close();
    assert!(!link.poll_close(Instant::ZERO) && !wire.borrow().is_broken);
    assert!(wire.borrow().directions[1].is_closed, "the peer is told that this side has left, too");
    wire.borrow_mut().directions[1].is_end_acknowledged = true;
    assert!(link.poll_close(Instant::ZERO) && wire.borrow().is_broken);
    assert!(link.close().is_empty());
}

#[test]
fn peer_that_acknowledges_nothing_is_kept_for_a_while() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    link.handle_closed(Instant::ZERO);
    link.handle_time(Instant::ZERO);
    assert!(!wire.borrow().is_broken);
    link.handle_time(Instant::ZERO.saturating_add(PARTING_MAX));
    assert!(wire.borrow().is_broken);
}

#[test]
fn end_returns_what_was_not_acknowledged() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"one") && link.post(b"two") && link.post(b"three"));
    wire.borrow_mut().directions[1].acknowledged = 1;
    link.handle_lost(Instant::ZERO);
    link.begin_close();
    assert!(!link.poll_close(Instant::ZERO));
    assert_eq!(link.close(), [&b"two"[..], b"three"]);
}
