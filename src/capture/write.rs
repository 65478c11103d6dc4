//! Writers: pcapng for several interfaces, classic pcap for one. Both with nanoseconds.
//!
//! Both write little-endian, so that the same packets give the same file on every machine.

use std::io::{self, Write};

use super::InterfaceId;
use super::LinkType;
use super::error::BlockType;
use super::limits::{MAX_INTERFACES, MAX_WRITTEN};
use super::{pcap, pcapng};
use crate::time::Instant;

/// Error of writing a packet. Unless it is [`WriteError::Io`], nothing was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The bytes could not be written; some of a record may have been.
    #[error("cannot write the capture")]
    Io(#[from] io::Error),

    /// Other programs would refuse to read a packet of this length.
    #[error("a packet of {length} bytes cannot be written, the limit is {MAX_WRITTEN}")]
    TooLong {
        /// Number of captured bytes.
        length: usize,
    },

    /// Classic pcap counts seconds in 32 bits, which end in 2106.
    #[error("time {time} does not fit into a pcap; a pcapng can hold it")]
    TooLate {
        /// Time that does not fit.
        time: Instant,
    },

    /// The packet's interface was not added to this writer.
    #[error("interface {0} was never added to this capture")]
    UnknownInterface(InterfaceId),

    /// The packet has another link type than the file; a pcap has one.
    #[error(
        "a packet is of link type {other}, those before it of {first}; a pcap holds one link type, a pcapng any"
    )]
    LinkTypes {
        /// Link-layer type of the file.
        first: LinkType,
        /// Link-layer type of the packet.
        other: LinkType,
    },

    /// The maximum number of interfaces, which is as many as a reader remembers.
    #[error("a capture cannot have more than {MAX_INTERFACES} interfaces")]
    TooManyInterfaces,

    /// An option has at most 65 535 bytes.
    #[error(
        "an option of {length} bytes (a name, say) cannot be written, the limit is {}",
        u16::MAX
    )]
    NameTooLong {
        /// Length of the name.
        length: usize,
    },
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

impl Direction {
    /// The lowest byte of a packet's flags in a pcapng.
    const fn flag(self) -> u8 {
        match self {
            Self::Inbound => 1,
            Self::Outbound => 2,
        }
    }
}

/// Writer of a pcapng of one section.
///
/// Each packet is a few small writes: give it a [`BufWriter`](std::io::BufWriter), and
/// [`flush`](PcapngWriter::flush) it.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    sink: W,
    interfaces: Vec<Written>,
}

/// Packets of an interface that were written.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    packets: u64,
    /// The time of the last one, as the interface counts it.
    last_ticks: u64,
}

impl<W: Write> PcapngWriter<W> {
    /// Starts a capture that has no interfaces yet.
    pub fn new(sink: W) -> Result<Self, WriteError> {
        Self::start(sink, &[])
    }

    /// Starts a capture that is to be closed by [`close`](Self::close). Its header promises that:
    /// where the closing block is missing, readers know that the capture was cut
    /// ([`Reader::is_unclosed`](super::Reader::is_unclosed)).
    pub fn closing(sink: W) -> Result<Self, WriteError> {
        let mut options = Vec::new();
        push_option(&mut options, pcapng::OPTION_COMMENT, pcapng::END_PROMISE.as_bytes())?;
        let program = concat!("roce ", env!("CARGO_PKG_VERSION"));
        push_option(&mut options, pcapng::OPTION_PROGRAM, program.as_bytes())?;
        push_option(&mut options, pcapng::OPTION_END, &[])?;
        Self::start(sink, &options)
    }

    fn start(mut sink: W, options: &[u8]) -> Result<Self, WriteError> {
        let mut body = Vec::new();
        body.extend(pcapng::BYTE_ORDER.to_le_bytes());
        body.extend(1_u16.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        // The length of the section is not known yet.
        body.extend((-1_i64).to_le_bytes());
        body.extend(options);
        write_block(&mut sink, BlockType::SECTION_HEADER, &body)?;
        Ok(Self { sink, interfaces: Vec::new() })
    }

    /// Writes the closing block: statistics of each interface, with the packets that were written,
    /// and those that were seen and could not be (`missed`, of the first interface).
    pub fn close(&mut self, missed: u64) -> Result<(), WriteError> {
        for (id, written) in (0_u32..).zip(&self.interfaces) {
            let missed = if id == 0 { missed } else { 0 };
            let [a, b, c, d, e, f, g, h] = written.last_ticks.to_be_bytes();
            let (high, low) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
            let mut body = Vec::new();
            body.extend([id, high, low].map(u32::to_le_bytes).as_flattened());
            let seen = written.packets.saturating_add(missed);
            push_option(&mut body, pcapng::OPTION_RECEIVED, &seen.to_le_bytes())?;
            push_option(&mut body, pcapng::OPTION_DROPPED, &missed.to_le_bytes())?;
            push_option(&mut body, pcapng::OPTION_END, &[])?;
            write_block(&mut self.sink, BlockType::INTERFACE_STATISTICS, &body)?;
        }
        self.flush()
    }

    /// Adds an interface, at any time before its first packet. An empty name is left out.
    pub fn add_interface(&mut self, link: LinkType, name: &str) -> Result<InterfaceId, WriteError> {
        const NO_SNAPLEN: u32 = 0;
        const NANOSECONDS: u8 = 9;
        let mut options = Vec::new();
        if !name.is_empty() {
            push_option(&mut options, pcapng::OPTION_NAME, name.as_bytes())?;
        }
        push_option(&mut options, pcapng::OPTION_TSRESOL, &[NANOSECONDS])?;
        push_option(&mut options, pcapng::OPTION_END, &[])?;
        self.add_described(link, NO_SNAPLEN, &options)
    }

    /// Adds an interface with its options, which are padded and ended.
    pub(super) fn add_described(
        &mut self,
        link: LinkType,
        snaplen: u32,
        options: &[u8],
    ) -> Result<InterfaceId, WriteError> {
        let id = match u32::try_from(self.interfaces.len()) {
            Ok(id) if self.interfaces.len() < MAX_INTERFACES => InterfaceId(id),
            _ => return Err(WriteError::TooManyInterfaces),
        };
        let mut body = Vec::new();
        body.extend(link.0.to_le_bytes());
        body.extend([0, 0]);
        body.extend(snaplen.to_le_bytes());
        body.extend(options);
        write_block(&mut self.sink, BlockType::INTERFACE_DESCRIPTION, &body)?;
        self.interfaces.push(Written::default());
        Ok(id)
    }

    /// Writes a packet that had `len` bytes on the wire, of which `data` were captured.
    pub fn write(
        &mut self,
        interface: InterfaceId,
        time: Instant,
        len: u32,
        data: &[u8],
    ) -> Result<(), WriteError> {
        self.write_with(interface, time.as_nanos(), len, data, &[])
    }

    /// Writes a whole packet with its direction.
    pub fn write_directed(
        &mut self,
        interface: InterfaceId,
        time: Instant,
        direction: Direction,
        data: &[u8],
    ) -> Result<(), WriteError> {
        let len = captured(data)?;
        let [code, end] = [pcapng::OPTION_FLAGS, pcapng::OPTION_END].map(u16::to_le_bytes);
        let [[c0, c1], [e0, e1]] = [code, end];
        let options = [c0, c1, 4, 0, direction.flag(), 0, 0, 0, e0, e1, 0, 0];
        self.write_with(interface, time.as_nanos(), len, data, &options)
    }

    /// Writes a whole packet with its direction and a comment.
    pub fn write_commented(
        &mut self,
        interface: InterfaceId,
        time: Instant,
        direction: Direction,
        data: &[u8],
        comment: &str,
    ) -> Result<(), WriteError> {
        let len = captured(data)?;
        let mut options = Vec::new();
        push_option(&mut options, pcapng::OPTION_COMMENT, comment.as_bytes())?;
        push_option(&mut options, pcapng::OPTION_FLAGS, &[direction.flag(), 0, 0, 0])?;
        push_option(&mut options, pcapng::OPTION_END, &[])?;
        self.write_with(interface, time.as_nanos(), len, data, &options)
    }

    /// Writes a packet with its time, as its interface counts it, and its options, which are padded
    /// and ended.
    pub(super) fn write_with(
        &mut self,
        interface: InterfaceId,
        ticks: u64,
        len: u32,
        data: &[u8],
        options: &[u8],
    ) -> Result<(), WriteError> {
        let Some(written) = self.interfaces.get_mut(interface.0 as usize) else {
            return Err(WriteError::UnknownInterface(interface));
        };
        let captured = captured(data)?;
        *written = Written { packets: written.packets + 1, last_ticks: ticks };
        let [a, b, c, d, e, f, g, h] = ticks.to_be_bytes();
        let (high, low) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        // At most MAX_WRITTEN, and options of a block that was read.
        let behind = u32::try_from(options.len() + 4).map_err(io::Error::other)?;
        let length = pcapng::PACKET_HEADER + captured.next_multiple_of(4) + behind;
        let kind = BlockType::ENHANCED_PACKET.0;
        let header = [kind, length, interface.0, high, low, captured, len];
        self.sink.write_all(header.map(u32::to_le_bytes).as_flattened())?;
        self.sink.write_all(data)?;
        self.sink.write_all(padding(data.len()))?;
        self.sink.write_all(options)?;
        self.sink.write_all(&length.to_le_bytes())?;
        Ok(())
    }

    /// Passes on everything that a buffering sink still holds.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        Ok(self.sink.flush()?)
    }

    /// Returns the sink.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.sink
    }

    /// The sink, unflushed.
    pub fn into_inner(self) -> W {
        self.sink
    }
}

/// Writes a classic pcap.
///
/// Each packet is two small writes: give it a [`BufWriter`](std::io::BufWriter), and
/// [`flush`](PcapWriter::flush) it.
#[derive(Debug)]
pub struct PcapWriter<W> {
    sink: W,
}

impl<W: Write> PcapWriter<W> {
    /// Starts a capture whose packets all are of one link type.
    pub fn new(mut sink: W, link: LinkType) -> Result<Self, WriteError> {
        let (major, minor) = pcap::VERSION;
        let version = u32::from(minor) << 16 | u32::from(major);
        let (zone, accuracy) = (0, 0);
        let magic = pcap::MAGIC_NANOSECONDS;
        let header = [magic, version, zone, accuracy, MAX_WRITTEN, link.0.into()];
        sink.write_all(header.map(u32::to_le_bytes).as_flattened())?;
        Ok(Self { sink })
    }

    /// Writes a packet that had `len` bytes on the wire, of which `data` were captured.
    pub fn write(&mut self, time: Instant, len: u32, data: &[u8]) -> Result<(), WriteError> {
        let captured = captured(data)?;
        let (Ok(seconds), Ok(nanos)) =
            (u32::try_from(time.secs()), u32::try_from(time.subsec_nanos()))
        else {
            return Err(WriteError::TooLate { time });
        };
        let header = [seconds, nanos, captured, len];
        self.sink.write_all(header.map(u32::to_le_bytes).as_flattened())?;
        self.sink.write_all(data)?;
        Ok(())
    }

    /// Passes on everything that a buffering sink still holds.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        Ok(self.sink.flush()?)
    }

    /// The sink, unflushed.
    pub fn into_inner(self) -> W {
        self.sink
    }
}

/// The captured length, if others will read it.
fn captured(data: &[u8]) -> Result<u32, WriteError> {
    match u32::try_from(data.len()) {
        Ok(captured) if captured <= MAX_WRITTEN => Ok(captured),
        _ => Err(WriteError::TooLong { length: data.len() }),
    }
}

/// Writes a short block around a body whose length is a multiple of four.
fn write_block(sink: &mut impl Write, kind: BlockType, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 12).map_err(io::Error::other)?;
    sink.write_all(&kind.0.to_le_bytes())?;
    sink.write_all(&length.to_le_bytes())?;
    sink.write_all(body)?;
    sink.write_all(&length.to_le_bytes())
}

/// Appends an option, padded.
pub(super) fn push_option(body: &mut Vec<u8>, code: u16, value: &[u8]) -> Result<(), WriteError> {
    let too_long = |_| WriteError::NameTooLong { length: value.len() };
    let length = u16::try_from(value.len()).map_err(too_long)?;
    body.extend(code.to_le_bytes());
    body.extend(length.to_le_bytes());
    body.extend(value);
    body.extend(padding(value.len()));
    Ok(())
}

/// Returns the bytes that fill `length` bytes up to a multiple of four.
fn padding(length: usize) -> &'static [u8] {
    match length % 4 {
        1 => &[0; 3],
        2 => &[0; 2],
        3 => &[0; 1],
        _ => &[],
    }
}
