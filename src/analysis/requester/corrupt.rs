//! Packets with a wrong ICRC, which their receivers drop.

use core::ops::RangeInclusive;

use super::limits::EVIDENCE_MAX;
use super::{PacketFacts, PacketRole, Requester};
use crate::observe::requester::recovery::Trigger;
use crate::observe::timing::RTT_LEAST;
use crate::time::Instant;

/// A request with a wrong ICRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorruptRequest {
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) time: Instant,
}

/// A response with a wrong ICRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorruptResponse {
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) role: PacketRole,
}

/// The last packets of one requester with a wrong ICRC, and of its responder.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrupt {
    requests: Vec<CorruptRequest>,
    responses: Vec<CorruptResponse>,
}

impl Corrupt {
    /// Remembers a request, unless it is a copy of the last one.
    fn add_request(&mut self, request: CorruptRequest) {
        let is_copy = |known: &CorruptRequest| {
            known.sequence == request.sequence
                && request.time.saturating_since(known.time) < RTT_LEAST
        };
        if !self.requests.last().is_some_and(is_copy) {
            push_bounded(&mut self.requests, request);
        }
    }

    /// The request with a sequence number.
    #[inline]
    pub(super) fn request(&self, sequence: u64) -> Option<CorruptRequest> {
        self.requests.iter().find(|request| request.sequence == sequence).copied()
    }

    /// Takes the request with a sequence number.
    pub(super) fn take_request(&mut self, sequence: u64) -> Option<CorruptRequest> {
        let at = self.requests.iter().position(|request| request.sequence == sequence)?;
        Some(self.requests.remove(at))
    }

    /// Takes the request with a sequence number, if it was captured before a frame.
    pub(super) fn take_request_before(
        &mut self,
        sequence: u64,
        frame: u64,
    ) -> Option<CorruptRequest> {
        let is_it = |it: &&CorruptRequest| it.sequence == sequence && it.frame < frame;
        self.requests.iter().find(is_it)?;
        self.take_request(sequence)
    }

    /// The packet that a NAK asks for, retransmitted for it.
    pub(super) fn retransmission_for(&self, trigger: &Trigger) -> Option<CorruptRequest> {
        let is_it = |it: &&CorruptRequest| it.sequence == trigger.from && it.frame > trigger.frame;
        self.requests.iter().find(is_it).copied()
    }

    /// Forgets the request of a frame.
    pub(super) fn forget_request(&mut self, frame: u64) {
        self.requests.retain(|request| request.frame != frame);
    }

    /// Takes the first response that `is_it` is true of.
    pub(super) fn take_response(
        &mut self,
        is_it: impl Fn(&CorruptResponse) -> bool,
    ) -> Option<CorruptResponse> {
        let at = self.responses.iter().position(is_it)?;
        Some(self.responses.remove(at))
    }

    /// Takes a response to one of these sequence numbers.
    pub(super) fn take_response_in(
        &mut self,
        sequences: RangeInclusive<u64>,
    ) -> Option<CorruptResponse> {
        self.take_response(|response| sequences.contains(&response.sequence))
    }
}

/// Appends an item, and removes the first if there are too many.
fn push_bounded<T>(list: &mut Vec<T>, item: T) {
    if list.len() >= EVIDENCE_MAX {
        list.remove(0);
    }
    list.push(item);
}

impl Requester {
    /// Handles a request with a wrong ICRC. Nothing else in it can be believed, and its PSN only if
    /// it is near.
    pub(in crate::analysis) fn handle_corrupt(&mut self, packet: &PacketFacts) -> u64 {
        let sequence = self.sequence_of(packet.psn);
        self.count_corrupt(packet);
        let near = self.progress.unacked.min(self.recovery.cursor())
            ..self.next().saturating_add(EVIDENCE_MAX as u64 * 2);
        let is_near = self.progress.space.is_started() && near.contains(&sequence);
        if is_near && !packet.sightings().is_damaged_copy {
            let (frame, time) = (packet.frame, packet.time);
            self.corrupt.add_request(CorruptRequest { sequence, frame, time });
        }
        sequence
    }

    /// Handles a response with a wrong ICRC.
    pub(in crate::analysis) fn handle_corrupt_response(
        &mut self,
        packet: &PacketFacts,
        role: PacketRole,
    ) -> u64 {
        let sequence = self.sequence_of(packet.psn);
        self.count_corrupt(packet);
        let response = CorruptResponse { sequence, frame: packet.frame, role };
        push_bounded(&mut self.corrupt.responses, response);
        sequence
    }

    fn count_corrupt(&mut self, packet: &PacketFacts) {
        self.statistics.icrc_errors += 1;
        self.evidence().icrc_errors.push(packet.frame);
    }
}
