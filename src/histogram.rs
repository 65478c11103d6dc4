//! Histogram of times, in ranges that grow with them.

use core::time::Duration;

/// Counts of times by range, in bounded memory: exact count, sum, minimum and maximum, and
/// percentiles to within the width of a range.
///
/// A range is told from the next by the highest bit of a time in nanoseconds and the few bits below
/// it, its *precision*: with a precision of 4 bits a range is a sixteenth of its times wide, or
/// less.
///
/// ```
/// use std::time::Duration;
/// use roce::histogram::Histogram;
///
/// let mut times = Histogram::default();
/// for us in 1..=100 {
///     times.add(Duration::from_micros(us));
/// }
/// let median = times.percentile(50.0).unwrap();
/// assert!((50..=54).contains(&median.as_micros()));
/// assert_eq!(times.percentile(100.0), Some(Duration::from_micros(100)));
/// ```
#[derive(Clone, Debug)]
pub struct Histogram {
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
    /// Bits below the highest one that tell ranges apart.
    precision: u8,
    /// Maximum number of entries of `counted`.
    ranges_max: u16,
    /// Index of the range that the last time fell into.
    latest: u16,
    /// The ranges that are not empty, in order.
    counted: Vec<Counted>,
}

impl PartialEq for Histogram {
    /// Whether both counted the same, whichever time was the last.
    fn eq(&self, other: &Self) -> bool {
        let numbers = |it: &Self| (it.count, it.sum, it.min, it.max, it.precision, it.ranges_max);
        numbers(self) == numbers(other) && self.counted == other.counted
    }
}

impl Eq for Histogram {}

/// A range with its count: the number of the range in the upper 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted(u64);

impl Counted {
    const COUNT_BITS: u32 = 48;
    const COUNT_MAX: u64 = (1 << Self::COUNT_BITS) - 1;

    fn new(range: u16, count: u64) -> Self {
        Self(u64::from(range) << Self::COUNT_BITS | count.min(Self::COUNT_MAX))
    }

    fn range(self) -> u16 {
        u16::try_from(self.0 >> Self::COUNT_BITS).unwrap_or(u16::MAX)
    }

    fn count(self) -> u64 {
        self.0 & Self::COUNT_MAX
    }

    fn add(&mut self, count: u64) {
        *self = Self::new(self.range(), self.count().saturating_add(count));
    }
}

/// A range of times, and how many of them were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Number of the range, in histograms of this precision.
    pub range: u16,
    /// First time of the range.
    pub start: Duration,
    /// First time beyond the range.
    pub end: Duration,
    /// Number of times that were counted.
    pub count: u64,
}

impl Default for Histogram {
    /// Creates an empty histogram with a precision of 4 bits.
    fn default() -> Self {
        Self::with_precision(4)
    }
}

impl Histogram {
    /// Maximum number of bits of a histogram's precision.
    pub const PRECISION_MAX: u8 = 8;

    /// Creates an empty histogram; `bits` above [`PRECISION_MAX`](Self::PRECISION_MAX) count as
    /// that.
    pub const fn with_precision(bits: u8) -> Self {
        let precision = if bits < Self::PRECISION_MAX { bits } else { Self::PRECISION_MAX };
        let (count, sum, min, max, latest) = (0, 0, 0, 0, 0);
        Self { count, sum, min, max, precision, ranges_max: u16::MAX, latest, counted: Vec::new() }
    }

    /// Halves the precision whenever more than `max` ranges are not empty.
    pub const fn with_ranges_max(mut self, max: u16) -> Self {
        self.ranges_max = max;
        self
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, time: Duration) {
        let nanos = nanos(time);
        self.min = if self.count == 0 { nanos } else { self.min.min(nanos) };
        self.max = self.max.max(nanos);
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
        self.add_to_range(range_of(nanos, self.precision), 1);
    }

    /// Counts `count` times of a range: what [`buckets`](Self::buckets) of another histogram of
    /// this precision returned. Returns whether there is such a range.
    pub fn add_counted(&mut self, range: u16, count: u64) -> bool {
        if range > range_of(u64::MAX, self.precision) || count > Counted::COUNT_MAX {
            return false;
        }
        let (from, to) = (start_of(range, self.precision), last_of(range, self.precision));
        self.min = if self.count == 0 { from } else { self.min.min(from) };
        self.max = self.max.max(to);
        let middle = from + (to - from) / 2;
        self.count = self.count.saturating_add(count);
        self.sum = self.sum.saturating_add(middle.saturating_mul(count));
        self.add_to_range(range, count);
        true
    }

    /// Adds all that another histogram counted.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        for counted in &other.counted {
            let last = last_of(counted.range(), other.precision);
            self.add_to_range(range_of(last, self.precision), counted.count());
        }
    }

    fn add_to_range(&mut self, range: u16, count: u64) {
        // Mostly it is the range of the last time, or the next one.
        for at in [self.latest, self.latest.saturating_add(1)] {
            let known = self.counted.get_mut(usize::from(at));
            if let Some(counted) = known.filter(|counted| counted.range() == range) {
                self.latest = at;
                return counted.add(count);
            }
        }
        let first = Counted::new(range, 0);
        let at = self.counted.partition_point(|counted| counted.0 < first.0);
        self.latest = u16::try_from(at).unwrap_or(0);
        match self.counted.get_mut(at).filter(|counted| counted.range() == range) {
            Some(counted) => return counted.add(count),
            None => self.counted.insert(at, Counted::new(range, count)),
        }
        if self.counted.len() > usize::from(self.ranges_max) && self.precision > 0 {
            self.coarsen();
        }
    }

    /// Merges ranges, so that they are half as many at the most.
    #[cold]
    fn coarsen(&mut self) {
        let (old, precision) = (self.precision, self.precision - 1);
        for fine in core::mem::take(&mut self.counted) {
            let range = range_of(last_of(fine.range(), old), precision);
            match self.counted.last_mut() {
                Some(last) if last.range() == range => last.add(fine.count()),
                _ => self.counted.push(Counted::new(range, fine.count())),
            }
        }
        (self.precision, self.latest) = (precision, 0);
    }

    /// Returns the number of times that were counted.
    pub const fn count(&self) -> u64 {
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
    pub const fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the mean.
    pub fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count).map(Duration::from_nanos)
    }

    /// Returns the time that `percent` of all times do not exceed, at most the width of a range
    /// above the true one.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        if self.count == 0 {
            return None;
        }
        // In thousandths of a percent, because 0.07 * 100.0 is more than 7.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 100,000"
        )]
        let share = (percent.clamp(0.0, 100.0) * 1000.0).round() as u128;
        let rank = (u128::from(self.count) * share).div_ceil(100_000).max(1);
        let mut seen = 0;
        for counted in &self.counted {
            seen += u128::from(counted.count());
            if seen >= rank {
                let last = last_of(counted.range(), self.precision);
                return Some(Duration::from_nanos(last.clamp(self.min, self.max)));
            }
        }
        self.max()
    }

    /// Returns the median.
    pub fn median(&self) -> Option<Duration> {
        self.percentile(50.0)
    }

    /// Returns the ranges that are not empty, shortest time first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.counted.iter().map(|counted| {
            let (range, count) = (counted.range(), counted.count());
            let start = Duration::from_nanos(start_of(range, self.precision));
            let last = Duration::from_nanos(last_of(range, self.precision));
            Bucket { range, start, end: last + Duration::from_nanos(1), count }
        })
    }
}

/// Returns a time in nanoseconds; one of centuries is the longest.
#[inline]
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the range of a time: small times have one each, others share one with those that have
/// the same highest bits.
#[inline]
fn range_of(nanos: u64, precision: u8) -> u16 {
    let precision = u32::from(precision);
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(precision + 1);
    // At most 63 shifts and a mantissa of nine bits.
    u16::try_from((u64::from(shift) << precision) + (nanos >> shift)).unwrap_or(u16::MAX)
}

/// Returns the first time of a range.
fn start_of(range: u16, precision: u8) -> u64 {
    range.checked_sub(1).map_or(0, |before| last_of(before, precision).saturating_add(1))
}

/// Returns the last time of a range.
fn last_of(range: u16, precision: u8) -> u64 {
    let shift = (range >> precision).saturating_sub(1);
    let mantissa = u128::from(range - (shift << precision));
    ((mantissa + 1) << shift).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_range() {
        for precision in 0..=Histogram::PRECISION_MAX {
            let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
            for nanos in powers.chain(0..5000).chain([u64::MAX - 1, u64::MAX, 123_456_789]) {
                let range = range_of(nanos, precision);
                let (start, last) = (start_of(range, precision), last_of(range, precision));
                assert!(start <= nanos && nanos <= last, "{nanos} in {start}..={last}");
                assert!(last - start <= nanos >> precision, "{nanos} in {start}..={last}");
            }
        }
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
    fn rank_of_a_percentile_is_exact() {
        let mut histogram = Histogram::with_precision(8);
        (1..=100).for_each(|nanos| histogram.add(Duration::from_nanos(nanos)));
        for percent in 1..=100 {
            let exact = Some(Duration::from_nanos(percent));
            assert_eq!(histogram.percentile(percent as f64), exact);
        }
    }

    #[test]
    fn bounded_histogram_stays_small_and_keeps_its_percentiles() {
        let mut histogram = Histogram::with_precision(5).with_ranges_max(512);
        let times = (0..60_000u64).map(|i| (i * i + 1) << (i % 20));
        times.clone().for_each(|nanos| histogram.add(Duration::from_nanos(nanos)));
        assert!(histogram.counted.len() <= 512 && histogram.precision < 5);
        let mut sorted: Vec<u64> = times.collect();
        sorted.sort_unstable();
        for (percent, exact) in [(50.0, sorted[29_999]), (99.0, sorted[59_399])] {
            let told = nanos(histogram.percentile(percent).unwrap());
            assert!(told >= exact && told - exact <= exact / 4, "{told} for {exact}");
        }
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
        a.buckets().for_each(|it| assert!(copy.add_counted(it.range, it.count)));
        assert_eq!(copy.buckets().collect::<Vec<_>>(), a.buckets().collect::<Vec<_>>());
        let last = range_of(u64::MAX, 4);
        assert!(copy.add_counted(last, 1) && !copy.add_counted(last + 1, 1));
        assert!(!copy.add_counted(0, u64::MAX));
    }

    #[test]
    fn buckets_meet_and_hold_every_time() {
        let mut histogram = Histogram::with_precision(3);
        (0..100_000).for_each(|nanos| histogram.add(Duration::from_nanos(nanos)));
        let buckets: Vec<Bucket> = histogram.buckets().collect();
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 100_000);
        assert!(buckets.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
}
