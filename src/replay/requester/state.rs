//! What is known of one requester from the packets captured so far.

use std::collections::VecDeque;

use super::limits::{HISTORY_MAX, REACTION_NANOS, RECORDS_MAX, TIMEOUT_LEAST_NANOS};
use super::params::Params;
use super::record::Record;
use super::shape::Break;
use crate::analysis::PacketFacts;
use crate::observe::sequence::PsnSpace;
use crate::observe::transmissions::{Spanning, Transmissions};
use crate::wire::{Gid, Opcode, PKey, Psn};

/// A NAK with the code PSN sequence error, or a response behind one that is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trigger {
    /// Where the requester goes back to: the first and the last sequence number that it may begin with.
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

/// How far the responder lets the requester go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// How much the responder's count of messages is ahead of the one kept here.
    pub(super) offset: Option<u32>,
    /// The last message that may be begun, by the count kept here.
    pub(super) limit: Option<u32>,
    /// When the responder first told of a limit.
    pub(super) since: u64,
    /// The responder does not count, or its counts contradict each other.
    pub(super) is_unlimited: bool,
}

/// Where a requester is relative to the capture point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) source: Gid,
    pub(super) destination: Gid,
    /// The host at which the capture was taken, if that is known.
    point: Option<Gid>,
}

impl Place {
    pub(super) fn of(packet: &PacketFacts, point: Option<Gid>) -> Self {
        Self { source: packet.source, destination: packet.destination, point }
    }
}

/// The state of one requester.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) params: Params,
    pub(super) place: Place,
    pub(super) space: PsnSpace,
    /// The first sequence number that belongs to what was captured.
    pub(super) first: u64,
    /// Behind the highest sequence number that the responder acknowledged in any way.
    pub(super) acknowledged: u64,
    /// The same without what a response acknowledged behind a missing response to a READ or ATOMIC: a requester may count
    /// that or not.
    pub(super) counted: u64,
    /// The first sequence number that the requester cannot take as done: before it all is acknowledged and answered.
    pub(super) una: u64,
    /// The same by `counted`.
    sure: u64,
    /// Advances of `sure` that are so recent that the requester may not know of them: time and the value before.
    recent: VecDeque<(u64, u64)>,
    /// The frame of the response that advanced `una` last.
    pub(super) progress: (u64, u64),
    pub(super) records: Transmissions<Record>,
    /// How many acknowledged records it may keep, and how many in all.
    pub(super) history_max: usize,
    pub(super) records_max: usize,
    /// Records before this sequence number were forgotten.
    pub(super) forgotten: u64,
    pub(super) pkey: Option<PKey>,
    pub(super) pending: VecDeque<Pending>,
    /// Gaps that were seen, and packets that came later than ones behind them.
    pub(super) gaps: u32,
    /// How often the requester went back; where to, and what it sends next if it goes on from there.
    pub(super) pass: u32,
    pub(super) pass_start: u64,
    pub(super) pass_time: u64,
    pub(super) cursor: u64,
    pub(super) nak: Option<Trigger>,
    /// The last NAK of what is acknowledged by now: the requester may react to it before it handles the ACK.
    pub(super) past_nak: Option<Trigger>,
    pub(super) implied: Option<Trigger>,
    /// The last missing response that came after all. What passed it counts nothing, so the requester may still go back to
    /// the first request that no response counts.
    pub(super) past_implied: Option<Trigger>,
    pub(super) rnr: Option<Rnr>,
    /// The last RNR NAK of what is acknowledged by now.
    pub(super) past_rnr: Option<Rnr>,
    /// How often it went back without progress, and from where.
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

/// How many recent advances are remembered.
const RECENT_MAX: usize = 256;

impl Requester {
    pub(super) fn new(params: Params, place: Place) -> Self {
        Self {
            params,
            place,
            space: PsnSpace::default(),
            first: 0,
            acknowledged: 0,
            counted: 0,
            una: 0,
            sure: 0,
            recent: VecDeque::new(),
            progress: (0, 0),
            records: Transmissions::default(),
            history_max: HISTORY_MAX,
            records_max: RECORDS_MAX,
            forgotten: 0,
            pkey: None,
            pending: VecDeque::new(),
            gaps: 0,
            pass: 0,
            pass_start: 0,
            pass_time: 0,
            cursor: 0,
            nak: None,
            past_nak: None,
            implied: None,
            past_implied: None,
            rnr: None,
            past_rnr: None,
            attempts: 0,
            rnr_attempts: 0,
            attempts_una: 0,
            attempts_start: 0,
            failed: None,
            waited: 0,
            unanswered: 0,
            reads: 0,
            messages: 0,
            without_receive: 0,
            credits: Credits::default(),
        }
    }

    /// Whether the capture was taken at the requester.
    pub(super) fn is_local(&self) -> bool {
        self.place.point == Some(self.place.source)
    }

    /// Whether the capture has all responses that can have reached the requester: it was taken at one of the ends.
    pub(super) fn has_all_responses(&self) -> bool {
        let ends = [self.place.source, self.place.destination];
        self.place.point.is_some_and(|point| ends.contains(&point))
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

    /// Whether a request is the first that no response counts, so that a requester begins with it that was told to go back, and
    /// then that what it was told to go back to is done.
    fn is_start(&self, sequence: u64, record: &Record) -> bool {
        sequence <= self.sure || (record.sequence..record.end()).contains(&self.sure)
    }

    /// Whether the requester goes back to a request because of a NAK, or a missing response, of what is done by now.
    pub(super) fn is_behind_past(&self, sequence: u64, record: &Record, now: u64) -> bool {
        let is_cause = |it: &Trigger| {
            now <= it.time.saturating_add(REACTION_NANOS)
                && it.from <= sequence
                && record.time <= it.time
        };
        self.is_start(sequence, record)
            && [self.past_nak, self.past_implied].iter().flatten().any(is_cause)
    }

    /// The RNR NAK of what is done by now, whose timer the requester may wait for before it goes on with a request.
    pub(super) fn past_rnr_of(&self, sequence: u64, record: &Record) -> Option<Rnr> {
        self.past_rnr.filter(|rnr| {
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
        self.past_nak = self.nak.filter(|trigger| trigger.until < una).or(self.past_nak);
        self.nak = self.nak.filter(|trigger| trigger.until >= una);
        self.past_implied =
            self.implied.filter(|trigger| trigger.until < una).or(self.past_implied);
        self.implied = self.implied.filter(|trigger| trigger.until >= una);
        self.past_rnr = self.rnr.filter(|rnr| rnr.sequence < una).or(self.past_rnr);
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

/// What comes of the checks of a packet: what cannot be decided, or how it breaks a rule.
pub(super) type Checked = Result<Option<crate::replay::Undecided>, Break>;
