//! Execution of requests: by the engine, in memory, for what is known of keys.

use super::World;
use super::data::atomic_result;
use super::pending::Pending;
use super::rules;
use super::track::{Advance, Asked, Complaint, Track};
use crate::replay::keys::Attempt;
use crate::replay::limits::{ASKED_MAX, CROWDED_ITEMS_MAX, MSN_HISTORY_MAX};
use crate::replay::memory::{By, Location};
use crate::replay::verdict::Undecided;
use crate::verbs::Access;
use crate::wire::{Operation, Right};

impl Track {
    /// Executes all requests before `target`.
    pub(super) fn advance(&mut self, target: u64, frame: u64, world: &mut World) -> Advance {
        while self.epsn < target {
            match self.pending.front() {
                Some(front) if front.seq == self.epsn => {}
                _ => return Advance::Missing(self.epsn),
            }
            let Some(request) = self.pending.pop_front() else { break };
            if let Some(refused) = self.execute(request, frame, world) {
                return refused;
            }
        }
        Advance::Reached
    }

    /// Executes the request that is expected, which the device executed at the latest at `frame`.
    fn execute(&mut self, request: Pending, frame: u64, world: &mut World) -> Option<Advance> {
        if request.is_unsized
            || request.is_disputed
            || self.in_message && !request.info.position.begins()
        {
            // How many responses it has was not captured, or which of several requests it was is
            // not known, or the beginning of its message was not captured.
            self.forget(Undecided::MissingPackets, world);
            return Some(Advance::Missing(request.seq));
        }
        self.in_message = false;
        let Some(reply) = self.run(&request, true, world) else {
            // The engine keeps no more answers. It cannot be, since all are taken.
            self.forget(Undecided::Unsupported, world);
            return Some(Advance::Missing(request.seq));
        };
        let Some((_, msn)) = reply.aeth.filter(|_| reply.is_positive()) else {
            return Some(Advance::Refused(reply, request.frame));
        };
        let most = if world.is_crowded() { CROWDED_ITEMS_MAX } else { MSN_HISTORY_MAX };
        self.msns.execute(request.seq, msn, most);
        self.epsn = request.end();
        self.is_message_open = !request.info.position.ends();
        self.is_last_repeated = request.transmissions > 1;
        (self.reported, self.rnrs) = (None, 0);
        self.apply(request, frame, world);
        None
    }

    /// Applies the effects of an executed request.
    fn apply(&mut self, mut request: Pending, frame: u64, world: &mut World) {
        let operation = request.info.operation;
        if request.info.receive.takes() {
            self.credits = self.credits.map(|credits| credits - 1);
        }
        self.note_grant(&request, world);
        if operation == Operation::Send || request.info.receive.completes() {
            // It fills a receive, and the program of the host may act on it.
            world.memory.note_activity(self.host, frame);
            if let Some(rkey) = request.invalidated() {
                self.has_invalidated = true;
                world.keys.invalidate(self.host, rkey);
            }
        }
        if matches!(operation, Operation::Write | Operation::AtomicWrite) {
            world.release(request.payload_bytes());
            let payload = request.payload.take();
            self.write(&request, payload.as_deref(), frame, world);
        }
        let expected = self.execute_atomic(&request, frame, world);
        if operation.response().is_own() {
            let next = request.seq;
            let most = if world.is_crowded() { CROWDED_ITEMS_MAX } else { ASKED_MAX };
            while self.asked.len() >= most {
                self.asked.pop_front();
                self.forgot_asked = true;
            }
            let (repeats, repeat_frame) = (request.transmissions - 1, request.last_frame);
            self.asked.push_back(Asked {
                request,
                msn: self.msns.current,
                next,
                original: None,
                expected,
                executed: (self.id, frame),
                passed: None,
                answers: 0,
                repeats,
                repeat_frame,
                is_repeat_answered: true,
            });
        }
    }

    /// Returns the access of a request that this responder executed at `frame` at the latest.
    pub(super) fn by(&self, request: &Pending, frame: u64) -> By {
        By { responder: self.id, since: request.frame, until: frame }
    }

    /// An ATOMIC changes memory. Returns what it must return, if that is known, and since which
    /// frame.
    fn execute_atomic(
        &mut self,
        request: &Pending,
        frame: u64,
        world: &mut World,
    ) -> Option<(u64, u64)> {
        let (address, rkey, _) = request.reth()?;
        let (swap, compare) = request.operands().filter(|_| !world.program_writes)?;
        let at = Location { host: self.host, rkey, address };
        let by = self.by(request, frame);
        let before = world.memory.number(at, by);
        self.last_write = request.seq;
        let is_swap = request.info.operation == Operation::CompareSwap;
        let after = before.map(|(value, ..)| atomic_result(is_swap, value, swap, compare));
        let is_quiet = request.frame > world.memory.last_activity(self.host);
        let after = after.filter(|_| is_quiet).map(u64::to_le_bytes);
        world.memory.write(at, 8, after.as_ref().map(<[u8; 8]>::as_slice), by);
        before
    }

    /// The access of a request, if it has one that is checked.
    pub(super) fn attempt(&self, request: &Pending) -> Option<Attempt> {
        let (start, rkey, length) = request.reth()?;
        let right = match request.info.right {
            Right::None | Right::Flush => return None,
            right => Access::needed(right),
        };
        let (host, track, frame) = (self.host, self.id, request.frame);
        let end = start.saturating_add(length.into());
        Some(Attempt { host, rkey, start, end, right, track, frame })
    }

    /// An access was granted: it must not contradict what was refused.
    fn note_grant(&mut self, request: &Pending, world: &mut World) {
        let Some(attempt) = self.attempt(request) else { return };
        self.rights |= attempt.right;
        if attempt.start == attempt.end {
            return;
        }
        let quiet_since = world.memory.last_activity(self.host);
        if let Some(contradiction) = world.keys.granted(attempt, quiet_since) {
            let frames = [contradiction.frame, Some(request.frame)].into_iter().flatten();
            world.complaint = Some(Complaint {
                rule: &rules::ACCESS_ACCEPTED,
                found: contradiction.text,
                frames: frames.collect(),
            });
        }
    }

    /// A WRITE changes memory.
    fn write(&mut self, request: &Pending, payload: Option<&[u8]>, frame: u64, world: &mut World) {
        let reth = request.reth().map(|(address, rkey, _)| (address, rkey));
        let Some((address, rkey)) = reth.or(self.writing) else { return };
        let next = (address.wrapping_add(request.payload_len.into()), rkey);
        self.writing = (!request.info.position.ends()).then_some(next);
        if world.program_writes {
            return;
        }
        // The program may have written to it since.
        let payload = payload.filter(|_| request.frame > world.memory.last_activity(self.host));
        let at = Location { host: self.host, rkey, address };
        self.last_write = request.seq;
        let by = self.by(request, frame);
        world.memory.write(at, request.payload_len as usize, payload, by);
    }
}
