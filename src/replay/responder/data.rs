//! READ responses and ATOMIC acknowledgements.

use super::World;
use super::answers::{AGREED, Captured, undecided};
use super::msn::with_msn;
use super::reply::Reply;
use super::rules;
use super::track::{Asked, Suspect, Track};
use crate::observe::sequence::psn_of;
use crate::replay::memory::{By, Found, Location};
use crate::replay::verdict::{Difference, Undecided, Verdict};
use crate::wire::aeth::{Answer, Credits};
use crate::wire::{Headers, Opcode, Operation, Packet, Position};

impl Track {
    /// A READ response or ATOMIC acknowledgement.
    pub(super) fn judge_data(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        let is_first = it.seq >= self.epsn;
        if is_first {
            // It tells that its request was executed, and all before.
            let Some(request) = self.pending.find(it.seq) else {
                if self.pending.unsized_until(it.seq) {
                    return undecided(Undecided::MissingPackets);
                }
                return self.judge_unsent(it.seq, it.seq + 1, it, world);
            };
            let end = request.end();
            if let Err(verdict) = self.catch_up(end, it, world) {
                return verdict;
            }
        }
        let Some(index) = self.asked.iter().rposition(|asked| asked.covers(it.seq)) else {
            return self.judge_unasked(it, is_first);
        };
        if let Some(verdict) = self.check_shape(it, index) {
            return Some(verdict);
        }
        let asked = self.asked.get_mut(index)?;
        let frame = asked.request.frame;
        self.copies += u32::from(it.seq < asked.next && asked.repeats == 0);
        asked.next = asked.next.max(it.seq + 1);
        asked.is_repeat_answered = true;
        // Of each request come responses once: if there are more, the first ones were passed by an
        // acknowledgement.
        asked.answers += u32::from(asked.passed.is_some() && it.seq == asked.request.seq);
        let passed = asked.passed.filter(|_| asked.answers > asked.repeats);
        if passed.is_some() {
            asked.passed = None;
        }
        let (repeats, expected) = (asked.repeats, asked.msn);
        if self.msns.adopts && it.msn.is_some() {
            if let Some(verdict) = self.check_msn(it, &[frame]) {
                return Some(verdict);
            }
        } else if let Some(msn) = it.msn
            && msn != expected
            && !(repeats > 0 && self.may_count(msn))
        {
            if self.corrects_msn(msn, expected) {
                return undecided(Undecided::BeforeCapture);
            }
            if self.may_answer_unseen(msn) {
                return undecided(Undecided::Network);
            }
            let found = format!("MSN {msn}, expected {expected}");
            let packet = with_msn(it.packet, expected);
            return Some(it.differs(&rules::RESPONSE_MSN, found, Some(packet), &[frame]));
        }
        if let Some(verdict) = self.check_data(it, index, world) {
            return Some(verdict);
        }
        let network = &world.survey.network;
        if let Some(passed) = passed
            && self.arrivals.is_some()
            && !network.is_reordering()
        {
            let psn = psn_of(it.seq);
            let found =
                format!("it came before the responses to PSN {psn}, see frame {}", it.frame);
            let (captured, expected, frames) = (None, None, vec![frame, it.frame]);
            let rule = &rules::RESPONSE_ORDER;
            let difference = Difference { rule, found, captured, expected, frames };
            world.late.push(self.step(passed, Verdict::Different(Box::new(difference))));
        }
        AGREED
    }

    /// A response to what was no READ or ATOMIC, or to one that is forgotten.
    fn judge_unasked(&self, it: &Captured<'_>, is_first: bool) -> Option<Verdict> {
        if it.seq < self.since {
            return undecided(Undecided::BeforeCapture);
        }
        let oldest = self.asked.front().map_or(self.epsn, |asked| asked.request.seq);
        if self.forgot_asked && it.seq < oldest {
            return undecided(Undecided::BeyondLimits);
        }
        let psn = psn_of(it.seq);
        let found = format!("{} for PSN {psn}, which is no READ or ATOMIC", it.info.name);
        let rule = if is_first { &rules::RESPONSE_KIND } else { &rules::RESPONSE_UNSOLICITED };
        Some(it.differs(rule, found, None, &[]))
    }

    /// Opcode and length of a READ response or ATOMIC acknowledgement.
    fn check_shape(&self, it: &Captured<'_>, index: usize) -> Option<Verdict> {
        let asked = self.asked.get(index)?;
        let frame = asked.request.frame;
        let payload = it.input.facts.payload_len;
        let expected = || self.right_response(asked, it);
        if asked.is_atomic() != (it.info.operation == Operation::AtomicAcknowledge) {
            let found = format!("{} answers {}", it.info.name, asked.request.info.name);
            return Some(it.differs(&rules::RESPONSE_KIND, found, expected(), &[frame]));
        }
        if asked.is_atomic() {
            return None;
        }
        if !self
            .starts(asked, it.seq)
            .any(|start| it.info.position == position(asked, start, it.seq))
        {
            // It may answer a duplicate that was not captured, or a request that began earlier.
            let is_again = it.info.position.begins() && it.seq > asked.request.seq;
            let is_inside = !it.info.position.begins() && it.seq == self.since;
            if !self.is_complete && (is_again || is_inside) {
                return undecided(Undecided::MissingPackets);
            }
            let nth = it.seq - asked.request.seq + 1;
            let found = format!("{} is response {nth} of {}", it.info.name, asked.request.span);
            return Some(it.differs(&rules::READ_OPCODE, found, expected(), &[frame]));
        }
        let due = self.due(asked, it.seq);
        if u64::from(payload) != due {
            let found = format!("{payload} bytes of payload, expected {due}");
            return Some(it.differs(&rules::READ_LENGTH, found, expected(), &[frame]));
        }
        None
    }

    /// Returns a response that would be right in the place of a captured one, with zeros for data.
    fn right_response(&self, asked: &Asked, it: &Captured<'_>) -> Option<Vec<u8>> {
        let opcode = match (asked.is_atomic(), position(asked, asked.request.seq, it.seq)) {
            (true, _) => Opcode::RC_ATOMIC_ACKNOWLEDGE,
            (_, Position::Only) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
            (_, Position::First) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
            (_, Position::Middle) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
            (_, Position::Last) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
        };
        let info = opcode.info()?;
        let syndrome = Answer::Ack(Credits::UNLIMITED).into();
        let aeth = info.headers.contains(Headers::AETH).then_some((syndrome, asked.msn));
        let payload_len = u32::try_from(self.due(asked, it.seq)).ok()?;
        let reply = Reply { info, psn: psn_of(it.seq), aeth, payload_len };
        Some(reply.packet(it.dest(), self.pkey, 0, &vec![0; payload_len as usize]))
    }

    /// Returns the starts of the answers that a response with this sequence number may be in:
    /// the READ's own, and those to its duplicates.
    fn starts(&self, asked: &Asked, seq: u64) -> impl Iterator<Item = u64> {
        let first = asked.request.seq;
        let again = self.duplicates.iter().map(|again| again.seq);
        core::iter::once(first).chain(again).filter(move |start| (first..=seq).contains(start))
    }

    /// Returns the bytes of payload of the response with this sequence number.
    fn due(&self, asked: &Asked, seq: u64) -> u64 {
        let length = match asked.request.reth() {
            Some((.., length)) if asked.is_read() => u64::from(length),
            _ => 0,
        };
        let mtu = u64::from(self.mtu_bytes());
        let offset = (seq - asked.request.seq) * mtu;
        length.saturating_sub(offset).min(mtu)
    }

    /// The data of a READ response or ATOMIC acknowledgement.
    fn check_data(
        &mut self,
        it: &Captured<'_>,
        index: usize,
        world: &mut World,
    ) -> Option<Verdict> {
        if it.info.operation == Operation::AtomicAcknowledge {
            return self.check_original(it, index, world);
        }
        let mtu = u64::from(self.mtu_bytes());
        let asked = self.asked.get(index)?;
        let (address, rkey, length) = asked.request.reth().filter(|_| asked.is_read())?;
        if length == 0 || world.program_writes {
            return None;
        }
        if it.input.facts.is_cut {
            return undecided(Undecided::Cut);
        }
        let frame = asked.request.frame;
        let packet = Packet::parse(it.packet).ok()?;
        let offset = (it.seq - asked.request.seq) * mtu;
        let at = Location { host: self.host, rkey, address: address.wrapping_add(offset) };
        let by = self.by(&asked.request, it.frame);
        if self.last_write > asked.request.seq {
            // A request behind it wrote to memory: whether before it was read is not known (§6.7).
            return None;
        }
        let len = packet.payload().len() as u64;
        let may_race = self.may_write(at.address, at.address.saturating_add(len));
        let found = world.memory.check(at, packet.payload(), by);
        if may_race {
            // A request behind it may have been executed before the memory was read.
            return None;
        }
        let Found::Other { offset, expected, frame: known } = found else {
            world.memory.adopt(at, packet.payload(), by);
            return None;
        };
        let shown = world.memory.overlay(at, packet.payload());
        world.memory.adopt(at, packet.payload(), by);
        if it.input.note.reordered {
            return None;
        }
        let (start, end) = (at.address, at.address.saturating_add(packet.payload().len() as u64));
        world.suspect = Some(Suspect { at, start, end });
        let byte = packet.payload().get(offset).copied().unwrap_or_default();
        let place = at.address.wrapping_add(offset as u64);
        let found = format!("byte {byte:#04x} at {place:#x}, which is known to be {expected:#04x}");
        let mut right = it.packet.get(..packet.header_len()).unwrap_or_default().to_vec();
        right.extend_from_slice(&shown);
        right.resize(right.len().next_multiple_of(4), 0);
        Some(it.differs(&rules::READ_DATA, found, Some(right), &[frame, known]))
    }

    /// The value that an ATOMIC returns.
    fn check_original(
        &mut self,
        it: &Captured<'_>,
        index: usize,
        world: &mut World,
    ) -> Option<Verdict> {
        let (id, host) = (self.id, self.host);
        let asked = self.asked.get_mut(index)?;
        let (address, rkey, _) = asked.request.reth()?;
        let frame = asked.request.frame;
        let packet = Packet::parse_cut(it.packet, it.packet.len()).0?;
        let Some(ack) = packet.atomic_ack_eth() else { return undecided(Undecided::Cut) };
        let original = ack.original();
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
        let (swap, compare) = asked.request.operands()?;
        let is_swap = asked.request.info.operation == Operation::CompareSwap;
        let at = Location { host, rkey, address };
        let by = By { responder: id, since: frame, until: it.frame };
        let Some((expected, since)) = asked.expected else {
            // It was unknown. What it is now is known, if nothing was written to it since.
            if self.last_write == asked.request.seq
                && world.memory.last_writer(at) == asked.executed
                && frame > world.memory.last_activity(host)
            {
                let after = atomic_result(is_swap, original, swap, compare);
                world.memory.write(at, 8, Some(&after.to_le_bytes()), by);
            }
            return None;
        };
        if expected == original {
            return None;
        }
        let (start, end) = (address, address.saturating_add(8));
        world.suspect = Some(Suspect { at, start, end });
        let found = format!("original value {original:#x}, expected {expected:#x}");
        let mut right = it.packet.to_vec();
        if let Some(place) = right.get_mut(16..24) {
            place.copy_from_slice(&expected.to_be_bytes());
        }
        Some(it.differs(&rules::ATOMIC_ORIGINAL, found, Some(right), &[frame, since]))
    }
}

/// Returns the value that an ATOMIC leaves in memory.
pub(super) fn atomic_result(is_swap: bool, original: u64, swap_or_add: u64, compare: u64) -> u64 {
    match (is_swap, original == compare) {
        (true, true) => swap_or_add,
        (true, false) => original,
        (false, _) => original.wrapping_add(swap_or_add),
    }
}

/// The place of a response in an answer that begins at `start`.
fn position(asked: &Asked, start: u64, seq: u64) -> Position {
    match (seq == start, seq + 1 == asked.request.end()) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}
