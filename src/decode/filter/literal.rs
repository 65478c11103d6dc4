//! The values that a filter compares fields with.

use core::cmp::Ordering;
use core::net::IpAddr;

use super::super::field::{Field, Show, Value};
use super::super::time::parse_date;
use super::suggest::nearest;
use crate::wire::Opcode;

/// A value that stands in a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    Number(u64),
    Nanos(i128),
    Bytes(Vec<u8>),
    Text(String),
    /// An address, and how many of its leading bits count.
    Prefix(Vec<u8>, u32),
}

impl Literal {
    pub(super) fn equals(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Self::Prefix(prefix, bits), Value::Bytes(bytes)) => {
                prefix.len() == bytes.len() && common_bits(prefix, bytes) >= *bits
            }
            _ => self.compare(value) == Some(Ordering::Equal),
        }
    }

    /// Compares `value` with this, or returns `None` if they cannot be compared.
    pub(super) fn compare(&self, value: &Value<'_>) -> Option<Ordering> {
        let this = match self {
            Self::Number(number) => Value::Uint(*number),
            Self::Nanos(nanos) => Value::Nanos(*nanos),
            Self::Bytes(bytes) | Self::Prefix(bytes, _) => Value::Bytes(bytes),
            Self::Text(text) => Value::Text(text),
        };
        compare_values(value, &this)
    }

    /// The value that `text` stands for where `field` is compared with it.
    pub(super) fn parse(field: &Field, text: &str) -> Result<Self, String> {
        let wanted = |what: &str| format!("{} is {what}, and '{text}' is none", field.name);
        match field.show {
            Show::Dec | Show::Hex(_) if field.name == OPCODE => parse_opcode(field, text),
            Show::Dec | Show::Hex(_) => {
                parse_number(text).map(Self::Number).ok_or_else(|| wanted("a number"))
            }
            Show::Seconds => {
                parse_seconds(text).map(Self::Nanos).ok_or_else(|| wanted("a number of seconds"))
            }
            Show::Date => parse_date(text)
                .map(Self::Nanos)
                .ok_or_else(|| wanted("a time (\"2026-11-15 00:06:59.4\", in UTC)")),
            Show::Text => match vocabulary(field.name) {
                Some(words) if !words.contains(&text) && !text.starts_with("opcode ") => {
                    Err(never(field, text, &words))
                }
                _ => Ok(Self::Text(text.to_owned())),
            },
            Show::Mac | Show::Bytes => parse_hex(text)
                .map(Self::Bytes)
                .ok_or_else(|| wanted("a string of bytes (00:1a:2b, or 001a2b)")),
            Show::Ipv4 => parse_prefix(text, 4).ok_or_else(|| wanted("an IPv4 address")),
            Show::Ipv6 => parse_prefix(text, 16).ok_or_else(|| wanted("an IPv6 address")),
        }
    }
}

/// Compares `a` with `b`, or returns `None` if they cannot be compared.
pub(super) fn compare_values(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    Some(match (a, b) {
        (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
        (Value::Nanos(a), Value::Nanos(b)) => a.cmp(b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        _ => words(a)?.cmp(&words(b)?),
    })
}

/// Returns the words of a value that has any.
fn words(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Text(text) => (*text).to_owned(),
        Value::Opcode(opcode) => opcode.to_string(),
        Value::Error(error) => error.to_string(),
        Value::Uint(_) | Value::Nanos(_) | Value::Bytes(_) => return None,
    })
}

/// Values, and ranges of them, that a field may be in.
#[derive(Clone, Debug)]
pub(super) enum Set {
    /// Ranges with both their ends, in order and apart from each other.
    Numbers(Vec<(u64, u64)>),
    /// A set of any other values.
    Values(Vec<Element>),
}

/// A value of a set, or all from the first to the second.
#[derive(Clone, Debug)]
pub(super) enum Element {
    One(Literal),
    Through(Literal, Literal),
}

impl Set {
    pub(super) fn new(elements: Vec<Element>) -> Self {
        let number = |element: &Element| match element {
            Element::One(Literal::Number(number)) => Some((*number, *number)),
            Element::Through(Literal::Number(low), Literal::Number(high)) => Some((*low, *high)),
            Element::One(_) | Element::Through(..) => None,
        };
        let Some(mut ranges) = elements.iter().map(number).collect::<Option<Vec<_>>>() else {
            return Self::Values(elements);
        };
        ranges.sort_unstable();
        let mut apart: Vec<(u64, u64)> = Vec::new();
        for (low, high) in ranges {
            match apart.last_mut() {
                Some((_, end)) if low <= end.saturating_add(1) => *end = high.max(*end),
                _ => apart.push((low, high)),
            }
        }
        Self::Numbers(apart)
    }

    pub(super) fn contains(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Self::Numbers(ranges), Value::Uint(number)) => {
                let after = ranges.partition_point(|(low, _)| low <= number);
                let last = after.checked_sub(1).and_then(|at| ranges.get(at));
                last.is_some_and(|(_, high)| number <= high)
            }
            (Self::Numbers(_), _) => false,
            (Self::Values(elements), _) => elements.iter().any(|element| match element {
                Element::One(literal) => literal.equals(value),
                Element::Through(low, high) => {
                    low.compare(value).is_some_and(Ordering::is_ge)
                        && high.compare(value).is_some_and(Ordering::is_le)
                }
            }),
        }
    }
}

impl Element {
    /// The values from `low` to `high`, if there are such.
    pub(super) fn through(low: Literal, high: Literal) -> Result<Self, &'static str> {
        let ordered = match (&low, &high) {
            (Literal::Number(low), Literal::Number(high)) => low <= high,
            (Literal::Nanos(low), Literal::Nanos(high)) => low <= high,
            (Literal::Bytes(low), Literal::Bytes(high)) => low <= high,
            (Literal::Prefix(low, low_bits), Literal::Prefix(high, high_bits)) => {
                let whole = |bytes: &[u8], bits: u32| bytes.len() * 8 == bits as usize;
                if !whole(low, *low_bits) || !whole(high, *high_bits) {
                    return Err("a range goes from an address to an address, without prefixes");
                }
                low <= high
            }
            _ => return Err("words have no range; name them all"),
        };
        if ordered { Ok(Self::Through(low, high)) } else { Err("this range ends before it begins") }
    }
}

/// The field whose numbers have the names of opcodes.
const OPCODE: &str = "infiniband.bth.opcode";

fn parse_opcode(field: &Field, text: &str) -> Result<Literal, String> {
    let by_name = || Opcode::assigned().find(|info| info.name == text);
    match parse_number(text).or_else(|| by_name().map(|info| info.opcode.0.into())) {
        Some(number) => Ok(Literal::Number(number)),
        None => Err(never(field, text, &opcode_names())),
    }
}

fn opcode_names() -> Vec<&'static str> {
    Opcode::assigned().map(|info| info.name).collect()
}

/// All the words that a field can have, where they are few.
fn vocabulary(field: &str) -> Option<Vec<&'static str>> {
    Some(match field {
        "roce.icrc" | "roce.vcrc" => vec!["ok", "bad", "absent"],
        "roce.encapsulation" => vec!["RoCEv1", "RoCEv2", "IB"],
        "roce.aeth.kind" => vec!["ACK", "RNR", "NAK", "reserved"],
        "roce.retransmission" => {
            vec!["timeout", "sequence_nak", "implied_nak", "rnr", "unexplained"]
        }
        "roce.opcode_name" => opcode_names(),
        _ => return None,
    })
}

/// Returns the message that a field is never `text`, with the values that it may have.
fn never(field: &Field, text: &str, words: &[&str]) -> String {
    const SHOWN: usize = 12;
    let name = field.name;
    match nearest(&text.to_uppercase(), words) {
        Some(known) if words.len() > SHOWN => {
            format!("{name} is never '{text}' (did you mean '{known}'?)")
        }
        _ => {
            let rest = if words.len() > SHOWN { " …" } else { "" };
            let listed = words.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
            format!("{name} is never '{text}'; it is one of {listed}{rest}")
        }
    }
}

/// Returns the number of leading bits that two byte strings share.
fn common_bits(a: &[u8], b: &[u8]) -> u32 {
    let mut bits = 0;
    for (x, y) in a.iter().zip(b) {
        let same = (x ^ y).leading_zeros();
        bits += same;
        if same < 8 {
            break;
        }
    }
    bits
}

pub(super) fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Decimal seconds with at most nine places, as nanoseconds.
fn parse_seconds(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = whole.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit());
    if !all_digits || fraction.len() > 9 || whole.is_empty() {
        return None;
    }
    let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
    Some(sign * (i128::from(whole.parse::<u64>().ok()?) * 1_000_000_000 + nanos))
}

/// Pairs of hexadecimal digits, with colons between them or with nothing.
pub(super) fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.strip_prefix("0x").unwrap_or(text).replace([':', '-'], "");
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return None;
    }
    let pair = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// An address of `len` bytes, alone or with the number of leading bits that count.
fn parse_prefix(text: &str, len: u32) -> Option<Literal> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, bits.parse().ok().filter(|&bits| bits <= len * 8)?),
        None => (text, len * 8),
    };
    let bytes = match address.parse().ok()? {
        IpAddr::V4(address) if len == 4 => address.octets().to_vec(),
        IpAddr::V4(address) => address.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(address) if len == 16 => address.octets().to_vec(),
        IpAddr::V6(_) => return None,
    };
    Some(Literal::Prefix(bytes, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        assert_eq!(parse_seconds("1.5"), Some(1_500_000_000));
        assert_eq!(parse_seconds("-0.000000001"), Some(-1));
        assert_eq!(parse_seconds("1.0000000001"), None);
        assert_eq!(parse_seconds("."), None);
    }

    #[test]
    fn addresses_may_be_prefixes() {
        let net = parse_prefix("10.9.0.0/16", 4).unwrap();
        assert!(net.equals(&Value::Bytes(&[10, 9, 3, 4])));
        assert!(!net.equals(&Value::Bytes(&[10, 8, 3, 4])));
        assert!(parse_prefix("10.9.0.0/33", 4).is_none());
        assert!(parse_prefix("fe80::/10", 4).is_none());
    }

    #[test]
    fn ranges_of_numbers_are_merged() {
        let one = |number| Element::One(Literal::Number(number));
        let through = |low, high| Element::Through(Literal::Number(low), Literal::Number(high));
        let set = Set::new(vec![one(9), through(1, 3), one(4), through(2, 6), one(u64::MAX)]);
        let Set::Numbers(ranges) = &set else { panic!("{set:?}") };
        assert_eq!(*ranges, [(1, 6), (9, 9), (u64::MAX, u64::MAX)]);
        let inside = [1, 4, 6, 9, u64::MAX];
        for number in [0, 1, 4, 6, 7, 8, 9, 10, u64::MAX - 1, u64::MAX] {
            assert_eq!(set.contains(&Value::Uint(number)), inside.contains(&number), "{number}");
        }
    }
}
