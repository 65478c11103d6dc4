//! Errors of connections.

use std::io;

use thiserror::Error;

use super::core::Failure;
use crate::connect;
use crate::link::OpenError;
use crate::verbs::{ConnectError, CreateError, KeyError, PostError, WcStatus};

/// Error of a call of `net`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer does not answer any more, or its NIC refused an operation. Every later call fails
    /// in the same way.
    #[error("the connection is lost: {0}")]
    Lost(WcStatus),
    /// The peer did what the protocol does not allow.
    #[error("the peer does not keep to the protocol: {0}")]
    Protocol(&'static str),
    /// The peer has closed its side: there is no answer to come.
    #[error("the peer has closed the connection")]
    Closed,
    /// The own side is finished: it sends no more messages.
    #[error("this side of the connection is finished")]
    Finished,
    /// The connection ended before all messages had arrived at the peer.
    #[error("the connection ended, and the peer is not known to have the last {messages} messages")]
    Undelivered {
        /// Number of messages that the peer is not known to have: those that were sent last.
        messages: usize,
    },
    /// The call would have to wait.
    #[error("it would have to wait")]
    WouldBlock,
    /// The call took longer than the caller wanted to wait.
    #[error("timed out")]
    TimedOut,
    /// More private data than there is room for.
    #[error("{len} bytes of private data, of at most {max}")]
    PrivateData {
        /// Length of the data.
        len: usize,
        /// Maximum length.
        max: usize,
    },
    /// Remote memory is smaller than the operation needs.
    #[error("{needed} bytes are needed of remote memory that has {len}")]
    TooShort {
        /// Bytes that the operation needs.
        needed: u64,
        /// Bytes that there are.
        len: u64,
    },
    /// More parts of memory than one operation can have.
    #[error("{count} parts of memory, of at most {max}")]
    TooManyParts {
        /// Number of parts.
        count: usize,
        /// Maximum number of parts.
        max: usize,
    },
    /// All entries of the directory of published memory are in use.
    #[error("no more than {0} regions can be published on a connection")]
    DirectoryFull(usize),
    /// The peer speaks the connection manager's protocol, and not that of this room.
    #[error("the peer is no program of this library: it has to be roce::net at both ends")]
    Foreign,
    /// The peer refused the connection.
    #[error("the peer refused the connection")]
    Refused {
        /// Private data of its program.
        private_data: Vec<u8>,
    },
    /// The NIC at an address cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A device is not named as one can be.
    #[error("{0}")]
    Spec(String),
    /// The connection manager failed.
    #[error("{0}")]
    Connect(connect::Error),
    /// The queue pair could not be connected.
    #[error("{0}")]
    QueuePair(#[from] ConnectError),
    /// The device has no objects left.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error("{0}")]
    Register(#[from] KeyError),
    /// The device does not take a work request.
    #[error("{0}")]
    Post(PostError),
    /// The operating system or the device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Status(status) => Self::Lost(status),
            Failure::Violation(what) => Self::Protocol(what),
            Failure::Post(error) => Self::Post(error),
        }
    }
}

impl From<connect::Error> for Error {
    fn from(error: connect::Error) -> Self {
        match error {
            connect::Error::Refused { reason: 28, private_data } => {
                Self::Refused { private_data: super::hello::refusal(private_data.as_slice()) }
            }
            connect::Error::Timeout => Self::TimedOut,
            error => Self::Connect(error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Io(error) => return error,
            Error::Connect(error) => return error.into(),
            Error::Lost(_) | Error::Protocol(_) | Error::Undelivered { .. } => {
                io::ErrorKind::ConnectionReset
            }
            Error::Closed => io::ErrorKind::UnexpectedEof,
            Error::Finished => io::ErrorKind::BrokenPipe,
            Error::WouldBlock => io::ErrorKind::WouldBlock,
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::Refused { .. } | Error::Foreign => io::ErrorKind::ConnectionRefused,
            Error::PrivateData { .. } | Error::TooShort { .. } | Error::TooManyParts { .. } => {
                io::ErrorKind::InvalidInput
            }
            Error::Open(OpenError::InUse { .. }) => io::ErrorKind::AddrInUse,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
