//! Records in batches that own their bytes, for programs that decode on several cores.

use core::ops::Range;
use std::io::Read;

use super::buffer::memory;
use super::error::Error;
use super::limits::{BATCH_RECORDS, BUFFER_SIZE, READ_SIZE};
use super::options::Surroundings;
use super::reader::{Reader, Record};

/// Some consecutive records of a capture, with their bytes: what one thread decodes while another reads on.
///
/// [`Reader::next_batch`] fills it with what one read of the source brought, and copies no packet. A batch is made to be
/// used again: its memory is kept.
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
    /// How much of `bytes` holds records that were copied.
    copied: usize,
}

/// A record whose data are a range of the batch's bytes.
#[derive(Debug)]
struct Entry {
    record: Record<'static>,
    data: Range<usize>,
}

impl Batch {
    /// The records, in the order of the capture.
    #[inline]
    pub fn records(&self) -> impl DoubleEndedIterator<Item = Record<'_>> + ExactSizeIterator {
        self.entries.iter().map(|entry| {
            let data = self.bytes.get(entry.data.clone()).unwrap_or_default();
            Record { data, ..entry.record }
        })
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
        self.entries.push(Entry { record: alone(record), data });
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// A record without all that it borrows.
#[inline]
fn alone(record: &Record<'_>) -> Record<'static> {
    let Record { file, number, offset, time, link, len, section, interface, .. } = *record;
    let (data, around) = (&[][..], Surroundings::default());
    Record { file, number, offset, time, link, len, section, interface, data, around }
}

impl<R: Read> Reader<R> {
    /// Fills `batch` with the next records, as many as one read of the source brings; returns `false` at the end.
    ///
    /// It waits until the batch is full: a program that follows a live capture asks for one record at a time.
    ///
    /// # Errors
    ///
    /// As [`Reader::next`]: all records before the damage have been delivered by then.
    pub fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        batch.clear();
        let mut found = self.find()?;
        if found.is_some() {
            self.buffer.pin(core::mem::take(&mut batch.bytes));
        }
        while let Some(packet) = found {
            let start = self.buffer.position();
            let data = start + packet.data.start..start + packet.data.end;
            let record = alone(&self.lend(packet));
            batch.entries.push(Entry { record, data });
            if batch.len() >= BATCH_RECORDS {
                break;
            }
            found = match self.find() {
                Ok(Some(packet)) if self.buffer.is_pinned() => Some(packet),
                // What ends the batch is the first thing that the next call comes upon.
                other => {
                    self.ahead = other.transpose();
                    None
                }
            };
        }
        if !batch.is_empty() {
            batch.bytes = self.buffer.unpin();
        }
        Ok(!batch.is_empty())
    }
}
