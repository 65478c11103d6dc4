//! Handles of objects.
//!
//! Only the device that created an object finds it by its handle. A handle outlives its object
//! without harm: the device does not find it any more, and another device never does.

use super::LKey;
use crate::wire::RKey;

/// Identifies an object of one device: a slot with its generation, and the tag of the device. A
/// device does not find an object by the handle of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    device: DeviceTag,
    index: u32,
}

/// Tells the objects of one device from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceTag(u32);

impl DeviceTag {
    /// No device: of objects that belong to none, and of handles that come through C, which has no
    /// room for a tag.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the tag of a device that drew this number. It is never [`NONE`](Self::NONE).
    pub(crate) const fn from_random(number: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "32 bits are wanted")]
        let number = number as u32;
        Self(if number == 0 { 1 } else { number })
    }
}

impl Id {
    pub(crate) const fn new(device: DeviceTag, index: u32) -> Self {
        Self { device, index }
    }

    #[inline]
    pub(crate) const fn device(self) -> DeviceTag {
        self.device
    }

    /// Whether it has the tag of this device, or none.
    #[inline]
    pub(crate) fn may_be_of(self, device: DeviceTag) -> bool {
        self.device == device || self.device == DeviceTag::NONE
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
    /// An address handle: the path to a peer of datagram queue pairs.
    AhHandle;
}

impl AhHandle {
    /// Returns the handle as a C program carries it in `ibv_ah`.
    pub const fn to_c(self) -> u32 {
        self.0.index()
    }

    /// Returns the handle that a C program carries in `ibv_ah`. There is no room for a tag, so
    /// every device takes it for one of its own.
    pub const fn from_c(handle: u32) -> Self {
        Self(Id::new(DeviceTag::NONE, handle))
    }
}

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
