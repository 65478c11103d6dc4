//! The request packets of one direction that are in flight or were so recently.

use crate::observe::transmissions::{Spanning, Transmissions};
use crate::time::Instant;

/// One PSN, or the PSNs of a READ, or PSNs that were skipped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// The first sequence number.
    pub(super) sequence: u64,
    /// Number of sequence numbers: 1, or as many as a READ has responses, or as were skipped.
    pub(super) span: u32,
    /// The digest of the packet; see [`PacketFacts::digest`](super::super::PacketFacts::digest).
    pub(super) digest: u32,
    /// Time of the last transmission; for PSNs that were skipped, the time when that was noticed.
    pub(super) time: Instant,
    /// The frame of its last transmission; of PSNs that were skipped, the one that shows it.
    pub(super) frame: u64,
    /// Pass of the sender in which it was transmitted last.
    pub(super) pass: u32,
    /// Number of transmissions that were captured. 0: never seen.
    pub(super) transmissions: u16,
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
    }
}

impl Record {
    /// Number of PSNs that were skipped and are not known yet to be lost or missed by the capture.
    pub(super) fn open_gap(&self) -> u64 {
        let known = RecordFlags::NOT_CAPTURED | RecordFlags::LOSS_REPORTED;
        if self.is_seen() || self.flags.intersects(known) { 0 } else { self.span.into() }
    }

    /// Whether it was captured before, and not when it was retransmitted last, which is not told
    /// yet.
    pub(super) fn is_skipped(&self) -> bool {
        self.missing > 0 && self.is_seen() && !self.flags.contains(RecordFlags::LOSS_REPORTED)
    }

    /// Whether it was captured at least once.
    pub(super) const fn is_seen(&self) -> bool {
        self.transmissions > 0
    }
}

impl Spanning for Record {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn end(&self) -> u64 {
        self.sequence + u64::from(self.span)
    }
}

/// Records without gaps: what was skipped has records of its own.
impl Transmissions<Record> {
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
            let none = Record { digest: 0, transmissions: 0, flags, ..read };
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
