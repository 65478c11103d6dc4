//! Number and time of the program's polls: hints, by which no thread waits for another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Instant;

/// Counts polls. Threads that poll at the same time may lose counts: it says whether the program
/// polls, and not how often exactly.
#[derive(Debug)]
pub(in crate::nic) struct PollCounter {
    /// Number of polls since a CQ event was last requested.
    count: AtomicU64,
    /// Time of the last one that asked for the time, in nanoseconds.
    last: AtomicU64,
}

impl PollCounter {
    pub(in crate::nic) fn new() -> Self {
        Self { count: AtomicU64::new(0), last: AtomicU64::new(0) }
    }

    /// Counts a poll; returns the number of polls.
    #[inline]
    pub(in crate::nic) fn add(&self) -> u64 {
        let count = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(count, Ordering::Relaxed);
        count
    }

    /// The poll that was counted last is going on.
    #[inline]
    pub(in crate::nic) fn touch(&self, now: Instant) {
        self.last.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Counts anew from `count`.
    pub(in crate::nic) fn restart(&self, count: u64) {
        self.count.store(count, Ordering::Relaxed);
    }

    pub(in crate::nic) fn load(&self) -> Polls {
        let last = Instant::from_nanos(self.last.load(Ordering::Relaxed));
        Polls { count: self.count.load(Ordering::Relaxed), last }
    }
}

/// Snapshot of a [`PollCounter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::nic) struct Polls {
    pub(in crate::nic) count: u64,
    pub(in crate::nic) last: Instant,
}

impl Polls {
    /// Returns whether the last poll was within `time` before `now`.
    pub(super) fn is_within(self, now: Instant, time: Duration) -> bool {
        self.last.saturating_add(time) > now
    }
}
