//! A sequence as a scenario of `conform`, as far as its language goes.

use std::fmt::Write as _;

use super::memory::{Needs, Region};
use super::mutate::{Mutation, MutationKind};
use super::script::{Captured, Script};
use crate::wire::Operation;

/// A scenario that posts the messages of some requests of a script and lets the wire do what the
/// mutations do. What it cannot say stands in it as a comment.
pub fn to_scenario(
    name: &str,
    about: &str,
    script: &Script,
    kept: &[usize],
    mutations: &[Mutation],
) -> String {
    let all: Vec<&Captured> = script.requests().collect();
    let chosen: Vec<(usize, &Captured)> =
        kept.iter().filter_map(|index| Some((*index, *all.get(*index)?))).collect();
    let needs = Needs::of(script).unwrap_or_default();
    let messages = chosen.iter().filter(|(_, it)| it.position().is_some_and(|at| at.begins()));
    let lens: Vec<u64> = messages.clone().map(|(_, it)| length(script, it)).collect();
    let offset = |request: &Captured| {
        let packet = request.view();
        let address = packet.as_ref().and_then(|it| {
            it.reth().map(|reth| reth.va()).or_else(|| it.atomic_eth().map(|eth| eth.va()))
        });
        // What the capture's responder refused lies nowhere.
        let inside = |region: &Region, address: u64| {
            address.checked_sub(region.start).filter(|at| *at < region.bytes.len() as u64)
        };
        needs.regions.iter().find_map(|region| inside(region, address?))
    };
    let ends = messages.clone().zip(&lens).map(|((_, it), len)| offset(it).unwrap_or(0) + len);
    let size = ends.max().unwrap_or(64).clamp(64, 1 << 20);
    let mut text = String::new();
    let _ = writeln!(text, "[[scenario]]\nname = {name:?}\nabout = {about:?}");
    let _ = writeln!(text, "mtu = {}\nsize = {size}", script.mtu);
    let _ = writeln!(text, "steps = [");
    for ((index, request), len) in messages.zip(&lens) {
        let packet = request.view();
        let info = packet.as_ref().and_then(|it| it.info());
        let has_immediate = packet.as_ref().is_some_and(|it| it.imm_dt().is_some());
        let at = offset(request).unwrap_or(0);
        let has_access =
            packet.as_ref().is_some_and(|it| it.reth().is_some() || it.atomic_eth().is_some());
        let wrong = if has_access && *len > 0 && offset(request).is_none() {
            ", wrong_rkey = true"
        } else {
            ""
        };
        if info.is_some_and(|it| it.operation == Operation::Send) || has_immediate {
            let _ = writeln!(text, "  {{ responder = \"recv\", len = \"size\" }},");
        }
        let step = match info.map(|it| it.operation) {
            Some(Operation::Send) if has_immediate => format!("\"send_imm\", len = {len}, imm = 1"),
            Some(Operation::Send) => format!("\"send\", len = {len}"),
            Some(Operation::Write) if has_immediate => {
                format!("\"write_imm\", len = {len}, to = {at}, imm = 1")
            }
            Some(Operation::Write) => format!("\"write\", len = {len}, to = {at}"),
            Some(Operation::ReadRequest) => format!("\"read\", len = {len}, to = {at}"),
            Some(Operation::FetchAdd) => format!("\"fetch_add\", to = {}, value = 1", at & !7),
            Some(Operation::CompareSwap) => {
                format!("\"compare_swap\", to = {}, compare = 0, value = 1", at & !7)
            }
            _ => {
                let _ =
                    writeln!(text, "  # request {} is no work request of a scenario", index + 1);
                continue;
            }
        };
        let _ = writeln!(text, "  {{ requester = {step}{wrong} }},");
    }
    let _ = writeln!(text, "]");
    put_faults(&mut text, &chosen, mutations);
    text
}

/// The length of the message that a packet begins.
fn length(script: &Script, request: &Captured) -> u64 {
    let Some(packet) = request.view() else { return 0 };
    match packet.reth() {
        Some(reth) => reth.dma_len().into(),
        None if packet.atomic_eth().is_some() => 8,
        None => {
            // A SEND says nowhere how long it is.
            let later = script.requests().filter(|it| it.sequence > request.sequence);
            let mut len = packet.payload_len() as u64;
            if request.position().is_some_and(|at| at.ends()) {
                return len;
            }
            for next in later {
                len += next.view().map_or(0, |it| it.payload_len() as u64);
                if next.position().is_some_and(|at| at.ends()) {
                    break;
                }
            }
            len
        }
    }
}

fn put_faults(text: &mut String, chosen: &[(usize, &Captured)], mutations: &[Mutation]) {
    let (mut faults, mut comments) = (String::new(), String::new());
    for mutation in mutations {
        let psn = chosen.iter().position(|(index, _)| *index == mutation.at).unwrap_or(0);
        let deed = match mutation.kind {
            MutationKind::Drop => "drop",
            MutationKind::Double => "duplicate",
            MutationKind::Swap => "swap",
            MutationKind::Icrc(_) => "corrupt",
            MutationKind::Field(..) | MutationKind::Length(_) => {
                let _ = writeln!(
                    comments,
                    "# not in the language of scenarios: {mutation}; the capture has it"
                );
                continue;
            }
        };
        let _ = writeln!(faults, "  {{ from = \"requester\", psn = {psn}, do = \"{deed}\" }},");
    }
    if !faults.is_empty() {
        let _ = write!(text, "faults = [\n{faults}]\n");
    }
    text.push_str(&comments);
}
