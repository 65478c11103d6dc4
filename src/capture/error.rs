//! Errors of captures, with their positions, in words a user understands.

use core::fmt;
use std::io;
use std::path::PathBuf;

/// Error of opening or reading a capture.
///
/// Every variant but [`Error::Open`] says where; see [`Error::offset`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },

    /// The source could not be read.
    #[error("cannot read on at {offset}")]
    Io {
        /// Position that reading had reached.
        offset: Offset,
        /// Error of the system.
        source: io::Error,
    },

    /// The file is empty.
    #[error("{} empty: nothing at offset 0", offset.subject())]
    Empty {
        /// Always the start.
        offset: Offset,
    },

    /// The first bytes are those of no capture format.
    #[error("{} not a pcap or pcapng capture: offset 0 has {}{}",
        offset.subject(), Hex(*magic), hint(*magic))]
    NotACapture {
        /// Always the start.
        offset: Offset,
        /// The first four bytes.
        magic: [u8; 4],
    },

    /// The format is known, this version of it is not.
    #[error("{format} version {major}.{minor} at {offset} is not supported")]
    Version {
        /// Offset of the header.
        offset: Offset,
        /// `pcap` or `pcapng`.
        format: &'static str,
        /// The part before the dot.
        major: u16,
        /// The part after the dot.
        minor: u16,
    },

    /// The data end in the middle of something. All records before it were delivered.
    #[error("{part} cut at {offset}: need {need} bytes, have {have}")]
    Cut {
        /// Offset of the part that is cut.
        offset: Offset,
        /// Part that is cut.
        part: Part,
        /// Number of bytes of that part: all of it if the header that tells is there, else that
        /// header.
        need: u64,
        /// Number of bytes that are left.
        have: u64,
    },

    /// A record claims more captured bytes than any packet has.
    #[error("record at {offset} claims {claim} captured bytes, the limit is {limit}")]
    RecordTooLong {
        /// Offset of the record.
        offset: Offset,
        /// Length in its header.
        claim: u32,
        /// [`MAX_CAPTURED`](super::MAX_CAPTURED).
        limit: u32,
    },

    /// A record's header is that of no packet, and no sound record follows it. Only a lenient
    /// reader looks so closely.
    #[error("record at {offset} has {reason}, and no record follows it")]
    Implausible {
        /// Offset of the record.
        offset: Offset,
        /// Fault of its header.
        reason: &'static str,
    },

    /// Damage that a lenient reader has passed over. The next record, if there is one, comes from
    /// behind it.
    #[error("{cause}: skipped {bytes} bytes{}", reads_on(*offset, *bytes, *at_end))]
    Skipped {
        /// Offset of the damage.
        offset: Offset,
        /// Number of bytes that were skipped.
        bytes: u64,
        /// Whether no sound record was found behind it.
        at_end: bool,
        /// Error at its start.
        cause: Box<Self>,
    },

    /// A section header's byte-order magic is that of neither byte order.
    #[error("section header at {offset} has byte-order magic {magic:#010x} instead of 0x1a2b3c4d")]
    ByteOrder {
        /// Offset of the section header.
        offset: Offset,
        /// Value in its place, read as big-endian.
        magic: u32,
    },

    /// A block claims more bytes than are held in memory for its type.
    #[error("{block} at {offset} claims {claim} bytes, the limit is {limit}")]
    BlockTooLong {
        /// Offset of the block.
        offset: Offset,
        /// Type of the block.
        block: BlockType,
        /// Total length in its header.
        claim: u32,
        /// [`MAX_BLOCK`](super::MAX_BLOCK).
        limit: u32,
    },

    /// A block's length leaves no room for the fields its type must have.
    #[error("{block} at {offset} claims {claim} bytes, it needs at least {least}")]
    BlockTooShort {
        /// Offset of the block.
        offset: Offset,
        /// Type of the block.
        block: BlockType,
        /// Total length in its header.
        claim: u32,
        /// The least its type can have.
        least: u32,
    },

    /// A block's length is not a multiple of four.
    #[error("{block} at {offset} claims {claim} bytes, which is not a multiple of 4")]
    BlockUnaligned {
        /// Offset of the block.
        offset: Offset,
        /// Type of the block.
        block: BlockType,
        /// Total length in its header.
        claim: u32,
    },

    /// A block's two lengths, one at either end, differ.
    #[error("{block} at {offset} starts with length {head} but ends with length {tail}")]
    BlockLengths {
        /// Offset of the block.
        offset: Offset,
        /// Type of the block.
        block: BlockType,
        /// The length at its start.
        head: u32,
        /// The length at its end.
        tail: u32,
    },

    /// A packet block claims more captured bytes than the block itself has.
    #[error("{block} at {offset} claims {claim} captured bytes, it has room for {room}")]
    CapturedTooLong {
        /// Offset of the block.
        offset: Offset,
        /// Type of the block.
        block: BlockType,
        /// Captured length in its header.
        claim: u32,
        /// Number of bytes that are left of the block after its other fields.
        room: u32,
    },

    /// A packet names an interface that its section has not described.
    #[error("{block} at {offset} names interface {interface}, {}", described(*known))]
    UnknownInterface {
        /// Offset of the block.
        offset: Offset,
        /// Type of the block.
        block: BlockType,
        /// Number of the interface.
        interface: u32,
        /// Number of interfaces that the section had described by then; they count from 0.
        known: usize,
    },

    /// A section describes more interfaces than are remembered.
    #[error("interface description at {offset} is one more than the limit of {limit}")]
    TooManyInterfaces {
        /// Offset of the block.
        offset: Offset,
        /// [`MAX_INTERFACES`](super::MAX_INTERFACES).
        limit: usize,
    },

    /// An interface description's options, which tell how to read time stamps, make no sense.
    #[error("interface description at {offset}: option {code} claims {claim} bytes, {expected}")]
    BadOption {
        /// Offset of the block.
        offset: Offset,
        /// The option's number: 9 is `if_tsresol`, 14 is `if_tsoffset`.
        code: u16,
        /// Length of the option.
        claim: u16,
        /// Length that it should have had.
        expected: OptionLength,
    },

    /// The gzip data are damaged. What could be decompressed before was delivered.
    #[error("gzip data damaged at {offset}: {reason}")]
    Gzip {
        /// Position that decompression had reached.
        offset: Offset,
        /// Fault of the data.
        reason: &'static str,
    },

    /// The zstd data are damaged. What could be decompressed before was delivered.
    #[error("zstd data damaged at {offset}: {reason}")]
    Zstd {
        /// Position that decompression had reached.
        offset: Offset,
        /// Error of the decoder.
        reason: &'static str,
    },

    /// A zstd frame needs a larger window than is allowed.
    #[error(
        "zstd frame at {offset} needs a window of more than {} MiB; decompress it first with \
         `zstd -d --long=31`", limit >> 20
    )]
    ZstdWindow {
        /// Position that decompression had reached.
        offset: Offset,
        /// The largest window that is decoded, in bytes.
        limit: u64,
    },

    /// The compressed data end before their own end mark: the file is cut.
    #[error("{compression} data cut at {offset}: the file ends before they do")]
    CompressedCut {
        /// Position that decompression had reached.
        offset: Offset,
        /// Kind of compression.
        compression: Compression,
    },
}

impl Error {
    /// Returns the position in the capture, or `None` if it was never opened.
    pub fn offset(&self) -> Option<Offset> {
        Some(match *self {
            Self::Open { .. } => return None,
            Self::Io { offset, .. }
            | Self::Empty { offset }
            | Self::NotACapture { offset, .. }
            | Self::Version { offset, .. }
            | Self::Cut { offset, .. }
            | Self::RecordTooLong { offset, .. }
            | Self::Implausible { offset, .. }
            | Self::Skipped { offset, .. }
            | Self::ByteOrder { offset, .. }
            | Self::BlockTooLong { offset, .. }
            | Self::BlockTooShort { offset, .. }
            | Self::BlockUnaligned { offset, .. }
            | Self::BlockLengths { offset, .. }
            | Self::CapturedTooLong { offset, .. }
            | Self::UnknownInterface { offset, .. }
            | Self::TooManyInterfaces { offset, .. }
            | Self::BadOption { offset, .. }
            | Self::Gzip { offset, .. }
            | Self::Zstd { offset, .. }
            | Self::ZstdWindow { offset, .. }
            | Self::CompressedCut { offset, .. } => offset,
        })
    }

    /// Whether this is damage that was passed over, so that the reader reads on.
    pub fn is_skipped(&self) -> bool {
        matches!(self, Self::Skipped { .. })
    }

    /// Whether records may follow what is wrong: it is in the capture's own structure, not in the
    /// source beneath.
    pub(super) fn is_in_structure(&self) -> bool {
        match self {
            Self::Open { .. }
            | Self::Io { .. }
            | Self::Empty { .. }
            | Self::NotACapture { .. }
            | Self::Gzip { .. }
            | Self::Zstd { .. }
            | Self::ZstdWindow { .. }
            | Self::CompressedCut { .. }
            | Self::Skipped { .. } => false,
            Self::Version { .. }
            | Self::Cut { .. }
            | Self::RecordTooLong { .. }
            | Self::Implausible { .. }
            | Self::ByteOrder { .. }
            | Self::BlockTooLong { .. }
            | Self::BlockTooShort { .. }
            | Self::BlockUnaligned { .. }
            | Self::BlockLengths { .. }
            | Self::CapturedTooLong { .. }
            | Self::UnknownInterface { .. }
            | Self::TooManyInterfaces { .. }
            | Self::BadOption { .. } => true,
        }
    }

    /// Whether the capture merely ends too early, as one does whose writer was killed.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::CompressedCut { .. })
    }
}

/// A place in a capture, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Number of bytes before the position.
    pub bytes: u64,
    /// Whether they are counted after decompression, so that no such place exists in the file
    /// itself.
    pub decompressed: bool,
}

impl Offset {
    /// The place this many bytes further on.
    fn forward(self, bytes: u64) -> Self {
        Self { bytes: self.bytes.saturating_add(bytes), ..self }
    }

    /// Returns the stream that is being read, as the subject of a sentence.
    fn subject(self) -> &'static str {
        if self.decompressed { "the decompressed data are" } else { "the file is" }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.decompressed { " of the decompressed data" } else { "" };
        write!(f, "offset {}{of}", self.bytes)
    }
}

/// Part of a capture that can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The header at the start of a pcap.
    FileHeader,
    /// A record of a pcap.
    Record,
    /// A block of a pcapng.
    Block,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FileHeader => "file header",
            Self::Record => "record",
            Self::Block => "block",
        })
    }
}

/// Compression of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

/// Expected length of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionLength {
    /// Fixed length.
    Exactly(u16),
    /// No more than is left of the block.
    AtMost(usize),
}

impl fmt::Display for OptionLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(length) => write!(f, "it has {length}"),
            Self::AtMost(length) => write!(f, "its block has {length} left"),
        }
    }
}

/// The type of a pcapng block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockType(pub u32);

impl BlockType {
    /// The start of a section, the same in both byte orders.
    pub const SECTION_HEADER: Self = Self(0x0a0d_0d0a);
    /// Describes the section's next interface.
    pub const INTERFACE_DESCRIPTION: Self = Self(1);
    /// The obsolete form of a packet.
    pub const PACKET: Self = Self(2);
    /// A packet without time stamp or options.
    pub const SIMPLE_PACKET: Self = Self(3);
    /// Counts of an interface, behind its packets.
    pub const INTERFACE_STATISTICS: Self = Self(5);
    /// A packet.
    pub const ENHANCED_PACKET: Self = Self(6);
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::SECTION_HEADER => "section header",
            Self::INTERFACE_DESCRIPTION => "interface description",
            Self::PACKET => "obsolete packet block",
            Self::SIMPLE_PACKET => "simple packet block",
            Self::INTERFACE_STATISTICS => "interface statistics",
            Self::ENHANCED_PACKET => "enhanced packet block",
            Self(number) => return write!(f, "block of type {number:#x}"),
        })
    }
}

/// Describes the position at which reading continues behind damage.
fn reads_on(offset: Offset, bytes: u64, at_end: bool) -> String {
    if at_end {
        ", up to the end".to_owned()
    } else {
        format!(", the next record is at {}", offset.forward(bytes))
    }
}

/// Four bytes as `0a 0d 0d 0a`.
struct Hex([u8; 4]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a:02x} {b:02x} {c:02x} {d:02x}")
    }
}

/// Returns advice for a file of another kind that people mistake for a capture.
fn hint(magic: [u8; 4]) -> &'static str {
    match &magic {
        [0xfd, b'7', b'z', b'X'] => "; it is xz, decompress it first",
        [b'B', b'Z', b'h', _] => "; it is bzip2, decompress it first",
        [0x04, 0x22, 0x4d, 0x18] => "; it is lz4, decompress it first",
        [b'P', b'K', 3, 4] => "; it is a zip archive, unpack it first",
        [0xa1, 0xb2, 0xcd, 0x34] | [0x34, 0xcd, 0xb2, 0xa1] => {
            "; it is a \"modified\" pcap, convert it with `editcap`"
        }
        b"snoo" => "; it is a snoop capture, convert it with `editcap`",
        b"GMBU" | b"RTSS" => "; it is a Network Monitor capture, convert it with `editcap`",
        _ => "",
    }
}

/// Describes the number of interfaces.
fn described(known: usize) -> String {
    match known {
        0 => "before any was described".to_owned(),
        1 => "only interface 0 was described".to_owned(),
        _ => format!("only interfaces 0 to {} were described", known - 1),
    }
}
