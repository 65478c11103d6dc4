//! Memory of the user's program, reached through the kernel: a system call for each access, which
//! fails where the memory cannot be accessed. Used while the signal handler of `fault` is not in
//! place, and for what only a kernel knows.

use std::process;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use super::{fault, routines};

/// Copies bytes out; `None` if some cannot be read.
pub(super) fn read(from: *const u8, out: *mut u8, len: usize) -> Option<()> {
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    let local = libc::iovec { iov_base: out.cast(), iov_len: len };
    // SAFETY: the caller has room for so many bytes, and the kernel reads from what is mapped only.
    let copied =
        unsafe { libc::process_vm_readv(own(), &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(copied) == Ok(len)).then_some(())
}

/// Copies `len` bytes in from `from`, where they may be read, the last of them last; `None` if some
/// cannot be written.
pub(super) fn write(to: *mut u8, from: *const u8, len: usize) -> Option<()> {
    let Some(before) = len.checked_sub(1) else { return Some(()) };
    if before > 0 {
        write_unordered(to, from, before)?;
        fence(Ordering::Release);
    }
    write_unordered(to.wrapping_add(before), from.wrapping_add(before), 1)
}

fn write_unordered(to: *mut u8, from: *const u8, len: usize) -> Option<()> {
    let remote = libc::iovec { iov_base: to.cast(), iov_len: len };
    let local = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    // SAFETY: the bytes at `from` are only read; the kernel writes to what is mapped for that only,
    // and the maker of the region vouches for its bytes.
    let copied =
        unsafe { libc::process_vm_writev(own(), &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(copied) == Ok(len)).then_some(())
}

/// Brings in the pages of `len` bytes; `None` if some cannot be read, or written if they must be.
/// A page that another thread unmaps right afterwards is not noticed.
pub(super) fn bring_in(start: *mut u8, len: usize, write: bool) -> Option<()> {
    bring_in_by(has_populate(), start, len, write)
}

fn bring_in_by(has_populate: bool, start: *mut u8, len: usize, write: bool) -> Option<()> {
    if len == 0 {
        return Some(());
    }
    let page = page_size();
    let first = start.map_addr(|address| address & !(page - 1));
    let end = start.addr().checked_add(len)?.checked_next_multiple_of(page)?;
    if has_populate {
        populate(first, end - first.addr(), write)
    } else {
        touch(first, (end - first.addr()) / page, page, write)
    }
}

fn populate(first: *mut u8, len: usize, write: bool) -> Option<()> {
    let how = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: this brings in pages that are mapped, and changes nothing of what they hold.
    let done = unsafe { libc::madvise(first.cast(), len, how) };
    (done == 0).then_some(())
}

/// Whether the kernel has `MADV_POPULATE_READ` (Linux 5.14): without it, it answers EINVAL, as it
/// does for memory that is protected.
fn has_populate() -> bool {
    // No `OnceLock`: a forked child would wait for the thread that was about to find out.
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static HAS: AtomicU8 = AtomicU8::new(UNKNOWN);
    match HAS.load(Ordering::Relaxed) {
        UNKNOWN => {
            let here = HAS.as_ptr();
            let first = here.map_addr(|address| address & !(page_size() - 1));
            let has = populate(first, page_size(), false).is_some();
            HAS.store(if has { YES } else { NO }, Ordering::Relaxed);
            has
        }
        known => known == YES,
    }
}

/// Accesses a word of each page, without changing it.
fn touch(first: *mut u8, pages: usize, page: usize, write: bool) -> Option<()> {
    (0..pages).try_for_each(|index| {
        let at = first.wrapping_add(index * page);
        if write && fault::is_guarded() {
            // SAFETY: the handler is in place, and adding nothing changes nothing, whichever thread
            // uses the memory.
            unsafe { routines::fetch_add(at.cast(), 0) }.map(drop)
        } else {
            let mut byte = 0;
            read(at, &raw mut byte, 1)
        }
    })
}

/// Size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Advises the kernel to use huge pages for the part of `len` bytes that fills whole ones.
pub(super) fn advise_huge_pages(start: *mut u8, len: usize) {
    let first = start.map_addr(|address| address.next_multiple_of(HUGE_PAGE));
    let whole = len.saturating_sub(first.addr() - start.addr()) / HUGE_PAGE * HUGE_PAGE;
    if cfg!(miri) || whole == 0 {
        return;
    }
    // SAFETY: it changes in which pages the memory lies, and nothing of what it holds.
    unsafe { libc::madvise(first.cast(), whole, libc::MADV_HUGEPAGE) };
}

fn page_size() -> usize {
    // SAFETY: it reads a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Returns the process ID of this process, also after it forked.
fn own() -> libc::pid_t {
    process::id().cast_signed()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Three pages: one to be read and written, one to be read, one for nothing.
    fn pages() -> *mut u8 {
        let page = page_size();
        let (all, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses an address that is free.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), 3 * page, all, private, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        for (index, protection) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            // SAFETY: the page is the test's own.
            let done =
                unsafe { libc::mprotect(at.wrapping_add(index * page).cast(), page, protection) };
            assert_eq!(done, 0);
        }
        at
    }

    #[test]
    fn both_ways_to_bring_in_pages_tell_what_can_be_accessed() {
        let _actions = super::super::tests::ACTIONS.lock();
        fault::install();
        let (at, page) = (pages(), page_size());
        for way in [true, false].into_iter().filter(|way| !way || has_populate()) {
            let can = |offset: usize, len: usize, write: bool| {
                bring_in_by(way, at.wrapping_add(offset), len, write).is_some()
            };
            assert!(can(0, 0, true) && can(2 * page, 0, true), "nothing can always be");
            assert!(can(0, page, true) && can(0, page, false) && can(100, page - 100, true));
            assert!(can(0, 2 * page, false) && can(100, page, false) && can(page, 1, false));
            // Without routines that survive a fault, memory is not written to find out.
            if way || routines::AVAILABLE {
                assert!(!can(page, 1, true) && !can(100, page, true) && !can(0, 2 * page, true));
            }
            assert!(!can(2 * page, 1, false) && !can(page - 1, page + 2, false));
            assert!(!can(0, usize::MAX, false));
        }
    }

    #[test]
    fn copies_are_whole_or_refused() {
        let (at, page) = (pages(), page_size());
        for len in [1, 2, 3, 100] {
            let bytes: Vec<u8> = (1..).take(len).collect();
            let mut back = vec![0; len];
            assert!(write(at.wrapping_add(7), bytes.as_ptr(), bytes.len()).is_some());
            assert!(read(at.wrapping_add(7), back.as_mut_ptr(), len).is_some());
            assert_eq!(back, bytes);
        }
        assert!(write(at, at, 0).is_some());
        assert!(write(at.wrapping_add(page), [1].as_ptr(), 1).is_none());
        assert!(write(at.wrapping_add(page - 2), [1, 2, 3].as_ptr(), 3).is_none());
        let mut back = [0; 3];
        assert!(read(at.wrapping_add(2 * page - 3), back.as_mut_ptr(), 3).is_some());
        assert!(read(at.wrapping_add(2 * page - 2), back.as_mut_ptr(), 3).is_none());
    }
}
