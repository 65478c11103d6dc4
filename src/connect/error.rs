//! Errors of connections.

use std::io;
use std::net::SocketAddr;

use super::ServiceClosed;
use crate::cm;
use crate::cm::PrivateData;
use crate::verbs::{Errno, ModifyError, QpState};

/// Error of a call of a [`ConnectionManager`](super::ConnectionManager).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The manager refused the command.
    #[error(transparent)]
    Manager(#[from] cm::Error),
    /// The system's connection manager refused a call.
    #[error("{call}: {error}")]
    System {
        /// Function of `librdmacm`.
        call: &'static str,
        /// Error number.
        error: Errno,
    },
    /// The peer cannot be reached: no route, or its host does not answer.
    #[error("{peer} cannot be resolved: {error}")]
    Unresolved {
        /// The peer.
        peer: SocketAddr,
        /// Error number.
        error: Errno,
    },
    /// The peer refused.
    #[error("the peer refused the connection: {}", reason_text(*reason))]
    Refused {
        /// Reason: 8 if nothing listens there, 28 if its program does not want the connection.
        reason: u16,
        /// Private data of its program.
        private_data: Box<PrivateData>,
    },
    /// The peer does not answer.
    #[error("the peer does not answer")]
    Unreachable,
    /// The call took longer than the caller wanted to wait.
    #[error("timed out")]
    Timeout,
    /// The connection ended before it was established.
    #[error("the peer disconnected")]
    Disconnected,
    /// The NIC was closed.
    #[error("the NIC was closed")]
    NicClosed,
    /// The queue pair does not get into a state.
    #[error("queue pair to {state}: {error}")]
    Qp {
        /// Into which.
        state: QpState,
        /// Error of the modification.
        error: ModifyError,
    },
    /// The NIC has no such queue pair.
    #[error("the NIC has no such queue pair")]
    NoQp,
    /// The manager was shut down, or belongs to the parent process.
    #[error(transparent)]
    Closed(#[from] ServiceClosed),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Manager(cm::Error::AddressInUse) => io::ErrorKind::AddrInUse,
            Error::Manager(cm::Error::AddressNotAvailable | cm::Error::NoDevice) => {
                io::ErrorKind::AddrNotAvailable
            }
            Error::System { error: Errno::ENODEV, .. } => io::ErrorKind::AddrNotAvailable,
            Error::System { error, .. } => Self::from_raw_os_error(error.0).kind(),
            Error::Unresolved { .. } => io::ErrorKind::HostUnreachable,
            Error::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Error::Unreachable | Error::Timeout => io::ErrorKind::TimedOut,
            Error::Disconnected => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The reason of a REJ (§12.6.7.2) in words.
fn reason_text(reason: u16) -> String {
    let text = match reason {
        1 | 3 => "it has no resources",
        4 => "it waited too long",
        8 => "nothing listens there",
        10 => "its connection manager takes the queue pair for connected: try once more",
        12 => "the address is not its own",
        28 => "its program does not want the connection",
        _ => return format!("reason {reason}"),
    };
    format!("{text} (reason {reason})")
}
