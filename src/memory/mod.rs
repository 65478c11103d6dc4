//! Memory that a NIC may touch, and the one place that touches it.
//!
//! A verbs program owns its buffers and races with the NIC by design: it may read a buffer while a peer's WRITE
//! lands in it. So nothing here ever forms a reference to registered memory. A [`Region`] is a raw range with
//! checked bounds; bytes go in and out of it by copying, and atomic operations are the processor's own.
//!
//! - [`Buffer`] is for Rust programs: owned, shared, safe to use from any thread, and alive as long as anybody
//!   holds it, the NIC included.
//! - [`Region::foreign`] is for memory of somebody else's, such as a C program's. It is `unsafe`, and its contract is
//!   the one of `ibv_reg_mr`: the memory stays until it is deregistered.
//! - [`Region::on_demand`] is for memory that may come and go, and [`Region::null`] for none at all.
//!
//! What the bytes of a torn read are worth is the protocol's business: verbs promises nothing about a buffer that
//! both sides use at once.

#[cfg(target_os = "linux")]
mod demand;
#[cfg(not(target_os = "linux"))]
#[path = "no_demand.rs"]
mod demand;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use thiserror::Error;

/// An access that is not within its region, or not aligned as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// Some of the bytes lie outside.
    #[error("{len} bytes at offset {offset} are not within {size}")]
    OutOfRange {
        /// Where the access begins.
        offset: u64,
        /// How many bytes it takes.
        len: usize,
        /// How many there are.
        size: usize,
    },
    /// An atomic operation on an address that is not a multiple of eight.
    #[error("an atomic operation at an address that is not a multiple of 8")]
    Misaligned,
    /// Memory that is on demand is not there, or may not be written.
    #[error("{len} bytes at offset {offset} are not mapped")]
    Unmapped {
        /// Where the access begins.
        offset: u64,
        /// How many bytes it takes.
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

// SAFETY: the cells are touched through a `Region` alone, which copies bytes by raw pointers and never forms a
// reference to them; racing copies may tear, as they may on a real NIC.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Sync for Words {}

impl Buffer {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let words = (0..len.div_ceil(8)).map(|_| UnsafeCell::new(0)).collect();
        Self(Arc::new(Words { words, len }))
    }

    /// A buffer with these bytes in it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let buffer = Self::new(bytes.len());
        buffer.write(0, bytes).expect("the buffer was made for them");
        buffer
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has none.
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

/// Whose memory it is, and what is known of it.
#[derive(Debug)]
enum Kind {
    /// A buffer's, which this keeps alive.
    Owned(#[expect(dead_code, reason = "it is held, not used")] Arc<Words>),
    /// Somebody's who keeps it in place.
    Foreign,
    /// Somebody's who may take it away: every access finds out.
    OnDemand,
    /// Nobody's.
    Null,
}

// SAFETY: a region is a pointer to memory that is shared by design; whoever made a foreign one promised that it may be
// used from anywhere, and an owned one keeps its memory alive.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Send for Region {}

// SAFETY: all access goes through raw pointers or atomics, as said for `Send`.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Sync for Region {}

impl Region {
    /// Memory of somebody else's: `len` bytes from `start`.
    ///
    /// # Safety
    ///
    /// Until the region is dropped, all `len` bytes must stay readable, and writable too if anything with the right
    /// to write is registered over them; others may use them meanwhile, but no Rust reference may claim to be the
    /// only one.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub const unsafe fn foreign(start: *mut u8, len: usize) -> Self {
        Self { start, len, kind: Kind::Foreign }
    }

    /// Memory of somebody else's who may map and unmap it at any time: an access to what is not mapped is an error,
    /// which costs a system call each time to find out. The whole address space can be such a region.
    ///
    /// # Safety
    ///
    /// No Rust reference may claim to be the only one to any byte of it that is accessed.
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub const unsafe fn on_demand(start: *mut u8, len: usize) -> Self {
        Self { start, len, kind: Kind::OnDemand }
    }

    /// No memory: what is written to it vanishes, what is read from it is zero, at any of its `len` addresses.
    pub const fn null(len: usize) -> Self {
        Self { start: core::ptr::null_mut(), len, kind: Kind::Null }
    }

    /// How many bytes it has.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte.
    pub fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Whether there is no memory behind it.
    #[cfg(target_os = "linux")]
    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Whether its bytes are where they are for sure.
    #[inline]
    const fn is_in_place(&self) -> bool {
        matches!(self.kind, Kind::Owned(_) | Kind::Foreign)
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

    /// Copies bytes out, from `offset` on.
    #[inline]
    #[expect(unsafe_code, reason = "registered memory is reached by raw pointers")]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let from = self.at(offset, out.len())?;
        match self.kind {
            Kind::Owned(_) | Kind::Foreign => {}
            Kind::OnDemand => {
                return demand::read(from, out).ok_or_else(|| unmapped(offset, out.len()));
            }
            Kind::Null => {
                out.fill(0);
                return Ok(());
            }
        }
        // SAFETY: `at` saw to it that all bytes are within the region, which its maker keeps readable; `out` is
        // exclusively ours and so cannot overlap it.
        unsafe { core::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Appends a copy of `len` bytes from `offset` on to `out`.
    #[inline]
    #[expect(unsafe_code, reason = "registered memory is reached by raw pointers")]
    pub fn append_to(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), AccessError> {
        let from = self.at(offset, len)?;
        if !self.is_in_place() {
            let start = out.len();
            out.resize(start + len, 0);
            let read = self.read(offset, &mut out[start..]);
            return read.inspect_err(|_| out.truncate(start));
        }
        out.reserve(len);
        let room = out.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `at` saw to it that all bytes are within the region, which its maker keeps readable; `out` has room
        // for them, which is exclusively ours and so cannot overlap them.
        unsafe { core::ptr::copy_nonoverlapping(from, room, len) };
        // SAFETY: so many more bytes hold something now.
        unsafe { out.set_len(out.len() + len) };
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    #[inline]
    #[expect(unsafe_code, reason = "registered memory is reached by raw pointers")]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let to = self.at(offset, bytes.len())?;
        match self.kind {
            Kind::Owned(_) | Kind::Foreign => {}
            Kind::OnDemand => {
                return demand::write(to, bytes).ok_or_else(|| unmapped(offset, bytes.len()));
            }
            Kind::Null => return Ok(()),
        }
        // SAFETY: `at` saw to it that all bytes are within the region, which its maker keeps writable; `bytes` is a
        // live reference and nobody may have one to the region.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Brings in `len` bytes from `offset` on that are there on demand, so that they can be read, or written too. What is
    /// in place is so already.
    pub fn bring_in(&self, offset: u64, len: usize, write: bool) -> Result<(), AccessError> {
        let start = self.at(offset, len)?;
        match self.kind {
            Kind::Owned(_) | Kind::Foreign | Kind::Null => Ok(()),
            Kind::OnDemand => {
                demand::bring_in(start, len, write).ok_or_else(|| unmapped(offset, len))
            }
        }
    }

    /// The eight bytes at `offset` as a number that is changed atomically.
    #[inline]
    #[expect(unsafe_code, reason = "registered memory is reached by raw pointers")]
    fn atomic<T>(
        &self,
        offset: u64,
        change: impl FnOnce(&AtomicU64) -> T,
    ) -> Result<T, AccessError> {
        let place = self.at(offset, 8)?.cast::<u64>();
        if !place.is_aligned() {
            return Err(AccessError::Misaligned);
        }
        match self.kind {
            Kind::Owned(_) | Kind::Foreign => {}
            Kind::OnDemand => {
                demand::bring_in(place.cast(), 8, true).ok_or_else(|| unmapped(offset, 8))?
            }
            Kind::Null => return Ok(change(&AtomicU64::new(0))),
        }
        // SAFETY: eight aligned bytes within the region, which its maker keeps writable; for as long as the atomic
        // lives, others may change them too, which is what it is for.
        Ok(change(unsafe { AtomicU64::from_ptr(place) }))
    }

    /// Adds to the number at `offset`, modulo 2^64; returns what it was.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, AccessError> {
        self.atomic(offset, |number| number.fetch_add(add, Ordering::SeqCst))
    }

    /// Puts `swap` at `offset` if `compare` is there; returns what was there in either case.
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, AccessError> {
        self.atomic(offset, |number| {
            match number.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(was) | Err(was) => was,
            }
        })
    }

    /// Puts eight bytes at `offset`, all at once.
    pub fn store(&self, offset: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        let number = u64::from_ne_bytes(bytes);
        self.atomic(offset, |place| place.store(number, Ordering::SeqCst))
    }
}

fn unmapped(offset: u64, len: usize) -> AccessError {
    AccessError::Unmapped { offset, len }
}

/// Tells the processor that the first `bytes` of `value` are wanted soon, all at once.
#[inline]
#[expect(unsafe_code, reason = "see below")]
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
mod tests {
    use super::*;

    #[test]
    fn an_access_that_wraps_or_passes_the_end_is_refused() {
        let region = Buffer::new(16).region();
        let mut two = [0; 2];
        assert!(region.read(14, &mut two).is_ok());
        assert!(region.read(15, &mut two).is_err());
        assert!(region.write(u64::MAX, &two).is_err());
        assert!(region.write(u64::MAX - 1, &[0; 16]).is_err());
        assert!(region.read(16, &mut []).is_ok(), "no bytes at the end");
        assert!(region.read(17, &mut []).is_err());
        let mut bytes = vec![7];
        assert!(region.append_to(15, 2, &mut bytes).is_err());
        assert!(region.append_to(u64::MAX, 2, &mut bytes).is_err());
        assert!(region.append_to(14, 2, &mut bytes).is_ok());
        assert_eq!(bytes, [7, 0, 0]);
    }

    #[test]
    fn a_part_of_a_buffer_ends_where_it_ends() {
        let buffer = Buffer::from_bytes(b"abcdefgh");
        let part = buffer.part(2, 4).unwrap();
        let mut four = [0; 4];
        part.read(0, &mut four).unwrap();
        assert_eq!((&four, part.len()), (b"cdef", 4));
        assert!(part.write(1, &four).is_err(), "the buffer goes on, the part does not");
        assert!(buffer.part(5, 4).is_err());
        assert!(buffer.part(usize::MAX, 2).is_err());
    }

    #[test]
    fn atomics_return_what_was_there_and_want_alignment() {
        let buffer = Buffer::new(24);
        let region = buffer.region();
        assert_eq!(region.fetch_add(8, 5), Ok(0));
        assert_eq!(region.fetch_add(8, u64::MAX), Ok(5));
        assert_eq!(region.compare_swap(8, 3, 9), Ok(4));
        assert_eq!(region.compare_swap(8, 4, 9), Ok(4));
        assert_eq!(region.fetch_add(8, 0), Ok(9));
        assert_eq!(region.fetch_add(4, 1), Err(AccessError::Misaligned));
        assert!(matches!(region.fetch_add(20, 1), Err(AccessError::OutOfRange { .. })));
        region.store(16, *b"12345678").unwrap();
        assert_eq!(&buffer.to_vec()[16..], b"12345678");
    }

    #[test]
    fn no_memory_swallows_what_is_written_and_reads_as_zero() {
        let null = Region::null(usize::MAX);
        null.write(5, b"gone").unwrap();
        let mut bytes = vec![1; 3];
        null.read(5, &mut bytes[..2]).unwrap();
        null.append_to(5, 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 1, 0, 0]);
        assert_eq!(null.fetch_add(8, 7), Ok(0));
        assert_eq!(null.fetch_add(8, 7), Ok(0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri has no such system calls")]
    #[expect(unsafe_code, reason = "the memory is this test's own")]
    fn memory_on_demand_is_reached_where_it_is_and_refused_where_it_is_not() {
        let buffer = Buffer::from_bytes(b"here it is");
        // SAFETY: the buffer lies in it, and no reference to it is formed meanwhile.
        let all = unsafe { Region::on_demand(core::ptr::null_mut(), usize::MAX) };
        let mut bytes = [0; 4];
        all.read(buffer.addr(), &mut bytes).unwrap();
        assert_eq!(&bytes, b"here");
        all.write(buffer.addr(), b"HERE").unwrap();
        assert_eq!(&buffer.to_vec(), b"HERE it is");
        assert_eq!(all.compare_swap(buffer.addr(), 1, 2).map(u64::to_ne_bytes), Ok(*b"HERE it "));
        // Nothing is ever mapped in the first page, nor at the end of the address space.
        for nowhere in [8, u64::MAX - 64] {
            let unmapped = Err(AccessError::Unmapped { offset: nowhere, len: 4 });
            assert_eq!(all.read(nowhere, &mut bytes), unmapped);
            assert_eq!(all.write(nowhere, &bytes), unmapped);
            let mut out = vec![9];
            assert_eq!(all.append_to(nowhere, 4, &mut out), unmapped);
            assert_eq!(out, [9]);
            let aligned = nowhere & !7;
            assert!(matches!(all.fetch_add(aligned, 1), Err(AccessError::Unmapped { .. })));
        }
        all.bring_in(buffer.addr(), 8, true).unwrap();
        assert!(all.bring_in(8, 8, false).is_err());
        assert!(all.bring_in(u64::MAX - 64, 8, false).is_err());
        // What cannot be written: a constant.
        let constant: &'static [u8; 16] = &[7; 16];
        let address = constant.as_ptr() as u64;
        assert!(all.read(address, &mut bytes).is_ok());
        assert!(all.write(address, &bytes).is_err());
        assert!(all.fetch_add(address.next_multiple_of(8), 1).is_err());
        assert!(all.bring_in(address, 16, false).is_ok());
        assert!(all.bring_in(address, 16, true).is_err());
    }

    #[test]
    fn a_region_outlives_the_handle_it_was_made_from() {
        let region = Buffer::from_bytes(b"abcdefgh").region();
        let mut bytes = [0; 8];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"abcdefgh");
    }

    #[test]
    fn buffers_are_shared_between_threads() {
        let buffer = Buffer::new(8);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..1000).for_each(|_| assert!(buffer.region().fetch_add(0, 1).is_ok()))
                });
            }
        });
        assert_eq!(buffer.region().fetch_add(0, 0), Ok(4000));
    }
}
