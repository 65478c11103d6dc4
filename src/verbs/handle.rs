//! What a program holds in its hand: the names of objects that a device made.
//!
//! What a name stands for only its device knows. A name outlives its object without harm: the device does not find it
//! any more.

use super::LKey;
use crate::wire::RKey;

/// Identifies an object of one device: a slot with its generation, and the tag of the device. A device does not find an
/// object by the handle of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    device: DeviceTag,
    index: u32,
}

/// Tells the objects of one device from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceTag(pub(crate) u32);

impl DeviceTag {
    /// All RNICs that are used through libibverbs.
    pub(crate) const RNIC: Self = Self(0);
}

impl Id {
    pub(crate) const fn new(device: DeviceTag, index: u32) -> Self {
        Self { device, index }
    }

    #[inline]
    pub(crate) const fn device(self) -> DeviceTag {
        self.device
    }

    /// Slot and generation.
    #[inline]
    pub(crate) const fn index(self) -> u32 {
        self.index
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(pub(crate) Id);
        )*
    };
}

handles! {
    /// A protection domain: whose memory its queue pairs may use.
    PdHandle;
    /// A completion queue.
    CqHandle;
    /// A shared receive queue.
    SrqHandle;
    /// An XRC domain: whose shared receive queues a target queue pair may fill.
    XrcdHandle;
    /// A queue pair.
    QpHandle;
    /// A memory window.
    MwHandle;
    /// A rule that steers frames.
    FlowHandle;
    /// A receive queue without a queue pair.
    WqHandle;
}

/// An address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AhHandle(pub u32);

/// A memory region, and the keys to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MrHandle {
    pub(crate) id: Id,
    pub(crate) lkey: LKey,
    pub(crate) rkey: RKey,
}

impl MrHandle {
    /// The key for work requests of the owner's own.
    pub const fn lkey(self) -> LKey {
        self.lkey
    }

    /// The key for a peer.
    pub const fn rkey(self) -> RKey {
        self.rkey
    }
}
