//! Differences between two traces.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Side;
use super::normalize::sequence;
use super::trace::{Packet, Trace};

/// Subject of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A completion.
    Completion,
    /// Contents of memory.
    Memory,
    /// The state of a queue pair.
    State,
    /// Asynchronous events.
    Events,
    /// A packet that was sent.
    Packet,
    /// A fault that was never injected.
    Fault,
    /// A side could not continue.
    Trouble,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A difference between the expected and the observed behavior.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Side at which it was observed; of a packet, its sender.
    pub side: Side,
    /// Subject.
    pub subject: Subject,
    /// Expected value: by the scenario, or as with the reference.
    pub expected: String,
    /// Observed value.
    pub found: String,
    /// Number of the packet in its direction, from 1, not counting those that depend on time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub number: Option<usize>,
}

impl Difference {
    pub(super) fn new(side: Side, subject: Subject, expected: &str, found: &str) -> Self {
        let (expected, found) = (expected.to_owned(), found.to_owned());
        Self { side, subject, expected, found, number: None }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, subject, expected, found, number } = self;
        let number = number.map_or(String::new(), |number| format!(" {number}"));
        write!(f, "{side}: {subject}{number}\n  expected  {expected}\n  found     {found}")
    }
}

/// Compares a trace with the reference's: returns at most one difference for each side and subject,
/// the first.
pub fn compare(trace: &Trace, reference: &Trace) -> Vec<Difference> {
    let mut all = Vec::new();
    for side in Side::BOTH {
        let (is, was) = (trace.side(side), reference.side(side));
        if is.trouble.is_some() || was.trouble.is_some() {
            continue;
        }
        let done = first(&is.completions, &was.completions);
        all.extend(done.map(|(found, expected)| {
            Difference::new(side, Subject::Completion, &told(expected), &told(found))
        }));
        if is.states != was.states {
            let (expected, found) = (was.states.join(", "), is.states.join(", "));
            all.push(Difference::new(side, Subject::State, &expected, &found));
        }
        if is.events != was.events {
            let (expected, found) = (was.events.join(", "), is.events.join(", "));
            all.push(Difference::new(side, Subject::Events, &expected, &found));
        }
        for (name, sum) in was.memory.iter().filter(|(name, sum)| is.memory.get(*name) != Some(sum))
        {
            let found = is.memory.get(name).copied().unwrap_or_default();
            let text = |sum| format!("{name} with the checksum {sum:#010x}");
            all.push(Difference::new(side, Subject::Memory, &text(*sum), &text(found)));
        }
        all.extend(packets(trace, reference, side));
    }
    all
}

fn told<T: fmt::Display>(one: Option<&T>) -> String {
    one.map_or_else(|| "nothing more".to_owned(), ToString::to_string)
}

/// The first place where two sequences differ.
fn first<'t, T: PartialEq>(is: &'t [T], was: &'t [T]) -> Option<(Option<&'t T>, Option<&'t T>)> {
    let at = (0..is.len().max(was.len())).find(|at| is.get(*at) != was.get(*at))?;
    Some((is.get(at), was.get(at)))
}

/// The first packet of a side that differs.
fn packets(trace: &Trace, reference: &Trace, side: Side) -> Option<Difference> {
    let sent = |trace: &Trace| {
        let (own, answers) = (trace.sent_by(side)?, trace.sent_by(side.other())?);
        Some(sequence(&own, &answers).into_iter().cloned().collect::<Vec<Packet>>())
    };
    let (is, was) = (sent(trace)?, sent(reference)?);
    let at = (0..is.len().max(was.len())).find(|at| is.get(*at) != was.get(*at))?;
    let line = |packet: Option<&Packet>| match packet {
        Some(packet) => packet.line.clone(),
        None => "no further packet".to_owned(),
    };
    let (mut expected, mut found) = (line(was.get(at)), line(is.get(at)));
    if expected == found {
        // All that is told is the same, so it is what is carried.
        expected.push_str(&payload(was.get(at)));
        found.push_str(&payload(is.get(at)));
    }
    let difference = Difference::new(side, Subject::Packet, &expected, &found);
    Some(Difference { number: Some(at + 1), ..difference })
}

fn payload(packet: Option<&Packet>) -> String {
    packet.map_or(String::new(), |packet| {
        format!(" payload with the checksum {:#010x}", packet.payload)
    })
}
