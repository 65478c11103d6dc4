//! Decompression of captures: plain, gzip or zstd.
//!
//! The decoders of `flate2` and `zstd` that implement [`Read`] drop what they had decoded in the
//! very call that meets damage. Here the framing is done by hand around their cores, so that
//! everything before the damage comes out first: to the byte for gzip, to the block (128 KiB) for
//! zstd.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::{Crc, Decompress, FlushDecompress, Status};
use zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer};

use super::error::{Compression, Error, Offset};
use super::limits::{COMPRESSED_SIZE, MAX_ZSTD_WINDOW_LOG};

/// Number of bytes that a [`Reader`](super::Reader) has read from its source, for a progress bar.
///
/// Clones share the count, so one of them can live in another thread.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Bytes read so far, before any decompression: comparable with the size of the file.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The decompressed bytes of a file.
pub(super) enum Source<R> {
    Plain(Raw<R>),
    Gzip(Box<Gzip<BufReader<Raw<R>>>>),
    Zstd(Box<Zstd<BufReader<Raw<R>>>>),
}

/// The bytes that were looked at to recognize the compression, then the rest.
type Raw<R> = Chain<Cursor<Vec<u8>>, Counted<R>>;

impl<R: Read> Source<R> {
    /// Recognizes the compression by its magic number.
    pub(super) fn recognize(source: R, progress: Progress) -> Result<Self, Fault> {
        let mut counted = Counted { source, progress };
        let mut head = Vec::new();
        counted.by_ref().take(4).read_to_end(&mut head)?;
        let compression = compression(&head);
        let raw = Cursor::new(head).chain(counted);
        let buffered = |raw| BufReader::with_capacity(COMPRESSED_SIZE, raw);
        Ok(match compression {
            None => Self::Plain(raw),
            Some(Compression::Gzip) => Self::Gzip(Box::new(Gzip::new(buffered(raw)))),
            Some(Compression::Zstd) => Self::Zstd(Box::new(Zstd::new(buffered(raw))?)),
        })
    }

    /// Like [`Read::read`]: some bytes, or 0 at the end.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        match self {
            Self::Plain(raw) => Ok(raw.read(out)?),
            Self::Gzip(gzip) => gzip.read(out),
            Self::Zstd(zstd) => zstd.read(out),
        }
    }
}

impl<R> Source<R> {
    #[inline]
    pub(super) fn compression(&self) -> Option<Compression> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(_) => Some(Compression::Gzip),
            Self::Zstd(_) => Some(Compression::Zstd),
        }
    }
}

/// Reason for which no more bytes come; an [`Error`] that does not know yet where it is.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    Gzip(&'static str),
    Zstd(&'static str),
    ZstdWindow,
    Cut(Compression),
}

impl Fault {
    pub(super) fn at(self, offset: Offset) -> Error {
        match self {
            Self::Io(source) => Error::Io { offset, source },
            Self::Gzip(reason) => Error::Gzip { offset, reason },
            Self::Zstd(reason) => Error::Zstd { offset, reason },
            Self::ZstdWindow => Error::ZstdWindow { offset, limit: 1 << MAX_ZSTD_WINDOW_LOG },
            Self::Cut(compression) => Error::CompressedCut { offset, compression },
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Counts what is read, and tries again what a signal interrupted.
pub(super) struct Counted<R> {
    source: R,
    progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.source.read(out) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.progress.0.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(count);
                }
            }
        }
    }
}

/// A gzip file: members one after the other (RFC 1952).
pub(super) struct Gzip<B> {
    input: B,
    inflate: Decompress,
    check: Crc,
    stage: GzipStage,
}

/// Next part of a gzip file.
#[derive(Clone, Copy)]
enum GzipStage {
    /// A member's header, or the end.
    Header,
    /// Deflate data.
    Body,
    /// The check value and the length of the member.
    Trailer,
    /// No part: the deflate data are damaged.
    Damaged,
}

impl<B: BufRead> Gzip<B> {
    fn new(input: B) -> Self {
        Self { input, inflate: Decompress::new(false), check: Crc::new(), stage: GzipStage::Header }
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.stage {
                GzipStage::Header => {
                    if self.input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    self.read_header()?;
                    self.inflate.reset(false);
                    self.check.reset();
                    self.stage = GzipStage::Body;
                }
                GzipStage::Body => match self.read_body(out)? {
                    0 => {}
                    count => return Ok(count),
                },
                GzipStage::Trailer => {
                    self.read_trailer()?;
                    self.stage = GzipStage::Header;
                }
                GzipStage::Damaged => return Err(Fault::Gzip("invalid deflate data")),
            }
        }
    }

    /// One step of inflation. Damage is told by the next call: what was decoded before it is good.
    fn read_body(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let input = self.input.fill_buf()?;
        if input.is_empty() {
            return Err(Fault::Cut(Compression::Gzip));
        }
        let (in_before, out_before) = (self.inflate.total_in(), self.inflate.total_out());
        let result = self.inflate.decompress(input, out, FlushDecompress::None);
        let used = self.inflate.total_in() - in_before;
        let made = self.inflate.total_out() - out_before;
        let in_len = input.len();
        self.input.consume(usize::try_from(used).unwrap_or(in_len).min(in_len));
        let made = usize::try_from(made).unwrap_or(out.len()).min(out.len());
        self.check.update(out.get(..made).unwrap_or_default());
        match result {
            Ok(Status::StreamEnd) => self.stage = GzipStage::Trailer,
            // With input and room for output given, standing still means damage.
            Ok(_) if used == 0 && made == 0 => self.stage = GzipStage::Damaged,
            Ok(_) => {}
            Err(_) => self.stage = GzipStage::Damaged,
        }
        Ok(made)
    }

    fn read_header(&mut self) -> Result<(), Fault> {
        const EXTRA: u8 = 1 << 2;
        const NAME: u8 = 1 << 3;
        const COMMENT: u8 = 1 << 4;
        const HEADER_CHECK: u8 = 1 << 1;
        const RESERVED: u8 = 0xe0;

        let [id1, id2, method, flags, ..] = self.bytes::<10>()?;
        if [id1, id2] != [0x1f, 0x8b] {
            return Err(Fault::Gzip("something else follows the compressed data"));
        }
        if method != 8 {
            return Err(Fault::Gzip("unknown compression method"));
        }
        if flags & RESERVED != 0 {
            return Err(Fault::Gzip("unknown flags"));
        }
        if flags & EXTRA != 0 {
            for _ in 0..u16::from_le_bytes(self.bytes()?) {
                let [_] = self.bytes()?;
            }
        }
        for text in [NAME, COMMENT] {
            while flags & text != 0 && self.bytes()? != [0] {}
        }
        if flags & HEADER_CHECK != 0 {
            // Not checked: it protects nothing that is used, and gzip(1) ignored it for decades.
            let [_, _] = self.bytes()?;
        }
        Ok(())
    }

    fn read_trailer(&mut self) -> Result<(), Fault> {
        if u32::from_le_bytes(self.bytes()?) != self.check.sum() {
            return Err(Fault::Gzip("the checksum does not match"));
        }
        if u32::from_le_bytes(self.bytes()?) != self.check.amount() {
            return Err(Fault::Gzip("the length does not match"));
        }
        Ok(())
    }

    /// The next `N` bytes of the file.
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Fault::Cut(Compression::Gzip))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A zstd file: frames one after the other (RFC 8878), some of them skippable.
pub(super) struct Zstd<B> {
    input: B,
    context: DCtx<'static>,
    /// Number of bytes of input that the decoder expects next; 0 between frames.
    hint: usize,
    /// Whether the decoder may still hold output, because the last call filled all the room it had.
    pending: bool,
}

impl<B: BufRead> Zstd<B> {
    fn new(input: B) -> Result<Self, Fault> {
        let out_of_memory = || Fault::Io(io::ErrorKind::OutOfMemory.into());
        let mut context = DCtx::try_create().ok_or_else(out_of_memory)?;
        context.set_parameter(DParameter::WindowLogMax(MAX_ZSTD_WINDOW_LOG)).map_err(zstd_fault)?;
        Ok(Self { input, context, hint: 0, pending: false })
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if self.pending {
            let (_, made) = step(&mut self.context, &mut self.hint, &[], out)?;
            self.pending = made == out.len();
            if made > 0 {
                return Ok(made);
            }
        }
        loop {
            let input = self.input.fill_buf()?;
            if input.is_empty() {
                return match self.hint {
                    0 => Ok(0),
                    _ => Err(Fault::Cut(Compression::Zstd)),
                };
            }
            let input = input.get(..portion(self.hint)).unwrap_or(input);
            let (used, made) = step(&mut self.context, &mut self.hint, input, out)?;
            self.input.consume(used);
            self.pending = made == out.len();
            if made > 0 {
                return Ok(made);
            }
        }
    }
}

/// One call of the decoder: how much input it used, how much output it made, and a new hint.
fn step(
    context: &mut DCtx<'static>,
    hint: &mut usize,
    input: &[u8],
    out: &mut [u8],
) -> Result<(usize, usize), Fault> {
    let mut input = InBuffer::around(input);
    let mut output = OutBuffer::around(out);
    *hint = context.decompress_stream(&mut output, &mut input).map_err(zstd_fault)?;
    Ok((input.pos(), output.pos()))
}

/// Returns the number of bytes to give the decoder in one call, so that a call decodes one block or
/// one header and damage in the next takes nothing with it.
fn portion(hint: usize) -> usize {
    /// The shortest frame header with its magic number, which is where a frame starts.
    const FRAME_START: usize = 5;
    /// A hint includes the header of the block after the one it is about, if there may be one.
    const BLOCK_HEADER: usize = 3;
    match hint {
        0 => FRAME_START,
        1..=BLOCK_HEADER => hint,
        _ => hint - BLOCK_HEADER,
    }
}

/// The meaning of the decoder's error code: a small number, negated.
fn zstd_fault(code: usize) -> Fault {
    /// `ZSTD_error_frameParameter_windowTooLarge`, whose value zstd promises to keep.
    const WINDOW_TOO_LARGE: usize = 16;
    match code.wrapping_neg() {
        WINDOW_TOO_LARGE => Fault::ZstdWindow,
        _ => Fault::Zstd(zstd_safe::get_error_name(code)),
    }
}

/// The compression whose magic number `head` is.
fn compression(head: &[u8]) -> Option<Compression> {
    match head {
        [0x1f, 0x8b, ..] => Some(Compression::Gzip),
        // A frame, or a skippable frame, which is what `pzstd` starts its files with.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Some(Compression::Zstd),
        _ => None,
    }
}
