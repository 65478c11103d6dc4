//! Limits in bytes and in time that all control connections have.

use std::time::Duration;

/// Maximum number of bytes in a line of an opening, apart from the request.
pub const OPENING_LINE_MAX: usize = 512;

/// Maximum number of bytes in a message: the request of a client with a thousand queue pairs, a
/// scenario, the times of a path.
pub const MESSAGE_MAX: usize = 256 << 10;

/// Maximum number of bytes in a message of a server that a client of `roce conform` asked: the
/// outcome of a scenario, with its packets.
pub const OUTCOME_MAX: usize = 64 << 20;

/// Maximum number of characters of a peer's line that an error shows.
pub const SHOWN_MAX: usize = 80;

/// Maximum number of characters of a reason that a peer is told, or tells.
pub const REASON_MAX: usize = 400;

/// Time for a line to come when the peer has nothing else to do.
pub const LINE_WAIT: Duration = Duration::from_secs(20);

/// Time for the whole opening of a client, however many lines it has.
pub const HELLO_WAIT: Duration = Duration::from_secs(10);

/// Time for a server to answer an opening: it computes nothing that takes long.
pub const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Time for a connection to be made.
pub const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Time for a peer to take what it is sent, and how much more for each MiB.
pub const SEND_WAIT: Duration = Duration::from_secs(20);
/// See [`SEND_WAIT`].
pub const SEND_WAIT_PER_MIB: Duration = Duration::from_secs(1);

/// Maximum number of clients of `roce conform serve` at once.
pub const CONFORM_CLIENTS_MAX: usize = 16;

// A reason fits a line of an opening, in which most characters are ASCII.
const _: () = assert!(REASON_MAX + "error …\n".len() < OPENING_LINE_MAX);

// A slow peer is given up before its peer gives up waiting.
const _: () = assert!(ANSWER_WAIT.as_secs() < HELLO_WAIT.as_secs());
