//! One requester: its PSN space, what it has in flight, and what is known of the path to its responder.
//!
//! The state is what an observer between the two ends can know. `requests.rs` handles what the requester sends,
//! `responses.rs` what it is answered, `losses.rs` decides what was lost and where.

use std::collections::VecDeque;

use super::budget::Budget;
use super::connection::{Direction, Retransmitted, Stall};
use super::evidence::Evidence;
use super::inflight::{Inflight, InflightMessages};
use super::limits::{ENDED_READS_MAX, EVIDENCE_MAX, RESPONSES_MAX, STALLS_MAX};
use super::losses::OpenLoss;
use super::message::{Message, OperationStatistics, Outcome};
use super::records::Records;
use super::recovery::{Recovery, Tentative, Trigger};
use super::{FlowNumber, PacketFacts, PacketRole, RetransmissionCause, Sink};
use crate::observe::responses::ResponseRuns;
use crate::observe::sequence;
pub(super) use crate::observe::timing::{RTT_NANOS_LEAST, TIMEOUT_NANOS_LEAST};
use crate::wire::{Msn, Operation, Psn};

/// Where a requester stands in the capture, for what it tells the sink.
pub(super) struct Scene<'a, S> {
    pub(super) sink: &'a mut S,
    pub(super) budget: &'a mut Budget,
    pub(super) flow: FlowNumber,
    /// Which end of the flow the requester is.
    pub(super) requester: u8,
}

/// What one packet was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verdict {
    pub(super) sequence: u64,
    pub(super) retransmission: Option<RetransmissionCause>,
    pub(super) duplicate: bool,
    pub(super) reordered: bool,
}

/// A NAK or RNR NAK, to tell copies of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastNak {
    pub(super) sequence: u64,
    pub(super) digest: u32,
    pub(super) frame: u64,
    pub(super) time: u64,
    pub(super) is_sequence_error: bool,
}

/// The last response that acknowledged something new.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastAck {
    /// Whether it is a READ response or an ATOMIC acknowledgement.
    pub(super) is_response: bool,
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) time: u64,
}

/// The state of one requester.
#[derive(Clone, Debug, Default)]
pub(super) struct Requester {
    /// Whether any request was captured.
    pub(super) is_started: bool,
    /// Behind the highest sequence number that it sent.
    pub(super) next: u64,
    /// The first sequence number that is not acknowledged.
    pub(super) unacked: u64,
    /// Bytes of the path MTU; 0 while it is not known.
    pub(super) mtu: u32,
    /// The longest payload so far.
    pub(super) payload_most: u32,
    /// A READ at the end of what was sent, whose number of responses is not known because the path MTU is not: sequence
    /// number and length.
    pub(super) unsized_read: Option<(u64, u32)>,
    /// A READ whose number of responses was guessed from where the packet behind it begins: sequence number and length.
    pub(super) guessed_read: Option<(u64, u32)>,
    pub(super) records: Records,
    /// The last request packets with a wrong ICRC, which the responder drops: sequence number, frame, time.
    pub(super) corrupt: Vec<(u64, u64, u64)>,
    /// The last responses with a wrong ICRC, which the requester drops: sequence number, frame, part.
    pub(super) corrupt_responses: Vec<(u64, u64, PacketRole)>,
    /// The last READ responses: sequence number and frame.
    pub(super) responses: VecDeque<(u64, u64)>,
    /// Frames that fill the path MTU: a request, a response.
    pub(super) full_frames: [u64; 2],
    /// PSNs that were skipped of which it is not known yet what became of them.
    pub(super) gaps: u64,
    /// Packets that were skipped while others around them were retransmitted, and of which that is not known.
    pub(super) skips: u64,
    pub(super) runs: ResponseRuns,
    /// Whether several capture points follow the requests, and the responses: what is lost between them is known.
    pub(super) is_followed: [bool; 2],
    /// Packets that the next capture point did not see because its file ends, unless they were lost.
    pub(super) unseen: VecDeque<OpenLoss>,
    pub(super) messages: InflightMessages,
    pub(super) recovery: Recovery,
    /// A rewind of one packet so far: the next packet shows whether that was late instead.
    pub(super) tentative: Option<Box<Tentative>>,
    /// Losses that a late packet may still disprove.
    pub(super) open_losses: VecDeque<OpenLoss>,
    pub(super) last_ack: LastAck,
    /// The last response that came, new or not: sequence number and time.
    pub(super) heard: (u64, u64),
    /// The frame that acknowledged the last request that is acknowledged: an ACK, a NAK or a response; 0: none.
    pub(super) progress_frame: u64,
    /// The frame of the last response that was told to be lost behind the capture point.
    pub(super) lost_ack_frame: u64,
    /// The last acknowledgements: sequence number and digest.
    pub(super) recent_acks: VecDeque<(u64, u32)>,
    /// The latest MSN of the responder: with it responses tell in which order they were sent.
    pub(super) msn: Option<Msn>,
    pub(super) last_nak: Option<LastNak>,
    /// Requests that were transmitted or delivered more than once: each may be answered by one more acknowledgement.
    pub(super) reanswers: u32,
    /// The frame of the last of them.
    pub(super) repeat_frame: u64,
    /// The frame of the last request that the network delivered twice.
    pub(super) copy_frame: u64,
    /// Responses of READs that are missing.
    pub(super) missing_responses: Vec<u64>,
    /// Responses that were lost between two capture points.
    pub(super) known_lost_responses: Vec<u64>,
    /// READs and ATOMICs that ended lately: their sequence numbers and whether they were requested again.
    pub(super) ended_reads: VecDeque<(u64, u64, bool)>,
    /// The last RNR NAK that was not followed by a retransmission yet.
    pub(super) rnr_since: Option<u64>,
    /// The longest time from an RNR NAK to the retransmission.
    pub(super) rnr_wait_max: u64,
    /// RNR NAKs since the last progress.
    pub(super) rnr_attempts: u32,
    pub(super) last_rnr: Option<(u64, u64)>,
    /// The last request packet: time and frame.
    pub(super) last_request: (u64, u64),
    /// Time when the capture point at the responder saw a request last; 0 if there is none.
    pub(super) last_far: u64,
    /// Smoothed round-trip time in nanoseconds; 0 while it is not known.
    pub(super) srtt: u64,
    /// The shortest round-trip time; 0 while it is not known.
    pub(super) rtt_least: u64,
    /// That of the requests of the other end, when it was last needed: from the capture point to the requester and back.
    pub(super) peer_srtt: u64,
    /// Smoothed time from a NAK at the capture point to the retransmission there; 0 while it is not known.
    pub(super) nak_reaction: u64,
    /// The last response that belonged to no request that is known.
    pub(super) stray_response: Option<u64>,
    /// The shortest retransmission timeout that was observed; 0 if none was.
    pub(super) rto_seen: u64,
    /// The retransmission timeout that the connection manager negotiated, in nanoseconds; 0 if not known.
    pub(super) rto_setup: u64,
    /// Request packets that were new.
    pub(super) new_packets: u64,
    /// A NAK or silence ended it.
    pub(super) is_failed: bool,
    /// UC: a message is incomplete, and its further packets do not count.
    pub(super) is_dropping: bool,
    /// The greatest latency of a message that ended since it was last asked for.
    pub(super) latency_max: u64,
    pub(super) statistics: Direction,
    evidence: Option<Box<Evidence>>,
}

impl Requester {
    /// The READ or ATOMIC that ended lately and that a sequence number belongs to; whether it was requested again.
    pub(super) fn ended_read(&mut self, sequence: u64) -> Option<&mut bool> {
        let mut ended = self.ended_reads.iter_mut().rev();
        let (.., again) = ended.find(|(first, last, _)| (*first..=*last).contains(&sequence))?;
        Some(again)
    }

    pub(super) fn evidence(&mut self) -> &mut Evidence {
        self.evidence.get_or_insert_default()
    }

    pub(super) fn evidence_or_none(&self) -> Option<&Evidence> {
        self.evidence.as_deref()
    }

    /// The sequence number of a PSN: the one nearest to what was sent last.
    pub(super) fn sequence_of(&self, psn: Psn) -> u64 {
        if !self.is_started {
            return sequence::first(psn);
        }
        sequence::unwrap(psn, self.next)
    }

    /// Whether a PSN is so far from everything in flight that it cannot belong to this connection.
    pub(super) fn is_far(&self, psn: Psn) -> bool {
        let sequence = self.sequence_of(psn);
        let first = self.records.first().map_or(self.next, |record| record.sequence);
        let lowest = first.min(self.unacked).min(self.next);
        self.is_started
            && (sequence > self.next.saturating_add(super::limits::PSN_JUMP_MAX)
                || sequence.saturating_add(super::limits::PSN_JUMP_MAX) < lowest)
    }

    /// Whether requests are in flight, as far as the capture tells.
    pub(super) fn is_inflight(&self) -> bool {
        !self.is_failed
            && (!self.messages.is_empty() || (self.is_started && self.unacked < self.next))
    }

    /// How long a requester waits at least before it retransmits on its own; a packet that comes again earlier is a copy.
    pub(super) fn timeout_least(&self) -> u64 {
        if self.rto_setup > 0 {
            return self.rto_setup / 2;
        }
        let by_rtt = (self.srtt + self.srtt / 4).max(TIMEOUT_NANOS_LEAST);
        let seen = if self.rto_seen > 0 { self.rto_seen / 2 } else { u64::MAX };
        by_rtt.min(seen)
    }

    /// Adds a round-trip time.
    pub(super) fn add_rtt(&mut self, nanos: u64) {
        self.statistics.rtt.add(nanos);
        self.rtt_least = if self.rtt_least == 0 { nanos } else { self.rtt_least.min(nanos) };
        self.srtt = if self.srtt == 0 { nanos } else { self.srtt - self.srtt / 8 + nanos / 8 };
    }

    /// Tells and removes the messages that are complete.
    pub(super) fn complete<S: Sink>(&mut self, scene: &mut Scene<'_, S>) {
        while let Some(message) = self.messages.first()
            && message.is_complete()
        {
            let Some(message) = self.messages.pop_first() else { return };
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            if message.needs_response() {
                if self.ended_reads.len() >= ENDED_READS_MAX {
                    self.ended_reads.pop_front();
                }
                self.ended_reads.push_back((message.first, message.last, message.requests > 1));
            }
            self.tell(&message, Outcome::Completed, scene);
        }
    }

    /// Tells that a message ended, and counts it.
    pub(super) fn tell<S: Sink>(
        &mut self,
        inflight: &Inflight,
        outcome: Outcome,
        scene: &mut Scene<'_, S>,
    ) {
        let message = inflight.message(scene.flow, scene.requester, outcome);
        self.count(&message);
        scene.sink.message(&message);
    }

    /// Counts a message that ended.
    pub(super) fn count(&mut self, message: &Message) {
        let operation = operation_mut(&mut self.statistics.operations, message.operation);
        match message.outcome {
            Outcome::Completed => {
                operation.completed += 1;
                operation.bytes += message.bytes;
                self.statistics.goodput_bytes += message.bytes;
                if let Some(end) = message.end {
                    let nanos = end.as_nanos().saturating_sub(message.start.as_nanos());
                    // The direction's latency is the sum of those of its operations, at the end.
                    operation.latency.add(nanos);
                    self.latency_max = self.latency_max.max(nanos);
                }
            }
            Outcome::InFlight => {}
            _ => operation.failed += 1,
        }
    }

    /// Counts a message that began.
    pub(super) fn count_begun(&mut self, operation: Operation) {
        operation_mut(&mut self.statistics.operations, operation).messages += 1;
    }

    /// Counts a packet that was retransmitted for `cause`.
    pub(super) fn count_retransmitted(&mut self, cause: RetransmissionCause, wire_len: u32) {
        let counter = retransmitted_mut(&mut self.statistics, cause);
        counter.packets += 1;
        counter.bytes += u64::from(wire_len);
    }

    /// Keeps a silence if it is one of the longest.
    pub(super) fn add_stall(&mut self, stall: Stall) {
        let stalls = &mut self.statistics.stalls;
        let at = stalls.partition_point(|other| other.nanos >= stall.nanos);
        if at < STALLS_MAX {
            stalls.insert(at, stall);
            stalls.truncate(STALLS_MAX);
        }
    }

    /// Remembers a request packet with a wrong ICRC. Nothing else in it can be believed, and its PSN only if it is near.
    pub(super) fn handle_corrupt(&mut self, packet: &PacketFacts) -> u64 {
        let sequence = self.sequence_of(packet.psn);
        self.statistics.icrc_errors += 1;
        self.evidence().icrc_errors.push(packet.frame);
        let near = self.unacked.min(self.recovery.cursor)
            ..self.next.saturating_add(EVIDENCE_MAX as u64 * 2);
        if self.is_started && near.contains(&sequence) && !packet.sightings.is_damaged_copy {
            let now = packet.time.as_nanos();
            let is_copy = |&(known, _, time): &(u64, u64, u64)| {
                known == sequence && now.saturating_sub(time) < RTT_NANOS_LEAST
            };
            if self.corrupt.last().is_some_and(is_copy) {
                return sequence;
            }
            if self.corrupt.len() >= EVIDENCE_MAX {
                self.corrupt.remove(0);
            }
            self.corrupt.push((sequence, packet.frame, now));
        }
        sequence
    }

    /// Remembers a response with a wrong ICRC.
    pub(super) fn handle_corrupt_response(
        &mut self,
        packet: &PacketFacts,
        role: PacketRole,
    ) -> u64 {
        let sequence = self.sequence_of(packet.psn);
        self.statistics.icrc_errors += 1;
        self.evidence().icrc_errors.push(packet.frame);
        if self.corrupt_responses.len() >= EVIDENCE_MAX {
            self.corrupt_responses.remove(0);
        }
        self.corrupt_responses.push((sequence, packet.frame, role));
        sequence
    }

    /// The frame of a READ response that was captured.
    pub(super) fn response_frame(&self, sequence: u64) -> Option<u64> {
        let mut known = self.responses.iter().rev();
        known.find(|&&(response, _)| response == sequence).map(|&(_, frame)| frame)
    }

    /// Remembers a READ response or an ATOMIC acknowledgement.
    pub(super) fn remember_response(&mut self, sequence: u64, packet: &PacketFacts) {
        if self.responses.len() >= RESPONSES_MAX {
            self.responses.pop_front();
        }
        self.responses.push_back((sequence, packet.frame));
    }

    /// The frame in which a packet was captured with a wrong ICRC, and its time.
    pub(super) fn take_corrupt(&mut self, sequence: u64) -> Option<(u64, u64)> {
        if self.corrupt.is_empty() {
            return None;
        }
        let at = self.corrupt.iter().position(|&(corrupt, ..)| corrupt == sequence)?;
        let (_, frame, time) = self.corrupt.remove(at);
        Some((frame, time))
    }

    /// The frame in which a packet was captured with a wrong ICRC before another one, and its time.
    pub(super) fn take_corrupt_before(&mut self, sequence: u64, frame: u64) -> Option<(u64, u64)> {
        let is_it = |&&(corrupt, at, _): &&(u64, u64, u64)| corrupt == sequence && at < frame;
        self.corrupt.iter().find(is_it)?;
        self.take_corrupt(sequence)
    }

    /// The packet that a NAK asks for, retransmitted for it and captured with a wrong ICRC: its frame and time.
    pub(super) fn resent_corrupt(&self, trigger: &Trigger) -> Option<(u64, u64)> {
        let resent = self
            .corrupt
            .iter()
            .find(|&&(sequence, frame, _)| sequence == trigger.sequence && frame > trigger.frame);
        resent.map(|&(_, frame, time)| (frame, time))
    }

    /// Forgets what is in flight, because the PSNs that follow have nothing to do with it.
    pub(super) fn resynchronize<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        self.release_records(scene.budget);
        while let Some(message) = self.messages.pop_first() {
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            self.tell(&message, Outcome::InFlight, scene);
        }
        let sequence = self.sequence_of(packet.psn);
        (self.next, self.recovery.cursor, self.unacked) = (sequence, sequence, sequence);
        (self.recovery.trigger, self.recovery.implied, self.recovery.open_timeout) =
            (None, None, None);
        self.recovery.naks.clear();
        self.tentative = None;
        self.runs.clear();
        self.tell_open_losses(scene);
        (self.unsized_read, self.guessed_read) = (None, None);
        self.end_recovery();
        self.missing_responses.clear();
    }

    /// Forgets the packets in flight.
    pub(super) fn release_records(&mut self, budget: &mut Budget) {
        budget.packets = budget.packets.saturating_sub(self.records.len());
        self.records.clear();
        (self.gaps, self.skips) = (0, 0);
    }
}

/// The statistics of an operation, in the order of first occurrence.
pub(super) fn operation_mut(
    operations: &mut Vec<OperationStatistics>,
    operation: Operation,
) -> &mut OperationStatistics {
    let at = operations.iter().position(|known| known.operation == operation);
    let at = at.unwrap_or_else(|| {
        operations.push(OperationStatistics::new(operation));
        operations.len() - 1
    });
    &mut operations[at]
}

/// The counters of a cause.
pub(super) fn retransmitted_mut(
    direction: &mut Direction,
    cause: RetransmissionCause,
) -> &mut Retransmitted {
    let all = &mut direction.retransmissions;
    match cause {
        RetransmissionCause::Timeout => &mut all.timeout,
        RetransmissionCause::SequenceNak => &mut all.sequence_nak,
        RetransmissionCause::ImpliedNak => &mut all.implied_nak,
        RetransmissionCause::Rnr => &mut all.rnr,
    }
}
