//! Histogram of times, in ranges that grow with them.

use core::time::Duration;

/// Ranges for every doubling of the time: each is a sixteenth of it wide.
const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;
const SUB_RANGES: usize = 1 << SUB_BITS;

/// Times of 2^36 nanoseconds, more than a minute, and above are counted in the last range.
const OCTAVES: u32 = 36;

/// Number of ranges.
pub const RANGES: usize = SUB_RANGES * (OCTAVES - SUB_BITS + 1) as usize;

/// Counts of times by range, in constant memory.
///
/// ```
/// use std::time::Duration;
/// use roce::ping::Histogram;
///
/// let mut times = Histogram::default();
/// for us in 1..=100 {
///     times.add(Duration::from_micros(us));
/// }
/// let median = times.percentile(50.0).unwrap();
/// assert!((50..=54).contains(&median.as_micros()));
/// assert_eq!(times.percentile(100.0), Some(Duration::from_micros(100)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts up to the last range that was needed.
    counts: Vec<u32>,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.add_range(range_of(nanos), 1);
        self.min = if self.count == 1 { nanos } else { self.min.min(nanos) };
        self.max = self.max.max(nanos);
        self.sum = self.sum.saturating_add(nanos);
    }

    /// Counts `count` times of a range: what [`ranges`](Self::ranges) of another one returned.
    /// Returns whether there is such a range.
    pub fn add_counted(&mut self, range: usize, count: u32) -> bool {
        if range >= RANGES {
            return false;
        }
        let (from, to) = (start_of(range), start_of(range + 1) - 1);
        self.min = if self.count == 0 { from } else { self.min.min(from) };
        self.max = self.max.max(to);
        let middle = from + (to - from) / 2;
        self.sum = self.sum.saturating_add(middle.saturating_mul(count.into()));
        self.add_range(range, count);
        true
    }

    fn add_range(&mut self, range: usize, count: u32) {
        if self.counts.len() <= range {
            self.counts.resize(range + 1, 0);
        }
        if let Some(counted) = self.counts.get_mut(range) {
            *counted = counted.saturating_add(count);
        }
        self.count = self.count.saturating_add(count.into());
    }

    /// Adds all that another one counted.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
        for (range, count) in other.ranges() {
            self.add_range(range, count);
        }
    }

    /// Returns how many times were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the shortest time.
    pub fn min(&self) -> Option<Duration> {
        (self.count > 0).then_some(Duration::from_nanos(self.min))
    }

    /// Returns the longest time.
    pub fn max(&self) -> Option<Duration> {
        (self.count > 0).then_some(Duration::from_nanos(self.max))
    }

    /// Returns the sum of all times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the mean.
    pub fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count).map(Duration::from_nanos)
    }

    /// Returns the time that `percent` of all times do not exceed, at most a sixteenth above the
    /// true one.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        if self.count == 0 {
            return None;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count is a count"
        )]
        let rank = ((percent / 100.0 * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for (range, count) in self.ranges() {
            seen += u64::from(count);
            if seen >= rank {
                let upper = start_of(range + 1) - 1;
                return Some(Duration::from_nanos(upper.clamp(self.min, self.max)));
            }
        }
        self.max()
    }

    /// Returns the median.
    pub fn median(&self) -> Option<Duration> {
        self.percentile(50.0)
    }

    /// Returns the ranges that are not empty with their counts, shortest time first.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// Returns the shortest time that is beyond a range.
    pub fn end_of(range: usize) -> Duration {
        Duration::from_nanos(start_of(range.min(RANGES) + 1))
    }
}

/// Returns the range of a time: its highest bit, and the bits below.
fn range_of(nanos: u64) -> usize {
    if nanos < SUB {
        return usize::try_from(nanos).unwrap_or(0);
    }
    let octave = nanos.ilog2() - SUB_BITS;
    let range = u64::from(octave) * SUB + (nanos >> octave);
    usize::try_from(range).map_or(RANGES - 1, |range| range.min(RANGES - 1))
}

/// Returns the first time of a range.
fn start_of(range: usize) -> u64 {
    let range = range as u64;
    if range < SUB {
        return range;
    }
    (range % SUB + SUB) << (range / SUB - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_hold_the_times_between_their_ends() {
        for nanos in (0..5000).chain([1 << 20, (1 << 30) - 1, (1 << OCTAVES) - 1]) {
            let range = range_of(nanos);
            assert!(range < RANGES, "{nanos}");
            assert!(start_of(range) <= nanos && nanos < start_of(range + 1), "{nanos}");
        }
        assert_eq!(range_of((1 << OCTAVES) - 1), RANGES - 1);
        assert_eq!(range_of(u64::MAX), RANGES - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.median(), histogram.mean(), histogram.min()), (None, None, None));
        let mut times: Vec<u64> = (0..1000).map(|n| n * n * 37 % 1_000_000).collect();
        times.iter().for_each(|&nanos| histogram.add(Duration::from_nanos(nanos)));
        times.sort_unstable();
        for (percent, rank) in [(1.0, 10), (50.0, 500), (90.0, 900), (99.0, 990), (100.0, 1000)] {
            let exact = u128::from(times[rank - 1]);
            let told = histogram.percentile(percent).unwrap().as_nanos();
            assert!(told >= exact && told <= exact + exact / 16 + 1, "{percent}: {told} {exact}");
        }
        assert_eq!(histogram.max().unwrap().as_nanos(), u128::from(times[999]));
        assert_eq!(histogram.sum().as_nanos(), u128::from(times.iter().sum::<u64>()));
    }

    #[test]
    fn merging_counts_everything_once() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        a.add(Duration::from_micros(10));
        b.add(Duration::from_micros(1));
        b.add(Duration::from_millis(1));
        a.merge(&b);
        a.merge(&Histogram::default());
        assert_eq!((a.count(), a.sum()), (3, Duration::from_micros(1011)));
        assert_eq!((a.min(), a.max()), (b.min(), b.max()));
        let mut copy = Histogram::default();
        a.ranges().for_each(|(range, count)| assert!(copy.add_counted(range, count)));
        assert_eq!(copy.ranges().collect::<Vec<_>>(), a.ranges().collect::<Vec<_>>());
        assert!(!copy.add_counted(RANGES, 1) && !copy.add_counted(usize::MAX, 1));
    }
}
