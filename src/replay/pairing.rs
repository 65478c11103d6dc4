//! Connections whose two queue pairs may belong to others.
//!
//! A packet names the queue pair that it is for, not the one that sent it. Where neither the
//! connection manager nor the UDP source port tells which two belong together, the analysis pairs a
//! responder with the requests whose PSNs it answers. If two connections between the same hosts use
//! the same PSNs, and the capture misses a packet, that may go wrong; then every difference between
//! requests and responses may come from it.

use std::collections::{BTreeMap, HashSet};

use super::limits::{PAIRING_MARGIN, PAIRING_STREAMS_MAX};
use crate::analysis::{FlowNumber, PacketFacts, PacketNote, PacketRole, Pairing, Report};
use crate::wire::{Gid, Psn};

/// PSNs from `first` on, over `len` of them.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: Psn,
    /// The last one, counted from `first`.
    len: u32,
}

impl Range {
    const fn at(psn: Psn) -> Self {
        Self { first: psn, len: 0 }
    }

    /// Extends the range to a PSN.
    fn add(&mut self, psn: Psn) {
        let offset = psn.since(self.first);
        if offset < 0 {
            (self.first, self.len) = (psn, self.len.saturating_add(offset.unsigned_abs()));
        } else {
            self.len = self.len.max(offset.unsigned_abs());
        }
    }
}

/// The PSNs of requests from one host to another, and of responses to them.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    requests: Option<Range>,
    responses: Option<Range>,
}

/// The requester's host and the responder's.
type Route = (Gid, Gid);

/// The PSNs of one flow: the route of its first packet, and what is used on it and on the way back.
#[derive(Clone, Copy, Debug)]
struct FlowUsage {
    route: Route,
    used: [Used; 2],
}

/// Collects the PSNs that connections use, in the first pass.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// PSNs by the flow number before connections are paired.
    flows: Vec<Option<FlowUsage>>,
    /// More flows were seen than are remembered.
    is_full: bool,
}

impl Usage {
    /// Takes a packet, under the flow number that it has before connections are paired.
    #[inline]
    pub(super) fn note(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let (source, destination) = (facts.source, facts.destination);
        let (is_request, route) = match note.role {
            PacketRole::Request => (true, (source, destination)),
            PacketRole::Ack | PacketRole::Response | PacketRole::Nak | PacketRole::Rnr => {
                (false, (destination, source))
            }
            _ => return,
        };
        let Some(at) = note.flow.index() else { return };
        if at >= self.flows.len() {
            if at >= PAIRING_STREAMS_MAX {
                self.is_full = true;
                return;
            }
            self.flows.resize(at + 1, None);
        }
        let Some(flow) = self.flows.get_mut(at) else { return };
        let flow = flow.get_or_insert(FlowUsage { route, used: Default::default() });
        let used = &mut flow.used[usize::from(flow.route != route)];
        let range = if is_request { &mut used.requests } else { &mut used.responses };
        match range {
            Some(range) => range.add(facts.psn),
            None => *range = Some(Range::at(facts.psn)),
        }
    }

    /// Returns the PSNs that each flow of a report uses, by route.
    fn by_route(
        &self,
        report: &Report,
    ) -> BTreeMap<([u8; 16], [u8; 16]), BTreeMap<FlowNumber, Used>> {
        let mut routes: BTreeMap<_, BTreeMap<FlowNumber, Used>> = BTreeMap::new();
        for (at, usage) in self.flows.iter().enumerate() {
            let Some(FlowUsage { route: (one, other), used }) = usage else { continue };
            let number = FlowNumber::at(at);
            let flow = report.flow_of(number).map_or(number, |(flow, _)| flow);
            for (route, used) in [(one.0, other.0), (other.0, one.0)].into_iter().zip(used) {
                if used.requests.is_none() && used.responses.is_none() {
                    continue;
                }
                let known = routes.entry(route).or_default().entry(flow).or_default();
                known.requests = joined(known.requests, used.requests);
                known.responses = joined(known.responses, used.responses);
            }
        }
        routes
    }

    /// The connections of a report that may be paired wrongly.
    pub(super) fn ambiguous(&self, report: &Report) -> HashSet<FlowNumber> {
        let mut ambiguous = HashSet::new();
        for flows in self.by_route(report).values() {
            // Responses are to requests, so they matter only where these are not captured, or may
            // be others.
            let is_guess = |flow: FlowNumber| {
                let at = report.connections.binary_search_by_key(&flow, |it| it.flow).ok();
                at.and_then(|at| report.connections.get(at)).is_none_or(|connection| {
                    matches!(connection.pairing, Pairing::OnlyCandidates | Pairing::Likely)
                })
            };
            let ranges = flows.iter().flat_map(|(&flow, used)| {
                let is_all = used.requests.is_none() || is_guess(flow);
                let responses = used.responses.filter(|_| is_all);
                used.requests.into_iter().chain(responses).map(move |range| (flow, range))
            });
            mark_overlapping(ranges, &mut ambiguous);
        }
        for connection in &report.connections {
            match connection.pairing {
                Pairing::ConnectionManager | Pairing::SourcePort | Pairing::Datagram => {
                    ambiguous.remove(&connection.flow);
                }
                Pairing::Likely => {
                    ambiguous.insert(connection.flow);
                }
                _ if self.is_full => {
                    ambiguous.insert(connection.flow);
                }
                _ => {}
            }
        }
        ambiguous
    }
}

fn joined(one: Option<Range>, other: Option<Range>) -> Option<Range> {
    let (Some(mut range), Some(other)) = (one, other) else { return one.or(other) };
    range.add(other.first);
    range.add(other.first.plus(other.len.min(Psn::HALF - 1)));
    Some(range)
}

/// Adds the flows whose PSNs are, or are next to, those of others.
fn mark_overlapping(
    flows: impl Iterator<Item = (FlowNumber, Range)>,
    marked: &mut HashSet<FlowNumber>,
) {
    const CIRCLE: u64 = 1 << 24;
    let mut intervals: Vec<(u64, u64, FlowNumber)> = Vec::new();
    for (flow, range) in flows {
        let start = u64::from(range.first.get());
        let end = start + u64::from(range.len) + PAIRING_MARGIN;
        // PSNs wrap around: each range once more, a circle further.
        intervals.extend([(start, end, flow), (start + CIRCLE, end + CIRCLE, flow)]);
    }
    intervals.sort_unstable();
    // The interval that reaches furthest so far.
    let mut furthest: Option<(u64, FlowNumber)> = None;
    for &(start, end, flow) in &intervals {
        if let Some((reach, other)) = furthest
            && start <= reach
            && other != flow
        {
            marked.extend([flow, other]);
        }
        if furthest.is_none_or(|(reach, _)| end > reach) {
            furthest = Some((end, flow));
        }
    }
}
