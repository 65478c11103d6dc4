//! The descriptor by which a NIC is woken that waits for several.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// Readable while one of several descriptors is, or after it was rung.
#[derive(Debug)]
pub(super) struct Bell {
    epoll: OwnedFd,
    rung: OwnedFd,
    /// Whether it was rung, so that it is silenced without a needless system call.
    is_rung: AtomicBool,
}

impl Bell {
    /// Creates a bell beside these descriptors.
    pub(super) fn new<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        let rung = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watch =
            |fd: BorrowedFd<'_>| epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN);
        fds.into_iter().try_for_each(watch)?;
        watch(rung.as_fd())?;
        Ok(Self { epoll, rung, is_rung: AtomicBool::new(false) })
    }

    /// Wakes a thread that waits.
    pub(super) fn ring(&self) {
        // It is full only if it has been rung.
        let _ = rustix::io::write(&self.rung, &1_u64.to_ne_bytes());
        // Afterwards: a thread that sees it silences what was written.
        self.is_rung.store(true, Ordering::Release);
    }

    /// Silences the bell. It rings anew for what comes afterwards.
    pub(super) fn silence(&self) {
        if self.is_rung.swap(false, Ordering::Acquire) {
            let _ = rustix::io::read(&self.rung, &mut [0_u8; 8]);
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
