//! Findings in words: each is one function of a connection's numbers and of the frames kept as
//! evidence.

mod congestion;
mod failures;
mod network;
mod others;
mod text;
mod transits;

use core::cmp::Reverse;

pub(super) use network::of_stray_corruption;
pub(super) use others::{of_limits, of_setups};
pub(super) use transits::of_transits;

use super::connection::{Connection, Direction};
use super::evidence::{Evidence, Frames};
use super::finding::{Certainty, Finding, FindingKind, KindSet, Thresholds};
use super::{End, FlowNumber, Setup};
use crate::time::nanos;
use crate::wire::Gid;

/// A connection that ended, and what was kept of it.
pub(super) struct Facts<'a> {
    pub(super) connection: &'a Connection,
    pub(super) evidence: [Option<&'a Evidence>; 2],
    pub(super) thresholds: &'a Thresholds,
    pub(super) setup: Option<&'a Setup>,
    /// The names of the files.
    pub(super) files: &'a [String],
}

/// One direction of a connection that ended.
pub(super) struct Side<'a> {
    pub(super) connection: &'a Connection,
    pub(super) requester: End,
    pub(super) direction: &'a Direction,
    pub(super) evidence: &'a Evidence,
    pub(super) thresholds: &'a Thresholds,
    pub(super) setup: Option<&'a Setup>,
    pub(super) files: &'a [String],
}

/// Every finding about one direction of a connection.
const OF_SIDE: [fn(&Side<'_>) -> Option<Finding>; 16] = [
    failures::retries_exceeded,
    failures::request_refused,
    failures::naked_acknowledged,
    failures::ghost_responses,
    network::corruption,
    network::loss,
    network::receiver_not_ready,
    network::reordering,
    network::duplication,
    network::retransmissions,
    others::slow_responder,
    network::incomplete_datagrams,
    congestion::marks,
    others::mtu_mismatch,
    others::stall,
    others::capture_loss,
];

/// The findings about a connection.
pub(super) fn of_connection(facts: &Facts<'_>) -> Vec<Finding> {
    let none = Evidence::default();
    let sides = End::BOTH.into_iter().zip(&facts.connection.directions).zip(facts.evidence);
    let sides = sides.map(|((requester, direction), evidence)| Side {
        connection: facts.connection,
        requester,
        direction,
        evidence: evidence.unwrap_or(&none),
        thresholds: facts.thresholds,
        setup: facts.setup,
        files: facts.files,
    });
    sides.flat_map(|side| OF_SIDE.iter().filter_map(move |finding| finding(&side))).collect()
}

/// The kinds of findings about the requests of each end.
pub(super) fn kinds_of(findings: &[Finding]) -> [KindSet; 2] {
    End::BOTH.map(|end| {
        let own = findings.iter().filter(|finding| finding.requester == Some(end));
        own.map(|finding| KindSet::of(finding.kind)).fold(KindSet::default(), KindSet::union)
    })
}

/// Returns the sort key that puts the worst first: by kind, then by the time that it cost.
pub(super) fn severity(
    finding: &Finding,
) -> (FindingKind, Reverse<u64>, Option<FlowNumber>, Option<End>) {
    (finding.kind, Reverse(finding.cost_nanos), finding.flow, finding.requester)
}

impl Side<'_> {
    /// A finding about this direction.
    pub(super) fn finding(
        &self,
        kind: FindingKind,
        certainty: Certainty,
        cost_nanos: u64,
        frames: &[&Frames],
        text: &str,
    ) -> Finding {
        let mut all: Vec<u64> = Vec::new();
        for &frame in frames.iter().flat_map(|frames| frames.as_slice()) {
            // 0: what shows it was never captured.
            if frame > 0 {
                all.push(frame);
            }
        }
        all.sort_unstable();
        all.dedup();
        Finding {
            kind,
            flow: Some(self.connection.flow),
            requester: Some(self.requester),
            hosts: Some(self.hosts()),
            time: None,
            certainty,
            cost_nanos,
            frames: all,
            text: format!("{}: {text}", text::side(self)),
        }
    }

    /// The requester and the responder.
    fn hosts(&self) -> [Gid; 2] {
        let [first, second] = self.connection.ends.each_ref().map(|end| end.address);
        match self.requester {
            End::A => [first, second],
            End::B => [second, first],
        }
    }

    /// Returns the nanoseconds from the first packet of the connection to its last.
    pub(super) fn duration(&self) -> u64 {
        let (first, last) = (self.connection.first_time, self.connection.last_time);
        nanos(last.saturating_since(first))
    }
}
