//! Order of arrival at one point: the fewest packets that explain it are out of order.

/// Packets that came since a gap opened: one that overtook many is out of order, and not the many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disorder {
    ahead: u64,
    late: u64,
}

impl Disorder {
    /// Takes a packet behind all that came; `is_gap`: some between have not come.
    pub(crate) fn advance(&mut self, is_gap: bool) {
        if is_gap {
            self.ahead += 1;
        } else {
            *self = Self::default();
        }
    }

    /// Takes a packet that others overtook. Returns whether it counts as out of order: not if those
    /// that overtook are fewer, and are counted by now.
    pub(crate) fn fall_behind(&mut self) -> bool {
        self.late += 1;
        self.late <= self.ahead.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of packets out of order, of those that arrive with these sequence numbers.
    fn count(arrivals: &[u64]) -> usize {
        let (mut disorder, mut next, mut missing) = (Disorder::default(), 0, Vec::new());
        let mut count = 0;
        for &sequence in arrivals {
            if sequence >= next {
                missing.extend(next..sequence);
                next = sequence + 1;
                disorder.advance(!missing.is_empty());
            } else {
                missing.retain(|&it| it != sequence);
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
}
