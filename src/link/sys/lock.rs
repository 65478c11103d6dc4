//! Locks on bytes of a file, which belong to an open file description: other descriptions, of this
//! process too, do not get them, and they go with the last descriptor of theirs. The file need not
//! have the bytes.

#![allow(unsafe_code, reason = "system calls")]

use std::ffi::{c_int, c_short};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// A range of bytes.
fn range(kind: c_int, bytes: Range<u64>) -> io::Result<libc::flock> {
    // SAFETY: all its fields are numbers, for which zero is valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = c_short::try_from(kind).map_err(io::Error::other)?;
    range.l_whence = c_short::try_from(libc::SEEK_SET).map_err(io::Error::other)?;
    let len = bytes.end.saturating_sub(bytes.start);
    range.l_start = bytes.start.try_into().map_err(io::Error::other)?;
    range.l_len = len.try_into().map_err(io::Error::other)?;
    Ok(range)
}

fn control(fd: BorrowedFd<'_>, command: c_int, range: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these commands read and write a range, which is one.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(range)) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Locks a byte of a file, if no other description has it; returns whether it did.
pub(crate) fn try_lock(fd: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    match control(fd, libc::F_OFD_SETLK, &mut range(libc::F_WRLCK, at..at + 1)?) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Unlocks a byte.
pub(crate) fn unlock(fd: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    control(fd, libc::F_OFD_SETLK, &mut range(libc::F_UNLCK, at..at + 1)?)
}

/// Returns the first of these bytes whose lock another description has.
pub(crate) fn first_locked(fd: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<Option<u64>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut range = range(libc::F_WRLCK, bytes.clone())?;
    control(fd, libc::F_OFD_GETLK, &mut range)?;
    if c_int::from(range.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    // The kernel names any lock in the range, and not always the first.
    let found = u64::try_from(range.l_start).unwrap_or(0).clamp(bytes.start, bytes.end - 1);
    Ok(Some(first_locked(fd, bytes.start..found)?.unwrap_or(found)))
}
