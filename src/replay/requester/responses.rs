//! Responses: what the requester knows to be done, and why it may go back.

use core::time::Duration;

use super::state::Requester;
use crate::analysis::PacketFacts;
use crate::observe::requester::recovery::{Signal, Trigger};
use crate::time::Instant;
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::{OpcodeInfo, Operation, Position};

impl Requester {
    /// Takes a response that the responder sent. What the requester did not get for sure must not
    /// be handed in.
    pub(super) fn handle_response(&mut self, packet: &PacketFacts, info: &OpcodeInfo) {
        if !self.space.is_started() {
            return;
        }
        let sequence = self.sequence_of(packet.psn);
        if sequence == self.space.next()
            && matches!(info.position, Position::Middle | Position::Last)
        {
            self.lengthen_read(info);
        }
        if sequence >= self.space.next() || sequence < self.first {
            // An answer to what was not sent, or not captured, makes a requester do nothing.
            return;
        }
        let answer = packet.aeth.map(|(syndrome, _)| syndrome.answer());
        let now = packet.time;
        let is_data =
            matches!(info.operation, Operation::ReadResponse | Operation::AtomicAcknowledge);
        // All before this is acknowledged.
        let until = match answer {
            _ if is_data => sequence + 1,
            Some(Answer::Ack(_)) => sequence + 1,
            Some(Answer::RnrNak(_) | Answer::Nak(NakCode::PsnSequenceError)) => sequence,
            // Means nothing, and so refuses nothing.
            Some(Answer::Nak(NakCode::Reserved(_)) | Answer::Reserved(_)) | None => return,
            Some(Answer::Nak(_)) => {
                self.records.get(sequence).map_or(sequence, |record| record.sequence)
            }
        };
        let is_stale = sequence < self.progress.una();
        let passed = self.passed_by(sequence, is_data);
        self.progress.acknowledge(until, passed);
        match answer {
            _ if is_data && passed.is_none() => self.handle_data(sequence, packet),
            _ if is_data => {}
            Some(Answer::RnrNak(timer)) if !is_stale => {
                let timer = Duration::from_micros(timer.micros().into());
                let sent = self.records.get(sequence).map_or(Instant::ZERO, |record| record.time);
                let rnr = Trigger::new(Signal::RnrNak, sequence, (now, packet.frame));
                self.recovery.handle(Trigger { timer, ..rnr }, sent);
            }
            Some(Answer::Nak(code)) => self.handle_nak(sequence, code, packet, is_stale),
            _ => {}
        }
        if let (Some(Answer::Ack(credits)), Some((_, msn))) = (answer, packet.aeth) {
            let record = self.records.get(sequence);
            let message = record.map(|it| (it.message, it.open_message().is_some()));
            self.credits.acknowledge(message, credits.count(), msn, now);
        }
        self.advance(now, packet.frame);
        self.check_overtaken(sequence, packet);
    }

    /// Returns the sequence number of the missing READ or ATOMIC response that a response with this
    /// sequence number overtakes. The requester must retransmit from there, and later responses do
    /// not count (§9.7.5.1.1). A capture that was not made at the requester may miss responses.
    fn passed_by(&self, sequence: u64, is_data: bool) -> Option<u64> {
        // With selective repeat the requester keeps the later response, and does not go back.
        if !self.is_local() || self.unanswered == 0 || self.params.is_selective {
            return None;
        }
        let record = self.records.first_unanswered(self.progress.una())?;
        let is_own = is_data && record.range().contains(&sequence);
        (record.answered <= sequence && !is_own).then_some(record.answered)
    }

    /// A response with data, or the value before an atomic operation.
    fn handle_data(&mut self, sequence: u64, packet: &PacketFacts) {
        let is_selective = self.params.is_selective;
        let Some(record) = self.records.get_mut(sequence) else { return };
        // With selective repeat later responses count, and the missing ones are retransmitted.
        let is_due = record.answered == sequence || is_selective && record.answered < sequence;
        if !record.needs_response() || !is_due {
            return;
        }
        record.answered = sequence + 1;
        // Progress within a READ restarts the timer, as every progress does.
        self.progress.note(packet.time, packet.frame);
        if record.answered == record.end() {
            let mut record = *record;
            record.answered = record.sequence;
            self.count_answered(&record);
        }
    }

    /// A response behind a READ or ATOMIC that was not answered in full makes the requester go back
    /// (§9.7.5.1.1).
    fn check_overtaken(&mut self, sequence: u64, packet: &PacketFacts) {
        if self.unanswered == 0 {
            return;
        }
        let Some(record) = self.records.first_unanswered(self.progress.una()) else { return };
        // A plain acknowledgement of a READ itself brings no data, either.
        if sequence < record.answered {
            return;
        }
        let at = (packet.time, packet.frame);
        let implied = Trigger::new(Signal::ImpliedNak, record.sequence, at);
        self.recovery.handle(Trigger { until: record.end() - 1, ..implied }, Instant::ZERO);
    }

    fn handle_nak(&mut self, sequence: u64, code: NakCode, packet: &PacketFacts, is_stale: bool) {
        let (time, frame) = (packet.time, packet.frame);
        if packet.is_sack() {
            self.recovery.handle_sack(Trigger::of_sack(packet, sequence));
            return;
        }
        if code == NakCode::PsnSequenceError {
            let record = self.records.get(sequence);
            let from = record.map_or(sequence, |record| record.sequence);
            let until = record.map_or(sequence, |record| record.end() - 1).max(sequence);
            let sent = record.map_or(Instant::ZERO, |record| record.time);
            if !is_stale {
                let nak = Trigger::new(Signal::SequenceError, from, (time, frame));
                self.recovery.handle(Trigger { until, ..nak }, sent);
            }
            return;
        }
        let first = self.records.get(sequence).map_or(sequence, |record| record.sequence);
        self.advance(time, frame);
        let is_in_read = self
            .records
            .get(self.progress.una())
            .is_some_and(|record| record.is_unanswered() && record.range().contains(&sequence));
        if (self.progress.una() == first || is_in_read) && sequence >= first {
            self.failed.get_or_insert((time, frame));
        }
    }
}
