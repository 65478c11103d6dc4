//! State of one requester as the packets captured so far show it.

use core::time::Duration;
use std::collections::VecDeque;

use super::attempts::Attempts;
use super::credits::Credits;
use super::limits::{HISTORY_MAX, RECORDS_MAX, TIMEOUT_LEAST};
use super::params::Params;
use super::progress::Progress;
use super::record::{Marks, Record};
use super::shape::{Break, hash};
use crate::analysis::PacketFacts;
use crate::observe::requester::recovery::Recovery;
use crate::observe::sequence::PsnSpace;
use crate::observe::transmissions::Transmissions;
use crate::replay::Survey;
use crate::time::Instant;
use crate::wire::{Opcode, PKey, Psn};

/// A packet behind a gap, whose verdict waits for what was before it.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) opcode: Opcode,
    /// The packet, if few wait; else nothing.
    pub(super) bytes: Vec<u8>,
}

/// Place of a requester relative to the capture point.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Digest of its address and the responder's, to tell which requesters have the same two.
    pub(super) hosts: u64,
    /// The capture was taken at the requester.
    is_local: bool,
    /// The capture was taken at the requester or the responder.
    is_at_end: bool,
}

impl Place {
    pub(super) fn of(packet: &PacketFacts, survey: &Survey) -> Self {
        let ends = [packet.source, packet.destination];
        Self {
            hosts: ends.iter().fold(0, |digest, end| hash(digest, &end.0)),
            is_local: survey.point == Some(packet.source),
            is_at_end: survey.point.is_some_and(|point| ends.contains(&point)),
        }
    }
}

/// The state of one requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    pub(super) params: Params,
    pub(super) place: Place,
    pub(super) last_used: u64,
    pub(super) space: PsnSpace,
    /// The first sequence number that belongs to what was captured.
    pub(super) first: u64,
    pub(super) progress: Progress,
    pub(super) recovery: Recovery,
    pub(super) attempts: Attempts,
    pub(super) records: Transmissions<Marks>,
    /// Maximum number of acknowledged records, and of all records.
    pub(super) history_max: usize,
    pub(super) records_max: usize,
    /// Whether the bytes of pending packets are kept.
    pub(super) keeps_bytes: bool,
    /// Records before this sequence number were forgotten.
    pub(super) forgotten: u64,
    pub(super) pkey: Option<PKey>,
    pub(super) pending: VecDeque<Pending>,
    /// Gaps that were seen, and packets that came later than ones behind them.
    pub(super) gaps: u32,
    /// The refusal that ended it: time and frame.
    pub(super) failed: Option<(Instant, u64)>,
    /// Requests whose response is not complete, and how many of them count as READs.
    pub(super) unanswered: u32,
    pub(super) reads: u32,
    pub(super) credits: Credits,
}

impl Requester {
    pub(super) fn new(params: Params, place: Place) -> Self {
        Self {
            params,
            place,
            history_max: HISTORY_MAX,
            records_max: RECORDS_MAX,
            ..Self::default()
        }
    }

    /// Whether the capture was taken at the requester.
    pub(super) fn is_local(&self) -> bool {
        self.place.is_local
    }

    /// Whether the capture has all responses that can have reached the requester: it was taken at
    /// one of the ends.
    pub(super) fn has_all_responses(&self) -> bool {
        self.place.is_at_end
    }

    /// Whether a PSN is so far from all that was sent lately that it cannot belong to it.
    pub(super) fn is_far(&self, psn: Psn) -> bool {
        self.space.is_far(psn, self.first.max(self.forgotten).min(self.progress.una()))
    }

    /// The sequence number of a PSN: the one nearest to what is sent next.
    pub(super) fn sequence_of(&self, psn: Psn) -> u64 {
        self.space.sequence_of(psn)
    }

    /// Begins at a sequence number.
    pub(super) fn start_at(&mut self, sequence: u64) {
        self.space.start_at(sequence);
        self.first = sequence;
        self.progress.start_at(sequence);
        self.recovery.start_at(sequence);
        self.attempts.start_at(sequence);
    }

    /// The shortest time after which a timeout may be the cause of a retransmission.
    pub(super) fn timeout_least(&self) -> Duration {
        // The two sides derive their timeouts differently from what the connection manager says.
        match self.params.timeout {
            Some(timeout) => timeout / 4,
            None if self.has_all_responses() => TIMEOUT_LEAST.max(self.progress.waited() / 2),
            None => TIMEOUT_LEAST,
        }
    }

    /// Advances the progress after a response.
    pub(super) fn advance(&mut self, now: Instant, frame: u64) {
        let (before, mut una) = (self.progress.una(), self.progress.acknowledged());
        // Elsewhere the capture may miss responses that reached it.
        if self.is_local()
            && self.unanswered > 0
            && let Some(record) = self.records.first_unanswered(before)
        {
            una = una.min(record.answered);
        }
        let waiting = self.records.get(before).filter(|record| record.transmissions == 1);
        if self.progress.advance(una, waiting.map(|record| record.time), now, frame) {
            self.recovery.settle(una, now);
            self.recovery.settle_implied(una);
        }
    }

    /// Remembers a new record, and forgets old ones.
    pub(super) fn remember(&mut self, record: Record) {
        if record.needs_response() {
            self.unanswered += 1;
            self.reads +=
                u32::from(record.opcode.info().is_some_and(super::record::counts_as_read));
        }
        self.records.insert(record);
        while let Some(first) = self.records.first()
            && self.records.len() > self.history_max
            && (first.end() <= self.progress.una() || self.records.len() > self.records_max)
        {
            let end = first.end();
            if let Some(old) = self.records.pop_first() {
                self.count_answered(&old);
            }
            self.forgotten = self.forgotten.max(end);
        }
    }

    /// A record is no longer one whose response is missing, or it is forgotten.
    pub(super) fn count_answered(&mut self, record: &Record) {
        if record.is_unanswered() {
            self.unanswered = self.unanswered.saturating_sub(1);
            let counts = record.opcode.info().is_some_and(super::record::counts_as_read);
            self.reads = self.reads.saturating_sub(u32::from(counts));
        }
    }
}

/// Result of the checks of a packet: what cannot be decided, or how it breaks a rule.
pub(super) type Checked = Result<Option<crate::replay::Undecided>, Break>;
