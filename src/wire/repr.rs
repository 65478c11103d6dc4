//! Frames to emit: lengths, padding and checksums come out right by construction.

use super::icrc::{ICRC_LEN, Route, icrc, vcrc};
use super::{
    Bits, EtherType, EthernetRepr, GrhRepr, Ipv4Repr, Ipv6Repr, LrhRepr, NEXT_HEADER_BTH,
    PROTOCOL_UDP, PacketRepr, ROCE_PORT, Udp, UdpRepr, VlanRepr,
};

/// Encapsulation of a frame to emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkRepr {
    /// RoCEv2 over IPv4.
    Ipv4 {
        /// The header; version, lengths, protocol and checksum are filled in, and it is no
        /// fragment.
        header: Ipv4Repr,
        /// The UDP source port.
        source_port: u16,
    },
    /// RoCEv2 over IPv6.
    Ipv6 {
        /// The header; version, length and next header are filled in.
        header: Ipv6Repr,
        /// The UDP source port.
        source_port: u16,
    },
    /// RoCEv1; version, length and next header are filled in.
    Grh(GrhRepr),
    /// Native InfiniBand: no Ethernet header, and a VCRC. Lengths and the LRH's next header are
    /// filled in.
    Native {
        /// The local route header.
        lrh: LrhRepr,
        /// The global route header, if the packet leaves its subnet.
        grh: Option<GrhRepr>,
    },
}

/// A frame to emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRepr<'a> {
    /// The Ethernet header, or `None` if the frame begins with its network header. The EtherType is
    /// filled in.
    pub ethernet: Option<EthernetRepr>,
    /// A VLAN tag, which only a frame with an Ethernet header has. Its EtherType is filled in.
    pub vlan: Option<VlanRepr>,
    /// Encapsulation.
    pub network: NetworkRepr,
    /// The packet.
    pub packet: PacketRepr<'a>,
}

impl FrameRepr<'_> {
    /// Appends the frame, sealed with its ICRC.
    ///
    /// # Panics
    ///
    /// If the packet is longer than the length fields of its headers can say: more than 65 000
    /// bytes, or 8 100 on a native link.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.emit_ethernet(out);
        let sealed = self.packet.wire_len() + ICRC_LEN;
        match self.network {
            NetworkRepr::Ipv4 { header, source_port } => {
                let udp = udp(source_port, sealed);
                let ip = Ipv4Repr {
                    version: Bits::low(4),
                    ihl: Bits::low(5),
                    more_fragments: false,
                    fragment_offset: Bits::low(0),
                    protocol: PROTOCOL_UDP,
                    total_len: length(super::Ipv4::LEN + usize::from(udp.length())),
                    ..header
                };
                let ip = ip.with_checksum(&[]).emit();
                out.extend_from_slice(ip.as_bytes());
                out.extend_from_slice(udp.as_bytes());
                self.seal(&Route::Ipv4 { header: &ip, options: &[], udp: &udp }, out);
            }
            NetworkRepr::Ipv6 { header, source_port } => {
                let udp = udp(source_port, sealed);
                let ip = Ipv6Repr {
                    version: Bits::low(6),
                    payload_len: udp.length(),
                    next_header: PROTOCOL_UDP,
                    ..header
                };
                let ip = ip.emit();
                out.extend_from_slice(ip.as_bytes());
                out.extend_from_slice(udp.as_bytes());
                self.seal(&Route::Ipv6 { header: &ip, extensions: &[], udp: &udp }, out);
            }
            NetworkRepr::Grh(grh) => {
                let grh = grh_of(grh, sealed);
                out.extend_from_slice(grh.as_bytes());
                self.seal(&Route::Grh(&grh), out);
            }
            NetworkRepr::Native { lrh, grh } => self.emit_native(lrh, grh, out),
        }
    }

    fn emit_ethernet(&self, out: &mut Vec<u8>) {
        let ethertype = match self.network {
            NetworkRepr::Ipv4 { .. } => EtherType::IPV4,
            NetworkRepr::Ipv6 { .. } => EtherType::IPV6,
            NetworkRepr::Grh(_) => EtherType::ROCE_V1,
            NetworkRepr::Native { .. } => return,
        };
        let Some(ethernet) = self.ethernet else {
            return;
        };
        let Some(vlan) = self.vlan else {
            out.extend_from_slice(EthernetRepr { ethertype, ..ethernet }.emit().as_bytes());
            return;
        };
        let tagged = EthernetRepr { ethertype: EtherType::VLAN, ..ethernet };
        out.extend_from_slice(tagged.emit().as_bytes());
        out.extend_from_slice(VlanRepr { ethertype, ..vlan }.emit().as_bytes());
    }

    fn emit_native(&self, lrh: LrhRepr, grh: Option<GrhRepr>, out: &mut Vec<u8>) {
        let (start, sealed) = (out.len(), self.packet.wire_len() + ICRC_LEN);
        let grh_len = if grh.is_some() { super::Grh::LEN } else { 0 };
        let words = length((super::Lrh::LEN + grh_len + sealed) / 4);
        let lrh = LrhRepr {
            lnh: Bits::low(if grh.is_some() { 3 } else { 2 }),
            packet_len: Bits::new(words.into()).expect("eleven bits count the words of a packet"),
            ..lrh
        };
        let lrh = lrh.emit();
        out.extend_from_slice(lrh.as_bytes());
        match grh {
            Some(grh) => {
                let grh = grh_of(grh, sealed);
                out.extend_from_slice(grh.as_bytes());
                self.seal(&Route::Grh(&grh), out);
            }
            None => self.seal(&Route::Lrh(&lrh), out),
        }
        let vcrc = vcrc(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&vcrc);
    }

    /// Appends the packet and the ICRC of the whole.
    fn seal(&self, route: &Route<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        self.packet.emit(out);
        let icrc = icrc(route, out.get(start..).unwrap_or_default());
        out.extend_from_slice(&icrc);
    }
}

/// A GRH before `sealed` bytes from the BTH through the ICRC.
fn grh_of(grh: GrhRepr, sealed: usize) -> super::Grh {
    let (version, next_header) = (Bits::low(6), NEXT_HEADER_BTH);
    GrhRepr { version, next_header, payload_len: length(sealed), ..grh }.emit()
}

fn udp(source_port: u16, payload_len: usize) -> Udp {
    let length = length(Udp::LEN + payload_len);
    UdpRepr { source_port, destination_port: ROCE_PORT, length, checksum: 0 }.emit()
}

fn length(len: usize) -> u16 {
    u16::try_from(len).expect("a packet is shorter than 65000 bytes")
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::wire::{BthRepr, Extensions, Opcode, Psn, Qpn};

    /// A SEND over IPv4 without a link header.
    fn send(payload: &[u8]) -> FrameRepr<'_> {
        let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(1));
        FrameRepr {
            ethernet: None,
            vlan: None,
            network: NetworkRepr::Ipv4 {
                header: Ipv4Repr::new(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)),
                source_port: 0xc123,
            },
            packet: PacketRepr::new(bth, Extensions::default(), payload).unwrap(),
        }
    }

    #[test]
    fn what_was_there_before_stays() {
        let (mut alone, mut behind) = (Vec::new(), vec![1, 2, 3]);
        send(b"four").emit(&mut alone);
        send(b"four").emit(&mut behind);
        assert_eq!(behind.strip_prefix(&[1, 2, 3]), Some(&alone[..]));
        assert_eq!(alone.len(), 20 + 8 + 12 + 4 + 4);
    }

    #[test]
    fn a_checksum_that_was_given_does_not_matter() {
        let mut wrong = send(b"four");
        let NetworkRepr::Ipv4 { header, .. } = &mut wrong.network else { unreachable!() };
        (header.checksum, header.total_len, header.ihl) = (0xdead, 0xbeef, Bits::MAX);
        let (mut right, mut emitted) = (Vec::new(), Vec::new());
        send(b"four").emit(&mut right);
        wrong.emit(&mut emitted);
        assert_eq!(emitted, right);
    }

    #[test]
    #[should_panic(expected = "shorter than 65000 bytes")]
    fn a_packet_that_no_length_field_can_count_is_refused() {
        send(&[0; 0xffff]).emit(&mut Vec::new());
    }
}
