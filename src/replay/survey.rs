//! The first pass: what connections there are, and what the capture shows of the network.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::connection::Surveyed;
use super::memory::HostId;
use super::note::{Note, NoteLog};
use super::pairing::Usage;
use crate::analysis::{
    Analysis, CaptureKind, Config, FlowNumber, PacketFacts, PacketNote, PacketRole, Report, Sink,
    Unsplit,
};
use crate::decode::Context;
use crate::observe::end::End;
use crate::time::Instant;
use crate::wire::{Gid, IcrcVerdict};

/// Findings of the first pass over a capture.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The names of the capture files.
    pub files: Vec<String>,
    /// Kind of the capture: what it cannot show.
    pub kind: CaptureKind,
    /// Facts of the network.
    pub network: NetworkFacts,
    /// Frames in the capture.
    pub frames: u64,
    /// Packets in them.
    pub packets: u64,
    /// Packets that no judge gets.
    pub left_out: LeftOut,
    /// The connections, in the order of their numbers.
    connections: Vec<Surveyed>,
    /// Place in `connections`, by the number of a connection before it was paired, and whether its
    /// ends are exchanged.
    flows: Vec<Option<(u32, bool)>>,
    /// Connections whose two queue pairs may belong to others.
    ambiguous: HashSet<FlowNumber>,
    /// Connections with SACKs.
    selective: HashSet<FlowNumber>,
    /// The hosts, by their addresses.
    hosts: HashMap<Gid, HostId>,
    /// The notes on all packets, if they were kept.
    notes: Option<NoteLog>,
    /// The address of the host at which the capture was made, if that is known.
    pub(super) point: Option<Gid>,
    /// Hosts with a connection of which the capture misses packets, and with one of which it has
    /// only one direction.
    incomplete_hosts: HashSet<HostId>,
    half_hosts: HashSet<HostId>,
}

/// Packets that no judge gets, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// Packets with a reserved opcode.
    pub reserved_opcode: u64,
    /// Packets in a frame of several that cannot be told apart.
    pub unsplit: u64,
    /// Packets that another file has, too.
    pub seen_elsewhere: u64,
    /// Packets of a connection beyond the most that the first pass follows.
    pub beyond_limits: u64,
    /// Congestion notifications and damaged packets that belong to no connection.
    pub no_connection: u64,
}

impl LeftOut {
    /// All of them, with what they are.
    pub fn counts(&self) -> [(u64, &'static str); 5] {
        [
            (self.reserved_opcode, "with a reserved opcode"),
            (self.unsplit, "in frames that cannot be split"),
            (self.seen_elsewhere, "seen at another capture point"),
            (self.beyond_limits, "beyond limits"),
            (self.no_connection, "of no connection"),
        ]
    }

    /// Number of packets.
    pub fn total(&self) -> u64 {
        self.counts().iter().map(|(count, _)| count).sum()
    }
}

/// Facts of the network that a capture was made on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFacts {
    /// Packets whose ICRC is right, and wrong.
    pub icrc: [u64; 2],
    /// Copies that the network made of requests.
    pub request_copies: u64,
    /// Copies that the network made of acknowledgements and responses; of NAKs it cannot be told.
    pub response_copies: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
}

impl NetworkFacts {
    /// Whether wrong ICRCs mean that a packet is damaged. Where most are wrong, hardware behind the
    /// capture point writes them.
    pub fn icrc_tells(&self) -> bool {
        self.icrc[0] > self.icrc[1]
    }

    /// Whether the network makes copies of packets.
    pub fn makes_copies(&self) -> bool {
        self.request_copies + self.response_copies > 0
    }

    /// Whether the network delivers packets in another order.
    pub fn is_reordering(&self) -> bool {
        self.reordered > 0
    }
}

impl Survey {
    /// The capture was made at the host with this address, or somewhere.
    pub(super) fn set_point(&mut self, point: Option<Gid>) {
        // Where not all packets at a point are in the capture, it does not matter which point that
        // was.
        self.point = point.filter(|_| !self.misses_packets());
        let hosts_of = |is_it: &dyn Fn(&Surveyed) -> bool| {
            let found = self.connections.iter().filter(|connection| is_it(connection));
            found.flat_map(|connection| connection.hosts).collect()
        };
        let is_incomplete = |it: &Surveyed| self.misses_packets() || it.is_incomplete(self.point);
        let incomplete = hosts_of(&is_incomplete);
        let half = hosts_of(&|it| it.is_half(self.point));
        (self.incomplete_hosts, self.half_hosts) = (incomplete, half);
    }

    /// Whether the capture misses packets of a connection.
    pub(super) fn is_incomplete(&self, flow: FlowNumber) -> bool {
        self.misses_packets()
            || self.connection(flow).is_some_and(|connection| connection.is_incomplete(self.point))
    }

    /// Whether the capture misses packets of a connection of a host.
    pub(super) fn is_host_incomplete(&self, host: HostId) -> bool {
        self.incomplete_hosts.contains(&host)
    }

    /// Whether the capture has only one direction of a connection of a host.
    pub(super) fn is_host_half(&self, host: HostId) -> bool {
        self.half_hosts.contains(&host)
    }

    /// Whether the capture misses packets wherever it was made, so that nothing follows from what
    /// is missing.
    fn misses_packets(&self) -> bool {
        let kind = &self.kind;
        kind.sampled_one_in.is_some()
            || kind.unsplit_frames + kind.trains.cut_off + kind.dropped_frames > 0
            || !kind.clocks_apart.is_empty()
    }

    /// The connections, in the order of their numbers.
    pub(super) fn connections(&self) -> &[Surveyed] {
        &self.connections
    }

    /// A connection by its number.
    pub(super) fn connection(&self, flow: FlowNumber) -> Option<&Surveyed> {
        let at = self.connections.binary_search_by_key(&flow, |connection| connection.flow).ok()?;
        self.connections.get(at)
    }

    /// The address of an end of a connection.
    pub fn address(&self, flow: FlowNumber, end: End) -> Option<Gid> {
        Some(self.connection(flow)?.ends[end].address)
    }

    /// Whether the two queue pairs of a connection may belong to others.
    pub fn is_ambiguous(&self, flow: FlowNumber) -> bool {
        !self.ambiguous.is_empty() && self.ambiguous.contains(&flow)
    }

    /// Whether a connection has SACKs: its ends do selective repeat.
    pub(super) fn is_selective(&self, flow: FlowNumber) -> bool {
        !self.selective.is_empty() && self.selective.contains(&flow)
    }

    /// Whether a packet is damaged, so that its receiver drops it.
    pub fn is_damaged(&self, facts: &PacketFacts) -> bool {
        facts.icrc == IcrcVerdict::Bad && self.network.icrc_tells()
    }

    /// Number of hosts.
    pub(super) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// The host with an address, if it has a connection.
    pub(super) fn host(&self, address: Gid) -> Option<HostId> {
        self.hosts.get(&address).copied()
    }

    /// The note with the number that its connection has in the end, and the hosts that sent the
    /// packet and that it is for; nothing if the connection was forgotten.
    pub(super) fn resolve(&self, mut note: Note) -> Option<(Note, [HostId; 2])> {
        let (place, is_swapped) = (*self.flows.get(note.flow.index()?)?)?;
        let connection = self.connections.get(place as usize)?;
        note.flow = connection.flow;
        note.sender = note.sender.exchanged_if(is_swapped);
        let mut hosts = connection.hosts;
        if note.sender == End::B {
            hosts.reverse();
        }
        Some((note, hosts))
    }

    /// Whether the second pass need not check the ICRC of any packet: it is told whose is wrong.
    pub fn knows_damaged(&self) -> bool {
        self.notes.as_ref().is_some_and(NoteLog::knows_damaged)
    }

    /// The notes on all packets, if they were kept.
    pub(super) fn notes(&self) -> Option<&NoteLog> {
        self.notes.as_ref()
    }
}

/// Makes the [`Survey`]: told every frame of the capture in order.
pub struct Surveyor {
    analysis: Analysis,
    files: Vec<String>,
    seen: Seen,
    notes: Option<NoteLog>,
    packets: u64,
    reserved: u64,
}

impl fmt::Debug for Surveyor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surveyor").field("packets", &self.packets).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Seen {
    network: NetworkFacts,
    /// Counts by the number of the flow before it is paired.
    flows: Vec<Flow>,
    /// Packets that were noted, and that several files have.
    noted: u64,
    elsewhere: u64,
    usage: Usage,
    /// The note on the last packet.
    note: Option<Note>,
}

/// Counts of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    packets: u32,
    longest_payload: u16,
    /// Whether it has SACKs whose ICRC is right or absent, and some whose ICRC is wrong.
    has_sack: [bool; 2],
}

impl Surveyor {
    /// Returns a surveyor at the start of a capture of these files.
    pub fn new(files: Vec<String>) -> Self {
        let analysis = Analysis::new(config(&files));
        // `Vantage` hands over the packets of several files in another order than they come in.
        let notes = (files.len() < 2).then(NoteLog::default);
        Self { analysis, files, seen: Seen::default(), notes, packets: 0, reserved: 0 }
    }

    /// Takes a frame.
    pub fn frame(&mut self, context: &Context<'_>, file: u16) {
        match PacketFacts::new(context, file) {
            Some(facts) => self.packet(&facts),
            None => self.other_frame(context.time, context.wire_len, file),
        }
    }

    /// Takes a packet.
    pub fn packet(&mut self, facts: &PacketFacts) {
        self.packets += 1;
        let is_reserved = facts.opcode.info().is_none() && facts.unsplit != Unsplit::Certain;
        self.reserved += u64::from(is_reserved);
        self.analysis.handle_packet(facts, &mut self.seen);
        let note = self.seen.note.take();
        if let Some(notes) = &mut self.notes {
            notes.push(note, facts.icrc == IcrcVerdict::Bad);
        }
    }

    /// Takes a frame that holds no packet.
    pub fn other_frame(&mut self, time: Option<Instant>, wire_len: u32, file: u16) {
        self.analysis.handle_other_frame(time, wire_len, file);
    }

    /// Takes note of frames that the capture says it dropped.
    pub fn drops(&mut self, frames: u64) {
        self.analysis.handle_drops(frames);
    }

    /// The capture is over.
    pub fn finish(mut self) -> Survey {
        let report = self.analysis.finish(&mut self.seen);
        let Seen { network, flows, usage, noted, elsewhere, .. } = self.seen;
        let ambiguous = usage.ambiguous(&report);
        let (mut connections, hosts) = connections(&report, &ambiguous);
        let mut left_out = LeftOut {
            reserved_opcode: self.reserved,
            unsplit: self.packets.saturating_sub(report.capture.packets),
            seen_elsewhere: elsewhere,
            beyond_limits: report.beyond_limits.packets,
            no_connection: 0,
        };
        left_out.no_connection = self.packets.saturating_sub(noted + left_out.total());
        let mut selective = HashSet::new();
        let places = flows.into_iter().enumerate().map(|(index, flow)| {
            let found = report.flow_of(FlowNumber::at(index)).and_then(|(flow, is_swapped)| {
                let at = connections.binary_search_by_key(&flow, |it: &Surveyed| it.flow).ok()?;
                Some((u32::try_from(at).ok()?, is_swapped))
            });
            match found.and_then(|(at, _)| connections.get_mut(at as usize)) {
                Some(it) => {
                    it.longest_payload = it.longest_payload.max(flow.longest_payload);
                    let [has_good, has_bad] = flow.has_sack;
                    let is_selective = has_good || has_bad && !network.icrc_tells();
                    selective.extend(is_selective.then_some(it.flow));
                }
                None => left_out.beyond_limits += u64::from(flow.packets),
            }
            found
        });
        let flows = places.collect();
        Survey {
            files: self.files,
            kind: report.capture.kind,
            network,
            frames: report.capture.frames,
            packets: self.packets,
            left_out,
            connections,
            flows,
            ambiguous,
            selective,
            hosts,
            notes: self.notes.filter(NoteLog::is_whole),
            point: None,
            incomplete_hosts: HashSet::new(),
            half_hosts: HashSet::new(),
        }
    }
}

/// The connections of a report in the order of their numbers, and the hosts that have them.
fn connections(
    report: &Report,
    ambiguous: &HashSet<FlowNumber>,
) -> (Vec<Surveyed>, HashMap<Gid, HostId>) {
    let mut hosts: HashMap<Gid, HostId> = HashMap::new();
    let mut all: Vec<Surveyed> = Vec::with_capacity(report.connections.len());
    for connection in &report.connections {
        let ends = connection.ends.each_ref().map(|end| {
            let next = HostId::try_from(hosts.len()).unwrap_or(HostId::MAX);
            *hosts.entry(end.address).or_insert(next)
        });
        all.push(Surveyed::new(connection, ends, ambiguous.contains(&connection.flow)));
    }
    all.sort_by_key(|connection| connection.flow);
    (all, hosts)
}

/// Configuration of the analysis in both passes.
pub(super) fn config(files: &[String]) -> Config {
    let files = files.to_vec();
    Config { files, leaves_out_series: true, leaves_out_groups: true, ..Config::default() }
}

impl Seen {
    fn note_flow(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let Some(at) = note.flow.index() else { return };
        if at >= self.flows.len() {
            self.flows.resize(at + 1, Flow::default());
        }
        let flow = &mut self.flows[at];
        flow.packets = flow.packets.saturating_add(1);
        let payload = u16::try_from(facts.payload_len).unwrap_or(u16::MAX);
        flow.longest_payload = flow.longest_payload.max(payload);
        flow.has_sack[usize::from(facts.icrc == IcrcVerdict::Bad)] |= facts.is_sack();
    }
}

impl Sink for Seen {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.note = Some(note.into());
        self.noted += 1;
        self.note_flow(facts, note);
        self.usage.note(facts, note);
        let network = &mut self.network;
        match facts.icrc {
            IcrcVerdict::Ok => network.icrc[0] += 1,
            IcrcVerdict::Bad => network.icrc[1] += 1,
            IcrcVerdict::Absent => {}
        }
        match note.role {
            PacketRole::Request if note.duplicate => network.request_copies += 1,
            PacketRole::Ack | PacketRole::Response if note.duplicate => {
                network.response_copies += 1;
            }
            _ => {}
        }
        network.reordered += u64::from(note.reordered);
    }

    fn sighting(&mut self, _: &PacketFacts, _: &PacketNote) {
        self.elsewhere += 1;
    }
}
