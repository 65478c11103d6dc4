//! Memory that a NIC may touch, and the one place that touches it.
//!
//! A verbs program owns its buffers and races with the NIC by design: it may read a buffer while a
//! peer's WRITE lands in it. So nothing here ever forms a reference to registered memory. A
//! [`Region`] is a raw range with checked bounds; bytes go in and out of it by copying, and atomic
//! operations are the processor's own.
//!
//! - [`Buffer`] is for Rust programs: owned, shared, safe to use from any thread, and alive as long
//!   as any handle holds it, the NIC included.
//! - [`Region::foreign`] is for memory of a program in another language, such as a C program's. The
//!   program may unmap, protect or truncate it while it is registered: an access then fails with
//!   [`AccessError::Unmapped`].
//! - [`Region::null`] has no memory behind it.
//!
//! Bytes are stored in ascending order of addresses, as a real NIC stores them: a program that
//! polls the last byte of a WRITE finds the others in place. What the bytes of a torn read are
//! worth is the protocol's business: verbs promises nothing about a buffer that both sides use at
//! once.
#![allow(unsafe_code, reason = "registered memory is reached by raw pointers")]

mod actions;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod checksum;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[path = "no_checksum.rs"]
mod checksum;
mod fault;
mod kernel;
mod payload;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod routines;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[path = "portable.rs"]
mod routines;

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use std::alloc::{Layout, alloc_zeroed};
use std::collections::TryReserveError;
use std::sync::Arc;

use thiserror::Error;

pub use payload::{Payload, SharedBytes};

pub(crate) use checksum::{Sum, packet_crc32};

// For `tools/ibverbs`: the interface may change in any version.
#[doc(hidden)]
pub use fault::{ForkGuard, masks_changed, replace_action, resolve};

/// An access that is not within its region, or not aligned as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// Some of the bytes lie outside.
    #[error("{len} bytes at offset {offset} are not within {size}")]
    OutOfRange {
        /// Offset of the access.
        offset: u64,
        /// Length of the access in bytes.
        len: usize,
        /// Size of the memory in bytes.
        size: usize,
    },
    /// An atomic operation on an address that is not a multiple of eight.
    #[error("an atomic operation at an address that is not a multiple of 8")]
    Misaligned,
    /// The memory cannot be accessed: it is not mapped, is protected, or lies beyond the end of its
    /// file.
    #[error("some of {len} bytes at offset {offset} are not mapped, or protected")]
    Unmapped {
        /// Offset of the access.
        offset: u64,
        /// Length of the access in bytes.
        len: usize,
    },
}

/// Memory of a Rust program, which it shares with a NIC.
///
/// Cloning gives another handle to the same bytes.
///
/// ```
/// use roce::memory::Buffer;
///
/// let buffer = Buffer::new(4096);
/// buffer.write(100, b"hello")?;
/// let mut greeting = [0; 5];
/// buffer.read(100, &mut greeting)?;
/// assert_eq!(&greeting, b"hello");
/// # Ok::<(), roce::memory::AccessError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Words>);

/// The bytes of a buffer, aligned for atomic operations.
#[derive(Debug)]
struct Words {
    words: Box<[UnsafeCell<u64>]>,
    len: usize,
}

// SAFETY: the cells are touched through a `Region` alone, which copies bytes by raw pointers and
// never forms a reference to them; racing copies may tear, as they may on a real NIC.
unsafe impl Sync for Words {}

/// Returns `count` zeroed words. The operating system gives them memory when they are touched.
fn zeroed(count: usize) -> Result<Box<[UnsafeCell<u64>]>, TryReserveError> {
    let mut none = Vec::new();
    let Ok(layout) = Layout::array::<UnsafeCell<u64>>(count) else {
        none.try_reserve_exact(count)?;
        return Ok(none.into_boxed_slice());
    };
    if count == 0 {
        return Ok(none.into_boxed_slice());
    }
    // No safe call allocates zeros, does not touch them, and can fail.
    // SAFETY: the layout has a size.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        // No vector can be that long, so this returns an error.
        none.try_reserve_exact(usize::MAX)?;
        return Ok(none.into_boxed_slice());
    }
    let words = core::ptr::slice_from_raw_parts_mut(start.cast::<UnsafeCell<u64>>(), count);
    // SAFETY: the global allocator gave it for a slice of this layout, and zero is a valid word.
    let words = unsafe { Box::from_raw(words) };
    Ok(words)
}

impl Buffer {
    /// `len` zero bytes.
    ///
    /// # Panics
    ///
    /// If there is no memory for them.
    pub fn new(len: usize) -> Self {
        Self::try_new(len).expect("memory for a buffer")
    }

    /// Creates a buffer, or returns an error if there is no memory for it.
    pub fn try_new(len: usize) -> Result<Self, TryReserveError> {
        Ok(Self(Arc::new(Words { words: zeroed(len.div_ceil(8))?, len })))
    }

    /// A buffer with these bytes in it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let buffer = Self::new(bytes.len());
        buffer.write(0, bytes).expect("the buffer was made for them");
        buffer
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The address of its first byte, as a work request names it.
    pub fn addr(&self) -> u64 {
        self.0.words.as_ptr().expose_provenance() as u64
    }

    /// The buffer as something to register. It keeps the bytes alive.
    pub fn region(&self) -> Region {
        let start = UnsafeCell::raw_get(self.0.words.as_ptr()).cast();
        Region { start, len: self.0.len, kind: Kind::Owned(Arc::clone(&self.0)) }
    }

    /// A part of the buffer as something to register.
    pub fn part(&self, offset: usize, len: usize) -> Result<Region, AccessError> {
        let whole = self.region();
        let start = whole.at(offset as u64, len)?;
        Ok(Region { start, len, ..whole })
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.region().read(offset as u64, out)
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.region().write(offset as u64, bytes)
    }

    /// A copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes).expect("as many as there are");
        bytes
    }
}

/// A range of memory that the NIC may touch.
#[derive(Debug)]
pub struct Region {
    start: *mut u8,
    len: usize,
    kind: Kind,
}

/// Owner of the memory, and what is known of it.
#[derive(Clone, Debug)]
enum Kind {
    /// Memory of a [`Buffer`], which this keeps alive.
    Owned(#[expect(dead_code, reason = "it is held, not used")] Arc<Words>),
    /// Memory of a program in another language, which may unmap or protect it.
    Foreign,
    /// No memory.
    Null,
}

// SAFETY: a region is a pointer to memory that is shared by design; the caller that created a
// foreign one promised that it may be used from anywhere, and an owned one keeps its memory alive.
unsafe impl Send for Region {}

// SAFETY: all access goes through raw pointers or atomics, as said for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Memory of a program in another language: `len` bytes from `start`. The whole address space
    /// can be such a region.
    ///
    /// The program may unmap, protect or truncate the memory at any time. Accesses to such parts
    /// then fail. The first call installs a handler for SIGSEGV and SIGBUS, which passes on every
    /// fault that is not one of these accesses.
    ///
    /// # Safety
    ///
    /// Others may use the memory meanwhile, but no Rust reference may claim to be the only one to
    /// any byte of it that is accessed, until the region is dropped, and batches that [take
    /// references](crate::wire::Batch::take_references) and were filled meanwhile are cleared.
    pub unsafe fn foreign(start: *mut u8, len: usize) -> Self {
        fault::install();
        Self { start, len, kind: Kind::Foreign }
    }

    /// No memory: what is written to it vanishes, what is read from it is zero, at any of its `len`
    /// addresses.
    pub const fn null(len: usize) -> Self {
        Self { start: core::ptr::null_mut(), len, kind: Kind::Null }
    }

    /// Returns the number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte.
    pub fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Whether there is no memory behind it.
    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// The pointer to `len` bytes at `offset`, if they are all within.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, AccessError> {
        let outside = AccessError::OutOfRange { offset, len, size: self.len };
        let start = usize::try_from(offset).map_err(|_| outside)?;
        let end = start.checked_add(len).ok_or(outside)?;
        if end > self.len {
            return Err(outside);
        }
        Ok(self.start.wrapping_add(start))
    }

    /// Part of the region, under its own promises: the maker of a foreign region lets it be used
    /// until no engine and no batch has it any more.
    #[inline]
    pub(crate) fn part(&self, offset: u64, len: usize) -> Result<Self, AccessError> {
        let start = self.at(offset, len)?;
        Ok(Self { start, len, kind: self.kind.clone() })
    }

    /// Shortens the region to `len` bytes, if it has more.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Parts of `len` bytes, to be looked at one after the other: the owner of the memory is
    /// counted once for all of them.
    #[inline]
    pub(crate) fn parts(&self, len: usize) -> Result<Parts<'_>, AccessError> {
        Ok(Parts { whole: self, part: self.part(0, len)? })
    }

    /// Whether `routines` may access the memory: it cannot fault, or the handler that lets them
    /// survive a fault is installed.
    #[inline]
    fn is_direct(&self) -> bool {
        match self.kind {
            Kind::Owned(_) | Kind::Null => true,
            Kind::Foreign => fault::is_guarded(),
        }
    }

    /// Copies `len` bytes from `offset` on to `out`.
    ///
    /// # Safety
    ///
    /// There must be room for them, which does not overlap the region.
    #[inline(always)]
    pub(crate) unsafe fn copy_out(
        &self,
        offset: u64,
        out: *mut u8,
        len: usize,
    ) -> Result<(), AccessError> {
        let from = self.at(offset, len)?;
        if matches!(self.kind, Kind::Null) {
            // SAFETY: the caller vouches for the room.
            unsafe { out.write_bytes(0, len) };
            return Ok(());
        }
        let copied = if self.is_direct() {
            // SAFETY: `at` saw to it that all bytes are within the region, whose maker lets them be
            // read; if they may be not mapped, the handler is in place. The rest is the caller's.
            unsafe { routines::copy_unordered(out, from, len) }
        } else {
            self.kernel_read(from, out, len)
        };
        if copied { Ok(()) } else { Err(unmapped(offset, len)) }
    }

    /// Copies bytes out, from `offset` on, and adds them to `sum`, in one pass. `None` if they must
    /// be copied and summed one after the other: nothing is changed then.
    #[inline]
    pub(crate) fn read_and_sum(
        &self,
        offset: u64,
        out: &mut [u8],
        sum: &mut Sum,
    ) -> Option<Result<(), AccessError>> {
        let len = out.len();
        let from = match self.at(offset, len) {
            Ok(from) => from,
            Err(outside) => return Some(Err(outside)),
        };
        if self.is_null() || !self.is_direct() {
            return None;
        }
        // SAFETY: as in `copy_out`; `out` is exclusively ours.
        let copied = unsafe { routines::copy_and_sum(out.as_mut_ptr(), from, len, sum) }?;
        Some(if copied { Ok(()) } else { Err(unmapped(offset, len)) })
    }

    /// Copies bytes out, from `offset` on.
    #[inline(always)]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: `out` is exclusively ours and so cannot overlap it.
        unsafe { self.copy_out(offset, out.as_mut_ptr(), out.len()) }
    }

    /// Appends a copy of `len` bytes from `offset` on to `out`.
    #[inline]
    pub fn append_to(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), AccessError> {
        self.at(offset, len)?;
        out.reserve(len);
        let room = out.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `out` has room for them, which is exclusively ours and so cannot overlap them.
        unsafe { self.copy_out(offset, room, len) }?;
        // SAFETY: so many more bytes hold something now.
        unsafe { out.set_len(out.len() + len) };
        Ok(())
    }

    /// Copies bytes in, from `offset` on, in ascending order of addresses. If some of them cannot
    /// be written, those before may have been.
    #[inline(always)]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        // SAFETY: `bytes` is a live reference, and none may exist to the region: the two cannot
        // overlap.
        unsafe { self.copy_in(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes in, as [`write`](Self::write) does.
    #[inline(always)]
    pub(crate) fn write_payload(
        &self,
        offset: u64,
        payload: Payload<'_>,
    ) -> Result<(), AccessError> {
        match payload {
            Payload::Private(bytes) => self.write(offset, bytes),
            // SAFETY: its maker lets the bytes be read, which are outside of any region.
            Payload::Shared(bytes) => unsafe { self.copy_in(offset, bytes.start, bytes.len) },
        }
    }

    /// Copies `len` bytes from `from` in, from `offset` on.
    ///
    /// # Safety
    ///
    /// They may be read, and do not overlap the region.
    #[inline(always)]
    unsafe fn copy_in(&self, offset: u64, from: *const u8, len: usize) -> Result<(), AccessError> {
        let to = self.at(offset, len)?;
        if matches!(self.kind, Kind::Null) {
            return Ok(());
        }
        let copied = if self.is_direct() {
            // SAFETY: `at` saw to it that all bytes are within the region, whose maker lets them be
            // written; if they may be not mapped, the handler is in place. The rest is the
            // caller's.
            unsafe { routines::copy(to, from, len) }
        } else {
            kernel::write(to, from, len).is_some()
        };
        if copied { Ok(()) } else { Err(unmapped(offset, len)) }
    }

    /// Brings in `len` bytes from `offset` on of memory that the program may have unmapped. Fails
    /// if they cannot be read or, with `write`, cannot be written.
    pub fn bring_in(&self, offset: u64, len: usize, write: bool) -> Result<(), AccessError> {
        let start = self.at(offset, len)?;
        match self.kind {
            Kind::Owned(_) | Kind::Null => Ok(()),
            Kind::Foreign if self.kernel_bring_in(start, len, write) => Ok(()),
            Kind::Foreign => Err(unmapped(offset, len)),
        }
    }

    /// Changes the number in the eight bytes at `offset` with `change`, which must be atomic and
    /// returns `None` if the memory is not mapped.
    #[inline]
    fn atomic<T>(
        &self,
        offset: u64,
        change: impl FnOnce(*mut u64) -> Option<T>,
    ) -> Result<T, AccessError> {
        let place = self.at(offset, 8)?.cast::<u64>();
        if !place.is_aligned() {
            return Err(AccessError::Misaligned);
        }
        if matches!(self.kind, Kind::Null) {
            let mut zero = 0;
            return change(&raw mut zero).ok_or_else(|| unmapped(offset, 8));
        }
        // No system call changes a number atomically: without the handler, a system call makes sure
        // that the page is there, and the change follows.
        if !self.is_direct() && !self.kernel_bring_in(place.cast(), 8, true) {
            return Err(unmapped(offset, 8));
        }
        change(place).ok_or_else(|| unmapped(offset, 8))
    }

    /// Adds to the number at `offset`, modulo 2^64; returns what it was.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, AccessError> {
        // SAFETY: eight aligned bytes within the region, whose maker lets them be written; if they
        // may be not mapped, the handler is in place, or they were there just now.
        self.atomic(offset, |number| unsafe { routines::fetch_add(number, add) })
    }

    /// Puts `swap` at `offset` if `compare` is there; returns what was there in either case.
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, AccessError> {
        // SAFETY: as in `fetch_add`.
        self.atomic(offset, |number| unsafe { routines::compare_swap(number, compare, swap) })
    }

    /// Puts eight bytes at `offset`, all at once.
    pub fn store(&self, offset: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        let value = u64::from_ne_bytes(bytes);
        // SAFETY: as in `fetch_add`.
        self.atomic(offset, |number| unsafe { routines::store(number, value) })
    }
}

/// Parts of a region that have one length.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    whole: &'a Region,
    /// The part that was looked at last.
    part: Region,
}

impl Parts<'_> {
    /// Returns the part that begins at `offset`; `None` if it is not within the region.
    #[inline]
    pub(crate) fn at(&mut self, offset: usize) -> Option<&Region> {
        self.part.start = self.whole.at(offset as u64, self.part.len).ok()?;
        Some(&self.part)
    }
}

/// Access through the kernel.
impl Region {
    #[cold]
    fn kernel_read(&self, from: *const u8, out: *mut u8, len: usize) -> bool {
        kernel::read(from, out, len).is_some()
    }

    fn kernel_bring_in(&self, start: *mut u8, len: usize, write: bool) -> bool {
        kernel::bring_in(start, len, write).is_some()
    }
}

#[cfg(test)]
impl Region {
    /// Memory of a program that has unmapped it.
    pub(crate) fn unmapped(len: usize) -> Self {
        Self { start: core::ptr::without_provenance_mut(8), len, kind: Kind::Foreign }
    }
}

fn unmapped(offset: u64, len: usize) -> AccessError {
    AccessError::Unmapped { offset, len }
}

/// Advises the kernel to back memory that is not touched yet with huge pages, for tables with
/// scattered accesses. Does nothing for less than a huge page.
pub(crate) fn advise_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    kernel::advise_huge_pages(memory.as_mut_ptr().cast(), size_of_val(memory));
}

/// Tells the processor that the first `bytes` of `value` are wanted soon, all at once.
#[inline]
pub(crate) fn prefetch<T>(value: &T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes.min(size_of::<T>())).step_by(64) {
        let line = core::ptr::from_ref(value).cast::<i8>().wrapping_add(offset);
        // SAFETY: a hint, which touches nothing and cannot fail, whatever the address is.
        unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, bytes);
}

#[cfg(test)]
mod tests;
