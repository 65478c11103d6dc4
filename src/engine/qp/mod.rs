//! A queue pair: a send side, a receive side, and the attributes that both work by.
//!
//! [`Tx`] and [`Rx`] never see each other. Each gets [`Attributes`] to read, and returns a
//! [`Failure`] when the queue pair cannot go on; [`Qp`] changes the state, flushes both sides, and
//! decides when the queue pair may send.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | `Qp`: posts, round-robin quantum, errors |
//! | `accept` | checks before a packet reaches a side |
//! | `attr` | identity, state and attributes |
//! | `modify` | state transitions: `modify_qp`, `query_qp` |
//! | `flow` | congestion control, and data that is held back |
//! | `tx` | send queue, PSN window, go-back-N, retransmission timeout, what ACKs complete |
//! | `rx` | checks of requests, execution, responder resources |
//! | `responses` | pending responses, and how they are sent |
//! | `ack_delay` | delayed ACK |
//! | `ud` | datagrams |
//! | `raw` | raw frames |
//!
//! Functions on the path of every packet are inlined always, but in optimized builds only: without
//! optimization the frame of a caller has room for the variables of all functions inlined into it,
//! and a thread of a program may have a stack of 16 KiB.

mod accept;
mod ack_delay;
mod attr;
mod flow;
mod modify;
mod raw;
mod responses;
mod rx;
mod tx;
mod ud;

pub(super) use attr::Attributes;

use super::config::OBJECT_BYTES;
use super::congestion::Flow;
use super::env::Env;
use super::path::sprayed;
use super::peer_port::PeerPort;
use crate::memory::prefetch;
use crate::table::{Present, SlotId};
use crate::time::Instant;
use crate::verbs::{
    AttrMask, EventType, ModifyError, PdHandle, PostError, Posting, QpAttr, QpCreate, QpHandle,
    QpState, QpType, RecvWr, SendWr, WrId,
};
use crate::wire::Qpn;
use crate::wire::batch::Batch;
use flow::Evidence;
pub(super) use rx::Run;
use rx::Rx;
use tx::{Step, Tx};

/// Failure of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// A completion was lost, or local memory is not accessible: the program learns it from
    /// `QP_FATAL`.
    Fatal,
    /// The receive side failed, and a NAK, a completion or an event has reported it.
    Reported,
    /// A send completed in error.
    Send,
}

/// A queue pair. What every message touches lies together at the front, so that few cache lines are
/// needed however many queue pairs there are.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Qp {
    present: Present,
    /// Whether it is among the active queue pairs.
    scheduled: bool,
    /// Whether responses used up its last quantum: requests go first in the next.
    requests_first: bool,
    /// Whether the peer sent a CNP and [`poll_congestion`](super::Engine::poll_congestion) has not
    /// reported it since.
    congested: bool,
    /// Whether it is among those with data of a paused class.
    held: bool,
    /// Congestion control, while it needs some.
    cc: Option<Box<Flow>>,
    attr: Attributes,
    tx: Tx,
    port: PeerPort,
    rx: Rx,
    /// Number of multicast groups it is attached to.
    groups: u32,
    /// Attributes as the program set them, except the state.
    requested: QpAttr,
}

impl Qp {
    /// A queue pair in RESET. Its numbers are [assigned](Self::set_numbers) when it is in its
    /// table.
    pub(super) fn new(pd: PdHandle, create: &QpCreate, advertise_credits: bool) -> Self {
        let (cap, kind) = (create.init.cap, create.init.qp_type);
        let own_rq = create.srq.is_none() && kind.has_receive_queue();
        let recv_depth = if own_rq { cap.max_recv_wr } else { 0 };
        let send_depth = if kind.has_send_queue() { cap.max_send_wr } else { 0 };
        Self {
            present: Present::Here,
            scheduled: false,
            requests_first: false,
            congested: false,
            held: false,
            cc: None,
            attr: Attributes::new(pd, create),
            tx: Tx::new(send_depth),
            port: PeerPort::default(),
            rx: Rx::new(recv_depth, cap.max_recv_sge, advertise_credits),
            groups: 0,
            requested: QpAttr { cap, ..QpAttr::default() },
        }
    }

    pub(super) fn set_numbers(&mut self, handle: QpHandle, slot: SlotId, qpn: Qpn) {
        self.attr.set_numbers(handle, slot, qpn);
    }

    /// Identity, state and attributes.
    #[inline]
    pub(super) fn attr(&self) -> &Attributes {
        &self.attr
    }

    #[inline]
    pub(super) fn state(&self) -> QpState {
        self.attr.state()
    }

    /// Number of bytes that it takes when its queues are in use.
    pub(super) fn bytes(&self) -> u64 {
        OBJECT_BYTES + self.tx.bytes(&self.attr.init.cap) + self.rx.bytes()
    }

    /// Number of bytes from its beginning that every message touches.
    pub(super) const HOT: usize = core::mem::offset_of!(Self, groups);

    /// Prefetches what every message touches: with many queue pairs it is not in a cache.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(self, Self::HOT);
    }

    /// Prefetches the work request to send from next.
    #[inline]
    pub(super) fn prefetch_send(&self) {
        self.tx.prefetch_next();
    }

    /// Prefetches the place of the next send that is posted.
    #[inline]
    pub(super) fn prefetch_send_post(&self) {
        self.tx.prefetch_tail();
    }

    /// Prefetches the place of the next receive that is posted.
    #[inline]
    pub(super) fn prefetch_receive_post(&self) {
        self.rx.prefetch_free();
    }

    /// Prefetches the receive that the next message takes, and the request that the next response
    /// completes.
    #[inline]
    pub(super) fn prefetch_queues(&self) {
        self.rx.prefetch_next();
        self.tx.prefetch_oldest();
    }

    /// Prefetches what every message touches, and congestion control.
    #[inline]
    pub(super) fn prefetch_paced(&self) {
        self.prefetch();
        if let Some(flow) = &self.cc {
            prefetch(&**flow, size_of::<Flow>());
        }
    }

    /// Adds it to the active queue pairs.
    #[inline]
    pub(super) fn schedule(&mut self, env: &mut Env) {
        if !self.scheduled {
            self.scheduled = true;
            env.active.push_back(self.attr.slot);
        }
    }

    /// Whether it is, or may be, among the active queue pairs.
    pub(super) fn may_be_active(&self) -> bool {
        self.scheduled || self.tx.may_be_woken()
    }

    /// Counts a multicast group that it joins.
    pub(super) fn join_group(&mut self) {
        self.groups += 1;
    }

    /// Counts a multicast group that it leaves.
    pub(super) fn leave_group(&mut self) {
        self.groups -= 1;
    }

    /// Whether it is attached to a multicast group.
    pub(super) fn is_in_group(&self) -> bool {
        self.groups > 0
    }

    /// Posts a send. If it is inline and its data are addresses, `inline` must hold the bytes at
    /// these addresses.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        wr: &SendWr<'_>,
        inline: &[u8],
        env: &mut Env,
    ) -> Result<(), PostError> {
        // One post that is the first on its path is enough to transmit at once.
        let is_first = !env.posted.is_first_on_path && self.tx.is_first_on_path(&self.attr, env);
        self.tx.post(wr, inline, &self.attr)?;
        self.sends_posted(is_first, env);
        Ok(())
    }

    /// Posts a send that completes with `LOC_QP_OP_ERR`.
    pub(super) fn post_unsupported(&mut self, id: WrId, env: &mut Env) -> Result<(), PostError> {
        self.tx.post_unsupported(id, &self.attr)?;
        self.sends_posted(false, env);
        Ok(())
    }

    /// Posts sends, all of them or none.
    pub(super) fn post_sends<'w>(
        &mut self,
        wrs: impl IntoIterator<Item = SendWr<'w>>,
        env: &mut Env,
    ) -> Result<(), PostError> {
        let is_first = self.tx.is_first_on_path(&self.attr, env);
        let before = self.tx.tail();
        for wr in wrs {
            let posted = self.tx.post(&wr, &[], &self.attr);
            posted.inspect_err(|_| self.tx.unpost_from(before))?;
        }
        self.sends_posted(is_first, env);
        Ok(())
    }

    #[inline]
    fn sends_posted(&mut self, is_first_on_path: bool, env: &mut Env) {
        env.posted.count += 1;
        env.posted.is_first_on_path |= is_first_on_path;
        if self.attr.rules().post_send == Posting::Flushed {
            self.tx.flush(&self.attr, env);
        } else {
            self.schedule(env);
        }
    }

    /// Posts a receive.
    #[inline]
    pub(super) fn post_recv(&mut self, wr: &RecvWr<'_>, env: &mut Env) -> Result<(), PostError> {
        if self.attr.srq.is_some() || !self.attr.kind.has_receive_queue() {
            return Err(PostError::NoReceiveQueue);
        }
        match self.attr.rules().post_recv {
            Posting::Refused => Err(PostError::WrongState(self.state())),
            Posting::Queued | Posting::Accepted => self.rx.post(wr),
            Posting::Flushed => {
                self.rx.post(wr)?;
                self.rx.flush(&self.attr, env);
                Ok(())
            }
        }
    }

    /// Frees the slots of the send queue through `index`: its completion was polled.
    #[inline]
    pub(super) fn release_send_slots(&mut self, index: u32) {
        self.tx.release_through(index);
    }

    /// Takes a wake-up of its timer.
    pub(super) fn handle_wakeup(&mut self, wakeup: Instant, env: &mut Env) {
        if !self.tx.timer_expired(wakeup, &self.attr, env) {
            return;
        }
        let evidence = self.cc.is_some().then(|| Evidence::new(env));
        let handled = self.tx.handle_timer(&self.attr, env);
        self.check(handled, env);
        if let Some(evidence) = evidence {
            self.note_response(self.tx.una(), evidence, 0, env);
        }
        self.schedule(env);
    }

    /// Takes the end of an ACK delay that was to last until `until`.
    pub(super) fn end_ack_delay(&mut self, until: Instant, env: &mut Env) {
        if self.rx.responses().delay_expired(until) {
            self.schedule(env);
        }
    }

    /// Takes a check of the age of a gap before what it received.
    pub(super) fn check_gap(&mut self, env: &mut Env) {
        if self.rx.check_gap(&self.attr, env) {
            self.schedule(env);
        }
    }

    /// Agrees with its peer on selective repeat, or on go-back-N; returns on what.
    pub(super) fn agree_selective_repeat(&mut self, agreed: bool, env: &Env) -> bool {
        let is_possible = env.config.recovery.is_selective() && self.attr.kind == QpType::Rc;
        self.attr.set_selective(agreed && is_possible);
        self.attr.is_selective()
    }

    /// Sprays its packets, as configured, only if its peer takes them; returns whether it does.
    pub(super) fn agree_spraying(&mut self, agreed: bool, env: &Env) -> bool {
        self.attr.set_drops_early(!agreed);
        self.attr.sprays(env)
    }

    /// Sends what it may within one quantum. It is active again afterwards if it may have more to
    /// send.
    #[inline]
    pub(super) fn transmit(&mut self, delay_acks: bool, env: &mut Env, batch: &mut Batch) {
        self.scheduled = false;
        let quantum = self.send_quantum(delay_acks, env, batch);
        self.tx.wake_next(env);
        if quantum == Quantum::UsedUp && !self.waits_for_pacer(env) {
            self.schedule(env);
        } else if env.may_hold_data {
            self.hold_data(env);
        }
    }

    /// Sends what it may within one quantum.
    ///
    /// Responses go first, because the peer waits for them. If they use up the quantum, requests go
    /// first in the next: a peer that sends requests without end does not stop this side's.
    ///
    /// A lone ACK goes last: the peer waits less for it than for requests, and it is short enough
    /// to be the last segment of a train. With `delay_acks` it may be delayed. It is not passed
    /// over twice.
    fn send_quantum(&mut self, delay_acks: bool, env: &mut Env, batch: &mut Batch) -> Quantum {
        let lone_ack = self.rx.responses().may_delay_ack();
        let mut requests_first = core::mem::take(&mut self.requests_first) || lone_ack;
        let (mut only_responses, before) = (true, batch.len());
        batch.set_path(&self.attr.path);
        let sprays = self.attr.sprays(env);
        // Nothing that the loop checks changes while requests are sent, unless data is held back or
        // each packet has a path of its own.
        let are_together = !sprays && !env.may_hold_data;
        let mut left = env.config.quantum;
        while left > 0 && !batch.is_full() {
            if sprays {
                batch.set_path(&sprayed(&self.attr.path, env));
            }
            let held = env.may_hold_data && self.is_data_held(env);
            if !requests_first && self.may_respond(held) {
                self.transmit_response(env, batch);
                left -= 1;
                continue;
            }
            only_responses = false;
            let (steps, step) = match held || !self.tx.has_work() {
                true => (1, Ok(Step::Blocked)),
                false => self.transmit_requests(if are_together { left } else { 1 }, env, batch),
            };
            left -= steps;
            match step {
                Ok(Step::Done) => {}
                Err(failure) => self.fail_with(failure, env),
                Ok(Step::Blocked) => {
                    if !self.may_respond(held) {
                        return Quantum::NothingLeft;
                    }
                    let responses = self.rx.responses();
                    let may_delay =
                        responses.is_ack_delayed() || delay_acks && batch.len() > before;
                    if lone_ack
                        && requests_first
                        && may_delay
                        && responses.delay_ack(self.attr.slot, env)
                    {
                        return Quantum::NothingLeft;
                    }
                    requests_first = false;
                }
            }
        }
        self.requests_first = only_responses;
        if lone_ack && !self.rx.responses().is_ack_delayed() {
            self.rx.responses().expedite_ack();
        }
        Quantum::UsedUp
    }

    /// Fails the queue pair if one of its sides did.
    #[inline]
    fn check(&mut self, result: Result<(), Failure>, env: &mut Env) {
        if let Err(failure) = result {
            self.fail_with(failure, env);
        }
    }

    #[cold]
    fn fail_with(&mut self, failure: Failure, env: &mut Env) {
        match failure {
            // Rule: Q-29.
            Failure::Fatal if self.state() != QpState::Err => {
                self.attr.raise(EventType::QpFatal, env);
                self.fail(env);
            }
            Failure::Send if self.attr.kind.can_stop_sending_alone() => {
                self.attr.set_state(QpState::Sqe);
                self.tx.flush(&self.attr, env);
            }
            Failure::Fatal | Failure::Reported | Failure::Send => self.fail(env),
        }
    }

    /// Enters ERR: everything that is posted is flushed, in order (P-08).
    fn fail(&mut self, env: &mut Env) {
        // Rule: P-08.3.
        if matches!(self.state(), QpState::Err | QpState::Reset) {
            return;
        }
        self.attr.set_state(QpState::Err);
        self.tx.stop();
        self.tx.flush(&self.attr, env);
        self.rx.flush(&self.attr, env);
        self.end_flow(env);
        if self.attr.srq.is_some() || self.attr.kind == QpType::XrcRecv {
            self.attr.raise(EventType::QpLastWqeReached, env);
        }
    }

    /// Changes the attributes that `mask` names, and the state; nothing unless all is valid.
    pub(super) fn modify(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        env: &mut Env,
    ) -> Result<(), ModifyError> {
        let (mask, to) = modify::check(&self.attr, new, mask, env)?;
        env.run = None;
        self.requested.apply(new, mask & !AttrMask::STATE);
        if mask.contains(AttrMask::RQ_PSN) {
            self.rx.start_at(new.rq_psn);
        }
        if mask.contains(AttrMask::SQ_PSN) {
            self.tx.start_at(new.sq_psn);
        }
        if mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            self.tx.set_notify_drained(new.en_sqd_async_notify);
        }
        self.attr.derive(&mut self.requested, env);
        self.limit_window(env);
        self.enter(to, env);
        Ok(())
    }

    fn enter(&mut self, to: QpState, env: &mut Env) {
        let from = self.state();
        if to != QpState::Sqd {
            // A program that leaves SQD before the queue has drained gets no event later.
            self.tx.set_notify_drained(false);
        }
        match to {
            QpState::Reset => self.reset(env),
            QpState::Err => {
                // A queue pair that fails by itself still sends its NAK; one that is moved to ERR
                // sends nothing.
                self.rx.responses().clear();
                self.fail(env);
            }
            QpState::Sqd if from != QpState::Sqd => {
                self.attr.set_state(to);
                self.tx.drain(&self.attr, env);
            }
            _ => {
                self.attr.set_state(to);
                self.schedule(env);
            }
        }
    }

    /// Returns to RESET: posted work is forgotten without completions, and so are completions that
    /// were not polled.
    fn reset(&mut self, env: &mut Env) {
        // Rule: S-02.3.
        self.rx.release_begun(env);
        for cq in [self.attr.send_cq, self.attr.recv_cq] {
            if let Some(cq) = env.cqs.get_mut(cq.0) {
                let before = cq.len();
                cq.discard(self.attr.qpn);
                env.completions -= before - cq.len();
            }
        }
        self.tx.reset(env);
        self.rx.reset();
        self.end_flow(env);
        self.port = PeerPort::default();
        self.requests_first = false;
        self.requested = QpAttr { cap: self.requested.cap, ..QpAttr::default() };
        self.attr.set_selective(false);
        self.attr.set_drops_early(false);
        self.attr.set_state(QpState::Reset);
    }

    /// Attributes as they are.
    pub(super) fn query(&self) -> QpAttr {
        QpAttr {
            qp_state: self.state(),
            cur_qp_state: self.state(),
            cap: self.attr.init.cap,
            sq_draining: self.state() == QpState::Sqd && self.tx.is_draining(),
            en_sqd_async_notify: self.tx.notifies_drained(),
            sq_psn: self.tx.next_psn(),
            rq_psn: self.rx.epsn(),
            ..self.requested
        }
    }

    /// Releases what it holds of the engine: it is destroyed.
    pub(super) fn release(&mut self, env: &mut Env) {
        env.run = None;
        self.rx.release_begun(env);
        self.tx.remove(&self.attr, env);
        self.end_flow(env);
    }
}

/// End of a quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantum {
    /// The queue pair has no more to send now.
    NothingLeft,
    /// The queue pair may have more to send when the other queue pairs had their quantum.
    UsedUp,
}

#[cfg(test)]
mod testing;
