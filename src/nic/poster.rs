//! Posting many work requests at once.

use crate::engine::Engine;
use crate::verbs::{Errno, PostError, QpHandle, RecvWr, SendWr, SrqHandle, WrId};

/// Takes work requests one by one, which are transmitted together. See
/// [`SoftNic::post_all`](super::SoftNic::post_all).
#[derive(Debug)]
pub struct Poster<'a> {
    pub(super) engine: &'a mut Engine,
    /// Whether send work requests were posted.
    pub(super) has_sends: bool,
    /// Whether the NIC has failed: then all are refused.
    pub(super) failed: bool,
}

impl Poster<'_> {
    /// Returns the engine, unless the NIC has failed.
    #[inline]
    pub(super) fn engine(&mut self) -> Result<&mut Engine, PostError> {
        if self.failed { Err(PostError::Refused(Errno::EIO)) } else { Ok(self.engine) }
    }

    /// Posts a send work request.
    #[inline]
    pub fn send(&mut self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.has_sends = true;
        self.engine()?.post_send(qp, wr, &[])
    }

    /// Posts a send whose operation the service of the queue pair lacks: it completes with
    /// `LOC_QP_OP_ERR`. See [`Engine::post_unsupported`].
    pub fn unsupported(&mut self, qp: QpHandle, id: WrId) -> Result<(), PostError> {
        self.has_sends = true;
        self.engine()?.post_unsupported(qp, id)
    }

    /// Posts send work requests to one queue pair, all of them or none.
    #[inline]
    pub fn sends<'w>(
        &mut self,
        qp: QpHandle,
        wrs: impl IntoIterator<Item = SendWr<'w>>,
    ) -> Result<(), PostError> {
        self.has_sends = true;
        self.engine()?.post_sends(qp, wrs)
    }

    /// Posts a receive work request.
    #[inline]
    pub fn recv(&mut self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine()?.post_recv(qp, wr)
    }

    /// Posts a receive work request to an SRQ.
    #[inline]
    pub fn srq_recv(&mut self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine()?.post_srq_recv(srq, wr)
    }
}
