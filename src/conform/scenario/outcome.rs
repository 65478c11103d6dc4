//! Expected outcome: completions, memory, states, events and packets.

use serde::{Deserialize, Serialize};

use super::super::Side;
use super::super::expand::Expr;

/// Expected outcome of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The completions of the requester, those of sends before those of receives.
    #[serde(default)]
    pub requester: Vec<Done>,
    /// The completions of the responder.
    #[serde(default)]
    pub responder: Vec<Done>,
    /// Contents of memory: `SIDE[.BUFFER] FROM..TO = SIDE[.BUFFER] FROM` (as it was at the
    /// beginning), `= word N`, or `= anything`. All other bytes are as they were.
    #[serde(default)]
    pub memory: Vec<String>,
    /// The state of the requester's queue pairs: RTS if nothing is said.
    pub requester_state: Option<String>,
    /// The state of the responder's queue pairs.
    pub responder_state: Option<String>,
    /// Asynchronous events of the requester: `qp_access_err`.
    #[serde(default)]
    pub requester_events: Vec<String>,
    /// Asynchronous events of the responder.
    #[serde(default)]
    pub responder_events: Vec<String>,
    /// Numbers of packets, where they do not depend on time. Checked only where packets can be
    /// captured.
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

/// Number of packets of one kind that a side sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// Sender.
    pub from: Side,
    /// A word of what `roce decode` tells of them: `SEND_ONLY`, `RNR`.
    pub packet: String,
    /// Number of packets.
    pub times: usize,
}

/// A completion. What is not said may be anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// Status; `success` if absent.
    pub status: Option<String>,
    /// Opcode. `op` is what the scenario's `op` completes as.
    pub opcode: Option<String>,
    /// Number of bytes.
    pub byte_len: Option<Expr>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The window that was invalidated.
    pub invalidated: Option<String>,
    /// Whether a receive completes; if nothing is said, so it is at the responder and not at the
    /// requester.
    pub recv: Option<bool>,
    /// Number of such completions; 1 if absent.
    pub times: Option<u32>,
}
