//! What an object shall be, and why it cannot be.

use thiserror::Error;

use super::{Access, CqHandle, Errno, QpInitAttr, SrqHandle, XrcdHandle};
use crate::memory::Region;

/// What a queue pair shall be.
#[derive(Clone, Copy, Debug)]
pub struct QpCreate {
    /// Its kind and sizes.
    pub init: QpInitAttr,
    /// Where its sends complete.
    pub send_cq: CqHandle,
    /// Where its receives complete.
    pub recv_cq: CqHandle,
    /// A shared queue to receive from.
    pub srq: Option<SrqHandle>,
    /// For an XRC target: its domain.
    pub xrcd: Option<XrcdHandle>,
}

/// What a shared receive queue shall be.
#[derive(Clone, Copy, Debug)]
pub struct SrqCreate {
    /// How many work requests it holds.
    pub max_wr: u32,
    /// How many buffers each has.
    pub max_sge: u32,
    /// The limit below which an event is raised.
    pub limit: u32,
    /// For XRC: its domain, and where its completions go.
    pub xrc: Option<(XrcdHandle, CqHandle)>,
}

/// How a region is registered.
#[derive(Debug)]
pub struct MrAttr {
    /// The memory.
    pub region: Region,
    /// The address that stands for its first byte: its own, or another that the owner likes better.
    pub base: u64,
    /// What may be done with it.
    pub access: Access,
}

/// For what completions an event is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// For the next one.
    Next,
    /// For the next that was solicited, or failed.
    Solicited,
}

/// Why an object cannot be made or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Something it shall belong to does not exist.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// There is no room for another.
    #[error("no more can be made")]
    Full,
    /// There is no memory for it, or all that may be used was promised to others.
    #[error("there is not enough memory")]
    NoMemory,
    /// It shall be larger than it can be.
    #[error("{0} is more than the device can do")]
    TooLarge(&'static str),
    /// Its parts do not go together.
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

/// Why an object cannot be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// Others still use it.
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

/// Why a region or a window cannot be created, changed or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no such region or window.
    #[error("there is no such memory region or window")]
    NotFound,
    /// There is no such protection domain.
    #[error("there is no such protection domain")]
    NoPd,
    /// There is no room for another.
    #[error("no more memory regions or windows can be made")]
    Full,
    /// There is no memory for the buffer.
    #[error("there is not enough memory")]
    NoMemory,
    /// Remote writes and atomics need the right to write locally.
    #[error("remote write or atomic access needs local write access")]
    NeedsLocalWrite,
    /// The address range of the region passes the end of the address space.
    #[error("the region does not fit in the address space")]
    TooLong,
    /// Windows are bound to it.
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
