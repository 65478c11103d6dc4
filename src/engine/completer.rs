//! Answers to what was sent: what they complete, and what they make the sender send again.
//!
//! Read the specification on acknowledgements and retries (volume 1, §9.7) before changing this file. Responses are
//! matched by PSN alone. An acknowledgement is cumulative, and so is every other response: it says that everything
//! before it has been executed. If something before it still lacks an answer of its own, that answer was lost.

use super::Counter;
use super::pieces::scatter_into;
use super::qp::{Env, Qp};
use super::requester::{PeerMsn, RTO_BACKOFF_MAX, Requester};
use crate::verbs::{QpState, WcStatus, WrOpcode};
use crate::wire::aeth::{Answer, Credits, NakCode, RnrTimer};
use crate::wire::{Msn, Operation, Packet, Position, Psn};

/// Whether what stands before a response has been dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// All of it was acknowledged.
    Settled,
    /// Something must be sent again first, or the queue pair has failed.
    Missing,
}

impl Requester {
    /// Whether an answer of the peer may have this MSN.
    #[inline]
    fn is_possible(&self, msn: Msn) -> bool {
        self.peer_msn != PeerMsn::Counts || self.counts_to(msn)
    }

    /// Whether a responder that counts messages may have come to this number: it has executed what was acknowledged, and
    /// nothing that was not sent. Numbers of answers that are late are behind.
    #[inline]
    fn counts_to(&self, msn: Msn) -> bool {
        msn.since(self.completed) >= 0 && msn.since(self.messages) <= 0
    }
}

impl Qp {
    /// Takes a response in.
    pub(super) fn handle_response(&mut self, packet: &Packet<'_>, env: &mut Env) {
        let psn = packet.bth().psn();
        let Some(info) = packet.info() else { return };
        let msn = packet.aeth().map(|aeth| aeth.msn());
        if psn.since(self.req.sent) >= 0 || msn.is_some_and(|msn| !self.req.is_possible(msn)) {
            // An answer to what was never sent, or not from the peer.
            return env.count(Counter::StaleResponse);
        }
        self.req.peer_alive = true;
        let stale = psn.since(self.req.una) < 0;
        if info.operation == Operation::Acknowledge {
            return self.handle_ack(packet, psn, stale, env);
        }
        if stale {
            return env.count(Counter::StaleResponse);
        }
        // Data may stand for an acknowledgement, and then nothing else tells of credits.
        if let Some(aeth) = packet.aeth()
            && let Answer::Ack(credits) = aeth.syndrome().answer()
        {
            self.take_credits(credits, aeth.msn());
        }
        if self.settle_before(psn, env) == Before::Settled {
            self.handle_answer(packet, info.operation, info.position, psn, env);
        }
        self.learn_msn(msn);
        self.schedule(env);
    }

    /// Every answer that completes something tells whether the responder counts messages. rxe of Linux before 6.0 counts
    /// some, but no WRITE without immediate data and no atomic operation.
    fn learn_msn(&mut self, msn: Option<Msn>) {
        let Some(msn) = msn.filter(|_| self.req.peer_msn != PeerMsn::Ignored) else { return };
        if self.req.completed.get() > 0 {
            let counts = self.req.counts_to(msn);
            self.req.peer_msn = if counts { PeerMsn::Counts } else { PeerMsn::Ignored };
        }
    }

    fn handle_ack(&mut self, packet: &Packet<'_>, psn: Psn, stale: bool, env: &mut Env) {
        let Some(aeth) = packet.aeth() else { return };
        let answer = aeth.syndrome().answer();
        // The responder may repeat its last acknowledgement with new credits; an older one, or one before it has
        // acknowledged anything, tells nothing.
        let last = psn.plus(1) == self.req.una && self.req.peer_msn != PeerMsn::Unknown;
        if let Answer::Ack(credits) = answer
            && (!stale || last)
        {
            self.take_credits(credits, aeth.msn());
        }
        if stale && !(is_final(answer) && self.head_contains(psn)) {
            // It may still tell of credits, for which a request may have waited.
            self.schedule(env);
            return env.count(Counter::StaleResponse);
        }
        match answer {
            Answer::Ack(_) => {
                self.settle_before(psn.plus(1), env);
            }
            Answer::RnrNak(timer) => {
                env.count(Counter::RnrReceived);
                if self.settle_before(psn, env) == Before::Settled {
                    self.wait_for_receiver(timer, env);
                }
            }
            Answer::Nak(NakCode::PsnSequenceError) => {
                env.count(Counter::SequenceReceived);
                if self.settle_before(psn, env) == Before::Settled {
                    self.retry(env);
                }
            }
            Answer::Nak(code) => self.refused(code, psn, env),
            // A kind of answer that means nothing says nothing.
            // Rule: Q-24.
            Answer::Reserved(_) => return env.count(Counter::StaleResponse),
        }
        self.learn_msn(Some(aeth.msn()));
        self.schedule(env);
    }

    /// How many messages the responder has room for, if it counts. Once it did not, it never does.
    fn take_credits(&mut self, credits: Credits, msn: Msn) {
        // Rule: Q-04.
        let Some(count) = credits.count().filter(|_| self.req.peer_msn != PeerMsn::Ignored) else {
            (self.req.unlimited, self.req.limit) = (true, None);
            return;
        };
        let new = msn.plus(count);
        // An acknowledgement that was overtaken must not take back what a later one granted: if nothing is under way,
        // no other would come to correct it.
        if !self.req.unlimited && self.req.limit.is_none_or(|limit| new.since(limit) > 0) {
            self.req.limit = Some(new);
        }
    }

    /// Takes everything before `psn` as acknowledged: completes it, unless it lacks an answer of its own.
    fn settle_before(&mut self, psn: Psn, env: &mut Env) -> Before {
        let packets = u32::try_from(psn.since(self.req.una)).unwrap_or(0);
        env.flows.settled(&mut self.share, packets, &mut env.active);
        while psn.since(self.req.una) > 0 {
            let index = self.sq.head();
            if self.sq.is_empty() || !self.sq.get(index).is_begun() {
                break;
            }
            let wqe = *self.sq.get(index);
            let psns = wqe.psns(self.mtu);
            // Rule: P-05.
            if has_response(wqe.opcode()) && !wqe.is_done() {
                // Its answer was lost, whatever came behind it.
                env.count(Counter::ImpliedNak);
                self.retry(env);
                return Before::Missing;
            }
            self.progressed();
            let end = wqe.psn().plus(psns);
            if end.since(psn) > 0 {
                self.req.una = psn;
                break;
            }
            self.req.una = end;
            self.req.completed = self.req.completed.plus(1);
            self.sq.get_mut(index).finish();
            self.retire_one(env);
        }
        self.skip_acknowledged();
        self.restart_ack_timer(env);
        // It fails here if a completion finds no room.
        if self.state() == QpState::Err { Before::Missing } else { Before::Settled }
    }

    /// Completes the request at the head of the queue, and those behind it that were done at home.
    fn retire_one(&mut self, env: &mut Env) {
        if self.req.cursor == self.sq.head() {
            // It was being sent again, and turned out to have arrived.
            self.advance_cursor();
        }
        self.retire(env);
        if self.sq.head().wrapping_sub(self.req.cursor).cast_signed() > 0 {
            // What was done at home went with it; the cursor does not stay behind.
            (self.req.cursor, self.req.packet) = (self.sq.head(), 0);
        }
    }

    /// The cursor does not stay behind what is acknowledged.
    fn skip_acknowledged(&mut self) {
        let index = self.req.cursor;
        if index == self.sq.tail() || !self.sq.get(index).is_begun() {
            return;
        }
        let ahead = self.req.una.since(self.sq.get(index).psn());
        let acknowledged = u32::try_from(ahead).unwrap_or(0);
        self.req.packet = self.req.packet.max(acknowledged);
    }

    /// Forward progress: resets the retry counters.
    fn progressed(&mut self) {
        // Rule: P-07.3.
        (self.req.retries, self.req.rnr_retries, self.req.recovering) = (0, 0, false);
        (self.req.rto_backoff, self.req.peer_alive) = (0, false);
    }

    /// An answer of its own for the request at the head of the queue: data, or the value before an atomic.
    fn handle_answer(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        position: Position,
        psn: Psn,
        env: &mut Env,
    ) {
        let index = self.sq.head();
        if self.sq.is_empty() || !self.sq.get(index).is_begun() {
            return env.count(Counter::StaleResponse);
        }
        let wqe = *self.sq.get(index);
        if psn != self.req.una || psn.since(wqe.psn()) < 0 {
            return env.count(Counter::StaleResponse);
        }
        let result = match (wqe.opcode(), operation) {
            (WrOpcode::RdmaRead, Operation::ReadResponse) => {
                self.take_read_data(packet, position, psn, env)
            }
            (
                WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd,
                Operation::AtomicAcknowledge,
            ) => self.take_atomic_value(packet, env),
            (WrOpcode::Flush | WrOpcode::AtomicWrite, Operation::ReadResponse)
                if position == Position::Only && packet.payload_len() == 0 =>
            {
                Ok(())
            }
            _ => Err(WcStatus::BadRespErr),
        };
        match result {
            Ok(()) => self.answered(psn, env),
            Err(status) => self.fail_send(index, status, env),
        }
    }

    /// One packet of the answer that the head of the queue waits for is in.
    fn answered(&mut self, psn: Psn, env: &mut Env) {
        self.progressed();
        env.flows.settled(&mut self.share, 1, &mut env.active);
        let index = self.sq.head();
        let wqe = *self.sq.get(index);
        self.req.una = psn.plus(1);
        if self.req.una == wqe.psn().plus(wqe.psns(self.mtu)) {
            self.req.reads -= u8::from(wqe.opcode().info().rd_atomic);
            if wqe.opcode() == WrOpcode::RdmaRead {
                self.req.read_psns -= wqe.psns(self.mtu) - 1;
            }
            self.req.completed = self.req.completed.plus(1);
            self.sq.get_mut(index).finish();
            self.retire_one(env);
        }
        self.skip_acknowledged();
        self.restart_ack_timer(env);
    }

    /// Puts the data of a read response where the read wants them.
    fn take_read_data(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        psn: Psn,
        env: &mut Env,
    ) -> Result<(), WcStatus> {
        let index = self.sq.head();
        let wqe = *self.sq.get(index);
        let k = psn.since(wqe.psn()).unsigned_abs();
        let offset = k * self.mtu;
        let left = wqe.len().saturating_sub(offset);
        let expected = left.min(self.mtu);
        let ends = left <= self.mtu;
        let data = packet.payload();
        if data.len() != expected as usize || position.ends() != ends {
            return Err(WcStatus::LocLenErr);
        }
        self.scatter_answer(offset.into(), data, env)
    }

    fn take_atomic_value(&mut self, packet: &Packet<'_>, env: &mut Env) -> Result<(), WcStatus> {
        let value = packet.atomic_ack_eth().ok_or(WcStatus::BadRespErr)?.original();
        self.scatter_answer(0, &value.to_ne_bytes(), env)
    }

    /// Puts bytes into the buffers of the request at the head of the queue.
    fn scatter_answer(&self, offset: u64, data: &[u8], env: &Env) -> Result<(), WcStatus> {
        let super::queue::Source::Gather(sges) = self.sq.source(self.sq.head()) else {
            return Err(WcStatus::LocQpOpErr);
        };
        let written =
            scatter_into(self.pd, sges, offset, data, env).map_err(|_| WcStatus::LocProtErr)?;
        if written == data.len() { Ok(()) } else { Err(WcStatus::LocLenErr) }
    }

    /// Goes back to the oldest unanswered packet, once for each loss.
    fn retry(&mut self, env: &mut Env) {
        // A responder that asked to wait may complain of what was under way behind; all of that is sent again anyway.
        // Rule: Q-07.
        if self.req.recovering || self.req.rnr_wait.is_some() {
            return;
        }
        self.go_back(env);
    }

    /// Goes back to the oldest unanswered packet, or gives up.
    pub(super) fn go_back(&mut self, env: &mut Env) {
        // Rule: P-02.1.
        // Rule: P-07.2.
        if self.req.retries >= self.attr.retry_cnt.limit() {
            env.count(Counter::RetryExceeded);
            return self.fail_send(self.sq.head(), WcStatus::RetryExcErr, env);
        }
        self.req.retries += 1;
        self.req.recovering = true;
        env.count(Counter::Retry);
        self.rewind(env);
        self.restart_ack_timer(env);
    }

    /// Sets the cursor to the oldest unanswered packet.
    fn rewind(&mut self, env: &mut Env) {
        env.flows.cleared(&mut self.share, &mut env.active);
        self.req.cursor = self.sq.head();
        self.req.packet = 0;
        self.skip_acknowledged();
    }

    /// The responder had no receive posted: wait as long as it asks, then go on from there.
    fn wait_for_receiver(&mut self, timer: RnrTimer, env: &mut Env) {
        if self.req.rnr_wait.is_some() {
            return;
        }
        // Rule: P-06.2.
        if self.attr.rnr_retry.limit().is_some_and(|limit| self.req.rnr_retries >= limit) {
            env.count(Counter::RnrRetryExceeded);
            return self.fail_send(self.sq.head(), WcStatus::RnrRetryExcErr, env);
        }
        self.req.rnr_retries = self.req.rnr_retries.saturating_add(1);
        // Rule: P-06.1.
        let until = env.now.saturating_add(timer.duration());
        self.req.rnr_wait = Some(until);
        self.rewind(env);
        self.restart_ack_timer(env);
    }

    /// The responder refused a request for good.
    fn refused(&mut self, code: NakCode, psn: Psn, env: &mut Env) {
        // Rule: P-08.1.
        let status = match code {
            NakCode::InvalidRequest => WcStatus::RemInvReqErr,
            NakCode::RemoteAccessError => WcStatus::RemAccessErr,
            NakCode::RemoteOperationalError => WcStatus::RemOpErr,
            NakCode::InvalidRdRequest => WcStatus::RemInvRdReqErr,
            // Means nothing, and so refuses nothing.
            NakCode::Reserved(_) | NakCode::PsnSequenceError => {
                return env.count(Counter::StaleResponse);
            }
        };
        // A read that fails in the middle may be refused by any of its PSNs, whatever became of the answers before.
        // Rule: Q-13.
        let first = self.first_psn_of(psn).unwrap_or(psn);
        if self.settle_before(first, env) == Before::Settled && !self.sq.is_empty() {
            self.fail_send(self.sq.head(), status, env);
        }
    }

    /// The first PSN of the request under way that a PSN belongs to.
    fn first_psn_of(&self, psn: Psn) -> Option<Psn> {
        let (mut index, tail) = (self.sq.head(), self.sq.tail());
        while index != tail && self.sq.get(index).is_begun() {
            let wqe = self.sq.get(index);
            let into = psn.since(wqe.psn());
            if into >= 0 && into.unsigned_abs() < wqe.psns(self.mtu) {
                return Some(wqe.psn());
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Whether a PSN belongs to the request at the head of the queue.
    fn head_contains(&self, psn: Psn) -> bool {
        if self.sq.is_empty() || !self.sq.get(self.sq.head()).is_begun() {
            return false;
        }
        let wqe = self.sq.get(self.sq.head());
        let into = psn.since(wqe.psn());
        into >= 0 && into.unsigned_abs() < wqe.psns(self.mtu)
    }

    /// The timer went off.
    pub(super) fn handle_timer(&mut self, env: &mut Env) {
        if self.req.rnr_wait.is_some_and(|until| until <= env.now) {
            self.req.rnr_wait = None;
            self.restart_ack_timer(env);
        } else if env.flows.is_stalled(&self.share) {
            // It waits for the peer window in the middle of a message, and not for an ACK: this is no retry.
            self.restart_ack_timer(env);
        } else if self.req.is_waiting() && !self.sq.is_empty() {
            env.count(Counter::Timeout);
            if core::mem::take(&mut self.req.peer_alive) {
                // It answers, but cannot keep up: the same load once more would not help.
                self.req.rto_backoff = (self.req.rto_backoff + 1).min(RTO_BACKOFF_MAX);
            }
            self.go_back(env);
        }
        self.schedule(env);
    }
}

/// Whether an answer refuses a request for good.
fn is_final(answer: Answer) -> bool {
    matches!(answer, Answer::Nak(code) if code != NakCode::PsnSequenceError)
}

/// Whether a request is answered by more than an acknowledgement.
pub(super) fn has_response(opcode: WrOpcode) -> bool {
    // Rule: Q-18.
    matches!(
        opcode,
        WrOpcode::RdmaRead
            | WrOpcode::AtomicCmpAndSwp
            | WrOpcode::AtomicFetchAndAdd
            | WrOpcode::AtomicWrite
            | WrOpcode::Flush
    )
}
