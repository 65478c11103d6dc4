//! Every bound of the connection manager.

use core::time::Duration;

/// Maximum numbers of the objects that a [`Manager`](super::Manager) holds.
///
/// A peer can make a manager allocate in four ways, each bounded here: a REQ or SIDR_REQ for a
/// listener costs a place in that listener's backlog, and when the program accepts it one among the
/// half-open requests, until the peer answers; in both the oldest request of the address that has
/// the most gives way; a connection that ended costs a lingering entry, of which the oldest gives
/// way; an answer costs a place in the transmit queue, and is dropped when there is none.
///
/// To change some, set the fields of the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Devices.
    pub devices: usize,
    /// Event channels.
    pub channels: usize,
    /// Ids, over all channels.
    pub ids: usize,
    /// Connection requests of a listener that the program has not taken from the channel: also what
    /// a backlog of 0, or a larger one, means (`/proc/sys/net/rdma_ucm/max_backlog`).
    pub backlog: u32,
    /// Half-open requests: those that no program has taken, and those that one accepted and whose
    /// peer has not answered.
    pub half_open: usize,
    /// Half-open requests of one address.
    pub half_open_per_source: usize,
    /// Events in a channel that the program has not taken. Beyond, requests of peers are dropped
    /// and commands that would raise an event fail; the few events that end a connection are still
    /// queued, at most [`EVENTS_PER_ID`] for each id.
    pub events: usize,
    /// Connections that no id holds: those that still tell the peer of their end, or remember it
    /// for duplicates.
    pub lingering: usize,
    /// Messages that wait to be transmitted.
    pub transmits: usize,
    /// Multicast groups of an id.
    pub groups: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            devices: 256,
            channels: 1 << 16,
            ids: 1 << 18,
            backlog: 1024,
            half_open: 1 << 13,
            half_open_per_source: 1 << 12,
            events: 1 << 16,
            lingering: 1 << 14,
            transmits: 1 << 14,
            groups: 64,
        }
    }
}

/// Maximum number of events of one id in its channel, beyond those that commands of the program ask
/// for: CONNECT_RESPONSE or ESTABLISHED, then REJECTED, UNREACHABLE or DISCONNECTED, then
/// TIMEWAIT_EXIT, and DEVICE_REMOVAL.
pub const EVENTS_PER_ID: usize = 4;

/// Messages that a peer gets for each REQ of its own before it has shown, by an answer with the
/// comm ids of both sides or by data, that it is at the address that the REQ came from. All
/// messages are equally long.
pub const UNPROVEN_MESSAGES: u8 = 3;

/// Number of times that an RTU is repeated without being asked for: the peer may have lost it, and
/// may not ask, because it has sent [`UNPROVEN_MESSAGES`] already.
pub const RTU_REPEATS: u8 = 6;

/// Requests that wait for their listener. Beyond, they are refused at once.
pub const EARLY_REQUESTS: usize = 256;

/// The longest time for which a retransmission timer follows what a peer asked for.
pub const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_millis(1 << (24 - 8));

/// The longest time that an MRA can ask for.
pub const SERVICE_TIMEOUT_MAX: Duration = Duration::from_millis(1 << (26 - 8));

/// The longest timewait that a peer's ACK timeout can ask for.
pub const TIMEWAIT_MAX: Duration = Duration::from_millis(1 << (21 - 8));
