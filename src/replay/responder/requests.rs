//! Requests: they wait until an answer tells what became of them.

use super::World;
use super::pending::{Added, Dropped, Pending};
use super::track::{MtuBasis, State, Track, packet_pkey};
use crate::observe::mtu::span_of_read;
use crate::replay::judge::{Input, Sink};
use crate::replay::limits::{CROWDED_ITEMS_MAX, DUPLICATES_MAX, PENDING_PACKETS_MAX};
use crate::replay::verdict::Undecided;
use crate::wire::{OpcodeInfo, Operation};

impl Track {
    /// Takes a request.
    pub(super) fn request(
        &mut self,
        input: &Input<'_>,
        info: &'static OpcodeInfo,
        world: &mut World,
        out: &mut dyn Sink,
    ) {
        let facts = input.facts;
        let seq = self.unwrap(facts.psn);
        if self.pkey.is_none() {
            self.pkey = packet_pkey(input.packet);
        }
        self.first.get_or_insert(seq);
        let span = self.span_of(input, info);
        let is_new = self.top.is_none_or(|top| seq >= top);
        self.top = Some(self.top.unwrap_or(seq).max(seq + span));
        if is_new {
            self.resolve_open((seq, span, info.operation), facts.time, world, out);
        }
        self.last_request = (facts.time, !is_new);
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        // Another capture point may show one that was lost on its way.
        if let Some(arrivals) = &mut self.arrivals
            && facts.sightings().lost.is_none()
        {
            arrivals.request(seq, span, facts.frame);
        }
        let at = (facts.frame, facts.time);
        let Some(mut request) = Pending::new(seq, span, at, info, input.packet, facts.payload_len)
        else {
            // Cut in its headers.
            return self.forget(Undecided::Cut, world);
        };
        request.ack_request = facts.ack_request;
        request.is_unsized = self.is_unsized(input, info);
        if self.state == State::Known && seq < self.epsn {
            return self.add_duplicate(request, world);
        }
        let writes = matches!(info.operation, Operation::Write | Operation::AtomicWrite);
        if writes && !facts.is_cut {
            let payload = input.packet.get(info.header_len..);
            let payload = payload.and_then(|rest| rest.get(..facts.payload_len as usize));
            let payload = payload.filter(|payload| world.reserve(payload.len()));
            request.payload = payload.map(Into::into);
        }
        request.place = self.place_of(&request);
        let (again, bytes) = (request.without_payload(), request.payload_bytes());
        // What was in flight behind a NAK was dropped.
        let dropped = self.reported.map(|(from, frame)| Dropped { from, frame });
        match self.pending.add(request, dropped) {
            Added::New => {}
            Added::Instead(old) => world.release(old),
            Added::Again => {
                self.has_repeats = true;
                world.release(bytes);
            }
            Added::Part => {
                world.release(bytes);
                self.add_duplicate(again, world);
            }
        }
        let most = if world.is_crowded() { CROWDED_ITEMS_MAX } else { PENDING_PACKETS_MAX };
        if self.pending.len() > most {
            self.forget(Undecided::BeyondLimits, world);
        }
    }

    /// Returns the address and key to which a WRITE packet writes.
    fn place_of(&self, request: &Pending) -> Option<(u64, u32)> {
        if request.info.operation != Operation::Write {
            return None;
        }
        if let Some((address, rkey, _)) = request.reth() {
            return Some((address, rkey));
        }
        if request.seq == self.epsn {
            return self.writing;
        }
        let before = self.pending.find(request.seq.checked_sub(1)?)?;
        let (address, rkey) = before.place?;
        Some((address.wrapping_add(before.payload_len.into()), rkey))
    }

    /// Whether it is not known how many sequence numbers a READ takes.
    fn is_unsized(&self, input: &Input<'_>, info: &OpcodeInfo) -> bool {
        self.mtu_basis == MtuBasis::Unknown
            && info.operation == Operation::ReadRequest
            && input.facts.reth.is_some_and(|reth| reth.length > self.least_mtu)
    }

    fn span_of(&self, input: &Input<'_>, info: &OpcodeInfo) -> u64 {
        if self.is_unsized(input, info) {
            // The next request tells.
            return 1;
        }
        match input.facts.reth {
            Some(reth) if info.operation == Operation::ReadRequest => {
                span_of_read(reth.length, self.mtu_bytes()).into()
            }
            _ => 1,
        }
    }

    /// A request came once more whose answer was captured.
    fn add_duplicate(&mut self, request: Pending, world: &World) {
        self.has_repeats = true;
        let mtu = u64::from(self.mtu_bytes());
        if let Some(asked) = self.asked.iter_mut().rev().find(|asked| asked.covers(request.seq))
            && asked.is_repeated_by(&request, mtu)
        {
            asked.repeats += 1;
            asked.repeat_frame = request.frame;
            asked.is_repeat_answered = false;
        }
        let most = if world.is_crowded() { CROWDED_ITEMS_MAX } else { DUPLICATES_MAX };
        while self.duplicates.len() >= most {
            self.duplicates.pop_front();
        }
        self.duplicates.push_back(request);
    }
}
