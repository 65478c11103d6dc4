//! The table of messages: one row per message.
//!
//! A message ends before it is known which connection it belongs to: its queue pair may be paired
//! later. So messages are kept in a file beside the table until the report is there, at 80 bytes
//! each.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use roce::analysis::{
    Connection, End, Endpoint, FlowNumber, Message, Outcome, Report, operation_name, service_name,
};
use roce::decode::address_text;
use roce::time::Instant;

use super::column::Kind;
use super::row::{Cell, Definition, add_row, columns, define_columns};
use super::table::{Rows, Table};
use crate::outfile;

/// A message and its connection.
pub(super) struct MessageRow<'a> {
    connection: Option<&'a Connection>,
    /// End of the connection that is the requester.
    requester: End,
    record: Record,
    words: &'a [&'static str],
}

/// The columns.
pub(super) fn definitions<'a>() -> [Definition<MessageRow<'a>>; 23] {
    define_columns! { |row|
        Int "flow": row.connection.map(|found| found.flow.0);
        Text "connection": row.connection.map(Connection::key);
        Text "service": row.connection.map(|found| service_name(found.service));
        Text "operation": row.word(OPERATION);
        Bool "immediate": row.record[FLOW] >> 40 & 1 == 1;
        Text "requester": row.address(row.requester);
        Int "requester_qpn": row.qpn(row.requester);
        Text "responder": row.address(row.requester.other());
        Int "responder_qpn": row.qpn(row.requester.other());
        Int "bytes": row.record[BYTES];
        Int "first_psn": row.record[PSNS] & 0xffff_ffff;
        Int "last_psn": row.record[PSNS] >> 32;
        Int "first_frame": row.record[FIRST_FRAME];
        Time "start_time": row.record[START];
        Int "start_time_epoch": row.record[START];
        Int "end_frame": Some(row.record[END_FRAME]).filter(|&frame| frame != 0);
        Time "end_time": row.end();
        Int "end_time_epoch": row.end();
        Int "latency_ns": row.end().map(|end| end.saturating_sub(row.record[START]));
        Int "retransmitted_packets": row.record[PACKETS_AGAIN];
        Int "retransmitted_bytes": row.record[BYTES_AGAIN];
        Text "outcome": row.word(OUTCOME);
        Text "nak": Some(row.word(NAK)).filter(|word| !word.is_empty());
    }
}

impl MessageRow<'_> {
    fn word(&self, shift: u32) -> &'static str {
        let position = usize::try_from(self.record[WORDS] >> shift & 0xffff).unwrap_or(0);
        self.words.get(position).copied().unwrap_or_default()
    }

    fn party(&self, side: End) -> Option<&Endpoint> {
        self.connection.map(|connection| &connection.ends[side])
    }

    fn address(&self, side: End) -> Cell {
        self.party(side).map(|end| address_text(end.address)).into()
    }

    fn qpn(&self, side: End) -> Cell {
        self.party(side).and_then(|end| end.qpn).map(|qpn| qpn.get()).into()
    }

    fn end(&self) -> Option<u64> {
        Some(self.record[END]).filter(|&end| end != NEVER)
    }
}

/// The numbers of a message in the file.
type Record = [u64; 10];

/// Indices into a [`Record`]. The number at `FLOW` has the requester from bit 32 on, and the
/// immediate in bit 40.
const FLOW: usize = 0;
const WORDS: usize = 1;
const BYTES: usize = 2;
const PSNS: usize = 3;
const FIRST_FRAME: usize = 4;
const START: usize = 5;
const END_FRAME: usize = 6;
const END: usize = 7;
const PACKETS_AGAIN: usize = 8;
const BYTES_AGAIN: usize = 9;

/// Shifts of the positions of words in the number at [`WORDS`].
const OPERATION: u32 = 0;
const OUTCOME: u32 = 16;
const NAK: u32 = 32;

/// Value for a missing time.
const NEVER: u64 = u64::MAX;

/// Number of rows that are handed to the table at once.
const ROWS: usize = 4096;

/// Messages in a file, until their connections are known.
pub(super) struct Spool {
    /// The folder that it is in, for errors.
    folder: PathBuf,
    file: BufWriter<File>,
    /// Words that occur in messages; messages have their positions.
    words: Vec<&'static str>,
    /// Error of writing a message.
    failed: Option<io::Error>,
}

impl Spool {
    /// Creates the file, which has no name, in a folder.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let file = outfile::scratch(folder);
        let file = file.with_context(|| format!("cannot write to {}", folder.display()))?;
        let folder = folder.to_owned();
        Ok(Self { folder, file: BufWriter::new(file), words: vec![""], failed: None })
    }

    pub(super) fn add(&mut self, message: &Message) {
        let nak = match message.outcome {
            Outcome::Refused(nak) => nak.name(),
            _ => "",
        };
        let words = [operation_name(message.operation), message.outcome.name(), nak];
        let [operation, outcome, nak] = words.map(|word| self.position(word));
        let mut record = Record::default();
        record[FLOW] = u64::from(message.flow.0)
            | (message.requester as u64) << 32
            | u64::from(message.immediate) << 40;
        record[WORDS] = operation << OPERATION | outcome << OUTCOME | nak << NAK;
        record[BYTES] = message.bytes;
        record[PSNS] = u64::from(message.first_psn.get()) | u64::from(message.last_psn.get()) << 32;
        record[FIRST_FRAME] = message.first_frame;
        record[START] = message.start.as_nanos();
        record[END_FRAME] = message.end_frame.unwrap_or(0);
        record[END] = message.end.map_or(NEVER, Instant::as_nanos);
        record[PACKETS_AGAIN] = message.retransmitted_packets.into();
        record[BYTES_AGAIN] = message.retransmitted_bytes;
        for number in record {
            if let Err(error) = self.file.write_all(&number.to_le_bytes()) {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn position(&mut self, word: &'static str) -> u64 {
        let found = self.words.iter().position(|known| *known == word);
        let position = found.unwrap_or_else(|| {
            self.words.push(word);
            self.words.len() - 1
        });
        position as u64
    }

    /// Writes the rows of all messages.
    pub(super) fn finish(mut self, report: &Report, table: &mut Table) -> Result<()> {
        let context = || format!("cannot write to {}", self.folder.display());
        if let Some(error) = self.failed.take() {
            return Err(error).with_context(context);
        }
        self.file.flush().with_context(context)?;
        let mut file = BufReader::new(self.file.get_ref());
        file.rewind().with_context(context)?;
        let definitions = definitions();
        let mut rows: Rows = columns(&definitions);
        while let Some(record) = read(&mut file).with_context(context)? {
            add_row(&mut rows, &self.row(record, report), &definitions);
            if rows.len() >= ROWS {
                table.append(&mut rows)?;
            }
        }
        table.append(&mut rows)
    }

    fn row<'a>(&'a self, record: Record, report: &'a Report) -> MessageRow<'a> {
        let provisional = u32::try_from(record[FLOW] & 0xffff_ffff).unwrap_or(0);
        let sender = End::A.exchanged_if(record[FLOW] >> 32 & 1 == 1);
        let flow = report.flow_of(FlowNumber(provisional));
        // Connections are in the order of their numbers.
        let find = |flow| report.connections.binary_search_by_key(&flow, |found| found.flow).ok();
        let connection = flow.and_then(|(flow, _)| report.connections.get(find(flow)?));
        let exchanged = flow.is_some_and(|(_, exchanged)| exchanged);
        let requester = sender.exchanged_if(exchanged);
        MessageRow { connection, requester, record, words: &self.words }
    }
}

/// The next message of the file, or nothing at its end.
fn read(file: &mut impl Read) -> io::Result<Option<Record>> {
    let mut bytes = [0; size_of::<Record>()];
    match file.read_exact(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut record = Record::default();
    for (number, bytes) in record.iter_mut().zip(bytes.as_chunks().0) {
        *number = u64::from_le_bytes(*bytes);
    }
    Ok(Some(record))
}
