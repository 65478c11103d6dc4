//! Verdicts on packets.

use super::Rule;
use crate::analysis::{End, FlowNumber};

/// A verdict on one packet of the capture, or on one that should have been there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The frame of the packet. Of an answer that is missing: the frame that proves that it should
    /// have come.
    pub frame: u64,
    /// Number of its connection.
    pub flow: FlowNumber,
    /// The end that sent it, 0 or 1 of [`Connection::ends`](crate::analysis::Connection::ends).
    pub sender: End,
    /// Kind of packet that is judged.
    pub subject: Subject,
    /// The verdict.
    pub verdict: Verdict,
}

/// Kind of packet that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A packet of a responder: ACK, NAK, READ response, ATOMIC acknowledgement.
    Response,
    /// A packet of a requester.
    Request,
    /// A datagram (UD), or a packet of an unreliable connection at its receiver.
    Datagram,
    /// A message of the connection manager.
    Management,
}

/// A verdict on one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A correct device could have sent it.
    Agreed,
    /// A broken rule, and the table of the device says that such devices break it.
    Known {
        /// The difference.
        difference: Box<Difference>,
        /// Reason from the table.
        reason: String,
    },
    /// The capture does not tell.
    Undecided(Undecided),
    /// No correct device sends it.
    Different(Box<Difference>),
}

/// Reason why the capture does not tell whether a packet is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Undecided {
    /// Depends on what happened before the capture began.
    BeforeCapture,
    /// Depends on packets that the capture misses.
    MissingPackets,
    /// The capture cut the packet short, or one that it depends on.
    Cut,
    /// The network damaged it: its ICRC is wrong.
    Damaged,
    /// The network may have made a copy of it, or delivered it late.
    Network,
    /// Depends on which two queue pairs are one connection, which is not known for sure.
    Pairing,
    /// Depends on the other direction, of which the capture has nothing.
    OneDirection,
    /// Depends on something that was forgotten for lack of room: see `limits`.
    BeyondLimits,
    /// The opcode, or what it needs, is not one that the engine executes.
    Unsupported,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The rule.
    pub rule: &'static Rule,
    /// The mistake, with the numbers: "MSN 7, expected 6".
    pub found: String,
    /// The captured packet from its BTH on, without ICRC; nothing if the packet is missing.
    pub captured: Option<Vec<u8>>,
    /// A packet that would have been right, in the names (QPNs, keys, addresses) of the capture,
    /// where there is one.
    pub expected: Option<Vec<u8>>,
    /// Other frames to look at: the request, the packet that was seen before.
    pub frames: Vec<u64>,
}

impl Undecided {
    /// Returns its words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::BeforeCapture => "began before the capture",
            Self::MissingPackets => "missing packets",
            Self::Cut => "cut packets",
            Self::Damaged => "damaged packets",
            Self::Network => "copied or reordered by the network",
            Self::Pairing => "uncertain connections",
            Self::OneDirection => "one direction only",
            Self::BeyondLimits => "beyond limits",
            Self::Unsupported => "not supported",
        }
    }
}

impl Subject {
    /// Returns its words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Request => "request",
            Self::Datagram => "datagram",
            Self::Management => "management",
        }
    }
}
