//! HPCC: a window from the telemetry of switches.
//!
//! Each switch tells, for each packet, when its port sent it, how many bytes it had sent and how
//! many waited. The receiver echoes that in its ACK. Only simulations have this telemetry here: the
//! caller gives it with the ACK ([`Engine::handle_packet_with_telemetry`]).
//!
//! [`Engine::handle_packet_with_telemetry`]: crate::engine::Engine::handle_packet_with_telemetry

use core::time::Duration;

use super::{AckSample, Allowance, Controller, FlowInfo, Hop, State, period, scale};
use crate::time::Instant;

/// Parameters of HPCC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hpcc {
    /// η, the utilization that is aimed at, in 1024ths: 973 is 0.95.
    pub utilization: u32,
    /// Additive steps before a multiplicative one.
    pub max_stage: u32,
    /// T, the round-trip time of the path without queues.
    pub base_rtt: Duration,
    /// Additive increase of the rate, in bit/s; `None`: a 2500th of the line rate, 40 Mb/s at 100
    /// Gb/s.
    pub ai_rate: Option<u64>,
    /// Minimum rate, in bit/s; `None`: a thousandth of the line rate.
    pub min_rate: Option<u64>,
}

impl Default for Hpcc {
    fn default() -> Self {
        Self {
            utilization: 973,
            max_stage: 5,
            base_rtt: Duration::from_micros(13),
            ai_rate: None,
            min_rate: None,
        }
    }
}

/// Maximum number of hops that are looked at; telemetry of further ones is ignored.
pub(crate) const HOPS_MAX: usize = 8;

/// Full utilization. Windows are in 65536ths of a byte.
const ONE: u64 = 1 << 20;
const BYTE: u64 = 1 << 16;

/// Reaction point of one queue pair.
#[derive(Clone, Debug)]
pub(super) struct ReactionPoint {
    line: u64,
    /// T, in nanoseconds.
    base_rtt: u64,
    /// η, of [`ONE`].
    aim: u64,
    max_stage: u32,
    increment: u64,
    min: u64,
    max: u64,
    window: u64,
    /// Window from which the next one is computed.
    reference: u64,
    stage: u32,
    /// Smoothed utilization, of [`ONE`].
    utilization: u64,
    hops: [Hop; HOPS_MAX],
    known: usize,
    /// Bytes that are to be acknowledged before the reference changes again.
    left: u64,
    cuts: u64,
}

/// Window of a rate, in 65536ths of a byte.
fn window_of(rate: u64, rtt: u64) -> u64 {
    scale(rate, rtt * (BYTE / 8), 1_000_000_000)
}

impl ReactionPoint {
    pub(super) fn new(parameters: &Hpcc, info: &FlowInfo) -> Self {
        let line = info.line_rate.max(1);
        let base_rtt = period(parameters.base_rtt);
        let max = window_of(line, base_rtt).max(1);
        Self {
            line,
            base_rtt,
            aim: u64::from(parameters.utilization.clamp(1, 1024)) * (ONE / 1024),
            max_stage: parameters.max_stage,
            increment: window_of(parameters.ai_rate.unwrap_or(line / 2500), base_rtt),
            min: window_of(parameters.min_rate.unwrap_or(line / 1000), base_rtt).clamp(1, max),
            max,
            window: max,
            reference: max,
            stage: 0,
            utilization: 0,
            hops: [Hop::default(); HOPS_MAX],
            known: 0,
            left: 0,
            cuts: 0,
        }
    }

    /// Takes the telemetry of an ACK; returns whether utilization is known.
    fn measure(&mut self, hops: &[Hop]) -> bool {
        let count = hops.len().min(HOPS_MAX);
        let is_same_path = self.known == count && count > 0;
        let (mut most, mut weight) = (0, 0);
        for (new, old) in hops.iter().zip(&mut self.hops) {
            let elapsed = new.time.as_nanos().saturating_sub(old.time.as_nanos());
            if is_same_path && elapsed > 0 {
                let sent = new.sent.wrapping_sub(old.sent);
                let queue = new.queue.min(old.queue);
                let share = |bytes: u64, ns: u64| {
                    let capacity = u128::from(new.rate.max(1)) * u128::from(ns);
                    let bits = u128::from(bytes) * 8 * 1_000_000_000 * u128::from(ONE);
                    u64::try_from(bits / capacity).unwrap_or(u64::MAX)
                };
                let used = share(sent, elapsed).saturating_add(share(queue, self.base_rtt));
                if used > most {
                    (most, weight) = (used, elapsed.min(self.base_rtt));
                }
            }
            *old = *new;
        }
        self.known = count;
        if weight == 0 {
            return false;
        }
        let most = most.min(ONE << 20);
        let rest = scale(self.utilization, self.base_rtt - weight, self.base_rtt);
        self.utilization = rest + scale(most, weight, self.base_rtt);
        true
    }
}

impl Controller for ReactionPoint {
    fn on_ack(&mut self, _now: Instant, ack: &AckSample<'_>) {
        self.left = self.left.saturating_sub(ack.bytes.into());
        if !self.measure(ack.telemetry) {
            return;
        }
        let by_utilization = self.utilization >= self.aim || self.stage >= self.max_stage;
        let (window, stage) = if by_utilization {
            (scale(self.reference, self.aim, self.utilization.max(1)), 0)
        } else {
            (self.reference, self.stage + 1)
        };
        let window = window.saturating_add(self.increment).clamp(self.min, self.max);
        self.cuts += u64::from(window < self.window);
        self.window = window;
        if self.left == 0 {
            (self.reference, self.stage) = (window, stage);
            self.left = ack.in_flight;
        }
    }

    fn advance(&mut self, _now: Instant) -> Allowance {
        let rate = scale(self.window, 8_000_000_000, self.base_rtt * BYTE);
        Allowance { rate: rate.clamp(1, self.line), window: self.window.div_ceil(BYTE) }
    }

    fn state(&self) -> State {
        let rate = scale(self.window, 8_000_000_000, self.base_rtt * BYTE);
        State { rate: rate.min(self.line), cuts: self.cuts, ..State::default() }
    }
}
