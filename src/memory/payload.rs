//! Payload of packets that came in: private bytes, or bytes in memory that another process writes.

use core::marker::PhantomData;
use core::ops::Range;

/// Bytes in memory that another process may change meanwhile. They are copied into a
/// [`Region`](super::Region), and never looked at.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    pub(super) start: *const u8,
    pub(super) len: usize,
    lives: PhantomData<&'a ()>,
}

// SAFETY: they are only copied, whatever they are, by whichever thread.
unsafe impl Send for SharedBytes<'_> {}

// SAFETY: as for `Send`.
unsafe impl Sync for SharedBytes<'_> {}

impl SharedBytes<'_> {
    /// `len` bytes from `start` on.
    ///
    /// # Safety
    ///
    /// They are mapped and may be read as long as this lives, and no registered memory is among
    /// them.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, lives: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Payload of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes that do not change.
    Private(&'a [u8]),
    /// Bytes that another process may change meanwhile.
    Shared(SharedBytes<'a>),
}

impl Payload<'_> {
    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part, as far as it is within.
    #[inline]
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        match self {
            Self::Private(bytes) => Self::Private(bytes.get(start..end).unwrap_or_default()),
            Self::Shared(bytes) => Self::Shared(SharedBytes {
                start: bytes.start.wrapping_add(start),
                len: end - start,
                lives: PhantomData,
            }),
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Private(bytes)
    }
}
