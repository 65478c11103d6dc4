//! Congestion control of a queue pair, and data that is held back: by its pacer, or because its
//! class is paused.
//!
//! Requests and READ responses are data, and share one pacer. ACKs, NAKs, responses to atomics and
//! CNPs are control packets, which pass. But no response passes the READ responses before it.

use super::super::classes::TransmitClasses;
use super::super::config::LINE_RATE;
use super::super::congestion::{Flow, FlowInfo, FlowSetup, Loss, State};
use super::super::env::Env;
use super::super::{Counter, Engine};
use super::tx::Step;
use super::{Failure, Qp};
use crate::time::Instant;
use crate::verbs::QpHandle;
use crate::wire::batch::Batch;
use crate::wire::{Gid, Packet, Psn, Qpn};

/// ECN field of a packet that a switch marked.
pub(super) const CONGESTION_EXPERIENCED: u8 = 3;

/// Bytes on the wire of a packet of one MTU from its BTH to its ICRC, without the payload: with
/// RETH and immediate data.
const HEADERS: u32 = 12 + 16 + 4 + 4;

/// Bytes on the wire outside of these: preamble and gap, Ethernet header and FCS, UDP header.
const FRAME: u32 = 20 + 14 + 4 + 8;

/// Counters that tell of losses, before an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    naks: u64,
    timeouts: u64,
    rnrs: u64,
}

impl Evidence {
    pub(super) fn new(env: &Env) -> Self {
        let count = |counter| env.counters.get(counter);
        let naks = [Counter::SequenceReceived, Counter::ImpliedNak, Counter::SackReceived];
        let timeouts = [Counter::Timeout, Counter::EarlyTimeout];
        Self {
            naks: naks.map(count).iter().sum(),
            timeouts: timeouts.map(count).iter().sum(),
            rnrs: count(Counter::RnrReceived),
        }
    }

    /// Losses between this and a later count.
    fn losses(self, now: Self) -> impl Iterator<Item = Loss> {
        let losses = [
            (now.naks > self.naks, Loss::Nak),
            (now.timeouts > self.timeouts, Loss::Timeout),
            (now.rnrs > self.rnrs, Loss::Rnr),
        ];
        losses.into_iter().filter_map(|(is_new, loss)| is_new.then_some(loss))
    }
}

/// Bytes of a packet on the wire beyond those from its BTH to its ICRC.
fn overhead(peer: Gid) -> u32 {
    FRAME + if peer.to_ipv4().is_some() { 20 } else { 40 }
}

impl Qp {
    /// Whether a response may be sent while data is held back, or is not.
    #[inline]
    pub(super) fn may_respond(&mut self, held: bool) -> bool {
        let responses = self.rx.responses();
        responses.is_pending() && !(held && responses.is_data_next())
    }

    /// Whether there may be data to send.
    fn has_data(&mut self) -> bool {
        self.tx.has_work() || self.rx.responses().is_data_next()
    }

    fn is_paused(&self, env: &Env) -> bool {
        !env.classes.contains(TransmitClasses::priority(self.attr.path.sl))
    }

    /// Whether data must wait.
    pub(super) fn is_data_held(&mut self, env: &mut Env) -> bool {
        if self.is_paused(env) {
            return true;
        }
        if self.cc.is_none() {
            if !env.config.paces_from_start() || !self.has_data() {
                return false;
            }
            self.start_flow(env);
        }
        let now = env.now;
        self.advance_flow(env);
        self.cc.as_ref().is_some_and(|flow| !flow.admits(now))
    }

    /// Whether it has nothing to send before its pacer lets it.
    pub(super) fn waits_for_pacer(&mut self, env: &Env) -> bool {
        let Some(flow) = &self.cc else { return false };
        !flow.admits(env.now) && !self.may_respond(true)
    }

    /// Applies the timers of congestion control.
    fn advance_flow(&mut self, env: &mut Env) {
        let Some(flow) = &mut self.cc else { return };
        let change = flow.advance(env.now);
        for _ in 0..change.cuts {
            env.count(Counter::RateCut);
        }
        if change.window {
            self.limit_window(env);
        }
    }

    /// Waits for what holds data back, if there is any; frees the flow if it is not needed.
    pub(super) fn hold_data(&mut self, env: &mut Env) {
        let slot = self.attr.slot;
        if self.is_paused(env) {
            if self.has_data() && !core::mem::replace(&mut self.held, true) {
                env.held.push(self.attr.path.sl, slot);
            }
            return;
        }
        let has_data = self.has_data();
        let Some(flow) = &mut self.cc else { return };
        if has_data && !flow.admits(env.now) {
            if flow.wait(env.now, slot, &mut env.pacing) {
                env.counters.add(Counter::PacedWait);
            }
        } else if flow.is_at_rest() && !env.config.paces_from_start() {
            self.cc = None;
        }
    }

    /// Whether it is among the queue pairs with data of a paused class.
    pub(in crate::engine) fn is_held(&self) -> bool {
        self.held
    }

    /// Takes the end of a pause: data of its class may pass.
    pub(in crate::engine) fn release_data(&mut self, env: &mut Env) {
        self.held = false;
        self.schedule(env);
    }

    /// The pacer may let it send now: its wake-up was removed.
    pub(in crate::engine) fn wake_paced(&mut self, env: &mut Env) {
        if let Some(flow) = &mut self.cc {
            flow.woken();
        }
        self.schedule(env);
    }

    fn start_flow(&mut self, env: &Env) {
        if !self.attr.kind.is_connected() {
            return;
        }
        let overhead = overhead(self.attr.path.destination);
        let packet = self.attr.mtu + HEADERS + overhead;
        let info = FlowInfo { line_rate: env.config.line_rate.unwrap_or(LINE_RATE), packet };
        let setup = FlowSetup { info, burst: env.config.pacing_burst, overhead };
        self.cc = Flow::new(&env.config.congestion, env.now, &setup).map(Box::new);
        self.limit_window(env);
    }

    /// Forgets congestion control: the queue pair stops sending, or is reset.
    pub(super) fn end_flow(&mut self, env: &mut Env) {
        if let Some(mut flow) = self.cc.take() {
            flow.stop_waiting(&mut env.pacing);
            self.limit_window(env);
        }
    }

    /// Sets the window to what congestion control allows.
    pub(super) fn limit_window(&mut self, env: &Env) {
        let window = self.cc.as_ref().map_or(u64::MAX, |flow| flow.window());
        self.attr.limit_window(window, &env.config);
    }

    /// Sends the next response.
    #[inline]
    pub(super) fn transmit_response(&mut self, env: &mut Env, batch: &mut Batch) {
        let before = batch.len();
        let is_data = self.cc.is_some() && self.rx.responses().is_data_next();
        let sent = self.rx.transmit_response(&self.attr, env, batch);
        self.check(sent, env);
        if is_data
            && batch.len() > before
            && let Some(flow) = &mut self.cc
        {
            flow.sent(env.now, len(batch.last()));
        }
    }

    /// Sends request packets or executes local operations: at most `max` of both. Returns how many
    /// steps that took, and the last. With congestion control it is one, which is paced.
    #[inline]
    pub(super) fn transmit_requests(
        &mut self,
        max: usize,
        env: &mut Env,
        batch: &mut Batch,
    ) -> (usize, Result<Step, Failure>) {
        if self.cc.is_none() {
            return self.tx.transmit_run(max, &self.attr, env, batch);
        }
        let (before, end) = (batch.len(), self.tx.sent_end());
        let step = self.tx.transmit_run(1, &self.attr, env, batch);
        if batch.len() > before
            && let Some(flow) = &mut self.cc
        {
            let bytes = len(batch.last());
            flow.sent(env.now, bytes);
            let psns = u32::try_from(self.tx.sent_end().since(end)).unwrap_or(0);
            if let Ok(packet) = Packet::parse(packet_of(batch.last())) {
                let bth = packet.bth();
                flow.sent_request(env.now, (bth.psn(), psns, bytes), bth.ack_req());
            }
        }
        step
    }

    /// Takes a CNP.
    pub(super) fn note_cnp(&mut self, env: &mut Env) {
        if self.cc.is_none() {
            self.start_flow(env);
        }
        if let Some(flow) = &mut self.cc {
            flow.on_cnp(env.now);
        }
        self.apply_change(env);
    }

    /// Takes what a response or a timeout told: PSNs that were acknowledged since `una`, losses.
    pub(super) fn note_response(&mut self, una: Psn, before: Evidence, ecn: u8, env: &mut Env) {
        let end = self.tx.una();
        let psns = u32::try_from(end.since(una)).unwrap_or(0);
        let now = env.now;
        let Some(flow) = &mut self.cc else { return };
        let mut is_told = false;
        if psns > 0 {
            let is_marked = ecn == CONGESTION_EXPERIENCED;
            flow.acknowledged(now, (end, psns), is_marked, &env.telemetry);
            is_told = true;
        }
        for loss in before.losses(Evidence::new(env)) {
            flow.on_loss(now, loss);
            is_told = true;
        }
        if is_told {
            self.apply_change(env);
        }
    }

    /// Applies what an event changed. A queue pair that waits for its pacer waits for another time.
    fn apply_change(&mut self, env: &mut Env) {
        self.advance_flow(env);
        if let Some(flow) = &mut self.cc {
            flow.move_wakeup(env.now, self.attr.slot, &mut env.pacing);
        }
    }

    /// State of its congestion control; at rest that of the line rate.
    pub(in crate::engine) fn rate(&self, env: &Env) -> State {
        let line_rate = env.config.line_rate.unwrap_or(LINE_RATE);
        let rest = State { rate: line_rate, ..State::default() };
        self.cc.as_ref().map_or(rest, |flow| flow.state())
    }
}

/// Number of bytes of a packet from its BTH to its ICRC.
fn len(packet: &[u8]) -> u32 {
    u32::try_from(packet.len()).unwrap_or(0)
}

/// Returns a packet of a batch without the room for its ICRC.
fn packet_of(bytes: &[u8]) -> &[u8] {
    bytes.get(..bytes.len().saturating_sub(crate::wire::ICRC_ROOM)).unwrap_or_default()
}

/// Number of queue pairs before its turn at which a paced one is prefetched.
const PREFETCH_AHEAD: usize = 4;

impl Engine {
    /// Wakes the next queue pair whose pacer lets it send by `now`: one at a time, so that it sends
    /// while its state is in a cache.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::engine) fn wake_next_paced(&mut self, now: Instant) {
        if !self.env.pacing.is_empty() {
            self.wake_paced_by(now);
        }
    }

    #[inline(never)]
    fn wake_paced_by(&mut self, now: Instant) {
        if let Some(slot) = self.env.pacing.pop_due(now)
            && let Some((qp, env)) = self.split(slot)
        {
            qp.wake_paced(env);
        }
        // What a queue pair leads to is prefetched when the queue pair itself is in a cache.
        let mut upcoming = self.env.pacing.upcoming().take(PREFETCH_AHEAD);
        if let Some(next) = upcoming.next().and_then(|next| self.qps.at(next)) {
            next.prefetch_paced();
            next.prefetch_send();
        }
        if let Some(later) = upcoming.last() {
            self.qps.prefetch(later, Qp::HOT);
        }
    }

    /// Returns rate, α and cuts of a queue pair. One that congestion control does not slow down has
    /// the rate of the line.
    pub fn rate(&self, handle: QpHandle) -> Option<State> {
        Some(self.qps.get(handle.0)?.rate(&self.env))
    }

    /// Returns rate, α and cuts of the queue pairs that congestion control slows down.
    pub fn controlled_rates(&self) -> impl Iterator<Item = (Qpn, State)> {
        let controlled = self.qps.iter().filter(|qp| qp.cc.is_some());
        controlled.map(|qp| (qp.attr().qpn, qp.rate(&self.env)))
    }

    /// Sets the rate of the line, in bit/s, for queue pairs that get their controllers from now on.
    pub fn set_line_rate(&mut self, rate: u64) {
        self.env.config.line_rate = Some(rate);
    }
}
