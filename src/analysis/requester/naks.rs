//! Responses that make a requester go back: NAKs, RNR NAKs, and responses that imply a NAK.

use core::time::Duration;

use super::answers::LastNak;
use super::progress::Seen;
use super::records::RecordFlags;
use super::{PacketFacts, Requester, Scene, Verdict};
use crate::analysis::evidence::Refusal;
use crate::analysis::message::Outcome;
use crate::observe::requester::recovery::{Asked, Signal, Trigger};
use crate::time::Instant;
use crate::wire::aeth::{Answer, NakCode, RnrTimer};

impl Requester {
    /// A response behind a READ or ATOMIC that was not answered in full makes the requester go back
    /// (§9.7.5.1.1).
    pub(super) fn check_implied_nak(&mut self, sequence: u64, packet: &PacketFacts) {
        let Some(read) = self.messages.first_read() else { return };
        if read.last >= sequence {
            return;
        }
        let missing = self.reads.first_missing();
        let missing = missing.filter(|missing| (read.first..=read.last).contains(missing));
        let missing = missing.unwrap_or(read.responses_end);
        self.imply_nak(missing, packet);
    }

    /// The response `missing` did not come before a later one.
    pub(super) fn imply_nak(&mut self, missing: u64, packet: &PacketFacts) {
        // One that it went back for, and requested again since, counts anew.
        let requested = self.sent(missing);
        let is_known = |known: Trigger| known.from == missing && known.time >= requested;
        // For one that came late it goes back as well, to request all that is missing behind it.
        let is_going_back = |known: Trigger| {
            matches!(known.asked, Asked::Late | Asked::Replayed) && known.is_current(packet.time)
        };
        if self.is_recovering(packet.time)
            || self
                .recovery
                .open(Signal::ImpliedNak)
                .is_some_and(|known| is_known(known) || is_going_back(known))
        {
            return;
        }
        let is_overtaken = self.sequence_of(packet.psn) > missing;
        let asked = if is_overtaken { Asked::Missing } else { Asked::Presumed };
        let implied = Trigger::new(Signal::ImpliedNak, missing, (packet.time, packet.frame));
        self.recovery.handle(Trigger { asked, ..implied }, requested);
    }

    /// Time when a packet was transmitted last.
    fn sent(&self, sequence: u64) -> Instant {
        self.progress.records.get(sequence).map_or(Instant::ZERO, |record| record.time)
    }

    /// Whether a NAK or RNR NAK is a copy of the previous one that the network made: the same
    /// packet, and no request since that it can answer. Remembers it otherwise.
    fn is_nak_copy(&mut self, sequence: u64, packet: &PacketFacts) -> bool {
        let (digest, frame, time) = (packet.digest, packet.frame, packet.time);
        let answer = packet.aeth.map(|(syndrome, _)| syndrome.answer());
        let is_sequence_error = answer == Some(Answer::Nak(NakCode::PsnSequenceError));
        let nak = LastNak { sequence, digest, frame, time, is_sequence_error };
        let known = self.answers.last_nak.replace(nak);
        let Some(known) =
            known.filter(|known| (known.sequence, known.digest) == (sequence, digest))
        else {
            return false;
        };
        if packet.sightings().is_delivered {
            return false;
        }
        let is_at_once = time.saturating_since(known.time) < self.round_trip.smoothed() / 2;
        if self.progress.last_request.frame.max(self.answers.repeat_frame) > known.frame
            && !is_at_once
        {
            return false;
        }
        // The network's copy of a request is answered as well, however soon it came.
        let is_due =
            self.answers.repeat_frame < known.frame || self.answers.copy_frame > known.frame;
        !(is_due && self.answers.take_due())
    }

    pub(super) fn handle_nak(
        &mut self,
        packet: &PacketFacts,
        code: NakCode,
        is_sent_earlier: bool,
        verdict: &mut Verdict,
        scene: &mut Scene<'_>,
    ) {
        let sequence = verdict.sequence;
        let before = self.answers.last_nak;
        if self.is_nak_copy(sequence, packet) {
            verdict.duplicate = true;
            return;
        }
        if packet.is_sack() {
            self.recovery.handle_sack(Trigger::of_sack(packet, sequence));
        } else {
            let slot = usize::try_from(code.code().get()).unwrap_or(0);
            if let Some(counter) = self.statistics.naks.get_mut(slot) {
                *counter += 1;
            }
            self.evidence().naks.push(packet.frame);
        }
        // One that others overtook was sent before they acknowledged.
        let is_late = is_sent_earlier || packet.sightings().reordered.is_some();
        let ack = self.answers.last;
        if sequence < self.progress.unacked.min(ack.sequence + 1) && ack.frame > 0 && !is_late {
            let frames = &mut self.evidence().naks_of_acknowledged;
            frames.push(packet.frame);
            frames.push(ack.frame);
        }
        self.advance(sequence, packet, scene);
        self.check_implied_nak(sequence, packet);
        let resent = self.resent_before(sequence, packet);
        self.reads.runs.drop_from(sequence, resent);
        if code == NakCode::PsnSequenceError {
            if resent.is_none() {
                self.messages.forget_requests(sequence);
            }
            self.add_sequence_nak(sequence, before, packet);
            self.complete(scene);
        } else {
            self.complete(scene);
            self.refuse(sequence, code, packet, scene);
        }
    }

    /// Returns the time of the retransmission of what a NAK names, if the NAK came too soon to be
    /// the answer to one that follows it: the responder does not drop what was sent since.
    fn resent_before(&self, sequence: u64, packet: &PacketFacts) -> Option<Instant> {
        let answerable = packet.time.saturating_sub(self.round_trip.least());
        let record = self.progress.records.get(sequence);
        let record = record.filter(|it| it.transmissions > 1 && it.time > answerable);
        record.map(|record| record.time)
    }

    /// Takes a sequence-error NAK. If the one before it named an earlier packet, and this one was
    /// sent before that came, the earlier packet arrived late, without being retransmitted, and the
    /// responder had dropped this one.
    fn add_sequence_nak(&mut self, sequence: u64, before: Option<LastNak>, packet: &PacketFacts) {
        let record =
            self.progress.records.get(sequence).filter(|it| it.is_seen() && it.missing == 0);
        let is_late = |before: &LastNak| {
            before.sequence < sequence
                && record.is_some_and(|record| record.time <= before.time)
                && self.recovery.rewind().frame < before.frame
        };
        let late = before.filter(is_late);
        let mut nak = Trigger::new(Signal::SequenceError, sequence, (packet.time, packet.frame));
        nak.asked = if late.is_some() { Asked::Dropped } else { Asked::Missing };
        let sent = self.sent(sequence);
        // After an RNR NAK some responders report the packets behind as out of sequence.
        let is_waiting = self.recovery.refusal().is_some_and(|it| {
            it.signal == Signal::RnrNak && it.from == sequence && sent <= it.time
        });
        if !is_waiting {
            self.recovery.handle(nak, sent);
        }
        if let Some(before) = late {
            self.disprove_nak(before.sequence);
            self.recovery.mark_late(before.sequence);
            self.note_late_behind(before.sequence, before.frame);
        }
        self.recovery.remember_nak(nak);
    }

    /// The responder has the first transmission of a packet that a NAK named: it was late, and not
    /// lost.
    pub(super) fn disprove_nak(&mut self, sequence: u64) {
        if !self.losses.disprove(|loss| loss.is_by_nak(sequence)) {
            return;
        }
        if let Some(record) = self.progress.records.get_mut(sequence) {
            record.flags |= RecordFlags::LATE | RecordFlags::LOSS_REPORTED;
        }
        self.count_reordered(self.answers.last_nak.map_or(0, |nak| nak.frame));
    }

    /// The responder refused a request for good: its queue pair and the requester's fail (§9.9.2).
    fn refuse(
        &mut self,
        sequence: u64,
        code: NakCode,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
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

    pub(super) fn handle_rnr(
        &mut self,
        packet: &PacketFacts,
        timer: RnrTimer,
        verdict: &mut Verdict,
        scene: &mut Scene<'_>,
    ) {
        let sequence = verdict.sequence;
        if self.is_nak_copy(sequence, packet) {
            verdict.duplicate = true;
            return;
        }
        self.statistics.rnr_naks += 1;
        self.advance(sequence, packet, scene);
        self.check_implied_nak(sequence, packet);
        self.messages.forget_requests(sequence);
        self.reads.runs.drop_from(sequence, None);
        self.complete(scene);
        let evidence = self.evidence();
        evidence.rnrs.push(packet.frame);
        evidence.rnr_timers_differ |= evidence.rnr_timer.is_some_and(|known| known != timer);
        evidence.rnr_timer.get_or_insert(timer);
        self.not_ready.refuse(Seen { time: packet.time, frame: packet.frame });
        let rnr = Trigger::new(Signal::RnrNak, sequence, (packet.time, packet.frame));
        let wait = Duration::from_micros(timer.micros().into());
        self.recovery.handle(Trigger { timer: wait, ..rnr }, self.sent(sequence));
    }
}
