//! RNR NAKs, until the requester retransmits for them.

use core::time::Duration;

use super::progress::Seen;
use crate::time::Instant;

/// RNR NAKs of one requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NotReady {
    /// Time of the first RNR NAK that was not followed by a retransmission yet.
    since: Option<Instant>,
    /// Longest time from an RNR NAK to the retransmission.
    wait_max: Duration,
    /// RNR NAKs since the last progress.
    attempts: u32,
    last: Option<Seen>,
}

impl NotReady {
    /// Takes an RNR NAK.
    pub(super) fn refuse(&mut self, nak: Seen) {
        self.since.get_or_insert(nak.time);
        self.attempts += 1;
        self.last = Some(nak);
    }

    /// Takes a retransmission. Returns the wait that it ends.
    pub(super) fn retransmit(&mut self, now: Instant) -> Duration {
        let wait = self.since.take().map(|since| now.saturating_since(since)).unwrap_or_default();
        self.wait_max = self.wait_max.max(wait);
        wait
    }

    /// Takes an acknowledgement of something new.
    pub(super) fn progress(&mut self) {
        *self = Self { wait_max: self.wait_max, ..Self::default() };
    }

    /// The last RNR NAK since the last progress.
    pub(super) fn last(&self) -> Option<Seen> {
        self.last
    }

    /// RNR NAKs since the last progress.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Time of the first RNR NAK that was not followed by a retransmission yet.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Longest time from an RNR NAK to the retransmission; zero if there was none.
    pub(super) fn wait_max(&self) -> Duration {
        self.wait_max
    }
}
