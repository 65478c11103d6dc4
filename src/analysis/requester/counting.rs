//! Messages and retransmissions, counted.

use core::time::Duration;

use super::inflight::Inflight;
use super::limits::STALLS_MAX;
use super::records::Record;
use super::{Message, PacketFacts, Requester, RetransmissionCause, Scene, Verdict};
use crate::analysis::connection::Stall;
use crate::analysis::message::{OperationStatistics, Outcome};
use crate::observe::disorder::Lateness;
use crate::time::{Instant, nanos};
use crate::wire::Operation;

impl Requester {
    /// Tells and removes the messages that are complete.
    pub(super) fn complete(&mut self, scene: &mut Scene<'_>) {
        while let Some(message) = self.messages.first()
            && message.is_complete()
        {
            let Some(message) = self.messages.pop_first() else { return };
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            if message.needs_response() {
                self.reads.remember_ended(message.first, message.last, !message.is_sent_once());
            }
            self.tell(&message, Outcome::Completed, scene);
        }
    }

    /// Tells that a message ended, and counts it.
    pub(super) fn tell(&mut self, inflight: &Inflight, outcome: Outcome, scene: &mut Scene<'_>) {
        let message = inflight.message(scene.flow, scene.requester, outcome);
        self.count(&message);
        scene.sink.message(&message);
    }

    /// Tells and removes all messages in flight, with the outcome of each in turn.
    pub(super) fn tell_all(
        &mut self,
        mut outcomes: impl Iterator<Item = Outcome>,
        scene: &mut Scene<'_>,
    ) {
        while let Some(message) = self.messages.pop_first() {
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            self.tell(&message, outcomes.next().unwrap_or(Outcome::InFlight), scene);
        }
    }

    /// Counts a message that ended.
    pub(super) fn count(&mut self, message: &Message) {
        let operation = operation_mut(&mut self.statistics.operations, message.operation);
        match message.outcome {
            Outcome::Completed => {
                operation.completed += 1;
                operation.bytes += message.bytes;
                self.statistics.goodput_bytes += message.bytes;
                if let Some(end) = message.end {
                    let nanos = nanos(end.saturating_since(message.start));
                    // The direction's latency is the sum of those of its operations, at the end.
                    operation.latency.add(nanos);
                    self.latency_max = self.latency_max.max(nanos);
                }
            }
            Outcome::InFlight => {}
            _ => operation.failed += 1,
        }
    }

    /// Counts a message that began.
    pub(super) fn count_begun(&mut self, operation: Operation) {
        operation_mut(&mut self.statistics.operations, operation).messages += 1;
    }

    /// Takes back that a message began.
    pub(super) fn uncount_begun(&mut self, operation: Operation) {
        let statistics = operation_mut(&mut self.statistics.operations, operation);
        statistics.messages = statistics.messages.saturating_sub(1);
    }

    /// Counts a packet that was retransmitted for `cause`.
    pub(super) fn count_retransmitted(&mut self, cause: RetransmissionCause, wire_len: u32) {
        let counter = self.statistics.retransmissions.of_mut(cause);
        counter.packets += 1;
        counter.bytes += u64::from(wire_len);
    }

    /// Counts a packet that arrived after one that was sent later.
    pub(super) fn count_reordered(&mut self, frame: u64) {
        self.count_late(frame, Some(Lateness::default()));
    }

    /// Notes a packet that arrived after one that was sent later, and counts it unless those that
    /// overtook it are the ones out of order.
    pub(super) fn count_late(&mut self, frame: u64, out_of_order: Option<Lateness>) {
        self.losses.note_late();
        if let Some(lateness) = out_of_order {
            self.statistics.lateness.widen(lateness);
            self.statistics.reordered += 1;
            self.evidence().reordered.push(frame);
        }
    }

    /// Counts a packet that several capture points saw out of order, unless it is counted.
    pub(super) fn count_sighted_late(&mut self, packet: &PacketFacts, verdict: &mut Verdict) {
        let Some(lateness) = packet.sightings().reordered else { return };
        if core::mem::replace(&mut verdict.reordered, true) {
            self.statistics.lateness.widen(lateness);
        } else {
            self.count_late(packet.frame, Some(lateness));
        }
    }

    /// Returns the lateness of a request that was missing and arrives at `now`.
    pub(super) fn lateness_of(&self, sequence: u64, now: Instant) -> Lateness {
        let records = &self.progress.records;
        let missed = records.get(sequence).map_or(now, |record| record.time);
        let is_ahead = |record: &&Record| record.is_seen() && record.sequence > sequence;
        let packets = records.from(sequence).filter(is_ahead).count() as u64;
        Lateness { packets: packets.max(1), nanos: nanos(now.saturating_since(missed)) }
    }

    /// Counts a packet that the network delivered twice.
    pub(super) fn count_duplicate(&mut self, frame: u64) {
        self.statistics.duplicate_packets += 1;
        self.evidence().duplicates.push(frame);
    }

    /// Adds a round-trip time.
    pub(super) fn add_round_trip(&mut self, time: Duration) {
        self.statistics.rtt.add(nanos(time));
        self.round_trip.add(time);
    }

    /// Keeps a silence if it is one of the longest.
    pub(in crate::analysis) fn add_stall(&mut self, stall: Stall) {
        let stalls = &mut self.statistics.stalls;
        let at = stalls.partition_point(|other| other.nanos >= stall.nanos);
        if at < STALLS_MAX {
            stalls.insert(at, stall);
            stalls.truncate(STALLS_MAX);
        }
    }
}

/// Returns the statistics of an operation, in the order of first occurrence.
pub(in crate::analysis) fn operation_mut(
    operations: &mut Vec<OperationStatistics>,
    operation: Operation,
) -> &mut OperationStatistics {
    let at = operations.iter().position(|known| known.operation == operation);
    let at = at.unwrap_or_else(|| {
        operations.push(OperationStatistics::new(operation));
        operations.len() - 1
    });
    &mut operations[at]
}
