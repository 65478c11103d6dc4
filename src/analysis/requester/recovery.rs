//! Reaction of one requester to losses, and rewinds of which it is open whether they are any.

use core::time::Duration;
use std::collections::VecDeque;

use super::records::{Record, RecordFlags};
use super::spurious::Round;
use super::{PacketFacts, Requester, RetransmissionCause};
use crate::observe::disorder::Disorder;
use crate::observe::requester::recovery::{Recovery, Signal, Trigger};
use crate::observe::round_trip::RoundTrip;
use crate::time::{Instant, nanos};

/// A timeout of which it is not known yet what was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenTimeout {
    /// Sequence number that the requester went back to.
    pub(super) sequence: u64,
    /// The frame of the retransmission.
    pub(super) frame: u64,
    /// The last packet that it had sent before: sequence and frame.
    pub(super) tail: (u64, u64),
    pub(super) tail_time: Instant,
    /// Whether it went back to a READ or ATOMIC: responses tell what was lost.
    pub(super) is_read: bool,
}

/// Reaction of a requester to losses.
#[derive(Clone, Debug, Default)]
pub(super) struct Reaction {
    /// Cause of the last rewind.
    pub(super) cause: Option<RetransmissionCause>,
    /// Whether it went back and has had no response in order since: it drops others, and goes back
    /// for none of them.
    pub(super) is_recovering: bool,
    /// Responses that it dropped since it went back.
    pub(super) dropped: VecDeque<u64>,
    pub(super) open_timeout: Option<OpenTimeout>,
    /// Last round of retransmissions that no response asked for.
    pub(super) round: Option<Round>,
    /// Rewinds since the last progress.
    pub(super) attempts: u32,
    /// Times that it went back to the same packet, and sent nothing new in between.
    pub(super) repeats: u32,
    /// The time of the first of these rewinds.
    pub(super) attempts_since: Instant,
    /// The longest time between two attempts without progress.
    pub(super) attempt_interval: Duration,
    /// Whether its host paused before the last request: it sent nothing, though the other end
    /// retransmitted requests to it.
    pub(super) has_paused: bool,
}

/// Packets that a rewind repeats, or with which it goes on behind packets that did not come, and
/// that did not come before. If the packet behind them does not follow, or is new, the network
/// delivered them late.
#[derive(Clone, Debug)]
pub(super) struct Tentative {
    /// The state before it.
    pub(super) before: (Recovery, Reaction),
    pub(super) round_trip: RoundTrip,
    pub(super) disorder: Disorder,
    /// Packets in order, one at least.
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
    /// The sequence number behind it.
    pub(super) end: u64,
    pub(super) wire_len: u32,
    pub(super) frame: u64,
}

impl Requester {
    /// Whether the requester went back and waits for what it requested again. If it waits for
    /// longer than its timeout takes, the capture has missed the response.
    pub(super) fn is_recovering(&self, now: Instant) -> bool {
        let since = now.saturating_since(self.recovery.rewind().time);
        self.reaction.is_recovering && since < self.round_trip.timeout_least()
    }

    /// Decides whether tentative packets were retransmitted or late, now that `packet` with the
    /// sequence number `next` came. Behind retransmitted packets, packets come again that came
    /// before. Behind late packets comes a new one. Another one that did not come before leaves the
    /// question open.
    pub(super) fn settle_tentative(&mut self, next: u64, span: u32, packet: &PacketFacts) {
        let Some(mut tentative) = self.tentative.take() else { return };
        let Some(first) = tentative.packets.first().map(|first| first.record.sequence) else {
            return;
        };
        let (end, cursor) = (tentative.end, tentative.before.0.cursor());
        let (is_forward, now) = (first > cursor, packet.time);
        if let Some(at) = tentative.packets.iter().position(|packet| packet.end == next)
            && let late = tentative.packets.split_off(at + 1)
            && !late.is_empty()
        {
            // It follows an earlier one of them: those between were late.
            self.confirm(&tentative, is_forward.then_some(cursor));
            late.into_iter().for_each(|packet| self.make_late(packet, &tentative, is_forward));
            self.recovery.set_cursor(next);
            return;
        }
        let record = self.progress.records.get(next).copied();
        let is_copy = |record: &Record| {
            record.is_seen()
                && record.digest == packet.digest
                && now.saturating_since(record.time) < self.round_trip.timeout_least()
        };
        if (first..end).contains(&next) && record.as_ref().is_some_and(is_copy) {
            self.tentative = Some(tentative);
            return;
        }
        let missing = record.filter(|record| record.missing > 0 && !record.is_seen());
        if let Some(record) = missing
            && (next >= end && next != cursor && next < self.next())
            && (is_forward || next < cursor)
            && tentative.packets.len() < TENTATIVE_MAX
        {
            let record = Record { sequence: next, ..record };
            let (wire_len, frame) = (packet.wire_len, packet.frame);
            tentative.end = next + u64::from(span);
            let end = tentative.end;
            tentative.packets.push(TentativePacket { record, end, wire_len, frame });
            self.tentative = Some(tentative);
            return;
        }
        let follows = next > first && (is_forward || next < cursor);
        let is_repeated = !is_forward
            && next <= first
            && now.saturating_since(tentative.time) >= self.round_trip.timeout_least();
        let is_retransmission = follows
            || is_repeated
            || !is_forward && next >= cursor && self.has_reacted(&tentative, first, now);
        if is_retransmission {
            self.confirm(&tentative, is_forward.then_some(cursor));
        } else {
            self.take_back(*tentative, is_forward);
        }
    }

    /// Packets were retransmitted, behind `cursor` if the requester was retransmitting before: what
    /// is missing between them was skipped.
    fn confirm(&mut self, tentative: &Tentative, cursor: Option<u64>) {
        let mut from = cursor;
        for packet in &tentative.packets {
            if let Some(from) = from {
                self.skip_until(from, packet.record.sequence);
            }
            from = Some(packet.end);
        }
    }

    /// Whether a NAK named the packet at `first`, and the requester has had the time to go back for
    /// it: before it sends a new packet it does so, and what came since was that.
    fn has_reacted(&self, tentative: &Tentative, first: u64, now: Instant) -> bool {
        let is_it = |nak: &Trigger| (nak.signal, nak.from) == (Signal::SequenceError, first);
        let Some(nak) = tentative.before.0.refusal().filter(is_it) else { return false };
        let between = self.round_trip.between_ends();
        // Without round trips of the other end it is not known how far away the requester is.
        between > self.round_trip.smoothed()
            && now.saturating_since(nak.time)
                >= between.max(self.round_trip.nak_reaction().saturating_mul(2)).saturating_mul(2)
    }

    /// Takes back that packets were retransmitted: they were late. `is_forward`: the requester was
    /// retransmitting before, and did not go back for them.
    fn take_back(&mut self, mut tentative: Tentative, is_forward: bool) {
        let counter = self.statistics.retransmissions.of_mut(tentative.cause);
        if !is_forward {
            counter.rewinds = counter.rewinds.saturating_sub(1);
            counter.wait_nanos = counter.wait_nanos.saturating_sub(nanos(tentative.wait));
        }
        let (recovery, reaction) = core::mem::take(&mut tentative.before);
        self.recovery.restore(recovery, tentative.time);
        let is_answered = self.reaction.attempts == 0;
        self.reaction = reaction;
        if is_answered {
            self.reaction.attempts = 0;
        }
        self.round_trip.restore_timeout(&tentative.round_trip);
        self.progress.disorder = core::mem::take(&mut tentative.disorder);
        for packet in core::mem::take(&mut tentative.packets) {
            self.make_late(packet, &tentative, is_forward);
        }
    }

    /// Takes back that a packet was retransmitted: it was late.
    fn make_late(&mut self, packet: TentativePacket, tentative: &Tentative, is_forward: bool) {
        let TentativePacket { record: before, wire_len, frame, .. } = packet;
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

    /// A packet that was taken for lost came late: its loss is not told.
    pub(super) fn disprove_loss(&mut self, sequence: u64) {
        self.losses.disprove(|loss| loss.is_request(sequence));
    }

    /// The responder answers long after the last retransmission.
    pub(super) fn note_slow_answer(&mut self, packet: &PacketFacts) {
        let since = self.reaction.attempts_since;
        let nanos = nanos(packet.time.saturating_since(since));
        let slow = &mut self.statistics.slow_answers;
        (slow.count, slow.longest_nanos) = (slow.count + 1, slow.longest_nanos.max(nanos));
        self.evidence().slow_answers.push(packet.frame);
    }
}
