//! Filter of received packets: the QPN filter and multicast groups.
//!
//! Both change while the receiving half is locked, so that after the last change they agree with
//! the engine.

use std::io;

use super::failure::Refusal;
use super::shared::Shared;
use crate::link::CHOSEN_MAX;
use crate::verbs::{CreateError, DestroyError, Errno, QpHandle};
use crate::wire::{Gid, Qpn};

impl Shared {
    /// Sets the link's QPN filter to the queue pairs that exist. A new queue pair is in it before
    /// the program learns its number, so no packet to it is missed.
    pub(super) fn set_qpn_filter(&self) {
        if self.signals.has_failed() || !self.has_qpn_filter {
            return;
        }
        let mut receiver = self.receiver();
        let qpns: Vec<Qpn> = self.core().engine.qp_numbers().take(CHOSEN_MAX + 1).collect();
        receiver.set_qpn_filter(Some(&*qpns).filter(|qpns| qpns.len() <= CHOSEN_MAX));
    }

    /// Attaches a queue pair to a multicast group. The link joins the group for its first member.
    pub(super) fn attach(&self, qp: QpHandle, group: Gid) -> Result<(), CreateError> {
        if self.signals.has_failed() {
            return Refusal::refused();
        }
        let mut receiver = self.receiver();
        let is_new = {
            let engine = &mut self.core().engine;
            let is_new = !engine.has_members(group);
            engine.attach_multicast(qp, group)?;
            is_new
        };
        if !is_new {
            return Ok(());
        }
        let joined = receiver.join(group).and_then(|()| self.update_rx_fd(&**receiver));
        joined.map_err(|error| {
            receiver.leave(group);
            self.core().engine.detach_multicast(qp, group).expect("it was just attached");
            refusal(&error)
        })
    }

    /// Detaches a queue pair from a multicast group. The link leaves the group with its last
    /// member.
    pub(super) fn detach(&self, qp: QpHandle, group: Gid) -> Result<(), DestroyError> {
        if self.signals.has_failed() {
            return Refusal::refused();
        }
        let mut receiver = self.receiver();
        let is_last = {
            let engine = &mut self.core().engine;
            engine.detach_multicast(qp, group)?;
            !engine.has_members(group)
        };
        if is_last {
            receiver.leave(group);
        }
        Ok(())
    }
}

/// Translates the error of a link that did not join a group.
fn refusal(error: &io::Error) -> CreateError {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::Unsupported, _) => {
            CreateError::Invalid("the group and the link are of different versions of IP")
        }
        (_, Some(code)) => CreateError::Refused(Errno(code)),
        (_, None) => CreateError::Full,
    }
}
