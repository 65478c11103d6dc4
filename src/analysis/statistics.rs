//! Distributions and rates in bounded memory.

use serde::Serialize;

use super::serialize;
use crate::time::Instant;

/// A distribution of nanoseconds: exact count, least and greatest, and percentiles to within 1/32 of their value.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(into = "Percentiles")]
pub struct Distribution {
    count: u64,
    min: u64,
    max: u64,
    /// Values by their highest bit and the five bits below it; allocated with the first value.
    buckets: Option<Box<[u32]>>,
}

/// What is said of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// How many values.
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
        let buckets = self.buckets.get_or_insert_with(|| vec![0; BUCKETS].into());
        if let Some(bucket) = buckets.get_mut(bucket_of(nanos)) {
            *bucket = bucket.saturating_add(1);
        }
    }

    /// What is said of it.
    pub fn percentiles(&self) -> Percentiles {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        Percentiles { count: self.count, min: self.min, p50, p99, max: self.max }
    }

    /// The least value that at least `percent` of all values do not exceed, to within the width of a bucket.
    fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().flatten().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return upper_bound(index).clamp(self.min, self.max);
            }
        }
        self.max
    }
}

/// The bits below the highest one that tell buckets apart.
const PRECISION_BITS: u32 = 5;

/// Enough buckets for every `u64`.
const BUCKETS: usize = ((64 - PRECISION_BITS as usize) + 1) << PRECISION_BITS;

/// The bucket of a value: small values have one each, others share one with those that have the same highest bits.
fn bucket_of(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(PRECISION_BITS + 1);
    let mantissa = usize::try_from(value >> shift).expect("six bits are left");
    ((shift as usize) << PRECISION_BITS) + mantissa
}

/// The greatest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let shift = (bucket >> PRECISION_BITS).saturating_sub(1);
    let mantissa = (bucket - (shift << PRECISION_BITS)) as u64;
    (((mantissa + 1) as u128) << shift).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

/// Packets and bytes per interval. Intervals double in length when there would be more than
/// [`Series::INTERVALS_MAX`].
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Series {
    /// When the first interval begins.
    #[serde(serialize_with = "serialize::instant_or_null")]
    pub start: Option<Instant>,
    /// How long each is, in nanoseconds.
    pub interval_nanos: u64,
    /// One after the other, without gaps.
    pub intervals: Vec<Interval>,
}

impl Series {
    /// The most intervals.
    pub const INTERVALS_MAX: usize = 512;
}

/// What passed in an interval, by sender (`ends[0]`, `ends[1]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Interval {
    /// Packets.
    pub packets: [u32; 2],
    /// Bytes on the wire.
    pub bytes: [u64; 2],
    /// Of the packets, retransmissions.
    pub retransmissions: [u32; 2],
    /// The worst message latency that ended in it, in nanoseconds.
    pub latency_max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in powers.chain([u64::MAX, 1000, 123_456_789]) {
            let bucket = bucket_of(value);
            assert!(bucket < BUCKETS, "{value}");
            let upper = upper_bound(bucket);
            assert!(value <= upper && upper - value <= value / 32, "{value} in {upper}");
            assert!(bucket == 0 || upper_bound(bucket - 1) < value, "{value}");
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
