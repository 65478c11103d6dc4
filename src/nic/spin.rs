//! Spin policy: conditions under which a busy poller gives up its core.
//!
//! Programs for hardware poll all the time, and have a core each. Where cores are scarcer than
//! threads that poll, a poller keeps the core from the thread whose work it waits for. So a thread
//! that polls in vain asks now and then whether the scheduler took its core for another thread, and
//! if so sleeps after every few hundred polls, for a while. It sleeps rather than yields: a thread
//! that often yields loses its turns for seconds. Where there are enough cores it never sleeps.

use std::cell::Cell;

use rustix::thread::nanosleep;
use rustix::time::Timespec;

use crate::link::involuntary_switches;

/// Number of polls in vain after which a thread asks, or sleeps.
const POLLS: u32 = 256;

/// Number of times that it asks, and kept its core, before it forgets that it lost it.
const QUIET: u32 = 64;

/// Number of sleeps after it lost its core for the first time. It doubles each time that it loses
/// it again.
const SLEEPS: u32 = 64;
const SLEEPS_MAX: u32 = 4096;

/// The shortest sleep: with what the kernel adds, about 50 µs.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1 };

/// Decides for a thread that polls when it gives up its core.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpinPolicy {
    /// Number of polls in vain since the last completion, or since it asked.
    polls: u32,
    /// Involuntary context switches when it asked last.
    switches: i64,
    /// Number of times that it asked since that number changed.
    quiet: u32,
    /// Number of sleeps to come, and how many it was to be the last time.
    sleeps: u32,
    last_sleeps: u32,
}

thread_local! {
    static POLICY: Cell<SpinPolicy> = const { Cell::new(SpinPolicy::NEW) };
}

impl SpinPolicy {
    const NEW: Self = Self { polls: 0, switches: 0, quiet: 0, sleeps: 0, last_sleeps: 0 };

    /// Reports a poll of the calling thread, and the number of completions that it found. Sleeps if
    /// the thread should give up its core. `SoftNic::poll_cq` calls it.
    #[inline]
    pub fn polled(found: usize) {
        let mut policy = POLICY.get();
        let must_sleep = if found == 0 {
            policy.polled_in_vain(involuntary_switches)
        } else {
            policy.polls = 0;
            false
        };
        POLICY.set(policy);
        if must_sleep {
            // Not the C library's function, which is a cancellation point.
            let _ = nanosleep(&SLEEP);
        }
    }

    /// Returns whether the thread should sleep; `switches` tells how often it has lost its core so
    /// far.
    fn polled_in_vain(&mut self, switches: impl FnOnce() -> i64) -> bool {
        self.polls += 1;
        if self.polls < POLLS {
            return false;
        }
        self.polls = 0;
        if self.sleeps > 0 {
            self.sleeps -= 1;
            return true;
        }
        let switches = switches();
        if switches == self.switches {
            self.quiet = self.quiet.saturating_add(1);
            if self.quiet == QUIET {
                self.last_sleeps = 0;
            }
            return false;
        }
        self.switches = switches;
        self.quiet = 0;
        self.last_sleeps = (2 * self.last_sleeps).clamp(SLEEPS, SLEEPS_MAX);
        self.sleeps = self.last_sleeps;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of sleeps in so many polls in vain.
    fn sleeps(policy: &mut SpinPolicy, polls: u32, mut switches: impl FnMut() -> i64) -> u32 {
        (0..polls).map(|_| u32::from(policy.polled_in_vain(&mut switches))).sum()
    }

    #[test]
    fn poller_with_a_core_of_its_own_never_sleeps() {
        let mut policy = SpinPolicy { switches: 17, ..SpinPolicy::NEW };
        assert_eq!(sleeps(&mut policy, 1_000_000, || 17), 0);
    }

    #[test]
    fn poller_that_keeps_losing_its_core_sleeps_most_of_the_time() {
        let mut policy = SpinPolicy::NEW;
        let mut switches = 0;
        let slept = sleeps(&mut policy, 100_000 * POLLS, || {
            switches += 1;
            switches
        });
        assert!(slept > 99_900, "{slept}");
        assert!(switches < 100, "it asks no more often than it must: {switches}");
    }

    #[test]
    fn core_that_was_lost_once_is_forgotten() {
        let mut policy = SpinPolicy { last_sleeps: SLEEPS_MAX, ..SpinPolicy::NEW };
        assert_eq!(sleeps(&mut policy, QUIET * POLLS, || 0), 0);
        assert_eq!(sleeps(&mut policy, 1000 * POLLS, || 1), SLEEPS + 1);
    }
}
