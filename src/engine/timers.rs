//! When whom to wake: deadlines of queue pairs, the earliest always at hand.
//!
//! Deadlines move with every acknowledgement, and almost never come. So a queue pair keeps its own deadline, and the
//! heap holds at most one promise for it to look again; a promise that comes due too early is renewed for the time
//! that is then right. Moving a deadline later costs nothing, and nothing here grows with idle queue pairs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ids::Place;
use crate::time::Instant;

/// The promises, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Place)>>,
}

/// The timer of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// When it goes off, if ever.
    deadline: Instant,
    /// The earliest promise in the heap, if there is one.
    promised: Instant,
}

/// The end of time: for six hundred years there is none later.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Default for Timer {
    fn default() -> Self {
        Self { deadline: NEVER, promised: NEVER }
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
    pub(super) fn set(&mut self, deadline: Instant, owner: Place, timers: &mut Timers) {
        self.deadline = deadline;
        if deadline < self.promised {
            self.promised = deadline;
            timers.heap.push(Reverse((deadline, owner)));
        }
    }

    /// Lets it not go off.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.deadline = NEVER;
    }

    /// Answers a promise that came due at `promised`: whether the timer goes off now. If its time is yet to come, a
    /// new promise is made.
    pub(super) fn is_due(
        &mut self,
        promised: Instant,
        now: Instant,
        owner: Place,
        timers: &mut Timers,
    ) -> bool {
        if self.promised != promised {
            // An older promise, overtaken by an earlier one.
            return false;
        }
        self.promised = NEVER;
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
    /// The earliest time at which somebody may have to be woken.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    /// The next promise that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Place)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(promise)| promise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Place = Place(3);

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
        assert_eq!(timers.heap.len(), 1, "moving it later costs nothing");
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
    fn a_cleared_timer_stays_silent() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        timer.set(at(100), OWNER, &mut timers);
        timer.clear();
        assert!(!fires(&mut timer, &mut timers, 100));
        timer.set(at(300), OWNER, &mut timers);
        assert!(fires(&mut timer, &mut timers, 300));
    }
}
