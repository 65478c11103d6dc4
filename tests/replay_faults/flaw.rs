//! A device with a flaw, and what a replay must say of it.

use super::device::Device;
use super::setup::Setup;
use super::world::{Run, run};

/// The capture points that show a flaw: at A, in the middle, at B.
pub const EVERYWHERE: &[usize] = &[0, 1, 2];
/// The point at the requester: elsewhere it is not known what reached it.
pub const AT_REQUESTER: &[usize] = &[0];
/// The point at the responder: elsewhere its packets may have been lost, or the requests to it.
pub const AT_RESPONDER: &[usize] = &[2];

/// Both ends, where all that one of the two sent or got is captured.
pub const AT_ENDS: &[usize] = &[0, 2];

/// A device with a flaw.
pub struct Flaw {
    pub name: &'static str,
    /// The rules of which one must be named.
    pub rules: &'static [&'static str],
    /// The points whose captures must show it.
    pub points: &'static [usize],
    /// 0: A has it, which requests; 1: B has it, which responds.
    pub host: usize,
    setup: fn() -> Setup,
    device: fn() -> Device,
}

/// Declares tables of flaws of one side: name, rules, capture points, set-up and device of each.
macro_rules! flaws {
    ($($(#[$doc:meta])* $vis:vis $table:ident: $side:ident {
        $($name:literal, $rules:expr, $points:expr, $setup:expr => $device:expr;)*
    })*) => {$(
        $(#[$doc])*
        $vis const $table: &[$crate::flaw::Flaw] = &[
            $($crate::flaw::Flaw::$side($name, $rules, $points, || $setup, || $device),)*
        ];
    )*};
}
pub(crate) use flaws;

impl Flaw {
    pub const fn responder(
        name: &'static str,
        rules: &'static [&'static str],
        points: &'static [usize],
        setup: fn() -> Setup,
        device: fn() -> Device,
    ) -> Self {
        Self { name, rules, points, host: 1, setup, device }
    }

    pub const fn requester(
        name: &'static str,
        rules: &'static [&'static str],
        points: &'static [usize],
        setup: fn() -> Setup,
        device: fn() -> Device,
    ) -> Self {
        Self { name, rules, points, host: 0, setup, device }
    }

    pub fn run(&self) -> Run {
        let device = (self.device)();
        let devices =
            if self.host == 0 { [device, Device::default()] } else { [Device::default(), device] };
        run(&(self.setup)(), devices)
    }
}
