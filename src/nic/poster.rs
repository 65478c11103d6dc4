//! Posting a list of any length, whose work requests come one by one.

use crate::engine::Engine;
use crate::verbs::{Errno, PostError, QpHandle, RecvWr, SendWr, SrqHandle, WqHandle};

/// Takes work requests, until it is let go: only then they go out. See [`SoftNic::post_all`](super::SoftNic::post_all).
#[derive(Debug)]
pub struct Poster<'a> {
    pub(super) engine: &'a mut Engine,
    /// Whether there is something to send.
    pub(super) sends: bool,
    /// Whether the NIC has failed: then nothing is posted.
    pub(super) failed: bool,
}

impl Poster<'_> {
    /// The engine, unless the NIC has failed.
    #[inline]
    fn engine(&mut self) -> Result<&mut Engine, PostError> {
        if self.failed { Err(PostError::Refused(Errno::EIO)) } else { Ok(self.engine) }
    }

    /// Posts a send.
    #[inline]
    pub fn send(&mut self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.sends = true;
        self.engine()?.post_send(qp, wr, &[])
    }

    /// Posts sends to one queue pair, all of them or none.
    #[inline]
    pub fn sends<'w>(
        &mut self,
        qp: QpHandle,
        wrs: impl IntoIterator<Item = SendWr<'w>>,
    ) -> Result<(), PostError> {
        self.sends = true;
        self.engine()?.post_sends(qp, wrs)
    }

    /// Posts a receive.
    #[inline]
    pub fn recv(&mut self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine()?.post_recv(qp, wr)
    }

    /// Posts a receive to a queue without a queue pair.
    #[inline]
    pub fn wq_recv(&mut self, wq: WqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine()?.post_wq_recv(wq, wr)
    }

    /// Posts a receive to a shared queue.
    #[inline]
    pub fn srq_recv(&mut self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine()?.post_srq_recv(srq, wr)
    }
}
