//! Times at which work is posted.

use std::time::Duration;

use roce::time::Instant;

/// Times at which the sends or the receives of a queue pair are posted, in their order.
#[derive(Debug, Default)]
pub struct Times {
    times: Vec<Instant>,
    /// Number of all; the last time serves for those that have none.
    count: usize,
    posted: usize,
}

impl Times {
    fn new(start: Instant, times: impl Iterator<Item = Duration>) -> Self {
        let times: Vec<_> = times.map(|at| start.saturating_add(at)).collect();
        Self { count: times.len(), times, posted: 0 }
    }

    /// Returns the time of the next one, if one is left and has a time.
    pub fn next(&self) -> Option<Instant> {
        let is_left = self.posted < self.count;
        self.times.get(self.posted).or_else(|| self.times.last()).copied().filter(|_| is_left)
    }

    /// Counts the next one as posted, and returns its number, if it is due.
    pub fn take(&mut self, now: Instant) -> Option<usize> {
        let is_due = self.posted < self.count && self.next().is_none_or(|at| at <= now);
        self.posted += usize::from(is_due);
        is_due.then(|| self.posted - 1)
    }
}

/// Work of one side of a connection.
#[derive(Debug, Default)]
pub struct Schedule {
    pub sends: Times,
    pub receives: Times,
}

impl Schedule {
    /// Sends at these times from `start` on, and `count` receives. Without any time, all receives
    /// are due at once.
    pub fn new(
        start: Instant,
        sends: impl Iterator<Item = Duration>,
        receives: &[Duration],
        count: usize,
    ) -> Self {
        let receives = Times { count, ..Times::new(start, receives.iter().copied()) };
        Self { sends: Times::new(start, sends), receives }
    }
}
