//! Messages of the two sides when they connect: the private data of the connection manager's
//! messages.

use super::core::PeerRing;
use super::limits::{PRIVATE_DATA_MAX, RING_MAX, RING_MIN, WRITES_MAX};
use crate::wire::RKey;

/// Marks the private data of this protocol, and its version.
const MAGIC: [u8; 3] = *b"rN\x01";

/// Bytes before the program's own private data.
pub(super) const BYTES: usize = 20;

/// Bytes in all.
pub(super) const TOTAL: usize = BYTES + PRIVATE_DATA_MAX;

// The REQ of the connection manager has 56 bytes for both.
const _: () = assert!(TOTAL == 56);

/// Offset of the length of the program's private data.
const LEN_AT: usize = 6;

/// Last byte of a hello whose side does selective repeat, where the program's private data leave
/// room for it: the mark of such a byte, and a bit. Peers that do not know the mark ignore it.
const SELECTIVE_REPEAT: u8 = 0xa0 | 1;

/// Says in a hello that this side does selective repeat.
pub(super) fn offer_selective_repeat(hello: &mut [u8; TOTAL]) {
    let has_room = usize::from(hello[LEN_AT]) < PRIVATE_DATA_MAX;
    if let [.., last] = hello
        && *last == 0
        && has_room
    {
        *last = SELECTIVE_REPEAT;
    }
}

/// Whether the side of a hello does selective repeat.
pub(super) fn offers_selective_repeat(hello: &[u8]) -> bool {
    let has_room = hello.get(LEN_AT).is_some_and(|len| usize::from(*len) < PRIVATE_DATA_MAX);
    has_room && hello.get(TOTAL - 1) == Some(&SELECTIVE_REPEAT)
}

/// A hello: the own ring, and the program's private data.
pub(super) fn emit(ring: &PeerRing, private_data: &[u8]) -> [u8; TOTAL] {
    let mut bytes = [0; TOTAL];
    let len = private_data.len().min(PRIVATE_DATA_MAX);
    let log = u8::try_from(ring.size.trailing_zeros()).unwrap_or_default();
    let [w, x] = ring.writes.to_le_bytes();
    let [a, b, c] = MAGIC;
    let send_log = u8::try_from(ring.send_max.trailing_zeros()).unwrap_or_default();
    let head = [a, b, c, log, w, x, u8::try_from(len).unwrap_or_default(), send_log];
    let parts = head.into_iter().chain(ring.addr.to_le_bytes());
    let parts = parts.chain(ring.rkey.get().to_le_bytes());
    let parts = parts.chain(private_data.iter().copied());
    bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    bytes
}

/// The peer's ring and its program's private data; `None` if it does not speak this protocol.
pub(super) fn parse(bytes: &[u8]) -> Option<(PeerRing, &[u8])> {
    let (&[a, b, c, log, w, x, len, send_log], rest) = bytes.split_first_chunk()?;
    let (addr, rest) = rest.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let size = 1_u32.checked_shl(log.into())?;
    // A side that says nothing uses all.
    let send_log = if send_log == 0 { RING_MAX.trailing_zeros() } else { send_log.into() };
    let send_max = 1_u32.checked_shl(send_log)?;
    let writes = u16::from_le_bytes([w, x]);
    let is_sound = [a, b, c] == MAGIC
        && [size, send_max].iter().all(|size| (RING_MIN..=RING_MAX).contains(&(*size as usize)))
        && (1..=WRITES_MAX).contains(&writes)
        && usize::from(len) <= PRIVATE_DATA_MAX;
    let private_data = rest.get(..usize::from(len))?;
    let rkey = RKey::new(u32::from_le_bytes(*rkey));
    let ring = PeerRing { addr: u64::from_le_bytes(*addr), rkey, size, writes, send_max };
    is_sound.then_some((ring, private_data))
}

/// The private data of a refusal: its length, the data.
pub(super) fn emit_refusal(private_data: &[u8]) -> Vec<u8> {
    let data = private_data.iter().copied().take(PRIVATE_DATA_MAX);
    let len = u8::try_from(private_data.len().min(PRIVATE_DATA_MAX)).unwrap_or_default();
    std::iter::once(len).chain(data).collect()
}

/// Returns the private data of the program of a peer that refused.
pub(super) fn refusal(bytes: &[u8]) -> Vec<u8> {
    let (len, rest) = bytes.split_first().unwrap_or((&0, &[]));
    rest.get(..usize::from(*len)).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selective_repeat_is_offered_where_private_data_leave_room() {
        let rkey = RKey::new(1);
        let ring = PeerRing { addr: 1, rkey, size: 1 << 16, writes: 300, send_max: 1 << 18 };
        for len in [0, 1, PRIVATE_DATA_MAX - 1, PRIVATE_DATA_MAX] {
            let data = vec![SELECTIVE_REPEAT; len];
            let mut bytes = emit(&ring, &data);
            assert!(!offers_selective_repeat(&bytes), "{len} bytes, without");
            offer_selective_repeat(&mut bytes);
            assert_eq!(offers_selective_repeat(&bytes), len < PRIVATE_DATA_MAX, "{len} bytes");
            assert_eq!(parse(&bytes), Some((ring, &data[..])), "the rest is as it was");
        }
    }

    #[test]
    fn hello_round_trips_and_nonsense_is_refused() {
        let rkey = RKey::new(0x1234_5678);
        let (size, send_max) = (1 << 16, 1 << 18);
        let ring = PeerRing { addr: 0xfedc_ba98_7654_3210, rkey, size, writes: 300, send_max };
        let bytes = emit(&ring, b"private");
        assert_eq!(parse(&bytes), Some((ring, &b"private"[..])));
        let whole = emit(&ring, &[7; PRIVATE_DATA_MAX]);
        assert_eq!(parse(&whole).unwrap().1, [7; PRIVATE_DATA_MAX]);
        for (at, byte) in [(0, b'x'), (2, 9), (3, 0), (3, 31), (3, 64), (6, 37), (7, 1), (7, 27)] {
            let mut bytes = bytes;
            bytes[at] = byte;
            assert_eq!(parse(&bytes), None, "byte {at}");
        }
        assert_eq!(parse(&bytes[..19]), None);
        assert_eq!(refusal(&emit_refusal(b"full")), b"full");
        assert_eq!((refusal(&[]), refusal(&[9, 1])), (vec![], vec![]));
    }
}
