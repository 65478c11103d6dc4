//! Forks: a child has its parent's memory and descriptors, but none of its threads.
//!
//! So a NIC that a parent has open is nobody's in a child: its thread is missing, its locks may be held by threads that are
//! not there, and its sockets and queues are the parent's. What a child inherits of an open device is refused to it, every
//! call with `ENODEV`, so that it can neither disturb its parent nor wait for ever. What it opens itself is its own.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::call::{Failed, Result};

/// How many forks with devices open lie between the first process that used this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many devices are open.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Which process this is, among those of whose devices something may be in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// Of this process.
    #[inline]
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Fails for what a parent left.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self == Self::current() { Ok(()) } else { Err(Failed::ENODEV) }
    }
}

/// A device that is open, for as long as this is there.
#[derive(Debug)]
pub(crate) struct Open(());

impl Open {
    /// A device is going to be opened.
    pub(crate) fn new() -> Result<Self> {
        static WATCH: Once = Once::new();
        let mut code: c_int = 0;
        // SAFETY: the function is there for as long as the process, as this library is.
        WATCH.call_once(|| code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        if code != 0 {
            return Err(Failed(code));
        }
        OPEN.fetch_add(1, Ordering::SeqCst);
        Ok(Self(()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a child does first. It has one thread, and may not wait for anything.
unsafe extern "C" fn in_child() {
    if OPEN.swap(0, Ordering::SeqCst) > 0 {
        GENERATION.fetch_add(1, Ordering::SeqCst);
    }
}
