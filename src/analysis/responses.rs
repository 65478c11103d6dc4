//! What a requester of a reliable service is answered: acknowledgements, NAKs, READ responses.

use super::evidence::Refusal;
use super::limits::{MISSING_RESPONSES_MAX, PSN_JUMP_MAX, RECENT_ACKS_MAX, RESPONSES_MAX};
use super::message::Outcome;
use super::records::RecordFlags;
use super::recovery::{Asked, Trigger};
use super::requester::{LastAck, LastNak, Requester, Scene, TIMEOUT_NANOS_LEAST, Verdict};
use super::{PacketFacts, PacketRole, RetransmissionCause, Sink};
use crate::observe::mtu::MTUS;
use crate::observe::responses::Arrival;
use crate::observe::sequence::psn_of;
use crate::wire::aeth::{Answer, Credits, NakCode, RnrTimer};
use crate::wire::{OpcodeInfo, Operation};

/// The place of a response among those that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Due,
    /// Others overtook it.
    Late,
    /// It answers no request that was captured, or is a copy.
    Stray,
    /// The responder repeats all responses to a request, and this is not the first of them.
    Repeated,
}

/// The part that a response plays.
pub(super) fn role_of(packet: &PacketFacts, info: &OpcodeInfo) -> PacketRole {
    match (info.operation, packet.aeth.map(|(syndrome, _)| syndrome.answer())) {
        (Operation::ReadResponse | Operation::AtomicAcknowledge, _) => PacketRole::Response,
        (_, Some(Answer::Nak(_))) => PacketRole::Nak,
        (_, Some(Answer::RnrNak(_))) => PacketRole::Rnr,
        _ => PacketRole::Ack,
    }
}

impl Requester {
    /// Whether a response with this PSN and opcode answers something that this requester has in flight.
    pub(super) fn can_explain(&self, packet: &PacketFacts, info: &OpcodeInfo) -> bool {
        if !self.is_started {
            return false;
        }
        let sequence = self.sequence_of(packet.psn);
        let first = self.records.first().map_or(self.next, |record| record.sequence);
        if sequence < first.max(self.unacked.saturating_sub(1)) {
            return false;
        }
        if sequence >= self.next {
            return info.operation == Operation::ReadResponse && self.may_be_unsized(sequence);
        }
        match info.operation {
            Operation::ReadResponse | Operation::AtomicAcknowledge => self
                .messages
                .find(sequence)
                .is_some_and(|message| message.operation.response().is_by(info.operation)),
            _ => true,
        }
    }

    /// Whether the last request is a READ of unknown size that may have a response with this sequence number.
    fn may_be_unsized(&self, sequence: u64) -> bool {
        self.unsized_read.is_some_and(|(read, length)| {
            (read..read + self.responses_most(length)).contains(&sequence)
        })
    }

    /// Whether a READ response has as many bytes as the READ that it answers has at that place, with one of the path MTUs.
    pub(super) fn fits_read(&self, packet: &PacketFacts, info: &OpcodeInfo) -> bool {
        let sequence = self.sequence_of(packet.psn);
        let known = self.messages.find(sequence);
        let known = known.and_then(|message| Some((message.first, message.reth?.length)));
        let Some((read, length)) = known.or(self.unsized_read) else { return false };
        let Some(offset) = sequence.checked_sub(read) else { return false };
        MTUS.into_iter().filter(|mtu| [0, *mtu].contains(&self.mtu)).any(|mtu| {
            let end = offset * u64::from(mtu) + u64::from(packet.payload_len);
            if info.position.ends() {
                end == u64::from(length)
            } else {
                packet.payload_len == mtu && end < u64::from(length)
            }
        })
    }

    /// Handles a response packet.
    pub(super) fn handle_response<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_, S>,
    ) -> Verdict {
        let sequence = self.sequence_of(packet.psn);
        let mut verdict = Verdict { sequence, ..Verdict::default() };
        self.statistics.response_packets += 1;
        self.note_followed(1, packet, scene);
        let is_copy = packet.sightings.is_copy;
        if is_copy && !self.is_copy_of_lost(sequence, packet) {
            verdict.duplicate = true;
            self.statistics.duplicate_packets += 1;
            self.statistics.response_packets -= 1;
            self.evidence().duplicates.push(packet.frame);
            return verdict;
        }
        if packet.sightings.lost.is_some() {
            // The requester never got it.
            self.report_between(sequence, role_of(packet, info), packet, scene);
            return verdict;
        }
        let is_ghost = sequence >= self.next.saturating_add(PSN_JUMP_MAX);
        if self.is_started && is_ghost {
            self.evidence().ghost_responses.push(packet.frame);
            return verdict;
        }
        self.heard = (sequence, packet.time.as_nanos());
        let answer = packet.aeth.map(|(syndrome, _)| syndrome.answer());
        let is_sent_earlier = self.is_sent_earlier(packet);
        let has_run = matches!(role_of(packet, info), PacketRole::Response);
        let place =
            if has_run { self.follow_run(sequence, packet, info, scene) } else { Place::Due };
        if place == Place::Late && !packet.sightings.is_delivered {
            verdict.reordered = true;
            self.count_reordered(packet.frame);
        }
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
            (_, Some(Answer::Nak(code))) => self.handle_nak(packet, code, &mut verdict, scene),
            (_, Some(Answer::Reserved(_)) | None) => {}
        }
        verdict.duplicate |= is_copy;
        // The responder sent the rest of a repeated answer, and the network did not copy it.
        verdict.duplicate &= !verdict.reordered && place != Place::Repeated;
        if verdict.duplicate {
            self.statistics.duplicate_packets += 1;
            self.statistics.response_packets -= 1;
            self.evidence().duplicates.push(packet.frame);
        }
        if packet.sightings.is_overtaken && !verdict.reordered {
            verdict.reordered = true;
            self.count_reordered(packet.frame);
        }
        verdict
    }

    /// Reports the responses that are missing before a READ response or an ATOMIC acknowledgement. Returns its place among
    /// those that are due.
    fn follow_run<S: Sink>(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_, S>,
    ) -> Place {
        let (begins, ends) = (info.position.begins(), info.position.ends());
        self.runs.size(self.mtu);
        // A responder that gets a request late, or twice, repeats all responses to it.
        let before = self.stray_response.take();
        let is_next = before.is_some_and(|last| last + 1 == sequence);
        let answerable = packet.time.as_nanos().saturating_sub(self.rtt_least);
        let arrival = self.runs.response(sequence, begins, answerable);
        match arrival {
            Arrival::Due(missing) => {
                self.report_missing(&missing, packet.frame, scene);
                return Place::Due;
            }
            Arrival::Late | Arrival::Stray if is_next => {
                self.stray_response = Some(sequence);
                return Place::Repeated;
            }
            // A copy of the last one does not interrupt them.
            Arrival::Stray if (begins && !ends) || before == Some(sequence) => {
                self.stray_response = Some(sequence);
                return Place::Stray;
            }
            Arrival::Late | Arrival::Stray => {}
        }
        let mut lost = self.open_losses.iter();
        if let Some(at) = lost.rposition(|loss| loss.is_response_in(sequence..=sequence)) {
            self.open_losses.remove(at);
        }
        if arrival == Arrival::Late { Place::Late } else { Place::Stray }
    }

    /// Whether the network's copy of a response that was lost came to the requester in its place.
    fn is_copy_of_lost(&mut self, sequence: u64, packet: &PacketFacts) -> bool {
        let before = self.known_lost_responses.len();
        if packet.sightings.is_delivered {
            self.known_lost_responses.retain(|&lost| lost != sequence);
        }
        self.known_lost_responses.len() < before
    }

    fn handle_ack<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        credits: Credits,
        is_sent_earlier: bool,
        verdict: &mut Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let sequence = verdict.sequence;
        if sequence < self.unacked {
            self.judge_old_ack(packet, is_sent_earlier, verdict);
        }
        let open = self.messages.first_read().filter(|read| read.first <= sequence);
        let missing = open.map(|read| read.responses_end);
        if missing.is_some() && sequence >= self.unacked {
            self.note_unanswered(missing, packet);
        } else if missing.is_none() && sequence >= self.recovery.pass_start {
            self.end_recovery();
        }
        if self.recent_acks.len() >= RECENT_ACKS_MAX {
            self.recent_acks.pop_front();
        }
        self.recent_acks.push_back((sequence, packet.digest));
        if !verdict.duplicate {
            self.statistics.acks += 1;
        }
        if let Some(count) = credits.count() {
            let least = &mut self.statistics.least_credits;
            *least = Some(least.map_or(count, |least| least.min(count)));
        }
        if sequence + 1 > self.unacked {
            self.measure_rtt(sequence, packet, false);
            self.last_ack = LastAck {
                sequence,
                frame: packet.frame,
                time: packet.time.as_nanos(),
                is_response: false,
            };
            self.progress(sequence + 1, packet, scene);
        }
        self.check_implied_nak(sequence, packet);
        self.complete(scene);
    }

    /// Whether the responder sent this response before one that was captured earlier: its MSN is lower (§9.7.7.1).
    fn is_sent_earlier(&mut self, packet: &PacketFacts) -> bool {
        let Some((_, msn)) = packet.aeth else { return false };
        let is_earlier = self.msn.is_some_and(|latest| msn.since(latest) < 0);
        if !is_earlier {
            self.msn = Some(msn);
        }
        is_earlier
    }

    /// An acknowledgement of what was acknowledged: one that the network delivered late, a copy, or the answer to a request
    /// that the responder had before.
    fn judge_old_ack(
        &mut self,
        packet: &PacketFacts,
        is_sent_earlier: bool,
        verdict: &mut Verdict,
    ) {
        // Where several capture points saw it, it is known to be no copy, and in which order it was sent.
        let is_known = packet.sightings.is_delivered;
        let is_equal = self.recent_acks.contains(&(verdict.sequence, packet.digest));
        if !is_sent_earlier && self.reanswers > 0 {
            self.reanswers -= 1;
            self.disprove_nak(verdict.sequence);
            self.disprove_timeout();
        } else if is_equal {
            verdict.duplicate = !is_known;
        } else if is_sent_earlier && !is_known {
            verdict.reordered = true;
            self.count_reordered(packet.frame);
        }
    }

    /// Measures the round-trip time of a packet that asked for an acknowledgement or, `is_response`, for a response.
    fn measure_rtt(&mut self, sequence: u64, packet: &PacketFacts, is_response: bool) {
        if let Some(record) = self.records.get(sequence)
            && record.transmissions == 1
            && (is_response || record.flags.contains(RecordFlags::ACK_REQUEST))
        {
            let rtt = packet.time.as_nanos().saturating_sub(record.time);
            self.add_rtt(rtt);
        }
    }

    /// All before `unacked` arrived at the responder.
    fn progress<S: Sink>(&mut self, unacked: u64, packet: &PacketFacts, scene: &mut Scene<'_, S>) {
        if unacked <= self.unacked {
            return;
        }
        self.resolve_timeout(unacked, packet, scene);
        self.unacked = unacked;
        self.progress_frame = packet.frame;
        // The responder has what the next capture point did not see: its file had ended.
        self.unseen.retain(|unseen| !unseen.is_request_before(unacked));
        // Responses come in order: what was repeated before the request that this one answers has had its answer.
        let answered = self.records.get(unacked.saturating_sub(1));
        if answered
            .is_some_and(|record| record.transmissions == 1 && record.frame > self.repeat_frame)
            && self.statistics.reordered == 0
        {
            self.reanswers = 0;
        }
        self.count_not_captured(unacked, packet.frame);
        (self.recovery.attempts, self.rnr_attempts) = (0, 0);
        (self.rnr_since, self.last_rnr) = (None, None);
        // After a NAK for a packet that was only late comes its acknowledgement; the requester goes back for the NAK.
        let now = packet.time.as_nanos();
        self.recovery.trigger = self.recovery.trigger.filter(|trigger| {
            trigger.sequence >= unacked
                || (trigger.cause == RetransmissionCause::SequenceNak
                    && now.saturating_sub(trigger.time) < TIMEOUT_NANOS_LEAST)
        });
        self.messages.acknowledge(unacked, (packet.time, packet.frame));
    }

    /// A response behind a READ or ATOMIC that was not answered in full makes the requester go back (§9.7.5.1.1).
    fn check_implied_nak(&mut self, sequence: u64, packet: &PacketFacts) {
        let Some(read) = self.messages.first_read() else { return };
        if read.last >= sequence {
            return;
        }
        let missing = self.missing_responses.iter().copied().min();
        let missing = missing.filter(|missing| (read.first..=read.last).contains(missing));
        let missing = missing.unwrap_or(read.responses_end);
        self.imply_nak(missing, packet);
    }

    /// The response `missing` did not come before a later one.
    fn imply_nak(&mut self, missing: u64, packet: &PacketFacts) {
        // One that it went back for, and requested again since, counts anew.
        let requested = self.records.get(missing).map_or(0, |record| record.time);
        let is_known = |known: Trigger| known.sequence == missing && known.time >= requested;
        // For one that came late it goes back as well, to request all that is missing behind it.
        let is_going_back = |known: Trigger| {
            matches!(known.asked, Asked::Late | Asked::Replayed)
                && known.is_current(packet.time.as_nanos())
        };
        if self.is_recovering(packet.time.as_nanos())
            || self.recovery.implied.is_some_and(|known| is_known(known) || is_going_back(known))
        {
            return;
        }
        let (time, frame) = (packet.time.as_nanos(), packet.frame);
        let (cause, sequence) = (RetransmissionCause::ImpliedNak, missing);
        let is_overtaken = self.sequence_of(packet.psn) > missing;
        let asked = if is_overtaken { Asked::Missing } else { Asked::Presumed };
        self.recovery.implied = Some(Trigger { cause, sequence, time, frame, asked });
    }

    fn set_trigger(&mut self, cause: RetransmissionCause, sequence: u64, packet: &PacketFacts) {
        let (time, frame) = (packet.time.as_nanos(), packet.frame);
        // After an RNR NAK some responders report the packets behind as out of sequence.
        let stays = [cause, RetransmissionCause::Rnr];
        let is_sent_since = |before: &Trigger| {
            self.records.get(sequence).is_some_and(|record| record.time > before.time)
        };
        if let Some(trigger) = self.recovery.trigger
            && trigger.sequence == sequence
            && stays.contains(&trigger.cause)
            && !is_sent_since(&trigger)
        {
            return;
        }
        self.recovery.trigger =
            Some(Trigger { cause, sequence, time, frame, asked: Asked::Missing });
    }

    /// Whether a NAK or RNR NAK is a copy of the previous one that the network made: the same packet, and no request since
    /// that it can answer. Remembers it otherwise.
    fn is_nak_copy(&mut self, sequence: u64, packet: &PacketFacts) -> bool {
        let (digest, frame, time) = (packet.digest, packet.frame, packet.time.as_nanos());
        let answer = packet.aeth.map(|(syndrome, _)| syndrome.answer());
        let is_sequence_error = answer == Some(Answer::Nak(NakCode::PsnSequenceError));
        let nak = LastNak { sequence, digest, frame, time, is_sequence_error };
        let known = self.last_nak.replace(nak);
        let Some(known) =
            known.filter(|known| (known.sequence, known.digest) == (sequence, digest))
        else {
            return false;
        };
        if packet.sightings.is_delivered {
            return false;
        }
        let is_at_once = time.saturating_sub(known.time) < self.srtt / 2;
        if self.last_request.1.max(self.repeat_frame) > known.frame && !is_at_once {
            return false;
        }
        // The network's copy of a request is answered as well, however soon it came.
        let is_due = self.repeat_frame < known.frame || self.copy_frame > known.frame;
        let is_answer = self.reanswers > 0 && is_due;
        self.reanswers -= u32::from(is_answer);
        !is_answer
    }

    fn handle_nak<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        code: NakCode,
        verdict: &mut Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let sequence = verdict.sequence;
        let before = self.last_nak;
        if self.is_nak_copy(sequence, packet) {
            verdict.duplicate = true;
            return;
        }
        let slot = usize::try_from(code.code().get()).unwrap_or(0);
        if let Some(counter) = self.statistics.naks.get_mut(slot) {
            *counter += 1;
        }
        self.evidence().naks.push(packet.frame);
        if sequence < self.unacked && self.last_ack.sequence >= sequence && self.last_ack.frame > 0
        {
            let ack = self.last_ack.frame;
            let frames = &mut self.evidence().naks_of_acknowledged;
            frames.push(packet.frame);
            frames.push(ack);
        }
        self.progress(sequence, packet, scene);
        self.check_implied_nak(sequence, packet);
        self.runs.drop_from(sequence);
        if code == NakCode::PsnSequenceError {
            self.messages.forget_requests(sequence);
            self.set_trigger(RetransmissionCause::SequenceNak, sequence, packet);
            self.add_sequence_nak(sequence, before, packet);
            self.complete(scene);
        } else {
            self.complete(scene);
            self.refuse(sequence, code, packet, scene);
        }
    }

    /// Remembers a sequence-error NAK. If the one before it named an earlier packet, and this one was sent before that came,
    /// the earlier packet arrived late, without being retransmitted, and the responder had dropped this one.
    fn add_sequence_nak(&mut self, sequence: u64, before: Option<LastNak>, packet: &PacketFacts) {
        let (cause, time) = (RetransmissionCause::SequenceNak, packet.time.as_nanos());
        let (frame, mut asked) = (packet.frame, Asked::Missing);
        let record = self.records.get(sequence).filter(|it| it.is_seen() && it.missing == 0);
        if let (Some(before), Some(record)) = (before, record)
            && before.sequence < sequence
            && record.time <= before.time
            && self.recovery.pass_frame < before.frame
        {
            asked = Asked::Dropped;
            self.disprove_nak(before.sequence);
            self.recovery.mark_late(before.sequence);
            self.note_late_behind(before.sequence, before.frame);
        }
        if let Some(trigger) = &mut self.recovery.trigger
            && trigger.frame == frame
        {
            trigger.asked = asked;
        }
        self.recovery.add_nak(Trigger { cause, sequence, time, frame, asked });
    }

    /// The responder has the first transmission of a packet that a NAK named: it was late, and not lost.
    fn disprove_nak(&mut self, sequence: u64) {
        let Some(at) = self.open_losses.iter().rposition(|loss| loss.is_by_nak(sequence)) else {
            return;
        };
        self.open_losses.remove(at);
        if let Some(record) = self.records.get_mut(sequence) {
            record.flags |= RecordFlags::LATE | RecordFlags::LOSS_REPORTED;
        }
        self.count_reordered(self.last_nak.map_or(0, |nak| nak.frame));
    }

    /// The responder refused a request for good: its queue pair and the requester's fail (§9.9.2).
    fn refuse<S: Sink>(
        &mut self,
        sequence: u64,
        code: NakCode,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        self.is_failed = true;
        while let Some(mut message) = self.messages.pop_first() {
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            let at = Some((packet.time, packet.frame));
            let outcome = if message.last < sequence && !message.needs_response() {
                message.end = message.end.or(at);
                Outcome::Completed
            } else if message.first <= sequence {
                message.end = at;
                let told = message.message(scene.flow, scene.requester, Outcome::Refused(code));
                let (frame, reth) = (packet.frame, message.reth);
                let refusals = &mut self.evidence().refusals;
                if refusals.len() < super::limits::EVIDENCE_MAX {
                    refusals.push(Refusal { code, frame, message: told, reth });
                }
                Outcome::Refused(code)
            } else {
                message.end = at;
                Outcome::Flushed
            };
            self.tell(&message, outcome, scene);
        }
    }

    fn handle_rnr<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        timer: RnrTimer,
        verdict: &mut Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let sequence = verdict.sequence;
        if self.is_nak_copy(sequence, packet) {
            verdict.duplicate = true;
            return;
        }
        self.statistics.rnr_naks += 1;
        self.progress(sequence, packet, scene);
        self.check_implied_nak(sequence, packet);
        self.messages.forget_requests(sequence);
        self.runs.drop_from(sequence);
        self.complete(scene);
        let now = packet.time.as_nanos();
        let evidence = self.evidence();
        evidence.rnrs.push(packet.frame);
        evidence.rnr_timers_differ |= evidence.rnr_timer.is_some_and(|known| known != timer);
        evidence.rnr_timer.get_or_insert(timer);
        self.rnr_since.get_or_insert(now);
        self.rnr_attempts += 1;
        self.last_rnr = Some((now, packet.frame));
        self.set_trigger(RetransmissionCause::Rnr, sequence, packet);
    }

    fn handle_atomic_ack<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        verdict: &mut Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let sequence = verdict.sequence;
        let Some(message) = self.messages.find_mut(sequence) else {
            self.judge_old_response(sequence, packet, verdict);
            return;
        };
        let is_answered = message.end.is_some();
        let (requests, is_read) = (message.requests, message.needs_response());
        if is_answered || !is_read {
            verdict.duplicate = is_answered && requests < 2 && !packet.sightings.is_delivered;
            return;
        }
        if self.is_dropped(sequence, sequence, packet) {
            verdict.duplicate = self.is_response_copy(sequence, packet) && requests < 2;
            return;
        }
        let is_overtaken = requests < 2 && sequence < self.last_ack.sequence;
        if is_overtaken && !packet.sightings.is_delivered && !verdict.reordered {
            verdict.reordered = true;
            self.count_reordered(packet.frame);
        }
        self.note_response(sequence, packet);
        self.progress(sequence + 1, packet, scene);
        self.measure_rtt(sequence, packet, true);
        self.messages.end_read(sequence, (packet.time, packet.frame));
        self.answer_implied(sequence..=sequence, requests, packet);
        self.check_implied_nak(sequence, packet);
        self.complete(scene);
    }

    /// Notes that a READ response or ATOMIC acknowledgement is the last response.
    fn note_response(&mut self, sequence: u64, packet: &PacketFacts) {
        self.remember_response(sequence, packet);
        if sequence >= self.last_ack.sequence {
            let (frame, time) = (packet.frame, packet.time.as_nanos());
            self.last_ack = LastAck { sequence, frame, time, is_response: true };
        }
    }

    /// Whether a response of a READ or ATOMIC of which `expected` is the next one answers an earlier request, so that a
    /// requester that went back drops it. If it comes in order, the requester has what it went back for.
    fn is_dropped(&mut self, sequence: u64, expected: u64, packet: &PacketFacts) -> bool {
        if !self.is_recovering(packet.time.as_nanos()) {
            return false;
        }
        let first =
            self.messages.first_read().map(|read| (read.first, read.last, read.responses_end));
        let is_first = first.is_none_or(|(first, last, _)| (first..=last).contains(&sequence));
        if is_first && sequence == expected {
            self.end_recovery();
            return false;
        }
        // A response to what the responder had before does not show that it has what was requested again before it.
        if is_first || sequence >= self.unacked {
            self.note_unanswered(first.map(|(.., missing)| missing), packet);
        }
        true
    }

    /// Notes that a later response came than the one that is `missing`. What comes sooner than a round trip after the requester
    /// went back answers an earlier request.
    fn note_unanswered(&mut self, missing: Option<u64>, packet: &PacketFacts) {
        let since = packet.time.as_nanos().saturating_sub(self.recovery.attempt_time);
        if since >= self.rtt_least {
            self.recovery.unanswered = missing;
        }
    }

    /// Whether a response that the requester drops came before. Remembers it otherwise.
    fn is_response_copy(&mut self, sequence: u64, packet: &PacketFacts) -> bool {
        if self.response_frame(sequence).is_some() || self.recovery.dropped.contains(&sequence) {
            return !packet.sightings.is_delivered;
        }
        if self.recovery.dropped.len() >= RESPONSES_MAX {
            self.recovery.dropped.pop_front();
        }
        self.recovery.dropped.push_back(sequence);
        false
    }

    /// The response that was missing came, one of `answered`, to a READ or ATOMIC that was requested so many times. The
    /// requester goes back for it all the same, if a later one came to it before (§9.7.5.1.1).
    fn answer_implied(
        &mut self,
        answered: core::ops::RangeInclusive<u64>,
        requests: u32,
        packet: &PacketFacts,
    ) {
        let now = packet.time.as_nanos();
        let is_presumed = |known: &mut Trigger| {
            known.asked == Asked::Presumed && known.sequence <= *answered.end()
        };
        self.recovery.implied.take_if(is_presumed);
        let implied = self.recovery.implied.as_mut();
        let Some(implied) = implied.filter(|known| answered.contains(&known.sequence)) else {
            return;
        };
        if implied.asked == Asked::Missing {
            implied.asked = if requests < 2 { Asked::Late } else { Asked::Replayed };
        }
        if !implied.is_current(now) {
            self.recovery.implied = None;
        }
    }

    /// A response to a READ or ATOMIC that ended: a replay if it was requested again, else a copy of the network's.
    fn judge_old_response(&mut self, sequence: u64, packet: &PacketFacts, verdict: &mut Verdict) {
        if let Some(again) = self.ended_read(sequence) {
            verdict.duplicate = !*again && !packet.sightings.is_delivered;
        }
    }

    fn handle_read_response<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        verdict: &mut Verdict,
        scene: &mut Scene<'_, S>,
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
        let expected = message.responses_end;
        if sequence >= expected && self.is_dropped(sequence, expected, packet) {
            verdict.duplicate = self.is_response_copy(sequence, packet) && requests < 2;
            return;
        }
        let Some(message) = self.messages.find_mut(sequence) else { return };
        if sequence >= expected {
            message.responses_end = sequence + 1;
        }
        if sequence < expected {
            match self.missing_responses.iter().position(|&missing| missing == sequence) {
                Some(at) => {
                    self.missing_responses.swap_remove(at);
                    if requests < 2 && !packet.sightings.is_delivered && !verdict.reordered {
                        verdict.reordered = true;
                        self.count_reordered(packet.frame);
                    }
                }
                None => {
                    verdict.duplicate = requests < 2 && !packet.sightings.is_delivered;
                    return;
                }
            }
        } else if sequence > expected {
            let room = MISSING_RESPONSES_MAX.saturating_sub(self.missing_responses.len());
            self.missing_responses.extend((expected..sequence).take(room));
            self.imply_nak(expected, packet);
        } else if sequence == first && requests == 1 {
            self.measure_rtt(sequence, packet, true);
        }
        self.note_response(sequence, packet);
        self.progress(sequence + 1, packet, scene);
        let is_whole = !self.missing_responses.iter().any(|m| (first..=last).contains(m));
        let has_last = self.messages.find_mut(sequence).is_some_and(|m| m.responses_end > last)
            || info.position.ends();
        if is_whole {
            self.answer_implied(first..=sequence, requests, packet);
            if has_last {
                self.messages.end_read(sequence, (packet.time, packet.frame));
            }
        }
        // One that was late leaves what is missing behind it.
        self.check_implied_nak(sequence.max(self.last_ack.sequence), packet);
        self.complete(scene);
    }

    /// The last PSN that was acknowledged.
    pub(super) fn last_acked_psn(&self) -> Option<u32> {
        (self.last_ack.frame > 0).then(|| psn_of(self.unacked.saturating_sub(1)).get())
    }
}
