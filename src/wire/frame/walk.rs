//! The walk through a frame, from the link layer to the ICRC.

use core::ops::Range;

use super::super::icrc::{ICRC_LEN, VCRC_LEN};
use super::super::link::ErfContent;
use super::super::mad::MadHeader;
use super::super::{
    Bth, Erf, EtherType, Ethernet, Grh, Header, Ipv4, Ipv6, Layer, LinkType, Lrh, NEXT_HEADER_BTH,
    PROTOCOL_GRE, PROTOCOL_IPV4, PROTOCOL_IPV6, PROTOCOL_UDP, Packet, ParseError, Sll, Sll2, Udp,
    Vlan, ipv6_extension_len, view,
};
use super::tunnel::{MPLS_LABELS_MAX, TUNNELS_MAX};
use super::{Encapsulation, Frame, Layers, Network};

/// Maximum number of IPv6 extension headers of a frame; the standard knows of seven kinds.
pub(super) const IPV6_EXTENSIONS_MAX: usize = 8;

/// Maximum number of VLAN tags of a frame.
pub(super) const VLANS_MAX: usize = 4;

/// Is told of the layers that a walk finds.
pub(super) trait Observer {
    /// Whether it wants to know: most callers need no list of layers, and pay nothing for it.
    const LISTENS: bool;

    fn found(&mut self, layer: Layer, range: Range<usize>);
}

/// Does not listen.
impl Observer for () {
    const LISTENS: bool = false;

    #[inline]
    fn found(&mut self, _: Layer, _: Range<usize>) {}
}

impl Observer for &mut Layers {
    const LISTENS: bool = true;

    #[inline]
    fn found(&mut self, layer: Layer, range: Range<usize>) {
        self.push(layer, range);
    }
}

/// A walk through a frame, layer by layer.
pub(super) struct Walk<'f, 'a, O> {
    /// Result so far: filled in place, because a frame is large and there are millions.
    pub(super) frame: &'f mut Frame<'a>,
    /// Observer of every layer.
    pub(super) observer: O,
    /// Headers of each kind that may still be walked, over all tunnels of the frame.
    pub(super) left: HeadersLeft,
    /// Whether a mirroring switch cut the frame before it put it into a tunnel.
    pub(super) is_mirror_cut: bool,
}

/// Number of headers of each kind that a walk may still take, so that nesting is bounded.
pub(super) struct HeadersLeft {
    pub(super) vlans: usize,
    pub(super) ipv6_extensions: usize,
    pub(super) mpls_labels: usize,
    pub(super) tunnels: usize,
}

impl HeadersLeft {
    const ALL: Self = Self {
        vlans: VLANS_MAX,
        ipv6_extensions: IPV6_EXTENSIONS_MAX,
        mpls_labels: MPLS_LABELS_MAX,
        tunnels: TUNNELS_MAX,
    };
}

/// Takes one from `left`, or returns `false` if there is none.
pub(super) fn take_one(left: &mut usize) -> bool {
    let taken = left.checked_sub(1);
    *left = taken.unwrap_or(0);
    taken.is_some()
}

impl<'f, 'a, O: Observer> Walk<'f, 'a, O> {
    /// A walk through `frame`, of which nothing but its bytes is known.
    pub(super) fn new(frame: &'f mut Frame<'a>, observer: O) -> Self {
        Self { frame, observer, left: HeadersLeft::ALL, is_mirror_cut: false }
    }

    /// Goes as far as it can: adds all that it finds to the frame.
    pub(super) fn run(mut self) {
        if let Err(error) = self.link() {
            self.frame.error = Some(error);
        }
    }

    /// The header at `offset`, which becomes a layer. What there is of a header that was cut is a
    /// layer too.
    pub(super) fn take<H: Header>(&mut self, offset: usize) -> Result<&'a H, ParseError> {
        self.take_as(H::LAYER, offset)
    }

    fn take_as<H: Header>(&mut self, layer: Layer, offset: usize) -> Result<&'a H, ParseError> {
        let header = view::<H>(self.frame.bytes, offset);
        let end = self.frame.bytes.len().min(offset + size_of::<H>());
        if offset < end {
            self.observer.found(layer, offset..end);
        }
        header
    }

    fn link(&mut self) -> Result<(), ParseError> {
        match self.frame.link {
            LinkType::ETHERNET => self.ethernet_at(0),
            LinkType::LINUX_SLL => {
                let protocol = self.take::<Sll>(0)?.protocol();
                self.after_link(protocol, Sll::LEN)
            }
            LinkType::LINUX_SLL2 => {
                let protocol = self.take::<Sll2>(0)?.protocol();
                self.after_link(protocol, Sll2::LEN)
            }
            LinkType::NULL | LinkType::LOOP => {
                const FAMILY_LEN: usize = 4;
                if self.frame.bytes.len() < FAMILY_LEN {
                    return Err(truncated(Layer::Null, 0, FAMILY_LEN, self.frame.bytes.len()));
                }
                self.observer.found(Layer::Null, 0..FAMILY_LEN);
                self.ip_at(Layer::Ipv4, FAMILY_LEN)
            }
            LinkType::ERF => self.erf(),
            LinkType::INFINIBAND => self.native_at(0),
            LinkType::IPV6 => self.ip_at(Layer::Ipv6, 0),
            link if link.is_raw_ip() => self.ip_at(Layer::Ipv4, 0),
            _ => Ok(()),
        }
    }

    pub(super) fn ethernet_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take::<Ethernet>(offset)?;
        self.frame.ethernet = Some(header);
        self.after_link(header.ethertype(), offset + Ethernet::LEN)
    }

    fn erf(&mut self) -> Result<(), ParseError> {
        let header = self.take::<Erf>(0)?;
        let (mut offset, mut extended) = (Erf::LEN, header.extended());
        while extended {
            const EXTENSION_LEN: usize = 8;
            let have = self.frame.bytes.len() - offset;
            if have < EXTENSION_LEN {
                return Err(truncated(Layer::Erf, offset, EXTENSION_LEN, have));
            }
            extended = self.frame.bytes.get(offset).is_some_and(|first| first & 0x80 != 0);
            offset += EXTENSION_LEN;
        }
        let content = ErfContent::of(header.kind());
        // Two bytes of offset and padding stand before an Ethernet frame; the length on the wire
        // does not count them.
        if content == ErfContent::Ethernet {
            offset += 2;
        }
        // A record is padded to a whole number of eight bytes; the packet is as long as it was on
        // the wire.
        let end = offset + usize::from(header.wire_len());
        self.frame.bytes = self.frame.bytes.get(..end).unwrap_or(self.frame.bytes);
        self.frame.wire_len = end;
        match content {
            ErfContent::Ethernet => self.ethernet_at(offset),
            ErfContent::Infiniband => self.native_at(offset),
            ErfContent::Ip => self.ip_at(Layer::Ipv4, offset),
            ErfContent::Unknown => Ok(()),
        }
    }

    /// Continues with the protocol that the link layer announced, behind any VLAN tags.
    pub(super) fn after_link(
        &mut self,
        mut ethertype: EtherType,
        mut offset: usize,
    ) -> Result<(), ParseError> {
        while ethertype.is_vlan() && take_one(&mut self.left.vlans) {
            let outer = ethertype == EtherType::SERVICE_VLAN;
            let layer = if outer { Layer::ServiceVlan } else { Layer::Vlan };
            ethertype = self.take_as::<Vlan>(layer, offset)?.ethertype();
            offset += Vlan::LEN;
        }
        self.frame.ethertype = Some(ethertype);
        match ethertype {
            EtherType::IPV4 => self.ip_at(Layer::Ipv4, offset),
            EtherType::IPV6 => self.ip_at(Layer::Ipv6, offset),
            EtherType::ROCE_V1 => {
                self.frame.encapsulation = Some(Encapsulation::RoceV1);
                self.grh_at(offset, None)
            }
            EtherType::MPLS | EtherType::MPLS_MULTICAST => self.mpls_at(offset),
            _ => Ok(()),
        }
    }

    /// IPv4 or IPv6, as the first four bits say; `announced` is what the link layer says, and what
    /// is missing if there is nothing.
    pub(super) fn ip_at(&mut self, announced: Layer, offset: usize) -> Result<(), ParseError> {
        match (self.frame.bytes.get(offset).map(|first| first >> 4), announced) {
            (Some(6), _) | (None, Layer::Ipv6) => self.ipv6_at(offset),
            (Some(4) | None, _) => self.ipv4_at(offset),
            (Some(version), layer) => {
                let (field, value) = ("version", version.into());
                Err(ParseError::Field { layer, offset, field, value })
            }
        }
    }

    fn ipv4_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = match view::<Ipv4>(self.frame.bytes, offset) {
            Ok(header) => header,
            // It fails, and notes the part that is there.
            Err(_) => self.take(offset)?,
        };
        let wrong = |field, value: usize| {
            Err(ParseError::Field { layer: Layer::Ipv4, offset, field, value: value as u64 })
        };
        let header_len = header.header_len();
        if header_len < Ipv4::LEN {
            return wrong("header length", header_len);
        }
        let have = (self.frame.bytes.len() - offset).min(header_len);
        let options = self.frame.bytes.get(offset + Ipv4::LEN..offset + have).unwrap_or_default();
        self.observer.found(Layer::Ipv4, offset..offset + have);
        self.frame.network = Some(Network::Ipv4 { header, options });
        self.frame.protocol = Some(header.protocol());
        if have < header_len {
            return Err(truncated(Layer::Ipv4, offset, header_len, have));
        }
        let total = usize::from(header.total_len());
        // An impossible length is ignored, so that the bytes that are there are shown.
        let end = if total < header_len { self.frame.bytes.len() } else { offset + total };
        // Rule: W-51.3.
        let parsed = if header.is_fragment() {
            Ok(())
        } else {
            self.after_network(header.protocol(), offset + header_len, end)
        };
        if total < header_len { wrong("total length", total) } else { parsed }
    }

    fn ipv6_at(&mut self, offset: usize) -> Result<(), ParseError> {
        let header = self.take::<Ipv6>(offset)?;
        let end = offset + Ipv6::LEN + usize::from(header.payload_len());
        let (start, mut at) = (offset + Ipv6::LEN, offset + Ipv6::LEN);
        let mut next = header.next_header();
        self.frame.network = Some(Network::Ipv6 { header, extensions: &[] });
        while let rest = self.frame.bytes.get(at..).unwrap_or_default()
            && let Some(len) = ipv6_extension_len(next, rest)
            && take_one(&mut self.left.ipv6_extensions)
        {
            if rest.len() < len {
                return Err(truncated(Layer::Ipv6Extension, at, len, rest.len()));
            }
            next = rest.first().copied().unwrap_or(next);
            self.observer.found(Layer::Ipv6Extension, at..at + len);
            at += len;
        }
        let extensions = self.frame.bytes.get(start..at).unwrap_or_default();
        self.frame.network = Some(Network::Ipv6 { header, extensions });
        self.frame.protocol = Some(next);
        // The header of a fragment is not walked, so that nothing behind it is taken for a
        // datagram.
        self.after_network(next, at, end)
    }

    /// The header that IP `protocol` announces at `offset`, in a packet that ends at `end`.
    #[inline]
    fn after_network(&mut self, protocol: u8, offset: usize, end: usize) -> Result<(), ParseError> {
        match protocol {
            PROTOCOL_UDP => self.udp_at(offset, end),
            PROTOCOL_IPV4 | PROTOCOL_IPV6 | PROTOCOL_GRE => self.tunnel_in_ip(protocol, offset),
            _ => Ok(()),
        }
    }

    /// A UDP header at `offset`, in a datagram that ends at `end`.
    fn udp_at(&mut self, offset: usize, end: usize) -> Result<(), ParseError> {
        let header = self.take::<Udp>(offset)?;
        self.frame.udp = Some(header);
        // Rule: W-51.4.
        let port = header.destination_port();
        if port != self.frame.port {
            return self.tunnel_in_udp(port, offset + Udp::LEN);
        }
        self.frame.encapsulation = Some(Encapsulation::RoceV2);
        let length = usize::from(header.length());
        if length < Udp::LEN {
            let (layer, field) = (Layer::Udp, "length");
            return Err(ParseError::Field { layer, offset, field, value: length as u64 });
        }
        // Where the lengths disagree, the bytes that are there are shown.
        // Rules: W-52, T-01.
        let parsed = self.transport_at(offset + Udp::LEN, end.min(offset + length));
        if offset + length > end {
            self.frame.icrc_at = None;
            return Err(truncated(Layer::Udp, offset, length, end.saturating_sub(offset)));
        }
        parsed
    }

    fn native_at(&mut self, offset: usize) -> Result<(), ParseError> {
        self.frame.encapsulation = Some(Encapsulation::Native);
        let header = self.take::<Lrh>(offset)?;
        self.frame.lrh = Some(header);
        let end = offset + header.packet_len().get() as usize * 4;
        match header.lnh().get() {
            2 => self.transport_at(offset + Lrh::LEN, end)?,
            3 => self.grh_at(offset + Lrh::LEN, Some(end))?,
            // Raw packets are not InfiniBand transport: they have neither BTH nor ICRC.
            _ => {
                self.frame.encapsulation = None;
                return Ok(());
            }
        }
        if end + VCRC_LEN <= self.frame.bytes.len() {
            self.observer.found(Layer::Vcrc, end..end + VCRC_LEN);
        }
        Ok(())
    }

    /// A GRH at `offset`, and a packet that ends where an LRH before it says, if there is one.
    fn grh_at(&mut self, offset: usize, end: Option<usize>) -> Result<(), ParseError> {
        let header = self.take::<Grh>(offset)?;
        self.frame.network = Some(Network::Grh(header));
        let wrong = |field, value| ParseError::Field { layer: Layer::Grh, offset, field, value };
        if header.next_header() != NEXT_HEADER_BTH {
            return Err(wrong("next header", header.next_header().into()));
        }
        let start = offset + Grh::LEN;
        let own_end = start + usize::from(header.payload_len());
        // Where the lengths disagree, the bytes that are there are shown.
        let parsed = self.transport_at(start, end.unwrap_or(own_end).min(own_end));
        if end.is_some_and(|end| end != own_end) {
            self.frame.icrc_at = None;
            return Err(wrong("payload length", header.payload_len().into()));
        }
        parsed
    }

    /// A packet from the BTH at `start` through the ICRC that ends at `end`.
    fn transport_at(&mut self, start: usize, end: usize) -> Result<(), ParseError> {
        // A packet that is too short for a BTH and an ICRC has, if anything, a BTH.
        let sealed = end.saturating_sub(start) >= Bth::LEN + ICRC_LEN;
        if self.is_mirror_cut {
            self.frame.wire_len = self.frame.wire_len.max(end);
        }
        let body_end = if sealed { end - ICRC_LEN } else { end.max(start) };
        let rest = self.frame.bytes.get(start..).unwrap_or_default();
        let body = rest.get(..body_end - start).unwrap_or(rest);
        let (packet, error) = Packet::parse_cut(body, body_end - start);
        self.frame.packet = packet;
        match &packet {
            Some(packet) => note_packet(&mut self.observer, packet, start),
            None if !body.is_empty() => self.observer.found(Layer::Bth, start..start + body.len()),
            None => {}
        }
        // A packet too short for its opcode still has an ICRC: it tells a broken sender from a
        // broken wire.
        if packet.is_some() && sealed && end <= self.frame.bytes.len() {
            self.observer.found(Layer::Icrc, body_end..end);
            self.frame.icrc_at = Some(body_end);
        }
        if let Some(error) = error {
            return Err(error.shifted_by(start));
        }
        if self.frame.icrc_at.is_none() {
            let have = self.frame.bytes.len().min(end).saturating_sub(body_end);
            return Err(truncated(Layer::Icrc, body_end, ICRC_LEN, have));
        }
        packet.map_or(Ok(()), |packet| check_mad(&packet, start))
    }
}

/// Whether the management datagram of a packet that begins at `start`, if it is one, is as long as
/// it must be.
#[inline]
fn check_mad(packet: &Packet<'_>, start: usize) -> Result<(), ParseError> {
    let payload = start + packet.header_len();
    match packet.mad() {
        Some(Ok(mad)) => match mad.cm() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.shifted_by(payload + MadHeader::LEN)),
        },
        Some(Err(error)) => Err(error.shifted_by(payload)),
        None => Ok(()),
    }
}

/// Tells of the layers of a packet that begins `start` bytes into the frame, as far as they are
/// there.
fn note_packet<O: Observer>(observer: &mut O, packet: &Packet<'_>, start: usize) {
    if !O::LISTENS {
        return;
    }
    let mut found = |layer, range| observer.found(layer, range);
    found(Layer::Bth, start..start + Bth::LEN);
    let mut at = start + Bth::LEN;
    let end = start + packet.bytes().len();
    for (header, layer) in packet.info().iter().flat_map(|info| info.headers.layers()) {
        if at + header.byte_len() > end {
            if at < end {
                found(layer, at..end);
            }
            return;
        }
        found(layer, at..at + header.byte_len());
        at += header.byte_len();
    }
    let body = at + packet.payload().len();
    if packet.mad().is_some_and(|mad| mad.is_ok()) {
        found(Layer::Mad, at..at + MadHeader::LEN);
        at += MadHeader::LEN;
        found(Layer::MadBody, at..body);
    } else if at < body {
        found(Layer::Payload, at..body);
    }
    if body < end {
        found(Layer::Pad, body..end);
    }
}

pub(super) fn truncated(layer: Layer, offset: usize, needed: usize, have: usize) -> ParseError {
    ParseError::Truncated { layer, offset, needed, have }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test that panics has failed")]
mod tests {
    use super::super::IcrcVerdict;
    use super::super::sample::{FRAME, parse};
    use super::*;
    use crate::wire::ROCE_PORT;

    /// The frame with these bytes in place of what it has there.
    fn with(changes: &[(usize, u8)]) -> [u8; 74] {
        let mut frame = FRAME;
        for &(at, byte) in changes {
            frame[at] = byte;
        }
        frame
    }

    fn assert_sound(link: LinkType, start: &[u8]) {
        let bytes = [start, &FRAME[14..]].concat();
        let frame = Frame::parse(link, &bytes, ROCE_PORT);
        assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok), "{link} {start:x?} {:?}", frame.error());
        assert_eq!(frame.encapsulation(), Some(Encapsulation::RoceV2), "{link}");
        assert_eq!(frame.layers().find(Layer::Ipv4), Some(start.len()..start.len() + 20), "{link}");
    }

    #[test]
    fn a_datagram_is_found_behind_every_link_header() {
        let sll = [&[0; 14][..], &[0x08, 0x00]].concat();
        let sll2 = [&[0x08, 0x00][..], &[0; 18]].concat();
        assert_sound(LinkType::ETHERNET, &FRAME[..14]);
        assert_sound(LinkType::LINUX_SLL, &sll);
        assert_sound(LinkType::LINUX_SLL2, &sll2);
        assert_sound(LinkType::NULL, &[2, 0, 0, 0]);
        assert_sound(LinkType::LOOP, &[0, 0, 0, 2]);
        for link in [LinkType::RAW, LinkType::RAW_DLT, LinkType::RAW_OPENBSD, LinkType::IPV4] {
            assert_sound(link, &[]);
        }
        assert_eq!(Frame::parse(LinkType(147), &FRAME, ROCE_PORT).layers().iter().count(), 0);
    }

    #[test]
    fn the_version_of_ip_is_what_its_first_bits_say() {
        let mut ipv6 = [0; 48];
        (ipv6[0], ipv6[6]) = (0x60, PROTOCOL_UDP);
        for link in [LinkType::RAW, LinkType::RAW_DLT, LinkType::IPV4, LinkType::IPV6] {
            assert!(Frame::parse(link, &ipv6, ROCE_PORT).udp().is_some(), "{link}");
        }
        let behind_family = [&[30, 0, 0, 0], &ipv6[..]].concat();
        assert!(Frame::parse(LinkType::NULL, &behind_family, ROCE_PORT).udp().is_some());
    }

    #[test]
    fn no_more_than_four_vlan_tags_are_walked() {
        let tagged = |tags: usize| {
            let tag = [0x88, 0xa8, 0x20, 0x05];
            [&FRAME[..12], &tag.repeat(tags)[..], &[0x08, 0x00]].concat()
        };
        for tags in 0..=4 {
            assert_sound(LinkType::ETHERNET, &tagged(tags));
        }
        let five = [&tagged(5)[..], &FRAME[14..]].concat();
        let frame = parse(&five);
        assert!(frame.network().is_none() && frame.error().is_none());
        assert_eq!(frame.ethertype(), Some(EtherType::SERVICE_VLAN));
    }

    #[test]
    fn a_service_tag_is_told_from_an_ordinary_one() {
        for (outer, layer) in [
            ([0x88, 0xa8], Layer::ServiceVlan),
            ([0x81, 0x00], Layer::Vlan),
            ([0x91, 0x00], Layer::Vlan),
        ] {
            let tags = [&outer[..], &[0, 5, 0x81, 0x00, 0, 6, 0x08, 0x00]].concat();
            let bytes = [&FRAME[..12], &tags[..], &FRAME[14..]].concat();
            let layers = parse(&bytes).layers();
            let found: Vec<_> = layers.iter().skip(1).take(2).collect();
            assert_eq!(found, [(layer, 14..18), (Layer::Vlan, 18..22)]);
        }
    }

    /// An ERF record of this kind, padded to eight bytes, of a packet that had `wire_len` bytes.
    fn erf(kind: u8, extensions: &[u8], wire_len: u16, packet: &[u8]) -> Vec<u8> {
        let head = [&[0; 8][..], &[kind, 4, 0, 0, 0, 0], &wire_len.to_be_bytes()].concat();
        let mut record = [&head, extensions, packet].concat();
        record.resize(record.len().next_multiple_of(8), 0xee);
        record
    }

    #[test]
    fn an_erf_record_is_as_long_as_its_packet_was_on_the_wire() {
        let ethernet = [&[0, 0], &FRAME[..]].concat();
        let chain = [[0x80; 8], [0x00; 8]].concat();
        for record in [
            // The two bytes before an Ethernet frame do not count; its checksum may, and need not.
            erf(2, &[], 74, &ethernet),
            erf(2, &[], 78, &[&ethernet[..], &[1, 2, 3, 4]].concat()),
            erf(22, &[], 60, &FRAME[14..]),
            erf(22 | 0x80, &chain, 60, &FRAME[14..]),
        ] {
            let frame = Frame::parse(LinkType::ERF, &record, ROCE_PORT);
            assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok), "{:?} {record:x?}", frame.error());
        }
        let cut = erf(22, &[], 59, &FRAME[14..]);
        let frame = Frame::parse(LinkType::ERF, &cut, ROCE_PORT);
        assert_eq!(frame.error().unwrap().to_string(), "ICRC: need 4 bytes at offset 72, have 3");
        let endless = erf(22 | 0x80, &[0x80; 8], 60, &[]);
        let frame = Frame::parse(LinkType::ERF, &endless, ROCE_PORT);
        assert_eq!(frame.error().unwrap().to_string(), "ERF: need 8 bytes at offset 24, have 0");
        let unknown = erf(3, &[], 60, &FRAME[14..]);
        let frame = Frame::parse(LinkType::ERF, &unknown, ROCE_PORT);
        assert!(frame.network().is_none() && frame.error().is_none());
    }

    #[test]
    fn a_field_that_cannot_be_is_named() {
        let words = |changes: &[(usize, u8)]| parse(&with(changes)).error().unwrap().to_string();
        assert_eq!(words(&[(14, 0x55)]), "IPv4: version is 5 at offset 14");
        assert_eq!(words(&[(12, 0x86), (13, 0xdd), (14, 0x75)]), "IPv6: version is 7 at offset 14");
        assert_eq!(words(&[(14, 0x44)]), "IPv4: header length is 16 at offset 14");
        assert_eq!(words(&[(17, 19)]), "IPv4: total length is 19 at offset 14");
        assert_eq!(words(&[(39, 7)]), "UDP: length is 7 at offset 34");
        assert_eq!(words(&[(39, 41)]), "UDP: need 41 bytes at offset 34, have 40");
        assert_eq!(words(&[(39, 23)]), "ICRC: need 4 bytes at offset 57, have 0");
        assert_eq!(words(&[(39, 11)]), "BTH: need 12 bytes at offset 42, have 3");
        assert_eq!(words(&[(12, 0x89), (13, 0x15)]), "GRH: next header is 64 at offset 14");
    }

    #[test]
    fn what_is_missing_is_what_the_ethertype_announced() {
        let layer = |ethertype: [u8; 2]| {
            let header = [&FRAME[..12], &ethertype].concat();
            parse(&header).error().copied().map(|error| error.layer())
        };
        assert_eq!(layer([0x08, 0x00]), Some(Layer::Ipv4));
        assert_eq!(layer([0x86, 0xdd]), Some(Layer::Ipv6));
        assert_eq!(layer([0x89, 0x15]), Some(Layer::Grh));
        assert_eq!(layer([0x08, 0x06]), None);
    }

    #[test]
    fn a_fragment_is_not_a_datagram() {
        // Rule: W-51.3.
        for changes in [[(20, 0x20)], [(20, 0x60)], [(21, 0x01)]] {
            let bytes = with(&changes);
            let frame = parse(&bytes);
            assert!(frame.network().is_some() && frame.udp().is_none() && frame.error().is_none());
        }
        let mut ipv6 = vec![0x60, 0, 0, 0, 0, 48, 44, 64];
        ipv6.extend([0; 32]);
        ipv6.extend([PROTOCOL_UDP, 0, 0, 1, 0, 0, 0, 1]);
        ipv6.extend(&FRAME[34..]);
        let frame = Frame::parse(LinkType::IPV6, &ipv6, ROCE_PORT);
        assert!(frame.network().is_some() && frame.udp().is_none() && frame.error().is_none());
        // One that is all of its datagram is as good as none.
        ipv6[43] = 0;
        assert!(Frame::parse(LinkType::IPV6, &ipv6, ROCE_PORT).packet().is_some());
    }

    #[test]
    fn the_port_decides_what_is_roce() {
        // Rule: W-51.4.
        let frame = Frame::parse(LinkType::ETHERNET, &FRAME, 4792);
        assert!(frame.udp().is_some() && frame.packet().is_none() && frame.icrc().is_none());
        let other = with(&[(37, 0xb8)]);
        assert!(Frame::parse(LinkType::ETHERNET, &other, 4792).packet().is_some());
    }

    #[test]
    fn raw_packet_of_a_native_link_is_not_parsed_further() {
        for lnh in [0, 1] {
            let bytes = [0x00, lnh, 0, 1, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let frame = Frame::parse(LinkType::INFINIBAND, &bytes, ROCE_PORT);
            assert!(frame.lrh().is_some() && frame.encapsulation().is_none());
            assert!(frame.icrc().is_none() && frame.error().is_none());
        }
    }
}
