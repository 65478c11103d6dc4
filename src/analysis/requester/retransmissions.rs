//! Packets that were sent before: retransmissions and their causes, copies that the network made,
//! and late packets.

use core::time::Duration;

use super::answers::LastNak;
use super::corrupt::CorruptRequest;
use super::inflight::{Inflight, needs_response};
use super::losses::{Loss, Sign};
use super::records::{Record, RecordFlags};
use super::{Evidence, PacketFacts, Requester, RetransmissionCause, Scene, Verdict};
use crate::observe::disorder::Disorder;
use crate::observe::requester::causes::{Causes, Tolerance};
use crate::observe::requester::recovery::{Asked, Signal, Trigger};
use crate::observe::timing::{COPY_MOST, NAK_REACTION, TIMEOUT_LEAST};
use crate::time::{Instant, nanos};
use crate::wire::OpcodeInfo;

/// Explanation of a packet with a lower sequence number than the next one.
pub(super) enum Repeat {
    /// The requester went back, because of this response if one is known.
    Rewind(RetransmissionCause, Option<Trigger>),
    /// The network made it of a packet that was sent once.
    Copy,
    /// The network delivered it later than packets that were sent after it.
    Late,
}

impl Requester {
    /// Whether the requester goes back to `sequence` once more after a timeout: it had gone back
    /// for a NAK, and came no further, so far as was captured.
    #[inline]
    pub(super) fn is_stopped_at(&self, sequence: u64, packet: &PacketFacts) -> bool {
        if sequence != self.recovery.cursor()
            || sequence >= self.next()
            || self.reaction.cause != Some(RetransmissionCause::SequenceNak)
        {
            return false;
        }
        let since = self.progress.last_request.time.max(self.answers.last.time);
        let pause = packet.time.saturating_since(since);
        // A requester that is only slow has long round trips, too.
        pause >= self.round_trip.timeout_least()
            && pause > self.round_trip.smoothed().saturating_mul(SLOW_ROUND_TRIPS)
            && self.progress.records.get(sequence).is_some_and(Record::is_seen)
    }

    /// Explains a packet that was transmitted before, or that others overtook.
    pub(super) fn judge_repeat(&self, sequence: u64, packet: &PacketFacts) -> Repeat {
        let now = packet.time;
        let Some(record) = self.progress.records.get(sequence) else {
            // The first packet of the connection, lost before the capture point, or the rest of a
            // READ that was.
            if let Some(trigger) = self.triggers().find(|trigger| trigger.from == sequence) {
                return Repeat::Rewind(trigger.signal.into(), Some(trigger));
            }
            // So old that it is forgotten: acknowledged long ago.
            return Repeat::Rewind(RetransmissionCause::Timeout, None);
        };
        if let Some(sack) = self.recovery.sack_of(sequence, record) {
            return Repeat::Rewind(sack.signal.into(), Some(sack));
        }
        let timeout = self.round_trip.timeout_least();
        let tolerance = Tolerance { timeout, copy: COPY_MOST };
        let causes = self.recovery.causes(sequence, record, now, tolerance);
        let elapsed = now.saturating_since(record.time);
        let is_copy = record.digest == packet.digest && causes.contains(Causes::COPY);
        if let Some(trigger) = self.trigger_of(sequence, record, is_copy, now) {
            let cause = self.cause_of(&trigger, record, now);
            return Repeat::Rewind(cause, Some(trigger));
        }
        // The requester went back for the NAK, and that transmission timed out.
        let is_timeout = causes.contains(Causes::TIMEOUT);
        let is_over = |nak: &Trigger| record.time > nak.time && is_timeout;
        let nak = self.recovery.nak_of(sequence, self.progress.unacked, now);
        if let Some(nak) = nak.filter(|nak| !is_copy && !is_over(nak)) {
            return Repeat::Rewind(nak.signal.into(), Some(nak));
        }
        if !is_copy && self.is_overtaken_behind(sequence, record.time, now) {
            return Repeat::Rewind(RetransmissionCause::ImpliedNak, None);
        }
        // Several capture points tell that it is neither late nor a copy.
        if is_timeout || self.losses.are_requests_followed() {
            return Repeat::Rewind(self.unnamed_cause(sequence, now, elapsed), None);
        }
        if !record.is_seen() || causes.contains(Causes::OVERTAKEN) {
            return Repeat::Late;
        }
        if record.digest == packet.digest {
            // An earlier transmission did not come: this is it.
            if record.missing > 0 && !is_copy {
                return Repeat::Late;
            }
            if is_copy || !self.follows_copy(sequence) {
                return Repeat::Copy;
            }
        }
        // Too soon for a timeout: if a later response is missing here, an earlier one did not come
        // to the requester.
        let is_later = |it: &Trigger| it.from > sequence && it.asked == Asked::Missing;
        let later = self.recovery.open(Signal::ImpliedNak).filter(is_later);
        let cause = later.map(|implied| implied.signal.into());
        Repeat::Rewind(cause.unwrap_or_else(|| self.unnamed_cause(sequence, now, elapsed)), later)
    }

    /// Responses that the requester has not acted on.
    fn triggers(&self) -> impl Iterator<Item = Trigger> + Clone {
        [self.recovery.open(Signal::ImpliedNak), self.recovery.refusal()].into_iter().flatten()
    }

    /// Whether the last request was judged a copy, and this one follows it in order. A network does
    /// not duplicate runs of packets; a requester that goes back retransmits them.
    fn follows_copy(&self, sequence: u64) -> bool {
        self.answers.copy_frame > self.progress.last_request.frame
            && self.answers.copy_end == sequence
    }

    /// The cause of a rewind that no response names, `elapsed` after the packet was transmitted: a
    /// timeout, unless the requester was neither silent nor had the time for one, and a NAK came
    /// shortly before, or a response to a later request than this one.
    fn unnamed_cause(&self, sequence: u64, now: Instant, elapsed: Duration) -> RetransmissionCause {
        let silence =
            now.saturating_since(self.answers.last.time.max(self.progress.last_request.time));
        let is_recent =
            |nak: LastNak| nak.is_sequence_error && now.saturating_since(nak.time) < NAK_REACTION;
        let silence_least = self.round_trip.nak_reaction().saturating_mul(4).max(TIMEOUT_LEAST / 2);
        let is_late = elapsed >= self.round_trip.timeout_least();
        if is_late && silence >= silence_least {
            return RetransmissionCause::Timeout;
        }
        if self.answers.last_nak.is_some_and(is_recent) {
            return RetransmissionCause::SequenceNak;
        }
        let is_read = match self.messages.find(sequence) {
            Some(message) => message.needs_response(),
            None => self.is_answered(sequence),
        };
        if is_read && self.answers.latest.sequence > sequence {
            return RetransmissionCause::ImpliedNak;
        }
        if is_late { RetransmissionCause::Timeout } else { RetransmissionCause::Unexplained }
    }

    /// Whether the requester goes back to a READ or ATOMIC whose response passed the capture point,
    /// or did not come since it was `requested`, and soon after a later response passed: the first
    /// one was lost or late behind the point, and the other implied a NAK of it (§9.7.5.1.1).
    fn is_overtaken_behind(&self, sequence: u64, requested: Instant, now: Instant) -> bool {
        let latest = self.answers.latest;
        let quiet = now.saturating_since(latest.time.max(self.progress.last_request.time));
        let message = self.messages.find(sequence);
        // A requester that went back does not do so again before a response comes in order.
        let is_waiting = message.is_some_and(Inflight::needs_response)
            && latest.time > requested
            && !self.reaction.is_recovering;
        self.losses.is_point_alone()
            && (is_waiting || self.is_answered(sequence))
            && latest.sequence > sequence
            && quiet < self.round_trip.silence_least()
    }

    /// Whether the response of a READ or ATOMIC to this sequence number passed the capture point
    /// since it was requested last.
    pub(super) fn is_answered(&self, sequence: u64) -> bool {
        let message = self.messages.find(sequence).filter(|message| message.needs_response());
        let is_open = |message: &Inflight| {
            sequence >= message.responses_end || self.reads.is_missing(sequence)
        };
        match message {
            Some(message) => message.end.is_some() || !is_open(message),
            None => self.reads.is_ended_repeated(sequence).is_some(),
        }
    }

    /// The response that makes the requester go back to `sequence`: one that names it, else the
    /// latest one that names an earlier packet, which was not captured then.
    pub(super) fn trigger_of(
        &self,
        sequence: u64,
        record: &Record,
        is_copy: bool,
        now: Instant,
    ) -> Option<Trigger> {
        let known = self.triggers().filter(|trigger| trigger.is_current(now)).filter(|trigger| {
            trigger.time >= record.time || is_after_rnr_timer(trigger, record, now)
        });
        let named =
            |trigger: &Trigger| trigger.from == sequence || self.is_read_of(trigger, sequence);
        // What comes again sooner than any round trip takes is a copy, unless a response, seen on
        // its last steps to the requester, implied a NAK of just this packet since.
        let is_implied =
            |trigger: &Trigger| trigger.signal == Signal::ImpliedNak && trigger.time > record.time;
        let is_named = |trigger: &Trigger| named(trigger) && (!is_copy || is_implied(trigger));
        known.clone().find(is_named).or_else(|| {
            let before = known.filter(|trigger| !is_copy && sequence > trigger.from);
            before.max_by_key(|trigger| trigger.time)
        })
    }

    /// Whether `sequence` is in the READ whose response is missing: the requester may request all
    /// of it.
    pub(super) fn is_read_of(&self, trigger: &Trigger, sequence: u64) -> bool {
        trigger.signal == Signal::ImpliedNak
            && self
                .progress
                .records
                .get(trigger.from)
                .is_some_and(|read| read.range().contains(&sequence))
    }

    /// The cause of a rewind after `trigger`: if it comes only when the timeout does, the trigger
    /// was lost on its way.
    pub(super) fn cause_of(
        &self,
        trigger: &Trigger,
        record: &Record,
        now: Instant,
    ) -> RetransmissionCause {
        // It went back at once, but that transmission was damaged.
        let is_due =
            |since: Instant| now.saturating_since(since) >= self.round_trip.timeout_least();
        let resent = self.corrupt.retransmission_for(trigger).map(|resent| resent.time);
        if resent.is_some_and(is_due) {
            return RetransmissionCause::Timeout;
        }
        let cause = trigger.signal.into();
        let is_implied = trigger.signal == Signal::ImpliedNak;
        let Some(bound) = self.round_trip.timeout_bound(is_implied) else { return cause };
        let since_trigger = now.saturating_since(trigger.time);
        let is_late = now.saturating_since(record.time) >= bound.since_sent
            && since_trigger >= bound.since_response
            && since_trigger > self.round_trip.nak_reaction().saturating_mul(4)
            && since_trigger > self.round_trip.smoothed().saturating_mul(2);
        if is_late && trigger.signal != Signal::RnrNak {
            RetransmissionCause::Timeout
        } else {
            cause
        }
    }

    /// The requester went back to `sequence`.
    pub(super) fn rewind(
        &mut self,
        sequence: u64,
        cause: RetransmissionCause,
        trigger: Option<Trigger>,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        let now = packet.time;
        let before = self.progress.records.get(sequence).map_or(now, |record| record.time);
        let wait = now.saturating_since(before);
        let counter = self.statistics.retransmissions.of_mut(cause);
        counter.rewinds += 1;
        counter.wait_nanos += nanos(wait);
        let evidence = self.evidence();
        evidence.rewinds[Evidence::slot(cause)].push(packet.frame);
        let longest = &mut evidence.longest_wait[Evidence::slot(cause)];
        *longest = (*longest).max(nanos(wait));
        let silence =
            now.saturating_since(self.answers.heard.time.max(self.progress.last_request.time));
        if cause == RetransmissionCause::Timeout && silence >= wait / 2 {
            self.round_trip.add_timeout(wait);
        }
        if let Some(nak) = trigger.filter(|_| cause == RetransmissionCause::SequenceNak) {
            self.round_trip.add_nak_reaction(now.saturating_since(nak.time));
        }
        self.statistics.rnr_wait_nanos += nanos(self.not_ready.retransmit(now));
        self.judge_losses(sequence, cause, trigger, packet, scene);
        self.reads.request_again(sequence..u64::MAX);
        let reaction = &mut self.reaction;
        if reaction.attempts == 0 {
            (reaction.attempts_since, reaction.attempt_interval) = (before, wait);
        } else {
            let interval = now.saturating_since(self.recovery.rewind().time);
            reaction.attempt_interval = reaction.attempt_interval.max(interval);
        }
        reaction.attempts += 1;
        let is_same = reaction.repeats > 0 && self.recovery.rewind().start == sequence;
        reaction.repeats = if is_same { reaction.repeats + 1 } else { 1 };
        reaction.cause = Some(cause);
        reaction.is_recovering = true;
        reaction.dropped.clear();
        self.progress.disorder = Disorder::default();
        self.messages.reopen_reads(sequence);
        if trigger.is_some_and(|used| matches!(used.asked, Asked::Late | Asked::Replayed)) {
            // What it went back for reaches it meanwhile.
            self.reaction.is_recovering = false;
        }
        self.recovery.go_back(sequence, now, packet.frame);
        self.begin_round(sequence, cause, wait, packet);
        let implied = self.recovery.open(Signal::ImpliedNak);
        let is_in_read = implied.is_some_and(|implied| self.is_read_of(&implied, sequence));
        self.recovery.satisfy(sequence, trigger, is_in_read);
    }

    /// The first transmission of a new packet that was captured with a wrong ICRC only: the packet
    /// comes again because a NAK asks for it, or so late that the requester can have timed out.
    /// Without that the PSN was damaged as well.
    #[inline]
    pub(super) fn take_resent_corrupt(
        &mut self,
        sequence: u64,
        packet: &PacketFacts,
    ) -> Option<CorruptRequest> {
        let time = self.corrupt.request(sequence)?.time;
        let elapsed = packet.time.saturating_since(time);
        let is_asked_for = self.recovery.refusal().is_some_and(|nak| nak.from == sequence);
        let corrupt = self.corrupt.take_request(sequence);
        corrupt.filter(|_| is_asked_for || elapsed >= self.round_trip.timeout_least())
    }

    /// The requester retransmits a packet whose first transmission was captured with a wrong ICRC
    /// only.
    pub(super) fn resend_corrupt(
        &mut self,
        CorruptRequest { sequence, frame, time }: CorruptRequest,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) -> RetransmissionCause {
        let trigger = self.recovery.take_refusal(sequence);
        let cause = trigger.map_or(RetransmissionCause::Timeout, |trigger| trigger.signal.into());
        let proof = trigger.map_or(packet.frame, |trigger| trigger.frame);
        let counter = self.statistics.retransmissions.of_mut(cause);
        counter.rewinds += 1;
        counter.wait_nanos += nanos(packet.time.saturating_since(time));
        self.evidence().rewinds[Evidence::slot(cause)].push(packet.frame);
        self.report(Loss::request(sequence, proof).corrupt(frame), Sign::Gap, scene);
        cause
    }

    /// The network delivered a packet twice.
    pub(super) fn handle_copy(&mut self, sequence: u64, packet: &PacketFacts, info: &OpcodeInfo) {
        self.count_duplicate(packet.frame);
        self.answers.expect_again(packet.frame);
        (self.answers.copy_frame, self.answers.copy_end) = (packet.frame, sequence + 1);
        if let Some(record) = self.progress.records.get_mut(sequence) {
            record.flags |= RecordFlags::COPIED;
        }
        if needs_response(info.operation)
            && let Some(message) = self.messages.find_mut(sequence)
        {
            message.requests += 1;
        } else {
            self.reads.repeat_ended(sequence);
        }
    }

    /// Packets that were sent later arrived earlier.
    pub(super) fn handle_late(
        &mut self,
        sequence: u64,
        verdict: &mut Verdict,
        packet: &PacketFacts,
    ) {
        let is_out_of_order = self.progress.disorder.fall_behind(sequence);
        let lateness = is_out_of_order.then(|| self.lateness_of(sequence, packet.time));
        self.count_late(packet.frame, lateness);
        self.disprove_loss(sequence);
        if self.progress.records.get(sequence).is_some_and(Record::is_seen) {
            verdict.retransmission = self.reaction.cause;
        }
    }

    /// Notes another transmission of a packet, and returns the sequence number behind it.
    pub(super) fn retransmit(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        flags: RecordFlags,
    ) -> Option<u64> {
        self.answers.expect_again(packet.frame);
        let pass = self.recovery.rewind().pass;
        let is_timeout = self.reaction.cause == Some(RetransmissionCause::Timeout);
        let record = self.progress.records.isolate(sequence, span)?;
        let since = packet.time.saturating_since(record.time);
        let is_twice = is_timeout || since < self.round_trip.smoothed();
        let is_untold = record.open_gap() > 0 && !flags.contains(RecordFlags::LATE);
        self.progress.gaps = self.progress.gaps.saturating_sub(record.open_gap());
        if !record.is_seen() && record.flags.contains(RecordFlags::NOT_CAPTURED) {
            self.statistics.not_captured = self.statistics.not_captured.saturating_sub(1);
        }
        record.transmissions = record.transmissions.saturating_add(1);
        if flags.contains(RecordFlags::LATE) {
            record.missing = record.missing.saturating_sub(1);
        } else {
            record.time = packet.time;
            // What did not come before a timeout is not late.
            record.missing = if is_timeout { 0 } else { record.missing };
        }
        (record.frame, record.digest, record.pass) = (packet.frame, packet.digest, pass);
        record.flags = flags | (record.flags & RecordFlags::COPIED);
        record.flags.set(RecordFlags::TWICE, is_twice);
        record.flags.set(RecordFlags::SKIPPED, is_untold);
        let end = record.end();
        // Responses that were missing are requested again.
        self.reads.request_again(sequence..end);
        Some(end)
    }
}

/// Whether a packet that was in flight when the receiver was not ready is transmitted when the RNR
/// timer has expired.
fn is_after_rnr_timer(trigger: &Trigger, record: &Record, now: Instant) -> bool {
    let expires = trigger.expires();
    trigger.signal == Signal::RnrNak && record.time < expires && now >= expires
}

/// A pause of so many round trips while requests are retransmitted is no slowness of the requester.
const SLOW_ROUND_TRIPS: u32 = 32;
