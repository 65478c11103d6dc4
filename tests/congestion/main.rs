//! Congestion control: controllers against an independent model, and queue pairs on a bottleneck in
//! virtual time.
//!
//! By default few seeds run. `ROCE_SEEDS=3` runs every row of the fixed point for three seeds, and
//! `ROCE_SEEDS=1000000` as many schedules of lazy timers; build with `--release` for these.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test is a crate of its own, and one that cannot go on fails"
)]

mod dumbbell;
mod fixed_point;
mod host;
mod lazy;
mod model;
mod notification;
mod nvidia;
mod pacing;
mod rivals;
mod strangers;

/// Number of seeds that the environment asks for.
fn seeds_asked() -> Option<u64> {
    Some(std::env::var("ROCE_SEEDS").ok()?.parse().unwrap())
}

/// A small source of chance.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// A share between 0 and 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
