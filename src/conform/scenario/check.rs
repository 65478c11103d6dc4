//! Whether everything that a scenario names is there.

use super::super::Side;
use super::super::memory::Claim;
use super::{Action, Scenario, Step, access_of};

/// The most queue pairs of a side.
const QPS_MAX: usize = 16;

/// Whether everything that is named is there.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    if scenario.qps == 0 || scenario.qps > QPS_MAX {
        return Err(format!("qps: {} is not between 1 and {QPS_MAX}", scenario.qps));
    }
    for side in Side::BOTH {
        let spec = scenario.side(side);
        for buffer in &spec.buffers {
            let names = buffer.access.as_deref().unwrap_or_default();
            access_of(names)
                .map_err(|text| format!("{side}.buffers.{}.access: {text}", buffer.name))?;
        }
        if let Some(window) = spec.windows.iter().find(|window| !matches!(window.kind, 1 | 2)) {
            return Err(format!("{side}.windows.{}.type: windows are of type 1 or 2", window.name));
        }
        let access = spec.qp.access.as_deref().unwrap_or_default();
        access_of(access).map_err(|text| format!("{side}.qp.access: {text}"))?;
    }
    for (at, step) in scenario.steps.iter().enumerate() {
        check_step(scenario, step).map_err(|text| format!("steps[{at}].{text}"))?;
    }
    for (at, text) in scenario.expect.memory.iter().enumerate() {
        let claim = Claim::parse(text).map_err(|text| format!("expect.memory[{at}]: {text}"))?;
        for (side, buffer) in claim.names() {
            known(scenario, side, buffer, false)
                .map_err(|text| format!("expect.memory[{at}]: {text}"))?;
        }
    }
    Ok(())
}

fn check_step(scenario: &Scenario, step: &Step) -> Result<(), String> {
    let Some((side, action)) = step.who() else {
        return Err("requester or responder: one of the two does something, not both".to_owned());
    };
    if step.qp >= scenario.qps {
        return Err(format!("qp: there are {} from 0; `qps` says how many", scenario.qps));
    }
    if let Some(buffer) = &step.buffer {
        known(scenario, side, buffer, false).map_err(|text| format!("buffer: {text}"))?;
    }
    let here = matches!(action, Action::BindMw | Action::LocalInv);
    if let Some(remote) = &step.remote {
        let of = if here { side } else { side.other() };
        known(scenario, of, remote, true).map_err(|text| format!("remote: {text}"))?;
    } else if here {
        return Err(format!("remote: {action} needs the name of a window"));
    }
    if action == Action::See && step.packet.is_none() {
        return Err("packet: see needs to be told which: a word of its opcode".to_owned());
    }
    if action == Action::Modify && step.state.is_none() {
        return Err("state: modify needs to be told which: reset, init or err".to_owned());
    }
    let names = step.access.as_deref().unwrap_or_default();
    access_of(names).map(drop).map_err(|text| format!("access: {text}"))
}

/// Whether a side has such a buffer, or window.
fn known(scenario: &Scenario, side: Side, name: &str, windows: bool) -> Result<(), String> {
    let mut names: Vec<String> = scenario.buffers(side).into_iter().map(|it| it.name).collect();
    if windows {
        names.extend(scenario.side(side).windows.iter().map(|window| window.name.clone()));
    }
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(format!("the {side} has no `{name}`; it has {}", names.join(", ")))
}
