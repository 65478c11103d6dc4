//! A hand-made peer: the messages that a script sent to Linux, sent to ours, with the same answers;
//! and more of the kind.

use std::net::IpAddr;

use roce::cm::limits::UNPROVEN_MESSAGES;
use roce::cm::{ConnParam, Counter, Device, Disposition, EventKind};
use roce::wire::Gid;
use roce::wire::cm::{CommId, Message, PortSpace};
use roce::wire::mad::MAD_LEN;

use crate::captured::{Captured, messages};
use crate::node::{Node, message, ms, name, words};

const PEER: [u8; 4] = [10, 9, 0, 2];

fn peer() -> IpAddr {
    PEER.into()
}

/// Ours in place of the guest that the script spoke to.
fn server() -> Node {
    let address = IpAddr::from([10, 9, 0, 1]);
    // GID 0 of a port of rxe is the link-local one.
    let port_gid = Gid("fe80::ff:fe00:1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    Node::new(1, Device { port_gid, ..Device::new(0xff_fe00_0001, address) })
}

/// Handles events as a program at the server: accepts as the captured one did, and disconnects when
/// told to.
fn program(server: &mut Node, now: u64, reply: Option<&Captured>) -> Option<CommId> {
    let mut accepted = None;
    while let Some(event) = server.manager.poll_event(server.channel) {
        match event.kind {
            EventKind::ConnectRequest => {
                let Message::Rep(rep) = message(&reply.unwrap().mad) else { panic!("REP") };
                let param = ConnParam {
                    qpn: rep.local_qpn(),
                    responder_resources: rep.responder_resources(),
                    initiator_depth: rep.initiator_depth(),
                    rnr_retry_count: u8::try_from(rep.rnr_retry_count().get()).unwrap(),
                    ..ConnParam::default()
                };
                server.manager.accept(ms(now), event.id, 0, &param).unwrap();
                accepted = Some(server.manager.comm_ids(event.id).unwrap().0);
            }
            EventKind::Disconnected => server.manager.disconnect(ms(now), event.id).unwrap(),
            _ => {}
        }
    }
    accepted
}

fn put(mad: &mut [u8; MAD_LEN], at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The comm id in a MAD at byte 0 or 4 of the message.
fn comm_id(mad: &[u8; MAD_LEN], at: usize) -> CommId {
    CommId(u32::from_be_bytes(mad[24 + at..28 + at].try_into().unwrap()))
}

#[test]
fn script_gets_the_answers_that_linux_gave() {
    let all = messages("cm/rxe_cm_rawpeer.pcap");
    let mut server = server();
    server.listen(PortSpace::TCP, 7174);
    let ucmatose = server.listen(PortSpace::TCP, 7471);
    // Comm ids of the captured server, and ours in their place.
    let mut ids: Vec<(CommId, CommId)> = Vec::new();
    let (mut at, mut now, mut compared) = (0, 0, 0);
    while at < all.len() {
        assert_eq!(all[at].from, peer(), "the script asks");
        let answers: Vec<&Captured> =
            all[at + 1..].iter().take_while(|next| next.from != peer()).collect();
        let mut asked = all[at].mad;
        if let Some((_, ours)) = ids.iter().find(|(theirs, _)| *theirs == comm_id(&asked, 4))
            && name(&asked) != "REQ"
        {
            put(&mut asked, 28, &ours.0.to_be_bytes());
        }
        server.receive(ms(now), peer(), &asked);
        if let Some(ours) = program(&mut server, now, answers.first().copied()) {
            ids.push((comm_id(&answers[0].mad, 0), ours));
        }
        now += 700;
        server.advance(ms(now));
        let is_rep = answers.first().is_some_and(|answer| name(&answer.mad) == "REP");
        if answers.len() == 4 {
            // Three retransmissions at 256 ms, then the end, for a REQ that asked for them;
            // ucmatose ends with it.
            now += 400;
            server.advance(ms(now));
            let events: Vec<_> =
                std::iter::from_fn(|| server.manager.poll_event(server.channel)).collect();
            assert_eq!((events[0].kind, events[0].status), (EventKind::Unreachable, -110));
            server.manager.destroy_id(ms(now), ucmatose).unwrap();
        }
        let sent: Vec<[u8; MAD_LEN]> = server.sent().iter().map(|sent| sent.mad).collect();
        let context = format!("{at}: {}", words(&asked));
        // A peer that has not answered gets three messages at most.
        let most = usize::from(UNPROVEN_MESSAGES);
        assert_eq!(sent.len(), answers.len().min(most), "{context}");
        for (ours, theirs) in sent.iter().zip(&answers) {
            let mut expected = theirs.mad;
            for (kernel, own) in &ids {
                for place in [24, 28] {
                    if expected[place..place + 4] == kernel.0.to_be_bytes() {
                        put(&mut expected, place, &own.0.to_be_bytes());
                    }
                }
            }
            if is_rep {
                let psn = ours[44..47].to_vec();
                put(&mut expected, 44, &psn);
            }
            assert_eq!(ours, &expected, "{context}: {} {}", words(ours), words(&expected));
            compared += 1;
        }
        at += 1 + answers.len();
    }
    assert_eq!(compared, 16, "all of Linux's answers but the third retransmission of a REP");
}

/// The script's first REQ, with another comm id and QPN.
fn req(id: u32, qpn: u32) -> [u8; MAD_LEN] {
    let mut mad = messages("cm/rxe_cm_rawpeer.pcap")[0].mad;
    put(&mut mad, 24, &id.to_be_bytes());
    put(&mut mad, 24 + 32, &qpn.to_be_bytes()[1..]);
    mad
}

/// A message that begins with two comm ids.
fn two(attribute: u8, local: u32, remote: CommId, rest: &[u8]) -> [u8; MAD_LEN] {
    let mut mad = [0; 256];
    put(&mut mad, 0, &[1, 7, 2, 3]);
    mad[15] = 1;
    mad[17] = attribute;
    put(&mut mad, 24, &local.to_be_bytes());
    put(&mut mad, 28, &remote.0.to_be_bytes());
    put(&mut mad, 32, rest);
    mad
}

/// A server that accepted the script's REQ with this comm id and QPN; its own comm id.
fn accepted(id: u32, qpn: u32) -> (Node, roce::cm::CmId, CommId) {
    let mut server = server();
    server.listen(PortSpace::TCP, 7174);
    server.receive(ms(0), peer(), &req(id, qpn));
    let request = server.event();
    server.accept(ms(0), request.id, 0x11);
    assert_eq!(name(&server.only()), "REP");
    let own = server.manager.comm_ids(request.id).unwrap().0;
    (server, request.id, own)
}

const RTU: u8 = 0x14;
const DREQ: u8 = 0x15;
const MRA: u8 = 0x11;
const REJ: u8 = 0x12;

#[test]
fn stale_connection_is_rejected_and_ended() {
    let (mut server, id, own) = accepted(0x1001, 0x807);
    server.receive(ms(1), peer(), &two(RTU, 0x1001, own, &[]));
    assert_eq!(server.event().kind, EventKind::Established);
    let disposition = server.receive(ms(2), peer(), &req(0x1002, 0x807));
    assert_eq!(disposition, Disposition::Refused(Counter::StaleReq));
    let sent = server.sent();
    assert_eq!(words(&sent[0].mad), "CM REJ id 0x00000000 to 0x00001002 reason stale connection");
    assert_eq!(words(&sent[1].mad), format!("CM DREQ id {own} to 0x00001001 qp 0x000807"));
    // The peer knows nothing of the old one, and says so; then its QP can connect.
    server.receive(ms(3), peer(), &two(0x16, 0x1001, own, &[]));
    let event = server.event();
    assert_eq!((event.kind, event.id), (EventKind::Disconnected, id));
    assert_eq!(server.receive(ms(4), peer(), &req(0x1003, 0x807)), Disposition::Accepted);
    assert_eq!(server.event().kind, EventKind::ConnectRequest);
}

#[test]
fn subnet_local_path_is_accepted() {
    let mut mad = req(0x1001, 0x808);
    // LIDs 0, hop limit 1, subnet local.
    put(&mut mad, 24 + 52, &[0; 4]);
    mad[24 + 93] = 1;
    mad[24 + 94] = 8;
    let mut server = server();
    server.listen(PortSpace::TCP, 7174);
    assert_eq!(server.receive(ms(0), peer(), &mad), Disposition::Accepted);
}

#[test]
fn rejected_reply_raises_an_event() {
    let (mut server, id, own) = accepted(0x1001, 0x808);
    server.receive(ms(1), peer(), &two(REJ, 0x1001, own, &[1 << 6, 0, 0, 28]));
    let event = server.event();
    assert_eq!((event.kind, event.id, event.status), (EventKind::Rejected, id, 28));
    assert_eq!(event.param.private_data().len(), 148);
    assert_eq!(server.sent(), [], "a REJ is not answered");
}

#[test]
fn timeout_of_the_requester_is_found_by_its_guid() {
    let (mut server, id, own) = accepted(0x1001, 0x809);
    let mut rej = [0; 12];
    rej[..4].copy_from_slice(&[2 << 6, 8 << 1, 0, 4]);
    rej[4..].copy_from_slice(&0x0200_0000_0000_0042_u64.to_be_bytes());
    let mut stranger = rej;
    stranger[11] ^= 1;
    let unknown = two(REJ, 0x1001, CommId(0), &stranger);
    let disposition = server.receive(ms(1), peer(), &unknown);
    assert_eq!(disposition, Disposition::Refused(Counter::UnknownRej));
    server.receive(ms(1), peer(), &two(REJ, 0x1001, CommId(0), &rej));
    let event = server.event();
    assert_eq!((event.kind, event.id, event.status), (EventKind::Rejected, id, 4));
    server.advance(ms(100_000));
    assert_eq!(server.sent(), [], "the REP is not retransmitted");
    assert_ne!(own, CommId(0));
}

#[test]
fn mra_delays_the_reply_and_dreq_replaces_the_rtu() {
    let (mut server, id, own) = accepted(0x1001, 0x80a);
    // Service timeout 10 is 4 ms; the ACK timeout adds 512 ms.
    server.receive(ms(0), peer(), &two(MRA, 0x1001, own, &[1 << 6, 10 << 3]));
    server.advance(ms(515));
    assert_eq!(server.sent(), []);
    server.advance(ms(516));
    assert_eq!(name(&server.only()), "REP");
    let disposition = server.receive(ms(517), peer(), &two(MRA, 0x1001, own, &[1 << 6, 31 << 3]));
    assert_eq!(disposition, Disposition::Refused(Counter::UnexpectedMra), "once");
    server.receive(ms(600), peer(), &two(DREQ, 0x1001, own, &[0, 0, 0x11, 0]));
    let event = server.event();
    assert_eq!((event.kind, event.id), (EventKind::Disconnected, id));
    server.manager.disconnect(ms(600), id).unwrap();
    assert_eq!(name(&server.only()), "DREP");
}

#[test]
fn nothing_answers_a_rej_or_a_drep_or_an_mra() {
    let mut server = server();
    server.listen(PortSpace::TCP, 7174);
    for attribute in [0x11, 0x12, 0x16, 0x18, 0x19, 0x1a] {
        for rest in [[0, 0, 0, 8], [1 << 6, 0, 0, 28], [2 << 6, 8 << 1, 0, 4]] {
            let mad = two(attribute, 5, CommId(6), &rest);
            let disposition = server.receive(ms(0), peer(), &mad);
            assert!(matches!(disposition, Disposition::Refused(_)));
            assert_eq!(server.sent(), [], "attribute {attribute:#x}");
        }
    }
}

#[test]
fn alternate_path_is_refused_for_a_connection_and_ignored_otherwise() {
    let (mut server, _, own) = accepted(0x1001, 0x80a);
    server.receive(ms(0), peer(), &two(0x19, 0x1001, own, &[]));
    let apr = server.only();
    assert_eq!(words(&apr), format!("CM APR id {own} to 0x00001001 unsupported"));
    server.receive(ms(0), peer(), &two(0x19, 0x1002, own, &[]));
    assert_eq!(server.sent(), []);
    assert_eq!(server.manager.counters().get(Counter::AlternatePath), 2);
}

#[test]
fn envelope_that_is_not_a_peers_is_counted() {
    let rows: [(usize, u8, Counter); 7] = [
        (0, 2, Counter::BadBaseVersion),
        (1, 3, Counter::BadClass),
        (2, 1, Counter::BadClassVersion),
        (3, 0x83, Counter::BadMethod),
        (3, 0x01, Counter::BadMethod),
        (17, 0x01, Counter::UnknownAttribute),
        (16, 0x01, Counter::UnknownAttribute),
    ];
    let mut server = server();
    server.listen(PortSpace::TCP, 7174);
    for (at, value, counter) in rows {
        let mut mad = req(1, 2);
        mad[at] = value;
        let disposition = server.receive(ms(0), peer(), &mad);
        assert_eq!(disposition, Disposition::Refused(counter));
    }
    let mad = req(1, 2);
    for length in [0, 1, 23, 24, 255] {
        let disposition = server.receive(ms(0), peer(), &mad[..length]);
        assert_eq!(disposition, Disposition::Refused(Counter::BadLength));
    }
    for from in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
        let gid = match from.parse().unwrap() {
            IpAddr::V4(v4) if v4.is_unspecified() => Gid::default(),
            IpAddr::V4(v4) => Gid::from(v4),
            IpAddr::V6(v6) => Gid::from(v6),
        };
        let received = roce::cm::Received {
            device: server.device,
            source: gid,
            destination: Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 1)),
            traffic_class: 0,
            mad: &mad,
        };
        let disposition = server.manager.handle_mad(ms(0), &received);
        assert_eq!(disposition, Disposition::Refused(Counter::BadAddress), "{from}");
    }
    assert_eq!(server.sent(), []);
    assert_eq!(server.manager.usage().connections, 0);
}
