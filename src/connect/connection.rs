//! An established connection: its queue pair, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::backend::Id;
use super::deadline::Deadline;
use super::error::Error;
use super::manager::Shared;
use crate::cm::{EventKind, PrivateData};
use crate::verbs::{AttrMask, QpAttr, QpHandle, QpState};

/// A connected queue pair. Dropping it waits, five seconds at most, until the peer has acknowledged
/// what was posted, and disconnects: the peer is told, and the queue pair, which stays the
/// program's, is in ERR. Work requests that were not acknowledged by then complete with
/// [`WrFlushErr`](crate::verbs::WcStatus::WrFlushErr). A soft NIC is waited for; a real one does
/// not tell what is left.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    id: Box<dyn Id>,
    qp: QpHandle,
    private_data: PrivateData,
    /// Whether its end was seen.
    has_ended: AtomicBool,
}

impl Connection {
    /// A peer that disconnects at once may have ended it already.
    pub(super) fn new(
        shared: Arc<Shared>,
        id: Box<dyn Id>,
        qp: QpHandle,
        private_data: PrivateData,
        has_ended: bool,
    ) -> Self {
        Self { shared, id, qp, private_data, has_ended: AtomicBool::new(has_ended) }
    }

    /// Returns the queue pair.
    pub fn qp(&self) -> QpHandle {
        self.qp
    }

    /// Returns what the peer's program had to say: 196 bytes at the side that connected, 56 at the
    /// side that accepted, with zeros behind its data.
    pub fn private_data(&self) -> &[u8] {
        self.private_data.as_slice()
    }

    /// Returns the own address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.source()
    }

    /// Returns the peer's address and port.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.destination()
    }

    /// Waits until the peer disconnects, which is answered then, or its end is noticed in another
    /// way; false after `timeout`. The queue pair is as it was: what the peer sent before can still
    /// be received.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool, Error> {
        self.wait_end(Deadline::after(timeout))
    }

    fn wait_end(&self, deadline: Deadline) -> Result<bool, Error> {
        while !self.has_ended.load(Ordering::Relaxed) {
            match self.id.wait(deadline) {
                Ok(event) => match event.kind {
                    EventKind::Disconnected | EventKind::TimewaitExit | EventKind::Rejected => {
                        self.has_ended.store(true, Ordering::Relaxed);
                        // Answers the peer's DREQ; there may be nothing to answer.
                        let _ = self.id.disconnect();
                    }
                    EventKind::DeviceRemoval => return Err(Error::NicClosed),
                    _ => {}
                },
                Err(Error::Timeout) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Disconnects, and waits until the peer's program has noticed; false if it does not within
    /// `timeout`. What was posted is delivered before that; work requests that the peer has not
    /// acknowledged within `timeout` are flushed.
    pub fn disconnect(self, timeout: Duration) -> Result<bool, Error> {
        let deadline = Deadline::after(timeout);
        self.shared.drain(self.qp, deadline);
        self.fail_qp();
        self.id.disconnect()?;
        self.wait_end(deadline)
    }

    /// Disconnects at once: work requests that the peer has not acknowledged are flushed.
    pub fn abort(self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Takes the queue pair to ERR, which flushes it.
    fn fail_qp(&self) {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        // It may be destroyed already.
        let _ = self.shared.modify(self.qp, &attr, AttrMask::STATE);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.has_ended.load(Ordering::Relaxed) {
            self.shared.drain(self.qp, self.shared.linger.deadline());
        }
        self.fail_qp();
    }
}
