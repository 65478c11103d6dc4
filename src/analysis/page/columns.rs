//! The packets of a connection as compressed columns: deltas as variable-length integers, column
//! after column.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::record::{LossRecord, MessageRecord, PacketRecord};
use crate::analysis::Series;

/// Columns that grow at their ends.
#[derive(Default)]
struct Columns {
    bytes: Vec<u8>,
}

impl Columns {
    /// An unsigned number, seven bits a byte, the lowest first.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push((value & 0x7f) as u8);
    }

    /// A difference, with its sign in the lowest bit.
    fn difference(&mut self, value: u64, previous: u64) {
        let difference = i64::from_ne_bytes(value.wrapping_sub(previous).to_ne_bytes());
        let zigzag = (difference << 1) ^ (difference >> 63);
        self.number(u64::from_ne_bytes(zigzag.to_ne_bytes()));
    }

    fn column<T>(&mut self, items: &[T], value: impl Fn(&T) -> u64) {
        items.iter().for_each(|item| self.number(value(item)));
    }

    fn deltas<T>(&mut self, items: &[T], base: u64, value: impl Fn(&T) -> u64) {
        let mut previous = base;
        for item in items {
            let value = value(item);
            self.difference(value, previous);
            previous = value;
        }
    }
}

/// The columns of a connection, compressed with zlib; `decode.js` reads them. Times count from
/// `origin`.
pub(super) fn encode(
    origin: u64,
    packets: &[PacketRecord],
    losses: &[LossRecord],
    messages: &[MessageRecord],
    series: Option<&Series>,
) -> Vec<u8> {
    let mut columns = Columns::default();
    for count in [packets.len(), losses.len(), messages.len()] {
        columns.number(count as u64);
    }
    columns.deltas(packets, origin, |packet| packet.time);
    columns.deltas(packets, 0, |packet| packet.frame);
    columns.column(packets, |packet| packet.flags.into());
    columns.column(packets, |packet| packet.opcode.into());
    let mut previous = [0; 2];
    for packet in packets {
        let slot = &mut previous[packet.requester()];
        columns.difference(packet.sequence, *slot);
        *slot = packet.sequence;
    }
    columns.column(packets, |packet| packet.payload_len.into());
    columns.column(packets, |packet| u64::from(packet.wire_len.saturating_sub(packet.payload_len)));
    let with_extra: Vec<_> = packets.iter().filter(|packet| packet.has_extra()).collect();
    columns.column(&with_extra, |packet| packet.extra.into());
    let with_aeth: Vec<_> = packets.iter().filter(|packet| packet.has_aeth()).collect();
    columns.column(&with_aeth, |packet| packet.syndrome.into());

    columns.deltas(losses, origin, |loss| loss.time);
    columns.deltas(losses, 0, |loss| loss.sequence);
    columns.deltas(losses, 0, |loss| loss.frame);
    columns.deltas(losses, 0, |loss| loss.proof);
    columns.column(losses, |loss| loss.flags().into());

    columns.deltas(messages, origin, |message| message.end);
    columns.column(messages, |message| message.end.saturating_sub(message.start));
    columns.deltas(messages, 0, |message| message.first_frame);
    columns.deltas(messages, 0, |message| message.end_frame);
    columns.column(messages, |message| message.bytes);
    columns.column(messages, |message| message.operation as u64);
    columns.column(messages, |message| message.flags().into());

    encode_series(origin, series, &mut columns);
    deflate(&columns.bytes)
}

/// Bytes per interval, for connections whose packets are not all there; the page adds up the others
/// itself.
fn encode_series(origin: u64, series: Option<&Series>, columns: &mut Columns) {
    let found = series.and_then(|series| Some((series, series.start()?)));
    let Some((series, start)) = found else { return columns.number(0) };
    let intervals: Vec<_> = series.intervals().collect();
    columns.number(intervals.len() as u64);
    columns.difference(start.as_nanos(), origin);
    columns.number(series.interval_nanos());
    for sender in 0..2 {
        columns.column(&intervals, |interval| interval.bytes[sender]);
    }
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(bytes).expect("a vector takes everything");
    encoder.finish().expect("a vector takes everything")
}

/// Appends bytes as base64.
pub(super) fn base64(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= chunk.len() {
                out.push(char::from(DIGITS[(word >> (18 - 6 * digit) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_vectors_of_rfc_4648() {
        let text = |bytes: &[u8]| {
            let mut out = String::new();
            base64(bytes, &mut out);
            out
        };
        assert_eq!(text(b""), "");
        assert_eq!(text(b"f"), "Zg==");
        assert_eq!(text(b"fo"), "Zm8=");
        assert_eq!(text(b"foobar"), "Zm9vYmFy");
        assert_eq!(text(&[0xff, 0xef, 0xbe]), "/+++");
    }

    #[test]
    fn numbers_have_seven_bits_a_byte_and_differences_a_sign() {
        let mut columns = Columns::default();
        columns.number(300);
        columns.difference(4, 5);
        columns.difference(6, 5);
        assert_eq!(columns.bytes, [0xac, 0x02, 1, 2]);
        columns.difference(0, u64::MAX);
        assert_eq!(columns.bytes.last(), Some(&2));
    }
}
