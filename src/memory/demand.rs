//! Memory that may not be there: reached through the kernel, which says so instead of raising a signal.

use std::process;

/// Copies bytes out; `None` if some are not mapped.
#[expect(unsafe_code, reason = "a system call")]
pub(super) fn read(from: *mut u8, out: &mut [u8]) -> Option<()> {
    let remote = libc::iovec { iov_base: from.cast(), iov_len: out.len() };
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    // SAFETY: `out` is exclusively ours, and the kernel reads from what is mapped only.
    let copied =
        unsafe { libc::process_vm_readv(own(), &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(copied) == Ok(out.len())).then_some(())
}

/// Copies bytes in; `None` if some are not mapped, or may not be written.
#[expect(unsafe_code, reason = "a system call")]
pub(super) fn write(to: *mut u8, bytes: &[u8]) -> Option<()> {
    let remote = libc::iovec { iov_base: to.cast(), iov_len: bytes.len() };
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `bytes` is only read; the kernel writes to what is mapped for that only, and who made the region vouches
    // for its bytes.
    let copied =
        unsafe { libc::process_vm_writev(own(), &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(copied) == Ok(bytes.len())).then_some(())
}

/// Sees to it that the pages of `len` bytes are there, and can be written if they must; `None` if that cannot be. What
/// is taken away right afterwards by another thread is missed.
#[expect(unsafe_code, reason = "a system call")]
pub(super) fn bring_in(start: *mut u8, len: usize, write: bool) -> Option<()> {
    const PAGE: usize = 4096;
    let first = start.map_addr(|address| address & !(PAGE - 1));
    let end = start.addr().checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let how = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: this brings in pages that are mapped, and changes nothing of what they hold.
    let made = unsafe { libc::madvise(first.cast(), end - first.addr(), how) };
    (made == 0).then_some(())
}

/// This process, also after it forked.
fn own() -> libc::pid_t {
    process::id().cast_signed()
}
