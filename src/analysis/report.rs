//! The whole of it.

use serde::Serialize;

use super::conclude::SWAPPED;
use super::connection::{Connection, Direction};
use super::finding::{Finding, FindingKind};
use super::groups::{Groups, HOSTS_MAX, HostMatrix};
use super::{CaptureKind, FlowNumber, Series, Transit, serialize};
use crate::time::Instant;

/// Contents of a capture, and the findings about it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The capture itself.
    pub capture: CaptureFacts,
    /// Findings by what they share: which host, path or time is bad.
    pub groups: Groups,
    /// Requests and trouble by source and destination host.
    pub matrix: HostMatrix,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// All connections together.
    pub totals: Totals,
    /// The connections in the order of their numbers.
    pub connections: Vec<Connection>,
    /// Items that were left out because of a limit.
    pub beyond_limits: BeyondLimits,
    /// `flows[n - 1]`: the connection that the provisional number n belongs to in the end (0: it
    /// was forgotten), and in the highest bit whether its ends are exchanged. One word each,
    /// because there can be millions.
    #[serde(skip)]
    pub(super) flows: Vec<u32>,
}

impl Report {
    /// Whether there is a finding of this kind, be it one of those beyond the most that are kept.
    pub fn has_finding(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
            || self.connections.iter().flat_map(|one| one.findings).any(|all| all.contains(kind))
    }

    /// Groups the findings anew, after connections or findings were taken out.
    pub fn group(&mut self) {
        self.groups = Groups::new(&self.capture, &self.connections, &self.findings);
        self.matrix = HostMatrix::new(&self.connections, &self.findings, HOSTS_MAX);
    }

    /// The final number of the connection to which packets with the provisional number `flow`
    /// belong, and whether the ends are exchanged (the packet's `sender` 0 is `ends[1]`).
    pub fn flow_of(&self, flow: FlowNumber) -> Option<(FlowNumber, bool)> {
        let packed = *self.flows.get(flow.index()?)?;
        let flow = packed & !SWAPPED;
        (flow != 0).then_some((FlowNumber(flow), packed & SWAPPED != 0))
    }
}

/// The capture.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct CaptureFacts {
    /// The files, in the order of their indices.
    pub files: Vec<FileFacts>,
    /// Limits of what the capture can show.
    pub kind: CaptureKind,
    /// Frames, RoCE or not.
    pub frames: u64,
    /// RoCE packets.
    pub packets: u64,
    /// Bytes on the wire of all frames.
    pub bytes: u64,
    /// The first time stamp.
    #[serde(serialize_with = "serialize::instant_or_null")]
    pub first_time: Option<Instant>,
    /// The last time stamp.
    #[serde(serialize_with = "serialize::instant_or_null")]
    pub last_time: Option<Instant>,
    /// Packets and bytes per interval.
    pub series: Series,
    /// Transit times from one capture point to the next, if there are several files.
    pub transits: Vec<Transit>,
}

/// One file: one capture point.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct FileFacts {
    /// Name as given.
    pub name: String,
    /// Frames in it.
    pub frames: u64,
    /// Packets that another file has too.
    pub seen_elsewhere: u64,
    /// Nanoseconds by which the clock is ahead of the first file's, if packets of both directions
    /// tell: estimated so that the shortest transits of both directions are the same. Times of the
    /// file's packets are corrected by it.
    pub clock_offset_nanos: Option<i64>,
}

impl FileFacts {
    /// A file of this name, before its first frame.
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// All connections together.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Connections.
    pub connections: u64,
    /// The sums over all directions of all connections.
    pub all: Direction,
}

/// Items that were left out because of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BeyondLimits {
    /// Packets of connections beyond the most that are followed.
    pub packets: u64,
    /// Connections that were forgotten to make room.
    pub connections: u64,
    /// Messages that were no longer followed to make room.
    pub messages: u64,
}
