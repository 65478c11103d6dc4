//! What was lost, and where: decided when the requester goes back, or when the next acknowledgement tells more.

use super::limits::MISSING_RESPONSES_MAX;
use super::records::RecordFlags;
use super::requester::{Asked, OpenTimeout, Requester, Scene, Trigger};
use super::{
    Certainty, LossNote, LossPlace, LostBetween, PacketFacts, PacketRole, RetransmissionCause, Sink,
};

/// One loss, before it is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) sequence: u64,
    pub(super) role: PacketRole,
    pub(super) frame: Option<u64>,
    pub(super) proof: u64,
    pub(super) certainty: Certainty,
    pub(super) is_corrupt: bool,
}

impl Requester {
    /// Decides what was lost when the requester goes back to `sequence` with `packet`.
    pub(super) fn judge_losses<S: Sink>(
        &mut self,
        sequence: u64,
        cause: RetransmissionCause,
        trigger: Option<Trigger>,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let trigger = trigger.filter(|trigger| trigger.sequence <= sequence.max(self.unacked));
        let proof = trigger.map_or(packet.frame, |trigger| trigger.frame);
        let from = trigger.map_or(sequence, |trigger| trigger.sequence.min(sequence));
        let skipped = self.report_skipped(from, proof, scene);
        let is_corrupt = self.report_corrupt(from, proof, scene);
        let skipped = skipped | is_corrupt;
        if cause == RetransmissionCause::Rnr {
            return;
        }
        match trigger {
            Some(trigger) if trigger.asked == Asked::Told => {}
            Some(trigger) if trigger.asked == Asked::Passed => {
                self.report_not_seen(trigger.sequence, packet.frame, scene);
            }
            Some(trigger) if trigger.cause == RetransmissionCause::SequenceNak => {
                self.report_naked(trigger.sequence, trigger.frame, scene);
                let resent = self.resent_corrupt(&trigger);
                if let (RetransmissionCause::Timeout, Some((frame, _))) = (cause, resent) {
                    self.corrupt.retain(|&(_, corrupt, _)| corrupt != frame);
                    let (sequence, role, frame) =
                        (trigger.sequence, PacketRole::Request, Some(frame));
                    let (proof, certainty, is_corrupt) = (packet.frame, Certainty::Proven, true);
                    let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
                    self.report(loss, scene);
                } else if cause == RetransmissionCause::Timeout {
                    // The NAK did not reach the requester, or it would have gone back earlier.
                    self.report_response(
                        trigger.sequence,
                        PacketRole::Nak,
                        trigger.frame,
                        packet,
                        scene,
                    );
                }
            }
            Some(trigger) if trigger.cause == RetransmissionCause::ImpliedNak => {
                let more = self.more_missing(trigger.sequence);
                if trigger.asked == Asked::Late {
                    self.report_corrupt_responses(trigger.sequence + 1, trigger.frame, scene);
                } else if !is_corrupt {
                    let is_only = more.is_empty();
                    self.report_missing_response(trigger.sequence, is_only, trigger.frame, scene);
                }
                for sequence in more {
                    let (role, certainty) = (PacketRole::Response, Certainty::Likely);
                    let (frame, proof, is_corrupt) = (None, trigger.frame, false);
                    let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
                    self.report(loss, scene);
                }
            }
            _ if skipped => {}
            _ => self.judge_timeout(sequence, packet, scene),
        }
    }

    /// Reports the PSNs behind `sequence` that were never captured: they were lost before the capture point.
    fn report_skipped<S: Sink>(
        &mut self,
        sequence: u64,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) -> bool {
        if self.gaps == 0 {
            return false;
        }
        let (from, to) = (sequence.max(self.unacked), self.next);
        let mut lost = Vec::new();
        // How much of a gap behind a READ of unknown size is the READ's is not known: the last PSN of it is not.
        let guessed = self.guessed_read.map_or(u64::MAX, |(read, _)| read + 1);
        for record in self.records.range_mut(from, to).filter(|record| record.open_gap() > 0) {
            self.gaps = self.gaps.saturating_sub(record.open_gap());
            record.flags |= RecordFlags::LOSS_REPORTED;
            let is_guessed = record.sequence == guessed;
            let first = if is_guessed { record.end() - 1 } else { record.sequence };
            // What makes the requester go back may have come before the gap.
            lost.push((first.max(from), record.end(), proof.max(record.frame)));
        }
        for &(first, end, proof) in &lost {
            for sequence in first..end {
                let (role, certainty) = (PacketRole::Request, Certainty::Proven);
                // One that was captured with a wrong ICRC after the proof was transmitted later.
                let frame = self.take_corrupt_before(sequence, proof).map(|(frame, _)| frame);
                let is_corrupt = frame.is_some();
                self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            }
        }
        !lost.is_empty()
    }

    /// Reports the packet to which the requester goes back, if it was captured with a wrong ICRC before the proof.
    fn report_corrupt<S: Sink>(
        &mut self,
        sequence: u64,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) -> bool {
        let Some((frame, _)) = self.take_corrupt_before(sequence, proof) else { return false };
        let (role, certainty, is_corrupt) = (PacketRole::Request, Certainty::Proven, true);
        let frame = Some(frame);
        self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
        true
    }

    /// Reports a retransmission that did not come to the capture point.
    fn report_not_seen<S: Sink>(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_, S>) {
        let (role, frame) = (PacketRole::Request, None);
        let (certainty, is_corrupt) = (Certainty::Likely, false);
        self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
    }

    /// Reports the packet that a NAK asked for.
    fn report_naked<S: Sink>(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_, S>) {
        let role = PacketRole::Request;
        let Some(record) = self.records.get_mut(sequence) else { return };
        let reported = RecordFlags::LOSS_REPORTED | RecordFlags::LATE;
        if !record.is_seen() || record.flags.intersects(reported) || proof < record.frame {
            return;
        }
        record.flags |= RecordFlags::LOSS_REPORTED;
        // It may as well be late: then packets that were sent later overtook it behind the capture point.
        let (frame, certainty, is_corrupt) = (Some(record.frame), Certainty::Likely, false);
        self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
    }

    /// Reports the READ response or ATOMIC acknowledgement for want of which the requester went back. `is_only`: no other was
    /// missing, so that one with a damaged PSN is this one.
    fn report_missing_response<S: Sink>(
        &mut self,
        sequence: u64,
        is_only: bool,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) {
        if self.is_response_known_lost(sequence) {
            return;
        }
        let role = PacketRole::Response;
        let corrupt = self
            .take_corrupt_response(sequence..=sequence)
            .or_else(|| self.take_displaced_response().filter(|_| is_only));
        let is_corrupt = corrupt.is_some();
        let frame = corrupt.map(|(_, frame, _)| frame).or_else(|| {
            // One that came before the request was transmitted last answered an earlier one, and one that came before the
            // requester went back was dropped.
            let requested = self.records.get(sequence).map_or(0, |record| record.frame);
            let requested = requested.max(self.pass_frame);
            self.response_frame(sequence).filter(|&frame| frame > requested && frame < proof)
        });
        self.report_corrupt_responses(sequence + 1, proof, scene);
        // One that was never captured may as well be late.
        let certainty = if frame.is_some() { Certainty::Proven } else { Certainty::Likely };
        self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
    }

    /// The other responses that were missing when the requester went back for want of the one to `sequence`: of each READ or
    /// ATOMIC the first, if a later one was answered.
    fn more_missing(&self, sequence: u64) -> Vec<u64> {
        let answered = self.last_ack.sequence;
        let reads = self.messages.open_reads().take_while(|read| read.last < answered);
        let reads = reads.filter(|read| read.first > sequence && read.requests == 1);
        let unanswered = reads.filter(|read| read.responses_end == read.first);
        let mut missing: Vec<u64> =
            unanswered.map(|read| read.first).take(MISSING_RESPONSES_MAX).collect();
        let gaps = self.missing_responses.iter().copied();
        missing.extend(gaps.filter(|&missing| missing > sequence));
        // Those with a wrong ICRC are reported as such.
        missing.retain(|missing| !self.corrupt_responses.iter().any(|(at, ..)| at == missing));
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// A requester that went back drops the responses to what it had requested before, but they come in order: reports those
    /// of READs and ATOMICs that are missing before the one to `sequence`.
    pub(super) fn find_dropped_gap<S: Sink>(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let now = packet.time.as_nanos();
        let is_earlier = now.saturating_sub(self.attempt_time) < self.rtt_least;
        if sequence < self.dropped_end || !is_earlier || !self.is_recovering(now) {
            return;
        }
        let from = core::mem::replace(&mut self.dropped_end, sequence + 1);
        let reads = self.messages.open_reads().take_while(|read| read.last < sequence);
        let reads = reads.filter(|read| read.first >= from && read.requests == 1);
        let mut missing: Vec<u64> =
            reads.map(|read| read.first).take(MISSING_RESPONSES_MAX).collect();
        missing.retain(|missing| !self.corrupt_responses.iter().any(|(at, ..)| at == missing));
        for sequence in missing {
            let (role, certainty) = (PacketRole::Response, Certainty::Likely);
            let (frame, proof, is_corrupt) = (None, packet.frame, false);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
        }
    }

    /// A READ response with a wrong ICRC whose PSN is of no READ or ATOMIC that waits for one: the PSN is damaged.
    fn take_displaced_response(&mut self) -> Option<(u64, u64, PacketRole)> {
        let at = self.corrupt_responses.iter().position(|&(sequence, _, role)| {
            let message = self.messages.find(sequence);
            role == PacketRole::Response
                && !message.is_some_and(|m| m.needs_response() && m.end.is_none())
        })?;
        Some(self.corrupt_responses.remove(at))
    }

    /// Reports the responses with a wrong ICRC between `sequence` and the last one that was answered.
    fn report_corrupt_responses<S: Sink>(
        &mut self,
        sequence: u64,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) {
        while let Some((sequence, frame, role)) =
            self.take_corrupt_response(sequence..=self.last_ack.sequence)
        {
            let (frame, certainty, is_corrupt) = (Some(frame), Certainty::Proven, true);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
        }
    }

    /// A response with a wrong ICRC to one of these sequence numbers.
    fn take_corrupt_response(
        &mut self,
        sequences: core::ops::RangeInclusive<u64>,
    ) -> Option<(u64, u64, PacketRole)> {
        let mut all = self.corrupt_responses.iter();
        let at = all.position(|(sequence, ..)| sequences.contains(sequence))?;
        Some(self.corrupt_responses.remove(at))
    }

    /// A timeout without any hint: an acknowledgement was lost, or the last request.
    fn judge_timeout<S: Sink>(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        if self.is_response_known_lost(sequence) {
            return;
        }
        let now = packet.time.as_nanos();
        let is_told = |from, to| self.records.any(from, to, RecordFlags::LOSS_REPORTED);
        if is_told(sequence, sequence + 1) || is_told(sequence.max(self.unacked), self.next) {
            return;
        }
        let last = self.records.get(sequence);
        let (frame, transmissions) =
            last.map_or((0, 0), |record| (record.frame, record.transmissions));
        let elapsed = last.map_or(0, |record| now.saturating_sub(record.time));
        let proof = packet.frame;
        if let Some((sequence, frame, role)) = self.take_corrupt_response(sequence..=self.next) {
            let (frame, certainty, is_corrupt) = (Some(frame), Certainty::Proven, true);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            return;
        }
        if sequence == self.cursor {
            // It had gone back before, and what it retransmitted then ended before this.
            return self.report_not_seen(sequence, proof, scene);
        }
        if self.unanswered == Some(sequence) {
            let (role, certainty) = (PacketRole::Response, Certainty::Likely);
            let (frame, is_corrupt) = (None, false);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            return;
        }
        let read = self.messages.find(sequence).filter(|message| message.needs_response());
        let is_open = read.is_some_and(|m| m.end.is_none() && m.responses_end <= sequence);
        let is_missing = is_open || self.missing_responses.contains(&sequence);
        if is_missing && transmissions > 1 {
            // Requested again in vain: that request was lost, or the responses to it.
            let (role, certainty, is_corrupt) = (PacketRole::Request, Certainty::Likely, false);
            let frame = Some(frame);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            return;
        }
        if self.unacked > sequence {
            let ack = self.last_ack;
            // Acknowledged, and long ago: the acknowledgement did not arrive.
            let since_ack = now.saturating_sub(ack.time);
            if ack.sequence < sequence || since_ack <= elapsed / 4 {
                return;
            }
            let response = self.response_frame(sequence).filter(|_| ack.is_response);
            let lost = response.unwrap_or(ack.frame);
            if core::mem::replace(&mut self.lost_ack_frame, lost) == lost {
                // Told before: what was retransmitted for want of it was lost too.
                return;
            }
            match response {
                Some(frame) => {
                    self.report_response(sequence, PacketRole::Response, frame, packet, scene);
                }
                None => {
                    self.report_response(ack.sequence, PacketRole::Ack, ack.frame, packet, scene)
                }
            }
            return;
        }
        let read = self.messages.find_mut(sequence).filter(|message| message.needs_response());
        if read.is_some_and(|read| read.responses_end > read.first) {
            // The responder answered the first part of a READ, so it has the request: the next response is missing. If the rest
            // was requested again, that request may be.
            let is_again = transmissions > 1;
            let role = if is_again { PacketRole::Request } else { PacketRole::Response };
            let (frame, is_corrupt) = (is_again.then_some(frame), false);
            let certainty = Certainty::Likely;
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            return;
        }
        let tail = (self.next.saturating_sub(1), self.last_request.1);
        self.open_timeout.get_or_insert(OpenTimeout { sequence, frame: packet.frame, tail });
    }

    /// Decides what an earlier timeout was about, when `acknowledged` is the first sequence number that is not
    /// acknowledged.
    pub(super) fn resolve_timeout<S: Sink>(&mut self, acknowledged: u64, scene: &mut Scene<'_, S>) {
        let Some(timeout) = self.open_timeout.take() else { return };
        if acknowledged <= timeout.sequence {
            self.open_timeout = Some(timeout);
            return;
        }
        let proof = timeout.frame;
        let until = acknowledged.min(self.next);
        if self.records.any(self.cursor, until, RecordFlags::ACK_REQUEST) {
            // The responder has what was not retransmitted yet: it had got it, and the acknowledgement that this asked for was
            // lost before the capture point.
            let (sequence, role) = (acknowledged - 1, PacketRole::Ack);
            let (frame, certainty, is_corrupt) = (None, Certainty::Proven, false);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            return;
        }
        let (sequence, frame) = timeout.tail;
        if self.corrupt.iter().any(|(corrupt, ..)| *corrupt == self.next) {
            // Told when it is retransmitted.
            return;
        }
        if acknowledged > self.cursor && sequence < acknowledged {
            // The responder has all that was captured, and none of it asked for an acknowledgement: what did is missing.
            let (sequence, role, frame) = (self.next, PacketRole::Request, None);
            let (certainty, is_corrupt) = (Certainty::Likely, false);
            self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
            return;
        }
        let (role, certainty, is_corrupt) = (PacketRole::Request, Certainty::Likely, false);
        self.report(
            Loss { sequence, role, frame: Some(frame), proof, certainty, is_corrupt },
            scene,
        );
    }

    /// Reports a response that was captured and did not reach the requester.
    fn report_response<S: Sink>(
        &mut self,
        sequence: u64,
        role: PacketRole,
        frame: u64,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let (frame, proof, is_corrupt) = (Some(frame), packet.frame, false);
        let certainty = Certainty::Likely;
        self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
    }

    /// Reports what several capture points tell: one saw the packet, the next one did not.
    pub(super) fn report_between<S: Sink>(
        &mut self,
        sequence: u64,
        role: PacketRole,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let Some(LostBetween { from, to, frame }) = packet.sightings.lost else { return };
        if role != PacketRole::Request {
            if self.known_lost_responses.len() >= MISSING_RESPONSES_MAX {
                self.known_lost_responses.remove(0);
            }
            self.known_lost_responses.push(sequence);
        }
        let loss = Loss {
            sequence,
            role,
            frame: Some(frame),
            proof: packet.frame,
            certainty: Certainty::Proven,
            is_corrupt: packet.sightings.is_damaged_later,
        };
        self.report_at(loss, LossPlace::Between { from, to }, scene);
    }

    /// Whether several capture points told of the loss of a response, for want of which the requester goes back to
    /// `sequence`.
    fn is_response_known_lost(&mut self, sequence: u64) -> bool {
        let is_known = self.known_lost_responses.iter().any(|&lost| lost >= sequence);
        self.known_lost_responses.retain(|&lost| lost < sequence);
        is_known
    }

    /// Counts and tells a loss.
    pub(super) fn report<S: Sink>(&mut self, loss: Loss, scene: &mut Scene<'_, S>) {
        // What was captured with a wrong ICRC was damaged before it came to the capture point.
        let place = match loss.frame {
            Some(_) if !loss.is_corrupt => LossPlace::AfterCapturePoint,
            _ => LossPlace::BeforeCapturePoint,
        };
        self.report_at(loss, place, scene);
    }

    fn report_at<S: Sink>(&mut self, loss: Loss, place: LossPlace, scene: &mut Scene<'_, S>) {
        let is_request = loss.role == PacketRole::Request;
        if is_request {
            self.statistics.lost_requests += 1;
        } else {
            self.statistics.lost_responses += 1;
        }
        let evidence = self.evidence();
        let frames =
            if is_request { &mut evidence.lost_requests } else { &mut evidence.lost_responses };
        loss.frame.into_iter().for_each(|frame| frames.push(frame));
        frames.push(loss.proof);
        match place {
            LossPlace::BeforeCapturePoint => evidence.places[0] += 1,
            LossPlace::AfterCapturePoint => evidence.places[1] += 1,
            LossPlace::Between { from, to } => evidence.add_between(from, to),
        }
        evidence.likely_losses += u64::from(loss.certainty == Certainty::Likely);
        evidence.corrupted_losses += u64::from(loss.is_corrupt);
        scene.sink.loss(&LossNote {
            flow: scene.flow,
            sender: if is_request { scene.requester } else { 1 - scene.requester },
            sequence: loss.sequence,
            role: loss.role,
            frame: loss.frame,
            proof: loss.proof,
            place,
            certainty: loss.certainty,
        });
    }

    /// Counts PSNs before `acknowledged` that the responder got and the capture did not.
    pub(super) fn count_not_captured(&mut self, acknowledged: u64, frame: u64) {
        if self.gaps == 0 {
            return;
        }
        let mut count = 0;
        for record in self.records.range_mut(0, acknowledged) {
            if record.open_gap() > 0 && record.end() <= acknowledged {
                count += record.open_gap();
                record.flags |= RecordFlags::NOT_CAPTURED;
            }
        }
        self.gaps = self.gaps.saturating_sub(count);
        if count > 0 {
            self.statistics.not_captured += count;
            self.evidence().not_captured.push(frame);
        }
    }
}
