//! The network namespace of an address: a NIC may be driven by a thread in another one.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, if it can be known.
#[derive(Debug)]
pub(crate) struct Namespace(Option<OwnedFd>);

impl Namespace {
    /// The namespace of this thread.
    pub(super) fn current() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Self(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty()).ok())
    }

    /// Whether it is that of this thread, as far as it can be known.
    fn is_current(&self) -> bool {
        let number = |it: &Self| {
            let stat = rustix::fs::fstat(it.0.as_ref()?).ok()?;
            Some((stat.st_dev, stat.st_ino))
        };
        match (number(self), number(&Self::current())) {
            (Some(own), Some(current)) => own == current,
            _ => true,
        }
    }

    /// Runs `open` in the namespace, in a thread of its own if need be.
    pub(crate) fn run<T: Send>(
        &self,
        open: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let Some(namespace) = self.0.as_ref().filter(|_| !self.is_current()) else {
            return open();
        };
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind)?;
                open()
            });
            opened.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
    }
}
