//! Swift: a window that follows the delay of the fabric against a target.
//!
//! Small windows have a higher target, so that flows with different windows converge. A window
//! below one packet becomes a rate: one packet in several round-trip times. The delay at the hosts
//! is not told apart from that of the fabric.

use core::time::Duration;

use super::{AckSample, Allowance, Controller, FlowInfo, Loss, State, period, scale};
use crate::time::{Instant, nanos};

/// Parameters of Swift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swift {
    /// Target delay of a path without hops, for a large window.
    pub base: Duration,
    /// Hops of the path, and what each adds to the target.
    pub hops: u32,
    /// Addition to the target for each hop.
    pub hop: Duration,
    /// Largest addition to the target for a small window.
    pub flow_range: Duration,
    /// Smallest window, in 1024ths of a packet.
    pub min_window: u32,
    /// Largest window, in packets.
    pub max_window: u32,
    /// Additive increase in a round-trip time, in 1024ths of a packet.
    pub ai: u32,
    /// β, the weight of the excess of delay in a decrease, in 1024ths.
    pub beta: u32,
    /// Largest share of the window that one decrease takes, in 1024ths.
    pub max_decrease: u32,
    /// Number of timeouts in a row after which the window is the smallest.
    pub retries: u32,
}

impl Default for Swift {
    fn default() -> Self {
        Self {
            base: Duration::from_micros(20),
            hops: 0,
            hop: Duration::from_nanos(3053),
            flow_range: Duration::from_micros(100),
            min_window: 102,
            max_window: 100,
            ai: 1024,
            beta: 819,
            max_decrease: 512,
            retries: 5,
        }
    }
}

/// One packet, as a window.
const ONE: u64 = 1 << 16;

/// Reaction point of one queue pair. Windows are in 65536ths of a packet.
#[derive(Clone, Debug)]
pub(super) struct ReactionPoint {
    line: u64,
    packet: u64,
    /// Target without flow scaling.
    base: u64,
    flow_range: u64,
    /// α of flow scaling, in nanoseconds, and the inverse root of the largest window.
    flow_alpha: u64,
    least_root: u64,
    min: u64,
    max: u64,
    ai: u64,
    beta: u64,
    max_decrease: u64,
    retries: u32,
    window: u64,
    /// Round-trip time of the last sample.
    rtt: u64,
    /// Earliest time of the next decrease.
    decrease_after: u64,
    timeouts: u32,
    cuts: u64,
}

/// Returns 1/√w in 65536ths, for a window in 65536ths of a packet.
fn inverse_root(window: u64) -> u64 {
    ((1_u64 << 48) / window.max(1)).isqrt()
}

impl ReactionPoint {
    pub(super) fn new(parameters: &Swift, info: &FlowInfo) -> Self {
        let min = (u64::from(parameters.min_window) << 6).max(1);
        let max = (u64::from(parameters.max_window) << 16).max(min + 1);
        let flow_range = nanos(parameters.flow_range).min(1 << 40);
        let roots = inverse_root(min) - inverse_root(max);
        let hops = nanos(parameters.hop).saturating_mul(u64::from(parameters.hops));
        let base = period(parameters.base).saturating_add(hops).min(1 << 40);
        Self {
            line: info.line_rate.max(1),
            packet: u64::from(info.packet.max(1)),
            base,
            flow_range,
            flow_alpha: scale(flow_range, ONE, roots),
            least_root: inverse_root(max),
            min,
            max,
            ai: u64::from(parameters.ai) << 6,
            beta: u64::from(parameters.beta.min(1024)),
            max_decrease: u64::from(parameters.max_decrease.min(1024)),
            retries: parameters.retries,
            window: max,
            rtt: base,
            decrease_after: 0,
            timeouts: 0,
            cuts: 0,
        }
    }

    /// Target delay of the window.
    fn target(&self) -> u64 {
        let root = inverse_root(self.window).saturating_sub(self.least_root);
        self.base + scale(self.flow_alpha, root, ONE).min(self.flow_range)
    }

    /// Leaves `keep` 1024ths of the window, at most once in a round-trip time.
    fn decrease(&mut self, now: u64, keep: u64) {
        if now < self.decrease_after {
            return;
        }
        self.decrease_after = now.saturating_add(self.rtt);
        self.window = scale(self.window, keep, 1024).clamp(self.min, self.max);
        self.cuts += 1;
    }

    fn rate(&self) -> u64 {
        if self.window >= ONE {
            return self.line;
        }
        let bits = self.packet * 8 * 1_000_000_000;
        scale(bits, self.window, ONE.saturating_mul(self.rtt.max(1))).clamp(1, self.line)
    }
}

impl Controller for ReactionPoint {
    fn on_ack(&mut self, now: Instant, ack: &AckSample<'_>) {
        self.timeouts = 0;
        if let Some(rtt) = ack.rtt {
            self.rtt = period(rtt);
        }
        let target = self.target();
        if self.rtt < target {
            let acked = self.ai.saturating_mul(ack.packets.into());
            let step = if self.window >= ONE { scale(acked, ONE, self.window) } else { acked };
            self.window = self.window.saturating_add(step).clamp(self.min, self.max);
        } else if ack.rtt.is_some() {
            let excess = scale(self.beta, self.rtt - target, self.rtt);
            self.decrease(now.as_nanos(), 1024 - excess.min(self.max_decrease));
        }
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        match loss {
            Loss::Rnr => {}
            Loss::Nak => self.decrease(now.as_nanos(), 1024 - self.max_decrease),
            Loss::Timeout => {
                self.timeouts = self.timeouts.saturating_add(1);
                let keep = if self.timeouts >= self.retries { 0 } else { 1024 - self.max_decrease };
                self.decrease(now.as_nanos(), keep);
            }
        }
    }

    fn advance(&mut self, _now: Instant) -> Allowance {
        let window = scale(self.packet, self.window, ONE).max(self.packet);
        Allowance { rate: self.rate(), window }
    }

    fn state(&self) -> State {
        let by_window = scale(self.packet * 8 * 1_000_000_000, self.window, ONE * self.rtt.max(1));
        State { rate: by_window.min(self.line), cuts: self.cuts, ..State::default() }
    }
}
