//! Responses that let a requester go back, and how often it did.

use super::limits::REACTION_NANOS;
use super::record::Record;
use crate::observe::transmissions::Spanning;

/// A NAK with the code PSN sequence error, or a response behind one that is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trigger {
    /// First and last sequence number that the requester may go back to.
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) time: u64,
    pub(super) frame: u64,
    /// The requester went back.
    pub(super) is_served: bool,
}

impl Trigger {
    fn contains(&self, sequence: u64) -> bool {
        (self.from..=self.until).contains(&sequence)
    }

    /// Whether it was captured so recently that the requester may not have handled it yet.
    fn is_recent(&self, now: u64) -> bool {
        now <= self.time.saturating_add(REACTION_NANOS)
    }
}

/// An RNR NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rnr {
    pub(super) sequence: u64,
    pub(super) time: u64,
    pub(super) frame: u64,
    /// The timer in nanoseconds.
    pub(super) timer: u64,
}

/// The last response of a kind. The requester may react to it before it handles what settles it.
#[derive(Clone, Copy, Debug)]
struct Latest<T> {
    open: Option<T>,
    /// The last one of what is done by now.
    settled: Option<T>,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self { open: None, settled: None }
    }
}

impl<T: Copy> Latest<T> {
    fn settle(&mut self, is_done: impl FnOnce(&mut T) -> bool) {
        self.settled = self.open.take_if(is_done).or(self.settled);
    }
}

/// Cause of a rewind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Rnr,
    /// NAK, missing response, or timeout.
    Loss,
    /// One of the two.
    Unknown,
}

/// Rewinds without progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    pub(super) losses: u32,
    pub(super) rnrs: u32,
    /// First sequence number that was not acknowledged then, and where it went back to first.
    una: u64,
    start: u64,
}

/// Rewinds of one requester.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Number of times that the requester went back; where to, and when.
    pass: u32,
    start: u64,
    time: u64,
    /// Sequence number that it sends next, unless it goes back.
    cursor: u64,
    nak: Latest<Trigger>,
    /// A response behind one that is missing. What passed a missing response counts nothing, so
    /// the requester may still go back to the first request that no response counts.
    implied: Latest<Trigger>,
    rnr: Latest<Rnr>,
    attempts: Attempts,
}

impl Recovery {
    /// Begins at a sequence number.
    pub(super) fn start_at(&mut self, sequence: u64) {
        let attempts = Attempts { una: sequence, ..Attempts::default() };
        *self = Self { start: sequence, cursor: sequence, attempts, ..Self::default() };
    }

    /// Sequence number that it sends next, unless it goes back.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Sets the sequence number that it sends next.
    pub(super) fn set_cursor(&mut self, cursor: u64) {
        self.cursor = cursor;
    }

    /// Number of times that the requester went back.
    pub(super) fn pass(&self) -> u32 {
        self.pass
    }

    /// Whether a packet of this pass was overtaken by others of it.
    pub(super) fn is_overtaken(&self, sequence: u64, record: &Record) -> bool {
        record.pass != self.pass && sequence >= self.start
    }

    /// Whether a packet may have begun this pass, and was overtaken by the others: the pass began
    /// no longer than `nanos` ago.
    pub(super) fn may_have_begun(&self, record: &Record, now: u64, nanos: u64) -> bool {
        record.pass != self.pass && self.pass > 0 && now.saturating_sub(self.time) <= nanos
    }

    /// Takes a sequence-error NAK.
    pub(super) fn handle_nak(&mut self, nak: Trigger) {
        if self.nak.open.is_some_and(|known| known.from == nak.from && !known.is_served) {
            return;
        }
        // One that names an earlier packet is settled, and may be acted on first.
        self.nak.settle(|known| known.until < nak.from);
        self.nak.open = Some(nak);
    }

    /// Takes a response behind one that is missing.
    pub(super) fn handle_overtaken(&mut self, implied: Trigger) {
        let range = (implied.from, implied.until);
        if !self.implied.open.is_some_and(|it| (it.from, it.until) == range && !it.is_served) {
            self.implied.open = Some(implied);
        }
    }

    /// Takes an RNR NAK of a packet that was transmitted last at `sent`: while it waits, a
    /// requester ignores further ones.
    pub(super) fn handle_rnr(&mut self, rnr: Rnr, sent: u64) {
        let is_waiting = |known: Rnr| known.sequence == rnr.sequence && sent <= known.time;
        if !self.rnr.open.is_some_and(is_waiting) {
            self.rnr.open = Some(rnr);
        }
    }

    /// All before `una` is done, however that came.
    pub(super) fn settle(&mut self, una: u64) {
        self.nak.settle(|nak| nak.until < una);
        self.implied.settle(|implied| implied.until < una);
        self.rnr.settle(|rnr| rnr.sequence < una);
    }

    /// The NAK that the requester has not acted on.
    pub(super) fn unserved_nak(&self) -> Option<Trigger> {
        self.nak.open.filter(|nak| !nak.is_served)
    }

    /// Whether a NAK names the packet at a sequence number.
    pub(super) fn is_named(&self, sequence: u64) -> bool {
        self.nak.open.is_some_and(|nak| nak.from == sequence)
    }

    /// Whether the requester waits for an RNR timer.
    pub(super) fn is_waiting(&self) -> bool {
        self.rnr.open.is_some()
    }

    fn triggers(&self) -> impl Iterator<Item = Trigger> {
        [self.nak.open, self.implied.open].into_iter().flatten()
    }

    /// Whether a NAK or a missing response asks for a packet.
    pub(super) fn is_asked_for(&self, sequence: u64, record: &Record) -> bool {
        self.triggers().any(|trigger| {
            let is_it = trigger.contains(sequence)
                || (record.sequence..record.end()).contains(&trigger.from);
            is_it && !trigger.is_served
        })
    }

    /// Whether a NAK or a missing response asks for a packet before `sequence`.
    pub(super) fn is_asked_before(&self, sequence: u64) -> bool {
        self.triggers().any(|trigger| trigger.from < sequence)
    }

    /// Whether the requester goes back for a NAK of what is done by now, or for the one that came
    /// soon after it: it goes back for each.
    pub(super) fn is_reaction(&self, sequence: u64, now: u64) -> bool {
        let recent = |nak: Option<Trigger>| nak.filter(|nak| nak.is_recent(now));
        let naks = [recent(self.nak.settled), recent(self.nak.open)];
        naks[0].is_some() && naks.iter().flatten().any(|nak| nak.contains(sequence))
    }

    /// Whether a NAK, or a missing response, of what is done by now lets the requester go back to
    /// a packet behind it.
    pub(super) fn has_settled_cause(&self, sequence: u64, record: &Record, now: u64) -> bool {
        [self.nak.settled, self.implied.settled]
            .iter()
            .flatten()
            .any(|it| it.is_recent(now) && it.from <= sequence && record.time <= it.time)
    }

    /// The RNR NAK that refused the last transmission of a packet.
    pub(super) fn rnr_of(&self, record: &Record) -> Option<Rnr> {
        self.rnr.open.filter(|rnr| {
            (record.sequence..record.end()).contains(&rnr.sequence) && rnr.time >= record.time
        })
    }

    /// The RNR NAK of what is done by now, whose timer the requester may wait for before it goes
    /// on with a packet behind it.
    pub(super) fn settled_rnr_of(&self, sequence: u64, record: &Record) -> Option<Rnr> {
        self.rnr.settled.filter(|rnr| rnr.sequence <= sequence && record.time <= rnr.time)
    }

    /// The requester went back to a packet.
    pub(super) fn go_back(&mut self, sequence: u64, record: &Record, now: u64) {
        self.pass = self.pass.wrapping_add(1);
        (self.start, self.time) = (sequence, now);
        for trigger in [&mut self.nak.open, &mut self.implied.open].into_iter().flatten() {
            trigger.is_served |= trigger.time >= record.time || sequence <= trigger.until;
        }
    }

    /// Counts a rewind to a sequence number. Returns those without progress.
    pub(super) fn count(&mut self, cause: Cause, sequence: u64, una: u64) -> Attempts {
        // That it goes back less far shows progress, too.
        if self.attempts.una != una || sequence > self.attempts.start {
            self.attempts = Attempts { una, start: sequence, ..Attempts::default() };
        }
        self.attempts.losses += u32::from(cause == Cause::Loss);
        self.attempts.rnrs += u32::from(cause == Cause::Rnr);
        self.attempts
    }

    /// Whether it went back for a loss since the last progress.
    pub(super) fn is_retrying(&self, una: u64) -> bool {
        self.attempts.losses > 0 && self.attempts.una == una
    }
}
