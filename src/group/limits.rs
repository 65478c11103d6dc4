//! Limits of groups: servers, threads and messages that wait.

use std::time::Duration;

/// Maximum number of servers of a group.
pub const SERVERS_MAX: usize = 1024;

/// Maximum number of threads of a server.
pub const THREADS_MAX: usize = 256;

/// Number of earlier incarnations of a peer that are remembered, so that a late request of one of
/// them is refused.
pub(super) const PAST_MAX: usize = 8;

/// Maximum number of messages that one poll takes from one peer: then it is the next peer's turn.
pub(super) const POLL_MAX: usize = 64;

/// Maximum number of lost connections to one peer whose messages wait for the program to poll.
/// There is no further connection to that peer until it does: what its NIC has acknowledged is not
/// dropped.
pub(super) const UNPOLLED_MAX: usize = 4;

/// Maximum number of attempts of one peer to connect that are answered at the same time.
pub(super) const ANSWERS_MAX: usize = 2;

/// Maximum number of changes of a link that wait for the program to poll. The oldest are merged.
pub(super) const CHANGES_MAX: usize = 16;

/// Time that the connection of a peer that has left is kept, at most: several retransmission
/// timeouts.
pub(super) const PARTING_MAX: Duration = Duration::from_secs(2);
