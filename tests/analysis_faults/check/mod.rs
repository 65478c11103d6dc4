//! Compares what the analysis says with what happened.
//!
//! What a view cannot know in principle is exempt, by the predicates of [`exempt`], each with its
//! reason.

mod counters;
mod exempt;
mod findable;
mod findings;
mod losses;
mod messages;
mod packets;
mod pairing;
pub mod tally;

use std::cell::RefCell;
use std::collections::BTreeSet;

use roce::verbs::QpType;

use super::observe::Observed;
use super::plan::Scenario;
use super::truth::{Transmission, Truth};
use super::wire::Hop;

/// The comparison of one analysis with the truth.
pub struct Check<'c> {
    scenario: &'c Scenario,
    truth: &'c Truth,
    seen: &'c Observed<'c>,
    /// Differences between the analysis and the truth.
    wrong: RefCell<Vec<String>>,
    /// The exemptions without which more would not agree.
    excused: RefCell<BTreeSet<&'static str>>,
}

/// The points that a sender's packets pass, in order.
fn way(sender: usize) -> [usize; 3] {
    if sender == 0 { [0, 1, 2] } else { [2, 1, 0] }
}

/// The index in [`way`] of a point.
fn position(sender: usize, point: usize) -> usize {
    way(sender).iter().position(|&at| at == point).unwrap()
}

/// Index in [`way`] of the last point that sees a packet which a hop loses.
fn last_point(sender: usize, hop: Hop) -> usize {
    match (sender, hop) {
        (0, Hop::A) | (1, Hop::B) => 0,
        _ => 1,
    }
}

/// Differences, and the names of the exemptions that were needed.
pub struct Outcome {
    pub wrong: Vec<String>,
    pub excused: BTreeSet<&'static str>,
}

pub fn check(scenario: &Scenario, truth: &Truth, seen: &Observed<'_>) -> Outcome {
    let (wrong, excused) = (RefCell::default(), RefCell::default());
    let check = Check { scenario, truth, seen, wrong, excused };
    check.pairing();
    if !check.cannot_compare_clocks() {
        check.packets();
        check.losses();
        check.counters();
        check.findings();
        check.messages();
        check.transits();
    }
    Outcome { wrong: check.wrong.into_inner(), excused: check.excused.into_inner() }
}

impl Check<'_> {
    fn say(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    /// Notes that the exemption `why` is needed, if it holds. Ask only where the analysis and the
    /// truth differ.
    fn excuse(&self, why: &'static str, holds: bool) -> bool {
        if holds {
            self.excused.borrow_mut().insert(why);
        }
        holds
    }

    fn is_merged(&self) -> bool {
        self.seen.points.len() > 1
    }

    /// Whether a host's own point is among those that captured.
    fn has_point_of(&self, host: usize) -> bool {
        self.seen.points.contains(&(host * 2))
    }

    fn has_both_ends(&self) -> bool {
        self.has_point_of(0) && self.has_point_of(1)
    }

    fn is_reliable(&self, connection: usize) -> bool {
        self.scenario.connections[connection].kind == QpType::Rc
    }

    fn words(&self, packet: &Transmission) -> String {
        let Transmission { connection, sender, psn, opcode, cause, .. } = packet;
        let sender = ["A", "B"][*sender];
        let again = cause.map_or(String::new(), |cause| format!(" again for {cause:?}"));
        format!("connection {connection}, {sender}'s {opcode} psn {psn}{again}")
    }
}
