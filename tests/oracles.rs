//! Headers below the BTH, as three other parsers see them: etherparse, smoltcp and pnet judge
//! captured frames, frames that they built themselves, and frames that the crate built.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{
    DoubleVlanHeader, EtherType, IpAuthHeader, IpDscp, IpEcn, IpFragOffset, IpHeaders, IpNumber,
    Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header, Ipv6RawExtHeader,
    Ipv6RoutingExtensions, LinkExtSlice, LinkSlice, LinuxSllPacketType, NetSlice, PacketBuilder,
    SingleVlanHeader, SlicedPacket, TransportSlice, VlanHeader, VlanId, VlanPcp,
};
use pnet_packet::Packet as _;
use pnet_packet::ethernet::EthernetPacket;
use pnet_packet::ipv4::Ipv4Packet as PnetIpv4;
use pnet_packet::ipv6::{ExtensionPacket, Ipv6Packet as PnetIpv6};
use pnet_packet::sll2::{MutableSLL2Packet, SLL2Packet};
use pnet_packet::udp::UdpPacket as PnetUdp;
use pnet_packet::vlan::VlanPacket;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use roce::wire::{
    Frame, IcrcVerdict, Layer, LinkType, Network, NetworkRepr, ROCE_PORT, Sll, Sll2, Vlan, view,
};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, Ipv6ExtHeader, Ipv6Packet, Ipv6Repr, UdpPacket, UdpRepr,
};

mod common;
use common::{captured_frames, recipes};

/// Headers below the BTH, in terms that every parser can fill in.
#[derive(Clone, Debug, PartialEq)]
struct Below {
    /// Destination, then source.
    macs: [[u8; 6]; 2],
    /// Priority, drop eligibility and VLAN of each tag, from the outermost.
    tags: Vec<(u8, bool, u16)>,
    /// Behind the tags.
    ethertype: u16,
    network: Option<Ip>,
    udp: Option<Datagram>,
}

#[derive(Clone, Debug, PartialEq)]
enum Ip {
    V4 {
        tos: u8,
        total_len: u16,
        id: u16,
        dont_fragment: bool,
        more_fragments: bool,
        offset: u16,
        ttl: u8,
        protocol: u8,
        checksum: u16,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        options: Vec<u8>,
    },
    V6 {
        traffic_class: u8,
        flow_label: u32,
        payload_len: u16,
        next_header: u8,
        hop_limit: u8,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        extensions: Vec<u8>,
    },
}

/// A UDP datagram: ports, length, checksum, and the bytes that belong to it.
#[derive(Clone, Debug, PartialEq)]
struct Datagram {
    ports: [u16; 2],
    len: u16,
    checksum: u16,
    payload: Vec<u8>,
}

fn byte(bits: u32) -> u8 {
    u8::try_from(bits).unwrap()
}

fn short(bits: u32) -> u16 {
    u16::try_from(bits).unwrap()
}

fn by_us(bytes: &[u8]) -> Below {
    let frame = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT);
    let ethernet = frame.ethernet().unwrap();
    let layers = frame.layers();
    let is_tag = |layer| matches!(layer, Layer::Vlan | Layer::ServiceVlan);
    let tags = layers.iter().filter(|&(layer, _)| is_tag(layer)).map(|(_, range)| {
        let tag = view::<Vlan>(bytes, range.start).unwrap();
        (byte(tag.priority().get()), tag.drop_eligible(), short(tag.vid().get()))
    });
    Below {
        macs: [ethernet.destination().0, ethernet.source().0],
        tags: tags.collect(),
        ethertype: frame.ethertype().unwrap().0,
        network: ip_by_us(&frame),
        udp: datagram_by_us(&frame),
    }
}

fn ip_by_us(frame: &Frame<'_>) -> Option<Ip> {
    Some(match frame.network()? {
        Network::Ipv4 { header, options } => Ip::V4 {
            tos: byte(header.dscp().get() << 2 | header.ecn().get()),
            total_len: header.total_len(),
            id: header.id(),
            dont_fragment: header.dont_fragment(),
            more_fragments: header.more_fragments(),
            offset: short(header.fragment_offset().get()),
            ttl: header.ttl(),
            protocol: header.protocol(),
            checksum: header.checksum(),
            source: header.source(),
            destination: header.destination(),
            options: options.to_vec(),
        },
        Network::Ipv6 { header, extensions } => Ip::V6 {
            traffic_class: byte(header.dscp().get() << 2 | header.ecn().get()),
            flow_label: header.flow_label().get(),
            payload_len: header.payload_len(),
            next_header: header.next_header(),
            hop_limit: header.hop_limit(),
            source: header.source(),
            destination: header.destination(),
            extensions: extensions.to_vec(),
        },
        Network::Grh(_) => return None,
    })
}

fn datagram_by_us(frame: &Frame<'_>) -> Option<Datagram> {
    let (udp, at) = (frame.udp()?, frame.layers().find(Layer::Udp)?);
    Some(Datagram {
        ports: [udp.source_port(), udp.destination_port()],
        len: udp.length(),
        checksum: udp.checksum(),
        payload: frame.bytes()[at.end..at.start + usize::from(udp.length())].to_vec(),
    })
}

fn by_etherparse(bytes: &[u8]) -> Below {
    let sliced = SlicedPacket::from_ethernet(bytes).unwrap();
    let Some(LinkSlice::Ethernet2(ethernet)) = &sliced.link else { panic!("Ethernet") };
    let tags = sliced.link_exts.iter().map(|ext| match ext {
        LinkExtSlice::Vlan(tag) => (
            tag.priority_code_point().value(),
            tag.drop_eligible_indicator(),
            tag.vlan_identifier().value(),
        ),
        other => panic!("{other:?}"),
    });
    Below {
        macs: [ethernet.destination(), ethernet.source()],
        tags: tags.collect(),
        ethertype: sliced
            .link_exts
            .last()
            .map_or_else(|| ethernet.ether_type(), |ext| ext.ether_payload().unwrap().ether_type)
            .0,
        network: ip_by_etherparse(&sliced),
        udp: datagram_by_etherparse(&sliced),
    }
}

fn ip_by_etherparse(sliced: &SlicedPacket<'_>) -> Option<Ip> {
    match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            Some(Ip::V4 {
                tos: header.dscp.value() << 2 | header.ecn.value(),
                total_len: header.total_len,
                id: header.identification,
                dont_fragment: header.dont_fragment,
                more_fragments: header.more_fragments,
                offset: header.fragment_offset.value(),
                ttl: header.time_to_live,
                protocol: header.protocol.0,
                checksum: header.header_checksum,
                source: header.source.into(),
                destination: header.destination.into(),
                options: header.options.to_vec(),
            })
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            Some(Ip::V6 {
                traffic_class: header.traffic_class,
                flow_label: header.flow_label.value(),
                payload_len: header.payload_length,
                next_header: header.next_header.0,
                hop_limit: header.hop_limit,
                source: header.source.into(),
                destination: header.destination.into(),
                extensions: ip.extensions().slice().to_vec(),
            })
        }
        NetSlice::Arp(_) => None,
    }
}

fn datagram_by_etherparse(sliced: &SlicedPacket<'_>) -> Option<Datagram> {
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else { return None };
    Some(Datagram {
        ports: [udp.source_port(), udp.destination_port()],
        len: udp.length(),
        checksum: udp.checksum(),
        payload: udp.payload().to_vec(),
    })
}

/// smoltcp knows no VLAN tags: a frame with one is none of its business.
fn by_smoltcp(bytes: &[u8]) -> Option<Below> {
    let ethernet = EthernetFrame::new_checked(bytes).unwrap();
    let ethertype = ethernet.ethertype().into();
    if [0x8100, 0x88a8, 0x9100].contains(&ethertype) {
        return None;
    }
    let (network, transport) = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => ipv4_by_smoltcp(ethernet.payload()),
        EthernetProtocol::Ipv6 => ipv6_by_smoltcp(ethernet.payload())?,
        _ => (None, None),
    };
    let udp = transport.map(|transport| {
        let udp = UdpPacket::new_checked(transport).unwrap();
        Datagram {
            ports: [udp.src_port(), udp.dst_port()],
            len: udp.len(),
            checksum: udp.checksum(),
            payload: udp.payload().to_vec(),
        }
    });
    let macs = [ethernet.dst_addr().0, ethernet.src_addr().0];
    Some(Below { macs, tags: Vec::new(), ethertype, network, udp })
}

fn ipv4_by_smoltcp(bytes: &[u8]) -> (Option<Ip>, Option<&[u8]>) {
    let ip = Ipv4Packet::new_checked(bytes).unwrap();
    let whole = !ip.more_frags() && ip.frag_offset() == 0;
    let header = Ip::V4 {
        tos: ip.dscp() << 2 | ip.ecn(),
        total_len: ip.total_len(),
        id: ip.ident(),
        dont_fragment: ip.dont_frag(),
        more_fragments: ip.more_frags(),
        // smoltcp counts bytes.
        offset: ip.frag_offset() / 8,
        ttl: ip.hop_limit(),
        protocol: ip.next_header().into(),
        checksum: ip.checksum(),
        source: ip.src_addr(),
        destination: ip.dst_addr(),
        options: bytes[20..ip.header_len().into()].to_vec(),
    };
    (Some(header), (whole && ip.next_header() == IpProtocol::Udp).then(|| ip.payload()))
}

/// `None` if there is an extension header that smoltcp cannot measure.
fn ipv6_by_smoltcp(bytes: &[u8]) -> Option<(Option<Ip>, Option<&[u8]>)> {
    let ip = Ipv6Packet::new_checked(bytes).unwrap();
    let (mut rest, mut next) = (ip.payload(), ip.next_header());
    while matches!(next, IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts) {
        let extension = Ipv6ExtHeader::new_checked(rest).unwrap();
        next = extension.next_header();
        rest = &rest[(usize::from(extension.header_len()) + 1) * 8..];
    }
    if u8::from(next) == 51 {
        return None;
    }
    let header = Ip::V6 {
        traffic_class: ip.traffic_class(),
        flow_label: ip.flow_label(),
        payload_len: ip.payload_len(),
        next_header: ip.next_header().into(),
        hop_limit: ip.hop_limit(),
        source: ip.src_addr(),
        destination: ip.dst_addr(),
        extensions: ip.payload()[..ip.payload().len() - rest.len()].to_vec(),
    };
    Some((Some(header), (next == IpProtocol::Udp).then_some(rest)))
}

/// `None` if there is an extension header that pnet cannot measure.
fn by_pnet(bytes: &[u8]) -> Option<Below> {
    let ethernet = EthernetPacket::new(bytes).unwrap();
    let macs = [ethernet.get_destination(), ethernet.get_source()]
        .map(|mac| [mac.0, mac.1, mac.2, mac.3, mac.4, mac.5]);
    let (mut ethertype, mut payload, mut tags) =
        (ethernet.get_ethertype().0, ethernet.payload().to_vec(), Vec::new());
    while [0x8100, 0x88a8, 0x9100].contains(&ethertype) {
        let tag = VlanPacket::new(&payload).unwrap();
        tags.push((
            tag.get_priority_code_point().0,
            tag.get_drop_eligible_indicator() == 1,
            tag.get_vlan_identifier(),
        ));
        ethertype = tag.get_ethertype().0;
        payload = tag.payload().to_vec();
    }
    let (network, transport) = match ethertype {
        0x0800 => ipv4_by_pnet(&payload),
        0x86dd => ipv6_by_pnet(&payload)?,
        _ => (None, None),
    };
    let udp = transport.map(|transport| {
        let udp = PnetUdp::new(&transport).unwrap();
        Datagram {
            ports: [udp.get_source(), udp.get_destination()],
            len: udp.get_length(),
            checksum: udp.get_checksum(),
            payload: udp.payload()[..usize::from(udp.get_length()) - 8].to_vec(),
        }
    });
    Some(Below { macs, tags, ethertype, network, udp })
}

fn ipv4_by_pnet(bytes: &[u8]) -> (Option<Ip>, Option<Vec<u8>>) {
    let ip = PnetIpv4::new(bytes).unwrap();
    let (flags, offset) = (ip.get_flags(), ip.get_fragment_offset());
    let whole = flags & 1 == 0 && offset == 0;
    let header = Ip::V4 {
        tos: ip.get_dscp() << 2 | ip.get_ecn(),
        total_len: ip.get_total_length(),
        id: ip.get_identification(),
        dont_fragment: flags & 2 != 0,
        more_fragments: flags & 1 != 0,
        offset,
        ttl: ip.get_ttl(),
        protocol: ip.get_next_level_protocol().0,
        checksum: ip.get_checksum(),
        source: ip.get_source(),
        destination: ip.get_destination(),
        options: ip.get_options_raw().to_vec(),
    };
    (Some(header), (whole && ip.get_next_level_protocol().0 == 17).then(|| ip.payload().to_vec()))
}

fn ipv6_by_pnet(bytes: &[u8]) -> Option<(Option<Ip>, Option<Vec<u8>>)> {
    let ip = PnetIpv6::new(bytes).unwrap();
    let (mut rest, mut next) = (ip.payload(), ip.get_next_header().0);
    while matches!(next, 0 | 43 | 60) {
        let extension = ExtensionPacket::new(rest).unwrap();
        next = extension.get_next_header().0;
        rest = &rest[(usize::from(extension.get_hdr_ext_len()) + 1) * 8..];
    }
    if next == 51 {
        return None;
    }
    let header = Ip::V6 {
        traffic_class: ip.get_traffic_class(),
        flow_label: ip.get_flow_label(),
        payload_len: ip.get_payload_length(),
        next_header: ip.get_next_header().0,
        hop_limit: ip.get_hop_limit(),
        source: ip.get_source(),
        destination: ip.get_destination(),
        extensions: ip.payload()[..ip.payload().len() - rest.len()].to_vec(),
    };
    Some((Some(header), (next == 17).then(|| rest.to_vec())))
}

/// All judges agree with us, and how many of the three could judge.
fn judge(bytes: &[u8]) -> usize {
    let ours = by_us(bytes);
    assert_eq!(ours, by_etherparse(bytes), "etherparse");
    let others = [("smoltcp", by_smoltcp(bytes)), ("pnet", by_pnet(bytes))];
    for (name, theirs) in
        others.iter().filter_map(|(name, theirs)| theirs.as_ref().map(|theirs| (name, theirs)))
    {
        assert_eq!(&ours, theirs, "{name}");
    }
    1 + others.iter().filter(|(_, theirs)| theirs.is_some()).count()
}

/// The frame, or what its tunnel carries on an Ethernet of its own: the other parsers know no
/// tunnels.
fn without_tunnel(bytes: &[u8]) -> Cow<'_, [u8]> {
    let frame = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT);
    if frame.tunnel().is_none() {
        return Cow::Borrowed(bytes);
    }
    let layers = frame.layers();
    let is_ip = |layer| matches!(layer, Layer::Ipv4 | Layer::Ipv6);
    let (layer, range) = layers.iter().filter(|&(layer, _)| is_ip(layer)).last().unwrap();
    let ethertype = if layer == Layer::Ipv4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    Cow::Owned([&bytes[..12], &ethertype, &bytes[range.start..]].concat())
}

#[test]
fn three_parsers_agree_on_every_captured_frame() {
    for path in common::captures() {
        let frames = captured_frames(&path);
        let mut datagrams = 0;
        for frame in frames.iter().map(|frame| without_tunnel(frame)) {
            let ours = by_us(&frame);
            assert_eq!(judge(&frame), if ours.tags.is_empty() { 3 } else { 2 }, "{path:?}");
            datagrams += usize::from(ours.udp.is_some());
        }
        common::check_counts(&path, frames.len(), datagrams);
    }
}

prop_compose! {
    fn tags()(
        count in 0..3usize, pcp in [0..8u8, 0..8], dei in any::<[bool; 2]>(), vid in [0..4096u16, 0..4096],
    ) -> Option<VlanHeader> {
        let tag = |i: usize| SingleVlanHeader {
            pcp: VlanPcp::try_new(pcp[i]).unwrap(),
            drop_eligible_indicator: dei[i],
            vlan_id: VlanId::try_new(vid[i]).unwrap(),
            ether_type: EtherType(0),
        };
        match count {
            0 => None,
            1 => Some(VlanHeader::Single(tag(0))),
            _ => Some(VlanHeader::Double(DoubleVlanHeader { outer: tag(0), inner: tag(1) })),
        }
    }
}

prop_compose! {
    fn ipv4_headers()(
        dscp in 0..64u8, ecn in 0..4u8, id in any::<u16>(), df in any::<bool>(), mf in prop::bool::weighted(0.1),
        offset in prop_oneof![9 => Just(0u16), 1 => 0..8192u16], ttl in any::<u8>(), source in any::<[u8; 4]>(),
        destination in any::<[u8; 4]>(), words in 0..=10usize, options in vec(any::<u8>(), 40),
    ) -> IpHeaders {
        let header = Ipv4Header {
            dscp: IpDscp::try_new(dscp).unwrap(),
            ecn: IpEcn::try_new(ecn).unwrap(),
            identification: id,
            dont_fragment: df,
            more_fragments: mf,
            fragment_offset: IpFragOffset::try_new(offset).unwrap(),
            time_to_live: ttl,
            source,
            destination,
            options: Ipv4Options::try_from(&options[..words * 4]).unwrap(),
            ..Default::default()
        };
        IpHeaders::Ipv4(header, Default::default())
    }
}

/// An extension header of 8 to 40 bytes.
fn raw_extensions() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (0..5usize, vec(any::<u8>(), 40)).prop_map(|(more, bytes)| {
        Ipv6RawExtHeader::new_raw(IpNumber(59), &bytes[..6 + 8 * more]).unwrap()
    })
}

prop_compose! {
    fn ipv6_headers()(
        traffic_class in any::<u8>(), flow in 0..1u32 << 20, hop_limit in any::<u8>(), source in any::<[u8; 16]>(),
        destination in any::<[u8; 16]>(), raw in [(); 4].map(|()| option::of(raw_extensions())),
        auth in option::of((any::<u32>(), any::<u32>(), 0..5usize)),
    ) -> IpHeaders {
        let header = Ipv6Header {
            traffic_class,
            flow_label: Ipv6FlowLabel::try_new(flow).unwrap(),
            hop_limit,
            source,
            destination,
            ..Default::default()
        };
        let [hop_by_hop_options, destination_options, routing, final_destination_options] = raw;
        let extensions = Ipv6Extensions {
            hop_by_hop_options,
            destination_options,
            routing: routing.map(|routing| Ipv6RoutingExtensions { routing, final_destination_options }),
            fragment: None,
            auth: auth.map(|(spi, sequence, words)| {
                IpAuthHeader::new(IpNumber(59), spi, sequence, &vec![0x77; words * 4]).unwrap()
            }),
        };
        IpHeaders::Ipv6(header, extensions)
    }
}

fn ports() -> impl Strategy<Value = u16> {
    prop_oneof![3 => Just(ROCE_PORT), 1 => any::<u16>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn frames_of_etherparse_are_read_as_it_wrote_them(
        macs in any::<[[u8; 6]; 2]>(), tags in tags(), ip in prop_oneof![ipv4_headers(), ipv6_headers()],
        source_port in any::<u16>(), port in ports(), payload in vec(any::<u8>(), 0..100), trailer in 0..20usize,
    ) {
        let ethernet = PacketBuilder::ethernet2(macs[0], macs[1]);
        let network = match tags {
            Some(tags) => ethernet.vlan(tags).ip(ip),
            None => ethernet.ip(ip),
        };
        let mut bytes = Vec::new();
        network.udp(source_port, port).write(&mut bytes, &payload).unwrap();
        bytes.extend(vec![0xee; trailer]);
        prop_assert!(judge(&bytes) >= 1);
        let below = by_us(&bytes);
        prop_assert_eq!(below.macs, [macs[1], macs[0]]);
        if let Some(datagram) = below.udp {
            prop_assert_eq!((datagram.ports, datagram.payload), ([source_port, port], payload));
        } else {
            prop_assert!(SlicedPacket::from_ethernet(&bytes).unwrap().is_ip_payload_fragmented());
        }
    }

    #[test]
    fn frames_of_smoltcp_are_read_as_it_wrote_them(
        macs in any::<[[u8; 6]; 2]>(), addresses in any::<[[u8; 16]; 2]>(), v6 in any::<bool>(), hop_limit in 1..=255u8,
        src_port in any::<u16>(), dst_port in ports(), payload in vec(any::<u8>(), 0..100),
    ) {
        let bytes = emit_by_smoltcp(macs, addresses, v6, hop_limit, UdpRepr { src_port, dst_port }, &payload);
        prop_assert_eq!(judge(&bytes), 3);
        let datagram = by_us(&bytes).udp.unwrap();
        prop_assert_eq!((datagram.ports, datagram.payload), ([src_port, dst_port], payload));
    }

    #[test]
    fn cooked_captures_are_read_as_others_wrote_them(
        ip in prop_oneof![ipv4_headers(), ipv6_headers()], address in any::<[u8; 8]>(), interface in any::<u32>(),
        kind in select(vec![0u8, 1, 2, 3, 4]), payload in vec(any::<u8>(), 0..100),
    ) {
        let packet_type = LinuxSllPacketType::try_from(u16::from(kind)).unwrap();
        let mut cooked = Vec::new();
        let builder = PacketBuilder::linux_sll(packet_type, 6, address).ip(ip);
        builder.udp(0xc000, 4791).write(&mut cooked, &payload).unwrap();
        let sliced = SlicedPacket::from_linux_sll(&cooked).unwrap();
        let theirs = (ip_by_etherparse(&sliced), datagram_by_etherparse(&sliced));

        let frame = Frame::parse(LinkType::LINUX_SLL, &cooked, ROCE_PORT);
        prop_assert_eq!((ip_by_us(&frame), datagram_by_us(&frame)), theirs.clone());
        let header = view::<Sll>(&cooked, 0).unwrap();
        prop_assert_eq!((header.packet_type(), header.device_type()), (kind.into(), 1));
        prop_assert_eq!((header.address_len(), header.address()), (6, address));

        // The same datagram behind a header of the second version, which pnet writes.
        let ethertype = frame.ethertype().unwrap().0;
        let mut cooked2 = vec![0; SLL2Packet::minimum_packet_size() + 8];
        let mut writer = MutableSLL2Packet::new(&mut cooked2).unwrap();
        writer.set_protocol_type(pnet_packet::ethernet::EtherType(ethertype));
        writer.set_interface_index(interface);
        writer.set_arphrd_type(1);
        writer.set_packet_type(kind);
        writer.set_link_layer_address_length(6);
        writer.set_link_layer_address(&address);
        cooked2.truncate(20);
        cooked2.extend(&cooked[16..]);
        let frame = Frame::parse(LinkType::LINUX_SLL2, &cooked2, ROCE_PORT);
        prop_assert_eq!((ip_by_us(&frame), datagram_by_us(&frame)), theirs);
        let header = view::<Sll2>(&cooked2, 0).unwrap();
        prop_assert_eq!((header.interface(), header.packet_type(), header.device_type()), (interface, kind, 1));
        prop_assert_eq!((header.address_len(), header.address()), (6, address));
    }

    #[test]
    fn our_frames_are_sound_to_others(recipe in recipes(300)) {
        let bytes = recipe.emit();
        if recipe.ethernet.is_none() {
            return Ok(());
        }
        prop_assert_eq!(judge(&bytes), if recipe.vlan.is_some() { 2 } else { 3 });
        let frame = Frame::parse(LinkType::ETHERNET, &bytes, ROCE_PORT);
        prop_assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok));
        let network = bytes[if recipe.vlan.is_some() { 18 } else { 14 }..].to_vec();
        match recipe.network {
            NetworkRepr::Ipv4 { .. } => checksums_are_right(&network),
            NetworkRepr::Ipv6 { .. } => prop_assert!(Ipv6Packet::new_checked(&network[..]).is_ok()),
            NetworkRepr::Grh(grh) => {
                // A GRH has the shape of an IPv6 header.
                let ip = Ipv6Packet::new_checked(&network[..]).unwrap();
                prop_assert_eq!(u32::from(ip.version()), grh.version.get());
                prop_assert_eq!((ip.traffic_class(), ip.flow_label()), (grh.traffic_class, grh.flow_label.get()));
                prop_assert_eq!((u8::from(ip.next_header()), ip.hop_limit()), (0x1b, grh.hop_limit));
                prop_assert_eq!((ip.src_addr().octets(), ip.dst_addr().octets()), (grh.sgid.0, grh.dgid.0));
                prop_assert_eq!(ip.total_len(), network.len());
            }
            NetworkRepr::Native { .. } => unreachable!("it has no Ethernet header"),
        }
    }
}

/// The header's checksum according to all three, and that none of the datagram is no checksum.
fn checksums_are_right(network: &[u8]) {
    let header = Ipv4Header::from_slice(network).unwrap().0;
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let ip = Ipv4Packet::new_checked(network).unwrap();
    assert!(ip.verify_checksum());
    assert_eq!(pnet_packet::ipv4::checksum(&PnetIpv4::new(network).unwrap()), ip.checksum());
    let udp = UdpPacket::new_checked(ip.payload()).unwrap();
    let [source, destination] = [ip.src_addr(), ip.dst_addr()].map(IpAddress::Ipv4);
    UdpRepr::parse(&udp, &source, &destination, &ChecksumCapabilities::default()).unwrap();
}

fn emit_by_smoltcp(
    macs: [[u8; 6]; 2],
    addresses: [[u8; 16]; 2],
    v6: bool,
    hop_limit: u8,
    udp: UdpRepr,
    payload: &[u8],
) -> Vec<u8> {
    let ip_len = if v6 { 40 } else { 20 };
    let mut bytes = vec![0; 14 + ip_len + 8 + payload.len()];
    let ethernet = EthernetRepr {
        dst_addr: EthernetAddress(macs[0]),
        src_addr: EthernetAddress(macs[1]),
        ethertype: if v6 { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 },
    };
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut bytes[..]));
    let (next_header, payload_len, caps) =
        (IpProtocol::Udp, 8 + payload.len(), ChecksumCapabilities::default());
    let (network, transport) = bytes[14..].split_at_mut(ip_len);
    let addresses = if v6 {
        let [src_addr, dst_addr] = addresses.map(Ipv6Addr::from);
        let ip = Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
        ip.emit(&mut Ipv6Packet::new_unchecked(network));
        [src_addr, dst_addr].map(IpAddress::Ipv6)
    } else {
        let [src_addr, dst_addr] = addresses.map(|[a, b, c, d, ..]| Ipv4Addr::new(a, b, c, d));
        let ip = Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
        ip.emit(&mut Ipv4Packet::new_unchecked(network), &caps);
        [src_addr, dst_addr].map(IpAddress::Ipv4)
    };
    let mut datagram = UdpPacket::new_unchecked(transport);
    let fill = |room: &mut [u8]| room.copy_from_slice(payload);
    udp.emit(&mut datagram, &addresses[0], &addresses[1], payload.len(), fill, &caps);
    bytes
}
