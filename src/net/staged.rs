//! Messages that are written in place in the circular send buffer, and kept until the peer has
//! consumed them.
//!
//! These calls do not wait. A message that was queued here can be taken back when the connection is
//! lost, so that it goes over another one.

use super::connection::Connection;
use super::core::Unconsumed;
use super::error::Error;
use super::shared::check_open;
use crate::device::Channel;

impl Connection {
    /// Maximum length of a message that is copied into the peer's ring.
    pub(crate) fn staged_max(&self) -> usize {
        self.shared.eager_max
    }

    /// Returns the offset at which a message of `len` bytes is to be written in place. It stays
    /// there as long as no other is queued.
    pub(crate) fn reserve(&self, len: usize) -> Result<u64, Error> {
        let state = &mut *self.shared.lock();
        check_open(state)?;
        if let Some(at) = state.core.find_room(len) {
            return Ok(at);
        }
        self.shared.progress(state);
        state.core.find_room(len).ok_or(Error::WouldBlock)
    }

    /// Writes a part of a message in place; false if that is outside of the send buffer.
    pub(crate) fn fill(&self, at: u64, bytes: &[u8]) -> bool {
        self.shared.lock().core.fill(at, bytes)
    }

    /// Queues the message that was written in place, and rings the doorbell if it is to be flushed.
    pub(crate) fn commit(&self, len: usize, flush: bool) -> Result<(), Error> {
        let state = &mut *self.shared.lock();
        check_open(state)?;
        if !state.core.queue_in_place(len) {
            return Err(Error::WouldBlock);
        }
        if flush {
            self.shared.transmit(state);
        }
        Ok(())
    }

    /// Queues a message without a doorbell; false if there is no room, or the connection does not
    /// work any more.
    pub(crate) fn queue_staged(&self, message: &[u8]) -> bool {
        let state = &mut *self.shared.lock();
        if check_open(state).is_err() || message.len() > self.shared.eager_max {
            return false;
        }
        if state.core.queue(&[message]) {
            return true;
        }
        self.shared.progress(state);
        state.core.queue(&[message])
    }

    /// Posts what was queued, as far as the peer has room.
    pub(crate) fn transmit(&self) {
        self.shared.transmit(&mut self.shared.lock());
    }

    /// Has [`unconsumed_staged`](Self::unconsumed_staged) return messages only that are queued from
    /// now on.
    pub(crate) fn begin_keeping(&self) {
        self.shared.lock().core.begin_keeping();
    }

    /// Messages that were queued in place and are not known to be consumed by the peer, oldest
    /// first.
    pub(crate) fn unconsumed_staged(&self) -> Unconsumed {
        self.shared.lock().core.unconsumed()
    }

    /// Whether a call that receives has something to return: a message, the end, a failure.
    pub(crate) fn is_readable(&self) -> bool {
        self.shared.lock().core.is_readable()
    }

    /// Returns the reason for which no message can be sent any more: the peer has closed it, or the
    /// connection has failed. A peer that has closed it answers no more, so that a failure follows.
    pub(crate) fn ending(&self) -> Option<Error> {
        let state = &*self.shared.lock();
        if state.core.has_peer_closed() {
            return Some(Error::Closed);
        }
        state.core.failure().map(Error::from)
    }

    /// Whether the connection has failed, or the peer has closed it and gone.
    pub(crate) fn has_failed(&self) -> bool {
        let has_failed = self.shared.lock().core.failure().is_some();
        has_failed || self.shared.has_peer_gone()
    }

    /// Tells the peer that this side sends and reads no more, without waiting for it.
    pub(crate) fn begin_close(&self) {
        let state = &mut *self.shared.lock();
        state.core.close();
        self.shared.transmit(state);
    }

    /// Whether it was closed, and the peer's NIC has acknowledged all messages and the end.
    pub(crate) fn is_closed_and_delivered(&self) -> bool {
        self.shared.lock().core.is_closed_and_delivered()
    }

    /// Has the peer's NIC show that it is there.
    pub(crate) fn keep_alive(&self) -> Result<(), Error> {
        self.shared.keep_alive(&mut self.shared.lock())
    }

    /// Has the completion channel tell of the next completion. False if there was one meanwhile:
    /// then it must be polled.
    pub(crate) fn arm(&self) -> bool {
        let state = &mut *self.shared.lock();
        self.shared.arm(state)
    }

    /// Takes the event of the completion channel, if there is one.
    pub(crate) fn disarm(&self) {
        let state = &mut *self.shared.lock();
        if let Ok(Some(_)) = self.channel().wait(Some(std::time::Duration::ZERO)) {
            self.shared.disarm(state);
        }
    }

    /// The completion channel, whose descriptor is readable when there is an event.
    pub(crate) fn channel(&self) -> &Channel {
        self.shared.cq.channel().expect("the completion queue was created with one")
    }
}
