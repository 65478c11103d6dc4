//! Steps of a side, and faults of the wire.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Side;
use super::super::expand::Expr;
use crate::link::fault;

/// Action of a step.
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
    /// Wait for `count` more completions, or for 1.
    Wait,
    /// Wait for a number of milliseconds.
    Sleep,
    /// Wait until such a packet has come from the peer; where packets cannot be observed, for 20
    /// milliseconds.
    See,
    /// Take the queue pair to another state.
    Modify,
    /// The operation that the scenario's `op` names.
    Op,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Flag of a request.
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

/// A step of a side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Action of the requester.
    pub requester: Option<Action>,
    /// Action of the responder. A step has one of the two.
    pub responder: Option<Action>,
    /// Index of the queue pair, from 0.
    #[serde(default)]
    pub qp: usize,
    /// Number of bytes: `size` if absent, 40 more for a receive of datagrams, 8 for ATOMICs.
    pub len: Option<Expr>,
    /// The local buffer: `main` if nothing is said.
    pub buffer: Option<String>,
    /// Offset in the local buffer.
    pub at: Option<Expr>,
    /// The lengths of several pieces, 16 bytes apart, instead of one of `len`.
    pub sges: Option<Vec<Expr>>,
    /// The buffer or window at the peer: `main` if nothing is said. Of `bind_mw` and `local_inv`,
    /// the window here.
    pub remote: Option<String>,
    /// Offset in the remote buffer; may lie outside.
    pub to: Option<Expr>,
    /// Flags of the request.
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Value that `fetch_add` adds and `compare_swap` stores.
    pub value: Option<u64>,
    /// Value that `compare_swap` expects.
    pub compare: Option<u64>,
    /// A wrong remote key.
    #[serde(default)]
    pub wrong_rkey: bool,
    /// A wrong local key.
    #[serde(default)]
    pub wrong_lkey: bool,
    /// Queue key other than the peer's.
    pub qkey: Option<u32>,
    /// A queue pair that the peer does not have.
    #[serde(default)]
    pub wrong_qpn: bool,
    /// Access rights of a window.
    pub access: Option<Vec<String>>,
    /// Whether posting it must be refused.
    #[serde(default)]
    pub refused: bool,
    /// Number of repetitions.
    pub times: Option<u32>,
    /// Number of completions that `wait` waits for.
    pub count: Option<u32>,
    /// The packet that `see` waits for: a word of its opcode.
    pub packet: Option<String>,
    /// Duration of `sleep` in milliseconds.
    pub ms: Option<u64>,
    /// Target state of `modify`: reset, init, err.
    pub state: Option<String>,
}

impl Step {
    /// Returns the side of the step and its action.
    pub fn who(&self) -> Option<(Side, Action)> {
        match (self.requester, self.responder) {
            (Some(action), None) => Some((Side::Requester, action)),
            (None, Some(action)) => Some((Side::Responder, action)),
            _ => None,
        }
    }
}

/// A fault of the wire. It applies to packets that match all conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Sender of the packet.
    pub from: Side,
    /// PSN of the packet, counted from the first of the requests that it belongs to.
    pub psn: Option<u32>,
    /// Part of the packet's opcode (`ACKNOWLEDGE`, `READ_RESPONSE`), as `roce decode` prints it.
    pub packet: Option<String>,
    /// Number of the matching packet, from 1; 0 is every one.
    #[serde(default = "first")]
    pub nth: u32,
    /// Effect on the packet.
    #[serde(rename = "do")]
    pub effect: FaultEffect,
}

const fn first() -> u32 {
    1
}

/// Effect of a fault on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultEffect {
    /// The packet is lost.
    Drop,
    /// The packet arrives twice.
    Duplicate,
    /// The packet arrives ten milliseconds later.
    Delay,
    /// The packet arrives behind the next one.
    Swap,
    /// A bit of it changes, so that the ICRC is wrong.
    Corrupt,
}

impl FaultEffect {
    /// Returns the action of the fault injector.
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

/// Delay of a delayed packet.
const DELAY: Duration = Duration::from_millis(10);
