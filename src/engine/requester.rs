//! The sending side of a queue pair: which packet goes out next.
//!
//! Read the specification on the requester (volume 1, §9.7) before changing this file. A work request gets its PSNs
//! when its first packet goes out, and keeps them: a retry sends the same packets again, or, of a READ, asks for what
//! is missing.

use super::completer::has_response;
use super::keys::{Bind, Refusal};
use super::pieces::gather;
use super::qp::{Env, Qp};
use super::queue::{SendWqe, packets};
use super::{Counter, flows};
use crate::time::Instant;
use crate::verbs::{
    Data, LocalData, PostError, Posting, QpState, QpType, SendFlags, SendWr, Sending, WcStatus,
    WrOpcode, limits,
};
use crate::wire::batch::{Batch, Draft};
use crate::wire::{
    AtomicEthRepr, Bits, BthRepr, FethRepr, IethRepr, ImmDtRepr, Msn, Opcode, Position, Psn, QKey,
    RethRepr, XrcethRepr,
};

/// How often the retransmission timeout doubles while the peer answers but nothing is acknowledged: it lasts from T to
/// 4 T, as the specification lets it (C9-141). For a silent peer it stays T: a dead one is reported after T for each
/// retry and one more.
pub(super) const RTO_BACKOFF_MAX: u8 = 2;

/// Whether the responder counts messages in its MSNs as the specification wants it. Most do; what one that does not says
/// there is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerMsn {
    /// It has acknowledged nothing yet.
    Unknown,
    /// It counts: an answer with a number that it cannot have is not its.
    Counts,
    /// It does not.
    Ignored,
}

/// What the sending side remembers.
#[derive(Debug)]
pub(super) struct Requester {
    /// The oldest PSN that was sent and not acknowledged.
    pub(super) una: Psn,
    /// The next PSN that was never used.
    pub(super) next: Psn,
    /// The end of the PSNs that were sent. Of a message that was begun, some may not have been.
    pub(super) sent: Psn,
    /// The work request to send from next, and how many of its PSNs were sent.
    pub(super) cursor: u32,
    pub(super) packet: u32,
    /// How often work was sent again since something was acknowledged.
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// Until when the responder asked not to be bothered.
    pub(super) rnr_wait: Option<Instant>,
    /// How many reads and atomics are under way.
    pub(super) reads: u8,
    /// How many PSNs answers to reads will use, beyond one for each request.
    pub(super) read_psns: u32,
    /// Whether the cursor went back and nothing was acknowledged since: one loss is one retry.
    pub(super) recovering: bool,
    /// How often the retransmission timeout is doubled.
    pub(super) rto_backoff: u8,
    /// Whether the peer has answered anything since the last timeout.
    pub(super) peer_alive: bool,
    /// How many messages were begun, and how many of them completed.
    pub(super) messages: Msn,
    pub(super) completed: Msn,
    pub(super) peer_msn: PeerMsn,
    /// How many may be begun, if the responder counts.
    pub(super) limit: Option<Msn>,
    /// Whether the responder said that it does not count.
    pub(super) unlimited: bool,
    /// Whether somebody waits for the queue to drain.
    pub(super) draining: bool,
    /// Whether answers took the whole of the last turn to send.
    pub(super) waited: bool,
}

impl Requester {
    pub(super) fn new() -> Self {
        Self {
            una: Psn::new(0),
            next: Psn::new(0),
            sent: Psn::new(0),
            cursor: 0,
            packet: 0,
            retries: 0,
            rnr_retries: 0,
            rnr_wait: None,
            reads: 0,
            read_psns: 0,
            recovering: false,
            rto_backoff: 0,
            peer_alive: false,
            messages: Msn::new(0),
            completed: Msn::new(0),
            peer_msn: PeerMsn::Unknown,
            limit: None,
            unlimited: false,
            draining: false,
            waited: false,
        }
    }

    /// Lets `psn` be the first to be sent.
    pub(super) fn start_at(&mut self, psn: Psn) {
        (self.una, self.sent, self.next) = (psn, psn, psn);
    }

    /// Forgets what was under way; the queue ends at `tail`.
    pub(super) fn stop(&mut self, tail: u32) {
        (self.cursor, self.packet, self.reads, self.read_psns) = (tail, 0, 0, 0);
        (self.rnr_wait, self.recovering) = (None, false);
        self.start_at(self.next);
        self.completed = self.messages;
    }

    /// Whether anything that was sent is unanswered.
    pub(super) fn is_waiting(&self) -> bool {
        self.una != self.next
    }
}

/// What an attempt to send came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was sent or done; there may be more.
    Done,
    /// Nothing can be sent until something else happens.
    Blocked,
}

impl Qp {
    /// Takes a send into the queue, if all is right with it. If it is inline and its data are addresses, `inline` must
    /// hold the bytes that are there.
    #[inline]
    pub(super) fn queue_send(&mut self, wr: &SendWr<'_>, inline: &[u8]) -> Result<(), PostError> {
        // Rule: S-02.1.
        if self.rules.post_send == Posting::Refused {
            return Err(if self.kind.has_send_queue() {
                PostError::WrongState(self.state())
            } else {
                PostError::NoSendQueue
            });
        }
        let len = wr.check(self.kind, &self.init.cap, limits::MESSAGE_BYTES_MAX)?;
        if wr.opcode().info().rd_atomic && self.attr.max_rd_atomic == 0 {
            return Err(PostError::NoRdAtomic);
        }
        // Rule: V-01.3.
        let bytes = match wr.data {
            Data::Inline(bytes) => Some(bytes),
            Data::Gather(_) if wr.is_inline() => Some(inline),
            Data::Gather(_) => None,
        };
        if bytes.is_some_and(|bytes| bytes.len() as u64 != wr.data.byte_len()) {
            // Whoever vouched for the bytes was wrong: nothing else may go out in their place.
            let (opcode, len) = (wr.opcode(), wr.data.byte_len());
            return Err(PostError::WrongLength { opcode, len });
        }
        self.sq.push(wr, len, bytes, &self.init.cap)
    }

    /// Sends were queued: they go out, or are flushed at once.
    #[inline]
    pub(super) fn sends_queued(&mut self, env: &mut Env) {
        if self.rules.post_send == Posting::Flushed {
            self.flush_send(env);
        } else {
            self.schedule(env);
        }
    }

    /// Sends the next packet of the send queue, or does the next thing that is done at home.
    pub(super) fn send_next(&mut self, env: &mut Env, batch: &mut Batch) -> Step {
        let index = self.req.cursor;
        if index == self.sq.tail() || self.req.rnr_wait.is_some() {
            return Step::Blocked;
        }
        let wqe = *self.sq.get(index);
        if wqe.is_done() {
            // The cursor went back over what was done at home, which is not done again.
            self.advance_cursor();
            return Step::Done;
        }
        if self.req.recovering
            && wqe.opcode() == WrOpcode::RdmaRead
            && self.is_behind_unanswered(index)
        {
            return Step::Blocked;
        }
        let may_send = match self.rules.sends {
            Sending::Nothing => false,
            // Rule: S-02.4.
            Sending::Begun => wqe.is_begun(),
            Sending::Everything => wqe.is_begun() || self.may_begin(&wqe, index),
        };
        if !may_send {
            return Step::Blocked;
        }
        match wqe.opcode() {
            WrOpcode::LocalInv | WrOpcode::BindMw => self.do_at_home(&wqe, env),
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
                if wqe.len() != limits::ATOMIC_BYTES =>
            {
                self.fail_in_turn(index, WcStatus::LocLenErr, env)
            }
            _ if self.kind == QpType::RawPacket => self.send_frame(&wqe, env),
            _ if self.kind.is_datagram() => self.send_datagram(&wqe, env, batch),
            _ => self.send_packet(&wqe, env, batch),
        }
    }

    /// Whether a request that has a response of its own stands before a request. After a loss a READ is retransmitted
    /// only when it is the first of these: where queues on the path are short, its responses would push the response to
    /// the earlier request out again, at every retry.
    fn is_behind_unanswered(&self, index: u32) -> bool {
        let mut before = self.sq.head();
        while before != index && !has_response(self.sq.get(before).opcode()) {
            before = before.wrapping_add(1);
        }
        before != index
    }

    /// Whether a work request that was not begun may be: fences, limits, credits.
    fn may_begin(&self, wqe: &SendWqe, index: u32) -> bool {
        let info = wqe.opcode().info();
        if wqe.flags().contains(SendFlags::FENCE) && self.req.reads > 0 {
            return false;
        }
        if info.waits_for_all && index != self.sq.head() {
            return false;
        }
        if info.rd_atomic && self.req.reads >= self.attr.max_rd_atomic {
            return false;
        }
        // With no credit left one message may go out, to learn of new ones, and so may one when nothing is in flight:
        // otherwise a queue pair that was told wrong would wait for ever.
        // Rule: P-13.2.
        let ahead = self.req.limit.map_or(-1, |limit| self.req.messages.since(limit));
        !info.takes_receive || ahead < 1 || !self.req.is_waiting()
    }

    /// Invalidates a key or binds a window; no packet goes out.
    fn do_at_home(&mut self, wqe: &SendWqe, env: &mut Env) -> Step {
        let done = match wqe.opcode() {
            WrOpcode::LocalInv => env.keys.invalidate(self.pd, self.owner(), wqe.rkey()),
            _ => self.bind_window(wqe, env),
        };
        let index = self.req.cursor;
        match done {
            Ok(()) => {
                self.sq.get_mut(index).begin(self.req.next);
                self.sq.get_mut(index).finish();
                self.advance_cursor();
                self.retire(env);
            }
            Err(_) => return self.fail_in_turn(index, WcStatus::MwBindErr, env),
        }
        Step::Done
    }

    fn bind_window(&self, wqe: &SendWqe, env: &mut Env) -> Result<(), Refusal> {
        let (window, new_key, bind) = wqe.mw_bind();
        // The index of a window is its own for life. The key part of the new key is the consumer's: of type 2 as given,
        // of type 1 as its own verb counts.
        let kind = env.keys.window_kind(window).ok_or(Refusal::Key)?;
        let new_low = new_key.get().to_le_bytes()[0];
        let (mr, start, len, access) = (bind.mr, bind.addr, bind.length, bind.access);
        let bind = Bind { window, new_low, mr, start, len, access, kind };
        env.keys.bind(self.pd, self.owner(), bind)
    }

    /// Sends the next packet of a request that goes to a connected peer.
    fn send_packet(&mut self, wqe: &SendWqe, env: &mut Env, batch: &mut Batch) -> Step {
        let (index, k) = (self.req.cursor, self.req.packet);
        let psns = wqe.psns(self.mtu);
        let psn = if wqe.is_begun() { wqe.psn().plus(k) } else { self.req.next };
        // Answers to reads come at the responder's pace and fill no buffer of its.
        let distance = psn.since(self.req.una).unsigned_abs();
        let unacknowledged = distance.saturating_sub(self.req.read_psns);
        let too_far = !wqe.is_begun() && distance + psns > Psn::HALF;
        let reliable = self.kind.is_reliable();
        // They fill a buffer of this side, though, and one that is overrun loses most of them: no more is asked for than
        // a window before what is still to come.
        let greedy = wqe.opcode() == WrOpcode::RdmaRead && distance >= self.window;
        if reliable && (unacknowledged >= self.window || too_far || greedy) {
            return Step::Blocked;
        }
        let info = wqe.opcode().info();
        let sends_data = info.local == LocalData::Gather;
        let whole = if sends_data { psns } else { 1 };
        let position = position(k, whole);
        let ends = !sends_data || k + 1 == psns;
        let len = if sends_data { payload_len(wqe.len(), self.mtu, k) } else { 0 };
        let (cost, to) = (flows::cost(len), self.route.destination);
        if reliable && !env.flows.admits(&mut self.share, to, cost, self.place, &mut env.active) {
            return Step::Blocked;
        }
        let asks = ends
            || (unacknowledged + 1).is_multiple_of((self.window / 2).max(1))
            || env.flows.is_filled_by(&self.share, cost);
        let opcode = self.opcode(request_opcode(wqe.opcode(), position));
        let bth = BthRepr {
            // Rule: T-13.
            solicited: ends && wqe.flags().contains(SendFlags::SOLICITED) && info.takes_receive,
            ack_req: reliable && asks,
            pkey: self.pkey,
            pad: pad_for(len),
            ..BthRepr::new(opcode, self.dest, psn)
        };
        let mut draft = batch.draft();
        draft.put(bth.emit().as_bytes());
        self.put_headers(&mut draft, wqe, position, k);
        let offset = u64::from(k) * u64::from(self.mtu);
        let source = self.sq.source(index);
        let filled = gather(source, offset, len as usize, draft.bytes(), self.pd, env);
        if filled.is_ok() {
            draft.finish();
        } else {
            drop(draft);
            // Rule: Q-09.
            return self.fail_in_turn(index, WcStatus::LocProtErr, env);
        }
        env.count(Counter::Sent);
        env.flows.sent(&mut self.share, cost);
        if !wqe.is_begun() {
            self.begin(wqe, psns);
        }
        let end = psn.plus(if sends_data { 1 } else { psns - k });
        if end.since(self.req.sent) > 0 {
            self.req.sent = end;
        }
        self.packet_sent(psn, ends, env);
        Step::Done
    }

    /// Gives a work request its PSNs.
    fn begin(&mut self, wqe: &SendWqe, psns: u32) {
        self.sq.get_mut(self.req.cursor).begin(self.req.next);
        // Rule: P-01.1.
        self.req.next = self.req.next.plus(psns);
        self.req.messages = self.req.messages.plus(1);
        let info = wqe.opcode().info();
        self.req.reads += u8::from(info.rd_atomic);
        if wqe.opcode() == WrOpcode::RdmaRead {
            self.req.read_psns += psns - 1;
        }
        if !info.takes_receive {
            // It takes no credit, but counts as a message all the same.
            self.req.limit = self.req.limit.map(|limit| limit.plus(1));
        }
    }

    fn packet_sent(&mut self, psn: Psn, ends: bool, env: &mut Env) {
        self.req.packet += 1;
        if ends {
            if !self.kind.is_reliable() {
                self.sq.get_mut(self.req.cursor).finish();
                self.req.una = psn.plus(1);
            }
            self.advance_cursor();
        }
        if self.kind.is_reliable() {
            self.start_ack_timer(env);
        } else {
            self.retire(env);
        }
    }

    pub(super) fn advance_cursor(&mut self) {
        self.req.cursor = self.req.cursor.wrapping_add(1);
        self.req.packet = 0;
    }

    /// Starts the timer if it does not run; what is unanswered longest decides.
    pub(super) fn start_ack_timer(&mut self, env: &mut Env) {
        if !self.timer.runs() {
            self.restart_ack_timer(env);
        }
    }

    /// Starts the timer anew, or stops it if nothing is unanswered.
    pub(super) fn restart_ack_timer(&mut self, env: &mut Env) {
        if let Some(until) = self.req.rnr_wait {
            // Who asked to wait is not expected to answer meanwhile.
            return self.timer.set(until, self.place, &mut env.timers);
        }
        match self.timeout.duration() {
            Some(timeout) if self.req.is_waiting() => {
                // Rule: P-07.4.
                let timeout = timeout.saturating_mul(1 << self.req.rto_backoff);
                self.timer.set(env.now.saturating_add(timeout), self.place, &mut env.timers);
            }
            _ => self.timer.clear(),
        }
    }

    /// Puts the headers behind a BTH.
    #[inline]
    fn put_headers(&self, draft: &mut Draft<'_>, wqe: &SendWqe, position: Position, k: u32) {
        // Rule: P-16.1.
        if self.kind == QpType::XrcSend {
            draft.put(XrcethRepr { xrcsrq: wqe.srqn() }.emit().as_bytes());
        }
        let (va, rkey) = (wqe.remote_addr(), wqe.rkey());
        match wqe.opcode() {
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm | WrOpcode::AtomicWrite
                if position.begins() =>
            {
                draft.put(RethRepr { va, rkey, dma_len: wqe.len() }.emit().as_bytes());
            }
            WrOpcode::RdmaRead => {
                // What was answered already is not asked for again.
                // Rule: P-02.2.
                let skipped = k * self.mtu;
                let va = va.wrapping_add(u64::from(skipped));
                let reth = RethRepr { va, rkey, dma_len: wqe.len() - skipped };
                draft.put(reth.emit().as_bytes());
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let (swap_or_add, compare) = (wqe.swap_or_add(), wqe.compare());
                let atomic = AtomicEthRepr { va, rkey, swap_or_add, compare };
                draft.put(atomic.emit().as_bytes());
            }
            WrOpcode::Flush => {
                let (placement, selectivity) = wqe.flush();
                draft.put(FethRepr { selectivity, placement }.emit().as_bytes());
                draft.put(RethRepr { va, rkey, dma_len: wqe.len() }.emit().as_bytes());
            }
            _ => {}
        }
        match wqe.opcode() {
            WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm if position.ends() => {
                draft.put(ImmDtRepr { data: wqe.imm() }.emit().as_bytes());
            }
            WrOpcode::SendWithInv if position.ends() => {
                draft.put(IethRepr { rkey }.emit().as_bytes());
            }
            _ => {}
        }
    }

    pub(super) fn own_qkey(&self) -> QKey {
        if self.kind == QpType::Gsi { QKey::GSI } else { self.attr.qkey }
    }

    /// Completes every request at the head of the queue that is done, in order.
    pub(super) fn retire(&mut self, env: &mut Env) {
        let mut heard = true;
        while !self.sq.is_empty() && self.sq.get(self.sq.head()).is_done() {
            let (index, wqe) = self.sq.pop();
            heard &= self.complete_send(index, &wqe, env);
        }
        if !heard {
            self.fail_unheard(env);
        }
        self.check_drained(env);
    }

    /// The completion of a request that went well, if one is wanted; whether there was room for it.
    fn complete_send(&self, index: u32, wqe: &SendWqe, env: &mut Env) -> bool {
        // Rule: T-48.
        if !self.init.sq_sig_all && !wqe.flags().contains(SendFlags::SIGNALED) {
            return true;
        }
        self.end_send(index, wqe, WcStatus::Success, env)
    }

    /// A request failed at home. Those before it may have been executed, and are answered first.
    fn fail_in_turn(&mut self, index: u32, status: WcStatus, env: &mut Env) -> Step {
        if index != self.sq.head() {
            return Step::Blocked;
        }
        self.fail_send(index, status, env);
        Step::Done
    }

    /// A request failed. Those before it that are unanswered are lost with it, those behind it are flushed.
    pub(super) fn fail_send(&mut self, index: u32, status: WcStatus, env: &mut Env) {
        // Rule: P-08.2.
        while self.sq.head() != index {
            let (before, wqe) = self.sq.pop();
            if wqe.is_done() {
                self.complete_send(before, &wqe, env);
            } else {
                self.end_send(before, &wqe, WcStatus::WrFlushErr, env);
            }
        }
        let (index, wqe) = self.sq.pop();
        if !self.end_send(index, &wqe, status, env) {
            self.fail_unheard(env);
        } else if self.kind.can_stop_sending_alone() {
            // Receiving goes on; sending stops until somebody says otherwise.
            self.set_state(QpState::Sqe);
            self.flush_send(env);
        } else {
            self.fail(env);
        }
    }

    /// Tells whoever waits for it that the send queue has drained.
    pub(super) fn check_drained(&mut self, env: &mut Env) {
        let begun = !self.sq.is_empty() && self.sq.get(self.sq.head()).is_begun();
        if self.state() == QpState::Sqd && self.req.draining && !begun {
            self.req.draining = false;
            // It was asked for once.
            // Rule: Q-35.
            if core::mem::take(&mut self.attr.en_sqd_async_notify) {
                self.raise(crate::verbs::EventType::SqDrained, env);
            }
        }
    }
}

/// Where packet `k` of `count` stands in its message.
fn position(k: u32, count: u32) -> Position {
    // Rule: T-10.
    match (k == 0, k + 1 == count) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// How many payload bytes packet `k` of a message of `len` bytes has.
fn payload_len(len: u32, mtu: u32, k: u32) -> u32 {
    debug_assert!(k < packets(len, mtu));
    (len - k * mtu).min(mtu)
}

/// The opcode of a request, as RC has it.
fn request_opcode(opcode: WrOpcode, position: Position) -> Opcode {
    use Position::{First, Last, Middle, Only};
    match (opcode, position) {
        (WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv, First) => {
            Opcode::RC_SEND_FIRST
        }
        (WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv, Middle) => {
            Opcode::RC_SEND_MIDDLE
        }
        (WrOpcode::SendWithImm, Last) => Opcode::RC_SEND_LAST_WITH_IMMEDIATE,
        (WrOpcode::SendWithImm, Only) => Opcode::RC_SEND_ONLY_WITH_IMMEDIATE,
        (WrOpcode::SendWithInv, Last) => Opcode::RC_SEND_LAST_WITH_INVALIDATE,
        (WrOpcode::SendWithInv, Only) => Opcode::RC_SEND_ONLY_WITH_INVALIDATE,
        (WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm, First) => Opcode::RC_RDMA_WRITE_FIRST,
        (WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm, Middle) => Opcode::RC_RDMA_WRITE_MIDDLE,
        (WrOpcode::RdmaWrite, Last) => Opcode::RC_RDMA_WRITE_LAST,
        (WrOpcode::RdmaWrite, Only) => Opcode::RC_RDMA_WRITE_ONLY,
        (WrOpcode::RdmaWriteWithImm, Last) => Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        (WrOpcode::RdmaWriteWithImm, Only) => Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        (WrOpcode::RdmaRead, _) => Opcode::RC_RDMA_READ_REQUEST,
        (WrOpcode::AtomicCmpAndSwp, _) => Opcode::RC_COMPARE_SWAP,
        (WrOpcode::AtomicFetchAndAdd, _) => Opcode::RC_FETCH_ADD,
        (WrOpcode::AtomicWrite, _) => Opcode::RC_ATOMIC_WRITE,
        (WrOpcode::Flush, _) => Opcode::RC_FLUSH,
        (_, Last) => Opcode::RC_SEND_LAST,
        (_, _) => Opcode::RC_SEND_ONLY,
    }
}

/// How many bytes of padding a payload of `len` bytes needs.
#[inline]
pub(super) fn pad_for(len: u32) -> Bits<2> {
    // Rule: W-50.1.
    Bits::low(len.wrapping_neg())
}
