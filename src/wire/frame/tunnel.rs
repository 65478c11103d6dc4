//! The walk through tunnels: from an outer header to the frame or packet inside.

use super::super::{
    Erspan2, Erspan3, EtherType, GENEVE_PORT, Geneve, Gre, Header, Layer, Mpls, PROTOCOL_GRE,
    ParseError, Tunnel, VXLAN_LINUX_PORT, VXLAN_PORT, Vxlan, view,
};
use super::walk::{Observer, Walk, take_one, truncated};

/// Maximum number of tunnels in each other.
pub(super) const TUNNELS_MAX: usize = 4;

/// Maximum number of MPLS labels of a frame.
pub(super) const MPLS_LABELS_MAX: usize = 8;

/// Length of the control word of an Ethernet pseudowire (RFC 4448).
const CONTROL_WORD_LEN: usize = 4;

/// Frame types of ERSPAN type III.
const ERSPAN_ETHERNET: u32 = 0;
const ERSPAN_IP: u32 = 2;

impl<'a, O: Observer> Walk<'_, 'a, O> {
    /// Goes into a tunnel: headers of the outer packet give way to those that are found inside.
    /// Returns `false` if too many tunnels are in each other.
    fn enter(&mut self, tunnel: Tunnel) -> bool {
        if !take_one(&mut self.left.tunnels) {
            return false;
        }
        self.frame.tunnel = Some(tunnel);
        self.frame.ethernet = None;
        self.frame.ethertype = None;
        self.frame.network = None;
        self.frame.protocol = None;
        self.frame.udp = None;
        true
    }

    /// A tunnel header in a UDP datagram to `port`, or nothing that is known.
    #[cold]
    pub(super) fn tunnel_in_udp(&mut self, port: u16, offset: usize) -> Result<(), ParseError> {
        match port {
            VXLAN_PORT | VXLAN_LINUX_PORT => self.vxlan_at(offset),
            GENEVE_PORT => self.geneve_at(offset),
            _ => Ok(()),
        }
    }

    /// A tunnel header or an IP packet in an IP packet.
    #[cold]
    pub(super) fn tunnel_in_ip(&mut self, protocol: u8, offset: usize) -> Result<(), ParseError> {
        match protocol {
            PROTOCOL_GRE => self.gre_at(offset),
            _ if self.enter(Tunnel::IpInIp) => self.ip_at(Layer::Ipv4, offset),
            _ => Ok(()),
        }
    }

    fn vxlan_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take::<Vxlan>(offset)?;
        // Whatever else is sent to the port has no valid VNI.
        if header.has_vni() && self.enter(Tunnel::Vxlan) {
            self.ethernet_at(offset + Vxlan::LEN)?;
        }
        Ok(())
    }

    fn geneve_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take_with_options::<Geneve>(offset, Geneve::header_len)?;
        if header.version().get() == 0 && self.enter(Tunnel::Geneve) {
            self.bridged_at(header.protocol(), offset + header.header_len())?;
        }
        Ok(())
    }

    fn gre_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take_with_options::<Gre>(offset, Gre::header_len)?;
        if header.version().get() != 0 || header.has_routing() {
            return Ok(());
        }
        let inner = offset + header.header_len();
        match header.protocol() {
            // Without a sequence number there is no header of ERSPAN either.
            EtherType::ERSPAN if !header.has_sequence() => {
                self.observer.found(Layer::Erspan1, inner..inner);
                if self.enter(Tunnel::Erspan1) {
                    self.ethernet_at(inner)?;
                }
                Ok(())
            }
            EtherType::ERSPAN => self.erspan2_at(inner),
            EtherType::ERSPAN_3 => self.erspan3_at(inner),
            protocol => {
                let is_ethernet = protocol == EtherType::ETHERNET_FRAME;
                let tunnel = if is_ethernet { Tunnel::GreTap } else { Tunnel::Gre };
                if self.enter(tunnel) {
                    self.bridged_at(protocol, inner)?;
                }
                Ok(())
            }
        }
    }

    fn erspan2_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take::<Erspan2>(offset)?;
        if self.enter(Tunnel::Erspan2) {
            self.is_mirror_cut |= header.truncated();
            self.ethernet_at(offset + Erspan2::LEN)?;
        }
        Ok(())
    }

    fn erspan3_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take_with_options::<Erspan3>(offset, Erspan3::header_len)?;
        if !self.enter(Tunnel::Erspan3) {
            return Ok(());
        }
        self.is_mirror_cut |= header.truncated();
        let inner = offset + header.header_len();
        match header.frame_type().get() {
            ERSPAN_ETHERNET => self.ethernet_at(inner),
            ERSPAN_IP => self.ip_at(Layer::Ipv4, inner),
            _ => Ok(()),
        }
    }

    /// An Ethernet frame, or the packet that `protocol` announces.
    fn bridged_at(&mut self, protocol: EtherType, offset: usize) -> Result<(), ParseError> {
        match protocol {
            EtherType::ETHERNET_FRAME => self.ethernet_at(offset),
            _ => self.after_link(protocol, offset),
        }
    }

    /// A label stack, and the packet below it: the first four bits tell IP from the control word of
    /// an Ethernet pseudowire.
    #[cold]
    pub(super) fn mpls_at(&mut self, mut offset: usize) -> Result<(), ParseError> {
        loop {
            if !take_one(&mut self.left.mpls_labels) {
                return Ok(());
            }
            let label = self.take::<Mpls>(offset)?;
            offset += Mpls::LEN;
            if label.bottom() {
                break;
            }
        }
        let version = self.frame.bytes.get(offset).map(|first| first >> 4);
        let is_known = matches!(version, Some(0 | 4 | 6));
        // Labels stand between the link and the network, so that the link header stays.
        let link = self.frame.ethernet;
        if !is_known || !self.enter(Tunnel::Mpls) {
            return Ok(());
        }
        self.frame.ethernet = link;
        match version {
            Some(0) => self.ethernet_at(offset + CONTROL_WORD_LEN),
            _ => self.ip_at(Layer::Ipv4, offset),
        }
    }

    /// The header at `offset` with its options: one layer. Fails if the options are cut.
    fn take_with_options<H: Header>(
        &mut self,
        offset: usize,
        header_len: impl Fn(&H) -> usize,
    ) -> Result<&'a H, ParseError> {
        let Ok(header) = view::<H>(self.frame.bytes, offset) else {
            return self.take(offset);
        };
        let (needed, have) = (header_len(header), self.frame.bytes.len() - offset);
        self.observer.found(H::LAYER, offset..offset + needed.min(have));
        if have < needed {
            return Err(truncated(H::LAYER, offset, needed, have));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ROCE_PORT;
    use super::super::sample::{FRAME, parse};
    use super::super::{IcrcVerdict, Network};
    use super::*;

    /// An Ethernet frame from 192.0.2.1 to 192.0.2.2 with this IP protocol and payload.
    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let total = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let fixed = [0x45, 0, total[0], total[1], 0, 1, 0, 0, 64, protocol, 0, 0];
        [&FRAME[..14], &fixed, &[192, 0, 2, 1, 192, 0, 2, 2], payload].concat()
    }

    fn vxlan(inner: &[u8]) -> Vec<u8> {
        let length = u16::try_from(16 + inner.len()).unwrap().to_be_bytes();
        let headers = [0, 9, 0x12, 0xb5, length[0], length[1], 0, 0, 8, 0, 0, 0, 0, 0, 42, 0];
        ipv4(17, &[&headers, inner].concat())
    }

    fn erspan(header: &[u8], inner: &[u8]) -> Vec<u8> {
        let protocol = if header.len() == Erspan2::LEN { [0x88, 0xbe] } else { [0x22, 0xeb] };
        ipv4(PROTOCOL_GRE, &[&[0x10, 0], &protocol[..], &[0, 0, 0, 1], header, inner].concat())
    }

    #[test]
    fn packet_in_tunnel_has_inner_headers_and_its_own_icrc() {
        let bytes = vxlan(&FRAME);
        let frame = parse(&bytes);
        assert_eq!(frame.tunnel(), Some(Tunnel::Vxlan));
        assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok));
        assert_eq!(frame.udp().unwrap().destination_port(), ROCE_PORT);
        let Some(Network::Ipv4 { header: inner, .. }) = frame.network() else { panic!() };
        let Some(Network::Ipv4 { header: outer, .. }) = frame.outer_network() else { panic!() };
        assert_eq!(inner.source().octets(), [10, 0, 17, 1]);
        assert_eq!(outer.source().octets(), [192, 0, 2, 1]);
    }

    #[test]
    fn outer_ipv6_header_has_its_extensions() {
        let vxlan = &vxlan(&FRAME)[34..];
        let length = u16::try_from(8 + vxlan.len()).unwrap().to_be_bytes();
        let options = [17, 0, 1, 4, 0, 0, 0, 0];
        let head = [&[0x60, 0, 0, 0, length[0], length[1], 0, 64], &[0; 32][..], &options].concat();
        let bytes = [&FRAME[..12], &[0x86, 0xdd], &head[..], vxlan].concat();
        let frame = parse(&bytes);
        assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok));
        let Some(Network::Ipv6 { extensions, .. }) = frame.outer_network() else { panic!() };
        assert_eq!(extensions, options);
    }

    #[test]
    fn no_more_than_four_tunnels_are_walked() {
        let nested = |depth: usize| (0..depth).fold(FRAME.to_vec(), |inner, _| vxlan(&inner));
        for depth in 0..=4 {
            assert_eq!(parse(&nested(depth)).icrc(), Some(IcrcVerdict::Ok), "{depth} tunnels");
        }
        let bytes = nested(5);
        let frame = parse(&bytes);
        assert!(frame.packet().is_none() && frame.error().is_none());
    }

    #[test]
    fn no_more_than_eight_mpls_labels_are_walked() {
        let stack = |labels: usize| {
            let mut stack = [0, 1, 0, 64].repeat(labels);
            stack[4 * labels - 2] = 1;
            [&FRAME[..12], &[0x88, 0x47], &stack[..], &FRAME[14..]].concat()
        };
        for labels in 1..=8 {
            let bytes = stack(labels);
            let frame = parse(&bytes);
            assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok), "{labels} labels");
            assert!(frame.ethernet().is_some() && frame.outer_network().is_none());
        }
        assert!(parse(&stack(9)).packet().is_none());
    }

    #[test]
    fn ethernet_pseudowire_is_found_behind_its_control_word() {
        let head = [&FRAME[..12], &[0x88, 0x47, 0, 1, 1, 64, 0, 0, 0, 0][..]].concat();
        let bytes = [&head[..], &FRAME].concat();
        assert_eq!(parse(&bytes).icrc(), Some(IcrcVerdict::Ok));
    }

    #[test]
    fn frame_that_mirror_cut_has_no_icrc_instead_of_bad_one() {
        let inner = &FRAME[..60];
        for (truncated, verdict) in [(0x04, IcrcVerdict::Absent), (0x00, IcrcVerdict::Bad)] {
            let type_2 = erspan(&[0x10, 1, truncated, 1, 0, 0, 0, 2], inner);
            assert_eq!(parse(&type_2).icrc(), Some(verdict));
            let type_3 = erspan(&[0x20, 1, truncated, 1, 0, 0, 0, 2, 0, 0, 0x80, 0], inner);
            assert_eq!(parse(&type_3).icrc(), Some(verdict));
        }
    }

    #[test]
    fn cut_or_unknown_tunnel_is_named_and_not_entered() {
        let geneve = [0, 9, 0x17, 0xc1, 0, 20, 0, 0, 0x3f, 0, 0x65, 0x58, 0, 0, 42, 0];
        let bytes = ipv4(17, &geneve);
        let error = parse(&bytes).error().unwrap().to_string();
        assert_eq!(error, "Geneve: need 260 bytes at offset 42, have 8");
        let pptp = ipv4(PROTOCOL_GRE, &[0x30, 1, 0x88, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0]);
        let frame = parse(&pptp);
        assert!(frame.tunnel().is_none() && frame.error().is_none());
        let mut other = vxlan(&FRAME);
        other[42] = 0;
        let frame = parse(&other);
        assert!(frame.tunnel().is_none() && frame.packet().is_none() && frame.error().is_none());
    }
}
