//! Delays between attempts to connect.

use std::time::Duration;

use crate::random::Random;
use crate::time::Instant;

/// Delay before the next attempt: it doubles, up to a bound, with jitter.
#[derive(Debug)]
pub(in crate::group) struct Backoff {
    min: Duration,
    max: Duration,
    current: Duration,
    due: Instant,
    random: Random,
}

impl Backoff {
    pub(in crate::group) fn new(min: Duration, max: Duration, seed: u64) -> Self {
        let min = min.max(Duration::from_micros(1));
        Self { min, max: max.max(min), current: min, due: Instant::ZERO, random: Random::new(seed) }
    }

    /// Delays the next attempt by the shortest delay.
    pub(super) fn reset(&mut self, now: Instant) {
        self.current = self.min;
        self.delay(now);
    }

    /// Delays the next attempt.
    pub(super) fn delay(&mut self, now: Instant) {
        let half = self.current / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        let jitter = Duration::from_nanos(self.random.next() % nanos);
        self.due = now.saturating_add(half + jitter);
        self.current = (self.current * 2).min(self.max);
    }

    /// Delays the next attempt by the longest delay.
    pub(super) fn delay_longest(&mut self, now: Instant) {
        self.current = self.max;
        self.delay(now);
    }

    /// Time of the next attempt.
    pub(super) fn due(&self) -> Instant {
        self.due
    }
}
