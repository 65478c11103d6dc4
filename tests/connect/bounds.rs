//! Bounds that peers and programs cannot exceed.

use std::net::{IpAddr, SocketAddr};

use roce::cm::{Config, ConnParam, Counter, Device, Disposition, Error, EventKind, Limits, Usage};
use roce::wire::cm::PortSpace;
use roce::wire::mad::MAD_LEN;

use crate::node::{Node, carry, ms, pair};

const TCP: PortSpace = PortSpace::TCP;

fn small(set: impl FnOnce(&mut Limits)) -> Node {
    let address = "10.9.0.2".parse().unwrap();
    let mut config = Config::default();
    set(&mut config.limits);
    Node::with_config(config, 2, Device::new(2, address))
}

fn client_address() -> IpAddr {
    "10.9.0.1".parse().unwrap()
}

/// A request to 10.9.0.2:7.
fn request(space: PortSpace) -> [u8; MAD_LEN] {
    let mut client = Node::at(1);
    client.connect(ms(0), space, "10.9.0.2:7".parse().unwrap(), 1);
    client.only()
}

/// Returns the request with another comm id and QP.
fn variant(request: &[u8; MAD_LEN], number: u32) -> [u8; MAD_LEN] {
    let mut mad = *request;
    mad[24..28].copy_from_slice(&(number + 1).to_be_bytes());
    if mad[17] == 0x10 {
        mad[24 + 32..24 + 35].copy_from_slice(&(number + 1).to_be_bytes()[1..]);
    }
    mad
}

#[test]
fn flood_of_requests_costs_the_backlogs() {
    for (space, name) in [(TCP, "REJ"), (PortSpace::UDP, "SIDR_REP")] {
        let mut server = small(|_| {});
        let listener = server.create(space);
        server.manager.bind(listener, SocketAddr::new(server.address, 7)).unwrap();
        server.manager.listen(listener, 4).unwrap();
        let request = request(space);
        for number in 0..10_000 {
            server.receive(ms(0), client_address(), &variant(&request, number));
        }
        let usage = server.manager.usage();
        assert_eq!((usage.ids, usage.connections, usage.events), (5, 4, 4));
        assert_eq!(server.sent(), [], "what finds no room is not answered");
        assert_eq!(server.manager.counters().get(Counter::BacklogFull), 9_996);
        // Taking one makes room for one.
        assert_eq!(server.event().kind, EventKind::ConnectRequest);
        for number in 10_000..10_002 {
            server.receive(ms(0), client_address(), &variant(&request, number));
        }
        assert_eq!(server.manager.usage().connections, 5);
        // With the listener, what the program has not taken is rejected; what it has taken lives
        // on.
        server.manager.destroy_id(ms(0), listener).unwrap();
        let sent = server.sent();
        assert_eq!(sent.len(), 4);
        assert!(sent.iter().all(|sent| crate::node::name(&sent.mad) == name));
        assert_eq!(server.manager.usage().ids, 1);
    }
}

/// A request of another address finds its place beside a flood, and the flood pushes out itself.
#[test]
fn flood_of_one_address_keeps_no_other_out() {
    let mut server = small(|limits| limits.backlog = 16);
    server.listen(TCP, 7);
    let flood = request(TCP);
    for number in 0..100 {
        server.receive(ms(0), client_address(), &variant(&flood, number));
    }
    let mut honest = Node::at(3);
    let id = honest.connect(ms(0), TCP, "10.9.0.2:7".parse().unwrap(), 1);
    assert_eq!(carry(ms(0), &mut honest, &mut server), ["REQ"]);
    for number in 100..200 {
        server.receive(ms(0), client_address(), &variant(&flood, number));
    }
    let usage = server.manager.usage();
    assert_eq!((usage.half_open, usage.connections, usage.ids, usage.events), (16, 16, 17, 16));
    // The oldest of the flood is gone, the youngest is there; the program gets to the honest one.
    let requests: Vec<_> = (0..16).map(|_| server.event()).collect();
    let peers: Vec<_> =
        requests.iter().map(|event| server.manager.destination(event.id).unwrap().ip()).collect();
    let place = peers.iter().position(|peer| *peer == honest.address).unwrap();
    assert_eq!(server.manager.usage().half_open, 0, "the program has them all");
    server.accept(ms(0), requests[place].id, 2);
    carry(ms(0), &mut server, &mut honest);
    assert_eq!(honest.event().kind, EventKind::ConnectResponse);
    honest.manager.establish(id).unwrap();
    carry(ms(0), &mut honest, &mut server);
    assert_eq!(server.event().kind, EventKind::Established);
}

/// Requests that a program accepted and whose peers do not answer give way to newer ones: at first
/// to those of their own address, and the program is told.
#[test]
fn half_open_requests_are_bounded_in_total_and_for_each_address() {
    let mut server = small(|limits| (limits.half_open, limits.half_open_per_source) = (8, 4));
    server.listen(TCP, 7);
    let mut connected = Vec::new();
    for peer in 3..6 {
        let mut node = Node::at(peer);
        for qpn in 0..4 {
            node.connect(ms(0), TCP, "10.9.0.2:7".parse().unwrap(), 1 + qpn);
        }
        for sent in node.sent() {
            server.receive(ms(0), node.address, &sent.mad);
            let event = server.event();
            let unreachable = (event.kind != EventKind::ConnectRequest).then(|| server.event());
            let request = unreachable.map_or(event.id, |request| request.id);
            server.accept(ms(0), request, 1);
            connected.push((peer, request));
        }
    }
    assert_eq!(server.manager.usage().half_open, 8);
    assert_eq!(server.manager.counters().get(Counter::HalfOpenEvicted), 4);
    // One more of an address that has four costs its own oldest.
    let before = server.manager.usage().connections;
    let mut node = Node::at(5);
    for _ in 0..9 {
        node.connect(ms(0), TCP, "10.9.0.2:7".parse().unwrap(), 9);
    }
    let last = node.sent().pop().unwrap();
    server.receive(ms(0), node.address, &last.mad);
    assert_eq!((server.manager.usage().half_open, server.manager.usage().connections), (8, before));
    server.advance(ms(2_000_000));
    assert_eq!(server.manager.usage().half_open, 1, "the one that the program has not taken");
}

#[test]
fn lingering_connections_give_way_to_newer_ones() {
    let mut server = small(|limits| limits.lingering = 8);
    let listener = server.listen(TCP, 7);
    let request = request(TCP);
    for number in 0..100 {
        let disposition = server.receive(ms(0), client_address(), &variant(&request, number));
        assert_eq!(disposition, Disposition::Accepted);
        let id = server.event().id;
        server.manager.destroy_id(ms(0), id).unwrap();
        assert_eq!(server.sent().len(), 1);
    }
    let usage = server.manager.usage();
    assert_eq!((usage.lingering, usage.connections, usage.ids), (8, 8, 1));
    assert_eq!(server.manager.counters().get(Counter::LingerEvicted), 92);
    server.manager.destroy_id(ms(0), listener).unwrap();
    server.advance(ms(80_000));
    assert_eq!(server.manager.usage(), Usage::default());
}

#[test]
fn every_table_has_an_end() {
    let mut node = small(|limits| {
        (limits.devices, limits.channels, limits.ids) = (1, 1, 3);
        (limits.events, limits.transmits, limits.groups) = (2, 1, 1);
    });
    let full = |error: Error| assert!(matches!(error, Error::Exhausted(_)), "{error}");
    full(node.manager.create_channel().unwrap_err());
    full(node.manager.add_device(Device::new(9, client_address())).unwrap_err());
    let udp = node.create(PortSpace::UDP);
    node.manager.bind(udp, SocketAddr::new(node.address, 1)).unwrap();
    let mode = roce::cm::JoinMode::FullMember;
    node.manager.join(udp, "239.0.0.1".parse().unwrap(), mode, 0).unwrap();
    full(node.manager.join(udp, "239.0.0.2".parse().unwrap(), mode, 0).unwrap_err());
    node.listen(TCP, 7);
    let third = node.create(TCP);
    full(node.manager.create_id(node.channel, 0, TCP, roce::verbs::QpType::Rc).unwrap_err());
    let request = request(TCP);
    let refused = Disposition::Refused(Counter::NoResources);
    assert_eq!(node.receive(ms(0), client_address(), &request), refused, "no id is left");
    node.manager.destroy_id(ms(0), third).unwrap();
    assert_eq!(node.receive(ms(0), client_address(), &request), Disposition::Accepted);
    let to = SocketAddr::new(client_address(), 7);
    let full_channel = node.manager.resolve_addr(ms(0), udp, None, to, crate::node::SECOND);
    full(full_channel.unwrap_err());
    // One message waits; the next is dropped, as a network may.
    for number in 0..3 {
        node.receive(ms(0), client_address(), &request_for_nothing(&request, number));
    }
    assert_eq!(node.manager.usage().transmits, 1);
    assert_eq!(node.manager.counters().get(Counter::TransmitQueueFull), 2);
}

fn request_for_nothing(request: &[u8; MAD_LEN], number: u32) -> [u8; MAD_LEN] {
    let mut mad = variant(request, 100 + number);
    mad[24 + 15] = 9;
    mad
}

/// A peer's word makes no timer longer than the limit.
#[test]
fn peers_cannot_hold_a_connection_for_long() {
    let mut request = request(TCP);
    // Response timeout 31 (2.3 hours), 15 retries, ACK timeout 31.
    request[24 + 47] |= 31 << 3;
    request[24 + 51] |= 15 << 4;
    request[24 + 95] = 31 << 3;
    let mut server = small(|_| {});
    server.listen(TCP, 7);
    server.receive(ms(0), client_address(), &request);
    let id = server.event().id;
    server.accept(ms(0), id, 2);
    server.advance(ms(16 * 65_536));
    assert_eq!(server.event().kind, EventKind::Unreachable);
}

#[test]
fn many_connections_leave_memory_as_it_was() {
    let (mut client, mut server) = pair();
    let before = server.manager.usage();
    for round in 0..2_000 {
        let now = ms(round * 1_000);
        client.advance(now);
        server.advance(now);
        let (active, passive) = crate::node::establish(now, &mut client, &mut server, 7);
        client.manager.disconnect(now, active).unwrap();
        carry(now, &mut client, &mut server);
        assert_eq!(server.event().kind, EventKind::Disconnected);
        server.manager.destroy_id(now, passive).unwrap();
        carry(now, &mut server, &mut client);
        assert_eq!(client.event().kind, EventKind::Disconnected);
        client.manager.destroy_id(now, active).unwrap();
        assert!(client.manager.usage().connections <= 1, "one is in timewait");
    }
    for node in [&mut client, &mut server] {
        node.advance(ms(10_000_000));
    }
    assert_eq!(server.manager.usage(), before);
    assert_eq!(client.manager.usage(), Usage::default());
}

/// A channel without queries is removed together with its list entry.
#[test]
fn closed_channels_are_forgotten() {
    let mut server = small(|limits| limits.channels = 2);
    for _ in 0..10 {
        let channel = server.manager.create_channel().unwrap();
        let qp_type = roce::verbs::QpType::Ud;
        let id = server.manager.create_id(channel, 0, PortSpace::UDP, qp_type).unwrap();
        server.manager.bind(id, SocketAddr::new(server.address, 0)).unwrap();
        let group = "239.0.0.1".parse().unwrap();
        server.manager.join(id, group, roce::cm::JoinMode::FullMember, 0).unwrap();
        let destroyed = server.manager.close_channel(ms(0), channel).unwrap();
        assert_eq!(destroyed.len(), 1);
        assert_eq!((destroyed[0].0, destroyed[0].1.groups.len()), (id, 1));
    }
    assert_eq!(server.manager.poll_readable(), None);
}

#[test]
fn accepting_needs_a_request() {
    let mut node = Node::at(1);
    let id = node.create(TCP);
    assert!(node.manager.accept(ms(0), id, 0, &ConnParam::default()).is_err());
    assert_eq!(node.sent(), []);
}
