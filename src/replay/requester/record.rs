//! Request packets that a requester transmitted.

use std::collections::VecDeque;

use crate::analysis::RethFacts;
use crate::wire::{Opcode, OpcodeInfo, Operation, Position};

/// One request packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Its sequence number: its PSN, counted on beyond 2^24.
    pub(super) sequence: u64,
    /// How many sequence numbers it takes: 1, or as many as a READ has responses.
    pub(super) span: u32,
    /// READ: the path MTU is not known, and the PSN of the next packet told the span.
    pub(super) is_span_guessed: bool,
    pub(super) opcode: Opcode,
    /// It broke a rule, so nothing follows from it.
    pub(super) is_broken: bool,
    pub(super) is_cut: bool,
    /// A digest of all that a retransmission must repeat.
    pub(super) digest: u64,
    pub(super) reth: Option<RethFacts>,
    /// WRITE: where the message begins and how long it is, if that is known.
    pub(super) write: Option<(u64, u32)>,
    /// Which message it belongs to, counted from the first one captured, and how many of those before it take no receive.
    pub(super) message: u32,
    pub(super) without_receive: u32,
    /// When it was transmitted last, the frame, and in which pass.
    pub(super) time: u64,
    pub(super) frame: u64,
    pub(super) pass: u32,
    pub(super) transmissions: u16,
    /// READ, ATOMIC, FLUSH: behind the last response that came in order.
    pub(super) answered: u64,
}

impl Record {
    /// The sequence number behind it.
    pub(super) const fn end(&self) -> u64 {
        self.sequence + self.span as u64
    }

    /// Whether a response of its own must come.
    pub(super) fn needs_response(&self) -> bool {
        self.opcode.info().is_some_and(needs_response)
    }

    /// Whether its response is not complete.
    pub(super) fn is_unanswered(&self) -> bool {
        self.needs_response() && self.answered < self.end()
    }

    /// The operation whose message goes on behind it, if one does.
    pub(super) fn open_message(&self) -> Option<Operation> {
        let info = self.opcode.info()?;
        matches!(info.position, Position::First | Position::Middle).then_some(info.operation)
    }
}

/// Whether a request is answered by more than an acknowledgement.
pub(super) fn needs_response(info: &OpcodeInfo) -> bool {
    info.operation.response().is_own()
}

/// Whether a request counts against the initiator depth.
pub(super) fn counts_as_read(info: &OpcodeInfo) -> bool {
    info.operation.counts_as_rd_atomic()
}

/// The packets of a requester in the order of their sequence numbers, with gaps where packets were not captured.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    ring: VecDeque<Record>,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn first(&self) -> Option<&Record> {
        self.ring.front()
    }

    pub(super) fn pop_first(&mut self) -> Option<Record> {
        self.ring.pop_front()
    }

    /// How many records begin at or before a sequence number.
    fn count_until(&self, sequence: u64) -> usize {
        match self.ring.back() {
            Some(last) if last.sequence <= sequence => return self.ring.len(),
            None => return 0,
            _ => {}
        }
        // Without READs and gaps each record is one sequence number.
        let first = self.ring.front().map_or(0, |first| first.sequence);
        let guess = sequence.checked_sub(first).and_then(|ahead| usize::try_from(ahead).ok());
        if let Some(guess) = guess
            && self.ring.get(guess).is_some_and(|record| record.sequence == sequence)
        {
            return guess + 1;
        }
        self.ring.partition_point(|record| record.sequence <= sequence)
    }

    /// The record that covers a sequence number.
    pub(super) fn get(&self, sequence: u64) -> Option<&Record> {
        let at = self.count_until(sequence).checked_sub(1)?;
        self.ring.get(at).filter(|record| sequence < record.end())
    }

    /// The record that covers a sequence number.
    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut Record> {
        let at = self.count_until(sequence).checked_sub(1)?;
        self.ring.get_mut(at).filter(|record| sequence < record.end())
    }

    /// The last record before a sequence number.
    pub(super) fn before(&self, sequence: u64) -> Option<&Record> {
        let at = sequence.checked_sub(1).map(|before| self.count_until(before))?;
        self.ring.get(at.checked_sub(1)?)
    }

    /// The first record behind a sequence number.
    pub(super) fn after(&self, sequence: u64) -> Option<&Record> {
        self.ring.get(self.count_until(sequence))
    }

    pub(super) fn insert(&mut self, record: Record) {
        let at = self.count_until(record.sequence);
        if at == self.ring.len() {
            self.ring.push_back(record);
        } else {
            self.ring.insert(at, record);
        }
    }

    /// Records that end behind a sequence number, in order.
    pub(super) fn from(&self, sequence: u64) -> impl Iterator<Item = &Record> {
        let start = self.ring.partition_point(|record| record.end() <= sequence);
        self.ring.range(start..)
    }

    /// The first record from `sequence` on whose response is not complete.
    pub(super) fn first_unanswered(&self, sequence: u64) -> Option<&Record> {
        self.from(sequence).find(|record| record.is_unanswered())
    }
}
