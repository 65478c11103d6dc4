//! Captured answers, held against those of the engine.

use super::World;
use super::rules;
use super::step;
use super::track::{Advance, Asked, Open, State, Track, differs, packet_pkey, psn_of};
use crate::replay::judge::{Input, Sink};
use crate::replay::limits::OPEN_MAX;
use crate::replay::memory::{Found, Location};
use crate::replay::verdict::{Difference, Undecided, Verdict};
use crate::wire::aeth::{Answer, Credits, NakCode};
use crate::wire::{Msn, OpcodeInfo, Operation, Packet, Qpn};

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
        rule: &'static crate::replay::Rule,
        found: String,
        expected: Option<Vec<u8>>,
        frames: &[u64],
    ) -> Verdict {
        differs(rule, found, self.packet, expected, frames)
    }

    fn dest(&self) -> Qpn {
        self.input.facts.dest_qp
    }
}

const AGREED: Option<Verdict> = Some(Verdict::Agreed);

fn undecided(why: Undecided) -> Option<Verdict> {
    Some(Verdict::Undecided(why))
}

impl Track {
    /// Takes an answer of this responder.
    pub(super) fn response(
        &mut self,
        input: &Input<'_>,
        info: &'static OpcodeInfo,
        world: &mut World,
        out: &mut dyn Sink,
    ) {
        let facts = input.facts;
        let seq = self.unwrap(facts.psn);
        let msn = facts.aeth.map(|(_, msn)| msn);
        let frame = facts.frame;
        let captured = Captured { input, info, seq, frame, msn, packet: input.packet };
        let judged = self.judge(&captured, world);
        let verdict = match (self.check_headers(&captured), judged) {
            (Some(wrong), _) => {
                self.open.retain(|open| open.frame != frame);
                Some(wrong)
            }
            (None, judged) => judged,
        };
        if let Some(verdict) = verdict {
            out.step(step(input, verdict));
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
        if (payload + pad) % 4 != 0 || (payload == 0 && pad != 0) {
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
        let facts = it.input.facts;
        let has_aeth = it.info.headers.contains(crate::wire::Headers::AETH);
        if has_aeth && facts.aeth.is_none() {
            return undecided(Undecided::Cut);
        }
        if it.input.note.duplicate {
            return AGREED;
        }
        if let State::Failed(frame) = self.state {
            return self.judge_after_failure(it, frame);
        }
        if let State::Unknown(why) = self.state
            && let Err(verdict) = self.synchronize(it, why, world)
        {
            return verdict;
        }
        let answer = facts.aeth.map(|(syndrome, _)| syndrome.answer());
        match (it.info.operation, answer) {
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
    fn judge_after_failure(&mut self, it: &Captured<'_>, frame: u64) -> Option<Verdict> {
        if it.seq < self.epsn {
            return AGREED;
        }
        let found =
            format!("an answer for PSN {} after the connection was refused", psn_of(it.seq));
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
            self.pending.pop_front();
        }
        let is_ack = it.info.operation == Operation::Acknowledge
            && matches!(it.input.facts.aeth, Some((s, _)) if matches!(s.answer(), Answer::Ack(_)));
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
                self.adopt(it.seq + 1, it.msn.unwrap_or(Msn::new(0)), it.dest(), world);
                Err(undecided(why))
            }
            Some(_) => Err(undecided(why)),
            None if self.top.is_none() => {
                // Nothing of the requester was captured so far, and perhaps nothing ever is.
                Err(undecided(self.why_alone(world).unwrap_or(why)))
            }
            None => {
                if is_ack {
                    self.adopt(it.seq + 1, it.msn.unwrap_or(Msn::new(0)), it.dest(), world);
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
    fn catch_up(
        &mut self,
        target: u64,
        it: &Captured<'_>,
        world: &mut World,
    ) -> Result<(), Option<Verdict>> {
        match self.advance(target, it.frame, world) {
            Advance::Reached => Ok(()),
            Advance::Missing(missing) => Err(self.judge_unsent(missing, target, it, world)),
            Advance::Refused(expected, frame) => {
                let expected = Some(self.translate(expected));
                let found = "a request was accepted that must be refused".to_owned();
                let verdict = it.differs(&rules::INVALID_ACCEPTED, found, expected, &[frame]);
                let msn = it.msn.unwrap_or(self.msn);
                self.adopt(target, msn, it.dest(), world);
                Err(Some(verdict))
            }
        }
    }

    /// An answer says that a request arrived that was not captured: the capture misses it, or it was never sent, which
    /// only what comes later tells.
    fn judge_unsent(
        &mut self,
        missing: u64,
        target: u64,
        it: &Captured<'_>,
        world: &mut World,
    ) -> Option<Verdict> {
        let is_beyond = self.top.is_none_or(|top| missing >= top);
        let msn = it.msn.unwrap_or(self.msn);
        self.adopt(target, msn, it.dest(), world);
        if !is_beyond || self.open.len() >= OPEN_MAX {
            return undecided(Undecided::MissingPackets);
        }
        let rule = match it.input.facts.aeth.map(|(syndrome, _)| syndrome.answer()) {
            Some(Answer::Nak(_) | Answer::RnrNak(_)) => &rules::NAK_PSN,
            _ if it.info.operation != Operation::Acknowledge => &rules::RESPONSE_UNSOLICITED,
            _ => &rules::ACK_NOT_RECEIVED,
        };
        let found = format!("PSN {} was not sent yet", psn_of(missing));
        let captured = Some(it.packet.to_vec());
        let (expected, frames) = (None, Vec::new());
        let difference = Box::new(Difference { rule, found, captured, expected, frames });
        self.open.push(Open { unsent: missing, frame: it.frame, difference });
        None
    }

    /// An answer of the engine as the captured device would have given it.
    pub(super) fn translate(&self, mut packet: Vec<u8>) -> Vec<u8> {
        if let Some(place) = packet.get_mut(13..16) {
            let mut msn = [0; 4];
            msn.get_mut(1..).into_iter().for_each(|to| to.copy_from_slice(place));
            let count = u32::from_be_bytes(msn).wrapping_add(self.msn_offset) & 0xff_ffff;
            place.copy_from_slice(count.to_be_bytes().get(1..).unwrap_or_default());
        }
        packet
    }

    /// Compares the MSN of an answer with that of the last request that was executed.
    fn check_msn(&mut self, it: &Captured<'_>, frames: &[u64]) -> Option<Verdict> {
        let msn = it.msn?;
        if self.adopts_msn {
            self.adopts_msn = false;
            if msn == self.msn {
                return None;
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
        if msn == self.msn {
            return None;
        }
        let found = format!("MSN {msn}, expected {}", self.msn);
        let expected = with_msn(it.packet, self.msn);
        Some(it.differs(&rules::RESPONSE_MSN, found, Some(expected), frames))
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
        if let Some(asked) = self.asked_mut(it.seq) {
            let frame = asked.request.frame;
            let kind = asked.request.info.name;
            asked.next = asked.request.end();
            let found = format!("an acknowledgement for {kind} with PSN {}", psn_of(it.seq));
            return Some(it.differs(&rules::RESPONSE_KIND, found, None, &[frame]));
        }
        self.check_msn(it, &[]).or(AGREED)
    }

    /// An acknowledgement of what was acknowledged: for a duplicate, or one that came late.
    fn judge_old_ack(&mut self, it: &Captured<'_>) -> Option<Verdict> {
        let Some(msn) = it.msn else { return AGREED };
        let then = self.msn_at(it.seq);
        if msn == self.msn || then.is_none_or(|then| then == msn) {
            return AGREED;
        }
        let expected = then.unwrap_or(self.msn);
        let found = format!("MSN {msn}, expected {expected}");
        let packet = with_msn(it.packet, expected);
        Some(it.differs(&rules::RESPONSE_MSN, found, Some(packet), &[]))
    }

    /// The MSN when this was executed; nothing if that is forgotten.
    fn msn_at(&self, seq: u64) -> Option<Msn> {
        let at = self.history.partition_point(|(last, _)| *last <= seq);
        let (_, msn) = self.history.get(at.checked_sub(1)?)?;
        Some(Msn::new(*msn))
    }

    fn judge_rnr(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        if it.seq < self.epsn {
            let found = format!("an RNR NAK for PSN {}, which was executed", psn_of(it.seq));
            return Some(it.differs(&rules::NAK_PSN, found, None, &[]));
        }
        if let Err(verdict) = self.catch_up(it.seq, it, world) {
            return verdict;
        }
        let Some(front) = self.pending.front().filter(|front| front.seq == it.seq) else {
            return self.judge_unsent(it.seq, it.seq, it, world);
        };
        let (frame, transmissions) = (front.frame, front.transmissions);
        if !front.info.receive.takes() {
            let found = format!("an RNR NAK for {}, which takes no receive", front.info.name);
            return Some(it.differs(&rules::NAK_UNFOUNDED, found, None, &[frame]));
        }
        if self.credits.is_some_and(|credits| credits > 0) {
            let credits = self.credits.take().unwrap_or(0);
            let found = format!("an RNR NAK although {credits} receives were advertised");
            return Some(it.differs(&rules::RNR_WITH_CREDITS, found, None, &[frame]));
        }
        self.rnrs += 1;
        if self.rnrs > transmissions {
            let found = format!("RNR NAK {} for {transmissions} transmissions", self.rnrs);
            return Some(it.differs(&rules::NAK_REPEATED, found, None, &[frame]));
        }
        self.reported = Some((it.seq, it.frame));
        self.check_msn(it, &[frame]).or(AGREED)
    }

    fn judge_gap(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        if it.seq < self.epsn {
            let found = format!("a sequence NAK for PSN {}, which was executed", psn_of(it.seq));
            return Some(it.differs(&rules::NAK_PSN, found, None, &[]));
        }
        if let Err(verdict) = self.catch_up(it.seq, it, world) {
            return verdict;
        }
        if let Some((seq, frame)) = self.reported
            && seq == it.seq
        {
            let found = format!("a second NAK for PSN {}", psn_of(it.seq));
            let rule = if self.rnrs > 0 { &rules::NAK_AFTER_RNR } else { &rules::NAK_REPEATED };
            return Some(it.differs(rule, found, None, &[frame]));
        }
        if self.pending.iter().all(|request| request.seq <= it.seq) {
            return self.judge_unsent(it.seq + 1, it.seq, it, world);
        }
        self.reported = Some((it.seq, it.frame));
        self.check_msn(it, &[]).or(AGREED)
    }

    fn judge_refusal(
        &mut self,
        it: &Captured<'_>,
        code: NakCode,
        world: &mut World,
    ) -> Option<Verdict> {
        if it.seq < self.epsn && self.asked_mut(it.seq).is_none() {
            let found = format!("a NAK for PSN {}, which was executed", psn_of(it.seq));
            self.state = State::Failed(it.frame);
            return Some(it.differs(&rules::NAK_PSN, found, None, &[]));
        }
        if let Err(verdict) = self.catch_up(it.seq, it, world) {
            return verdict;
        }
        self.state = State::Failed(it.frame);
        let _ = code;
        self.check_msn(it, &[]).or(AGREED)
    }

    /// A READ response or ATOMIC acknowledgement.
    fn judge_data(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        if it.seq >= self.epsn {
            // It tells that its request was executed, and all before.
            let Some(request) = self.pending.find(it.seq) else {
                return self.judge_unsent(it.seq, it.seq + 1, it, world);
            };
            let end = request.end();
            if let Err(verdict) = self.catch_up(end, it, world) {
                return verdict;
            }
        }
        let (id, host) = (self.id, self.host);
        let Some(index) = self
            .asked
            .iter()
            .rposition(|asked| (asked.request.seq..asked.request.end()).contains(&it.seq))
        else {
            let found =
                format!("{} for PSN {}, which is no READ or ATOMIC", it.info.name, psn_of(it.seq));
            return Some(it.differs(&rules::RESPONSE_KIND, found, None, &[]));
        };
        let Some(asked) = self.asked.get_mut(index) else { return AGREED };
        asked.next = asked.next.max(it.seq + 1);
        let asked = asked.clone();
        let frame = asked.request.frame;
        if let Some(verdict) = self.check_shape(it, &asked) {
            return Some(verdict);
        }
        if let Some(msn) = it.msn {
            if self.adopts_msn {
                if let Some(verdict) = self.check_msn(it, &[frame]) {
                    return Some(verdict);
                }
            } else if msn != asked.msn && !(asked.again && msn == self.msn) {
                let found = format!("MSN {msn}, expected {}", asked.msn);
                let expected = with_msn(it.packet, asked.msn);
                return Some(it.differs(&rules::RESPONSE_MSN, found, Some(expected), &[frame]));
            }
        }
        let _ = (id, host);
        self.check_data(it, index, world).or(AGREED)
    }

    /// Opcode and length of a READ response or ATOMIC acknowledgement.
    fn check_shape(&self, it: &Captured<'_>, asked: &Asked) -> Option<Verdict> {
        let is_read = asked.request.info.operation == Operation::ReadRequest;
        let is_atomic =
            matches!(asked.request.info.operation, Operation::CompareSwap | Operation::FetchAdd);
        let frame = asked.request.frame;
        if is_atomic != (it.info.operation == Operation::AtomicAcknowledge) {
            let found = format!("{} answers {}", it.info.name, asked.request.info.name);
            return Some(it.differs(&rules::RESPONSE_KIND, found, None, &[frame]));
        }
        if is_atomic {
            return None;
        }
        let length = if is_read { asked.request.reth().map_or(0, |(.., len)| len) } else { 0 };
        let mtu = self.mtu.bytes() as u64;
        let starts = core::iter::once(asked.request.seq)
            .chain(self.duplicates.iter().map(|again| again.seq))
            .filter(|start| (asked.request.seq..=it.seq).contains(start));
        let last = asked.request.end() - 1;
        use crate::wire::Position;
        let fits = |start: u64| {
            let position = match (it.seq == start, it.seq == last) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, true) => Position::Last,
                (false, false) => Position::Middle,
            };
            position == it.info.position
        };
        if !starts.clone().any(fits) {
            let nth = it.seq - asked.request.seq + 1;
            let count = asked.request.span;
            let found = format!("{} is response {nth} of {count}", it.info.name);
            return Some(it.differs(&rules::READ_OPCODE, found, None, &[frame]));
        }
        let offset = (it.seq - asked.request.seq) * mtu;
        let due = u64::from(length).saturating_sub(offset).min(mtu);
        let payload = u64::from(it.input.facts.payload_len);
        if payload != due {
            let found = format!("{payload} bytes of payload, expected {due}");
            return Some(it.differs(&rules::READ_LENGTH, found, None, &[frame]));
        }
        None
    }

    /// The data of a READ response or ATOMIC acknowledgement.
    fn check_data(
        &mut self,
        it: &Captured<'_>,
        index: usize,
        world: &mut World,
    ) -> Option<Verdict> {
        let mtu = self.mtu.bytes() as u64;
        let (id, host) = (self.id, self.host);
        let asked = self.asked.get_mut(index)?;
        let (address, rkey, length) = asked.request.reth()?;
        let frame = asked.request.frame;
        let packet = Packet::parse_cut(it.packet, it.packet.len()).0?;
        if it.info.operation == Operation::AtomicAcknowledge {
            let original = packet.atomic_ack_eth()?.original();
            if let Some(first) = asked.original {
                if first == original {
                    return None;
                }
                let found = format!("{original:#x} for the duplicate, {first:#x} at first");
                return Some(it.differs(&rules::DUPLICATE_ATOMIC, found, None, &[frame]));
            }
            asked.original = Some(original);
            if world.program_writes {
                return None;
            }
            let at = Location { host, rkey, address };
            let (swap, compare) = asked.request.operands()?;
            let is_swap = asked.request.info.operation == Operation::CompareSwap;
            let after = match (is_swap, original == compare) {
                (true, true) => swap,
                (true, false) => original,
                (false, _) => original.wrapping_add(swap),
            };
            let known = world.memory.check(at, &original.to_le_bytes());
            let by = (id, it.frame);
            world.memory.write(at, 8, Some(&after.to_le_bytes()), by);
            let Found::Other { .. } = known else { return None };
            let found = format!("original value {original:#x}");
            return Some(it.differs(&rules::ATOMIC_ORIGINAL, found, None, &[frame]));
        }
        if length == 0 || world.program_writes {
            return None;
        }
        if it.input.facts.is_cut {
            return undecided(Undecided::Cut);
        }
        let offset = (it.seq - asked.request.seq) * mtu;
        let at = Location { host, rkey, address: address.wrapping_add(offset) };
        let found = world.memory.check(at, packet.payload());
        world.memory.adopt(at, packet.payload(), (id, it.frame));
        let Found::Other { offset, expected, frame: by, .. } = found else { return None };
        let byte = packet.payload().get(offset).copied().unwrap_or_default();
        let place = at.address.wrapping_add(offset as u64);
        let found = format!("byte {byte:#04x} at {place:#x}, where {expected:#04x} is known");
        Some(it.differs(&rules::READ_DATA, found, None, &[frame, by]))
    }
}

/// The packet with another MSN.
fn with_msn(packet: &[u8], msn: Msn) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(place) = packet.get_mut(13..16) {
        place.copy_from_slice(msn.get().to_be_bytes().get(1..).unwrap_or_default());
    }
    packet
}
