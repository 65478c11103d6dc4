//! Ports that change: links that go down and up, addresses that come and go, another MTU.

use std::time::Duration;

use roce::device::Device;
use roce::link::raw::{self, Config};
use roce::verbs::{AsyncEvent, Endpoint, EventType, Mtu, PortState, QpType};
use roce::wire::Gid;

use crate::common::netns::{Host, in_namespace, wire};
use crate::stage::{Kind, PROGRESS_TIMEOUT, SEND, Side, connect_attr, open, pair};

/// Waits for the next event, which must be about the port.
#[track_caller]
fn event(side: &Side) -> EventType {
    match side.nic.async_events().wait(Some(PROGRESS_TIMEOUT)).unwrap() {
        Some(AsyncEvent::Port(event)) => event,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn no_event(side: &Side) {
    let event = side.nic.async_events().wait(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(event, None);
}

/// A NIC with all addresses of a host's interface.
fn raw_side(host: &Host) -> Side {
    Side::new(host.run(|| raw::open(&Config::new(host.interface)).unwrap()))
}

fn gids(side: &Side) -> Vec<String> {
    side.nic.gids().iter().map(Gid::to_string).collect()
}

#[test]
fn a_link_that_goes_down_and_up_raises_port_err_and_port_active() {
    in_namespace(|| {
        for kind in [Kind::Udp, Kind::Raw] {
            let (a, b) = wire(1500);
            let side = Side::new(open(kind, &a, a.v4.into()));
            let state = || side.nic.query_port().unwrap().state;
            assert_eq!(state(), PortState::Active);
            // The other end of the wire: the carrier is lost, the address stays.
            b.ip("link set right down");
            assert_eq!(event(&side), EventType::PortErr, "{kind:?}");
            assert_eq!(state(), PortState::Down);
            b.ip("link set right up");
            assert_eq!(event(&side), EventType::PortActive);
            assert_eq!(state(), PortState::Active);
            no_event(&side);
        }
    });
}

#[test]
fn a_query_does_not_wait_for_the_event_and_does_not_take_it() {
    in_namespace(|| {
        let (a, _b) = wire(1500);
        let side = Side::new(open(Kind::Udp, &a, a.v4.into()));
        a.ip("link set left down");
        assert_eq!(side.nic.query_port().unwrap().state, PortState::Down);
        assert_eq!(event(&side), EventType::PortErr);
        no_event(&side);
    });
}

#[test]
fn identifiers_follow_the_addresses_and_keep_their_indices() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let (here, there) = (raw_side(&a), raw_side(&b));
        let before = ["::ffff:10.9.0.1", "fd09::1", "fe80::1"];
        assert_eq!(gids(&here), before);
        a.ip("address add 10.9.0.7/24 dev left");
        assert_eq!(event(&here), EventType::GidChange);
        assert_eq!(gids(&here), [&before[..], &["::ffff:10.9.0.7"]].concat());
        a.ip("address del fd09::1/64 dev left");
        assert_eq!(event(&here), EventType::GidChange);
        assert_eq!(gids(&here), ["::ffff:10.9.0.1", "::", "fe80::1", "::ffff:10.9.0.7"]);
        no_event(&here);

        // The new address is one that packets are taken in for.
        let (ours, theirs) = (here.qp(QpType::Rc), there.qp(QpType::Rc));
        let (our_end, their_end) =
            (here.nic.endpoint(ours).unwrap(), there.nic.endpoint(theirs).unwrap());
        let how = connect_attr(Mtu::M1024);
        here.nic.connect(ours, &their_end, &how.gid_index(3)).unwrap();
        let our_end = Endpoint { gid: here.nic.gids()[3], ..our_end };
        there.nic.connect(theirs, &our_end, &how).unwrap();
        here.recv(ours, 1, &[here.sge(0, 64)]);
        there.send(theirs, 2, SEND, &[there.sge(0, 64)]);
        here.done(1);
        there.done(2);
    });
}

#[test]
fn an_address_that_is_taken_away_and_given_back_works_again() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let here = Side::new(open(Kind::Udp, &a, a.v4.into()));
        let there = Side::new(open(Kind::Udp, &b, b.v4.into()));
        a.ip("address del 10.9.0.1/24 dev left");
        assert_eq!(event(&here), EventType::GidChange);
        assert_eq!(gids(&here), ["::"]);
        a.ip("address add 10.9.0.1/24 dev left");
        assert_eq!(event(&here), EventType::GidChange);
        assert_eq!(gids(&here), ["::ffff:10.9.0.1"]);
        let (ours, theirs) = pair(&here, &there, QpType::Rc, &connect_attr(Mtu::M1024));
        there.recv(theirs, 1, &[there.sge(0, 64)]);
        here.send(ours, 2, SEND, &[here.sge(0, 64)]);
        there.done(1);
        here.done(2);
    });
}

#[test]
fn the_mtu_follows_the_interface() {
    in_namespace(|| {
        let (a, _b) = wire(1500);
        for kind in [Kind::Udp, Kind::Raw] {
            let side = Side::new(open(kind, &a, a.v4.into()));
            let mtu = || side.nic.query_port().unwrap().active_mtu;
            assert_eq!(mtu(), Mtu::M1024);
            a.ip("link set left mtu 4200");
            assert_eq!(mtu(), Mtu::M4096, "{kind:?}");
            a.ip("link set left mtu 1500");
            assert_eq!(mtu(), Mtu::M1024);
        }
    });
}
