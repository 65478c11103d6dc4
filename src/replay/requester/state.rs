//! State of one requester as the packets captured so far show it.

use std::collections::VecDeque;

use super::limits::{HISTORY_MAX, REACTION_NANOS, RECORDS_MAX, TIMEOUT_LEAST_NANOS};
use super::params::Params;
use super::record::Record;
use super::shape::{Break, hash};
use crate::analysis::PacketFacts;
use crate::observe::sequence::PsnSpace;
use crate::observe::transmissions::{Spanning, Transmissions};
use crate::replay::Survey;
use crate::wire::{Opcode, PKey, Psn};

/// A NAK with the code PSN sequence error, or a response behind one that is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trigger {
    /// First and last sequence number that the requester may go back to.
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) time: u64,
    pub(super) frame: u64,
    /// The requester went back.
    pub(super) is_served: bool,
}

/// An RNR NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rnr {
    pub(super) sequence: u64,
    pub(super) time: u64,
    pub(super) frame: u64,
    /// The timer in nanoseconds.
    pub(super) timer: u64,
}

/// A packet behind a gap, whose verdict waits for what was before it.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) opcode: Opcode,
    /// The packet, if few wait; else nothing.
    pub(super) bytes: Vec<u8>,
}

/// Limit that the responder sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Difference of the responder's count of messages and the one kept here.
    pub(super) offset: Option<u32>,
    /// The last message that may be begun, by the count kept here.
    pub(super) limit: Option<u32>,
    /// Time when the responder first told of a limit.
    pub(super) since: u64,
    /// The responder does not count, or its counts contradict each other.
    pub(super) is_unlimited: bool,
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
    /// Behind the highest sequence number that the responder acknowledged in any way.
    pub(super) acknowledged: u64,
    /// `acknowledged` without what a response acknowledged behind a missing response to a READ or
    /// ATOMIC: a requester may count that or not.
    pub(super) counted: u64,
    /// The first sequence number that the requester cannot take as done: before it all is
    /// acknowledged and answered.
    pub(super) una: u64,
    /// `una` by `counted`.
    sure: u64,
    /// Advances of `sure` that are so recent that the requester may not know of them: time and the
    /// value before.
    recent: VecDeque<(u64, u64)>,
    /// The frame of the response that advanced `una` last.
    pub(super) progress: (u64, u64),
    pub(super) records: Transmissions<Record>,
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
    /// Number of times that the requester went back; where to, and what it sends next if it goes
    /// on from there.
    pub(super) pass: u32,
    pub(super) pass_start: u64,
    pub(super) pass_time: u64,
    pub(super) cursor: u64,
    pub(super) nak: Option<Trigger>,
    /// The last NAK of what is acknowledged by now: the requester may react to it before it handles
    /// the ACK.
    pub(super) settled_nak: Option<Trigger>,
    pub(super) implied: Option<Trigger>,
    /// The last missing response that came after all. What passed it counts nothing, so the
    /// requester may still go back to the first request that no response counts.
    pub(super) settled_implied: Option<Trigger>,
    pub(super) rnr: Option<Rnr>,
    /// The last RNR NAK of what is acknowledged by now.
    pub(super) settled_rnr: Option<Rnr>,
    /// Number of times that it went back without progress, and from where.
    pub(super) attempts: u32,
    pub(super) rnr_attempts: u32,
    pub(super) attempts_una: u64,
    pub(super) attempts_start: u64,
    /// The refusal that ended it: time and frame.
    pub(super) failed: Option<(u64, u64)>,
    /// The longest time for which it waited for an acknowledgement without a retransmission.
    pub(super) waited: u64,
    /// Requests whose response is not complete, and how many of them count as READs.
    pub(super) unanswered: u32,
    pub(super) reads: u32,
    /// Messages begun, and how many of them take no receive.
    pub(super) messages: u32,
    pub(super) without_receive: u32,
    pub(super) credits: Credits,
}

/// Maximum number of recent advances.
const RECENT_MAX: usize = 256;

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
        self.space.is_far(psn, self.first.max(self.forgotten).min(self.una))
    }

    /// The sequence number of a PSN: the one nearest to what is sent next.
    pub(super) fn sequence_of(&self, psn: Psn) -> u64 {
        self.space.sequence_of(psn)
    }

    /// Begins at a sequence number.
    pub(super) fn start_at(&mut self, sequence: u64) {
        self.space.start_at(sequence);
        (self.first, self.cursor) = (sequence, sequence);
        (self.acknowledged, self.una, self.pass_start) = (sequence, sequence, sequence);
        (self.counted, self.sure) = (sequence, sequence);
        self.attempts_una = sequence;
    }

    /// The shortest time after which a timeout may be the cause of a retransmission.
    pub(super) fn timeout_least(&self) -> u64 {
        // The two sides derive their timeouts differently from what the connection manager says.
        match self.params.timeout {
            Some(timeout) => timeout / 4,
            None if self.has_all_responses() => TIMEOUT_LEAST_NANOS.max(self.waited / 2),
            None => TIMEOUT_LEAST_NANOS,
        }
    }

    /// Up to where the requester must know that all is done, at a time.
    pub(super) fn settled(&self, now: u64) -> u64 {
        let mut unknown = self.recent.iter();
        let first = unknown.find(|(time, _)| time.saturating_add(REACTION_NANOS) > now);
        first.map_or(self.sure, |&(_, before)| before)
    }

    /// Whether a request is the first that no response counts, so that a requester begins with it
    /// that was told to go back, and then that what it was told to go back to is done.
    fn is_start(&self, sequence: u64, record: &Record) -> bool {
        sequence <= self.sure || (record.sequence..record.end()).contains(&self.sure)
    }

    /// Whether the requester goes back to a request because of a NAK, or a missing response, of
    /// what is done by now.
    pub(super) fn has_settled_cause(&self, sequence: u64, record: &Record, now: u64) -> bool {
        let is_cause = |it: &Trigger| {
            now <= it.time.saturating_add(REACTION_NANOS)
                && it.from <= sequence
                && record.time <= it.time
        };
        self.is_start(sequence, record)
            && [self.settled_nak, self.settled_implied].iter().flatten().any(is_cause)
    }

    /// The RNR NAK of what is done by now, whose timer the requester may wait for before it goes on
    /// with a request.
    pub(super) fn settled_rnr_of(&self, sequence: u64, record: &Record) -> Option<Rnr> {
        self.settled_rnr.filter(|rnr| {
            self.is_start(sequence, record) && rnr.sequence <= sequence && record.time <= rnr.time
        })
    }

    /// Works out `una` anew after a response.
    pub(super) fn advance(&mut self, now: u64, frame: u64) {
        let mut una = self.acknowledged;
        // Elsewhere the capture may miss responses that reached it.
        if self.is_local()
            && self.unanswered > 0
            && let Some(record) = self.records.first_unanswered(self.una)
        {
            una = una.min(record.answered);
        }
        self.advance_sure(now, una.min(self.counted));
        if una <= self.una {
            return;
        }
        if let Some(record) = self.records.get(self.una)
            && record.transmissions == 1
        {
            let waited = now.saturating_sub(record.time.max(self.progress.0));
            self.waited = self.waited.max(waited);
        }
        self.una = una;
        self.progress = (now, frame);
        // A trigger that lies behind is served, however that came.
        self.settled_nak = self.nak.filter(|trigger| trigger.until < una).or(self.settled_nak);
        self.nak = self.nak.filter(|trigger| trigger.until >= una);
        self.settled_implied =
            self.implied.filter(|trigger| trigger.until < una).or(self.settled_implied);
        self.implied = self.implied.filter(|trigger| trigger.until >= una);
        self.settled_rnr = self.rnr.filter(|rnr| rnr.sequence < una).or(self.settled_rnr);
        self.rnr = self.rnr.filter(|rnr| rnr.sequence >= una);
    }

    /// The requester must count all before this as done, once it has handled the response.
    fn advance_sure(&mut self, now: u64, sure: u64) {
        if sure <= self.sure {
            return;
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((now, self.sure));
        while let Some(&(time, _)) = self.recent.front()
            && time.saturating_add(REACTION_NANOS) <= now
        {
            self.recent.pop_front();
        }
        self.sure = sure;
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
            && (first.end() <= self.una || self.records.len() > self.records_max)
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
