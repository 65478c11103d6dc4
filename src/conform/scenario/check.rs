//! Whether a scenario is sound: everything that it names is there, and nothing exceeds its bound.

use std::collections::BTreeSet;

use super::super::Side;
use super::super::memory::Claim;
use super::limits::{
    ABOUT_MAX, BUFFERS_MAX, CLAIMS_MAX, COMPLETIONS_MAX, EVENTS_MAX, EXPRESSION_MAX, FAULTS_MAX,
    LIMIT_MAX, NAME_MAX, PACKETS_MAX, POSTS_MAX, QPS_MAX, SGES_MAX, STEPS_MAX, WINDOWS_MAX,
    WORDS_MAX, at_most, few, plain, short,
};
use super::{Action, MAIN, QpSpec, Scenario, SideSpec, Step, access_of, words};

/// Maximum number of names of access rights in a list.
const RIGHTS_MAX: usize = 16;

/// Whether a scenario is sound, as far as that can be said without its size and MTU.
pub(in super::super) fn check(scenario: &Scenario) -> Result<(), String> {
    plain("name", &scenario.name, NAME_MAX)?;
    plain("about", &scenario.about, ABOUT_MAX)?;
    if scenario.qps == 0 || scenario.qps > QPS_MAX {
        return Err(format!("qps: {} is not between 1 and {QPS_MAX}", scenario.qps));
    }
    if scenario.limit == 0 || scenario.limit > LIMIT_MAX {
        return Err(format!("limit: {} s is not between 1 and {LIMIT_MAX}", scenario.limit));
    }
    check_qp("qp", &scenario.qp)?;
    for side in Side::BOTH {
        check_side(scenario, side).map_err(|text| format!("{side}.{text}"))?;
    }
    few("steps", &scenario.steps, STEPS_MAX)?;
    for (at, step) in scenario.steps.iter().enumerate() {
        check_step(scenario, step).map_err(|text| format!("steps[{at}].{text}"))?;
    }
    check_sums(scenario)?;
    few("faults", &scenario.faults, FAULTS_MAX)?;
    for (at, fault) in scenario.faults.iter().enumerate() {
        at_most(&format!("faults[{at}].psn"), fault.psn, PSN_MAX)?;
        if let Some(packet) = &fault.packet {
            words::opcode(&format!("faults[{at}].packet"), packet)?;
        }
    }
    check_expect(scenario)
}

/// The largest PSN.
const PSN_MAX: u32 = 0xff_ffff;

fn check_qp(field: &str, qp: &QpSpec) -> Result<(), String> {
    let numbers = [
        ("timeout", qp.timeout, 31),
        ("retry_cnt", qp.retry_cnt, 7),
        ("rnr_retry", qp.rnr_retry, 7),
        ("min_rnr_timer", qp.min_rnr_timer, 31),
        ("psn", qp.psn, PSN_MAX),
    ];
    for (name, number, most) in numbers {
        at_most(&format!("{field}.{name}"), number, most)?;
    }
    check_rights(&format!("{field}.access"), qp.access.as_deref())
}

fn check_rights(field: &str, names: Option<&[String]>) -> Result<(), String> {
    let names = names.unwrap_or_default();
    few(field, names, RIGHTS_MAX)?;
    for name in names {
        plain(field, name, NAME_MAX)?;
    }
    access_of(names).map(drop).map_err(|text| format!("{field}: {text}"))
}

fn check_side(scenario: &Scenario, side: Side) -> Result<(), String> {
    let SideSpec { qp, buffers, windows, .. } = scenario.side(side);
    check_qp("qp", qp)?;
    // `main` is there even if it is not named.
    few("buffers", &scenario.buffers(side), BUFFERS_MAX)?;
    few("windows", windows, WINDOWS_MAX)?;
    let mut names = BTreeSet::new();
    for buffer in buffers {
        plain("buffers.name", &buffer.name, NAME_MAX)?;
        let field = |name: &str| format!("buffers.{}.{name}", buffer.name);
        if !names.insert(buffer.name.as_str()) {
            return Err(field("name: another buffer has it"));
        }
        short(&field("len"), &buffer.len)?;
        few(&field("words"), &buffer.words, WORDS_MAX)?;
        check_rights(&field("access"), buffer.access.as_deref())?;
    }
    for window in windows {
        plain("windows.name", &window.name, NAME_MAX)?;
        if window.name == MAIN || !names.insert(window.name.as_str()) {
            return Err(format!("windows.{0}.name: another buffer or window has it", window.name));
        }
        if !matches!(window.kind, 1 | 2) {
            return Err(format!("windows.{}.type: windows are of type 1 or 2", window.name));
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
    for (name, expr) in [("len", &step.len), ("at", &step.at), ("to", &step.to)] {
        expr.as_ref().map_or(Ok(()), |expr| short(name, expr))?;
    }
    let sges = step.sges.as_deref().unwrap_or_default();
    few("sges", sges, SGES_MAX)?;
    sges.iter().try_for_each(|sge| short("sges", sge))?;
    few("flags", &step.flags, RIGHTS_MAX)?;
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
    match (action, &step.packet, &step.state) {
        (Action::See, None, _) => {
            return Err("packet: see needs to be told which: a word of its opcode".to_owned());
        }
        (Action::Modify, _, None) => {
            return Err("state: modify needs to be told which: reset, init or err".to_owned());
        }
        _ => {}
    }
    if action == Action::SrqRecv && scenario.side(side).srq_limit.is_none() {
        return Err(format!(
            "{side}: srq_recv needs a shared receive queue: `srq_limit` makes one"
        ));
    }
    step.packet.as_deref().map_or(Ok(()), |packet| words::opcode("packet", packet))?;
    step.state.as_deref().map_or(Ok(()), |state| words::state("state", state))?;
    check_rights("access", step.access.as_deref())
}

/// Checks the sums over all steps: requests, completions that are awaited, and sleep.
fn check_sums(scenario: &Scenario) -> Result<(), String> {
    let (mut posts, mut sleep) = (0_u64, 0_u64);
    let mut awaited = [0_u64; 2];
    for step in &scenario.steps {
        match step.who() {
            Some((_, Action::Sleep)) => sleep = sleep.saturating_add(step.ms.unwrap_or(1)),
            Some((side, Action::Wait)) => {
                let [requester, responder] = &mut awaited;
                let of = if side == Side::Requester { requester } else { responder };
                *of += u64::from(step.count.unwrap_or(1));
            }
            _ => posts += u64::from(step.times.unwrap_or(1)),
        }
    }
    at_most("steps: all `times` together", Some(posts), POSTS_MAX)?;
    at_most(
        "steps: all `count` of a side together",
        awaited.into_iter().max(),
        COMPLETIONS_MAX as u64,
    )?;
    at_most("steps: all `ms` together, of which `limit` allows", Some(sleep), scenario.limit * 1000)
}

fn check_expect(scenario: &Scenario) -> Result<(), String> {
    let expect = &scenario.expect;
    for side in Side::BOTH {
        let done = expect.of(side);
        few(&format!("expect.{side}"), done, COMPLETIONS_MAX)?;
        let all: u64 = done.iter().map(|done| u64::from(done.times.unwrap_or(1))).sum();
        at_most(
            &format!("expect.{side}: all `times` together"),
            Some(all),
            COMPLETIONS_MAX as u64,
        )?;
        few(&format!("expect.{side}_events"), expect.events_of(side), EVENTS_MAX)?;
        for (at, done) in done.iter().enumerate() {
            done.byte_len
                .as_ref()
                .map_or(Ok(()), |len| short(&format!("expect.{side}[{at}].byte_len"), len))?;
            let windows = &scenario.side(side).windows;
            if let Some(name) = &done.invalidated
                && !windows.iter().any(|window| window.name == *name)
            {
                return Err(format!(
                    "expect.{side}[{at}].invalidated: the {side} has no window `{name}`"
                ));
            }
        }
    }
    few("expect.packets", &expect.packets, PACKETS_MAX)?;
    few("expect.memory", &expect.memory, CLAIMS_MAX)?;
    for (at, text) in expect.memory.iter().enumerate() {
        let field = format!("expect.memory[{at}]");
        plain(&field, text, EXPRESSION_MAX)?;
        let claim = Claim::parse(text).map_err(|text| format!("{field}: {text}"))?;
        for (side, buffer) in claim.names() {
            known(scenario, side, buffer, false).map_err(|text| format!("{field}: {text}"))?;
        }
    }
    words::check(expect)
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
    plain("name", name, NAME_MAX)?;
    Err(format!("the {side} has no `{name}`; it has {}", names.join(", ")))
}
