//! What happens when a thread panics while it works on the NIC, or its link fails.
//!
//! Whatever it worked on may be half changed, so nothing is done with it any more: the NIC has failed for good. The
//! panicking thread raises an alarm while it unwinds, and so does the thread that finds the link broken. The progress thread
//! then reports `DEVICE_FATAL`, wakes all who wait
//! for completions, and ends; every later call is [refused](Refusal).

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::panicking;

use rustix::event::{EventfdFlags, eventfd};

use crate::verbs::{CreateError, DestroyError, Errno, KeyError, ModifyError, PostError};

/// Whether the NIC has failed, and the doorbell that wakes the progress thread.
#[derive(Debug)]
pub(super) struct Alarm {
    raised: AtomicBool,
    doorbell: OwnedFd,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { raised: AtomicBool::new(false), doorbell })
    }

    /// Wakes the progress thread.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Whether the doorbell rang since it was last asked.
    pub(super) fn has_rung(&self) -> bool {
        rustix::io::read(&self.doorbell, &mut [0_u8; 8]).is_ok()
    }

    /// A thread panicked, or the link failed.
    #[cold]
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.ring();
    }

    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Locks a mutex, waiting for it.
    pub(super) fn lock<'a, T>(&'a self, mutex: &'a Mutex<T>) -> Watched<'a, T> {
        self.watch(mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks a mutex if it is free.
    pub(super) fn try_lock<'a, T>(&'a self, mutex: &'a Mutex<T>) -> Option<Watched<'a, T>> {
        match mutex.try_lock() {
            Ok(guard) => Some(self.watch(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.watch(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn watch<'a, T>(&'a self, guard: MutexGuard<'a, T>) -> Watched<'a, T> {
        Watched { guard, alarm: self, panicking: panicking() }
    }
}

impl AsFd for Alarm {
    /// Readable once the doorbell has rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

/// A locked mutex. It raises the alarm if its thread panics while it has it.
#[derive(Debug)]
pub(super) struct Watched<'a, T> {
    guard: MutexGuard<'a, T>,
    alarm: &'a Alarm,
    /// Whether the thread was unwinding already when it took the lock: what it does then is no reason.
    panicking: bool,
}

impl<T> Drop for Watched<'_, T> {
    fn drop(&mut self) {
        if panicking() && !self.panicking {
            self.alarm.raise();
        }
    }
}

impl<T> Deref for Watched<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Watched<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// What a call to a NIC returns that has failed for good.
pub(super) trait Refusal {
    /// The refusal.
    fn refused() -> Self;
}

impl Refusal for () {
    fn refused() {}
}

macro_rules! refusals {
    ($($error:ident)*) => {
        $(impl<T> Refusal for Result<T, $error> {
            fn refused() -> Self {
                Err($error::Refused(Errno::EIO))
            }
        })*
    };
}

refusals!(CreateError KeyError ModifyError PostError);

impl<T> Refusal for Result<T, (usize, PostError)> {
    fn refused() -> Self {
        Err((0, PostError::Refused(Errno::EIO)))
    }
}

impl Refusal for Result<(), DestroyError> {
    /// What belonged to a failed device is gone: a program can clean up.
    fn refused() -> Self {
        Ok(())
    }
}
