//! Requests that are answered by more than an acknowledgement: reads, atomic operations, flushes. Their answers are
//! kept as long as the requester may ask for them again.

use super::Counter;
use super::owed::Owed;
use super::qp::{Env, Qp};
use super::queue::packets;
use super::responder::{ACCESS, Fault, INVALID, Responder};
use crate::memory::AccessError;
use crate::verbs::{Access, FlushLevel, FlushPlacement, limits};
use crate::wire::{Msn, OpcodeInfo, Operation, Packet, Psn, RKey};

/// What was asked, and for what must be answered again the same was answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replay {
    Read { psn: Psn, va: u64, rkey: RKey, len: u32, msn: Msn },
    Atomic { psn: Psn, original: u64, msn: Msn },
    Empty { psn: Psn, msn: Msn },
}

impl Responder {
    fn remember(&mut self, replay: Replay, limit: u8) {
        if self.replays.len() >= usize::from(limit) {
            self.replays.pop_front();
        }
        self.replays.push_back(replay);
    }

    /// The answer that an atomic operation or atomic write with this PSN was given. Newest first: PSNs come again, and an
    /// older answer may have had the same.
    fn given_answer(&self, psn: Psn) -> Option<Owed> {
        self.replays.iter().rev().find_map(|replay| match *replay {
            Replay::Atomic { psn: at, original, msn } if at == psn => {
                Some(Owed::Atomic { psn, original, msn, counts: false })
            }
            Replay::Empty { psn: at, msn } if at == psn => {
                Some(Owed::Empty { psn, msn, counts: false })
            }
            _ => None,
        })
    }

    /// Forgets answers whose PSNs are so old that they would soon count as ahead: no requester asks for them again, but
    /// those PSNs come again. The requester asks for an acknowledgement often enough for this to be in time.
    #[inline]
    pub(super) fn forget_wrapped(&mut self) {
        if self.asked.is_some_and(|asked| self.epsn.since(asked) <= 0) {
            self.asked = None;
            self.replays.clear();
        }
    }
}

impl Qp {
    /// Whether another read or atomic can be kept track of.
    fn check_reads(&self) -> Result<(), Fault> {
        // Rule: Q-19.
        if self.resp.owed.reads() < usize::from(self.attr.max_dest_rd_atomic) {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    pub(super) fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.check_reads()?;
        self.check_length(packet, info)?;
        let reth = packet.reth().ok_or(INVALID)?;
        let (va, rkey, len) = (reth.va(), reth.rkey(), reth.dma_len());
        if u64::from(len) > limits::MESSAGE_BYTES_MAX {
            return Err(INVALID);
        }
        let pd = self.memory_domain(packet, env);
        // Rule: P-10.
        if len > 0 {
            env.keys
                .remote(Some(pd), self.owner(), rkey, va, len.into(), Access::REMOTE_READ)
                .map_err(|_| ACCESS)?;
        }
        let psn = self.resp.epsn;
        self.resp.asked = Some(psn);
        // A read counts when it is accepted, before its first answer.
        self.resp.msn = self.resp.msn.plus(1);
        self.resp.epsn = psn.plus(packets(len, self.mtu));
        let msn = self.resp.msn;
        let limit = self.attr.max_dest_rd_atomic;
        self.resp.remember(Replay::Read { psn, va, rkey, len, msn }, limit);
        self.resp.owed.push(Owed::Read { psn, va, rkey, len, sent: 0, msn, counts: true });
        Ok(())
    }

    pub(super) fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.check_reads()?;
        self.check_length(packet, info)?;
        let atomic = packet.atomic_eth().ok_or(INVALID)?;
        let (va, rkey) = (atomic.va(), atomic.rkey());
        // Rule: Q-26.
        if !va.is_multiple_of(8) {
            return Err(INVALID);
        }
        let pd = self.memory_domain(packet, env);
        let grant = env
            .keys
            .remote(Some(pd), self.owner(), rkey, va, 8, Access::REMOTE_ATOMIC)
            .map_err(|_| ACCESS)?;
        let (swap_or_add, compare) = (atomic.swap_or_add(), atomic.compare());
        let original = match info.operation {
            Operation::CompareSwap => grant.region.compare_swap(grant.offset, compare, swap_or_add),
            _ => grant.region.fetch_add(grant.offset, swap_or_add),
        }
        .map_err(atomic_fault)?;
        let psn = self.resp.epsn;
        self.accept_single();
        let msn = self.resp.msn;
        let limit = self.attr.max_dest_rd_atomic;
        self.resp.remember(Replay::Atomic { psn, original, msn }, limit);
        self.resp.owed.push(Owed::Atomic { psn, original, msn, counts: true });
        Ok(())
    }

    pub(super) fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.check_reads()?;
        self.check_length(packet, info)?;
        let reth = packet.reth().ok_or(INVALID)?;
        let bytes: [u8; 8] = packet.payload().try_into().map_err(|_| INVALID)?;
        if reth.dma_len() != 8 || !reth.va().is_multiple_of(8) {
            return Err(INVALID);
        }
        let pd = self.memory_domain(packet, env);
        let grant = env
            .keys
            .remote(Some(pd), self.owner(), reth.rkey(), reth.va(), 8, Access::REMOTE_WRITE)
            .map_err(|_| ACCESS)?;
        grant.region.store(grant.offset, bytes).map_err(atomic_fault)?;
        self.answer_empty(false);
        Ok(())
    }

    /// What was written is visible already, and memory here does not outlive its process: there is nothing to flush
    /// but the checks.
    pub(super) fn execute_flush(
        &mut self,
        packet: &Packet<'_>,
        env: &mut Env,
    ) -> Result<(), Fault> {
        if self.resp.is_backlogged(self.attr.max_dest_rd_atomic) {
            return Err(Fault::Backlog);
        }
        let (feth, reth) = (packet.feth().ok_or(INVALID)?, packet.reth().ok_or(INVALID)?);
        if packet.payload_len() != 0 || packet.pad_len() != 0 {
            return Err(INVALID);
        }
        let needed = flush_access(packet).ok_or(INVALID)?;
        let whole = feth.selectivity().get() == FlushLevel::Mr.code();
        let len = if whole { 0 } else { u64::from(reth.dma_len()) };
        let pd = self.memory_domain(packet, env);
        env.keys
            .remote(Some(pd), self.owner(), reth.rkey(), reth.va(), len, needed)
            .map_err(|_| ACCESS)?;
        self.answer_empty(true);
        Ok(())
    }

    /// A request of one packet that is answered by itself was executed.
    fn accept_single(&mut self) {
        self.resp.asked = Some(self.resp.epsn);
        self.resp.epsn = self.resp.epsn.plus(1);
        self.resp.msn = self.resp.msn.plus(1);
    }

    fn answer_empty(&mut self, flush: bool) {
        let psn = self.resp.epsn;
        self.accept_single();
        let msn = self.resp.msn;
        if !flush {
            // A flush is answered again without being remembered: any number of them must not push out a read.
            self.resp.remember(Replay::Empty { psn, msn }, self.attr.max_dest_rd_atomic);
        }
        self.resp.owed.push(Owed::Empty { psn, msn, counts: !flush });
    }

    /// A request that came before: not executed again, but answered again.
    pub(super) fn handle_duplicate(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        psn: Psn,
        env: &mut Env,
    ) {
        // Rule: P-12.2.
        env.count(Counter::Duplicate);
        if self.resp.is_backlogged(self.attr.max_dest_rd_atomic) {
            return env.count(Counter::Backlog);
        }
        let owed = match info.operation {
            // Rule: P-04.1.
            Operation::Send | Operation::Write => {
                // If a read came behind it, its answer may be lost as well, and an acknowledgement of more than this
                // packet would say that it is not.
                let read_behind = self.resp.asked.is_some_and(|asked| asked.since(psn) > 0);
                let last = self.resp.epsn.plus(Psn::HALF * 2 - 1);
                // Rule: Q-23.
                return self.resp.owe_ack(if read_behind { psn } else { last });
            }
            Operation::ReadRequest => self.replay_read(packet, psn, env),
            // Rule: Q-18.
            Operation::Flush => Some(Owed::Empty { psn, msn: self.resp.msn, counts: false }),
            // Rule: P-04.2.
            _ => self.resp.given_answer(psn),
        };
        match owed {
            Some(owed) => self.resp.owed.push(owed),
            None => env.count(Counter::NoReplay),
        }
    }

    /// A read again, or the part of it that was lost.
    fn replay_read(&self, packet: &Packet<'_>, psn: Psn, env: &Env) -> Option<Owed> {
        let reth = packet.reth()?;
        if reth.dma_len() > 0 {
            // What it may no longer read is not sent again, and nobody is told.
            let (key, va, len) = (reth.rkey(), reth.va(), reth.dma_len().into());
            let pd = self.memory_domain(packet, env);
            env.keys.remote(Some(pd), self.owner(), key, va, len, Access::REMOTE_READ).ok()?;
        }
        self.resp.replays.iter().rev().find_map(|replay| {
            let Replay::Read { psn: first, va, rkey, len, msn } = *replay else { return None };
            // Rule: P-04.3.
            let skipped = u32::try_from(psn.since(first)).ok()?.checked_mul(self.mtu)?;
            // Rule: P-04.4.
            let same = reth.rkey() == rkey
                // Rule: Q-22.
                && reth.va() == va.wrapping_add(skipped.into())
                && Some(reth.dma_len()) <= len.checked_sub(skipped);
            let (va, len) = (reth.va(), reth.dma_len());
            same.then_some(Owed::Read { psn, va, rkey, len, sent: 0, msn, counts: false })
        })
    }
}

/// An atomic operation on memory that cannot have one.
fn atomic_fault(error: AccessError) -> Fault {
    match error {
        AccessError::Misaligned => INVALID,
        AccessError::OutOfRange { .. } | AccessError::Unmapped { .. } => ACCESS,
    }
}

/// The rights that a flush needs, by its placement; `None` if it asks for nothing known.
pub(super) fn flush_access(packet: &Packet<'_>) -> Option<Access> {
    let placement = packet.feth()?.placement().get();
    FlushPlacement::from_bits(placement).map(FlushPlacement::needed_access)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atomic(psn: Psn, original: u64) -> Replay {
        Replay::Atomic { psn, original, msn: Msn::new(1) }
    }

    #[test]
    fn of_two_answers_with_one_psn_the_newer_is_replayed() {
        let mut responder = Responder::new(false);
        for original in [1000, 5_000_000] {
            responder.remember(atomic(Psn::new(100), original), 4);
        }
        let again = responder.given_answer(Psn::new(100));
        assert!(matches!(again, Some(Owed::Atomic { original: 5_000_000, .. })), "{again:?}");
    }

    #[test]
    fn answers_are_forgotten_when_their_psns_are_half_of_all_behind() {
        let (mut responder, psn) = (Responder::new(false), Psn::new(100));
        responder.remember(atomic(psn, 7), 4);
        responder.asked = Some(psn);
        responder.epsn = psn.plus(Psn::HALF - 1);
        responder.forget_wrapped();
        assert!(responder.given_answer(psn).is_some() && responder.asked.is_some());
        responder.epsn = psn.plus(Psn::HALF);
        responder.forget_wrapped();
        assert!(responder.given_answer(psn).is_none() && responder.asked.is_none());
    }
}
