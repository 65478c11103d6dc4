//! Memory for small allocations when the system has none.
//!
//! A verb must fail with `ENOMEM`, but in Rust an allocation of a `Box` or a growing `Vec` that
//! fails ends the program. What is large (rings, tables, buffers of packets) is allocated by calls
//! that can fail. What is small is taken from a reserve when the system refuses it, so that the
//! call at hand can come to its end. While some of the reserve is in use and the system still has
//! no memory, verbs that create something are refused ([`check`]); those that destroy go on, and
//! fill it up again.
//!
//! Blocks are claimed by atomic operations alone: there is no lock that a forked child could find
//! held.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::call::{Failed, Result};

/// Sizes of blocks, and how many there are of each; multiples of 64.
const SMALL: usize = 256;
const SMALL_COUNT: usize = 1024;
const LARGE: usize = 8192;
const LARGE_COUNT: usize = 64;

/// Number of bytes that the system must be able to give before an object is created while the
/// reserve is in use.
const PROBE: usize = 64 << 10;

/// The allocator of this library.
struct Reserve {
    small: Blocks<SMALL, { SMALL_COUNT / 64 }>,
    large: Blocks<LARGE, { LARGE_COUNT / 64 }>,
    in_use: AtomicUsize,
}

#[global_allocator]
static RESERVE: Reserve =
    Reserve { small: Blocks::new(), large: Blocks::new(), in_use: AtomicUsize::new(0) };

/// Fails if the system has no memory: something that is created now might not come to its end.
pub(crate) fn check() -> Result<()> {
    if RESERVE.in_use.load(Ordering::Relaxed) == 0 || has_memory() {
        Ok(())
    } else {
        Err(Failed(libc::ENOMEM))
    }
}

#[cold]
fn has_memory() -> bool {
    // SAFETY: any size may be asked for.
    let probe = unsafe { libc::malloc(PROBE) };
    // SAFETY: it was just allocated, or is null.
    unsafe { libc::free(probe) };
    !probe.is_null()
}

impl Reserve {
    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.align() > SMALL || layout.size() > LARGE {
            return ptr::null_mut();
        }
        let mut taken = ptr::null_mut();
        if layout.size() <= SMALL {
            taken = self.small.take();
        }
        if taken.is_null() {
            taken = self.large.take();
        }
        if !taken.is_null() {
            self.in_use.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes a block back, if it is one of these.
    #[inline]
    fn give_back(&self, block: *mut u8) -> bool {
        let is_ours = self.small.give_back(block) || self.large.give_back(block);
        if is_ours {
            self.in_use.fetch_sub(1, Ordering::Relaxed);
        }
        is_ours
    }

    fn contains(&self, block: *mut u8) -> bool {
        self.small.index_of(block).is_some() || self.large.index_of(block).is_some()
    }
}

// SAFETY: blocks are disjoint, long enough and aligned, and given out once until they are given
// back; everything else is the system's.
unsafe impl GlobalAlloc for Reserve {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        let allocated = unsafe { System.alloc(layout) };
        if allocated.is_null() { self.take(layout) } else { allocated }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        let allocated = unsafe { System.alloc_zeroed(layout) };
        if !allocated.is_null() {
            return allocated;
        }
        let taken = self.take(layout);
        if !taken.is_null() {
            // SAFETY: the block has the size of its layout.
            unsafe { taken.write_bytes(0, layout.size()) };
        }
        taken
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !self.give_back(block) {
            // SAFETY: it is the system's.
            unsafe { System.dealloc(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.contains(block) {
            // SAFETY: it is the system's.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller vouches for the size.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both have the smaller of the two sizes, and are not the same.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
            // SAFETY: the caller's.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

/// Blocks of one size, 64 for each word.
#[repr(C, align(4096))]
struct Blocks<const SIZE: usize, const WORDS: usize> {
    bytes: UnsafeCell<[[[u8; SIZE]; 64]; WORDS]>,
    used: [AtomicU64; WORDS],
}

// SAFETY: the bytes of a block belong to the thread that claimed it.
unsafe impl<const SIZE: usize, const WORDS: usize> Sync for Blocks<SIZE, WORDS> {}

impl<const SIZE: usize, const WORDS: usize> Blocks<SIZE, WORDS> {
    const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([[[0; SIZE]; 64]; WORDS]),
            used: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    fn take(&self) -> *mut u8 {
        let first = self.bytes.get().cast::<u8>();
        for (word, used) in self.used.iter().enumerate() {
            let mut seen = used.load(Ordering::Relaxed);
            while seen != u64::MAX {
                let bit = seen.trailing_ones() as usize;
                let claimed = seen | 1 << bit;
                match used.compare_exchange_weak(
                    seen,
                    claimed,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return first.wrapping_add((word * 64 + bit) * SIZE),
                    Err(now) => seen = now,
                }
            }
        }
        ptr::null_mut()
    }

    #[inline]
    fn index_of(&self, block: *mut u8) -> Option<usize> {
        let offset = block.addr().wrapping_sub(self.bytes.get().addr());
        (offset < SIZE * 64 * WORDS).then_some(offset / SIZE)
    }

    #[inline]
    fn give_back(&self, block: *mut u8) -> bool {
        let Some(index) = self.index_of(block) else { return false };
        if let Some(used) = self.used.get(index / 64) {
            used.fetch_and(!(1 << (index % 64)), Ordering::Release);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_out_once_and_again_when_given_back() {
        static BLOCKS: Blocks<256, 2> = Blocks::new();
        let all: Vec<_> = std::iter::repeat_with(|| BLOCKS.take()).take(128).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 128);
        assert!(sorted.windows(2).all(|two| two[1].addr() - two[0].addr() == 256));
        assert!(BLOCKS.take().is_null());
        assert!(BLOCKS.give_back(all[70]) && BLOCKS.give_back(all[3]));
        assert!([all[3], all[70]].contains(&BLOCKS.take()));
        assert!(!BLOCKS.give_back((&raw const sorted).cast_mut().cast()));
        assert!(!BLOCKS.give_back(all[0].wrapping_add(128 * 256)));
    }

    #[test]
    fn reserve_takes_what_is_small() {
        static OTHER: Reserve =
            Reserve { small: Blocks::new(), large: Blocks::new(), in_use: AtomicUsize::new(0) };
        let reserve = &OTHER;
        let take = |size, align| reserve.take(Layout::from_size_align(size, align).unwrap());
        assert!(take(LARGE + 1, 8).is_null() && take(8, 512).is_null());
        let (small, large) = (take(8, 8), take(LARGE, 256));
        assert!(reserve.contains(small) && reserve.contains(large));
        assert_eq!(reserve.in_use.load(Ordering::Relaxed), 2);
        // When there are no small ones left, large ones do.
        let rest: Vec<_> = std::iter::repeat_with(|| take(SMALL, SMALL))
            .take_while(|block| !block.is_null())
            .collect();
        assert_eq!(rest.len(), SMALL_COUNT - 1 + LARGE_COUNT - 1);
        assert!(rest.iter().all(|block| block.addr().is_multiple_of(SMALL)));
        for block in rest.into_iter().chain([small, large]) {
            assert!(reserve.give_back(block));
        }
        assert_eq!(reserve.in_use.load(Ordering::Relaxed), 0);
    }
}
