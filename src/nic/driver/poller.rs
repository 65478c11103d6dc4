//! Predicts from recent polling whether the program will keep polling.
//!
//! Most programs that busy-poll do so until they have the completion that they wait for, and need
//! no help. Some poll until a request of theirs completes, and then read memory until a peer has
//! written there: no thread of theirs receives meanwhile. A program does not announce which kind it
//! is, but it usually does what it did before. So the progress thread checks now and then whether
//! packets had to wait although the program was running. The check interval grows while none had
//! to, because where cores are scarce every check takes the core from the poller. After packets had
//! to wait, the progress thread assists: it listens beside the poller.

use std::time::Duration;

use crate::time::Instant;

/// Number of polls, without a CQ event requested in between, after which a program counts as a busy
/// poller.
pub(in crate::nic) const STEADY: u64 = 64;

/// Number of polls that a program which stopped and began again needs to count as a busy poller.
pub(in crate::nic) const STEADY_AGAIN: u64 = 16;

/// Number of polls since the last check below which a program is no longer a busy poller: one per
/// `POLL_INTERVAL` since then, and at most `POLLS_MAX`.
const POLLS_MAX: u128 = 16;
const POLL_INTERVAL: Duration = Duration::from_micros(64);

/// Bounds of the check interval, which is an eighth of the time for which no packet had to wait.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);
pub(super) const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(4);

/// Knowledge about the threads that poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PollerState {
    /// Time since which no packet had to wait for them; `None` while no thread busy-polls.
    keeps_up_since: Option<Instant>,
    /// Whether packets had to wait for them at the last check.
    assist: bool,
    /// Time of the last check, the CPU time of the program and the number of polls by then.
    checked_at: Instant,
    cpu_time: Duration,
    polls: u64,
}

impl PollerState {
    /// Returns whether the program busy-polls, given its number of polls: not if it polls now and
    /// then.
    pub(super) fn is_busy_polling(&self, now: Instant, polls: u64) -> bool {
        let intervals = now.saturating_since(self.checked_at).as_nanos() / POLL_INTERVAL.as_nanos();
        let since = u128::from(polls.wrapping_sub(self.polls));
        polls >= STEADY && (self.keeps_up_since.is_none() || since >= intervals.min(POLLS_MAX))
    }

    /// Begins a check interval of a busy poller. Returns its length, or `None` if the progress
    /// thread must assist.
    pub(super) fn begin_check(
        &mut self,
        now: Instant,
        cpu_time: Duration,
        polls: u64,
    ) -> Option<Duration> {
        (self.checked_at, self.cpu_time, self.polls) = (now, cpu_time, polls);
        let since = *self.keeps_up_since.get_or_insert(now);
        let interval = now.saturating_since(since) / 8;
        (!self.assist).then(|| interval.clamp(CHECK_INTERVAL, CHECK_INTERVAL_MAX))
    }

    /// Ends a check interval: had packets to wait?
    pub(super) fn end_check(&mut self, now: Instant, cpu_time: Duration, waited: bool) {
        // A program that did not get a core could not poll.
        let starved =
            cpu_time.saturating_sub(self.cpu_time) < now.saturating_since(self.checked_at) / 2;
        if !waited || !starved {
            self.assist = waited;
        }
        if self.assist {
            self.keeps_up_since = Some(now);
        }
    }

    /// The program stopped polling: had packets to wait until that was noticed?
    pub(super) fn stopped(
        &mut self,
        now: Instant,
        cpu_time: impl FnOnce() -> Duration,
        waited: bool,
    ) {
        if self.keeps_up_since.is_some() && waited {
            self.end_check(now, cpu_time(), waited);
        }
        self.keeps_up_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn check_interval_backs_off_while_poller_keeps_up() {
        let mut poller = PollerState::default();
        let intervals = [0, 1, 8, 16, 24, 32, 1000].map(|now| {
            let interval = poller.begin_check(at(now), ms(now), 0).unwrap();
            poller.end_check(at(now), ms(now), false);
            interval
        });
        let expected =
            [CHECK_INTERVAL, CHECK_INTERVAL, ms(1), ms(2), ms(3), ms(4), CHECK_INTERVAL_MAX];
        assert_eq!(intervals, expected);
    }

    #[test]
    fn poller_is_assisted_from_when_packets_waited_until_none_did() {
        let mut poller = PollerState::default();
        assert_eq!(poller.begin_check(at(0), ms(0), 0), Some(CHECK_INTERVAL));
        assert_eq!(poller.begin_check(at(100), ms(100), 0), Some(CHECK_INTERVAL_MAX));
        poller.end_check(at(101), ms(101), true);
        assert_eq!(poller.begin_check(at(101), ms(101), 0), None);
        poller.end_check(at(102), ms(102), true);
        assert_eq!(poller.begin_check(at(102), ms(102), 0), None);
        poller.end_check(at(103), ms(103), false);
        assert_eq!(poller.begin_check(at(103), ms(103), 0), Some(CHECK_INTERVAL), "anew");
        // The same if the program stops polling.
        poller.stopped(at(105), || ms(105), true);
        assert_eq!(poller.begin_check(at(106), ms(106), 0), None);
    }

    #[test]
    fn poller_without_a_core_is_not_assisted() {
        let mut poller = PollerState::default();
        assert_eq!(poller.begin_check(at(0), ms(0), 0), Some(CHECK_INTERVAL));
        assert_eq!(poller.begin_check(at(16), ms(16), 0), Some(ms(2)));
        poller.end_check(at(26), ms(17), true);
        assert_eq!(poller.begin_check(at(32), ms(18), 0), Some(ms(4)), "it did not run");
        poller.stopped(at(42), || ms(19), true);
        assert_eq!(poller.begin_check(at(43), ms(20), 0), Some(CHECK_INTERVAL));
    }

    #[test]
    fn occasional_polls_are_not_busy_polling() {
        let mut poller = PollerState::default();
        assert!(!poller.is_busy_polling(at(0), STEADY - 1));
        assert!(poller.is_busy_polling(at(0), STEADY));
        poller.begin_check(at(0), ms(0), STEADY);
        assert!(!poller.is_busy_polling(at(1), STEADY + 14));
        assert!(poller.is_busy_polling(at(1), STEADY + 15));
        assert!(!poller.is_busy_polling(at(4), STEADY + 15));
        assert!(poller.is_busy_polling(at(4), STEADY + 16));
    }
}
