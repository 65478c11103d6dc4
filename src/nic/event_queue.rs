//! Event queues with a file descriptor that is readable while they hold events: completion
//! channels, and the queue of asynchronous events.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::shared::Shared;
use crate::device::Events;

/// A queue of events that a thread can wait for, by a call or by `poll` on its descriptor.
#[derive(Debug)]
pub struct EventQueue<T> {
    events: Mutex<VecDeque<T>>,
    /// Counts the events.
    counter: OwnedFd,
    /// The NIC that a waiting thread drives.
    nic: Weak<Shared>,
}

impl<T> EventQueue<T> {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self { events: Mutex::default(), counter: eventfd(0, flags)?, nic: Weak::new() })
    }

    /// Creates a queue whose waiting threads drive a NIC.
    pub(super) fn driving(nic: Weak<Shared>) -> io::Result<Self> {
        Ok(Self { nic, ..Self::new()? })
    }

    fn has_events(&self) -> bool {
        !self.events.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Sleeps until there may be an event; returns false after `timeout`.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let counter = self.counter.as_fd();
        if let Some(nic) = self.nic.upgrade()
            && let Some(is_readable) = nic.listen(counter, timeout)?
        {
            return Ok(is_readable);
        }
        // From here on it does not keep the NIC, which may be dropped meanwhile.
        wait_readable(&[counter], timeout)
    }

    pub(super) fn push(&self, event: T) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        // The counter cannot overflow: memory for events runs out first.
        let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
    }

    /// Takes the oldest event, if there is any.
    pub fn take(&self) -> Option<T> {
        let mut count = [0_u8; 8];
        rustix::io::read(&self.counter, &mut count).ok()?;
        self.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl<T: fmt::Debug + Send + 'static> Events<T> for EventQueue<T> {
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<T>> {
        if timeout == Some(Duration::ZERO) {
            return Ok(self.take());
        }
        if let Some(nic) = self.nic.upgrade() {
            nic.drive_until(|| self.has_events());
        }
        loop {
            if let Some(event) = self.take() {
                return Ok(Some(event));
            }
            if !self.sleep(timeout)? {
                return Ok(None);
            }
        }
    }
}

impl<T> AsFd for EventQueue<T> {
    /// Readable while there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }
}

/// Waits until one of several descriptors is readable; returns false after `timeout`. A signal ends
/// the wait, too.
pub(super) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of up to five descriptors is readable; returns which are. After a signal, all
/// may be.
pub(super) fn which_readable(
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<[bool; 5]> {
    let polled = |at: usize| {
        let flags = if at < fds.len() { PollFlags::IN } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(*fds.get(at).unwrap_or(&fds[0]), flags)
    };
    let mut polled = [polled(0), polled(1), polled(2), polled(3), polled(4)];
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([true; 5]),
        Err(error) => Err(error.into()),
    }
}
