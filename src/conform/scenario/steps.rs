//! What is done: the steps of a side, and the faults of the wire.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Side;
use super::super::expand::Expr;
use crate::link::fault;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the verb that it names")]
pub enum Action {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Flush,
    BindMw,
    LocalInv,
    Recv,
    SrqRecv,
    /// Wait for so many completions more (`count`, or 1).
    Wait,
    /// Wait for so many milliseconds.
    Sleep,
    /// Wait until such a packet has come from the peer; where packets cannot be observed, for 20
    /// milliseconds.
    See,
    /// Take the queue pair to another state.
    Modify,
    /// What the scenario's `op` says.
    Op,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How a request is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the flag that it names")]
pub enum Flag {
    Fence,
    Solicited,
    Inline,
    /// Without a completion, unless it fails. All others have one.
    Unsignaled,
}

/// One thing that a side does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What the requester does.
    pub requester: Option<Action>,
    /// What the responder does. One of the two is there.
    pub responder: Option<Action>,
    /// Which queue pair, from 0.
    #[serde(default)]
    pub qp: usize,
    /// How many bytes: `size` if nothing is said, 40 more for a receive of datagrams, 8 for
    /// atomics.
    pub len: Option<Expr>,
    /// The local buffer: `main` if nothing is said.
    pub buffer: Option<String>,
    /// Where in it.
    pub at: Option<Expr>,
    /// The lengths of several pieces, 16 bytes apart, instead of one of `len`.
    pub sges: Option<Vec<Expr>>,
    /// The buffer or window at the peer: `main` if nothing is said. Of `bind_mw` and `local_inv`,
    /// the window here.
    pub remote: Option<String>,
    /// Where in it; may lie outside.
    pub to: Option<Expr>,
    /// How it is posted.
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// What `fetch_add` adds, and `compare_swap` puts.
    pub value: Option<u64>,
    /// What `compare_swap` expects.
    pub compare: Option<u64>,
    /// A wrong remote key.
    #[serde(default)]
    pub wrong_rkey: bool,
    /// A wrong local key.
    #[serde(default)]
    pub wrong_lkey: bool,
    /// Another queue key than the peer's.
    pub qkey: Option<u32>,
    /// A queue pair that the peer does not have.
    #[serde(default)]
    pub wrong_qpn: bool,
    /// What a window shall allow.
    pub access: Option<Vec<String>>,
    /// Whether posting it must be refused.
    #[serde(default)]
    pub refused: bool,
    /// How often it is done.
    pub times: Option<u32>,
    /// How many completions `wait` waits for.
    pub count: Option<u32>,
    /// The packet that `see` waits for: a word of its opcode.
    pub packet: Option<String>,
    /// How many milliseconds `sleep` takes.
    pub ms: Option<u64>,
    /// To which state `modify` goes: reset, init, err.
    pub state: Option<String>,
}

impl Step {
    /// Who does it, and what.
    pub fn who(&self) -> Option<(Side, Action)> {
        match (self.requester, self.responder) {
            (Some(action), None) => Some((Side::Requester, action)),
            (None, Some(action)) => Some((Side::Responder, action)),
            _ => None,
        }
    }
}

/// What the wire does to a packet. All that is said of the packet must be so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Who sent it.
    pub from: Side,
    /// Its PSN, counted from the first of the requests that it belongs to.
    pub psn: Option<u32>,
    /// What it is: a word of its opcode (`ACKNOWLEDGE`, `READ_RESPONSE`), as `roce decode` prints
    /// it.
    pub packet: Option<String>,
    /// Which time such a packet passes, from 1; 0 is every time.
    #[serde(default = "first")]
    pub nth: u32,
    /// What is done.
    #[serde(rename = "do")]
    pub deed: Deed,
}

const fn first() -> u32 {
    1
}

/// What is done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives ten milliseconds later.
    Delay,
    /// It arrives behind the next one.
    Swap,
    /// A bit of it changes, so that the ICRC is wrong.
    Corrupt,
}

impl Deed {
    /// What the fault injector is told.
    pub(in super::super) const fn action(self) -> fault::Action {
        match self {
            Self::Drop => fault::Action::Drop,
            Self::Duplicate => fault::Action::Duplicate,
            Self::Delay => fault::Action::Delay(DELAY),
            Self::Swap => fault::Action::Swap,
            Self::Corrupt => fault::Action::Corrupt,
        }
    }
}

/// How much later a delayed packet comes.
const DELAY: Duration = Duration::from_millis(10);
