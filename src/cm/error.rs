//! Errors of commands, with the error numbers of Linux.

use super::state::IdState;
use crate::verbs::Errno;

/// Error of a command, with the error number that Linux's `rdma_cm` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The id, channel or device does not exist, or no longer.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The id is in the wrong state.
    #[error("the id is in state {0:?}")]
    State(IdState),
    /// The connection is in the wrong state: there is nothing to accept, reject or establish.
    #[error("the connection is in the wrong state")]
    Connection,
    /// An argument makes no sense.
    #[error("invalid {0}")]
    Argument(&'static str),
    /// More private data than the message takes.
    #[error("{len} bytes of private data, the message takes {max}")]
    PrivateData {
        /// Length of the data.
        len: usize,
        /// Maximum length in the message.
        max: usize,
    },
    /// The address and port are taken.
    #[error("the address is in use")]
    AddressInUse,
    /// A wildcard and another address want the same port, no ephemeral port is left, or the id is
    /// no member.
    #[error("the address is not available")]
    AddressNotAvailable,
    /// No device has this address.
    #[error("no device has this address")]
    NoDevice,
    /// The connection is established already.
    #[error("the connection is established already")]
    AlreadyConnected,
    /// A limit is reached.
    #[error("no {0} left")]
    Exhausted(&'static str),
}

impl Error {
    /// The error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NoDevice => Errno::ENODEV,
            Self::NotFound(_) => Errno::ENOENT,
            Self::State(_) | Self::Connection | Self::Argument(_) | Self::PrivateData { .. } => {
                Errno::EINVAL
            }
            Self::AddressInUse => Errno::EADDRINUSE,
            Self::AddressNotAvailable => Errno::EADDRNOTAVAIL,
            Self::AlreadyConnected => Errno::EISCONN,
            Self::Exhausted(_) => Errno::ENOMEM,
        }
    }
}
