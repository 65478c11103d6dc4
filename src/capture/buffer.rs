//! The one buffer between a source of bytes and the records lent from it.
//!
//! The source reads straight into it, records are slices of it, and the little that is left of a
//! record at its end is moved to the front before the next read. So each byte is copied once, by
//! the kernel or the decompressor. A batch of records takes the whole memory along, and the buffer
//! goes on in another.

use std::io::Read;

use super::decompress::{Fault, Source};
use super::error::{Compression, Error, Offset};
use super::limits::{BUFFER_SIZE, READ_SIZE};

/// Bytes of `source` on their way to the parser.
pub(super) struct Buffer<R> {
    source: Source<R>,
    bytes: Box<[u8]>,
    /// The bytes in `start..end` were read and not yet consumed; `start <= end <= bytes.len()`.
    start: usize,
    end: usize,
    /// Number of bytes that were consumed: the position of `start` in the stream.
    consumed: u64,
    /// Whether all that is there stays where it is: see [`Buffer::pin`].
    pinned: bool,
    /// Memory that is not read into while a batch is filled: see [`Buffer::go_on_in`].
    other: Box<[u8]>,
}

/// Maximum number of bytes that are moved so that a batch has memory of its own.
const MOVED_MAX: usize = READ_SIZE / 8;

/// Memory for a buffer. Zeroed memory comes from the kernel untouched: what is never used costs
/// nothing.
pub(super) fn memory() -> Box<[u8]> {
    vec![0; BUFFER_SIZE].into_boxed_slice()
}

impl<R> Buffer<R> {
    pub(super) fn new(source: Source<R>) -> Self {
        Self {
            source,
            bytes: memory(),
            start: 0,
            end: 0,
            consumed: 0,
            pinned: false,
            other: Box::default(),
        }
    }

    /// Goes on in `memory`, and sets the memory so far aside, unless there is much in it that would
    /// have to be moved.
    ///
    /// So what a thread reads for a batch is read into memory that is in this core's cache, and
    /// stays there while the thread decodes it.
    pub(super) fn go_on_in(&mut self, memory_of_batch: Box<[u8]>) {
        let fits = memory_of_batch.len() == BUFFER_SIZE;
        self.other = if fits { memory_of_batch } else { memory() };
        if self.end - self.start <= MOVED_MAX {
            self.exchange();
        }
    }

    /// Keeps all bytes from the front on where they are, until [`Buffer::hand_out`] hands them out:
    /// a refill goes on in the memory that was set aside.
    pub(super) fn pin(&mut self) {
        self.pinned = true;
    }

    /// Whether the front of the buffer is still in the memory that was pinned.
    #[inline]
    pub(super) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Hands out the memory that was pinned, or the memory that was set aside if none was; goes on
    /// in the other.
    pub(super) fn hand_out(&mut self) -> Box<[u8]> {
        if self.pinned {
            self.exchange();
        }
        core::mem::take(&mut self.other)
    }

    /// Returns the position of the front in its memory.
    #[inline]
    pub(super) fn position(&self) -> usize {
        self.start
    }

    /// Goes on in the other memory, which takes what is left.
    fn exchange(&mut self) {
        let left = self.bytes.get(self.start..self.end).unwrap_or_default();
        if let Some(front) = self.other.get_mut(..left.len()) {
            front.copy_from_slice(left);
        }
        core::mem::swap(&mut self.bytes, &mut self.other);
        self.end -= self.start;
        self.start = 0;
        self.pinned = false;
    }

    /// Returns the bytes that are available without reading.
    #[inline]
    pub(super) fn available(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// The next `count` bytes, which an earlier [`Buffer::want`] has shown to be there.
    #[inline]
    pub(super) fn take(&mut self, count: usize) -> &[u8] {
        let start = self.start;
        self.consume(count);
        self.bytes.get(start..self.start).unwrap_or_default()
    }

    /// Returns the offset of the next byte in the stream.
    #[inline]
    pub(super) fn offset(&self) -> Offset {
        self.place(self.consumed)
    }

    pub(super) fn compression(&self) -> Option<Compression> {
        self.source.compression()
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.consumed += count as u64;
    }

    fn place(&self, bytes: u64) -> Offset {
        Offset { bytes, decompressed: self.compression().is_some() }
    }

    /// A fault of the source, placed where its bytes ended.
    fn explain(&self, fault: Fault) -> Error {
        fault.at(self.place(self.consumed + (self.end - self.start) as u64))
    }
}

impl<R: Read> Buffer<R> {
    /// All that is there, which is at least `need` bytes unless the stream ends before.
    ///
    /// `need` is at most [`BUFFER_SIZE`]; the limits see to it.
    #[inline]
    pub(super) fn want(&mut self, need: usize) -> Result<&[u8], Error> {
        if self.end - self.start < need {
            self.refill(need)?;
        }
        Ok(self.available())
    }

    /// Passes over `count` bytes without keeping them; tells how many there were.
    pub(super) fn skip(&mut self, count: u64) -> Result<u64, Error> {
        let mut left = count;
        loop {
            let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.end - self.start);
            self.consume(here);
            left -= here as u64;
            if left == 0 || self.want(1)?.is_empty() {
                return Ok(count - left);
            }
        }
    }

    /// Reads until `need` bytes are there or the stream ends.
    #[cold]
    fn refill(&mut self, need: usize) -> Result<(), Error> {
        if self.pinned {
            self.exchange();
        } else {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        // Never further than one read's size if that will do, to stay within the cache.
        let limit = need.max(READ_SIZE).min(self.bytes.len());
        while self.end < need {
            let Some(room) = self.bytes.get_mut(self.end..limit) else {
                break;
            };
            match self.source.read(room) {
                Ok(0) => break,
                Ok(count) => self.end += count.min(room.len()),
                Err(fault) => return Err(self.explain(fault)),
            }
        }
        Ok(())
    }
}
