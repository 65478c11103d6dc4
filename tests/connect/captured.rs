//! Our messages beside Linux's, for the same inputs: equal to the last byte, but for identifiers.
//!
//! Each captured exchange is played twice, once for either side: ours in place of Linux's client,
//! hearing the captured server, and ours in place of the server, hearing the captured client. What
//! a program chose (the parameters of its connection, its QP, its port, its private data) is an
//! input; comm ids, and the PSNs and transactions that follow from chance, are identifiers. Every
//! other byte is compared.

use std::net::{IpAddr, SocketAddr};

use roce::cm::{CmId, ConnParam, Device, EventKind, IdOption};
use roce::time::Instant;
use roce::wire::cm::{CommId, IpCm, Message, PortSpace, Rep, Req, SidrRep, SidrReq};
use roce::wire::mad::MAD_LEN;
use roce::wire::{Frame, LinkType, Qpn, ROCE_PORT};

use crate::common::{captured_frames, testdata};
use crate::node::{Node, SECOND, address, message, name, words};

const NOW: Instant = Instant::ZERO;

/// A captured message, and who sent it to whom with which traffic class.
#[derive(Clone, Copy)]
pub struct Captured {
    pub mad: [u8; MAD_LEN],
    pub from: IpAddr,
    pub to: IpAddr,
    traffic_class: u8,
}

/// The CM messages of a capture.
pub fn messages(file: &str) -> Vec<Captured> {
    let mut found = Vec::new();
    for frame in captured_frames(&testdata(file)) {
        let parsed = Frame::parse(LinkType::ETHERNET, &frame, ROCE_PORT);
        let Some(packet) = parsed.packet() else { continue };
        if packet.bth().dest_qp() != Qpn::GSI {
            continue;
        }
        let route = parsed.network().unwrap();
        let (from, to, traffic_class) = match route {
            roce::wire::Network::Ipv4 { header, .. } => {
                let class = header.dscp().get() << 2 | header.ecn().get();
                (header.source().into(), header.destination().into(), class)
            }
            roce::wire::Network::Ipv6 { header, .. } => {
                let class = header.dscp().get() << 2 | header.ecn().get();
                (header.source().into(), header.destination().into(), class)
            }
            roce::wire::Network::Grh(_) => panic!("no RoCEv1 here"),
        };
        let mad = packet.payload().try_into().unwrap();
        let traffic_class = u8::try_from(traffic_class).unwrap();
        found.push(Captured { mad, from, to, traffic_class });
    }
    found
}

/// The parameters that a program gives a connection: rr, id, flow control, retry, rnr.
type Choice = (u8, u8, bool, u8, u8);

/// Choices of the programs in a capture, in the order of their REQs, with TOS and ACK timeout; and
/// the behavior of their servers.
struct Program {
    client: Choice,
    tos: u8,
    ack_timeout: Option<u8>,
    server: Choice,
}

const fn program(client: Choice, server: Choice) -> Program {
    Program { client, tos: 0, ack_timeout: None, server }
}

const RPING: Program = program((1, 1, false, 7, 7), (1, 1, false, 0, 7));
const UCMATOSE: Program = program((1, 1, false, 5, 0), (1, 1, false, 0, 7));
const RDMA_CLIENT: Program = program((128, 128, false, 7, 7), (128, 128, false, 0, 7));
const RDMA_XCLIENT: Program = program((128, 128, false, 7, 7), (0, 0, false, 0, 0));
const RSTREAM: Program = program((0, 0, true, 7, 7), (0, 0, true, 0, 7));
const CMTIME: Program = program((1, 1, false, 2, 0), (1, 1, false, 0, 7));
const TOS: Program = Program {
    tos: 0x68,
    ack_timeout: Some(14),
    ..program((1, 1, false, 5, 0), (1, 1, false, 0, 7))
};

const CM: &[Program] = &[RPING, UCMATOSE, UCMATOSE, RPING];
const UD: &[Program] = &[UCMATOSE, RPING];
const PROGRAMS: &[Program] = &[
    RPING,
    RPING,
    TOS,
    UCMATOSE,
    RDMA_CLIENT,
    RDMA_XCLIENT,
    RSTREAM,
    RSTREAM,
    RSTREAM,
    RSTREAM,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    CMTIME,
    UCMATOSE,
];

const FILES: [(&str, &[Program]); 3] = [
    ("captures/rxe_cm.pcap", CM),
    ("cm/rxe_cm_programs.pcap", PROGRAMS),
    ("cm/rxe_cm_ud.pcap", UD),
];

/// The CA GUIDs of the guests: the EUI-64 of their MACs, 02:00:00:00:00:01 and 02.
fn guid(address: IpAddr) -> u64 {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    0xff_fe00_0000 | u64::from(last)
}

fn node(address: IpAddr) -> Node {
    Node::new(1, Device::new(guid(address), address))
}

fn choose<'a>(choice: Choice, qpn: Qpn, private_data: &'a [u8]) -> ConnParam<'a> {
    let (responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count) = choice;
    ConnParam {
        private_data,
        qpn,
        responder_resources,
        initiator_depth,
        flow_control,
        retry_count,
        rnr_retry_count,
        ..ConnParam::default()
    }
}

/// A captured message with other comm ids, and the transaction that belongs to them.
fn patched(
    captured: &[u8; MAD_LEN],
    local: CommId,
    remote: Option<CommId>,
    transaction: u64,
) -> [u8; MAD_LEN] {
    let mut mad = *captured;
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[24..28].copy_from_slice(&local.0.to_be_bytes());
    if let Some(remote) = remote {
        mad[28..32].copy_from_slice(&remote.0.to_be_bytes());
    }
    mad
}

fn transaction(mad: &[u8]) -> u64 {
    u64::from_be_bytes(mad[8..16].try_into().unwrap())
}

#[track_caller]
fn equal(ours: &[u8; MAD_LEN], expected: &[u8; MAD_LEN], context: &str) {
    let differs: Vec<usize> = (0..256).filter(|at| ours[*at] != expected[*at]).collect();
    assert!(differs.is_empty(), "{context}: bytes {differs:?} differ: {}", words(ours));
}

/// An id bound to the captured port, routed to the captured service.
fn routed(client: &mut Node, header: &IpCm, to: SocketAddr, program: &Program) -> CmId {
    let udp = program.client.3 == u8::MAX;
    let id = client.create(if udp { PortSpace::UDP } else { PortSpace::TCP });
    if program.tos != 0 {
        client.manager.set_option(id, IdOption::Tos(program.tos)).unwrap();
    }
    if let Some(timeout) = program.ack_timeout {
        client.manager.set_option(id, IdOption::AckTimeout(timeout)).unwrap();
    }
    let source = SocketAddr::new(client.address, header.source_port());
    client.manager.bind(id, source).unwrap();
    client.manager.resolve_addr(NOW, id, None, to, SECOND).unwrap();
    client.resolve();
    assert_eq!(client.event().kind, EventKind::AddrResolved);
    client.manager.resolve_route(id, SECOND).unwrap();
    assert_eq!(client.event().kind, EventKind::RouteResolved);
    id
}

/// Ours in place of the client that sent this REQ.
fn play_client(all: &[Captured], at: usize, req: &Req, program: &Program) {
    let captured = all[at];
    let mut client = node(captured.from);
    assert_eq!(req.local_ca_guid(), guid(captured.from));
    let header = req.ip_cm().unwrap();
    let port = req.service_id().to_rdma_cm().unwrap().1;
    let id = routed(&mut client, header, SocketAddr::new(captured.to, port), program);
    let private = req.private_data();
    let param = choose(program.client, req.local_qpn(), &private[IpCm::LEN..]);
    client.manager.connect(NOW, id, &param).unwrap();
    let sent = client.sent().remove(0);
    assert_eq!((sent.ah.traffic_class, sent.ah.hop_limit), (captured.traffic_class, 64));
    assert_eq!(address(sent.ah.dgid), captured.to);
    let ours = client.manager.comm_ids(id).unwrap().0;
    // Linux's transactions are its comm ids in its own byte order.
    let low = transaction(&captured.mad) & u64::from(u32::MAX);
    assert_eq!(low, u64::from(req.local_comm_id().0.swap_bytes()));
    let Message::Req(own) = message(&sent.mad) else { panic!("REQ") };
    let mut expected = patched(&captured.mad, ours, None, 2 << 32 | u64::from(ours.0.swap_bytes()));
    expected[24 + 44..24 + 47].copy_from_slice(&own.as_bytes()[44..47]);
    equal(&sent.mad, &expected, "REQ");

    // What the captured server says, as if it were said to us; and what the captured client said to
    // it.
    let (theirs, tid) = (req.local_comm_id(), transaction(&sent.mad));
    let mut peer = None;
    for next in &all[at + 1..] {
        match message(&next.mad) {
            Message::Rep(rep) if rep.remote_comm_id() == theirs => {
                peer = Some(rep.local_comm_id());
                let heard = patched(&next.mad, rep.local_comm_id(), Some(ours), tid);
                client.receive(NOW, next.from, &heard);
                assert_eq!(client.event().kind, EventKind::ConnectResponse);
                client.manager.establish(id).unwrap();
            }
            Message::Rtu(rtu) if rtu.local_comm_id() == theirs => {
                equal(&client.only(), &patched(&next.mad, ours, peer, tid), "RTU");
            }
            Message::Dreq(dreq) if dreq.local_comm_id() == theirs => {
                client.manager.disconnect(NOW, id).unwrap();
                if let Some(sent) = client.manager.poll_transmit() {
                    equal(&sent.mad, &patched(&next.mad, ours, peer, tid), "DREQ");
                }
            }
            Message::Dreq(dreq)
                if Some(dreq.local_comm_id()) == peer && dreq.remote_comm_id() == theirs =>
            {
                let heard =
                    patched(&next.mad, dreq.local_comm_id(), Some(ours), transaction(&next.mad));
                client.receive(NOW, next.from, &heard);
                client.manager.disconnect(NOW, id).unwrap();
            }
            Message::Drep(drep) if drep.local_comm_id() == theirs => {
                let expected = patched(&next.mad, ours, peer, transaction(&next.mad));
                equal(&client.only(), &expected, "DREP");
            }
            _ => {}
        }
    }
}

/// A server that listens at the captured port.
fn listening(to: IpAddr, space: PortSpace, port: u16) -> Node {
    let mut server = node(to);
    server.listen(space, port);
    server
}

/// Ours in place of the server that heard this REQ.
fn play_server(all: &[Captured], at: usize, req: &Req, program: &Program) {
    let captured = all[at];
    let port = req.service_id().to_rdma_cm().unwrap().1;
    let theirs = req.local_comm_id();
    let reply: Option<(&Captured, &Rep)> =
        all[at..].iter().find_map(|next| match message(&next.mad) {
            Message::Rep(rep) if rep.remote_comm_id() == theirs => Some((next, rep)),
            _ => None,
        });
    let Some((reply, rep)) = reply else {
        // No server was there.
        let mut server = node(captured.to);
        server.receive(NOW, captured.from, &captured.mad);
        let rej = all[at..].iter().find(|next| name(&next.mad) == "REJ").unwrap();
        equal(&server.only(), &rej.mad, "REJ");
        return;
    };
    let mut server = listening(captured.to, PortSpace::TCP, port);
    server.receive(NOW, captured.from, &captured.mad);
    let id = server.event().id;
    let private = rep.private_data();
    let param = choose(program.server, rep.local_qpn(), &private);
    server.manager.accept(NOW, id, 0, &param).unwrap();
    let sent = server.sent().remove(0);
    assert_eq!((sent.ah.traffic_class, sent.ah.hop_limit), (reply.traffic_class, 64));
    let ours = server.manager.comm_ids(id).unwrap().0;
    let tid = transaction(&captured.mad);
    let mut expected = patched(&reply.mad, ours, Some(theirs), tid);
    let Message::Rep(own) = message(&sent.mad) else { panic!("REP") };
    expected[24 + 20..24 + 23].copy_from_slice(&own.as_bytes()[20..23]);
    equal(&sent.mad, &expected, "REP");

    let peer = rep.local_comm_id();
    for next in &all[at + 1..] {
        match message(&next.mad) {
            Message::Rtu(rtu) if rtu.local_comm_id() == theirs => {
                server.receive(NOW, next.from, &patched(&next.mad, theirs, Some(ours), tid));
                assert_eq!(server.event().kind, EventKind::Established);
            }
            Message::Dreq(dreq) if dreq.local_comm_id() == theirs => {
                server.receive(NOW, next.from, &patched(&next.mad, theirs, Some(ours), tid));
                server.manager.disconnect(NOW, id).unwrap();
            }
            Message::Dreq(dreq) if dreq.local_comm_id() == peer => {
                server.manager.disconnect(NOW, id).unwrap();
                let own_transaction = 2 << 32 | u64::from(ours.0.swap_bytes());
                let expected = patched(&next.mad, ours, Some(theirs), own_transaction);
                equal(&server.only(), &expected, "DREQ");
            }
            Message::Drep(drep) if drep.local_comm_id() == peer => {
                equal(&server.only(), &patched(&next.mad, ours, Some(theirs), tid), "DREP");
            }
            _ => {}
        }
    }
}

#[test]
fn connections_are_linux_byte_for_byte() {
    // Rule: C-01.3.
    let mut played = 0;
    for (file, programs) in FILES {
        let all = messages(file);
        let reqs: Vec<usize> = (0..all.len()).filter(|at| name(&all[*at].mad) == "REQ").collect();
        let mut programs = programs.iter();
        let mut seen = Vec::new();
        for at in reqs {
            let Message::Req(req) = message(&all[at].mad) else { panic!("REQ") };
            if seen.contains(&req.local_comm_id()) {
                continue;
            }
            seen.push(req.local_comm_id());
            let program = programs.next().unwrap();
            play_client(&all, at, req, program);
            play_server(&all, at, req, program);
            played += 1;
        }
        assert!(programs.next().is_none(), "{file}");
    }
    assert_eq!(played, 27);
}

#[test]
fn service_resolutions_are_linux_byte_for_byte() {
    let mut played = 0;
    for (file, _) in FILES {
        let all = messages(file);
        for (at, captured) in all.iter().enumerate() {
            let Message::SidrReq(req) = message(&captured.mad) else { continue };
            let rep = all[at..].iter().find_map(|next| match message(&next.mad) {
                Message::SidrRep(rep) if rep.request_id() == req.request_id() => Some((next, rep)),
                _ => None,
            });
            let (reply, rep) = rep.unwrap();
            play_resolver(captured, req, reply);
            play_service(captured, req, reply, rep);
            played += 1;
        }
    }
    assert_eq!(played, 3);
}

/// Ours in place of the client that sent this SIDR_REQ.
fn play_resolver(captured: &Captured, req: &SidrReq, reply: &Captured) {
    let mut client = node(captured.from);
    let port = req.service_id().to_rdma_cm().unwrap().1;
    let udaddy = program((0, 0, false, u8::MAX, 0), (0, 0, false, 0, 0));
    let to = SocketAddr::new(captured.to, port);
    let id = routed(&mut client, req.ip_cm().unwrap(), to, &udaddy);
    let private = req.private_data();
    let param = ConnParam { private_data: &private[IpCm::LEN..], ..ConnParam::default() };
    client.manager.connect(NOW, id, &param).unwrap();
    let (sent, ours) = (client.only(), client.manager.comm_ids(id).unwrap().0);
    let tid = 2 << 32 | u64::from(ours.0.swap_bytes());
    equal(&sent, &patched(&captured.mad, ours, None, tid), "SIDR_REQ");
    client.receive(NOW, reply.from, &patched(&reply.mad, ours, None, tid));
    assert_eq!(client.event().kind, EventKind::Established);
}

/// Ours in place of the server that heard this SIDR_REQ.
fn play_service(captured: &Captured, req: &SidrReq, reply: &Captured, rep: &SidrRep) {
    let port = req.service_id().to_rdma_cm().unwrap().1;
    let mut server = listening(captured.to, PortSpace::UDP, port);
    server.receive(NOW, captured.from, &captured.mad);
    let id = server.event().id;
    let private = rep.private_data();
    let param = ConnParam { qpn: rep.qpn(), private_data: &private, ..ConnParam::default() };
    server.manager.accept(NOW, id, 0, &param).unwrap();
    equal(&server.only(), &reply.mad, "SIDR_REP");
}

/// The comparison finds what differs: with one parameter changed, the same test fails.
#[test]
fn comparison_sees_a_single_byte() {
    let all = messages("captures/rxe_cm.pcap");
    let at = all.iter().position(|captured| name(&captured.mad) == "REQ").unwrap();
    let Message::Req(req) = message(&all[at].mad) else { panic!("REQ") };
    let other = program((1, 1, false, 6, 7), RPING.server);
    let result = std::panic::catch_unwind(|| play_client(&all, at, req, &other));
    let text = *result.unwrap_err().downcast::<String>().unwrap();
    assert!(text.starts_with("REQ: bytes [71] differ"), "{text}");
}
