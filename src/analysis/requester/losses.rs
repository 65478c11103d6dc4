//! What was lost, and where: decided when the requester goes back, or when the next acknowledgement
//! tells more.
//!
//! A loss that only the behavior of the two ends shows is kept until the end ([`OpenLoss`]): a
//! packet that comes late, or an answer to each of two transmissions, disproves it. Where several
//! capture points follow a packet, they alone tell.

use core::ops::{Range, RangeInclusive};
use std::collections::VecDeque;

use super::corrupt::CorruptResponse;
use super::limits::{MISSING_RESPONSES_MAX, OPEN_LOSSES_MAX, UNSEEN_MAX};
use super::records::RecordFlags;
use super::recovery::{Asked, OpenTimeout, Trigger};
use super::{
    Certainty, LossNote, LossPlace, LostBetween, PacketFacts, PacketRole, Requester,
    RetransmissionCause, Scene, Sink,
};
use crate::observe::responses::Missing;
use crate::observe::timing::TIMEOUT_NANOS_LEAST;
use crate::observe::transmissions::Spanning;

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

/// What shows a loss, and so what may disprove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// A gap.
    Gap,
    /// A NAK names a packet that passed the capture point: it was lost behind it, or is late.
    Nak,
    /// The requester timed out: a request was lost, or the responder was slow and answers both.
    Timeout,
}

/// A loss that may still be disproved.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLoss {
    loss: Loss,
    place: LossPlace,
    sign: Sign,
}

/// Losses of one requester, until they are told.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    /// Those that a late packet may still disprove.
    open: VecDeque<OpenLoss>,
    /// Packets that the next capture point did not see because its file ends, unless they were
    /// lost.
    unseen: VecDeque<OpenLoss>,
    /// Whether several capture points follow the requests, and the responses: what is lost between
    /// them is known.
    is_followed: [bool; 2],
    /// Frame of the last response that was told to be lost behind the capture point.
    last_answer: u64,
}

impl Losses {
    /// Whether several capture points follow the requests.
    pub(super) fn are_requests_followed(&self) -> bool {
        self.is_followed[0]
    }

    /// Whether one capture point alone sees what passes.
    pub(super) fn is_point_alone(&self) -> bool {
        self.is_followed == [false, false]
    }

    /// Removes the last open loss that `is_it` is true of. Returns whether there was one.
    pub(super) fn disprove(&mut self, is_it: impl Fn(&OpenLoss) -> bool) -> bool {
        let at = self.open.iter().rposition(is_it);
        at.and_then(|at| self.open.remove(at)).is_some()
    }

    /// Removes all open losses that `is_it` is true of.
    pub(super) fn disprove_all(&mut self, is_it: impl Fn(&OpenLoss) -> bool) {
        self.open.retain(|loss| !is_it(loss));
    }

    /// Takes an acknowledgement: the responder has what the next capture point did not see, whose
    /// file had ended.
    pub(super) fn acknowledge(&mut self, unacked: u64) {
        self.unseen.retain(|unseen| !unseen.is_request_before(unacked));
    }
}

impl OpenLoss {
    /// Whether it is the loss of the request with this sequence number.
    pub(super) fn is_request(&self, sequence: u64) -> bool {
        self.loss.role == PacketRole::Request && self.loss.sequence == sequence
    }

    /// Whether it is one of these requests, none of which was captured.
    pub(super) fn is_gap_in(&self, sequences: &Range<u64>) -> bool {
        let Loss { role, frame, sequence, .. } = self.loss;
        role == PacketRole::Request && frame.is_none() && sequences.contains(&sequence)
    }

    /// Whether it is the loss of a request before this sequence number.
    fn is_request_before(&self, sequence: u64) -> bool {
        self.loss.role == PacketRole::Request && self.loss.sequence < sequence
    }

    /// Whether it is the loss of a response with one of these sequence numbers, which was not
    /// captured.
    pub(super) fn is_response_in(&self, sequences: RangeInclusive<u64>) -> bool {
        let Loss { role, frame, sequence, .. } = self.loss;
        role == PacketRole::Response && frame.is_none() && sequences.contains(&sequence)
    }

    /// Whether a NAK of this sequence number shows it.
    pub(super) fn is_by_nak(&self, sequence: u64) -> bool {
        self.sign == Sign::Nak && self.loss.sequence == sequence
    }

    /// Whether it is a request that passed the capture point, and a timeout shows its loss.
    pub(super) fn is_by_timeout(&self) -> bool {
        let Loss { role, frame, .. } = self.loss;
        self.sign == Sign::Timeout && role == PacketRole::Request && frame.is_some()
    }
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
        let trigger =
            trigger.filter(|trigger| trigger.sequence <= sequence.max(self.progress.unacked));
        let proof = trigger.map_or(packet.frame, |trigger| trigger.frame);
        let from = trigger.map_or(sequence, |trigger| trigger.sequence.min(sequence));
        let skipped = self.report_skipped(from, proof, scene);
        let skipped = skipped | self.report_corrupt(from, proof, scene);
        if cause == RetransmissionCause::Rnr {
            return;
        }
        match trigger {
            Some(Trigger { asked: Asked::Told | Asked::Late | Asked::Dropped, .. }) => {}
            Some(trigger) if trigger.asked == Asked::Passed => {
                self.report_not_seen(trigger.sequence, packet.frame, scene);
            }
            Some(trigger) if trigger.cause == RetransmissionCause::SequenceNak => {
                self.judge_nak(&trigger, cause, packet, scene);
            }
            Some(_) => self.report_passed(packet.frame, scene),
            _ if self.is_response_told(sequence) => {}
            _ if self.is_answered(sequence) => {
                let frame = self.reads.frame_of(sequence);
                self.report_answer(sequence, PacketRole::Response, frame, packet, scene);
            }
            _ if skipped || cause == RetransmissionCause::SequenceNak => {}
            _ => self.judge_timeout(sequence, packet, scene),
        }
    }

    /// Whether the response that the requester goes back for did not come to the capture point, as
    /// is told since the last request for it.
    fn is_response_told(&self, sequence: u64) -> bool {
        let requested = self.progress.records.get(sequence).map_or(0, |record| record.frame);
        let mut open = self.losses.open.iter().rev();
        open.any(|open| open.is_response_in(sequence..=sequence) && open.loss.proof > requested)
    }

    /// Reports the responses that are missing before the last one: the requester goes back for want
    /// of them.
    fn report_passed<S: Sink>(&mut self, proof: u64, scene: &mut Scene<'_, S>) {
        let sequence = self.answers.last.sequence;
        if self.answers.last.is_response {
            // Told when it came.
            return;
        }
        let requested = self.progress.records.get(sequence).map_or(0, |record| record.time);
        let missing = self.reads.runs.pass(sequence, requested);
        self.report_missing(&missing, proof, scene);
    }

    /// The requester goes back because of a NAK, or would have, had the NAK reached it.
    fn judge_nak<S: Sink>(
        &mut self,
        trigger: &Trigger,
        cause: RetransmissionCause,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let (sequence, resent) = (trigger.sequence, self.corrupt.retransmission_for(trigger));
        if sequence < self.progress.unacked && cause == RetransmissionCause::SequenceNak {
            // The responder has it before it is retransmitted: it was late behind the capture
            // point.
            self.note_late_behind(sequence, trigger.frame);
        } else {
            self.report_naked(sequence, trigger.frame, scene);
        }
        if cause != RetransmissionCause::Timeout {
            return;
        }
        let Some(frame) = resent.map(|resent| resent.frame) else {
            // The NAK did not reach the requester, or it would have gone back earlier.
            let frame = Some(trigger.frame);
            return self.report_answer(sequence, PacketRole::Nak, frame, packet, scene);
        };
        self.corrupt.forget_request(frame);
        let (role, frame) = (PacketRole::Request, Some(frame));
        let (proof, certainty, is_corrupt) = (packet.frame, Certainty::Proven, true);
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report(loss, Sign::Gap, scene);
    }

    /// The network delivered a request late behind the capture point, as the NAK in frame `nak` shows.
    pub(super) fn note_late_behind(&mut self, sequence: u64, nak: u64) {
        let known = RecordFlags::LATE | RecordFlags::LOSS_REPORTED;
        let Some(record) = self.progress.records.get_mut(sequence) else { return };
        let is_told = record.missing > 0 || record.flags.intersects(known);
        if !record.is_seen() || is_told || nak < record.frame {
            return;
        }
        record.flags |= RecordFlags::LATE;
        let frame = record.frame;
        if !self.losses.is_followed[0] {
            self.count_reordered(frame);
        }
    }

    /// Reports the PSNs behind `sequence` that did not come to the capture point: they were lost
    /// before it.
    fn report_skipped<S: Sink>(
        &mut self,
        sequence: u64,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) -> bool {
        if self.progress.gaps == 0 && self.progress.skips == 0 {
            return false;
        }
        let (from, to) = (sequence.max(self.progress.unacked), self.next());
        let (mut lost, mut skipped) = (Vec::new(), sequence);
        // How much of a gap behind a READ of unknown size is the READ's is not known: the last PSN
        // of it is not.
        let guessed = self.sizes.guessed_from().unwrap_or(u64::MAX);
        for record in self.progress.records.range_mut(from, to) {
            if record.open_gap() > 0 {
                self.progress.gaps = self.progress.gaps.saturating_sub(record.open_gap());
                let is_guessed = record.sequence == guessed;
                let first = if is_guessed { record.end() - 1 } else { record.sequence };
                // What makes the requester go back may have come before the gap.
                lost.push((first.max(from), record.end(), proof.max(record.frame)));
            } else if record.is_skipped() && record.sequence == skipped {
                // A requester that goes back further skips packets, too: what is asked for was
                // sent.
                self.progress.skips = self.progress.skips.saturating_sub(1);
                skipped = record.end();
                lost.push((record.sequence, record.sequence + 1, proof));
            } else {
                continue;
            }
            record.flags |= RecordFlags::LOSS_REPORTED;
        }
        for &(first, end, proof) in &lost {
            for sequence in first..end {
                let (role, certainty) = (PacketRole::Request, Certainty::Proven);
                // One that was captured with a wrong ICRC after the proof was transmitted later.
                let corrupt = self.corrupt.take_request_before(sequence, proof);
                let frame = corrupt.map(|corrupt| corrupt.frame);
                let is_corrupt = frame.is_some();
                let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
                self.report(loss, Sign::Gap, scene);
            }
        }
        !lost.is_empty()
    }

    /// Reports the packet to which the requester goes back, if it was captured with a wrong ICRC
    /// before the proof.
    fn report_corrupt<S: Sink>(
        &mut self,
        sequence: u64,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) -> bool {
        let Some(corrupt) = self.corrupt.take_request_before(sequence, proof) else { return false };
        let (role, certainty, is_corrupt) = (PacketRole::Request, Certainty::Proven, true);
        let frame = Some(corrupt.frame);
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report(loss, Sign::Gap, scene);
        true
    }

    /// Reports a retransmission that did not come to the capture point.
    fn report_not_seen<S: Sink>(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_, S>) {
        let (role, frame) = (PacketRole::Request, None);
        let (certainty, is_corrupt) = (Certainty::Likely, false);
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report(loss, Sign::Gap, scene);
    }

    /// Reports the packet that a NAK asked for.
    fn report_naked<S: Sink>(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_, S>) {
        let role = PacketRole::Request;
        let Some(record) = self.progress.records.get_mut(sequence) else { return };
        let reported = RecordFlags::LOSS_REPORTED | RecordFlags::LATE;
        if !record.is_seen() || record.flags.intersects(reported) || proof < record.frame {
            return;
        }
        record.flags |= RecordFlags::LOSS_REPORTED;
        // It may as well be late: then packets that were sent later overtook it behind the capture
        // point.
        let (frame, certainty, is_corrupt) = (Some(record.frame), Certainty::Likely, false);
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report(loss, Sign::Nak, scene);
    }

    /// Reports the responses that are missing before one that came: they were lost before the
    /// capture point. A READ or ATOMIC without any response may have been lost itself.
    pub(super) fn report_missing<S: Sink>(
        &mut self,
        missing: &Missing,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) {
        let sequences = || missing.tail.clone().chain(missing.head.clone());
        let is_only = sequences().take(2).count() + missing.unanswered.len() == 1;
        for sequence in sequences().take(MISSING_RESPONSES_MAX) {
            self.report_missing_response(sequence, is_only, proof, scene);
        }
        for run in &missing.unanswered {
            if run.end - run.first == 1 || !run.is_sized {
                self.report_missing_response(run.first, is_only, proof, scene);
                continue;
            }
            let (sequence, role) = (run.first, PacketRole::Request);
            let (certainty, is_corrupt) = (Certainty::Likely, false);
            let frame = Some(run.frame);
            let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
            self.report(loss, Sign::Gap, scene);
        }
    }

    /// Reports a READ response or ATOMIC acknowledgement that did not come. `is_only`: no other is
    /// missing, so that one with a damaged PSN is this one.
    fn report_missing_response<S: Sink>(
        &mut self,
        sequence: u64,
        is_only: bool,
        proof: u64,
        scene: &mut Scene<'_, S>,
    ) {
        let corrupt = self
            .corrupt
            .take_response_in(sequence..=sequence)
            .or_else(|| self.take_displaced_response().filter(|_| is_only));
        let (role, is_corrupt) = (PacketRole::Response, corrupt.is_some());
        let frame = corrupt.map(|corrupt| corrupt.frame);
        // One that was never captured may as well be late.
        let certainty = if is_corrupt { Certainty::Proven } else { Certainty::Likely };
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report(loss, Sign::Gap, scene);
    }

    /// Takes a READ response with a wrong ICRC whose PSN is of no READ or ATOMIC that waits for one:
    /// the PSN is damaged.
    fn take_displaced_response(&mut self) -> Option<CorruptResponse> {
        let Self { corrupt, messages, .. } = self;
        let is_due = |sequence: u64| {
            messages.find(sequence).is_some_and(|it| it.needs_response() && it.end.is_none())
        };
        corrupt.take_response(|it| it.role == PacketRole::Response && !is_due(it.sequence))
    }

    /// A timeout without any hint: an acknowledgement was lost, or the last request, or the
    /// responder is slow.
    fn judge_timeout<S: Sink>(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let is_read = self.messages.find(sequence).is_some_and(|message| message.needs_response());
        let tail = (self.next().saturating_sub(1), self.progress.last_request.frame);
        let timeout = OpenTimeout { sequence, frame: packet.frame, tail, is_read };
        if is_read {
            self.recovery.open_timeout.get_or_insert(timeout);
            return;
        }
        let now = packet.time.as_nanos();
        let is_told = |from, to| self.progress.records.any(from, to, RecordFlags::LOSS_REPORTED);
        if is_told(sequence, sequence + 1)
            || is_told(sequence.max(self.progress.unacked), self.next())
        {
            return;
        }
        let last = self.progress.records.get(sequence);
        let elapsed = last.map_or(0, |record| now.saturating_sub(record.time));
        let proof = packet.frame;
        let until = self.next();
        if let Some(corrupt) = self.corrupt.take_response_in(sequence..=until) {
            let CorruptResponse { sequence, frame, role } = corrupt;
            let (frame, certainty, is_corrupt) = (Some(frame), Certainty::Proven, true);
            let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
            return self.report(loss, Sign::Gap, scene);
        }
        if sequence == self.recovery.cursor {
            // It had gone back before, and what it retransmitted then ended before this.
            return self.report_not_seen(sequence, proof, scene);
        }
        if self.progress.unacked > sequence {
            let ack = self.answers.last;
            // Acknowledged, and long ago: the acknowledgement did not arrive.
            let since_ack = now.saturating_sub(ack.time);
            if ack.sequence >= sequence && since_ack > elapsed / 4 {
                let frame = Some(ack.frame);
                self.report_answer(ack.sequence, PacketRole::Ack, frame, packet, scene);
            }
            return;
        }
        self.recovery.open_timeout.get_or_insert(timeout);
    }

    /// Decides what an earlier timeout was about, when `acknowledged` is the first sequence number
    /// that is not acknowledged.
    pub(super) fn resolve_timeout<S: Sink>(
        &mut self,
        acknowledged: u64,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let Some(timeout) = self.recovery.open_timeout.take() else { return };
        if acknowledged <= timeout.sequence {
            self.recovery.open_timeout = Some(timeout);
            return;
        }
        let since = packet.time.as_nanos().saturating_sub(self.recovery.attempt_time);
        if since
            >= TIMEOUT_NANOS_LEAST.max(self.round_trip.smoothed().saturating_mul(SLOW_ROUND_TRIPS))
        {
            // It answers long after the last retransmission came: it has what was sent before, and
            // is slow.
            return self.note_slow_answer(packet);
        }
        if timeout.is_read {
            return;
        }
        let proof = timeout.frame;
        let until = acknowledged.min(self.next());
        if self.progress.records.any(self.recovery.cursor, until, RecordFlags::ACK_REQUEST) {
            // The responder has what was not retransmitted yet: it had got it, and the
            // acknowledgement that this asked for was lost before the capture point.
            let (sequence, role) = (acknowledged - 1, PacketRole::Ack);
            let (frame, certainty, is_corrupt) = (None, Certainty::Proven, false);
            let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
            return self.report(loss, Sign::Timeout, scene);
        }
        let (sequence, frame) = timeout.tail;
        if self.corrupt.request(self.next()).is_some() {
            // Told when it is retransmitted.
            return;
        }
        // If the responder has all that was captured, and none of it asked for an acknowledgement,
        // what did is missing.
        let is_all = acknowledged > self.recovery.cursor && sequence < acknowledged;
        let (sequence, frame) = if is_all { (self.next(), None) } else { (sequence, Some(frame)) };
        let (role, certainty, is_corrupt) = (PacketRole::Request, Certainty::Likely, false);
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report(loss, Sign::Timeout, scene);
    }

    /// Reports a response that passed the capture point and did not reach the requester: once for
    /// each frame.
    fn report_answer<S: Sink>(
        &mut self,
        sequence: u64,
        role: PacketRole,
        frame: Option<u64>,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        if let Some(frame) = frame
            && core::mem::replace(&mut self.losses.last_answer, frame) == frame
        {
            // Told before: what was retransmitted for want of it was lost too.
            return;
        }
        let (proof, certainty, is_corrupt) = (packet.frame, Certainty::Likely, false);
        let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
        self.report_open(loss, LossPlace::AfterCapturePoint, Sign::Gap, scene);
    }

    /// Reports what several capture points tell: one saw the packet, the next one did not.
    pub(in crate::analysis) fn report_between<S: Sink>(
        &mut self,
        sequence: u64,
        role: PacketRole,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let Some(between) = packet.sightings.lost else { return };
        if role != PacketRole::Request {
            self.reads.remember_lost(sequence);
        }
        let OpenLoss { loss, place, .. } = between_loss(sequence, role, packet, between);
        self.tell_loss(loss, place, scene);
    }

    /// Notes that several capture points follow the packets of this kind: requests, or responses. A
    /// file that goes on tells that what it did not see before was lost.
    pub(super) fn note_followed<S: Sink>(
        &mut self,
        kind: usize,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let sightings = packet.sightings;
        if !sightings.is_delivered && sightings.lost.is_none() && sightings.unseen.is_none() {
            return;
        }
        self.losses.is_followed[kind] = true;
        if kind > 0 {
            return;
        }
        if let Some(between) = sightings.unseen {
            if self.losses.unseen.len() < UNSEEN_MAX {
                let sequence = self.sequence_of(packet.psn);
                self.losses.unseen.push_back(between_loss(
                    sequence,
                    PacketRole::Request,
                    packet,
                    between,
                ));
            }
        } else if sightings.is_delivered && !self.losses.unseen.is_empty() {
            self.tell_unseen(scene);
        }
    }

    /// Tells the losses of packets that the next capture point did not see.
    pub(super) fn tell_unseen<S: Sink>(&mut self, scene: &mut Scene<'_, S>) {
        while let Some(OpenLoss { loss, place, .. }) = self.losses.unseen.pop_front() {
            self.tell_loss(loss, place, scene);
        }
    }

    /// Takes a loss that one capture point shows.
    pub(super) fn report<S: Sink>(&mut self, loss: Loss, sign: Sign, scene: &mut Scene<'_, S>) {
        // What was captured with a wrong ICRC was damaged before it came to the capture point.
        let place = match loss.frame {
            Some(_) if !loss.is_corrupt => LossPlace::AfterCapturePoint,
            _ => LossPlace::BeforeCapturePoint,
        };
        self.report_open(loss, place, sign, scene);
    }

    fn report_open<S: Sink>(
        &mut self,
        loss: Loss,
        place: LossPlace,
        sign: Sign,
        scene: &mut Scene<'_, S>,
    ) {
        if self.losses.is_followed[usize::from(loss.role != PacketRole::Request)] {
            return;
        }
        if self.losses.open.len() >= OPEN_LOSSES_MAX
            && let Some(oldest) = self.losses.open.pop_front()
        {
            self.tell_open_loss(&oldest, scene);
        }
        self.losses.open.push_back(OpenLoss { loss, place, sign });
    }

    /// Tells the losses that nothing disproved.
    pub(super) fn tell_open_losses<S: Sink>(&mut self, scene: &mut Scene<'_, S>) {
        while let Some(oldest) = self.losses.open.pop_front() {
            self.tell_open_loss(&oldest, scene);
        }
    }

    /// Tells a loss that nothing disproved. Where packets overtake others, a NAK does not tell a
    /// lost packet from a late one, and where most do that are missing, nor does a gap.
    fn tell_open_loss<S: Sink>(&mut self, open: &OpenLoss, scene: &mut Scene<'_, S>) {
        let reordered = self.statistics.reordered;
        let lost = self.statistics.lost_requests + self.losses.open.len() as u64 + 1;
        let is_mostly_late = reordered > lost;
        let is_uncertain = match open.sign {
            Sign::Nak => reordered > 0,
            Sign::Gap => {
                let is_gap = open.loss.frame.is_none();
                is_mostly_late && (is_gap || open.place == LossPlace::AfterCapturePoint)
            }
            Sign::Timeout => false,
        };
        if is_uncertain {
            self.statistics.lost_or_late += 1;
            self.sink_loss(&open.loss, open.place, scene);
        } else {
            self.tell_loss(open.loss, open.place, scene);
        }
    }

    /// Counts and tells a loss.
    fn tell_loss<S: Sink>(&mut self, loss: Loss, place: LossPlace, scene: &mut Scene<'_, S>) {
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
        self.sink_loss(&loss, place, scene);
    }

    fn sink_loss<S: Sink>(&self, loss: &Loss, place: LossPlace, scene: &mut Scene<'_, S>) {
        let is_request = loss.role == PacketRole::Request;
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
        if self.progress.gaps == 0 {
            return;
        }
        let mut count = 0;
        for record in self.progress.records.range_mut(0, acknowledged) {
            if record.open_gap() > 0 && record.end() <= acknowledged {
                count += record.open_gap();
                record.flags |= RecordFlags::NOT_CAPTURED;
            }
        }
        self.progress.gaps = self.progress.gaps.saturating_sub(count);
        if count > 0 {
            self.statistics.not_captured += count;
            self.evidence().not_captured.push(frame);
        }
    }
}

/// The loss of a packet between two capture points.
fn between_loss(
    sequence: u64,
    role: PacketRole,
    packet: &PacketFacts,
    LostBetween { from, to, frame }: LostBetween,
) -> OpenLoss {
    let (frame, proof) = (Some(frame), packet.frame);
    let (certainty, is_corrupt) = (Certainty::Proven, packet.sightings.is_damaged_later);
    let loss = Loss { sequence, role, frame, proof, certainty, is_corrupt };
    OpenLoss { loss, place: LossPlace::Between { from, to }, sign: Sign::Gap }
}

/// An answer that comes later than so many round trips after the last retransmission is not one to
/// it.
const SLOW_ROUND_TRIPS: u64 = 8;
