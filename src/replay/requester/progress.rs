//! Progress of one requester: the requests that are acknowledged and answered.

use core::time::Duration;
use std::collections::VecDeque;

use super::limits::REACTION;
use crate::time::Instant;

/// Maximum number of recent advances.
const RECENT_MAX: usize = 256;

/// An advance of `sure` that the requester may not have handled yet.
#[derive(Clone, Copy, Debug)]
struct Advance {
    time: Instant,
    /// Value of `sure` before it.
    before: u64,
}

/// Sequence numbers up to which requests are acknowledged and answered.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Sequence number behind the highest that an ACK, a NAK or a response acknowledged.
    acknowledged: u64,
    /// `acknowledged` without responses that passed a missing response to a READ or ATOMIC. A
    /// requester may take these for acknowledgements or not.
    counted: u64,
    /// First sequence number that is unacknowledged, or whose response is missing.
    una: u64,
    /// The lesser of `una` and `counted`: every requester takes what is before it for completed.
    sure: u64,
    recent: VecDeque<Advance>,
    /// Time and frame of the last response that acknowledged something new, or had new data.
    last_time: Instant,
    last_frame: u64,
    /// Longest time from a transmission to its acknowledgement, of packets that were transmitted
    /// once.
    waited: Duration,
}

impl Progress {
    /// Begins at a sequence number.
    pub(super) fn start_at(&mut self, sequence: u64) {
        let (acknowledged, counted, una, sure) = (sequence, sequence, sequence, sequence);
        *self = Self { acknowledged, counted, una, sure, ..Self::default() };
    }

    /// Sequence number behind the highest that was acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// First sequence number that is unacknowledged, or whose response is missing.
    pub(super) fn una(&self) -> u64 {
        self.una
    }

    /// Frame of the last response that acknowledged something new, or had new data.
    pub(super) fn last_frame(&self) -> u64 {
        self.last_frame
    }

    /// Longest time from a transmission to its acknowledgement.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Takes an acknowledgement of all sequence numbers before `until`. `passed` is the sequence
    /// number of the missing response that it passed, if it did.
    pub(super) fn acknowledge(&mut self, until: u64, passed: Option<u64>) {
        self.acknowledged = self.acknowledged.max(until);
        self.counted = self.counted.max(passed.map_or(until, |passed| until.min(passed)));
    }

    /// Notes a response that acknowledged something new, or had new data.
    pub(super) fn note(&mut self, time: Instant, frame: u64) {
        (self.last_time, self.last_frame) = (time, frame);
    }

    /// Advances to `una`. `sent` is the time when the packet at the previous value was transmitted,
    /// if that was once. Returns whether `una` increased.
    pub(super) fn advance(
        &mut self,
        una: u64,
        sent: Option<Instant>,
        now: Instant,
        frame: u64,
    ) -> bool {
        self.advance_sure(now, una.min(self.counted));
        if una <= self.una {
            return false;
        }
        if let Some(sent) = sent {
            self.waited = self.waited.max(now.saturating_since(sent.max(self.last_time)));
        }
        self.una = una;
        self.note(now, frame);
        true
    }

    /// Advances `sure`, and remembers the advance until the requester must have handled it.
    fn advance_sure(&mut self, now: Instant, sure: u64) {
        if sure <= self.sure {
            return;
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Advance { time: now, before: self.sure });
        while self.recent.front().is_some_and(|it| it.time.saturating_add(REACTION) <= now) {
            self.recent.pop_front();
        }
        self.sure = sure;
    }

    /// Returns the value of `sure` that the requester must know of at `now`.
    pub(super) fn settled(&self, now: Instant) -> u64 {
        let mut unknown = self.recent.iter();
        let first = unknown.find(|it| it.time.saturating_add(REACTION) > now);
        first.map_or(self.sure, |it| it.before)
    }

    /// Whether the packet with the sequence numbers of `range` is the first that is not completed
    /// for sure. A requester goes back to it if a NAK names an earlier packet, and that packet is
    /// acknowledged before the requester retransmits.
    pub(super) fn is_start(&self, sequence: u64, range: core::ops::Range<u64>) -> bool {
        sequence <= self.sure || range.contains(&self.sure)
    }
}
