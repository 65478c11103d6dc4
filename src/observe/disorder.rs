//! Order of arrival at one point: the fewest packets that explain it are out of order.

use core::ops::Range;

use serde::Serialize;

/// Extent of the reordering of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Lateness {
    /// Difference of its positions in the order of transmission and in that of arrival.
    pub packets: u64,
    /// Nanoseconds from the time when it was due, or from the arrival of the first packet that
    /// overtook it, to its own arrival.
    pub nanos: u64,
}

impl Lateness {
    /// Raises both extents to those of another packet, where these are greater.
    pub(crate) fn widen(&mut self, other: Self) {
        self.packets = self.packets.max(other.packets);
        self.nanos = self.nanos.max(other.nanos);
    }
}

/// Number of packets in a row behind a gap after which its missing packets are lost, not late.
const QUIET_MAX: u32 = 64;

/// Maximum number of gaps that are followed at once.
const GAPS_MAX: usize = 16;

/// A gap in the order of arrival: packets that were skipped.
#[derive(Clone, Debug)]
struct Gap {
    /// Sequence numbers of the packets, and perhaps of others between them.
    between: Range<u64>,
    /// Packets that have not arrived.
    open: u64,
    /// Packets that overtook the gap, except those that opened a later gap.
    ahead: u32,
    /// Packets that overtook the gap since the last packet of the gap arrived.
    quiet: u32,
    /// Packets of the gap that arrived late, and those of them that counted as out of order.
    late: u32,
    counted: u32,
}

/// Gaps in the order of arrival: a packet that overtook many is out of order, and not the many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disorder {
    /// In the order in which they opened.
    gaps: Vec<Gap>,
}

impl Disorder {
    /// Takes a packet ahead of all before it. Of the sequence numbers in `between`, which it
    /// skipped, `missing` have not arrived.
    #[inline]
    pub(crate) fn advance(&mut self, between: Range<u64>, missing: u64) {
        if missing == 0 {
            if !self.gaps.is_empty() {
                self.pass(between.start);
            }
            return;
        }
        if self.gaps.len() >= GAPS_MAX {
            self.gaps.remove(0);
        }
        let gap = Gap { between, open: missing, ahead: 1, quiet: 1, late: 0, counted: 0 };
        self.gaps.push(gap);
    }

    /// Takes a packet that others overtook. Returns whether it counts as out of order: not if those
    /// that overtook are fewer, and are counted by now.
    pub(crate) fn fall_behind(&mut self, sequence: u64) -> bool {
        let Some(at) = self.gaps.iter().rposition(|gap| gap.between.contains(&sequence)) else {
            return true;
        };
        let gap = &mut self.gaps[at];
        (gap.late, gap.quiet) = (gap.late + 1, 0);
        let is_out_of_order = gap.counted < gap.late.min(gap.ahead);
        gap.counted += u32::from(is_out_of_order);
        gap.open -= 1;
        if gap.open == 0 {
            self.gaps.remove(at);
        }
        self.pass(sequence);
        is_out_of_order
    }

    /// Counts a packet for the gaps before it.
    fn pass(&mut self, sequence: u64) {
        self.gaps.retain_mut(|gap| {
            if gap.between.end <= sequence {
                (gap.ahead, gap.quiet) = (gap.ahead + 1, gap.quiet + 1);
            }
            gap.quiet < QUIET_MAX
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of packets out of order, of those that arrive with these sequence numbers.
    fn count(arrivals: &[u64]) -> usize {
        let (mut disorder, mut next, mut count) = (Disorder::default(), 0, 0);
        for &sequence in arrivals {
            if sequence >= next {
                disorder.advance(next..sequence, sequence - next);
                next = sequence + 1;
            } else {
                count += usize::from(disorder.fall_behind(sequence));
            }
        }
        count
    }

    #[test]
    fn packet_that_is_late_counts_once() {
        assert_eq!(count(&[0, 2, 3, 4, 1, 5]), 1);
    }

    #[test]
    fn packet_that_overtakes_many_counts_once() {
        assert_eq!(count(&[0, 5, 1, 2, 3, 4, 6, 7]), 1);
    }

    #[test]
    fn each_of_several_gaps_counts() {
        assert_eq!(count(&[0, 2, 1, 3, 5, 4, 6, 9, 7, 8, 10]), 3);
    }

    #[test]
    fn packets_that_overtake_while_others_are_late_count() {
        assert_eq!(count(&[0, 9, 1, 2, 3, 14, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15]), 2);
    }

    #[test]
    fn packet_that_overtakes_many_behind_the_gap_of_another_counts_once() {
        let arrivals = [0, 2, 3, 4, 5, 20, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21];
        assert_eq!(count(&arrivals), 1);
    }

    #[test]
    fn gap_of_a_lost_packet_does_not_hide_later_ones() {
        let mut arrivals: Vec<u64> = (0..10).chain(11..200).collect();
        arrivals.extend([205, 200, 201, 202, 203, 204, 206]);
        assert_eq!(count(&arrivals), 1);
    }
}
