//! Properties of the wire over generated frames, prefixes and rubbish. What is expected is computed
//! here, from tables of its own.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use roce::wire::mad::{MadHeader, PathRecord, Rmpp, Sa, SmInfo, SmpDirected, SmpLid};
use roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bits, Bth, BthRepr, Deth, Encapsulation, Erf, EtherType,
    Ethernet, EthernetRepr, Extensions, Feth, Frame, Grh, GrhRepr, IcrcVerdict, Ieth, ImmDt, Ipv4,
    Ipv4Repr, Ipv6, Ipv6Repr, Layer, LinkType, Lrh, LrhRepr, Network, NetworkRepr, Opcode, Packet,
    PacketRepr, ParseError, Psn, Qpn, ROCE_PORT, Rdeth, Reth, Sll, Sll2, Udp, Vlan, VlanRepr,
    Xrceth, view,
};

mod common;
use common::{KINDS, Recipe, header_tests, headers_of, opcodes, recipe, recipes};

fn parse<'a>(recipe: &Recipe, bytes: &'a [u8]) -> Frame<'a> {
    Frame::parse(recipe.link, bytes, ROCE_PORT)
}

/// The network layer that `recipe` asks for, with the lengths that its headers must carry.
fn filled_in(recipe: &Recipe) -> NetworkRepr {
    let sealed: usize = recipe.transport().iter().map(|(_, len)| len).sum::<usize>() + 4;
    let short = |len: usize| u16::try_from(len).unwrap();
    match recipe.network {
        NetworkRepr::Ipv4 { header, source_port } => {
            let header = Ipv4Repr { ihl: Bits::low(5), total_len: short(28 + sealed), ..header };
            NetworkRepr::Ipv4 { header, source_port }
        }
        NetworkRepr::Ipv6 { header, source_port } => {
            let header = Ipv6Repr { payload_len: short(8 + sealed), ..header };
            NetworkRepr::Ipv6 { header, source_port }
        }
        NetworkRepr::Grh(grh) => NetworkRepr::Grh(GrhRepr { payload_len: short(sealed), ..grh }),
        NetworkRepr::Native { lrh, grh } => {
            let len = 8 + if grh.is_some() { 40 } else { 0 } + sealed;
            assert_eq!(len % 4, 0);
            let lrh = LrhRepr {
                lnh: Bits::low(if grh.is_some() { 3 } else { 2 }),
                packet_len: Bits::new(u32::try_from(len / 4).unwrap()).unwrap(),
                ..lrh
            };
            NetworkRepr::Native {
                lrh,
                grh: grh.map(|grh| GrhRepr { payload_len: short(sealed), ..grh }),
            }
        }
    }
}

/// The network layer that was found, in the same words. Checksums are the oracles' affair.
fn found(frame: &Frame<'_>) -> NetworkRepr {
    match (frame.network(), frame.lrh()) {
        (Some(Network::Ipv4 { header, options: [] }), None) => {
            let header = Ipv4Repr { checksum: 0, ..header.repr() };
            NetworkRepr::Ipv4 { header, source_port: frame.udp().unwrap().source_port() }
        }
        (Some(Network::Ipv6 { header, extensions: [] }), None) => NetworkRepr::Ipv6 {
            header: header.repr(),
            source_port: frame.udp().unwrap().source_port(),
        },
        (Some(Network::Grh(grh)), None) => NetworkRepr::Grh(grh.repr()),
        (Some(Network::Grh(grh)), Some(lrh)) => {
            NetworkRepr::Native { lrh: lrh.repr(), grh: Some(grh.repr()) }
        }
        (None, Some(lrh)) => NetworkRepr::Native { lrh: lrh.repr(), grh: None },
        other => panic!("{other:?}"),
    }
}

/// The layers that a whole frame must have: as emitted, but that a payload for queue pair 1 is a
/// MAD.
fn expected_layers(recipe: &Recipe) -> Vec<(Layer, usize)> {
    let is_mad = matches!(recipe.bth.opcode.0, 0x64 | 0x65) && recipe.bth.dest_qp.get() <= 1;
    let mut layers = Vec::new();
    for (layer, len) in recipe.parts() {
        if layer == Layer::Payload && is_mad && len >= 24 {
            layers.extend([(Layer::Mad, 24), (Layer::MadBody, len - 24)]);
        } else {
            layers.push((layer, len));
        }
    }
    layers.retain(|&(_, len)| len > 0);
    layers
}

/// Checks that the headers below the BTH of an emitted frame are those of the recipe.
fn check_carrier(recipe: &Recipe, bytes: &[u8]) -> Result<(), TestCaseError> {
    let frame = parse(recipe, bytes);
    let (encapsulation, inner) = match recipe.network {
        NetworkRepr::Ipv4 { .. } => (Encapsulation::RoceV2, 0x0800),
        NetworkRepr::Ipv6 { .. } => (Encapsulation::RoceV2, 0x86dd),
        NetworkRepr::Grh(_) => (Encapsulation::RoceV1, 0x8915),
        NetworkRepr::Native { .. } => (Encapsulation::Native, 0),
    };
    prop_assert_eq!(frame.encapsulation(), Some(encapsulation));
    prop_assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok));
    let native = encapsulation == Encapsulation::Native;
    prop_assert_eq!(frame.vcrc(), native.then_some(IcrcVerdict::Ok));

    let mut expected = filled_in(recipe);
    if let NetworkRepr::Ipv4 { header, .. } = &mut expected {
        header.checksum = 0;
    }
    prop_assert_eq!(found(&frame), expected);
    let outer = EtherType(if recipe.vlan.is_some() { 0x8100 } else { inner });
    let ethernet = recipe.ethernet.map(|ethernet| EthernetRepr { ethertype: outer, ..ethernet });
    prop_assert_eq!(frame.ethernet().map(Ethernet::repr), ethernet);
    let vlan_at = frame.layers().find(Layer::Vlan).map(|range| range.start);
    let vlan = vlan_at.map(|at| view::<Vlan>(bytes, at).unwrap().repr());
    let ethertype = EtherType(inner);
    prop_assert_eq!(vlan, recipe.vlan.map(|vlan| VlanRepr { ethertype, ..vlan }));
    let udp = frame.udp().map(|udp| (udp.destination_port(), udp.checksum()));
    prop_assert_eq!(udp, (encapsulation == Encapsulation::RoceV2).then_some((4791, 0)));
    Ok(())
}

/// Checks that the packet from the BTH up is that of the recipe, and that the layers fill the
/// frame.
fn check_packet(recipe: &Recipe, bytes: &[u8]) -> Result<(), TestCaseError> {
    let frame = parse(recipe, bytes);
    prop_assert_eq!(frame.error(), None);
    let packet = frame.packet().unwrap();
    let pad = Bits::new(u32::try_from(recipe.pad()).unwrap()).unwrap();
    prop_assert_eq!(packet.bth().repr(), BthRepr { pad, ..recipe.bth });
    prop_assert_eq!(Extensions::of(packet), recipe.extensions);
    prop_assert_eq!(packet.payload(), &recipe.payload[..]);
    prop_assert_eq!(packet.payload_len(), recipe.payload.len());
    prop_assert_eq!(PacketRepr::of(packet), Some(recipe.packet()));

    let (mut at, mut layers) = (0, Vec::new());
    for (layer, range) in frame.layers().iter() {
        prop_assert_eq!(range.start, at, "{} leaves a gap", layer);
        at = range.end;
        layers.push((layer, range.len()));
    }
    layers.retain(|&(_, len)| len > 0);
    prop_assert_eq!(layers, expected_layers(recipe));
    prop_assert_eq!(at, bytes.len());
    Ok(())
}

/// A prefix of a frame ends in the part that does not fit.
fn check_prefixes(recipe: &Recipe, bytes: &[u8]) -> Result<(), TestCaseError> {
    // A capture may well leave out what stands behind the ICRC.
    let sealed = bytes.len() - if recipe.link == LinkType::INFINIBAND { 2 } else { 0 };
    for len in 0..=bytes.len() {
        let frame = parse(recipe, &bytes[..len]);
        prop_assert_eq!(frame.error().copied(), cut_at(recipe, len), "cut to {} bytes", len);
        prop_assert_eq!(frame.icrc() == Some(IcrcVerdict::Ok), len >= sealed);
    }
    Ok(())
}

#[test]
fn every_opcode_is_emitted_and_parsed_in_every_encapsulation() {
    let mut random: Vec<u8> = (0..=255).rev().collect();
    for opcode in 0..=u8::MAX {
        for kind in 0..KINDS {
            random.rotate_left(7);
            let recipe = recipe(opcode, kind, &random, usize::from(kind ^ opcode) % 37);
            let bytes = recipe.emit();
            for check in [check_carrier, check_packet, check_prefixes] {
                check(&recipe, &bytes).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_frame_that_was_emitted_is_parsed_as_it_was_meant(recipe in recipes(4200)) {
        let bytes = recipe.emit();
        check_carrier(&recipe, &bytes)?;
        check_packet(&recipe, &bytes)?;
    }

    #[test]
    fn a_prefix_of_a_frame_ends_in_the_part_that_does_not_fit(recipe in recipes(70)) {
        check_prefixes(&recipe, &recipe.emit())?;
    }
}

/// Returns the expected error of a frame of which only `len` bytes are there.
fn cut_at(recipe: &Recipe, len: usize) -> Option<ParseError> {
    let mut offset = 0;
    for (layer, needed) in recipe.parts() {
        // The VCRC is the last thing on a wire, and its absence is no error.
        if len < offset + needed && layer != Layer::Vcrc {
            return Some(ParseError::Truncated { layer, offset, needed, have: len - offset });
        }
        offset += needed;
    }
    None
}

/// Asks a frame everything that can be asked; nothing of it may panic, and layers lie within the
/// frame.
fn ask_everything(link: LinkType, bytes: &[u8], port: u16) -> Result<(), TestCaseError> {
    let frame = Frame::parse(link, bytes, port);
    let mut words = format!("{frame:?} {:?} {:?}", frame.icrc(), frame.vcrc());
    if let Some(error) = frame.error() {
        words += &error.to_string();
    }
    let mut at = 0;
    for (layer, range) in frame.layers().iter() {
        prop_assert!(range.start <= range.end && range.end <= bytes.len(), "{layer} {range:?}");
        prop_assert!(at <= range.start, "{layer} {range:?}");
        at = range.end;
    }
    let Some(packet) = frame.packet() else {
        return Ok(());
    };
    prop_assert!(packet.payload().len() <= packet.payload_len());
    words += &format!("{:?} {:?}", Extensions::of(packet), PacketRepr::of(packet));
    if let Some(Ok(mad)) = packet.mad() {
        words += &format!("{mad} {:?}", mad.cm());
    }
    prop_assert!(!words.is_empty());
    Ok(())
}

/// Link types that are known, and any other.
fn links() -> impl Strategy<Value = LinkType> {
    let known = [0, 1, 12, 14, 101, 108, 113, 197, 228, 229, 247, 276].map(LinkType);
    prop_oneof![9 => select(known.to_vec()), 1 => any::<u16>().prop_map(LinkType)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn rubbish_of_any_link_type_is_never_a_panic(
        link in links(), bytes in vec(any::<u8>(), 0..400), port in any::<u16>(),
    ) {
        ask_everything(link, &bytes, port)?;
    }

    #[test]
    fn a_frame_with_damage_is_never_a_panic(
        recipe in recipes(300), link in links(), keep_link in any::<bool>(),
        damage in vec((any::<Index>(), any::<u8>()), 0..6), cut in any::<Index>(), trailer in 0..20usize,
    ) {
        let mut bytes = recipe.emit();
        bytes.truncate(bytes.len() - cut.index(bytes.len()) * usize::from(trailer & 1 == 1));
        bytes.extend(vec![0xee; trailer]);
        for (at, value) in damage {
            // Headers are where damage matters most.
            let reach = bytes.len().min(100);
            if reach > 0 {
                bytes[at.index(reach)] = value;
            }
        }
        ask_everything(if keep_link { recipe.link } else { link }, &bytes, ROCE_PORT)?;
    }

    #[test]
    fn a_packet_shorter_than_its_opcode_says_what_it_lacks(
        opcode in select(opcodes()), rest in vec(any::<u8>(), 11..80), wire_len in 0..100usize,
    ) {
        // Rule: W-51.2.
        let mut bytes = vec![opcode];
        bytes.extend(rest);
        let headers: usize = headers_of(opcode).iter().map(|&layer| common::extension_len(layer)).sum();
        let fits = bytes.len() >= 12 + headers + usize::from(bytes[1] >> 4 & 3);
        prop_assert_eq!(Packet::parse(&bytes).is_ok(), fits);
        // Whatever length it is said to have had, a packet comes out.
        let (packet, _) = Packet::parse_cut(&bytes, wire_len);
        prop_assert!(packet.unwrap().payload().len() <= bytes.len());
    }
}

#[test]
fn a_packet_is_built_only_of_the_headers_its_opcode_calls_for() {
    for opcode in 0..=u8::MAX {
        let bth = BthRepr::new(Opcode(opcode), Qpn::GSI, Psn::new(0));
        let bare = PacketRepr::new(bth, Extensions::default(), &[]);
        assert_eq!(bare.is_ok(), headers_of(opcode).is_empty(), "{opcode:#04x}");
    }
}

header_tests! {
    bth_fields_lie_where_the_table_has_them: Bth, 12 bytes {
        opcode 0 8, solicited 8 1, migreq 9 1, pad 10 2, tver 12 4, pkey 16 16, fecn 32 1, becn 33 1,
        dest_qp 40 24, ack_req 64 1, psn 72 24,
    }
    rdeth_fields_lie_where_the_table_has_them: Rdeth, 4 bytes { ee_context 8 24 }
    deth_fields_lie_where_the_table_has_them: Deth, 8 bytes { qkey 0 32, src_qp 40 24 }
    xrceth_fields_lie_where_the_table_has_them: Xrceth, 4 bytes { xrcsrq 8 24 }
    feth_fields_lie_where_the_table_has_them: Feth, 4 bytes { selectivity 26 2, placement 28 4 }
    reth_fields_lie_where_the_table_has_them: Reth, 16 bytes { va 0 64, rkey 64 32, dma_len 96 32 }
    atomic_eth_fields_lie_where_the_table_has_them: AtomicEth, 28 bytes {
        va 0 64, rkey 64 32, swap_or_add 96 64, compare 160 64,
    }
    aeth_fields_lie_where_the_table_has_them: Aeth, 4 bytes { syndrome 0 8, msn 8 24 }
    atomic_ack_eth_fields_lie_where_the_table_has_them: AtomicAckEth, 8 bytes { original 0 64 }
    imm_dt_fields_lie_where_the_table_has_them: ImmDt, 4 bytes { data 0 32 }
    ieth_fields_lie_where_the_table_has_them: Ieth, 4 bytes { rkey 0 32 }
    lrh_fields_lie_where_the_table_has_them: Lrh, 8 bytes {
        vl 0 4, lver 4 4, sl 8 4, lnh 14 2, dlid 16 16, packet_len 37 11, slid 48 16,
    }
    grh_fields_lie_where_the_table_has_them: Grh, 40 bytes {
        version 0 4, traffic_class 4 8, flow_label 12 20, payload_len 32 16, next_header 48 8, hop_limit 56 8,
        sgid 64 128, dgid 192 128,
    }
    ethernet_fields_lie_where_the_table_has_them: Ethernet, 14 bytes { destination 0 48, source 48 48, ethertype 96 16 }
    vlan_fields_lie_where_the_table_has_them: Vlan, 4 bytes { priority 0 3, drop_eligible 3 1, vid 4 12, ethertype 16 16 }
    ipv4_fields_lie_where_the_table_has_them: Ipv4, 20 bytes {
        version 0 4, ihl 4 4, dscp 8 6, ecn 14 2, total_len 16 16, id 32 16, dont_fragment 49 1, more_fragments 50 1,
        fragment_offset 51 13, ttl 64 8, protocol 72 8, checksum 80 16, source 96 32, destination 128 32,
    }
    ipv6_fields_lie_where_the_table_has_them: Ipv6, 40 bytes {
        version 0 4, dscp 4 6, ecn 10 2, flow_label 12 20, payload_len 32 16, next_header 48 8, hop_limit 56 8,
        source 64 128, destination 192 128,
    }
    udp_fields_lie_where_the_table_has_them: Udp, 8 bytes {
        source_port 0 16, destination_port 16 16, length 32 16, checksum 48 16,
    }
    sll_fields_lie_where_the_table_has_them: Sll, 16 bytes {
        packet_type 0 16, device_type 16 16, address_len 32 16, address 48 64, protocol 112 16,
    }
    sll2_fields_lie_where_the_table_has_them: Sll2, 20 bytes {
        protocol 0 16, interface 32 32, device_type 64 16, packet_type 80 8, address_len 88 8, address 96 64,
    }
    erf_fields_lie_where_the_table_has_them: Erf, 16 bytes {
        timestamp 0 64, extended 64 1, kind 65 7, ds_error 74 1, rx_error 75 1, truncated 76 1, varying 77 1,
        interface 78 2, record_len 80 16, lost 96 16, wire_len 112 16,
    }
    mad_fields_lie_where_the_table_has_them: MadHeader, 24 bytes {
        base_version 0 8, class 8 8, class_version 16 8, response 24 1, method 25 7, status 32 16, class_specific 48 16,
        transaction_id 64 64, attribute 128 16, attribute_modifier 160 32,
    }
    smp_lid_fields_lie_where_the_table_has_them: SmpLid, 40 bytes { mkey 0 64 }
    smp_directed_fields_lie_where_the_table_has_them: SmpDirected, 40 bytes { mkey 0 64, dr_slid 64 16, dr_dlid 80 16 }
    sm_info_fields_lie_where_the_table_has_them: SmInfo, 24 bytes {
        guid 0 64, sm_key 64 64, act_count 128 32, priority 160 4, state 164 4,
    }
    rmpp_fields_lie_where_the_table_has_them: Rmpp, 12 bytes {
        version 0 8, kind 8 8, response_time 16 5, flags 21 3, status 24 8, data1 32 32, data2 64 32,
    }
    sa_fields_lie_where_the_table_has_them: Sa, 20 bytes { sm_key 0 64, attribute_offset 64 16, component_mask 96 64 }
    path_record_fields_lie_where_the_table_has_them: PathRecord, 64 bytes {
        dgid 64 128, sgid 192 128, dlid 320 16, slid 336 16, raw_traffic 352 1, flow_label 356 20, hop_limit 376 8,
        traffic_class 384 8, reversible 392 1, paths 393 7, pkey 400 16, sl 428 4, mtu_selector 432 2, mtu 434 6,
        rate_selector 440 2, rate 442 6, life_time_selector 448 2, life_time 450 6, preference 456 8,
    }
}
