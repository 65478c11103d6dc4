//! Responses to the requester of a reliable service: acknowledgements, NAKs, READ responses.

use super::answers::{Heard, LastAnswer};
use super::limits::{PSN_JUMP_MAX, RESPONSES_MAX};
use super::losses::OpenLoss;
use super::read_responses::StrayRun;
use super::records::RecordFlags;
use super::{PacketFacts, PacketRole, Requester, Scene, Verdict};
use crate::observe::disorder::Lateness;
use crate::observe::responses::{Arrival, OpenResponse};
use crate::wire::aeth::{Answer, Credits};
use crate::wire::{OpcodeInfo, Operation};

/// The place of a response among those that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Due,
    /// Others overtook it; with its lateness if it counts as out of order.
    Late(Option<Lateness>),
    /// Late, or due behind others that are missing.
    Open,
    /// A response to no request that was captured, or a copy.
    Stray,
    /// The responder repeats all responses to a request, and this is not the first of them.
    Repeated,
}

/// The part that a response plays.
pub(in crate::analysis) fn role_of(packet: &PacketFacts, info: &OpcodeInfo) -> PacketRole {
    match (info.operation, packet.aeth.map(|(syndrome, _)| syndrome.answer())) {
        (Operation::ReadResponse | Operation::AtomicAcknowledge, _) => PacketRole::Response,
        (_, Some(Answer::Nak(_))) => PacketRole::Nak,
        (_, Some(Answer::RnrNak(_))) => PacketRole::Rnr,
        _ => PacketRole::Ack,
    }
}

impl Requester {
    /// Handles a response packet.
    pub(in crate::analysis) fn handle_response(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_>,
    ) -> Verdict {
        let sequence = self.sequence_of(packet.psn);
        let mut verdict = Verdict { sequence, ..Verdict::default() };
        self.statistics.response_packets += 1;
        self.note_followed(1, packet, scene);
        let is_copy = packet.sightings().is_copy;
        if is_copy && !self.is_copy_of_lost(sequence, packet) {
            verdict.duplicate = true;
            self.statistics.response_packets -= 1;
            self.count_duplicate(packet.frame);
            return verdict;
        }
        if packet.sightings().lost.is_some() {
            // The requester never got it.
            self.report_between(sequence, role_of(packet, info), packet, scene);
            return verdict;
        }
        let is_ghost = sequence >= self.next().saturating_add(PSN_JUMP_MAX);
        if self.progress.space.is_started() && is_ghost {
            self.evidence().ghost_responses.push(packet.frame);
            return verdict;
        }
        self.answers.hear(Heard { sequence, time: packet.time });
        let answer = packet.aeth.map(|(syndrome, _)| syndrome.answer());
        let is_sent_earlier = self.answers.is_sent_earlier(packet.aeth.map(|(_, msn)| msn));
        let has_run = matches!(role_of(packet, info), PacketRole::Response);
        let place =
            if has_run { self.follow_run(sequence, packet, info, scene) } else { Place::Due };
        if has_run && place == Place::Due && sequence < self.progress.unacked {
            self.answer_round_again(sequence, true, packet);
        }
        if let Place::Late(lateness) = place
            && !packet.sightings().is_delivered
        {
            verdict.reordered = true;
            self.count_late(packet.frame, lateness);
        }
        verdict.reordered |= place == Place::Open && !packet.sightings().is_delivered;
        match (info.operation, answer) {
            (Operation::ReadResponse, _) => {
                self.handle_read_response(packet, info, &mut verdict, scene)
            }
            (Operation::AtomicAcknowledge, _) => {
                self.handle_atomic_ack(packet, &mut verdict, scene)
            }
            (_, Some(Answer::Ack(credits))) => {
                self.handle_ack(packet, credits, is_sent_earlier, &mut verdict, scene)
            }
            (_, Some(Answer::RnrNak(timer))) => self.handle_rnr(packet, timer, &mut verdict, scene),
            (_, Some(Answer::Nak(code))) => {
                self.handle_nak(packet, code, is_sent_earlier, &mut verdict, scene)
            }
            (_, Some(Answer::Reserved(_)) | None) => {}
        }
        verdict.duplicate |= is_copy;
        // The responder sent the rest of a repeated answer, and the network did not copy it.
        verdict.duplicate &= !verdict.reordered && place != Place::Repeated;
        if verdict.duplicate {
            self.statistics.response_packets -= 1;
            self.count_duplicate(packet.frame);
        }
        self.count_sighted_late(packet, &mut verdict);
        verdict
    }

    /// Reports the responses that are missing before a READ response or an ATOMIC acknowledgement.
    /// Returns its place among those that are due.
    fn follow_run(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_>,
    ) -> Place {
        let (begins, ends) = (info.position.begins(), info.position.ends());
        self.reads.runs.size(self.sizes.mtu());
        // A responder that gets a request late, or twice, repeats all responses to it.
        let answerable = packet.time.saturating_sub(self.round_trip.least());
        let settled = self.reads.runs.settle(sequence);
        settled.into_iter().for_each(|(open, arrival)| self.take_settled(open, arrival, scene));
        let arrival = self.reads.runs.response(sequence, begins, answerable, packet.frame);
        let stray = &mut self.reads.stray;
        match arrival {
            Arrival::Due(missing) => {
                *stray = None;
                self.report_missing(&missing, packet.frame, scene);
                return Place::Due;
            }
            Arrival::Late { .. } | Arrival::Stray
                if stray.as_mut().is_some_and(|run| run.take(sequence)) =>
            {
                return Place::Repeated;
            }
            // Neither a copy of the last one nor a late one interrupts them.
            Arrival::Stray
                if (begins && !ends) || stray.as_ref().is_some_and(|run| run.is_last(sequence)) =>
            {
                *stray = Some(StrayRun::new(sequence));
                return Place::Stray;
            }
            Arrival::Open => return Place::Open,
            Arrival::Late { .. } | Arrival::Stray => {}
        }
        self.losses.disprove(|loss| loss.is_response_in(sequence..=sequence));
        match arrival {
            Arrival::Late { is_out_of_order, lateness } => {
                Place::Late(is_out_of_order.then_some(lateness))
            }
            _ => Place::Stray,
        }
    }

    /// Handles a response that was late or due, now that the next response shows which.
    pub(super) fn take_settled(
        &mut self,
        open: OpenResponse,
        arrival: Arrival,
        scene: &mut Scene<'_>,
    ) {
        match arrival {
            Arrival::Due(missing) => self.report_missing(&missing, open.frame, scene),
            Arrival::Late { is_out_of_order, lateness } => {
                self.losses.disprove(|loss| loss.is_response_in(open.sequence..=open.sequence));
                if self.losses.is_point_alone() {
                    self.count_late(open.frame, is_out_of_order.then_some(lateness));
                }
            }
            Arrival::Stray | Arrival::Open => {}
        }
    }

    /// Whether the network's copy of a response that was lost came to the requester in its place.
    fn is_copy_of_lost(&mut self, sequence: u64, packet: &PacketFacts) -> bool {
        packet.sightings().is_delivered && self.reads.take_lost(sequence)
    }

    fn handle_ack(
        &mut self,
        packet: &PacketFacts,
        credits: Credits,
        is_sent_earlier: bool,
        verdict: &mut Verdict,
        scene: &mut Scene<'_>,
    ) {
        let sequence = verdict.sequence;
        if sequence < self.progress.unacked {
            self.judge_old_ack(packet, is_sent_earlier, verdict);
        }
        let is_missing = self.messages.first_read().is_some_and(|read| read.first <= sequence);
        if !is_missing && sequence >= self.recovery.rewind().start {
            self.reaction.is_recovering = false;
        }
        self.answers.remember_ack(sequence, packet.digest);
        if !verdict.duplicate {
            self.statistics.acks += 1;
        }
        if let Some(count) = credits.count() {
            let least = &mut self.statistics.least_credits;
            *least = Some(least.map_or(count, |least| least.min(count)));
        }
        if sequence + 1 > self.progress.unacked {
            self.measure_rtt(sequence, packet, false);
            self.answers.last =
                LastAnswer { sequence, frame: packet.frame, time: packet.time, is_response: false };
            self.advance(sequence + 1, packet, scene);
        }
        self.check_implied_nak(sequence, packet);
        self.complete(scene);
    }

    /// An acknowledgement of what was acknowledged: one that the network delivered late, a copy, or
    /// the answer to a request that the responder had before.
    fn judge_old_ack(
        &mut self,
        packet: &PacketFacts,
        is_sent_earlier: bool,
        verdict: &mut Verdict,
    ) {
        // Where several capture points saw it, it is known to be no copy, and in which order it was
        // sent.
        let is_known = packet.sightings().is_delivered;
        let is_equal = self.answers.has_ack(verdict.sequence, packet.digest);
        if !is_sent_earlier && self.answers.take_due() {
            self.disprove_nak(verdict.sequence);
            // It has two transmissions: what was taken for lost because of a timeout was not.
            self.losses.disprove(OpenLoss::is_by_timeout);
            self.answer_round_again(verdict.sequence, false, packet);
        } else if is_equal {
            verdict.duplicate = !is_known;
        } else if is_sent_earlier && !is_known {
            verdict.reordered = true;
            self.count_reordered(packet.frame);
        }
    }

    /// Measures the round-trip time of a packet that asked for an acknowledgement or,
    /// `is_response`, for a response.
    fn measure_rtt(&mut self, sequence: u64, packet: &PacketFacts, is_response: bool) {
        if let Some(record) = self.progress.records.get(sequence)
            && record.transmissions == 1
            && (is_response || record.flags.contains(RecordFlags::ACK_REQUEST))
        {
            let rtt = packet.time.saturating_since(record.time);
            self.add_round_trip(rtt);
        }
    }

    /// All before `unacked` arrived at the responder.
    pub(super) fn advance(&mut self, unacked: u64, packet: &PacketFacts, scene: &mut Scene<'_>) {
        if unacked <= self.progress.unacked {
            return;
        }
        self.resolve_timeout(unacked, packet, scene);
        self.answer_round(unacked, packet);
        self.progress.unacked = unacked;
        self.progress.frame = packet.frame;
        self.losses.acknowledge(unacked);
        // Responses come in order: what was repeated before the request that this one answers has
        // had its answer.
        let answered = self.progress.records.get(unacked.saturating_sub(1));
        if answered.is_some_and(|record| {
            record.transmissions == 1 && record.frame > self.answers.repeat_frame
        }) && !self.losses.has_late()
        {
            self.answers.expect_none();
        }
        self.count_not_captured(unacked, packet.frame);
        self.reaction.attempts = 0;
        self.not_ready.progress();
        // After a NAK for a packet that was only late comes its acknowledgement; the requester goes
        // back for the NAK.
        self.recovery.settle(unacked, packet.time);
        self.messages.acknowledge(unacked, (packet.time, packet.frame));
    }

    fn handle_atomic_ack(
        &mut self,
        packet: &PacketFacts,
        verdict: &mut Verdict,
        scene: &mut Scene<'_>,
    ) {
        let sequence = verdict.sequence;
        let Some(message) = self.messages.find_mut(sequence) else {
            self.judge_old_response(sequence, packet, verdict);
            return;
        };
        let is_answered = message.end.is_some();
        let (requests, is_read) = (message.requests, message.needs_response());
        let is_sent_once = message.is_sent_once();
        if is_answered || !is_read {
            verdict.duplicate = is_answered && is_sent_once && !packet.sightings().is_delivered;
            return;
        }
        if self.is_dropped(sequence, sequence, packet) {
            verdict.duplicate = self.is_response_copy(sequence, packet) && is_sent_once;
            return;
        }
        let is_overtaken = requests < 2 && sequence < self.answers.last.sequence;
        if is_overtaken && !packet.sightings().is_delivered && !verdict.reordered {
            verdict.reordered = true;
            self.count_reordered(packet.frame);
        }
        self.note_response(sequence, packet);
        self.advance(sequence + 1, packet, scene);
        self.measure_rtt(sequence, packet, true);
        self.messages.end_read(sequence, (packet.time, packet.frame));
        self.recovery.answer_implied(sequence..=sequence, requests, packet.time);
        self.check_implied_nak(sequence, packet);
        self.complete(scene);
    }

    /// Notes that a READ response or ATOMIC acknowledgement is the last response.
    fn note_response(&mut self, sequence: u64, packet: &PacketFacts) {
        self.reads.remember(sequence, packet.frame);
        if sequence >= self.answers.last.sequence {
            let (frame, time) = (packet.frame, packet.time);
            self.answers.last = LastAnswer { sequence, frame, time, is_response: true };
        }
    }

    /// Whether a response of a READ or ATOMIC of which `expected` is the next one answers an
    /// earlier request, so that a requester that went back drops it. If it comes in order, the
    /// requester has what it went back for.
    fn is_dropped(&mut self, sequence: u64, expected: u64, packet: &PacketFacts) -> bool {
        if !self.is_recovering(packet.time) {
            return false;
        }
        let first = self.messages.first_read();
        let is_first = first.is_none_or(|read| (read.first..=read.last).contains(&sequence));
        if is_first && sequence == expected {
            self.reaction.is_recovering = false;
            return false;
        }
        true
    }

    /// Whether a response that the requester drops came before. Remembers it otherwise.
    fn is_response_copy(&mut self, sequence: u64, packet: &PacketFacts) -> bool {
        if self.reads.frame_of(sequence).is_some() || self.reaction.dropped.contains(&sequence) {
            return !packet.sightings().is_delivered;
        }
        if self.reaction.dropped.len() >= RESPONSES_MAX {
            self.reaction.dropped.pop_front();
        }
        self.reaction.dropped.push_back(sequence);
        false
    }

    /// A response to a READ or ATOMIC that ended: a replay if it was requested again, else a copy
    /// of the network's.
    fn judge_old_response(&mut self, sequence: u64, packet: &PacketFacts, verdict: &mut Verdict) {
        if let Some(is_repeated) = self.reads.is_ended_repeated(sequence) {
            verdict.duplicate = !is_repeated && !packet.sightings().is_delivered;
        }
    }

    fn handle_read_response(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        verdict: &mut Verdict,
        scene: &mut Scene<'_>,
    ) {
        self.note_payload(packet);
        if !info.position.ends() {
            self.note_full(1, packet);
            self.set_mtu(packet.payload_len);
        }
        let sequence = verdict.sequence;
        if info.position.ends() {
            self.size_read(sequence);
        }
        let Some(message) = self.messages.find_mut(sequence).filter(|m| m.needs_response()) else {
            self.judge_old_response(sequence, packet, verdict);
            return;
        };
        let (first, last, requests) = (message.first, message.last, message.requests);
        let (expected, is_sent_once) = (message.responses_end, message.is_sent_once());
        message.passed_end = message.passed_end.max(sequence + 1);
        if sequence >= expected && self.is_dropped(sequence, expected, packet) {
            verdict.duplicate = self.is_response_copy(sequence, packet) && is_sent_once;
            return;
        }
        let Some(message) = self.messages.find_mut(sequence) else { return };
        if sequence >= expected {
            message.responses_end = sequence + 1;
        }
        if sequence < expected {
            if !self.reads.take_missing(sequence) {
                verdict.duplicate = is_sent_once && !packet.sightings().is_delivered;
                return;
            }
            // Counted where its place among those that are due shows that it is late.
            verdict.reordered |= requests < 2 && !packet.sightings().is_delivered;
        } else if sequence > expected {
            self.reads.add_missing(expected..sequence);
            self.imply_nak(expected, packet);
        } else if sequence == first && requests == 1 {
            self.measure_rtt(sequence, packet, true);
        }
        self.note_response(sequence, packet);
        self.advance(sequence + 1, packet, scene);
        let is_whole = self.reads.missing_in(first..=last).next().is_none();
        let has_last = self.messages.find_mut(sequence).is_some_and(|m| m.responses_end > last)
            || info.position.ends();
        if is_whole {
            self.recovery.answer_implied(first..=sequence, requests, packet.time);
            if has_last {
                self.messages.end_read(sequence, (packet.time, packet.frame));
            }
        }
        // A late response does not fill later gaps: they are checked up to the last response.
        self.check_implied_nak(sequence.max(self.answers.last.sequence), packet);
        self.complete(scene);
    }
}
