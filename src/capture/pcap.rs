//! Classic pcap: a header of 24 bytes, then records of 16 bytes and a packet each.
//!
//! `draft-ietf-opsawg-pcap` describes the format; all of it is in the byte order of the writing host.

use std::io::Read;

use super::LinkType;
use super::buffer::Buffer;
use super::byte_order::ByteOrder;
use super::error::{Error, Part};
use super::limits::MAX_CAPTURED;
use super::reader::Packet;
use crate::time::Instant;

/// What a pcap's header says about all of its records.
#[derive(Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    precision: Precision,
    link: LinkType,
}

/// What the second number of a time stamp counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Microseconds,
    Nanoseconds,
}

impl Pcap {
    /// The byte order and precision that go with a magic number, if it is one of pcap's.
    pub(super) fn recognise(magic: [u8; 4]) -> Option<(ByteOrder, Precision)> {
        Some(match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (ByteOrder::Big, Precision::Microseconds),
            0xd4c3_b2a1 => (ByteOrder::Little, Precision::Microseconds),
            MAGIC_NANOSECONDS => (ByteOrder::Big, Precision::Nanoseconds),
            0x4d3c_b2a1 => (ByteOrder::Little, Precision::Nanoseconds),
            _ => return None,
        })
    }

    /// Reads the header of a pcap whose magic number was recognised.
    pub(super) fn new<R: Read>(
        buffer: &mut Buffer<R>,
        (order, precision): (ByteOrder, Precision),
    ) -> Result<Self, Error> {
        let offset = buffer.offset();
        let header = buffer.want(FILE_HEADER)?;
        let have = header.len() as u64;
        let Some([_magic, version, _zone, _accuracy, _snaplen, network]) = order.words(header)
        else {
            let need = FILE_HEADER as u64;
            return Err(Error::Cut { offset, part: Part::FileHeader, need, have });
        };
        let [major, minor] = order.split(version);
        // Before 2.4, which is from 1998, the two lengths of a record stood in another order.
        if (major, minor) != VERSION {
            return Err(Error::Version { offset, format: "pcap", major, minor });
        }
        buffer.take(FILE_HEADER);
        // The upper half tells the length of the frame check sequence or is reserved, and readers
        // must ignore what they do not know of it.
        let [_, _, high, low] = network.to_be_bytes();
        Ok(Self { order, precision, link: LinkType(u16::from_be_bytes([high, low])) })
    }

    /// Finds the next record, which is then at the front of the buffer.
    #[inline]
    pub(super) fn next<R: Read>(
        &mut self,
        buffer: &mut Buffer<R>,
    ) -> Result<Option<Packet>, Error> {
        let bytes = buffer.want(RECORD_HEADER)?;
        let Some([seconds, fraction, captured, len]) = self.order.words(bytes) else {
            return match bytes {
                [] => Ok(None),
                _ => Err(cut(buffer, RECORD_HEADER)),
            };
        };
        if captured > MAX_CAPTURED {
            let offset = buffer.offset();
            return Err(Error::RecordTooLong { offset, claim: captured, limit: MAX_CAPTURED });
        }
        let size = RECORD_HEADER + captured as usize;
        if bytes.len() < size && buffer.want(size)?.len() < size {
            return Err(cut(buffer, size));
        }
        Ok(Some(Packet {
            time: Some(self.instant(seconds, fraction)),
            link: self.link,
            len,
            section: 0,
            interface: None,
            data: RECORD_HEADER..size,
            size,
        }))
    }

    /// Fits without overflow even when the fraction is a second or more.
    fn instant(&self, seconds: u32, fraction: u32) -> Instant {
        let unit = match self.precision {
            Precision::Microseconds => 1000,
            Precision::Nanoseconds => 1,
        };
        Instant::from_nanos(u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit)
    }
}

/// The stream ends within the record at the front of the buffer.
#[cold]
fn cut<R>(buffer: &Buffer<R>, need: usize) -> Error {
    Error::Cut {
        offset: buffer.offset(),
        part: Part::Record,
        need: need as u64,
        have: buffer.available().len() as u64,
    }
}

/// The length of the file's header.
pub(super) const FILE_HEADER: usize = 24;
/// The length of a record's header.
pub(super) const RECORD_HEADER: usize = 16;
/// The magic number of a file with nanoseconds.
pub(super) const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// The only version there has been since 1998.
pub(super) const VERSION: (u16, u16) = (2, 4);
