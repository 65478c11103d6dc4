//! Shared receive queues.

use super::cq::CqHandle;
use super::ids::Id;
use super::pd::PdHandle;
use super::queue::RecvQueue;

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SrqHandle(pub(super) Id);

/// An XRC domain: whose shared receive queues a target queue pair may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XrcdHandle(pub(super) Id);

#[derive(Debug)]
pub(super) struct Srq {
    pub(super) handle: SrqHandle,
    pub(super) pd: PdHandle,
    pub(super) queue: RecvQueue,
    /// An event is due when fewer than this many requests are left; 0 is never.
    pub(super) limit: u32,
    /// For XRC: its domain, and where its completions go.
    pub(super) xrc: Option<(XrcdHandle, CqHandle)>,
    /// How many queue pairs use it.
    pub(super) users: u32,
}
