//! The scenarios by which the analysis of captures is tested: faults by rule, unreliable services, datagrams.
#![allow(dead_code, reason = "the tests of the analysis use the rest")]

use super::{dice, frames};

#[path = "../analysis_faults/plan.rs"]
pub mod plan;
#[path = "../analysis_faults/scenarios/mod.rs"]
pub mod scenarios;
#[path = "../analysis_faults/truth.rs"]
mod truth;
#[path = "../analysis_faults/world.rs"]
pub mod world;

use super::device::Mark;
use super::world::{Frame, Run};

/// Runs a scenario.
pub fn run(scenario: &plan::Scenario) -> Run {
    let truth = world::run(scenario);
    let captured = truth.captured.map(|captured| {
        let frames = captured.into_iter();
        let frame = |seen: truth::Captured| Frame {
            time: seen.time,
            mark: Mark::Honest,
            is_corrupted: seen.is_corrupted,
            bytes: seen.bytes,
        };
        frames.map(frame).collect()
    });
    Run { captured, has_faults: !truth.injected.is_empty(), omitted: None }
}
