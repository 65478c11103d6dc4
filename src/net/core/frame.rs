//! Wire format: records in the ring, and immediate data.

/// Bytes before each record's payload.
pub(crate) const HEADER: usize = 8;
/// Alignment of records.
const ALIGN: usize = 8;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message.
    Message,
    /// Location of a large message in the sender's memory.
    Rendezvous,
}

/// The header of a record: its length, its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) kind: Kind,
}

impl Header {
    pub(crate) fn emit(self) -> [u8; HEADER] {
        let [a, b, c, d] = self.len.to_le_bytes();
        let kind = match self.kind {
            Kind::Message => 1,
            Kind::Rendezvous => 2,
        };
        [a, b, c, d, kind, 0, 0, 0]
    }

    /// `None` if it is of no kind that is known.
    pub(crate) fn parse(bytes: [u8; HEADER]) -> Option<Self> {
        let [a, b, c, d, kind, 0, 0, 0] = bytes else { return None };
        let kind = match kind {
            1 => Kind::Message,
            2 => Kind::Rendezvous,
            _ => return None,
        };
        Some(Self { len: u32::from_le_bytes([a, b, c, d]), kind })
    }
}

/// Bytes that a record takes in the ring.
#[inline]
pub(crate) const fn record_bytes(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGN)
}

/// The payload of a rendezvous record: where a message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
}

impl Source {
    pub(crate) const BYTES: usize = 20;

    pub(crate) fn emit(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = self.addr.to_le_bytes().into_iter().chain(self.len.to_le_bytes());
        let parts = parts.chain(self.rkey.to_le_bytes());
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let (addr, rest) = bytes.split_first_chunk().expect("20 bytes are more than 8");
        let (len, rest) = rest.split_first_chunk().expect("12 bytes are more than 8");
        let (rkey, _) = rest.split_first_chunk().expect("4 bytes are left");
        Self {
            addr: u64::from_le_bytes(*addr),
            len: u64::from_le_bytes(*len),
            rkey: u32::from_le_bytes(*rkey),
        }
    }
}

/// The immediate data of each WRITE: what its sender consumed of the opposite direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Immediate {
    /// Number of WRITEs with payload that were consumed since the beginning, modulo 2^16.
    pub(crate) consumed: u16,
    /// Number of large messages that were read since the beginning, modulo 2^14.
    pub(crate) read: u16,
    /// Whether the WRITE begins at the start of the ring, although there was room behind the last.
    /// Of an empty WRITE that is the end: whether its sender does not read any more, either.
    pub(crate) wraps: bool,
    /// Whether no message follows.
    pub(crate) is_end: bool,
}

/// Number of large messages, modulo.
pub(crate) const READ_MASK: u16 = (1 << 14) - 1;

impl Immediate {
    pub(crate) fn emit(self) -> [u8; 4] {
        let flags = u16::from(self.wraps) | u16::from(self.is_end) << 1;
        let high = (self.read & READ_MASK) << 2 | flags;
        (u32::from(high) << 16 | u32::from(self.consumed)).to_be_bytes()
    }

    pub(crate) fn parse(imm: [u8; 4]) -> Self {
        let [a, b, c, d] = imm;
        let (high, consumed) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self { consumed, read: high >> 2, wraps: high & 1 != 0, is_end: high & 2 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_unknown_kinds_are_refused() {
        for kind in [Kind::Message, Kind::Rendezvous] {
            let header = Header { len: 0x0102_0304, kind };
            assert_eq!(Header::parse(header.emit()), Some(header));
        }
        assert_eq!(Header::parse([0; 8]), None);
        assert_eq!(Header::parse([1, 0, 0, 0, 1, 0, 0, 1]), None);
        assert_eq!([0, 1, 8, 9].map(record_bytes), [8, 16, 16, 24]);
    }

    #[test]
    fn sources_and_immediate_data_round_trip() {
        let source = Source { addr: u64::MAX - 1, len: 1 << 40, rkey: 0xdead_beef };
        assert_eq!(Source::parse(&source.emit()), source);
        for bits in 0..4 {
            let (wraps, is_end) = (bits & 1 != 0, bits & 2 != 0);
            let imm = Immediate { consumed: 0xfedc, read: READ_MASK - bits, wraps, is_end };
            assert_eq!(Immediate::parse(imm.emit()), imm);
        }
    }
}
