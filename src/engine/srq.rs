//! Shared receive queues: receives for several queue pairs, and the limit event.

use super::config::OBJECT_BYTES;
use super::recv_queue::RecvQueue;
use crate::verbs::{CqHandle, PdHandle, SrqHandle, XrcdHandle};

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) handle: SrqHandle,
    pub(super) pd: PdHandle,
    pub(super) queue: RecvQueue,
    /// An event is raised when fewer receives than this are left; 0 is never.
    pub(super) limit: u32,
    /// XRC domain and completion queue, for an XRC shared receive queue.
    pub(super) xrc: Option<(XrcdHandle, CqHandle)>,
    /// Number of queue pairs that use it.
    pub(super) users: u32,
}

impl Srq {
    /// Number of bytes that it takes when it is in use.
    pub(super) fn bytes(&self) -> u64 {
        OBJECT_BYTES + RecvQueue::bytes(self.queue.depth(), self.queue.max_sge())
    }
}
