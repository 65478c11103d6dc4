//! The analysis of a capture: its connections, what went wrong on them, and which packets prove it.
//!
//! ```text
//! capture::Reader ─► decode::Context ─► PacketFacts ─► Analysis ─► Sink: packets and messages, as they are understood
//!                    (any core)         (a value)      (in order)  └► Report: connections, totals, findings
//! ```
//!
//! [`PacketFacts`] is what the analysis needs to know of one packet; it is made from a decoded
//! frame on any thread. [`Analysis`] is told the packets in the order of their times. It finds the
//! connections, pairs the two queue pairs of each, follows the packet sequence numbers of both
//! requesters, and tells its [`Sink`] what each packet was and how each message ended. At the end
//! of the capture it gives a [`Report`].
//!
//! It sees what the capture point saw, which is less than either end did. So it tells apart what
//! the packets prove and what they only suggest ([`Certainty`]), and where on the path a packet was
//! lost relative to the capture point ([`LossPlace`]). Memory is bounded per connection and in all:
//! `limits` lists every bound, and [`BeyondLimits`] counts what was left out because of them.
#![forbid(unsafe_code)]

mod budget;
mod cause;
mod conclude;
mod congestion;
mod connection;
mod evidence;
mod finding;
mod findings;
mod frame_times;
mod groups;
mod kind;
pub mod limits;
mod message;
mod names;
pub mod page;
mod pairing;
mod report;
mod requester;
mod row;
mod serialize;
mod series;
mod sightings;
mod statistics;
mod stream;
pub mod text;
mod tracker;
mod vantage;

#[cfg(test)]
mod tests;

pub use cause::{RetransmissionCause, Retransmissions, Retransmitted};
pub use connection::{Blame, Connection, Direction, Endpoint, Pairing, SlowAnswers, Stall};
pub use finding::{Certainty, Finding, FindingKind, KindSet, Thresholds};
pub use groups::{Burst, Group, Groups, HostMatrix, KindShare, KindSummary, MatrixCell, Subject};
pub use kind::{CaptureKind, ClocksApart};
pub use message::{Message, OperationStatistics, Outcome, operation_name};
pub use names::service_name;
pub use report::{BeyondLimits, CaptureFacts, FileFacts, Report, Totals};
pub use row::SortBy;
pub use series::{Interval, Series};
pub use sightings::{Delay, Transit};
pub use statistics::{Distribution, Percentiles};
pub use tracker::{Analysis, Config};

pub use crate::observe::agreement::Setup;
pub use crate::observe::disorder::Lateness;
pub use crate::observe::end::End;
pub use crate::observe::packet::{CmFacts, PacketFacts, RethFacts, TunnelFacts, Unsplit};
pub use crate::observe::sightings::{LostBetween, Sightings};

/// The number of a connection, from 1 in the order in which their first packets appear:
/// `roce.flow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct FlowNumber(pub u32);

impl FlowNumber {
    /// Returns its position in a list of all connections in order; `None` for 0, which is none.
    pub(crate) fn index(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }

    /// Returns the number of the connection at a position of such a list.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index + 1).unwrap_or(u32::MAX))
    }
}

impl std::str::FromStr for FlowNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl std::fmt::Display for FlowNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Place where a packet was lost, as far as the capture tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossPlace {
    /// The capture point never saw it although its sender must have sent it: lost between the
    /// sender and the point.
    BeforeCapturePoint,
    /// The capture point saw it and its receiver did not get it: lost between the point and the
    /// receiver.
    AfterCapturePoint,
    /// Seen at one capture point and not at the next one on its way (indices of [`FileFacts`]).
    Between {
        /// The last capture point that saw it.
        from: u16,
        /// The first that should have seen it and did not.
        to: u16,
    },
}

/// Meaning of one packet, told to the [`Sink`] when the packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketNote {
    /// Number of its connection. An endpoint that is not paired yet has a number of its own; the
    /// report says which numbers are one connection in the end ([`Report::flow_of`]).
    pub flow: FlowNumber,
    /// End that sent it, as [`Connection::ends`] has them. Relative to `flow`, before pairing.
    pub sender: End,
    /// Whether it is a request or a response of the PSN space of its sender or of the peer.
    pub role: PacketRole,
    /// Sequence number, unwrapped: PSNs of one PSN space count on beyond 2^24.
    pub sequence: u64,
    /// The cause, if this PSN was transmitted before by its sender.
    pub retransmission: Option<RetransmissionCause>,
    /// Whether it is a copy that the network made: the sender sent it once.
    pub duplicate: bool,
    /// Whether it arrived out of order: after packets that its sender had sent later, or before
    /// earlier ones.
    pub reordered: bool,
}

/// The part a packet plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketRole {
    /// Sent by the requester: SEND, WRITE, READ request, ATOMIC.
    Request,
    /// A positive acknowledgement.
    Ack,
    /// A READ response or an ATOMIC acknowledgement.
    Response,
    /// A NAK other than RNR.
    Nak,
    /// An RNR NAK.
    Rnr,
    /// A congestion notification.
    Cnp,
    /// A message of the connection manager or other management.
    Management,
}

/// The loss of an earlier packet, or of one that was never captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossNote {
    /// The connection.
    pub flow: FlowNumber,
    /// End that sent the packet.
    pub sender: End,
    /// The sequence number of the lost packet, unwrapped as in [`PacketNote::sequence`].
    pub sequence: u64,
    /// Whether the lost packet was a request or a response.
    pub role: PacketRole,
    /// The frame of the packet, if the capture point saw it.
    pub frame: Option<u64>,
    /// The frame that proves the loss: a NAK, a retransmission, a later packet.
    pub proof: u64,
    /// Place of the loss.
    pub place: LossPlace,
    /// Whether the packets prove it.
    pub certainty: Certainty,
}

/// Takes what the analysis understands, when it understands it. Every method does nothing by
/// default.
pub trait Sink {
    /// Takes the meaning of a packet.
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let _ = (facts, note);
    }

    /// Takes the frame of a packet at another capture point, and the note of the packet.
    fn sighting(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let _ = (facts, note);
    }

    /// Takes the loss of a packet.
    fn loss(&mut self, note: &LossNote) {
        let _ = note;
    }

    /// Takes a message that ended: it completed, it failed, or the capture ended first.
    fn message(&mut self, message: &Message) {
        let _ = message;
    }
}

/// A sink that takes nothing.
impl Sink for () {}
