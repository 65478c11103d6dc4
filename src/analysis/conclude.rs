//! The end of a connection, and of the capture: what the report says.

use super::connection::{Connection, Direction, Endpoint, Pairing, Stall};
use super::evidence::Evidence;
use super::finding::Finding;
use super::findings;
use super::groups::{Groups, HostMatrix};
use super::limits::{ENDED_CONNECTIONS_MAX, FINDINGS_MAX};
use super::report::{Report, Totals};
use super::requester::Scene;
use super::series::Series;
use super::stream::{Key, Stream};
use super::tracker::Analysis;
use super::vantage::VantageReport;
use super::{FlowNumber, Sink};
use crate::observe::end::End;
use crate::time::{Instant, nanos};
use crate::wire::{Qpn, Service};

/// Results of connections that ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Conclusion {
    /// Final numbers of connections, by provisional number; the highest bit says whether the ends
    /// are exchanged. 0: forgotten.
    flows: Vec<u32>,
    connections: Vec<Connection>,
    findings: Vec<Finding>,
    /// Findings beyond those that are kept.
    dropped_findings: u64,
    totals: Totals,
}

/// The bit of [`Conclusion::flows`] that says that ends are exchanged.
pub(super) const SWAPPED: u32 = 1 << 31;

impl Conclusion {
    /// A provisional number was given out.
    pub(super) fn add_number(&mut self, number: FlowNumber) {
        debug_assert_eq!(Some(self.flows.len()), number.index(), "numbers are given out in order");
        self.flows.push(0);
    }

    fn set(&mut self, number: FlowNumber, flow: FlowNumber, swapped: bool) {
        if let Some(slot) = number.index().and_then(|at| self.flows.get_mut(at)) {
            *slot = flow.0 | if swapped { SWAPPED } else { 0 };
        }
    }

    fn add_findings(&mut self, findings: Vec<Finding>) {
        self.findings.extend(findings);
        if self.findings.len() > 2 * FINDINGS_MAX {
            self.drop_findings();
        }
    }

    /// Keeps the worst findings.
    fn drop_findings(&mut self) {
        self.findings.sort_by_key(findings::severity);
        self.dropped_findings += self.findings.len().saturating_sub(FINDINGS_MAX) as u64;
        self.findings.truncate(FINDINGS_MAX);
    }
}

impl Analysis {
    /// Ends the connection that the stream at `index` belongs to. It is in the report if `is_kept`.
    pub(super) fn conclude(&mut self, index: u32, is_kept: bool, sink: &mut dyn Sink) {
        let Some(one) = self.remove(index) else { return };
        let other = one.peer.and_then(|peer| self.remove(peer));
        let mut streams = match other {
            Some(other) if other.number < one.number => [Some(other), Some(one)],
            other => [Some(one), other],
        };
        let end_time = self.capture.last_time.unwrap_or_default();
        let silence = self.silence_at_end(&streams, end_time);
        for stream in streams.iter_mut().flatten() {
            self.end_stream(stream, silence, end_time, sink);
        }
        keep_congestion_frames(&mut streams);
        let Some(mut connection) = self.connection_of(&streams) else { return };
        let mut evidence: [Option<&Evidence>; 2] = [None, None];
        let swapped = self.is_swapped(&streams);
        for stream in streams.iter().flatten() {
            evidence[stream.end.exchanged_if(swapped)] =
                stream.requester.as_ref().and_then(|r| r.evidence_or_none());
        }
        let facts = findings::Facts {
            connection: &connection,
            evidence,
            thresholds: &self.config.thresholds,
            setup: connection.setup.as_ref(),
            files: &self.config.files,
        };
        let mut found = findings::of_connection(&facts);
        connection.findings = findings::kinds_of(&found);
        let is_kept = is_kept && self.conclusion.connections.len() < ENDED_CONNECTIONS_MAX * 2;
        let totals = &mut self.conclusion.totals;
        totals.connections += 1;
        connection.directions.iter().for_each(|direction| totals.all.add(direction));
        if is_kept {
            for stream in streams.iter().flatten() {
                let swapped = swapped != (stream.end == End::B);
                self.conclusion.set(stream.number, connection.flow, swapped);
            }
            self.conclusion.connections.push(connection);
        } else {
            found.iter_mut().for_each(|finding| finding.flow = None);
        }
        self.conclusion.add_findings(found);
    }

    /// The silence between the last packet of a connection and the end of the capture, if it was
    /// long.
    fn silence_at_end(
        &self,
        streams: &[Option<Box<Stream>>; 2],
        end_time: Instant,
    ) -> Option<Stall> {
        let [Some(first), Some(second)] = streams else { return None };
        let is_closed = |stream: &Stream| {
            let setup = stream.setup.and_then(|id| self.agreements.get(id));
            setup.is_some_and(|attempt| attempt.setup.disconnect_frame.is_some())
        };
        if is_closed(first) || is_closed(second) {
            return None;
        }
        let times = [first, second].map(|stream| (stream.last_time, stream.last_frame));
        let (start, before) = times[0].max(times[1]);
        let nanos = nanos(end_time.saturating_since(start));
        (nanos >= self.config.thresholds.stall_nanos).then_some(Stall {
            start,
            nanos,
            before,
            after: None,
            cause: None,
            blame: None,
        })
    }

    /// Ends what is in flight on a stream.
    fn end_stream(
        &mut self,
        stream: &mut Stream,
        silence: Option<Stall>,
        end_time: Instant,
        sink: &mut dyn Sink,
    ) {
        if let Some(orphans) = &mut stream.orphans {
            for packet in core::mem::take(&mut orphans.responses) {
                orphans.count(&packet);
            }
        }
        let Some(requester) = &mut stream.requester else { return };
        let Self { budget, .. } = self;
        let (flow, end) = (stream.flow, stream.end);
        let mut scene = Scene { sink, budget, flow, requester: end };
        requester.end(stream.key.service, silence, end_time, &mut scene);
    }

    /// Whether end 0 of the streams is `ends[1]` of the connection.
    fn is_swapped(&self, streams: &[Option<Box<Stream>>; 2]) -> bool {
        let [Some(first), second] = streams else { return false };
        for (stream, is_second) in [(Some(first), false), (second.as_ref(), true)] {
            let Some(stream) = stream else { continue };
            if let Some(attempt) = stream.setup.and_then(|id| self.agreements.get(id)) {
                let receiver = (stream.key.destination, Some(stream.key.dest_qp));
                // The active side is end 0, so that what is for it comes from end 1.
                return ((attempt.active, attempt.active_qp) == receiver) != is_second;
            }
        }
        let first_request = first.first_request.unwrap_or(u64::MAX);
        match second {
            Some(second) => second.first_request.unwrap_or(u64::MAX) < first_request,
            // Responses alone: the requester is the one that they go to.
            None => first.first_request.is_none() && first.orphans.is_some(),
        }
    }

    /// The connection as the report shows it.
    fn connection_of(&self, streams: &[Option<Box<Stream>>; 2]) -> Option<Connection> {
        let [Some(first), second] = streams else { return None };
        let swapped = self.is_swapped(streams);
        let both = [Some(first), second.as_ref()];
        let all = || both.iter().flatten();
        let setup_id = all().find_map(|stream| stream.setup);
        let attempt = setup_id.and_then(|id| self.agreements.get(id));
        let mut ends = ends_of(first, second.as_deref());
        if let Some(attempt) = attempt {
            for end in &mut ends {
                let named =
                    [(attempt.active, attempt.active_qp), (attempt.passive, attempt.passive_qp)];
                let own = named.iter().find(|(host, _)| *host == end.address);
                end.qpn = end.qpn.or_else(|| own.and_then(|(_, qpn)| qpn.map(Qpn::new)));
            }
        }
        let mut directions = both.map(|stream| {
            let requester = stream.and_then(|stream| stream.requester.as_ref());
            requester.map_or_else(Direction::default, |r| r.statistics().clone())
        });
        for (end, stream) in End::BOTH.into_iter().zip(both) {
            let Some(stream) = stream else { continue };
            if let Some(orphans) = &stream.orphans {
                directions[end.other()].add(&orphans.statistics);
            }
            add_congestion(&mut directions, end, stream);
        }
        let mut series = Series::default();
        for (end, stream) in [false, true].into_iter().zip(both) {
            if let Some(stream) = stream {
                series.merge(&stream.series, end != swapped);
            }
        }
        if swapped {
            ends.reverse();
            directions.reverse();
        }
        for direction in &mut directions {
            direction.operations.sort_by_key(|operation| operation.operation as u8);
        }
        let requesters = all().filter_map(|stream| stream.requester.as_ref());
        let path_mtu = requesters.filter_map(|requester| requester.path_mtu()).max();
        let is_alone = second.is_none();
        Some(Connection {
            flow: first.flow,
            service: first.key.service,
            ends,
            tunnel: both[End::A.exchanged_if(swapped)].unwrap_or(first).tunnel,
            pairing: if is_alone { alone_pairing(first) } else { first.pairing },
            setup: attempt.map(|attempt| attempt.setup.clone()),
            path_mtu: attempt.and_then(|attempt| attempt.setup.path_mtu).or(path_mtu),
            first_time: all().map(|s| s.first_time).min().unwrap_or_default(),
            last_time: all().map(|s| s.last_time).max().unwrap_or_default(),
            first_frame: all().map(|s| s.first_frame).min().unwrap_or(0),
            last_frame: all().map(|s| s.last_frame).max().unwrap_or(0),
            directions,
            findings: Default::default(),
            series,
        })
    }

    /// Takes what several capture points say of the network.
    pub(super) fn take_vantage(&mut self, report: VantageReport) {
        let all = report.clock_offsets.into_iter().zip(report.seen_elsewhere);
        for (file, (offset, seen)) in self.capture.files.iter_mut().zip(all) {
            (file.clock_offset_nanos, file.seen_elsewhere) = (offset, seen);
        }
        self.capture.transits = report.transits;
    }

    /// Returns the report.
    pub(super) fn into_report(mut self) -> Report {
        self.beyond.messages += self.budget.forgotten_messages;
        let Conclusion { flows, mut connections, mut findings, mut totals, dropped_findings } =
            self.conclusion;
        findings.extend(findings::of_setups(&self.agreements));
        findings.extend(findings::of_transits(&self.capture));
        findings.extend(findings::of_stray_corruption(self.stray[0], &self.stray_corrupt));
        totals.all.icrc_errors += self.stray[0];
        totals.all.cnps += self.stray[1];
        totals.all.operations.sort_by_key(|operation| operation.operation as u8);
        // Connections are large, and are moved once so.
        connections.sort_by_cached_key(|connection| connection.flow);
        // Numbers without gaps, in the order of the first packets.
        let provisional: Vec<FlowNumber> = connections.iter().map(|c| c.flow).collect();
        let renumber = |flow: FlowNumber| provisional.binary_search(&flow).ok().map(FlowNumber::at);
        for connection in &mut connections {
            connection.flow = renumber(connection.flow).unwrap_or_default();
        }
        for finding in &mut findings {
            finding.flow = finding.flow.and_then(renumber);
        }
        let numbers = flows.into_iter().map(|packed| {
            let flow = renumber(FlowNumber(packed & !SWAPPED)).unwrap_or_default();
            flow.0 | packed & SWAPPED
        });
        let flows = numbers.collect();
        self.capture.kind = self.kind.decide(&self.capture.files, &connections);
        self.capture.kind.remove_explained(&mut findings, &mut connections, &mut totals.all);
        findings.extend(findings::of_limits(&self.beyond, dropped_findings));
        findings.sort_by_key(findings::severity);
        findings.truncate(FINDINGS_MAX);
        for finding in &mut findings {
            finding.time = finding.frames.first().and_then(|&frame| self.times.of(frame));
        }
        let beyond_limits = self.beyond;
        let mut report = Report {
            capture: self.capture,
            groups: Groups::default(),
            matrix: HostMatrix::default(),
            findings,
            totals,
            connections,
            beyond_limits,
            flows,
        };
        if !self.config.leaves_out_groups {
            report.group();
        }
        report
    }
}

/// Frames with marks are evidence about their sender's requests, those with CNPs about the
/// receiver's.
fn keep_congestion_frames(streams: &mut [Option<Box<Stream>>; 2]) {
    let frames = streams.each_ref().map(|stream| {
        let congestion = stream.as_ref()?.congestion.as_ref()?;
        Some((congestion.mark_frames, congestion.cnp_frames))
    });
    let [first, second] = frames;
    for (stream, own, other) in
        streams.iter_mut().zip([(first, second), (second, first)]).map(|(s, (o, p))| (s, o, p))
    {
        let Some(requester) = stream.as_mut().and_then(|s| s.requester.as_mut()) else { continue };
        requester.keep_congestion_frames(own.map(|(marks, _)| marks), other.map(|(_, cnps)| cnps));
    }
}

/// Returns the pairing of a connection of which only one direction was captured.
fn alone_pairing(stream: &Stream) -> Pairing {
    if stream.key.service == Service::Ud { Pairing::Datagram } else { Pairing::Unpaired }
}

/// The two ends: the sender of the first stream, and that of the second.
fn ends_of(first: &Stream, second: Option<&Stream>) -> [Endpoint; 2] {
    let sender_qp = match (first.key.source_qp, second) {
        (Key::NO_QP, Some(second)) => Some(Qpn::new(second.key.dest_qp)),
        (Key::NO_QP, None) => None,
        (qpn, _) => Some(Qpn::new(qpn)),
    };
    let sender = Endpoint {
        address: first.key.source,
        qpn: sender_qp,
        source_port: Some(first.source_port),
        dscp: first.dscp,
    };
    let receiver = Endpoint {
        address: first.key.destination,
        qpn: Some(Qpn::new(first.key.dest_qp)),
        source_port: second.map(|second| second.source_port),
        dscp: second.and_then(|second| second.dscp),
    };
    [sender, receiver]
}

/// Adds marks and CNPs: those of the packets that the stream's sender sent, and those that it
/// answered with.
fn add_congestion(directions: &mut [Direction; 2], end: End, stream: &Stream) {
    let Some(congestion) = &stream.congestion else { return };
    let [requests, responses] = congestion.marks;
    // The sender's requests are its own direction's, its responses the other's.
    directions[end].ce_marked += requests;
    directions[end].cnp_reaction_bytes = congestion.reaction;
    let other = &mut directions[end.other()];
    other.ce_marked += responses;
    // CNPs that it sent answer marked packets of the other end, which are requests in most cases.
    other.cnps += congestion.cnps;
}
