//! Congestion control: rates of queue pairs, set by controllers without IO or clock.
//!
//! A [`Controller`] is a reaction point: it is told of packets that are sent, ACKs with their
//! round-trip times, CNPs, losses and the time, and returns an [`Allowance`]: a rate and a window.
//! It computes in integers, so that all machines agree to the bit, and its timers are lazy:
//! [`advance`] applies those that are due, so that an idle queue pair costs no wake-up. Whether it
//! is called at each deadline or only once at the end makes no difference to what it returns.
//!
//! A [`Pacer`] turns the rate into times of packets. The engine makes both for a queue pair when it
//! needs them, and frees them when the rate is that of the line again.
//!
//! | file | holds | after |
//! |---|---|---|
//! | `dcqcn` | [`Dcqcn`]: DCQCN as in its paper | Zhu et al., SIGCOMM 2015 |
//! | `nvidia` | [`Nvidia`]: DCQCN as NVIDIA documents it | "DCQCN CC Algorithm" and `mlx5`'s debugfs |
//! | `timely` | [`Timely`]: rate by the gradient of the round-trip time | Mittal et al., SIGCOMM 2015 |
//! | `swift` | [`Swift`]: window by a target delay | Kumar et al., SIGCOMM 2020; htsim |
//! | `hpcc` | [`Hpcc`]: window by telemetry of switches | Li et al., SIGCOMM 2019 |
//! | `choice` | [`Congestion`]: one of these, or a custom one by a [`Factory`] | |
//! | `text` | [`Congestion`] as text: `dcqcn:rp_time_reset=300,rp_ai_rate=5` | |
//! | `settings` | [`Settings`]: options of commands and environments | |
//! | `pacer` | [`Pacer`] | |
//! | `wheel` | deadlines of paced queue pairs | |
//! | `flow` | controller and pacer of one queue pair | |
//!
//! ```
//! use roce::engine::congestion::{Congestion, FlowInfo};
//! use roce::time::Instant;
//!
//! let us = |us: u64| Instant::from_nanos(us * 1000);
//! let info = FlowInfo { line_rate: 40_000_000_000, packet: 1024 };
//! let mut controller = Congestion::dcqcn().start(us(0), &info).expect("it controls");
//! assert_eq!(controller.advance(us(0)).rate, 40_000_000_000);
//! controller.on_cnp(us(10));
//! // The first cut halves the rate: α is 1.
//! assert_eq!(controller.advance(us(10)).rate, 20_000_000_000);
//! // Without another CNP the first increase comes after 55 µs: half the way back.
//! assert_eq!(controller.advance(us(65)).rate, 30_000_000_000);
//! ```
//!
//! `examples/congestion_controller.rs` implements a custom one.
//!
//! [`advance`]: Controller::advance

mod choice;
mod dcqcn;
mod flow;
mod hpcc;
mod nvidia;
mod pacer;
mod settings;
mod swift;
mod text;
mod timely;
mod wheel;

use core::fmt;
use core::time::Duration;

pub use choice::{Congestion, Factory, FlowInfo};
pub use dcqcn::Dcqcn;
pub use hpcc::Hpcc;
pub use nvidia::Nvidia;
pub use pacer::Pacer;
pub use settings::Settings;
pub use swift::Swift;
pub use text::{ParseCongestionError, Profile, parse_rate};
pub use timely::Timely;

pub(super) use flow::{Flow, FlowSetup};
pub(super) use hpcc::HOPS_MAX;
pub(super) use wheel::Wheel;

use crate::time::Instant;

/// Reaction point of one queue pair.
///
/// Calls come in the order of their times. Each event is told after the timers that are due by its
/// time: an implementation begins each of its methods with them.
pub trait Controller: fmt::Debug + Send {
    /// Takes note of a packet that was sent: its bytes on the wire.
    fn on_sent(&mut self, now: Instant, bytes: u32) {
        let _ = (now, bytes);
    }

    /// Takes an acknowledgment of packets.
    fn on_ack(&mut self, now: Instant, ack: &AckSample<'_>) {
        let _ = (now, ack);
    }

    /// Takes a CNP.
    fn on_cnp(&mut self, now: Instant) {
        let _ = now;
    }

    /// Takes a loss.
    fn on_loss(&mut self, now: Instant, loss: Loss) {
        let _ = (now, loss);
    }

    /// Applies the timers that are due by `now`; returns what the queue pair may send from now on.
    fn advance(&mut self, now: Instant) -> Allowance;

    /// Returns the next time at which the allowance may change by itself.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether it is in the state of a new one, so that it may be freed until the next event.
    fn is_at_rest(&self) -> bool {
        false
    }

    /// Returns its state, for people. Timers that are due may not have been applied.
    fn state(&self) -> State;
}

/// Rate and window that a queue pair may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Rate, in bit/s on the wire; [`u64::MAX`] is unlimited.
    pub rate: u64,
    /// Maximum number of bytes in flight; [`u64::MAX`] is unlimited.
    pub window: u64,
}

impl Allowance {
    /// No limit.
    pub const UNLIMITED: Self = Self { rate: u64::MAX, window: u64::MAX };

    /// A rate without a window.
    pub const fn rate(rate: u64) -> Self {
        Self { rate, window: u64::MAX }
    }
}

/// Facts about an acknowledgment.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample<'a> {
    /// Packets that it acknowledges for the first time.
    pub packets: u32,
    /// Bytes of these packets on the wire.
    pub bytes: u32,
    /// Bytes that are still in flight.
    pub in_flight: u64,
    /// Round-trip time of one of these packets. A packet that was retransmitted has none (Karn).
    pub rtt: Option<Duration>,
    /// Whether the packet with the acknowledgment carried a congestion mark.
    pub ecn: bool,
    /// Telemetry of the hops of the path, in the order of the path; only simulations have it.
    pub telemetry: &'a [Hop],
}

/// Telemetry of a switch's egress port at the time at which it sent a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Time at which the packet left the queue.
    pub time: Instant,
    /// Bytes that the port has sent until then.
    pub sent: u64,
    /// Bytes in the queue.
    pub queue: u64,
    /// Rate of the port, in bit/s.
    pub rate: u64,
}

/// Evidence of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The responder NAKed a gap, or a response shows one.
    Nak,
    /// The retransmission timeout expired.
    Timeout,
    /// The receiver was not ready.
    Rnr,
}

/// State of a controller, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Rate, in bit/s.
    pub rate: u64,
    /// Target rate of increases, in bit/s, if there is one.
    pub target: Option<u64>,
    /// α, in millionths, if there is one.
    pub alpha: Option<u32>,
    /// Rate cuts.
    pub cuts: u64,
}

/// Maximum number of additive increases between nothing and the line rate: lazy timers of a queue
/// pair that was idle for long apply no more than that many steps at once.
const STEPS_MAX: u64 = 1 << 20;

/// Returns an increment that reaches `line` within [`STEPS_MAX`] steps.
const fn increment(rate: u64, line: u64) -> u64 {
    let least = line / STEPS_MAX + 1;
    if rate > least { rate } else { least }
}

/// Returns `value * numerator / denominator`, rounded down, at most `u64::MAX`.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Nanoseconds of a duration, at least 1 and at most 2^40: eighteen minutes.
fn period(duration: Duration) -> u64 {
    crate::time::nanos(duration).clamp(1, 1 << 40)
}
