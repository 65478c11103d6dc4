//! Links on simulated connections, in virtual time.

mod link;
mod simulation;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use super::hello::Nonce;
use super::link::{Pipe, Take};
use crate::net::Unconsumed;

/// Messages that a sender may be ahead.
const WINDOW: usize = 12;
/// Time that a peer is away until it counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(250);
/// Nonces are for proofs, which these tests do not make.
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
