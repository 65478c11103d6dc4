//! Trains: frames that hold several packets.
//!
//! A host that leaves segmentation to its NIC shows a capture one datagram of up to 64 KiB, and a
//! kernel that coalesces what it receives does the same (`UDP_SEGMENT`, `UDP_GRO`). All packets of
//! a train have the length of the first, but for the last, which may be shorter. IP and UDP lengths
//! are those of the whole; each ICRC was computed with the lengths and the IPv4 identification of
//! its own packet, so that an ICRC which is right proves both ends of its packet.

use zerocopy::transmute;

use super::{Encapsulation, Frame, Layers, Network};
use crate::wire::icrc::{ICRC_LEN, Identification, Route, icrc};
use crate::wire::{
    Bth, Ipv4, Ipv6, Layer, LinkType, PKey, PROTOCOL_UDP, Packet, PayloadRule, Udp, checksum, view,
};

/// Shortest packet from its BTH through its ICRC.
const PACKET_MIN: usize = Bth::LEN + ICRC_LEN;

/// Largest payload of a packet: the largest path MTU.
const PAYLOAD_MAX: usize = 4096;

/// Smallest path MTU.
const MTU_MIN: usize = 256;

/// Maximum number of packets of a train: a datagram full of the shortest.
pub const TRAIN_PACKETS_MAX: usize = u16::MAX as usize / PACKET_MIN;

/// Maximum number of lengths whose ICRC is computed in search of that of a train's packets. A
/// length is tried where a BTH of the same partition follows, so a payload must imitate BTHs to
/// reach it.
const LENGTHS_TRIED_MAX: usize = 32;

/// A frame that holds several packets, and the length of those.
#[derive(Clone, Copy, Debug)]
pub struct CapturedTrain<'a> {
    /// The frame up to the first BTH.
    headers: &'a [u8],
    layers: Layers,
    network: Network<'a>,
    udp: &'a Udp,
    /// The packets from the first BTH on, as far as they were captured.
    packets: &'a [u8],
    /// Length of all packets on the wire.
    len: usize,
    /// Length of every packet but the last, from BTH through ICRC.
    segment_len: usize,
}

impl Packet<'_> {
    /// Whether the packet has the length that its headers call for, so that it is no train. Where
    /// they do not tell, only the ICRC does.
    #[inline]
    pub(crate) fn has_length_of_one(&self) -> bool {
        // A packet of an unassigned opcode has no length that could be wrong.
        let Some(info) = self.info() else { return true };
        let payload_len = self.payload_len();
        match info.payload {
            PayloadRule::Exactly(len) => payload_len == len,
            PayloadRule::Bitmap => info.payload.allows(payload_len, 0),
            PayloadRule::FullMtu => {
                is_mtu(payload_len) && self.pad_len() == 0 && !self.resembles_train(payload_len)
            }
            PayloadRule::UpToMtu(_) => {
                self.reth().is_some_and(|reth| reth.dma_len() as usize == payload_len)
            }
        }
    }

    /// Whether no packet has this length: the frame holds several.
    #[cfg(feature = "analysis")]
    pub(crate) fn is_impossible(&self) -> bool {
        let Some(info) = self.info() else { return false };
        let payload_len = self.payload_len();
        let is_impossible = match info.payload {
            PayloadRule::Exactly(len) => payload_len > len,
            PayloadRule::Bitmap => !info.payload.allows(payload_len, 0),
            PayloadRule::FullMtu => !is_mtu(payload_len),
            PayloadRule::UpToMtu(_) => {
                let told = self.reth().map(|reth| reth.dma_len() as usize);
                told.is_some_and(|told| told < payload_len)
            }
        };
        is_impossible || self.is_too_long()
    }

    /// Whether the payload is longer than that of any packet.
    #[inline]
    pub(crate) fn is_too_long(&self) -> bool {
        self.payload_len() > PAYLOAD_MAX
    }

    /// Whether a BTH follows a packet of a smaller MTU in the payload: a shorter last packet can
    /// make a train as long as a packet.
    #[inline]
    fn resembles_train(&self, payload_len: usize) -> bool {
        let mut mtu = MTU_MIN;
        while mtu < payload_len {
            let next = self.header_len() + mtu + ICRC_LEN;
            if is_bth_at(self.bytes(), next, self.bth().pkey()) {
                return true;
            }
            mtu *= 2;
        }
        false
    }
}

/// Whether this is the size of a path MTU.
#[inline]
fn is_mtu(len: usize) -> bool {
    len.is_power_of_two() && (MTU_MIN..=PAYLOAD_MAX).contains(&len)
}

/// Whether there may be a BTH of this partition at `offset`.
#[inline]
fn is_bth_at(bytes: &[u8], offset: usize, pkey: PKey) -> bool {
    let Ok(bth) = view::<Bth>(bytes, offset) else { return false };
    bth.pkey() == pkey && bth.tver().get() == 0 && bth.opcode().info().is_some()
}

impl<'a> Frame<'a> {
    /// Returns the train that the frame holds, if ICRCs prove that it holds several packets.
    pub fn train(&self) -> Option<CapturedTrain<'a>> {
        let (packet, network, udp) = (self.packet?, self.network?, self.udp?);
        // An ERF record comes from a card that sees packets, and has lengths of its own.
        if self.encapsulation != Some(Encapsulation::RoceV2) || self.link == LinkType::ERF {
            return None;
        }
        let len = usize::from(udp.length()).checked_sub(Udp::LEN)?;
        let lengths_agree = match network {
            Network::Ipv4 { header, .. } => {
                usize::from(header.total_len()) == header.header_len() + Udp::LEN + len
            }
            Network::Ipv6 { header, extensions } => {
                usize::from(header.payload_len()) == extensions.len() + Udp::LEN + len
            }
            Network::Grh(_) => false,
        };
        let layers = self.layers();
        let start = layers.find(Layer::Bth)?.start;
        let (headers, packets) = self.bytes.split_at_checked(start)?;
        let packets = packets.get(..len).unwrap_or(packets);
        let train = CapturedTrain { headers, layers, network, udp, packets, len, segment_len: 0 };
        if lengths_agree { train.with_segment_len(&packet) } else { None }
    }
}

impl<'a> CapturedTrain<'a> {
    /// Finds the length of the packets: the first that an ICRC proves, of the first packet or, if
    /// that is damaged, of the second.
    fn with_segment_len(self, first: &Packet<'_>) -> Option<Self> {
        let pkey = first.bth().pkey();
        let least = (first.header_len() + ICRC_LEN).max(PACKET_MIN);
        let most = least + PAYLOAD_MAX;
        let lengths = || {
            let all = (least..=most.min(self.len.checked_sub(PACKET_MIN)?)).step_by(4);
            let possible = all.filter(|&len| is_bth_at(self.packets, len, pkey));
            Some(possible.take(LENGTHS_TRIED_MAX).map(|segment_len| Self { segment_len, ..self }))
        };
        let is_proven = |train: &Self, index| train.proven_identification(index).is_some();
        let by_first = lengths()?.find(|train| is_proven(train, 0));
        by_first.or_else(|| lengths()?.find(|train| is_proven(train, 1)))
    }

    /// Returns the number of packets on the wire.
    pub fn len(&self) -> usize {
        self.len.div_ceil(self.segment_len)
    }

    /// Whether there is no packet, which is never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of packets of which something was captured.
    pub fn captured(&self) -> usize {
        self.packets.len().div_ceil(self.segment_len)
    }

    /// Returns the length of packet `index` on the wire, from BTH through ICRC.
    fn packet_len(&self, index: usize) -> usize {
        self.len.saturating_sub(index * self.segment_len).min(self.segment_len)
    }

    /// Returns what was captured of packet `index`.
    fn packet(&self, index: usize) -> &'a [u8] {
        let rest = self.packets.get(index * self.segment_len..).unwrap_or_default();
        rest.get(..self.segment_len).unwrap_or(rest)
    }

    /// Returns the identification with which the ICRC of packet `index` is right, if it is there.
    ///
    /// The kernel numbers packets from that of the frame, or gives all the same number. Packets
    /// that were coalesced may have any; of those, the ICRC proves sixteen bits.
    fn proven_identification(&self, index: usize) -> Option<u16> {
        let packet = self.packet(index);
        if packet.len() != self.packet_len(index) || packet.len() < PACKET_MIN {
            return None;
        }
        let (body, sealed) = packet.split_last_chunk::<ICRC_LEN>()?;
        let is_right = |id: &u16| self.icrc(body, *id) == *sealed;
        let Network::Ipv4 { header, options } = self.network else {
            return Some(0).filter(is_right);
        };
        let expected = header.id().wrapping_add(u16::try_from(index).ok()?);
        let usual = [expected, header.id()].into_iter().find(is_right);
        if usual.is_some() || index == 0 || !options.is_empty() {
            return usual;
        }
        let difference = u32::from_le_bytes(self.icrc(body, 0)) ^ u32::from_le_bytes(*sealed);
        Identification::of_length(packet.len()).find(difference)
    }

    /// Returns the ICRC of a packet of the train, from BTH to pad.
    fn icrc(&self, body: &[u8], id: u16) -> [u8; ICRC_LEN] {
        let udp_len = low_u16(Udp::LEN + body.len() + ICRC_LEN);
        let mut udp_bytes = *self.udp.as_bytes();
        put_u16(&mut udp_bytes, UDP_LENGTH, udp_len);
        let udp: Udp = transmute!(udp_bytes);
        match self.network {
            Network::Ipv4 { header, options } => {
                let mut bytes = *header.as_bytes();
                put_u16(&mut bytes, IPV4_LENGTH, low_u16(header.header_len()) + udp_len);
                put_u16(&mut bytes, IPV4_ID, id);
                let header: Ipv4 = transmute!(bytes);
                icrc(&Route::Ipv4 { header: &header, options, udp: &udp }, body)
            }
            Network::Ipv6 { header, extensions } => {
                let mut bytes = *header.as_bytes();
                put_u16(&mut bytes, IPV6_LENGTH, low_u16(extensions.len()) + udp_len);
                let header: Ipv6 = transmute!(bytes);
                icrc(&Route::Ipv6 { header: &header, extensions, udp: &udp }, body)
            }
            Network::Grh(grh) => icrc(&Route::Grh(grh), body),
        }
    }

    /// Appends packet `index` to `out` as a frame of its own, as far as it was captured, with the
    /// lengths, identification and checksums that it had on the wire. Returns its length there.
    pub fn append_frame(&self, index: usize, out: &mut Vec<u8>) -> usize {
        let (packet, len) = (self.packet(index), self.packet_len(index));
        let start = out.len();
        out.extend_from_slice(self.headers);
        out.extend_from_slice(packet);
        let frame = out.get_mut(start..).unwrap_or_default();
        let shorter = low_u16(self.len - len);
        for (layer, range) in self.layers.iter().take_while(|(layer, _)| *layer != Layer::Bth) {
            let Some(header) = frame.get_mut(range) else { continue };
            match layer {
                Layer::Ipv4 => shorten(header, IPV4_LENGTH, shorter),
                Layer::Ipv6 => shorten(header, IPV6_LENGTH, shorter),
                Layer::Udp => shorten(header, UDP_LENGTH, shorter),
                _ => {}
            }
        }
        self.number(frame, index);
        self.correct_checksums(frame, packet.len() == len);
        self.headers.len() + len
    }

    /// Gives a frame of packet `index` its identification.
    fn number(&self, frame: &mut [u8], index: usize) {
        let Network::Ipv4 { header, .. } = self.network else { return };
        let by_index = || header.id().wrapping_add(u16::try_from(index).unwrap_or(0));
        let id = self.proven_identification(index).unwrap_or_else(by_index);
        let ip = self.layers.iter().filter(|(layer, _)| *layer == Layer::Ipv4).last();
        if let Some(header) = ip.and_then(|(_, range)| frame.get_mut(range)) {
            put_u16(header, IPV4_ID, id);
        }
    }

    /// Corrects the checksums of a frame whose lengths are right. A UDP checksum that cannot be
    /// known is left out.
    fn correct_checksums(&self, frame: &mut [u8], is_whole: bool) {
        let start = self.headers.len();
        for (layer, range) in self.layers.iter().take_while(|(layer, _)| *layer != Layer::Bth) {
            let (at, is_inner) = (range.start, range.end == start);
            match layer {
                Layer::Ipv4 => {
                    let Some(header) = frame.get_mut(range) else { continue };
                    put_u16(header, IPV4_CHECKSUM, 0);
                    let sum = checksum([header]);
                    put_u16(header, IPV4_CHECKSUM, sum);
                }
                Layer::Udp => {
                    let Some(datagram) = frame.get_mut(at..) else { continue };
                    let Ok(header) = view::<Udp>(datagram, 0) else { continue };
                    if header.checksum() == 0 {
                        continue;
                    }
                    put_u16(datagram, UDP_CHECKSUM, 0);
                    if is_whole && is_inner {
                        let sum = self.udp_checksum(datagram);
                        put_u16(datagram, UDP_CHECKSUM, sum);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the checksum of a datagram of the train whose own is zero.
    fn udp_checksum(&self, datagram: &[u8]) -> u16 {
        let len = low_u16(datagram.len()).to_be_bytes();
        let rest = [0, PROTOCOL_UDP, len[0], len[1]];
        let sum = match self.network {
            Network::Ipv4 { header, .. } => {
                let (from, to) = (header.source().octets(), header.destination().octets());
                checksum([&from, &to, &rest, &fold(datagram)])
            }
            Network::Ipv6 { header, .. } => {
                let (from, to) = (header.source().octets(), header.destination().octets());
                checksum([&from, &to, &rest, &fold(datagram)])
            }
            Network::Grh(_) => 0,
        };
        // Zero stands for none.
        if sum == 0 { u16::MAX } else { sum }
    }
}

/// Places of fields of sixteen bits in their headers.
const IPV4_LENGTH: usize = Ipv4::LAYOUT.total_len.bytes().start;
const IPV4_ID: usize = Ipv4::LAYOUT.id.bytes().start;
const IPV4_CHECKSUM: usize = Ipv4::LAYOUT.checksum.bytes().start;
const IPV6_LENGTH: usize = Ipv6::LAYOUT.payload_len.bytes().start;
const UDP_LENGTH: usize = Udp::LAYOUT.length.bytes().start;
const UDP_CHECKSUM: usize = Udp::LAYOUT.checksum.bytes().start;

/// Writes a field of sixteen bits, if it is there.
fn put_u16(header: &mut [u8], at: usize, value: u16) {
    if let Some(field) = header.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// Takes `less` off a length.
fn shorten(header: &mut [u8], at: usize, less: u16) {
    if let Some(&[high, low]) = header.get(at..).and_then(|rest| rest.first_chunk()) {
        put_u16(header, at, u16::from_be_bytes([high, low]).wrapping_sub(less));
    }
}

/// The low sixteen bits of a length in a datagram, which has no more.
fn low_u16(len: usize) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "a datagram has at most 65,535 bytes")]
    let low = len as u16;
    low
}

/// Returns four bytes with the same ones' complement sum as `bytes`, whose length is even.
fn fold(bytes: &[u8]) -> [u8; 4] {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    if let [high, low] = *rest {
        sum += u64::from(u16::from_be_bytes([high, low])) << 16;
    }
    let once = (sum >> 32) + (sum & u64::from(u32::MAX));
    let twice = (once >> 32) + (once & u64::from(u32::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "the sum was folded to 32 bits")]
    let folded = twice as u32;
    folded.to_be_bytes()
}
