//! Histogram of latencies, in ranges that grow with them.

/// Ranges for every doubling of the time: each is an eighth of it wide, or less.
const PER_OCTAVE_BITS: u32 = 3;
const RANGES: usize = (64 << PER_OCTAVE_BITS) as usize;

/// Counts of times, by range.
#[derive(Clone, Debug)]
pub(crate) struct Histogram(Box<[u64; RANGES]>);

impl Default for Histogram {
    fn default() -> Self {
        Self(Box::new([0; RANGES]))
    }
}

/// Number of measurements in a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    /// The first time of the range, in microseconds.
    pub(crate) from: f64,
    /// The first time behind the range.
    pub(crate) to: f64,
    pub(crate) count: u64,
}

impl Histogram {
    #[inline]
    pub(crate) fn add(&mut self, nanos: u64) {
        if let Some(count) = self.0.get_mut(range_of(nanos)) {
            *count += 1;
        }
    }

    /// Returns the ranges that are not empty, shortest time first. A message took `share` of what
    /// was measured.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
    pub(crate) fn buckets(&self, share: f64) -> Vec<Bucket> {
        let us = |range: usize| start_of(range) as f64 * share / 1000.0;
        let filled = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        let bucket = |(range, &count)| Bucket { from: us(range), to: us(range + 1), count };
        filled.map(bucket).collect()
    }
}

/// Returns the range of a time: its highest bit, and the three bits below.
#[inline]
fn range_of(nanos: u64) -> usize {
    let sub = 1 << PER_OCTAVE_BITS;
    if nanos < sub {
        return usize::try_from(nanos).unwrap_or(0);
    }
    let octave = nanos.ilog2() - PER_OCTAVE_BITS;
    let range = u64::from(octave) * sub + (nanos >> octave);
    usize::try_from(range).unwrap_or(RANGES - 1)
}

/// Returns the first time of a range.
fn start_of(range: usize) -> u128 {
    let (range, sub) = (range as u128, 1 << PER_OCTAVE_BITS);
    if range < sub {
        return range;
    }
    let octave = range / sub - 1;
    (range % sub + sub) << octave
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_hold_the_times_between_their_ends() {
        for nanos in (0..5000).chain([1 << 40, (1 << 40) - 1, u64::MAX - 1, u64::MAX]) {
            let range = range_of(nanos);
            assert!(range < RANGES, "{nanos}");
            let nanos = u128::from(nanos);
            assert!(start_of(range) <= nanos && nanos < start_of(range + 1), "{nanos}");
        }
    }

    #[test]
    fn every_time_is_counted_once() {
        let mut histogram = Histogram::default();
        for nanos in 0..100_000 {
            histogram.add(nanos);
        }
        let buckets = histogram.buckets(1.0);
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 100_000);
        assert!(buckets.windows(2).all(|pair| pair[0].to == pair[1].from));
        let half = histogram.buckets(0.5);
        assert_eq!((half[9].from, half[9].count), (buckets[9].from / 2.0, buckets[9].count));
    }
}
