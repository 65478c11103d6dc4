//! Frames of raw packet queue pairs: opaque bytes, which the caller steers.

use super::Engine;
use crate::time::Instant;
use crate::verbs::QpHandle;

/// Maximum number of frames that wait to be sent: while there are so many, no queue pair sends.
pub(super) const FRAMES_MAX: usize = 256;

impl Engine {
    /// Receives a frame of any protocol on a raw packet queue pair.
    pub fn receive_frame(&mut self, now: Instant, qp: QpHandle, frame: &[u8]) {
        self.env.advance(now);
        let Some((qp, env)) = self.split_handle(qp) else { return };
        if let Err(reason) = qp.receive_frame(frame, env) {
            env.count(reason);
        }
    }

    /// Whether there are frames to send.
    pub fn has_frames(&self) -> bool {
        !self.env.frames.is_empty()
    }

    /// Returns the next frame to send. May have more after [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.env.frames.pop_front()
    }
}
