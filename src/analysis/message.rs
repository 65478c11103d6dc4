//! Messages: what a work request became on the wire.

use serde::Serialize;

use super::statistics::Distribution;
use super::{End, FlowNumber, serialize};
use crate::time::Instant;
use crate::wire::aeth::NakCode;
use crate::wire::{Operation, Psn};

/// A message, from its first packet to its completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Message {
    /// Connection of the message; see [`PacketNote::flow`](super::PacketNote::flow).
    pub flow: FlowNumber,
    /// End that is the requester.
    pub requester: End,
    /// Operation: SEND, WRITE, READ, CAS, FETCH_ADD, FLUSH, ATOMIC_WRITE.
    #[serde(serialize_with = "serialize::operation")]
    pub operation: Operation,
    /// Whether it carries immediate data.
    pub immediate: bool,
    /// Payload bytes; for a READ those that were requested.
    pub bytes: u64,
    /// First PSN.
    #[serde(serialize_with = "serialize::psn")]
    pub first_psn: Psn,
    /// Last PSN.
    #[serde(serialize_with = "serialize::psn")]
    pub last_psn: Psn,
    /// The frame of its first packet.
    pub first_frame: u64,
    /// Time of the first packet.
    #[serde(serialize_with = "serialize::instant")]
    pub start: Instant,
    /// The frame that ended it: the ACK, the last response, the fatal NAK; for UC and UD its last
    /// packet.
    pub end_frame: Option<u64>,
    /// Time of `end_frame`.
    #[serde(serialize_with = "serialize::instant_or_null")]
    pub end: Option<Instant>,
    /// Packets that were transmitted more than once.
    pub retransmitted_packets: u32,
    /// Bytes on the wire of its retransmissions.
    pub retransmitted_bytes: u64,
    /// Outcome of the message.
    pub outcome: Outcome,
}

/// Outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// Acknowledged, or all its responses arrived. UC and UD: its last packet was sent.
    Completed,
    /// Refused with this NAK.
    Refused(#[serde(serialize_with = "serialize::nak")] NakCode),
    /// The last thing seen of it is an RNR NAK and then no further transmission: RNR retries
    /// exceeded.
    RnrRetryExceeded,
    /// The last thing seen of it are retransmissions without an answer: retries exceeded.
    RetryExceeded,
    /// Still in flight when its queue pair failed because of an earlier message.
    Flushed,
    /// Still in flight when the capture ended (or its connection was forgotten for lack of room).
    InFlight,
    /// UC: packets of it are missing, so the receiver dropped it.
    Incomplete,
}

impl Outcome {
    /// Returns the name that the JSON report uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused(_) => "refused",
            Self::RnrRetryExceeded => "rnr_retry_exceeded",
            Self::RetryExceeded => "retry_exceeded",
            Self::Flushed => "flushed",
            Self::InFlight => "in_flight",
            Self::Incomplete => "incomplete",
        }
    }
}

/// Messages of one operation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct OperationStatistics {
    /// The operation.
    #[serde(serialize_with = "serialize::operation")]
    pub operation: Operation,
    /// Messages that began.
    pub messages: u64,
    /// Messages that completed.
    pub completed: u64,
    /// Messages that failed.
    pub failed: u64,
    /// Payload bytes of the completed ones.
    pub bytes: u64,
    /// Latency of the completed messages in nanoseconds.
    pub latency: Distribution,
}

impl OperationStatistics {
    /// Statistics of no messages.
    pub(super) fn new(operation: Operation) -> Self {
        let latency = Distribution::default();
        Self { operation, messages: 0, completed: 0, failed: 0, bytes: 0, latency }
    }

    /// Adds what `other` counted.
    pub(super) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.completed += other.completed;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
    }
}

/// The name of an operation as verbs users write it.
pub const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "SEND",
        Operation::Write => "WRITE",
        Operation::ReadRequest => "READ",
        Operation::ReadResponse => "READ_RESPONSE",
        Operation::Acknowledge => "ACK",
        Operation::AtomicAcknowledge => "ATOMIC_ACK",
        Operation::SelectiveAcknowledge => "SACK",
        Operation::CompareSwap => "CMP_SWAP",
        Operation::FetchAdd => "FETCH_ADD",
        Operation::Resync => "RESYNC",
        Operation::Flush => "FLUSH",
        Operation::AtomicWrite => "ATOMIC_WRITE",
        Operation::Cnp => "CNP",
    }
}
