//! Order of arrival at one point: the fewest packets that explain it are out of order.

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

/// Packets in order after which a gap is a loss, and what comes behind it is not ahead of it.
const QUIET_MAX: u32 = 64;

/// Packets that came since a gap opened: one that overtook many is out of order, and not the many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disorder {
    /// Packets of gaps that have not come.
    open: u64,
    /// Packets that came behind the first gap.
    ahead: u64,
    /// Packets that came late, and those of them that counted as out of order.
    late: u64,
    counted: u64,
    /// Packets in order since the last that was not.
    quiet: u32,
}

impl Disorder {
    /// Takes a packet behind all that came, and the number of those between that have not.
    pub(crate) fn advance(&mut self, skipped: u64) {
        self.quiet = if skipped > 0 { 0 } else { self.quiet + 1 };
        self.open += skipped;
        if self.open == 0 || self.quiet >= QUIET_MAX {
            *self = Self::default();
        } else {
            self.ahead += 1;
        }
    }

    /// Takes a packet that others overtook. Returns whether it counts as out of order: not if those
    /// that overtook are fewer, and are counted by now.
    pub(crate) fn fall_behind(&mut self) -> bool {
        self.late += 1;
        let is_out_of_order = self.counted < self.late.min(self.ahead.max(1));
        self.counted += u64::from(is_out_of_order);
        (self.open, self.quiet) = (self.open.saturating_sub(1), 0);
        if self.open == 0 {
            *self = Self::default();
        }
        is_out_of_order
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
                disorder.advance(sequence - next);
                next = sequence + 1;
            } else {
                count += usize::from(disorder.fall_behind());
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
    fn gap_of_a_lost_packet_does_not_hide_later_ones() {
        let mut arrivals: Vec<u64> = (0..10).chain(11..200).collect();
        arrivals.extend([205, 200, 201, 202, 203, 204, 206]);
        assert_eq!(count(&arrivals), 1);
    }
}
