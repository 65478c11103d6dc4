//! Requesters of the reliable services: was each request packet one that a correct requester could
//! have sent?
//!
//! ```text
//! Input ─┬─ response ─► responses.rs: what the requester knows to be done, and why it goes back
//!        └─ request ──► shape.rs: the packet by itself
//!                       ├─ PSN not seen before ─► requests.rs: order, opcode sequence, lengths, limits
//!                       └─ PSN seen before ─────► retransmissions.rs: same contents, cause, start
//! ```
//!
//! The capture point is somewhere on the path. Before it packets may have been lost, copied and
//! reordered, and behind it responses may have been lost. So a packet behind a gap waits for its
//! verdict until the gap is filled; and a retransmission is without cause only if neither a copy
//! made by the network nor a timeout can explain it. Where the capture was taken at the requester
//! ([`Options::point`](super::Options::point)) none of this can happen, and more is decided.
//!
//! `limits` lists every bound and every tolerance.

mod attempts;
mod credits;
pub mod limits;
mod params;
mod progress;
mod record;
mod requests;
mod responses;
mod retransmissions;
pub(crate) mod rules;
pub(in crate::replay) mod shape;
mod state;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use limits::{
    ALL_RECORDS_MAX, CROWDED_MAX, GAP_PASSES, GAP_PASSES_LOSSY, HISTORY_MAX, PENDING_MAX, REACTION,
    RECORDS_MAX, REORDER, REQUESTERS_MAX, ROOMY_PART,
};
use params::Params;
use requests::{Request, Taken, check_successor};
use shape::Break;
use state::{Pending, Place, Requester};

use super::judge::{Input, Judge, median};
use super::{Difference, Sink, Step, Subject, Survey, Undecided, Verdict};
use crate::analysis::{End, FlowNumber, PacketRole};
use crate::observe::fold_map::FoldMap;
use crate::observe::requester::recovery::Signal;
use crate::observe::sequence::psn_of;
use crate::wire::{Opcode, OpcodeInfo, Packet, Service};

/// Judges the requests of the reliable services.
#[derive(Debug)]
pub(super) struct Requesters {
    survey: Arc<Survey>,
    services: &'static [Service],
    requesters: FoldMap<Key, Box<Requester>>,
    requesters_max: usize,
    /// Counts packets, to find the requesters that were used least recently.
    clock: u64,
    /// Some were forgotten: a requester that seems to begin may have begun before.
    has_forgotten: bool,
    /// Records of all requesters, and how many there may be.
    records: usize,
    records_max: usize,
}

/// A requester: its connection and its end.
type Key = (FlowNumber, End);

impl Requesters {
    /// Judges the requests of a capture that was surveyed, in one of `shards`.
    pub(super) fn new(survey: Arc<Survey>, shards: usize) -> Self {
        Self::of(&[Service::Rc, Service::Xrc], survey, shards)
    }

    /// Judges the requests of some services.
    pub(super) fn of(services: &'static [Service], survey: Arc<Survey>, shards: usize) -> Self {
        Self {
            survey,
            services,
            requesters: FoldMap::default(),
            requesters_max: REQUESTERS_MAX / shards,
            clock: 0,
            has_forgotten: false,
            records: 0,
            records_max: ALL_RECORDS_MAX / shards,
        }
    }

    fn response(&mut self, input: &Input<'_>, info: &OpcodeInfo) {
        let requester = (input.note.flow, input.note.sender.other());
        let Some(requester) = self.requesters.get_mut(&requester) else { return };
        // What was lost or damaged on its way did not reach the requester.
        let sightings = input.facts.sightings();
        if sightings.lost.is_none() && !sightings.is_copy {
            requester.handle_response(input.facts, info);
        }
    }

    /// Whether a packet whose PSN has nothing to do with its connection is the next one of another
    /// connection between the same hosts.
    fn astray(&self, input: &Input<'_>, key: Key) -> Option<Break> {
        let own = self.requesters.get(&key)?;
        if !own.is_far(input.facts.psn) {
            return None;
        }
        let place = own.place;
        let is_other = |other: &Requester| {
            other.place.hosts == place.hosts
                && other.space.is_started()
                && psn_of(other.space.next()) == input.facts.psn
        };
        let others = self.requesters.iter().filter(|(_, other)| is_other(other));
        let (other, _) = others.map(|(key, _)| *key).min()?;
        let found = format!("PSN {} is the next one of connection {other}", input.facts.psn);
        Some(Break::new(&rules::REQUEST_QP, found))
    }

    /// Makes room for another requester: forgets those that were used least recently.
    fn forget_some(&mut self, out: &mut dyn Sink) {
        let least = median(self.requesters.values().map(|requester| requester.last_used));
        self.has_forgotten = true;
        let records = &mut self.records;
        self.requesters.retain(|&key, requester| {
            let stays = requester.last_used >= least;
            if !stays {
                while requester.settle_oldest(key, out) {}
                *records = records.saturating_sub(requester.records.len());
            }
            stays
        });
    }

    fn request(&mut self, input: &Input<'_>, info: &'static OpcodeInfo, out: &mut dyn Sink) {
        let key = (input.note.flow, input.note.sender);
        if input.facts.sightings().is_copy {
            // Several capture points prove that the network made it.
            return out.step(request_step(input, Verdict::Agreed));
        }
        if self.requesters.len() >= self.requesters_max && !self.requesters.contains_key(&key) {
            self.forget_some(out);
        }
        let astray = self.astray(input, key);
        let Self { survey, requesters, records, has_forgotten, .. } = self;
        let requester = requesters.entry(key).or_insert_with(|| {
            let mut params = Params::new(survey, key);
            params.start = params.start.filter(|_| !*has_forgotten);
            Box::new(Requester::new(params, Place::of(input.facts, survey)))
        });
        requester.last_used = self.clock;
        let is_crowded = *records >= self.records_max;
        requester.history_max = if is_crowded { CROWDED_MAX } else { HISTORY_MAX };
        requester.records_max = if is_crowded { CROWDED_MAX } else { RECORDS_MAX };
        requester.keeps_bytes = *records < self.records_max / ROOMY_PART;
        let before = requester.records.len();
        requester.judge(input, info, key, astray, out);
        *records = (*records + requester.records.len()).saturating_sub(before);
    }
}

impl Judge for Requesters {
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink) {
        self.clock += 1;
        let is_damaged = self.survey.is_damaged(input.facts);
        let Some(info) = input.facts.opcode.info() else { return };
        if info.service == Service::Rd && self.services.contains(&Service::Rc) {
            // No device speaks it.
            if input.source.is_some() {
                out.step(request_step(input, Verdict::Undecided(Undecided::Unsupported)));
            }
            return;
        }
        // A requester sends SACKs of READ responses; the judge of responses has them.
        if !self.services.contains(&info.service) || input.facts.is_sack_of_responses() {
            return;
        }
        match input.note.role {
            PacketRole::Request if input.source.is_none() => {}
            PacketRole::Request if is_damaged => {
                out.step(request_step(input, Verdict::Undecided(Undecided::Damaged)));
            }
            PacketRole::Request => self.request(input, info, out),
            PacketRole::Ack | PacketRole::Response | PacketRole::Nak | PacketRole::Rnr
                if !is_damaged && input.destination.is_some() =>
            {
                self.response(input, info);
            }
            _ => {}
        }
    }

    fn finish(&mut self, out: &mut dyn Sink) {
        let mut all: Vec<_> = self.requesters.iter_mut().collect();
        all.sort_unstable_by_key(|(key, _)| **key);
        for (&key, requester) in all {
            while requester.settle_oldest(key, out) {}
        }
    }
}

/// The verdict on the packet of an input.
pub(super) fn step(input: &Input<'_>, subject: Subject, verdict: Verdict) -> Step {
    let (flow, sender) = (input.note.flow, input.note.sender);
    Step { frame: input.facts.frame, flow, sender, subject, verdict }
}

/// The verdict on a request.
fn request_step(input: &Input<'_>, verdict: Verdict) -> Step {
    step(input, subject_of(input.facts.opcode), verdict)
}

/// Returns the kind of a packet of this opcode.
fn subject_of(opcode: Opcode) -> Subject {
    let is_unreliable = opcode.info().is_some_and(|info| info.service == Service::Uc);
    if is_unreliable { Subject::Datagram } else { Subject::Request }
}

impl Requester {
    fn judge(
        &mut self,
        input: &Input<'_>,
        info: &'static OpcodeInfo,
        key: Key,
        astray: Option<Break>,
        out: &mut dyn Sink,
    ) {
        let facts = input.facts;
        if let Some(broken) = astray {
            return out.step(request_step(input, different(broken, Some(input.packet))));
        }
        if self.is_far(facts.psn) {
            // The queue pair begins a new life, or so many packets are missing that nothing follows
            // from the others.
            self.restart();
        }
        let Some(packet) = input.parse(info) else {
            return out.step(request_step(input, Verdict::Undecided(Undecided::Cut)));
        };
        let mut broken = shape::check(&packet, self.params.mtu);
        broken = broken.or_else(|| self.check_pkey(&packet));
        self.restart_if_reset(input, info);
        if !self.space.is_started() {
            let wrong = self.begin(facts.psn);
            broken = broken.or(wrong);
        }
        let sequence = self.sequence_of(facts.psn);
        let now = facts.time;
        let request = Request { facts, info, bytes: input.packet, sequence, now };
        let failed = self.check_failed(&request);
        let (failed, lost_nak) = match failed {
            Ok(undecided) => (None, undecided),
            Err(wrong) => (Some(wrong), None),
        };
        broken = broken.or(failed);
        self.unguess_read(&request);
        let record = self.records.get(sequence).copied();
        let checked = match record {
            Some(record) if info.service == Service::Uc => {
                self.take_copy(&request, &record, broken)
            }
            Some(record) if self.params.is_selective => {
                self.take_selective(&request, &record, broken)
            }
            Some(record) => self.take_again(&request, &record, broken),
            _ if sequence < self.forgotten => Ok(Some(Undecided::BeyondLimits)),
            _ => {
                broken = broken.or_else(|| self.check_unserved(&request));
                let is_new = sequence >= self.space.next();
                let Taken { checked, is_pending } = self.take_new(&request, broken);
                if is_new || self.params.is_selective {
                    self.recovery.set_cursor(self.space.next());
                } else {
                    self.follow_fill(&request);
                }
                self.settle_behind(sequence, key, out);
                if is_pending && checked.is_ok() {
                    while self.pending.len() > PENDING_MAX.min(self.records_max)
                        && self.settle_oldest(key, out)
                    {}
                    return;
                }
                checked
            }
        };
        let checked = checked.map(|undecided| undecided.or(lost_nak));
        out.step(request_step(input, verdict_of(checked, input)));
    }

    fn check_pkey(&mut self, packet: &Packet<'_>) -> Option<Break> {
        let pkey = packet.bth().pkey();
        let known = *self.pkey.get_or_insert(pkey);
        (pkey != known).then(|| {
            let found = format!("P_Key {pkey}, that of the connection is {known}");
            Break::new(&rules::PKEY, found)
        })
    }

    /// A queue pair that failed and was reset begins at its first PSN again.
    fn restart_if_reset(&mut self, input: &Input<'_>, info: &OpcodeInfo) {
        let psn = input.facts.psn;
        let is_first =
            self.space.is_started() && psn == psn_of(self.first) && info.position.begins();
        if self.failed.is_some() && is_first && self.progress.una() > self.first {
            self.restart();
        }
    }

    /// Forgets all but the packets that wait for their verdict.
    fn restart(&mut self) {
        let pending = core::mem::take(&mut self.pending);
        *self = Self::new(Params { start: None, ..self.params }, self.place);
        self.pending = pending;
    }

    /// Whether a packet comes after a refusal.
    fn check_failed(&self, request: &Request<'_>) -> state::Checked {
        let Some((time, frame)) = self.failed else { return Ok(None) };
        let after = request.now.saturating_since(time);
        if self.is_local() && after > REACTION {
            let found = format!("sent {} µs after the NAK", after.as_micros());
            return Err(Break::new(&rules::AFTER_FATAL_NAK, found).with_frame(frame));
        }
        // The NAK may have been lost behind the capture point.
        Ok((!self.is_local() && after > REORDER).then_some(Undecided::MissingPackets))
    }

    /// The packet before one that waits was captured after all.
    fn settle_behind(&mut self, sequence: u64, key: Key, out: &mut dyn Sink) {
        if self.pending.is_empty() {
            return;
        }
        let Some(record) = self.records.get(sequence).copied() else { return };
        let waiting = self.pending.iter().position(|pending| pending.sequence == record.end());
        let Some(pending) = waiting.and_then(|at| self.pending.remove(at)) else { return };
        let after = self.records.get(pending.sequence).copied();
        let info = after.and_then(|after| after.opcode.info());
        let checked = info.map_or(Ok(None), |info| check_successor(&record, info));
        let verdict = match checked {
            Ok(_) => Verdict::Agreed,
            Err(broken) => {
                if let Some(after) = self.records.get_mut(pending.sequence) {
                    after.is_broken = true;
                }
                different(broken, pending.bytes())
            }
        };
        out.step(pending.step(key, verdict));
    }

    /// Decides about the packet that waits longest. Returns whether there was one.
    fn settle_oldest(&mut self, key: Key, out: &mut dyn Sink) -> bool {
        let Some(pending) = self.pending.pop_front() else { return false };
        let verdict = match self.skipped(&pending) {
            Some(broken) => different(broken, pending.bytes()),
            None if self.records.before(pending.sequence).is_none() => {
                Verdict::Undecided(Undecided::BeforeCapture)
            }
            None => Verdict::Undecided(Undecided::MissingPackets),
        };
        out.step(pending.step(key, verdict));
        true
    }

    /// Whether the PSNs before a packet were never sent, rather than lost or not captured.
    fn skipped(&self, pending: &Pending) -> Option<Break> {
        let record = self.records.get(pending.sequence)?;
        let before = self.records.before(pending.sequence);
        let gap = before.map_or(self.first, |before| before.end());
        if self.progress.acknowledged() > gap || !self.params.is_answered || gap >= pending.sequence
        {
            return None;
        }
        let passes = if self.gaps > 1 { GAP_PASSES_LOSSY } else { GAP_PASSES };
        let nak = self.recovery.open(Signal::SequenceError);
        let is_asked_for = nak.is_some_and(|nak| nak.from == gap);
        let is_skipped = if self.is_local() {
            record.transmissions > 1 || is_asked_for
        } else {
            record.transmissions >= passes && is_asked_for
        };
        is_skipped.then(|| {
            let found = format!(
                "PSN {}, expected {}, which was never sent",
                psn_of(pending.sequence),
                psn_of(gap)
            );
            // Where nothing was sent before, the gap begins at what the connection manager said.
            let is_start = before.is_none() && self.params.start.is_some();
            let rule = if is_start { &rules::STARTING_PSN } else { &rules::PSN_ORDER };
            let broken = Break::new(rule, found);
            match before {
                Some(before) => broken.with_frame(before.frame),
                None => broken,
            }
        })
    }
}

impl Pending {
    fn bytes(&self) -> Option<&[u8]> {
        (!self.bytes.is_empty()).then_some(&*self.bytes)
    }

    fn step(&self, (flow, sender): Key, verdict: Verdict) -> Step {
        let subject = subject_of(self.opcode);
        Step { frame: self.frame, flow, sender, subject, verdict }
    }
}

/// The verdict on a packet by the result of its checks.
pub(super) fn verdict_of(checked: state::Checked, input: &Input<'_>) -> Verdict {
    match checked {
        Ok(None) => Verdict::Agreed,
        Ok(Some(undecided)) => Verdict::Undecided(undecided),
        Err(broken) => different(broken, Some(input.packet)),
    }
}

/// The verdict on a packet that breaks a rule.
fn different(broken: Break, captured: Option<&[u8]>) -> Verdict {
    let Break { rule, found, frames, expected } = broken;
    let captured = captured.map(<[u8]>::to_vec);
    Verdict::Different(Box::new(Difference { rule, found, captured, expected, frames }))
}
