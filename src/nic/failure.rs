//! Failure of the NIC: a thread panics while it works on it, or its link fails.
//!
//! The state that the thread worked on may be half changed, so no thread uses it afterwards: the
//! NIC has failed for good. The panicking thread signals that while it unwinds, and so does the
//! thread that finds the link broken. The progress thread then reports `DEVICE_FATAL`, wakes all
//! threads that wait for completions, and ends; every later call is [refused](Refusal).

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::panicking;

use super::driver::Signals;
use crate::verbs::{CreateError, DestroyError, Errno, KeyError, ModifyError, PostError};

impl Signals {
    /// Locks a mutex, waiting for it.
    #[inline]
    pub(super) fn lock<'a, T>(&'a self, mutex: &'a Mutex<T>) -> FailGuard<'a, T> {
        self.guard(mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks a mutex if it is free.
    #[inline]
    pub(super) fn try_lock<'a, T>(&'a self, mutex: &'a Mutex<T>) -> Option<FailGuard<'a, T>> {
        match mutex.try_lock() {
            Ok(guard) => Some(self.guard(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn guard<'a, T>(&'a self, guard: MutexGuard<'a, T>) -> FailGuard<'a, T> {
        FailGuard { guard, signals: self, was_panicking: panicking() }
    }
}

/// A locked mutex. The NIC fails if its thread panics while it holds it.
#[derive(Debug)]
pub(super) struct FailGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    signals: &'a Signals,
    /// Whether the thread was unwinding already when it took the lock: that panic has nothing to do
    /// with the NIC.
    was_panicking: bool,
}

impl<T> Drop for FailGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if panicking() && !self.was_panicking {
            self.signals.fail();
        }
    }
}

impl<T> Deref for FailGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for FailGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The result of a call to a NIC that has failed for good.
pub(super) trait Refusal {
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
    /// The objects of a failed device are gone: a program can clean up.
    fn refused() -> Self {
        Ok(())
    }
}
