//! The reader: recognizes what a stream is, and lends its records one by one.

use core::fmt;
use core::ops::Range;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::LinkType;
use super::buffer::Buffer;
use super::decompress::{Progress, Source};
use super::error::{BlockType, Compression, Error, Offset, Part};
use super::limits::BUFFER_SIZE;
use super::options::{Interface, Surroundings};
use super::pcap::Pcap;
use super::pcapng::Pcapng;
use crate::time::Instant;

/// Reads the records of a capture from any source of bytes, front to back.
///
/// The format and the compression are recognized by their first bytes. The reader does its own
/// buffering: give it a plain [`File`], not a `BufReader`.
pub struct Reader<R> {
    pub(super) buffer: Buffer<R>,
    format: Parser,
    progress: Progress,
    /// Number of records that were delivered.
    pub(super) delivered: u64,
    /// Whether the end, or an error that ends the capture, was reported.
    done: bool,
    /// Packet or error that was found when a batch was full: the next thing that is found.
    pub(super) ahead: Option<Result<Packet, Error>>,
    /// Whether damage is passed over.
    lenient: bool,
}

/// One captured packet, lent by its [`Reader`] until the next is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Index of the file among several merged ones, from 0 in the order in which they were given; 0
    /// if there is one.
    pub file: u32,
    /// Number in the capture, from 1 as Wireshark's `frame.number` is (which also counts the custom
    /// blocks and journal entries of a pcapng).
    pub number: u64,
    /// Offset of the record in the file.
    pub offset: Offset,
    /// Time of capture, in nanoseconds since the Unix epoch.
    ///
    /// Nothing for a simple packet block of a pcapng, which has no time stamp.
    pub time: Option<Instant>,
    /// Link-layer type: meaning of the first byte.
    pub link: LinkType,
    /// Length of the packet on the wire.
    ///
    /// More than `data` holds if the capture cut packets short; less only if the file lies.
    pub len: u32,
    /// Captured bytes.
    pub data: &'a [u8],
    /// The section of a pcapng it is in, counted from 0; always 0 in a pcap.
    pub section: u32,
    /// The interface it was captured on; nothing in a pcap, which does not tell.
    pub interface: Option<InterfaceId>,
    /// Fields around it in a pcapng, for a program that copies it. Records of a
    /// [`Batch`](super::Batch) have none.
    pub around: Surroundings<'a>,
}

impl<'a> Record<'a> {
    /// A record of a frame of which all that is known are its link type and its bytes, for a
    /// program that has frames and no capture.
    pub fn frame(link: LinkType, data: &'a [u8]) -> Self {
        Self {
            file: 0,
            number: 1,
            offset: Offset { bytes: 0, decompressed: false },
            time: None,
            link,
            len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            data,
            section: 0,
            interface: None,
            around: Surroundings::default(),
        }
    }
}

/// The number of an interface: its place among the descriptions of its section, counted from 0.
///
/// Sections number their interfaces anew, so across a whole file only the pair of
/// [`Record::section`] and this names one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u32);

impl From<InterfaceId> for u32 {
    fn from(id: InterfaceId) -> Self {
        id.0
    }
}

impl fmt::Display for InterfaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The format of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Classic pcap, with micro- or nanoseconds.
    Pcap,
    /// pcapng.
    Pcapng,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcap => "pcap",
            Self::Pcapng => "pcapng",
        })
    }
}

/// Opens the capture at `path`. No path is special: `-` is a file of that name.
pub fn open(path: &Path) -> Result<Reader<File>, Error> {
    let file = File::open(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
    Reader::new(file)
}

impl<R: Read> Reader<R> {
    /// Recognizes what `source` holds and reads its header.
    pub fn new(source: R) -> Result<Self, Error> {
        let progress = Progress::default();
        let start = Offset { bytes: 0, decompressed: false };
        let source =
            Source::recognize(source, progress.clone()).map_err(|fault| fault.at(start))?;
        let mut buffer = Buffer::new(source);
        let format = Parser::recognize(&mut buffer)?;
        let (delivered, done, lenient) = (0, false, false);
        Ok(Self { buffer, format, progress, delivered, done, ahead: None, lenient })
    }

    /// Returns the reader as one that skips damage in the capture's structure and reads on.
    ///
    /// It then searches for the next sound record (its lengths and its time are those of a packet,
    /// and further such records follow it), and reports what it skipped as [`Error::Skipped`]. It
    /// also judges each record of a pcap by its neighbors, and so finds damage that a strict reader
    /// hands out as a packet. On a live source, a suspect record may wait for its followers.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        match &mut self.format {
            Parser::Pcap(pcap) => pcap.be_lenient(),
            Parser::Pcapng(pcapng) => pcapng.be_lenient(),
        }
        self
    }

    /// The next record, or nothing at the end.
    ///
    /// # Errors
    ///
    /// All records before the damage have been delivered by then. Every error is reported once, and
    /// then the end, `Ok(None)`, for ever; but after an [`Error::Skipped`], which only a
    /// [lenient](Self::lenient) reader reports, more records may come. So a loop that goes on until
    /// `Ok(None)` reads all there is.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot lend what it owns, and copying each packet would cost more than reading it"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        Ok(self.find()?.map(|packet| self.lend(packet)))
    }

    /// Finds the next record, which is then at the front of the buffer; nothing is consumed before
    /// it is lent.
    #[inline]
    pub(super) fn find(&mut self) -> Result<Option<Packet>, Error> {
        if let Some(ahead) = self.ahead.take() {
            return ahead.map(Some);
        }
        if self.done {
            return Ok(None);
        }
        let found = match &mut self.format {
            Parser::Pcap(pcap) => pcap.next(&mut self.buffer),
            Parser::Pcapng(pcapng) => pcapng.next(&mut self.buffer),
        };
        match found {
            Ok(Some(packet)) => return Ok(Some(packet)),
            Err(error) if self.lenient && error.is_in_structure() => {
                return Err(self.resync(error));
            }
            Ok(None) | Err(_) => self.done = true,
        }
        found
    }

    /// Finds the next record if the record or block is in the buffer as a whole; else returns
    /// `None`, and reads nothing.
    ///
    /// A record that must be judged by its followers, or that stands behind other blocks, may still
    /// take a read.
    #[inline]
    pub(super) fn find_buffered(&mut self) -> Result<Option<Packet>, Error> {
        let bytes = self.buffer.available();
        let is_whole = match &mut self.format {
            Parser::Pcap(pcap) => {
                if let Some(packet) = pcap.sound_record(bytes) {
                    return Ok(Some(packet));
                }
                pcap.is_whole(bytes)
            }
            Parser::Pcapng(pcapng) => pcapng.is_whole(bytes),
        };
        if is_whole { self.find() } else { Ok(None) }
    }

    /// Passes over the damage that `cause` tells of, up to the next sound record or the end. Tells
    /// what was skipped; if the capture merely ends too early, that.
    #[cold]
    fn resync(&mut self, cause: Error) -> Error {
        let offset = cause.offset().unwrap_or_else(|| self.buffer.offset());
        let found = match &mut self.format {
            Parser::Pcap(pcap) => pcap.resync(&mut self.buffer),
            Parser::Pcapng(pcapng) => pcapng.resync(&mut self.buffer),
        };
        let at_end = match found {
            Ok(true) => false,
            Ok(false) if cause.is_cut() => {
                self.done = true;
                return cause;
            }
            Ok(false) => {
                self.done = true;
                self.buffer.take(BUFFER_SIZE);
                true
            }
            // The next read returns the error of the source.
            Err(error) => {
                self.done = true;
                return error;
            }
        };
        let bytes = self.buffer.offset().bytes.saturating_sub(offset.bytes);
        Error::Skipped { offset, bytes, at_end, cause: Box::new(cause) }
    }

    /// Lends the record that [`Reader::find`] has found last.
    #[inline]
    pub(super) fn lend(&mut self, packet: Packet) -> Record<'_> {
        self.delivered += 1;
        let offset = self.buffer.offset();
        let block = self.buffer.take(packet.size);
        let around = match &self.format {
            Parser::Pcap(_) => Surroundings::default(),
            Parser::Pcapng(pcapng) => {
                let (order, interfaces) = pcapng.section();
                Surroundings { block: Some((block, order)), interfaces }
            }
        };
        Record {
            file: 0,
            number: self.delivered,
            offset,
            time: packet.time,
            link: packet.link,
            len: packet.len,
            section: packet.section,
            interface: packet.interface,
            data: block.get(packet.data).unwrap_or_default(),
            around,
        }
    }
}

impl<R> Reader<R> {
    /// The link type of the packets of a pcap; of a pcapng, that of the first interface of the
    /// current section.
    pub fn link(&self) -> Option<LinkType> {
        match &self.format {
            Parser::Pcap(pcap) => Some(pcap.link()),
            Parser::Pcapng(pcapng) => Some(pcapng.section().1.first()?.as_ref()?.link),
        }
    }

    /// The section that was reached, and the interfaces it has described so far; nothing in a pcap.
    pub(super) fn interfaces(&self) -> Option<(u32, &[Option<Interface>])> {
        match &self.format {
            Parser::Pcap(_) => None,
            Parser::Pcapng(pcapng) => Some((pcapng.section_number(), pcapng.section().1)),
        }
    }

    /// Whether all is read and the capture was cut: it promised a closing block, as
    /// [`PcapngWriter::closing`](super::PcapngWriter::closing) does, and has none.
    pub fn is_unclosed(&self) -> bool {
        match &self.format {
            Parser::Pcap(_) => false,
            Parser::Pcapng(pcapng) => self.done && pcapng.is_unclosed(),
        }
    }

    /// Returns the number of packets that the capture says it dropped, by what was read so far; 0
    /// for a pcap, which does not tell.
    pub fn dropped(&self) -> u64 {
        match &self.format {
            Parser::Pcap(_) => 0,
            Parser::Pcapng(pcapng) => pcapng.dropped(),
        }
    }

    /// Returns the format.
    pub fn format(&self) -> Format {
        match self.format {
            Parser::Pcap(_) => Format::Pcap,
            Parser::Pcapng(_) => Format::Pcapng,
        }
    }

    /// The compression that was recognized, if there is one.
    pub fn compression(&self) -> Option<Compression> {
        self.buffer.compression()
    }

    /// Bytes read from the source so far, before any decompression.
    pub fn bytes_read(&self) -> u64 {
        self.progress.bytes()
    }

    /// Returns the number of bytes read, to be watched by another thread while the reader works.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("format", &self.format)
            .field("compression", &self.compression())
            .field("delivered", &self.delivered)
            .finish_non_exhaustive()
    }
}

/// A record at the front of the buffer, whose bytes are not yet borrowed.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) time: Option<Instant>,
    pub(super) link: LinkType,
    pub(super) len: u32,
    pub(super) section: u32,
    pub(super) interface: Option<InterfaceId>,
    /// Range of the packet in its block.
    pub(super) data: Range<usize>,
    /// Length of the record with everything that belongs to it.
    pub(super) size: usize,
}

/// Parser of a format.
#[derive(Debug)]
enum Parser {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

impl Parser {
    fn recognize<R: Read>(buffer: &mut Buffer<R>) -> Result<Self, Error> {
        const MAGIC: usize = 4;
        let offset = buffer.offset();
        let bytes = buffer.want(MAGIC)?;
        let Some(&magic) = bytes.first_chunk::<MAGIC>() else {
            let (need, have) = (MAGIC as u64, bytes.len() as u64);
            return Err(match have {
                0 => Error::Empty { offset },
                _ => Error::Cut { offset, part: Part::FileHeader, need, have },
            });
        };
        if let Some(kind) = Pcap::recognize(magic) {
            return Pcap::new(buffer, kind).map(Self::Pcap);
        }
        if magic == BlockType::SECTION_HEADER.0.to_be_bytes() {
            return Pcapng::new(buffer).map(Self::Pcapng);
        }
        Err(Error::NotACapture { offset, magic })
    }
}
