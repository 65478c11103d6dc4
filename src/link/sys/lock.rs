//! Locks on bytes of a file, which belong to an open file description: other descriptions, of this
//! process too, do not get them, and they go with the last descriptor of theirs.

#![allow(unsafe_code, reason = "system calls")]

use std::ffi::{c_int, c_short};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The range of one byte, to be locked for writing.
fn range(at: u8) -> libc::flock {
    // SAFETY: all its fields are numbers, for which zero is valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as c_short;
    range.l_whence = libc::SEEK_SET as c_short;
    range.l_start = at.into();
    range.l_len = 1;
    range
}

fn control(fd: BorrowedFd<'_>, command: c_int, range: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these commands read and write a range, which is one.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(range)) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Locks a byte of a file, if no other description has it; returns whether it did.
pub(crate) fn try_lock(fd: BorrowedFd<'_>, at: u8) -> io::Result<bool> {
    match control(fd, libc::F_OFD_SETLK, &mut range(at)) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Whether another description has the lock of a byte.
pub(crate) fn is_locked(fd: BorrowedFd<'_>, at: u8) -> io::Result<bool> {
    let mut range = range(at);
    control(fd, libc::F_OFD_GETLK, &mut range)?;
    Ok(c_int::from(range.l_type) != libc::F_UNLCK)
}
