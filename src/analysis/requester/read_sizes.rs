//! The path MTU of a requester, and the sizes of its READs, as they become known.

use super::{PacketFacts, Requester};
use crate::observe::mtu::{MTUS, least_mtu, mtu_with, responses_of, span_of_read};
use crate::wire::{OpcodeInfo, Operation};

/// A READ whose number of responses is not certain.
#[derive(Clone, Copy, Debug)]
struct UncertainRead {
    sequence: u64,
    /// Bytes that it asks for.
    length: u32,
}

/// The path MTU of a requester, and what it leaves uncertain.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadSizes {
    /// Bytes of the path MTU; 0 while it is not known.
    mtu: u32,
    /// Longest payload so far.
    payload_most: u32,
    /// READ at the end of what was sent, whose number of responses is not known because the path
    /// MTU is not.
    unsized_read: Option<UncertainRead>,
    /// READ whose number of responses was guessed from where the packet behind it begins.
    guessed_read: Option<UncertainRead>,
    /// Frames that fill the path MTU: a request, a response.
    full_frames: [u64; 2],
}

impl ReadSizes {
    /// Bytes of the path MTU; 0 while it is not known.
    pub(super) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// READ at the end of what was sent whose size is not known: sequence number and length.
    pub(super) fn unsized_read(&self) -> Option<(u64, u32)> {
        self.unsized_read.map(|read| (read.sequence, read.length))
    }

    /// Sequence number behind the request of the READ whose size was guessed.
    pub(super) fn guessed_from(&self) -> Option<u64> {
        self.guessed_read.map(|read| read.sequence + 1)
    }

    /// Frames that fill the path MTU: a request, a response.
    pub(super) fn full_frames(&self) -> [u64; 2] {
        self.full_frames
    }

    /// Forgets the READs whose size is uncertain.
    pub(super) fn resynchronize(&mut self) {
        (self.unsized_read, self.guessed_read) = (None, None);
    }

    /// Returns the path MTU with which a READ has so many responses, if it is not one.
    fn mtu_of_read(&self, length: u32, responses: u64) -> Option<u32> {
        if responses > 1 { mtu_with(length, responses, self.payload_most) } else { None }
    }

    /// Returns the number of responses that a READ has at the most.
    pub(super) fn responses_most(&self, length: u32) -> u64 {
        responses_of(length, if self.mtu > 0 { self.mtu } else { least_mtu(self.payload_most) })
    }

    /// Whether the last request is a READ of unknown size that may have a response with this
    /// sequence number.
    pub(super) fn may_be_unsized(&self, sequence: u64) -> bool {
        self.unsized_read.is_some_and(|read| {
            (read.sequence..read.sequence + self.responses_most(read.length)).contains(&sequence)
        })
    }
}

impl Requester {
    /// Learns the path MTU from a packet that fills it, or from where the packet behind a READ
    /// begins.
    pub(super) fn learn_mtu(&mut self, packet: &PacketFacts, info: &OpcodeInfo, sequence: u64) {
        if let Some(guessed) = self.sizes.guessed_read
            && sequence > guessed.sequence
            && info.operation != Operation::ReadRequest
            && self
                .progress
                .records
                .get(guessed.sequence)
                .is_some_and(|record| sequence < record.end())
        {
            // It lies where responses of the READ would: the guess was wrong.
            self.size_read(sequence - 1);
        }
        self.note_payload(packet);
        if !info.position.ends() {
            self.note_full(0, packet);
            self.set_mtu(packet.payload_len);
        } else if let Some(read) = self.sizes.unsized_read
            && sequence > read.sequence
        {
            let span = sequence - read.sequence;
            // One response fits several path MTUs, more fit one only, if no packet is missing
            // between.
            match self.sizes.mtu_of_read(read.length, span) {
                Some(mtu) => self.set_mtu(mtu),
                None => self.sizes.unsized_read = None,
            }
            if span > 1 {
                self.sizes.guessed_read = Some(read);
            }
        }
    }

    /// Notes that the path MTU has room for a payload: only the greatest one has for some.
    pub(super) fn note_payload(&mut self, packet: &PacketFacts) {
        if packet.payload_len <= self.sizes.payload_most {
            return;
        }
        self.sizes.payload_most = packet.payload_len;
        let least = least_mtu(packet.payload_len);
        if Some(&least) == MTUS.last() {
            self.set_mtu(least);
        }
    }

    /// Notes the payload of a packet that fills the path MTU: 0 a request, 1 a response.
    pub(super) fn note_full(&mut self, kind: usize, packet: &PacketFacts) {
        if self.statistics.full_payload[kind] < packet.payload_len {
            self.statistics.full_payload[kind] = packet.payload_len;
            self.sizes.full_frames[kind] = packet.frame;
        }
    }

    /// The path MTU became known, and so does how many sequence numbers the last READ has.
    #[inline]
    pub(super) fn set_mtu(&mut self, mtu: u32) {
        let is_certain = self.sizes.mtu != 0 && self.sizes.guessed_read.is_none();
        if is_certain || !MTUS.contains(&mtu) {
            return;
        }
        if let Some(read) = self.sizes.guessed_read.take()
            && self.sizes.mtu != mtu
        {
            self.sizes.mtu = mtu;
            self.resize_read(read.sequence, responses_of(read.length, mtu));
            self.resize_last_read(read.sequence);
        }
        if self.sizes.mtu != 0 {
            return;
        }
        self.sizes.mtu = mtu;
        if let Some(read) = self.sizes.unsized_read.take() {
            self.size_last_read(read.sequence, responses_of(read.length, mtu));
        }
    }

    /// A READ, the last request if that is not forgotten, has so many sequence numbers.
    fn size_last_read(&mut self, read: u64, span: u64) {
        if let Some(record) = self.progress.records.last_mut()
            && record.sequence == read
        {
            record.span = u32::try_from(span).unwrap_or(u32::MAX);
            if self.recovery.cursor() == self.next() {
                self.recovery.set_cursor(read + span);
            }
            self.progress.space.set_next(read + span);
        }
        if let Some(message) = self.messages.find_mut(read) {
            message.last = message.first + span - 1;
        }
    }

    /// A READ has another number of sequence numbers than was guessed.
    pub(super) fn resize_read(&mut self, read: u64, span: u64) {
        let span32 = u32::try_from(span).unwrap_or(u32::MAX);
        let end =
            |requester: &Self| requester.progress.records.get(read).map(|record| record.end());
        let was_at_end =
            end(self) == Some(self.recovery.cursor()) && self.recovery.cursor() < self.next();
        let Some((before, after)) = self.progress.records.resize(read, span32) else { return };
        self.progress.gaps = self.progress.gaps.saturating_sub(before) + after;
        if was_at_end {
            let cursor = end(self).unwrap_or_else(|| self.recovery.cursor());
            self.recovery.set_cursor(cursor);
        }
        if let Some(message) = self.messages.find_mut(read) {
            message.last = message.first + span - 1;
        }
    }

    /// The path MTU is another one than was guessed from the READ at `guessed`: if a READ behind it
    /// is the last request, its number of responses was worked out with the wrong one.
    pub(super) fn resize_last_read(&mut self, guessed: u64) {
        let mtu = self.sizes.mtu;
        let Some(record) =
            self.progress.records.last_mut().filter(|record| record.sequence > guessed)
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
        let (end, last) =
            (record.end(), UncertainRead { sequence: record.sequence, length: reth.length });
        let is_at_end = self.recovery.cursor() == self.next();
        self.progress.space.set_next(end);
        let cursor = if is_at_end { end } else { self.recovery.cursor().min(end) };
        self.recovery.set_cursor(cursor);
        if mtu == 0 && self.sizes.responses_most(last.length) > 1 {
            self.sizes.unsized_read = Some(last);
        }
    }

    /// The response that ends a READ tells how many sequence numbers it has.
    pub(super) fn size_read(&mut self, sequence: u64) {
        let guessed = self.sizes.guessed_read.filter(|read| read.sequence <= sequence);
        if let Some(UncertainRead { sequence: read, length }) = guessed
            && self.messages.find(read).is_some_and(|message| message.last != sequence)
        {
            // The path MTU is unknown again.
            let span = sequence - read + 1;
            self.sizes.guessed_read = None;
            self.sizes.mtu = self.sizes.mtu_of_read(length, span).unwrap_or(0);
            self.resize_read(read, span);
            self.resize_last_read(read);
        }
        let is_sized = |read: &mut UncertainRead| read.sequence <= sequence;
        if let Some(read) = self.sizes.unsized_read.take_if(is_sized) {
            self.size_last_read(read.sequence, sequence - read.sequence + 1);
        }
    }

    /// Returns the number of sequence numbers that a request takes: one, but a READ takes one for
    /// each response.
    pub(super) fn span_of(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sequence: u64,
    ) -> u32 {
        let Some(reth) = packet.reth.filter(|_| info.operation == Operation::ReadRequest) else {
            return 1;
        };
        let mtu = match self.sizes.mtu {
            0 if sequence < self.next() => {
                let span = self.skipped_read(sequence, reth.length);
                if span > 1 {
                    let length = reth.length;
                    self.sizes.guessed_read = Some(UncertainRead { sequence, length });
                }
                return span;
            }
            0 => {
                let length = reth.length;
                let is_unsized = self.sizes.responses_most(length) > 1;
                self.sizes.unsized_read = is_unsized.then_some(UncertainRead { sequence, length });
                return 1;
            }
            mtu => mtu,
        };
        span_of_read(reth.length, mtu)
    }

    /// Returns the number of sequence numbers of a READ whose first transmission was not captured
    /// while the path MTU is not known: all that were skipped from there on, if it has as many
    /// responses with one of the path MTUs. So are those before the first that was captured.
    pub(super) fn skipped_read(&self, sequence: u64, length: u32) -> u32 {
        let end = match (self.progress.records.get(sequence), self.progress.records.first()) {
            (Some(gap), _) if !gap.is_seen() => gap.end(),
            (None, Some(first)) if sequence < first.sequence => first.sequence,
            _ => return 1,
        };
        let span = end - sequence;
        let fits = self.sizes.mtu_of_read(length, span).is_some();
        u32::try_from(span).ok().filter(|_| fits).unwrap_or(1)
    }
}
