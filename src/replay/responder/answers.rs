//! Captured answers, held against those of the engine.

use super::World;
use super::rules;
use super::track::{Advance, Complaint, FAR, Open, State, Track, differs, packet_pkey};
use crate::observe::sequence::psn_of;
use crate::replay::Rule;
use crate::replay::judge::Input;
use crate::replay::limits::OPEN_MAX;
use crate::replay::verdict::{Difference, Undecided, Verdict};
use crate::wire::aeth::{Answer, Credits, NakCode};
use crate::wire::{Headers, Msn, OpcodeInfo, Operation, Packet, Qpn};

/// An MSN that is less by up to this much does not come from an old connection whose MSN is about to wrap.
const FEWER_MAX: i32 = 1 << 16;

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
        self.complaint = None;
        self.note_arrival(&captured);
        let judged = self.judge(&captured, world);
        if let Some(msn) = msn.filter(|_| !matches!(judged, Some(Verdict::Different(_)))) {
            let top = self.top_msn.unwrap_or(msn);
            self.top_msn = Some(if msn.since(top) > 0 { msn } else { top });
        }
        if let Some(wrong) = self.check_headers(&captured) {
            self.open.retain(|open| open.frame != frame);
            return Some(wrong);
        }
        match (self.complaint.take(), judged) {
            (Some(Complaint { rule, found, frames }), Some(Verdict::Agreed)) => {
                Some(captured.differs(rule, found, None, &frames))
            }
            (_, judged) => judged,
        }
    }

    /// What an answer says about what arrived, if the capture was made at the responder.
    fn note_arrival(&mut self, it: &Captured<'_>) {
        self.is_refused_here = false;
        let Some(arrivals) = &mut self.arrivals else { return };
        match it.answer() {
            Some(Answer::Nak(NakCode::PsnSequenceError)) => {
                self.is_refused_here = arrivals.reported(it.seq);
            }
            _ if it.is_nak() => arrivals.refused(it.seq),
            _ => {
                if let Some(gap) = arrivals.answered(it.seq) {
                    self.late.push(self.missing_nak(&gap));
                }
            }
        }
    }

    /// What is wrong with an answer by itself.
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
            return verdict;
        }
        let top = self.top.unwrap_or(self.epsn).max(self.epsn);
        // A duplicate may be acknowledged with its own PSN, however old it is (C9-105).
        let is_duplicate = self.duplicates.iter().any(|again| again.seq == it.seq);
        if it.seq + FAR < self.epsn && !is_duplicate || it.seq > top + FAR {
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

    /// Nothing comes after a refusal for good, but what was sent before it.
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

    /// Finds the state from which the captured requests can be executed. The verdict on the answer if it cannot be.
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
                if self.start_at(seq, it.dest()) {
                    Ok(())
                } else {
                    Err(undecided(Undecided::BeyondLimits))
                }
            }
            Some(front) if is_ack && front.seq == it.seq + 1 => {
                self.adopt(it.seq + 1, it.msn, it.dest(), world);
                Err(undecided(why))
            }
            // What is expected was not captured yet, or is in the middle of a message.
            _ if it.is_nak() && self.top.is_some_and(|top| it.seq < top) => {
                let is_start = it.msn == Some(Msn::new(0));
                self.adopt(it.seq, it.msn, it.dest(), world);
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
                    self.adopt(it.seq + 1, it.msn, it.dest(), world);
                }
                Err(undecided(why))
            }
        }
    }

    fn why_alone(&self, world: &World) -> Option<Undecided> {
        let connection = world.survey.connection(self.flow)?;
        let requester = usize::from(1 - self.end.min(1));
        let requests = connection.directions.get(requester)?.request_packets;
        (requests == 0).then_some(Undecided::OneDirection)
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
                let expected = reply.packet(it.dest(), self.pkey, self.msn_offset, &[], None);
                let found = "a request was accepted that must be refused".to_owned();
                let rule = &rules::INVALID_ACCEPTED;
                let verdict = it.differs(rule, found, Some(expected), &[frame]);
                self.adopt(target, it.msn, it.dest(), world);
                Err(Some(verdict))
            }
        }
    }

    /// An answer says that a request arrived that was not captured: the capture misses it, or it was never sent, which
    /// only what comes later tells.
    pub(super) fn judge_unsent(
        &mut self,
        missing: u64,
        target: u64,
        it: &Captured<'_>,
        world: &mut World,
    ) -> Option<Verdict> {
        let rule = match it.info.operation {
            _ if it.is_nak() => &rules::NAK_PSN,
            Operation::Acknowledge => &rules::ACK_NOT_RECEIVED,
            _ if !it.info.position.begins() && self.stream.is_some() => &rules::RESPONSE_PSN,
            _ => &rules::RESPONSE_UNSOLICITED,
        };
        let is_beyond = self.top.is_none_or(|top| missing >= top);
        if !is_beyond {
            let is_captured = self.first.is_some_and(|first| missing >= first);
            if self.is_complete && is_captured && self.state == State::Known && !it.is_nak() {
                let found = format!("PSN {} was not sent", psn_of(missing));
                return Some(it.differs(rule, found, None, &[]));
            }
            if let Some(found) = self.contradicts_hole(missing, target, it) {
                return Some(it.differs(rule, found, None, &[]));
            }
            // What the missing requests wrote is unknown.
            world.memory.note_activity(self.host, it.frame);
            self.adopt(target, it.msn, it.dest(), world);
            return undecided(Undecided::MissingPackets);
        }
        let found = format!("PSN {} was not sent yet", psn_of(missing));
        self.wait_for(missing, target, rule, found, it)
    }

    /// An answer is wrong if the requester sends `unsent` for the first time later. Otherwise all before `target` was
    /// executed.
    pub(super) fn wait_for(
        &mut self,
        unsent: u64,
        target: u64,
        rule: &'static Rule,
        found: String,
        it: &Captured<'_>,
    ) -> Option<Verdict> {
        if self.open.len() >= OPEN_MAX {
            return undecided(Undecided::MissingPackets);
        }
        let msn = it.msn;
        // An MSN that counts what was not captured says that it was sent.
        let is_beyond = |msn: Msn| msn.since(self.msn) > 0 && !self.counts_ahead(msn);
        let is_counted = !self.adopts_msn && msn.is_some_and(is_beyond);
        let needs = (!it.is_nak()).then_some(it.info.operation);
        let captured = Some(it.packet.to_vec());
        let (expected, frames) = (None, Vec::new());
        let difference = Box::new(Difference { rule, found, captured, expected, frames });
        let (dest, frame, time) = (it.dest(), it.frame, it.input.facts.time);
        let open = Open { unsent, target, msn, dest, frame, time, is_counted, needs, difference };
        self.open.push(open);
        None
    }

    /// Whether the MSN of an answer says that the requests that were not captured, from `missing` on, were not executed:
    /// they are whole messages, and it does not count them.
    fn contradicts_hole(&self, missing: u64, target: u64, it: &Captured<'_>) -> Option<String> {
        let behind = self.pending.iter().find(|request| request.seq > missing)?;
        let msn = it.msn?;
        if self.is_message_open
            || self.in_message
            || self.adopts_msn
            || !behind.info.position.begins()
            || behind.seq > target
        {
            return None;
        }
        let executed = self.pending.iter().take_while(|request| request.seq < target);
        let least = 1 + executed.filter(|request| request.info.position.ends()).count();
        let counted = msn.since(self.msn);
        if i64::from(counted) >= i64::try_from(least).unwrap_or(i64::MAX) {
            return None;
        }
        let psn = psn_of(missing);
        Some(format!("MSN {msn}, after {}, does not count PSN {psn}", self.msn))
    }

    /// Compares the MSN of an answer with that of the last request that was executed.
    pub(super) fn check_msn(&mut self, it: &Captured<'_>, frames: &[u64]) -> Option<Verdict> {
        let msn = it.msn?;
        if self.adopts_msn {
            self.adopts_msn = false;
            if msn == self.msn {
                return None;
            }
            if (-FEWER_MAX..0).contains(&msn.since(self.msn)) {
                // However old the connection is, it counts what was executed since.
                return Some(self.wrong_msn(it, msn, frames));
            }
            // The connection is older than the capture.
            let offset = u32::try_from(msn.since(self.msn) & 0xff_ffff).unwrap_or(0);
            self.msn_offset = self.msn_offset.wrapping_add(offset) & 0xff_ffff;
            self.history.clear();
            for asked in &mut self.asked {
                asked.msn = asked.msn.plus(offset);
            }
            self.msn = msn;
            return undecided(Undecided::BeforeCapture);
        }
        (msn != self.msn).then(|| self.wrong_msn(it, msn, frames))
    }

    fn wrong_msn(&self, it: &Captured<'_>, msn: Msn, frames: &[u64]) -> Verdict {
        let found = format!("MSN {msn}, expected {}", self.msn);
        let expected = with_msn(it.packet, self.msn);
        // A NAK that counts fewer requests than come before its PSN names the wrong PSN.
        let is_behind = it.is_nak() && msn.since(self.msn) < 0;
        let rule = if is_behind { &rules::NAK_PSN } else { &rules::RESPONSE_MSN };
        it.differs(rule, found, Some(expected), frames)
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
            && !self.adopts_msn
            && msn != self.msn
        {
            // Duplicates are acknowledged with the present MSN, and the first acknowledgement may have been lost.
            if self.is_last_repeated && self.counts_ahead(msn) {
                return AGREED;
            }
            if self.may_answer_unseen(msn) {
                return undecided(Undecided::Network);
            }
        }
        self.check_msn(it, &[]).or(AGREED)
    }

    /// An acknowledgement of what was acknowledged: for a duplicate, or one that came late.
    fn judge_old_ack(&mut self, it: &Captured<'_>) -> Option<Verdict> {
        if it.seq + 1 < self.since {
            return undecided(Undecided::BeforeCapture);
        }
        let Some(msn) = it.msn else { return AGREED };
        let then = self.msn_at(it.seq);
        let is_between = |then: Msn| msn.since(then) >= 0 && msn.since(self.msn) <= 0;
        if then.is_none_or(is_between) || self.may_count(msn) {
            return AGREED;
        }
        let expected = then.unwrap_or(self.msn);
        if self.may_answer_unseen(msn) {
            return undecided(Undecided::Network);
        }
        let found = format!("MSN {msn}, expected {expected}");
        let packet = with_msn(it.packet, expected);
        Some(it.differs(&rules::RESPONSE_MSN, found, Some(packet), &[]))
    }

    /// Whether an answer to a duplicate may have this MSN: the present one, which counts requests that were executed and
    /// whose answers were not captured.
    pub(super) fn may_count(&self, msn: Msn) -> bool {
        msn == self.msn || self.has_repeats && self.counts_ahead(msn)
    }

    /// Whether an MSN counts requests whose answers were not captured yet, and no more.
    pub(super) fn counts_ahead(&self, msn: Msn) -> bool {
        let ahead = msn.since(self.msn);
        let unanswered = self.pending.iter().filter(|request| request.info.position.ends()).count();
        usize::try_from(ahead).is_ok_and(|ahead| ahead <= unanswered)
    }

    /// Whether an MSN may count requests that were not captured: between those whose answers were not captured yet, or
    /// behind the last one.
    pub(super) fn counts_missing(&self, msn: Msn) -> bool {
        let ahead = u64::try_from(msn.since(self.msn));
        !self.is_complete && ahead.is_ok_and(|ahead| ahead < FAR)
    }

    /// Whether the answer to a duplicate that was not captured, or that the network made behind the capture point, may have
    /// this MSN: it counts requests whose answers were not captured yet, or that were not captured and another answer
    /// counts.
    pub(super) fn may_answer_unseen(&self, msn: Msn) -> bool {
        let is_known = !self.is_complete && self.top_msn.is_some_and(|top| msn.since(top) <= 0);
        self.arrivals.is_none() && (self.counts_ahead(msn) || is_known && msn.since(self.msn) >= 0)
    }

    /// The MSN when this was executed; nothing if that is forgotten.
    pub(super) fn msn_at(&self, seq: u64) -> Option<Msn> {
        let at = self.history.partition_point(|(last, _)| *last <= seq);
        let (_, msn) = self.history.get(at.checked_sub(1)?)?;
        Some(Msn::new(*msn))
    }
}

/// The packet with another MSN.
pub(super) fn with_msn(packet: &[u8], msn: Msn) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(place) = packet.get_mut(13..16) {
        place.copy_from_slice(msn.get().to_be_bytes().get(1..).unwrap_or_default());
    }
    packet
}
