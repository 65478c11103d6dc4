//! Acknowledgements and NAKs that a requester was sent, to tell answers from copies of them.

use std::collections::VecDeque;

use super::limits::RECENT_ACKS_MAX;
use crate::time::Instant;
use crate::wire::Msn;

/// A NAK or RNR NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastNak {
    pub(super) sequence: u64,
    pub(super) digest: u32,
    pub(super) frame: u64,
    pub(super) time: Instant,
    pub(super) is_sequence_error: bool,
}

/// The last response that acknowledged something new.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastAnswer {
    /// Whether it is a READ response or an ATOMIC acknowledgement.
    pub(super) is_response: bool,
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) time: Instant,
}

/// A response that came, new or not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    pub(super) sequence: u64,
    pub(super) time: Instant,
}

/// Acknowledgements and NAKs of one requester.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    pub(super) last: LastAnswer,
    pub(super) heard: Heard,
    /// Last response to the latest request that has had one.
    pub(super) latest: Heard,
    pub(super) last_nak: Option<LastNak>,
    /// Last acknowledgements: sequence number and digest.
    recent_acks: VecDeque<(u64, u32)>,
    /// Latest MSN of the responder: with it responses tell in which order they were sent.
    msn: Option<Msn>,
    /// Requests that were transmitted or delivered more than once: each may be answered by one more
    /// acknowledgement.
    due_again: u32,
    /// Frame of the last of them.
    pub(super) repeat_frame: u64,
    /// Frame of the last request that the network delivered twice.
    pub(super) copy_frame: u64,
    /// Sequence number behind that copy.
    pub(super) copy_end: u64,
}

impl Answers {
    /// Notes a response that came.
    pub(super) fn hear(&mut self, heard: Heard) {
        self.heard = heard;
        if heard.sequence >= self.latest.sequence {
            self.latest = heard;
        }
    }

    /// Notes a request that was transmitted or delivered once more.
    pub(super) fn expect_again(&mut self, frame: u64) {
        self.due_again += 1;
        self.repeat_frame = frame;
    }

    /// Takes one of the further answers that are due, if there is one.
    pub(super) fn take_due(&mut self) -> bool {
        let is_due = self.due_again > 0;
        self.due_again -= u32::from(is_due);
        is_due
    }

    /// Notes that no further answers are due.
    pub(super) fn expect_none(&mut self) {
        self.due_again = 0;
    }

    /// Remembers an acknowledgement.
    pub(super) fn remember_ack(&mut self, sequence: u64, digest: u32) {
        if self.recent_acks.len() >= RECENT_ACKS_MAX {
            self.recent_acks.pop_front();
        }
        self.recent_acks.push_back((sequence, digest));
    }

    /// Whether an equal acknowledgement came lately.
    pub(super) fn has_ack(&self, sequence: u64, digest: u32) -> bool {
        self.recent_acks.contains(&(sequence, digest))
    }

    /// Whether the responder sent a response with this MSN before one that was captured earlier
    /// (§9.7.7.1).
    pub(super) fn is_sent_earlier(&mut self, msn: Option<Msn>) -> bool {
        let Some(msn) = msn else { return false };
        let is_earlier = self.msn.is_some_and(|latest| msn.since(latest) < 0);
        if !is_earlier {
            self.msn = Some(msn);
        }
        is_earlier
    }
}
