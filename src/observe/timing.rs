//! Times that hold for every requester.

use core::time::Duration;

/// Shortest retransmission timeout of a requester whose timeout is not known.
pub(crate) const TIMEOUT_LEAST: Duration = Duration::from_millis(1);

/// Shortest round trip from a requester to a responder and back.
pub(crate) const RTT_LEAST: Duration = Duration::from_micros(1);

/// Longest time from a packet to a copy of it that the network makes, where it may as well be
/// retransmitted.
pub(crate) const COPY_MOST: Duration = Duration::from_nanos(999);

/// A requester acts on a NAK sooner than this.
pub(crate) const NAK_REACTION: Duration = Duration::from_millis(20);

/// Within this time of its capture a response may not have been handled yet, at the host where it
/// was captured.
pub(crate) const REACTION: Duration = Duration::from_micros(200);

/// Returns the retransmission timeout for an exponent: 4.096 µs × 2^n, at least (§9.7.6.1.3). 0:
/// none.
pub(crate) fn retransmission_timeout(exponent: u8) -> Option<Duration> {
    (exponent > 0).then(|| Duration::from_nanos(4096 << exponent.min(31)))
}
