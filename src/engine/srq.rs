//! Shared receive queues.

use super::config::OBJECT_BYTES;
use super::queue::RecvQueue;
use crate::verbs::{CqHandle, PdHandle, SrqHandle, XrcdHandle};

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

impl Srq {
    /// How many bytes it takes when it is used as it may be.
    pub(super) fn bytes(&self) -> u64 {
        OBJECT_BYTES + RecvQueue::bytes(self.queue.depth(), self.queue.max_sge())
    }
}
