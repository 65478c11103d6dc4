//! When a call gives up.

use std::time::{Duration, Instant};

/// When a call gives up; never, if it has no time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    /// In so long from now. A time too long to be told is none.
    pub(super) fn after(timeout: Duration) -> Self {
        Self(now().checked_add(timeout))
    }

    /// Returns how long it is until then; `None` if it never comes.
    pub(super) fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now()))
    }
}

fn now() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "calls that block are timed by the system's clock"
    )]
    Instant::now()
}
