//! Several captures as one, in the order of time.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Read;

use super::batch::Batch;
use super::error::Error;
use super::reader::{Packet, Reader, Record};
use crate::time::Instant;

/// Merges captures by time, and lends their records one by one.
///
/// Records of equal times come in the order of the files. A file's own records keep their order:
/// one that goes back in time comes right behind its predecessor, and so does one without a time
/// stamp (a simple packet block of a pcapng). [`Record::file`] is the position of its reader in the
/// list that was given, and [`Record::number`] counts in the merged stream.
///
/// No packet is copied, and one record per file is held ahead, in that file's own buffer. A single
/// file costs what its [`Reader`] costs.
///
/// ```
/// use roce::capture::{LinkType, Merge, PcapWriter, Reader};
/// use roce::time::Instant;
///
/// let file = |times: &[u64]| {
///     let mut writer = PcapWriter::new(Vec::new(), LinkType::ETHERNET).unwrap();
///     for &time in times {
///         writer.write(Instant::from_nanos(time), 60, &[0; 60]).unwrap();
///     }
///     writer.into_inner()
/// };
/// let (a, b) = (file(&[1, 5]), file(&[2, 5, 7]));
/// let mut merge = Merge::new([Reader::new(&a[..])?, Reader::new(&b[..])?]);
/// let mut seen = Vec::new();
/// while let Some(record) = merge.next()? {
///     seen.push((record.time.unwrap().as_nanos(), record.file));
/// }
/// assert_eq!(seen, [(1, 0), (2, 1), (5, 0), (5, 1), (7, 1)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Merge<R> {
    inputs: Vec<Input<R>>,
    /// The inputs that have a record ahead, all but the current one, earliest first.
    queue: BinaryHeap<Reverse<Key>>,
    /// Number of inputs, from the front, that were asked for their first record.
    started: u32,
    /// The input whose record was lent last: its next one is not known yet.
    current: Option<u32>,
    delivered: u64,
    /// Error that ended a batch: the next thing that is reported.
    failed: Option<MergeError>,
}

/// Sort key of inputs: the time of the record ahead, then the position of the input.
type Key = (Instant, u32);

#[derive(Debug)]
struct Input<R> {
    reader: Reader<R>,
    /// The next record, found and not yet lent.
    ahead: Option<Packet>,
    /// Time of the record; if it has none, that of the record before it.
    time: Instant,
}

/// Error of one of several merged captures.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct MergeError {
    /// The position of its reader in the list that was merged.
    pub file: u32,
    /// The error.
    pub error: Error,
}

impl<R: Read> Merge<R> {
    /// Merges `readers`. Nothing is read before the first record is asked for.
    ///
    /// Each reader should be at its start: records that it has already lent are not seen again.
    pub fn new(readers: impl IntoIterator<Item = Reader<R>>) -> Self {
        let input = |reader| Input { reader, ahead: None, time: Instant::ZERO };
        Self {
            inputs: readers.into_iter().map(input).collect(),
            queue: BinaryHeap::new(),
            started: 0,
            current: None,
            delivered: 0,
            failed: None,
        }
    }

    /// The earliest record that was not yet lent, or nothing at the end of all files.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Reader::next`] with the position of the file. An error ends at most
    /// its own file: ask again, and the others go on.
    #[expect(clippy::should_implement_trait, reason = "as with `Reader::next`, records are lent")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, MergeError> {
        while (self.started as usize) < self.inputs.len() {
            if let Some(key) = self.find(self.started)? {
                self.queue.push(Reverse(key));
            }
            self.started += 1;
        }
        let next = match self.current {
            Some(file) => {
                let found = self.find(file)?;
                self.current = None;
                self.earliest(found)
            }
            None => self.queue.pop().map(|Reverse((_, file))| file),
        };
        let Some(file) = next else { return Ok(None) };
        self.current = Some(file);
        let Some(input) = self.inputs.get_mut(file as usize) else { return Ok(None) };
        let Some(packet) = input.ahead.take() else { return Ok(None) };
        self.delivered += 1;
        let record = input.reader.lend(packet);
        Ok(Some(Record { number: self.delivered, file, ..record }))
    }

    /// Fills `batch` with the next records of all files; returns `false` at their end.
    ///
    /// No packet of a single file is copied; those of several files are copied into the batch. It
    /// waits until the batch is full: a program that follows a live capture asks for one record at
    /// a time.
    ///
    /// # Errors
    ///
    /// As [`Merge::next`]: all records before the damage have been delivered, and asking again goes
    /// on.
    pub fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, MergeError> {
        if let Some(error) = self.failed.take() {
            batch.clear();
            return Err(error);
        }
        if let [Input { reader, ahead: None, .. }] = self.inputs.as_mut_slice() {
            let filled = reader.next_batch(batch);
            self.delivered += batch.len() as u64;
            return filled.map_err(|error| MergeError { file: 0, error });
        }
        batch.clear();
        while !batch.is_full() {
            match self.next() {
                Ok(Some(record)) => batch.push(&record),
                Ok(None) => break,
                Err(error) if batch.is_empty() => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Ok(!batch.is_empty())
    }

    /// Finds the next record of an input. Does not lose its place if there is an error: to ask
    /// again reads on.
    #[inline]
    fn find(&mut self, file: u32) -> Result<Option<Key>, MergeError> {
        let Some(input) = self.inputs.get_mut(file as usize) else { return Ok(None) };
        input.ahead = input.reader.find().map_err(|error| MergeError { file, error })?;
        Ok(input.ahead.as_ref().map(|packet| {
            input.time = packet.time.unwrap_or(input.time);
            (input.time, file)
        }))
    }

    /// Returns the index of the next input, if the current one continues with `found`.
    #[inline]
    fn earliest(&mut self, found: Option<Key>) -> Option<u32> {
        let Some(mut first) = self.queue.peek_mut() else { return found.map(|(_, file)| file) };
        match found {
            Some(key) if key < first.0 => Some(key.1),
            // The current one waits in the place of the one that goes on.
            Some(key) => Some(core::mem::replace(&mut *first, Reverse(key)).0.1),
            None => Some(std::collections::binary_heap::PeekMut::pop(first).0.1),
        }
    }
}

impl<R> Merge<R> {
    /// The readers that are merged, in the order in which they were given.
    pub fn readers(&self) -> impl ExactSizeIterator<Item = &Reader<R>> {
        self.inputs.iter().map(|input| &input.reader)
    }

    /// Bytes read from all files so far, before any decompression.
    pub fn bytes_read(&self) -> u64 {
        self.readers().map(Reader::bytes_read).sum()
    }
}
