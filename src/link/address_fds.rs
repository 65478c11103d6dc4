//! Descriptors that hold the address of a link.

use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Maximum number of descriptors: some of the link itself and of its NIC, and one of each ring that
/// it shares with another process. A link has at most 64 to others, and those from others beyond
/// these are not kept here.
const COUNT: usize = 9 + 2 * 64;

/// No descriptor.
const NONE: RawFd = -1;

/// Descriptors that hold the address of a link as long as one of them is open, as they are now:
/// links open some later. It can be read without a lock, after a fork too.
#[derive(Clone, Debug)]
pub struct AddressFds(Arc<[AtomicI32; COUNT]>);

impl Default for AddressFds {
    fn default() -> Self {
        Self(Arc::new([const { AtomicI32::new(NONE) }; COUNT]))
    }
}

impl AddressFds {
    /// Adds a descriptor.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) {
        let fd = fd.as_raw_fd();
        let takes = |entry: &AtomicI32| {
            entry.compare_exchange(NONE, fd, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        self.0.iter().any(takes);
    }

    /// Removes a descriptor that is about to be closed.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let fd = fd.as_raw_fd();
        let gives = |entry: &AtomicI32| {
            entry.compare_exchange(fd, NONE, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        self.0.iter().any(gives);
    }

    /// Returns all descriptors.
    pub fn iter(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0.iter().map(|entry| entry.load(Ordering::Acquire)).filter(|fd| *fd != NONE)
    }
}
