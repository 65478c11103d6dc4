//! The path MTU of a requester, and the sizes of its READs, as they become known.

use super::PacketFacts;
use super::records::Record;
use super::requester::Requester;
use crate::observe::mtu::{MTUS, least_mtu, responses_of};
use crate::wire::{OpcodeInfo, Operation};

impl Requester {
    /// Learns the path MTU from a packet that fills it, or from where the packet behind a READ begins.
    pub(super) fn learn_mtu(&mut self, packet: &PacketFacts, info: &OpcodeInfo, sequence: u64) {
        if let Some((read, _)) = self.guessed_read
            && sequence > read
            && info.operation != Operation::ReadRequest
            && self.records.get(read).is_some_and(|record| sequence < record.end())
        {
            // It lies where responses of the READ would: the guess was wrong.
            self.size_read(sequence - 1);
        }
        self.note_payload(packet);
        if !info.position.ends() {
            self.note_full(0, packet);
            self.set_mtu(packet.payload_len);
        } else if let Some((read, length)) = self.unsized_read
            && sequence > read
        {
            let span = sequence - read;
            // One response fits several path MTUs, more fit one only, if no packet is missing between.
            match self.mtu_of_read(length, span) {
                Some(mtu) => self.set_mtu(mtu),
                None => self.unsized_read = None,
            }
            if span > 1 {
                self.guessed_read = Some((read, length));
            }
        }
    }

    /// Notes that the path MTU has room for a payload: only the greatest one has for some.
    pub(super) fn note_payload(&mut self, packet: &PacketFacts) {
        if packet.payload_len <= self.payload_most {
            return;
        }
        self.payload_most = packet.payload_len;
        let least = least_mtu(packet.payload_len);
        if Some(&least) == MTUS.last() {
            self.set_mtu(least);
        }
    }

    /// Returns the path MTU with which a READ has so many responses, if it is not one.
    fn mtu_of_read(&self, length: u32, responses: u64) -> Option<u32> {
        let mut mtus = MTUS.into_iter().filter(|&mtu| mtu >= self.payload_most);
        mtus.find(|&mtu| responses > 1 && responses_of(length, mtu) == responses)
    }

    /// Returns the number of responses that a READ has at the most.
    pub(super) fn responses_most(&self, length: u32) -> u64 {
        responses_of(length, if self.mtu > 0 { self.mtu } else { least_mtu(self.payload_most) })
    }

    /// Notes the payload of a packet that fills the path MTU: 0 a request, 1 a response.
    pub(super) fn note_full(&mut self, kind: usize, packet: &PacketFacts) {
        if self.statistics.full_payload[kind] < packet.payload_len {
            self.statistics.full_payload[kind] = packet.payload_len;
            self.full_frames[kind] = packet.frame;
        }
    }

    /// The path MTU became known, and so does how many sequence numbers the last READ has.
    pub(super) fn set_mtu(&mut self, mtu: u32) {
        if !MTUS.contains(&mtu) {
            return;
        }
        if let Some((read, length)) = self.guessed_read.take()
            && self.mtu != mtu
        {
            self.mtu = mtu;
            self.resize_read(read, responses_of(length, mtu));
            self.resize_last_read(read);
        }
        if self.mtu != 0 {
            return;
        }
        self.mtu = mtu;
        if let Some((read, length)) = self.unsized_read.take() {
            let span = responses_of(length, mtu);
            if let Some(record) = self.records.last_mut()
                && record.sequence == read
            {
                record.span = u32::try_from(span).unwrap_or(u32::MAX);
                if self.recovery.cursor == self.next {
                    self.recovery.cursor = read + span;
                }
                self.next = read + span;
            }
            if let Some(message) = self.messages.find_mut(read) {
                message.last = message.first + span - 1;
            }
        }
    }

    /// A READ has another number of sequence numbers than was guessed.
    pub(super) fn resize_read(&mut self, read: u64, span: u64) {
        let span32 = u32::try_from(span).unwrap_or(u32::MAX);
        let end = |requester: &Self| requester.records.get(read).map(Record::end);
        let was_at_end =
            end(self) == Some(self.recovery.cursor) && self.recovery.cursor < self.next;
        let Some((before, after)) = self.records.resize(read, span32) else { return };
        self.gaps = self.gaps.saturating_sub(before) + after;
        if was_at_end {
            self.recovery.cursor = end(self).unwrap_or(self.recovery.cursor);
        }
        if let Some(message) = self.messages.find_mut(read) {
            message.last = message.first + span - 1;
        }
    }

    /// The path MTU is another one than was guessed from the READ at `guessed`: if a READ behind it is the last request, its
    /// number of responses was worked out with the wrong one.
    pub(super) fn resize_last_read(&mut self, guessed: u64) {
        let mtu = self.mtu;
        let Some(record) = self.records.last_mut().filter(|record| record.sequence > guessed)
        else {
            return;
        };
        let Some(message) = self.messages.find_mut(record.sequence) else { return };
        let (Operation::ReadRequest, Some(reth)) = (message.operation, message.reth) else {
            return;
        };
        let span = if mtu == 0 { 1 } else { responses_of(reth.length, mtu) };
        record.span = u32::try_from(span).unwrap_or(u32::MAX);
        message.last = message.first + span - 1;
        let is_at_end = self.recovery.cursor == self.next;
        self.next = record.end();
        self.recovery.cursor =
            if is_at_end { self.next } else { self.recovery.cursor.min(self.next) };
        let last = (record.sequence, reth.length);
        if mtu == 0 && self.responses_most(reth.length) > 1 {
            self.unsized_read = Some(last);
        }
    }

    /// The response that ends a READ tells how many sequence numbers it has.
    pub(super) fn size_read(&mut self, sequence: u64) {
        if let Some((read, length)) = self.guessed_read.filter(|(read, _)| *read <= sequence)
            && self.messages.find(read).is_some_and(|message| message.last != sequence)
        {
            // The path MTU is unknown again.
            let span = sequence - read + 1;
            self.guessed_read = None;
            self.mtu = self.mtu_of_read(length, span).unwrap_or(0);
            self.resize_read(read, span);
            self.resize_last_read(read);
        }
        let Some((read, _)) = self.unsized_read.filter(|(read, _)| *read <= sequence) else {
            return;
        };
        self.unsized_read = None;
        let span = sequence - read + 1;
        if let Some(record) = self.records.last_mut()
            && record.sequence == read
        {
            record.span = u32::try_from(span).unwrap_or(u32::MAX);
            if self.recovery.cursor == self.next {
                self.recovery.cursor = read + span;
            }
            self.next = read + span;
        }
        if let Some(message) = self.messages.find_mut(read) {
            message.last = sequence;
        }
    }

    /// How many sequence numbers a request takes: one, but a READ takes one for each response.
    pub(super) fn span_of(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sequence: u64,
    ) -> u32 {
        let Some(reth) = packet.reth.filter(|_| info.operation == Operation::ReadRequest) else {
            return 1;
        };
        let mtu = match self.mtu {
            0 if sequence < self.next => {
                let span = self.skipped_read(sequence, reth.length);
                if span > 1 {
                    self.guessed_read = Some((sequence, reth.length));
                }
                return span;
            }
            0 => {
                let is_unsized = self.responses_most(reth.length) > 1;
                self.unsized_read = is_unsized.then_some((sequence, reth.length));
                return 1;
            }
            mtu => mtu,
        };
        // A READ has at most half of the PSNs (§9.7.3.1); what asks for more is not believed.
        let span = responses_of(reth.length, mtu).min(crate::wire::Psn::HALF.into());
        u32::try_from(span).unwrap_or(1)
    }

    /// How many sequence numbers a READ takes whose first transmission was not captured while the path MTU is not known: all
    /// that were skipped from there on, if it has as many responses with one of the path MTUs. So are those before the first
    /// that was captured.
    pub(super) fn skipped_read(&self, sequence: u64, length: u32) -> u32 {
        let end = match (self.records.get(sequence), self.records.first()) {
            (Some(gap), _) if !gap.is_seen() => gap.end(),
            (None, Some(first)) if sequence < first.sequence => first.sequence,
            _ => return 1,
        };
        let span = end - sequence;
        let fits = self.mtu_of_read(length, span).is_some();
        u32::try_from(span).ok().filter(|_| fits).unwrap_or(1)
    }
}
