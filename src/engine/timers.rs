//! Deadlines of queue pairs, with lazy re-arming.
//!
//! Deadlines move with every ACK, and almost never expire. So a queue pair keeps its own deadline,
//! and the set holds at most one wake-up for it; a wake-up that comes too early is set again for
//! the deadline of that time. Moving a deadline later costs nothing. Moving it earlier replaces the
//! wake-up: the set never grows beyond one entry for each queue pair, whatever its peer does.

use std::collections::BTreeSet;

use crate::table::SlotId;
use crate::time::Instant;

/// Wake-ups of all queue pairs, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    wakeups: BTreeSet<(Instant, SlotId)>,
}

/// Timer of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// Time of expiry, or [`NEVER`].
    deadline: Instant,
    /// Wake-up in the set, or [`NEVER`].
    wakeup: Instant,
}

/// No deadline: about six hundred years.
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

    /// Sets the deadline.
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

    /// Stops it.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.deadline = NEVER;
    }

    /// Stops it and removes its wake-up: its owner is destroyed.
    pub(super) fn remove(&mut self, owner: SlotId, timers: &mut Timers) {
        timers.wakeups.remove(&(self.wakeup, owner));
        *self = Self::default();
    }

    /// Takes the wake-up that was set for `wakeup`; returns whether the timer expires now. If its
    /// deadline is later, the wake-up is set again.
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
    /// Returns the earliest wake-up.
    pub(super) fn next(&self) -> Option<Instant> {
        self.wakeups.first().map(|(time, _)| *time)
    }

    /// Removes the next wake-up that is due at `now`.
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

    /// Whether the timer expires by `now`.
    fn fires(timer: &mut Timer, timers: &mut Timers, now: u64) -> bool {
        let mut fired = false;
        while let Some((wakeup, owner)) = timers.pop_due(at(now)) {
            fired |= timer.is_due(wakeup, at(now), owner, timers);
        }
        fired
    }

    #[test]
    fn deadline_moves_later() {
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
    fn deadline_moves_earlier() {
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
    fn cleared_timer_does_not_expire() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        timer.set(at(100), OWNER, &mut timers);
        timer.clear();
        assert!(!fires(&mut timer, &mut timers, 100));
        timer.set(at(300), OWNER, &mut timers);
        assert!(fires(&mut timer, &mut timers, 300));
    }
}
