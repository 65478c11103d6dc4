//! Bounds of groups.

use std::time::Duration;

/// Number of servers of a group, at most.
pub const SERVERS_MAX: usize = 1024;

/// Number of threads of a server, at most.
pub const THREADS_MAX: usize = 256;

/// Number of earlier incarnations of a peer that are remembered, so that a late request of one of
/// them is refused.
pub(super) const PAST_MAX: usize = 8;

/// Number of messages that one poll takes from one peer, at most: then it is the next peer's turn.
pub(super) const POLL_MAX: usize = 64;

/// Number of lost connections to one peer whose messages wait for the program to poll, at most.
/// There is no further connection to that peer until it does: what its NIC has acknowledged is not
/// dropped.
pub(super) const UNPOLLED_MAX: usize = 4;

/// Number of attempts of one peer to connect that are answered at the same time, at most.
pub(super) const ANSWERS_MAX: usize = 2;

/// Number of changes of a link that wait for the program to poll, at most. The oldest are merged.
pub(super) const CHANGES_MAX: usize = 16;

/// Time that the connection of a peer that has left is kept, at most: several retransmission
/// timeouts.
pub(super) const PARTING_MAX: Duration = Duration::from_secs(2);
