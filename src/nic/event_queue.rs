//! Event queues with a file descriptor that is readable while they hold events: completion
//! channels, and the queue of asynchronous events.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::shared::Shared;
use crate::device::Events;

/// A queue of events that a thread can wait for, by a call or by `poll` on its descriptor.
///
/// The descriptor counts events only while it may be looked at: once a program has asked for it, or
/// a thread sleeps. A thread that drives the NIC until an event comes needs no system call for it.
#[derive(Debug)]
pub struct EventQueue<T> {
    queue: Mutex<Queue<T>>,
    counter: OwnedFd,
    /// The NIC that a waiting thread drives.
    nic: Weak<Shared>,
}

#[derive(Debug)]
struct Queue<T> {
    events: VecDeque<T>,
    /// Number of events that the counter counts: all of them while it is watched.
    counted: usize,
    /// Number of threads that sleep.
    sleepers: usize,
    /// Whether a program has asked for the descriptor.
    is_exposed: bool,
}

/// A thread that sleeps until the counter is readable.
struct Sleeper<'a, T>(&'a EventQueue<T>);

impl<T> Drop for Sleeper<'_, T> {
    fn drop(&mut self) {
        self.0.lock().sleepers -= 1;
    }
}

impl<T> Queue<T> {
    fn is_watched(&self) -> bool {
        self.is_exposed || self.sleepers > 0
    }

    /// Counts the events that are not counted yet, if the counter is watched.
    fn count(&mut self, counter: &OwnedFd) {
        let missing = self.events.len() - self.counted;
        if missing > 0 && self.is_watched() {
            // The counter cannot overflow: memory for events runs out first.
            let _ = rustix::io::write(counter, &(missing as u64).to_ne_bytes());
            self.counted = self.events.len();
        }
    }
}

impl<T> EventQueue<T> {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let (events, counter) = (VecDeque::new(), eventfd(0, flags)?);
        let queue = Queue { events, counted: 0, sleepers: 0, is_exposed: false };
        Ok(Self { queue: Mutex::new(queue), counter, nic: Weak::new() })
    }

    /// Creates a queue whose waiting threads drive a NIC.
    pub(super) fn driving(nic: Weak<Shared>) -> io::Result<Self> {
        Ok(Self { nic, ..Self::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_events(&self) -> bool {
        !self.lock().events.is_empty()
    }

    /// Sleeps until there may be an event; returns false after `timeout`.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let _sleeper = self.begin_sleep();
        let counter = self.counter.as_fd();
        if let Some(nic) = self.nic.upgrade()
            && let Some(is_readable) = nic.listen(counter, timeout)?
        {
            return Ok(is_readable);
        }
        // From here on it does not keep the NIC, which may be dropped meanwhile.
        wait_readable(&[counter], timeout)
    }

    /// Lets the counter count all events until the thread has slept.
    fn begin_sleep(&self) -> Sleeper<'_, T> {
        let mut queue = self.lock();
        queue.sleepers += 1;
        queue.count(&self.counter);
        Sleeper(self)
    }

    pub(super) fn push(&self, event: T) {
        let mut queue = self.lock();
        queue.events.push_back(event);
        queue.count(&self.counter);
    }

    /// Takes the oldest event, if there is any.
    pub fn take(&self) -> Option<T> {
        let mut queue = self.lock();
        let event = queue.events.pop_front()?;
        if queue.counted > queue.events.len() {
            queue.counted -= 1;
            let _ = rustix::io::read(&self.counter, &mut [0_u8; 8]);
        }
        Some(event)
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
        let mut queue = self.lock();
        queue.is_exposed = true;
        queue.count(&self.counter);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        wait_readable(&[fd], Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn descriptor_is_readable_while_there_are_events() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        queue.push(2);
        assert!(!is_readable(queue.counter.as_fd()), "nothing looks at it yet");
        assert!(is_readable(queue.as_fd()), "events from before it was asked for count");
        assert_eq!(queue.take(), Some(1));
        assert!(is_readable(queue.as_fd()));
        queue.push(3);
        assert_eq!((queue.take(), queue.take()), (Some(2), Some(3)));
        assert!(!is_readable(queue.as_fd()));
        assert_eq!(queue.take(), None);
        queue.push(4);
        assert!(is_readable(queue.as_fd()));
    }

    #[test]
    fn thread_that_sleeps_is_woken_by_events_from_before_and_after() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        assert!(queue.sleep(None).unwrap());
        assert_eq!(queue.take(), Some(1));
        assert!(!queue.sleep(Some(Duration::ZERO)).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| queue.push(2));
            assert!(queue.sleep(None).unwrap());
        });
        assert_eq!(queue.take(), Some(2));
        assert_eq!(queue.lock().counted, 0);
    }
}
