//! Errors of groups.

use thiserror::Error;

use crate::net;

/// Messages to a peer that a group could not deliver before it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// Number of the peer's server.
    pub server: usize,
    /// Number of the thread.
    pub thread: usize,
    /// The messages, oldest first. The peer may have received the first of them.
    pub messages: Vec<Vec<u8>>,
}

fn count(undelivered: &[Undelivered]) -> usize {
    undelivered.iter().map(|to| to.messages.len()).sum()
}

fn servers(undelivered: &[Undelivered]) -> String {
    let mut servers: Vec<usize> = undelivered.iter().map(|to| to.server).collect();
    servers.sort_unstable();
    servers.dedup();
    let names: Vec<String> = servers.iter().map(|server| format!("server {server}")).collect();
    names.join(", ")
}

/// Error of a call of `group`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A list of hosts is not one that a group can have.
    #[error("list of servers: {0}")]
    Hosts(String),
    /// The number names no server, or the own one.
    #[error("server {0} is no peer of this one")]
    NoPeer(usize),
    /// The number names no thread, or its member was taken.
    #[error("thread {0} has no member, or it was taken before")]
    NoMember(usize),
    /// The peer is not connected at present. The connection is made again by itself.
    #[error("server {0} is not connected")]
    Disconnected(usize),
    /// The peer has ended its group, and all that it sent was polled. A new run of it is connected
    /// when it comes.
    #[error("server {0} has left the group")]
    Left(usize),
    /// The peer was not connected for [`lost_after`](super::Config::lost_after). Attempts to
    /// connect go on.
    #[error("server {0} is lost: it was not connected for too long")]
    Lost(usize),
    /// A server could not be connected in time.
    #[error("server {server} is not connected: {why}")]
    Unconnected {
        /// Number of the server.
        server: usize,
        /// Result of the last attempt.
        why: String,
    },
    /// The group ended, and these messages are not known to have arrived.
    #[error("{} messages were not delivered, to {}", count(.0), servers(.0))]
    Undelivered(Vec<Undelivered>),
    /// The peer's ring is full: it does not read as fast as this member sends. Poll, and try again.
    #[error("the ring of server {0} is full")]
    Full(usize),
    /// A message is reserved and neither committed nor dropped: the next one comes after it.
    #[error("a message to server {0} is reserved and not committed")]
    Reserved(usize),
    /// A message is larger than a quarter of the peer's ring.
    #[error("{len} bytes in a message, of at most {max}")]
    TooLong {
        /// Bytes that the message has.
        len: usize,
        /// Bytes that it may have.
        max: usize,
    },
    /// The call took longer than the caller wanted to wait.
    #[error("timed out")]
    TimedOut,
    /// A connection or its device failed.
    #[error("{0}")]
    Net(#[from] net::Error),
}
