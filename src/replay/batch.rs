//! Packets of a capture, in order, with their bytes.

use core::ops::Range;

use super::memory::HostId;
use super::note::Note;
use crate::analysis::PacketFacts;
use crate::decode::Context;

/// Packets of a capture that are judged together.
#[derive(Clone, Debug, Default)]
pub struct PacketBatch {
    pub(super) packets: Vec<BatchPacket>,
    bytes: Vec<u8>,
}

/// One packet of a batch.
#[derive(Clone, Debug)]
pub(super) struct BatchPacket {
    pub(super) facts: PacketFacts,
    range: Range<usize>,
    /// Note of the first pass, and the hosts that sent it and that it is for.
    pub(super) routed: Option<(Note, [HostId; 2])>,
}

impl PacketBatch {
    /// Adds the packet of a frame, if it holds one.
    pub fn push(&mut self, context: &Context<'_>, file: u16) {
        self.push_frame(context, PacketFacts::new(context, file));
    }

    /// Adds the packet of a frame, if it holds one, without a check of its ICRC, which takes a
    /// twentieth of a replay: the router sets the verdict if [`Survey::knows_damaged`].
    ///
    /// [`Survey::knows_damaged`]: super::Survey::knows_damaged
    pub fn push_unverified(&mut self, context: &Context<'_>, file: u16) {
        self.push_frame(context, PacketFacts::unverified(context, file));
    }

    fn push_frame(&mut self, context: &Context<'_>, facts: Option<PacketFacts>) {
        let Some(facts) = facts else { return };
        let packet = context.frame.packet().map(|packet| packet.bytes()).unwrap_or_default();
        self.push_packet(facts, packet);
    }

    /// Adds a packet: from its BTH on, without ICRC.
    pub fn push_packet(&mut self, facts: PacketFacts, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        let range = start..self.bytes.len();
        self.packets.push(BatchPacket { facts, range, routed: None });
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.bytes.clear();
    }

    /// The bytes of a packet.
    pub(super) fn bytes_of(&self, packet: &BatchPacket) -> &[u8] {
        self.bytes.get(packet.range.clone()).unwrap_or_default()
    }

    /// Adds a packet that is routed.
    pub(super) fn push_routed(
        &mut self,
        facts: &PacketFacts,
        bytes: &[u8],
        to: (Note, [HostId; 2]),
    ) {
        self.push_packet(facts.clone(), bytes);
        if let Some(last) = self.packets.last_mut() {
            last.routed = Some(to);
        }
    }
}
