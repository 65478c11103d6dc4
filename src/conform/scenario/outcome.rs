//! What must hold in the end: completions, memory, states, events and packets.

use serde::{Deserialize, Serialize};

use super::super::Side;
use super::super::expand::Expr;

/// What must hold in the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The completions of the requester, those of sends before those of receives.
    #[serde(default)]
    pub requester: Vec<Done>,
    /// The completions of the responder.
    #[serde(default)]
    pub responder: Vec<Done>,
    /// What memory holds: `SIDE[.BUFFER] FROM..TO = SIDE[.BUFFER] FROM` (as it was at the
    /// beginning), `= word N`, or `= anything`. All other bytes are as they were.
    #[serde(default)]
    pub memory: Vec<String>,
    /// The state of the requester's queue pairs: RTS if nothing is said.
    pub requester_state: Option<String>,
    /// The state of the responder's queue pairs.
    pub responder_state: Option<String>,
    /// What else the requester is told: `qp_access_err`.
    #[serde(default)]
    pub requester_events: Vec<String>,
    /// What else the responder is told.
    #[serde(default)]
    pub responder_events: Vec<String>,
    /// How often packets are sent, where that is not left to time. It is looked at where packets
    /// can be seen.
    #[serde(default)]
    pub packets: Vec<Sent>,
}

impl Expect {
    /// The completions of a side.
    pub fn of(&self, side: Side) -> &[Done] {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// The state that the queue pairs of a side shall have.
    pub fn state_of(&self, side: Side) -> &str {
        let state = match side {
            Side::Requester => &self.requester_state,
            Side::Responder => &self.responder_state,
        };
        state.as_deref().unwrap_or("rts")
    }

    /// The events of a side.
    pub fn events_of(&self, side: Side) -> &[String] {
        match side {
            Side::Requester => &self.requester_events,
            Side::Responder => &self.responder_events,
        }
    }
}

/// How often a side sends such packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// Who sends them.
    pub from: Side,
    /// A word of what `roce decode` tells of them: `SEND_ONLY`, `RNR`.
    pub packet: String,
    /// How often.
    pub times: usize,
}

/// A completion. What is not said may be anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// Its status: `success` if nothing is said.
    pub status: Option<String>,
    /// What it was. `op` is what the scenario's `op` completes as.
    pub opcode: Option<String>,
    /// How many bytes.
    pub byte_len: Option<Expr>,
    /// Its immediate data.
    pub imm: Option<u32>,
    /// The window that was invalidated.
    pub invalidated: Option<String>,
    /// Whether a receive completes; if nothing is said, so it is at the responder and not at the
    /// requester.
    pub recv: Option<bool>,
    /// How many such completions: 1 if nothing is said.
    pub times: Option<u32>,
}
