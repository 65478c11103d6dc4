//! Time stamps of a pcapng interface as nanoseconds, exactly.

use super::pcapng::{OPTION_END, OPTION_TSOFFSET, OPTION_TSRESOL};
use super::write::{WriteError, push_option};
use crate::time::Instant;

/// Clock of an interface: the length of one tick, and the second its count starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    tick: Tick,
    /// Option `if_tsresol` from which it was made.
    tsresol: u8,
    /// `if_tsoffset`: seconds to add to every time stamp.
    offset: i64,
}

impl Clock {
    /// Microseconds since the epoch: what an interface that says nothing about its clock has.
    pub(super) const MICROSECONDS: Self =
        Self { tick: Tick::Nanoseconds(1000), tsresol: 6, offset: 0 };

    /// Returns the clock with the tick of an `if_tsresol` option: the high bit chooses between
    /// powers of 2 and of 10, the rest is the negated exponent. No value is invalid.
    pub(super) fn with_resolution(self, tsresol: u8) -> Self {
        let exponent = u32::from(tsresol & 0x7f);
        let tick = if tsresol & 0x80 != 0 {
            Tick::Binary(exponent)
        } else if let Some(fewer) = 9_u32.checked_sub(exponent) {
            Tick::Nanoseconds(10_u64.pow(fewer))
        } else {
            10_u64.checked_pow(exponent - 9).map_or(Tick::Negligible, Tick::PerNanosecond)
        };
        Self { tick, tsresol, ..self }
    }

    /// Returns the clock counted from `seconds` after the epoch (`if_tsoffset`).
    pub(super) fn with_offset(self, seconds: i64) -> Self {
        Self { offset: seconds, ..self }
    }

    /// Appends the options that describe it, for an interface whose own were not kept.
    pub(super) fn push_options(self, out: &mut Vec<u8>) -> Result<(), WriteError> {
        push_option(out, OPTION_TSRESOL, &[self.tsresol])?;
        push_option(out, OPTION_TSOFFSET, &self.offset.to_le_bytes())?;
        push_option(out, OPTION_END, &[])
    }

    /// The instant of a time stamp: whole nanoseconds, rounded towards the past, and held within
    /// what an [`Instant`] can say.
    #[inline]
    pub(super) fn instant(self, ticks: u64) -> Instant {
        // At most 2⁶⁴ · 10⁹ < 2⁹⁴: nothing below overflows, and i128 holds it.
        let since_start = match self.tick {
            Tick::Nanoseconds(length) => u128::from(ticks) * u128::from(length),
            Tick::PerNanosecond(count) => u128::from(ticks / count),
            Tick::Negligible => 0,
            Tick::Binary(exponent) => (u128::from(ticks) * NANOSECONDS) >> exponent,
        };
        let nanos = if self.offset == 0 {
            u64::try_from(since_start).unwrap_or(u64::MAX)
        } else {
            let start = i128::from(self.offset) * NANOSECONDS.cast_signed();
            let nanos = start + since_start.cast_signed();
            u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
        };
        Instant::from_nanos(nanos)
    }
}

/// The length of one tick, in the form that needs no fractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tick {
    /// Nanoseconds of one tick.
    Nanoseconds(u64),
    /// Ticks of one nanosecond.
    PerNanosecond(u64),
    /// A tick so short that no time stamp reaches a nanosecond.
    Negligible,
    /// 2 to the minus this many seconds; below 128.
    Binary(u32),
}

const NANOSECONDS: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(tsresol: u8, offset: i64, ticks: u64) -> u64 {
        Clock::MICROSECONDS.with_resolution(tsresol).with_offset(offset).instant(ticks).as_nanos()
    }

    #[test]
    fn powers_of_ten() {
        assert_eq!(nanos(0, 0, 7), 7_000_000_000);
        assert_eq!(nanos(3, 0, 7), 7_000_000);
        assert_eq!(nanos(6, 0, 7), 7_000);
        assert_eq!(nanos(9, 0, u64::MAX), u64::MAX);
        assert_eq!(nanos(12, 0, 1_999), 1);
        assert_eq!(nanos(28, 0, u64::MAX), 1);
        assert_eq!(nanos(29, 0, u64::MAX), 0);
        assert_eq!(nanos(127, 0, u64::MAX), 0);
    }

    #[test]
    fn powers_of_two() {
        assert_eq!(nanos(0x80, 0, 7), 7_000_000_000);
        // 1 / 2²⁰ s = 953.67… ns; a float would already round 2⁵³ + 1 ticks away.
        assert_eq!(nanos(0x80 | 20, 0, 1), 953);
        assert_eq!(nanos(0x80 | 20, 0, (1 << 20) + 1), 1_000_000_953);
        assert_eq!(nanos(0x80 | 32, 0, u64::MAX), 4_294_967_295_999_999_999);
        assert_eq!(nanos(0x80 | 127, 0, u64::MAX), 0);
    }

    #[test]
    fn offsets_and_saturation() {
        assert_eq!(nanos(9, 3, 5), 3_000_000_005);
        assert_eq!(nanos(9, -3, 3_000_000_005), 5);
        assert_eq!(nanos(9, -3, 5), 0);
        assert_eq!(nanos(0, i64::MIN, u64::MAX), u64::MAX);
        assert_eq!(nanos(9, i64::MAX, 0), u64::MAX);
        assert_eq!(nanos(9, i64::MIN, u64::MAX), 0);
        assert_eq!(nanos(0, 0, u64::MAX), u64::MAX);
    }

    /// Every resolution against fractions of big integers, worked out another way.
    #[test]
    fn exact_for_every_resolution() {
        for tsresol in 0..=255_u8 {
            for ticks in [0, 1, 999, 1_000_000_007, 1_794_701_211_597_306, u64::MAX] {
                let exponent = u32::from(tsresol & 0x7f);
                let base = if tsresol & 0x80 != 0 { 2 } else { 10 };
                // Divide digit by digit: floor(ticks · 10⁹ / base^exponent).
                let mut expected = u128::from(ticks) * 1_000_000_000;
                for _ in 0..exponent {
                    expected /= base;
                }
                let expected = u64::try_from(expected).unwrap_or(u64::MAX);
                assert_eq!(nanos(tsresol, 0, ticks), expected, "tsresol {tsresol}, {ticks}");
            }
        }
    }
}
