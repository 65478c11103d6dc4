//! Errors of posting work requests.

use thiserror::Error;

use super::{Errno, QpState, QpType, WrOpcode};

/// Error of posting a work request. Nothing was queued; what was posted before it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair was destroyed, or belongs to another device.
    #[error("there is no such queue pair on this device")]
    UnknownQp,
    /// The receive queue was destroyed, or belongs to another device.
    #[error("there is no such receive queue on this device")]
    UnknownReceiveQueue,
    /// The queue pair's state does not allow it.
    #[error("nothing can be posted there in state {0}")]
    WrongState(QpState),
    /// The queue has no place left until completions are polled.
    #[error("the queue is full")]
    QueueFull,
    /// The queue is used for the first time, and there is no memory for it.
    #[error("there is not enough memory")]
    NoMemory,
    /// More scatter/gather elements than the queue was created for.
    #[error("{count} scatter/gather entries, of at most {max}")]
    TooManySges {
        /// Number of elements.
        count: usize,
        /// Maximum number of elements.
        max: u32,
    },
    /// More inline data than the queue was created for.
    #[error("{len} bytes inline, of at most {max}")]
    InlineTooLong {
        /// Length of the data.
        len: u64,
        /// Maximum length.
        max: u32,
    },
    /// The operation has no data that could be inline.
    #[error("{0} cannot have inline data")]
    InlineNotAllowed(WrOpcode),
    /// A queue pair of this kind does not do this.
    #[error("{opcode} is not allowed on {qp_type}")]
    NotAllowedOnQpType {
        /// Opcode of the work request.
        opcode: WrOpcode,
        /// Type of the queue pair.
        qp_type: QpType,
    },
    /// Unknown opcode.
    #[error("there is no operation with the number {0}")]
    UnknownOpcode(u32),
    /// The message is longer than one may be.
    #[error("a message of {len} bytes, of at most {max}")]
    MessageTooLong {
        /// Length of the message.
        len: u64,
        /// Maximum length.
        max: u64,
    },
    /// The operation needs buffers of another length.
    #[error("{opcode} with {len} bytes of buffers")]
    WrongLength {
        /// Opcode of the work request.
        opcode: WrOpcode,
        /// Total length of the buffers.
        len: u64,
    },
    /// A datagram names no peer, or a request no shared receive queue of the peer's.
    #[error("{0} needs to be told where to send")]
    MissingAddress(QpType),
    /// The address handle is not, or no longer, one of this device.
    #[error("there is no such address handle")]
    UnknownAddress,
    /// The memory window is not, or no longer, one of this device.
    #[error("there is no such memory window on this device")]
    UnknownMw,
    /// The memory region to bind a window to is not, or no longer, one of this device.
    #[error("there is no such memory region on this device")]
    UnknownMr,
    /// The new key of a memory window is not one that it can have.
    #[error("the memory window cannot have this key next")]
    WrongMwKey,
    /// The memory is registered in another protection domain, or on another device.
    #[error("the memory is registered in another protection domain")]
    ForeignMemory,
    /// The queue pair takes its receives from elsewhere.
    #[error("there is no receive queue of its own")]
    NoReceiveQueue,
    /// The queue pair only answers.
    #[error("there is no send queue")]
    NoSendQueue,
    /// Reads and atomics are asked for where `max_rd_atomic` is 0.
    #[error("no READs or ATOMICs may be in flight (max_rd_atomic is 0)")]
    NoRdAtomic,
    /// The device does not support the operation.
    #[error("the device does not support it")]
    Unsupported,
    /// A device refused, and said no more than this.
    #[error("the device refuses: {0}")]
    Refused(Errno),
}

impl PostError {
    /// Returns the error number that the function of C returns.
    pub const fn errno(self) -> Errno {
        match self {
            Self::QueueFull | Self::NoMemory => Errno::ENOMEM,
            Self::Unsupported => Errno::EOPNOTSUPP,
            Self::Refused(errno) => errno,
            _ => Errno::EINVAL,
        }
    }
}
