//! Times that hold for every requester.

/// Shortest retransmission timeout of a requester whose timeout is not known.
pub(crate) const TIMEOUT_NANOS_LEAST: u64 = 1_000_000;

/// Shortest round trip from a requester to a responder and back.
pub(crate) const RTT_NANOS_LEAST: u64 = 1_000;

/// Returns the retransmission timeout in nanoseconds for an exponent: 4.096 µs × 2^n, at least
/// (§9.7.6.1.3). 0: none.
pub(crate) fn timeout_nanos(exponent: u8) -> u64 {
    if exponent == 0 { 0 } else { 4096u64 << exponent.min(31) }
}
