//! TIMELY: the rate follows the gradient of the round-trip time.
//!
//! It needs nothing of the network but round-trip times. Its rates have no unique fixed point:
//! which share a flow gets depends on how it started ("ECN or Delay", CoNEXT 2016).

use core::time::Duration;

use super::{AckSample, Allowance, Controller, FlowInfo, Loss, State, period, scale};
use crate::time::{Instant, nanos};

/// Parameters of TIMELY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timely {
    /// Round-trip time below which the rate always rises.
    pub low: Duration,
    /// Round-trip time above which it always falls.
    pub high: Duration,
    /// Round-trip time of the path without queues.
    pub min_rtt: Duration,
    /// Rate of a new queue pair, in bit/s; `None`: the line rate.
    pub initial_rate: Option<u64>,
    /// Additive increase, in bit/s; `None`: a thousandth of the line rate.
    pub ai_rate: Option<u64>,
    /// Weight of a new difference of round-trip times, in 1024ths.
    pub weight: u32,
    /// β, the largest share that one decrease takes, in 1024ths.
    pub beta: u32,
    /// Number of increases in a row after which each counts five times.
    pub hyper_after: u32,
    /// Minimum rate, in bit/s; `None`: a thousandth of the line rate.
    pub min_rate: Option<u64>,
}

impl Default for Timely {
    fn default() -> Self {
        Self {
            low: Duration::from_micros(50),
            high: Duration::from_micros(500),
            min_rtt: Duration::from_micros(20),
            initial_rate: None,
            ai_rate: None,
            weight: 896,
            beta: 819,
            hyper_after: 5,
            min_rate: None,
        }
    }
}

/// Number of fraction bits of the gradient.
const GRADIENT_BITS: u32 = 16;

/// Differences of round-trip times beyond a second count as one.
const DIFFERENCE_MAX: i64 = 1_000_000_000;

/// Reaction point of one queue pair.
#[derive(Clone, Debug)]
pub(super) struct ReactionPoint {
    line: u64,
    low: u64,
    high: u64,
    min_rtt: i64,
    ai: u64,
    weight: i64,
    beta: u64,
    hyper_after: u32,
    min: u64,
    rate: u64,
    previous: Option<i64>,
    /// Smoothed difference of round-trip times, in nanoseconds.
    difference: i64,
    /// Increases in a row.
    increases: u32,
    cuts: u64,
}

/// Returns a number of nanoseconds, at most 2^40.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns.min(1 << 40)).unwrap_or(0)
}

impl ReactionPoint {
    pub(super) fn new(parameters: &Timely, info: &FlowInfo) -> Self {
        let line = info.line_rate.max(1);
        Self {
            line,
            low: period(parameters.low),
            high: period(parameters.high),
            min_rtt: signed(period(parameters.min_rtt)),
            ai: parameters.ai_rate.unwrap_or(line / 1000).max(1),
            weight: i64::from(parameters.weight.min(1024)),
            beta: u64::from(parameters.beta.min(1024)),
            hyper_after: parameters.hyper_after,
            min: parameters.min_rate.unwrap_or(line / 1000).clamp(1, line),
            rate: parameters.initial_rate.unwrap_or(line).clamp(1, line),
            previous: None,
            difference: 0,
            increases: 0,
            cuts: 0,
        }
    }

    fn increase(&mut self) {
        self.increases = self.increases.saturating_add(1);
        let factor = if self.increases >= self.hyper_after { 5 } else { 1 };
        self.rate = self.rate.saturating_add(self.ai.saturating_mul(factor)).min(self.line);
    }

    /// Takes `numerator / denominator` of β of the rate away.
    fn decrease(&mut self, numerator: u64, denominator: u64) {
        let share = scale(self.beta, numerator, denominator).min(self.beta);
        self.rate = (self.rate - scale(self.rate, share, 1024)).max(self.min);
        self.increases = 0;
        self.cuts += 1;
    }

    fn take_rtt(&mut self, rtt: u64) {
        let now = signed(rtt);
        let Some(before) = self.previous.replace(now) else { return };
        let difference = (now - before).clamp(-DIFFERENCE_MAX, DIFFERENCE_MAX);
        let smoothed = (1024 - self.weight) * self.difference + self.weight * difference;
        self.difference = smoothed >> 10;
        let gradient = (self.difference << GRADIENT_BITS).div_euclid(self.min_rtt);
        if rtt < self.low {
            self.increase();
        } else if rtt > self.high {
            self.decrease(rtt - self.high, rtt);
        } else if gradient <= 0 {
            self.increase();
        } else {
            self.decrease(gradient.unsigned_abs(), 1 << GRADIENT_BITS);
        }
    }
}

impl Controller for ReactionPoint {
    fn on_ack(&mut self, _now: Instant, ack: &AckSample<'_>) {
        if let Some(rtt) = ack.rtt {
            self.take_rtt(nanos(rtt));
        }
    }

    fn on_loss(&mut self, _now: Instant, loss: Loss) {
        if loss != Loss::Rnr {
            self.decrease(1, 1);
        }
    }

    fn advance(&mut self, _now: Instant) -> Allowance {
        Allowance::rate(self.rate)
    }

    fn state(&self) -> State {
        State { rate: self.rate, cuts: self.cuts, ..State::default() }
    }
}
