//! The analysis itself: which connection a packet belongs to, and what it means there.

use core::time::Duration;

use super::budget::Budget;
use super::conclude::Conclusion;
use super::connection::{Pairing, Stall};
use super::evidence::Frames;
use super::finding::Thresholds;
use super::frame_times::FrameTimes;
use super::limits::{EARLY_CNPS_MAX, ENDPOINTS_MAX, FLOW_NUMBERS_MAX};
use super::report::{BeyondLimits, CaptureFacts, FileFacts, Report};
use super::requester::{Requester, Scene, Verdict, role_of};
use super::series::Series;
use super::stream::{Key, Route, Stream};
use super::vantage::{Shown, Vantage};
use super::{CmFacts, FlowNumber, PacketFacts, PacketNote, PacketRole, Sink, kind};
use crate::observe::agreement::Agreements;
use crate::observe::fold_map::FoldMap;
use crate::observe::round_trip::RoundTrip;
use crate::observe::timing::retransmission_timeout;
use crate::time::{Instant, nanos};
use crate::wire::{Gid, IcrcVerdict, OpcodeInfo, Operation, Qpn, Role, Service};

/// Configuration of an analysis.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// Thresholds from which on faults are reported.
    pub thresholds: Thresholds,
    /// The names of the capture files, in the order of their indices.
    pub files: Vec<String>,
    /// Whether connections have no [`series`](super::Connection::series), where nothing shows them.
    pub leaves_out_series: bool,
    /// Whether the report has no [`groups`](super::Report::groups), where nothing shows them.
    pub leaves_out_groups: bool,
}

/// Follows the connections of a capture.
///
/// It is told every frame in the order of time: packets with
/// [`handle_packet`](Self::handle_packet), frames that hold none with
/// [`handle_other_frame`](Self::handle_other_frame).
#[derive(Clone, Debug)]
pub struct Analysis {
    pub(super) config: Config,
    pub(super) capture: CaptureFacts,
    pub(super) kind: kind::Counts,
    pub(super) streams: Vec<Option<Box<Stream>>>,
    free: Vec<u32>,
    by_key: FoldMap<Key, u32>,
    /// Streams between two addresses that are not paired.
    pub(super) unpaired: FoldMap<Route, Vec<u32>>,
    /// The streams that were used last.
    latest: [Option<(Key, u32)>; 2],
    /// Index at which the search for a stream to forget goes on.
    hand: usize,
    /// Number of connections that have a number.
    numbers: u32,
    /// Combines the sightings of several files, if there are several.
    vantage: Option<Box<Vantage>>,
    pub(super) agreements: Agreements,
    pub(super) budget: Budget,
    pub(super) conclusion: Conclusion,
    pub(super) beyond: BeyondLimits,
    /// Packets with a correct ICRC, and with a wrong one.
    verdicts: [u64; 2],
    /// Packets with a wrong ICRC that belong to no known connection, and CNPs.
    pub(super) stray: [u64; 2],
    /// The first frames of the former.
    pub(super) stray_corrupt: Frames,
    /// CNPs that were lost before anything else came to their queue pair.
    early_cnps: Vec<PacketFacts>,
    /// Times of frames.
    pub(super) times: FrameTimes,
}

impl Analysis {
    /// An analysis at the start of a capture.
    pub fn new(config: Config) -> Self {
        let delay_nanos = config.thresholds.delay_nanos;
        let vantage = (config.files.len() > 1)
            .then(|| Box::new(Vantage::new(config.files.len(), delay_nanos)));
        let files = config.files.iter().map(|name| FileFacts::new(name)).collect();
        Self {
            config,
            capture: CaptureFacts { files, ..CaptureFacts::default() },
            kind: kind::Counts::default(),
            streams: Vec::new(),
            free: Vec::new(),
            by_key: FoldMap::default(),
            unpaired: FoldMap::default(),
            latest: [None; 2],
            hand: 0,
            numbers: 0,
            vantage,
            agreements: Agreements::default(),
            budget: Budget::default(),
            conclusion: Conclusion::default(),
            beyond: BeyondLimits::default(),
            verdicts: [0; 2],
            stray: [0; 2],
            stray_corrupt: Frames::default(),
            early_cnps: Vec::new(),
            times: FrameTimes::default(),
        }
    }

    /// Handles a frame that holds no RoCE packet.
    pub fn handle_other_frame(&mut self, time: Option<Instant>, wire_len: u32, file: u16) {
        self.count_frame(time, wire_len, file, true);
    }

    /// Counts a packet of a frame. A train is a frame of several packets, and counts with the
    /// first.
    #[inline]
    fn count_frame(&mut self, time: Option<Instant>, wire_len: u32, file: u16, is_first: bool) {
        let capture = &mut self.capture;
        capture.frames += u64::from(is_first);
        capture.bytes += u64::from(wire_len);
        if let Some(facts) = capture.files.get_mut(usize::from(file)) {
            facts.frames += u64::from(is_first);
        }
        if let Some(time) = time {
            capture.first_time = Some(capture.first_time.map_or(time, |first| first.min(time)));
            capture.last_time = Some(capture.last_time.map_or(time, |last| last.max(time)));
        }
    }

    /// Handles a packet, and tells `sink` what it means.
    ///
    /// With several files the packet is held until the other capture points had the time to see it
    /// too; see [`limits::VANTAGE_SPAN_NANOS`](super::limits::VANTAGE_SPAN_NANOS).
    pub fn handle_packet(&mut self, packet: &PacketFacts, sink: &mut dyn Sink) {
        let is_first = packet.train.is_none_or(|train| train.index == 1);
        self.count_frame(Some(packet.time), packet.wire_len, packet.file, is_first);
        if !self.kind.add(packet) {
            return;
        }
        self.capture.packets += 1;
        self.times.push(packet.frame, packet.time);
        let interval = self.capture.series.at(packet.time, Series::INTERVALS_MAX);
        interval.packets[0] = interval.packets[0].saturating_add(1);
        interval.bytes[0] += u64::from(packet.wire_len);
        match &mut self.vantage {
            None => self.track(packet, sink),
            Some(vantage) => {
                let shown = vantage.push(packet.clone());
                self.track_shown(shown, sink);
            }
        }
    }

    /// Handles packets whose sightings are put together.
    fn track_shown(&mut self, shown: Vec<Shown>, sink: &mut dyn Sink) {
        for Shown { facts, others } in shown {
            let mut last = LastNote { sink: &mut *sink, note: None };
            self.track(&facts, &mut last);
            if let Some(note) = last.note {
                others.iter().for_each(|facts| sink.sighting(facts, &note));
            }
        }
    }

    /// Follows the connection of a packet: each packet once, in the order of time.
    pub(super) fn track(&mut self, packet: &PacketFacts, sink: &mut dyn Sink) {
        match packet.icrc {
            IcrcVerdict::Ok => self.verdicts[0] += 1,
            IcrcVerdict::Bad => self.verdicts[1] += 1,
            IcrcVerdict::Absent => {}
        }
        let Some(info) = packet.opcode.info() else {
            if packet.icrc == IcrcVerdict::Bad {
                self.count_stray_corrupt(packet);
            }
            return;
        };
        if let Some(cm) = &packet.cm {
            self.handle_cm(packet, cm, sink);
        }
        // Where most ICRCs are wrong, they are written by hardware behind the capture point, and
        // mean nothing.
        let is_corrupt = packet.icrc == IcrcVerdict::Bad && self.verdicts[0] > self.verdicts[1];
        if is_corrupt {
            self.handle_corrupt(packet, info, sink);
        } else if info.operation == Operation::Cnp {
            self.handle_cnp(packet, sink);
        } else if let Some(index) = self.stream_of(packet, info, sink) {
            self.handle_early_cnps(index, sink);
            self.handle_in_stream(index, packet, info, sink);
        } else {
            self.beyond.packets += 1;
        }
    }

    /// The stream at an index.
    #[inline]
    pub(super) fn stream(&self, index: u32) -> Option<&Stream> {
        self.streams.get(index as usize)?.as_deref()
    }

    /// The stream at an index.
    #[inline]
    pub(super) fn stream_mut(&mut self, index: u32) -> Option<&mut Stream> {
        self.streams.get_mut(index as usize)?.as_deref_mut()
    }

    #[inline]
    fn find(&mut self, key: &Key) -> Option<u32> {
        match self.latest {
            [Some((latest, index)), _] if latest == *key => return Some(index),
            [_, Some((latest, index))] if latest == *key => return Some(index),
            _ => {}
        }
        let &index = self.by_key.get(key)?;
        self.latest = [Some((*key, index)), self.latest[0]];
        Some(index)
    }

    /// The stream of a packet, a new one if there is none or if the packet begins a new connection.
    fn stream_of(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sink: &mut dyn Sink,
    ) -> Option<u32> {
        let key = Key::new(packet, info.service);
        if let Some(index) = self.find(&key) {
            if !self.begins_anew(index, packet, info) {
                return Some(index);
            }
            self.retire(index, sink);
        }
        self.create(key, packet, sink)
    }

    /// Whether a request cannot belong to the connection that its queue pair had: it begins a
    /// message, and the clock went back by a second (captures that were joined), or its PSN is far
    /// from all in flight and the connection failed or was silent.
    #[inline]
    fn begins_anew(&self, index: u32, packet: &PacketFacts, info: &OpcodeInfo) -> bool {
        const SILENCE: Duration = Duration::from_millis(100);
        const CLOCK_STEP: Duration = Duration::from_secs(1);
        if info.role != Role::Request || info.service == Service::Ud || !info.position.begins() {
            return false;
        }
        let Some(stream) = self.stream(index) else { return false };
        let Some(requester) = &stream.requester else { return false };
        let now = packet.time;
        now.saturating_add(CLOCK_STEP) < stream.last_time
            || (requester.is_far(packet.psn)
                && (requester.is_failed() || now.saturating_since(stream.last_time) > SILENCE))
    }

    fn create(&mut self, key: Key, packet: &PacketFacts, sink: &mut dyn Sink) -> Option<u32> {
        if self.numbers >= FLOW_NUMBERS_MAX {
            return None;
        }
        while self.budget.endpoints() >= ENDPOINTS_MAX {
            self.forget_one(sink);
        }
        self.numbers += 1;
        let stream = Box::new(Stream::new(key, FlowNumber(self.numbers), packet));
        let route = stream.route();
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.streams.push(None);
                u32::try_from(self.streams.len() - 1).ok()?
            }
        };
        *self.streams.get_mut(index as usize)? = Some(stream);
        self.budget.set_endpoints(self.budget.endpoints() + 1);
        self.conclusion.add_number(FlowNumber(self.numbers));
        self.by_key.insert(key, index);
        self.latest = [Some((key, index)), self.latest[0]];
        if key.service == Service::Ud {
            if let Some(&peer) = self.by_key.get(&key.reversed())
                && peer != index
            {
                self.join(peer, index, Pairing::Datagram);
            }
        } else if !self.join_by_setup(index) {
            self.add_unpaired(route, index);
            self.join_by_source_port(index);
        }
        Some(index)
    }

    /// Pairs a stream with the one that the connection manager named.
    fn join_by_setup(&mut self, index: u32) -> bool {
        let Some(key) = self.stream(index).map(|stream| stream.key) else { return false };
        let Some(id) = self.agreements.of_qp(key.destination, key.dest_qp) else { return false };
        let Some(attempt) = self.agreements.get(id) else { return false };
        let (exponent, mtu) = (attempt.setup.ack_timeout, attempt.setup.path_mtu);
        let ends = [(attempt.active, attempt.active_qp), (attempt.passive, attempt.passive_qp)];
        let is_active = ends[0] == (key.destination, Some(key.dest_qp));
        let (own_end, other_end) = if is_active { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        if other_end.0 != key.source || own_end.0 != key.destination {
            return false;
        }
        if let Some(stream) = self.stream_mut(index) {
            stream.setup = Some(id);
            let requester = stream.requester.get_or_insert_default();
            requester.agree(exponent.and_then(retransmission_timeout), mtu);
        }
        let Some(other_qp) = other_end.1 else { return false };
        let peer_key =
            Key { source: key.destination, destination: key.source, dest_qp: other_qp, ..key };
        match self.by_key.get(&peer_key).copied() {
            Some(peer) if peer != index && self.stream(peer).is_some_and(|s| s.peer.is_none()) => {
                self.join(peer, index, Pairing::ConnectionManager);
                true
            }
            _ => false,
        }
    }

    /// Handles a message of the connection manager.
    fn handle_cm(&mut self, packet: &PacketFacts, cm: &CmFacts, sink: &mut dyn Sink) {
        let Some(begun) = self.agreements.handle(packet, cm) else { return };
        // Packets to this queue pair before the set-up were another connection's.
        for service in [Service::Rc, Service::Uc, Service::Xrc] {
            let (source, destination) = (begun.peer, begun.host);
            let (dest_qp, source_qp) = (begun.qpn, Key::NO_QP);
            let key = Key { source, destination, dest_qp, source_qp, service };
            if let Some(&index) = self.by_key.get(&key)
                && self.stream_mut(index).is_some_and(|it| it.first_frame < begun.request_frame)
            {
                self.retire(index, sink);
            }
        }
    }

    /// A packet with a wrong ICRC: only counted, because its receiver drops it.
    fn handle_corrupt(&mut self, packet: &PacketFacts, info: &OpcodeInfo, sink: &mut dyn Sink) {
        let key = Key::new(packet, info.service);
        let Some(index) = self.find(&key) else {
            self.count_stray_corrupt(packet);
            return;
        };
        let Some(stream) = self.stream_mut(index) else { return };
        let (flow, sender, peer) = (stream.flow, stream.end, stream.peer);
        let mut sequence = u64::from(packet.psn.get());
        let role =
            if info.role == Role::Response { role_of(packet, info) } else { PacketRole::Request };
        if info.role == Role::Request {
            sequence = stream.requester.get_or_insert_default().handle_corrupt(packet);
        } else if let Some(peer) = peer.and_then(|peer| self.stream_mut(peer))
            && let Some(requester) = &mut peer.requester
        {
            sequence = requester.handle_corrupt_response(packet, role);
        } else {
            self.count_stray_corrupt(packet);
        }
        let (retransmission, duplicate, reordered) = (None, false, false);
        let note =
            PacketNote { flow, sender, role, sequence, retransmission, duplicate, reordered };
        sink.packet(packet, &note);
    }

    /// A packet with a wrong ICRC that belongs to no known connection; its queue pair number may be
    /// damaged.
    fn count_stray_corrupt(&mut self, packet: &PacketFacts) {
        self.stray[0] += 1;
        self.stray_corrupt.push(packet.frame);
    }

    /// A congestion notification: its sender got marked packets from the queue pair that it is for.
    fn handle_cnp(&mut self, packet: &PacketFacts, sink: &mut dyn Sink) {
        let services = [Service::Rc, Service::Uc, Service::Xrc];
        let keys = services.map(|service| Key::new(packet, service));
        let Some(index) = keys.iter().find_map(|key| self.by_key.get(key).copied()) else {
            self.stray[1] += 1;
            if packet.sightings().lost.is_some() && self.early_cnps.len() < EARLY_CNPS_MAX {
                self.early_cnps.push(packet.clone());
            }
            return;
        };
        let time = packet.time;
        let Some(stream) = self.stream_mut(index) else { return };
        let congestion = stream.congestion.get_or_insert_default();
        congestion.cnps += 1;
        congestion.cnp_frames.push(packet.frame);
        let (flow, sender, peer) = (stream.flow, stream.end, stream.peer);
        stream.bytes += u64::from(packet.wire_len);
        if packet.sightings().lost.is_some() {
            self.report_lost_cnp(peer.unwrap_or(index), packet, sink);
        } else if let Some(peer) = peer.and_then(|peer| self.stream_mut(peer)) {
            peer.congestion.get_or_insert_default().handle_cnp(time);
        }
        let (role, sequence) = (PacketRole::Cnp, 0);
        // A CNP has no PSN: only several capture points tell its order and its copies.
        let (retransmission, sightings) = (None, packet.sightings());
        let (duplicate, reordered) = (sightings.is_copy, sightings.reordered.is_some());
        let note =
            PacketNote { flow, sender, role, sequence, retransmission, duplicate, reordered };
        sink.packet(packet, &note);
    }

    /// Handles the CNPs for the queue pair of a stream that were lost before it was known. A lost
    /// one is seen where it was sent, the others only where they arrive.
    fn handle_early_cnps(&mut self, index: u32, sink: &mut dyn Sink) {
        if self.early_cnps.is_empty() {
            return;
        }
        let paired = self.stream(index).filter(|stream| stream.peer.is_some());
        let Some(key) = paired.map(|stream| stream.key) else { return };
        let all = core::mem::take(&mut self.early_cnps).into_iter();
        let (early, rest): (Vec<_>, _) = all.partition(|cnp| Key::new(cnp, key.service) == key);
        self.early_cnps = rest;
        for cnp in early {
            self.stray[1] = self.stray[1].saturating_sub(1);
            self.handle_cnp(&cnp, sink);
        }
    }

    /// A CNP did not reach the requester at `index`.
    fn report_lost_cnp(&mut self, index: u32, packet: &PacketFacts, sink: &mut dyn Sink) {
        self.with_requester(index, sink, |requester, scene| {
            requester.report_between(0, PacketRole::Cnp, packet, scene);
        });
    }

    /// Calls `act` with the requester of the stream at `index`, a new one if it has none, and with
    /// its scene. Returns the default if there is no such stream.
    #[inline]
    fn with_requester<T: Default>(
        &mut self,
        index: u32,
        sink: &mut dyn Sink,
        act: impl FnOnce(&mut Requester, &mut Scene<'_>) -> T,
    ) -> T {
        let Self { streams, budget, .. } = self;
        let Some(Some(stream)) = streams.get_mut(index as usize) else { return T::default() };
        let requester = stream.requester.get_or_insert_default();
        let mut scene = Scene { sink, budget, flow: stream.flow, requester: stream.end };
        act(requester, &mut scene)
    }

    fn handle_in_stream(
        &mut self,
        index: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sink: &mut dyn Sink,
    ) {
        let is_silent = self.stream(index).is_some_and(|stream| {
            let silence = packet.time.as_nanos().saturating_sub(stream.last_time.as_nanos());
            silence >= self.config.thresholds.stall_nanos
        });
        let silence = if is_silent { self.silence_before(index, packet) } else { None };
        let has_paused = is_silent && self.is_peer_unanswered(index);
        let (verdict, role) = match (info.service, info.role) {
            (Service::Ud, _) if packet.dest_qp == Qpn::GSI || packet.dest_qp == Qpn::SMI => {
                self.count_management(index, packet);
                let sequence = u64::from(packet.psn.get());
                (Verdict { sequence, ..Verdict::default() }, PacketRole::Management)
            }
            (Service::Rd, _) => {
                let sequence = u64::from(packet.psn.get());
                (Verdict { sequence, ..Verdict::default() }, PacketRole::Request)
            }
            (_, Role::Response) if packet.is_sack_of_responses() => {
                // A requester asks for single READ responses; that is no answer.
                let sequence = u64::from(packet.psn.get());
                (Verdict { sequence, ..Verdict::default() }, PacketRole::Request)
            }
            (_, Role::Response) => {
                (self.handle_response(index, packet, info, sink), role_of(packet, info))
            }
            _ => {
                let requester = self.stream_mut(index).and_then(|it| it.requester.as_mut());
                requester.into_iter().for_each(|requester| requester.set_paused(has_paused));
                (self.handle_request(index, packet, info, sink), PacketRole::Request)
            }
        };
        if let Some(silence) = silence {
            self.note_stall(index, silence, &verdict);
        }
        self.touch(index, packet, &verdict, role);
        let Some(stream) = self.stream(index) else { return };
        let note = PacketNote {
            flow: stream.flow,
            sender: stream.end,
            role,
            sequence: verdict.sequence,
            retransmission: verdict.retransmission,
            duplicate: verdict.duplicate,
            reordered: verdict.reordered,
        };
        sink.packet(packet, &note);
    }

    /// Counts a management datagram, of which nothing is followed: its class has sequence numbers
    /// of its own.
    fn count_management(&mut self, index: u32, packet: &PacketFacts) {
        let Some(stream) = self.stream_mut(index) else { return };
        let statistics = stream.requester.get_or_insert_default().statistics_mut();
        statistics.request_packets += 1;
        statistics.wire_bytes += u64::from(packet.wire_len);
    }

    fn handle_request(
        &mut self,
        index: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sink: &mut dyn Sink,
    ) -> Verdict {
        let peer = self.peer_round_trip(index);
        if let Some(stream) = self.stream_mut(index) {
            stream.first_request.get_or_insert(packet.frame);
        }
        self.with_requester(index, sink, |requester, scene| {
            if requester.is_far(packet.psn) && info.service != Service::Ud {
                requester.resynchronize(packet, scene);
            }
            peer.iter().for_each(|peer| requester.set_peer_round_trip(peer));
            requester.statistics_mut().wire_bytes += u64::from(packet.wire_len);
            if matches!(info.service, Service::Uc | Service::Ud) {
                requester.handle_unreliable(packet, info, scene)
            } else {
                requester.handle_request(packet, info, scene)
            }
        })
    }

    /// Whether the other end retransmits requests to this one, which does not answer.
    fn is_peer_unanswered(&self, index: u32) -> bool {
        let peer = self.stream(index).and_then(|stream| self.stream(stream.peer?));
        peer.and_then(|peer| peer.requester.as_ref()).is_some_and(|it| it.is_unanswered())
    }

    /// The round-trip time of the other end's requests, where a response may make the requester go
    /// back.
    #[inline]
    fn peer_round_trip(&self, index: u32) -> Option<RoundTrip> {
        let stream = self.stream(index)?;
        stream.requester.as_ref().filter(|requester| requester.is_asked_to_go_back())?;
        Some(*self.stream(stream.peer?)?.requester.as_ref()?.round_trip())
    }

    fn handle_response(
        &mut self,
        index: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sink: &mut dyn Sink,
    ) -> Verdict {
        let Some(peer) = self.stream(index).and_then(|stream| stream.peer) else {
            return self.handle_orphan(index, packet, info, sink);
        };
        self.respond(peer, packet, info, sink)
    }

    /// Handles a response to the requests of the stream at `index`.
    pub(super) fn respond(
        &mut self,
        index: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        sink: &mut dyn Sink,
    ) -> Verdict {
        self.with_requester(index, sink, |requester, scene| {
            requester.statistics_mut().wire_bytes += u64::from(packet.wire_len);
            requester.handle_response(packet, info, scene)
        })
    }

    /// The silence on the connection before this packet, which its sender was silent for long
    /// enough before, if the other end was, too, and requests were in flight: start, length, the
    /// frame before it, and whose requests.
    fn silence_before(&self, index: u32, packet: &PacketFacts) -> Option<(Stall, [bool; 2])> {
        let stream = self.stream(index)?;
        let least = Duration::from_nanos(self.config.thresholds.stall_nanos);
        let now = packet.time;
        let peer = self.stream(stream.peer?)?;
        let (start, before) =
            (stream.last_time, stream.last_frame).max((peer.last_time, peer.last_frame));
        let silence = now.saturating_since(start);
        let waiting = [stream, peer].map(|s| s.requester.as_ref().is_some_and(|r| r.is_inflight()));
        if silence < least || waiting == [false, false] {
            return None;
        }
        let (after, nanos) = (Some(packet.frame), nanos(silence));
        let blame = peer.requester.as_ref().and_then(|it| it.blame_for(packet, silence));
        Some((Stall { start, nanos, before, after, cause: None, blame }, waiting))
    }

    fn note_stall(&mut self, index: u32, (stall, waiting): (Stall, [bool; 2]), verdict: &Verdict) {
        let stall = Stall { cause: verdict.retransmission, ..stall };
        let Some(peer) = self.stream(index).and_then(|stream| stream.peer) else { return };
        for (index, _) in [index, peer].into_iter().zip(waiting).filter(|&(_, waits)| waits) {
            if let Some(requester) = self.stream_mut(index).and_then(|s| s.requester.as_mut()) {
                requester.add_stall(stall);
            }
        }
    }

    /// Notes that a packet belongs to a stream.
    #[inline]
    fn touch(&mut self, index: u32, packet: &PacketFacts, verdict: &Verdict, role: PacketRole) {
        let leaves_out_series = self.config.leaves_out_series;
        let most = self.budget.intervals_max();
        let Some(stream) = self.stream_mut(index) else { return };
        let time = packet.time;
        stream.last_time = stream.last_time.max(time);
        stream.last_frame = packet.frame;
        stream.source_port = packet.source_port;
        stream.dscp = packet.dscp;
        stream.is_recent = true;
        stream.bytes += u64::from(packet.wire_len);
        if packet.is_ce_marked || stream.congestion.is_some() {
            let congestion = stream.congestion.get_or_insert_default();
            congestion.handle_packet(time, packet.wire_len);
            if packet.is_ce_marked {
                congestion.marks[usize::from(role != PacketRole::Request)] += 1;
                congestion.mark_frames.push(packet.frame);
            }
        }
        if leaves_out_series {
            return;
        }
        let latency = match &mut stream.requester {
            Some(requester) => requester.take_latency_max(),
            None => 0,
        };
        let interval = stream.series.at(packet.time, most);
        interval.packets[0] = interval.packets[0].saturating_add(1);
        interval.bytes[0] += u64::from(packet.wire_len);
        if verdict.retransmission.is_some() {
            interval.retransmissions[0] = interval.retransmissions[0].saturating_add(1);
        }
        interval.latency_max = interval.latency_max.max(latency);
    }

    /// Removes a stream from the tables.
    pub(super) fn remove(&mut self, index: u32) -> Option<Box<Stream>> {
        let stream = self.streams.get_mut(index as usize)?.take()?;
        self.by_key.remove(&stream.key);
        self.latest = [None; 2];
        self.remove_unpaired(&stream.route(), index);
        self.free.push(index);
        self.budget.set_endpoints(self.budget.endpoints() - 1);
        Some(stream)
    }

    /// Ends a connection before the capture does.
    fn retire(&mut self, index: u32, sink: &mut dyn Sink) {
        self.conclude(index, true, sink);
    }

    /// Forgets a connection that was not used for long.
    fn forget_one(&mut self, sink: &mut dyn Sink) {
        for _ in 0..=2 * self.streams.len() {
            self.hand = (self.hand + 1) % self.streams.len().max(1);
            let Some(Some(stream)) = self.streams.get_mut(self.hand) else { continue };
            if core::mem::take(&mut stream.is_recent) {
                continue;
            }
            let peer = stream.peer;
            if let Some(peer) = peer.and_then(|peer| self.stream_mut(peer))
                && core::mem::take(&mut peer.is_recent)
            {
                continue;
            }
            self.beyond.connections += 1;
            let index = u32::try_from(self.hand).unwrap_or(0);
            self.conclude(index, false, sink);
            return;
        }
    }

    /// Takes note of frames that a capture says it dropped.
    pub fn handle_drops(&mut self, frames: u64) {
        self.kind.add_dropped(frames);
    }

    /// Returns the report on the capture so far, before its end.
    pub fn snapshot(&self) -> Report {
        self.clone().finish(&mut ())
    }

    /// Ends the analysis.
    pub fn finish(mut self, sink: &mut dyn Sink) -> Report {
        if let Some(vantage) = self.vantage.take() {
            let (shown, report) = vantage.finish();
            self.track_shown(shown, sink);
            self.take_vantage(report);
        }
        self.pair_the_rest(sink);
        let indices = 0..u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let mut live: Vec<(FlowNumber, u32)> =
            indices.filter_map(|index| Some((self.stream(index)?.flow, index))).collect();
        live.sort_unstable();
        for (_, index) in live {
            self.conclude(index, true, sink);
        }
        self.into_report()
    }
}

/// Passes on what it is told, and keeps the last packet's note.
struct LastNote<'s> {
    sink: &'s mut dyn Sink,
    note: Option<PacketNote>,
}

impl Sink for LastNote<'_> {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.note = Some(*note);
        self.sink.packet(facts, note);
    }

    fn loss(&mut self, note: &super::LossNote) {
        self.sink.loss(note);
    }

    fn message(&mut self, message: &super::Message) {
        self.sink.message(message);
    }
}

/// Two hosts, for findings that belong to no connection.
pub(super) fn hosts_text(active: Gid, passive: Gid) -> String {
    use crate::decode::address_text;
    format!("{} → {}", address_text(active), address_text(passive))
}
