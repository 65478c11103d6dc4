//! Connections from request to timewait: which messages and events come. What was measured on Linux
//! with `cmprobe` is here call by call.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use roce::cm::limits::RTU_REPEATS;
use roce::cm::{
    Addressee, Config, ConnParam, Counter, Device, EventKind, IdState, RejectReason,
    Retransmission, State, Usage, limits,
};
use roce::verbs::{Errno, EventType};
use roce::wire::cm::{Message, PortSpace};

use crate::node::{Node, carry, einval, establish, gid, ms, name, pair, request, words};

const TCP: PortSpace = PortSpace::TCP;
const UDP: PortSpace = PortSpace::UDP;

#[test]
fn connect_accept_disconnect() {
    let (mut client, mut server) = pair();
    let (active, passive) = establish(ms(0), &mut client, &mut server, 7);
    assert_eq!(server.manager.poll_timeout(), None, "a connection needs no timer");
    client.manager.disconnect(ms(10), active).unwrap();
    assert_eq!(carry(ms(10), &mut client, &mut server), ["DREQ"]);
    let event = server.event();
    assert_eq!((event.kind, event.status, event.id), (EventKind::Disconnected, 0, passive));
    client.quiet();
    server.manager.disconnect(ms(20), passive).unwrap();
    assert_eq!(carry(ms(20), &mut server, &mut client), ["DREP"]);
    assert_eq!(client.event().kind, EventKind::Disconnected);
    for node in [&mut client, &mut server] {
        node.advance(ms(20 + 511));
        node.quiet();
        node.advance(ms(20 + 512));
        assert_eq!(node.event().kind, EventKind::TimewaitExit);
        node.quiet();
    }
    client.manager.disconnect(ms(600), active).unwrap();
    einval(client.manager.connect(ms(600), active, &ConnParam::default()));
    client.manager.destroy_id(ms(600), active).unwrap();
    server.manager.destroy_id(ms(600), passive).unwrap();
    assert_eq!(client.manager.usage(), Usage::default());
    assert_eq!((client.sent(), server.sent()), (vec![], vec![]));
}

/// A peer that lost the RTU may ask for it only a few times.
#[test]
fn rtu_is_repeated_a_few_times() {
    let (mut client, mut server) = pair();
    establish(ms(0), &mut client, &mut server, 7);
    for number in 0..RTU_REPEATS {
        let at = 4_608 << number;
        client.advance(ms(at - 1));
        assert_eq!(client.sent(), []);
        client.advance(ms(at));
        assert_eq!(carry(ms(0), &mut client, &mut server), ["RTU"]);
    }
    assert_eq!(client.manager.poll_timeout(), None, "a connection needs no timer");
    let repeats = server.manager.counters().get(Counter::UnexpectedRtu);
    assert_eq!(repeats, u64::from(RTU_REPEATS));
    server.quiet();
}

#[test]
fn reject_with_private_data() {
    let (mut client, mut server) = pair();
    let (active, request) = request(&mut client, &mut server);
    einval(server.manager.reject(ms(0), request, RejectReason::Consumer, &[0; 149]));
    server.manager.reject(ms(0), request, RejectReason::Consumer, b"no thanks").unwrap();
    carry(ms(0), &mut server, &mut client);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 28));
    assert_eq!(event.param.private_data().len(), 148);
    assert_eq!(&event.param.private_data()[..10], b"no thanks\0");
    einval(server.manager.reject(ms(0), request, RejectReason::Consumer, &[]));
    einval(server.manager.accept(ms(0), request, 0, &ConnParam::default()));
    einval(client.manager.connect(ms(0), active, &ConnParam::default()));
    client.manager.destroy_id(ms(0), active).unwrap();
    server.manager.destroy_id(ms(0), request).unwrap();
    assert_eq!((client.sent(), server.sent()), (vec![], vec![]));
}

#[test]
fn lost_rejection_is_repeated_for_the_duplicate() {
    let (mut client, mut server) = pair();
    let (_, request) = request(&mut client, &mut server);
    server.manager.destroy_id(ms(0), request).unwrap();
    assert_eq!(server.sent().len(), 1, "and is lost");
    // For as long as the client retransmits.
    for attempt in 1..16 {
        let now = ms(4608 * attempt);
        client.advance(now);
        server.advance(now);
        carry(now, &mut client, &mut server);
        server.quiet();
        if attempt < 15 {
            assert_eq!(server.sent().len(), 1, "and is lost");
        } else {
            assert_eq!(carry(now, &mut server, &mut client), ["REJ"]);
        }
    }
    assert_eq!(client.event().status, 28);
}

/// A program that connects many times at once gets its answers one after the other: what waits for
/// its turn is not retransmitted, what was overtaken is.
#[test]
fn requests_in_the_peers_queue_are_not_retransmitted() {
    let mut config = Config::default();
    config.retransmission = Retransmission::Backoff(Duration::from_millis(50));
    let device = Device::new(1, Ipv4Addr::new(10, 9, 0, 1).into());
    let (mut client, mut server) = (Node::with_config(config, 1, device), Node::at(2));
    server.listen(TCP, 7);
    let to = SocketAddr::new(server.address, 7);
    for number in 1..=20 {
        client.connect(ms(0), TCP, to, number);
    }
    let requests = client.sent();
    let lost = 3;
    for request in requests.iter().take(lost).chain(requests.iter().skip(lost + 1)) {
        server.receive(ms(0), client.address, &request.mad);
    }
    // The server's program accepts one every 40 ms.
    let mut repeated = Vec::new();
    for turn in 1..20_u32 {
        let now = ms(40 * u64::from(turn));
        client.advance(now);
        repeated.extend(client.sent());
        let request = server.event();
        server.accept(now, request.id, 0x200 + turn);
        carry(now, &mut server, &mut client);
        assert_eq!(client.event().kind, EventKind::ConnectResponse);
    }
    assert!(repeated.iter().all(|sent| sent.mad == requests[lost].mad), "{}", repeated.len());
    assert_eq!(repeated.len(), 1, "the one that was overtaken; its turn is after the others now");
    assert!(client.manager.counters().get(Counter::Waited) > 20);
}

#[test]
fn nothing_listens() {
    let (mut client, mut server) = pair();
    client.connect(ms(0), TCP, SocketAddr::new(server.address, 9), 1);
    carry(ms(0), &mut client, &mut server);
    carry(ms(0), &mut server, &mut client);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 8));
}

/// A request that comes before its listener, as perftest's second one may, finds it if it comes
/// soon enough.
#[test]
fn request_waits_for_its_listener() {
    let mut config = Config::default();
    config.listen_grace = Duration::from_millis(40);
    let device = Device::new(2, Ipv4Addr::new(10, 9, 0, 2).into());
    for (space, refusal) in [(TCP, "REJ"), (UDP, "SIDR_REP")] {
        for listens in [true, false] {
            let mut client = Node::at(1);
            let mut server = Node::with_config(config.clone(), 2, device.clone());
            client.connect(ms(0), space, SocketAddr::new(server.address, 9), 1);
            carry(ms(0), &mut client, &mut server);
            server.quiet();
            assert_eq!(server.manager.usage().early, 1);
            if listens {
                server.listen(space, 9);
            }
            server.advance(ms(39));
            server.quiet();
            assert_eq!((server.sent(), server.manager.poll_timeout()), (vec![], Some(ms(40))));
            server.advance(ms(40));
            assert_eq!(server.manager.usage().early, 0);
            if listens {
                assert_eq!(server.event().kind, EventKind::ConnectRequest);
            } else {
                assert_eq!(server.sent().len(), 1);
                // The duplicate is refused, too: the client may have given up by then.
                server.listen(space, 9);
                client.advance(ms(4608));
                carry(ms(4608), &mut client, &mut server);
                server.quiet();
                assert_eq!(carry(ms(4608), &mut server, &mut client), [refusal]);
            }
        }
    }
    // As many wait as the backlog holds; the others are refused at once.
    let mut server = Node::with_config(config, 2, device);
    for number in 1..=300 {
        let mut client = Node::new(number, Device::new(number, Ipv4Addr::new(10, 9, 0, 1).into()));
        client.connect(ms(0), TCP, SocketAddr::new(server.address, 9), 1);
        carry(ms(0), &mut client, &mut server);
    }
    assert_eq!(server.manager.usage().early, limits::EARLY_REQUESTS);
    assert_eq!(server.sent().len(), 300 - limits::EARLY_REQUESTS);
    server.advance(ms(40));
    assert_eq!(server.sent().len(), limits::EARLY_REQUESTS);
    assert_eq!(server.manager.usage(), Usage::default());
}

#[test]
fn manager_that_must_not_answer_for_others_stays_silent() {
    let (mut client, mut server) = pair();
    server.manager.device_mut(server.device).unwrap().answers_unknown = false;
    client.connect(ms(0), TCP, SocketAddr::new(server.address, 9), 1);
    client.connect(ms(0), UDP, SocketAddr::new(server.address, 9), 1);
    carry(ms(0), &mut client, &mut server);
    assert_eq!(server.sent(), []);
    assert_eq!(server.manager.counters().get(Counter::NoListener), 2);
}

/// The caller decides who answers messages that this manager does not know, on an address that
/// several processes share.
#[test]
fn answer_of_a_shared_address_is_left_to_the_caller() {
    let (mut client, mut server) = pair();
    server.manager.device_mut(server.device).unwrap().is_shared = true;
    client.connect(ms(0), TCP, SocketAddr::new(server.address, 9), 1);
    client.connect(ms(0), UDP, SocketAddr::new(server.address, 9), 1);
    carry(ms(0), &mut client, &mut server);
    assert_eq!(server.sent(), []);
    for space in [TCP, UDP] {
        let unclaimed = server.manager.poll_unclaimed().unwrap();
        assert_eq!(unclaimed.addressee, Addressee::Listener(space, 9));
        assert_eq!(unclaimed.destination, gid(server.address));
        assert_eq!(unclaimed.answer.ah.dgid, gid(client.address));
    }
    assert_eq!(server.manager.poll_unclaimed(), None);
}

#[test]
fn listeners_are_counted() {
    let mut node = Node::at(1);
    let before = node.manager.listener_generation();
    let listener = node.listen(TCP, 7);
    let listening: Vec<_> = node.manager.listeners().collect();
    assert_eq!(listening, [(TCP, SocketAddr::new(node.address, 7))]);
    let with_one = node.manager.listener_generation();
    node.connect(ms(0), TCP, "10.9.0.2:7".parse().unwrap(), 1);
    assert_eq!(node.manager.listener_generation(), with_one);
    node.manager.destroy_id(ms(0), listener).unwrap();
    assert_eq!(node.manager.listeners().count(), 0);
    let after = node.manager.listener_generation();
    assert!(before != with_one && with_one != after);
}

#[test]
fn private_data_is_limited() {
    let (mut client, mut server) = pair();
    let active = client.routed(ms(0), TCP, SocketAddr::new(server.address, 7));
    let data = [b'x'; 255];
    let with = |len: usize| ConnParam { private_data: &data[..len], ..ConnParam::default() };
    einval(client.manager.connect(ms(0), active, &with(57)));
    client.manager.connect(ms(0), active, &with(56)).unwrap();
    carry(ms(0), &mut client, &mut server);
    let event = server.event();
    assert_eq!(event.param.private_data(), &data[..56]);
    einval(server.manager.accept(ms(0), event.id, 0, &with(197)));
    assert_eq!(carry(ms(0), &mut server, &mut client), ["REJ"], "a failed accept rejects");
    assert_eq!(client.event().status, 28);

    let active = client.routed(ms(0), UDP, SocketAddr::new(server.address, 7));
    einval(client.manager.connect(ms(0), active, &with(181)));
    client.manager.connect(ms(0), active, &with(180)).unwrap();
    server.listen(UDP, 7);
    carry(ms(0), &mut client, &mut server);
    let event = server.event();
    assert_eq!(event.param.private_data(), &data[..180]);
    einval(server.manager.reject(ms(0), event.id, RejectReason::Consumer, &data[..137]));
    server.manager.reject(ms(0), event.id, RejectReason::Consumer, &data[..136]).unwrap();
    carry(ms(0), &mut server, &mut client);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, 2));
    assert_eq!(event.param.private_data(), &data[..136]);
}

#[test]
fn repeated_disconnect_is_answered_again_and_told_once() {
    let (mut client, mut server) = pair();
    let (active, passive) = establish(ms(0), &mut client, &mut server, 7);
    client.manager.disconnect(ms(0), active).unwrap();
    let dreq = client.only();
    for _ in 0..2 {
        server.receive(ms(0), client.address, &dreq);
    }
    assert_eq!(server.event().kind, EventKind::Disconnected);
    server.quiet();
    assert_eq!(server.sent(), [], "its program has not answered yet");
    assert_eq!(server.manager.counters().get(Counter::DuplicateDreq), 1);
    server.manager.disconnect(ms(0), passive).unwrap();
    let drep = server.only();
    // The DREP was lost: the connection is in timewait, and answers again.
    server.receive(ms(0), client.address, &dreq);
    assert_eq!(server.only(), drep);
    assert_eq!(server.manager.counters().get(Counter::DuplicateDreq), 2);
    server.quiet();
}

#[test]
fn initial_psns_are_each_another_one() {
    let (mut client, server) = pair();
    let mut psns = Vec::new();
    for qpn in 0..20 {
        client.connect(ms(0), TCP, SocketAddr::new(server.address, 7), 0x100 + qpn);
        let req = client.only();
        let mad = roce::wire::mad::Mad::parse(&req).unwrap();
        let Ok(Some(Message::Req(req))) = Message::parse(mad.header.attribute(), mad.body) else {
            panic!("no REQ")
        };
        psns.push(req.starting_psn().get());
    }
    psns.sort_unstable();
    psns.dedup();
    assert_eq!(psns.len(), 20);
    assert!(psns[19] - psns[0] > 1 << 20, "{psns:x?}");
}

#[test]
fn crossing_disconnects_are_each_answered() {
    let (mut client, mut server) = pair();
    let (active, passive) = establish(ms(0), &mut client, &mut server, 7);
    client.manager.disconnect(ms(0), active).unwrap();
    server.manager.disconnect(ms(0), passive).unwrap();
    let (mine, its) = (client.only(), server.only());
    server.receive(ms(0), client.address, &mine);
    client.receive(ms(0), server.address, &its);
    assert_eq!(carry(ms(0), &mut client, &mut server), ["DREP"]);
    assert_eq!(carry(ms(0), &mut server, &mut client), ["DREP"]);
    for node in [&mut client, &mut server] {
        assert_eq!(node.event().kind, EventKind::Disconnected);
        node.quiet();
        node.advance(ms(1000));
        assert_eq!(node.event().kind, EventKind::TimewaitExit);
    }
}

#[test]
fn destroying_a_connected_id_disconnects_its_peer_even_if_the_first_dreq_is_lost() {
    let (mut client, mut server) = pair();
    let (active, passive) = establish(ms(0), &mut client, &mut server, 7);
    client.manager.destroy_id(ms(0), active).unwrap();
    assert_eq!(client.sent().len(), 1, "and is lost");
    client.advance(ms(4608));
    assert_eq!(carry(ms(4608), &mut client, &mut server), ["DREQ"]);
    assert_eq!(server.event().kind, EventKind::Disconnected);
    server.manager.destroy_id(ms(4608), passive).unwrap();
    assert_eq!(carry(ms(4608), &mut server, &mut client), ["DREP"]);
    client.advance(ms(6000));
    assert_eq!(client.manager.usage(), Usage::default());
}

#[test]
fn unanswered_disconnect_ends_with_a_status() {
    let (mut client, mut server) = pair();
    let (active, _) = establish(ms(0), &mut client, &mut server, 7);
    client.manager.disconnect(ms(0), active).unwrap();
    client.advance(ms(16 * 4608));
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Disconnected, -110));
    assert_eq!(client.sent().len(), 16);
}

#[test]
fn slow_program_gets_time_by_mra() {
    let (mut client, mut server) = pair();
    let (active, request) = request(&mut client, &mut server);
    client.advance(ms(4608));
    assert_eq!(carry(ms(4608), &mut client, &mut server), ["REQ"]);
    server.quiet();
    let mra = server.only();
    assert!(words(&mra).ends_with("of REQ timeout 24"), "{}", words(&mra));
    client.receive(ms(4608), server.address, &mra);
    // 65536 ms for service timeout 24, 512 ms for the ACK timeout.
    client.advance(ms(4608 + 66_047));
    assert_eq!(client.sent(), []);
    client.advance(ms(4608 + 66_048));
    assert_eq!(name(&client.only()), "REQ");
    server.accept(ms(70_000), request, 2);
    carry(ms(70_000), &mut server, &mut client);
    assert_eq!(client.event().kind, EventKind::ConnectResponse);
    // The client is slow, too.
    server.advance(ms(74_096));
    assert_eq!(carry(ms(74_096), &mut server, &mut client), ["REP"]);
    assert_eq!(carry(ms(74_096), &mut client, &mut server), ["MRA"]);
    assert_eq!(server.manager.connection_state(request), Some(State::MraRepRcvd));
    client.manager.establish(active).unwrap();
    carry(ms(75_000), &mut client, &mut server);
    assert_eq!(server.event().kind, EventKind::Established);
}

#[test]
fn lost_rtu_is_repeated_for_the_duplicate_reply() {
    let (mut client, mut server) = pair();
    let (active, passive) = request(&mut client, &mut server);
    server.accept(ms(0), passive, 2);
    carry(ms(0), &mut server, &mut client);
    client.manager.establish(active).unwrap();
    assert_eq!(client.sent().len(), 1, "and is lost");
    server.advance(ms(4096));
    assert_eq!(carry(ms(4096), &mut server, &mut client), ["REP"]);
    assert_eq!(carry(ms(4096), &mut client, &mut server), ["RTU"]);
    assert_eq!(server.event().kind, EventKind::Established);
}

/// Data came before the RTU: the program says so, and the late RTU changes nothing.
#[test]
fn notification_establishes() {
    let (mut client, mut server) = pair();
    let (active, passive) = request(&mut client, &mut server);
    einval(server.manager.notify(passive, EventType::CommEst));
    server.accept(ms(0), passive, 2);
    carry(ms(0), &mut server, &mut client);
    client.manager.establish(active).unwrap();
    einval(server.manager.notify(passive, EventType::PathMig));
    server.manager.notify(passive, EventType::CommEst).unwrap();
    assert_eq!(server.event().kind, EventKind::Established);
    let again = server.manager.notify(passive, EventType::CommEst);
    assert_eq!(again.unwrap_err().errno(), Errno::EISCONN);
    carry(ms(0), &mut client, &mut server);
    server.quiet();
}

#[test]
fn rejection_whose_rtu_crosses_it_is_repeated() {
    let (mut client, mut server) = pair();
    let (active, passive) = request(&mut client, &mut server);
    server.accept(ms(0), passive, 2);
    carry(ms(0), &mut server, &mut client);
    assert_eq!(client.event().kind, EventKind::ConnectResponse);
    server.manager.destroy_id(ms(1), passive).unwrap();
    assert_eq!(server.sent().len(), 1, "and is lost");
    client.manager.establish(active).unwrap();
    carry(ms(2), &mut client, &mut server);
    assert_eq!(carry(ms(2), &mut server, &mut client), ["REJ"]);
    assert_eq!(
        (client.event().status, client.manager.id_state(active)),
        (28, Some(IdState::Connect))
    );
}

/// The program took so long that the server has forgotten that it rejected.
#[test]
fn rejection_that_was_forgotten_is_told_by_a_late_rtu() {
    let (mut client, mut server) = pair();
    let (active, passive) = request(&mut client, &mut server);
    server.accept(ms(0), passive, 2);
    carry(ms(0), &mut server, &mut client);
    assert_eq!(client.event().kind, EventKind::ConnectResponse);
    server.manager.destroy_id(ms(1), passive).unwrap();
    assert_eq!(server.sent().len(), 1, "and is lost");
    server.advance(ms(80_001));
    assert_eq!(server.manager.usage().connections, 0);
    client.manager.establish(active).unwrap();
    carry(ms(80_001), &mut client, &mut server);
    assert_eq!(server.manager.counters().get(Counter::UnknownRtu), 1);
    assert_eq!(carry(ms(80_001), &mut server, &mut client), ["REJ"]);
    let event = client.event();
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 6));
}

/// A peer that forgot everything says so: REJ 6 for a REP or RTU, DREP for a DREQ.
#[test]
fn restarted_peer_is_noticed() {
    let (mut client, mut server) = pair();
    let (_, passive) = request(&mut client, &mut server);
    server.accept(ms(0), passive, 2);
    let mut client = Node::at(1);
    carry(ms(0), &mut server, &mut client);
    assert_eq!(carry(ms(0), &mut client, &mut server), ["REJ"]);
    let event = server.event();
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 6));

    let (mut client, mut server) = pair();
    let (active, _) = establish(ms(0), &mut client, &mut server, 7);
    let mut server = Node::at(2);
    client.manager.disconnect(ms(0), active).unwrap();
    carry(ms(0), &mut client, &mut server);
    assert_eq!(carry(ms(0), &mut server, &mut client), ["DREP"]);
    assert_eq!(client.event().kind, EventKind::Disconnected);
}
