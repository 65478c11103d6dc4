//! The port of a running NIC: raises events when it changes, and keeps GIDs and MTU up to date.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use super::core::Core;
use super::shared::Shared;
use crate::link::{PortMonitor, PortStatus};
use crate::verbs::{AsyncEvent, EventType};

/// The monitor of a link, and the status that it reported last.
pub(super) struct PortWatch {
    /// A copy of the monitor's descriptor, to wait for it without the lock.
    changes: OwnedFd,
    state: Mutex<State>,
}

struct State {
    monitor: Box<dyn PortMonitor>,
    last: PortStatus,
}

impl PortWatch {
    /// Starts from the present status, which raises no event.
    pub(super) fn new(mut monitor: Box<dyn PortMonitor>) -> io::Result<Self> {
        let changes = monitor.fd().try_clone_to_owned()?;
        let last = monitor.status()?.clone();
        Ok(Self { changes, state: Mutex::new(State { monitor, last }) })
    }

    /// Becomes readable when the port may have changed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

impl Shared {
    /// Reads the status of the port, applies what changed, and returns whether the port is active.
    pub(super) fn refresh_port(&self) -> bool {
        let Some(watch) = &self.port_watch else { return true };
        let mut state = self.signals.lock(&watch.state);
        let State { monitor, last } = &mut *state;
        // An interface whose status cannot be read counts as unchanged.
        if let Ok(status) = monitor.status()
            && status != last
        {
            let before = std::mem::replace(last, status.clone());
            // The receiving half is locked before the core, as everywhere.
            let mut receiver = self.receiver();
            if before.gids != last.gids {
                receiver.set_gids(&last.gids);
            }
            self.core().apply(&before, last);
        }
        last.is_active
    }
}

impl Core {
    /// Applies a change of the port.
    fn apply(&mut self, before: &PortStatus, now: &PortStatus) {
        if before.mtu != now.mtu {
            self.engine.set_port_mtu(now.mtu);
        }
        if before.gids != now.gids {
            self.engine.set_gids(now.gids.clone());
        }
        // A NIC on a UDP socket has one of its interface's addresses as its GID. Programs that
        // follow the interface by this event hear of the others, too: a device can be opened at
        // them. Those of IPv6 come and go with the link, of which another event tells.
        let was_up = before.is_active && now.is_active;
        if before.gids != now.gids || was_up && before.addresses != now.addresses {
            self.raise(AsyncEvent::Port(EventType::GidChange));
        }
        match (before.is_active, now.is_active) {
            (true, false) => self.raise(AsyncEvent::Port(EventType::PortErr)),
            (false, true) => self.raise(AsyncEvent::Port(EventType::PortActive)),
            _ => {}
        }
    }
}
