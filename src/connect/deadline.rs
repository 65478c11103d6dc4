//! Deadlines of calls that wait.

use std::time::{Duration, Instant};

/// Deadline of a call; `None` is no deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    /// Creates the deadline in this time from now. A time too long to be told is none.
    pub(super) fn after(timeout: Duration) -> Self {
        Self(now().checked_add(timeout))
    }

    /// Now: a call that gives up at once.
    pub(super) fn now() -> Self {
        Self(Some(now()))
    }

    /// Returns the earlier of this deadline and one in this time from now.
    pub(super) fn within(self, timeout: Duration) -> Self {
        let after = Self::after(timeout);
        Self(self.0.into_iter().chain(after.0).min())
    }

    /// Whether it has come.
    pub(super) fn has_passed(self) -> bool {
        self.remaining().is_some_and(|remaining| remaining.is_zero())
    }

    /// Returns how long it is until then; `None` if it never comes.
    pub(super) fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now()))
    }
}

pub(super) fn now() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "calls that block are timed by the system's clock"
    )]
    Instant::now()
}
