//! Deadlines of queue pairs, the earliest always at hand, with lazy re-arming.
//!
//! Deadlines move with every acknowledgement, and almost never come. So a queue pair keeps its own deadline, and the
//! set holds at most one wake-up for it; a wake-up that comes too early is renewed for the time that is then right.
//! Moving a deadline later costs nothing. Moving it earlier replaces the wake-up: nothing here grows beyond one entry
//! for each queue pair, whatever its peer does.

use std::collections::BTreeSet;

use super::ids::SlotId;
use crate::time::Instant;

/// The wake-ups, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    wakeups: BTreeSet<(Instant, SlotId)>,
}

/// The timer of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// When it goes off, if ever.
    deadline: Instant,
    /// Its wake-up in the set, if there is one.
    wakeup: Instant,
}

/// The end of time: for six hundred years there is none later.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Default for Timer {
    fn default() -> Self {
        Self { deadline: NEVER, wakeup: NEVER }
    }
}

impl Timer {
    /// Whether it runs.
    #[inline]
    pub(super) fn runs(&self) -> bool {
        self.deadline != NEVER
    }

    /// Lets it go off at `deadline`, whatever was set before.
    #[inline]
    pub(super) fn set(&mut self, deadline: Instant, owner: SlotId, timers: &mut Timers) {
        self.deadline = deadline;
        if deadline < self.wakeup {
            self.wake_at(deadline, owner, timers);
        }
    }

    fn wake_at(&mut self, deadline: Instant, owner: SlotId, timers: &mut Timers) {
        if self.wakeup != NEVER {
            timers.wakeups.remove(&(self.wakeup, owner));
        }
        self.wakeup = deadline;
        timers.wakeups.insert((deadline, owner));
    }

    /// Lets it not go off.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.deadline = NEVER;
    }

    /// Lets it not go off, and leaves nothing behind: its owner goes.
    pub(super) fn remove(&mut self, owner: SlotId, timers: &mut Timers) {
        timers.wakeups.remove(&(self.wakeup, owner));
        *self = Self::default();
    }

    /// Takes a wake-up, which came at `wakeup`: whether the timer goes off now. If its time is yet to come, it is
    /// woken again.
    pub(super) fn is_due(
        &mut self,
        wakeup: Instant,
        now: Instant,
        owner: SlotId,
        timers: &mut Timers,
    ) -> bool {
        debug_assert_eq!(self.wakeup, wakeup, "a timer has one wake-up");
        self.wakeup = NEVER;
        let due = self.deadline <= now;
        if due {
            self.deadline = NEVER;
        } else if self.runs() {
            self.set(self.deadline, owner, timers);
        }
        due
    }
}

impl Timers {
    /// The earliest time at which a timer may go off.
    pub(super) fn next(&self) -> Option<Instant> {
        self.wakeups.first().map(|(time, _)| *time)
    }

    /// The next wake-up that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, SlotId)> {
        if self.next()? > now {
            return None;
        }
        self.wakeups.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: SlotId = SlotId(3);

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    /// Whether the timer goes off by `now`.
    fn fires(timer: &mut Timer, timers: &mut Timers, now: u64) -> bool {
        let mut fired = false;
        while let Some((promised, owner)) = timers.pop_due(at(now)) {
            fired |= timer.is_due(promised, at(now), owner, timers);
        }
        fired
    }

    #[test]
    fn a_deadline_that_moves_later_is_kept() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        timer.set(at(100), OWNER, &mut timers);
        for later in 101..200 {
            timer.set(at(later), OWNER, &mut timers);
        }
        assert_eq!(timers.wakeups.len(), 1, "moving it later costs nothing");
        assert!(!fires(&mut timer, &mut timers, 198));
        assert!(fires(&mut timer, &mut timers, 199));
        assert!(!fires(&mut timer, &mut timers, 1000), "once");
    }

    #[test]
    fn a_deadline_that_moves_earlier_is_kept() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        timer.set(at(100), OWNER, &mut timers);
        timer.set(at(50), OWNER, &mut timers);
        assert_eq!(timers.next(), Some(at(50)));
        assert!(fires(&mut timer, &mut timers, 50));
        assert!(!fires(&mut timer, &mut timers, 100));
    }

    #[test]
    fn moving_between_near_and_far_deadlines_keeps_one_wakeup() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        for now in 0..1000 {
            timer.set(at(now * 10 + 1_000_000), OWNER, &mut timers);
            timer.set(at(now * 10 + 5), OWNER, &mut timers);
            assert_eq!(timers.wakeups.len(), 1);
            assert!(fires(&mut timer, &mut timers, now * 10 + 5));
        }
        timer.set(at(20_000), OWNER, &mut timers);
        timer.remove(OWNER, &mut timers);
        assert_eq!(timers.next(), None, "nothing is left behind");
    }

    #[test]
    fn a_cleared_timer_stays_silent() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        timer.set(at(100), OWNER, &mut timers);
        timer.clear();
        assert!(!fires(&mut timer, &mut timers, 100));
        timer.set(at(300), OWNER, &mut timers);
        assert!(fires(&mut timer, &mut timers, 300));
    }
}
