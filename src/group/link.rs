//! A link to one peer as a state machine: told requests, connections, losses and time, it says when
//! to connect and what to say.
//!
//! Of two servers the one with the higher number dials, and the other one accepts. Each server has
//! an incarnation, a random number that it draws when it starts. Messages are counted for each pair
//! of incarnations. Those that the peer is not known to have consumed are kept; they are in the
//! circular send buffer anyway. When a connection is lost and made again between the same
//! incarnations, both sides say how many messages they have received, and the rest goes over the
//! new connection: none is lost, none is doubled. A peer that has restarted begins with nothing,
//! and what was kept for its predecessor is dropped.
//!
//! A request changes nothing: a connection that works is replaced when the new one is established
//! and the peer has proved who it is, over that connection.
//!
//! A peer's program gets every message that its NIC has acknowledged: when a connection is lost,
//! the messages that have arrived by it are kept for the program. So a server may end as soon as
//! all its messages are acknowledged. Until then it goes on as before: a connection that is lost
//! is made again. Then it tells its peer that it has left, behind all messages.
//!
//! An acknowledgment can be lost, and only a connection that still exists sends it again. So the
//! side that learns that its peer has left closes the connection too, and keeps it until the peer
//! has acknowledged that or has gone.
//!
//! There is no IO here: tests run links on simulated connections.

mod backoff;
mod ending;

use std::collections::VecDeque;
use std::time::Duration;

pub(super) use backoff::Backoff;
use ending::{Ending, Parting};

use super::counters::Counter;
use super::hello::{Hello, Nonce};
use super::limits::{CHANGES_MAX, PARTING_MAX, PAST_MAX, UNPOLLED_MAX};
use crate::net::Unconsumed;
use crate::time::Instant;

/// A connection, as a link uses it.
pub(super) trait Pipe {
    /// Queues a message; false if there is no room.
    fn queue(&self, message: &[u8]) -> bool;
    /// Messages that are queued from now on are the program's; those before are of the handshake.
    fn begin(&self);
    /// Takes the next message.
    fn take(&self, out: &mut Vec<u8>) -> Take;
    /// The messages that the peer is not known to have consumed.
    fn unconsumed(&self) -> Unconsumed;
    /// Tells the peer, behind all messages, that this side has left. May be called several times.
    fn close(&self);
    /// Whether it was closed, and the peer's NIC has acknowledged all messages and the end.
    fn is_delivered(&self) -> bool;
    /// Whether nothing comes or goes by it any more.
    fn has_failed(&self) -> bool;
    /// Ends the connection at once.
    fn abort(&self);
}

/// Result of an attempt to take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    Message,
    Nothing,
    /// The connection has failed.
    Lost,
    /// The peer has left: no message follows.
    Closed,
}

/// Next item of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Message,
    Change(Change),
    Nothing,
}

/// Change of the connection with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The peer is connected.
    Connected {
        /// The random number of the run of the peer's server.
        incarnation: u64,
        /// Whether it is the same run as before: then no message was lost.
        is_same: bool,
        /// Number of messages to the run before that it is not known to have consumed. They are
        /// dropped.
        dropped: usize,
    },
    /// The connection is lost, and will be established anew.
    Disconnected,
    /// The peer has ended its group: it sends and receives no more. All that it sent comes before
    /// this.
    Left {
        /// Number of messages that it did not take. They are dropped.
        dropped: usize,
    },
    /// The peer was not connected for [`lost_after`](super::Config::lost_after). Attempts to
    /// connect go on.
    Lost,
}

/// The state of a peer, as a member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Connected,
    /// The peer is not connected, and is expected to be soon.
    Disconnected,
    /// The peer has ended its group.
    Left,
    /// The peer has been away for longer than it is waited for.
    Lost,
}

/// Side that establishes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dialer,
    Acceptor,
}

/// Reason for which a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The other side is to wait for a request.
    Role,
    /// The request is from an earlier run, or an earlier attempt.
    Stale,
    /// The program does not take the messages of connections before.
    Busy,
    /// The group has ended.
    Closed,
}

impl Refusal {
    /// Returns the text for the peer.
    pub(super) fn text(self) -> &'static [u8] {
        match self {
            Self::Role => b"the higher number dials",
            Self::Stale => b"a request of the past",
            Self::Busy => b"busy",
            Self::Closed => b"has left",
        }
    }
}

impl Refusal {
    /// Returns what counts it.
    pub(super) fn counter(self) -> Counter {
        match self {
            Self::Role => Counter::WrongRole,
            Self::Stale => Counter::Stale,
            Self::Busy => Counter::Busy,
            Self::Closed => Counter::Closed,
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
    /// A connection is being made, by this side.
    Dialing,
    Up(P),
    Closed,
}

/// A connection that is made, and what the peer said when it proved itself.
#[derive(Debug)]
pub(super) struct Made<P> {
    pub(super) pipe: P,
    pub(super) hello: Hello,
    /// Number of messages that the peer has received of this incarnation.
    pub(super) received: u64,
}

/// A link. See the [module](self).
#[derive(Debug)]
pub(super) struct Link<P> {
    own: Own,
    role: Role,
    state: State<P>,
    parting: Option<Parting<P>>,
    /// The peer's incarnation, 0 before the first connection; and earlier ones.
    peer: u64,
    past: VecDeque<u64>,
    /// Number of own attempts; the last attempt of the peer that was answered.
    attempt: u32,
    peer_attempt: u32,
    /// Numbers of messages between the two incarnations.
    sent: u64,
    received: u64,
    /// Messages that were sent over a lost connection and are not known to be consumed, oldest
    /// first.
    pending: VecDeque<Vec<u8>>,
    /// Number of the last of them that the peer's NIC has not acknowledged, while there is no
    /// connection.
    unacknowledged: usize,
    /// Messages that had arrived when their connection was lost; they come before the changes.
    arrived: VecDeque<Vec<u8>>,
    /// Number of lost connections whose messages are there.
    unpolled: usize,
    backoff: Backoff,
    /// Time without a connection after which a peer is lost, and the beginning of that time.
    lost_after: Duration,
    down_since: Instant,
    has_left: bool,
    is_lost: bool,
    ending: Ending,
    changes: VecDeque<Change>,
    /// Number of connections so far.
    generation: u64,
    /// Whether room for a message is reserved in the present connection.
    is_reserved: bool,
    /// Number of messages since the last doorbell.
    unflushed: usize,
}

impl<P: Pipe> Link<P> {
    pub(super) fn new(own: Own, role: Role, backoff: Backoff, lost_after: Duration) -> Self {
        Self {
            own,
            role,
            state: State::Down,
            parting: None,
            peer: 0,
            past: VecDeque::new(),
            attempt: 0,
            peer_attempt: 0,
            sent: 0,
            received: 0,
            pending: VecDeque::new(),
            unacknowledged: 0,
            arrived: VecDeque::new(),
            unpolled: 0,
            backoff,
            lost_after,
            down_since: Instant::ZERO,
            has_left: false,
            is_lost: false,
            ending: Ending::Open,
            changes: VecDeque::new(),
            generation: 0,
            is_reserved: false,
            unflushed: 0,
        }
    }

    // Connections.

    /// Returns what to say to the peer, if it is time to connect. Then
    /// [`handle_connected`](Self::handle_connected) or [`handle_failed`](Self::handle_failed) must
    /// follow.
    pub(super) fn poll_dial(
        &mut self,
        now: Instant,
        nonce: impl FnOnce() -> Nonce,
    ) -> Option<Hello> {
        if now < self.poll_timeout()? {
            return None;
        }
        self.attempt = self.attempt.wrapping_add(1);
        self.state = State::Dialing;
        Some(self.hello(nonce()))
    }

    /// Returns when [`poll_dial`](Self::poll_dial) has something to say.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.role == Role::Dialer
            && matches!(self.state, State::Down)
            && self.ending != Ending::Done
            && self.has_room();
        waits.then_some(self.backoff.due())
    }

    /// Whether what arrives by another connection can be kept when that is lost, too.
    fn has_room(&self) -> bool {
        self.unpolled < UNPOLLED_MAX
    }

    /// Returns the answer to a peer that asks for a connection. If it proves itself over that,
    /// [`handle_connected`](Self::handle_connected) must follow; otherwise nothing has changed.
    pub(super) fn answer(&self, hello: &Hello, nonce: Nonce) -> Result<Hello, Refusal> {
        self.check(hello)?;
        Ok(self.hello(nonce))
    }

    fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        if self.role == Role::Dialer {
            return Err(Refusal::Role);
        }
        if matches!(self.state, State::Closed) || self.ending == Ending::Done {
            return Err(Refusal::Closed);
        }
        let is_same = hello.incarnation == self.peer;
        if self.past.contains(&hello.incarnation) || is_same && hello.attempt <= self.peer_attempt {
            return Err(Refusal::Stale);
        }
        if self.has_room() { Ok(()) } else { Err(Refusal::Busy) }
    }

    /// Returns the number of messages that were received of an incarnation of the peer. At the side
    /// that dials it stays the same until the connection is made.
    pub(super) fn received_of(&self, incarnation: u64) -> u64 {
        if incarnation == self.peer { self.received } else { 0 }
    }

    /// The peer has proved itself over a connection, which replaces the one that there is. The side
    /// that accepts says by `account`, as the first message, how many messages it has received.
    pub(super) fn handle_connected(
        &mut self,
        made: Made<P>,
        account: Option<impl FnOnce(u64) -> Vec<u8>>,
        now: Instant,
    ) {
        let Made { pipe, hello, received: heard } = made;
        let is_due = match self.role {
            Role::Dialer => matches!(self.state, State::Dialing),
            Role::Acceptor => self.check(&hello).is_ok(),
        };
        if !is_due {
            return pipe.abort();
        }
        self.detach(false, now);
        let is_same = hello.incarnation == self.peer;
        // Kept messages that the peer has not received go over this connection.
        let kept_from = self.sent - self.pending.len() as u64;
        let received = heard.checked_sub(kept_from).and_then(|count| usize::try_from(count).ok());
        let received = received.filter(|count| *count <= self.pending.len());
        if is_same && received.is_none() || !is_same && heard != 0 {
            pipe.abort();
            self.state = State::Down;
            return self.backoff.delay(now);
        }
        let dropped = if is_same { 0 } else { self.pending.len() };
        if is_same {
            self.pending.drain(..received.unwrap_or_default());
        } else {
            self.meet(hello.incarnation);
        }
        if let Some(account) = account {
            // It is the first in an empty ring: there is room.
            pipe.queue(&account(self.received));
        }
        pipe.begin();
        self.peer_attempt = hello.attempt;
        self.state = State::Up(pipe);
        self.generation += 1;
        (self.is_reserved, self.unflushed) = (false, 0);
        (self.has_left, self.is_lost) = (false, false);
        self.backoff.reset(now);
        self.change(Change::Connected { incarnation: self.peer, is_same, dropped });
        self.pump();
    }

    /// Begins anew with another incarnation of the peer.
    fn meet(&mut self, incarnation: u64) {
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.extend((self.peer != 0).then_some(self.peer));
        (self.peer, self.sent, self.received) = (incarnation, 0, 0);
        self.pending.clear();
    }

    /// The connection could not be made.
    pub(super) fn handle_failed(&mut self, now: Instant) {
        if matches!(self.state, State::Dialing) {
            self.state = State::Down;
            self.backoff.delay(now);
        }
    }

    /// The peer refuses the connection because it has left.
    pub(super) fn handle_refused(&mut self, now: Instant) {
        if matches!(self.state, State::Dialing) {
            self.state = State::Down;
            self.leave(now);
        }
    }

    /// The connection is lost.
    pub(super) fn handle_lost(&mut self, now: Instant) {
        if matches!(self.state, State::Up(_)) {
            self.backoff.reset(now);
            self.detach(false, now);
        }
    }

    /// The peer has left: it is not expected to be back soon.
    pub(super) fn handle_closed(&mut self, now: Instant) {
        if matches!(self.state, State::Up(_)) {
            self.detach(true, now);
        }
    }

    /// Time has passed. Returns whether the peer counts as lost from now on.
    pub(super) fn handle_time(&mut self, now: Instant) -> bool {
        self.poll_parting(now);
        let is_away = !matches!(self.state, State::Up(_) | State::Closed) && self.peer != 0;
        let is_due = now >= self.down_since.saturating_add(self.lost_after);
        if !is_away || !is_due || self.has_left || self.is_lost {
            return false;
        }
        self.is_lost = true;
        self.change(Change::Lost);
        true
    }

    /// Returns the state of the peer, behind all that is to be polled.
    pub(super) fn standing(&self) -> Standing {
        match &self.state {
            State::Up(_) => Standing::Connected,
            _ if self.has_next() => Standing::Disconnected,
            _ if self.has_left => Standing::Left,
            _ if self.is_lost => Standing::Lost,
            _ => Standing::Disconnected,
        }
    }

    /// Ends the connection, and keeps what the peer may not have received, unless it has left. Of a
    /// peer that leaves the failure of the connection may be seen first.
    fn detach(&mut self, is_closed: bool, now: Instant) {
        if let State::Up(pipe) = std::mem::replace(&mut self.state, State::Down) {
            // Nothing arrives or is posted by it from now on. What has arrived is kept for the
            // program: the peer may have ended since.
            if is_closed {
                pipe.close();
            } else {
                pipe.abort();
            }
            let (mut message, before) = (Vec::new(), self.arrived.len());
            let last = loop {
                match pipe.take(&mut message) {
                    Take::Message => {
                        self.received += 1;
                        self.arrived.push_back(std::mem::take(&mut message));
                    }
                    last => break last,
                }
            };
            self.unpolled += usize::from(self.arrived.len() > before);
            let Unconsumed { messages, unacknowledged } = pipe.unconsumed();
            let mut kept = VecDeque::from(messages);
            self.unacknowledged = unacknowledged + self.pending.len();
            kept.append(&mut self.pending);
            self.pending = kept;
            self.is_reserved = false;
            self.down_since = now;
            if is_closed {
                let parting = Parting { pipe, deadline: now.saturating_add(PARTING_MAX) };
                if let Some(earlier) = self.parting.replace(parting) {
                    earlier.pipe.abort();
                }
            }
            if is_closed || last == Take::Closed {
                self.leave(now);
            } else {
                self.change(Change::Disconnected);
            }
        }
    }

    fn hello(&self, nonce: Nonce) -> Hello {
        let Own { server, thread, incarnation } = self.own;
        Hello { server, thread, incarnation, attempt: self.attempt, nonce }
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

    /// Queues a message; false if there is no room or no connection, or the group ends.
    pub(super) fn post(&mut self, message: &[u8]) -> bool {
        let posted = !self.is_closing()
            && self.pump()
            && self.pipe().is_some_and(|pipe| pipe.queue(message));
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

    /// Returns the next item: a message, which replaces the contents of `out`, or a change.
    pub(super) fn poll(&mut self, out: &mut Vec<u8>, now: Instant) -> Next {
        if let Some(message) = self.arrived.pop_front() {
            *out = message;
            if self.arrived.is_empty() {
                self.unpolled = 0;
            }
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
