//! Times of day, as tcpdump tells them.

use super::Context;
use super::field::{put, write_seconds};

/// How the time of a frame is told: tcpdump's `-t`, once to five times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeStyle {
    /// The time of day.
    #[default]
    OfDay,
    /// Not at all.
    None,
    /// Seconds since 1970.
    Epoch,
    /// Seconds since the frame before.
    SincePrevious,
    /// The day and the time of day.
    DateAndTime,
    /// Seconds since the first frame.
    SinceFirst,
}

impl TimeStyle {
    /// Appends the time of a frame and a space.
    pub(super) fn write(self, context: &Context<'_>, out: &mut String) {
        let Some(time) = context.time else { return };
        let since = |earlier: Option<crate::time::Instant>| {
            earlier.map_or(0, |earlier| time.nanos_since(earlier))
        };
        match self {
            Self::None => return,
            Self::OfDay => {
                let (_, clock) = split_day(time.secs());
                let (hours, minutes, seconds) = clock;
                let fraction = time.subsec_nanos() / 1000;
                put(out, format_args!("{hours:02}:{minutes:02}:{seconds:02}.{fraction:06}"));
            }
            Self::Epoch => {
                put(out, format_args!("{}.{:06}", time.secs(), time.subsec_nanos() / 1000));
            }
            Self::SincePrevious => write_seconds(since(context.previous_time), out),
            Self::SinceFirst => write_seconds(since(context.first_time), out),
            Self::DateAndTime => write_date_and_time(time, out),
        }
        out.push(' ');
    }
}

/// Appends a time as `2026-11-15 00:06:59.404559`, in UTC.
pub(super) fn write_date_and_time(time: crate::time::Instant, out: &mut String) {
    let (days, (hours, minutes, seconds)) = split_day(time.secs());
    let (year, month, day) = civil_from_days(days);
    let fraction = time.subsec_nanos() / 1000;
    put(out, format_args!("{year:04}-{month:02}-{day:02} "));
    put(out, format_args!("{hours:02}:{minutes:02}:{seconds:02}.{fraction:06}"));
}

/// Seconds since 1970 as days, and hours, minutes and seconds.
fn split_day(secs: u64) -> (u64, (u64, u64, u64)) {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    (days, (rest / 3600, rest / 60 % 60, rest % 60))
}

/// The year, month and day that lie `days` after 1 January 1970.
///
/// Years are counted from March, so that the leap day is a year's last, and in eras of 400, which all have the
/// same number of days.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_ERA: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days / DAYS_IN_ERA, days % DAYS_IN_ERA);
    let leaps = day_of_era / 1460 + day_of_era / (DAYS_IN_ERA - 1) - day_of_era / 36_524;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(civil_from_days(59), (1970, 3, 1));
        assert_eq!(civil_from_days(11_016), (2000, 2, 29));
        assert_eq!(civil_from_days(20_772), (2026, 11, 15));
        assert_eq!(civil_from_days(47_541), (2100, 3, 1));
    }
}
