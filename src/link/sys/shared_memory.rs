//! Memory that two processes share. Its size never changes, so that no access can fault.
#![allow(unsafe_code, reason = "memory that another process writes meanwhile")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};

use crate::memory::{AccessError, Region, SharedBytes};

/// Bytes from a word to the next, so that no two are in one cache line, nor in two that the
/// processor fetches together.
pub(in crate::link) const WORD_STRIDE: usize = 128;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes that are copied between two prefetches of as many: fewer lines than a core requests at a
/// time.
const PREFETCH_PIECE: usize = 512;

/// Seals of a size that no process can change any more.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory that two processes share. Both copy bytes in and out, and use some words as atomics;
/// neither forms a reference to the rest.
#[derive(Debug)]
pub(in crate::link) struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value alone, and to no thread.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Makes memory of zeros, which is there at once; returns the descriptor by which another
    /// process maps it, too.
    pub(in crate::link) fn new(name: &CStr, len: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags)?;
        let size = u64::try_from(len).map_err(io::Error::other)?;
        ftruncate(&file, size)?;
        // A page that the system has no memory for would be a fault later.
        fallocate(&file, FallocateFlags::empty(), 0, size)?;
        fcntl_add_seals(&file, SIZE_SEALS)?;
        Ok((Self::map_sealed(file.as_fd(), len)?, file))
    }

    /// Maps memory that another process made. An error of kind
    /// [`InvalidData`](io::ErrorKind::InvalidData) means that it is not so long, or that its size
    /// can change.
    pub(in crate::link) fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let is_long = usize::try_from(fstat(file)?.st_size).is_ok_and(|size| size == len);
        let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SIZE_SEALS));
        if !is_long || !is_sealed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Pages that the other process left out, or removed, are filled here.
        let size = u64::try_from(len).map_err(io::Error::other)?;
        fallocate(file, FallocateFlags::empty(), 0, size)?;
        Self::map_sealed(file, len)
    }

    fn map_sealed(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, len })
    }

    /// Returns the word at a multiple of [`WORD_STRIDE`].
    #[inline]
    pub(in crate::link) fn word(&self, index: usize) -> &AtomicU64 {
        self.word_at(index * WORD_STRIDE)
    }

    /// Returns the word behind the word at a multiple of [`WORD_STRIDE`], in the same cache line.
    #[inline]
    pub(in crate::link) fn word_beside(&self, index: usize) -> &AtomicU64 {
        self.word_at(index * WORD_STRIDE + 8)
    }

    #[inline]
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len, "a word within the memory");
        let place = self.start.as_ptr().wrapping_add(offset);
        // SAFETY: aligned, within the mapping, which lives as long as this value, and never
        // accessed but as an atomic: callers keep the bytes that they copy behind the words.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// Returns the place of `len` bytes.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        let is_within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_within, "bytes within the memory");
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes in.
    #[inline]
    pub(in crate::link) fn write(&self, offset: usize, bytes: &[u8]) {
        let place = self.place(offset, bytes.len());
        // SAFETY: within the mapping, of which no reference exists; the other process may write
        // there too, and what it reads then is its own concern.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    /// Copies registered memory in. Meanwhile the caches fetch the lines that are `ahead` bytes
    /// behind, to be written next: the other process's core has them.
    #[inline]
    pub(in crate::link) fn write_region(
        &self,
        offset: usize,
        region: &Region,
        ahead: usize,
    ) -> Result<(), AccessError> {
        let place = self.place(offset, region.len());
        let mut at = 0;
        while at < region.len() {
            let len = PREFETCH_PIECE.min(region.len() - at);
            let to = place.wrapping_add(at);
            prefetch_to_write(to.wrapping_add(ahead), len);
            // SAFETY: within the mapping, of which no reference exists; a region is of the
            // program's memory, and so no part of it.
            unsafe { region.copy_out(at as u64, to, len) }?;
            at += len;
        }
        Ok(())
    }

    /// Lets the caches fetch lines that are written soon, and that no other cache has afterwards.
    #[inline]
    pub(in crate::link) fn prefetch_to_write(&self, offset: usize, len: usize) {
        prefetch_to_write(self.start.as_ptr().wrapping_add(offset), len);
    }

    /// Lets the caches fetch bytes that are read soon. Those outside are none.
    #[inline]
    pub(in crate::link) fn prefetch(&self, offset: usize, len: usize) {
        for at in (0..len).step_by(LINE) {
            prefetch_to_read(self.start.as_ptr().wrapping_add(offset + at));
        }
    }

    /// Returns bytes that are to be copied into registered memory.
    #[inline]
    pub(in crate::link) fn bytes(&self, offset: usize, len: usize) -> SharedBytes<'_> {
        // SAFETY: within the mapping, which lives as long as this value; nothing of it is
        // registered.
        unsafe { SharedBytes::new(self.place(offset, len), len) }
    }

    /// Copies bytes out. The other process may change them meanwhile: they are checked after this.
    #[inline]
    pub(in crate::link) fn read(&self, offset: usize, out: &mut [u8]) {
        let place = self.place(offset, out.len());
        // SAFETY: within the mapping, of which no reference exists; any bytes are bytes.
        unsafe { ptr::copy_nonoverlapping(place, out.as_mut_ptr(), out.len()) };
    }
}

/// Lets the caches fetch a line. Any address will do.
#[inline]
fn prefetch_to_read(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not fault, and changes nothing but caches.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Lets the caches fetch lines that no other cache has afterwards. Any address will do.
#[inline]
fn prefetch_to_write(place: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for at in (0..len).step_by(LINE) {
        let line = place.wrapping_add(at);
        // SAFETY: a prefetch does not fault, and changes nothing but caches. Processors without it
        // do nothing.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (place, len);
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, of this length, and nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let (one, file) = SharedMemory::new(c"roce test", 8192).unwrap();
        let other = SharedMemory::map(file.as_fd(), 8192).unwrap();
        one.write(5000, b"bytes");
        let mut read = [0; 5];
        other.read(5000, &mut read);
        assert_eq!(&read, b"bytes");
        other.word(2).store(7, Ordering::Release);
        assert_eq!(one.word(2).load(Ordering::Acquire), 7);
    }

    #[test]
    fn memory_that_could_shrink_or_is_of_another_size_is_refused() {
        let (_kept, file) = SharedMemory::new(c"roce test", 8192).unwrap();
        for len in [4096, 8191, 16384] {
            let refused = SharedMemory::map(file.as_fd(), len).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
        assert!(ftruncate(&file, 4096).is_err());
        let open = memfd_create(c"roce test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 8192).unwrap();
        assert!(SharedMemory::map(open.as_fd(), 8192).is_err());
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(SharedMemory::map(bell.as_fd(), 8192).is_err());
    }

    #[test]
    #[should_panic(expected = "bytes within the memory")]
    fn bytes_beyond_the_end_are_not_touched() {
        let (memory, _file) = SharedMemory::new(c"roce test", 4096).unwrap();
        memory.read(4090, &mut [0; 7]);
    }
}
