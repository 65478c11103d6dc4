//! Configuration of a connection.

use std::time::Duration;

use super::limits::{
    HALF_OPEN_MAX, HALF_OPEN_PER_SOURCE, MESSAGE_MAX, RING_MAX, RING_MIN, WRITES_MAX,
};

use crate::setters::setters;

/// Sizes and times of connections of an [`Endpoint`](super::Endpoint). A connection takes memory
/// for its ring, for a quarter of it, and for as much of the peer's ring as it uses.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Bytes of the ring that the peer writes messages into: the next power of two. Messages of up
    /// to a quarter of the peer's ring are copied there; the peer reads larger ones from the
    /// sender's memory.
    pub ring: usize,
    /// Maximum part of the peer's ring that is used, as a multiple of the own ring. This side has
    /// as much memory to send from, so a peer with a large ring does not decide how much that is.
    pub ring_multiple: usize,
    /// Number of WRITEs that the peer may be ahead of this program.
    pub writes: u16,
    /// Maximum length of a message of the peer.
    pub message_max: u64,
    /// Time for which a waiting call polls before it sleeps. It should be longer than it takes to
    /// wake the peer's thread: if sender and receiver sleep in turns, small messages stream at a
    /// fifth of the speed.
    pub busy_poll: Duration,
    /// Time without a message after which a waiting call has the peer's NIC show that it is there.
    pub keepalive: Duration,
    /// Number of retransmissions without progress after which the peer is lost, at most 7. The time
    /// before each doubles, so that one less halves the time in which a death is noticed. The side
    /// that connects decides for both.
    pub retries: u8,
    /// Maximum time of connecting, or of accepting.
    pub connect_timeout: Duration,
    /// Time for which a connection that is closed or dropped waits for its messages to arrive.
    pub linger: Duration,
    /// Maximum number of half-open peers: answered, and not yet connected. The oldest makes room.
    pub half_open: usize,
    /// Maximum number of half-open peers at one address. The oldest of them makes room.
    pub half_open_per_source: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring: 512 << 10,
            ring_multiple: 4,
            writes: 512,
            message_max: MESSAGE_MAX,
            busy_poll: Duration::from_micros(200),
            keepalive: Duration::from_secs(1),
            retries: 7,
            connect_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            half_open: HALF_OPEN_MAX,
            half_open_per_source: HALF_OPEN_PER_SOURCE,
        }
    }
}

impl Config {
    setters! {
        ring: usize,
        ring_multiple: usize,
        writes: u16,
        message_max: u64,
        busy_poll: Duration,
        keepalive: Duration,
        retries: u8,
        connect_timeout: Duration,
        linger: Duration,
        half_open: usize,
        half_open_per_source: usize,
    }

    /// Bytes of the ring, within its bounds.
    pub(super) fn ring_bytes(&self) -> u32 {
        let bytes = self.ring.clamp(RING_MIN, RING_MAX).next_power_of_two();
        u32::try_from(bytes).expect("the bound is less")
    }

    /// Maximum number of bytes of a peer's ring that this side uses: a power of two.
    pub(super) fn send_ring_bytes(&self) -> u32 {
        let multiple = self.ring_multiple.max(1).next_power_of_two();
        let bytes = (self.ring_bytes() as usize).saturating_mul(multiple).min(RING_MAX);
        u32::try_from(bytes).expect("the bound is less")
    }

    /// Bytes of a chunk of a large message.
    pub(super) fn chunk_bytes(&self) -> u32 {
        self.ring_bytes() / 16
    }

    /// WRITEs, within their bounds.
    pub(super) fn window(&self) -> u16 {
        self.writes.clamp(1, WRITES_MAX)
    }
}
