//! READ, atomics and FLUSH: requests with a response other than an ACK, and their duplicates.

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::super::send_queue::packets;
use super::super::attr::Attributes;
use super::super::responses::{Part, PendingResponse};
use super::execute::check_length;
use super::receive::memory_domain;
use super::{ACCESS, Fault, INVALID, Rx};
use crate::memory::AccessError;
use crate::verbs::{Access, FlushLevel, FlushPlacement, limits};
use crate::wire::{Msn, OpcodeInfo, Operation, Packet, Psn, RKey};

/// A responder resource: enough of a READ or atomic to answer its duplicate.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponderResource {
    Read {
        psn: Psn,
        va: u64,
        rkey: RKey,
        len: u32,
        msn: Msn,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
    },
    /// An ATOMIC WRITE.
    Empty {
        psn: Psn,
        msn: Msn,
    },
}

impl Rx {
    /// Saves a responder resource; the oldest of `max_dest_rd_atomic` is recycled.
    fn save_resource(&mut self, resource: ResponderResource, limit: u8) {
        if self.resources.len() >= usize::from(limit) {
            self.resources.pop_front();
        }
        self.resources.push_back(resource);
    }

    /// Returns the response that an atomic or ATOMIC WRITE with this PSN had. Newest first: PSNs
    /// wrap, and an older resource may have the same.
    fn saved_response(&self, psn: Psn) -> Option<PendingResponse> {
        self.resources.iter().rev().find_map(|resource| match *resource {
            ResponderResource::Atomic { psn: at, original, msn } if at == psn => {
                Some(PendingResponse::Atomic { psn, original, msn, counts: false })
            }
            ResponderResource::Empty { psn: at, msn } if at == psn => {
                Some(PendingResponse::Empty { psn, msn, counts: false })
            }
            _ => None,
        })
    }

    /// Frees resources whose PSNs are half the PSN space old: no requester asks for them, but those
    /// PSNs come again. A requester asks for an ACK often enough for this to be in time.
    #[inline]
    pub(super) fn forget_wrapped(&mut self) {
        if self.last_rd_atomic.is_some_and(|last| self.epsn.since(last) <= 0) {
            self.last_rd_atomic = None;
            self.resources.clear();
        }
    }

    /// Checks that another READ or atomic fits into `max_dest_rd_atomic`.
    fn check_rd_atomic(&self, attr: &Attributes) -> Result<(), Fault> {
        // Rule: Q-19.
        if self.responses.rd_atomics() < usize::from(attr.max_dest_rd_atomic) {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    pub(super) fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &Env,
    ) -> Result<(), Fault> {
        self.check_rd_atomic(attr)?;
        check_length(packet, info, attr)?;
        let reth = packet.reth().ok_or(INVALID)?;
        let (va, rkey, len) = (reth.va(), reth.rkey(), reth.dma_len());
        // C9-94
        if u64::from(len) > limits::MESSAGE_BYTES_MAX {
            return Err(INVALID);
        }
        // C9-88: the key of a READ of zero bytes is not checked.
        // Rule: P-10.
        if len > 0 {
            let pd = memory_domain(packet, attr, env);
            env.keys
                .remote(Some(pd), attr.window_owner(), rkey, va, len.into(), Access::REMOTE_READ)
                .map_err(|_| ACCESS)?;
        }
        let psn = self.epsn;
        self.last_rd_atomic = Some(psn);
        // A READ counts as a message when it is accepted, before its first response.
        self.msn = self.msn.plus(1);
        self.epsn = psn.plus(packets(len, attr.mtu));
        let msn = self.msn;
        let resource = ResponderResource::Read { psn, va, rkey, len, msn };
        self.save_resource(resource, attr.max_dest_rd_atomic);
        let counts = true;
        self.responses.push(PendingResponse::Read {
            psn,
            va,
            rkey,
            len,
            sent: 0,
            msn,
            counts,
            part: Part::WHOLE,
        });
        Ok(())
    }

    pub(super) fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &Env,
    ) -> Result<(), Fault> {
        self.check_rd_atomic(attr)?;
        check_length(packet, info, attr)?;
        let atomic = packet.atomic_eth().ok_or(INVALID)?;
        let (va, rkey) = (atomic.va(), atomic.rkey());
        // Alignment is checked before the key, as RNICs do.
        // Rule: Q-26.
        if !va.is_multiple_of(8) {
            return Err(INVALID);
        }
        let pd = memory_domain(packet, attr, env);
        let grant = env
            .keys
            .remote(Some(pd), attr.window_owner(), rkey, va, 8, Access::REMOTE_ATOMIC)
            .map_err(|_| ACCESS)?;
        let (swap_or_add, compare) = (atomic.swap_or_add(), atomic.compare());
        let original = match info.operation {
            Operation::CompareSwap => grant.region.compare_swap(grant.offset, compare, swap_or_add),
            _ => grant.region.fetch_add(grant.offset, swap_or_add),
        }
        .map_err(atomic_fault)?;
        let (psn, msn) = self.accept_single();
        let resource = ResponderResource::Atomic { psn, original, msn };
        self.save_resource(resource, attr.max_dest_rd_atomic);
        self.responses.push(PendingResponse::Atomic { psn, original, msn, counts: true });
        Ok(())
    }

    pub(super) fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &Env,
    ) -> Result<(), Fault> {
        self.check_rd_atomic(attr)?;
        check_length(packet, info, attr)?;
        let reth = packet.reth().ok_or(INVALID)?;
        let bytes: [u8; 8] = packet.payload().try_into().map_err(|_| INVALID)?;
        if reth.dma_len() != 8 || !reth.va().is_multiple_of(8) {
            return Err(INVALID);
        }
        let (pd, owner) = (memory_domain(packet, attr, env), attr.window_owner());
        let grant = env
            .keys
            .remote(Some(pd), owner, reth.rkey(), reth.va(), 8, Access::REMOTE_WRITE)
            .map_err(|_| ACCESS)?;
        grant.region.store(grant.offset, bytes).map_err(atomic_fault)?;
        let (psn, msn) = self.accept_single();
        let resource = ResponderResource::Empty { psn, msn };
        self.save_resource(resource, attr.max_dest_rd_atomic);
        self.responses.push(PendingResponse::Empty { psn, msn, counts: true });
        Ok(())
    }

    /// Executes a FLUSH: only its checks. What was written is visible already, and memory does not
    /// outlive its process.
    pub(super) fn execute_flush(
        &mut self,
        packet: &Packet<'_>,
        attr: &Attributes,
        env: &Env,
    ) -> Result<(), Fault> {
        if self.responses.is_backlogged(attr.max_dest_rd_atomic) {
            return Err(Fault::Backlog);
        }
        let (feth, reth) = (packet.feth().ok_or(INVALID)?, packet.reth().ok_or(INVALID)?);
        if packet.payload_len() != 0 || packet.pad_len() != 0 {
            return Err(INVALID);
        }
        let needed = flush_access(packet).ok_or(INVALID)?;
        let whole = feth.selectivity().get() == FlushLevel::Mr.code();
        let len = if whole { 0 } else { u64::from(reth.dma_len()) };
        let (pd, owner) = (memory_domain(packet, attr, env), attr.window_owner());
        env.keys
            .remote(Some(pd), owner, reth.rkey(), reth.va(), len, needed)
            .map_err(|_| ACCESS)?;
        // The duplicate of a FLUSH is answered without a resource: any number of FLUSHes must not
        // push out a READ.
        let (psn, msn) = self.accept_single();
        self.responses.push(PendingResponse::Empty { psn, msn, counts: false });
        Ok(())
    }

    /// Accepts a request of one packet that has a response of its own; returns its PSN and MSN.
    fn accept_single(&mut self) -> (Psn, Msn) {
        let psn = self.epsn;
        self.last_rd_atomic = Some(psn);
        self.epsn = psn.plus(1);
        self.msn = self.msn.plus(1);
        (psn, self.msn)
    }

    /// Handles a duplicate: it is not executed, but its response is repeated (P-04).
    pub(super) fn handle_duplicate(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        psn: Psn,
        attr: &Attributes,
        env: &mut Env,
    ) {
        // Rule: P-12.2.
        env.count(Counter::Duplicate);
        if self.responses.is_backlogged(attr.max_dest_rd_atomic) {
            return env.count(Counter::Backlog);
        }
        let response = match info.operation {
            // Rule: P-04.1.
            // C9-105
            Operation::Send | Operation::Write => {
                // If a READ follows it, the READ's response may be lost as well, and an ACK of more
                // than this packet would say that it is not.
                let read_follows = self.last_rd_atomic.is_some_and(|last| last.since(psn) > 0);
                let psn = if read_follows { psn } else { self.last_psn() };
                // Rule: Q-23.
                return self.responses.acknowledge(psn, self.msn);
            }
            Operation::ReadRequest => self.repeat_read(packet, psn, attr, env),
            // Rule: Q-18.
            Operation::Flush => Some(PendingResponse::Empty { psn, msn: self.msn, counts: false }),
            // Rule: P-04.2.
            _ => self.saved_response(psn),
        };
        match response {
            Some(response) if attr.is_selective() => self.responses.push_repeated(psn, response),
            Some(response) => self.responses.push(response),
            None => env.count(Counter::NoReplay),
        }
    }

    /// Returns the response to a duplicate READ, or to the part of one whose response was lost. The
    /// key is checked once more; a failure is not NAKed.
    fn repeat_read(
        &self,
        packet: &Packet<'_>,
        psn: Psn,
        attr: &Attributes,
        env: &Env,
    ) -> Option<PendingResponse> {
        let reth = packet.reth()?;
        if reth.dma_len() > 0 {
            let (key, va, len) = (reth.rkey(), reth.va(), reth.dma_len().into());
            let (pd, owner) = (memory_domain(packet, attr, env), attr.window_owner());
            env.keys.remote(Some(pd), owner, key, va, len, Access::REMOTE_READ).ok()?;
        }
        self.resources.iter().rev().find_map(|resource| {
            let ResponderResource::Read { psn: first, va, rkey, len, msn } = *resource else {
                return None;
            };
            // Rule: P-04.3.
            let skipped = u32::try_from(psn.since(first)).ok()?.checked_mul(attr.mtu)?;
            // Rule: P-04.4.
            let same = reth.rkey() == rkey
                // Rule: Q-22.
                && reth.va() == va.wrapping_add(skipped.into())
                && Some(reth.dma_len()) <= len.checked_sub(skipped);
            let (va, len) = (reth.va(), reth.dma_len());
            let (sent, counts, part) = (0, false, Part::WHOLE);
            same.then_some(PendingResponse::Read { psn, va, rkey, len, sent, msn, counts, part })
        })
    }

    /// Returns the responses of a READ from `psn` to `end`, as they were sent before.
    pub(super) fn missing_part(
        &self,
        psn: Psn,
        end: Psn,
        attr: &Attributes,
    ) -> Option<PendingResponse> {
        let count = u32::try_from(end.since(psn)).ok().filter(|count| *count > 0)?;
        self.resources.iter().rev().find_map(|resource| {
            let ResponderResource::Read { psn: first, va, rkey, len, msn } = *resource else {
                return None;
            };
            let skipped = u32::try_from(psn.since(first)).ok()?;
            let all = packets(len, attr.mtu);
            if skipped.checked_add(count)? > all {
                return None;
            }
            let part = Part { begins: skipped == 0, ends: skipped + count == all };
            let (before, va) = (skipped * attr.mtu, va.wrapping_add((skipped * attr.mtu).into()));
            let len = (len - before).min(count * attr.mtu);
            let (sent, counts) = (0, false);
            Some(PendingResponse::Read { psn, va, rkey, len, sent, msn, counts, part })
        })
    }
}

/// Fault of an atomic operation on memory that cannot have one.
fn atomic_fault(error: AccessError) -> Fault {
    match error {
        AccessError::Misaligned => INVALID,
        AccessError::OutOfRange { .. } | AccessError::Unmapped { .. } => ACCESS,
    }
}

/// Access rights that a FLUSH needs, by its placement; `None` if the placement is reserved.
pub(super) fn flush_access(packet: &Packet<'_>) -> Option<Access> {
    let placement = packet.feth()?.placement().get();
    FlushPlacement::from_bits(placement).map(FlushPlacement::needed_access)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atomic(psn: Psn, original: u64) -> ResponderResource {
        ResponderResource::Atomic { psn, original, msn: Msn::new(1) }
    }

    #[test]
    fn newest_resource_of_a_psn_answers_its_duplicate() {
        let mut rx = Rx::new(0, 0, false);
        for original in [1000, 5_000_000] {
            rx.save_resource(atomic(Psn::new(100), original), 4);
        }
        let repeated = rx.saved_response(Psn::new(100));
        let expected =
            matches!(repeated, Some(PendingResponse::Atomic { original: 5_000_000, .. }));
        assert!(expected, "{repeated:?}");
    }

    #[test]
    fn oldest_resource_is_recycled() {
        let mut rx = Rx::new(0, 0, false);
        (0..5).for_each(|psn| rx.save_resource(atomic(Psn::new(psn), 0), 4));
        assert!(rx.saved_response(Psn::new(0)).is_none());
        assert!((1..5).all(|psn| rx.saved_response(Psn::new(psn)).is_some()));
    }

    #[test]
    fn resources_are_freed_half_the_psn_space_later() {
        let (mut rx, psn) = (Rx::new(0, 0, false), Psn::new(100));
        rx.save_resource(atomic(psn, 7), 4);
        rx.last_rd_atomic = Some(psn);
        rx.epsn = psn.plus(Psn::HALF - 1);
        rx.forget_wrapped();
        assert!(rx.saved_response(psn).is_some() && rx.last_rd_atomic.is_some());
        rx.epsn = psn.plus(Psn::HALF);
        rx.forget_wrapped();
        assert!(rx.saved_response(psn).is_none() && rx.last_rd_atomic.is_none());
    }
}
