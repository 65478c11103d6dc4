//! The end of a link: of the own group, or of the peer's.

use super::{Change, Link, Pipe, State};
use crate::net::Unconsumed;
use crate::time::Instant;

/// The end of the own group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Open,
    /// Posted messages are to be delivered; if the peer was connected, it is told of the end.
    Closing {
        was_connected: bool,
    },
    /// The link has ended.
    Done,
}

/// A connection whose peer has left, kept so that its NIC acknowledges what the peer retransmits.
#[derive(Debug)]
pub(super) struct Parting<P> {
    pub(super) pipe: P,
    pub(super) deadline: Instant,
}

impl<P: Pipe> Link<P> {
    /// Drops what was kept for a peer that has left.
    pub(super) fn leave(&mut self, now: Instant) {
        self.backoff.delay_longest(now);
        if self.has_left || self.peer == 0 {
            return;
        }
        self.change(Change::Left { dropped: self.pending.len() });
        self.has_left = true;
        self.pending.clear();
        self.unacknowledged = 0;
    }

    /// Ends the connection that was kept for a peer that has left, once the peer is known to have
    /// all acknowledgments, is gone, or the deadline has passed. Returns whether none is kept.
    pub(super) fn poll_parting(&mut self, now: Instant) -> bool {
        let is_over = |Parting { pipe, deadline }: &mut Parting<P>| {
            pipe.is_delivered() || pipe.has_failed() || now >= *deadline
        };
        if let Some(over) = self.parting.take_if(is_over) {
            over.pipe.abort();
        }
        self.parting.is_none()
    }

    /// No message is posted from now on: [`poll_close`](Self::poll_close) tells when those before
    /// are delivered.
    pub(in crate::group) fn begin_close(&mut self) {
        if self.ending == Ending::Open {
            let was_connected = matches!(self.state, State::Up(_));
            self.ending = Ending::Closing { was_connected };
        }
    }

    /// Whether [`begin_close`](Self::begin_close) was called.
    pub(in crate::group) fn is_closing(&self) -> bool {
        self.ending != Ending::Open
    }

    /// Whether nothing is left to do.
    pub(in crate::group) fn is_done(&self) -> bool {
        self.ending == Ending::Done
    }

    /// Continues the end of the link. Returns whether nothing is left to do: all messages are
    /// delivered and the peer knows of the end, or the peer is gone.
    pub(in crate::group) fn poll_close(&mut self, now: Instant) -> bool {
        let Ending::Closing { was_connected } = self.ending else {
            return self.is_done();
        };
        let has_parted = self.poll_parting(now);
        let is_pumped = self.pump();
        let is_done = match &self.state {
            State::Up(pipe) => {
                if is_pumped {
                    pipe.close();
                }
                is_pumped && pipe.is_delivered()
            }
            State::Closed => true,
            // The attempt ends soon.
            State::Dialing => false,
            State::Down => {
                self.has_left || self.is_lost || self.unacknowledged == 0 && !was_connected
            }
        } && has_parted;
        if is_done {
            self.ending = Ending::Done;
        }
        is_done
    }

    /// Ends the link. Returns the messages that the peer is not known to have.
    pub(in crate::group) fn close(&mut self) -> Vec<Vec<u8>> {
        if let Some(parting) = self.parting.take() {
            parting.pipe.abort();
        }
        let (mut kept, unacknowledged) = match std::mem::replace(&mut self.state, State::Closed) {
            State::Up(pipe) if pipe.is_delivered() => return Vec::new(),
            State::Up(pipe) => {
                pipe.abort();
                let Unconsumed { mut messages, unacknowledged } = pipe.unconsumed();
                let unacknowledged = unacknowledged + self.pending.len();
                messages.extend(self.pending.drain(..));
                (messages, unacknowledged)
            }
            _ => (self.pending.drain(..).collect(), self.unacknowledged),
        };
        kept.split_off(kept.len().saturating_sub(unacknowledged))
    }
}
