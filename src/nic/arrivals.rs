//! What the link is told of who is here: which queue pairs there are, and which groups they are in.
//!
//! The receiving half is locked meanwhile, so what it is told last is how it is.

use std::io;

use super::alarm::Refusal;
use super::progress::Shared;
use crate::link::CHOSEN_MAX;
use crate::verbs::{CreateError, DestroyError, Errno, QpHandle};
use crate::wire::{Gid, Qpn};

impl Shared {
    /// Tells the link which queue pairs there are. It is told of a new one before anybody knows its number, so no
    /// packet to it is missed.
    pub(super) fn choose_packets(&self) {
        if self.alarm.is_raised() {
            return;
        }
        let mut receiver = self.receiver();
        let some: Vec<Qpn> = self.core().engine.qp_numbers().take(CHOSEN_MAX + 1).collect();
        receiver.choose(Some(&*some).filter(|all| all.len() <= CHOSEN_MAX));
    }

    /// Attaches a queue pair to a group, which the link joins if it is the first.
    pub(super) fn attach(&self, qp: QpHandle, group: Gid) -> Result<(), CreateError> {
        if self.alarm.is_raised() {
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
        let joined = receiver.join(group).and_then(|()| self.watch(&**receiver));
        joined.map_err(|error| {
            receiver.leave(group);
            self.core().engine.detach_multicast(qp, group).expect("it was just attached");
            refusal(&error)
        })
    }

    /// Detaches a queue pair from a group, which the link leaves if it was the last.
    pub(super) fn detach(&self, qp: QpHandle, group: Gid) -> Result<(), DestroyError> {
        if self.alarm.is_raised() {
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

/// Why a link does not join a group.
fn refusal(error: &io::Error) -> CreateError {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::Unsupported, _) => {
            CreateError::Invalid("the group and the link are of different versions of IP")
        }
        (_, Some(code)) => CreateError::Refused(Errno(code)),
        (_, None) => CreateError::Full,
    }
}
