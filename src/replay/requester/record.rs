//! Request packets that a requester transmitted.

use super::credits::MessageNumber;
use crate::analysis::RethFacts;
use crate::observe::transmissions::{Sent, Transmissions};
use crate::wire::{Opcode, OpcodeInfo, Operation, Position};

/// One request packet.
pub(super) type Record = Sent<Marks>;

/// Facts of a packet beside its transmissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// READ: the path MTU is not known, and the PSN of the next packet told the span.
    pub(super) is_span_guessed: bool,
    pub(super) opcode: Opcode,
    /// Broke a rule, so nothing follows from it.
    pub(super) is_broken: bool,
    pub(super) is_cut: bool,
    /// A digest of all that a retransmission must repeat.
    pub(super) digest: u64,
    pub(super) reth: Option<RethFacts>,
    /// WRITE: where the message begins and how long it is, if that is known.
    pub(super) write: Option<(u64, u32)>,
    /// Its message, and how many of those before that take no receive.
    pub(super) message: MessageNumber,
    /// READ, ATOMIC, FLUSH: behind the last response that came in order.
    pub(super) answered: u64,
}

impl Record {
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

/// Records, with gaps where packets were not captured.
impl Transmissions<Marks> {
    /// Returns the first record from `sequence` on whose response is not complete.
    pub(super) fn first_unanswered(&self, sequence: u64) -> Option<&Record> {
        self.from(sequence).find(|record| record.is_unanswered())
    }
}
