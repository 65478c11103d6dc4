//! Links of several servers on simulated connections, in virtual time: requests are lost, doubled
//! and late, connections break at any moment and each side notices at another one, servers are
//! killed and start again. Servers end their groups at any moment, for good or to start again.
//! Strangers ask for connections in the name of servers, and prove nothing.
//!
//! `ROCE_SEEDS=10000 cargo test --release --lib group::tests` runs as many seeds, `ROCE_SEED=17`
//! one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::{ACCOUNT, End, LOST_AFTER, NONCE, Wire};
use crate::group::hello::Hello;
use crate::group::link::{
    Backoff, Change, Link, Made, Next, Own, Pipe, Refusal, Role, Standing, Take,
};
use crate::random::Random;
use crate::time::Instant;

/// Time for which an attempt waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Time at which faults end and everything is to settle.
const CALM: Duration = Duration::from_millis(400);
/// Time that a server that ends waits for its messages to be delivered.
const LINGER: Duration = Duration::from_millis(200);

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
