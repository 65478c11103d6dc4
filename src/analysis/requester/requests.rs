//! Requests of a reliable service: new packets, and repetitions of earlier ones.

use super::inflight::needs_response;
use super::progress::Seen;
use super::records::{Record, RecordFlags};
use super::recovery::{Tentative, TentativePacket};
use super::retransmissions::Repeat;
use super::{PacketFacts, PacketRole, Requester, RetransmissionCause, Scene, Verdict};
use crate::analysis::message::Outcome;
use crate::observe::responses::Run;
use crate::wire::{OpcodeInfo, Operation};

impl Requester {
    /// Handles a request packet.
    pub(in crate::analysis) fn handle_request(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_>,
    ) -> Verdict {
        let sequence = self.sequence_of(packet.psn);
        if !self.progress.space.is_started() {
            self.progress.space.start_at(sequence);
            self.recovery.set_cursor(sequence);
            self.progress.unacked = self.progress.unacked.max(sequence);
        }
        self.learn_mtu(packet, info, sequence);
        let span = self.span_of(packet, info, sequence);
        if self.tentative.is_some() {
            self.settle_tentative(sequence, span, packet);
        }
        self.note_followed(0, packet, scene);
        self.expect_responses(sequence, span, packet, info);
        let mut verdict = Verdict { sequence, ..Verdict::default() };
        if packet.sightings().is_copy {
            verdict.duplicate = true;
            self.handle_copy(sequence, packet, info);
            return verdict;
        }
        if sequence < self.recovery.cursor() || self.is_stopped_at(sequence, packet) {
            match self.judge_repeat(sequence, packet) {
                Repeat::Rewind(cause, trigger) => {
                    verdict.retransmission = Some(cause);
                    let tentative = self.tentative_of(sequence, span, cause, packet);
                    self.rewind(sequence, cause, trigger, packet, scene);
                    self.begin_before(sequence);
                    self.tentative = tentative;
                }
                Repeat::Copy => {
                    verdict.duplicate = true;
                    self.handle_copy(sequence, packet, info);
                    return verdict;
                }
                Repeat::Late => {
                    verdict.reordered = true;
                    self.handle_late(sequence, &mut verdict, packet);
                }
            }
        } else if sequence < self.next() {
            let cause = self.reaction.cause.unwrap_or(RetransmissionCause::Timeout);
            let cursor = self.recovery.cursor();
            self.progress.disorder.advance(cursor..sequence, sequence - cursor);
            if self.tentative.is_none() {
                self.tentative = self.tentative_of(sequence, span, cause, packet);
            }
            if self.tentative.is_none() {
                self.skip_until(cursor, sequence);
            }
            verdict.retransmission = Some(cause);
        } else if let Some(corrupt) = self.take_resent_corrupt(sequence, packet) {
            verdict.retransmission = Some(self.resend_corrupt(corrupt, packet, scene));
        }
        let is_new = sequence >= self.next();
        self.transmit(sequence, span, packet, &verdict, scene);
        if span > 1 && self.sizes.mtu() > 0 {
            // What was missing there was one packet.
            let rest = sequence + 1..sequence + u64::from(span);
            self.losses.disprove_all(|loss| loss.is_gap_in(&rest));
        }
        self.count_request(&verdict, packet);
        // A packet of a message that ended is not one of a new message.
        if is_new || sequence >= self.progress.unacked || self.messages.find_mut(sequence).is_some()
        {
            self.follow_message(sequence, span, packet, info, &verdict, scene);
        } else {
            self.reads.repeat_ended(sequence);
        }
        self.apply_sightings(packet, &mut verdict, scene);
        verdict
    }

    /// Notes the responses that a READ or ATOMIC makes the responder send, if it reaches it.
    fn expect_responses(&mut self, first: u64, span: u32, packet: &PacketFacts, info: &OpcodeInfo) {
        if packet.sightings().lost.is_some() || packet.sightings().unseen.is_some() {
            return;
        }
        self.reads.runs.arrive(first, u64::from(span));
        if !needs_response(info.operation) {
            return;
        }
        let length = packet.reth.map_or(0, |reth| reth.length);
        let most = self.sizes.responses_most(length);
        let is_sized =
            self.sizes.mtu() > 0 || info.operation != Operation::ReadRequest || most == 1;
        let span = if is_sized { u64::from(span) } else { most };
        let (frame, time) = (packet.frame, packet.time);
        self.reads.runs.request(Run { first, end: first + span, length, is_sized, frame, time });
    }

    /// The state to return to if a rewind of one packet turns out to be a packet that others
    /// overtook: one that is missing, and behind which others were sent.
    fn tentative_of(
        &self,
        sequence: u64,
        span: u32,
        cause: RetransmissionCause,
        packet: &PacketFacts,
    ) -> Option<Box<Tentative>> {
        let end = sequence + u64::from(span);
        if end >= self.recovery.cursor() && sequence <= self.recovery.cursor() {
            return None;
        }
        let record = *self.progress.records.get(sequence).filter(|record| record.missing > 0)?;
        let record = Record { sequence, ..record };
        let PacketFacts { time, wire_len, frame, .. } = *packet;
        Some(Box::new(Tentative {
            before: (self.recovery.clone(), self.reaction.clone()),
            round_trip: self.round_trip,
            disorder: self.progress.disorder.clone(),
            packets: vec![TentativePacket { record, end, wire_len, frame }],
            end,
            cause,
            wait: time.saturating_since(record.time),
            time,
        }))
    }

    /// Counts the packets from `cursor` to `sequence` as missing at the capture point, unless they
    /// are acknowledged by now: while it retransmits, the requester sends all packets in order.
    pub(super) fn skip_until(&mut self, cursor: u64, sequence: u64) {
        let from = cursor.max(self.progress.unacked);
        if from >= sequence {
            return;
        }
        let mut skips = 0;
        for record in
            self.progress.records.range_mut(from, sequence).filter(|record| record.is_seen())
        {
            record.missing = record.missing.saturating_add(1);
            record.flags.remove(RecordFlags::LOSS_REPORTED);
            record.flags |= RecordFlags::SKIPPED;
            skips += 1;
        }
        self.progress.skips += skips;
    }

    /// A packet before the first that was captured, while nothing is acknowledged: the connection
    /// begins with it.
    fn begin_before(&mut self, sequence: u64) {
        let is_before =
            self.progress.records.first().is_some_and(|first| sequence < first.sequence);
        if is_before && self.answers.last.frame == 0 {
            self.progress.unacked = self.progress.unacked.min(sequence);
        }
    }

    /// Applies the sightings of a request by several capture points.
    #[inline]
    pub(super) fn apply_sightings(
        &mut self,
        packet: &PacketFacts,
        verdict: &mut Verdict,
        scene: &mut Scene<'_>,
    ) {
        if packet.sightings.is_none() && !verdict.reordered {
            return;
        }
        let (sequence, sightings) = (verdict.sequence, packet.sightings());
        if sightings.reordered.is_none() && sightings.lost.is_none() && !verdict.reordered {
            return;
        }
        self.count_sighted_late(packet, verdict);
        if sightings.lost.is_some() {
            self.report_between(sequence, PacketRole::Request, packet, scene);
        }
        if let Some(record) = self.progress.records.get_mut(sequence) {
            record.flags.set(RecordFlags::LATE, verdict.reordered);
            if sightings.lost.is_some() {
                record.flags |= RecordFlags::LOSS_REPORTED;
            }
        }
    }

    /// Remembers a packet, and where the requester stands then.
    fn transmit(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        verdict: &Verdict,
        scene: &mut Scene<'_>,
    ) {
        let (time, frame) = (packet.time, packet.frame);
        let mut flags = RecordFlags::empty();
        flags.set(RecordFlags::ACK_REQUEST, packet.ack_request);
        flags.set(RecordFlags::LATE, verdict.reordered);
        if sequence >= self.next() {
            // One that comes while earlier ones are retransmitted is ahead of those that follow.
            let cursor = self.recovery.cursor().min(self.next());
            self.progress.disorder.advance(cursor..sequence, sequence - cursor);
            let pass = self.recovery.rewind().pass;
            if sequence > self.next() {
                let gap = Record::skipped(self.next(), sequence, pass, packet);
                self.progress.gaps += u64::from(gap.span);
                self.push_record(gap, scene);
            }
            let mut record = Record::seen(sequence, span, pass, packet);
            record.flags = flags;
            self.push_record(record, scene);
            self.progress.new_packets += 1;
            self.reaction.repeats = 0;
            self.progress.space.set_next(sequence + u64::from(span));
            self.recovery.set_cursor(self.next());
            self.extend_round();
        } else {
            let end = self.retransmit(sequence, span, packet, flags);
            if !verdict.reordered {
                let end = end.unwrap_or_else(|| sequence + u64::from(span));
                self.recovery.set_cursor(end.min(self.next()));
            }
        }
        self.progress.note_request(Seen { time, frame }, packet.sightings().far);
    }

    fn push_record(&mut self, record: Record, scene: &mut Scene<'_>) {
        let (history, most) = (scene.budget.history_max(), scene.budget.packets_max());
        while let Some(first) = self.progress.records.first()
            && self.progress.records.len() >= history
            && (first.end() <= self.progress.unacked || self.progress.records.len() >= most)
        {
            self.progress.gaps = self.progress.gaps.saturating_sub(first.open_gap());
            self.progress.records.pop_first();
            scene.budget.packets = scene.budget.packets.saturating_sub(1);
        }
        self.progress.records.insert(record);
        scene.budget.packets += 1;
    }

    fn count_request(&mut self, verdict: &Verdict, packet: &PacketFacts) {
        self.statistics.request_packets += 1;
        if let Some(cause) = verdict.retransmission {
            let cause = self.add_to_round(cause, packet);
            self.count_retransmitted(cause, packet.wire_len);
        }
    }

    /// Follows the message that the packet belongs to.
    fn follow_message(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        verdict: &Verdict,
        scene: &mut Scene<'_>,
    ) {
        let before = self.messages.len();
        self.messages.handle_packet(sequence, span, packet, info);
        let after = self.messages.len();
        if after > before {
            self.count_begun(info.operation);
            scene.budget.messages += 1;
            self.forget_messages(scene);
        } else if after < before {
            // Two parts turned out to be one message.
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            self.uncount_begun(info.operation);
        }
        let depth = self.messages.reads();
        let most = &mut self.statistics.read_atomic_depth;
        *most = (*most).max(depth);
        if verdict.retransmission.is_some()
            && let Some(message) = self.messages.find_mut(sequence)
        {
            message.retransmitted_packets += 1;
            message.retransmitted_bytes += u64::from(packet.wire_len);
        }
        if self.progress.unacked > sequence && verdict.retransmission.is_none() {
            // Its acknowledgement was captured before it was.
            self.messages.acknowledge(self.progress.unacked, (packet.time, packet.frame));
            self.complete(scene);
        }
    }

    /// Forgets the oldest messages if there are too many.
    fn forget_messages(&mut self, scene: &mut Scene<'_>) {
        while self.messages.len() > scene.budget.messages_max() {
            let Some(message) = self.messages.pop_first() else { return };
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            scene.budget.forgotten_messages += 1;
            self.tell(&message, Outcome::InFlight, scene);
        }
    }
}
