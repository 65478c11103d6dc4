//! Records in batches that own their bytes, for programs that decode on several cores.

use core::ops::Range;
use std::io::Read;

use super::LinkType;
use super::buffer::memory;
use super::error::{Error, Offset};
use super::limits::{BATCH_RECORDS, BUFFER_SIZE, READ_SIZE};
use super::options::Surroundings;
use super::reader::{InterfaceId, Reader, Record};
use crate::time::Instant;

/// Some consecutive records of a capture, with their bytes: what one thread decodes while another
/// reads on.
///
/// [`Reader::next_batch`] fills it with what one read of the source brought, and copies no packet.
/// A batch is made to be used again: its memory is kept.
///
/// ```
/// use roce::capture::{self, Batch};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut capture = capture::open("testdata/captures/rxe_cm.pcap".as_ref())?;
/// let (mut batch, mut packets) = (Batch::default(), 0);
/// while capture.next_batch(&mut batch)? {
///     packets += batch.records().filter(|record| record.len > 0).count();
/// }
/// assert_eq!(packets, 182);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Box<[u8]>,
    entries: Vec<Entry>,
    /// The number of the first record; those of the others follow it.
    first_number: u64,
    /// Number of bytes of `bytes` that hold copied records.
    copied: usize,
}

/// A record whose data are a range of the batch's bytes: a third of a [`Record`].
#[derive(Debug)]
struct Entry {
    time: Option<Instant>,
    /// The parts of its [`Offset`].
    offset: u64,
    decompressed: bool,
    link: LinkType,
    file: u32,
    len: u32,
    section: u32,
    interface: Option<InterfaceId>,
    /// Offset of the data in the batch's bytes, and their length: far below four gigabytes.
    start: u32,
    size: u32,
}

// One line of a cache.
const _: () = assert!(size_of::<Entry>() <= 64);

impl Entry {
    /// The entry of a record whose data are this range of the batch's bytes.
    #[inline]
    fn new(record: &Record<'_>, data: &Range<usize>) -> Self {
        let Record { file, offset, time, link, len, section, interface, .. } = *record;
        let Offset { bytes: offset, decompressed } = offset;
        let position = |at| u32::try_from(at).unwrap_or(u32::MAX);
        let (start, size) = (position(data.start), position(data.len()));
        Self { time, offset, decompressed, link, file, len, section, interface, start, size }
    }

    /// The record with this number, of the batch that has these bytes.
    #[inline]
    fn record<'a>(&self, number: u64, bytes: &'a [u8]) -> Record<'a> {
        let Self { time, offset, decompressed, link, file, len, section, interface, start, size } =
            *self;
        let offset = Offset { bytes: offset, decompressed };
        let start = start as usize;
        let data = bytes.get(start..start + size as usize).unwrap_or_default();
        let around = Surroundings::default();
        Record { file, number, offset, time, link, len, data, section, interface, around }
    }
}

impl Batch {
    /// The records, in the order of the capture.
    #[inline]
    pub fn records(&self) -> impl DoubleEndedIterator<Item = Record<'_>> + ExactSizeIterator {
        let number = |at| self.first_number + at as u64;
        let entries = self.entries.iter().enumerate();
        entries.map(move |(at, entry)| entry.record(number(at), &self.bytes))
    }

    /// Removes all records, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.copied = 0;
    }

    /// Whether the longest record might not fit any more, or there are records enough for a batch.
    pub(super) fn is_full(&self) -> bool {
        self.copied >= READ_SIZE || self.len() >= BATCH_RECORDS
    }

    /// Appends a copy of a record to a batch that is not full.
    pub(super) fn push(&mut self, record: &Record<'_>) {
        if self.bytes.len() < BUFFER_SIZE {
            self.bytes = memory();
        }
        let data = self.copied..self.copied + record.data.len();
        if let Some(room) = self.bytes.get_mut(data.clone()) {
            room.copy_from_slice(record.data);
        }
        self.copied = data.end;
        if self.is_empty() {
            self.first_number = record.number;
        }
        self.entries.push(Entry::new(record, &data));
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<R: Read> Reader<R> {
    /// Fills `batch` with the next records, as many as one read of the source brings; returns
    /// `false` at the end.
    ///
    /// It waits until the batch is full: a program that follows a live capture asks for one record
    /// at a time.
    ///
    /// # Errors
    ///
    /// As [`Reader::next`]: all records before the damage have been delivered by then.
    pub fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        batch.clear();
        self.buffer.go_on_in(core::mem::take(&mut batch.bytes));
        batch.first_number = self.delivered + 1;
        let filled = self.fill(&mut batch.entries);
        batch.bytes = self.buffer.hand_out();
        filled.map(|()| !batch.is_empty())
    }

    /// Adds the records that one read brings to `entries`: the first may take a read, the others
    /// are there.
    fn fill(&mut self, entries: &mut Vec<Entry>) -> Result<(), Error> {
        let mut found = self.find()?;
        self.buffer.pin();
        while let Some(packet) = found {
            let start = self.buffer.position();
            let data = start + packet.data.start..start + packet.data.end;
            entries.push(Entry::new(&self.lend(packet), &data));
            if entries.len() >= BATCH_RECORDS {
                break;
            }
            found = match self.find_buffered() {
                Ok(Some(packet)) if self.buffer.is_pinned() => Some(packet),
                Ok(None) => None,
                // It lies in other memory: what ends the batch is the first thing that the next
                // call comes upon.
                other => {
                    self.ahead = other.transpose();
                    None
                }
            };
        }
        Ok(())
    }
}
