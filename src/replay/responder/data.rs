//! READ responses and ATOMIC acknowledgements.

use super::World;
use super::answers::{AGREED, Captured, undecided, with_msn};
use super::reply::{Reply, as_rc};
use super::rules;
use super::track::{Asked, Stream, Suspect, Track, psn_of};
use crate::replay::limits::SKIP_MAX;
use crate::replay::memory::{Found, Location};
use crate::replay::verdict::{Undecided, Verdict};
use crate::wire::{Operation, Packet, Position};

impl Track {
    /// A READ response or ATOMIC acknowledgement.
    pub(super) fn judge_data(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Verdict> {
        let is_first = it.seq >= self.epsn;
        if is_first {
            // It tells that its request was executed, and all before.
            let Some(request) = self.pending.find(it.seq) else {
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
        let reply = self.engine_reply(it, world);
        if let Some(verdict) = self.check_shape(it, index, reply) {
            return Some(verdict);
        }
        let asked = self.asked.get_mut(index)?;
        let (frame, passed) = (asked.request.frame, asked.passed.take());
        asked.next = asked.next.max(it.seq + 1);
        asked.is_repeat_answered = true;
        let is_late = passed.is_some() && asked.repeats == 0;
        let (repeats, expected) = (asked.repeats, asked.msn);
        if self.adopts_msn && it.msn.is_some() {
            if let Some(verdict) = self.check_msn(it, &[frame]) {
                return Some(verdict);
            }
        } else if let Some(msn) = it.msn
            && msn != expected
            && !(repeats > 0 && msn == self.msn)
        {
            let found = format!("MSN {msn}, expected {expected}");
            let packet = with_msn(it.packet, expected);
            return Some(it.differs(&rules::RESPONSE_MSN, found, Some(packet), &[frame]));
        }
        if let Some(verdict) = self.check_data(it, index, world) {
            return Some(verdict);
        }
        match passed {
            Some(passed) if is_late && !world.survey.network.is_reordering() => {
                let found = "a later request was acknowledged before it".to_owned();
                Some(it.differs(&rules::RESPONSE_ORDER, found, None, &[frame, passed]))
            }
            _ => AGREED,
        }
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

    /// What the engine answers in the place of a captured response.
    fn engine_reply(&mut self, it: &Captured<'_>, world: &mut World) -> Option<Reply> {
        let in_stream = self.stream.is_some_and(|stream| {
            (stream.next..stream.end).contains(&it.seq) && it.seq - stream.next <= SKIP_MAX
        });
        if !in_stream {
            // A duplicate is answered: the one that begins here, or one that this is in the middle of.
            let begins = it.info.position.begins();
            let fits = |seq: u64, end: u64| {
                if begins { seq == it.seq } else { (seq..end).contains(&it.seq) }
            };
            let at = self
                .duplicates
                .iter()
                .position(|again| fits(again.seq, again.end()) && it.seq - again.seq <= SKIP_MAX)?;
            let again = self.duplicates.remove(at)?;
            self.skip_stream(world);
            let target = self.target.as_mut()?;
            target.feed(&again.request(), true, &mut world.scratch);
            let reply = target.answer(&mut world.scratch);
            reply?;
            self.stream = Some(Stream { next: again.seq, end: again.end(), reply });
        }
        let stream = self.stream.as_mut()?;
        loop {
            let reply = match stream.reply.take() {
                Some(reply) => reply,
                None => self.target.as_mut()?.answer(&mut world.scratch)?,
            };
            stream.next += 1;
            if stream.next > it.seq {
                if stream.next >= stream.end {
                    self.stream = None;
                }
                return Some(reply);
            }
        }
    }

    /// Opcode and length of a READ response or ATOMIC acknowledgement.
    fn check_shape(
        &self,
        it: &Captured<'_>,
        index: usize,
        reply: Option<Reply>,
    ) -> Option<Verdict> {
        let asked = self.asked.get(index)?;
        let frame = asked.request.frame;
        let (opcode, payload) = (as_rc(it.info.opcode), it.input.facts.payload_len);
        if let Some(reply) = reply
            && (reply.info.opcode, reply.payload_len, reply.psn)
                == (opcode, payload, it.input.facts.psn)
        {
            return None;
        }
        let expected = reply.map(|reply| {
            let zeros = vec![0; reply.payload_len as usize];
            reply.packet(it.dest(), self.pkey, self.msn_offset, &zeros, None)
        });
        if asked.is_atomic() != (it.info.operation == Operation::AtomicAcknowledge) {
            let found = format!("{} answers {}", it.info.name, asked.request.info.name);
            return Some(it.differs(&rules::RESPONSE_KIND, found, expected, &[frame]));
        }
        if asked.is_atomic() {
            return None;
        }
        if !self
            .starts(asked, it.seq)
            .any(|start| it.info.position == position(asked, start, it.seq))
        {
            let nth = it.seq - asked.request.seq + 1;
            let found = format!("{} is response {nth} of {}", it.info.name, asked.request.span);
            return Some(it.differs(&rules::READ_OPCODE, found, expected, &[frame]));
        }
        let due = self.due(asked, it.seq);
        if u64::from(payload) != due {
            let found = format!("{payload} bytes of payload, expected {due}");
            return Some(it.differs(&rules::READ_LENGTH, found, expected, &[frame]));
        }
        None
    }

    /// Where the answers begin that a response with this sequence number may be in: the READ's own, and those to its
    /// duplicates.
    fn starts(&self, asked: &Asked, seq: u64) -> impl Iterator<Item = u64> {
        let first = asked.request.seq;
        let again = self.duplicates.iter().map(|again| again.seq);
        core::iter::once(first).chain(again).filter(move |start| (first..=seq).contains(start))
    }

    /// How many bytes of payload the response with this sequence number has.
    fn due(&self, asked: &Asked, seq: u64) -> u64 {
        let length = match asked.request.reth() {
            Some((.., length)) if asked.is_read() => u64::from(length),
            _ => 0,
        };
        let mtu = self.mtu.bytes() as u64;
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
        let mtu = self.mtu.bytes() as u64;
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
        let found = world.memory.check(at, packet.payload());
        let Found::Other { offset, expected, writer, frame: by } = found else {
            world.memory.adopt(at, packet.payload(), (self.id, it.frame));
            return None;
        };
        let shown = world.memory.overlay(at, packet.payload());
        world.memory.adopt(at, packet.payload(), (self.id, it.frame));
        let is_race = writer != self.id && by > frame;
        if is_race || it.input.note.reordered {
            return None;
        }
        let (start, end) = (at.address, at.address.saturating_add(packet.payload().len() as u64));
        self.suspect = Some(Suspect { at, start, end });
        let byte = packet.payload().get(offset).copied().unwrap_or_default();
        let place = at.address.wrapping_add(offset as u64);
        let found = format!("byte {byte:#04x} at {place:#x}, which is known to be {expected:#04x}");
        let mut right = it.packet.get(..packet.header_len()).unwrap_or_default().to_vec();
        right.extend_from_slice(&shown);
        right.resize(right.len().next_multiple_of(4), 0);
        Some(it.differs(&rules::READ_DATA, found, Some(right), &[frame, by]))
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
        let after = match (is_swap, original == compare) {
            (true, true) => swap,
            (true, false) => original,
            (false, _) => original.wrapping_add(swap),
        };
        let at = Location { host, rkey, address };
        let known = world.memory.check(at, &original.to_le_bytes());
        let shown = world.memory.overlay(at, &original.to_le_bytes());
        let by = (id, frame, it.frame);
        let Found::Other { writer, frame: since, .. } = known else {
            let after = (frame > world.memory.last_activity(host)).then(|| after.to_le_bytes());
            world.memory.write(at, 8, after.as_ref().map(<[u8; 8]>::as_slice), by);
            return None;
        };
        if writer != id && since > frame {
            // Another connection changed it at the same time.
            world.memory.write(at, 8, None, by);
            return None;
        }
        world.memory.write(at, 8, Some(&after.to_le_bytes()), by);
        let (start, end) = (address, address.saturating_add(8));
        self.suspect = Some(Suspect { at, start, end });
        let expected = shown.try_into().map_or(0, u64::from_le_bytes);
        let found = format!("original value {original:#x}, expected {expected:#x}");
        let mut right = it.packet.to_vec();
        if let Some(place) = right.get_mut(16..24) {
            place.copy_from_slice(&expected.to_be_bytes());
        }
        Some(it.differs(&rules::ATOMIC_ORIGINAL, found, Some(right), &[frame, since]))
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
