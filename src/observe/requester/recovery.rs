//! Recovery of one requester: the responses that make it go back, and where it went back to.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::VecDeque;

use crate::observe::packet::PacketFacts;
use crate::observe::timing::{NAK_REACTION, REACTION, TIMEOUT_LEAST};
use crate::observe::transmissions::Sent;
use crate::time::Instant;

/// Sequence-error NAKs that are remembered until the requester acts on them.
pub(crate) const NAKS_MAX: usize = 8;

/// Kind of a response that makes a requester go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// NAK with the code PSN sequence error, or a SACK.
    SequenceError,
    /// Response that passed a missing one (§9.7.5.1.1).
    ImpliedNak,
    RnrNak,
}

/// A response that makes a requester go back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger {
    pub(crate) signal: Signal,
    /// First and last sequence number that the requester may go back to: from the PSN of the NAK,
    /// or from the first response that is missing.
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) time: Instant,
    pub(crate) frame: u64,
    /// Time that an RNR NAK makes the requester wait.
    pub(crate) timer: Duration,
    pub(crate) asked: Asked,
}

/// State of the packet that a [`Trigger`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not arrived.
    Missing,
    /// Not arrived when one before it arrives: it may be on its way.
    Presumed,
    /// Arrived after all, later than packets that were sent after it: it was not lost.
    Late,
    /// The answer to a copy of its request came: it was lost, or is late.
    Replayed,
    /// The requester went back since, though perhaps not as far.
    Served,
    /// Arrived while an earlier one was missing, so that the responder dropped it.
    Dropped,
}

impl Trigger {
    /// Returns a trigger of one sequence number, at which the requester did not go back yet.
    pub(crate) fn new(signal: Signal, from: u64, (time, frame): (Instant, u64)) -> Self {
        let (until, timer, asked) = (from, Duration::ZERO, Asked::Missing);
        Self { signal, from, until, time, frame, timer, asked }
    }

    /// Returns the trigger of a SACK: it asks for packets `from` its own sequence number to the end
    /// of its bitmap.
    pub(crate) fn of_sack(packet: &PacketFacts, from: u64) -> Self {
        let sack = Self::new(Signal::SequenceError, from, (packet.time, packet.frame));
        Self { until: from + u64::from(packet.payload_len) * 8, ..sack }
    }

    /// Whether the requester may still go back for it: what is settled counts only while the
    /// requester can be about to.
    pub(crate) fn is_current(&self, now: Instant) -> bool {
        !matches!(self.asked, Asked::Late | Asked::Replayed | Asked::Served)
            || now.saturating_since(self.time) < TIMEOUT_LEAST
    }

    /// Time when an RNR timer expires.
    pub(crate) fn expires(&self) -> Instant {
        self.time.saturating_add(self.timer)
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        (self.from..=self.until).contains(&sequence)
    }

    /// Whether the requester went back since.
    pub(crate) fn is_served(&self) -> bool {
        self.asked == Asked::Served
    }

    /// Whether a requester at the capture point may not have handled it yet.
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        now <= self.time.saturating_add(REACTION)
    }
}

/// The last response of a kind. A requester may react to one for which the acknowledgement was
/// captured, but not handled yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latest {
    pub(super) open: Option<Trigger>,
    /// The last one that names a packet which is acknowledged by now.
    pub(super) settled: Option<Trigger>,
}

impl Latest {
    fn settle(&mut self, una: u64) {
        self.settled = self.open.take_if(|it| it.until < una).or(self.settled);
    }

    /// Returns those that came after `time`, else those `before`.
    fn or(self, before: Self, time: Instant) -> Self {
        let since = |it: Option<Trigger>| it.filter(|it| it.time > time);
        Self {
            open: since(self.open).or(before.open),
            settled: since(self.settled).or(before.settled),
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Trigger) -> bool) {
        self.open = self.open.filter(&is_kept);
        self.settled = self.settled.filter(is_kept);
    }
}

/// The last rewind of a requester.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rewind {
    /// Number of rewinds.
    pub(crate) pass: u32,
    /// Sequence number that it went back to.
    pub(crate) start: u64,
    pub(crate) time: Instant,
    pub(crate) frame: u64,
}

/// Responses that make one requester go back, and its rewinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    /// Sequence number that it sends next, unless it goes back.
    cursor: u64,
    rewind: Rewind,
    pub(super) nak: Latest,
    pub(super) implied: Latest,
    rnr: Latest,
    /// The last sequence-error NAKs that it has not acted on, also those of what is acknowledged by
    /// now.
    naks: VecDeque<Trigger>,
    /// The last SACK.
    sack: Option<Trigger>,
}

impl Recovery {
    /// Begins at a sequence number.
    pub(crate) fn start_at(&mut self, sequence: u64) {
        let rewind = Rewind { start: sequence, ..Rewind::default() };
        *self = Self { cursor: sequence, rewind, ..Self::default() };
    }

    /// Forgets the responses: what follows has nothing to do with them.
    pub(crate) fn forget_triggers(&mut self) {
        (self.nak, self.implied, self.rnr) = Default::default();
        self.naks.clear();
    }

    /// Sequence number that it sends next, unless it goes back.
    #[inline]
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Sets the sequence number that it sends next.
    #[inline]
    pub(crate) fn set_cursor(&mut self, cursor: u64) {
        self.cursor = cursor;
    }

    /// The last rewind.
    pub(crate) fn rewind(&self) -> Rewind {
        self.rewind
    }

    /// The requester went back to a sequence number.
    pub(crate) fn go_back(&mut self, sequence: u64, now: Instant, frame: u64) {
        let pass = self.rewind.pass.wrapping_add(1);
        self.rewind = Rewind { pass, start: sequence, time: now, frame };
        self.cursor = sequence;
    }

    /// Takes a response that names a packet which was transmitted last at `sent`, unless the same
    /// one waits for the requester.
    pub(crate) fn handle(&mut self, trigger: Trigger, sent: Instant) {
        let latest = match trigger.signal {
            Signal::SequenceError => &mut self.nak,
            Signal::ImpliedNak => &mut self.implied,
            Signal::RnrNak => &mut self.rnr,
        };
        let range = (trigger.from, trigger.until);
        let is_same = |known: Trigger| (known.from, known.until) == range && sent <= known.time;
        if latest.open.is_some_and(|known| is_same(known) && !known.is_served()) {
            return;
        }
        // It acknowledges what an earlier one named; the requester may react to both.
        latest.settle(trigger.from);
        latest.open = Some(trigger);
    }

    /// Remembers a sequence-error NAK until the requester acts on it.
    pub(crate) fn remember_nak(&mut self, nak: Trigger) {
        if self.naks.len() >= NAKS_MAX {
            self.naks.pop_front();
        }
        self.naks.push_back(nak);
    }

    /// Takes a SACK: the requester retransmits what is missing as far as it reports, and nothing
    /// else.
    pub(crate) fn handle_sack(&mut self, sack: Trigger) {
        self.sack = Some(sack);
    }

    /// Settles the NAKs and RNR NAKs that name packets before `una`. The requester may go back for
    /// a NAK all the same, for a while.
    #[inline]
    pub(crate) fn settle(&mut self, una: u64, now: Instant) {
        self.nak.settle(una);
        self.nak.settled.take_if(|nak| now.saturating_since(nak.time) >= TIMEOUT_LEAST);
        self.rnr.settle(una);
    }

    /// Settles the implied NAK of a response before `una`.
    pub(crate) fn settle_implied(&mut self, una: u64) {
        self.implied.settle(una);
    }

    /// Notes that the requester went back to a packet, transmitted before at `sent`, for what asks
    /// for that.
    pub(crate) fn serve(&mut self, sequence: u64, sent: Instant) {
        for trigger in [&mut self.nak.open, &mut self.implied.open].into_iter().flatten() {
            if trigger.time >= sent || sequence <= trigger.until {
                trigger.asked = Asked::Served;
            }
        }
    }

    /// Forgets what a rewind to `sequence` satisfies: all but NAKs and implied NAKs of earlier
    /// packets. `used` made it go back; `is_in_read`: into the READ that an implied NAK asks for.
    pub(crate) fn satisfy(&mut self, sequence: u64, used: Option<Trigger>, is_in_read: bool) {
        // A late packet behind the one that is asked for looks like a retransmission: that of the
        // one asked for follows.
        let named = used.map_or(sequence, |used| used.from);
        self.naks.retain(|nak| nak.from != sequence && nak.from > named);
        self.rnr.open = None;
        self.nak.settled.take_if(|_| self.nak.open.is_some());
        self.nak.retain(|nak| nak.from < sequence);
        self.implied.retain(|it| it.from < sequence && !is_in_read);
        let all = [&mut self.nak.open, &mut self.nak.settled, &mut self.implied.open];
        let is_used = |it: &&mut Trigger| used.is_some_and(|used| used.frame == it.frame);
        all.into_iter().flatten().filter(is_used).for_each(|it| it.asked = Asked::Served);
    }

    /// Takes back a rewind at `time`, and keeps the responses since.
    pub(crate) fn restore(&mut self, before: Self, time: Instant) {
        let since = core::mem::replace(self, before);
        self.rewind.pass = since.rewind.pass;
        self.nak = since.nak.or(self.nak, time);
        self.implied = since.implied.or(self.implied, time);
        self.rnr = since.rnr.or(self.rnr, time);
        since.naks.into_iter().filter(|nak| nak.time > time).for_each(|nak| self.remember_nak(nak));
    }

    /// The last NAK or RNR NAK that the requester has not acted on.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<Trigger> {
        let all = [self.nak.settled, self.nak.open, self.rnr.open];
        all.into_iter().flatten().max_by_key(|it| (it.time, it.frame))
    }

    /// Takes the last NAK or RNR NAK, if it names a sequence number.
    pub(crate) fn take_refusal(&mut self, sequence: u64) -> Option<Trigger> {
        let refusal = self.refusal().filter(|refusal| refusal.from == sequence)?;
        for slot in [&mut self.nak.settled, &mut self.nak.open, &mut self.rnr.open] {
            slot.take_if(|it| it.frame == refusal.frame);
        }
        Some(refusal)
    }

    /// The last NAK, implied NAK or RNR NAK of a packet that is not acknowledged.
    #[inline]
    pub(crate) fn open(&self, signal: Signal) -> Option<Trigger> {
        match signal {
            Signal::SequenceError => self.nak.open,
            Signal::ImpliedNak => self.implied.open,
            Signal::RnrNak => self.rnr.open,
        }
    }

    /// Whether a response may make it go back.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        let all = [&self.implied.open, &self.nak.open, &self.nak.settled, &self.rnr.open];
        all.into_iter().any(Option::is_some)
    }

    /// The response that was missing came, one of `answered`, to a READ or ATOMIC that was
    /// requested so many times. The requester goes back for it all the same, if a later one came to
    /// it before (§9.7.5.1.1).
    pub(crate) fn answer_implied(
        &mut self,
        answered: RangeInclusive<u64>,
        requests: u32,
        now: Instant,
    ) {
        let open = &mut self.implied.open;
        open.take_if(|it| it.asked == Asked::Presumed && it.from <= *answered.end());
        let Some(implied) = open.as_mut().filter(|it| answered.contains(&it.from)) else { return };
        if implied.asked == Asked::Missing {
            implied.asked = if requests < 2 { Asked::Late } else { Asked::Replayed };
        }
        open.take_if(|implied| !implied.is_current(now));
    }

    /// A packet that a NAK names arrived at the responder after all.
    pub(crate) fn mark_late(&mut self, sequence: u64) {
        let latest = [&mut self.nak.settled, &mut self.nak.open, &mut self.rnr.open];
        let all = self.naks.iter_mut().chain(latest.into_iter().flatten());
        all.filter(|nak| nak.from == sequence).for_each(|nak| nak.asked = Asked::Late);
    }

    /// Returns the NAK that explains a retransmission from `sequence`: one of that number on which
    /// the requester has not acted, or one of an earlier number if everything between was
    /// acknowledged since.
    pub(crate) fn nak_of(&self, sequence: u64, unacked: u64, now: Instant) -> Option<Trigger> {
        let is_it = |nak: &&Trigger| {
            (nak.from == sequence || (nak.from < sequence && sequence <= unacked))
                && now.saturating_since(nak.time) < NAK_REACTION
        };
        self.naks.iter().rev().find(is_it).copied()
    }

    /// The SACK that reports a packet as missing.
    pub(crate) fn sack_of<T>(&self, sequence: u64, record: &Sent<T>) -> Option<Trigger> {
        self.sack.filter(|sack| sack.contains(sequence) && record.time < sack.time)
    }

    /// The RNR NAK that refused the last transmission of a packet.
    pub(crate) fn rnr_of<T>(&self, record: &Sent<T>) -> Option<Trigger> {
        self.rnr.open.filter(|rnr| record.range().contains(&rnr.from) && rnr.time >= record.time)
    }

    /// The settled RNR NAK whose timer the requester may wait for before it retransmits a packet
    /// behind the one that was refused.
    pub(crate) fn settled_rnr_of<T>(&self, sequence: u64, record: &Sent<T>) -> Option<Trigger> {
        self.rnr.settled.filter(|rnr| rnr.from <= sequence && record.time <= rnr.time)
    }
}
