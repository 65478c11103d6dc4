//! What a program holds in its hand: the names of objects that a device made.
//!
//! What a name stands for only its device knows. A name outlives its object without harm: the device does not find it
//! any more.

use super::LKey;
use crate::wire::RKey;

/// Which object of its kind it is, as the device counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub(crate) u32);

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
