//! Why something failed.

use thiserror::Error;

use crate::net;

/// Why a call of this room failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A list of hosts is not one that a group can have.
    #[error("list of servers: {0}")]
    Hosts(String),
    /// There is no such server, or it is the own one.
    #[error("server {0} is no peer of this one")]
    NoPeer(usize),
    /// There is no such thread, or its member was taken.
    #[error("thread {0} has no member, or it was taken before")]
    NoMember(usize),
    /// The peer is not connected at present. The connection is made again by itself.
    #[error("server {0} is not connected")]
    Disconnected(usize),
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
    /// It took longer than the caller wanted to wait.
    #[error("timed out")]
    TimedOut,
    /// A connection or its device failed.
    #[error("{0}")]
    Net(#[from] net::Error),
}
