//! Classic pcap: a header of 24 bytes, then records of 16 bytes and a packet each.
//!
//! `draft-ietf-opsawg-pcap` describes the format; all of it is in the byte order of the writing
//! host.

use std::io::Read;

use super::LinkType;
use super::buffer::Buffer;
use super::byte_order::ByteOrder;
use super::error::{Error, Part};
use super::limits::{MAX_CAPTURED, MAX_RESYNC, NEIGHBOR_SECONDS, RESYNC_CHAIN};
use super::reader::Packet;
use super::resync::{Rest, Verdict, search};
use crate::time::Instant;

/// Header of a pcap, which holds for all of its records.
#[derive(Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    precision: Precision,
    link: LinkType,
    snaplen: u32,
    /// State of a lenient reader.
    watch: Option<Watch>,
}

/// Neighbors by which a lenient reader judges the next record.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// The second of the last record whose time can be trusted.
    second: Option<u32>,
    /// The oddities that records of this file were found to have, and yet be records.
    tolerated: Oddities,
}

bitflags::bitflags! {
    /// Properties of a header that those of sound records rarely have.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Oddities: u8 {
        /// A fraction of a second that is a second or more.
        const FRACTION = 1;
        /// More captured bytes than the packet had.
        const CAPTURED = 2;
        /// More bytes captured than the file's header or any program allows.
        const SNAPLEN = 4;
        /// A time far from those of its neighbors.
        const TIME = 8;
        /// No bytes at all, as zeros in the place of a header have.
        const EMPTY = 16;
        /// A packet longer than any.
        const LENGTH = 32;
    }
}

impl Oddities {
    /// The worst of them, as what a record has.
    fn reason(self) -> &'static str {
        if self.contains(Self::SNAPLEN) {
            "more captured bytes than its file allows"
        } else if self.contains(Self::CAPTURED) {
            "more bytes captured than the packet had"
        } else if self.contains(Self::FRACTION) {
            "a fraction of a second that is more than a second"
        } else if self.contains(Self::LENGTH) {
            "a length that no packet has"
        } else if self.contains(Self::EMPTY) {
            "no bytes"
        } else {
            "a time far from its neighbors"
        }
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug)]
struct Header {
    second: u32,
    fraction: u32,
    captured: u32,
    len: u32,
}

impl Header {
    /// Returns the length of the record with its header.
    #[inline]
    fn size(self) -> usize {
        RECORD_HEADER + self.captured as usize
    }
}

/// Unit of the second number of a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Microseconds,
    Nanoseconds,
}

impl Pcap {
    /// The byte order and precision that go with a magic number, if it is one of pcap's.
    pub(super) fn recognize(magic: [u8; 4]) -> Option<(ByteOrder, Precision)> {
        Some(match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (ByteOrder::Big, Precision::Microseconds),
            0xd4c3_b2a1 => (ByteOrder::Little, Precision::Microseconds),
            MAGIC_NANOSECONDS => (ByteOrder::Big, Precision::Nanoseconds),
            0x4d3c_b2a1 => (ByteOrder::Little, Precision::Nanoseconds),
            _ => return None,
        })
    }

    /// Reads the header of a pcap whose magic number was recognized.
    pub(super) fn new<R: Read>(
        buffer: &mut Buffer<R>,
        (order, precision): (ByteOrder, Precision),
    ) -> Result<Self, Error> {
        let offset = buffer.offset();
        let header = buffer.want(FILE_HEADER)?;
        let have = header.len() as u64;
        let Some([_magic, version, _zone, _accuracy, snaplen, network]) = order.words(header)
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
        let link = LinkType(u16::from_be_bytes([high, low]));
        Ok(Self { order, precision, link, snaplen, watch: None })
    }

    /// The link type of all packets.
    pub(super) fn link(&self) -> LinkType {
        self.link
    }

    /// Makes the reader judge records by their neighbors from now on.
    pub(super) fn be_lenient(&mut self) {
        self.watch = Some(Watch::default());
    }

    /// Finds the next record, which is then at the front of the buffer.
    #[inline]
    pub(super) fn next<R: Read>(
        &mut self,
        buffer: &mut Buffer<R>,
    ) -> Result<Option<Packet>, Error> {
        match self.sound_record(buffer.available()) {
            Some(packet) => Ok(Some(packet)),
            None => self.next_record(buffer),
        }
    }

    /// The record at the front of `bytes`, if all of it is there and nothing about it is odd.
    #[inline]
    pub(super) fn sound_record(&mut self, bytes: &[u8]) -> Option<Packet> {
        let header = self.header(bytes, 0)?;
        if header.captured > MAX_CAPTURED || header.size() > bytes.len() {
            return None;
        }
        if let Some(watch) = self.watch {
            if !self.oddities(header, [watch.second, watch.second]).is_empty() {
                return None;
            }
            self.watch = Some(Watch { second: Some(header.second), ..watch });
        }
        Some(self.packet(header))
    }

    /// Whether all of the record at the front of `bytes` is there.
    pub(super) fn is_whole(&self, bytes: &[u8]) -> bool {
        self.header(bytes, 0).is_some_and(|header| header.size() <= bytes.len())
    }

    /// Finds the next record, whatever it is like.
    #[cold]
    fn next_record<R: Read>(&mut self, buffer: &mut Buffer<R>) -> Result<Option<Packet>, Error> {
        let bytes = buffer.want(RECORD_HEADER)?;
        let Some(header) = self.header(bytes, 0) else {
            return match bytes {
                [] => Ok(None),
                _ => Err(cut(buffer, RECORD_HEADER)),
            };
        };
        if header.captured > MAX_CAPTURED {
            let (offset, claim) = (buffer.offset(), header.captured);
            return Err(Error::RecordTooLong { offset, claim, limit: MAX_CAPTURED });
        }
        if let Some(watch) = self.watch {
            let oddities = self.oddities(header, [watch.second, watch.second]);
            self.watch = Some(if oddities.is_empty() {
                Watch { second: Some(header.second), ..watch }
            } else {
                self.examine(buffer, watch, header, oddities)?
            });
        }
        if buffer.want(header.size())?.len() < header.size() {
            return Err(cut(buffer, header.size()));
        }
        Ok(Some(self.packet(header)))
    }

    /// The packet of a record with this header.
    #[inline]
    fn packet(&self, header: Header) -> Packet {
        Packet {
            time: Some(self.instant(header.second, header.fraction)),
            link: self.link,
            len: header.len,
            section: 0,
            interface: None,
            data: RECORD_HEADER..header.size(),
            size: header.size(),
        }
    }

    /// Returns the oddities of a header whose neighbors are of these seconds.
    #[inline]
    fn oddities(&self, header: Header, neighbors: [Option<u32>; 2]) -> Oddities {
        let Header { second, fraction, captured, len } = header;
        let is_near = |other: u32| other.abs_diff(second) <= NEIGHBOR_SECONDS;
        let alone = neighbors == [None; 2];
        let mut odd = Oddities::empty();
        odd.set(Oddities::FRACTION, fraction >= self.fractions());
        odd.set(Oddities::CAPTURED, captured > len);
        odd.set(Oddities::SNAPLEN, captured > self.snaplen.max(MAX_RESYNC));
        odd.set(Oddities::TIME, !alone && !neighbors.into_iter().flatten().any(is_near));
        odd.set(Oddities::LENGTH, len > MAX_CAPTURED);
        odd.set(Oddities::EMPTY, captured == 0 && len == 0);
        odd
    }

    /// Returns the number of fractions in a second.
    #[inline]
    fn fractions(&self) -> u32 {
        match self.precision {
            Precision::Microseconds => 1_000_000,
            Precision::Nanoseconds => 1_000_000_000,
        }
    }

    /// Looks behind a record with an odd header: if the file ends there, or a sound header follows,
    /// it is a record all the same.
    #[cold]
    fn examine<R: Read>(
        &self,
        buffer: &mut Buffer<R>,
        watch: Watch,
        header: Header,
        oddities: Oddities,
    ) -> Result<Watch, Error> {
        let size = header.size();
        let excused = watch.tolerated | oddities.difference(Oddities::TIME | Oddities::EMPTY);
        let bytes = buffer.want(size + RECORD_HEADER)?;
        let (next, ends) = (self.header(bytes, size), bytes.len() == size);
        let is_near = |next: Header| next.second.abs_diff(header.second) <= NEIGHBOR_SECONDS;
        let is_sound = |next: Header| {
            let odd = self.oddities(next, [watch.second, Some(header.second)]);
            next.captured <= MAX_CAPTURED && excused.contains(odd)
        };
        let follows = next.map_or(ends, is_sound)
            || oddities == Oddities::TIME && self.leads_on(buffer, excused | Oddities::TIME)?;
        if !follows {
            let (offset, reason) = (buffer.offset(), oddities.reason());
            return Err(Error::Implausible { offset, reason });
        }
        // Of two times that differ, the one that its follower is near is right.
        let trusted = !oddities.contains(Oddities::TIME) || next.is_some_and(is_near);
        let second = if trusted { Some(header.second) } else { watch.second };
        Ok(Watch { second, tolerated: excused })
    }

    /// Whether headers lead from one to the next from the front of the buffer on, whatever their
    /// times are.
    fn leads_on<R: Read>(
        &self,
        buffer: &mut Buffer<R>,
        tolerated: Oddities,
    ) -> Result<bool, Error> {
        let (mut need, mut rest) = (RECORD_HEADER, Rest::GoesOn);
        loop {
            if buffer.want(need)?.len() < need {
                rest = Rest::Ends;
            }
            match self.chain(buffer.available(), rest, [None; 2], tolerated) {
                Verdict::Sound => return Ok(true),
                Verdict::Needs(more) if more > need => need = more,
                Verdict::Needs(_) | Verdict::Not(_) => return Ok(false),
            }
        }
    }

    /// The header at a place of `bytes`, if all of it is there.
    #[inline]
    fn header(&self, bytes: &[u8], at: usize) -> Option<Header> {
        let [second, fraction, captured, len] = self.order.words(bytes.get(at..)?)?;
        Some(Header { second, fraction, captured, len })
    }

    /// Whether sound records begin at the front of `bytes`: their headers lead from one to the
    /// next.
    fn chain(
        &self,
        bytes: &[u8],
        rest: Rest,
        mut neighbors: [Option<u32>; 2],
        tolerated: Oddities,
    ) -> Verdict {
        let mut at = 0;
        for link in 0..RESYNC_CHAIN {
            let Some(header) = self.header(bytes, at) else {
                // The stream may end behind a record; within one only if enough sound ones come
                // before it.
                let may_end = link > 0 && at == bytes.len() || link > 2;
                return match rest {
                    Rest::GoesOn => Verdict::Needs(at + RECORD_HEADER),
                    Rest::Ends if may_end => Verdict::Sound,
                    Rest::Ends => Verdict::Not(1),
                };
            };
            if header.captured == 0 || header.captured > MAX_RESYNC {
                return Verdict::Not(1);
            }
            // Where no time is known, four bytes too early or too late are headers too, by the
            // other three numbers.
            let whole = [header.len, self.snaplen].contains(&header.captured);
            if neighbors[0].is_none() && !whole && !tolerated.contains(Oddities::TIME) {
                return Verdict::Not(1);
            }
            if !tolerated.contains(self.oddities(header, neighbors)) {
                return Verdict::Not(1);
            }
            neighbors[1] = Some(header.second);
            at += header.size();
        }
        Verdict::Sound
    }

    /// Moves the front of the buffer to the next sound record behind damage, if there is one.
    pub(super) fn resync<R: Read>(&self, buffer: &mut Buffer<R>) -> Result<bool, Error> {
        let watch = self.watch.unwrap_or_default();
        let neighbors = [watch.second; 2];
        let judge = |bytes: &[u8], rest| self.chain(bytes, rest, neighbors, watch.tolerated);
        search(buffer, |_, _| Verdict::Not(1), judge)
    }

    /// Fits without overflow even when the fraction is a second or more.
    #[inline]
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
