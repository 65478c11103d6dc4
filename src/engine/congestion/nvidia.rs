//! DCQCN as NVIDIA documents it, with the names and units that `mlx5` has in debugfs.
//!
//! α has ten bits and decays each microsecond. A CNP does not cut by itself: it sets a flag, and
//! the rate is cut at the next end of a monitor period. The target stays where it was through a
//! burst of cuts, unless a stage has passed since the last one. It is the documented rule set, and
//! not a model of a particular card.

use core::time::Duration;

use super::{Allowance, Controller, FlowInfo, State, increment, scale};
use crate::time::Instant;

/// Parameters of NVIDIA's reaction point. Rates are in Mb/s and times in µs, as in `mlx5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvidia {
    /// Whether each cut sets the target to the rate before it.
    pub rp_clamp_tgt_rate: bool,
    /// Whether the first cut after a stage of the timer does.
    pub rp_clamp_tgt_rate_ati: bool,
    /// Period of the increase timer, in µs.
    pub rp_time_reset: u32,
    /// Bytes of a stage of the byte counter, in units of 64 bytes.
    pub rp_byte_reset: u32,
    /// Stages of fast recovery.
    pub rp_threshold: u32,
    /// Additive increase, in Mb/s.
    pub rp_ai_rate: u32,
    /// Hyper increase, in Mb/s.
    pub rp_hai_rate: u32,
    /// Least rate after a cut, in percent of the rate before it.
    pub rp_min_dec_fac: u32,
    /// Minimum rate, in Mb/s.
    pub rp_min_rate: u32,
    /// Rate after the first CNP, in Mb/s; 0 is 85 % of the line rate.
    pub rp_rate_to_set_on_first_cnp: u32,
    /// Weight of the old α, in 1024ths: 1019 is g = 5/1024.
    pub rp_dce_tcp_g: u32,
    /// Period of α, in µs.
    pub rp_dce_tcp_rtt: u32,
    /// Least time between two cuts, in µs.
    pub rp_rate_reduce_monitor_period: u32,
    /// α of the first CNP, in 1024ths.
    pub rp_initial_alpha_value: u32,
    /// A cut is rate · α / 2^`rp_gd`.
    pub rp_gd: u32,
}

impl Default for Nvidia {
    fn default() -> Self {
        Self {
            rp_clamp_tgt_rate: false,
            rp_clamp_tgt_rate_ati: true,
            rp_time_reset: 300,
            rp_byte_reset: 32767,
            rp_threshold: 1,
            rp_ai_rate: 5,
            rp_hai_rate: 50,
            rp_min_dec_fac: 50,
            rp_min_rate: 1,
            rp_rate_to_set_on_first_cnp: 0,
            rp_dce_tcp_g: 1019,
            rp_dce_tcp_rtt: 1,
            rp_rate_reduce_monitor_period: 4,
            rp_initial_alpha_value: 1023,
            rp_gd: 11,
        }
    }
}

/// Largest α.
const ALPHA_MAX: u32 = 1023;

/// Reaction point of one queue pair.
#[derive(Clone, Debug)]
pub(super) struct ReactionPoint {
    parameters: Nvidia,
    line: u64,
    ai: u64,
    hai: u64,
    min: u64,
    alpha_period: u64,
    monitor_period: u64,
    time_reset: u64,
    byte_reset: u64,
    cuts: u64,
    /// Rates and timers, from the first CNP until the rate is the line's again.
    limiter: Option<Limiter>,
}

/// Rate limiter that a CNP allocates. Times are in nanoseconds.
#[derive(Clone, Debug)]
struct Limiter {
    rate: u64,
    target: u64,
    alpha: u32,
    /// Whether a CNP came in this period of α.
    alpha_cnp: bool,
    /// Time of the cut that a CNP caused.
    cut_at: Option<u64>,
    timer_stage: u32,
    byte_stage: u32,
    bytes: u64,
    /// First end of a monitor period, less one period.
    monitor_from: u64,
    alpha_at: u64,
    increase_at: u64,
}

fn micros(us: u32) -> u64 {
    super::period(Duration::from_micros(us.into()))
}

impl ReactionPoint {
    pub(super) fn new(parameters: &Nvidia, info: &FlowInfo) -> Self {
        let line = info.line_rate.max(1);
        let mega = |rate: u32| u64::from(rate) * 1_000_000;
        Self {
            line,
            ai: increment(mega(parameters.rp_ai_rate), line),
            hai: increment(mega(parameters.rp_hai_rate), line),
            min: mega(parameters.rp_min_rate).clamp(1, line),
            alpha_period: micros(parameters.rp_dce_tcp_rtt),
            monitor_period: micros(parameters.rp_rate_reduce_monitor_period),
            time_reset: micros(parameters.rp_time_reset),
            byte_reset: (u64::from(parameters.rp_byte_reset) * 64).max(4096),
            cuts: 0,
            limiter: None,
            parameters: *parameters,
        }
    }

    fn first_cnp(&mut self, now: u64) {
        let parameters = &self.parameters;
        let rate = match parameters.rp_rate_to_set_on_first_cnp {
            0 => scale(self.line, 85, 100),
            mega => u64::from(mega) * 1_000_000,
        };
        let rate = rate.clamp(self.min, self.line);
        self.cuts += 1;
        self.limiter = Some(Limiter {
            rate,
            target: rate,
            alpha: parameters.rp_initial_alpha_value.min(ALPHA_MAX),
            alpha_cnp: false,
            cut_at: None,
            timer_stage: 0,
            byte_stage: 0,
            bytes: 0,
            monitor_from: now,
            alpha_at: now.saturating_add(self.alpha_period),
            increase_at: now.saturating_add(self.time_reset),
        });
    }

    /// One increase event: the counters have their old values.
    fn increase(&mut self) {
        let Some(limiter) = &mut self.limiter else { return };
        let threshold = self.parameters.rp_threshold;
        let (most, least) = (
            limiter.timer_stage.max(limiter.byte_stage),
            limiter.timer_stage.min(limiter.byte_stage),
        );
        let step = if least > threshold {
            self.hai
        } else if most >= threshold {
            self.ai
        } else {
            0
        };
        limiter.target = limiter.target.saturating_add(step).min(self.line);
        limiter.rate = (limiter.rate + limiter.target).div_ceil(2);
        let is_full = limiter.rate == self.line && limiter.target == self.line;
        if is_full && limiter.cut_at.is_none() {
            self.limiter = None;
        }
    }

    fn run_alpha(&mut self, until: u64) {
        let Some(limiter) = &mut self.limiter else { return };
        let keep = self.parameters.rp_dce_tcp_g.min(1024);
        while limiter.alpha_at <= until {
            limiter.alpha = (limiter.alpha * keep) >> 10;
            if core::mem::take(&mut limiter.alpha_cnp) {
                limiter.alpha = (limiter.alpha + 1024 - keep).min(ALPHA_MAX);
            }
            limiter.alpha_at += self.alpha_period;
            if limiter.alpha == 0 || keep == 1024 {
                // It stays as it is: the other periods are skipped.
                let left = (until + self.alpha_period).saturating_sub(limiter.alpha_at);
                limiter.alpha_at += left / self.alpha_period * self.alpha_period;
            }
        }
    }

    /// Applies stages of the timer before `end`.
    fn run_increases(&mut self, end: u64) {
        while let Some(limiter) = self.limiter.as_mut().filter(|limiter| limiter.increase_at < end)
        {
            limiter.increase_at += self.time_reset;
            self.increase();
            if let Some(limiter) = &mut self.limiter {
                limiter.timer_stage = limiter.timer_stage.saturating_add(1);
            }
        }
    }

    /// Cuts the rate at the end of a monitor period.
    fn cut(&mut self, at: u64) {
        let Some(limiter) = &mut self.limiter else { return };
        let parameters = &self.parameters;
        let clamps = parameters.rp_clamp_tgt_rate
            || limiter.byte_stage > 0
            || parameters.rp_clamp_tgt_rate_ati && limiter.timer_stage > 0;
        if clamps {
            limiter.target = limiter.rate;
        }
        let by_alpha = scale(limiter.rate, limiter.alpha.into(), 1 << parameters.rp_gd.min(32));
        let most = scale(limiter.rate, (100 - parameters.rp_min_dec_fac.min(100)).into(), 100);
        limiter.rate = (limiter.rate - by_alpha.min(most)).max(self.min);
        (limiter.timer_stage, limiter.byte_stage, limiter.bytes) = (0, 0, 0);
        limiter.increase_at = at.saturating_add(self.time_reset);
        limiter.cut_at = None;
        self.cuts += 1;
    }

    /// Applies the timers that are due by `now`. Of those at one time, α comes first, then the cut,
    /// then the increase; α and increases do not depend on each other.
    fn run_timers(&mut self, now: u64) {
        let cut_at = self.limiter.as_ref().and_then(|limiter| limiter.cut_at);
        if let Some(at) = cut_at.filter(|at| *at <= now) {
            self.run_alpha(at);
            self.run_increases(at);
            self.cut(at);
        }
        self.run_alpha(now);
        self.run_increases(now + 1);
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
            self.increase();
            if let Some(limiter) = &mut self.limiter {
                limiter.byte_stage = limiter.byte_stage.saturating_add(1);
            }
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        let now = now.as_nanos();
        self.run_timers(now);
        let Some(limiter) = &mut self.limiter else { return self.first_cnp(now) };
        limiter.alpha_cnp = true;
        let periods = (now - limiter.monitor_from) / self.monitor_period + 1;
        let end = limiter.monitor_from + periods * self.monitor_period;
        limiter.cut_at.get_or_insert(end);
    }

    fn advance(&mut self, now: Instant) -> Allowance {
        self.run_timers(now.as_nanos());
        Allowance::rate(self.limiter.as_ref().map_or(self.line, |limiter| limiter.rate))
    }

    fn deadline(&self) -> Option<Instant> {
        let limiter = self.limiter.as_ref()?;
        let next = limiter.cut_at.map_or(limiter.increase_at, |cut| cut.min(limiter.increase_at));
        Some(Instant::from_nanos(next))
    }

    fn is_at_rest(&self) -> bool {
        self.limiter.is_none()
    }

    fn state(&self) -> State {
        let limiter = self.limiter.as_ref();
        State {
            rate: limiter.map_or(self.line, |limiter| limiter.rate),
            target: limiter.map(|limiter| limiter.target),
            alpha: limiter.map(|limiter| limiter.alpha * 1_000_000 / 1024),
            cuts: self.cuts,
        }
    }
}
