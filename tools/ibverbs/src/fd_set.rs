//! A set of descriptors that can be looked at without a lock.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each descriptor below `64 * WORDS`.
pub(crate) struct FdSet<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> FdSet<WORDS> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Returns the word and the bit of a descriptor; `None` for a number that the set has no room
    /// for.
    #[inline]
    fn bit(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Whether a descriptor is in the set; `None` if the set has no room for its number.
    #[inline]
    pub(crate) fn contains(&self, fd: c_int) -> Option<bool> {
        self.bit(fd).map(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Adds a descriptor, and returns whether there is room for its number.
    pub(crate) fn insert(&self, fd: c_int) -> bool {
        self.bit(fd).map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed)).is_some()
    }

    pub(crate) fn remove(&self, fd: c_int) {
        if let Some((word, bit)) = self.bit(fd) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}
