//! UC and UD: nothing is acknowledged, so all that can be known is what was sent, and which PSNs
//! are missing.

use super::losses::{Loss, Sign};
use super::progress::Seen;
use super::records::Record;
use super::{Message, PacketFacts, Requester, Scene, Verdict};
use crate::analysis::message::Outcome;
use crate::observe::disorder::Lateness;
use crate::observe::sequence::psn_of;
use crate::wire::{Headers, OpcodeInfo, Service};

/// Packets after which one that is missing is lost, and not late.
const LATE_MAX: usize = 64;

impl Requester {
    /// Handles a packet of an unreliable service.
    pub(in crate::analysis) fn handle_unreliable(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_>,
    ) -> Verdict {
        let sequence = self.sequence_of(packet.psn);
        let is_datagram = info.service == Service::Ud;
        let is_first = !self.progress.space.is_started();
        if is_first {
            self.progress.space.start_at(sequence);
            self.recovery.set_cursor(sequence);
        }
        if !info.position.ends() {
            self.note_full(0, packet);
            self.set_mtu(packet.payload_len);
        }
        let mut verdict = Verdict { sequence, ..Verdict::default() };
        if packet.sightings().is_copy {
            verdict.duplicate = true;
            self.count_duplicate(packet.frame);
            return verdict;
        }
        let skipped = sequence.saturating_sub(self.next());
        if sequence < self.next() {
            self.judge_old(packet, &mut verdict);
            if verdict.duplicate {
                return verdict;
            }
        } else {
            self.push_unreliable(skipped, sequence, packet, is_datagram, scene);
        }
        self.statistics.request_packets += 1;
        let seen = Seen { time: packet.time, frame: packet.frame };
        self.progress.note_request(seen, None);
        if is_datagram {
            self.count_datagram(sequence, packet, info, scene);
        } else {
            let is_broken = skipped > 0 || verdict.reordered;
            self.follow_unreliable(sequence, is_broken, is_first, packet, info, scene);
        }
        self.apply_sightings(packet, &mut verdict, scene);
        verdict
    }

    /// A packet behind which others were sent: late, or a copy.
    fn judge_old(&mut self, packet: &PacketFacts, verdict: &mut Verdict) {
        let sequence = verdict.sequence;
        self.progress.records.isolate(sequence, 1);
        let Some(record) = self.progress.records.get_mut(sequence) else {
            return self.judge_forgotten(packet, verdict);
        };
        if record.is_seen() {
            verdict.duplicate = record.digest == packet.digest;
        } else {
            verdict.reordered = true;
            (record.transmissions, record.digest) = (1, packet.digest);
            self.progress.gaps = self.progress.gaps.saturating_sub(1);
            self.statistics.psn_gaps = self.statistics.psn_gaps.saturating_sub(1);
        }
        if verdict.duplicate {
            self.count_duplicate(packet.frame);
        } else if verdict.reordered {
            let is_out_of_order = self.progress.disorder.fall_behind(sequence);
            let lateness = is_out_of_order.then(|| self.lateness_of(sequence, packet.time));
            self.count_late(packet.frame, lateness);
        }
    }

    /// A packet so late that its gap is forgotten: it was taken for lost.
    fn judge_forgotten(&mut self, packet: &PacketFacts, verdict: &mut Verdict) {
        let sequence = verdict.sequence;
        if self.losses.disprove(|loss| loss.is_gap_in(&(sequence..sequence + 1))) {
            verdict.reordered = true;
            self.statistics.psn_gaps = self.statistics.psn_gaps.saturating_sub(1);
            let packets = self.next().saturating_sub(sequence + 1);
            self.count_late(packet.frame, Some(Lateness { packets, nanos: 0 }));
        }
    }

    fn push_unreliable(
        &mut self,
        skipped: u64,
        sequence: u64,
        packet: &PacketFacts,
        is_datagram: bool,
        scene: &mut Scene<'_>,
    ) {
        if skipped > 0 {
            let gap = Record::skipped(self.next(), sequence, 0, packet);
            self.statistics.psn_gaps += u64::from(gap.span);
            self.progress.gaps += u64::from(gap.span);
            self.progress.records.insert(gap);
            scene.budget.packets += 1;
        }
        self.progress.records.insert(Record::seen(sequence, 1, 0, packet));
        scene.budget.packets += 1;
        while self.progress.records.len() > LATE_MAX {
            self.forget_unreliable(is_datagram, scene);
        }
        self.progress.space.set_next(sequence + 1);
        self.progress.disorder.advance(sequence - skipped..sequence, skipped);
        self.recovery.set_cursor(sequence + 1);
    }

    /// Forgets the oldest packet; if it never came, it was lost.
    pub(super) fn forget_unreliable(&mut self, is_datagram: bool, scene: &mut Scene<'_>) {
        let Some(&record) = self.progress.records.first() else { return };
        self.progress.records.pop_first();
        scene.budget.packets = scene.budget.packets.saturating_sub(1);
        if record.is_seen() {
            return;
        }
        self.progress.gaps = self.progress.gaps.saturating_sub(record.open_gap());
        // A UD queue pair has one PSN space for all destinations.
        if !is_datagram {
            for sequence in record.sequence..record.end() {
                let loss = Loss::request(sequence, record.frame).proven();
                let corrupt = self.corrupt.take_request(sequence);
                let loss = corrupt.map_or(loss, |corrupt| loss.corrupt(corrupt.frame));
                self.report(loss, Sign::Gap, scene);
            }
        }
    }

    fn count_datagram(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_>,
    ) {
        self.count_begun(info.operation);
        let message = Message {
            flow: scene.flow,
            requester: scene.requester,
            operation: info.operation,
            immediate: info.headers.contains(Headers::IMM_DT),
            bytes: packet.payload_len.into(),
            first_psn: psn_of(sequence),
            last_psn: psn_of(sequence),
            first_frame: packet.frame,
            start: packet.time,
            end_frame: Some(packet.frame),
            end: Some(packet.time),
            retransmitted_packets: 0,
            retransmitted_bytes: 0,
            outcome: Outcome::Completed,
        };
        self.count(&message);
        scene.sink.message(&message);
    }

    /// UC: a message of which a packet is missing or late is dropped by the receiver (§9.8.2.2).
    fn follow_unreliable(
        &mut self,
        sequence: u64,
        is_broken: bool,
        is_first: bool,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_>,
    ) {
        let begins = info.position.begins();
        if (begins || is_broken) && !self.messages.is_empty() {
            self.end_unreliable(Outcome::Incomplete, packet, scene);
            self.is_dropping = true;
        }
        if begins {
            self.is_dropping = false;
        } else if self.messages.is_empty() && !is_first {
            if !self.is_dropping {
                // The start of this message is missing; it is counted once, with what there is of
                // it.
                self.messages.handle_packet(sequence, 1, packet, info);
                self.count_begun(info.operation);
                scene.budget.messages += 1;
                self.end_unreliable(Outcome::Incomplete, packet, scene);
            }
            self.is_dropping = !info.position.ends();
            return;
        }
        let before = self.messages.len();
        self.messages.handle_packet(sequence, 1, packet, info);
        if self.messages.len() > before {
            self.count_begun(info.operation);
            scene.budget.messages += 1;
        }
        if info.position.ends() {
            self.end_unreliable(Outcome::Completed, packet, scene);
        }
    }

    fn end_unreliable(&mut self, outcome: Outcome, packet: &PacketFacts, scene: &mut Scene<'_>) {
        while let Some(mut message) = self.messages.pop_first() {
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            message.end = Some((packet.time, packet.frame));
            self.tell(&message, outcome, scene);
        }
    }
}
