//! The request packets of one direction that are in flight or were so recently.

use super::PacketFacts;
use crate::observe::transmissions::{Sent, Transmissions};

/// One PSN, or the PSNs of a READ, or PSNs that were skipped.
pub(super) type Record = Sent<Marks>;

/// Facts of a packet beside its transmissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// The digest of the packet; see [`PacketFacts::digest`](super::super::PacketFacts::digest).
    pub(super) digest: u32,
    /// Number of times that it was sent and did not come to the capture point, as packets behind it
    /// show.
    pub(super) missing: u8,
    pub(super) flags: RecordFlags,
}

bitflags::bitflags! {
    /// Flags of a record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct RecordFlags: u8 {
        /// An acknowledgement is requested.
        const ACK_REQUEST = 1;
        /// Acknowledged although it was never captured, and counted as such.
        const NOT_CAPTURED = 1 << 1;
        /// The loss was reported.
        const LOSS_REPORTED = 1 << 2;
        /// Delivered twice by the network.
        const COPIED = 1 << 3;
        /// Arrived after a packet that was sent later.
        const LATE = 1 << 4;
        /// Transmitted again while the transmission before was on its way.
        const TWICE = 1 << 5;
        /// A transmission did not come, as the packets around it show, which is not told yet.
        const SKIPPED = 1 << 6;
    }
}

impl Record {
    /// Returns a packet in its first transmission.
    pub(super) fn seen(sequence: u64, span: u32, pass: u32, packet: &PacketFacts) -> Self {
        let marks = Marks { digest: packet.digest, missing: 0, flags: RecordFlags::empty() };
        Self::new(sequence, span, pass, packet, marks)
    }

    /// Returns PSNs that a packet shows to be skipped.
    pub(super) fn skipped(sequence: u64, end: u64, pass: u32, packet: &PacketFacts) -> Self {
        let span = u32::try_from(end - sequence).unwrap_or(u32::MAX);
        let marks = Marks { digest: 0, missing: 1, flags: RecordFlags::empty() };
        Self { transmissions: 0, ..Self::new(sequence, span, pass, packet, marks) }
    }

    /// Number of PSNs that were skipped and are not known yet to be lost or missed by the capture.
    pub(super) fn open_gap(&self) -> u64 {
        let known = RecordFlags::NOT_CAPTURED | RecordFlags::LOSS_REPORTED;
        if self.is_seen() || self.flags.intersects(known) { 0 } else { self.span.into() }
    }

    /// Whether it was captured, and a transmission of it was not, which is not told yet.
    pub(super) fn is_skipped(&self) -> bool {
        self.flags.contains(RecordFlags::SKIPPED)
            && !self.flags.contains(RecordFlags::LOSS_REPORTED)
    }

    /// Whether it was captured at least once.
    pub(super) const fn is_seen(&self) -> bool {
        self.transmissions > 0
    }
}

/// Records without gaps: what was skipped has records of its own.
impl Transmissions<Marks> {
    /// Whether a record that begins at or behind `from` and before `to`, or that `from` lies in,
    /// has one of these flags.
    pub(super) fn any(&self, from: u64, to: u64, flags: RecordFlags) -> bool {
        let mut records = self.from(from).take_while(|record| record.sequence < to);
        records.any(|record| record.flags.intersects(flags))
    }

    /// Gives the record of a READ at `sequence` its true number of sequence numbers, at the cost or
    /// to the benefit of those behind it that were skipped. Returns of how many it was not known
    /// before, and is not now, what became of them.
    pub(super) fn resize(&mut self, sequence: u64, span: u32) -> Option<(u64, u64)> {
        let at = self.position(sequence)?;
        let read = *self.at(at).filter(|record| record.sequence == sequence)?;
        let gap = self.at(at + 1).filter(|gap| gap.open_gap() > 0).copied();
        let skipped = gap.map_or(0, |gap| gap.span);
        let span = span.clamp(1, read.span + skipped);
        let left = read.span + skipped - span;
        if let Some(record) = self.at_mut(at) {
            record.span = span;
        }
        if gap.is_some() {
            self.remove_at(at + 1);
        }
        let mut open = 0;
        if left > 0 {
            let flags = read.flags & RecordFlags::LOSS_REPORTED;
            let marks = Marks { digest: 0, flags, ..read.marks };
            let none = Record { transmissions: 0, marks, ..read };
            let gap =
                Record { sequence: sequence + u64::from(span), span: left, ..gap.unwrap_or(none) };
            open = gap.open_gap();
            self.insert_at(at + 1, gap);
        }
        Some((skipped.into(), open))
    }

    /// Takes `span` sequence numbers from `sequence` on out of a record of several that were
    /// skipped, so that they have a record of their own. Returns the record of `sequence`.
    pub(super) fn isolate(&mut self, sequence: u64, span: u32) -> Option<&mut Record> {
        let at = self.position(sequence)?;
        let record = *self.at(at)?;
        if record.span <= 1 || record.is_seen() {
            return self.at_mut(at);
        }
        let before = u32::try_from(sequence - record.sequence).unwrap_or(0);
        let span = span.clamp(1, record.span - before);
        let after = record.span - before - span;
        if let Some(slot) = self.at_mut(at) {
            *slot = Record { sequence, span, ..record };
        }
        if after > 0 {
            let sequence = sequence + u64::from(span);
            self.insert_at(at + 1, Record { sequence, span: after, ..record });
        }
        if before > 0 {
            self.insert_at(at, Record { span: before, ..record });
        }
        self.at_mut(at + usize::from(before > 0))
    }
}
