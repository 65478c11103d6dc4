//! Parameters that both sides agree on, and the attributes of their QPs. The numbers were measured
//! on Linux.

use std::net::SocketAddr;

use roce::cm::{CmId, ConnParam, Device, Ece, Event, EventKind, EventParam, IdOption, State};
use roce::verbs::{Access, AttrMask, QpState, QpType};
use roce::wire::Qpn;
use roce::wire::cm::PortSpace;

use crate::node::{Node, carry, establish, gid, message, ms, pair};

fn conn(event: &Event) -> roce::cm::ConnEvent {
    match event.param {
        EventParam::Conn(conn) => conn,
        other => panic!("{other:?}"),
    }
}

#[test]
fn resources_are_exchanged_as_linux_does() {
    let (mut client, mut server) = pair();
    let to = SocketAddr::new(server.address, 7);
    let active = client.routed(ms(0), PortSpace::TCP, to);
    let ece = Ece { vendor_id: 0x15b3, options: 0x1234_5678 };
    let param = ConnParam {
        private_data: b"hello",
        qpn: Qpn::new(0x11),
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 5,
        rnr_retry_count: 4,
        ece,
        ..ConnParam::default()
    };
    // Before there is a REQ, peers get no access.
    let (attr, mask) = client.manager.qp_attr(active, QpState::Init).unwrap();
    assert_eq!((attr.qp_access_flags, mask.bits()), (Access::empty(), 0x39));
    client.manager.connect(ms(0), active, &param).unwrap();
    assert!(client.manager.qp_attr(active, QpState::Rtr).is_err());
    carry(ms(0), &mut client, &mut server);
    let request = server.event();
    let told = conn(&request);
    assert_eq!((told.responder_resources, told.initiator_depth), (2, 3), "the receiver's view");
    assert_eq!((told.flow_control, told.retry_count, told.rnr_retry_count), (true, 5, 4));
    assert_eq!((told.qpn, told.private_data.as_slice().len()), (Qpn::new(0x11), 56));
    assert_eq!((&told.private_data.as_slice()[..6], request.ece), (&b"hello\0"[..], ece));
    let passive = request.id;
    assert_eq!(server.manager.source(passive), Some(to));
    assert_eq!(server.manager.destination(passive), client.manager.source(active));
    assert_eq!(server.manager.qp_type(passive), Some(QpType::Rc));

    let accept = ConnParam {
        private_data: b"world",
        qpn: Qpn::new(0x12),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 6,
        ..ConnParam::default()
    };
    server.manager.accept(ms(0), passive, 9, &accept).unwrap();
    carry(ms(0), &mut server, &mut client);
    let response = client.event();
    let told = conn(&response);
    assert_eq!((told.responder_resources, told.initiator_depth), (1, 1));
    assert_eq!((told.retry_count, told.rnr_retry_count), (0, 6));
    assert_eq!((told.qpn, told.private_data.as_slice().len()), (Qpn::new(0x12), 196));

    // The client's QP: rd 1 dest_rd 1 retry 5 rnr 6; the server's: rd 1 dest_rd 1 retry 5 rnr 4.
    let port = client.manager.source(active).unwrap().port();
    check_attributes(&client, active, &server, port, 6);
    check_attributes(&server, passive, &client, port, 4);
    let psns = |node: &Node, id| {
        let rtr = node.manager.qp_attr(id, QpState::Rtr).unwrap().0;
        let rts = node.manager.qp_attr(id, QpState::Rts).unwrap().0;
        (rtr.rq_psn, rts.sq_psn, rtr.dest_qp_num)
    };
    let ((rq, sq, to_server), (peer_rq, peer_sq, to_client)) =
        (psns(&client, active), psns(&server, passive));
    assert_eq!((rq, sq), (peer_sq, peer_rq), "each sends what the other expects");
    assert_eq!((to_server, to_client), (Qpn::new(0x12), Qpn::new(0x11)));
}

/// Checks the attributes of a node's QP, whose peer allows `rnr` RNR retries. `port` is that of the
/// client.
fn check_attributes(node: &Node, id: CmId, peer: &Node, port: u16, rnr: u32) {
    let (init, mask) = node.manager.qp_attr(id, QpState::Init).unwrap();
    assert_eq!((init.qp_access_flags.bits(), mask.bits()), (0x0e, 0x39));
    let (rtr, mask) = node.manager.qp_attr(id, QpState::Rtr).unwrap();
    assert_eq!(mask.bits(), 0x12_9181);
    assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer.0.get()), (1, 0));
    assert_eq!((rtr.path_mtu.bytes(), rtr.ah_attr.dgid), (1024, gid(peer.address)));
    assert_eq!((rtr.ah_attr.hop_limit, rtr.ah_attr.sgid_index), (64, 1));
    assert_eq!(rtr.ah_attr.flow_label.get(), (u32::from(port) * 31 + 7) & 0xf_ffff);
    let (rts, mask) = node.manager.qp_attr(id, QpState::Rts).unwrap();
    assert_eq!(mask.bits(), 0x1_2e01);
    assert_eq!((rts.max_rd_atomic, rts.timeout.0.get()), (1, 17));
    assert_eq!((rts.retry_cnt.0.get(), rts.rnr_retry.0.get()), (5, rnr));
}

#[test]
fn without_responder_resources_peers_may_only_write() {
    let (mut client, mut server) = pair();
    let (active, passive) = establish(ms(0), &mut client, &mut server, 7);
    for (node, id) in [(&client, active), (&server, passive)] {
        let (init, _) = node.manager.qp_attr(id, QpState::Init).unwrap();
        assert_eq!(init.qp_access_flags, Access::REMOTE_WRITE);
    }
    client.manager.disconnect(ms(0), active).unwrap();
    assert!(client.manager.qp_attr(active, QpState::Rts).is_err(), "it is over");
}

#[test]
fn device_that_can_flush_lets_peers_flush() {
    let address = "10.9.0.2".parse().unwrap();
    let mut server = Node::new(2, Device { flush: true, ..Device::new(2, address) });
    let mut client = Node::at(1);
    server.listen(PortSpace::TCP, 7);
    let to = SocketAddr::new(address, 7);
    let active = client.routed(ms(0), PortSpace::TCP, to);
    let param = ConnParam { initiator_depth: 1, ..ConnParam::default() };
    client.manager.connect(ms(0), active, &param).unwrap();
    carry(ms(0), &mut client, &mut server);
    let passive = server_event(&mut server);
    let (init, _) = server.manager.qp_attr(passive, QpState::Init).unwrap();
    assert_eq!(init.qp_access_flags.bits(), 0x30e);
}

fn server_event(server: &mut Node) -> CmId {
    let event = server.event();
    assert_eq!(event.kind, EventKind::ConnectRequest);
    event.id
}

/// Option ACK_TIMEOUT is the QP's timeout exactly; before resolve_route it is also the path's life
/// time.
#[test]
fn ack_timeout_and_tos_are_the_programs() {
    let (mut client, mut server) = pair();
    let to = SocketAddr::new(server.address, 7);
    let active = client.create(PortSpace::TCP);
    client.manager.set_option(active, IdOption::Tos(0x68)).unwrap();
    client.route(ms(0), active, to).unwrap();
    client.manager.set_option(active, IdOption::AckTimeout(21)).unwrap();
    client.manager.connect(ms(0), active, &ConnParam::default()).unwrap();
    carry(ms(0), &mut client, &mut server);
    let passive = server_event(&mut server);
    server.accept(ms(0), passive, 5);
    let (rtr, _) = server.manager.qp_attr(passive, QpState::Rtr).unwrap();
    assert_eq!(rtr.ah_attr.traffic_class, 0x68, "the passive side takes it from the REQ");
    let sent = server.sent();
    assert_eq!(sent[0].ah.traffic_class, 0x68);
    client.receive(ms(0), server.address, &sent[0].mad);
    let (rts, _) = client.manager.qp_attr(active, QpState::Rts).unwrap();
    assert_eq!(rts.timeout.0.get(), 21);
    let (rts, _) = server.manager.qp_attr(passive, QpState::Rts).unwrap();
    assert_eq!(rts.timeout.0.get(), 17);
}

#[test]
fn xrc_connection_has_its_own_fields_and_attributes() {
    let (mut client, mut server) = (Node::at(1), Node::at(2));
    let listener =
        server.manager.create_id(server.channel, 0, PortSpace::IB, QpType::XrcRecv).unwrap();
    server.manager.bind(listener, SocketAddr::new(server.address, 7)).unwrap();
    server.manager.listen(listener, 0).unwrap();
    let active =
        client.manager.create_id(client.channel, 0, PortSpace::IB, QpType::XrcSend).unwrap();
    client.route(ms(0), active, SocketAddr::new(server.address, 7)).unwrap();
    let param = ConnParam {
        qpn: Qpn::new(0x31),
        srq: true,
        responder_resources: 3,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    };
    client.manager.connect(ms(0), active, &param).unwrap();
    let mad = client.only();
    let roce::wire::cm::Message::Req(req) = message(&mad) else { panic!("REQ") };
    assert_eq!(req.transport_service_type().get(), 3);
    assert_eq!((req.extended_transport_type().get(), req.srq()), (1, false));
    assert_eq!((req.responder_resources(), req.initiator_depth()), (0, 4));
    assert_eq!((req.retry_count().get(), req.rnr_retry_count().get()), (0, 0));
    server.receive(ms(0), client.address, &mad);
    let passive = server_event(&mut server);
    let accept = ConnParam { qpn: Qpn::new(0x32), responder_resources: 4, ..param };
    server.manager.accept(ms(0), passive, 0, &accept).unwrap();
    let mad = server.only();
    let roce::wire::cm::Message::Rep(rep) = message(&mad) else { panic!("REP") };
    assert_eq!((rep.local_qpn(), rep.local_eecn().get()), (Qpn::new(0), 0x32));
    assert_eq!((rep.srq(), rep.initiator_depth()), (true, 0));
    client.receive(ms(0), server.address, &mad);
    assert_eq!(conn(&client.event()).qpn, Qpn::new(0x32));
    client.manager.establish(active).unwrap();
    carry(ms(0), &mut client, &mut server);
    let masks = |node: &Node, id| {
        [QpState::Rtr, QpState::Rts].map(|state| node.manager.qp_attr(id, state).unwrap().1)
    };
    let [rtr, rts] = masks(&client, active);
    assert!(!rtr.intersects(AttrMask::MIN_RNR_TIMER | AttrMask::MAX_DEST_RD_ATOMIC));
    assert!(rts.contains(AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY));
    let [rtr, rts] = masks(&server, passive);
    assert!(rtr.contains(AttrMask::MIN_RNR_TIMER | AttrMask::MAX_DEST_RD_ATOMIC));
    assert!(rts.contains(AttrMask::TIMEOUT) && !rts.contains(AttrMask::RETRY_CNT));
    client.manager.disconnect(ms(0), active).unwrap();
    carry(ms(0), &mut client, &mut server);
    assert_eq!(server.manager.connection_state(passive), Some(State::DreqRcvd));
}

#[test]
fn unreliable_connection_has_no_reliable_attributes() {
    let (mut client, mut server) = (Node::at(1), Node::at(2));
    let listener = server.manager.create_id(server.channel, 0, PortSpace::IB, QpType::Uc).unwrap();
    server.manager.bind(listener, SocketAddr::new(server.address, 7)).unwrap();
    server.manager.listen(listener, 0).unwrap();
    let active = client.manager.create_id(client.channel, 0, PortSpace::IB, QpType::Uc).unwrap();
    client.route(ms(0), active, SocketAddr::new(server.address, 7)).unwrap();
    client.manager.connect(ms(0), active, &ConnParam::default()).unwrap();
    carry(ms(0), &mut client, &mut server);
    let passive = server_event(&mut server);
    let (_, rtr) = server.manager.qp_attr(passive, QpState::Rtr).unwrap();
    let (_, rts) = server.manager.qp_attr(passive, QpState::Rts).unwrap();
    assert_eq!((rtr.bits(), rts.bits()), (0x10_1181, 0x1_0001));
}

#[test]
fn datagram_qp_needs_its_q_key() {
    let mut node = Node::at(1);
    let id = node.listen(PortSpace::UDP, 7);
    let (attr, mask) = node.manager.qp_attr(id, QpState::Init).unwrap();
    assert_eq!((attr.qkey.get(), mask.bits()), (0x0123_4567, 0x71));
}

/// The bit of a REQ or REP that stands for selective repeat: the last of byte 27.
const SELECTIVE: (usize, u8) = (24 + 27, 1);

fn offer(qpn: u32, selective_repeat: bool) -> ConnParam<'static> {
    ConnParam { qpn: Qpn::new(qpn), selective_repeat, ..ConnParam::default() }
}

/// Two nodes whose ids connect, as far as a REQ; the client offers selective repeat or not.
fn requested(offers: bool) -> (Node, Node, CmId, [u8; 256]) {
    let (mut client, server) = pair();
    let to = SocketAddr::new(server.address, 7);
    let active = client.routed(ms(0), PortSpace::TCP, to);
    client.manager.connect(ms(0), active, &offer(0x11, offers)).unwrap();
    assert!(!client.manager.selective_repeat(active), "an offer is no agreement");
    let req = client.only();
    (client, server, active, req)
}

#[test]
fn selective_repeat_is_agreed_if_both_offer_it() {
    for (asks, accepts) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut client, mut server, active, req) = requested(asks);
        server.receive(ms(0), client.address, &req);
        let passive = server_event(&mut server);
        assert_eq!(server.manager.selective_repeat(passive), asks);
        server.manager.accept(ms(0), passive, 0, &offer(0x12, accepts)).unwrap();
        carry(ms(0), &mut server, &mut client);
        let both = asks && accepts;
        let agreed = |node: &Node, id| node.manager.selective_repeat(id);
        assert_eq!([agreed(&client, active), agreed(&server, passive)], [both; 2]);
        assert_eq!(client.event().kind, EventKind::ConnectResponse);
        client.manager.establish(active).unwrap();
        carry(ms(0), &mut client, &mut server);
        assert_eq!([agreed(&client, active), agreed(&server, passive)], [both; 2]);
        let numbers = [(&client, active), (&server, passive)];
        let numbers = numbers.map(|(node, id)| node.manager.local_qpn(id).unwrap().get());
        assert_eq!(numbers, [0x11, 0x12]);
        client.manager.disconnect(ms(0), active).unwrap();
        assert!(!agreed(&client, active), "it is over");
    }
}

#[test]
fn offer_of_selective_repeat_is_one_reserved_bit() {
    let (at, bit) = SELECTIVE;
    let (.., plain) = requested(false);
    let (mut client, mut server, active, offered) = requested(true);
    let mut expected = plain;
    expected[at] |= bit;
    assert_eq!(offered, expected);
    let answer = |req: &[u8; 256], accepts: bool| {
        let mut server = Node::at(2);
        server.listen(PortSpace::TCP, 7);
        server.receive(ms(0), client.address, req);
        let passive = server_event(&mut server);
        server.manager.accept(ms(0), passive, 0, &offer(0x12, accepts)).unwrap();
        server.only()
    };
    let plain_rep = answer(&plain, false);
    assert_eq!((plain[at], plain_rep[at] & 0x0f), (0, 0), "go-back-N leaves reserved bits zero");
    // The same REP, whatever only one side offers.
    assert_eq!([answer(&plain, true), answer(&offered, false)], [plain_rep; 2]);
    let mut expected = plain_rep;
    expected[at] |= bit;
    assert_eq!(answer(&offered, true), expected);

    // A peer that does not know the bit answers without it.
    let mut unaware = offered;
    unaware[at] = 0;
    server.receive(ms(0), client.address, &unaware);
    let passive = server_event(&mut server);
    server.manager.accept(ms(0), passive, 0, &offer(0x12, true)).unwrap();
    carry(ms(0), &mut server, &mut client);
    assert!(!client.manager.selective_repeat(active));
    assert!(!server.manager.selective_repeat(passive));
}

#[test]
fn rep_that_accepts_selective_repeat_without_an_offer_is_ignored() {
    let (at, bit) = SELECTIVE;
    let (mut client, mut server, active, req) = requested(false);
    server.receive(ms(0), client.address, &req);
    let passive = server_event(&mut server);
    server.accept(ms(0), passive, 0x12);
    let mut rep = server.only();
    rep[at] |= bit;
    client.receive(ms(0), server.address, &rep);
    assert_eq!(client.event().kind, EventKind::ConnectResponse);
    assert!(!client.manager.selective_repeat(active));
}

#[test]
fn selective_repeat_is_not_offered_but_for_reliable_connections() {
    for (qp_type, listens) in [(QpType::Uc, QpType::Uc), (QpType::XrcSend, QpType::XrcRecv)] {
        let (mut client, mut server) = (Node::at(1), Node::at(2));
        let listener = server.manager.create_id(server.channel, 0, PortSpace::IB, listens);
        let listener = listener.unwrap();
        server.manager.bind(listener, SocketAddr::new(server.address, 7)).unwrap();
        server.manager.listen(listener, 0).unwrap();
        let active = client.manager.create_id(client.channel, 0, PortSpace::IB, qp_type).unwrap();
        client.route(ms(0), active, SocketAddr::new(server.address, 7)).unwrap();
        client.manager.connect(ms(0), active, &offer(0x11, true)).unwrap();
        let (at, bit) = SELECTIVE;
        let mut req = client.only();
        assert_eq!(req[at], 0, "{qp_type:?}");
        // Nor is it taken from a peer that does.
        req[at] |= bit;
        server.receive(ms(0), client.address, &req);
        let passive = server_event(&mut server);
        assert!(!server.manager.selective_repeat(passive), "{qp_type:?}");
        server.manager.accept(ms(0), passive, 0, &offer(0x12, true)).unwrap();
        assert_eq!(server.only()[at] & 0x0f, 0, "{qp_type:?}");
    }
}
