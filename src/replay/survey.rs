//! The first pass: what connections there are, and what the capture shows of the network.

use std::collections::{HashMap, HashSet};

use super::limits::LISTED_MAX;
use super::pairing::Usage;
use crate::analysis::{
    Analysis, Config, Connection, FlowNumber, LossNote, PacketFacts, PacketNote, PacketRole,
    Report, Sink,
};
use crate::decode::Context;
use crate::verbs::Mtu;
use crate::wire::{Gid, IcrcVerdict, Psn};

/// What the first pass over a capture found.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The connections.
    pub report: Report,
    /// The names of the capture files.
    pub files: Vec<String>,
    /// What the capture shows of the network.
    pub network: NetworkFacts,
    /// Captured packets that never reached their receiver, as far as later packets tell, by frame.
    pub lost_frames: HashSet<u64>,
    /// The longest payload of each connection whose path MTU no packet shows.
    pub payloads: HashMap<FlowNumber, u32>,
    /// Connections whose two queue pairs may belong to others.
    pub ambiguous: HashSet<FlowNumber>,
}

/// What a capture shows of the network that it was made on.
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
    /// NAKs and RNR NAKs that were captured before, without a retransmission in between.
    pub repeated_naks: u64,
    /// Lost packets that were captured first.
    pub lost_behind: u64,
    /// Lost packets that were not captured.
    pub lost_before: u64,
}

impl NetworkFacts {
    /// Whether wrong ICRCs mean that a packet is damaged. Where most are wrong, hardware behind the capture point
    /// writes them.
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
    /// The number of the connection of a packet, and whether its ends are exchanged, for a number of the second pass.
    pub fn flow_of(&self, provisional: FlowNumber) -> Option<(FlowNumber, bool)> {
        self.report.flow_of(provisional)
    }

    /// A connection by its number.
    pub fn connection(&self, flow: FlowNumber) -> Option<&Connection> {
        let connections = &self.report.connections;
        let at = connections.binary_search_by_key(&flow, |connection| connection.flow).ok()?;
        connections.get(at)
    }

    /// The path MTU of a connection is at least this.
    pub(super) fn least_mtu(&self, flow: FlowNumber) -> u32 {
        self.payloads.get(&flow).copied().unwrap_or(0).max(256)
    }

    /// The path MTU of a connection, where it is known.
    pub(super) fn path_mtu(&self, flow: FlowNumber) -> Option<u16> {
        let connection = self.connection(flow)?;
        let setup = connection.setup.as_ref().and_then(|setup| setup.path_mtu);
        let full = connection.directions.iter().flat_map(|direction| direction.full_payload);
        let full = full.max().and_then(|bytes| u16::try_from(bytes).ok());
        let full = full.filter(|&bytes| Mtu::from_bytes(bytes.into()).is_some());
        let least = self.least_mtu(flow);
        setup.or(full).or_else(|| connection.path_mtu.filter(|&mtu| least <= mtu.into()))
    }

    /// The address of an end of a connection.
    pub fn address(&self, flow: FlowNumber, end: u8) -> Option<Gid> {
        let connection = self.connection(flow)?;
        connection.ends.get(usize::from(end)).map(|end| end.address)
    }

    /// Whether a packet is damaged, so that its receiver drops it.
    pub fn is_damaged(&self, facts: &PacketFacts) -> bool {
        facts.icrc == IcrcVerdict::Bad && self.network.icrc_tells()
    }
}

/// Makes the [`Survey`]: told every frame of the capture in order.
#[derive(Debug)]
pub struct Surveyor {
    analysis: Analysis,
    files: Vec<String>,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    network: NetworkFacts,
    lost_frames: HashSet<u64>,
    /// The last NAK of each responder, until what it names is retransmitted.
    naks: HashMap<(FlowNumber, u8), (Psn, u32)>,
    /// The longest payload, by the number of the flow before it is paired.
    payloads: Vec<u16>,
    usage: Usage,
}

impl Surveyor {
    /// At the start of a capture of these files.
    pub fn new(files: Vec<String>) -> Self {
        let analysis = Analysis::new(config(&files));
        Self { analysis, files, seen: Seen::default() }
    }

    /// Takes a frame.
    pub fn frame(&mut self, context: &Context<'_>, file: u16) {
        match PacketFacts::new(context, file) {
            Some(facts) => self.analysis.handle_packet(&facts, &mut self.seen),
            None => self.analysis.handle_other_frame(context.time, context.wire_len, file),
        }
    }

    /// Takes note of frames that the capture says it dropped.
    pub fn drops(&mut self, frames: u64) {
        self.analysis.handle_drops(frames);
    }

    /// The capture is over.
    pub fn finish(mut self) -> Survey {
        let mut report = self.analysis.finish(&mut self.seen);
        report.connections.sort_by_key(|connection| connection.flow);
        let Seen { network, lost_frames, payloads: longest, usage, .. } = self.seen;
        let ambiguous = usage.ambiguous(&report);
        let unknown = report.connections.iter().filter(|it| !is_path_mtu_shown(it));
        let mut payloads: HashMap<FlowNumber, u32> = unknown.map(|it| (it.flow, 0)).collect();
        for (number, longest) in (1..).zip(longest) {
            if let Some((flow, _)) = report.flow_of(number)
                && let Some(known) = payloads.get_mut(&flow)
            {
                *known = (*known).max(longest.into());
            }
        }
        Survey { report, files: self.files, network, lost_frames, payloads, ambiguous }
    }
}

/// Whether packets, or the set-up, show the path MTU, so that it does not depend on packets that the capture may miss.
fn is_path_mtu_shown(connection: &Connection) -> bool {
    let setup = connection.setup.as_ref().and_then(|setup| setup.path_mtu);
    let full = connection.directions.iter().flat_map(|direction| direction.full_payload);
    connection.path_mtu.is_some() && (setup.is_some() || full.max() > Some(0))
}

/// How the analysis is set up, the same in both passes.
pub(super) fn config(files: &[String]) -> Config {
    Config { files: files.to_vec(), ..Config::default() }
}

impl Seen {
    fn note_payload(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let at = note.flow as usize;
        if at > self.payloads.len() {
            self.payloads.resize(at, 0);
        }
        if let Some(longest) = at.checked_sub(1).and_then(|at| self.payloads.get_mut(at)) {
            *longest = (*longest).max(u16::try_from(facts.payload_len).unwrap_or(u16::MAX));
        }
    }
}

impl Sink for Seen {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.note_payload(facts, note);
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
            PacketRole::Nak | PacketRole::Rnr => {
                let nak = (facts.psn, facts.digest);
                let is_room = self.naks.len() < LISTED_MAX;
                let key = (note.flow, 1 - note.sender.min(1));
                if self.naks.get(&key) == Some(&nak) {
                    network.repeated_naks += 1;
                } else if is_room {
                    self.naks.insert(key, nak);
                }
            }
            _ => {}
        }
        if note.role == PacketRole::Request && !self.naks.is_empty() {
            let key = (note.flow, note.sender);
            if self.naks.get(&key).is_some_and(|(psn, _)| *psn == facts.psn) {
                self.naks.remove(&key);
            }
        }
        network.reordered += u64::from(note.reordered);
    }

    fn loss(&mut self, note: &LossNote) {
        match note.frame {
            Some(frame) => {
                self.network.lost_behind += 1;
                if self.lost_frames.len() < LISTED_MAX * 100 {
                    self.lost_frames.insert(frame);
                }
            }
            None => self.network.lost_before += 1,
        }
    }
}
