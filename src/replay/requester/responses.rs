//! Responses: what the requester knows to be done, and why it may go back.

use super::state::{Requester, Rnr, Trigger};
use crate::analysis::PacketFacts;
use crate::observe::transmissions::Spanning;
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::{Msn, OpcodeInfo, Operation, Position};

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
        let now = packet.time.as_nanos();
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
        let is_stale = sequence < self.una;
        let passed = self.passed_by(sequence, is_data);
        self.acknowledged = self.acknowledged.max(until);
        self.counted = self.counted.max(passed.map_or(until, |passed| until.min(passed)));
        match answer {
            _ if is_data && passed.is_none() => self.handle_data(sequence, packet),
            _ if is_data => {}
            Some(Answer::RnrNak(timer)) if !is_stale => {
                let timer = u64::from(timer.micros()) * 1000;
                self.handle_rnr(Rnr { sequence, time: now, frame: packet.frame, timer });
            }
            Some(Answer::Nak(code)) => self.handle_nak(sequence, code, packet, is_stale),
            _ => {}
        }
        if let (Some(Answer::Ack(credits)), Some((_, msn))) = (answer, packet.aeth) {
            self.take_credits(sequence, credits.count(), msn, now);
        }
        self.advance(now, packet.frame);
        self.check_overtaken(sequence, packet);
    }

    /// Returns the sequence number of the missing response to a READ or ATOMIC that a response with
    /// this sequence number passes. It tells the requester to go back there, and nothing of what it
    /// answers behind that counts (§9.7.5.1.1). Elsewhere than at the requester the capture may
    /// miss responses.
    fn passed_by(&self, sequence: u64, is_data: bool) -> Option<u64> {
        if !self.is_local() || self.unanswered == 0 {
            return None;
        }
        let record = self.records.first_unanswered(self.una)?;
        let is_own = is_data && (record.sequence..record.end()).contains(&sequence);
        (record.answered <= sequence && !is_own).then_some(record.answered)
    }

    /// A response with data, or the value before an atomic operation.
    fn handle_data(&mut self, sequence: u64, packet: &PacketFacts) {
        let Some(record) = self.records.get_mut(sequence) else { return };
        if !record.needs_response() || record.answered != sequence {
            return;
        }
        record.answered += 1;
        // Progress within a READ restarts the timer, as every progress does.
        self.progress = (packet.time.as_nanos(), packet.frame);
        if record.answered == record.end() {
            let record = super::record::Record { answered: record.sequence, ..*record };
            self.count_answered(&record);
        }
    }

    /// A response behind a READ or ATOMIC that was not answered in full makes the requester go back
    /// (§9.7.5.1.1).
    fn check_overtaken(&mut self, sequence: u64, packet: &PacketFacts) {
        if self.unanswered == 0 {
            return;
        }
        let Some(record) = self.records.first_unanswered(self.una) else { return };
        // A plain acknowledgement of a READ itself brings no data, either.
        if sequence < record.answered {
            return;
        }
        let (from, until) = (record.sequence, record.end() - 1);
        let is_same = |it: Trigger| (it.from, it.until) == (from, until) && !it.is_served;
        if self.implied.is_some_and(is_same) {
            return;
        }
        let (time, frame) = (packet.time.as_nanos(), packet.frame);
        self.implied = Some(Trigger { from, until, time, frame, is_served: false });
    }

    fn handle_rnr(&mut self, rnr: Rnr) {
        // While it waits, a requester ignores further RNR NAKs.
        let is_waiting = self.rnr.is_some_and(|known| {
            let sent = self.records.get(rnr.sequence).map_or(0, |record| record.time);
            known.sequence == rnr.sequence && sent <= known.time
        });
        if !is_waiting {
            self.rnr = Some(rnr);
        }
    }

    fn handle_nak(&mut self, sequence: u64, code: NakCode, packet: &PacketFacts, is_stale: bool) {
        let (time, frame) = (packet.time.as_nanos(), packet.frame);
        if code == NakCode::PsnSequenceError {
            let record = self.records.get(sequence);
            let from = record.map_or(sequence, |record| record.sequence);
            let until = record.map_or(sequence, |record| record.end() - 1).max(sequence);
            let is_known = self.nak.is_some_and(|nak| nak.from == from && !nak.is_served);
            if !is_stale && !is_known {
                // One that names an earlier packet is settled, and may have been acted on first.
                self.settled_nak = self.nak.filter(|nak| nak.until < from).or(self.settled_nak);
                self.nak = Some(Trigger { from, until, time, frame, is_served: false });
            }
            return;
        }
        let first = self.records.get(sequence).map_or(sequence, |record| record.sequence);
        self.advance(time, frame);
        let is_in_read = self.records.get(self.una).is_some_and(|record| {
            record.is_unanswered() && (record.sequence..record.end()).contains(&sequence)
        });
        if (self.una == first || is_in_read) && sequence >= first {
            self.failed.get_or_insert((time, frame));
        }
    }

    /// Takes the number of messages that the responder has room for, if it counts.
    fn take_credits(&mut self, sequence: u64, count: Option<u32>, msn: Msn, now: u64) {
        let Some(count) = count else {
            self.credits.is_unlimited = true;
            return;
        };
        let Some(record) = self.records.get(sequence).copied() else { return };
        // A message that began before the capture has no number.
        if self.credits.is_unlimited || record.message == 0 {
            return;
        }
        // Messages that are complete when this packet is acknowledged.
        let completed = record.message.saturating_sub(record.open_message().is_some().into());
        let offset = msn.get().wrapping_sub(completed) & MSN_MASK;
        let known = *self.credits.offset.get_or_insert(offset);
        // The count may be newer than the PSN.
        let ahead = offset.wrapping_sub(known) & MSN_MASK;
        if ahead > self.messages.saturating_sub(completed) {
            self.credits.is_unlimited = true;
            return;
        }
        let without = self.without_receive.saturating_sub(record.without_receive);
        let limit = completed.saturating_add(ahead).saturating_add(count).saturating_add(without);
        if self.credits.limit.is_none() {
            self.credits.since = now;
        }
        self.credits.limit = Some(self.credits.limit.map_or(limit, |known| known.max(limit)));
    }
}

/// MSNs have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;
