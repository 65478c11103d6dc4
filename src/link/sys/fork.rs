//! Identity of this process without a system call: the C library notifies a forked child.
#![allow(unsafe_code, reason = "calls of the C library")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the first process that watched them and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Result of registering for forks: 0, or an error number.
static WATCHED: OnceLock<i32> = OnceLock::new();

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Marks a process: its forked children are others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMark(u64);

impl ProcessMark {
    /// Marks this process.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the function is there for as long as this code is: the C library forgets it with
        // a library that is unloaded.
        let code =
            *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        Ok(Self(FORKS.load(Ordering::Relaxed)))
    }

    /// Whether it marks this process.
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_not_that_of_a_forked_child() {
        let mark = ProcessMark::new().unwrap();
        // SAFETY: the child only reads a number, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it ends the child without anything else.
            unsafe { libc::_exit(i32::from(mark.is_current())) };
        }
        let mut status = -1;
        // SAFETY: there is room for a status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(mark.is_current());
    }
}
