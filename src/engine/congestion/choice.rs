//! Choice of a controller.

use core::fmt::Debug;
use std::sync::Arc;

use super::{
    AckSample, Allowance, Controller, Dcqcn, Hpcc, Loss, Nvidia, State, Swift, Timely, dcqcn, hpcc,
    nvidia, swift, timely,
};
use crate::time::Instant;

/// Facts about the queue pair that a controller is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowInfo {
    /// Rate of the line, in bit/s.
    pub line_rate: u64,
    /// Bytes on the wire of a packet of the path's MTU.
    pub packet: u32,
}

/// Source of controllers, one for each queue pair that sends.
pub trait Factory: Debug + Send + Sync {
    /// Returns a controller for a queue pair that sends its first packet at `now`.
    fn start(&self, now: Instant, info: &FlowInfo) -> Box<dyn Controller>;
}

/// Congestion control of an engine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// No reaction: queue pairs send as fast as their windows allow.
    #[default]
    None,
    /// A fixed rate, in bit/s.
    Fixed(u64),
    /// DCQCN as in its paper.
    Dcqcn(Dcqcn),
    /// DCQCN as NVIDIA documents it.
    Nvidia(Nvidia),
    /// TIMELY.
    Timely(Timely),
    /// Swift.
    Swift(Swift),
    /// HPCC, which needs telemetry.
    Hpcc(Hpcc),
    /// Controllers of the caller.
    Custom(Arc<dyn Factory>),
}

impl Congestion {
    /// DCQCN as in its paper, with its parameters.
    pub fn dcqcn() -> Self {
        Self::Dcqcn(Dcqcn::default())
    }

    /// DCQCN as NVIDIA documents it, with its defaults.
    pub fn nvidia() -> Self {
        Self::Nvidia(Nvidia::default())
    }

    /// TIMELY, with the parameters of its paper.
    pub fn timely() -> Self {
        Self::Timely(Timely::default())
    }

    /// Swift, with the parameters that htsim has.
    pub fn swift() -> Self {
        Self::Swift(Swift::default())
    }

    /// HPCC, with the parameters of its paper.
    pub fn hpcc() -> Self {
        Self::Hpcc(Hpcc::default())
    }

    /// Controllers that `factory` makes.
    pub fn custom(factory: Arc<dyn Factory>) -> Self {
        Self::Custom(factory)
    }

    /// Whether rates are controlled.
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether a queue pair has a controller from its first packet on; with DCQCN it gets one with
    /// the first CNP.
    pub(in crate::engine) fn starts_with_packet(&self) -> bool {
        !matches!(self, Self::None | Self::Dcqcn(_) | Self::Nvidia(_))
    }

    /// Returns a controller for a queue pair, or `None` if there is no congestion control.
    pub fn start(&self, now: Instant, info: &FlowInfo) -> Option<Box<dyn Controller>> {
        match self.start_flow(now, info)? {
            Algorithm::Custom(controller) => Some(controller),
            algorithm => Some(Box::new(algorithm)),
        }
    }

    /// Returns a controller for a queue pair, without a box of its own if it is one of these.
    pub(super) fn start_flow(&self, now: Instant, info: &FlowInfo) -> Option<Algorithm> {
        Some(match self {
            Self::None => return None,
            Self::Fixed(rate) => Algorithm::Fixed(FixedRate(*rate)),
            Self::Dcqcn(with) => Algorithm::Dcqcn(dcqcn::ReactionPoint::new(with, info)),
            Self::Nvidia(with) => Algorithm::Nvidia(nvidia::ReactionPoint::new(with, info)),
            Self::Timely(with) => Algorithm::Timely(timely::ReactionPoint::new(with, info)),
            Self::Swift(with) => Algorithm::Swift(swift::ReactionPoint::new(with, info)),
            Self::Hpcc(with) => Algorithm::Hpcc(Box::new(hpcc::ReactionPoint::new(with, info))),
            Self::Custom(factory) => Algorithm::Custom(factory.start(now, info)),
        })
    }
}

/// A controller: one of these without an indirection.
#[derive(Debug)]
pub(super) enum Algorithm {
    Fixed(FixedRate),
    Dcqcn(dcqcn::ReactionPoint),
    Nvidia(nvidia::ReactionPoint),
    Timely(timely::ReactionPoint),
    Swift(swift::ReactionPoint),
    Hpcc(Box<hpcc::ReactionPoint>),
    Custom(Box<dyn Controller>),
}

/// A rate that never changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedRate(u64);

impl Controller for FixedRate {
    fn advance(&mut self, _now: Instant) -> Allowance {
        Allowance::rate(self.0)
    }

    fn state(&self) -> State {
        State { rate: self.0, ..State::default() }
    }
}

/// Calls a method of the controller in an [`Algorithm`].
macro_rules! each {
    ($algorithm:expr, $controller:ident => $call:expr) => {
        match $algorithm {
            Algorithm::Fixed($controller) => $call,
            Algorithm::Dcqcn($controller) => $call,
            Algorithm::Nvidia($controller) => $call,
            Algorithm::Timely($controller) => $call,
            Algorithm::Swift($controller) => $call,
            Algorithm::Hpcc($controller) => $call,
            Algorithm::Custom($controller) => $call,
        }
    };
}

impl Controller for Algorithm {
    #[inline]
    fn on_sent(&mut self, now: Instant, bytes: u32) {
        each!(self, controller => controller.on_sent(now, bytes));
    }

    fn on_ack(&mut self, now: Instant, ack: &AckSample<'_>) {
        each!(self, controller => controller.on_ack(now, ack));
    }

    fn on_cnp(&mut self, now: Instant) {
        each!(self, controller => controller.on_cnp(now));
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        each!(self, controller => controller.on_loss(now, loss));
    }

    #[inline]
    fn advance(&mut self, now: Instant) -> Allowance {
        each!(self, controller => controller.advance(now))
    }

    fn deadline(&self) -> Option<Instant> {
        each!(self, controller => controller.deadline())
    }

    fn is_at_rest(&self) -> bool {
        each!(self, controller => controller.is_at_rest())
    }

    fn state(&self) -> State {
        each!(self, controller => controller.state())
    }
}
