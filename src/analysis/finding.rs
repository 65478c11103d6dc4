//! Findings: faults in words, with the frames that show them.

use serde::Serialize;

use super::{FlowNumber, serialize};
use crate::observe::end::End;
use crate::time::Instant;
use crate::wire::Gid;

/// A fault that the analysis found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Kind of the fault.
    pub kind: FindingKind,
    /// The connection, if it is about one.
    pub flow: Option<FlowNumber>,
    /// End whose requests it is about.
    pub requester: Option<End>,
    /// The hosts that it is about, the requester or the connecting side first.
    #[serde(serialize_with = "serialize::addresses_or_null")]
    pub hosts: Option<[Gid; 2]>,
    /// The time of the first of its frames; in captures of many frames to within the frames around
    /// it.
    #[serde(serialize_with = "serialize::instant_or_null")]
    pub time: Option<Instant>,
    /// Whether the packets prove the cause.
    pub certainty: Certainty,
    /// Time that it cost, in nanoseconds; findings are sorted by severity of their kind, then by
    /// this.
    pub cost_nanos: u64,
    /// Frames to look at, in their order.
    pub frames: Vec<u64>,
    /// Description in words.
    pub text: String,
}

/// Whether the packets prove a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// No other explanation fits the packets.
    Proven,
    /// The packets suggest it; its text says "likely".
    Likely,
}

/// The kinds of findings, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// A requester gave up: retries exceeded.
    RetryLimit,
    /// A requester gave up: RNR retries exceeded.
    RnrRetryLimit,
    /// The last requests are retransmitted without an answer when the capture ends.
    Unanswered,
    /// A responder refused a request: invalid request, remote access error, remote operational
    /// error.
    RequestRefused,
    /// The connection manager refused a connection.
    ConnectionRefused,
    /// A REQ had no answer.
    ConnectionUnanswered,
    /// An end broke the protocol: NAKed a PSN it had acknowledged, skipped PSNs, and so on.
    ProtocolViolation,
    /// Packets whose ICRC is wrong.
    Corruption,
    /// Packets were lost.
    Loss,
    /// A receiver had no receives posted.
    ReceiverNotReady,
    /// The network changed the order of packets.
    Reordering,
    /// The network delivered packets twice.
    Duplication,
    /// Most request packets are retransmissions, and nothing else explains them.
    Retransmissions,
    /// A responder answered so late that the requester had timed out.
    SlowResponder,
    /// Packets took much longer from one capture point to the next than others did.
    Delay,
    /// Switches marked packets, and how the ends reacted.
    Congestion,
    /// The two ends use different path MTUs.
    MtuMismatch,
    /// A long silence while requests were in flight that no retransmission explains.
    Stall,
    /// Packets that the capture itself missed.
    CaptureLoss,
    /// Items were left out because of a limit.
    BeyondLimits,
}

impl FindingKind {
    /// All kinds, worst first.
    pub const ALL: [Self; 20] = [
        Self::RetryLimit,
        Self::RnrRetryLimit,
        Self::Unanswered,
        Self::RequestRefused,
        Self::ConnectionRefused,
        Self::ConnectionUnanswered,
        Self::ProtocolViolation,
        Self::Corruption,
        Self::Loss,
        Self::ReceiverNotReady,
        Self::Reordering,
        Self::Duplication,
        Self::Retransmissions,
        Self::SlowResponder,
        Self::Delay,
        Self::Congestion,
        Self::MtuMismatch,
        Self::Stall,
        Self::CaptureLoss,
        Self::BeyondLimits,
    ];
}

/// A set of kinds of findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSet(u32);

const _: () = assert!(FindingKind::ALL.len() <= 32, "a set has a bit for each kind");

impl KindSet {
    /// The set of one kind.
    pub const fn of(kind: FindingKind) -> Self {
        Self(1 << kind as u32)
    }

    /// The kinds of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the kind is in the set.
    pub const fn contains(self, kind: FindingKind) -> bool {
        self.0 & Self::of(kind).0 != 0
    }

    /// Whether no kind is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds in the set, worst first.
    pub fn iter(self) -> impl Iterator<Item = FindingKind> {
        FindingKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl Serialize for KindSet {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(self.iter())
    }
}

/// Thresholds from which on faults are reported. Each can be set with `--threshold NAME=VALUE`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Thresholds {
    /// A silence with requests in flight is a stall from this many nanoseconds on.
    pub stall_nanos: u64,
    /// Lost packets of a direction, as a share of its packets, from which losses are a finding. 0:
    /// from the first.
    pub loss_share: f64,
    /// CNPs per 1,000 marked packets below which a receiver is said to answer too few.
    pub cnps_per_1000_marks: f64,
    /// Several capture points: a packet is delayed if it takes longer than the median by this many
    /// nanoseconds, and at least four times the median.
    pub delay_nanos: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            stall_nanos: 10_000_000,
            loss_share: 0.0,
            cnps_per_1000_marks: 1.0,
            delay_nanos: 50_000,
        }
    }
}
