//! Something to wait for: a queue with a file descriptor that is readable while there is something in it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::verbs::Events;

/// A queue that can be waited for, by a call or by `poll` on its descriptor.
#[derive(Debug)]
pub struct Mailbox<T> {
    letters: Mutex<VecDeque<T>>,
    /// Counts the letters.
    flag: OwnedFd,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self { letters: Mutex::default(), flag: eventfd(0, flags)? })
    }

    pub(super) fn put(&self, letter: T) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push_back(letter);
        // The counter has room for more than there is memory for letters.
        let _ = rustix::io::write(&self.flag, &1_u64.to_ne_bytes());
    }

    /// The oldest one, if there is any.
    pub fn take(&self) -> Option<T> {
        let mut count = [0_u8; 8];
        rustix::io::read(&self.flag, &mut count).ok()?;
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl<T: fmt::Debug + Send + 'static> Events<T> for Mailbox<T> {
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<T>> {
        loop {
            if let Some(letter) = self.take() {
                return Ok(Some(letter));
            }
            if !wait_readable(&[self.flag.as_fd()], timeout)? {
                return Ok(None);
            }
        }
    }
}

impl<T> AsFd for Mailbox<T> {
    /// Readable while there is something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flag.as_fd()
    }
}

/// Waits until one of several descriptors is readable; whether one is.
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

/// Waits until one of up to three descriptors is readable; which of them are. A signal counts as all.
pub(super) fn which_readable(
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<[bool; 3]> {
    let polled = |at: usize| {
        let flags = if at < fds.len() { PollFlags::IN } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(*fds.get(at).unwrap_or(&fds[0]), flags)
    };
    let mut polled = [polled(0), polled(1), polled(2)];
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([true; 3]),
        Err(error) => Err(error.into()),
    }
}
