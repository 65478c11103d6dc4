//! What a person writes.
//!
//! ```toml
//! [[scenario]]
//! name  = "write"
//! about = "A WRITE puts every byte where it belongs."
//! mtu   = [256, 1024]                       # a list is run once for each
//! size  = [0, 1, "mtu-1", "mtu", "5*mtu"]   # numbers, or sums and products with `size` and `mtu`
//! steps = [{ requester = "write" }]         # in this order; who comes next waits for who came before
//! expect.requester = [{ opcode = "rdma_write" }]
//! expect.memory = ["responder 0..size = requester 0"]
//! ```
//!
//! Each side has a queue pair that is connected to the other's, and a buffer `main` of `2*size+128` bytes with all rights,
//! filled with a pattern of its own. What is not named in `expect.memory` must be as it was. A scenario ends when every
//! completion that it expects is there.
//!
//! | file | holds |
//! |---|---|
//! | this one | a scenario as a whole |
//! | `sides` | what a side has: queue pairs, buffers, windows, and the rights to them |
//! | `steps` | what is done: the steps of a side, and the faults of the wire |
//! | `outcome` | what must hold in the end |
//! | `read` | a file of scenarios becomes instances, or an error that names its cure |
//! | `check` | whether everything that a scenario names is there, and within its bound |
//! | `words` | what completions, states, events and packets are called |
//! | [`limits`] | the bounds |

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
pub use self::steps::{Action, Deed, Fault, Flag, Step};
pub(super) use self::words::word;
use super::Side;
use super::expand::Expr;

/// One value, or several, each of which is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Several<T> {
    /// Several.
    Many(Vec<T>),
    /// One.
    One(T),
}

impl<T: Clone> Several<T> {
    /// All of them.
    pub fn all(&self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::Many(many) => many.clone(),
        }
    }

    /// Whether each is run by itself, and so has a name.
    pub fn varies(&self) -> bool {
        matches!(self, Self::Many(_))
    }
}

/// A story with two sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// The kind of its queue pairs: RC if nothing is said.
    #[serde(default, rename = "type")]
    pub kind: Kind,
    /// The payload of a packet: 1024 if nothing is said.
    #[serde(default = "usual_mtu")]
    pub mtu: Several<u32>,
    /// The length of its messages, for expressions: 64 if nothing is said.
    #[serde(default = "usual_size")]
    pub size: Several<Expr>,
    /// What a step `op` posts.
    #[serde(default = "no_op")]
    pub op: Several<Action>,
    /// How many queue pairs each side has: 1 if nothing is said.
    #[serde(default = "one")]
    pub qps: usize,
    /// Attributes of the queue pairs of both sides.
    #[serde(default)]
    pub qp: QpSpec,
    /// What the requester has.
    #[serde(default)]
    pub requester: SideSpec,
    /// What the responder has.
    #[serde(default)]
    pub responder: SideSpec,
    /// What is done, in this order.
    pub steps: Vec<Step>,
    /// What the wire does.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What must hold.
    #[serde(default)]
    pub expect: Expect,
    /// How long it may take, in seconds: 5 if nothing is said.
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
    /// What a side has.
    pub fn side(&self, side: Side) -> &SideSpec {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// The buffers of a side, `main` among them.
    pub fn buffers(&self, side: Side) -> Vec<BufferSpec> {
        let own = &self.side(side).buffers;
        let main = (!own.iter().any(|buffer| buffer.name == MAIN)).then(BufferSpec::main);
        main.into_iter().chain(own.iter().cloned()).collect()
    }
}
