//! How far the requests of one requester are acknowledged and answered.

use std::collections::VecDeque;

use super::limits::REACTION_NANOS;

/// Maximum number of recent advances.
const RECENT_MAX: usize = 256;

/// An advance that is so recent that the requester may not know of it.
#[derive(Clone, Copy, Debug)]
struct Advance {
    time: u64,
    /// First sequence number that was not done before.
    before: u64,
}

/// Acknowledgements and responses to one requester.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Behind the highest sequence number that the responder acknowledged in any way.
    acknowledged: u64,
    /// `acknowledged` without what a response acknowledged behind a missing response to a READ or
    /// ATOMIC: a requester may count that or not.
    counted: u64,
    /// First sequence number that the requester cannot take as done: before it all is acknowledged
    /// and answered.
    una: u64,
    /// `una` by `counted`.
    sure: u64,
    recent: VecDeque<Advance>,
    /// Time and frame of the last response that brought something new.
    last_time: u64,
    last_frame: u64,
    /// Longest time for which it waited for an acknowledgement without a retransmission.
    waited: u64,
}

impl Progress {
    /// Begins at a sequence number.
    pub(super) fn start_at(&mut self, sequence: u64) {
        let (acknowledged, counted, una, sure) = (sequence, sequence, sequence, sequence);
        *self = Self { acknowledged, counted, una, sure, ..Self::default() };
    }

    /// Behind the highest sequence number that the responder acknowledged in any way.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// First sequence number that the requester cannot take as done.
    pub(super) fn una(&self) -> u64 {
        self.una
    }

    /// Frame of the last response that brought something new.
    pub(super) fn last_frame(&self) -> u64 {
        self.last_frame
    }

    /// Longest time for which it waited for an acknowledgement without a retransmission.
    pub(super) fn waited(&self) -> u64 {
        self.waited
    }

    /// Takes an acknowledgement of all before `until`, which passed a missing response.
    pub(super) fn acknowledge(&mut self, until: u64, passed: Option<u64>) {
        self.acknowledged = self.acknowledged.max(until);
        self.counted = self.counted.max(passed.map_or(until, |passed| until.min(passed)));
    }

    /// Notes a response that brought something new.
    pub(super) fn note(&mut self, time: u64, frame: u64) {
        (self.last_time, self.last_frame) = (time, frame);
    }

    /// All before `una` is done. `sent`: time when the first packet that was not was transmitted,
    /// if that was once. Returns whether this is more than before.
    pub(super) fn advance(&mut self, una: u64, sent: Option<u64>, now: u64, frame: u64) -> bool {
        self.advance_sure(now, una.min(self.counted));
        if una <= self.una {
            return false;
        }
        if let Some(sent) = sent {
            self.waited = self.waited.max(now.saturating_sub(sent.max(self.last_time)));
        }
        self.una = una;
        self.note(now, frame);
        true
    }

    /// The requester must count all before this as done, once it has handled the response.
    fn advance_sure(&mut self, now: u64, sure: u64) {
        if sure <= self.sure {
            return;
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Advance { time: now, before: self.sure });
        while self.recent.front().is_some_and(|it| it.time.saturating_add(REACTION_NANOS) <= now) {
            self.recent.pop_front();
        }
        self.sure = sure;
    }

    /// Up to where the requester must know that all is done, at a time.
    pub(super) fn settled(&self, now: u64) -> u64 {
        let mut unknown = self.recent.iter();
        let first = unknown.find(|it| it.time.saturating_add(REACTION_NANOS) > now);
        first.map_or(self.sure, |it| it.before)
    }

    /// Whether a request, with the sequence numbers of `range`, is the first that no response
    /// counts: a requester begins with it that was told to go back, and then that what it was told
    /// to go back to is done.
    pub(super) fn is_start(&self, sequence: u64, range: core::ops::Range<u64>) -> bool {
        sequence <= self.sure || range.contains(&self.sure)
    }
}
