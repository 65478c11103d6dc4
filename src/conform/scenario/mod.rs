//! Scenarios, as they are written in TOML.
//!
//! ```toml
//! [[scenario]]
//! name  = "write"
//! about = "A WRITE puts every byte where it belongs."
//! mtu   = [256, 1024]                       # a list is run once for each
//! size  = [0, 1, "mtu-1", "mtu", "5*mtu"]   # numbers, or sums and products with `size` and `mtu`
//! steps = [{ requester = "write" }]         # in this order: each side waits for the other's step
//! expect.requester = [{ opcode = "rdma_write" }]
//! expect.memory = ["responder 0..size = requester 0"]
//! ```
//!
//! Each side has a queue pair that is connected to the other's, and a buffer `main` of `2*size+128`
//! bytes with all rights, filled with a pattern of its own. Bytes that `expect.memory` does not
//! name must be unchanged. A scenario ends when every completion that it expects has come.
//!
//! | file | holds |
//! |---|---|
//! | this one | a scenario as a whole |
//! | `sides` | objects of a side: queue pairs, buffers, windows, and access rights |
//! | `steps` | steps of a side, and faults on the wire |
//! | `outcome` | expected completions, states, events, packets and memory |
//! | `read` | parses a file, with errors that say what to change |
//! | `check` | checks that everything a scenario names exists, and keeps to the limits |
//! | `words` | names of completions, states, events and packets |
//! | [`limits`] | the limits |

mod check;
pub mod limits;
mod outcome;
mod read;
mod sides;
mod steps;
mod words;

use serde::{Deserialize, Serialize};

pub(super) use self::check::check;
pub use self::outcome::{Done, Expect, Sent};
pub use self::read::{ScenarioError, built_in, read};
pub(super) use self::sides::{ALL_RIGHTS, access_of};
pub use self::sides::{BufferSpec, Kind, MAIN, QpSpec, SideSpec, WindowSpec};
pub use self::steps::{Action, Fault, FaultEffect, Flag, Step};
pub(super) use self::words::word;
use super::Side;
use super::expand::Expr;

/// One value, or several: the scenario is run once for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Several<T> {
    /// Several.
    Many(Vec<T>),
    /// One value.
    One(T),
}

impl<T: Clone> Several<T> {
    /// Returns all values.
    pub fn all(&self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::Many(many) => many.clone(),
        }
    }

    /// Whether there are several, so that the value is in the name of the instance.
    pub fn varies(&self) -> bool {
        matches!(self, Self::Many(_))
    }
}

/// A scenario: the steps of two sides, and the expected result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// Purpose, in a sentence.
    pub about: String,
    /// Type of the queue pairs; RC by default.
    #[serde(default, rename = "type")]
    pub kind: Kind,
    /// Path MTU; 1024 by default.
    #[serde(default = "usual_mtu")]
    pub mtu: Several<u32>,
    /// Message length, for expressions; 64 by default.
    #[serde(default = "usual_size")]
    pub size: Several<Expr>,
    /// Operation that a step `op` posts.
    #[serde(default = "no_op")]
    pub op: Several<Action>,
    /// Number of queue pairs of each side; 1 by default.
    #[serde(default = "one")]
    pub qps: usize,
    /// Attributes of the queue pairs of both sides.
    #[serde(default)]
    pub qp: QpSpec,
    /// Objects of the requester.
    #[serde(default)]
    pub requester: SideSpec,
    /// Objects of the responder.
    #[serde(default)]
    pub responder: SideSpec,
    /// Steps, in this order.
    pub steps: Vec<Step>,
    /// Faults on the wire.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Expected outcome.
    #[serde(default)]
    pub expect: Expect,
    /// Time limit in seconds; 5 by default.
    #[serde(default = "usual_limit")]
    pub limit: u64,
}

fn usual_mtu() -> Several<u32> {
    Several::One(1024)
}

fn usual_size() -> Several<Expr> {
    Several::One(Expr::Number(64))
}

fn no_op() -> Several<Action> {
    Several::One(Action::Wait)
}

const fn usual_limit() -> u64 {
    5
}

const fn one() -> usize {
    1
}

impl Scenario {
    /// Returns the objects of a side.
    pub fn side(&self, side: Side) -> &SideSpec {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// Returns the buffers of a side, `main` included.
    pub fn buffers(&self, side: Side) -> Vec<BufferSpec> {
        let own = &self.side(side).buffers;
        let main = (!own.iter().any(|buffer| buffer.name == MAIN)).then(BufferSpec::main);
        main.into_iter().chain(own.iter().cloned()).collect()
    }
}
