//! Names of completions, states, events and packets in a scenario.

use super::{Done, Expect, Sent};
use crate::verbs::{EventType, QpState, WcOpcode, WcStatus};
use crate::wire::Opcode;
use crate::wire::aeth::Syndrome;

/// A verbs constant as scenarios and reports write it: in lower case, without its prefix.
pub(in super::super) fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_ascii_lowercase()
}

fn statuses() -> Vec<String> {
    WcStatus::ALL.iter().map(|status| word(status.name(), "IBV_WC_")).collect()
}

fn opcodes() -> Vec<String> {
    let verbs = WcOpcode::ALL.iter().map(|opcode| word(opcode.name(), "IBV_WC_"));
    verbs.chain(["op".to_owned()]).collect()
}

fn events() -> Vec<String> {
    EventType::ALL.iter().map(|event| word(event.name(), "IBV_EVENT_")).collect()
}

fn states() -> Vec<String> {
    QpState::ALL.iter().map(|state| state.text().to_ascii_lowercase()).collect()
}

/// Refuses a word that nothing is called by.
fn known(field: &str, text: &str, what: &str, all: &[String]) -> Result<(), String> {
    if all.iter().any(|known| known == text) {
        return Ok(());
    }
    Err(format!("{field}: there is no {what} `{text}`; there are {}", all.join(", ")))
}

/// Refuses a state that no queue pair has.
pub(super) fn state(field: &str, text: &str) -> Result<(), String> {
    known(field, text, "state", &states())
}

/// Refuses what no opcode of a packet has in its name.
pub(super) fn opcode(field: &str, text: &str) -> Result<(), String> {
    let named = |code: u8| Opcode(code).info().is_some_and(|info| info.name.contains(text));
    if !text.is_empty() && (0..=u8::MAX).any(named) {
        return Ok(());
    }
    Err(format!(
        "{field}: no opcode has `{text}` in its name; names are as `roce decode` prints them, such as SEND_ONLY, \
         READ_RESPONSE, ACKNOWLEDGE"
    ))
}

/// The words of a line of `roce decode`, beside opcodes, syndromes and numbers.
const LINE: &[&str] = &[
    "qp",
    "psn",
    "ack-req",
    "solicited",
    "fecn",
    "becn",
    "pkey",
    "tver",
    "ce",
    "ee",
    "src-qp",
    "qkey",
    "srq",
    "flush",
    "range",
    "region",
    "placement",
    "va",
    "rkey",
    "dmalen",
    "add",
    "compare",
    "swap",
    "was",
    "imm",
    "invalidate",
    "len",
    "pad",
    "msn",
];

/// Refuses what no line of `roce decode` can contain.
fn line(field: &str, text: &str) -> Result<(), String> {
    let syndromes: Vec<String> =
        (0..=u8::MAX).map(|it| Syndrome(it).answer().to_string()).collect();
    let can_be = |token: &str| {
        let name = token.split('=').next().unwrap_or_default();
        LINE.contains(&name)
            || token.starts_with(|c: char| c.is_ascii_digit())
            || syndromes.iter().any(|line| line.split(' ').any(|part| part == token))
            || opcode(field, token).is_ok()
    };
    match text.split(' ').find(|token| !can_be(token)) {
        None => Ok(()),
        Some(token) => Err(format!(
            "{field}: `roce decode` never prints `{token}`; it prints opcodes such as SEND_ONLY and syndromes such as \
             `NAK PSN sequence error`"
        )),
    }
}

/// Refuses words in an expectation that nothing is called by.
pub(super) fn check(expect: &Expect) -> Result<(), String> {
    let sides = [
        ("requester", &expect.requester, &expect.requester_state, &expect.requester_events),
        ("responder", &expect.responder, &expect.responder_state, &expect.responder_events),
    ];
    for (side, done, is, told) in sides {
        for (at, Done { status, opcode, .. }) in done.iter().enumerate() {
            if let Some(status) = status {
                known(&format!("expect.{side}[{at}].status"), status, "status", &statuses())?;
            }
            if let Some(opcode) = opcode {
                known(&format!("expect.{side}[{at}].opcode"), opcode, "opcode", &opcodes())?;
            }
        }
        if let Some(is) = is {
            state(&format!("expect.{side}_state"), is)?;
        }
        for (at, event) in told.iter().enumerate() {
            known(&format!("expect.{side}_events[{at}]"), event, "event", &events())?;
        }
    }
    for (at, Sent { packet, .. }) in expect.packets.iter().enumerate() {
        line(&format!("expect.packets[{at}].packet"), packet)?;
    }
    Ok(())
}
