//! Recovery of one requester: the responses that permit a rewind, and its rewinds.

use core::time::Duration;

use super::limits::REACTION;
use super::record::Record;
use crate::observe::transmissions::Spanning;
use crate::time::Instant;

/// A response that permits a rewind: a NAK with the code PSN sequence error, or a response that
/// passed a missing one and so implies a NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trigger {
    /// First and last sequence number that the requester may go back to.
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) time: Instant,
    pub(super) frame: u64,
    /// Whether the requester went back since.
    pub(super) is_served: bool,
}

impl Trigger {
    fn contains(&self, sequence: u64) -> bool {
        (self.from..=self.until).contains(&sequence)
    }

    /// Whether the requester may not have handled it yet.
    fn is_recent(&self, now: Instant) -> bool {
        now <= self.time.saturating_add(REACTION)
    }
}

/// An RNR NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rnr {
    pub(super) sequence: u64,
    pub(super) time: Instant,
    pub(super) frame: u64,
    pub(super) timer: Duration,
}

/// The last response of a kind. A requester may react to one for which the acknowledgement was
/// captured, but not handled yet.
#[derive(Clone, Copy, Debug)]
struct Latest<T> {
    open: Option<T>,
    /// The last one that names a packet which is acknowledged by now.
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
    /// Any of these.
    Unknown,
}

/// Rewinds since the last progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    pub(super) losses: u32,
    pub(super) rnrs: u32,
    /// First unacknowledged sequence number at the first of them, and where that went back to.
    una: u64,
    start: u64,
}

/// Rewinds of one requester.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Number of rewinds; sequence number and time of the last one.
    pass: u32,
    start: u64,
    time: Instant,
    /// Sequence number that it sends next, unless it goes back.
    cursor: u64,
    nak: Latest<Trigger>,
    /// The last response that implies a NAK (§9.7.5.1.1).
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

    /// Number of rewinds.
    pub(super) fn pass(&self) -> u32 {
        self.pass
    }

    /// Whether a packet that is not yet seen in this pass is within it: later ones overtook it.
    pub(super) fn is_overtaken(&self, sequence: u64, record: &Record) -> bool {
        record.pass != self.pass && sequence >= self.start
    }

    /// Whether a packet before this pass may be its first, which later ones overtook: the pass is
    /// no older than `age`.
    pub(super) fn may_have_begun(&self, record: &Record, now: Instant, age: Duration) -> bool {
        record.pass != self.pass && self.pass > 0 && now.saturating_since(self.time) <= age
    }

    /// Takes a sequence-error NAK.
    pub(super) fn handle_nak(&mut self, nak: Trigger) {
        if self.nak.open.is_some_and(|known| known.from == nak.from && !known.is_served) {
            return;
        }
        // This NAK acknowledges what an earlier one named; the requester may react to both.
        self.nak.settle(|known| known.until < nak.from);
        self.nak.open = Some(nak);
    }

    /// Takes a response that implies a NAK.
    pub(super) fn handle_overtaken(&mut self, implied: Trigger) {
        let range = (implied.from, implied.until);
        if !self.implied.open.is_some_and(|it| (it.from, it.until) == range && !it.is_served) {
            self.implied.open = Some(implied);
        }
    }

    /// Takes an RNR NAK of a packet that was transmitted last at `sent`. While its RNR timer runs,
    /// a requester ignores further ones.
    pub(super) fn handle_rnr(&mut self, rnr: Rnr, sent: Instant) {
        let is_waiting = |known: Rnr| known.sequence == rnr.sequence && sent <= known.time;
        if !self.rnr.open.is_some_and(is_waiting) {
            self.rnr.open = Some(rnr);
        }
    }

    /// Settles the responses that name packets before `una`.
    pub(super) fn settle(&mut self, una: u64) {
        self.nak.settle(|nak| nak.until < una);
        self.implied.settle(|implied| implied.until < una);
        self.rnr.settle(|rnr| rnr.sequence < una);
    }

    /// The last NAK, if the requester did not go back since.
    pub(super) fn unserved_nak(&self) -> Option<Trigger> {
        self.nak.open.filter(|nak| !nak.is_served)
    }

    /// Whether the last NAK names a sequence number.
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

    /// Whether a rewind is the reaction to a NAK that was settled shortly before, or to the NAK
    /// that settled it: a requester may go back for each.
    pub(super) fn is_reaction(&self, sequence: u64, now: Instant) -> bool {
        let recent = |nak: Option<Trigger>| nak.filter(|nak| nak.is_recent(now));
        let naks = [recent(self.nak.settled), recent(self.nak.open)];
        naks[0].is_some() && naks.iter().flatten().any(|nak| nak.contains(sequence))
    }

    /// Whether a NAK, real or implied, that was settled shortly before permits a rewind to a packet
    /// behind the one that it names.
    pub(super) fn has_settled_cause(&self, sequence: u64, record: &Record, now: Instant) -> bool {
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

    /// The settled RNR NAK whose timer the requester may wait for before it retransmits a packet
    /// behind the one that was refused.
    pub(super) fn settled_rnr_of(&self, sequence: u64, record: &Record) -> Option<Rnr> {
        self.rnr.settled.filter(|rnr| rnr.sequence <= sequence && record.time <= rnr.time)
    }

    /// Takes a rewind to a packet.
    pub(super) fn go_back(&mut self, sequence: u64, record: &Record, now: Instant) {
        self.pass = self.pass.wrapping_add(1);
        (self.start, self.time) = (sequence, now);
        for trigger in [&mut self.nak.open, &mut self.implied.open].into_iter().flatten() {
            trigger.is_served |= trigger.time >= record.time || sequence <= trigger.until;
        }
    }

    /// Counts a rewind to a sequence number. Returns the rewinds since the last progress.
    pub(super) fn count(&mut self, cause: Cause, sequence: u64, una: u64) -> Attempts {
        // A rewind to a later packet shows progress, too.
        if self.attempts.una != una || sequence > self.attempts.start {
            self.attempts = Attempts { una, start: sequence, ..Attempts::default() };
        }
        self.attempts.losses += u32::from(cause == Cause::Loss);
        self.attempts.rnrs += u32::from(cause == Cause::Rnr);
        self.attempts
    }

    /// Whether the requester went back for a loss since the last progress.
    pub(super) fn is_retrying(&self, una: u64) -> bool {
        self.attempts.losses > 0 && self.attempts.una == una
    }
}
