//! How long whoever polls can be left alone.
//!
//! Most programs that poll do so until they have what they wait for, and need no help. Some poll until a request of
//! theirs is done, and then look at memory until a peer has written there; nobody takes in what arrives meanwhile. What a
//! program will do it does not tell, but it does what it did before. So the progress thread looks whether packets had to
//! wait for one that was running: the longer none had to, the seldomer, because where cores are few it is in the way of
//! whom it looks after. After one had to, it listens.

use std::time::Duration;

use crate::time::Instant;

/// How often one must poll, without asking for events in between, to be thought to go on.
pub(super) const STEADY: u64 = 64;

/// How often one must have polled since the last look to be thought to have gone on: so often at the most, and as often
/// as this goes into the time since then.
const STEADILY: u128 = 16;
const EVERY: Duration = Duration::from_micros(64);

/// How long one is left alone before somebody looks: an eighth of the time for which all went well, within these.
const MOMENT: Duration = Duration::from_micros(200);
const MOMENT_MAX: Duration = Duration::from_millis(4);

/// What is known of those who poll.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Since when they get on without help.
    since: Option<Instant>,
    /// Whether packets had to wait for them the last time.
    needy: bool,
    /// When somebody looked after them last, for how long the program had run then, and how often they had polled.
    looked: Instant,
    ran: Duration,
    polls: u64,
}

impl Trust {
    /// Whether one who has polled so often can be thought to go on: not one who polls now and then.
    pub(super) fn is_steady(&self, now: Instant, polls: u64) -> bool {
        let often = now.saturating_since(self.looked).as_nanos() / EVERY.as_nanos();
        let since = u128::from(polls.wrapping_sub(self.polls));
        polls >= STEADY && (self.since.is_none() || since >= often.min(STEADILY))
    }

    /// Somebody polls, has done so often, and the program `ran` for so long. How long it is left alone before somebody
    /// looks: not at all if packets had to wait before.
    pub(super) fn moment(&mut self, now: Instant, ran: Duration, polls: u64) -> Duration {
        (self.looked, self.ran, self.polls) = (now, ran, polls);
        let since = *self.since.get_or_insert(now);
        if self.needy {
            return Duration::ZERO;
        }
        (now.saturating_since(since) / 8).clamp(MOMENT, MOMENT_MAX)
    }

    /// Somebody looked, or listened; whether packets had `waited`.
    pub(super) fn looked(&mut self, now: Instant, ran: Duration, waited: bool) {
        // Who did not run could not poll.
        let idle = ran.saturating_sub(self.ran) < now.saturating_since(self.looked) / 2;
        if !waited || !idle {
            self.needy = waited;
        }
        if self.needy {
            self.since = Some(now);
        }
    }

    /// Nobody polls any more; whether packets had `waited`.
    pub(super) fn end(&mut self, now: Instant, ran: Duration, waited: bool) {
        if self.since.is_some() && waited {
            self.looked(now, ran, waited);
        }
        self.since = None;
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
    fn who_gets_on_is_looked_after_ever_seldomer() {
        let mut trust = Trust::default();
        let moments = [0, 1, 8, 16, 24, 32, 1000].map(|now| {
            let moment = trust.moment(at(now), ms(now), 0);
            trust.looked(at(now), ms(now), false);
            moment
        });
        assert_eq!(moments, [MOMENT, MOMENT, ms(1), ms(2), ms(3), ms(4), MOMENT_MAX]);
    }

    #[test]
    fn who_let_packets_wait_is_listened_beside_until_it_does_not() {
        let mut trust = Trust::default();
        assert_eq!(trust.moment(at(0), ms(0), 0), MOMENT);
        assert_eq!(trust.moment(at(100), ms(100), 0), MOMENT_MAX);
        trust.looked(at(101), ms(101), true);
        assert_eq!(trust.moment(at(101), ms(101), 0), Duration::ZERO);
        trust.looked(at(102), ms(102), true);
        assert_eq!(trust.moment(at(102), ms(102), 0), Duration::ZERO);
        trust.looked(at(103), ms(103), false);
        assert_eq!(trust.moment(at(103), ms(103), 0), MOMENT, "it begins anew");
        // The same if it is found out because it polls no more.
        trust.end(at(105), ms(105), true);
        assert_eq!(trust.moment(at(106), ms(106), 0), Duration::ZERO);
    }

    #[test]
    fn who_was_kept_from_polling_is_left_alone() {
        let mut trust = Trust::default();
        assert_eq!(trust.moment(at(0), ms(0), 0), MOMENT);
        assert_eq!(trust.moment(at(16), ms(16), 0), ms(2));
        trust.looked(at(26), ms(17), true);
        assert_eq!(trust.moment(at(32), ms(18), 0), ms(4), "it did not run");
        trust.end(at(42), ms(19), true);
        assert_eq!(trust.moment(at(43), ms(20), 0), MOMENT);
    }

    #[test]
    fn who_polls_now_and_then_is_not_relied_on() {
        let mut trust = Trust::default();
        assert!(!trust.is_steady(at(0), STEADY - 1));
        assert!(trust.is_steady(at(0), STEADY));
        trust.moment(at(0), ms(0), STEADY);
        assert!(!trust.is_steady(at(1), STEADY + 14));
        assert!(trust.is_steady(at(1), STEADY + 15));
        assert!(!trust.is_steady(at(4), STEADY + 15));
        assert!(trust.is_steady(at(4), STEADY + 16));
    }
}
