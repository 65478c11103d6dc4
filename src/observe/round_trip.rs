//! Round-trip times of one requester, and the timeouts that they and the set-up make likely.

use super::timing::TIMEOUT_NANOS_LEAST;

/// Shortest silence that is taken for a timeout where another cause is possible and the timeout is
/// not known.
const SILENCE_NANOS_LEAST: u64 = 8_000_000;

/// Estimated times of a requester, in nanoseconds; 0 is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: u64,
    least: u64,
    /// Smoothed round-trip time of the other end's requests: from the capture point to the
    /// requester and back.
    peer: u64,
    /// Smoothed time from a NAK at the capture point to the retransmission there.
    nak_reaction: u64,
    /// Shortest retransmission timeout that was observed.
    timeout_seen: u64,
    /// Retransmission timeout that the connection manager agreed on.
    timeout_agreed: u64,
}

/// Times after which a retransmission is likelier to come from a timeout than from a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeoutBound {
    /// Time since the packet was transmitted.
    pub(crate) since_sent: u64,
    /// Time since the response.
    pub(crate) since_response: u64,
}

impl RoundTrip {
    /// Adds the time from a request to its answer.
    pub(crate) fn add(&mut self, nanos: u64) {
        self.least = if self.least == 0 { nanos } else { self.least.min(nanos) };
        smooth(&mut self.smoothed, nanos);
    }

    /// Adds the time from a NAK to the retransmission.
    pub(crate) fn add_nak_reaction(&mut self, nanos: u64) {
        smooth(&mut self.nak_reaction, nanos);
    }

    /// Adds a retransmission timeout.
    pub(crate) fn add_timeout(&mut self, nanos: u64) {
        let seen = self.timeout_seen;
        self.timeout_seen = if seen == 0 { nanos } else { seen.min(nanos) };
    }

    /// Takes back the retransmission timeouts that were added since `before`.
    pub(crate) fn restore_timeout(&mut self, before: &Self) {
        self.timeout_seen = before.timeout_seen;
    }

    /// Takes the retransmission timeout that the connection manager agreed on; 0: none.
    pub(crate) fn agree_timeout(&mut self, nanos: u64) {
        self.timeout_agreed = nanos;
    }

    /// Takes the round-trip time of the requests of the other end.
    pub(crate) fn set_peer(&mut self, other: &Self) {
        self.peer = other.smoothed;
    }

    /// Smoothed round-trip time.
    pub(crate) fn smoothed(&self) -> u64 {
        self.smoothed
    }

    /// Shortest round-trip time.
    pub(crate) fn least(&self) -> u64 {
        self.least
    }

    /// Round-trip time from one end to the other, wherever the capture point is.
    pub(crate) fn between_ends(&self) -> u64 {
        self.smoothed.saturating_add(self.peer)
    }

    /// Smoothed time from a NAK to the retransmission.
    pub(crate) fn nak_reaction(&self) -> u64 {
        self.nak_reaction
    }

    /// Shortest time after which the requester retransmits on its own; a packet that comes again
    /// earlier is a copy.
    pub(crate) fn timeout_least(&self) -> u64 {
        if self.timeout_agreed > 0 {
            return self.timeout_agreed / 2;
        }
        let by_rtt = (self.smoothed + self.smoothed / 4).max(TIMEOUT_NANOS_LEAST);
        let seen = if self.timeout_seen > 0 { self.timeout_seen / 2 } else { u64::MAX };
        by_rtt.min(seen)
    }

    /// Shortest silence that is taken for a timeout where another cause is possible.
    pub(crate) fn silence_least(&self) -> u64 {
        match (self.timeout_agreed, self.timeout_seen) {
            (0, 0) => SILENCE_NANOS_LEAST,
            (0, seen) => SILENCE_NANOS_LEAST.min(seen / 2),
            (agreed, _) => agreed / 2,
        }
    }

    /// Returns from when on a retransmission after a response comes from a timeout all the same;
    /// `is_implied`: after a response that implies a NAK. Nothing: that cannot be told.
    pub(crate) fn timeout_bound(&self, is_implied: bool) -> Option<TimeoutBound> {
        let both = |nanos: u64| TimeoutBound { since_sent: nanos, since_response: nanos };
        match (self.timeout_agreed, self.timeout_seen) {
            // That a response is missing is seen near the requester.
            (0, 0) if is_implied => Some(both(TIMEOUT_NANOS_LEAST.max(8 * self.smoothed))),
            // Behind the capture point the way to the requester and back may be long, as far as
            // the requests of the other end do not tell.
            (0, 0) if self.peer == 0 => None,
            (0, 0) => Some(both(TIMEOUT_NANOS_LEAST.max(2 * self.between_ends()))),
            (0, seen) => {
                Some(TimeoutBound { since_sent: seen / 8 * 7, since_response: seen / 16 * 7 })
            }
            (agreed, _) => Some(TimeoutBound { since_sent: agreed, since_response: agreed / 2 }),
        }
    }
}

/// Adds a value to a smoothed one: an eighth of it counts.
fn smooth(smoothed: &mut u64, nanos: u64) {
    *smoothed = if *smoothed == 0 { nanos } else { *smoothed - *smoothed / 8 + nanos / 8 };
}
