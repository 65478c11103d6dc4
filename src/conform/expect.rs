//! Whether what a scenario expects holds.

use super::Side;
use super::diff::{Difference, Subject};
use super::expand::Instance;
use super::scenario::{Action, Done};
use super::trace::{Completion, Outcome, Trace};

/// Returns all differences from what the scenario expects.
pub(super) fn check(instance: &Instance, trace: &Trace) -> Vec<Difference> {
    let mut all = Vec::new();
    for side in Side::BOTH {
        let outcome = trace.side(side);
        if let Some(trouble) = &outcome.trouble {
            all.push(Difference::new(side, Subject::Trouble, "the scenario is played", trouble));
        }
        completions(instance, side, outcome, &mut all);
        let state = instance.scenario.expect.state_of(side);
        if let Some(other) = outcome.states.iter().find(|is| *is != state) {
            all.push(Difference::new(side, Subject::State, state, other));
        }
        let mut events = instance.scenario.expect.events_of(side).to_vec();
        events.sort();
        if events != outcome.events {
            let told = |events: &[String]| match events {
                [] => "no events".to_owned(),
                events => events.join(", "),
            };
            all.push(Difference::new(
                side,
                Subject::Events,
                &told(&events),
                &told(&outcome.events),
            ));
        }
        for mismatch in &outcome.mismatches {
            all.push(Difference::new(side, Subject::Memory, "memory as expected", mismatch));
        }
    }
    packets(instance, trace, &mut all);
    faults(instance, trace, &mut all);
    all
}

/// Faults that never matched a packet: what the scenario is about did not happen. If one side
/// stopped early, that says it already.
fn faults(instance: &Instance, trace: &Trace, all: &mut Vec<Difference>) {
    if Side::BOTH.into_iter().any(|side| trace.side(side).trouble.is_some()) {
        return;
    }
    for (at, fault) in instance.scenario.faults.iter().enumerate() {
        let injected = |side| trace.side(side).faults.as_ref()?.get(&at).copied();
        // Both sides may hold a wire and inject the same fault.
        let times: Vec<u32> = Side::BOTH.into_iter().filter_map(injected).collect();
        if times.iter().all(|times| *times == 0) && !times.is_empty() {
            let expected = format!("fault {at} matches a packet of the {}", fault.from);
            let found = format!("fault {at} never matched");
            all.push(Difference::new(fault.from, Subject::Fault, &expected, &found));
        }
    }
}

/// Compares the numbers of packets, where they do not depend on time.
fn packets(instance: &Instance, trace: &Trace, all: &mut Vec<Difference>) {
    for sent in &instance.scenario.expect.packets {
        let Some(seen) = trace.sent_by(sent.from) else { continue };
        let times = seen.iter().filter(|packet| packet.line.contains(&sent.packet)).count();
        if times != sent.times {
            let text = |times| format!("{} {times} times", sent.packet);
            let (expected, found) = (text(sent.times), text(times));
            all.push(Difference::new(sent.from, Subject::Packet, &expected, &found));
        }
    }
}

/// The completions of a side, sends and receives each in order.
fn completions(instance: &Instance, side: Side, outcome: &Outcome, all: &mut Vec<Difference>) {
    let expected = instance
        .scenario
        .expect
        .of(side)
        .iter()
        .flat_map(|done| std::iter::repeat_n(done, done.times.unwrap_or(1) as usize));
    let (recvs, sends): (Vec<&Done>, Vec<&Done>) = expected.partition(|done| is_recv(done, side));
    let queues = [(false, "send", sends), (true, "receive", recvs)];
    for (recv, queue, expected) in queues {
        let got: Vec<&Completion> =
            outcome.completions.iter().filter(|it| it.recv == recv).collect();
        for at in 0..expected.len().max(got.len()) {
            let number = at + 1;
            let difference = match (expected.get(at), got.get(at)) {
                (Some(done), Some(got)) if fits(instance, done, got) => continue,
                (Some(done), Some(got)) => (describe(instance, done), got.to_string()),
                (Some(done), None) => (describe(instance, done), "none".to_owned()),
                (None, Some(got)) => (format!("no {queue} completion {number}"), got.to_string()),
                (None, None) => continue,
            };
            all.push(Difference::new(side, Subject::Completion, &difference.0, &difference.1));
        }
    }
}

fn is_recv(done: &Done, side: Side) -> bool {
    let by_opcode = done.opcode.as_ref().map(|opcode| opcode.starts_with("recv"));
    done.recv.or(by_opcode).unwrap_or(side == Side::Responder)
}

/// Returns the completion opcode of a request.
fn completes_as(action: Action) -> &'static str {
    match action {
        Action::Send | Action::SendImm | Action::SendInv => "send",
        Action::Write | Action::WriteImm => "rdma_write",
        Action::Read => "rdma_read",
        Action::FetchAdd => "fetch_add",
        Action::CompareSwap => "comp_swap",
        Action::AtomicWrite => "atomic_write",
        Action::Flush => "flush",
        Action::BindMw => "bind_mw",
        Action::LocalInv => "local_inv",
        Action::Recv | Action::SrqRecv => "recv",
        Action::Wait | Action::Sleep | Action::See | Action::Modify | Action::Op => "nothing",
    }
}

/// A completion as it is expected, with every number counted.
fn wanted(instance: &Instance, done: &Done) -> (String, Option<String>, Option<u64>) {
    let status = done.status.clone().unwrap_or_else(|| "success".to_owned());
    let opcode = done.opcode.as_deref().map(|opcode| match opcode {
        "op" => completes_as(instance.op).to_owned(),
        other => other.to_owned(),
    });
    let byte_len = done.byte_len.as_ref().and_then(|len| len.value(instance.values()).ok());
    (status, opcode, byte_len)
}

fn fits(instance: &Instance, done: &Done, got: &Completion) -> bool {
    let (status, opcode, byte_len) = wanted(instance, done);
    got.status == status
        && (opcode.is_none() || got.opcode == opcode)
        && (byte_len.is_none() || got.byte_len.map(u64::from) == byte_len)
        && (done.imm.is_none() || got.imm == done.imm)
        && (done.invalidated.is_none() || got.invalidated == done.invalidated)
}

fn describe(instance: &Instance, done: &Done) -> String {
    let (status, opcode, byte_len) = wanted(instance, done);
    let parts = [
        Some(status),
        opcode,
        byte_len.map(|len| format!("byte_len {len}")),
        done.imm.map(|imm| format!("imm {imm:#010x}")),
        done.invalidated.as_ref().map(|name| format!("invalidated {name}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
