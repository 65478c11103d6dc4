//! Limits of connections: rings, messages and operations in flight.

/// Bytes of a ring at least and at most. Both sides' rings may differ.
pub const RING_MIN: usize = 4096;
/// See [`RING_MIN`].
pub const RING_MAX: usize = 1 << 26;

/// Maximum number of WRITEs to the peer's ring that it has not yet consumed.
pub const WRITES_MAX: u16 = 1 << 14;

/// Maximum number of large messages that the peer has not yet read.
pub const RENDEZVOUS_MAX: u16 = 8;

/// Maximum number of one-sided operations of the program that wait or are in flight.
pub const OPERATIONS_MAX: usize = 64;

/// Maximum number of READs of one large message in flight.
pub(super) const CHUNKS: usize = 4;

/// Number of WRITEs without payload that may arrive before the program polls. A peer tells of
/// consumed WRITEs each time that it consumed half of the ring, by bytes or by WRITEs: four times
/// at the most. It tells of each large message once, and of its end twice.
pub(super) const CONTROLS_MAX: u16 = 4 + RENDEZVOUS_MAX + 2;

/// Work requests beside WRITEs to the ring that may be in flight: operations, chunks, controls, a
/// probe.
pub(super) const SENDS_BESIDE: usize = OPERATIONS_MAX + CHUNKS + CONTROLS_MAX as usize + 1;

/// Number of bytes of private data that a program may add when it connects: what the connection
/// manager has room for beside the connection's own.
pub const PRIVATE_DATA_MAX: usize = 36;

/// Number of peers that a listener has answered and that are not yet connected, at most, unless the
/// configuration says otherwise.
pub const HALF_OPEN_MAX: usize = 128;

/// Number of these that have the same address, at most, unless the configuration says otherwise.
pub const HALF_OPEN_PER_SOURCE: usize = 32;

/// Number of peers whose offers a listener over TCP waits for at the same time. The one that has
/// waited longest makes room.
pub(super) const OFFERS_MAX: usize = 64;

/// Maximum number of these that have the same address.
pub(super) const OFFERS_PER_SOURCE: usize = 32;

/// Bytes of a message at the most, unless the configuration says otherwise.
pub const MESSAGE_MAX: u64 = 1 << 30;

/// Number of regions that a connection publishes at the most.
pub const PUBLISHED_MAX: usize = 64;

// Counters of the immediate data tell more WRITEs apart than may be in flight.
const _: () = assert!(WRITES_MAX < 1 << 15 && RENDEZVOUS_MAX < 1 << 13);
