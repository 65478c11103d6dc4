//! DCQCN as in its paper: "Congestion Control for Large-Scale RDMA Deployments", §5 and §3.1 of its
//! successor "ECN or Delay".
//!
//! A CNP cuts the rate by α/2 and makes the rate before it the target. Stages of a timer and of a
//! byte counter then raise the rate: halfway to the target each time, and the target itself once
//! one of them has passed `threshold` stages (additive) or both have (hyper).

use core::time::Duration;

use super::{Allowance, Controller, FlowInfo, State, increment, period, scale};
use crate::time::Instant;

/// Parameters of DCQCN as in its paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// g, the weight of a CNP in α, in 1024ths: 4 is 1/256.
    pub g: u32,
    /// α of the first cut, in 1024ths.
    pub initial_alpha: u32,
    /// Period of α without a CNP. It must be longer than the CNP interval of the peer.
    pub alpha_period: Duration,
    /// Period of the increase timer.
    pub time_reset: Duration,
    /// Bytes of a stage of the byte counter.
    pub byte_reset: u64,
    /// F, the stages of fast recovery.
    pub threshold: u32,
    /// Additive increase, in bit/s; `None`: a thousandth of the line rate, 40 Mb/s at 40 Gb/s.
    pub ai_rate: Option<u64>,
    /// Hyper increase, in bit/s; `None`: five additive ones.
    pub hai_rate: Option<u64>,
    /// Minimum rate, in bit/s; `None`: a four-hundredth of the line rate, 100 Mb/s at 40 Gb/s.
    pub min_rate: Option<u64>,
}

impl Default for Dcqcn {
    fn default() -> Self {
        Self {
            g: 4,
            initial_alpha: 1024,
            alpha_period: Duration::from_micros(55),
            time_reset: Duration::from_micros(55),
            byte_reset: 10_000_000,
            threshold: 5,
            ai_rate: None,
            hai_rate: None,
            min_rate: None,
        }
    }
}

/// Number of fraction bits of α.
const ALPHA_BITS: u32 = 32;

/// Reaction point of one queue pair.
#[derive(Clone, Debug)]
pub(super) struct ReactionPoint {
    line: u64,
    g: u64,
    initial_alpha: u64,
    alpha_period: u64,
    time_reset: u64,
    byte_reset: u64,
    threshold: u32,
    ai: u64,
    hai: u64,
    min: u64,
    cuts: u64,
    /// Rates and timers, from the first CNP until the rate is the line's again.
    limiter: Option<Limiter>,
}

/// Rate limiter that a CNP allocates.
#[derive(Clone, Debug)]
struct Limiter {
    rate: u64,
    target: u64,
    alpha: u64,
    timer_stage: u32,
    byte_stage: u32,
    bytes: u64,
    /// Times of the next decay of α and of the next stage of the timer, in nanoseconds.
    alpha_at: u64,
    increase_at: u64,
}

impl ReactionPoint {
    pub(super) fn new(parameters: &Dcqcn, info: &FlowInfo) -> Self {
        let line = info.line_rate.max(1);
        let ai = increment(parameters.ai_rate.unwrap_or(line / 1000), line);
        let of_1024 = |value: u32| u64::from(value.min(1024)) << (ALPHA_BITS - 10);
        Self {
            line,
            g: u64::from(parameters.g.min(1024)),
            initial_alpha: of_1024(parameters.initial_alpha),
            alpha_period: period(parameters.alpha_period),
            time_reset: period(parameters.time_reset),
            byte_reset: parameters.byte_reset.max(4096),
            threshold: parameters.threshold,
            ai,
            hai: parameters.hai_rate.unwrap_or_else(|| ai.saturating_mul(5)),
            min: parameters.min_rate.unwrap_or(line / 400).clamp(1, line),
            cuts: 0,
            limiter: None,
        }
    }

    /// One increase event: the counters have their new values.
    fn increase(&mut self) {
        let Some(limiter) = &mut self.limiter else { return };
        let (most, least) = (
            limiter.timer_stage.max(limiter.byte_stage),
            limiter.timer_stage.min(limiter.byte_stage),
        );
        let step = if most < self.threshold {
            0
        } else if least > self.threshold {
            self.hai.saturating_mul(u64::from(least - self.threshold))
        } else {
            self.ai
        };
        limiter.target = limiter.target.saturating_add(step).min(self.line);
        limiter.rate = (limiter.rate + limiter.target).div_ceil(2);
        if limiter.rate == self.line && limiter.target == self.line {
            self.limiter = None;
        }
    }

    /// Applies the timers that are due by `now`. α and the rate do not depend on each other between
    /// two CNPs.
    fn run_timers(&mut self, now: u64) {
        let Some(limiter) = &mut self.limiter else { return };
        if limiter.alpha_at <= now {
            let periods = (now - limiter.alpha_at) / self.alpha_period + 1;
            for _ in 0..periods {
                let decay = scale(limiter.alpha, self.g, 1024);
                if decay == 0 {
                    break;
                }
                limiter.alpha -= decay;
            }
            limiter.alpha_at += periods * self.alpha_period;
        }
        while let Some(limiter) = self.limiter.as_mut().filter(|limiter| limiter.increase_at <= now)
        {
            limiter.timer_stage = limiter.timer_stage.saturating_add(1);
            limiter.increase_at += self.time_reset;
            self.increase();
        }
    }
}

impl Controller for ReactionPoint {
    fn on_sent(&mut self, now: Instant, bytes: u32) {
        self.run_timers(now.as_nanos());
        let Some(limiter) = &mut self.limiter else { return };
        limiter.bytes += u64::from(bytes);
        while let Some(limiter) =
            self.limiter.as_mut().filter(|limiter| limiter.bytes >= self.byte_reset)
        {
            limiter.bytes -= self.byte_reset;
            limiter.byte_stage = limiter.byte_stage.saturating_add(1);
            self.increase();
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        let now = now.as_nanos();
        self.run_timers(now);
        self.cuts += 1;
        let (line, alpha) = (self.line, self.initial_alpha);
        let limiter = self.limiter.get_or_insert(Limiter {
            rate: line,
            target: line,
            alpha,
            timer_stage: 0,
            byte_stage: 0,
            bytes: 0,
            alpha_at: 0,
            increase_at: 0,
        });
        limiter.target = limiter.rate;
        let cut = scale(limiter.rate, limiter.alpha, 2 << ALPHA_BITS);
        limiter.rate = (limiter.rate - cut).max(self.min);
        let one = 1 << ALPHA_BITS;
        limiter.alpha = limiter.alpha - scale(limiter.alpha, self.g, 1024) + one / 1024 * self.g;
        (limiter.timer_stage, limiter.byte_stage, limiter.bytes) = (0, 0, 0);
        limiter.alpha_at = now.saturating_add(self.alpha_period);
        limiter.increase_at = now.saturating_add(self.time_reset);
    }

    fn advance(&mut self, now: Instant) -> Allowance {
        self.run_timers(now.as_nanos());
        Allowance::rate(self.limiter.as_ref().map_or(self.line, |limiter| limiter.rate))
    }

    fn deadline(&self) -> Option<Instant> {
        Some(Instant::from_nanos(self.limiter.as_ref()?.increase_at))
    }

    fn is_at_rest(&self) -> bool {
        self.limiter.is_none()
    }

    fn state(&self) -> State {
        let limiter = self.limiter.as_ref();
        let millionths = |alpha| scale(alpha, 1_000_000, 1 << ALPHA_BITS);
        State {
            rate: limiter.map_or(self.line, |limiter| limiter.rate),
            target: limiter.map(|limiter| limiter.target),
            alpha: limiter.and_then(|limiter| u32::try_from(millionths(limiter.alpha)).ok()),
            cuts: self.cuts,
        }
    }
}
