//! What went wrong, in words, with the frames that show it.

use serde::Serialize;

use super::FlowNumber;

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of thing.
    pub kind: FindingKind,
    /// The connection, if it is about one.
    pub flow: Option<FlowNumber>,
    /// Which end's requests it is about.
    pub requester: Option<u8>,
    /// Whether the packets prove the cause.
    pub certainty: Certainty,
    /// Time that it cost, in nanoseconds; findings are sorted by severity of their kind, then by this.
    pub cost_nanos: u64,
    /// Frames to look at, the most telling first.
    pub frames: Vec<u64>,
    /// What happened, in words.
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
    /// A responder refused a request: invalid request, remote access error, remote operational error.
    RequestRefused,
    /// The connection manager refused a connection, or a REQ had no answer.
    ConnectionRefused,
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
    /// Something was left out because of a limit.
    BeyondLimits,
}

/// From when on something is worth a finding. Each can be set with `--threshold NAME=VALUE`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Thresholds {
    /// A silence with requests in flight is a stall from this many nanoseconds on.
    pub stall_nanos: u64,
    /// Lost packets of a direction, as a share of its packets, from which losses are a finding. 0: from the first.
    pub loss_share: f64,
    /// CNPs per 1,000 marked packets below which a receiver is said to answer too few.
    pub cnps_per_1000_marks: f64,
    /// Several capture points: a packet is delayed if it takes longer than the median by this many nanoseconds, and at least
    /// four times the median.
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
