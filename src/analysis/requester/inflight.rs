//! Messages of one requester that are in flight.

use std::collections::VecDeque;

use super::{End, FlowNumber, Message, PacketFacts, RethFacts};
use crate::analysis::message::Outcome;
use crate::observe::sequence::psn_of;
use crate::time::Instant;
use crate::wire::{Headers, OpcodeInfo, Operation, Position};

/// A message in flight.
#[derive(Clone, Debug)]
pub(super) struct Inflight {
    pub(super) first: u64,
    /// Last sequence number; the last one seen, if the last is not known yet.
    pub(super) last: u64,
    pub(super) operation: Operation,
    pub(super) immediate: bool,
    pub(super) is_first_known: bool,
    pub(super) is_last_known: bool,
    /// Payload of its packets but the last.
    unit: u32,
    last_payload: u32,
    pub(super) reth: Option<RethFacts>,
    pub(super) first_frame: u64,
    pub(super) start: Instant,
    pub(super) retransmitted_packets: u32,
    pub(super) retransmitted_bytes: u64,
    /// Time and frame of the acknowledgement or of the last response.
    pub(super) end: Option<(Instant, u64)>,
    /// Sequence number behind the last response of a READ that was seen.
    pub(super) responses_end: u64,
    /// Sequence number behind the last response of a READ that passed the capture point, whether
    /// the requester took it or not.
    pub(super) passed_end: u64,
    /// Number of requests of a READ or ATOMIC, the network's copies included.
    pub(super) requests: u32,
}

impl Inflight {
    /// Whether a response with data must come, so that no acknowledgement of a later PSN completes
    /// it.
    pub(super) const fn needs_response(&self) -> bool {
        needs_response(self.operation)
    }

    /// Whether a response that comes twice is a copy: its request was sent and delivered once. Of
    /// one that was retransmitted it is not known whether the responder had dropped the first.
    pub(super) const fn is_sent_once(&self) -> bool {
        self.requests < 2 && self.retransmitted_packets == 0
    }

    /// Whether its packets until `acknowledged` are all of it.
    pub(super) const fn is_complete(&self) -> bool {
        self.end.is_some() && (self.is_last_known || self.needs_response())
    }

    fn bytes(&self) -> u64 {
        match (self.operation, self.reth) {
            (Operation::Flush, _) => 0,
            (Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite, _) => 8,
            (_, Some(reth)) => reth.length.into(),
            (_, None) => {
                let before = self.last.saturating_sub(self.first) * u64::from(self.unit);
                before + u64::from(if self.is_last_known { self.last_payload } else { self.unit })
            }
        }
    }

    /// The message as it is told.
    pub(super) fn message(&self, flow: FlowNumber, requester: End, outcome: Outcome) -> Message {
        Message {
            flow,
            requester,
            operation: self.operation,
            immediate: self.immediate,
            bytes: self.bytes(),
            first_psn: psn_of(self.first),
            last_psn: psn_of(self.last),
            first_frame: self.first_frame,
            start: self.start,
            end_frame: self.end.map(|(_, frame)| frame),
            end: self.end.map(|(time, _)| time),
            retransmitted_packets: self.retransmitted_packets,
            retransmitted_bytes: self.retransmitted_bytes,
            outcome,
        }
    }
}

/// Whether an operation is answered with a response of its own rather than by an acknowledgement.
pub(super) const fn needs_response(operation: Operation) -> bool {
    operation.response().is_own()
}

/// Messages in the order of their sequence numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct InflightMessages {
    list: VecDeque<Inflight>,
    /// Number of messages at the front that are acknowledged, though not complete if a response is
    /// missing before them.
    acknowledged: usize,
    /// READs and ATOMICs whose response is not complete.
    reads: u32,
}

impl InflightMessages {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Inflight> {
        self.list.front()
    }

    pub(super) fn pop_first(&mut self) -> Option<Inflight> {
        let message = self.list.pop_front()?;
        self.acknowledged = self.acknowledged.saturating_sub(1);
        self.reads -= u32::from(message.needs_response() && message.end.is_none());
        Some(message)
    }

    /// The message at or before a sequence number.
    fn index_before(&self, sequence: u64) -> Option<usize> {
        if self.list.back()?.first <= sequence {
            return Some(self.list.len() - 1);
        }
        self.list.partition_point(|message| message.first <= sequence).checked_sub(1)
    }

    /// The message that a sequence number belongs to.
    pub(super) fn find(&self, sequence: u64) -> Option<&Inflight> {
        let at = self.index_before(sequence)?;
        self.list.get(at).filter(|message| sequence <= message.last)
    }

    /// The message that a sequence number belongs to.
    pub(super) fn find_mut(&mut self, sequence: u64) -> Option<&mut Inflight> {
        let at = self.index_before(sequence)?;
        self.list.get_mut(at).filter(|message| sequence <= message.last)
    }

    /// Takes a request packet into account. `span`: how many sequence numbers it takes.
    pub(super) fn handle_packet(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
    ) {
        match self.index_before(sequence) {
            Some(at) if self.continues(at, sequence, info) => {
                self.extend(at, sequence, packet, info)
            }
            before => self.insert(before.map_or(0, |at| at + 1), sequence, span, packet, info),
        }
    }

    /// Whether the packet is one of the message at `at`, which begins at or before it.
    fn continues(&self, at: usize, sequence: u64, info: &OpcodeInfo) -> bool {
        let Some(message) = self.list.get(at) else { return false };
        if message.operation != info.operation {
            return false;
        }
        if message.needs_response() {
            return sequence <= message.last;
        }
        match info.position {
            Position::First | Position::Only => sequence == message.first,
            Position::Middle | Position::Last => !message.is_last_known || sequence <= message.last,
        }
    }

    fn extend(&mut self, at: usize, sequence: u64, packet: &PacketFacts, info: &OpcodeInfo) {
        let Some(message) = self.list.get_mut(at) else { return };
        if message.needs_response() {
            message.requests += 1;
            // The requester dropped the responses from here on, because one before them was
            // missing.
            message.responses_end = message.responses_end.min(sequence);
            self.reads += u32::from(message.end.take().is_some());
            return;
        }
        message.immediate |= info.headers.contains(Headers::IMM_DT);
        if info.position.ends() {
            (message.last, message.is_last_known) = (sequence, true);
            message.last_payload = packet.payload_len;
        } else {
            message.last = message.last.max(sequence);
            message.unit = packet.payload_len;
        }
        if info.position.begins() {
            message.is_first_known = true;
            message.reth = message.reth.or(packet.reth);
        }
        self.join(at);
    }

    fn insert(
        &mut self,
        at: usize,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
    ) {
        let mut message = Inflight {
            first: sequence,
            last: sequence + u64::from(span - 1),
            operation: info.operation,
            immediate: info.headers.contains(Headers::IMM_DT),
            is_first_known: info.position.begins(),
            is_last_known: info.position.ends(),
            unit: packet.payload_len,
            last_payload: packet.payload_len,
            reth: packet.reth,
            first_frame: packet.frame,
            start: packet.time,
            retransmitted_packets: 0,
            retransmitted_bytes: 0,
            end: None,
            responses_end: sequence,
            passed_end: sequence,
            requests: 1,
        };
        // Packets between were not captured, and a message began in them.
        if let Some(before) = at.checked_sub(1).and_then(|at| self.list.get_mut(at))
            && before.last >= sequence
        {
            if info.position == Position::First {
                (message.last, message.is_last_known) = (before.last, before.is_last_known);
                message.last_payload = before.last_payload;
            }
            (before.last, before.is_last_known) = (sequence - 1, false);
        }
        self.reads += u32::from(message.needs_response());
        self.list.insert(at, message);
        self.acknowledged = self.acknowledged.min(at);
        self.join(at);
    }

    /// Joins the message at `at` with the next one, if that is its end.
    fn join(&mut self, at: usize) {
        let (Some(message), Some(next)) = (self.list.get(at), self.list.get(at + 1)) else {
            return;
        };
        if next.is_first_known
            || message.is_last_known
            || next.operation != message.operation
            || next.first != message.last + 1
        {
            return;
        }
        let Some(next) = self.list.remove(at + 1) else { return };
        let Some(message) = self.list.get_mut(at) else { return };
        (message.last, message.is_last_known) = (next.last, next.is_last_known);
        message.last_payload = next.last_payload;
        message.start = message.start.min(next.start);
        message.first_frame = message.first_frame.min(next.first_frame);
        message.retransmitted_packets += next.retransmitted_packets;
        message.retransmitted_bytes += next.retransmitted_bytes;
        self.acknowledged = self.acknowledged.min(at);
    }

    /// Notes that all before `acknowledged` arrived.
    pub(super) fn acknowledge(&mut self, acknowledged: u64, at: (Instant, u64)) {
        while let Some(message) = self.list.get(self.acknowledged) {
            let next = self.list.get(self.acknowledged + 1).map(|next| next.first);
            let is_ended = next.is_some_and(|next| acknowledged > next);
            if acknowledged <= message.last || !(message.is_last_known || is_ended) {
                break;
            }
            let Some(message) = self.list.get_mut(self.acknowledged) else { break };
            if !message.needs_response() {
                // If its last packet was not captured, it lies somewhere before the next message.
                if let (false, Some(next)) = (message.is_last_known, next) {
                    (message.last, message.is_last_known) = (next - 1, true);
                    message.last_payload = message.unit;
                }
                message.end = message.end.or(Some(at));
            }
            self.acknowledged += 1;
        }
    }

    /// The responder drops what it got from `sequence` on: READs and ATOMICs there have yet to be
    /// requested.
    pub(super) fn forget_requests(&mut self, sequence: u64) {
        let start = self.list.partition_point(|message| message.first < sequence);
        self.list.range_mut(start..).for_each(|message| message.requests = 0);
    }

    /// The requester goes back to `sequence`: it dropped all responses behind it.
    pub(super) fn reopen_reads(&mut self, sequence: u64) {
        let start = self.list.partition_point(|message| message.first <= sequence);
        for message in self.list.range_mut(start..).filter(|message| message.needs_response()) {
            message.responses_end = message.first;
            self.reads += u32::from(message.end.take().is_some());
        }
    }

    /// READs and ATOMICs in flight.
    pub(super) fn reads(&self) -> u32 {
        self.reads
    }

    /// Notes that the response to the READ or ATOMIC that `sequence` belongs to is complete.
    pub(super) fn end_read(&mut self, sequence: u64, at: (Instant, u64)) {
        if let Some(message) = self.find_mut(sequence)
            && message.needs_response()
            && message.end.is_none()
        {
            message.end = Some(at);
            self.reads -= 1;
        }
    }

    /// Ends the first READ or ATOMIC whose response is not complete: the one that
    /// [`first_read`](Self::first_read) returns, also where hostile PSNs gave two messages the same
    /// sequence number.
    pub(super) fn end_first_read(&mut self, at: (Instant, u64)) {
        let is_open = |message: &&mut Inflight| message.needs_response() && message.end.is_none();
        if let Some(message) = self.list.iter_mut().find(is_open) {
            message.end = Some(at);
            self.reads -= 1;
        }
    }

    /// The first READ or ATOMIC whose response is not complete.
    pub(super) fn first_read(&self) -> Option<&Inflight> {
        let is_open = |message: &&Inflight| message.needs_response() && message.end.is_none();
        if self.reads == 0 { None } else { self.list.iter().find(is_open) }
    }
}
