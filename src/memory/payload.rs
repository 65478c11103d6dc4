//! Payload of packets that came in: private bytes, or bytes in memory that another process writes.

use core::marker::PhantomData;
use core::ops::Range;

use super::routines;

/// Bytes in memory that another process may change meanwhile. They are copied, into a
/// [`Region`](super::Region) or to private memory, and never looked at where they are.
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

    /// Appends a copy of them.
    pub(crate) fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len);
        let room = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `reserve` made room for the bytes; that they may be read is the maker's word.
        let is_copied = unsafe { routines::copy(room, self.start, self.len) };
        if is_copied {
            // SAFETY: this many bytes behind the length have just been written.
            unsafe { to.set_len(to.len() + self.len) };
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_appended() {
        let bytes = b"0123456789";
        // SAFETY: they live as long as the test, and are not registered.
        let shared = unsafe { SharedBytes::new(bytes.as_ptr(), bytes.len()) };
        let Payload::Shared(part) = Payload::Shared(shared).part(2..5) else { unreachable!() };
        let mut copy = b"ab".to_vec();
        part.append_to(&mut copy);
        part.append_to(&mut copy);
        assert_eq!(copy, b"ab234234");
    }
}
