//! Times of day, as tcpdump tells them.

use super::Context;
use super::field::{put, write_seconds};

/// Style of the time of a frame: tcpdump's `-t`, once to five times.
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

/// Names of the months, as tshark writes them.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Appends nanoseconds since 1970 as tshark prints them: `Nov 15, 2026 00:06:59.404559000 UTC`.
pub(super) fn write_date(nanos: i128, out: &mut String) {
    let nanos = u64::try_from(nanos).unwrap_or(0);
    let (days, (hours, minutes, seconds)) = split_day(nanos / NANOS);
    let (year, month, day) = civil_from_days(days);
    let month = usize::try_from(month).ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    put(out, format_args!("{} {day:2}, {year} ", month.copied().unwrap_or_default()));
    put(out, format_args!("{hours:02}:{minutes:02}:{seconds:02}.{:09} UTC", nanos % NANOS));
}

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// Returns the nanoseconds since 1970 of a time in UTC: `2026-11-15 00:06:59.404559`, with a `T`
/// between, or as tshark prints it. What is left out at the end is 0; `Z` or `UTC` may follow.
pub(super) fn parse_date(text: &str) -> Option<i128> {
    let text = text.trim();
    let text = text.strip_suffix("UTC").or_else(|| text.strip_suffix('Z')).unwrap_or(text).trim();
    let (date, clock) = split_date(text)?;
    let (year, month, day) = date;
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_to(year, month, day);
    // A day that the month does not have becomes one of the next.
    if civil_from_days(days) != date {
        return None;
    }
    let (time, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = time.split(':');
    let mut part = |most: u64| match parts.next() {
        None | Some("") => Some(0),
        Some(digits) => number(digits).filter(|&value| value <= most),
    };
    let secs = part(23)? * 3600 + part(59)? * 60 + part(60)?;
    if parts.next().is_some() || fraction.len() > 9 {
        return None;
    }
    let fraction = number(&format!("{fraction:0<9}"))?;
    Some(i128::from(days * 86_400 + secs) * i128::from(NANOS) + i128::from(fraction))
}

/// Returns year, month and day at the start of a text, and the rest.
fn split_date(text: &str) -> Option<((u64, u64, u64), &str)> {
    let (first, rest) = text.split_once([' ', 'T']).unwrap_or((text, ""));
    if let Some(month) = MONTHS.iter().position(|name| first.starts_with(name)) {
        let (day, rest) = rest.trim_start().split_once(',')?;
        let rest = rest.trim_start();
        let (year, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        return Some(((number(year)?, month as u64 + 1, number(day)?), rest.trim_start()));
    }
    let mut parts = first.split('-');
    let date = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    parts.next().is_none().then_some((date, rest.trim_start()))
}

/// Parses digits as a number.
fn number(digits: &str) -> Option<u64> {
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| digits.parse().ok()).flatten()
}

/// Returns the days from 1 January 1970 to a date: the inverse of [`civil_from_days`].
fn days_to(year: u64, month: u64, day: u64) -> u64 {
    let years = if month <= 2 { year - 1 } else { year };
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    years * 365 + years / 4 - years / 100 + years / 400 + day_of_year - 719_468
}

/// The day of a time in UTC: `2026-11-15`.
pub fn date_text(time: crate::time::Instant) -> String {
    let (year, month, day) = civil_from_days(split_day(time.secs()).0);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Seconds since 1970 as days, and hours, minutes and seconds.
fn split_day(secs: u64) -> (u64, (u64, u64, u64)) {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    (days, (rest / 3600, rest / 60 % 60, rest % 60))
}

/// The year, month and day that lie `days` after 1 January 1970.
///
/// Years are counted from March, so that the leap day is a year's last, and in eras of 400, which
/// all have the same number of days.
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
        for days in (0..100_000).step_by(13) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_to(year, month, day), days, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn dates_are_read_as_they_are_written() {
        let time = 1_794_701_219_404_559_000;
        let mut text = String::new();
        write_date(time, &mut text);
        assert_eq!(text, "Nov 15, 2026 00:06:59.404559000 UTC");
        for same in [
            text.as_str(),
            "2026-11-15 00:06:59.404559",
            "2026-11-15T00:06:59.404559Z",
            "Nov 15, 2026 00:06:59.404559",
        ] {
            assert_eq!(parse_date(same), Some(time), "{same}");
        }
        let day = 1_794_700_800_000_000_000;
        for same in ["2026-11-15", "2026-11-15 00:00", "Nov 15, 2026", "2026-11-15T00"] {
            assert_eq!(parse_date(same), Some(day), "{same}");
        }
        for wrong in [
            "",
            "2026",
            "2026-02-30",
            "2026-11-15 24:00",
            "2026-11-15 00:00:00:00",
            "1969-12-31",
            "Foo 15, 2026",
            "2026-11-15 1e2",
            "99999999999999999999-01-01",
        ] {
            assert_eq!(parse_date(wrong), None, "{wrong}");
        }
    }
}
