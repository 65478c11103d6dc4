//! Shared receive queues.

use super::cq::CqHandle;
use super::pd::PdHandle;
use super::queue::RecvQueue;

/// A shared receive queue. Its number is also its name on the wire, for XRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SrqHandle(pub(super) u32);

/// An XRC domain: whose shared receive queues a target queue pair may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XrcdHandle(pub(super) u32);

#[derive(Debug)]
pub(super) struct Srq {
    pub(super) pd: PdHandle,
    pub(super) queue: RecvQueue,
    /// An event is due when fewer than this many requests are left; 0 is never.
    pub(super) limit: u32,
    /// For XRC: its domain, and where its completions go.
    pub(super) xrc: Option<(XrcdHandle, CqHandle)>,
    /// How many queue pairs use it.
    pub(super) users: u32,
}
