//! A mutex that a busy poller does not wait for, unless its holder has lost its core.
//!
//! Pollers try a lock and go on if it is taken: its holder is talking to the kernel and does their
//! work. Where threads outnumber cores, the scheduler preempts holders. All other threads would
//! then poll in vain for their whole time slices before the holder runs again. A lock that is held
//! for longer than its holder's work can take is therefore waited for: the waiting threads sleep,
//! and the holder gets a core.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driver::Signals;
use super::failure::FailGuard;
use crate::time::Instant;

/// Maximum time for which a holder is expected to keep the lock: longer than one full batch takes
/// to be received or sent, and short against a time slice of the scheduler.
const HOLD_MAX: Duration = Duration::from_micros(100);

/// Value of `since` while the lock is free.
const FREE: u64 = u64::MAX;

/// A mutex that knows since when it is held.
#[derive(Debug)]
pub(super) struct TimedMutex<T> {
    mutex: Mutex<T>,
    /// Time at which the lock was taken, in nanoseconds, or [`FREE`].
    since: AtomicU64,
    signals: Arc<Signals>,
}

impl<T> TimedMutex<T> {
    pub(super) fn new(value: T, signals: &Arc<Signals>) -> Self {
        let (mutex, since) = (Mutex::new(value), AtomicU64::new(FREE));
        Self { mutex, since, signals: Arc::clone(signals) }
    }

    /// Takes the lock, waiting for it if it is taken. `clock` is asked when it is held: a lock
    /// marked with the time before the wait would look overdue from its first moment, and all
    /// pollers would queue for it.
    pub(super) fn lock(&self, clock: impl FnOnce() -> Instant) -> TimedGuard<'_, T> {
        let guard = self.signals.lock(&self.mutex);
        self.hold(clock(), guard)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(super) fn try_lock(&self, now: Instant) -> Option<TimedGuard<'_, T>> {
        self.signals.try_lock(&self.mutex).map(|guard| self.hold(now, guard))
    }

    /// Takes the lock if it is free, or waits for it if its holder seems to have lost its core.
    pub(super) fn try_lock_or_wait(
        &self,
        now: Instant,
        clock: impl FnOnce() -> Instant,
    ) -> Option<TimedGuard<'_, T>> {
        self.try_lock(now).or_else(|| self.is_overdue(now).then(|| self.lock(clock)))
    }

    /// Whether the lock is held for longer than its holder's work takes.
    fn is_overdue(&self, now: Instant) -> bool {
        let since = Instant::from_nanos(self.since.load(Ordering::Relaxed));
        now.saturating_since(since) > HOLD_MAX
    }

    #[inline]
    fn hold<'a>(&'a self, now: Instant, guard: FailGuard<'a, T>) -> TimedGuard<'a, T> {
        self.since.store(now.as_nanos(), Ordering::Relaxed);
        TimedGuard { guard, since: &self.since }
    }
}

/// The lock, until it is dropped.
#[derive(Debug)]
pub(super) struct TimedGuard<'a, T> {
    guard: FailGuard<'a, T>,
    since: &'a AtomicU64,
}

impl<T> TimedGuard<'_, T> {
    /// Lets the lock count as taken at `now`: the holder took it before it asked for the time.
    #[inline]
    pub(super) fn set_since(&self, now: Instant) {
        self.since.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the time at which the lock was taken. After a wait it is later than the time before
    /// the attempt.
    #[inline]
    pub(super) fn since(&self) -> Instant {
        Instant::from_nanos(self.since.load(Ordering::Relaxed))
    }
}

impl<T> Drop for TimedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.since.store(FREE, Ordering::Relaxed);
    }
}

impl<T> Deref for TimedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for TimedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutex(value: u32) -> TimedMutex<u32> {
        TimedMutex::new(value, &Arc::new(Signals::new().unwrap()))
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn poller_skips_a_lock_that_was_just_taken() {
        let lock = mutex(0);
        let held = lock.try_lock(at(0)).unwrap();
        assert!(lock.try_lock_or_wait(at(100), || at(100)).is_none());
        drop(held);
        let taken = lock.try_lock_or_wait(at(5000), || unreachable!("a free lock needs no wait"));
        assert_eq!(taken.unwrap().since(), at(5000));
    }

    #[test]
    fn poller_waits_for_a_holder_that_lost_its_core() {
        let lock = mutex(0);
        let mut held = lock.lock(|| at(0));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let taken = lock.try_lock_or_wait(at(101), || at(5000)).unwrap();
                // It is marked with the time after the wait: other pollers skip it.
                assert_eq!(taken.since(), at(5000));
                assert!(lock.try_lock_or_wait(at(5050), || at(5050)).is_none());
                *taken
            });
            // The thread runs before this one has slept, or sleeps on the lock: either way it must
            // not give up.
            std::thread::sleep(Duration::from_millis(20));
            *held = 7;
            drop(held);
            assert_eq!(waiting.join().unwrap(), 7);
        });
    }
}
