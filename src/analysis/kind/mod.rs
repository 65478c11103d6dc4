//! Kind of a capture: what it cannot show, told before anything is concluded from it.
//!
//! [`Counts`] are taken from every packet. At the end [`CaptureKind`] is decided from them, and
//! what it explains is neither a finding nor counted as lost.

mod clocks;
mod steps;

use std::collections::HashSet;

use serde::Serialize;

pub use self::clocks::ClocksApart;
use self::clocks::Samples;
use self::steps::Steps;
use super::connection::{Connection, Direction};
use super::finding::{Finding, FindingKind, KindSet};
use super::text::units::{count, counted};
use super::{FileFacts, FlowNumber, PacketFacts, Unsplit};
use crate::decode::Trains;
use crate::wire::{Gid, Service};

/// Kind of a capture, decided from counts over all of it.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct CaptureKind {
    /// Frames with several packets, which were split.
    pub trains: Trains,
    /// Frames with several packets that are cut before the first one ends, so that nothing proves
    /// where packets begin.
    pub unsplit_frames: u64,
    /// Packets that a snap length cut.
    pub cut_packets: u64,
    /// Packets that it cut in their headers.
    pub cut_headers: u64,
    /// All packets.
    pub packets: u64,
    /// Approximate sampling ratio, if the capture was sampled: it has one of so many packets.
    pub sampled_one_in: Option<u64>,
    /// Connections, if the capture has one direction only of each.
    pub one_direction: Option<u64>,
    /// Files whose packets cannot be matched because of their clocks.
    pub clocks_apart: Vec<ClocksApart>,
    /// Frames that the capture itself says it dropped.
    pub dropped_frames: u64,
}

/// Findings that one packet proves, whatever else the capture misses.
const OF_ONE_PACKET: [FindingKind; 6] = [
    FindingKind::RequestRefused,
    FindingKind::ConnectionRefused,
    FindingKind::Corruption,
    FindingKind::ReceiverNotReady,
    FindingKind::Congestion,
    FindingKind::BeyondLimits,
];

/// Findings that rest on the absence of what the other direction would show.
const OF_BOTH_DIRECTIONS: [FindingKind; 6] = [
    FindingKind::RetryLimit,
    FindingKind::RnrRetryLimit,
    FindingKind::Unanswered,
    FindingKind::ConnectionUnanswered,
    FindingKind::SlowResponder,
    FindingKind::Stall,
];

impl CaptureKind {
    /// Whether packets are missing in the capture in a way that PSNs say nothing about the network.
    fn hides_packets(&self) -> bool {
        let is_left_out = self.unsplit_frames + self.trains.cut_off > 0;
        self.sampled_one_in.is_some() || is_left_out || !self.clocks_apart.is_empty()
    }

    /// Whether the kind of capture explains such a finding.
    pub fn explains(&self, kind: FindingKind) -> bool {
        let of_one_direction = self.one_direction.is_some() && OF_BOTH_DIRECTIONS.contains(&kind);
        // Without their RETH, the numbers of responses to READs are not known.
        let of_headers = self.cut_headers > 0 && kind == FindingKind::CaptureLoss;
        of_one_direction || of_headers || self.hides_packets() && !OF_ONE_PACKET.contains(&kind)
    }

    /// Whether the kind of capture explains such a finding of a connection, which may be dead
    /// whatever the other direction shows.
    fn explains_of(&self, kind: FindingKind, is_dead: bool) -> bool {
        let of_requests = matches!(kind, FindingKind::RetryLimit | FindingKind::Unanswered);
        let is_shown = is_dead && of_requests && !self.hides_packets();
        !is_shown && self.explains(kind)
    }

    /// Removes what the kind of capture explains from findings and counts.
    pub(super) fn remove_explained(
        &self,
        findings: &mut Vec<Finding>,
        connections: &mut [Connection],
        totals: &mut Direction,
    ) {
        let dead: HashSet<FlowNumber> =
            connections.iter().filter(|one| is_dead(one)).map(|one| one.flow).collect();
        findings.retain(|finding| {
            let is_dead = finding.flow.is_some_and(|flow| dead.contains(&flow));
            !self.explains_of(finding.kind, is_dead)
        });
        for connection in &mut *connections {
            let is_dead = is_dead(connection);
            for kinds in &mut connection.findings {
                let left = kinds.iter().filter(|kind| !self.explains_of(*kind, is_dead));
                *kinds = left.map(KindSet::of).fold(KindSet::default(), KindSet::union);
            }
        }
        if self.hides_packets() {
            let directions = connections.iter_mut().flat_map(|one| &mut one.directions);
            directions.chain([totals]).for_each(forget_losses);
        }
    }

    /// Returns what a reader must know before the findings, a sentence each.
    pub fn sentences(&self) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(sentence) = self.trains.sentence() {
            all.push(sentence + ".");
        }
        if self.unsplit_frames > 0 {
            all.push(format!(
                "{} with several packets each (segmentation offload), cut before the first of them \
                 ends: what they hold is not known, and nothing is concluded from what is missing. \
                 Capture whole frames (tcpdump -s 0).",
                counted(self.unsplit_frames, "frame"),
            ));
        }
        if let Some(one_in) = self.sampled_one_in {
            all.push(format!(
                "Sampled: about 1 of {one_in} packets is in the capture. Nothing is concluded from \
                 what is missing."
            ));
        }
        if let Some(connections) = self.one_direction {
            all.push(format!(
                "One direction only, of {}: nothing is concluded from answers that are missing.",
                counted(connections, "connection"),
            ));
        }
        if self.cut_packets > 0 {
            all.push(format!(
                "{} of {} are cut by a snap length: lengths are those of the headers, and payloads \
                 and ICRCs are not checked.",
                count(self.cut_packets),
                counted(self.packets, "packet"),
            ));
        }
        all.extend(self.clocks_apart.iter().map(ClocksApart::sentence));
        if self.dropped_frames > 0 {
            let frames = counted(self.dropped_frames, "frame");
            all.push(format!("The capture says that it dropped {frames}."));
        }
        all
    }
}

/// Forgets what was concluded from packets that are missing.
fn forget_losses(direction: &mut Direction) {
    (direction.lost_requests, direction.lost_responses, direction.lost_or_late) = (0, 0, 0);
    (direction.not_captured, direction.reordered, direction.psn_gaps) = (0, 0, 0);
    direction.duplicate_packets = 0;
    direction.retransmissions = Default::default();
    direction.slow_answers = Default::default();
    direction.stalls.clear();
}

/// Counts of which the kind of a capture is decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    kind: CaptureKind,
    steps: Steps,
    samples: Samples,
}

impl Counts {
    /// Counts a packet. Returns whether it is one: a frame that holds several which cannot be told
    /// apart is not.
    #[inline]
    pub(super) fn add(&mut self, packet: &PacketFacts) -> bool {
        if packet.unsplit == Unsplit::Certain {
            self.kind.unsplit_frames += 1;
            return false;
        }
        if let Some(position) = packet.train {
            self.kind.trains.add(position);
        }
        self.kind.packets += 1;
        self.kind.cut_packets += u64::from(packet.is_cut);
        self.kind.cut_headers += u64::from(packet.is_header_cut);
        self.steps.add(packet);
        self.samples.add(packet);
        true
    }

    /// Takes note of frames that a capture says it dropped.
    pub(super) fn add_dropped(&mut self, frames: u64) {
        self.kind.dropped_frames = self.kind.dropped_frames.saturating_add(frames);
    }

    /// Decides on the kind of the capture.
    pub(super) fn decide(self, files: &[FileFacts], connections: &[Connection]) -> CaptureKind {
        let mut kind = self.kind;
        kind.clocks_apart = self.samples.clocks_apart(files);
        kind.unsplit_frames += self.steps.trains_behind_gaps();
        // Frames that are left out make gaps as a sampler does, and files one after another do.
        let is_left_out = kind.unsplit_frames + kind.trains.cut_off > 0;
        if !is_left_out && kind.clocks_apart.is_empty() {
            kind.sampled_one_in = self.steps.sampled_one_in();
        }
        if !is_left_out {
            kind.one_direction = one_direction(connections);
        }
        kind
    }
}

/// Returns the number of reliable connections, if the capture has nothing that went from the
/// responder to the requester, or back, between their hosts. If the requesters of all of them are
/// dead, there are no answers to be captured.
fn one_direction(connections: &[Connection]) -> Option<u64> {
    let mut routes: HashSet<(Gid, Gid)> = HashSet::new();
    for connection in connections {
        let [one, other] = connection.ends.each_ref().map(|end| end.address);
        for (direction, route) in connection.directions.iter().zip([(one, other), (other, one)]) {
            let back = (route.1, route.0);
            routes.extend((direction.request_packets > 0).then_some(route));
            routes.extend((direction.response_packets > 0).then_some(back));
        }
    }
    let is_reliable = |one: &&Connection| matches!(one.service, Service::Rc | Service::Xrc);
    let is_one_way = |connection: &Connection| {
        let [one, other] = connection.ends.each_ref().map(|end| end.address);
        !(routes.contains(&(one, other)) && routes.contains(&(other, one)))
    };
    let mut reliable = connections.iter().filter(is_reliable);
    let is_alive = reliable.clone().any(|connection| !is_dead(connection));
    let count = reliable.clone().count() as u64;
    (is_alive && reliable.all(is_one_way)).then_some(count)
}

/// Whether a requester of the connection shows by its requests alone that it gets no answer.
fn is_dead(connection: &Connection) -> bool {
    connection.directions.iter().any(Direction::is_dead)
}
