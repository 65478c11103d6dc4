//! Published memory: a table that the peer reads by itself.

use super::limits::PUBLISHED_MAX;
use crate::device::RemoteSlice;
use crate::wire::RKey;

/// Bytes of an entry: id, address, length, key, check.
pub(super) const ENTRY: usize = 32;
/// Bytes of the table.
pub(super) const BYTES: usize = ENTRY * PUBLISHED_MAX;

/// An entry. A check shows whether it was read while it was written.
pub(super) fn emit(id: u64, slice: &RemoteSlice) -> [u8; ENTRY] {
    let rkey = slice.rkey.get();
    let parts = id.to_le_bytes().into_iter().chain(slice.addr.to_le_bytes());
    let parts = parts.chain(slice.len.to_le_bytes()).chain(rkey.to_le_bytes());
    let parts = parts.chain(check(id, slice).to_le_bytes());
    let mut bytes = [0; ENTRY];
    bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    bytes
}

/// Result of reading an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Empty,
    /// The entry was written meanwhile.
    Torn,
    Published(u64, RemoteSlice),
}

pub(super) fn parse(bytes: &[u8; ENTRY]) -> Entry {
    let word = |at: usize| {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
        u64::from_le_bytes(*word.expect("an entry has four words"))
    };
    let (id, addr, len, last) = (word(0), word(8), word(16), word(24));
    #[expect(clippy::cast_possible_truncation, reason = "the word holds both")]
    let (rkey, told) = (RKey::new(last as u32), (last >> 32) as u32);
    let slice = RemoteSlice { addr, len, rkey };
    match told {
        0 => Entry::Empty,
        told if told == check(id, &slice) => Entry::Published(id, slice),
        _ => Entry::Torn,
    }
}

/// Returns the checksum of the parts of an entry; never zero.
fn check(id: u64, slice: &RemoteSlice) -> u32 {
    let words = [id, slice.addr, slice.len, u64::from(slice.rkey.get())];
    let mixed = words.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |sum, word| {
        (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
    });
    #[expect(clippy::cast_possible_truncation, reason = "both halves are folded")]
    let folded = (mixed ^ mixed >> 32) as u32;
    folded | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_torn_ones_are_seen() {
        let slice = RemoteSlice { addr: 0x7f00_1234_5000, len: 4096, rkey: RKey::new(77) };
        let bytes = emit(5, &slice);
        assert_eq!(parse(&bytes), Entry::Published(5, slice));
        assert_eq!(parse(&[0; ENTRY]), Entry::Empty);
        for at in 0..ENTRY {
            let mut torn = bytes;
            torn[at] ^= 0x10;
            assert_ne!(parse(&torn), Entry::Published(5, slice), "byte {at}");
        }
    }
}
