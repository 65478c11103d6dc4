//! Lost packets and the places of their losses, decided when the requester goes back, or when the
//! next acknowledgement tells more.

use super::corrupt::CorruptResponse;
use super::limits::MISSING_RESPONSES_MAX;
use super::losses::{Loss, Sign};
use super::records::RecordFlags;
use super::recovery::OpenTimeout;
use super::{LossPlace, PacketFacts, PacketRole, Requester, RetransmissionCause, Scene};
use crate::observe::requester::recovery::{Asked, Signal, Trigger};
use crate::observe::responses::Missing;
use crate::observe::timing::TIMEOUT_LEAST;
use crate::time::Instant;

impl Requester {
    /// Decides what was lost when the requester goes back to `sequence` with `packet`.
    pub(super) fn judge_losses(
        &mut self,
        sequence: u64,
        cause: RetransmissionCause,
        trigger: Option<Trigger>,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        let trigger = trigger.filter(|trigger| trigger.from <= sequence.max(self.progress.unacked));
        let proof = trigger.map_or(packet.frame, |trigger| trigger.frame);
        let from = trigger.map_or(sequence, |trigger| trigger.from.min(sequence));
        let skipped = self.report_skipped(from, proof, scene);
        let skipped = skipped | self.report_corrupt(from, proof, scene);
        if cause == RetransmissionCause::Rnr {
            return;
        }
        match trigger {
            Some(Trigger { asked: Asked::Served | Asked::Late | Asked::Dropped, .. }) => {}
            Some(trigger) if trigger.signal == Signal::SequenceError => {
                self.judge_nak(&trigger, cause, packet, scene);
            }
            Some(_) => self.report_passed(packet.frame, scene),
            _ if self.is_response_told(sequence) => {}
            // The answer passed the capture point. A later one that came to the requester shows
            // that this one did not, or late; a timeout does not.
            _ if self.is_answered(sequence) => {
                if cause == RetransmissionCause::ImpliedNak {
                    let frame = self.reads.frame_of(sequence);
                    let loss = Loss::of(PacketRole::Response, sequence, packet.frame);
                    let (loss, place) = (Loss { frame, ..loss }, LossPlace::AfterCapturePoint);
                    self.report_open(loss, place, Sign::Overtaken, scene);
                }
            }
            _ if skipped || cause == RetransmissionCause::SequenceNak => {}
            _ => self.judge_timeout(sequence, packet, scene),
        }
    }

    /// Whether the response that the requester goes back for did not come to the capture point, as
    /// is told since the last request for it.
    fn is_response_told(&self, sequence: u64) -> bool {
        let requested = self.progress.records.get(sequence).map_or(0, |record| record.frame);
        self.losses.has_open(|open| open.is_response_before(sequence) && open.proof() > requested)
    }

    /// Reports the responses that are missing before the last one: the requester goes back for want
    /// of them.
    fn report_passed(&mut self, proof: u64, scene: &mut Scene<'_>) {
        let sequence = self.answers.last.sequence;
        if self.answers.last.is_response {
            // Told when it came.
            return;
        }
        let requested =
            self.progress.records.get(sequence).map_or(Instant::ZERO, |record| record.time);
        let missing = self.reads.runs.pass(sequence, requested);
        self.report_missing(&missing, proof, scene);
    }

    /// The requester goes back because of a NAK, or would have, had the NAK reached it.
    fn judge_nak(
        &mut self,
        trigger: &Trigger,
        cause: RetransmissionCause,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        let (sequence, resent) = (trigger.from, self.corrupt.retransmission_for(trigger));
        if sequence < self.progress.unacked && cause == RetransmissionCause::SequenceNak {
            // The responder has it before it is retransmitted: it was late behind the capture
            // point.
            self.note_late_behind(sequence, trigger.frame);
        } else {
            self.report_naked(sequence, trigger.frame, scene);
        }
        let Some(frame) = resent.map(|resent| resent.frame) else { return };
        if cause != RetransmissionCause::Timeout {
            return;
        }
        self.corrupt.forget_request(frame);
        let loss = Loss::request(sequence, packet.frame).corrupt(frame);
        self.report(loss, Sign::Gap, scene);
    }

    /// The network delivered a request late behind the capture point, as the NAK in frame `nak`
    /// shows.
    pub(super) fn note_late_behind(&mut self, sequence: u64, nak: u64) {
        let known = RecordFlags::LATE | RecordFlags::LOSS_REPORTED;
        let Some(record) = self.progress.records.get_mut(sequence) else { return };
        let is_told = record.missing > 0 || record.flags.intersects(known);
        // Of one that is on its way twice, the first may have been lost.
        let is_twice = record.flags.contains(RecordFlags::TWICE);
        if !record.is_seen() || is_told || is_twice || nak < record.frame {
            return;
        }
        record.flags |= RecordFlags::LATE;
        let frame = record.frame;
        if !self.losses.are_requests_followed() {
            self.count_reordered(frame);
        }
    }

    /// Reports the PSNs behind `sequence` that did not come to the capture point: they were lost
    /// before it.
    fn report_skipped(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_>) -> bool {
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
                let loss = Loss::request(sequence, proof).proven();
                // One that was captured with a wrong ICRC after the proof was transmitted later.
                let corrupt = self.corrupt.take_request_before(sequence, proof);
                let loss = corrupt.map_or(loss, |corrupt| loss.corrupt(corrupt.frame));
                self.report(loss, Sign::Gap, scene);
            }
        }
        !lost.is_empty()
    }

    /// Reports the packet to which the requester goes back, if it was captured with a wrong ICRC
    /// before the proof.
    fn report_corrupt(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_>) -> bool {
        let Some(corrupt) = self.corrupt.take_request_before(sequence, proof) else { return false };
        let loss = Loss::request(sequence, proof).corrupt(corrupt.frame);
        self.report(loss, Sign::Gap, scene);
        true
    }

    /// Reports the packet that a NAK asked for.
    fn report_naked(&mut self, sequence: u64, proof: u64, scene: &mut Scene<'_>) {
        let Some(record) = self.progress.records.get_mut(sequence) else { return };
        let reported = RecordFlags::LOSS_REPORTED | RecordFlags::LATE;
        if !record.is_seen() || record.flags.intersects(reported) || proof < record.frame {
            return;
        }
        record.flags |= RecordFlags::LOSS_REPORTED;
        // It may as well be late: then packets that were sent later overtook it behind the capture
        // point.
        let loss = Loss::request(sequence, proof).captured(record.frame);
        self.report(loss, Sign::Nak, scene);
    }

    /// Reports the responses that are missing before one that came: they were lost before the
    /// capture point. A READ or ATOMIC without any response may have been lost itself.
    pub(super) fn report_missing(&mut self, missing: &Missing, proof: u64, scene: &mut Scene<'_>) {
        let sequences = || missing.tail.clone().chain(missing.head.clone());
        let is_only = sequences().take(2).count() + missing.unanswered.len() == 1;
        for sequence in sequences().take(MISSING_RESPONSES_MAX) {
            self.report_missing_response(sequence, Sign::Gap, is_only, proof, scene);
        }
        for run in &missing.unanswered {
            if run.end - run.first == 1 || !run.is_sized {
                self.report_missing_response(run.first, Sign::Unanswered, is_only, proof, scene);
                continue;
            }
            // That all of several responses and no others were lost is not likely.
            let is_alone = sequences().next().is_none() && missing.unanswered.len() == 1;
            let is_request = is_alone && !self.losses.has_late();
            let sign = if is_request { Sign::Gap } else { Sign::Unanswered };
            let loss = Loss::request(run.first, proof).captured(run.frame);
            self.report(loss, sign, scene);
        }
    }

    /// Reports a READ response or ATOMIC acknowledgement that did not come. `is_only`: no other is
    /// missing, so that one with a damaged PSN is this one.
    fn report_missing_response(
        &mut self,
        sequence: u64,
        sign: Sign,
        is_only: bool,
        proof: u64,
        scene: &mut Scene<'_>,
    ) {
        let corrupt = self
            .corrupt
            .take_response_in(sequence..=sequence)
            .or_else(|| self.take_displaced_response().filter(|_| is_only));
        // One that was never captured may as well be late.
        let loss = Loss::of(PacketRole::Response, sequence, proof);
        let (loss, sign) =
            corrupt.map_or((loss, sign), |corrupt| (loss.corrupt(corrupt.frame), Sign::Gap));
        self.report(loss, sign, scene);
    }

    /// Takes a READ response with a wrong ICRC whose PSN is of no READ or ATOMIC that waits for
    /// one: the PSN is damaged.
    fn take_displaced_response(&mut self) -> Option<CorruptResponse> {
        let Self { corrupt, messages, .. } = self;
        let is_due = |sequence: u64| {
            messages.find(sequence).is_some_and(|it| it.needs_response() && it.end.is_none())
        };
        corrupt.take_response(|it| it.role == PacketRole::Response && !is_due(it.sequence))
    }

    /// A timeout without any hint: an acknowledgement was lost, or the last request, or the
    /// responder is slow.
    fn judge_timeout(&mut self, sequence: u64, packet: &PacketFacts, scene: &mut Scene<'_>) {
        let is_read = self.messages.find(sequence).is_some_and(|message| message.needs_response());
        let tail = (self.next().saturating_sub(1), self.progress.last_request.frame);
        let tail_time = self.progress.last_request.time;
        let timeout = OpenTimeout { sequence, frame: packet.frame, tail, tail_time, is_read };
        if is_read {
            self.reaction.open_timeout.get_or_insert(timeout);
            return;
        }
        let is_told = |from, to| self.progress.records.any(from, to, RecordFlags::LOSS_REPORTED);
        if is_told(sequence, sequence + 1)
            || is_told(sequence.max(self.progress.unacked), self.next())
        {
            return;
        }
        let proof = packet.frame;
        let until = self.next();
        if let Some(corrupt) = self.corrupt.take_response_in(sequence..=until) {
            let loss = Loss::of(corrupt.role, corrupt.sequence, proof).corrupt(corrupt.frame);
            return self.report(loss, Sign::Gap, scene);
        }
        if sequence == self.recovery.cursor() {
            // It had gone back before, and what it retransmitted then ended before this.
            return self.report(Loss::request(sequence, proof), Sign::Gap, scene);
        }
        if self.progress.unacked > sequence {
            // Acknowledged: whether that was lost, or came too late, is not known.
            return;
        }
        self.reaction.open_timeout.get_or_insert(timeout);
    }

    /// Decides what an earlier timeout was about, when `acknowledged` is the first sequence number
    /// that is not acknowledged.
    pub(super) fn resolve_timeout(
        &mut self,
        acknowledged: u64,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        let Some(timeout) = self.reaction.open_timeout.take() else { return };
        if acknowledged <= timeout.sequence {
            self.reaction.open_timeout = Some(timeout);
            return;
        }
        let since = packet.time.saturating_since(self.recovery.rewind().time);
        if since >= TIMEOUT_LEAST.max(self.round_trip.smoothed().saturating_mul(SLOW_ROUND_TRIPS)) {
            // It answers long after the last retransmission came: it has what was sent before, and
            // is slow.
            return self.note_slow_answer(packet);
        }
        if timeout.is_read {
            return;
        }
        if self.is_early(&timeout) {
            return;
        }
        let proof = timeout.frame;
        let until = acknowledged.min(self.next());
        if self.progress.records.any(self.recovery.cursor(), until, RecordFlags::ACK_REQUEST) {
            // The responder has what was not retransmitted yet: it had got it, and the
            // acknowledgement that this asked for was lost before the capture point.
            let loss = Loss::of(PacketRole::Ack, acknowledged - 1, proof).proven();
            return self.report(loss, Sign::Gap, scene);
        }
        let (sequence, frame) = timeout.tail;
        if self.corrupt.request(self.next()).is_some() {
            // Told when it is retransmitted.
            return;
        }
        // If the responder has all that was captured, and none of it asked for an acknowledgement,
        // what did is missing.
        let is_all = acknowledged > self.recovery.cursor() && sequence < acknowledged;
        let loss = if is_all {
            Loss::request(self.next(), proof)
        } else {
            Loss::request(sequence, proof).captured(frame)
        };
        self.report(loss, Sign::Timeout, scene);
    }

    /// Whether the requester timed out before the answer to the last packet before was due: nothing
    /// follows from what it had not got then.
    fn is_early(&self, timeout: &OpenTimeout) -> bool {
        let wait = self.recovery.rewind().time.saturating_since(timeout.tail_time);
        wait < self.round_trip.smoothed().saturating_mul(EARLY_ROUND_TRIPS)
    }
}

/// An answer that comes later than so many round trips after the last retransmission is not one to
/// it.
const SLOW_ROUND_TRIPS: u32 = 8;

/// A timeout before so many round trips have passed since the last packet comes too early.
const EARLY_ROUND_TRIPS: u32 = 2;
