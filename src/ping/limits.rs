//! Bounds of probers and responders, with their relations.

use core::time::Duration;

/// Number of bytes of an acknowledgement, and of the content of a probe.
pub const ACK_BYTES: usize = 40;

/// Number of bytes of a probe. Bytes after the first [`ACK_BYTES`] are zero and ignored: with them
/// the answers to a probe are no larger than the probe.
pub const PROBE_BYTES: usize = 176;

/// Number of bytes that headers add to a datagram: Ethernet, IPv6, UDP, BTH, DETH and ICRC.
pub const HEADER_BYTES: usize = 14 + 40 + 8 + 12 + 8 + 4;

// A responder answers a probe twice. Both answers with their headers are no larger than the probe
// with its own, so that a forged source address gains nothing.
const _: () = assert!(2 * (HEADER_BYTES + ACK_BYTES) <= HEADER_BYTES + PROBE_BYTES);
// Every MTU carries a probe.
const _: () = assert!(PROBE_BYTES <= 256);

/// Maximum number of probes that a prober remembers: in flight, or lost not long ago.
pub const PROBES_MAX: usize = 1 << 16;

/// Maximum number of targets of one prober.
pub const TARGETS_MAX: usize = 4096;

/// Maximum number of paths to one target.
pub const PATHS_MAX: usize = 64;

/// Shortest time between two probes to one target.
pub const INTERVAL_MIN: Duration = Duration::from_micros(100);

/// Longest time that a prober waits for an answer.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Maximum number of acknowledgements whose send has not completed yet. Further probes are dropped.
pub const UNSENT_ACKS_MAX: usize = 256;

/// Maximum number of probes a second that a responder can be allowed to answer.
pub const RATE_MAX: u32 = 1_000_000;

/// Maximum number of outcomes that wait to be taken from a prober.
pub const EVENTS_MAX: usize = 2 * PROBES_MAX;

/// Maximum number of address handles that one side keeps: the least recently created one is
/// destroyed for a new one.
pub const AHS_MAX: usize = TARGETS_MAX;
