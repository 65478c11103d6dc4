//! Access to memory without the instructions of `routines`: on other processors and systems, and
//! under Miri.
//!
//! Nothing here survives a fault. Memory of a user's program is accessed through the kernel
//! instead.
#![expect(unsafe_code, reason = "registered memory is reached by raw pointers")]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::checksum::Sum;

/// Whether accesses by this module survive a fault.
pub(super) const AVAILABLE: bool = false;

/// Never resumes anything.
///
/// # Safety
///
/// None is needed.
pub(super) unsafe fn resume_at_error_exit(_: *mut libc::c_void) -> bool {
    false
}

/// Copies bytes, the last of them last: a reader that sees it sees all others.
///
/// # Safety
///
/// Both ranges may be accessed, and do not overlap.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
    let Some(last) = len.checked_sub(1) else { return true };
    // SAFETY: the caller's.
    unsafe { core::ptr::copy_nonoverlapping(from, to, last) };
    // SAFETY: the caller's.
    let byte = unsafe { from.wrapping_add(last).read() };
    // SAFETY: the caller's; others may read it meanwhile.
    unsafe { AtomicU8::from_ptr(to.wrapping_add(last)) }.store(byte, Ordering::Release);
    true
}

/// Copies bytes to memory that only the caller sees.
///
/// # Safety
///
/// As [`copy`] has it.
#[inline]
pub(super) unsafe fn copy_unordered(to: *mut u8, from: *const u8, len: usize) -> bool {
    // SAFETY: the caller's.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
    true
}

/// Never called, because [`Sum`] has no values here.
///
/// # Safety
///
/// None is needed.
#[inline]
pub(super) unsafe fn copy_and_sum(_: *mut u8, _: *const u8, _: usize, _: &mut Sum) -> Option<bool> {
    None
}

/// Adds to the number at an aligned address; returns what it was.
///
/// # Safety
///
/// It may be accessed.
#[inline]
pub(super) unsafe fn fetch_add(to: *mut u64, value: u64) -> Option<u64> {
    // SAFETY: the caller's.
    Some(unsafe { AtomicU64::from_ptr(to) }.fetch_add(value, Ordering::SeqCst))
}

/// Stores `swap` at an aligned address if `compare` is there; returns what was there.
///
/// # Safety
///
/// It may be accessed.
#[inline]
pub(super) unsafe fn compare_swap(to: *mut u64, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: the caller's.
    let number = unsafe { AtomicU64::from_ptr(to) };
    match number.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(was) | Err(was) => Some(was),
    }
}

/// Stores a number at an aligned address.
///
/// # Safety
///
/// It may be accessed.
#[inline]
pub(super) unsafe fn store(to: *mut u64, value: u64) -> Option<()> {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::SeqCst);
    Some(())
}
