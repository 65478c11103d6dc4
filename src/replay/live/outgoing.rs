//! Frames to be sent: a packet with the headers below it, sealed.

use super::script::Envelope;
use crate::wire::icrc::ICRC_LEN;
use crate::wire::layout::BitRange;
use crate::wire::{
    Bth, EtherType, Ethernet, EthernetRepr, Frame, Ipv4, LinkType, Path, ROCE_PORT, Udp, checksum,
};

/// A frame to be sent or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The headers below the BTH.
    pub envelope: Envelope,
    /// Bytes from the BTH to the last one before the ICRC.
    pub packet: Vec<u8>,
    /// Bits of the ICRC that are wrong on purpose: bit 0 is the most significant bit of the first
    /// byte on the wire.
    pub icrc_flips: u32,
    /// Changes of the headers below the BTH, by bits of the frame. Only a link that sends whole
    /// frames can send them.
    pub edits: Vec<(BitRange, u64)>,
}

impl Outgoing {
    /// A frame without faults. A packet that is shorter than a BTH is filled up with zeros.
    pub fn new(envelope: Envelope, mut packet: Vec<u8>) -> Self {
        packet.resize(packet.len().max(Bth::LEN), 0);
        Self { envelope, packet, icrc_flips: 0, edits: Vec::new() }
    }

    /// Path of the packet.
    pub fn path(&self) -> &Path {
        &self.envelope.path
    }

    /// Offset of the BTH in the frame.
    pub fn bth_at(&self) -> usize {
        let tag = if self.envelope.vlan.is_some() { 4 } else { 0 };
        let network = if self.path().is_ipv4() { Ipv4::LEN } else { crate::wire::Ipv6::LEN };
        Ethernet::LEN + tag + network + Udp::LEN
    }

    /// The whole frame, from its Ethernet header to the ICRC.
    pub fn emit(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.bth_at() + self.packet.len() + ICRC_LEN);
        self.put_ethernet(&mut frame);
        let network_at = frame.len();
        let mut packet = self.packet.clone();
        packet.resize(packet.len() + ICRC_LEN, 0);
        let headers = self.path().headers_with_id(packet.len(), self.envelope.id);
        headers.prefix().seal(&mut packet);
        let (network, udp) = headers.as_bytes();
        frame.extend_from_slice(network);
        frame.extend_from_slice(udp);
        frame.extend_from_slice(&packet);
        if !self.edits.is_empty() {
            self.edit(&mut frame, network_at);
        }
        if let Some(icrc) = frame.last_chunk_mut::<ICRC_LEN>() {
            *icrc = (u32::from_be_bytes(*icrc) ^ self.icrc_flips).to_be_bytes();
        }
        frame
    }

    fn put_ethernet(&self, frame: &mut Vec<u8>) {
        let ip = if self.path().is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let [destination, source] = self.envelope.macs.unwrap_or_default();
        let ethertype = if self.envelope.vlan.is_some() { EtherType::VLAN } else { ip };
        let header = EthernetRepr { destination, source, ethertype }.emit();
        frame.extend_from_slice(header.as_bytes());
        if let Some(tag) = self.envelope.vlan {
            frame.extend_from_slice(&tag.to_be_bytes());
            frame.extend_from_slice(&ip.0.to_be_bytes());
        }
    }

    /// Changes headers below the BTH, and makes the checksums anew that are not changed on purpose.
    fn edit(&self, frame: &mut [u8], network_at: usize) {
        for (range, value) in &self.edits {
            write_bits(frame, *range, *value);
        }
        let is_ipv4 = self.path().is_ipv4();
        let checksum_at = 8 * (network_at + 10);
        let spares_checksum = |(range, _): &(BitRange, u64)| {
            range.start + range.len <= checksum_at || range.start >= checksum_at + 16
        };
        if is_ipv4
            && self.edits.iter().all(spares_checksum)
            && let Some(header) = frame.get_mut(network_at..network_at + Ipv4::LEN)
            && let Some(field) = header.get_mut(10..12)
        {
            field.fill(0);
            let sum = checksum([header]);
            if let Some(field) = header.get_mut(10..12) {
                field.copy_from_slice(&sum.to_be_bytes());
            }
        }
        // The ICRC covers headers that were changed. Headers that make no sense any more have none.
        let parsed = Frame::parse(LinkType::ETHERNET, frame, ROCE_PORT);
        let right = parsed.expected_icrc();
        if let (Some(right), Some(icrc)) = (right, frame.last_chunk_mut::<ICRC_LEN>()) {
            *icrc = right;
        }
    }
}

/// Writes a number into bits of a frame, as far as they are there.
pub(super) fn write_bits(frame: &mut [u8], range: BitRange, value: u64) {
    for index in 0..range.len {
        let shift = range.len - 1 - index;
        let bit = if shift < 64 { value >> shift & 1 } else { 0 };
        let at = range.start + index;
        let mask = 0x80 >> (at % 8);
        if let Some(byte) = frame.get_mut(at / 8) {
            *byte = if bit == 1 { *byte | mask } else { *byte & !mask };
        }
    }
}
