//! Distributions in bounded memory.

use serde::Serialize;

use super::limits::DISTRIBUTION_BUCKETS_MAX;

/// A distribution of nanoseconds: exact count, least and greatest, and percentiles to within 1/32
/// of their value, or less precise where the values spread over more than
/// [`DISTRIBUTION_BUCKETS_MAX`](super::limits::DISTRIBUTION_BUCKETS_MAX) buckets.
#[derive(Clone, Debug, Serialize)]
#[serde(into = "Percentiles")]
pub struct Distribution {
    count: u64,
    min: u64,
    max: u64,
    sum: u64,
    /// Number of bits below the highest one that tell buckets apart.
    precision: u8,
    /// The bucket that the last value fell into.
    latest: u16,
    /// The buckets that are not empty, in order: number and count.
    buckets: Vec<(u16, u32)>,
}

impl Default for Distribution {
    fn default() -> Self {
        let (precision, buckets) = (PRECISION_BITS, Vec::new());
        Self { count: 0, min: 0, max: 0, sum: 0, precision, latest: 0, buckets }
    }
}

/// Summary of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The greatest.
    pub max: u64,
}

impl From<Distribution> for Percentiles {
    fn from(distribution: Distribution) -> Self {
        distribution.percentiles()
    }
}

impl Distribution {
    /// Adds a value.
    pub fn add(&mut self, nanos: u64) {
        self.min = if self.count == 0 { nanos } else { self.min.min(nanos) };
        self.max = self.max.max(nanos);
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
        self.add_to_bucket(bucket_of(nanos, self.precision), 1);
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        for &(bucket, count) in &other.buckets {
            let value = upper_bound(bucket, other.precision);
            self.add_to_bucket(bucket_of(value, self.precision), count);
        }
    }

    fn add_to_bucket(&mut self, bucket: u16, count: u32) {
        if let Some((number, sum)) = self.buckets.get_mut(usize::from(self.latest))
            && *number == bucket
        {
            *sum = sum.saturating_add(count);
            return;
        }
        let at = match self.buckets.binary_search_by_key(&bucket, |&(number, _)| number) {
            Ok(at) => {
                if let Some((_, sum)) = self.buckets.get_mut(at) {
                    *sum = sum.saturating_add(count);
                }
                at
            }
            Err(at) => {
                self.buckets.insert(at, (bucket, count));
                at
            }
        };
        self.latest = u16::try_from(at).unwrap_or(0);
        if self.buckets.len() > DISTRIBUTION_BUCKETS_MAX && self.precision > 0 {
            self.coarsen();
        }
    }

    /// Merges buckets, so that they are half as many at the most.
    fn coarsen(&mut self) {
        let (old, precision) = (self.precision, self.precision - 1);
        let fine = core::mem::take(&mut self.buckets);
        for (bucket, count) in fine {
            let bucket = bucket_of(upper_bound(bucket, old), precision);
            match self.buckets.last_mut() {
                Some((last, sum)) if *last == bucket => *sum = sum.saturating_add(count),
                _ => self.buckets.push((bucket, count)),
            }
        }
        (self.precision, self.latest) = (precision, 0);
    }

    /// Returns the number of values.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all values.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the summary.
    pub fn percentiles(&self) -> Percentiles {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        Percentiles { count: self.count, min: self.min, p50, p99, max: self.max }
    }

    /// The least value that at least `percent` of all values do not exceed, to within the width of
    /// a bucket.
    fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for &(bucket, count) in &self.buckets {
            seen += u64::from(count);
            if seen >= rank {
                return upper_bound(bucket, self.precision).clamp(self.min, self.max);
            }
        }
        self.max
    }
}

/// The bits below the highest one that tell buckets apart, at first.
const PRECISION_BITS: u8 = 5;

/// The bucket of a value: small values have one each, others share one with those that have the
/// same highest bits.
fn bucket_of(value: u64, precision: u8) -> u16 {
    let precision = u32::from(precision);
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(precision + 1);
    // At most 63 shifts and a mantissa of six bits.
    u16::try_from((u64::from(shift) << precision) + (value >> shift)).unwrap_or(u16::MAX)
}

/// The greatest value of a bucket.
fn upper_bound(bucket: u16, precision: u8) -> u64 {
    let shift = (bucket >> precision).saturating_sub(1);
    let mantissa = u128::from(bucket - (shift << precision));
    ((mantissa + 1) << shift).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for precision in 0..=PRECISION_BITS {
            let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
            for value in powers.chain([u64::MAX, 1000, 123_456_789]) {
                let bucket = bucket_of(value, precision);
                let upper = upper_bound(bucket, precision);
                let width = value >> precision;
                assert!(value <= upper && upper - value <= width, "{value} in {upper}");
                assert!(bucket == 0 || upper_bound(bucket - 1, precision) < value, "{value}");
            }
        }
    }

    #[test]
    fn wide_distributions_stay_small_and_keep_their_percentiles() {
        let mut distribution = Distribution::default();
        let values = (0..60_000u64).map(|i| (i * i + 1) << (i % 20));
        values.clone().for_each(|value| distribution.add(value));
        assert!(distribution.buckets.len() <= DISTRIBUTION_BUCKETS_MAX);
        let mut sorted: Vec<u64> = values.collect();
        sorted.sort_unstable();
        let said = distribution.percentiles();
        for (exact, said) in [(sorted[29_999], said.p50), (sorted[59_399], said.p99)] {
            assert!(said >= exact && said - exact <= exact / 4, "{said} for {exact}");
        }
    }

    #[test]
    fn percentiles_are_close_to_the_exact_ones() {
        let mut distribution = Distribution::default();
        (1..=10_000u64).rev().for_each(|value| distribution.add(value * 1000));
        let said = distribution.percentiles();
        assert_eq!((said.count, said.min, said.max), (10_000, 1000, 10_000_000));
        assert!((5_000_000..5_160_000).contains(&said.p50), "{said:?}");
        assert!((9_900_000..10_000_001).contains(&said.p99), "{said:?}");
    }
}
