//! Round-trip times of one requester, and the timeouts that they and the set-up make likely.

use core::time::Duration;

use super::timing::TIMEOUT_LEAST;

/// Shortest silence that is taken for a timeout where another cause is possible and the timeout is
/// not known.
const SILENCE_LEAST: Duration = Duration::from_millis(8);

/// Estimated times of a requester; zero is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Duration,
    least: Duration,
    /// Smoothed round-trip time of the other end's requests: from the capture point to the
    /// requester and back.
    peer: Duration,
    /// Smoothed time from a NAK at the capture point to the retransmission there.
    nak_reaction: Duration,
    /// Shortest retransmission timeout that was observed.
    timeout_seen: Duration,
    /// Retransmission timeout that the connection manager agreed on.
    timeout_agreed: Duration,
}

/// Times after which a retransmission is likelier to come from a timeout than from a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeoutBound {
    /// Time since the packet was transmitted.
    pub(crate) since_sent: Duration,
    /// Time since the response.
    pub(crate) since_response: Duration,
}

impl RoundTrip {
    /// Adds the time from a request to its answer.
    pub(crate) fn add(&mut self, time: Duration) {
        self.least = if self.least.is_zero() { time } else { self.least.min(time) };
        smooth(&mut self.smoothed, time);
    }

    /// Adds the time from a NAK to the retransmission.
    pub(crate) fn add_nak_reaction(&mut self, time: Duration) {
        smooth(&mut self.nak_reaction, time);
    }

    /// Adds a retransmission timeout.
    pub(crate) fn add_timeout(&mut self, time: Duration) {
        let seen = self.timeout_seen;
        self.timeout_seen = if seen.is_zero() { time } else { seen.min(time) };
    }

    /// Takes back the retransmission timeouts that were added since `before`.
    pub(crate) fn restore_timeout(&mut self, before: &Self) {
        self.timeout_seen = before.timeout_seen;
    }

    /// Takes the retransmission timeout that the connection manager agreed on, if any.
    pub(crate) fn agree_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout_agreed = timeout.unwrap_or_default();
    }

    /// Takes the round-trip time of the requests of the other end.
    pub(crate) fn set_peer(&mut self, other: &Self) {
        self.peer = other.smoothed;
    }

    /// Smoothed round-trip time.
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// Shortest round-trip time.
    pub(crate) fn least(&self) -> Duration {
        self.least
    }

    /// Round-trip time from one end to the other, wherever the capture point is.
    pub(crate) fn between_ends(&self) -> Duration {
        self.smoothed.saturating_add(self.peer)
    }

    /// Smoothed time from a NAK to the retransmission.
    pub(crate) fn nak_reaction(&self) -> Duration {
        self.nak_reaction
    }

    /// Shortest time after which the requester retransmits on its own; a packet that comes again
    /// earlier is a copy.
    pub(crate) fn timeout_least(&self) -> Duration {
        if !self.timeout_agreed.is_zero() {
            return self.timeout_agreed / 2;
        }
        let by_rtt = (self.smoothed + self.smoothed / 4).max(TIMEOUT_LEAST);
        if self.timeout_seen.is_zero() { by_rtt } else { by_rtt.min(self.timeout_seen / 2) }
    }

    /// Shortest silence that is taken for a timeout where another cause is possible.
    pub(crate) fn silence_least(&self) -> Duration {
        match (self.timeout_agreed, self.timeout_seen) {
            (Duration::ZERO, Duration::ZERO) => SILENCE_LEAST,
            (Duration::ZERO, seen) => SILENCE_LEAST.min(seen / 2),
            (agreed, _) => agreed / 2,
        }
    }

    /// Returns from when on a retransmission after a response comes from a timeout all the same;
    /// `is_implied`: after a response that implies a NAK. Nothing: that cannot be told.
    pub(crate) fn timeout_bound(&self, is_implied: bool) -> Option<TimeoutBound> {
        let both = |time: Duration| TimeoutBound { since_sent: time, since_response: time };
        match (self.timeout_agreed, self.timeout_seen) {
            // That a response is missing is seen near the requester.
            (Duration::ZERO, Duration::ZERO) if is_implied => {
                Some(both(TIMEOUT_LEAST.max(self.smoothed.saturating_mul(8))))
            }
            // Behind the capture point the way to the requester and back may be long, as far as
            // the requests of the other end do not tell.
            (Duration::ZERO, Duration::ZERO) if self.peer.is_zero() => None,
            (Duration::ZERO, Duration::ZERO) => {
                Some(both(TIMEOUT_LEAST.max(self.between_ends().saturating_mul(2))))
            }
            (Duration::ZERO, seen) => {
                Some(TimeoutBound { since_sent: seen / 8 * 7, since_response: seen / 16 * 7 })
            }
            (agreed, _) => Some(TimeoutBound { since_sent: agreed, since_response: agreed / 2 }),
        }
    }
}

/// Adds a value to a smoothed one: an eighth of it counts.
fn smooth(smoothed: &mut Duration, time: Duration) {
    *smoothed = if smoothed.is_zero() { time } else { *smoothed - *smoothed / 8 + time / 8 };
}
