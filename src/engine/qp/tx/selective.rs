//! Selective repeat: single packets that are missing are retransmitted.
//!
//! The responder reports what it holds behind a gap by SACKs; READ and atomic responses that come
//! show which before them are missing. Each missing packet is retransmitted once, and again only
//! when a packet that was sent after that has come, or after a timeout. The responses of a READ
//! that are missing are asked for by a SACK in the other direction.

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::super::recovery::{FEW_PACKETS, Recovery, ReorderThreshold};
use super::super::super::reorder::{Bitmap, Reorder, SPAN};
use super::super::super::send_queue::SendWqe;
use super::super::Failure;
use super::super::attr::Attributes;
use super::super::responses;
use super::response::{ResponseOutcome, ignored};
use super::transmit::ANY;
use super::{Step, Tx};
use crate::time::Instant;
use crate::verbs::{Sending, WrOpcode};
use crate::wire::aeth::{Answer, Credits, NakCode};
use crate::wire::batch::Batch;
use crate::wire::{Msn, Packet, PayloadRule, Psn};
use core::time::Duration;

/// Holes between the oldest packet in flight and the newest, as far as SACKs tell of them.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Oldest PSN in flight, for which the first bits stand.
    una: Psn,
    /// Time since which it is.
    pub(super) since: Instant,
    /// Requests that the responder holds.
    sacked: Bitmap,
    /// PSNs that were retransmitted.
    tried: Bitmap,
    /// End of what had been sent then, by PSN.
    marks: [Psn; SPAN as usize],
    /// End of what the responder has executed, as far as it is known.
    executed: Psn,
    /// End of what the responder has received.
    received: Psn,
    /// End of what counts as lost, whatever the threshold, after a timeout.
    lost: Psn,
    /// End of what was sent at the last timeout. It counts as lost when the packet that was
    /// retransmitted alone is acknowledged.
    timed_out: Option<Psn>,
    /// Packet that is to be retransmitted alone, after a timeout.
    probing: bool,
    /// Whether a missing packet may be due.
    pending: bool,
    /// Whether a packet is sent because it is missing.
    selecting: bool,
    /// Timeouts since the last progress.
    timeouts: u32,
    /// Time at which the standard's timeout expires.
    timeout_at: Instant,
    /// Responses that came before others.
    pub(super) responses: Option<Box<Reorder>>,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Gaps {
    pub(super) fn new(una: Psn, now: Instant) -> Box<Self> {
        Box::new(Self {
            una,
            since: now,
            sacked: Bitmap::default(),
            tried: Bitmap::default(),
            marks: [una; SPAN as usize],
            executed: una,
            received: una,
            lost: una,
            timed_out: None,
            probing: false,
            pending: false,
            selecting: false,
            timeouts: 0,
            timeout_at: NEVER,
            responses: None,
        })
    }

    fn at(&self, psn: Psn) -> Option<u32> {
        u32::try_from(psn.since(self.una)).ok().filter(|at| *at < SPAN)
    }

    /// Whether the response with this PSN is held.
    pub(super) fn holds(&self, psn: Psn) -> bool {
        self.responses.as_ref().is_some_and(|held| held.holds(psn))
    }

    /// Whether the responder holds a request. The oldest in flight is missing, whatever was said of
    /// it.
    fn is_held(&self, psn: Psn) -> bool {
        psn != self.una && self.at(psn).is_none_or(|at| self.sacked.has(at))
    }

    /// Moves the oldest PSN in flight.
    pub(super) fn advance(&mut self, una: Psn, now: Instant) {
        let Ok(count @ 1..) = u32::try_from(una.since(self.una)) else { return };
        self.sacked.advance(count);
        self.tried.advance(count);
        (self.una, self.since, self.timeouts, self.probing) = (una, now, 0, false);
        for end in [&mut self.executed, &mut self.received, &mut self.lost] {
            if end.since(una) < 0 {
                *end = una;
            }
        }
        if let Some(end) = self.timed_out.take() {
            // What came after the packet that was retransmitted alone would have been acknowledged
            // with it.
            self.note_lost(end.plus(Psn::HALF * 2 - 1));
        }
    }

    /// Notes that the responder has executed everything before `psn`.
    pub(super) fn note_executed(&mut self, psn: Psn) {
        if psn.since(self.executed) > 0 {
            self.executed = psn;
        }
        if psn.since(self.received) > 0 {
            self.received = psn;
        }
        self.pending = true;
    }

    /// Notes that everything through `psn` is lost unless it was received.
    pub(super) fn note_lost(&mut self, psn: Psn) {
        if psn.plus(1).since(self.lost) > 0 {
            self.lost = psn.plus(1);
        }
        self.pending = true;
    }

    /// End of what the responder has executed, as far as it is known.
    pub(super) fn executed(&self) -> Psn {
        self.executed
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the length")]
    fn mark(&mut self, psn: Psn, sent: Psn) {
        if let Some(at) = self.at(psn) {
            self.tried.set(at);
            self.marks[(psn.get() % SPAN) as usize] = sent;
        }
    }

    /// Whether a missing packet counts as lost and is to be retransmitted now.
    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the length")]
    fn is_due(&self, psn: Psn, threshold: ReorderThreshold) -> bool {
        let Some(at) = self.at(psn) else { return false };
        let behind = |first: Psn| self.received.since(first) > threshold.packets.cast_signed() + 1;
        if self.tried.has(at) {
            // A packet that was sent later has come.
            let mark = self.marks[(psn.get() % SPAN) as usize];
            return self.received.since(mark) > threshold.packets.cast_signed();
        }
        psn.since(self.lost) < 0 || behind(psn)
    }
}

/// A packet that is missing.
#[derive(Clone, Copy, Debug)]
struct Missing {
    index: u32,
    psn: Psn,
    /// Number of its PSNs: more than one for a READ.
    count: u32,
}

impl Tx {
    /// Whether a packet is being sent because it is missing.
    pub(super) fn is_selecting(&self) -> bool {
        self.gaps.as_ref().is_some_and(|gaps| gaps.selecting)
    }

    /// Whether a missing packet may be due.
    pub(super) fn has_missing(&self) -> bool {
        self.gaps.as_ref().is_some_and(|gaps| gaps.pending)
    }

    /// Frees what it holds.
    pub(super) fn close_gaps(&mut self, env: &mut Env) {
        if let Some(mut gaps) = self.gaps.take() {
            env.reorder.close(&mut gaps.responses);
        }
    }

    /// Forgets what the peer reported: everything in flight is sent once more.
    pub(super) fn forget_reports(&mut self) {
        let una = self.una;
        if let Some(gaps) = &mut self.gaps {
            (gaps.sacked, gaps.tried) = (Bitmap::default(), Bitmap::default());
            (gaps.received, gaps.lost, gaps.timed_out) = (gaps.executed, una, None);
            (gaps.probing, gaps.pending) = (false, false);
        }
    }

    /// Frees the state of recovery when nothing is missing.
    pub(super) fn end_recovery(&mut self, env: &mut Env) {
        let Some(gaps) = &mut self.gaps else { return };
        gaps.advance(self.una, env.now);
        let is_done = gaps.responses.is_none()
            && gaps.timed_out.is_none()
            && !gaps.probing
            && [gaps.executed, gaps.received, gaps.lost].iter().all(|end| *end == gaps.una);
        if is_done {
            self.close_gaps(env);
        }
    }

    /// Whether the request at the head of the queue waits for a response of its own.
    pub(super) fn head_lacks_response(&self) -> bool {
        if self.sq.is_empty() {
            return true;
        }
        let wqe = self.sq.get(self.sq.head());
        !wqe.is_begun() || wqe.has_response() && !wqe.is_done()
    }

    /// Handles a SACK.
    pub(super) fn handle_sack(
        &mut self,
        packet: &Packet<'_>,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<ResponseOutcome, Failure> {
        let (Some(aeth), Some(sack)) = (packet.aeth(), packet.sack_eth()) else {
            return Ok(ignored(env));
        };
        let psn = packet.bth().psn();
        let bitmap = Bitmap::from(packet.payload());
        let is_valid = aeth.syndrome().answer() == Answer::Nak(NakCode::PsnSequenceError)
            && PayloadRule::Bitmap.allows(packet.payload_len(), 0)
            && packet.payload_len() == sack.words().get() as usize * 8;
        // What is held lies behind the gap, within the window, and was sent.
        let last = bitmap.last().map(|last| sack.base().plus(last));
        let ahead = sack.base().since(psn);
        let Some(last) = last.filter(|last| {
            is_valid && ahead > 0 && ahead < SPAN.cast_signed() && last.since(self.sent) < 0
        }) else {
            return Ok(ignored(env));
        };
        if psn.since(self.una) < 0 || self.rnr_wait().is_some() {
            env.count(Counter::StaleResponse);
            return Ok(ResponseOutcome::MaySend);
        }
        env.count(Counter::SackReceived);
        self.acknowledge_before(psn, attr, env)?;
        let gaps = self.open_gaps(attr, env);
        gaps.note_executed(psn);
        for at in bitmap.iter() {
            if let Some(at) = gaps.at(sack.base().plus(at)) {
                gaps.sacked.set(at);
            }
        }
        if last.plus(1).since(gaps.received) > 0 {
            gaps.received = last.plus(1);
        }
        gaps.note_lost(psn);
        self.learn_msn(Some(aeth.msn()));
        self.take_early(ResponseOutcome::MaySend, attr, env)
    }

    /// Retransmits the next packet that is missing; `None` if none is due.
    pub(super) fn retransmit_missing(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<Option<Step>, Failure> {
        let may_send = attr.is_selective() && self.rnr_wait().is_none();
        if !self.has_missing() || !may_send || attr.rules().sends == Sending::Nothing {
            return Ok(None);
        }
        let Some(missing) = self.next_missing(attr, env) else {
            if let Some(gaps) = &mut self.gaps {
                gaps.pending = false;
            }
            return Ok(None);
        };
        let wqe = *self.sq.get(missing.index);
        let is_executed = self.gaps.as_ref().is_some_and(|gaps| wqe.psn().since(gaps.executed) < 0);
        let step = if wqe.opcode() == WrOpcode::RdmaRead && is_executed {
            self.sack_responses(missing, attr, env, batch);
            Step::Done
        } else {
            self.resend(&wqe, missing, attr, env, batch)?
        };
        if step == Step::Blocked {
            return Ok(Some(step));
        }
        env.count(Counter::Retransmitted);
        let sent = self.sent;
        if let Some(gaps) = &mut self.gaps {
            // How many responses were on their way is unknown: at most half a window.
            let is_response = missing.psn.since(gaps.executed) < 0;
            let near = gaps.received.plus(SPAN / 2);
            let mark = if is_response && sent.since(near) > 0 { near } else { sent };
            gaps.mark(missing.psn, mark);
            gaps.probing = false;
        }
        if missing.psn == self.una {
            self.rearm_early_timeout(attr, env);
        }
        Ok(Some(Step::Done))
    }

    /// Sends one packet of a request once more.
    fn resend(
        &mut self,
        wqe: &SendWqe,
        missing: Missing,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<Step, Failure> {
        let cursor = (self.cursor, self.packet);
        let packet = missing.psn.since(wqe.psn()).unsigned_abs();
        (self.cursor, self.packet) = (missing.index, packet);
        self.set_selecting(true);
        let step = self.send_packet::<{ ANY }>(attr, env, batch)?;
        self.set_selecting(false);
        (self.cursor, self.packet) = cursor;
        Ok(step)
    }

    fn set_selecting(&mut self, selecting: bool) {
        if let Some(gaps) = &mut self.gaps {
            gaps.selecting = selecting;
        }
    }

    /// Asks for the responses of a READ that are missing, by a SACK of the responses behind them.
    fn sack_responses(
        &self,
        missing: Missing,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) {
        let end = missing.psn.plus(missing.count);
        let held = self.gaps.as_ref().and_then(|gaps| gaps.responses.as_ref());
        let bitmap = held.map_or_else(Bitmap::default, |held| held.bitmap_from(end));
        let aeth = (Answer::Ack(Credits::UNLIMITED), Msn::new(0));
        responses::send_sack(missing.psn, aeth, end, bitmap, attr, env, batch);
    }

    /// Finds the first packet that is missing and due, among those that were sent.
    fn next_missing(&self, attr: &Attributes, env: &Env) -> Option<Missing> {
        let gaps = self.gaps.as_ref()?;
        let threshold = env.config.reorder;
        let mut index = self.sq.head();
        while index != self.sq.tail() {
            let wqe = self.sq.get(index);
            let (first, psns) = (wqe.psn(), wqe.psns(attr.mtu));
            let is_cursor = index == self.cursor;
            // Packets that go-back-N is about to send are not sent twice.
            if !wqe.is_begun()
                || is_cursor && wqe.has_response()
                || first.since(gaps.una) >= SPAN.cast_signed()
            {
                return None;
            }
            let sent = if is_cursor { self.packet } else { psns };
            let done = gaps.una.since(first).max(0).unsigned_abs();
            let lacks = if wqe.is_done() || psns == 0 {
                None
            } else if wqe.has_response() {
                self.missing_response(wqe, done, psns, threshold)
            } else {
                (done..sent).map(|k| (first.plus(k), 1)).find(|(psn, _)| {
                    let is_executed = psn.since(gaps.executed) < 0;
                    let is_held = gaps.is_held(*psn);
                    !is_executed
                        && !is_held
                        && (self.is_probe(*psn) || gaps.is_due(*psn, threshold))
                })
            };
            if let Some((psn, count)) = lacks {
                return Some(Missing { index, psn, count });
            }
            if is_cursor {
                return None;
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Whether a packet is the one that is retransmitted alone.
    fn is_probe(&self, psn: Psn) -> bool {
        psn == self.una && self.gaps.as_ref().is_some_and(|gaps| gaps.probing)
    }

    /// Finds the first part of a response that is missing and due: its first PSN, and how many it
    /// has.
    fn missing_response(
        &self,
        wqe: &SendWqe,
        done: u32,
        psns: u32,
        threshold: ReorderThreshold,
    ) -> Option<(Psn, u32)> {
        let gaps = self.gaps.as_ref()?;
        let first = wqe.psn();
        let is_due = |psn: Psn| self.is_probe(psn) || gaps.is_due(psn, threshold);
        if first.since(gaps.executed) >= 0 {
            // The request is missing, if anything.
            let is_held = gaps.is_held(first);
            return (!is_held && is_due(first)).then_some((first, psns));
        }
        let is_missing = |k: &u32| !gaps.holds(first.plus(*k));
        let mut from = done;
        while from < psns && gaps.at(first.plus(from)).is_some() {
            let start = (from..psns).find(is_missing)?;
            let end = (start..psns).find(|k| !is_missing(k)).unwrap_or(psns);
            // Packets after the last one that arrived may still arrive.
            let is_tail = end == psns && !self.is_probe(first.plus(start));
            let known = gaps.executed.since(first).unsigned_abs().min(psns);
            let end = if is_tail { end.min(known).max(start) } else { end };
            if end > start && is_due(first.plus(start)) {
                return Some((first.plus(start), end - start));
            }
            from = end.max(start + 1);
        }
        None
    }

    /// Restarts the timeouts of selective repeat, or stops them if nothing is in flight.
    pub(super) fn restart_early_timeout(&mut self, attr: &Attributes, env: &mut Env) {
        if !self.is_waiting() {
            return self.timer.clear();
        }
        let timeout = attr.timeout.duration();
        let timeout = timeout.map(|timeout| timeout.saturating_mul(1 << self.rto_backoff));
        let end = timeout.map_or(NEVER, |timeout| env.now.saturating_add(timeout));
        if let Some(gaps) = &mut self.gaps {
            gaps.timeout_at = end;
        }
        let early = env.now.saturating_add(self.early_timeout(env));
        self.timer.set(end.min(early), attr.slot, &mut env.timers);
    }

    /// Sets the early timeout anew, and leaves the standard's.
    fn rearm_early_timeout(&mut self, attr: &Attributes, env: &mut Env) {
        let end = self.gaps.as_ref().map_or(NEVER, |gaps| gaps.timeout_at);
        let early = env.now.saturating_add(self.early_timeout(env));
        self.timer.set(end.min(early), attr.slot, &mut env.timers);
    }

    /// Opens the state of recovery, if it is not, and brings it up to date.
    pub(super) fn open_gaps(&mut self, attr: &Attributes, env: &Env) -> &mut Gaps {
        let (una, now) = (self.una, env.now);
        let gaps = self.gaps.get_or_insert_with(|| {
            let mut gaps = Gaps::new(una, now);
            let timeout = attr.timeout.duration();
            gaps.timeout_at = timeout.map_or(NEVER, |timeout| now.saturating_add(timeout));
            gaps
        });
        gaps.advance(una, now);
        gaps
    }

    /// Timeout after which the oldest packet in flight is retransmitted alone.
    fn early_timeout(&self, env: &Env) -> Duration {
        let Recovery::SelectiveRepeat(timeouts) = env.config.recovery else { return Duration::MAX };
        let in_flight = self.next.since(self.una).unsigned_abs();
        let timeout = if in_flight < FEW_PACKETS { timeouts.low } else { timeouts.high };
        let backoff = self.gaps.as_ref().map_or(0, |gaps| gaps.timeouts).min(6);
        timeout.saturating_mul(1 << backoff)
    }

    /// Handles a timeout; returns whether it is an early one, which is no retry.
    pub(super) fn handle_early_timeout(&mut self, attr: &Attributes, env: &mut Env) -> bool {
        let (now, sent) = (env.now, self.sent);
        let (is_new, early) = (self.gaps.is_none(), self.early_timeout(env));
        let gaps = self.open_gaps(attr, env);
        if is_new && let Some(timeout) = attr.timeout.duration() {
            // The timer has run for the early timeout.
            gaps.timeout_at = now.saturating_add(timeout.saturating_sub(early));
        }
        if now >= gaps.timeout_at {
            return false;
        }
        env.count(Counter::EarlyTimeout);
        gaps.timeouts += 1;
        gaps.tried = Bitmap::default();
        (gaps.probing, gaps.pending, gaps.timed_out) = (true, true, Some(sent));
        self.rearm_early_timeout(attr, env);
        true
    }
}
