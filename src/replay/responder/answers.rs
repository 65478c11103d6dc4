//! Captured answers, held against those of the engine.

use core::time::Duration;

use super::World;
use super::msn::with_msn;
use super::rules;
use super::track::{Advance, Complaint, MtuBasis, State, Track, differs, packet_pkey};
use crate::observe::sequence::{PSN_JUMP_MAX, psn_of};
use crate::replay::Rule;
use crate::replay::judge::Input;
use crate::replay::verdict::{Undecided, Verdict};
use crate::wire::aeth::{Answer, Credits, NakCode};
use crate::wire::{Headers, Msn, OpcodeInfo, Operation, Packet, Qpn};

/// A captured answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Captured<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) info: &'static OpcodeInfo,
    pub(super) seq: u64,
    pub(super) frame: u64,
    pub(super) msn: Option<Msn>,
    pub(super) packet: &'a [u8],
}

impl Captured<'_> {
    /// A difference of this packet.
    pub(super) fn differs(
        &self,
        rule: &'static Rule,
        found: String,
        expected: Option<Vec<u8>>,
        frames: &[u64],
    ) -> Verdict {
        differs(rule, found, self.packet, expected, frames)
    }

    pub(super) fn dest(&self) -> Qpn {
        self.input.facts.dest_qp
    }

    fn answer(&self) -> Option<Answer> {
        self.input.facts.aeth.map(|(syndrome, _)| syndrome.answer())
    }

    /// Whether it is a NAK or RNR NAK.
    pub(super) fn is_nak(&self) -> bool {
        matches!(self.answer(), Some(Answer::Nak(_) | Answer::RnrNak(_)))
    }
}

pub(super) const AGREED: Option<Verdict> = Some(Verdict::Agreed);

pub(super) fn undecided(why: Undecided) -> Option<Verdict> {
    Some(Verdict::Undecided(why))
}

/// Maximum time from a request to its acknowledgement or NAK at the capture point.
const ANSWER_MAX: Duration = Duration::from_micros(100);

impl Track {
    /// Takes an answer of this responder; nothing if the verdict must wait.
    pub(super) fn response(
        &mut self,
        input: &Input<'_>,
        info: &'static OpcodeInfo,
        world: &mut World,
    ) -> Option<Verdict> {
        let facts = input.facts;
        let seq = self.unwrap_answer(facts.psn);
        let msn = facts.aeth.map(|(_, msn)| msn);
        let frame = facts.frame;
        let captured = Captured { input, info, seq, frame, msn, packet: input.packet };
        world.complaint = None;
        self.note_arrival(&captured, world);
        let judged = self.judge(&captured, world);
        if let Some(msn) = msn.filter(|_| !matches!(judged, Some(Verdict::Different(_)))) {
            self.msns.note(msn);
        }
        if let Some(wrong) = self.check_headers(&captured) {
            self.open.retain(|open| open.frame != frame);
            return Some(wrong);
        }
        match (world.complaint.take(), judged) {
            (Some(Complaint { rule, found, frames }), Some(Verdict::Agreed)) => {
                Some(captured.differs(rule, found, None, &frames))
            }
            (_, judged) => judged,
        }
    }

    /// Notes which requests an answer says arrived, if the capture was made at the responder.
    fn note_arrival(&mut self, it: &Captured<'_>, world: &mut World) {
        self.is_refused_here = false;
        let Some(arrivals) = &mut self.arrivals else { return };
        match it.answer() {
            Some(Answer::Nak(NakCode::PsnSequenceError)) => {
                self.is_refused_here = arrivals.reported(it.seq);
            }
            _ if it.is_nak() => arrivals.refused(it.seq),
            _ => {
                if let Some(gap) = arrivals.answered(it.seq) {
                    world.late.push(self.missing_nak(&gap));
                }
            }
        }
    }

    /// Checks an answer by itself.
    fn check_headers(&self, it: &Captured<'_>) -> Option<Verdict> {
        let packet = it.packet;
        let bth = Packet::parse_cut(packet, packet.len()).0?;
        let bth = bth.bth();
        if bth.tver().get() != 0 {
            let found = format!("transport version {}", bth.tver());
            return Some(it.differs(&rules::RESPONSE_VERSION, found, None, &[]));
        }
        if let (Some(pkey), Some(own)) = (self.pkey, packet_pkey(packet))
            && pkey.get() & 0x7fff != own.get() & 0x7fff
        {
            let found = format!("P_Key {own}, the requests have {pkey}");
            return Some(it.differs(&rules::RESPONSE_PKEY, found, None, &[]));
        }
        if bth.ack_req() || bth.solicited() {
            let bit = if bth.ack_req() { "AckReq" } else { "solicited event" };
            let found = format!("the {bit} bit is set");
            return Some(it.differs(&rules::RESPONSE_BITS, found, None, &[]));
        }
        let payload = it.input.facts.payload_len;
        let pad = bth.pad().get();
        if !(payload + pad).is_multiple_of(4) || (payload == 0 && pad != 0) {
            let found = format!("pad count {pad} for {payload} bytes of payload");
            return Some(it.differs(&rules::RESPONSE_PAD, found, None, &[]));
        }
        let (syndrome, _) = it.input.facts.aeth?;
        let answer = syndrome.answer();
        let is_plain = it.info.operation == Operation::Acknowledge;
        let is_wrong = match answer {
            Answer::Ack(_) => false,
            Answer::RnrNak(_) => !is_plain,
            Answer::Nak(NakCode::Reserved(_) | NakCode::InvalidRdRequest) => true,
            Answer::Nak(_) => !is_plain,
            Answer::Reserved(_) => true,
        };
        if is_wrong {
            let found = format!("syndrome {:#04x} in {}", syndrome.0, it.info.name);
            return Some(it.differs(&rules::RESPONSE_SYNDROME, found, None, &[]));
        }
        None
    }

    /// The verdict on an answer; nothing if it must wait.
    fn judge(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        if it.info.headers.contains(Headers::AETH) && it.msn.is_none() {
            return undecided(Undecided::Cut);
        }
        if it.input.note.duplicate && !it.is_nak() {
            self.copies += 1;
            return AGREED;
        }
        if let State::Failed(frame) = self.state {
            return self.judge_after_failure(it, frame, world);
        }
        if let State::Unknown(why) = self.state
            && let Err(verdict) = self.synchronize(it, why, world)
        {
            if it.msn != Some(Msn::new(0)) {
                // It tells that requests were executed that were not captured: what they wrote is
                // unknown.
                world.memory.note_activity(self.host, it.frame);
            }
            return verdict;
        }
        let top = self.top.unwrap_or(self.epsn).max(self.epsn);
        // A duplicate may be acknowledged with its own PSN, however old it is (C9-105).
        let is_duplicate = self.duplicates.iter().any(|again| again.seq == it.seq);
        if it.seq + PSN_JUMP_MAX < self.epsn && !is_duplicate || it.seq > top + PSN_JUMP_MAX {
            let found = format!("PSN {} is far from all in flight", psn_of(it.seq));
            return Some(it.differs(&rules::RESPONSE_UNSOLICITED, found, None, &[]));
        }
        match (it.info.operation, it.answer()) {
            (Operation::ReadResponse | Operation::AtomicAcknowledge, _) => {
                self.judge_data(it, world)
            }
            (_, Some(Answer::Ack(credits))) => self.judge_ack(it, credits, world),
            (_, Some(Answer::RnrNak(_))) => self.judge_rnr(it, world),
            (_, Some(Answer::Nak(NakCode::PsnSequenceError))) => self.judge_gap(it, world),
            (_, Some(Answer::Nak(code))) => self.judge_refusal(it, code, world),
            (_, Some(Answer::Reserved(_)) | None) => AGREED,
        }
    }

    /// Judges an answer after a refusal for good: none comes, but what was sent before it.
    fn judge_after_failure(
        &mut self,
        it: &Captured<'_>,
        frame: u64,
        world: &World,
    ) -> Option<Verdict> {
        if it.seq < self.epsn {
            return AGREED;
        }
        if it.is_nak() && (it.input.note.duplicate || world.survey.network.makes_copies()) {
            return AGREED;
        }
        if let Some(Answer::Nak(code)) = it.answer()
            && self.refusal == Some((it.seq, code))
            && self.arrivals.is_none()
        {
            // The network may have made a copy of the refusal.
            return undecided(Undecided::Network);
        }
        let psn = psn_of(it.seq);
        let found = format!("an answer for PSN {psn} after the connection was refused");
        Some(it.differs(&rules::AFTER_FATAL_NAK, found, None, &[frame]))
    }

    /// Finds the state from which the captured requests can be executed. The verdict on the answer
    /// if it cannot be.
    fn synchronize(
        &mut self,
        it: &Captured<'_>,
        why: Undecided,
        world: &mut World,
    ) -> Result<(), Option<Verdict>> {
        while self.pending.front().is_some_and(|front| !front.info.position.begins()) {
            let dropped = self.pending.pop_front();
            if dropped.is_some_and(|request| request.info.operation == Operation::Write) {
                // Where the beginning of its message, which was not captured, wrote is unknown.
                world.memory.note_activity(self.host, it.frame);
            }
        }
        let is_ack = it.info.operation == Operation::Acknowledge
            && matches!(it.answer(), Some(Answer::Ack(_)));
        match self.pending.front() {
            Some(front) if front.seq <= it.seq => {
                let seq = front.seq;
                self.start_at(seq);
                Ok(())
            }
            Some(front) if is_ack && front.seq == it.seq + 1 => {
                self.adopt(it.seq + 1, it.msn, world);
                Err(undecided(why))
            }
            // What is expected was not captured yet, or is in the middle of a message.
            _ if it.is_nak() && self.top.is_some_and(|top| it.seq < top) => {
                let is_start = it.msn == Some(Msn::new(0));
                self.adopt(it.seq, it.msn, world);
                self.reported = Some((it.seq, it.frame));
                Err(if is_start { AGREED } else { undecided(why) })
            }
            Some(_) => Err(undecided(why)),
            None if self.top.is_none() => {
                // Nothing of the requester was captured so far, and perhaps nothing ever is.
                Err(undecided(self.why_alone(world).unwrap_or(why)))
            }
            None => {
                if is_ack {
                    self.adopt(it.seq + 1, it.msn, world);
                }
                Err(undecided(why))
            }
        }
    }

    fn why_alone(&self, world: &World) -> Option<Undecided> {
        let connection = world.survey.connection(self.flow)?;
        let is_requesting = connection.directions[self.end.other()].is_requesting;
        (!is_requesting).then_some(Undecided::OneDirection)
    }

    /// Executes all before `target`; the verdict on the answer if that does not work.
    pub(super) fn catch_up(
        &mut self,
        target: u64,
        it: &Captured<'_>,
        world: &mut World,
    ) -> Result<(), Option<Verdict>> {
        match self.advance(target, it.frame, world) {
            Advance::Reached => Ok(()),
            Advance::Missing(missing) => Err(self.judge_unsent(missing, target, it, world)),
            Advance::Refused(reply, frame) => {
                let expected = reply.packet(it.dest(), self.pkey, self.msns.offset, &[]);
                let found = "a request was accepted that must be refused".to_owned();
                let rule = &rules::INVALID_ACCEPTED;
                let verdict = it.differs(rule, found, Some(expected), &[frame]);
                self.adopt(target, it.msn, world);
                Err(Some(verdict))
            }
        }
    }

    fn judge_ack(
        &mut self,
        it: &Captured<'_>,
        credits: Credits,
        world: &mut World,
    ) -> Option<Verdict> {
        if it.seq < self.epsn {
            return self.judge_old_ack(it);
        }
        if let Err(verdict) = self.catch_up(it.seq + 1, it, world) {
            return verdict;
        }
        self.credits = credits.count().map(i64::from);
        if let Some(at) = self.asked.iter().rposition(|asked| asked.covers(it.seq)) {
            let asked = self.asked.get_mut(at)?;
            if it.seq > asked.request.seq && self.mtu_basis != MtuBasis::Shown {
                // The READ may have fewer responses, and the capture may miss what is behind it.
                return undecided(Undecided::MissingPackets);
            }
            let (frame, kind) = (asked.request.frame, asked.request.info.name);
            asked.next = asked.request.end();
            let found = format!("an acknowledgement for {kind} with PSN {}", psn_of(it.seq));
            return Some(it.differs(&rules::RESPONSE_KIND, found, None, &[frame]));
        }
        // Newest first: those before the first that was passed were passed, or answered.
        for asked in self.asked.iter_mut().rev() {
            if asked.next >= asked.request.end() || asked.passed.is_some() {
                break;
            }
            if asked.next == asked.request.seq {
                asked.passed = Some(it.frame);
            }
        }
        if let Some(msn) = it.msn
            && !self.msns.adopts
            && msn != self.msns.current
        {
            // Duplicates are acknowledged with the present MSN, and the first acknowledgement may
            // have been lost.
            if self.is_last_repeated && self.counts_ahead(msn) {
                return AGREED;
            }
            if self.may_answer_unseen(msn) {
                return undecided(Undecided::Network);
            }
        }
        self.check_msn(it, &[]).or(AGREED)
    }

    /// Whether the request of an answer was not captured: the last one that was is too old.
    pub(super) fn answers_uncaptured(&self, it: &Captured<'_>) -> bool {
        let (last, _) = self.last_request;
        let quiet = it.input.facts.time.saturating_since(last);
        !self.is_complete && quiet > ANSWER_MAX
    }

    /// An acknowledgement of what was acknowledged: for a duplicate, or one that came late.
    fn judge_old_ack(&mut self, it: &Captured<'_>) -> Option<Verdict> {
        if it.seq + 1 < self.since {
            return undecided(Undecided::BeforeCapture);
        }
        let Some(msn) = it.msn else { return AGREED };
        let then = self.msns.at(it.seq);
        let is_between = |then: Msn| msn.since(then) >= 0 && msn.since(self.msns.current) <= 0;
        if then.is_none_or(is_between) || self.may_count(msn) {
            return AGREED;
        }
        let expected = then.unwrap_or(self.msns.current);
        if self.may_answer_unseen(msn) {
            return undecided(Undecided::Network);
        }
        if self.answers_uncaptured(it) && self.counts_missing(msn) {
            return undecided(Undecided::MissingPackets);
        }
        let found = format!("MSN {msn}, expected {expected}");
        let packet = with_msn(it.packet, expected);
        Some(it.differs(&rules::RESPONSE_MSN, found, Some(packet), &[]))
    }
}
