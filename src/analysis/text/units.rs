//! Numbers with units, three digits long, and text made safe for a terminal.

use crate::decode::is_plain;

/// A time span: `67.1 ms`.
pub(crate) fn duration(nanos: u64) -> String {
    scaled(nanos as f64, 1000.0, &["ns", "µs", "ms", "s"])
}

/// Bytes: `1.23 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Bits per second of so many bytes in so many nanoseconds: `9.41 Gb/s`; nothing for no time at
/// all.
pub(crate) fn rate(bytes: u64, nanos: u64) -> Option<String> {
    let bits_per_second = (nanos > 0).then(|| bytes as f64 * 8e9 / nanos as f64)?;
    Some(scaled(bits_per_second, 1000.0, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s", "Pb/s"]))
}

/// A count with its thousands apart: `1,199`.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count and what is counted: `1 packet`, `1,199 packets`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// Three significant digits and the largest unit that leaves a digit before the point.
fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // What would be rounded up to 1000 has the next unit.
    while value >= base - 0.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units.get(unit).unwrap_or(&""))
}

/// A word of a shell's command line, quoted where it must be.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@%+#".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('#') {
        return word.to_owned();
    }
    if !word.chars().all(is_plain) {
        let quoted = word.chars().map(|c| match c {
            '\'' | '\\' => format!("\\{c}"),
            c if is_plain(c) => c.to_string(),
            c => c.to_string().bytes().map(|byte| format!("\\x{byte:02x}")).collect(),
        });
        return format!("$'{}'", quoted.collect::<String>());
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(duration(0), "0 ns");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1000), "1.00 µs");
        assert_eq!(duration(12_345), "12.3 µs");
        assert_eq!(duration(67_108_864), "67.1 ms");
        assert_eq!(duration(999_700), "1.00 ms");
        assert_eq!(duration(200_000_000_000), "200 s");
        assert_eq!(duration(86_400_000_000_000), "86400 s");
        assert_eq!(bytes(1_234_567), "1.23 MB");
        assert_eq!(rate(1_250_000_000, 1_000_000_000).as_deref(), Some("10.0 Gb/s"));
        assert_eq!(rate(1, 0), None);
        assert_eq!(counted(1, "packet"), "1 packet");
        assert_eq!(counted(1_234_567, "packet"), "1,234,567 packets");
    }

    #[test]
    fn text_from_outside_neither_moves_the_cursor_nor_ends_a_word() {
        assert_eq!(shell_word("dir/a_b.pcap"), "dir/a_b.pcap");
        assert_eq!(shell_word("it's one.pcap"), r"'it'\''s one.pcap'");
        assert_eq!(shell_word("$(reboot)"), "'$(reboot)'");
        assert_eq!(shell_word("a\nb\u{202e}'"), r"$'a\x0ab\xe2\x80\xae\''");
    }
}
