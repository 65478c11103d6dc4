//! Possible causes of a packet whose PSN was transmitted before.

use core::time::Duration;

use super::recovery::{Recovery, Trigger};
use crate::observe::transmissions::Sent;
use crate::time::Instant;

bitflags::bitflags! {
    /// Possible causes of a packet whose PSN was transmitted before: none of them excludes another.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Causes: u16 {
        /// The requester goes on with what it retransmits.
        const CONTINUED = 1;
        /// A sequence-error NAK or an implied NAK names the packet.
        const NAK = 1 << 1;
        /// A sequence-error NAK or an implied NAK names an earlier packet.
        const EARLIER_NAK = 1 << 2;
        /// A NAK names the packet, and it, or one before it, was acknowledged shortly before.
        const SETTLED_NAK = 1 << 3;
        /// A NAK, real or implied, named an earlier packet, which was acknowledged shortly before.
        const SETTLED_EARLIER_NAK = 1 << 4;
        /// The retransmission timeout may have passed since its last transmission.
        const TIMEOUT = 1 << 5;
        /// Later packets of the present pass overtook it.
        const OVERTAKEN = 1 << 6;
        /// It may be the first packet of the present pass, which later ones overtook.
        const OVERTAKEN_FIRST = 1 << 7;
        /// Its last transmission is so recent that the network may have made a copy of it.
        const COPY = 1 << 8;
    }
}

/// Tolerances of a judge of causes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    /// Shortest retransmission timeout.
    pub(crate) timeout: Duration,
    /// Longest time from a packet to a copy of it.
    pub(crate) copy: Duration,
}

impl Recovery {
    /// Returns the possible causes of a packet that was transmitted before, in `record`, and comes
    /// again at `now`.
    pub(crate) fn causes<T>(
        &self,
        sequence: u64,
        record: &Sent<T>,
        now: Instant,
        tolerance: Tolerance,
    ) -> Causes {
        let rewind = self.rewind();
        let elapsed = now.saturating_since(record.time);
        let is_other_pass = record.pass != rewind.pass;
        let is_new_pass = now.saturating_since(rewind.time) <= tolerance.copy;
        let names = |it: &Trigger| it.contains(sequence) || record.range().contains(&it.from);
        let naks = [self.nak.open, self.implied.open];
        let mut naks = naks.iter().flatten();
        // A requester may go back for a NAK that was settled, and for the one that settled it.
        let is_recent = |it: &&Trigger| it.is_recent(now);
        let settled = self.nak.settled.iter().find(is_recent);
        let mut recent = self.nak.open.iter().filter(is_recent).chain(settled);
        let is_settled = settled.is_some() && recent.any(|nak| nak.contains(sequence));
        let is_behind = |it: &Trigger| it.from <= sequence && record.time <= it.time;
        let mut behind = settled.into_iter().chain(self.implied.settled.iter().filter(is_recent));
        let all = [
            (Causes::CONTINUED, sequence >= self.cursor()),
            (Causes::EARLIER_NAK, naks.clone().any(|it| it.from < sequence)),
            (Causes::NAK, naks.any(|it| names(it) && !it.is_served())),
            (Causes::SETTLED_NAK, is_settled),
            (Causes::SETTLED_EARLIER_NAK, behind.any(is_behind)),
            (Causes::TIMEOUT, elapsed >= tolerance.timeout),
            (Causes::OVERTAKEN, is_other_pass && sequence >= rewind.start),
            (Causes::OVERTAKEN_FIRST, is_other_pass && rewind.pass > 0 && is_new_pass),
            (Causes::COPY, elapsed <= tolerance.copy),
        ];
        all.into_iter().filter(|(_, is_possible)| *is_possible).map(|(cause, _)| cause).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::requester::recovery::Signal;

    const TOLERANCE: Tolerance =
        Tolerance { timeout: Duration::from_millis(1), copy: Duration::from_micros(1) };

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn sent(sequence: u64, micros: u64) -> Sent<()> {
        let time = at(micros);
        Sent { sequence, span: 1, transmissions: 1, pass: 0, time, frame: 0, marks: () }
    }

    /// A requester that sent up to 20, and had a NAK of 10 at 100 µs.
    fn naked() -> Recovery {
        let mut recovery = Recovery::default();
        recovery.start_at(20);
        recovery.handle(Trigger::new(Signal::SequenceError, 10, (at(100), 7)), at(0));
        recovery
    }

    #[test]
    fn nak_is_a_cause_until_the_requester_goes_back() {
        let mut recovery = naked();
        let causes = |recovery: &Recovery, sequence, micros| {
            recovery.causes(sequence, &sent(sequence, 0), at(micros), TOLERANCE)
        };
        assert_eq!(causes(&recovery, 10, 200), Causes::NAK);
        assert_eq!(causes(&recovery, 11, 200), Causes::EARLIER_NAK);
        assert_eq!(causes(&recovery, 10, 1000), Causes::NAK | Causes::TIMEOUT);
        recovery.go_back(10, at(200), 8);
        recovery.serve(10, at(0));
        recovery.set_cursor(11);
        assert_eq!(causes(&recovery, 10, 300), Causes::OVERTAKEN);
        assert!(causes(&recovery, 11, 300).contains(Causes::CONTINUED));
    }

    #[test]
    fn settled_nak_is_a_cause_while_the_requester_may_not_know() {
        let mut recovery = naked();
        recovery.settle(12, at(110));
        let causes = |micros| recovery.causes(10, &sent(10, 0), at(micros), TOLERANCE);
        assert_eq!(causes(150), Causes::SETTLED_NAK | Causes::SETTLED_EARLIER_NAK);
        assert_eq!(causes(500), Causes::empty());
    }
}
