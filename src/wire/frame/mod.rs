//! A frame as a capture holds it, taken apart down to the BTH, and its ICRC.
//!
//! Parsing goes as far as it can. What was found stands in [`Frame::layers`], what stopped it in
//! [`Frame::error`]; a frame that is simply not RoCE has no error.
//!
//! Most callers want the packet and never the list of layers, so the list is made only when it is
//! asked for, by walking the frame once more. The walk itself, from the link layer to the ICRC, is
//! in `walk`; its results are here.

#[cfg(test)]
mod sample;
mod train;
mod tunnel;
mod walk;

use core::ops::Range;

pub use self::train::{CapturedTrain, TRAIN_PACKETS_MAX};
use self::tunnel::{MPLS_LABELS_MAX, TUNNELS_MAX};
use self::walk::{IPV6_EXTENSIONS_MAX, VLANS_MAX, Walk};
use super::icrc::{ICRC_LEN, Route, icrc, vcrc};
use super::{
    EtherType, Ethernet, Grh, Ipv4, Ipv6, Layer, LinkType, Lrh, Packet, ParseError, Tunnel, Udp,
    view,
};

/// Encapsulation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// RoCEv1: a GRH directly on Ethernet.
    RoceV1,
    /// RoCEv2: UDP over IPv4 or IPv6.
    RoceV2,
    /// Native InfiniBand.
    Native,
}

/// The network layer of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    /// IPv4.
    Ipv4 {
        /// The header.
        header: &'a Ipv4,
        /// IP options.
        options: &'a [u8],
    },
    /// IPv6.
    Ipv6 {
        /// The header.
        header: &'a Ipv6,
        /// Extension headers, all together.
        extensions: &'a [u8],
    },
    /// A GRH.
    Grh(&'a Grh),
}

/// Verdict on a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcrcVerdict {
    /// The ICRC is right.
    Ok,
    /// The ICRC is wrong.
    Bad,
    /// The capture cut it off, or something that it covers.
    Absent,
}

impl IcrcVerdict {
    /// `ok`, `bad` or `absent`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Bad => "bad",
            Self::Absent => "absent",
        }
    }
}

/// The layers of a frame in order, each with its place in the frame's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    len: usize,
    list: [(Layer, u32, u32); Self::MAX],
}

impl Layers {
    /// Maximum number of layers of a frame: two of the link, VLANs, two of the network, IPv6
    /// extensions, ten from UDP up (no opcode has more than four extension headers), and those of
    /// tunnels.
    pub const MAX: usize = 2 + VLANS_MAX + 2 + IPV6_EXTENSIONS_MAX + 10 + Self::OF_TUNNELS;

    /// Maximum number of layers that tunnels add: Ethernet, IP, UDP or GRE, and the tunnel's own
    /// header for each tunnel; and MPLS labels.
    const OF_TUNNELS: usize = 4 * TUNNELS_MAX + MPLS_LABELS_MAX;

    const EMPTY: Self = Self { len: 0, list: [(Layer::Payload, 0, 0); Self::MAX] };

    fn push(&mut self, layer: Layer, range: Range<usize>) {
        let (Ok(start), Ok(end)) = (u32::try_from(range.start), u32::try_from(range.end)) else {
            return;
        };
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = (layer, start, end);
            self.len += 1;
        }
    }

    /// The layers in order.
    pub fn iter(&self) -> impl Iterator<Item = (Layer, Range<usize>)> {
        let list = self.list.get(..self.len).unwrap_or_default();
        list.iter().map(|&(layer, start, end)| (layer, start as usize..end as usize))
    }

    /// Returns the range of the first `layer`.
    pub fn find(&self, layer: Layer) -> Option<Range<usize>> {
        self.iter().find(|(found, _)| *found == layer).map(|(_, range)| range)
    }
}

/// A frame, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    link: LinkType,
    port: u16,
    bytes: &'a [u8],
    /// Length of `bytes` on the wire.
    wire_len: usize,
    ethernet: Option<&'a Ethernet>,
    lrh: Option<&'a Lrh>,
    ethertype: Option<EtherType>,
    network: Option<Network<'a>>,
    protocol: Option<u8>,
    udp: Option<&'a Udp>,
    encapsulation: Option<Encapsulation>,
    /// The innermost tunnel that was entered.
    tunnel: Option<Tunnel>,
    packet: Option<Packet<'a>>,
    /// Offset of the ICRC, if it and all that it covers were captured.
    icrc_at: Option<usize>,
    error: Option<ParseError>,
}

impl<'a> Frame<'a> {
    /// Takes `bytes` apart, a whole frame of a link of type `link`. UDP datagrams to `port` are
    /// RoCEv2.
    pub fn parse(link: LinkType, bytes: &'a [u8], port: u16) -> Self {
        Self::parse_cut(link, bytes, bytes.len(), port)
    }

    /// Parses a frame that was captured in part: it had `wire_len` bytes on the wire.
    pub fn parse_cut(link: LinkType, bytes: &'a [u8], wire_len: usize, port: u16) -> Self {
        let mut frame = Self::unparsed(link, bytes, wire_len, port);
        frame.parse_in_place();
        frame
    }

    /// A frame that is yet to be taken apart by [`Frame::parse_in_place`].
    #[inline(always)]
    pub(crate) fn unparsed(link: LinkType, bytes: &'a [u8], wire_len: usize, port: u16) -> Self {
        Self {
            link,
            port,
            bytes,
            wire_len,
            ethernet: None,
            lrh: None,
            ethertype: None,
            network: None,
            protocol: None,
            udp: None,
            encapsulation: None,
            tunnel: None,
            packet: None,
            icrc_at: None,
            error: None,
        }
    }

    /// Takes the bytes of an unparsed frame apart.
    pub(crate) fn parse_in_place(&mut self) {
        Walk::new(self, ()).run();
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the layers that were found, in order.
    pub fn layers(&self) -> Layers {
        let mut again = Self::unparsed(self.link, self.bytes, self.wire_len, self.port);
        let mut layers = Layers::EMPTY;
        Walk::new(&mut again, &mut layers).run();
        layers
    }

    /// Returns the innermost tunnel that carries the packet, if there is one. Ethernet, network and
    /// UDP headers are those of the inner packet; the outer ones are among the layers.
    #[inline]
    pub fn tunnel(&self) -> Option<Tunnel> {
        self.tunnel
    }

    /// Returns the outermost network layer of a tunneled frame, if it has one: MPLS has none.
    pub fn outer_network(&self) -> Option<Network<'a>> {
        self.tunnel?;
        let layers = self.layers();
        let is_network = |layer| matches!(layer, Layer::Ipv4 | Layer::Ipv6 | Layer::Grh);
        let from_network = || layers.iter().skip_while(|(layer, _)| !is_network(*layer));
        let (layer, range) = from_network().next()?;
        from_network().skip(1).find(|(layer, _)| is_network(*layer))?;
        match layer {
            Layer::Ipv4 => {
                let header = view(self.bytes, range.start).ok()?;
                let options = self.bytes.get(range.start + Ipv4::LEN..range.end)?;
                Some(Network::Ipv4 { header, options })
            }
            Layer::Ipv6 => {
                let header = view(self.bytes, range.start).ok()?;
                let behind = from_network().skip(1);
                let extensions = behind.take_while(|(layer, _)| *layer == Layer::Ipv6Extension);
                let end = extensions.last().map_or(range.end, |(_, range)| range.end);
                Some(Network::Ipv6 { header, extensions: self.bytes.get(range.end..end)? })
            }
            _ => None,
        }
    }

    /// The Ethernet header, if there is one.
    pub fn ethernet(&self) -> Option<&'a Ethernet> {
        self.ethernet
    }

    /// Returns the EtherType that the link layer announces, behind any VLAN tags.
    pub fn ethertype(&self) -> Option<EtherType> {
        self.ethertype
    }

    /// The local route header, on native InfiniBand.
    pub fn lrh(&self) -> Option<&'a Lrh> {
        self.lrh
    }

    /// The network layer.
    #[inline]
    pub fn network(&self) -> Option<&Network<'a>> {
        self.network.as_ref()
    }

    /// The IP protocol that the network layer carries, behind any extension headers.
    pub fn protocol(&self) -> Option<u8> {
        self.protocol
    }

    /// The UDP header, if there is one.
    #[inline]
    pub fn udp(&self) -> Option<&'a Udp> {
        self.udp
    }

    /// Returns the encapsulation, if this is RoCE or native InfiniBand.
    #[inline]
    pub fn encapsulation(&self) -> Option<Encapsulation> {
        self.encapsulation
    }

    /// The packet, if there is at least a BTH.
    #[inline]
    pub fn packet(&self) -> Option<&Packet<'a>> {
        self.packet.as_ref()
    }

    /// Returns the error that stopped the parsing, or the part that is missing at the end.
    pub fn error(&self) -> Option<&ParseError> {
        self.error.as_ref()
    }

    /// Whether the capture cut the frame short.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.bytes.len() < self.wire_len
    }

    /// Returns the verdict on the ICRC, or `None` if this is neither RoCE nor native InfiniBand.
    /// A frame that was captured whole and has no ICRC has wrong lengths, which is as bad.
    pub fn icrc(&self) -> Option<IcrcVerdict> {
        self.encapsulation?;
        let (Some(packet), Some(route), Some(at)) = (&self.packet, self.route(), self.icrc_at)
        else {
            return Some(if self.is_cut() { IcrcVerdict::Absent } else { IcrcVerdict::Bad });
        };
        let found = self.bytes.get(at..at + ICRC_LEN).unwrap_or_default();
        let good = found == icrc(&route, packet.bytes());
        Some(if good { IcrcVerdict::Ok } else { IcrcVerdict::Bad })
    }

    /// The ICRC that the frame must have, if all that it covers is there.
    pub fn expected_icrc(&self) -> Option<[u8; ICRC_LEN]> {
        self.icrc_at?;
        Some(icrc(&self.route()?, self.packet?.bytes()))
    }

    /// The ICRC as it stands in the frame, if it and all that it covers are there.
    #[inline]
    pub fn icrc_bytes(&self) -> Option<[u8; ICRC_LEN]> {
        let at = self.icrc_at?;
        self.bytes.get(at..at + ICRC_LEN)?.try_into().ok()
    }

    /// Returns the verdict on the VCRC, or `None` if this is no packet of native InfiniBand.
    pub fn vcrc(&self) -> Option<IcrcVerdict> {
        self.encapsulation.filter(|found| *found == Encapsulation::Native)?;
        let layers = self.layers();
        let start = layers.find(Layer::Lrh)?.start;
        let Some(found) = layers.find(Layer::Vcrc) else {
            return Some(IcrcVerdict::Absent);
        };
        let covered = self.bytes.get(start..found.start).unwrap_or_default();
        let good = self.bytes.get(found) == Some(&vcrc(covered));
        Some(if good { IcrcVerdict::Ok } else { IcrcVerdict::Bad })
    }

    /// Returns the headers before the BTH that the ICRC covers.
    fn route(&self) -> Option<Route<'a>> {
        Some(match (self.network, self.udp, self.lrh) {
            (Some(Network::Ipv4 { header, options }), Some(udp), _) => {
                Route::Ipv4 { header, options, udp }
            }
            (Some(Network::Ipv6 { header, extensions }), Some(udp), _) => {
                Route::Ipv6 { header, extensions, udp }
            }
            (Some(Network::Grh(grh)), ..) => Route::Grh(grh),
            (None, None, Some(lrh)) => Route::Lrh(lrh),
            _ => return None,
        })
    }
}
