//! Messages of the connection manager: captured ones, with what tshark reads in them, and hand-made
//! ones, byte by byte after the tables of the specification's chapter 12.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::wire::cm::{
    Apr, CommId, Drep, Dreq, DreqRepr, IpCm, IpCmRepr, Lap, LapRepr, Message, Mra, MraRepr,
    PortSpace, Rej, RejRepr, Rep, Req, ReqRepr, Rtu, ServiceId, SidrRep, SidrRepRepr, SidrReq,
    reject_reason,
};
use roce::wire::mad::{AttributeId, Mad, MadHeader, MadHeaderRepr, MgmtClass};
use roce::wire::{
    Bits, EeContext, Extensions, Frame, FrameRepr, Gid, Header, Layer, LinkType, Network,
    NetworkRepr, PKey, PacketRepr, ParseError, Psn, QKey, Qpn, ROCE_PORT, view,
};

mod common;
use common::{captured_frames, header_tests, testdata, unhex};

/// The frames of `rxe_cm.pcap`, of which tshark counts the first as 1.
fn frames() -> Vec<Vec<u8>> {
    captured_frames(&testdata("captures/rxe_cm.pcap"))
}

fn parse(frame: &[u8]) -> Frame<'_> {
    Frame::parse(LinkType::ETHERNET, frame, ROCE_PORT)
}

/// The management datagram in a frame.
fn mad(frame: &[u8]) -> Mad<'_> {
    parse(frame).packet().unwrap().mad().unwrap().unwrap()
}

/// The message in the frame that tshark gives this number, whose MAD has this transaction.
macro_rules! message {
    ($frames:expr, $number:literal, $kind:ident, $attribute:literal, $transaction:literal) => {{
        let mad = mad(&$frames[$number - 1]);
        let header = MadHeaderRepr {
            base_version: 1,
            class: MgmtClass(7),
            class_version: 2,
            response: false,
            method: Bits::low(3),
            status: 0,
            class_specific: 0,
            transaction_id: $transaction,
            attribute: AttributeId($attribute),
            attribute_modifier: 0,
        };
        assert_eq!(mad.header.repr(), header);
        match mad.cm() {
            Ok(Some(Message::$kind(message))) => message,
            other => panic!("{other:?}"),
        }
    }};
}

/// The flow label that Linux invents for a connection from this port to port 7174.
fn flow_label(source_port: u32) -> Bits<20> {
    Bits::low(source_port * 31 + 7174)
}

/// The first REQ, as tshark 4.0.17 reads it in frame 19; but for flow label and packet rate, which
/// it takes from three bytes and from one byte of a word of four.
fn captured_req() -> ReqRepr {
    let ip_cm = IpCmRepr {
        major: Bits::low(0),
        minor: Bits::low(0),
        ip_version: Bits::low(4),
        source_port: 0xe4a5,
        source: Ipv6Addr::from(u128::from(Ipv4Addr::new(10, 9, 0, 1).to_bits())),
        destination: Ipv6Addr::from(u128::from(Ipv4Addr::new(10, 9, 0, 2).to_bits())),
    };
    let mut private_data = [0; 92];
    private_data[..36].copy_from_slice(ip_cm.emit().as_bytes());
    ReqRepr {
        local_comm_id: CommId(0x9afd_78c1),
        vendor_id: Bits::low(0),
        service_id: ServiceId(0x0000_0000_0106_1c06),
        local_ca_guid: 0x0000_00ff_fe00_0001,
        selective_repeat: false,
        local_q_key: QKey::new(0),
        local_qpn: Qpn::new(0x11),
        responder_resources: 1,
        local_eecn: EeContext::new(0),
        initiator_depth: 1,
        remote_eecn: EeContext::new(0),
        remote_cm_response_timeout: Bits::low(0x14),
        transport_service_type: Bits::low(0),
        flow_control: false,
        starting_psn: Psn::new(0x23_9b1c),
        local_cm_response_timeout: Bits::low(0x14),
        retry_count: Bits::low(7),
        partition_key: PKey::new(0xffff),
        path_mtu: Bits::low(3),
        rdc_exists: false,
        rnr_retry_count: Bits::low(7),
        max_cm_retries: Bits::low(15),
        srq: false,
        extended_transport_type: Bits::low(0),
        primary_local_port_lid: 0xffff,
        primary_remote_port_lid: 0xffff,
        primary_local_port_gid: Gid::from(Ipv4Addr::new(10, 9, 0, 1)),
        primary_remote_port_gid: Gid::from(Ipv4Addr::new(10, 9, 0, 2)),
        primary_flow_label: flow_label(0xe4a5),
        primary_packet_rate: Bits::low(0),
        primary_traffic_class: 0,
        primary_hop_limit: 0x40,
        primary_sl: Bits::low(0),
        primary_subnet_local: false,
        primary_local_ack_timeout: Bits::low(0x11),
        alternate_local_port_lid: 0,
        alternate_remote_port_lid: 0,
        alternate_local_port_gid: Gid::default(),
        alternate_remote_port_gid: Gid::default(),
        alternate_flow_label: Bits::low(0),
        alternate_packet_rate: Bits::low(0),
        alternate_traffic_class: 0,
        alternate_hop_limit: 0,
        alternate_sl: Bits::low(0),
        alternate_subnet_local: false,
        alternate_local_ack_timeout: Bits::low(0),
        sap_supported: false,
        private_data,
    }
}

#[test]
fn a_captured_req_says_what_tshark_reads_in_it() {
    let frames = frames();
    let req = message!(frames, 19, Req, 0x0010, 0x0000_0002_c178_fd9a);
    assert_eq!(req.repr(), captured_req());
    assert_eq!(req.service_id().to_rdma_cm(), Some((PortSpace::TCP, 7174)));
    assert_eq!(ServiceId::rdma_cm(PortSpace::TCP, 7174), req.service_id());
    let header = req.ip_cm().unwrap();
    let addresses = (IpAddr::from([10, 9, 0, 1]), IpAddr::from([10, 9, 0, 2]));
    assert_eq!(header.addresses(), Some(addresses));
    assert_eq!(header.source_port(), 0xe4a5);
    assert_eq!(req.as_bytes()[88..92], [0xbc, 0xc0, 0x10, 0x00]);
    assert_eq!(captured_req().emit().as_bytes(), req.as_bytes());
}

#[test]
fn a_captured_req_over_ipv6_carries_ipv6_addresses() {
    let frames = frames();
    let req = message!(frames, 140, Req, 0x0010, 0x0000_0002_c178_fd9f);
    let addresses: [Ipv6Addr; 2] = ["fd00:9::1", "fd00:9::2"].map(|text| text.parse().unwrap());
    let header = req.ip_cm().unwrap();
    assert_eq!(header.addresses(), Some((addresses[0].into(), addresses[1].into())));
    assert_eq!(header.source_port(), 0xc23b);
    assert_eq!(req.primary_local_port_gid(), Gid::from(addresses[0]));
    assert_eq!(req.primary_remote_port_gid(), Gid::from(addresses[1]));
    assert_eq!((req.local_qpn(), req.starting_psn()), (Qpn::new(0x16), Psn::new(0xe2_5f91)));
    assert_eq!(req.primary_flow_label(), flow_label(0xc23b));
}

#[test]
fn the_answers_to_a_captured_req_say_what_tshark_reads_in_them() {
    let frames = frames();
    let (active, passive) = (CommId(0x9afd_78c1), CommId(0x37d5_e123));
    let rep = message!(frames, 20, Rep, 0x0013, 0x0000_0002_c178_fd9a);
    assert_eq!((rep.local_comm_id(), rep.remote_comm_id()), (passive, active));
    assert_eq!((rep.local_q_key(), rep.local_qpn()), (QKey::new(0), Qpn::new(0x11)));
    assert_eq!(rep.starting_psn(), Psn::new(0x03_7803));
    assert_eq!((rep.responder_resources(), rep.initiator_depth()), (1, 1));
    assert_eq!((rep.target_ack_delay().get(), rep.failover_accepted().get()), (0x0f, 0));
    assert_eq!((rep.flow_control(), rep.rnr_retry_count().get(), rep.srq()), (false, 7, false));
    assert_eq!(rep.local_ca_guid(), 0x0000_00ff_fe00_0002);
    let rtu = message!(frames, 21, Rtu, 0x0014, 0x0000_0002_c178_fd9a);
    assert_eq!((rtu.local_comm_id(), rtu.remote_comm_id()), (active, passive));
    let dreq = message!(frames, 82, Dreq, 0x0015, 0x0000_0002_c178_fd9a);
    assert_eq!((dreq.local_comm_id(), dreq.remote_comm_id()), (active, passive));
    assert_eq!(dreq.remote_qpn_eecn(), Qpn::new(0x11));
    let drep = message!(frames, 83, Drep, 0x0016, 0x0000_0002_c178_fd9a);
    assert_eq!((drep.local_comm_id(), drep.remote_comm_id()), (passive, active));
}

#[test]
fn a_service_is_resolved_to_a_queue_pair_and_its_key() {
    // tshark shows only the bytes of these two: 99fd78c1 ffff0000 0000000001111c06 00409931 … and
    // 99fd78c1 00000000 00001400 0000000001111c06 01234567 ….
    let frames = frames();
    let req = message!(frames, 122, SidrReq, 0x0017, 0x0000_0002_c178_fd99);
    assert_eq!((req.request_id(), req.partition_key()), (CommId(0x99fd_78c1), PKey::DEFAULT));
    assert_eq!(req.service_id().to_rdma_cm(), Some((PortSpace::UDP, 7174)));
    let header = req.ip_cm().unwrap();
    assert_eq!((header.ip_version().get(), header.source_port()), (4, 0x9931));
    assert_eq!(
        header.addresses(),
        Some((IpAddr::from([10, 9, 0, 1]), IpAddr::from([10, 9, 0, 2])))
    );
    let rep = message!(frames, 124, SidrRep, 0x0018, 0x0000_0002_c178_fd99);
    let expected = SidrRepRepr {
        request_id: CommId(0x99fd_78c1),
        status: 0,
        additional_information_length: 0,
        vendor_id_h: 0,
        qpn: Qpn::new(0x14),
        vendor_id_l: 0,
        service_id: ServiceId::rdma_cm(PortSpace::UDP, 7174),
        q_key: QKey::new(0x0123_4567),
        additional_information: [0; 72],
        private_data: [0; 136],
    };
    assert_eq!(rep.repr(), expected);
    assert_eq!(rep.as_bytes(), expected.emit().as_bytes());
    // The client then sends to just this queue pair, with just this key.
    let first = parse(&frames[126 - 1]).packet().copied().unwrap();
    assert_eq!((first.bth().dest_qp(), first.deth().unwrap().qkey()), (rep.qpn(), rep.q_key()));
}

#[test]
fn a_starting_psn_is_for_the_one_who_receives_it() {
    // Rule: C-01.2.
    let frames = frames();
    for (req, rep) in [(19, 20), (84, 86), (85, 87), (140, 143)] {
        let Ok(Some(Message::Req(req))) = mad(&frames[req - 1]).cm() else { panic!("REQ") };
        let Ok(Some(Message::Rep(rep_message))) = mad(&frames[rep - 1]).cm() else { panic!("REP") };
        assert_eq!(rep_message.remote_comm_id(), req.local_comm_id());
        // The first request that each of the two queue pairs sees.
        let first_to = |qpn, from: [u8; 6]| {
            let packets = frames[rep..].iter().map(|frame| (parse(frame), frame));
            let mut to = packets.filter_map(|(parsed, frame)| {
                let packet = *parsed.packet()?;
                let is_request = matches!(packet.bth().opcode().0, 0x00..=0x0c);
                (is_request && packet.bth().dest_qp() == qpn && frame[6..12] == from)
                    .then(|| packet.bth().psn())
            });
            to.next().unwrap()
        };
        let (active, passive) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        assert_eq!(first_to(req.local_qpn(), passive), req.starting_psn());
        assert_eq!(first_to(rep_message.local_qpn(), active), rep_message.starting_psn());
    }
}

/// A message taken apart and put together again.
fn again(message: Message<'_>) -> Vec<u8> {
    match message {
        Message::Req(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Mra(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Rej(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Rep(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Rtu(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Dreq(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Drep(m) => m.repr().emit().as_bytes().to_vec(),
        Message::SidrReq(m) => m.repr().emit().as_bytes().to_vec(),
        Message::SidrRep(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Lap(m) => m.repr().emit().as_bytes().to_vec(),
        Message::Apr(m) => m.repr().emit().as_bytes().to_vec(),
    }
}

#[test]
fn every_captured_frame_with_a_message_can_be_rebuilt_byte_for_byte() {
    // Rule: C-01.1.
    let mut kinds = Vec::new();
    for frame in frames() {
        let parsed = parse(&frame);
        let Some(Ok(datagram)) = parsed.packet().and_then(|packet| packet.mad()) else { continue };
        kinds.push(datagram.header.attribute().0);
        let mut payload = datagram.header.repr().emit().as_bytes().to_vec();
        payload.extend(again(datagram.cm().unwrap().unwrap()));
        let source_port = parsed.udp().unwrap().source_port();
        let network = match parsed.network().unwrap() {
            Network::Ipv4 { header, .. } => {
                NetworkRepr::Ipv4 { header: header.repr(), source_port }
            }
            Network::Ipv6 { header, .. } => {
                NetworkRepr::Ipv6 { header: header.repr(), source_port }
            }
            Network::Grh(_) => panic!("no RoCEv1 here"),
        };
        let packet = parsed.packet().unwrap();
        let rebuilt = FrameRepr {
            ethernet: Some(parsed.ethernet().unwrap().repr()),
            vlan: None,
            network,
            packet: PacketRepr::new(packet.bth().repr(), Extensions::of(packet), &payload).unwrap(),
        };
        let mut bytes = Vec::new();
        rebuilt.emit(&mut bytes);
        assert_eq!(bytes, frame, "{datagram}");
    }
    kinds.sort_unstable();
    let expected = [(0x10, 4), (0x13, 4), (0x14, 4), (0x15, 4), (0x16, 4), (0x17, 2), (0x18, 2)];
    assert_eq!(kinds, expected.map(|(kind, count)| vec![kind; count]).concat());
}

/// A message of 232 bytes that begins with these, in hexadecimal.
fn body(start: &str) -> Vec<u8> {
    let mut body = unhex(start);
    body.resize(232, 0);
    body
}

#[test]
fn an_mra_is_encoded_byte_for_byte() {
    let mut private_data = [0; 222];
    private_data[..2].copy_from_slice(&[0xaa, 0xbb]);
    let mra = MraRepr {
        local_comm_id: CommId(0x0102_0304),
        remote_comm_id: CommId(0x0506_0708),
        message_mraed: Bits::low(2),
        service_timeout: Bits::low(24),
        private_data,
    };
    let bytes = body("01020304 05060708 80 c0 aabb");
    assert_eq!(mra.emit().as_bytes()[..], bytes);
    let Ok(Some(Message::Mra(parsed))) = Message::parse(AttributeId(0x11), &bytes) else {
        panic!("MRA")
    };
    assert_eq!(parsed.repr(), mra);
}

#[test]
fn a_rej_is_encoded_byte_for_byte() {
    // Rule: C-01.1.
    let (mut ari, mut private_data) = ([0; 72], [0; 148]);
    (ari[0], ari[71], private_data[0], private_data[147]) = (0xa1, 0xa2, 0xb1, 0xb2);
    let rej = RejRepr {
        local_comm_id: CommId(0x0102_0304),
        remote_comm_id: CommId(0x0506_0708),
        message_rejected: Bits::low(1),
        rejected_info_length: Bits::low(72),
        reason: 28,
        ari,
        private_data,
    };
    let mut bytes = body("01020304 05060708 40 90 001c a1");
    (bytes[83], bytes[84], bytes[231]) = (0xa2, 0xb1, 0xb2);
    assert_eq!(rej.emit().as_bytes()[..], bytes);
    let Ok(Some(message)) = Message::parse(AttributeId(0x12), &bytes) else { panic!("REJ") };
    assert_eq!(message.to_string(), "REJ id 0x01020304 to 0x05060708 reason consumer reject");
}

#[test]
fn every_reason_to_reject_has_the_kernels_meaning() {
    // As in the kernel's ib_cm.h, from 1; it knows no 34.
    let reasons = [
        "no QP available",
        "no EEC available",
        "no resources",
        "timeout",
        "unsupported request",
        "invalid communication ID",
        "invalid communication instance",
        "invalid service ID",
        "invalid transport service type",
        "stale connection",
        "RDC does not exist",
        "invalid primary GID",
        "invalid primary LID",
        "invalid primary SL",
        "invalid primary traffic class",
        "invalid primary hop limit",
        "invalid primary packet rate",
        "invalid alternate GID",
        "invalid alternate LID",
        "invalid alternate SL",
        "invalid alternate traffic class",
        "invalid alternate hop limit",
        "invalid alternate packet rate",
        "port and CM redirect",
        "port redirect",
        "invalid path MTU",
        "insufficient responder resources",
        "consumer reject",
        "invalid RNR retry count",
        "duplicate local communication ID",
        "invalid class version",
        "invalid flow label",
        "invalid alternate flow label",
    ];
    for (reason, words) in (1..).zip(reasons) {
        assert_eq!(reject_reason(reason), Some(words), "{reason}");
    }
    assert_eq!(reject_reason(35), Some("vendor option not supported"));
    assert!([0, 34, 36, u16::MAX].into_iter().all(|reason| reject_reason(reason).is_none()));
}

#[test]
fn a_lap_is_encoded_byte_for_byte() {
    let mut private_data = [0; 168];
    (private_data[0], private_data[167]) = (0xb1, 0xb2);
    let lap = LapRepr {
        local_comm_id: CommId(0x0102_0304),
        remote_comm_id: CommId(0x0506_0708),
        remote_qpn_eecn: Qpn::new(0x11_2233),
        remote_cm_response_timeout: Bits::low(20),
        alternate_local_port_lid: 0x1112,
        alternate_remote_port_lid: 0x1314,
        alternate_local_port_gid: Gid([0x21; 16]),
        alternate_remote_port_gid: Gid([0x43; 16]),
        alternate_flow_label: Bits::low(0xabcde),
        alternate_traffic_class: 0x55,
        alternate_hop_limit: 0x66,
        alternate_packet_rate: Bits::low(0x3f),
        alternate_sl: Bits::low(9),
        alternate_subnet_local: true,
        alternate_local_ack_timeout: Bits::low(17),
        private_data,
    };
    let (local, remote) = ("21".repeat(16), "43".repeat(16));
    let mut bytes = body(&format!(
        "01020304 05060708 00000000 112233 a0 00000000 1112 1314 {local} {remote} abcde0 55 66 3f 98 88 b1"
    ));
    bytes[231] = 0xb2;
    assert_eq!(lap.emit().as_bytes()[..], bytes);
    let Ok(Some(Message::Lap(parsed))) = Message::parse(AttributeId(0x19), &bytes) else {
        panic!("LAP")
    };
    assert_eq!(parsed.repr(), lap);
}

#[test]
fn an_apr_is_decoded_and_encoded_byte_for_byte() {
    let mut bytes = body("01020304 05060708 48 06 ffff a1");
    (bytes[83], bytes[84], bytes[231]) = (0xa2, 0xb1, 0xb2);
    let Ok(Some(Message::Apr(apr))) = Message::parse(AttributeId(0x1a), &bytes) else {
        panic!("APR")
    };
    assert_eq!((apr.additional_information_length(), apr.ar_status()), (72, 6));
    let (information, private_data) = (apr.additional_information(), apr.private_data());
    assert_eq!(
        (information[0], information[71], private_data[0], private_data[147]),
        (0xa1, 0xa2, 0xb1, 0xb2)
    );
    let emitted = apr.repr().emit();
    bytes[10..12].fill(0);
    assert_eq!(emitted.as_bytes()[..], bytes, "what is reserved is sent as zero");
}

#[test]
fn a_dreq_keeps_its_queue_pair_in_front_of_a_reserved_byte() {
    let dreq = DreqRepr {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        remote_qpn_eecn: Qpn::new(0x11_2233),
        private_data: [0xcc; 220],
    };
    let mut bytes = unhex("00000001 00000002 112233 00");
    bytes.resize(232, 0xcc);
    assert_eq!(dreq.emit().as_bytes()[..], bytes);
}

/// Private data of each message: `(type, attribute, offset, length)`.
macro_rules! private_data {
    ($(($message:ident, $attribute:literal, $offset:literal, $len:literal)),* $(,)?) => {$({
        let mut repr = view::<$message>(&[0; 232], 0).unwrap().repr();
        repr.private_data = [0xa5; $len];
        let mut datagram = vec![0; 24];
        (datagram[1], datagram[17]) = (7, $attribute);
        datagram.extend(repr.emit().as_bytes());
        let found: Vec<usize> = (0..256).filter(|&at| datagram[at] == 0xa5).collect();
        assert_eq!(found, ($offset..$offset + $len).collect::<Vec<_>>(), stringify!($message));
        match Mad::parse(&datagram).unwrap().cm() {
            Ok(Some(Message::$message(parsed))) => assert_eq!(parsed.repr(), repr),
            other => panic!("{other:?}"),
        }
    })*};
}

#[test]
fn private_data_lie_where_the_specification_has_them() {
    private_data![
        (Req, 0x10, 164, 92),
        (Mra, 0x11, 34, 222),
        (Rej, 0x12, 108, 148),
        (Rep, 0x13, 60, 196),
        (Rtu, 0x14, 32, 224),
        (Dreq, 0x15, 36, 220),
        (Drep, 0x16, 32, 224),
        (SidrReq, 0x17, 40, 216),
        (SidrRep, 0x18, 120, 136),
        (Lap, 0x19, 88, 168),
        (Apr, 0x1a, 108, 148),
    ];
}

#[test]
fn a_message_that_is_cut_or_of_another_class_is_none() {
    let attributes = (0x10..=0x1a).map(AttributeId);
    for attribute in attributes {
        let expected =
            ParseError::Truncated { layer: Layer::Cm, offset: 0, needed: 232, have: 231 };
        assert_eq!(Message::parse(attribute, &[0; 231]).unwrap_err(), expected, "{attribute:?}");
    }
    assert!(Message::parse(AttributeId(0x1b), &[0; 232]).unwrap().is_none());
    assert!(Message::parse(AttributeId(0x0f), &[0; 232]).unwrap().is_none());
    let mut datagram = vec![0; 256];
    (datagram[1], datagram[17]) = (4, 0x10);
    assert!(Mad::parse(&datagram).unwrap().cm().unwrap().is_none(), "not of class 7");
    assert_eq!(Mad::parse(&datagram[..23]).unwrap_err().layer(), MadHeader::LAYER);
}

#[test]
fn only_services_of_the_rdma_connection_manager_have_its_header() {
    // Rules: C-02.1, C-02.2.
    let with = |service| ReqRepr { service_id: ServiceId(service), ..captured_req() }.emit();
    assert!(with(0x0000_0000_0106_1c06).ip_cm().is_some());
    assert!(with(0x0000_0000_0206_1c06).ip_cm().is_none());
    assert!(with(0x0000_0001_0106_1c06).ip_cm().is_none());
    assert!(with(0x1000_0000_0106_1c06).ip_cm().is_none());
}

header_tests! {
    ip_cm_fields_lie_where_the_kernel_has_them: IpCm, 36 bytes {
        major 0 4, minor 4 4, ip_version 8 4, source_port 16 16, source 32 128, destination 160 128,
    }
    req_fields_lie_where_the_specification_has_them: Req, 232 bytes {
        local_comm_id 0 32, vendor_id 40 24, service_id 64 64, local_ca_guid 128 64, selective_repeat 223 1,
        local_q_key 224 32,
        local_qpn 256 24, responder_resources 280 8, local_eecn 288 24, initiator_depth 312 8,
        remote_eecn 320 24, remote_cm_response_timeout 344 5, transport_service_type 349 2, flow_control 351 1,
        starting_psn 352 24, local_cm_response_timeout 376 5, retry_count 381 3, partition_key 384 16,
        path_mtu 400 4, rdc_exists 404 1, rnr_retry_count 405 3, max_cm_retries 408 4, srq 412 1,
        extended_transport_type 413 3, primary_local_port_lid 416 16, primary_remote_port_lid 432 16,
        primary_local_port_gid 448 128, primary_remote_port_gid 576 128, primary_flow_label 704 20,
        primary_packet_rate 730 6, primary_traffic_class 736 8, primary_hop_limit 744 8, primary_sl 752 4,
        primary_subnet_local 756 1, primary_local_ack_timeout 760 5, alternate_local_port_lid 768 16,
        alternate_remote_port_lid 784 16, alternate_local_port_gid 800 128, alternate_remote_port_gid 928 128,
        alternate_flow_label 1056 20, alternate_packet_rate 1082 6, alternate_traffic_class 1088 8,
        alternate_hop_limit 1096 8, alternate_sl 1104 4, alternate_subnet_local 1108 1,
        alternate_local_ack_timeout 1112 5, sap_supported 1117 1, private_data 1120 736,
    }
    mra_fields_lie_where_the_specification_has_them: Mra, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, message_mraed 64 2, service_timeout 72 5, private_data 80 1776,
    }
    rej_fields_lie_where_the_specification_has_them: Rej, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, message_rejected 64 2, rejected_info_length 72 7, reason 80 16,
        ari 96 576, private_data 672 1184,
    }
    rep_fields_lie_where_the_specification_has_them: Rep, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, local_q_key 64 32, local_qpn 96 24, vendor_id_h 120 8,
        local_eecn 128 24, vendor_id_m 152 8, starting_psn 160 24, vendor_id_l 184 8, responder_resources 192 8,
        initiator_depth 200 8, target_ack_delay 208 5, failover_accepted 213 2, flow_control 215 1,
        rnr_retry_count 216 3, srq 219 1, selective_repeat 223 1, local_ca_guid 224 64, private_data 288 1568,
    }
    rtu_fields_lie_where_the_specification_has_them: Rtu, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, private_data 64 1792,
    }
    dreq_fields_lie_where_the_specification_has_them: Dreq, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, remote_qpn_eecn 64 24, private_data 96 1760,
    }
    drep_fields_lie_where_the_specification_has_them: Drep, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, private_data 64 1792,
    }
    lap_fields_lie_where_the_specification_has_them: Lap, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, remote_qpn_eecn 96 24, remote_cm_response_timeout 120 5,
        alternate_local_port_lid 160 16, alternate_remote_port_lid 176 16, alternate_local_port_gid 192 128,
        alternate_remote_port_gid 320 128, alternate_flow_label 448 20, alternate_traffic_class 472 8,
        alternate_hop_limit 480 8, alternate_packet_rate 490 6, alternate_sl 496 4, alternate_subnet_local 500 1,
        alternate_local_ack_timeout 504 5, private_data 512 1344,
    }
    apr_fields_lie_where_the_specification_has_them: Apr, 232 bytes {
        local_comm_id 0 32, remote_comm_id 32 32, additional_information_length 64 8, ar_status 72 8,
        additional_information 96 576, private_data 672 1184,
    }
    sidr_req_fields_lie_where_the_specification_has_them: SidrReq, 232 bytes {
        request_id 0 32, partition_key 32 16, service_id 64 64, private_data 128 1728,
    }
    sidr_rep_fields_lie_where_the_specification_has_them: SidrRep, 232 bytes {
        request_id 0 32, status 32 8, additional_information_length 40 8, vendor_id_h 48 16, qpn 64 24,
        vendor_id_l 88 8, service_id 96 64, q_key 160 32, additional_information 192 576, private_data 768 1088,
    }
}
