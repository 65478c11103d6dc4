//! Bounds of groups.

/// Number of servers of a group, at most.
pub const SERVERS_MAX: usize = 1024;

/// Number of threads of a server, at most.
pub const THREADS_MAX: usize = 256;

/// Number of earlier incarnations of a peer that are remembered, so that a late request of one of them is refused.
pub(super) const PAST_MAX: usize = 8;

/// Number of messages that one poll takes from one peer, at most: then it is the next peer's turn.
pub(super) const POLL_MAX: usize = 64;

/// Number of changes of a link that wait for the program to poll, at most. The oldest are merged.
pub(super) const CHANGES_MAX: usize = 16;
