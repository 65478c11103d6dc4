//! A type for every number that has a meaning in verbs and none on the wire.
//!
//! Those that are on the wire (`Psn`, `Qpn`, `PKey`, `QKey`, `RKey`, `Gid`, `XrcSrqn`, `RnrTimer`)
//! are in [`wire`](crate::wire).

use core::fmt;
use core::time::Duration;

use crate::wire::Bits;

/// Identifier of a work request and of its completion, chosen by the program. It means nothing to
/// the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WrId(pub u64);

impl fmt::Display for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A local key: what a program shows its own device to have it reach registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct LKey(u32);

impl LKey {
    /// The key `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The key as an integer.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for LKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The number of a port of a device. The first one is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNum(pub u8);

impl PortNum {
    /// The first port, and of most devices the only one.
    pub const FIRST: Self = Self(1);
}

impl Default for PortNum {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Retransmission timeout of a requester: a code of five bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AckTimeout(pub Bits<5>);

impl AckTimeout {
    /// No timeout: waits for ever.
    pub const NEVER: Self = Self(Bits::low(0));

    /// The timeout with this code, or `None` if it needs more than five bits.
    pub const fn from_code(code: u32) -> Option<Self> {
        match Bits::new(code) {
            Some(code) => Some(Self(code)),
            None => None,
        }
    }

    /// 4.096 µs × 2^code, or `None` if it waits for ever.
    pub const fn duration(self) -> Option<Duration> {
        // Rules: P-07.1, T-56.
        match self.0.get() {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(duration) => write!(f, "{duration:?}"),
            None => f.write_str("never"),
        }
    }
}

/// Maximum number of retransmissions without progress: three bits, all of them counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RetryCount(pub Bits<3>);

impl RetryCount {
    /// Maximum number of retries.
    pub const MAX: Self = Self(Bits::MAX);

    /// The count `count`, or `None` if it needs more than three bits.
    pub const fn from_code(count: u32) -> Option<Self> {
        match Bits::new(count) {
            Some(count) => Some(Self(count)),
            None => None,
        }
    }

    /// Returns the number of retries.
    #[expect(clippy::cast_possible_truncation, reason = "three bits fit a byte")]
    pub const fn limit(self) -> u8 {
        // Rules: Q-02, T-56.
        self.0.get() as u8
    }
}

impl fmt::Display for RetryCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Maximum number of retries after RNR NAKs: three bits, of which 7 sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RnrRetry(pub Bits<3>);

impl RnrRetry {
    /// Retries without limit.
    pub const INFINITE: Self = Self(Bits::MAX);

    /// The count with this code, or `None` if it needs more than three bits.
    pub const fn from_code(code: u32) -> Option<Self> {
        match Bits::new(code) {
            Some(code) => Some(Self(code)),
            None => None,
        }
    }

    /// Returns the number of retries, or `None` if there is no limit.
    #[expect(clippy::cast_possible_truncation, reason = "three bits fit a byte")]
    pub const fn limit(self) -> Option<u8> {
        // Rule: P-06.3.
        match self.0.get() {
            7 => None,
            count => Some(count as u8),
        }
    }
}

impl fmt::Display for RnrRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit() {
            Some(limit) => limit.fmt(f),
            None => f.write_str("infinite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_timeout_doubles_with_its_code() {
        let nanos = |code| AckTimeout::from_code(code)?.duration().map(|wait| wait.as_nanos());
        assert_eq!(nanos(0), None);
        assert_eq!(nanos(1), Some(8_192));
        assert_eq!(nanos(14), Some(67_108_864));
        assert_eq!(nanos(31), Some(8_796_093_022_208));
        for code in 1..31 {
            assert_eq!(nanos(code + 1).unwrap(), 2 * nanos(code).unwrap());
        }
        assert_eq!(AckTimeout::from_code(32), None);
        assert_eq!(AckTimeout::NEVER.to_string(), "never");
        assert_eq!(AckTimeout::from_code(14).unwrap().to_string(), "67.108864ms");
    }

    #[test]
    fn seven_is_a_count_of_retries_but_no_limit_for_a_receiver_that_is_not_ready() {
        for count in 0..7 {
            assert_eq!(u32::from(RetryCount::from_code(count).unwrap().limit()), count);
            assert_eq!(RnrRetry::from_code(count).unwrap().limit().map(u32::from), Some(count));
        }
        assert_eq!(RetryCount::MAX.limit(), 7);
        assert_eq!(RnrRetry::INFINITE.limit(), None);
        assert_eq!(RnrRetry::from_code(7), Some(RnrRetry::INFINITE));
        assert_eq!((RetryCount::from_code(8), RnrRetry::from_code(8)), (None, None));
        assert_eq!(RnrRetry::INFINITE.to_string(), "infinite");
    }
}
