//! A packet in a ring: its length and fields of its network header, then its bytes from the BTH
//! through the last pad byte. Its addresses are those of the ring.

use crate::memory::{AccessError, Region};
use crate::wire::batch::Outbound;
use crate::wire::{Bits, Bth, ICRC_ROOM, PACKET_MAX, Path};

/// Length of the head of a record. The positions of records are multiples of it.
pub(super) const HEAD_LEN: usize = 16;

/// Length that stands for the rest of the ring's memory: the next record is at its start.
const SKIP: u32 = u32::MAX;

/// Bit beside the flow label: the fault injector made the ICRC of the packet wrong.
const ICRC_WRONG: u32 = 1 << 31;

/// Head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) len: usize,
    pub(crate) source_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: Bits<20>,
    /// Whether the packet's ICRC would be wrong: it is to be dropped.
    pub(crate) is_icrc_wrong: bool,
}

/// Bytes of a packet, from the BTH through the last pad byte, as they are put into a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    /// All bytes, in which the payload may be missing.
    pub(super) packet: &'a [u8],
    /// Payload that is missing, and its offset in `packet`.
    pub(super) payload: Option<(usize, &'a Region)>,
}

impl<'a> Bytes<'a> {
    /// Returns the bytes of a packet before the room for its ICRC.
    #[inline]
    pub(crate) fn of(packet: &'a Outbound<'_>) -> Option<Self> {
        let (bytes, _) = packet.bytes.split_last_chunk::<ICRC_ROOM>()?;
        Some(Self { packet: bytes, payload: packet.payload })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.packet.len()
    }

    /// Returns a copy of all bytes, or an error if the payload cannot be read.
    pub(super) fn to_vec(self) -> Result<Box<[u8]>, AccessError> {
        let mut bytes: Box<[u8]> = self.packet.into();
        if let Some((start, payload)) = self.payload {
            let room = bytes.get_mut(start..start + payload.len());
            payload.read(0, room.unwrap_or_default())?;
        }
        Ok(bytes)
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(packet: &'a [u8]) -> Self {
        Self { packet, payload: None }
    }
}

/// Content of a ring at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Packet(RecordHead),
    /// The next record is at the start of the memory.
    Skip,
}

impl RecordHead {
    pub(crate) fn new(path: &Path, hop_limit: u8, len: usize, is_icrc_wrong: bool) -> Self {
        Self {
            len,
            source_port: path.source_port,
            traffic_class: path.traffic_class,
            hop_limit,
            flow_label: path.flow_label,
            is_icrc_wrong,
        }
    }

    /// Returns the bytes of a ring that a packet of this length takes.
    #[inline]
    pub(super) const fn record_len(len: usize) -> usize {
        HEAD_LEN + len.next_multiple_of(HEAD_LEN)
    }

    #[inline]
    pub(super) fn emit(&self) -> [u8; HEAD_LEN] {
        #[expect(clippy::cast_possible_truncation, reason = "at most PACKET_MAX")]
        let len = (self.len as u32).to_ne_bytes();
        let port = self.source_port.to_ne_bytes();
        let wrong = if self.is_icrc_wrong { ICRC_WRONG } else { 0 };
        let label = (self.flow_label.get() | wrong).to_ne_bytes();
        let mut bytes = [0; HEAD_LEN];
        bytes[..4].copy_from_slice(&len);
        bytes[4..6].copy_from_slice(&port);
        (bytes[6], bytes[7]) = (self.traffic_class, self.hop_limit);
        bytes[8..12].copy_from_slice(&label);
        bytes
    }

    /// Parses a head. Returns `None` if its length is not that of a packet.
    #[inline]
    pub(super) fn parse(bytes: &[u8; HEAD_LEN]) -> Option<Found> {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let len = match word(0) {
            SKIP => return Some(Found::Skip),
            len => usize::try_from(len).ok()?,
        };
        if !(Bth::LEN..=PACKET_MAX).contains(&len) {
            return None;
        }
        Some(Found::Packet(Self {
            len,
            source_port: u16::from_ne_bytes([bytes[4], bytes[5]]),
            traffic_class: bytes[6],
            hop_limit: bytes[7],
            flow_label: Bits::low(word(8)),
            is_icrc_wrong: word(8) & ICRC_WRONG != 0,
        }))
    }
}

/// Returns the head that stands for the rest of the memory.
pub(super) fn skip() -> [u8; HEAD_LEN] {
    let mut bytes = [0; HEAD_LEN];
    bytes[..4].copy_from_slice(&SKIP.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::PATH;

    #[test]
    fn head_is_read_as_it_was_written() {
        let path = Path { flow_label: Bits::low(0xa_bcde), traffic_class: 0x62, ..PATH };
        for is_icrc_wrong in [false, true] {
            let head = RecordHead::new(&path, 9, 300, is_icrc_wrong);
            assert_eq!(RecordHead::parse(&head.emit()), Some(Found::Packet(head)));
        }
        assert_eq!(RecordHead::parse(&skip()), Some(Found::Skip));
        for len in [0, Bth::LEN - 1, PACKET_MAX + 1, 0xffff_fffe] {
            let head = RecordHead { len, ..RecordHead::new(&path, 9, 300, false) };
            assert_eq!(RecordHead::parse(&head.emit()), None, "{len}");
        }
    }
}
