//! An established connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::error::Error;
use super::manager::{Id, private_data};
use crate::cm::{EventKind, EventParam, PrivateData};
use crate::time::Instant;
use crate::verbs::{AttrMask, QpAttr, QpHandle, QpState};

/// A connected queue pair. Dropping it disconnects: the peer is told, and the queue pair, which stays the program's, is
/// in ERR.
#[derive(Debug)]
pub struct Connection {
    id: Id,
    qp: QpHandle,
    private_data: PrivateData,
    /// Whether its end was seen.
    has_ended: AtomicBool,
}

impl Connection {
    pub(super) fn connected(id: Id, qp: QpHandle, param: &EventParam) -> Self {
        Self { id, qp, private_data: private_data(param), has_ended: AtomicBool::new(false) }
    }

    /// A connection that was accepted. A peer that disconnects at once may have ended it already.
    pub(super) fn accepted(
        id: Id,
        qp: QpHandle,
        private_data: PrivateData,
        has_ended: bool,
    ) -> Self {
        Self { id, qp, private_data, has_ended: AtomicBool::new(has_ended) }
    }

    /// Returns the queue pair.
    pub fn qp(&self) -> QpHandle {
        self.qp
    }

    /// Returns what the peer's program had to say: 196 bytes at the side that connected, 56 at the side that accepted, with
    /// zeros behind its data.
    pub fn private_data(&self) -> &[u8] {
        self.private_data.as_slice()
    }

    /// Returns the own address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let number = self.id.number;
        self.id.shared.service.command(|manager, _| manager.source(number)).ok()?
    }

    /// Returns the peer's address and port.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let number = self.id.number;
        self.id.shared.service.command(|manager, _| manager.destination(number)).ok()?
    }

    /// Waits until the peer disconnects, which is answered then, or its end is noticed in another way; false after
    /// `timeout`. The queue pair is as it was: what the peer sent before can still be received.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool, Error> {
        let deadline = self.id.shared.service.now().saturating_add(timeout);
        self.wait_end(deadline)
    }

    fn wait_end(&self, deadline: Instant) -> Result<bool, Error> {
        while !self.has_ended.load(Ordering::Relaxed) {
            match self.id.wait(deadline) {
                Ok(event) => match event.kind {
                    EventKind::Disconnected | EventKind::TimewaitExit | EventKind::Rejected => {
                        self.has_ended.store(true, Ordering::Relaxed);
                        // Answers the peer's DREQ; there may be nothing to answer.
                        let _ = self.id.command(|manager, now, id| manager.disconnect(now, id));
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

    /// Disconnects, and waits until the peer's program has noticed; false if it does not within `timeout`. Work requests
    /// that are left are flushed.
    pub fn disconnect(self, timeout: Duration) -> Result<bool, Error> {
        let deadline = self.id.shared.service.now().saturating_add(timeout);
        self.fail_qp();
        self.id.command(|manager, now, number| manager.disconnect(now, number))?;
        self.wait_end(deadline)
    }

    /// Takes the queue pair to ERR, which flushes it.
    fn fail_qp(&self) {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        // It may be destroyed already.
        let _ = self.id.shared.modify(self.qp, &attr, AttrMask::STATE);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.fail_qp();
    }
}
