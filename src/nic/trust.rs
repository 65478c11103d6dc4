//! Whether whoever polls can be left alone.
//!
//! Most programs that poll do so until they have what they wait for, and need no help. Some poll until a request of
//! theirs is done, and then look at memory until a peer has written there; nobody takes in what arrives meanwhile. What a
//! program will do it does not tell, but it does what it did before: if packets had to wait for one that polled before,
//! although it was running, the progress thread listens beside it for a while.

use std::time::Duration;

use crate::time::Instant;

/// How often one must poll, without asking for events in between, to be thought to go on; and how often between two looks
/// at it, to be thought to have gone on.
pub(super) const STEADY: u64 = 64;
pub(super) const STEADILY: u64 = 16;

/// How long after the last poll one is thought to poll on: a sixteenth of the time for which it did, within these.
const PATIENCE: Duration = Duration::from_millis(1);
const PATIENCE_MAX: Duration = Duration::from_millis(4);

/// For how long nobody is left alone after packets had to wait; if that goes on, four times as long each time, and so long
/// at the most.
const DISTRUST: Duration = Duration::from_millis(1);
const DISTRUST_MAX: Duration = Duration::from_millis(256);

/// What is known of those who poll.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Since when they are left alone.
    since: Option<Instant>,
    /// When somebody looked after them last, for how long the program had run then, and how often they had polled.
    looked: Instant,
    ran: Duration,
    polls: u64,
    /// Until when they are not, and how long that was.
    until: Instant,
    distrust: Duration,
}

impl Trust {
    /// How long whoever polls may do something else.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        let trusted = self.since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        (trusted / 16).clamp(PATIENCE, PATIENCE_MAX)
    }

    /// Whether one who has polled so often can be thought to go on: not one who polls now and then.
    pub(super) fn is_steady(&self, polls: u64) -> bool {
        let goes_on = self.since.is_none() || polls.wrapping_sub(self.polls) >= STEADILY;
        polls >= STEADY && goes_on
    }

    /// Somebody polls, has done so often, and the program `ran` for so long. Whether it may be left alone.
    pub(super) fn has(&mut self, now: Instant, ran: Duration, polls: u64) -> bool {
        if now < self.until {
            return false;
        }
        self.since.get_or_insert(now);
        (self.looked, self.ran, self.polls) = (now, ran, polls);
        true
    }

    /// Packets had to wait although somebody polls.
    pub(super) fn was_needed(&mut self, now: Instant) {
        self.until = self.until.max(now.saturating_add(DISTRUST));
    }

    /// Nobody polls any more; whether packets had to `wait`.
    pub(super) fn end(&mut self, now: Instant, ran: Duration, waited: bool) {
        let Some(since) = self.since.take() else { return };
        // Who did not run could not poll.
        let idle = ran.saturating_sub(self.ran) < now.saturating_since(self.looked) / 2;
        if !waited || idle {
            return;
        }
        let long = now.saturating_since(since) > 4 * self.distrust;
        let again = (4 * self.distrust).clamp(DISTRUST, DISTRUST_MAX);
        self.distrust = if long { DISTRUST } else { again };
        self.until = now.saturating_add(self.distrust);
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
    fn who_stops_again_and_again_is_listened_beside_ever_longer() {
        let mut trust = Trust::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..7 {
            // It ran all the time.
            assert!(trust.has(at(now), ms(now), 0));
            now += 2;
            trust.end(at(now), ms(now), true);
            let from = now;
            while !trust.has(at(now), ms(now), 0) {
                now += 1;
            }
            waits.push(now - from);
        }
        assert_eq!(waits, [1, 4, 16, 64, 256, 256, 256]);
        // Then it goes on for long.
        now += 2000;
        trust.end(at(now), ms(now), true);
        assert!(trust.has(at(now + 1), ms(now), 0));
    }

    #[test]
    fn who_was_kept_from_polling_or_was_not_missed_is_trusted() {
        let mut trust = Trust::default();
        assert!(trust.has(at(0), ms(0), 0));
        trust.end(at(10), ms(1), true);
        assert!(trust.has(at(10), ms(1), 0), "it did not run");
        trust.end(at(20), ms(11), false);
        assert!(trust.has(at(20), ms(11), 0), "nothing had to wait");
        trust.was_needed(at(20));
        assert!(!trust.has(at(20), ms(11), 0));
        assert!(trust.has(at(21), ms(11), 0));
    }

    #[test]
    fn patience_grows_with_trust() {
        let mut trust = Trust::default();
        assert_eq!(trust.patience(at(5)), PATIENCE);
        assert!(trust.has(at(5), ms(0), 0));
        assert_eq!(trust.patience(at(5 + 32)), ms(2));
        assert_eq!(trust.patience(at(5 + 1000)), PATIENCE_MAX);
    }

    #[test]
    fn who_polls_now_and_then_is_not_relied_on() {
        let mut trust = Trust::default();
        assert!(!trust.is_steady(STEADY - 1));
        assert!(trust.is_steady(STEADY));
        assert!(trust.has(at(0), ms(0), STEADY));
        assert!(!trust.is_steady(STEADY + 1), "once since the last look");
        assert!(trust.is_steady(STEADY + STEADILY));
    }
}
