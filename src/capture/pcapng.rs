//! pcapng: blocks of a type, a length, a body and the length again.
//!
//! Read `draft-ietf-opsawg-pcapng` §3 and §4 before changing this file. A section header starts a section
//! with its own byte order; interface descriptions after it are numbered from 0; packets name one of them
//! and count time as it does. All other blocks are skipped as they stream by.

use core::ops::Range;
use std::io::Read;

use super::InterfaceId;
use super::LinkType;
use super::buffer::Buffer;
use super::byte_order::ByteOrder;
use super::clock::Clock;
use super::error::{BlockType, Error, Offset, OptionLength, Part};
use super::limits::{MAX_BLOCK, MAX_CAPTURED, MAX_INTERFACES};
use super::reader::Packet;

/// What the current section has said so far.
#[derive(Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    /// How many sections came before this one.
    section: u32,
    interfaces: Vec<Interface>,
}

/// What a packet inherits from the interface it names.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// The most bytes of a packet that were captured, or 0 for no limit.
    snaplen: u32,
    clock: Clock,
}

/// The start of a block.
#[derive(Clone, Copy, Debug)]
struct Block {
    kind: BlockType,
    /// Of all of it, from its type to its second length.
    length: u32,
}

impl Pcapng {
    /// Reads the section header that a pcapng starts with.
    pub(super) fn new<R: Read>(buffer: &mut Buffer<R>) -> Result<Self, Error> {
        let order = section_header(buffer)?;
        Ok(Self { order, section: 0, interfaces: Vec::new() })
    }

    /// Finds the next packet, whose block is then at the front of the buffer.
    #[inline]
    pub(super) fn next<R: Read>(
        &mut self,
        buffer: &mut Buffer<R>,
    ) -> Result<Option<Packet>, Error> {
        loop {
            let bytes = buffer.want(BLOCK_HEADER)?;
            let Some([kind, length]) = self.order.words(bytes) else {
                return match bytes {
                    [] => Ok(None),
                    _ => Err(cut(buffer, BLOCK_HEADER)),
                };
            };
            let block = Block { kind: BlockType(kind), length };
            match block.kind {
                BlockType::ENHANCED_PACKET | BlockType::PACKET => {
                    return self.packet(buffer, block).map(Some);
                }
                BlockType::SIMPLE_PACKET => return self.simple_packet(buffer, block).map(Some),
                BlockType::INTERFACE_DESCRIPTION => self.describe(buffer, block)?,
                BlockType::SECTION_HEADER => {
                    self.order = section_header(buffer)?;
                    self.section = self.section.saturating_add(1);
                    self.interfaces.clear();
                }
                _ => skip(buffer, self.order, block)?,
            }
        }
    }

    /// An enhanced packet block: interface, time, lengths, packet, options. The obsolete one differs in
    /// that it has two halves in place of the interface, of which the second counts lost packets.
    #[inline]
    fn packet<R: Read>(&self, buffer: &mut Buffer<R>, block: Block) -> Result<Packet, Error> {
        let [_, _, id, high, low, captured, len] = load(buffer, self.order, block)?;
        let id = match block.kind {
            BlockType::PACKET => self.order.split(id)[0].into(),
            _ => id,
        };
        let interface = self.interface(buffer, block, id)?;
        let data = captured_range(buffer, block, PACKET_HEADER, captured)?;
        let ticks = u64::from(high) << 32 | u64::from(low);
        Ok(Packet {
            time: Some(interface.clock.instant(ticks)),
            link: interface.link,
            len,
            section: self.section,
            interface: Some(InterfaceId(id)),
            data,
            size: block.length as usize,
        })
    }

    /// A simple packet block: of the first interface, without time, as long as its snaplen allows.
    fn simple_packet<R: Read>(
        &self,
        buffer: &mut Buffer<R>,
        block: Block,
    ) -> Result<Packet, Error> {
        let [_, _, len] = load(buffer, self.order, block)?;
        let interface = self.interface(buffer, block, 0)?;
        let captured = if interface.snaplen == 0 { len } else { len.min(interface.snaplen) };
        Ok(Packet {
            time: None,
            link: interface.link,
            len,
            section: self.section,
            interface: Some(InterfaceId(0)),
            data: captured_range(buffer, block, SIMPLE_HEADER, captured)?,
            size: block.length as usize,
        })
    }

    /// The interface a packet names.
    #[inline]
    fn interface<R>(&self, buffer: &Buffer<R>, block: Block, id: u32) -> Result<&Interface, Error> {
        self.interfaces.get(id as usize).ok_or_else(|| Error::UnknownInterface {
            offset: buffer.offset(),
            block: block.kind,
            interface: id,
            known: self.interfaces.len(),
        })
    }

    /// Remembers an interface description.
    fn describe<R: Read>(&mut self, buffer: &mut Buffer<R>, block: Block) -> Result<(), Error> {
        let offset = buffer.offset();
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(Error::TooManyInterfaces { offset, limit: MAX_INTERFACES });
        }
        let [_, _, link, snaplen] = load(buffer, self.order, block)?;
        let [link, _reserved] = self.order.split(link);
        let size = block.length as usize;
        let options = INTERFACE_HEADER..size - LENGTH as usize;
        let options = buffer.available().get(options).unwrap_or_default();
        let clock = clock(options, self.order, offset)?;
        self.interfaces.push(Interface { link: LinkType(link), snaplen, clock });
        buffer.take(size);
        Ok(())
    }
}

/// Reads a section header and tells its byte order.
fn section_header<R: Read>(buffer: &mut Buffer<R>) -> Result<ByteOrder, Error> {
    const NEED: usize = 16;
    let offset = buffer.offset();
    let bytes = buffer.want(NEED)?;
    let Some([_, length, magic, version]) = ByteOrder::Big.words(bytes) else {
        return Err(cut(buffer, NEED));
    };
    let (order, length, version) = match magic {
        BYTE_ORDER => (ByteOrder::Big, length, version),
        _ if magic.swap_bytes() == BYTE_ORDER => {
            (ByteOrder::Little, length.swap_bytes(), version.swap_bytes())
        }
        _ => return Err(Error::ByteOrder { offset, magic }),
    };
    let [major, minor] = order.split(version);
    // 1.2 is what some programs call 1.0; no other was ever defined.
    if !matches!((major, minor), (1, 0 | 2)) {
        return Err(Error::Version { offset, format: "pcapng", major, minor });
    }
    skip(buffer, order, Block { kind: BlockType::SECTION_HEADER, length })?;
    Ok(order)
}

/// Loads all of a packet or an interface description to the front of the buffer, once its lengths are
/// found to be sound, and tells its first words.
#[inline]
fn load<const N: usize, R: Read>(
    buffer: &mut Buffer<R>,
    order: ByteOrder,
    block: Block,
) -> Result<[u32; N], Error> {
    check_length(buffer, block)?;
    let Block { kind, length } = block;
    if length > MAX_BLOCK {
        let (offset, claim, limit) = (buffer.offset(), length, MAX_BLOCK);
        return Err(Error::BlockTooLong { offset, block: kind, claim, limit });
    }
    let size = length as usize;
    let Some(bytes) = buffer.want(size)?.get(..size) else {
        return Err(cut(buffer, size));
    };
    let (Some(words), Some(tail)) = (order.words(bytes), bytes.last_chunk()) else {
        return Err(cut(buffer, size));
    };
    let tail = order.u32(*tail);
    if tail != length {
        let offset = buffer.offset();
        return Err(Error::BlockLengths { offset, block: kind, head: length, tail });
    }
    Ok(words)
}

/// Passes over a block of any length without keeping it.
fn skip<R: Read>(buffer: &mut Buffer<R>, order: ByteOrder, block: Block) -> Result<(), Error> {
    check_length(buffer, block)?;
    let offset = buffer.offset();
    let length = u64::from(block.length);
    let passed = buffer.skip(length - u64::from(LENGTH))?;
    let left = buffer.want(LENGTH as usize)?;
    let Some([tail]) = order.words(left) else {
        let have = passed + left.len() as u64;
        return Err(Error::Cut { offset, part: Part::Block, need: length, have });
    };
    if tail != block.length {
        let (head, kind) = (block.length, block.kind);
        return Err(Error::BlockLengths { offset, block: kind, head, tail });
    }
    buffer.take(LENGTH as usize);
    Ok(())
}

/// Refuses a length that no block of its type can have.
#[inline]
fn check_length<R>(buffer: &Buffer<R>, block: Block) -> Result<(), Error> {
    let least = least(block.kind);
    if block.length >= least && block.length.is_multiple_of(4) {
        return Ok(());
    }
    let (offset, kind, claim) = (buffer.offset(), block.kind, block.length);
    Err(if claim < least {
        Error::BlockTooShort { offset, block: kind, claim, least }
    } else {
        Error::BlockUnaligned { offset, block: kind, claim }
    })
}

/// The shortest a block of this type can be: its fields and both lengths, no data, no options.
#[inline]
const fn least(kind: BlockType) -> u32 {
    match kind {
        BlockType::SECTION_HEADER => 28,
        BlockType::INTERFACE_DESCRIPTION => 20,
        BlockType::PACKET | BlockType::ENHANCED_PACKET => 32,
        BlockType::SIMPLE_PACKET => 16,
        _ => 12,
    }
}

/// Where in a packet block, after `header`, the captured bytes are.
#[inline]
fn captured_range<R>(
    buffer: &Buffer<R>,
    block: Block,
    header: u32,
    captured: u32,
) -> Result<Range<usize>, Error> {
    // `least` leaves room for the header and the length at the end.
    let room = block.length.saturating_sub(header + LENGTH);
    if captured > room {
        let (offset, kind, claim) = (buffer.offset(), block.kind, captured);
        return Err(Error::CapturedTooLong { offset, block: kind, claim, room });
    }
    if captured > MAX_CAPTURED {
        let (offset, claim, limit) = (buffer.offset(), captured, MAX_CAPTURED);
        return Err(Error::RecordTooLong { offset, claim, limit });
    }
    Ok(header as usize..(header + captured) as usize)
}

/// How the options of the interface description at `offset` say that it counts time.
fn clock(mut options: &[u8], order: ByteOrder, offset: Offset) -> Result<Clock, Error> {
    let mut clock = Clock::MICROSECONDS;
    while let Some(([word], rest)) = order.words(options).zip(options.get(4..)) {
        let [code, claim] = order.split(word);
        let bad = |expected| Error::BadOption { offset, code, claim, expected };
        let length = usize::from(claim);
        let value = rest.get(..length).ok_or_else(|| bad(OptionLength::AtMost(rest.len())))?;
        match code {
            OPTION_END => break,
            OPTION_TSRESOL => {
                let &[tsresol] = value else {
                    return Err(bad(OptionLength::Exactly(1)));
                };
                clock = clock.with_resolution(tsresol);
            }
            OPTION_TSOFFSET => {
                let Ok(seconds) = value.try_into() else {
                    return Err(bad(OptionLength::Exactly(8)));
                };
                clock = clock.with_offset(order.i64(seconds));
            }
            _ => {}
        }
        // Values are padded to four bytes; a last one that is not has no successor.
        options = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(clock)
}

/// The stream ends within the block at the front of the buffer.
#[cold]
fn cut<R>(buffer: &Buffer<R>, need: usize) -> Error {
    Error::Cut {
        offset: buffer.offset(),
        part: Part::Block,
        need: need as u64,
        have: buffer.available().len() as u64,
    }
}

/// The magic number that tells a section's byte order.
pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The end of a list of options, which need not be there.
pub(super) const OPTION_END: u16 = 0;
/// Of a packet: flags, the lowest two of which tell the direction.
pub(super) const OPTION_FLAGS: u16 = 2;
/// `if_name`, a text.
pub(super) const OPTION_NAME: u16 = 2;
/// `if_tsresol`: one byte, the length of a tick.
pub(super) const OPTION_TSRESOL: u16 = 9;
/// `if_tsoffset`: eight bytes, the seconds to add to every time stamp.
pub(super) const OPTION_TSOFFSET: u16 = 14;

/// The length of a block's length.
const LENGTH: u32 = 4;
/// A block's type and its first length.
const BLOCK_HEADER: usize = 8;
/// Bytes before the options of an interface description.
const INTERFACE_HEADER: usize = 16;
/// Bytes before the packet in an enhanced or obsolete packet block.
pub(super) const PACKET_HEADER: u32 = 28;
/// Bytes before the packet in a simple packet block.
const SIMPLE_HEADER: u32 = 12;
