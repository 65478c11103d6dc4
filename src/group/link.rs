//! A link to one peer as a state machine: told requests, connections, losses and time, it says when to connect and what to say.
//!
//! Of two servers the one with the higher number dials, and the other one accepts. Each server has an incarnation, a random
//! number that it draws when it starts. Messages are counted for each pair of incarnations. Those that the peer is not known to
//! have consumed are kept; they are in the circular send buffer anyway. When a connection is lost and made again between the
//! same incarnations, both sides say how many messages they have received, and the rest goes over the new connection: none is
//! lost, none is doubled. A peer that has restarted begins with nothing, and what was kept for its predecessor is dropped.
//!
//! There is no IO here: tests run links on simulated connections.

use std::collections::VecDeque;
use std::time::Duration;

use super::hello::Hello;
use super::limits::{CHANGES_MAX, PAST_MAX};
use crate::random::Random;
use crate::time::Instant;

/// A connection, as a link uses it.
pub(super) trait Pipe {
    /// Queues a message; false if there is no room.
    fn queue(&self, message: &[u8]) -> bool;
    /// Takes the next message.
    fn take(&self, out: &mut Vec<u8>) -> Take;
    /// The messages that the peer is not known to have consumed, oldest first.
    fn unconsumed(&self) -> Vec<Vec<u8>>;
    /// Ends it at once.
    fn abort(&self);
}

/// What became of an attempt to take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    Message,
    Nothing,
    /// The connection has failed.
    Lost,
    /// The peer has closed the connection.
    Closed,
}

/// What comes next of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Message,
    Change(Change),
    Nothing,
}

/// What happened to the connection with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It is there.
    Connected {
        /// The random number of the run of the peer's server.
        incarnation: u64,
        /// Whether it is the same run as before: then no message was lost.
        is_same: bool,
        /// Number of messages to the run before that it is not known to have consumed. They are dropped.
        dropped: usize,
    },
    /// It is lost, and will be made again.
    Disconnected,
}

/// Which side makes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dialer,
    Acceptor,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The other side is to wait for a request.
    Role,
    /// It is from an earlier run, or an earlier attempt.
    Stale,
    /// Another request is being answered.
    Busy,
    /// The group is closed.
    Closed,
}

impl Refusal {
    /// What the peer is told.
    pub(super) fn text(self) -> &'static [u8] {
        match self {
            Self::Role => b"the higher number dials",
            Self::Stale => b"a request of the past",
            Self::Busy => b"busy with another request",
            Self::Closed => b"closed",
        }
    }
}

/// The own side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) server: u16,
    pub(super) thread: u16,
    pub(super) incarnation: u64,
}

#[derive(Debug)]
enum State<P> {
    Down,
    /// A connection is being made; the hello of the peer, if it asked.
    Connecting(Option<Hello>),
    Up(P),
    Closed,
}

/// How long to wait before the next attempt: it doubles, up to a bound, with jitter.
#[derive(Debug)]
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    current: Duration,
    due: Instant,
    random: Random,
}

impl Backoff {
    pub(super) fn new(min: Duration, max: Duration, seed: u64) -> Self {
        let min = min.max(Duration::from_micros(1));
        Self { min, max: max.max(min), current: min, due: Instant::ZERO, random: Random::new(seed) }
    }

    fn reset(&mut self, now: Instant) {
        self.current = self.min;
        self.delay(now);
    }

    fn delay(&mut self, now: Instant) {
        let half = self.current / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        let jitter = Duration::from_nanos(self.random.next() % nanos);
        self.due = now.saturating_add(half + jitter);
        self.current = (self.current * 2).min(self.max);
    }
}

/// A link. See the [module](self).
#[derive(Debug)]
pub(super) struct Link<P> {
    own: Own,
    role: Role,
    state: State<P>,
    /// The peer's incarnation, 0 before the first connection; and earlier ones.
    peer: u64,
    past: VecDeque<u64>,
    /// Number of own attempts; the last attempt of the peer that was answered.
    attempt: u32,
    peer_attempt: u32,
    /// Numbers of messages between the two incarnations.
    sent: u64,
    received: u64,
    /// Messages that were sent over a lost connection and are not known to be consumed, oldest first.
    pending: VecDeque<Vec<u8>>,
    /// Messages that had arrived when their connection was lost; they come before the changes.
    arrived: VecDeque<Vec<u8>>,
    backoff: Backoff,
    changes: VecDeque<Change>,
    /// Number of connections so far.
    generation: u64,
    /// Whether room for a message is reserved in the present connection.
    is_reserved: bool,
    /// Number of messages since the last doorbell.
    unflushed: usize,
}

impl<P: Pipe> Link<P> {
    pub(super) fn new(own: Own, role: Role, backoff: Backoff) -> Self {
        Self {
            own,
            role,
            state: State::Down,
            peer: 0,
            past: VecDeque::new(),
            attempt: 0,
            peer_attempt: 0,
            sent: 0,
            received: 0,
            pending: VecDeque::new(),
            arrived: VecDeque::new(),
            backoff,
            changes: VecDeque::new(),
            generation: 0,
            is_reserved: false,
            unflushed: 0,
        }
    }

    // Connections.

    /// What to say to the peer, if it is time to connect. Then [`handle_connected`](Self::handle_connected) or
    /// [`handle_failed`](Self::handle_failed) must follow.
    pub(super) fn poll_dial(&mut self, now: Instant) -> Option<Hello> {
        let is_due = matches!(self.state, State::Down) && now >= self.backoff.due;
        if self.role == Role::Acceptor || !is_due {
            return None;
        }
        self.attempt = self.attempt.wrapping_add(1);
        self.state = State::Connecting(None);
        Some(self.hello(self.peer, self.received))
    }

    /// When [`poll_dial`](Self::poll_dial) has something to say.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.role == Role::Dialer && matches!(self.state, State::Down);
        waits.then_some(self.backoff.due)
    }

    /// The peer asks for a connection. What to answer; [`handle_connected`](Self::handle_connected) or
    /// [`handle_failed`](Self::handle_failed) must follow. A connection that there is ends: the peer has lost it.
    pub(super) fn handle_request(&mut self, hello: &Hello) -> Result<Hello, Refusal> {
        if self.role == Role::Dialer {
            return Err(Refusal::Role);
        }
        let is_same = hello.incarnation == self.peer;
        if self.past.contains(&hello.incarnation) || is_same && hello.attempt <= self.peer_attempt {
            return Err(Refusal::Stale);
        }
        match self.state {
            State::Closed => return Err(Refusal::Closed),
            State::Connecting(_) => return Err(Refusal::Busy),
            State::Up(_) => self.detach(),
            State::Down => {}
        }
        self.state = State::Connecting(Some(*hello));
        Ok(self.hello(hello.incarnation, if is_same { self.received } else { 0 }))
    }

    /// The connection is made. `answer` is what the peer answered, at the side that dialed.
    pub(super) fn handle_connected(&mut self, pipe: P, answer: Option<Hello>, now: Instant) {
        let State::Connecting(asked) = self.state else { return pipe.abort() };
        let Some(hello) = answer.or(asked) else {
            pipe.abort();
            return self.handle_failed(now);
        };
        let is_same = hello.incarnation == self.peer;
        if is_same {
            // What the peer has not received of what is kept goes over this connection.
            let heard = if hello.peer == self.own.incarnation { hello.received } else { 0 };
            let kept_from = self.sent - self.pending.len() as u64;
            let is_sound = (kept_from..=self.sent).contains(&heard);
            let received = usize::try_from(heard.wrapping_sub(kept_from)).ok();
            let Some(received) = received.filter(|_| is_sound) else {
                pipe.abort();
                return self.handle_failed(now);
            };
            self.pending.drain(..received);
        }
        let dropped = if is_same { 0 } else { self.pending.len() };
        if !is_same {
            if self.past.len() == PAST_MAX {
                self.past.pop_front();
            }
            self.past.extend((self.peer != 0).then_some(self.peer));
            (self.peer, self.sent, self.received) = (hello.incarnation, 0, 0);
            self.pending.clear();
        }
        self.peer_attempt = hello.attempt;
        self.state = State::Up(pipe);
        self.generation += 1;
        (self.is_reserved, self.unflushed) = (false, 0);
        self.backoff.reset(now);
        self.change(Change::Connected { incarnation: self.peer, is_same, dropped });
        self.pump();
    }

    /// The connection could not be made.
    pub(super) fn handle_failed(&mut self, now: Instant) {
        if matches!(self.state, State::Connecting(_)) {
            self.state = State::Down;
            self.backoff.delay(now);
        }
    }

    /// The connection is lost.
    pub(super) fn handle_lost(&mut self, now: Instant) {
        if matches!(self.state, State::Up(_)) {
            self.detach();
            self.backoff.reset(now);
        }
    }

    /// The peer has closed the connection: it is not expected to be back soon.
    pub(super) fn handle_closed(&mut self, now: Instant) {
        if matches!(self.state, State::Up(_)) {
            self.detach();
            self.backoff.current = self.backoff.max;
            self.backoff.delay(now);
        }
    }

    /// No connection is to be made any more. Returns the one that there is.
    pub(super) fn close(&mut self) -> Option<P> {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Up(pipe) => Some(pipe),
            _ => None,
        }
    }

    /// Ends the connection, and keeps what the peer may not have received.
    fn detach(&mut self) {
        if let State::Up(pipe) = std::mem::replace(&mut self.state, State::Down) {
            // Nothing arrives or is sent by it from now on. What has arrived is kept for the program, once: if it did not
            // even take that of the connection before, the peer keeps it.
            pipe.abort();
            let mut message = Vec::new();
            while self.changes.is_empty() && pipe.take(&mut message) == Take::Message {
                self.received += 1;
                self.arrived.push_back(std::mem::take(&mut message));
            }
            let mut kept = VecDeque::from(pipe.unconsumed());
            kept.append(&mut self.pending);
            self.pending = kept;
            self.is_reserved = false;
            self.change(Change::Disconnected);
        }
    }

    fn hello(&self, peer: u64, received: u64) -> Hello {
        let Own { server, thread, incarnation } = self.own;
        Hello { server, thread, incarnation, peer, received, attempt: self.attempt }
    }

    fn change(&mut self, change: Change) {
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    // Messages.

    /// The connection, unless the peer is not connected.
    pub(super) fn pipe(&self) -> Option<&P> {
        match &self.state {
            State::Up(pipe) => Some(pipe),
            _ => None,
        }
    }

    /// Queues what was kept of a lost connection; true if nothing is left of it.
    pub(super) fn pump(&mut self) -> bool {
        let State::Up(pipe) = &self.state else { return false };
        while self.pending.front().is_some_and(|message| pipe.queue(message)) {
            self.pending.pop_front();
        }
        self.pending.is_empty()
    }

    /// Queues a message; false if there is no room or no connection.
    pub(super) fn post(&mut self, message: &[u8]) -> bool {
        let posted = self.pump() && self.pipe().is_some_and(|pipe| pipe.queue(message));
        if posted {
            self.handle_posted();
        }
        posted
    }

    /// A message was queued on the connection.
    pub(super) fn handle_posted(&mut self) {
        self.sent += 1;
        self.unflushed += 1;
    }

    /// What comes next: a message, which replaces the contents of `out`, or a change.
    pub(super) fn poll(&mut self, out: &mut Vec<u8>, now: Instant) -> Next {
        if let Some(message) = self.arrived.pop_front() {
            *out = message;
            return Next::Message;
        }
        if let Some(change) = self.changes.pop_front() {
            return Next::Change(change);
        }
        match self.pipe().map(|pipe| pipe.take(out)) {
            Some(Take::Message) => {
                self.received += 1;
                Next::Message
            }
            Some(Take::Nothing) | None => Next::Nothing,
            Some(ended @ (Take::Lost | Take::Closed)) => {
                match ended {
                    Take::Closed => self.handle_closed(now),
                    _ => self.handle_lost(now),
                }
                self.changes.pop_front().map_or(Next::Nothing, Next::Change)
            }
        }
    }

    /// Whether something comes next that is not in the connection.
    pub(super) fn has_next(&self) -> bool {
        !self.arrived.is_empty() || !self.changes.is_empty()
    }

    /// Number of the connection.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The peer's incarnation; 0 before the first connection.
    pub(super) fn peer(&self) -> u64 {
        self.peer
    }

    /// Number of messages since the last doorbell.
    pub(super) fn unflushed(&self) -> usize {
        self.unflushed
    }

    pub(super) fn handle_flushed(&mut self) {
        self.unflushed = 0;
    }

    /// Whether room for a message is reserved.
    pub(super) fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    pub(super) fn set_reserved(&mut self, is_reserved: bool) {
        self.is_reserved = is_reserved;
    }
}
