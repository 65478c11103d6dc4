//! Pairing of two streams to one connection, where no set-up says which belong together.
//!
//! A packet of a connection names the queue pair that it is for, and not the one that sent it. But
//! a response carries the PSN of the request that it answers. So the responses that one host sends
//! to a queue pair belong with those requests of the other host whose PSNs they answer. Each
//! response leaves fewer candidates; the last one is it.

use std::collections::BTreeSet;

use super::connection::Pairing;
use super::limits::{CANDIDATES_MAX, ORPHAN_RESPONSES_MAX};
use super::requester::{Verdict, role_of};
use super::stream::Route;
use super::tracker::Analysis;
use super::{FlowNumber, PacketFacts, PacketRole, Sink};
use crate::observe::end::End;
use crate::observe::sequence;
use crate::wire::{OpcodeInfo, Operation, Service};

impl Analysis {
    pub(super) fn add_unpaired(&mut self, route: Route, index: u32) {
        let list = self.unpaired.entry(route).or_default();
        if list.len() >= CANDIDATES_MAX {
            list.remove(0);
        }
        list.push(index);
    }

    pub(super) fn remove_unpaired(&mut self, route: &Route, index: u32) {
        if let Some(list) = self.unpaired.get_mut(route) {
            list.retain(|&other| other != index);
            if list.is_empty() {
                self.unpaired.remove(route);
            }
        }
    }

    /// Handles a response on a stream that is not paired.
    pub(super) fn handle_orphan(
        &mut self,
        index: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sink: &mut dyn Sink,
    ) -> Verdict {
        let sequence = sequence::first(packet.psn);
        let own = Verdict { sequence, ..Verdict::default() };
        self.narrow(index, packet, info);
        let Some(stream) = self.stream_mut(index) else { return own };
        let orphans = stream.orphans.get_or_insert_default();
        orphans.responses.push_back(packet.clone());
        let is_full = orphans.responses.len() > ORPHAN_RESPONSES_MAX;
        match *orphans.candidates {
            [(requests, _)] => {
                self.join(requests, index, Pairing::Acknowledgements);
                self.replay(requests, index, sink).unwrap_or(own)
            }
            [_, _, ..] if is_full => match self.best_candidate(index) {
                Some(requests) => {
                    self.join(requests, index, Pairing::Likely);
                    self.replay(requests, index, sink).unwrap_or(own)
                }
                None => own,
            },
            _ => {
                if is_full {
                    self.count_oldest_orphan(index);
                }
                own
            }
        }
    }

    /// Removes the candidates that cannot explain a response; if there are none, looks for new
    /// ones.
    fn narrow(&mut self, index: u32, packet: &PacketFacts, info: &OpcodeInfo) {
        let Some(stream) = self.stream_mut(index) else { return };
        let route = stream.reverse_route();
        let orphans = stream.orphans.get_or_insert_default();
        let mut candidates = core::mem::take(&mut orphans.candidates);
        let setup = stream_setup(self, index);
        candidates.retain(|&(at, number)| self.is_candidate(at, number, setup, packet, info));
        if candidates.is_empty() {
            let all = self.unpaired.get(&route).map_or(&[][..], |list| list);
            let numbered = all.iter().filter(|&&at| at != index);
            let numbered = numbered.filter_map(|&at| Some((at, self.stream(at)?.number)));
            candidates =
                numbered.filter(|&(at, n)| self.is_candidate(at, n, setup, packet, info)).collect();
        }
        self.prefer_fitting(&mut candidates, packet, info);
        if let Some(orphans) = self.stream_mut(index).and_then(|stream| stream.orphans.as_mut()) {
            orphans.candidates = candidates;
        }
    }

    /// Keeps the candidates for a READ response whose READ has its length, if there are several and
    /// any has.
    fn prefer_fitting(
        &self,
        candidates: &mut Vec<(u32, FlowNumber)>,
        packet: &PacketFacts,
        info: &OpcodeInfo,
    ) {
        if candidates.len() < 2 || info.operation != Operation::ReadResponse || packet.is_cut {
            return;
        }
        let fits = |&(at, _): &(u32, FlowNumber)| {
            let requester = self.stream(at).and_then(|stream| stream.requester.as_ref());
            requester.is_some_and(|requester| requester.fits_read(packet, info))
        };
        if candidates.iter().any(fits) {
            candidates.retain(fits);
        }
    }

    fn is_candidate(
        &self,
        at: u32,
        number: FlowNumber,
        setup: Option<u32>,
        packet: &PacketFacts,
        info: &OpcodeInfo,
    ) -> bool {
        self.stream(at).is_some_and(|stream| {
            stream.number == number
                && stream.peer.is_none()
                && self.is_setup_same(stream.setup, setup)
                && stream.requester.as_ref().is_some_and(|r| r.can_explain(packet, info))
        })
    }

    /// Whether two streams may be of one set-up: if one of them has a set-up that names both queue
    /// pairs, the other one has it, too.
    fn is_setup_same(&self, one: Option<u32>, other: Option<u32>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => one == other,
            (Some(id), None) | (None, Some(id)) => self
                .agreements
                .get(id)
                .is_none_or(|it| it.active_qp.is_none() || it.passive_qp.is_none()),
            (None, None) => true,
        }
    }

    /// The candidate that source ports and order suggest: the same UDP source port if only one has
    /// it, else the first.
    fn best_candidate(&self, index: u32) -> Option<u32> {
        let stream = self.stream(index)?;
        let candidates = &stream.orphans.as_ref()?.candidates;
        let same_port =
            |at: u32| self.stream(at).is_some_and(|other| other.source_port == stream.source_port);
        let mut same = candidates.iter().filter(|&&(at, _)| same_port(at));
        match (same.next(), same.next()) {
            (Some(&(at, _)), None) => Some(at),
            _ => candidates.first().map(|&(at, _)| at),
        }
    }

    /// Pairs a stream with the one in the other direction whose UDP source port tells that they are
    /// one connection.
    ///
    /// Linux derives the port of a connection from the numbers of both queue pairs
    /// (`rdma_calc_flow_label`), so both directions have the same. Each direction names the queue
    /// pair that it is for, so the port can be computed: that it is right by chance happens once in
    /// 2^14 pairs.
    pub(super) fn join_by_source_port(&mut self, index: u32) {
        let Some(stream) = self.stream(index) else { return };
        let (port, qpn) = (stream.source_port, stream.key.dest_qp);
        let others = self.unpaired.get(&stream.reverse_route()).map_or(&[][..], |list| list);
        let is_other = |&&at: &&u32| {
            at != index
                && self.stream(at).is_some_and(|other| {
                    other.source_port == port && port == source_port(qpn, other.key.dest_qp)
                })
        };
        let mut fitting = others.iter().filter(is_other);
        if let (Some(&other), None) = (fitting.next(), fitting.next()) {
            self.join(other, index, Pairing::SourcePort);
        }
    }

    /// Counts the oldest response without a requester, and forgets it.
    fn count_oldest_orphan(&mut self, index: u32) {
        let Some(stream) = self.stream_mut(index) else { return };
        let Some(orphans) = &mut stream.orphans else { return };
        let Some(packet) = orphans.responses.pop_front() else { return };
        orphans.count(&packet);
    }

    /// Makes two streams one connection. The earlier one gives its number to both.
    pub(super) fn join(&mut self, one: u32, other: u32, pairing: Pairing) {
        let numbers =
            [one, other].map(|at| self.stream(at).map(|stream| stream.number).unwrap_or_default());
        let (first, second) = if numbers[0] <= numbers[1] { (one, other) } else { (other, one) };
        let flow = numbers[0].min(numbers[1]);
        for (at, peer, end) in [(first, second, End::A), (second, first, End::B)] {
            let Some(stream) = self.stream_mut(at) else { continue };
            (stream.peer, stream.pairing) = (Some(peer), pairing);
            (stream.flow, stream.end) = (flow, end);
            let route = stream.route();
            self.remove_unpaired(&route, at);
        }
    }

    /// Handles the responses that waited for their requester. Returns what the last one of
    /// `responses` was.
    pub(super) fn replay(
        &mut self,
        requests: u32,
        responses: u32,
        sink: &mut dyn Sink,
    ) -> Option<Verdict> {
        let mut last = None;
        for (to, from) in [(responses, requests), (requests, responses)] {
            let Some(stream) = self.stream_mut(from) else { continue };
            let Some(orphans) = stream.orphans.take() else { continue };
            for packet in &orphans.responses {
                if let Some(info) = packet.opcode.info() {
                    last = Some(self.respond(to, packet, info, sink));
                }
            }
            if let Some(requester) = self.stream_mut(to).and_then(|s| s.requester.as_mut()) {
                requester.statistics_mut().add(&orphans.statistics);
            }
        }
        last
    }

    /// Pairs, at the end of the capture, streams that responses could not decide, and those with
    /// only one candidate.
    pub(super) fn pair_the_rest(&mut self, sink: &mut dyn Sink) {
        let count = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let mut open: Vec<(FlowNumber, u32)> = (0..count)
            .filter_map(|at| {
                let stream = self.stream(at)?;
                (stream.peer.is_none() && stream.key.service != Service::Ud)
                    .then_some((stream.number, at))
            })
            .collect();
        open.sort_unstable();
        for &(_, index) in &open {
            if self.stream(index).is_none_or(|stream| stream.peer.is_some()) {
                continue;
            }
            self.drop_paired_candidates(index);
            if let Some(requests) = self.best_candidate(index) {
                self.join(requests, index, Pairing::Likely);
                self.replay(requests, index, sink);
            }
        }
        // Between these hosts the source port tells which streams belong together.
        let telling: BTreeSet<([u8; 16], [u8; 16])> = (0..count)
            .filter_map(|at| self.stream(at).filter(|s| s.pairing == Pairing::SourcePort))
            .map(|stream| (stream.key.source.0, stream.key.destination.0))
            .collect();
        for &(_, index) in &open {
            let hosts = self.stream(index).map(|s| (s.key.source.0, s.key.destination.0));
            if hosts.is_some_and(|hosts| telling.contains(&hosts)) {
                continue;
            }
            if let Some(other) = self.only_counterpart(index) {
                self.join(index, other, Pairing::OnlyCandidates);
                self.replay(index, other, sink);
            }
        }
    }

    fn drop_paired_candidates(&mut self, index: u32) {
        let Some(stream) = self.stream_mut(index) else { return };
        let Some(mut orphans) = stream.orphans.take() else { return };
        orphans.candidates.retain(|&(at, number)| {
            self.stream(at).is_some_and(|s| s.number == number && s.peer.is_none())
        });
        if let Some(stream) = self.stream_mut(index) {
            stream.orphans = Some(orphans);
        }
    }

    /// The stream in the other direction, if both are the only ones that are left between their
    /// addresses and were used at the same time.
    fn only_counterpart(&self, index: u32) -> Option<u32> {
        let stream = self.stream(index).filter(|stream| stream.peer.is_none())?;
        let [_] = self.unpaired.get(&stream.route())?.as_slice() else { return None };
        let &[other] = self.unpaired.get(&stream.reverse_route())?.as_slice() else { return None };
        let counterpart = self.stream(other)?;
        let overlap = stream.first_time <= counterpart.last_time
            && counterpart.first_time <= stream.last_time;
        // Nothing ties two directions of UC together but the port.
        let fits =
            stream.key.service != Service::Uc || stream.source_port == counterpart.source_port;
        (other != index && overlap && fits).then_some(other)
    }
}

/// The UDP source port that Linux gives a connection without a flow label.
fn source_port(one: u32, other: u32) -> u16 {
    let mut hash = u64::from(one) * u64::from(other);
    hash ^= hash >> 20;
    hash ^= hash >> 40;
    let label = hash & 0xf_ffff;
    u16::try_from((label & 0x3fff) ^ (label >> 14)).unwrap_or(0) | 0xc000
}

fn stream_setup(analysis: &Analysis, index: u32) -> Option<u32> {
    analysis.stream(index).and_then(|stream| stream.setup)
}

impl super::stream::Orphans {
    /// Counts a response without a requester.
    pub(super) fn count(&mut self, packet: &PacketFacts) {
        use crate::wire::aeth::Answer;
        let Some(info) = packet.opcode.info() else { return };
        let statistics = &mut self.statistics;
        statistics.response_packets += 1;
        statistics.wire_bytes += u64::from(packet.wire_len);
        match (role_of(packet, info), packet.aeth.map(|(syndrome, _)| syndrome.answer())) {
            (PacketRole::Rnr, _) => statistics.rnr_naks += 1,
            (PacketRole::Nak, Some(Answer::Nak(code))) => {
                if let Some(counter) = statistics.naks.get_mut(code.code().get() as usize) {
                    *counter += 1;
                }
            }
            (PacketRole::Ack, _) => statistics.acks += 1,
            _ => {}
        }
    }
}
