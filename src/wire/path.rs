//! Path of a packet, and the headers before it.

use super::icrc::{Prefix, Route};
use super::identification::Varying;
use super::{Bits, Gid, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, ROCE_PORT, Udp, UdpRepr};

/// Path of a packet: addresses, and fields of the network layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Source address.
    pub source: Gid,
    /// Destination address.
    pub destination: Gid,
    /// The UDP source port: the same for all packets of a flow.
    pub source_port: u16,
    /// Differentiated services, and explicit congestion notification.
    pub traffic_class: u8,
    /// Maximum number of hops.
    pub hop_limit: u8,
    /// The service level, which becomes the VLAN priority.
    pub sl: u8,
    /// The flow label of an IPv6 header, where the link can choose it.
    pub flow_label: Bits<20>,
}

/// Returns the UDP source port of packets with a flow label other than 0, as Linux and ConnectX
/// compute it.
///
/// ```
/// use roce::wire::{Bits, source_port};
///
/// assert_eq!(source_port(Bits::low(1)), 0xc001);
/// ```
pub const fn source_port(flow_label: Bits<20>) -> u16 {
    // Rule: T-02.
    let label = flow_label.get();
    let folded = (label & 0x3fff) ^ (label >> 14 & 0x3f);
    #[expect(clippy::cast_possible_truncation, reason = "fourteen bits are left")]
    let folded = folded as u16;
    folded | 0xc000
}

/// The headers before a BTH.
#[derive(Clone, Copy, Debug)]
pub enum PathHeaders {
    /// Headers between IPv4 addresses.
    Ipv4(Ipv4, Udp),
    /// Headers between IPv6 addresses.
    Ipv6(Ipv6, Udp),
}

impl Path {
    /// A path without addresses.
    pub const NOWHERE: Self = Self {
        source: Gid([0; 16]),
        destination: Gid([0; 16]),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        flow_label: Bits::ZERO,
    };

    /// Puts the ICRC into the last four bytes of `packet`, which runs from its BTH to there, and
    /// returns the headers that go before it. The identification of an IPv4 header is 0, as of a
    /// socket that does not fragment.
    ///
    /// # Panics
    ///
    /// If the packet is shorter than a BTH and an ICRC, or longer than 65 000 bytes.
    pub fn seal(&self, packet: &mut [u8]) -> PathHeaders {
        self.prefix(packet.len()).seal(packet);
        self.headers(packet.len())
    }

    /// Returns the ICRC prefix of a packet with `len` bytes from its BTH through its ICRC.
    ///
    /// # Panics
    ///
    /// If `len` is more than 65 000.
    pub fn prefix(&self, len: usize) -> Prefix {
        self.headers(len).prefix()
    }

    /// Returns the ICRC prefix for an IPv4 identification; an IPv6 header has none.
    ///
    /// # Panics
    ///
    /// If `len` is more than 65 000.
    pub fn prefix_with_id(&self, len: usize, id: u16) -> Prefix {
        let prefix = self.prefix(len);
        if self.is_ipv4() { prefix.with_identification(id) } else { prefix }
    }

    /// Whether packets travel behind IPv4 headers.
    pub fn is_ipv4(&self) -> bool {
        self.source.to_ipv4().is_some() && self.destination.to_ipv4().is_some()
    }

    /// Returns the headers before `len` bytes from a BTH through its ICRC.
    ///
    /// # Panics
    ///
    /// If `len` is more than 65 000.
    pub fn headers(&self, len: usize) -> PathHeaders {
        self.headers_with_id(len, 0)
    }

    /// Returns the headers with an IPv4 identification; an IPv6 header has none.
    ///
    /// # Panics
    ///
    /// If `len` is more than 65 000.
    pub fn headers_with_id(&self, len: usize, id: u16) -> PathHeaders {
        let length = u16::try_from(Udp::LEN + len).expect("a packet is shorter than 65000 bytes");
        let (source_port, destination_port) = (self.source_port, ROCE_PORT);
        let udp = UdpRepr { source_port, destination_port, length, checksum: 0 }.emit();
        let class = u32::from(self.traffic_class);
        let (dscp, ecn) = (Bits::low(class >> 2), Bits::low(class));
        match (self.source.to_ipv4(), self.destination.to_ipv4()) {
            (Some(source), Some(destination)) => {
                let total_len = length + 20;
                let ttl = self.hop_limit;
                let ip = Ipv4Repr::new(source, destination);
                let ip = Ipv4Repr { dscp, ecn, total_len, id, ttl, ..ip }.with_checksum(&[]);
                PathHeaders::Ipv4(ip.emit(), udp)
            }
            _ => {
                let ip = Ipv6Repr::new(self.source.0.into(), self.destination.0.into());
                let (payload_len, hop_limit) = (length, self.hop_limit);
                let flow_label = self.flow_label;
                let ip = Ipv6Repr { dscp, ecn, flow_label, payload_len, hop_limit, ..ip };
                PathHeaders::Ipv6(ip.emit(), udp)
            }
        }
    }
}

impl PathHeaders {
    /// Returns the bytes of the network header, and those of the UDP header.
    pub fn as_bytes(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Ipv4(ip, udp) => (ip.as_bytes(), udp.as_bytes()),
            Self::Ipv6(ip, udp) => (ip.as_bytes(), udp.as_bytes()),
        }
    }

    /// Returns the ICRC prefix of packets with these headers.
    pub fn prefix(&self) -> Prefix {
        Prefix::new(&self.route())
    }

    fn route(&self) -> Route<'_> {
        match self {
            Self::Ipv4(header, udp) => Route::Ipv4 { header, options: &[], udp },
            Self::Ipv6(header, udp) => Route::Ipv6 { header, extensions: &[], udp },
        }
    }
}

/// The ICRC prefixes of packets of one path at a time. The part that depends on the addresses and
/// the source port is kept; the lengths are added for each packet in a few steps.
#[derive(Clone, Debug)]
pub struct Prefixes {
    source: Gid,
    destination: Gid,
    /// Prefix of headers between these addresses.
    between: Prefix,
    /// Prefix of headers with a source port.
    from_port: Prefix,
    length: Varying,
}

impl Prefixes {
    /// Computes the prefixes of a path.
    pub fn new(path: &Path) -> Self {
        let Path { source, destination, .. } = *path;
        let ipv4 = source.to_ipv4().is_some() && destination.to_ipv4().is_some();
        let length = if ipv4 { Varying::Ipv4Length } else { Varying::Ipv6Length };
        let between = Prefix::between(source, destination);
        let from_port = between.with(Varying::SourcePort, path.source_port);
        Self { source, destination, between, from_port, length }
    }

    /// Changes to the prefixes of another path.
    #[inline]
    pub fn set_path(&mut self, path: &Path) {
        if (self.source, self.destination) != (path.source, path.destination) {
            *self = Self::new(path);
        }
        self.from_port = self.between.with(Varying::SourcePort, path.source_port);
    }

    /// Returns the prefix for `len` bytes from a BTH through its ICRC, at most 65 000.
    #[inline]
    pub fn of(&self, len: usize) -> Prefix {
        debug_assert!(len <= 65_000, "no packet is that long");
        #[expect(clippy::cast_possible_truncation, reason = "a packet is shorter")]
        let udp_len = (Udp::LEN + len) as u16;
        let ip_len = match self.length {
            Varying::Ipv4Length => udp_len.wrapping_add(20),
            _ => udp_len,
        };
        self.from_port.with(self.length, ip_len).with(Varying::UdpLength, udp_len)
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::wire::icrc::ICRC_LEN;
    use crate::wire::{BthRepr, Frame, IcrcVerdict, LinkType, Opcode, Psn, Qpn};

    #[test]
    fn prefixes_are_those_of_the_path_and_the_length() {
        let mut prefixes = Prefixes::new(&PATH);
        let v4 = |last| Gid::from(Ipv4Addr::new(192, 0, 2, last));
        let v6 = |last: u8| Gid::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()));
        for round in 0..4 {
            for (last, len) in [(2, 16), (2, 20), (3, 20), (3, 24), (3, 28), (3, 4000), (3, 36)] {
                let (source, destination) =
                    if round % 2 == 0 { (v4(1), v4(last)) } else { (v6(1), v6(last)) };
                let ports = Path { source_port: 0xc000 + round, ..PATH };
                let path = Path { source, destination, ..ports };
                prefixes.set_path(&path);
                let (mut first, mut second) = (vec![1; len], vec![1; len]);
                prefixes.of(len).seal(&mut first);
                path.headers(len).prefix().seal(&mut second);
                assert_eq!(first, second);
                assert!(prefixes.of(len).verifies(&mut first));
                first[0] ^= 1;
                assert!(!prefixes.of(len).verifies(&mut first));
            }
        }
    }

    const PATH: Path = Path {
        source: Gid([0; 16]),
        destination: Gid([0; 16]),
        source_port: 0xc123,
        traffic_class: 0x62,
        hop_limit: 9,
        sl: 0,
        flow_label: Bits::ZERO,
    };

    #[test]
    fn headers_and_prefixes_have_one_identification() {
        let v4 = |last| Gid::from(Ipv4Addr::new(192, 0, 2, last));
        let v6 = |last| Gid::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        for (source, destination) in [(v4(1), v4(2)), (v6(1), v6(2)), (v4(1), v6(2))] {
            let path = Path { source, destination, ..PATH };
            for (id, len) in [(0, 16), (1, 20), (0x1234, 40), (0xffff, 1044)] {
                let prefix = path.headers_with_id(len, id).prefix();
                assert_eq!(path.prefix_with_id(len, id), prefix);
            }
        }
    }

    #[test]
    fn what_is_sealed_is_sound() {
        let v4 = |last| Gid::from(Ipv4Addr::new(192, 0, 2, last));
        let v6 = |last| Gid::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        for (source, destination) in [(v4(1), v4(2)), (v6(1), v6(2)), (v4(1), v6(2))] {
            let path = Path { source, destination, ..PATH };
            let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(1)).emit();
            let mut packet = [bth.as_bytes().as_slice(), b"data", &[0; ICRC_LEN]].concat();
            let headers = path.seal(&mut packet);
            let (ip, udp) = headers.as_bytes();
            let bytes = [ip, udp, &packet].concat();
            let frame = Frame::parse(LinkType::RAW, &bytes, ROCE_PORT);
            assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
        }
    }
}
