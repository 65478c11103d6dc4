//! The only time this crate knows: nanoseconds, told from outside.
//!
//! Nothing in `wire`, `capture` or `engine` reads a clock. A capture's time stamps, a simulation's
//! virtual time and a live NIC's monotonic clock are all [`Instant`]s; what zero means is up to the
//! caller that tells the time. In a capture it is the Unix epoch.

use core::fmt;
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the teller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The instant `ns` nanoseconds after the origin.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the origin.
    #[inline]
    pub const fn secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Nanoseconds within the second.
    #[inline]
    pub const fn subsec_nanos(self) -> u64 {
        self.0 % 1_000_000_000
    }

    /// Nanoseconds from `earlier` to `self`, negative when the clock went backwards in between.
    pub fn nanos_since(self, earlier: Self) -> i128 {
        i128::from(self.0) - i128::from(earlier.0)
    }

    /// Returns the time since `earlier`; zero if that is later.
    #[must_use]
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` plus `duration`, or the last instant there is.
    #[inline]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// `self` less `duration`, or the origin.
    #[inline]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

/// Nanoseconds of a duration, at most `u64::MAX`.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Instant {
    /// Seconds with nine decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.secs(), self.subsec_nanos())
    }
}
