//! Fields: a name that tools know, a position in a header, and a way to print it.

use core::fmt::{self, Write as _};
use core::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use super::Context;
use super::time::write_date;
use crate::wire::layout::BitRange;

/// A field of a layer, as the decoder shows it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name for machines: tshark's where it has one, otherwise `roce.…`.
    pub name: &'static str,
    /// The name for people.
    pub label: &'static str,
    /// Whether it says what another field says already, and is shown only when asked for.
    pub hidden: bool,
    pub(super) source: Source,
    pub(super) show: Show,
}

/// Source of a field's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Bits of the layer.
    Bits(BitRange),
    /// Bits of the layer that count in units of this size.
    Scaled(BitRange, u64),
    /// All bytes from this one of the layer to its end.
    From(usize),
    /// The layer is there: the field's own name.
    Presence,
    /// Presence of the layer in packets for which the function returns true.
    PresenceIf(for<'a> fn(&Context<'a>) -> bool),
    /// Value computed from the whole packet.
    Computed(for<'a> fn(&Context<'a>, &'a [u8]) -> Option<Value<'a>>),
}

/// Format of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// Decimal number.
    Dec,
    /// Hexadecimal number of so many digits.
    Hex(usize),
    /// Hexadecimal digits, two a byte.
    Bytes,
    /// Ethernet address.
    Mac,
    /// IPv4 address.
    Ipv4,
    /// IPv6 address, or a GID.
    Ipv6,
    /// Text.
    Text,
    /// Seconds with nine decimals, from nanoseconds.
    Seconds,
    /// Date and time of day in UTC, from nanoseconds since 1970.
    Date,
}

/// The value of a field in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Uint(u64),
    /// Nanoseconds, which may be negative.
    Nanos(i128),
    /// Bytes of the packet.
    Bytes(&'a [u8]),
    /// A word.
    Text(&'a str),
    /// The name of an opcode, or its number.
    Opcode(crate::wire::Opcode),
    /// An error, for people to read.
    Error(crate::wire::ParseError),
}

impl Field {
    /// A field that is some bits of its layer.
    pub(super) const fn bits(
        name: &'static str,
        label: &'static str,
        bits: BitRange,
        show: Show,
    ) -> Self {
        Self { name, label, hidden: false, source: Source::Bits(bits), show }
    }

    /// A field that counts in units of `unit`.
    pub(super) const fn scaled(
        name: &'static str,
        label: &'static str,
        bits: BitRange,
        unit: u64,
    ) -> Self {
        Self { name, label, hidden: false, source: Source::Scaled(bits, unit), show: Show::Dec }
    }

    /// The bytes of a layer from `start` on.
    pub(super) const fn bytes_from(name: &'static str, label: &'static str, start: usize) -> Self {
        Self { name, label, hidden: false, source: Source::From(start), show: Show::Bytes }
    }

    /// The bytes of a whole layer, which its other fields show in parts.
    pub(super) const fn whole(name: &'static str, label: &'static str) -> Self {
        Self::bytes_from(name, label, 0).hidden()
    }

    /// A field that is not simply some bits.
    pub(super) const fn computed(
        name: &'static str,
        label: &'static str,
        show: Show,
        value: for<'a> fn(&Context<'a>, &'a [u8]) -> Option<Value<'a>>,
    ) -> Self {
        Self { name, label, hidden: false, source: Source::Computed(value), show }
    }

    /// The name of a layer, for filters; its value is the name itself.
    pub(super) const fn presence(name: &'static str) -> Self {
        let source = Source::Presence;
        Self { name, label: name, hidden: true, source, show: Show::Text }
    }

    /// Returns the field of a layer's presence in packets for which `test` returns true.
    pub(super) const fn presence_if(
        name: &'static str,
        label: &'static str,
        test: for<'a> fn(&Context<'a>) -> bool,
    ) -> Self {
        let source = Source::PresenceIf(test);
        Self { name, label, hidden: true, source, show: Show::Text }
    }

    /// Returns the field as one that is shown only on request.
    pub(super) const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// The value in `layer`, if it is there.
    #[inline]
    pub(super) fn value<'a>(&self, context: &Context<'a>, layer: &'a [u8]) -> Option<Value<'a>> {
        match (self.source, self.show) {
            (Source::Bits(bits), Show::Dec | Show::Hex(_)) => bits.read(layer).map(Value::Uint),
            (Source::Bits(bits), _) => bits.slice(layer).map(Value::Bytes),
            (Source::Scaled(bits, unit), _) => {
                bits.read(layer).map(|value| Value::Uint(value * unit))
            }
            (Source::From(start), _) => layer.get(start..).map(Value::Bytes),
            (Source::Presence, _) => Some(Value::Text(self.name)),
            (Source::PresenceIf(test), _) => test(context).then_some(Value::Text(self.name)),
            (Source::Computed(value), _) => value(context, layer),
        }
    }

    /// The bits of a layer that the field takes, if it is simply some of them.
    pub(super) fn bit_range(&self) -> Option<BitRange> {
        match self.source {
            Source::Bits(bits) | Source::Scaled(bits, _) => Some(bits),
            _ => None,
        }
    }

    /// The bytes of a layer of `len` bytes that the field takes, if it is simply some of them.
    pub(super) fn bytes(&self, len: usize) -> Option<core::ops::Range<usize>> {
        match self.source {
            Source::Bits(bits) | Source::Scaled(bits, _) => Some(bits.bytes()),
            Source::From(start) => Some(start..len),
            Source::Computed(_) | Source::Presence | Source::PresenceIf(_) => None,
        }
    }

    /// Whether JSON can hold every value as a number that every reader of JSON keeps exactly.
    pub(super) fn is_json_number(&self) -> bool {
        let narrow = match self.source {
            Source::Bits(bits) | Source::Scaled(bits, _) => bits.len <= 32,
            // What is computed is narrow unless its digits say otherwise.
            Source::Computed(_) => !matches!(self.show, Show::Hex(9..)),
            Source::From(_) | Source::Presence | Source::PresenceIf(_) => false,
        };
        narrow && matches!(self.show, Show::Dec | Show::Hex(_))
    }

    /// Appends `value` to `out`, as tshark would print it.
    pub fn write(&self, value: &Value<'_>, out: &mut String) {
        match (*value, self.show) {
            (Value::Uint(value), Show::Hex(digits)) => write_hex(value, digits, out),
            (Value::Uint(value), _) => write_dec(value, out),
            (Value::Nanos(nanos), Show::Date) => write_date(nanos, out),
            (Value::Nanos(nanos), _) => write_seconds(nanos, out),
            (Value::Text(text), _) => out.push_str(text),
            (Value::Opcode(opcode), _) => put(out, format_args!("{opcode}")),
            (Value::Error(error), _) => put(out, format_args!("{error}")),
            (Value::Bytes(bytes), Show::Mac) => write_mac(bytes, out),
            (Value::Bytes(bytes), Show::Ipv4) => match <[u8; 4]>::try_from(bytes) {
                Ok(octets) => write_ipv4(Ipv4Addr::from(octets), out),
                Err(_) => write_bytes(bytes, out),
            },
            (Value::Bytes(bytes), Show::Ipv6) => match <[u8; 16]>::try_from(bytes) {
                Ok(octets) => put(out, format_args!("{}", Ipv6Addr::from(octets))),
                Err(_) => write_bytes(bytes, out),
            },
            (Value::Bytes(bytes), _) => write_bytes(bytes, out),
        }
    }
}

/// Appends formatted text. Writing to a string cannot fail.
pub(super) fn put(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes everything");
}

/// All bytes in hexadecimal, two digits each.
static HEX: LazyLock<String> =
    LazyLock::new(|| (0..=u8::MAX).map(|byte| format!("{byte:02x}")).collect());

/// The two hexadecimal digits of a byte.
fn hex(digits: &str, byte: u8) -> &str {
    let at = 2 * usize::from(byte);
    &digits[at..at + 2]
}

pub(super) fn write_dec(value: u64, out: &mut String) {
    out.push_str(itoa::Buffer::new().format(value));
}

fn write_hex(value: u64, digits: usize, out: &mut String) {
    out.push_str("0x");
    let all: &str = &HEX;
    let bytes = value.to_be_bytes();
    if digits % 2 == 1 {
        // The upper half of a byte is reserved.
        let byte = bytes.get(8 - digits.div_ceil(2)).copied().unwrap_or(0);
        out.push_str(&hex(all, byte)[1..]);
    }
    for &byte in bytes.iter().skip(8 - (digits / 2).min(8)) {
        out.push_str(hex(all, byte));
    }
}

fn write_bytes(bytes: &[u8], out: &mut String) {
    out.reserve(bytes.len() * 2);
    let all: &str = &HEX;
    bytes.iter().for_each(|&byte| out.push_str(hex(all, byte)));
}

fn write_mac(bytes: &[u8], out: &mut String) {
    let all: &str = &HEX;
    for (i, &byte) in bytes.iter().enumerate() {
        if i > 0 {
            out.push(':');
        }
        out.push_str(hex(all, byte));
    }
}

fn write_ipv4(addr: Ipv4Addr, out: &mut String) {
    for (i, octet) in addr.octets().into_iter().enumerate() {
        if i > 0 {
            out.push('.');
        }
        write_dec(octet.into(), out);
    }
}

pub(super) fn write_seconds(nanos: i128, out: &mut String) {
    if nanos < 0 {
        out.push('-');
    }
    // The difference of two times of 64 bits has no more digits than that.
    let nanos = u64::try_from(nanos.unsigned_abs()).unwrap_or(u64::MAX);
    write_dec(nanos / 1_000_000_000, out);
    // The one before nine digits keeps their zeros, and gives way to the point.
    let mut digits = itoa::Buffer::new();
    let fraction = digits.format(1_000_000_000 + nanos % 1_000_000_000);
    out.push('.');
    out.push_str(fraction.get(1..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(show: Show, value: &Value<'_>) -> String {
        let mut out = String::new();
        Field::bits("f", "F", BitRange::new(0, 8), show).write(value, &mut out);
        out
    }

    #[test]
    fn numbers_print_as_the_standard_formatter_prints_them() {
        for value in [0, 7, 10, 99, 100, 65_535, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(written(Show::Dec, &Value::Uint(value)), value.to_string());
            assert_eq!(written(Show::Hex(16), &Value::Uint(value)), format!("{value:#018x}"));
            let low = value & 0xfffff;
            assert_eq!(written(Show::Hex(5), &Value::Uint(low)), format!("{low:#07x}"));
        }
    }

    #[test]
    fn addresses_and_times_print_as_tshark_prints_them() {
        assert_eq!(written(Show::Ipv4, &Value::Bytes(&[10, 0, 200, 1])), "10.0.200.1");
        assert_eq!(written(Show::Mac, &Value::Bytes(&[2, 0, 0xab, 0, 0, 1])), "02:00:ab:00:00:01");
        assert_eq!(written(Show::Bytes, &Value::Bytes(&[0, 0xab])), "00ab");
        assert_eq!(written(Show::Seconds, &Value::Nanos(-1_500_000_000)), "-1.500000000");
    }
}
