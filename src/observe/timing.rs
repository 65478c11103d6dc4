//! Times that hold for every requester.

use core::time::Duration;

/// Shortest retransmission timeout of a requester whose timeout is not known.
pub(crate) const TIMEOUT_LEAST: Duration = Duration::from_millis(1);

/// Shortest round trip from a requester to a responder and back.
pub(crate) const RTT_LEAST: Duration = Duration::from_micros(1);

/// Returns the retransmission timeout for an exponent: 4.096 µs × 2^n, at least (§9.7.6.1.3). 0:
/// none.
pub(crate) fn retransmission_timeout(exponent: u8) -> Option<Duration> {
    (exponent > 0).then(|| Duration::from_nanos(4096 << exponent.min(31)))
}
