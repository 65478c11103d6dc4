//! The scenarios by which the analysis of captures is tested: faults by rule, unreliable services,
//! datagrams.
#![allow(dead_code, reason = "the tests of the analysis use the rest")]

use super::{dice, two_hosts, wire};

#[path = "../analysis_faults/plan.rs"]
pub mod plan;
#[path = "../analysis_faults/scenarios/mod.rs"]
pub mod scenarios;
#[path = "../analysis_faults/truth.rs"]
mod truth;
#[path = "../analysis_faults/world.rs"]
pub mod world;

use roce::link::fault::Action;

use super::device::Mark;
use super::world::{Frame, Run};

/// Runs a scenario.
pub fn run(scenario: &plan::Scenario) -> Run {
    let truth = world::run(scenario);
    let connection_of = |number: usize| {
        let connection = truth.transmissions[number].connection;
        (connection != usize::MAX).then_some(connection)
    };
    let faults = truth.injected.iter().filter(|fault| fault.action != Action::Mark);
    let fault = |fault: &truth::Injected| {
        (connection_of(fault.transmission), truth.transmissions[fault.transmission].time)
    };
    let faults = faults.map(fault).collect();
    let frame = |seen: &truth::Captured| Frame {
        time: seen.time,
        when: truth.transmissions[seen.transmission].time,
        connection: connection_of(seen.transmission),
        mark: Mark::Honest,
        is_corrupted: seen.is_corrupted,
        bytes: seen.bytes.clone(),
    };
    let captured = truth.captured.each_ref().map(|captured| captured.iter().map(frame).collect());
    Run { captured, faults, omitted: None }
}
