//! Request packets of one requester, in the order of their sequence numbers.

use core::ops::{Deref, DerefMut, Range};
use std::collections::VecDeque;

use super::packet::PacketFacts;
use crate::time::Instant;

/// A request packet, or packets that were skipped, with the sequence numbers that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent<T> {
    /// First sequence number.
    pub(crate) sequence: u64,
    /// Number of sequence numbers: 1, or as many as a READ has responses, or as were skipped.
    pub(crate) span: u32,
    /// Number of transmissions that were captured. 0: never seen.
    pub(crate) transmissions: u16,
    /// Number of rewinds before the last transmission.
    pub(crate) pass: u32,
    /// Time of the last transmission; for PSNs that were skipped, the time when that was noticed.
    pub(crate) time: Instant,
    /// Frame of a transmission; of PSNs that were skipped, the one that shows it.
    pub(crate) frame: u64,
    /// Facts that its observer keeps of it.
    pub(crate) marks: T,
}

impl<T> Sent<T> {
    /// Returns a packet in its first transmission.
    pub(crate) fn new(sequence: u64, span: u32, pass: u32, packet: &PacketFacts, marks: T) -> Self {
        let (time, frame) = (packet.time, packet.frame);
        Self { sequence, span, transmissions: 1, pass, time, frame, marks }
    }

    /// Sequence number behind the last.
    pub(crate) fn end(&self) -> u64 {
        self.sequence + u64::from(self.span)
    }

    /// Its sequence numbers.
    pub(crate) fn range(&self) -> Range<u64> {
        self.sequence..self.end()
    }
}

impl<T> Deref for Sent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.marks
    }
}

impl<T> DerefMut for Sent<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.marks
    }
}

/// Ring of request packets that do not overlap.
#[derive(Clone, Debug)]
pub(crate) struct Transmissions<T> {
    ring: VecDeque<Sent<T>>,
}

impl<T> Default for Transmissions<T> {
    fn default() -> Self {
        Self { ring: VecDeque::new() }
    }
}

impl<T> Transmissions<T> {
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn first(&self) -> Option<&Sent<T>> {
        self.ring.front()
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut Sent<T>> {
        self.ring.back_mut()
    }

    pub(crate) fn pop_first(&mut self) -> Option<Sent<T>> {
        self.ring.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }

    /// Returns the index of a packet that begins at `sequence` if all before it, or all behind it,
    /// take one sequence number each: where there are no READs and no gaps.
    fn guess(&self, sequence: u64) -> Option<usize> {
        let ahead = sequence.checked_sub(self.ring.front()?.sequence)?;
        let behind = self.ring.back()?.sequence.checked_sub(sequence)?;
        let from_back = (self.ring.len() as u64 - 1).checked_sub(behind);
        let mut guesses = [Some(ahead), from_back].into_iter().flatten();
        guesses.find_map(|at| {
            let at = usize::try_from(at).ok()?;
            self.ring.get(at).filter(|it| it.sequence == sequence).map(|_| at)
        })
    }

    /// Returns the index of the first packet that ends behind a sequence number.
    fn first_behind(&self, sequence: u64) -> usize {
        if self.ring.back().is_none_or(|last| last.end() <= sequence) {
            return self.ring.len();
        }
        self.guess(sequence).unwrap_or_else(|| self.ring.partition_point(|it| it.end() <= sequence))
    }

    /// Returns the number of packets that begin before a sequence number.
    fn count_before(&self, sequence: u64) -> usize {
        if self.ring.back().is_none_or(|last| last.sequence < sequence) {
            return self.ring.len();
        }
        self.guess(sequence)
            .unwrap_or_else(|| self.ring.partition_point(|it| it.sequence < sequence))
    }

    /// Returns the index of the packet that a sequence number belongs to.
    pub(crate) fn position(&self, sequence: u64) -> Option<usize> {
        let at = self.first_behind(sequence);
        self.ring.get(at).filter(|it| it.sequence <= sequence).map(|_| at)
    }

    /// Returns the packet that a sequence number belongs to.
    pub(crate) fn get(&self, sequence: u64) -> Option<&Sent<T>> {
        self.ring.get(self.position(sequence)?)
    }

    /// Returns the packet that a sequence number belongs to.
    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut Sent<T>> {
        let at = self.position(sequence)?;
        self.ring.get_mut(at)
    }

    /// Returns the last packet that begins before a sequence number.
    pub(crate) fn before(&self, sequence: u64) -> Option<&Sent<T>> {
        self.ring.get(self.count_before(sequence).checked_sub(1)?)
    }

    /// Returns the first packet that begins behind a sequence number.
    pub(crate) fn after(&self, sequence: u64) -> Option<&Sent<T>> {
        self.ring.get(self.count_before(sequence.saturating_add(1)))
    }

    /// Inserts a packet in its place.
    pub(crate) fn insert(&mut self, packet: Sent<T>) {
        let at = self.count_before(packet.sequence.saturating_add(1));
        self.insert_at(at, packet);
    }

    /// Inserts a packet at an index, which must be its place.
    pub(crate) fn insert_at(&mut self, at: usize, packet: Sent<T>) {
        if at >= self.ring.len() {
            self.ring.push_back(packet);
        } else {
            self.ring.insert(at, packet);
        }
    }

    /// Returns the packet at an index.
    pub(crate) fn at(&self, at: usize) -> Option<&Sent<T>> {
        self.ring.get(at)
    }

    /// Returns the packet at an index.
    pub(crate) fn at_mut(&mut self, at: usize) -> Option<&mut Sent<T>> {
        self.ring.get_mut(at)
    }

    /// Removes the packet at an index.
    pub(crate) fn remove_at(&mut self, at: usize) {
        self.ring.remove(at);
    }

    /// Packets that end behind a sequence number, in order.
    pub(crate) fn from(&self, sequence: u64) -> impl Iterator<Item = &Sent<T>> {
        self.ring.range(self.first_behind(sequence)..)
    }

    /// Packets that begin at or before a sequence number, in order.
    #[cfg(feature = "replay")]
    pub(crate) fn up_to(&self, sequence: u64) -> impl Iterator<Item = &Sent<T>> {
        self.ring.range(..self.count_before(sequence.saturating_add(1)))
    }

    /// Packets that end behind `from` and begin before `to`, in order.
    pub(crate) fn range_mut(&mut self, from: u64, to: u64) -> impl Iterator<Item = &mut Sent<T>> {
        let start = self.first_behind(from);
        self.ring.range_mut(start..).take_while(move |it| it.sequence < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One packet each, a READ of four, a gap of two, two packets.
    #[expect(clippy::cast_possible_truncation, reason = "spans are small")]
    fn ring() -> Transmissions<()> {
        let mut ring = Transmissions::default();
        for (first, end) in [(10, 11), (17, 18), (11, 12), (12, 16), (18, 19)] {
            let (sequence, span, time) = (first, (end - first) as u32, Instant::ZERO);
            let marks = ();
            ring.insert(Sent { sequence, span, transmissions: 1, pass: 0, time, frame: 0, marks });
        }
        ring
    }

    #[test]
    fn packets_are_found_by_any_of_their_sequence_numbers() {
        let ring = ring();
        let found = (9..20).map(|sequence| ring.get(sequence).map(|sent| sent.sequence));
        let expected = [
            None,
            Some(10),
            Some(11),
            Some(12),
            Some(12),
            Some(12),
            Some(12),
            None,
            Some(17),
            Some(18),
            None,
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn neighbors_are_those_that_begin_before_and_behind() {
        let ring = ring();
        let neighbors = |sequence: u64| {
            [ring.before(sequence), ring.after(sequence)].map(|it| it.map(|sent| sent.sequence))
        };
        assert_eq!(neighbors(10), [None, Some(11)]);
        assert_eq!(neighbors(14), [Some(12), Some(17)]);
        assert_eq!(neighbors(16), [Some(12), Some(17)]);
        assert_eq!(neighbors(18), [Some(17), None]);
    }

    #[test]
    fn ranges_begin_with_the_packet_that_ends_behind() {
        let mut ring = ring();
        assert_eq!(ring.from(15).map(|sent| sent.sequence).collect::<Vec<_>>(), [12, 17, 18]);
        assert_eq!(ring.from(16).map(|sent| sent.sequence).collect::<Vec<_>>(), [17, 18]);
        let range: Vec<u64> = ring.range_mut(11, 17).map(|sent| sent.sequence).collect();
        assert_eq!(range, [11, 12]);
    }
}
