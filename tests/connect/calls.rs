//! Calls of a program: which is allowed when, on ids, channels, groups and devices. What was
//! measured on Linux with `cmprobe` is here call by call.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roce::cm::{
    ConnParam, Counter, Device, Error, EventKind, EventParam, Group, IdOption, IdState, JoinMode,
    RejectReason, Resolution, State, UDP_Q_KEY, Usage,
};
use roce::verbs::{Errno, EventType, Mtu, QpType};
use roce::wire::Qpn;
use roce::wire::cm::PortSpace;

use crate::node::{Node, SECOND, carry, einval, establish, gid, ms, name, pair, request, words};

const TCP: PortSpace = PortSpace::TCP;
const UDP: PortSpace = PortSpace::UDP;

#[test]
fn bind_fails_as_on_linux() {
    let mut node = Node::at(1);
    node.listen(TCP, 7001);
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let id = node.create(TCP);
    let errno = |result: Result<(), Error>| result.unwrap_err().errno();
    assert_eq!(errno(node.manager.bind(id, at("10.9.0.1:7001"))), Errno::EADDRINUSE);
    assert_eq!(errno(node.manager.bind(id, at("0.0.0.0:7001"))), Errno::EADDRNOTAVAIL);
    assert_eq!(errno(node.manager.bind(id, at("10.9.0.7:7002"))), Errno::ENODEV);
    assert_eq!(errno(node.manager.bind(id, at("[fe80::1]:7002"))), Errno::EINVAL);
    node.manager.bind(id, at("10.9.0.1:0")).unwrap();
    let port = node.manager.source(id).unwrap().port();
    assert!((32768..=60999).contains(&port));
    assert_eq!(node.manager.device_of(id), Some(node.device));
    einval(node.manager.bind(id, at("10.9.0.1:0")));
    node.manager.listen(id, 0).unwrap();
    einval(node.manager.listen(id, 0));
    let unbound = node.create(TCP);
    node.manager.listen(unbound, 0).unwrap();
    let source = node.manager.source(unbound).unwrap();
    assert!(source.ip().is_unspecified() && source.port() != 0);
    assert_eq!(node.manager.device_of(unbound), None);
    let udp = node.create(UDP);
    node.manager.bind(udp, at("10.9.0.1:7001")).unwrap();
    let ipoib = node.create(PortSpace::IPOIB);
    einval(node.manager.bind(ipoib, at("10.9.0.1:7003")));
    einval(node.manager.create_id(node.channel, 0, PortSpace(0x9999), QpType::Rc));
    einval(node.manager.create_id(node.channel, 0, PortSpace::IB, QpType::RawPacket));
}

#[test]
fn states_are_required_as_on_linux() {
    let mut node = Node::at(1);
    let id = node.create(TCP);
    let to: SocketAddr = "10.9.0.2:7".parse().unwrap();
    einval(node.manager.disconnect(ms(0), id));
    einval(node.manager.reject(ms(0), id, RejectReason::Consumer, &[]));
    einval(node.manager.notify(id, EventType::CommEst));
    einval(node.manager.establish(id));
    einval(node.manager.resolve_route(id, SECOND));
    let half = Duration::from_millis(500);
    node.manager.resolve_addr(ms(0), id, None, to, half).unwrap();
    assert_eq!(node.manager.id_state(id), Some(IdState::AddrQuery));
    einval(node.manager.resolve_addr(ms(0), id, None, to, half));
    let query = node.manager.poll_query().unwrap();
    node.advance(ms(499));
    node.quiet();
    node.advance(ms(500));
    let event = node.event();
    assert_eq!((event.kind, event.status), (EventKind::AddrError, -110));
    let way = Resolution { device: node.device, source: node.address, hop_limit: 64, mtu: None };
    assert!(!node.manager.handle_resolution(query.token, Ok(way)), "too late");
    node.quiet();
    // It may be tried again.
    node.manager.resolve_addr(ms(600), id, None, to, half).unwrap();
    let query = node.manager.poll_query().unwrap();
    let unreachable = Err(Errno::ENETUNREACH);
    assert!(node.manager.handle_resolution(query.token, unreachable));
    assert_eq!(node.event().status, -101);
    node.manager.resolve_addr(ms(600), id, None, to, half).unwrap();
    let query = node.manager.poll_query().unwrap();
    let short = Resolution { mtu: Some(Mtu::M512), ..way };
    assert!(node.manager.handle_resolution(query.token, Ok(short)));
    assert_eq!(node.event().kind, EventKind::AddrResolved);
    einval(node.manager.resolve_addr(ms(600), id, None, to, half));
    einval(node.manager.resolve_route(id, Duration::ZERO));
    einval(node.manager.connect(ms(600), id, &ConnParam::default()));
    node.manager.resolve_route(id, SECOND).unwrap();
    assert_eq!(node.event().kind, EventKind::RouteResolved);
    einval(node.manager.resolve_route(id, SECOND));
    let path = node.manager.path(id).unwrap();
    assert_eq!((path.hop_limit, path.packet_life_time, path.mtu), (64, 16, Mtu::M512));
    assert_eq!((path.sgid, path.dgid), (gid(node.address), gid(to.ip())));
    node.manager.destroy_id(ms(600), id).unwrap();
    assert_eq!(node.manager.usage(), Usage::default());
    assert_eq!(node.manager.bind(id, to), Err(Error::NotFound("id")));
}

#[test]
fn options_have_their_time() {
    let mut node = Node::at(1);
    let id = node.create(TCP);
    node.manager.set_option(id, IdOption::ReuseAddr(true)).unwrap();
    node.manager.set_option(id, IdOption::ReuseAddr(false)).unwrap();
    node.manager.set_option(id, IdOption::AfOnly(true)).unwrap();
    node.manager.bind(id, SocketAddr::new(node.address, 7)).unwrap();
    node.manager.set_option(id, IdOption::ReuseAddr(true)).unwrap();
    einval(node.manager.set_option(id, IdOption::ReuseAddr(false)));
    node.manager.listen(id, 0).unwrap();
    einval(node.manager.set_option(id, IdOption::ReuseAddr(true)));
    einval(node.manager.set_option(id, IdOption::AfOnly(false)));
    let udp = node.create(UDP);
    einval(node.manager.set_option(udp, IdOption::AckTimeout(14)));
    // A path of the program's own takes the place of resolve_route.
    let other = node.routed(ms(0), TCP, "10.9.0.2:7".parse().unwrap());
    let path = *node.manager.path(other).unwrap();
    einval(node.manager.set_option(other, IdOption::Path(path)));
    let third = node.create(TCP);
    let to = "10.9.0.2:7".parse().unwrap();
    node.manager.resolve_addr(ms(0), third, None, to, SECOND).unwrap();
    node.resolve();
    node.event();
    node.manager.set_option(third, IdOption::Path(path)).unwrap();
    assert_eq!(node.event().kind, EventKind::RouteResolved);
    node.manager.connect(ms(0), third, &ConnParam::default()).unwrap();
}

#[test]
fn datagram_service_is_resolved() {
    let (mut client, mut server) = pair();
    server.listen(UDP, 7);
    let to = SocketAddr::new(server.address, 7);
    let active = client.connect(ms(0), UDP, to, 0x31);
    assert_eq!(carry(ms(0), &mut client, &mut server), ["SIDR_REQ"]);
    let request = server.event();
    assert_eq!(request.kind, EventKind::ConnectRequest);
    assert_eq!(request.param.private_data().len(), 180);
    assert_eq!(server.manager.destination(request.id), client.manager.source(active));
    server.accept(ms(0), request.id, 0x32);
    let rep = server.only();
    client.advance(ms(4096));
    assert_eq!(carry(ms(4096), &mut client, &mut server), ["SIDR_REQ"]);
    server.quiet();
    assert_eq!(server.only(), rep, "a duplicate gets the same answer");
    client.receive(ms(4096), server.address, &rep);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Established, 0));
    let EventParam::Ud(ud) = event.param else { panic!("{event:?}") };
    assert_eq!((ud.qpn, ud.q_key), (Qpn::new(0x32), UDP_Q_KEY));
    let ah = ud.ah.unwrap();
    assert_eq!((ah.dgid, ah.hop_limit, ah.sgid_index), (gid(server.address), 64, 1));
    assert_eq!(ud.private_data.as_slice().len(), 136);
    client.manager.disconnect(ms(5000), active).unwrap();
    client.quiet();
    assert_eq!(client.sent(), []);

    client.connect(ms(5000), UDP, SocketAddr::new(server.address, 9), 0x33);
    carry(ms(5000), &mut client, &mut server);
    carry(ms(5000), &mut server, &mut client);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, 1));
    client.connect(ms(5000), UDP, to, 0x34);
    carry(ms(5000), &mut client, &mut server);
    let mut rep = [0; 256];
    let id = server.event().id;
    server.accept(ms(5000), id, 0x35);
    rep.copy_from_slice(&server.only());
    rep[24 + 23] ^= 1;
    client.receive(ms(5000), server.address, &rep);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::AddrError, -22), "another Q_Key");
}

#[test]
fn groups_are_joined_and_left() {
    let mut node = Node::at(1);
    let id = node.create(UDP);
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    einval(node.manager.join(id, group, JoinMode::FullMember, 0x77));
    node.manager.bind(id, SocketAddr::new(node.address, 0)).unwrap();
    einval(node.manager.join(id, node.address, JoinMode::FullMember, 0x77));
    let joined = node.manager.join(id, group, JoinMode::FullMember, 0x77).unwrap();
    assert_eq!(Some(joined), Group::new(group));
    let event = node.event();
    assert_eq!(event.kind, EventKind::MulticastJoin);
    let EventParam::Ud(ud) = event.param else { panic!("{event:?}") };
    assert_eq!((ud.qpn, ud.q_key, ud.join_context), (Qpn::MULTICAST, UDP_Q_KEY, 0x77));
    let ah = ud.ah.unwrap();
    assert_eq!((ah.dgid, ah.hop_limit, ah.sgid_index), (joined.gid, 64, 1));
    assert!(ud.private_data.as_slice().is_empty());
    let again = node.manager.join(id, group, JoinMode::SendOnly, 0);
    assert_eq!(again, Err(Error::AddressInUse));
    let second = node.manager.join(id, "ff02::5".parse().unwrap(), JoinMode::SendOnly, 1).unwrap();
    node.manager.leave(id, group).unwrap();
    let twice = node.manager.leave(id, group).unwrap_err();
    assert_eq!(twice.errno(), Errno::EADDRNOTAVAIL);
    assert_eq!(node.manager.groups(id).collect::<Vec<_>>(), [(second, JoinMode::SendOnly)]);
    let destroyed = node.manager.destroy_id(ms(0), id).unwrap();
    assert_eq!((destroyed.events_reported, destroyed.groups), (1, vec![second]));
    node.quiet();
    let tcp = node.create(TCP);
    node.manager.bind(tcp, SocketAddr::new(node.address, 0)).unwrap();
    einval(node.manager.join(tcp, group, JoinMode::FullMember, 0));
}

#[test]
fn join_that_was_not_taken_goes_with_its_group() {
    let mut node = Node::at(1);
    let ids = [node.create(UDP), node.create(UDP)];
    let groups: [IpAddr; 2] = ["239.1.2.3".parse().unwrap(), "239.1.2.4".parse().unwrap()];
    for id in ids {
        node.manager.bind(id, SocketAddr::new(node.address, 0)).unwrap();
        for group in groups {
            node.manager.join(id, group, JoinMode::FullMember, 0).unwrap();
        }
    }
    node.manager.leave(ids[0], groups[1]).unwrap();
    let mut told = Vec::new();
    while let Some(event) = node.manager.poll_event(node.channel) {
        let EventParam::Ud(ud) = event.param else { panic!("{event:?}") };
        told.push((event.id, ud.ah.unwrap().dgid));
    }
    let gids = groups.map(|group| Group::new(group).unwrap().gid);
    assert_eq!(told, [(ids[0], gids[0]), (ids[1], gids[0]), (ids[1], gids[1])]);
}

#[test]
fn events_go_with_a_migrated_id() {
    let (mut client, mut server) = pair();
    let listener = server.listen(TCP, 8);
    let second = server.manager.create_channel().unwrap();
    let active = client.connect(ms(0), TCP, SocketAddr::new(server.address, 8), 1);
    carry(ms(0), &mut client, &mut server);
    assert_eq!(server.manager.poll_readable(), Some(server.channel));
    assert_eq!(server.manager.migrate_id(listener, second), Ok(0));
    assert!(!server.manager.is_readable(server.channel));
    assert_eq!(server.manager.poll_readable(), Some(second));
    assert_eq!(server.manager.poll_readable(), None);
    let event = server.manager.poll_event(second).unwrap();
    assert_eq!((event.kind, event.listener), (EventKind::ConnectRequest, Some(listener)));
    assert_eq!(server.manager.channel_of(event.id), Some(second));
    assert_eq!(server.manager.migrate_id(event.id, server.channel), Ok(0));
    server.accept(ms(0), event.id, 2);
    carry(ms(0), &mut server, &mut client);
    client.event();
    client.manager.establish(active).unwrap();
    carry(ms(0), &mut client, &mut server);
    assert_eq!(server.event().kind, EventKind::Established);
    assert_eq!(server.manager.destroy_id(ms(0), event.id).unwrap().events_reported, 1);
    assert_eq!(server.manager.destroy_id(ms(0), listener).unwrap().events_reported, 1);
}

#[test]
fn events_of_an_id_that_is_not_accepted_are_dropped() {
    let (mut client, mut server) = pair();
    let (active, request) = request(&mut client, &mut server);
    assert_eq!(server.manager.connection_state(request), Some(State::ReqRcvd));
    client.manager.destroy_id(ms(0), active).unwrap();
    let rej = client.only();
    assert!(words(&rej).ends_with("to 0x00000000 reason timeout"), "{}", words(&rej));
    server.receive(ms(0), client.address, &rej);
    server.quiet();
    assert_ne!(server.manager.connection_state(request), Some(State::ReqRcvd));
    einval(server.manager.accept(ms(0), request, 0, &ConnParam::default()));
    assert_eq!(server.manager.counters().get(Counter::EventBeforeAccept), 1);
}

#[test]
fn closed_channel_tells_every_peer() {
    let (mut client, mut server) = pair();
    establish(ms(0), &mut client, &mut server, 7);
    let to = SocketAddr::new(server.address, 7);
    client.connect(ms(0), TCP, to, 2);
    carry(ms(0), &mut client, &mut server);
    let channel = server.channel;
    server.manager.close_channel(ms(1), channel).unwrap();
    let mut told = carry(ms(1), &mut server, &mut client);
    told.sort_unstable();
    assert_eq!(told, ["DREQ", "REJ"]);
    assert_eq!((server.manager.usage().ids, server.manager.usage().events), (0, 0));
    let kinds = [client.event().kind, client.event().kind];
    assert!(kinds.contains(&EventKind::Disconnected) && kinds.contains(&EventKind::Rejected));
    assert_eq!(server.manager.poll_event(channel), None);
    client.manager.shutdown(ms(2));
    assert_eq!(client.manager.usage().ids, 0);
}

#[test]
fn removed_device_ends_its_ids() {
    let (mut client, mut server) = pair();
    let (active, _) = establish(ms(0), &mut client, &mut server, 7);
    let wildcard = client.create(TCP);
    client.manager.listen(wildcard, 0).unwrap();
    let device = client.device;
    client.manager.remove_device(device).unwrap();
    let event = client.event();
    assert_eq!((event.kind, event.id), (EventKind::DeviceRemoval, active));
    client.quiet();
    assert_eq!(client.manager.id_state(wildcard), Some(IdState::Listen));
    assert_eq!((client.sent(), client.manager.usage().connections), (vec![], 0));
    einval(client.manager.connect(ms(0), active, &ConnParam::default()));
    client.manager.destroy_id(ms(0), active).unwrap();
    assert_eq!(client.manager.remove_device(device), Err(Error::NotFound("device")));
}

#[test]
fn wildcard_hears_on_every_device_and_in_every_family() {
    let mut client = Node::new(1, Device::new(1, "fd00::1".parse().unwrap()));
    let mut server = Node::new(2, Device::new(2, "fd00::2".parse().unwrap()));
    let id = server.create(TCP);
    server.manager.bind(id, "[::]:7".parse().unwrap()).unwrap();
    server.manager.listen(id, 0).unwrap();
    client.connect(ms(0), TCP, "[fd00::2]:7".parse().unwrap(), 1);
    carry(ms(0), &mut client, &mut server);
    assert_eq!(server.event().kind, EventKind::ConnectRequest);
    // A second device, of the other family, that came later.
    let address: IpAddr = "10.9.0.2".parse().unwrap();
    server.device = server.manager.add_device(Device::new(3, address)).unwrap();
    server.address = address;
    let mut other = Node::at(5);
    other.connect(ms(0), TCP, "10.9.0.2:7".parse().unwrap(), 2);
    carry(ms(0), &mut other, &mut server);
    let event = server.event();
    assert_eq!(event.kind, EventKind::ConnectRequest);
    assert_eq!(server.manager.device_of(event.id), Some(server.device));
    // A listener of one device does not hear on the other.
    let narrow = server.create(TCP);
    server.manager.bind(narrow, "[fd00::2]:8".parse().unwrap()).unwrap();
    server.manager.listen(narrow, 0).unwrap();
    other.connect(ms(0), TCP, "10.9.0.2:8".parse().unwrap(), 3);
    carry(ms(0), &mut other, &mut server);
    carry(ms(0), &mut server, &mut other);
    assert_eq!(other.event().status, 8);
}

/// Software NICs have loopback addresses for traffic within a host; a REQ from another address
/// cannot claim one.
#[test]
fn loopback_is_an_address_of_packets_from_loopback_only() {
    let mut client = Node::new(1, Device::new(1, "127.0.0.2".parse().unwrap()));
    let mut server = Node::new(2, Device::new(2, "127.0.0.1".parse().unwrap()));
    server.listen(TCP, 7);
    establish(ms(0), &mut client, &mut server, 7);
    let (mut client, mut server) = (client, Node::at(2));
    server.listen(TCP, 7);
    client.connect(ms(0), TCP, "10.9.0.2:7".parse().unwrap(), 3);
    let req = client.only();
    server.receive(ms(0), "10.9.0.1".parse().unwrap(), &req);
    assert_eq!(server.manager.counters().get(Counter::BadIpHeader), 1);
    assert_eq!(name(&server.only()), "REJ");
    let mut server = Node::at(2);
    server.listen(TCP, 7);
    server.receive(ms(0), client.address, &req);
    assert_eq!(server.event().kind, EventKind::ConnectRequest);
}

/// A manager connects to itself: both ids are in the same tables.
#[test]
fn node_connects_to_itself() {
    let mut node = Node::at(1);
    node.listen(TCP, 7);
    let me = SocketAddr::new(node.address, 7);
    let active = node.connect(ms(0), TCP, me, 0x100);
    let pass = |node: &mut Node| {
        for sent in node.sent() {
            let address = node.address;
            node.receive(ms(0), address, &sent.mad);
        }
    };
    pass(&mut node);
    let passive = node.event().id;
    node.accept(ms(0), passive, 0x200);
    pass(&mut node);
    assert_eq!(node.event().kind, EventKind::ConnectResponse);
    node.manager.establish(active).unwrap();
    pass(&mut node);
    assert_eq!(node.event().kind, EventKind::Established);
    node.manager.destroy_id(ms(0), active).unwrap();
    pass(&mut node);
    assert_eq!(node.event().kind, EventKind::Disconnected);
    node.manager.destroy_id(ms(0), passive).unwrap();
    pass(&mut node);
    node.advance(ms(1000));
    assert_eq!((node.manager.usage().connections, node.manager.usage().index_entries), (0, 0));
}
