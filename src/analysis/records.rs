//! The request packets of one direction that are in flight or were so recently.

use std::collections::VecDeque;

/// One PSN, or the PSNs of a READ, or PSNs that were skipped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// The first sequence number.
    pub(super) sequence: u64,
    /// How many sequence numbers: 1, or as many as a READ has responses, or as were skipped.
    pub(super) span: u32,
    /// The digest of the packet; see [`PacketFacts::digest`](super::PacketFacts::digest).
    pub(super) digest: u32,
    /// When it was transmitted last; for PSNs that were skipped, when that was noticed.
    pub(super) time: u64,
    /// The frame of its last transmission; of PSNs that were skipped, the one that shows it.
    pub(super) frame: u64,
    /// In which pass of the sender it was transmitted last.
    pub(super) pass: u32,
    /// How often it was transmitted, as far as it was captured. 0: never seen.
    pub(super) transmissions: u16,
    /// Number of times that it was sent and did not come to the capture point, as packets behind it show.
    pub(super) missing: u8,
    pub(super) flags: RecordFlags,
}

bitflags::bitflags! {
    /// What else is known of a record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct RecordFlags: u8 {
        /// It asks for an acknowledgement.
        const ACK_REQUEST = 1;
        /// It was acknowledged although it was never captured, and is counted as such.
        const NOT_CAPTURED = 1 << 1;
        /// Its loss was reported.
        const LOSS_REPORTED = 1 << 2;
        /// The network delivered it twice.
        const COPIED = 1 << 3;
        /// It arrived after a packet that was sent later.
        const LATE = 1 << 4;
    }
}

impl Record {
    /// The sequence number behind it.
    pub(super) const fn end(&self) -> u64 {
        self.sequence + self.span as u64
    }

    /// How many PSNs were skipped of which it is not known yet what became of them.
    pub(super) fn open_gap(&self) -> u64 {
        let known = RecordFlags::NOT_CAPTURED | RecordFlags::LOSS_REPORTED;
        if self.is_seen() || self.flags.intersects(known) { 0 } else { self.span.into() }
    }

    /// Whether it was captured before, and not when it was retransmitted last, which is not told yet.
    pub(super) fn is_skipped(&self) -> bool {
        self.missing > 0 && self.is_seen() && !self.flags.contains(RecordFlags::LOSS_REPORTED)
    }

    /// Whether it was captured at least once.
    pub(super) const fn is_seen(&self) -> bool {
        self.transmissions > 0
    }
}

/// Records without gaps, in the order of their sequence numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    ring: VecDeque<Record>,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn first(&self) -> Option<&Record> {
        self.ring.front()
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut Record> {
        self.ring.back_mut()
    }

    /// Appends a record that begins where the last one ends.
    pub(super) fn push(&mut self, record: Record) {
        self.ring.push_back(record);
    }

    /// Removes the first record.
    pub(super) fn pop_first(&mut self) {
        self.ring.pop_front();
    }

    pub(super) fn clear(&mut self) {
        self.ring.clear();
    }

    /// Where the first record is that ends behind this sequence number.
    fn first_behind(&self, sequence: u64) -> usize {
        let distance = self.ring.front().and_then(|first| sequence.checked_sub(first.sequence));
        let Some(distance) = distance else { return 0 };
        // Without READs each record is one sequence number.
        let guess = usize::try_from(distance).unwrap_or(usize::MAX);
        if self.ring.get(guess).is_some_and(|record| record.sequence == sequence) {
            return guess;
        }
        self.ring.partition_point(|record| record.end() <= sequence)
    }

    /// Where the record with this sequence number is.
    fn position(&self, sequence: u64) -> Option<usize> {
        let at = self.first_behind(sequence);
        self.ring.get(at).filter(|record| record.sequence <= sequence).map(|_| at)
    }

    /// The record with this sequence number.
    pub(super) fn get(&self, sequence: u64) -> Option<&Record> {
        self.ring.get(self.position(sequence)?)
    }

    /// The record with this sequence number.
    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut Record> {
        let at = self.position(sequence)?;
        self.ring.get_mut(at)
    }

    /// The records that begin at or behind `from` and before `to`.
    pub(super) fn range_mut(&mut self, from: u64, to: u64) -> impl Iterator<Item = &mut Record> {
        let start = self.first_behind(from);
        self.ring.range_mut(start..).take_while(move |record| record.sequence < to)
    }

    /// Whether a record that begins at or behind `from` and before `to`, or that `from` lies in, has one of these flags.
    pub(super) fn any(&self, from: u64, to: u64, flags: RecordFlags) -> bool {
        let start = self.first_behind(from);
        let mut records = self.ring.range(start..).take_while(|record| record.sequence < to);
        records.any(|record| record.flags.intersects(flags))
    }

    /// Gives the record of a READ at `sequence` its true number of sequence numbers, at the cost or to the benefit of those
    /// behind it that were skipped. Returns of how many it was not known before, and is not now, what became of them.
    pub(super) fn resize(&mut self, sequence: u64, span: u32) -> Option<(u64, u64)> {
        let at = self.position(sequence)?;
        let read = *self.ring.get(at).filter(|record| record.sequence == sequence)?;
        let gap = self.ring.get(at + 1).filter(|gap| gap.open_gap() > 0).copied();
        let skipped = gap.map_or(0, |gap| gap.span);
        let span = span.clamp(1, read.span + skipped);
        let left = read.span + skipped - span;
        if let Some(record) = self.ring.get_mut(at) {
            record.span = span;
        }
        if gap.is_some() {
            self.ring.remove(at + 1);
        }
        let mut open = 0;
        if left > 0 {
            let flags = read.flags & RecordFlags::LOSS_REPORTED;
            let none = Record { digest: 0, transmissions: 0, flags, ..read };
            let gap =
                Record { sequence: sequence + u64::from(span), span: left, ..gap.unwrap_or(none) };
            open = gap.open_gap();
            self.ring.insert(at + 1, gap);
        }
        Some((skipped.into(), open))
    }

    /// Takes `span` sequence numbers from `sequence` on out of a record of several that were skipped, so that they have a
    /// record of their own.
    pub(super) fn isolate(&mut self, sequence: u64, span: u32) {
        let Some(at) = self.position(sequence) else { return };
        let Some(&record) = self.ring.get(at) else { return };
        if record.span <= 1 || record.is_seen() {
            return;
        }
        let before = u32::try_from(sequence - record.sequence).unwrap_or(0);
        let span = span.clamp(1, record.span - before);
        let after = record.span - before - span;
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = Record { sequence, span, ..record };
        }
        if after > 0 {
            let sequence = sequence + u64::from(span);
            self.ring.insert(at + 1, Record { sequence, span: after, ..record });
        }
        if before > 0 {
            self.ring.insert(at, Record { span: before, ..record });
        }
    }
}
