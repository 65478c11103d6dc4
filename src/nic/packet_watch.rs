//! Wake-ups of the progress thread by packets.
//!
//! A thread that waits for an event receives by itself. If the progress thread woke for the same
//! packets, it would take the core from that thread just then, find nothing and fall asleep again:
//! of a ping-pong whose sides have a core each, that took 14 of 33 µs. So the progress thread waits
//! for an epoll instance that holds the link's descriptor, and a thread that receives
//! [pauses](PacketWatch::pause) it. The kernel looks for packets when the pause ends, and wakes the
//! progress thread if there are some.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Wake-ups of the progress thread by packets.
pub(super) struct PacketWatch {
    /// Holds the link's descriptor; `None` if that cannot be held.
    epoll: Option<OwnedFd>,
    /// Number of pauses.
    pauses: AtomicUsize,
}

/// A time in which packets do not wake the progress thread.
pub(super) struct Pause<'a> {
    watch: &'a PacketWatch,
    packets: BorrowedFd<'a>,
}

impl PacketWatch {
    /// Wakes for packets of a link with this descriptor.
    pub(super) fn new(packets: BorrowedFd<'_>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Of a descriptor that epoll does not take, the progress thread waits for itself.
        let is_held = epoll::add(&epoll, packets, EventData::new_u64(0), EventFlags::IN).is_ok();
        Ok(Self { epoll: is_held.then_some(epoll), pauses: AtomicUsize::new(0) })
    }

    /// Adds another descriptor of the link, which is readable whenever the one before is.
    pub(super) fn add(&self, packets: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(epoll) = &self.epoll {
            epoll::add(epoll, packets, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Removes a descriptor.
    pub(super) fn remove(&self, packets: BorrowedFd<'_>) {
        if let Some(epoll) = &self.epoll {
            let _ = epoll::delete(epoll, packets);
        }
    }

    /// Returns the descriptor that the progress thread waits for, instead of the link's.
    pub(super) fn fd<'a>(&'a self, packets: BorrowedFd<'a>) -> BorrowedFd<'a> {
        self.epoll.as_ref().map_or(packets, |epoll| epoll.as_fd())
    }

    /// Packets of this descriptor do not wake the progress thread until the pause ends: the caller
    /// receives them.
    pub(super) fn pause<'a>(&'a self, packets: BorrowedFd<'a>) -> Pause<'a> {
        if self.pauses.fetch_add(1, Ordering::AcqRel) == 0 {
            self.wake_for(packets, EventFlags::empty());
        }
        Pause { watch: self, packets }
    }

    fn wake_for(&self, packets: BorrowedFd<'_>, events: EventFlags) {
        if let Some(epoll) = &self.epoll {
            // One that was removed meanwhile wakes no more.
            let _ = epoll::modify(epoll, packets, EventData::new_u64(0), events);
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        // Each thread pauses before it counts itself out, so the last to do anything resumes. One
        // that begins a pause meanwhile may be resumed for nothing.
        if self.watch.pauses.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.watch.wake_for(self.packets, EventFlags::IN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::super::event_queue::wait_readable;
    use super::*;

    #[test]
    fn packets_wake_the_progress_thread_unless_another_thread_receives() {
        let packets = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let watch = PacketWatch::new(packets.as_fd()).unwrap();
        let wakes = || {
            let fds = [watch.fd(packets.as_fd())];
            wait_readable(&fds, Some(Duration::ZERO)).unwrap()
        };
        assert!(!wakes());
        let (first, second) = (watch.pause(packets.as_fd()), watch.pause(packets.as_fd()));
        rustix::io::write(&packets, &1_u64.to_ne_bytes()).unwrap();
        assert!(!wakes());
        drop(first);
        assert!(!wakes(), "another thread still receives");
        drop(second);
        assert!(wakes(), "packets that came before the pause ended are not forgotten");
        rustix::io::read(&packets, &mut [0_u8; 8]).unwrap();
        assert!(!wakes());
        rustix::io::write(&packets, &1_u64.to_ne_bytes()).unwrap();
        assert!(wakes());
    }
}
