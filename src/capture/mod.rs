//! Packet captures: pcap and pcapng, in and out.
//!
//! A [`Reader`] takes any source of bytes (a file, a pipe), recognizes by their first bytes what
//! they are, and lends one [`Record`] after the other:
//!
//! ```
//! use roce::capture::{LinkType, PcapngWriter, Reader};
//! use roce::time::Instant;
//!
//! // A capture of one packet, of which 3 of 60 bytes were kept.
//! let mut writer = PcapngWriter::new(Vec::new())?;
//! let eth0 = writer.add_interface(LinkType::ETHERNET, "eth0")?;
//! writer.write(eth0, Instant::from_nanos(1_794_701_211_597_306_001), 60, &[1, 2, 3])?;
//! let file: Vec<u8> = writer.into_inner();
//!
//! let mut reader = Reader::new(file.as_slice())?;
//! while let Some(record) = reader.next()? {
//!     assert_eq!(record.number, 1);
//!     assert_eq!(record.time.unwrap().to_string(), "1794701211.597306001");
//!     assert_eq!((record.link, record.interface), (LinkType::ETHERNET, Some(eth0)));
//!     assert_eq!((record.len, record.data), (60, &[1, 2, 3][..]));
//! }
//! assert_eq!(reader.bytes_read(), file.len() as u64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it is built
//!
//! ```text
//! Read ─► Source ─────────► Buffer ─────────► Pcap | Pcapng ─► Reader ─► Record<'_>
//!         plain, gzip,      one allocation,   where the next
//!         zstd              filled in place   record is
//! ```
//!
//! - `decompress` turns the file into plain bytes, and counts what it has read of it
//!   ([`Progress`]).
//! - `buffer` holds a stretch of those bytes. The source reads straight into it and records are
//!   slices of it, so that a packet is copied once: by the kernel or by the decompressor.
//! - `pcap` and `pcapng` find the next record in the buffer. They compute; they never copy or
//!   allocate per record. `clock` turns ticks of any length into nanoseconds, without rounding
//!   twice.
//! - `reader` picks the parser and lends the record.
//! - `batch` hands out many records at once, with the memory they are in, to programs that decode
//!   on several cores.
//! - `merge` lends the records of several readers in the order of time: [`Merge`].
//! - `write` is the way back: [`PcapngWriter`] and [`PcapWriter`]. `copy` writes packets of other
//!   captures as they stood there, with their interfaces and comments: [`Copier`].
//!
//! Two promises hold for any input. Memory is bounded: no number in a file sizes an allocation, and
//! `limits` lists every bound. And nothing good is lost to something bad: whatever is wrong, every
//! record before it comes out first, and then one [`Error`] says what, where, and by how much.
//! There a reader ends, unless it is [lenient](Reader::lenient): then it searches for the next
//! sound record (`resync`) and reads on.
//!
//! # What is read
//!
//! Classic pcap 2.4 with micro- or nanoseconds; pcapng 1.0 with any number of sections, the
//! enhanced, the simple and the obsolete packet block, `if_tsresol` and `if_tsoffset`; either in
//! both byte orders. Plain, or compressed with gzip (any number of members) or zstd (any number of
//! frames).

#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod batch;
mod buffer;
mod byte_order;
mod clock;
mod copy;
mod decompress;
mod error;
mod limits;
mod merge;
mod options;
mod pcap;
mod pcapng;
mod reader;
mod resync;
mod write;

pub use batch::Batch;
pub use copy::{Copier, Lost};
pub use decompress::Progress;
pub use error::{BlockType, Compression, Error, Offset, OptionLength, Part};
pub use limits::{
    MAX_BLOCK, MAX_CAPTURED, MAX_INTERFACE_OPTIONS, MAX_INTERFACES, MAX_WRITTEN,
    MAX_ZSTD_WINDOW_LOG,
};
pub use merge::{Merge, MergeError};
pub use options::{Interface, Options, Surroundings};
pub use reader::{Format, InterfaceId, Reader, Record, open};
pub use write::{Direction, PcapWriter, PcapngWriter, WriteError};

pub use crate::wire::LinkType;
