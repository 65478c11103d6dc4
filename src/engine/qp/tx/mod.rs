//! Send side of a queue pair: the send queue, the PSN window, retransmission.
//!
//! A work request gets its PSNs when its first packet is sent, and keeps them: a retransmission
//! sends the same packets, or, for a READ, requests the part that is missing. Read §9.7 of the
//! specification (volume 1) before changing this folder.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | state; posting, completing, failing, draining |
//! | `transmit` | which packet is sent next |
//! | `run` | many packets of one message |
//! | `headers` | the headers of a request packet |
//! | `response` | what ACKs, NAKs and READ responses complete |
//! | `selective` | selective repeat: what the peer holds, what is missing, early timeouts |
//! | `early` | responses that come before others |
//! | `retransmit` | go-back-N, RNR wait, retransmission timeout |

mod early;
mod headers;
mod response;
mod retransmit;
mod run;
mod selective;
mod transmit;

pub(super) use headers::{pad_for, position};
pub(super) use response::ResponseOutcome;

use super::super::cq::SendSlot;
use super::super::env::{Completions, Env};
use super::super::peer_window::FlowCredit;
use super::super::send_queue::{SendQueue, SendWqe, Source};
use super::super::timers::Timer;
use super::Failure;
use super::attr::Attributes;
use crate::time::Instant;
use crate::verbs::{
    Data, EventType, PostError, Posting, QpCap, QpState, SendFlags, SendWr, Target, Wc, WcStatus,
    WrId, limits,
};
use crate::wire::{Msn, Psn};
use selective::Gaps;

/// Whether the responder counts messages in its MSNs as the specification demands (P-12). Most do;
/// the MSNs of one that does not are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerMsn {
    /// No request is acknowledged yet.
    Unknown,
    /// The peer counts: a response with an impossible MSN is not from the peer.
    Counts,
    Ignored,
}

/// Send side of a queue pair.
#[derive(Debug)]
pub(in crate::engine) struct Tx {
    sq: SendQueue,
    /// Oldest PSN in flight.
    una: Psn,
    /// Next PSN that was never assigned.
    next: Psn,
    /// End of the PSNs that were sent. Of a message that was begun, some may not have been.
    sent: Psn,
    /// Work request to send from next, and how many of its PSNs were sent.
    cursor: u32,
    packet: u32,
    /// Retransmissions since the last forward progress.
    retries: u8,
    rnr_retries: u8,
    /// End of the wait that an RNR NAK asked for; zero if there is none.
    rnr_until: Instant,
    /// READs and atomics in flight.
    rd_atomics: u8,
    /// PSNs that READ responses will use, beyond one for each request.
    read_psns: u32,
    /// Whether the cursor was rewound and nothing was acknowledged since: one loss is one retry.
    recovering: bool,
    /// Packets that were acknowledged since the last loss; `u32::MAX` before the first.
    since_loss: u32,
    /// Number of times the retransmission timeout is doubled.
    rto_backoff: u8,
    /// Whether the peer has responded since the last timeout.
    peer_alive: bool,
    /// Messages that were begun, and how many of them completed.
    messages: Msn,
    completed: Msn,
    peer_msn: PeerMsn,
    /// Limit of `messages` that the responder's credits set.
    credit_limit: Option<Msn>,
    /// Whether the responder said that it gives no credits.
    unlimited: bool,
    /// Whether SQD was entered and the send queue has not drained since.
    draining: bool,
    /// Whether an event is raised when it has: `en_sqd_async_notify`.
    notify_drained: bool,
    timer: Timer,
    /// Bytes in flight, within the peer window.
    credit: FlowCredit,
    /// Holes that SACKs tell of, and packets that came before them, while there are holes.
    gaps: Option<Box<Gaps>>,
}

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Step {
    /// A packet was sent or a request executed; there may be more.
    Done,
    /// No packet can be sent until another event.
    Blocked,
}

impl Tx {
    /// A send side for `depth` work requests.
    pub(super) fn new(depth: u32) -> Self {
        Self::with_queue(SendQueue::new(depth), Timer::default(), FlowCredit::default())
    }

    fn with_queue(sq: SendQueue, timer: Timer, credit: FlowCredit) -> Self {
        Self {
            una: Psn::new(0),
            next: Psn::new(0),
            sent: Psn::new(0),
            cursor: sq.tail(),
            packet: 0,
            retries: 0,
            rnr_retries: 0,
            rnr_until: Instant::ZERO,
            rd_atomics: 0,
            read_psns: 0,
            recovering: false,
            since_loss: u32::MAX,
            rto_backoff: 0,
            peer_alive: false,
            messages: Msn::new(0),
            completed: Msn::new(0),
            peer_msn: PeerMsn::Unknown,
            credit_limit: None,
            unlimited: false,
            draining: false,
            notify_drained: false,
            sq,
            timer,
            credit,
            gaps: None,
        }
    }

    /// Number of bytes that the send queue takes when it is in use.
    pub(super) fn bytes(&self, cap: &QpCap) -> u64 {
        SendQueue::bytes(self.sq.depth(), cap)
    }

    /// Sets the first PSN: `sq_psn`.
    pub(super) fn start_at(&mut self, psn: Psn) {
        (self.una, self.sent, self.next) = (psn, psn, psn);
    }

    /// Next PSN that was never assigned.
    pub(super) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Oldest PSN in flight.
    #[inline]
    pub(super) fn una(&self) -> Psn {
        self.una
    }

    /// End of the PSNs that were sent.
    #[inline]
    pub(super) fn sent_end(&self) -> Psn {
        self.sent
    }

    /// Whether it may have a packet to send.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        (self.cursor != self.sq.tail() || self.has_missing()) && self.rnr_wait().is_none()
    }

    /// End of the wait that an RNR NAK asked for.
    #[inline]
    fn rnr_wait(&self) -> Option<Instant> {
        (self.rnr_until != Instant::ZERO).then_some(self.rnr_until)
    }

    /// Whether no work request waits to be sent or acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.sq.is_empty()
    }

    /// Whether nothing is in flight on the path of a send that is posted now. Of a datagram there
    /// is no response: it is in flight until its completion is polled.
    #[inline]
    pub(super) fn is_first_on_path(&self, attr: &Attributes, env: &Env) -> bool {
        let is_idle = if attr.kind.is_reliable() { self.sq.is_empty() } else { self.sq.is_free() };
        is_idle && env.peer_windows.is_idle(&self.credit)
    }

    /// Whether any packet is in flight.
    fn is_waiting(&self) -> bool {
        self.una != self.next
    }

    /// Adds a send to the queue, if it is valid. If it is inline and its data are addresses,
    /// `inline` must hold the bytes at these addresses.
    #[inline]
    pub(super) fn post(
        &mut self,
        wr: &SendWr<'_>,
        inline: &[u8],
        attr: &Attributes,
    ) -> Result<(), PostError> {
        check_state(attr)?;
        let info = wr.opcode().info();
        let len = wr.check_as(info, attr.kind, &attr.init.cap, limits::MESSAGE_BYTES_MAX)?;
        if info.rd_atomic && attr.max_rd_atomic == 0 {
            return Err(PostError::NoRdAtomic);
        }
        if let Target::Ud(to) = wr.target
            && !to.ah.0.may_be_of(attr.handle.0.device())
        {
            return Err(PostError::UnknownAddress);
        }
        // Rule: V-01.3.
        let bytes = match wr.data {
            Data::Inline(bytes) => Some(bytes),
            Data::Gather(_) if wr.is_inline() => Some(inline),
            Data::Gather(_) => None,
        };
        if bytes.is_some_and(|bytes| bytes.len() as u64 != wr.data.byte_len()) {
            // The caller passed other bytes than the work request names: nothing may be sent in
            // their place.
            let (opcode, len) = (info.opcode, wr.data.byte_len());
            return Err(PostError::WrongLength { opcode, len });
        }
        self.sq.push(wr, info, len, bytes, &attr.init.cap)
    }

    /// Adds a request that completes with `LOC_QP_OP_ERR` when its turn comes.
    pub(super) fn post_unsupported(
        &mut self,
        id: WrId,
        attr: &Attributes,
    ) -> Result<(), PostError> {
        check_state(attr)?;
        self.sq.push_unsupported(id, &attr.init.cap)
    }

    /// Index of the next send that will be posted.
    pub(super) fn tail(&self) -> u32 {
        self.sq.tail()
    }

    /// Removes the sends from index `tail` on, which were posted last and not sent.
    pub(super) fn unpost_from(&mut self, tail: u32) {
        self.sq.truncate(tail);
    }

    /// Frees the slots through `index`: its completion was polled.
    #[inline]
    pub(super) fn release_through(&mut self, index: u32) {
        self.sq.release_through(index);
    }

    /// Prefetches the work request to send from next.
    #[inline]
    pub(super) fn prefetch_next(&self) {
        self.sq.prefetch(self.cursor);
    }

    /// Prefetches the slot of the next work request that is posted.
    #[inline]
    pub(super) fn prefetch_tail(&self) {
        self.sq.prefetch(self.sq.tail());
    }

    /// Prefetches the oldest work request that is not completed.
    #[inline]
    pub(super) fn prefetch_oldest(&self) {
        self.sq.prefetch(self.sq.head());
    }

    /// Index of the work request to send from next.
    pub(super) fn cursor(&self) -> u32 {
        self.cursor
    }

    /// Data of a work request.
    pub(super) fn source(&self, index: u32) -> Source<'_> {
        self.sq.source(index)
    }

    fn advance_cursor(&mut self) {
        self.cursor = self.cursor.wrapping_add(1);
        self.packet = 0;
    }

    /// Completes the work request at the cursor, which used no PSN.
    pub(super) fn finish_current(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<Step, Failure> {
        self.sq.get_mut(self.cursor).begin(self.next);
        self.sq.get_mut(self.cursor).finish();
        self.advance_cursor();
        self.retire(attr, env)?;
        Ok(Step::Done)
    }

    /// Completes the datagram at the cursor, which was sent with the next PSN and is not
    /// acknowledged.
    pub(super) fn finish_datagram(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<Step, Failure> {
        let psn = self.next;
        self.sq.get_mut(self.cursor).begin(psn);
        self.sq.get_mut(self.cursor).finish();
        self.next = psn.plus(1);
        self.una = self.next;
        self.advance_cursor();
        self.retire(attr, env)?;
        Ok(Step::Done)
    }

    /// Completes every finished work request at the head of the queue, in order.
    #[inline]
    fn retire(&mut self, attr: &Attributes, env: &mut Env) -> Result<(), Failure> {
        let mut queue = env.completions_of(attr.send_cq);
        let mut delivered = true;
        while !self.sq.is_empty() && self.sq.get(self.sq.head()).is_done() {
            let (index, wqe) = self.sq.pop();
            delivered &= complete(index, wqe, attr, queue.as_mut());
        }
        if !delivered {
            return Err(Failure::Fatal);
        }
        self.check_drained(attr, env);
        Ok(())
    }

    /// Fails a work request: completes it with `status`, and flushes those before it that are not
    /// finished. Those behind it are flushed when the queue pair enters the error state that the
    /// returned failure leads to.
    pub(super) fn fail_request(
        &mut self,
        index: u32,
        status: WcStatus,
        attr: &Attributes,
        env: &mut Env,
    ) -> Failure {
        // Rule: P-08.2.
        while self.sq.head() != index {
            let (before, wqe) = self.sq.pop();
            if wqe.is_done() {
                complete(before, wqe, attr, env.completions_of(attr.send_cq).as_mut());
            } else {
                complete_in_error(before, wqe, WcStatus::WrFlushErr, attr, env);
            }
        }
        let (index, wqe) = self.sq.pop();
        // It completes even if it is unsignaled (§10.7.3.1).
        if complete_in_error(index, wqe, status, attr, env) {
            Failure::Send
        } else {
            Failure::Fatal
        }
    }

    /// Completes every work request as flushed, in order (P-08).
    pub(super) fn flush(&mut self, attr: &Attributes, env: &mut Env) {
        while !self.sq.is_empty() {
            let (index, wqe) = self.sq.pop();
            complete_in_error(index, wqe, WcStatus::WrFlushErr, attr, env);
        }
        (self.cursor, self.packet, self.rd_atomics, self.read_psns) = (self.sq.tail(), 0, 0, 0);
        (self.rnr_until, self.recovering) = (Instant::ZERO, false);
        self.start_at(self.next);
        self.completed = self.messages;
        env.peer_windows.clear(&mut self.credit, &mut env.active);
        self.close_gaps(env);
    }

    /// Stops all activity: the queue pair enters ERR. [`flush`](Self::flush) follows.
    pub(super) fn stop(&mut self) {
        self.notify_drained = false;
        self.timer.clear();
    }

    /// Returns to the state of a new queue pair; posted work is forgotten without completions.
    pub(super) fn reset(&mut self, env: &mut Env) {
        env.peer_windows.leave(&mut self.credit, &mut env.active);
        self.close_gaps(env);
        self.sq.clear();
        self.timer.clear();
        let sq = core::mem::replace(&mut self.sq, SendQueue::new(0));
        *self = Self::with_queue(sq, self.timer, self.credit);
    }

    /// Removes timer and flow credit: the queue pair is destroyed.
    pub(super) fn remove(&mut self, attr: &Attributes, env: &mut Env) {
        self.timer.remove(attr.slot, &mut env.timers);
        env.peer_windows.leave(&mut self.credit, &mut env.active);
        self.close_gaps(env);
    }

    /// Whether the peer window may have put the queue pair among the active ones.
    pub(super) fn may_be_woken(&self) -> bool {
        self.credit.is_used()
    }

    /// Lets the next queue pair send that waits for the same peer window.
    #[inline]
    pub(super) fn wake_next(&self, env: &mut Env) {
        env.peer_windows.wake(&self.credit, &mut env.active);
    }

    /// Begins to drain: the queue pair enters SQD.
    pub(super) fn drain(&mut self, attr: &Attributes, env: &mut Env) {
        self.draining = true;
        self.check_drained(attr, env);
    }

    /// Whether the send queue has not drained since SQD was entered.
    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether an event is raised when the send queue has drained.
    pub(super) fn notifies_drained(&self) -> bool {
        self.notify_drained
    }

    pub(super) fn set_notify_drained(&mut self, notify: bool) {
        self.notify_drained = notify;
    }

    /// Raises the event that was asked for, once, if the send queue has drained.
    #[inline]
    fn check_drained(&mut self, attr: &Attributes, env: &mut Env) {
        if attr.state() != QpState::Sqd || !self.draining {
            return;
        }
        let begun = !self.sq.is_empty() && self.sq.get(self.sq.head()).is_begun();
        if !begun {
            self.draining = false;
            // Rule: Q-35.
            if core::mem::take(&mut self.notify_drained) {
                attr.raise(EventType::SqDrained, env);
            }
        }
    }
}

/// Whether sends can be posted in the state of the queue pair.
#[inline]
fn check_state(attr: &Attributes) -> Result<(), PostError> {
    // Rule: S-02.1.
    if attr.rules().post_send != Posting::Refused {
        return Ok(());
    }
    Err(if attr.kind.has_send_queue() {
        PostError::WrongState(attr.state())
    } else {
        PostError::NoSendQueue
    })
}

/// Completes a successful work request, if a completion is wanted; returns whether there was room.
#[cfg_attr(not(debug_assertions), inline(always))]
fn complete(
    index: u32,
    wqe: &SendWqe,
    attr: &Attributes,
    queue: Option<&mut Completions<'_>>,
) -> bool {
    // Rule: T-48.
    if !attr.init.sq_sig_all && !wqe.flags().contains(SendFlags::SIGNALED) {
        return true;
    }
    let wc = Wc::new(wqe.id(), WcStatus::Success, wqe.info().completes_as, attr.qpn);
    let slot = SendSlot { qp: attr.handle, index };
    queue.is_some_and(|queue| queue.add(wc.with_byte_len(wqe.len()), Some(slot), false))
}

/// Completes a work request in error, signaled or not; returns whether there was room.
#[cold]
fn complete_in_error(
    index: u32,
    wqe: &SendWqe,
    status: WcStatus,
    attr: &Attributes,
    env: &mut Env,
) -> bool {
    let wc = Wc::new(wqe.id(), status, wqe.info().completes_as, attr.qpn);
    let slot = SendSlot { qp: attr.handle, index };
    env.complete_for(attr.send_cq, wc, Some(slot), false)
}

#[cfg(test)]
mod tests;
