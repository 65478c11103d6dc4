//! Attributes by which objects are created, and errors of creation.

use thiserror::Error;

use super::{Access, CqHandle, Errno, QpInitAttr, SrqHandle, XrcdHandle};
use crate::memory::Region;

/// Attributes of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpCreate {
    /// Transport service and sizes.
    pub init: QpInitAttr,
    /// Completion queue of sends.
    pub send_cq: CqHandle,
    /// Completion queue of receives.
    pub recv_cq: CqHandle,
    /// A shared queue to receive from.
    pub srq: Option<SrqHandle>,
    /// XRC domain, for an XRC target.
    pub xrcd: Option<XrcdHandle>,
}

/// Attributes of a new shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqCreate {
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of scatter/gather elements of a work request.
    pub max_sge: u32,
    /// The limit below which an event is raised.
    pub limit: u32,
    /// XRC domain and completion queue, for an XRC shared receive queue.
    pub xrc: Option<(XrcdHandle, CqHandle)>,
}

/// Attributes of a memory registration.
#[derive(Debug)]
pub struct MrAttr {
    /// The memory.
    pub region: Region,
    /// The address that stands for its first byte: its own, or another that the owner likes better.
    pub base: u64,
    /// Access rights.
    pub access: Access,
}

/// Completions for which an event is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next completion that was solicited, or failed.
    Solicited,
}

/// Error of creating or changing an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// An object that the new one shall belong to does not exist.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The device has the maximum number of such objects.
    #[error("no more can be made")]
    Full,
    /// Not enough memory, or all that may be used was promised to others.
    #[error("there is not enough memory")]
    NoMemory,
    /// A size exceeds the maximum.
    #[error("{0} is more than the device can do")]
    TooLarge(&'static str),
    /// Attributes contradict each other.
    #[error("{0}")]
    Invalid(&'static str),
    /// A device refused, and said no more than this.
    #[error("the device refuses: {0}")]
    Refused(Errno),
}

impl CreateError {
    /// The number C programs get.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NotFound(_) | Self::TooLarge(_) | Self::Invalid(_) => Errno::EINVAL,
            Self::Full | Self::NoMemory => Errno::ENOMEM,
            Self::Refused(errno) => errno,
        }
    }
}

/// Error of destroying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// The handle names no object.
    #[error("there is no such object")]
    NotFound,
    /// The object is still in use.
    #[error("it is still in use")]
    Busy,
    /// A device refused, and said no more than this.
    #[error("the device refuses: {0}")]
    Refused(Errno),
}

impl DestroyError {
    /// The number C programs get.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NotFound => Errno::EINVAL,
            Self::Busy => Errno::EBUSY,
            Self::Refused(errno) => errno,
        }
    }
}

/// Error of creating, changing or destroying a memory region or window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The handle names no region or window.
    #[error("there is no such memory region or window")]
    NotFound,
    /// The handle names no protection domain.
    #[error("there is no such protection domain")]
    NoPd,
    /// The device has the maximum number of regions or windows.
    #[error("no more memory regions or windows can be made")]
    Full,
    /// Not enough memory for the buffer.
    #[error("there is not enough memory")]
    NoMemory,
    /// Remote writes and atomics need the right to write locally.
    #[error("remote write or atomic access needs local write access")]
    NeedsLocalWrite,
    /// The address range of the region passes the end of the address space.
    #[error("the region does not fit in the address space")]
    TooLong,
    /// Memory windows are bound to the region.
    #[error("memory windows are bound to the region")]
    InUse,
    /// A device refused, and said no more than this.
    #[error("the device refuses: {0}")]
    Refused(Errno),
}

impl KeyError {
    /// The number C programs get.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NotFound | Self::NoPd | Self::NeedsLocalWrite | Self::TooLong => Errno::EINVAL,
            Self::Full | Self::NoMemory => Errno::ENOMEM,
            Self::InUse => Errno::EBUSY,
            Self::Refused(errno) => errno,
        }
    }
}
