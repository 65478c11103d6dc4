//! NAKs and RNR NAKs.

use super::World;
use super::answers::{AGREED, Captured, undecided};
use super::pending::Pending;
use super::rules;
use super::track::{Complaint, State, Track};
use crate::observe::sequence::psn_of;
use crate::replay::Rule;
use crate::replay::verdict::{Undecided, Verdict};
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::{Operation, Service};

impl Track {
    /// A NAK that names a PSN that was executed: the network delivered it late, or it is wrong.
    fn judge_stale(&mut self, it: &Captured<'_>, world: &World) -> Option<Verdict> {
        if it.seq < self.since {
            return undecided(Undecided::BeforeCapture);
        }
        // One that was sent before has the MSN from before.
        let then = self.msns.at(it.seq - 1);
        let may_be_late = self.arrivals.is_none() && then.is_none_or(|then| it.msn == Some(then));
        if it.input.note.duplicate || may_be_late || world.survey.network.is_reordering() {
            return undecided(Undecided::Network);
        }
        let found = format!("a NAK for PSN {}, which was executed", psn_of(it.seq));
        Some(it.differs(&rules::NAK_PSN, found, None, &[]))
    }

    /// A NAK that was there before: the network made a copy, or it is wrong, which only a capture
    /// at the responder tells.
    fn judge_repeated(
        &mut self,
        it: &Captured<'_>,
        rule: &'static Rule,
        (found, frame): (String, u64),
        world: &World,
    ) -> Option<Verdict> {
        if self.arrivals.is_some() {
            return Some(it.differs(rule, found, None, &[frame]));
        }
        if world.survey.network.makes_copies() { AGREED } else { undecided(Undecided::Network) }
    }

    pub(super) fn judge_rnr(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        if it.seq < self.epsn {
            return self.judge_stale(it, world);
        }
        if let Err(verdict) = self.catch_up(it.seq, it, world) {
            return verdict;
        }
        let Some(front) = self.pending.front().filter(|front| front.seq == it.seq) else {
            if let Some(verdict @ Verdict::Different(_)) = self.check_msn(it, &[]) {
                return Some(verdict);
            }
            return self.judge_unsent(it.seq, it.seq, it, world);
        };
        let (frame, transmissions) = (front.frame, front.transmissions);
        if !front.info.receive.takes() {
            let found = format!("an RNR NAK for {}, which takes no receive", front.info.name);
            return Some(it.differs(&rules::NAK_UNFOUNDED, found, None, &[frame]));
        }
        if let Some(credits @ 1..) = self.credits {
            self.credits = None;
            if world.survey.network.is_reordering() {
                return undecided(Undecided::Network);
            }
            let found = format!("an RNR NAK although {credits} receives were advertised");
            return Some(it.differs(&rules::RNR_WITH_CREDITS, found, None, &[frame]));
        }
        self.rnrs += 1;
        if self.rnrs > transmissions {
            let found = format!("RNR NAK {} for {transmissions} transmissions", self.rnrs);
            self.rnrs = transmissions;
            if !self.is_complete {
                // The capture may miss a transmission.
                return undecided(Undecided::Network);
            }
            return self.judge_repeated(it, &rules::NAK_REPEATED, (found, frame), world);
        }
        if let Some(verdict) = self.compare_refusal(it, false, world) {
            return Some(verdict);
        }
        self.reported = Some((it.seq, it.frame));
        self.check_msn(it, &[frame]).or(AGREED)
    }

    pub(super) fn judge_gap(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        if it.seq < self.epsn {
            return self.judge_stale(it, world);
        }
        if self.top.is_none_or(|top| it.seq + 1 >= top) {
            return self.judge_unfounded(it, world);
        }
        if let Err(verdict) = self.catch_up(it.seq, it, world) {
            return verdict;
        }
        if let Some((seq, frame)) = self.reported
            && seq == it.seq
        {
            let found = format!("a second NAK for PSN {}", psn_of(it.seq));
            self.naks += 1;
            let behind = self.pending.iter().filter(|request| request.seq > it.seq);
            let causes: u32 = behind.map(|request| request.transmissions).sum();
            if self.naks > causes {
                // Each has a packet behind the gap as its cause, so this is a copy.
                return AGREED;
            }
            if self.rnrs > 0 {
                return Some(it.differs(&rules::NAK_AFTER_RNR, found, None, &[frame]));
            }
            return self.judge_repeated(it, &rules::NAK_REPEATED, (found, frame), world);
        }
        if self.is_refused_here {
            let found = format!("a sequence NAK for PSN {}, which arrived", psn_of(it.seq));
            return Some(it.differs(&rules::NAK_UNFOUNDED, found, None, &[]));
        }
        (self.reported, self.naks) = (Some((it.seq, it.frame)), 1);
        self.check_msn(it, &[]).or(AGREED)
    }

    /// A sequence NAK although nothing behind its PSN was captured: it has no cause, unless the
    /// capture misses that.
    fn judge_unfounded(&mut self, it: &Captured<'_>, world: &World) -> Option<Verdict> {
        if self.reported.is_some_and(|(seq, _)| seq == it.seq) {
            return AGREED;
        }
        if !self.is_complete && self.top.is_none_or(|top| it.seq >= top) {
            // What it names was not captured, either.
            return undecided(Undecided::MissingPackets);
        }
        if self.answers_uncaptured(it) {
            return undecided(Undecided::MissingPackets);
        }
        let gap = self.pending.first_gap(self.epsn);
        let is_gap = gap < it.seq;
        let rule = if is_gap { &rules::NAK_PSN } else { &rules::NAK_UNFOUNDED };
        let psn = psn_of(it.seq);
        let found = if is_gap {
            format!("a sequence NAK for PSN {psn}, but PSN {} is missing", psn_of(gap))
        } else {
            format!("a sequence NAK for PSN {psn}, and nothing behind it was sent")
        };
        self.wait_for((it.seq + 1, it.seq), rule, found, it, world)
    }

    /// A NAK that ends the connection.
    pub(super) fn judge_refusal(
        &mut self,
        it: &Captured<'_>,
        code: NakCode,
        world: &mut World,
    ) -> Option<Verdict> {
        self.refusal = Some((it.seq, code));
        if it.seq < self.epsn {
            let is_answering = self.asked.iter().any(|asked| asked.covers(it.seq));
            if !is_answering {
                self.state = State::Failed(it.frame);
                return self.judge_stale(it, world);
            }
            // The memory of a READ is gone while it is answered.
            self.state = State::Failed(it.frame);
            return self.check_msn(it, &[]).or(AGREED);
        }
        if let Err(verdict) = self.catch_up(it.seq, it, world) {
            if self.state == State::Known {
                self.state = State::Failed(it.frame);
            }
            return verdict;
        }
        let verdict = self.judge_code(it, code, world);
        self.state = State::Failed(it.frame);
        let is_read = self
            .pending
            .front()
            .is_some_and(|front| front.info.operation == Operation::ReadRequest);
        if is_read && it.msn.is_some_and(|msn| self.counts_ahead(msn)) {
            // Its memory may have been gone when it was answered, after later requests were
            // executed.
            return verdict.or(AGREED);
        }
        if is_read && it.msn.is_some_and(|msn| self.counts_missing(msn) && msn != self.msns.current)
        {
            // So may it, if some of the later requests were not captured.
            return verdict.or_else(|| undecided(Undecided::MissingPackets));
        }
        verdict.or_else(|| self.check_msn(it, &[])).or(AGREED)
    }

    /// Whether a request may be refused with this code.
    fn judge_code(
        &mut self,
        it: &Captured<'_>,
        code: NakCode,
        world: &mut World,
    ) -> Option<Verdict> {
        let Some(front) = self.pending.front().filter(|front| front.seq == it.seq) else {
            return self.judge_unsent(it.seq, it.seq, it, world);
        };
        let (frame, name, operation) = (front.frame, front.info.name, front.info.operation);
        let front = front.without_payload();
        let attempt = self.attempt(&front);
        // What is wrong with the request by itself decides.
        if let Some(verdict) = self.compare_refusal(it, true, world) {
            return Some(verdict);
        }
        if world.complaint.take().is_some() {
            // The engine refused it as well.
            return None;
        }
        match code {
            NakCode::RemoteAccessError => {
                let Some(attempt) = attempt else {
                    if operation == Operation::Flush {
                        return None;
                    }
                    let found = format!("{name} has no key that could be refused");
                    return Some(it.differs(&rules::NAK_PSN, found, None, &[frame]));
                };
                if attempt.start == attempt.end {
                    let found = format!("the key of {name} of no bytes was refused");
                    return Some(it.differs(&rules::ZERO_LENGTH_KEY, found, None, &[frame]));
                }
                let quiet_since = world.memory.last_activity(self.host);
                let contradiction = world.keys.refused(attempt, quiet_since)?;
                let frames: Vec<u64> = contradiction.frame.into_iter().chain([frame]).collect();
                Some(it.differs(&rules::ACCESS_REFUSED, contradiction.text, None, &frames))
            }
            NakCode::InvalidRequest => {
                let is_excused = match operation {
                    // The shared receive queue that it names may not be one of its domain.
                    _ if front.info.service == Service::Xrc && front.info.receive.takes() => true,
                    // The receive may be too short.
                    Operation::Send => front.payload_len > 0,
                    // Too many may be in flight.
                    Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
                        if self.has_unanswered() =>
                    {
                        true
                    }
                    // The queue pair may not allow it, if it never did.
                    Operation::Write if attempt.is_none() => false,
                    _ => attempt.is_none_or(|attempt| !self.rights.contains(attempt.right)),
                };
                if is_excused {
                    return None;
                }
                let found = format!("{name} is a valid request");
                Some(it.differs(&rules::NAK_CODE, found, None, &[frame]))
            }
            _ => None,
        }
    }

    pub(super) fn has_unanswered(&self) -> bool {
        self.asked.iter().any(|asked| asked.next < asked.request.end())
    }

    /// Gives the engine the request that was refused, without a receive unless `receive`. The
    /// verdict if it refuses it otherwise; a complaint is left if it refuses it in the same way.
    fn compare_refusal(
        &mut self,
        it: &Captured<'_>,
        receive: bool,
        world: &mut World,
    ) -> Option<Verdict> {
        let request: Pending = self.pending.front()?.without_payload();
        if self.in_message && !request.info.position.begins() {
            return None;
        }
        let reply = self.run(&request, receive, world)?;
        let captured = it.input.facts.aeth?.0;
        let (expected, _) = reply.aeth?;
        if reply.is_positive() {
            // The engine executed what the device did not.
            if let Some(target) = &mut self.target {
                target.forget();
            }
            // It is a refusal for reasons that do not appear on the wire, or an answer that is too
            // early.
            return None;
        }
        let same = match (expected.answer(), captured.answer()) {
            (Answer::RnrNak(_), Answer::RnrNak(_)) => true,
            (expected, captured) => expected == captured,
        };
        if same {
            let frames = vec![request.frame];
            let found = String::new();
            let is_refusal = !matches!(expected.answer(), Answer::RnrNak(_));
            let complaint = Complaint { rule: &rules::NAK_CODE, found, frames };
            world.complaint = is_refusal.then_some(complaint);
            return None;
        }
        let packet = reply.packet(it.dest(), self.pkey, self.msns.offset, &[]);
        let found = format!("syndrome {:#04x}, expected {:#04x}", captured.0, expected.0);
        Some(it.differs(&rules::NAK_CODE, found, Some(packet), &[request.frame]))
    }
}
