//! Every bound of the connection manager.

use core::time::Duration;

/// How much of everything a [`Manager`](super::Manager) holds at most.
///
/// A peer can make a manager allocate in three ways, each bounded here: a REQ or SIDR_REQ for a listener costs a place in
/// that listener's backlog; a connection that ended costs a lingering entry, of which the oldest gives way; an answer
/// costs a place in the transmit queue, and is dropped when there is none.
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
    /// Connection requests of a listener that the program has not taken from the channel: also what a backlog of 0, or a
    /// larger one, means (`/proc/sys/net/rdma_ucm/max_backlog`).
    pub backlog: u32,
    /// Events in a channel that the program has not taken. Beyond, requests of peers are dropped and commands that would
    /// raise an event fail; the few events that end a connection are still queued, at most
    /// [`EVENTS_PER_ID`] for each id.
    pub events: usize,
    /// Connections that no id holds: those that still tell the peer of their end, or remember it for duplicates.
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
            events: 1 << 16,
            lingering: 1 << 14,
            transmits: 1 << 14,
            groups: 64,
        }
    }
}

/// How many events one id has in its channel at most, beyond those that commands of the program ask for:
/// CONNECT_RESPONSE or ESTABLISHED, then REJECTED, UNREACHABLE or DISCONNECTED, then TIMEWAIT_EXIT, and DEVICE_REMOVAL.
pub const EVENTS_PER_ID: usize = 4;

/// Requests that wait for their listener. Beyond, they are refused at once.
pub const EARLY_REQUESTS: usize = 256;

/// The longest time for which a retransmission timer follows what a peer asked for.
pub const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_millis(1 << (24 - 8));

/// The longest time that an MRA can ask for.
pub const SERVICE_TIMEOUT_MAX: Duration = Duration::from_millis(1 << (26 - 8));

/// The longest timewait that a peer's ACK timeout can ask for.
pub const TIMEWAIT_MAX: Duration = Duration::from_millis(1 << (21 - 8));
