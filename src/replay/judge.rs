//! The parts of a replay, each of which judges packets of one kind.

use super::memory::HostId;
use super::note::Note;
use super::verdict::Step;
use crate::analysis::PacketFacts;
use crate::wire::{OpcodeInfo, Packet};

/// One packet of the capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    /// Fields of its headers.
    pub(super) facts: &'a PacketFacts,
    /// Note of the first pass.
    pub(super) note: Note,
    /// The packet from its BTH on, without ICRC; shorter than on the wire if the capture cut it.
    pub(super) packet: &'a [u8],
    /// The hosts that sent it and that it is for, if this judge follows them.
    pub(super) source: Option<HostId>,
    pub(super) destination: Option<HostId>,
}

impl<'a> Input<'a> {
    /// Parses the packet, which may be cut; nothing if it is cut in its BTH.
    pub(super) fn parse(&self, info: &OpcodeInfo) -> Option<Packet<'a>> {
        let pad = self.packet.get(1).map_or(0, |byte| usize::from(byte >> 4 & 3));
        let wire_len = info.header_len + self.facts.payload_len as usize + pad;
        Packet::parse_cut(self.packet, wire_len).0
    }
}

/// Judges packets of one kind, of the hosts that it follows.
pub(super) trait Judge {
    /// Takes a packet. Tells `out` what became clear by it, about this packet or earlier ones.
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink);

    /// The capture is over: tells `out` about every packet that still waits for its verdict.
    fn finish(&mut self, out: &mut dyn Sink);
}

/// Takes the verdicts of a replay.
pub trait Sink {
    /// One verdict.
    fn step(&mut self, step: Step);
}

impl Sink for Vec<Step> {
    fn step(&mut self, step: Step) {
        self.push(step);
    }
}

/// The middle one of some numbers, to find what was used least recently.
pub(super) fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    let middle = numbers.len() / 2;
    if numbers.is_empty() { 0 } else { *numbers.select_nth_unstable(middle).1 }
}
