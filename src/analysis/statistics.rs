//! Distributions in bounded memory.

use core::time::Duration;

use serde::Serialize;

use super::limits::DISTRIBUTION_BUCKETS_MAX;
use crate::histogram::Histogram;
use crate::time::nanos;

/// A distribution of nanoseconds, or of another quantity in whole numbers: a histogram with
/// percentiles to within 1/32 of their value, or less precise where the values spread over more
/// than [`DISTRIBUTION_BUCKETS_MAX`](super::limits::DISTRIBUTION_BUCKETS_MAX) buckets.
#[derive(Clone, Debug, Serialize)]
#[serde(into = "Percentiles")]
pub struct Distribution(Histogram);

impl Default for Distribution {
    fn default() -> Self {
        Self(Histogram::with_precision(PRECISION_BITS).with_ranges_max(DISTRIBUTION_BUCKETS_MAX))
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
        self.0.add(Duration::from_nanos(nanos));
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0);
    }

    /// Returns the number of values.
    pub const fn count(&self) -> u64 {
        self.0.count()
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> u64 {
        nanos(self.0.sum())
    }

    /// Returns the summary.
    pub fn percentiles(&self) -> Percentiles {
        let of = |time: Option<Duration>| nanos(time.unwrap_or_default());
        Percentiles {
            count: self.0.count(),
            min: of(self.0.min()),
            p50: of(self.0.median()),
            p99: of(self.0.percentile(99.0)),
            max: of(self.0.max()),
        }
    }
}

/// The bits below the highest one that tell buckets apart, at first.
const PRECISION_BITS: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_close_to_the_exact_ones() {
        let mut distribution = Distribution::default();
        assert_eq!(distribution.percentiles(), Percentiles::default());
        (1..=10_000u64).rev().for_each(|value| distribution.add(value * 1000));
        let said = distribution.percentiles();
        assert_eq!((said.count, said.min, said.max), (10_000, 1000, 10_000_000));
        assert!((5_000_000..5_160_000).contains(&said.p50), "{said:?}");
        assert!((9_900_000..10_000_001).contains(&said.p99), "{said:?}");
    }
}
