//! Recovery of one requester: where it went back to, and what made it do so.

use core::time::Duration;
use std::collections::VecDeque;

use super::limits::NAKS_MAX;
use super::losses::OpenLoss;
use super::records::{Record, RecordFlags};
use super::spurious::Round;
use super::{PacketFacts, Requester, RetransmissionCause};
use crate::observe::disorder::Disorder;
use crate::observe::round_trip::RoundTrip;
use crate::observe::timing::{RTT_LEAST, TIMEOUT_LEAST};
use crate::time::{Instant, nanos};

/// A response that makes the requester go back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trigger {
    pub(super) cause: RetransmissionCause,
    /// Sequence number that it goes back to: the PSN of the NAK, or the first response that is
    /// missing.
    pub(super) sequence: u64,
    pub(super) time: Instant,
    pub(super) frame: u64,
    pub(super) asked: Asked,
}

impl Trigger {
    /// Whether the requester may still go back for it: what is settled counts only while the
    /// requester can be about to.
    pub(super) fn is_current(&self, now: Instant) -> bool {
        matches!(self.asked, Asked::Missing | Asked::Presumed | Asked::Passed | Asked::Dropped)
            || now.saturating_since(self.time) < TIMEOUT_LEAST
    }
}

/// State of the packet that a [`Trigger`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Not arrived.
    Missing,
    /// Not arrived when one before it arrives: it may be on its way.
    Presumed,
    /// Arrived after all, later than packets that were sent after it: it was not lost.
    Late,
    /// The answer to a copy of its request came: it was lost, or is late.
    Replayed,
    /// The requester went back, though not as far: the loss is told.
    Told,
    /// Arrived while an earlier one was missing, so that the responder dropped it.
    Dropped,
    /// The requester went on since: it had gone back, and what it retransmitted did not come to the
    /// capture point.
    Passed,
}

/// A timeout of which it is not known yet what was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenTimeout {
    /// Sequence number that the requester went back to.
    pub(super) sequence: u64,
    /// The frame of the retransmission.
    pub(super) frame: u64,
    /// The last packet that it had sent before: sequence and frame.
    pub(super) tail: (u64, u64),
    /// Whether it went back to a READ or ATOMIC: responses tell what was lost.
    pub(super) is_read: bool,
}

/// Reaction of a requester to losses.
#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    /// Sequence number that it sends next, unless it goes back.
    pub(super) cursor: u64,
    /// Number of times that the requester went back, and why it did so last.
    pub(super) pass: u32,
    pub(super) pass_start: u64,
    pub(super) pass_cause: Option<RetransmissionCause>,
    /// The frame with which it went back last.
    pub(super) pass_frame: u64,
    /// Whether it went back and has had no response in order since: it drops others, and goes back
    /// for none of them.
    pub(super) is_recovering: bool,
    /// A response that has been missing since it went back, although a later one came.
    pub(super) unanswered: Option<u64>,
    /// Responses that it dropped since it went back.
    pub(super) dropped: VecDeque<u64>,
    /// Sequence number behind the last response to what it had requested before it went back.
    pub(super) dropped_end: u64,
    /// The last NAK or RNR NAK that the requester has not acted on yet.
    pub(super) trigger: Option<Trigger>,
    /// The last sequence-error NAKs that it has not acted on, also those of what is acknowledged by
    /// now.
    pub(super) naks: VecDeque<Trigger>,
    /// The last SACK, and the end of what it reports on.
    pub(super) sack: Option<(Trigger, u64)>,
    /// The implied NAK that the requester has not acted on yet.
    pub(super) implied: Option<Trigger>,
    pub(super) open_timeout: Option<OpenTimeout>,
    /// Last round of retransmissions that no response asked for.
    pub(super) round: Option<Round>,
    /// Rewinds since the last progress, and the time of the last one.
    pub(super) attempts: u32,
    pub(super) attempt_time: Instant,
    /// Times that it went back to the same packet, and sent nothing new in between.
    pub(super) repeats: u32,
    /// The time of the first of these rewinds.
    pub(super) attempts_since: Instant,
    /// The longest time between two attempts without progress.
    pub(super) attempt_interval: Duration,
}

impl Recovery {
    /// Remembers a sequence-error NAK.
    pub(super) fn add_nak(&mut self, nak: Trigger) {
        if self.naks.len() >= NAKS_MAX {
            self.naks.pop_front();
        }
        self.naks.push_back(nak);
    }

    /// Takes back what was changed at `time`, and keeps what came since.
    fn restore(&mut self, before: Self, time: Instant) {
        let since = core::mem::replace(self, before);
        let newer = |known: Option<Trigger>| known.filter(|known| known.time > time);
        self.pass = since.pass;
        self.trigger = newer(since.trigger).or(self.trigger);
        self.implied = newer(since.implied).or(self.implied);
        for nak in since.naks.into_iter().filter(|nak| nak.time > time) {
            self.add_nak(nak);
        }
        if since.attempts == 0 {
            self.attempts = 0;
        }
    }

    /// A packet that a NAK names arrived at the responder after all.
    pub(super) fn mark_late(&mut self, sequence: u64) {
        let naks = self.naks.iter_mut().chain(&mut self.trigger);
        for nak in naks.filter(|nak| nak.sequence == sequence) {
            nak.asked = Asked::Late;
        }
    }

    /// The NAK that names a sequence number and that the requester has not acted on, or one that
    /// names what was acknowledged since: the requester goes back to the first that is not, as far
    /// as it knows then.
    pub(super) fn nak_of(&self, sequence: u64, unacked: u64, now: Instant) -> Option<Trigger> {
        let is_it = |nak: &&Trigger| {
            (nak.sequence == sequence || (nak.sequence < sequence && sequence <= unacked))
                && now.saturating_since(nak.time) < NAK_REACTION
        };
        self.naks.iter().rev().find(is_it).copied()
    }
}

/// Packets that a rewind repeats, or with which it goes on behind packets that did not come, and
/// that did not come before. If the packet behind them does not follow, or is new, the network
/// delivered them late.
#[derive(Clone, Debug)]
pub(super) struct Tentative {
    /// The state before it.
    pub(super) before: Recovery,
    pub(super) round_trip: RoundTrip,
    pub(super) disorder: Disorder,
    /// Consecutive packets, one at least.
    pub(super) packets: Vec<TentativePacket>,
    /// The sequence number behind them.
    pub(super) end: u64,
    pub(super) cause: RetransmissionCause,
    pub(super) wait: Duration,
    pub(super) time: Instant,
}

/// Packets of which it may stay open whether they were retransmitted or late.
const TENTATIVE_MAX: usize = 256;

/// A packet that was retransmitted, or late.
#[derive(Clone, Copy, Debug)]
pub(super) struct TentativePacket {
    /// Record before the packet came.
    pub(super) record: Record,
    pub(super) wire_len: u32,
    pub(super) frame: u64,
}

impl Requester {
    /// The requester goes back: once for each loss.
    pub(super) fn begin_recovery(&mut self) {
        let recovery = &mut self.recovery;
        recovery.is_recovering = true;
        recovery.unanswered = None;
        recovery.dropped.clear();
        recovery.dropped_end = self.answers.last.sequence + 1;
    }

    /// A response came in order.
    pub(super) fn end_recovery(&mut self) {
        self.recovery.is_recovering = false;
        self.recovery.unanswered = None;
    }

    /// Whether the requester went back and waits for what it requested again. If it waits for
    /// longer than its timeout takes, the capture has missed the response.
    pub(super) fn is_recovering(&self, now: Instant) -> bool {
        let since = now.saturating_since(self.recovery.attempt_time);
        self.recovery.is_recovering && since < self.round_trip.timeout_least()
    }

    /// Decides whether tentative packets were retransmitted or late, now that `packet` with the
    /// sequence number `next` came. Behind retransmitted packets, packets come again that came
    /// before. Behind late packets comes a new one, or another late one. Returns whether this one
    /// is late too, which leaves the question open.
    pub(super) fn settle_tentative(&mut self, next: u64, span: u32, packet: &PacketFacts) -> bool {
        let Some(mut tentative) = self.tentative.take() else { return false };
        let Some(first) = tentative.packets.first().map(|first| first.record.sequence) else {
            return false;
        };
        let (end, cursor) = (tentative.end, tentative.before.cursor);
        let (is_forward, now) = (first > cursor, packet.time);
        let record = self.progress.records.get(next).copied();
        let is_copy = |record: &Record| {
            record.is_seen()
                && record.digest == packet.digest
                && now.saturating_since(record.time) < RTT_LEAST
        };
        if (first..end).contains(&next) && record.as_ref().is_some_and(is_copy) {
            self.tentative = Some(tentative);
            return false;
        }
        let missing = record.filter(|record| record.missing > 0);
        if let Some(record) = missing.filter(|record| !record.is_seen())
            && (!is_forward && next == end && next < cursor)
            && tentative.packets.len() < TENTATIVE_MAX
        {
            let record = Record { sequence: next, ..record };
            let (wire_len, frame) = (packet.wire_len, packet.frame);
            tentative.packets.push(TentativePacket { record, wire_len, frame });
            tentative.end = next + u64::from(span);
            self.tentative = Some(tentative);
            return false;
        }
        let fills = missing.is_some();
        let follows = next > first && (is_forward || next < cursor) && !(fills && next > end);
        let is_repeated = !is_forward
            && next <= first
            && now.saturating_since(tentative.time) >= self.round_trip.timeout_least();
        if follows || is_repeated {
            if is_forward {
                self.skip_until(cursor, first);
            }
            return false;
        }
        if fills && next > end && next != cursor && next < self.next() {
            self.tentative = Some(tentative);
            return true;
        }
        if !is_forward && next >= cursor && self.has_reacted(&tentative, first, now) {
            return false;
        }
        self.take_back(*tentative, is_forward);
        false
    }

    /// Whether a NAK named the packet at `first`, and the requester has had the time to go back for
    /// it: before it sends a new packet it does so, and what came since was that.
    fn has_reacted(&self, tentative: &Tentative, first: u64, now: Instant) -> bool {
        let is_it =
            |nak: &Trigger| (nak.cause, nak.sequence) == (RetransmissionCause::SequenceNak, first);
        let Some(nak) = tentative.before.trigger.filter(is_it) else { return false };
        let between = self.round_trip.between_ends();
        // Without round trips of the other end it is not known how far away the requester is.
        between > self.round_trip.smoothed()
            && now.saturating_since(nak.time)
                >= between.max(self.round_trip.nak_reaction().saturating_mul(2)).saturating_mul(2)
    }

    /// Takes back that packets were retransmitted: they were late. `is_forward`: the requester was
    /// retransmitting before, and did not go back for them.
    fn take_back(&mut self, tentative: Tentative, is_forward: bool) {
        let counter = self.statistics.retransmissions.of_mut(tentative.cause);
        if !is_forward {
            counter.rewinds = counter.rewinds.saturating_sub(1);
            counter.wait_nanos = counter.wait_nanos.saturating_sub(nanos(tentative.wait));
        }
        self.recovery.restore(tentative.before, tentative.time);
        self.round_trip.restore_timeout(&tentative.round_trip);
        self.progress.disorder = tentative.disorder;
        for TentativePacket { record: before, wire_len, frame } in tentative.packets {
            let (sequence, bytes) = (before.sequence, u64::from(wire_len));
            let counter = self.statistics.retransmissions.of_mut(tentative.cause);
            counter.packets = counter.packets.saturating_sub(1);
            counter.bytes = counter.bytes.saturating_sub(bytes);
            if let Some(message) = self.messages.find_mut(sequence) {
                message.retransmitted_packets = message.retransmitted_packets.saturating_sub(1);
                message.retransmitted_bytes = message.retransmitted_bytes.saturating_sub(bytes);
            }
            if let Some(record) = self.progress.records.get_mut(sequence) {
                // It was sent when it was missed.
                (record.time, record.pass) = (before.time, before.pass);
                record.missing = record.missing.saturating_sub(1);
                record.flags |= RecordFlags::LATE;
            }
            self.disprove_loss(sequence);
            let is_out_of_order = is_forward || self.progress.disorder.fall_behind(sequence);
            let lateness = is_out_of_order.then(|| self.lateness_of(sequence, tentative.time));
            self.count_late(frame, lateness);
        }
    }

    /// A packet that was taken for lost came late: its loss is not told.
    pub(super) fn disprove_loss(&mut self, sequence: u64) {
        self.losses.disprove(|loss| loss.is_request(sequence));
    }

    /// The responder answers a request once more, so that it has two transmissions of it: what was
    /// taken for lost because of a timeout was not.
    pub(super) fn disprove_timeout(&mut self) {
        self.losses.disprove(OpenLoss::is_by_timeout);
    }

    /// The responder answers long after the last retransmission.
    pub(super) fn note_slow_answer(&mut self, packet: &PacketFacts) {
        let since = self.recovery.attempts_since;
        let nanos = nanos(packet.time.saturating_since(since));
        let slow = &mut self.statistics.slow_answers;
        (slow.count, slow.longest_nanos) = (slow.count + 1, slow.longest_nanos.max(nanos));
        self.evidence().slow_answers.push(packet.frame);
    }
}

/// A requester acts on a NAK sooner than this.
pub(super) const NAK_REACTION: Duration = Duration::from_millis(20);
