//! Numbers, durations and names as people read them.

use super::Side;
use crate::analysis::connection::Endpoint;
use crate::decode::address_text;
use crate::wire::Qpn;

/// A duration with three significant digits: `640 ns`, `12.3 µs`, `67 ms`, `1.25 s`.
pub(super) fn duration(nanos: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns")];
    let (unit, name) = *UNITS.iter().find(|(unit, _)| nanos >= *unit).unwrap_or(&(1, "ns"));
    let whole = nanos / unit;
    // Hundredths below ten, tenths below a hundred.
    let digits: usize = if whole >= 100 || unit == 1 {
        0
    } else if whole >= 10 {
        1
    } else {
        2
    };
    let scale = [1, 10, 100][digits];
    let scaled = (u128::from(nanos) * scale + u128::from(unit) / 2) / u128::from(unit);
    let (whole, rest) = (scaled / scale, scaled % scale);
    if rest == 0 {
        return format!("{whole} {name}");
    }
    let rest = format!("{rest:0digits$}");
    format!("{whole}.{} {name}", rest.trim_end_matches('0'))
}

/// `1 packet`, `37 packets`, `1,199 packets`.
pub(super) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// `once`, `7 times`.
pub(super) fn times(number: u64) -> String {
    if number == 1 { "once".into() } else { format!("{} times", grouped(number)) }
}

/// Digits in groups of three.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// A queue pair, where its number is known: `QP 0x11`.
pub(super) fn qp(qpn: Option<Qpn>) -> String {
    qpn.map_or_else(|| "QP ?".into(), |qpn| format!("QP {:#x}", qpn.get()))
}

fn end(end: &Endpoint) -> String {
    format!("{} {}", address_text(end.address), qp(end.qpn))
}

/// The direction: `10.0.0.1 QP 0x11 → 10.0.0.2 QP 0x12`.
pub(super) fn side(side: &Side<'_>) -> String {
    let ends = &side.connection.ends;
    let (from, to) = (&ends[side.requester], &ends[side.requester.other()]);
    format!("{} → {}", end(from), end(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let texts = [
            (0, "0 ns"),
            (640, "640 ns"),
            (12_345, "12.3 µs"),
            (67_000_000, "67 ms"),
            (1_250_000_000, "1.25 s"),
            (999_999, "1000 µs"),
            (5_004_000, "5 ms"),
        ];
        for (nanos, text) in texts {
            assert_eq!(duration(nanos), text);
        }
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(1, "packet"), "1 packet");
        assert_eq!(count(1_199, "packet"), "1,199 packets");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(list(&["a".into(), "b".into(), "c".into()]), "a, b and c");
    }
}
