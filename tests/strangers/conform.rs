//! `roce conform serve` and `roce conform`: openings, tokens and addresses.

use std::net::Ipv4Addr;

use roce::conform::Side;
use roce::conform::control::{Hello, Message, Reach, RemoteBuffer};
use roce::conform::expand::Instance;
use roce::conform::scenario::built_in;
use roce::wire::{Psn, Qpn};

use super::common::requests::NONCE;
use super::harness::{
    Count, Server, TcpStranger, ThirdParty, UdpStranger, address, assert_not_amplified, run, text,
    wait_until,
};
use super::packets::{RTU, Request, management, rtu};
use super::serve::request;

const TOKEN: [(&str, &str); 1] = [("ROCE_TOKEN", "correct-horse-battery")];

fn start(number: u16, args: &[&str], env: &[(&str, &str)]) -> Server {
    Server::run(&["conform", "serve"], address(number), args, env)
}

/// Runs some scenarios as an honest client; returns its exit status and what it said.
fn client(
    number: u16,
    server: &Server,
    args: &[&str],
    env: &[(&str, &str)],
) -> (Option<i32>, String) {
    let (device, port) = (format!("udp:{}", address(number)), server.port.to_string());
    let to = server.address.to_string();
    let base = ["conform", "-d", &device, "-p", &port, &to, "--filter", "write/*"];
    let output = run(&[&base[..], args].concat(), env);
    (output.status.code(), text(&output))
}

/// Opens a connection without a token, and greets.
fn greeted(number: u16, server: &Server) -> TcpStranger {
    let mut stranger = TcpStranger::connect(number, server.socket_address());
    stranger.send(format!("roce-conform 3 {NONCE}\n\"scenarios\"\n").as_bytes()).unwrap();
    assert_eq!(stranger.line().as_deref(), Some("open"));
    assert_eq!(stranger.line().as_deref(), Some("welcome"));
    stranger
}

#[test]
fn token_is_proven_by_both_sides() {
    let server = start(610, &[], &TOKEN);
    let (status, said) = client(611, &server, &[], &TOKEN);
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = client(612, &server, &[], &[]);
    assert!(status == Some(2) && said.contains("the server wants a token"), "{said}");
    let wrong = [("ROCE_TOKEN", "incorrect-horse")];
    let (status, said) = client(613, &server, &[], &wrong);
    assert!(status == Some(2) && said.contains("does not prove the token"), "{said}");
    let open = start(614, &[], &[]);
    let (status, said) = client(615, &open, &[], &TOKEN);
    assert!(status == Some(2) && said.contains("asks for no token"), "{said}");
    let mut stranger = TcpStranger::connect(616, server.socket_address());
    let opening = format!("roce-conform 3 {NONCE}\n\"scenarios\"\nproof {}\n", "0".repeat(64));
    stranger.send(opening.as_bytes()).unwrap();
    let answer = stranger.finish();
    assert!(answer.contains("error ") && !answer.contains("hello"), "{answer}");
}

#[test]
fn half_open_and_silent_strangers_keep_no_client_out() {
    let server = start(620, &[], &[]);
    let silent: Vec<TcpStranger> = (0..20)
        .map(|number| TcpStranger::connect(621 + number % 5, server.socket_address()))
        .collect();
    let welcomed: Vec<TcpStranger> =
        (0..20).map(|number| greeted(626 + number % 5, &server)).collect();
    let (status, said) = client(640, &server, &[], &[]);
    assert_eq!(status, Some(0), "{said}");
    drop((silent, welcomed));
}

#[test]
fn lines_that_are_too_large_or_no_opening_are_refused() {
    let server = start(650, &[], &[]);
    for (opening, word) in [
        ("{\"hello\":{\"version\":1}}\n".to_owned(), "use the same version of roce"),
        (format!("roce-conform 1 {NONCE}\n"), "use the same version of roce"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "use the same version of roce"),
        ("a".repeat(300 << 10), "more than 512 bytes"),
    ] {
        let mut stranger = TcpStranger::connect(651, server.socket_address());
        let _ = stranger.send(opening.as_bytes());
        let answer = stranger.finish();
        // A connection that is closed with unread bytes is reset, and takes the answer with it.
        assert!(answer.contains(word) || answer.is_empty(), "{answer}");
        wait_until("the server names the reason", || server.process.said().contains(word));
    }
    let (status, said) = client(652, &server, &[], &[]);
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn client_sends_to_no_address_but_the_servers() {
    // The server's device is not where the server listens, as if it named another host.
    let listen = address(661).to_string();
    let mut server = start(660, &["--listen", &listen], &[]);
    let device = server.address;
    server.address = address(661);
    let (status, said) = client(662, &server, &[], &[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains(&format!("the GID ::ffff:{device} is not the address {listen}")),
        "{said}"
    );
    let (status, said) = client(662, &server, &["--any-gid"], &[]);
    assert_eq!(status, Some(0), "{said}");
}

/// QPN and first PSN that a stranger says it has.
const STRANGERS_QP: (u32, u32) = (0x1000, 0x7);

/// A scenario with a message of one packet.
fn instance() -> Instance {
    let all = built_in().unwrap();
    all.into_iter().find(|it| it.name == "write/size=mtu,mtu=1024").unwrap()
}

/// Objects of the stranger's side, at an address that it chooses.
fn reach(instance: &Instance, side: Side, gid: Ipv4Addr, cm_port: Option<u16>) -> Message {
    let buffer = |spec: &roce::conform::scenario::BufferSpec| RemoteBuffer {
        name: spec.name.clone(),
        addr: 0x1_0000,
        len: spec.len.value(instance.values()).unwrap(),
        rkey: 0x99,
    };
    Message::Reach(Reach {
        gid: gid.into(),
        qps: vec![(Qpn::new(STRANGERS_QP.0), Psn::new(STRANGERS_QP.1)); instance.scenario.qps],
        buffers: instance.scenario.buffers(side).iter().map(buffer).collect(),
        cm_port,
        ..Reach::default()
    })
}

fn say(stranger: &mut TcpStranger, message: &Message) {
    let line = format!("{}\n", serde_json::to_string(message).unwrap());
    stranger.send(line.as_bytes()).unwrap();
}

/// Asks for a scenario in which the server plays a side; returns the objects of the server.
fn begun(stranger: &mut TcpStranger, instance: &Instance, play: Side) -> Reach {
    let hello = Hello { device: "d".to_owned(), mtu: 4096, wire: false, uses_cm: false };
    say(stranger, &Message::Hello(hello));
    assert!(stranger.line().unwrap().contains("hello"));
    say(stranger, &Message::Begin { instance: Box::new(instance.clone()), play });
    match serde_json::from_str(&stranger.line().unwrap()).unwrap() {
        Message::Reach(reach) => reach,
        other => panic!("{other:?}"),
    }
}

/// Asks for a WRITE to a queue pair at an address; returns what the server said to that.
fn ask_for_a_write(stranger: &mut TcpStranger, gid: Ipv4Addr) -> String {
    let instance = instance();
    begun(stranger, &instance, Side::Requester);
    say(stranger, &reach(&instance, Side::Responder, gid, None));
    say(stranger, &Message::Ready);
    stranger.line().unwrap()
}

#[test]
fn server_sends_to_no_address_but_the_clients() {
    let server = start(670, &[], &[]);
    let third = ThirdParty::new(671);
    let said = ask_for_a_write(&mut greeted(672, &server), third.address);
    let gid = third.address.to_ipv6_mapped();
    let own = address(672);
    let why = format!("the GID {gid} is not the address {own} of the control connection");
    assert!(said.contains(&why), "{said}");
    third.assert_untouched();
    let (status, said) = client(673, &server, &[], &[]);
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn server_for_any_gid_sends_where_the_client_says() {
    let server = start(675, &["--any-gid"], &[]);
    let third = ThirdParty::new(676);
    let mut stranger = greeted(677, &server);
    assert!(ask_for_a_write(&mut stranger, third.address).contains("ready"));
    wait_until("the WRITE reaches the address", || third.received() != Count::default());
}

#[test]
fn request_for_a_connection_names_no_third_party() {
    let server = start(680, &["-R"], &[]);
    let third = ThirdParty::new(681);
    let own = address(682);
    let mut udp = UdpStranger::new(682);
    let instance = instance();
    let lies = [(third.address, own), (third.address, third.address), (own, third.address)];
    for (gid, claimed) in lies {
        let mut control = greeted(682, &server);
        let port = begun(&mut control, &instance, Side::Responder).cm_port.unwrap();
        say(&mut control, &reach(&instance, Side::Requester, own, Some(0)));
        let private_data = format!("roce-conform 0 {:#x}", STRANGERS_QP.0).into_bytes();
        let lie = Request {
            gid,
            claimed,
            to: server.address,
            port,
            comm_id: 0x1234_5678,
            ca_guid: 0x99,
            qpn: STRANGERS_QP.0,
            private_data: &private_data,
        };
        if let Some(peer) = request(&mut udp, &server, &lie) {
            let rtu = rtu(lie.comm_id, peer);
            udp.send(server.address, &management(own, server.address, RTU, &rtu));
        }
        let _ = control.send(b"\"ready\"\n");
        drop(control);
        udp.drain();
    }
    // And as the one that is asked for a connection: the server sends no REQ there.
    let mut control = greeted(682, &server);
    begun(&mut control, &instance, Side::Requester);
    say(&mut control, &reach(&instance, Side::Responder, third.address, Some(7471)));
    assert!(control.line().unwrap().contains("is not the address"));
    third.assert_untouched();
    assert_not_amplified(udp.sent, udp.received);
    let (status, said) = client(683, &server, &["-R"], &[]);
    assert_eq!(status, Some(0), "{said}");
}
