//! pcapng: blocks of a type, a length, a body and the length again.
//!
//! Read `draft-ietf-opsawg-pcapng` §3 and §4 before changing this file. A section header starts a
//! section with its own byte order; interface descriptions after it are numbered from 0; packets
//! name one of them and count time as it does. All other blocks are skipped as they stream by.

use core::ops::Range;
use std::io::Read;

use super::InterfaceId;
use super::LinkType;
use super::buffer::Buffer;
use super::byte_order::ByteOrder;
use super::clock::Clock;
use super::error::{BlockType, Error, Offset, OptionLength, Part};
use super::limits::{
    BUFFER_SIZE, MAX_BLOCK, MAX_CAPTURED, MAX_INTERFACE_OPTIONS, MAX_INTERFACES, MAX_RESYNC_BLOCK,
};
use super::options::{Interface, Options};
use super::reader::Packet;
use super::resync::{Rest, Verdict, search};

/// State of the current section.
#[derive(Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    /// Number of sections before this one.
    section: u32,
    /// Interfaces; `None` in the place of one whose description is damaged, so that the others keep
    /// their numbers.
    interfaces: Vec<Option<Interface>>,
    /// Number of bytes of their options that are kept.
    options_kept: usize,
    lenient: bool,
    end: End,
    drops: Drops,
}

/// Packets that a capture says it dropped.
#[derive(Debug, Default)]
struct Drops {
    /// Drops of earlier sections.
    before: u64,
    /// Drops of each interface of this section, by its latest statistics.
    by_interface: Vec<u64>,
}

impl Drops {
    fn total(&self) -> u64 {
        self.by_interface.iter().fold(self.before, |sum, &count| sum.saturating_add(count))
    }

    /// Begins the next section.
    fn next_section(&mut self) {
        self.before = self.total();
        self.by_interface.clear();
    }

    fn set(&mut self, interface: usize, count: u64) {
        if self.by_interface.len() <= interface {
            self.by_interface.resize(interface + 1, 0);
        }
        if let Some(slot) = self.by_interface.get_mut(interface) {
            *slot = count;
        }
    }
}

/// Whether a capture that promised to be closed was.
#[derive(Debug, Default)]
struct End {
    /// The section's header promises that interface statistics follow its last packet.
    is_promised: bool,
    /// Interface statistics followed the last packet so far.
    is_reached: bool,
    /// An earlier section ended without them.
    was_missed: bool,
}

impl End {
    /// Begins the next section.
    fn next_section(&mut self, is_promised: bool, has_interfaces: bool) {
        let was_missed = self.is_missing(has_interfaces);
        *self = Self { is_promised, is_reached: false, was_missed };
    }

    /// Whether a section that promised an end has none so far. Statistics belong to an interface:
    /// without one, there is nothing to close.
    fn is_missing(&self, has_interfaces: bool) -> bool {
        self.was_missed || self.is_promised && !self.is_reached && has_interfaces
    }
}

/// The start of a block.
#[derive(Clone, Copy, Debug)]
struct Block {
    kind: BlockType,
    /// Length of the whole block, from its type to its second length.
    length: u32,
}

impl Pcapng {
    /// Reads the section header that a pcapng starts with.
    pub(super) fn new<R: Read>(buffer: &mut Buffer<R>) -> Result<Self, Error> {
        let (order, is_promised) = section_header(buffer)?;
        let end = End { is_promised, ..End::default() };
        let (interfaces, drops) = (Vec::new(), Drops::default());
        Ok(Self { order, section: 0, interfaces, options_kept: 0, lenient: false, end, drops })
    }

    /// Packets that interface statistics say were dropped, so far.
    pub(super) fn dropped(&self) -> u64 {
        self.drops.total()
    }

    /// Adds the statistics of an interface, whose block is at the front of the buffer. A damaged
    /// block adds nothing here; skipping it reports the damage.
    fn note_drops<R: Read>(&mut self, buffer: &mut Buffer<R>, block: Block) -> Result<(), Error> {
        let size = block.length as usize;
        if size > STATISTICS_MAX {
            return Ok(());
        }
        let Some(bytes) = buffer.want(size)?.get(..size) else { return Ok(()) };
        let Some([_, _, interface]) = self.order.words(bytes) else { return Ok(()) };
        let options = bytes.get(STATISTICS_HEADER..size.saturating_sub(LENGTH as usize));
        let options = Options::new(options.unwrap_or_default(), self.order);
        let is_big_endian = options.is_big_endian();
        let count = |value: &[u8]| {
            let value = value.first_chunk().copied().unwrap_or_default();
            if is_big_endian { u64::from_be_bytes(value) } else { u64::from_le_bytes(value) }
        };
        let is_drop = |code: u16| matches!(code, OPTION_DROPPED | OPTION_DROPPED_BY_SYSTEM);
        let counts = options.iter().filter(|(code, _)| is_drop(*code));
        let sum = counts.fold(0_u64, |sum, (_, value)| sum.saturating_add(count(value)));
        if (interface as usize) < self.interfaces.len() {
            self.drops.set(interface as usize, sum);
        }
        Ok(())
    }

    /// Whether a section that promised a closing block has ended without it, if the capture ends
    /// here.
    pub(super) fn is_unclosed(&self) -> bool {
        self.end.is_missing(!self.interfaces.is_empty())
    }

    /// The byte order of the section, and the interfaces it has described so far.
    #[inline]
    pub(super) fn section(&self) -> (ByteOrder, &[Option<Interface>]) {
        (self.order, &self.interfaces)
    }

    /// Returns the number of sections before this one.
    pub(super) fn section_number(&self) -> u32 {
        self.section
    }

    /// Makes the reader check each block to be whole before it is skipped, from now on.
    pub(super) fn be_lenient(&mut self) {
        self.lenient = true;
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
                    self.end.is_reached = false;
                    return self.packet(buffer, block).map(Some);
                }
                BlockType::SIMPLE_PACKET => {
                    self.end.is_reached = false;
                    return self.simple_packet(buffer, block).map(Some);
                }
                BlockType::INTERFACE_DESCRIPTION => self.describe(buffer, block)?,
                BlockType::INTERFACE_STATISTICS => {
                    self.note_drops(buffer, block)?;
                    self.skip(buffer, block)?;
                    self.end.is_reached = true;
                }
                BlockType::SECTION_HEADER => {
                    let (order, is_promised) = section_header(buffer)?;
                    self.end.next_section(is_promised, !self.interfaces.is_empty());
                    self.order = order;
                    self.section = self.section.saturating_add(1);
                    self.interfaces.clear();
                    self.drops.next_section();
                    self.options_kept = 0;
                }
                _ => self.skip(buffer, block)?,
            }
        }
    }

    /// Passes over a block that is of no use.
    fn skip<R: Read>(&self, buffer: &mut Buffer<R>, block: Block) -> Result<(), Error> {
        match self.lenient {
            true => self.skip_checked(buffer, block),
            false => skip(buffer, self.order, block),
        }
    }

    /// Whether all of the block at the front of `bytes` is there.
    #[inline]
    pub(super) fn is_whole(&self, bytes: &[u8]) -> bool {
        let header = self.order.words(bytes);
        header.is_some_and(|[_kind, length]: [u32; 2]| length as usize <= bytes.len())
    }

    /// Passes over a block once it was seen to be whole, unless it is too long for the buffer and
    /// of a known type.
    fn skip_checked<R: Read>(&self, buffer: &mut Buffer<R>, block: Block) -> Result<(), Error> {
        if block.length > MAX_BLOCK && is_registered(block.kind) {
            return skip(buffer, self.order, block);
        }
        let [_, _] = load(buffer, self.order, block)?;
        buffer.take(block.length as usize);
        Ok(())
    }

    /// An enhanced packet block: interface, time, lengths, packet, options. The obsolete one
    /// differs in that it has two halves in place of the interface, of which the second counts lost
    /// packets.
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
        let interface = self.interfaces.get(id as usize).and_then(Option::as_ref);
        interface.ok_or_else(|| Error::UnknownInterface {
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
        let is_cut = self.options_kept + options.len() > MAX_INTERFACE_OPTIONS;
        let options: Box<[u8]> = if is_cut { Box::default() } else { options.into() };
        self.options_kept += options.len();
        let (link, order) = (LinkType(link), self.order);
        self.interfaces.push(Some(Interface { link, snaplen, clock, options, order, is_cut }));
        buffer.take(size);
        Ok(())
    }
}

/// Resynchronization behind damage.
impl Pcapng {
    /// Moves the front of the buffer to the next sound block behind the damaged one, if there is
    /// one.
    pub(super) fn resync<R: Read>(&mut self, buffer: &mut Buffer<R>) -> Result<bool, Error> {
        let [kind, length] = self.order.words(buffer.available()).unwrap_or_default();
        let block = Block { kind: BlockType(kind), length };
        if block.kind == BlockType::INTERFACE_DESCRIPTION && self.interfaces.len() < MAX_INTERFACES
        {
            self.interfaces.push(None);
        }
        let first = |bytes: &[u8], rest| self.step_over(bytes, rest, block);
        search(buffer, first, |bytes, rest| self.judge(bytes, rest))
    }

    /// Returns the distance to continue at behind a damaged block: to where it claims to end if a
    /// block begins there, else a byte.
    fn step_over(&self, bytes: &[u8], rest: Rest, block: Block) -> Verdict {
        let size = block.length as usize;
        let possible = block.length >= least(block.kind)
            && block.length.is_multiple_of(4)
            && block.length <= MAX_RESYNC_BLOCK;
        if !possible {
            return Verdict::Not(1);
        }
        let behind = bytes.get(size..).unwrap_or_default();
        match (self.framing(behind), rest) {
            (Framing::Whole(..), _) => Verdict::Not(size),
            (Framing::Needs(more), Rest::GoesOn) if size + more <= BUFFER_SIZE / 2 => {
                Verdict::Needs(size + more)
            }
            (_, Rest::Ends) if bytes.len() == size => Verdict::Not(size),
            _ => Verdict::Not(1),
        }
    }

    /// Whether a sound block begins at the front of `bytes`.
    fn judge(&self, bytes: &[u8], rest: Rest) -> Verdict {
        let (order, block) = match (self.framing(bytes), rest) {
            (Framing::Whole(order, block), _) => (order, block),
            (Framing::Needs(more), Rest::GoesOn) => return Verdict::Needs(more),
            (Framing::Needs(_) | Framing::No, _) => return Verdict::Not(1),
        };
        let size = block.length as usize;
        if !self.is_usable(bytes, block) {
            // A whole block that is of no use: what it holds is no block.
            return Verdict::Not(size);
        }
        // What follows it must look like a block, too.
        let behind = bytes.get(size..).unwrap_or_default();
        match (order.words(behind), rest) {
            (Some([kind, length]), _) if is_sane(BlockType(kind), length) => Verdict::Sound,
            (Some([kind, _]), _) if BlockType(kind) == BlockType::SECTION_HEADER => Verdict::Sound,
            (Some(_), _) => Verdict::Not(1),
            (None, Rest::GoesOn) => Verdict::Needs(size + BLOCK_HEADER),
            (None, Rest::Ends) => Verdict::Sound,
        }
    }

    /// Whether `bytes` begin with a block of a registered type whose two lengths agree.
    fn framing(&self, bytes: &[u8]) -> Framing {
        let Some([kind, magic]) = self.order.words(bytes).map(|[kind, _, magic]| [kind, magic])
        else {
            return Framing::Needs(SIMPLE_HEADER as usize);
        };
        let kind = BlockType(kind);
        let order = match kind {
            BlockType::SECTION_HEADER if magic == BYTE_ORDER => self.order,
            BlockType::SECTION_HEADER if magic.swap_bytes() == BYTE_ORDER => self.order.other(),
            BlockType::SECTION_HEADER => return Framing::No,
            _ => self.order,
        };
        let [_, length] = order.words(bytes).unwrap_or_default();
        if !is_registered(kind) || !is_sane(kind, length) || length > MAX_RESYNC_BLOCK {
            return Framing::No;
        }
        match bytes.get(..length as usize).map(<[u8]>::last_chunk) {
            None => Framing::Needs(length as usize),
            Some(Some(tail)) if order.u32(*tail) == length => {
                Framing::Whole(order, Block { kind, length })
            }
            Some(_) => Framing::No,
        }
    }

    /// Whether a whole block can be read: packets name an interface that is known, and fit.
    fn is_usable(&self, bytes: &[u8], block: Block) -> bool {
        let knows = |id: u32| matches!(self.interfaces.get(id as usize), Some(Some(_)));
        match block.kind {
            BlockType::ENHANCED_PACKET | BlockType::PACKET => {
                let Some([_, _, id, _, _, captured]) = self.order.words(bytes) else {
                    return false;
                };
                let id = match block.kind {
                    BlockType::PACKET => self.order.split(id)[0].into(),
                    _ => id,
                };
                knows(id) && captured <= block.length.saturating_sub(PACKET_HEADER + LENGTH)
            }
            BlockType::SIMPLE_PACKET => knows(0),
            _ => true,
        }
    }
}

/// Returns the fields of a packet block that has a time and options.
fn enhanced(block: &[u8], order: ByteOrder) -> Option<[u32; 6]> {
    let words: [u32; 6] = order.words(block)?;
    let kind = BlockType(words[0]);
    matches!(kind, BlockType::ENHANCED_PACKET | BlockType::PACKET).then_some(words)
}

/// The time stamp of a packet's block.
pub(super) fn packet_ticks(block: &[u8], order: ByteOrder) -> Option<u64> {
    let [_, _, _, high, low, _] = enhanced(block, order)?;
    Some(u64::from(high) << 32 | u64::from(low))
}

/// The options of a packet's block.
pub(super) fn packet_options(block: &[u8], order: ByteOrder) -> &[u8] {
    let Some([.., captured]) = enhanced(block, order) else { return &[] };
    let start = (PACKET_HEADER as usize).saturating_add((captured as usize).next_multiple_of(4));
    let end = block.len().saturating_sub(LENGTH as usize);
    block.get(start..end).unwrap_or_default()
}

/// Result of reading a position as a block.
enum Framing {
    /// A block whose two lengths agree, and its byte order.
    Whole(ByteOrder, Block),
    /// No block.
    No,
    /// Number of bytes that are needed to tell.
    Needs(usize),
}

/// Whether a block of this type can be this long.
fn is_sane(kind: BlockType, length: u32) -> bool {
    length >= least(kind) && length.is_multiple_of(4)
}

/// Whether programs write blocks of this type: those of the specification, of sysdig, of custom
/// data.
fn is_registered(kind: BlockType) -> bool {
    matches!(kind.0, 1..=10 | 0x0201..=0x0225 | 0x0bad | 0x4000_0bad)
        || kind == BlockType::SECTION_HEADER
}

/// Reads a section header. Tells its byte order, and whether it promises closing statistics.
fn section_header<R: Read>(buffer: &mut Buffer<R>) -> Result<(ByteOrder, bool), Error> {
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
    let is_promised = promises_end(buffer, order, length)?;
    skip(buffer, order, Block { kind: BlockType::SECTION_HEADER, length })?;
    Ok((order, is_promised))
}

/// Whether the options of the section header at the front of the buffer promise closing statistics.
fn promises_end<R: Read>(
    buffer: &mut Buffer<R>,
    order: ByteOrder,
    length: u32,
) -> Result<bool, Error> {
    // Longer ones are of other programs.
    const LOOKED_AT_MAX: usize = 4096;
    let size = length as usize;
    if size > LOOKED_AT_MAX {
        return Ok(false);
    }
    let end = size.saturating_sub(LENGTH as usize);
    let options = buffer.want(size)?.get(SECTION_HEADER..end).unwrap_or_default();
    let mut comments = Options::new(options, order).comments();
    Ok(comments.any(|comment| comment == END_PROMISE))
}

/// Loads all of a packet or an interface description to the front of the buffer, once its lengths
/// are found to be sound, and tells its first words.
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

/// Returns the range of the captured bytes in a packet block, after `header`.
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

/// Returns the clock of the interface description at `offset` by its options.
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
/// A comment, a text.
pub(super) const OPTION_COMMENT: u16 = 1;
/// Option of a packet: flags, the lowest two of which tell the direction.
pub(super) const OPTION_FLAGS: u16 = 2;
/// Option of a section: the program that wrote it, a text.
pub(super) const OPTION_PROGRAM: u16 = 4;
/// `isb_ifrecv`: packets that the interface received, eight bytes.
pub(super) const OPTION_RECEIVED: u16 = 4;
/// `isb_ifdrop`: packets of them that are not in the capture, eight bytes.
pub(super) const OPTION_DROPPED: u16 = 5;
/// `isb_osdrop`: packets that the operating system dropped, eight bytes.
const OPTION_DROPPED_BY_SYSTEM: u16 = 7;
/// `if_name`, a text.
pub(super) const OPTION_NAME: u16 = 2;
/// `if_tsresol`: one byte, the length of a tick.
pub(super) const OPTION_TSRESOL: u16 = 9;
/// `if_tsoffset`: eight bytes, the seconds to add to every time stamp.
pub(super) const OPTION_TSOFFSET: u16 = 14;

/// A comment of a section's header, by which a capture promises that interface statistics follow
/// its last packet.
pub(super) const END_PROMISE: &str =
    "Interface statistics close this capture. Without them it was cut.";

/// The length of a block's length.
const LENGTH: u32 = 4;
/// A block's type and its first length.
const BLOCK_HEADER: usize = 8;
/// Bytes before the options of a section header.
const SECTION_HEADER: usize = 24;
/// Bytes before the options of an interface description.
const INTERFACE_HEADER: usize = 16;
/// Bytes before the options of interface statistics.
const STATISTICS_HEADER: usize = 20;
/// Longest block of interface statistics that is read.
const STATISTICS_MAX: usize = 4096;
/// Bytes before the packet in an enhanced or obsolete packet block.
pub(super) const PACKET_HEADER: u32 = 28;
/// Bytes before the packet in a simple packet block.
const SIMPLE_HEADER: u32 = 12;
