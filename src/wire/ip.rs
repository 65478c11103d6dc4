//! IPv4, IPv6 and UDP, which carry RoCEv2.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::Layer;
use super::layout::header;
use super::num::Bits;

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

header! {
    /// IPv4 header, without its options.
    pub struct Ipv4, Ipv4Repr, Ipv4Layout: Layer::Ipv4, 20 bytes {
        /// 4.
        version: Bits<4> = 4,
        /// The length of the header with its options, in units of four bytes.
        ihl: Bits<4> = 4,
        /// Differentiated services.
        dscp: Bits<6> = 6,
        /// Explicit congestion notification.
        ecn: Bits<2> = 2,
        /// The length of the datagram, this header included.
        total_len: u16 = 16,
        /// The identification, which the ICRC covers.
        id: u16 = 16,
        ~reserved_flag = 1,
        /// Must not be fragmented.
        dont_fragment: bool = 1,
        /// Is a fragment, and not the last.
        more_fragments: bool = 1,
        /// Offset of this fragment in the datagram, in units of eight bytes.
        fragment_offset: Bits<13> = 13,
        /// Number of hops that are left.
        ttl: u8 = 8,
        /// Protocol of the payload.
        protocol: u8 = 8,
        /// The header's checksum.
        checksum: u16 = 16,
        /// Source address.
        source: Ipv4Addr = 32,
        /// Destination address.
        destination: Ipv4Addr = 32,
    }
}

impl Ipv4 {
    /// The length of the header with its options in bytes, as the header tells it.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.ihl().get() as usize * 4
    }

    /// Whether this is a part of a datagram. Such a part is never RoCE.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments() || self.fragment_offset().get() != 0
    }
}

impl Ipv4Repr {
    /// A header without options, as RoCEv2 has it: not to be fragmented, 64 hops. Length and
    /// checksum are zero until the frame around them is emitted.
    pub const fn new(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        Self {
            version: Bits::low(4),
            ihl: Bits::low(5),
            dscp: Bits::low(0),
            ecn: Bits::low(0),
            total_len: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: Bits::low(0),
            ttl: 64,
            protocol: PROTOCOL_UDP,
            checksum: 0,
            source,
            destination,
        }
    }

    /// Returns the header with the checksum that belongs to it and its `options`.
    #[must_use]
    pub fn with_checksum(mut self, options: &[u8]) -> Self {
        self.checksum = 0;
        self.checksum = checksum([self.emit().as_bytes(), options]);
        self
    }
}

/// The ones' complement sum of RFC 1071 over byte strings of even length.
pub fn checksum<const N: usize>(parts: [&[u8]; N]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum = words.fold(0u32, |sum, word| {
        let high = word.first().copied().unwrap_or(0);
        let low = word.get(1).copied().unwrap_or(0);
        sum + u32::from(u16::from_be_bytes([high, low]))
    });
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the sum was folded to sixteen bits")]
    !(sum as u16)
}

header! {
    /// IPv6 header, without its extension headers.
    pub struct Ipv6, Ipv6Repr, Ipv6Layout: Layer::Ipv6, 40 bytes {
        /// 6.
        version: Bits<4> = 4,
        /// Differentiated services.
        dscp: Bits<6> = 6,
        /// Explicit congestion notification.
        ecn: Bits<2> = 2,
        /// The flow.
        flow_label: Bits<20> = 20,
        /// The length of what follows this header.
        payload_len: u16 = 16,
        /// Protocol of the payload.
        next_header: u8 = 8,
        /// Number of hops that are left.
        hop_limit: u8 = 8,
        /// Source address.
        source: Ipv6Addr = 128,
        /// Destination address.
        destination: Ipv6Addr = 128,
    }
}

impl Ipv6Repr {
    /// A header as RoCEv2 has it: UDP follows, 64 hops. The length is zero until the frame around
    /// it is emitted.
    pub const fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self {
            version: Bits::low(6),
            dscp: Bits::low(0),
            ecn: Bits::low(0),
            flow_label: Bits::low(0),
            payload_len: 0,
            next_header: PROTOCOL_UDP,
            hop_limit: 64,
            source,
            destination,
        }
    }
}

/// The length of the IPv6 extension header `protocol` that begins `bytes`, or `None` if it is none
/// to walk over.
pub(crate) fn ipv6_extension_len(protocol: u8, bytes: &[u8]) -> Option<usize> {
    let units = usize::from(bytes.get(1).copied().unwrap_or(0));
    match (protocol, bytes) {
        // Hop-by-hop options, routing, destination options, mobility, host identity, shim6.
        (0 | 43 | 60 | 135 | 139 | 140, _) => Some((units + 1) * 8),
        // The authentication header counts in units of four bytes, and two of them not at all.
        (51, _) => Some((units + 2) * 4),
        // A fragment that is the whole datagram: no offset, and no more to come.
        (44, [_, _, 0, flags, ..]) if flags & 0xf9 == 0 => Some(8),
        _ => None,
    }
}

header! {
    /// UDP header.
    pub struct Udp, UdpRepr, UdpLayout: Layer::Udp, 8 bytes {
        /// The sender's port: for RoCEv2 mere entropy.
        source_port: u16 = 16,
        /// The port the datagram is for.
        destination_port: u16 = 16,
        /// The length of the datagram, this header included.
        length: u16 = 16,
        /// The checksum; RoCEv2 sends 0.
        checksum: u16 = 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_captured_header_is_its_own() {
        // From a ConnectX-4 Lx.
        let bytes = [
            0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00,
            0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
        ];
        assert_eq!(checksum([&bytes]), 0);
        let header = zerocopy::transmute!(bytes);
        let header: Ipv4 = header;
        assert_eq!(header.repr().with_checksum(&[]).checksum, 0x9161);
    }

    #[test]
    fn the_length_of_an_extension_header_depends_on_its_kind() {
        assert_eq!(ipv6_extension_len(0, &[17, 0]), Some(8));
        assert_eq!(ipv6_extension_len(60, &[17, 2]), Some(24));
        assert_eq!(ipv6_extension_len(51, &[17, 4]), Some(24));
        assert_eq!(ipv6_extension_len(44, &[17, 0, 0, 0]), Some(8));
        assert_eq!(ipv6_extension_len(44, &[17, 0, 0, 1]), None, "more fragments follow");
        assert_eq!(ipv6_extension_len(44, &[17, 0, 0, 8]), None, "not the first fragment");
        assert_eq!(ipv6_extension_len(PROTOCOL_UDP, &[0, 0]), None);
    }
}
