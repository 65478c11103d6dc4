//! Selection of the next packet to send.

use super::super::super::env::Env;
use super::super::super::keys::{Bind, Refusal};
use super::super::super::send_queue::{SendWqe, packets};
use super::super::super::sge::gather;
use super::super::super::{Counter, peer_window};
use super::super::attr::Attributes;
use super::super::raw;
use super::super::{Failure, ud};
use super::headers::{pad_for, position, put_headers, request_opcode};
use super::{Step, Tx};
use crate::verbs::{LocalData, SendFlags, Sending, WcStatus, WrInfo, WrOpcode, limits};
use crate::wire::batch::Batch;
use crate::wire::{BthRepr, Psn};

/// Kind of a request that the compiler knows nothing of.
pub(super) const ANY: u8 = 0;

/// Kind of a SEND or WRITE on a reliable connection that is not retransmitted selectively.
const PLAIN: u8 = 1;

/// Kind of a plain request of one packet.
const ONE_PACKET: u8 = 2;

impl Tx {
    /// Sends packets of the send queue or executes local operations: at most `max` of both, until
    /// the batch is full or nothing can be sent. Returns how many steps that took, and the last.
    pub(in super::super) fn transmit_run(
        &mut self,
        max: usize,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> (usize, Result<Step, Failure>) {
        let mut steps = 0;
        loop {
            let step = self.transmit_next(attr, env, batch);
            steps += 1;
            if step != Ok(Step::Done) || steps >= max || batch.is_full() {
                return (steps, step);
            }
            steps += self.transmit_middles(max - steps, attr, env, batch);
            if steps >= max || batch.is_full() {
                return (steps, step);
            }
        }
    }

    /// Sends the next packet of the send queue, or executes the next local operation.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn transmit_next(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<Step, Failure> {
        if self.gaps.is_some()
            && let Some(step) = self.retransmit_missing(attr, env, batch)?
        {
            return Ok(step);
        }
        if self.cursor == self.sq.tail() || self.rnr_wait().is_some() {
            return Ok(Step::Blocked);
        }
        match self.is_plain_next(attr) {
            true if self.sq.get(self.cursor).len() <= attr.mtu => {
                self.send_packet::<{ ONE_PACKET }>(attr, env, batch)
            }
            true => self.send_packet::<{ PLAIN }>(attr, env, batch),
            false => self.transmit_other(attr, env, batch),
        }
    }

    /// Whether the work request at the cursor, of which there must be one, is a SEND or WRITE
    /// without a fence on a reliable connection, and neither credits nor the state hold it back: it
    /// passes all that [`admit`](Self::admit) checks. Leaving these checks out saves 110
    /// instructions.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn is_plain_next(&self, attr: &Attributes) -> bool {
        self.sq.get(self.cursor).is_plain()
            && self.credit_limit.is_none()
            && attr.rules().sends == Sending::Everything
            && attr.kind.is_reliable()
            && !self.is_selecting()
    }

    /// Sends or executes a work request that is not plain, if it may begin.
    #[inline(never)]
    fn transmit_other(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<Step, Failure> {
        match self.admit(attr, env, batch)? {
            Some(step) => Ok(step),
            None => self.send_packet::<{ ANY }>(attr, env, batch),
        }
    }

    /// Returns `None` if the work request at the cursor may send its next packet to a connected
    /// peer. Otherwise executes it, sends it as a datagram or a frame, or returns why it waits.
    fn admit(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<Option<Step>, Failure> {
        let index = self.cursor;
        let wqe = *self.sq.get(index);
        if wqe.is_done() {
            // The cursor was rewound over a local operation, which is not executed twice.
            self.advance_cursor();
            return Ok(Some(Step::Done));
        }
        if self.recovering && wqe.opcode() == WrOpcode::RdmaRead && self.is_behind_unanswered(index)
        {
            return Ok(Some(Step::Blocked));
        }
        let may_send = match attr.rules().sends {
            Sending::Nothing => false,
            // Rule: S-02.4.
            Sending::Begun => wqe.is_begun(),
            Sending::Everything => wqe.is_begun() || self.may_begin(&wqe, index, attr),
        };
        if !may_send {
            return Ok(Some(Step::Blocked));
        }
        let step = match wqe.opcode() {
            WrOpcode::LocalInv | WrOpcode::BindMw => self.execute_local(&wqe, attr, env),
            // Rule: Q-37.
            WrOpcode::Driver1 => self.fail_at_head(index, WcStatus::LocQpOpErr, attr, env),
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
                if wqe.len() != limits::ATOMIC_BYTES =>
            {
                self.fail_at_head(index, WcStatus::LocLenErr, attr, env)
            }
            _ if attr.kind == crate::verbs::QpType::RawPacket => {
                raw::transmit(self, &wqe, attr, env)
            }
            _ if attr.kind.is_datagram() => ud::transmit(self, &wqe, attr, env, batch),
            _ => return Ok(None),
        };
        step.map(Some)
    }

    /// Whether a request that has a response of its own is queued before `index`. After a loss a
    /// READ is retransmitted only when it is the first of these: where queues on the path are
    /// short, its responses would push the response to the earlier request out again, at every
    /// retry.
    fn is_behind_unanswered(&self, index: u32) -> bool {
        let mut before = self.sq.head();
        while before != index && !self.sq.get(before).has_response() {
            before = before.wrapping_add(1);
        }
        before != index
    }

    /// Whether fence, `max_rd_atomic` and credits allow a work request to begin.
    fn may_begin(&self, wqe: &SendWqe, index: u32, attr: &Attributes) -> bool {
        let info = wqe.opcode().info();
        // §10.8.3.3: a fence waits for earlier READs and atomics.
        if wqe.flags().contains(SendFlags::FENCE) && self.rd_atomics > 0 {
            return false;
        }
        // §10.6.5.1: a local invalidate waits for all earlier requests.
        if info.waits_for_all && index != self.sq.head() {
            return false;
        }
        if info.rd_atomic && self.rd_atomics >= attr.max_rd_atomic {
            return false;
        }
        // With no credit left one message may be sent, to learn of new credits (P-13), and so may
        // one when nothing is in flight: otherwise a queue pair that was told a wrong limit would
        // never send.
        // Rule: P-13.2.
        let ahead = self.credit_limit.map_or(-1, |limit| self.messages.since(limit));
        !info.takes_receive || ahead < 1 || !self.is_waiting()
    }

    /// Invalidates a key or binds a window, without a packet.
    fn execute_local(
        &mut self,
        wqe: &SendWqe,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<Step, Failure> {
        let done = match wqe.opcode() {
            WrOpcode::LocalInv => env.keys.invalidate(attr.pd, attr.window_owner(), wqe.rkey()),
            _ => bind_window(wqe, attr, env),
        };
        match done {
            Ok(()) => self.finish_current(attr, env),
            Err(_) => self.fail_at_head(self.cursor, WcStatus::MwBindErr, attr, env),
        }
    }

    /// Fails a work request locally, once it is at the head: those before it may have been
    /// executed, and complete first.
    fn fail_at_head(
        &mut self,
        index: u32,
        status: WcStatus,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<Step, Failure> {
        if index != self.sq.head() {
            return Ok(Step::Blocked);
        }
        Err(self.fail_request(index, status, attr, env))
    }

    /// Sends the next packet of a request to a connected peer. `KNOWN` is what the caller knows of
    /// the request, so that the compiler leaves out what it does not need.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn send_packet<const KNOWN: u8>(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<Step, Failure> {
        let (is_plain, is_one) = (KNOWN != ANY, KNOWN == ONE_PACKET);
        let (index, k) = (self.cursor, if is_one { 0 } else { self.packet });
        let wqe = self.sq.get(index);
        let psns = match KNOWN {
            ONE_PACKET => 1,
            PLAIN => packets(wqe.len(), attr.mtu),
            _ => wqe.psns(attr.mtu),
        };
        let (info, is_begun) = (wqe.info(), wqe.is_begun());
        let psn = if is_begun { wqe.psn().plus(k) } else { self.next };
        // READ responses do not fill the responder's buffers: their PSNs do not count.
        let distance = psn.since(self.una).unsigned_abs();
        let unacknowledged = distance.saturating_sub(self.read_psns);
        let too_far = !is_begun && distance + psns > Psn::HALF;
        let reliable = is_plain || attr.kind.is_reliable();
        // READ responses fill this side's receive buffer: no more are requested than a window ahead
        // of those that are still to come.
        let window = self.window(attr);
        let overruns = !is_plain && info.opcode == WrOpcode::RdmaRead && distance >= window;
        if reliable && (unacknowledged >= window || too_far || overruns) {
            return Ok(Step::Blocked);
        }
        let sends_data = is_plain || info.local == LocalData::Gather;
        let position = position(k, if sends_data { psns } else { 1 });
        let ends = !sends_data || k + 1 == psns;
        let len = match sends_data {
            true if is_one => wqe.len(),
            true => payload_len(wqe.len(), attr.mtu, k),
            false => 0,
        };
        let (cost, to) = (peer_window::cost(len), attr.path.destination);
        let is_selecting = !is_plain && self.is_selecting();
        if reliable
            && !is_selecting
            && !env.peer_windows.admits(&mut self.credit, to, cost, attr.slot, &mut env.active)
        {
            return Ok(Step::Blocked);
        }
        let ack_req = ends
            || is_selecting
            || completes_half(unacknowledged + 1, window)
            || env.peer_windows.is_filled_by(&self.credit, cost);
        let opcode = attr.opcode(request_opcode(info.opcode, position));
        let bth = BthRepr {
            // Rule: T-13.
            solicited: ends && wqe.flags().contains(SendFlags::SOLICITED) && info.takes_receive,
            ack_req: reliable && ack_req,
            pkey: attr.pkey,
            pad: pad_for(len),
            ..BthRepr::new(opcode, attr.dest, psn)
        };
        let mut draft = batch.draft();
        draft.put(&bth.to_bytes());
        put_headers(&mut draft, wqe, opcode, k, attr);
        let offset = u64::from(k) * u64::from(attr.mtu);
        let source = self.sq.source_of(wqe, index);
        // Until a request is acknowledged its memory is the NIC's. The end of a message is copied
        // here: the bytes that a program may poll are stored behind all others.
        draft.allow_reference(reliable && !ends);
        let filled = gather(source, offset, len as usize, &mut draft, attr.pd, env);
        if filled.is_ok() {
            draft.finish();
        } else {
            drop(draft);
            // Rule: Q-09.
            return self.fail_at_head(index, WcStatus::LocProtErr, attr, env);
        }
        env.count(Counter::Sent);
        if is_selecting {
            env.peer_windows.resent(&mut self.credit, cost);
        } else {
            env.peer_windows.sent(&mut self.credit, cost);
        }
        if !is_begun {
            self.begin(info, psns);
        }
        let end = psn.plus(if sends_data { 1 } else { psns - k });
        if end.since(self.sent) > 0 {
            self.sent = end;
        }
        self.packet_sent(psn, ends, attr, env)?;
        Ok(Step::Done)
    }

    /// Assigns PSNs to a work request (P-01).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin(&mut self, info: &WrInfo, psns: u32) {
        self.sq.get_mut(self.cursor).begin(self.next);
        // Rule: P-01.1.
        self.next = self.next.plus(psns);
        self.messages = self.messages.plus(1);
        self.rd_atomics += u8::from(info.rd_atomic);
        if info.opcode == WrOpcode::RdmaRead {
            self.read_psns += psns - 1;
        }
        if !info.takes_receive {
            // It takes no credit, but counts as a message (P-13).
            self.credit_limit = self.credit_limit.map(|limit| limit.plus(1));
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn packet_sent(
        &mut self,
        psn: Psn,
        ends: bool,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        self.packet += 1;
        let reliable = attr.kind.is_reliable();
        if ends {
            if !reliable {
                self.sq.get_mut(self.cursor).finish();
                self.una = psn.plus(1);
            }
            self.advance_cursor();
        }
        if reliable {
            self.start_rto(attr, env);
            Ok(())
        } else {
            self.retire(attr, env)
        }
    }
}

fn bind_window(wqe: &SendWqe, attr: &Attributes, env: &mut Env) -> Result<(), Refusal> {
    let (window, new_key, bind) = wqe.mw_bind();
    // The upper 24 bits of a window's key are its index, which never changes. The lower 8 bits are
    // the consumer's: as given for type 2, counted by the verb for type 1.
    let kind = env.keys.window_kind(window).ok_or(Refusal::Key)?;
    let new_low = new_key.get().to_le_bytes()[0];
    let (mr, start, len, access) = (bind.mr, bind.addr, bind.length, bind.access);
    let bind = Bind { window, new_low, mr, start, len, access, kind };
    env.keys.bind(attr.pd, attr.window_owner(), bind)
}

/// Whether a packet is the last of half a window.
#[inline]
pub(super) fn completes_half(unacknowledged: u32, window: u32) -> bool {
    let half = (window / 2).max(1);
    // Mostly there is less in flight, and no division is needed.
    unacknowledged >= half && unacknowledged.is_multiple_of(half)
}

/// Number of payload bytes in packet `k` of a message of `len` bytes.
fn payload_len(len: u32, mtu: u32, k: u32) -> u32 {
    debug_assert!(k < packets(len, mtu));
    (len - k * mtu).min(mtu)
}
