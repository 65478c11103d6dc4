//! `roce serve`: benchmarks, probes and meshes for clients of which none is trusted.

use std::net::{Ipv4Addr, TcpListener};

use super::harness::{
    Count, QUIET, Server, TcpStranger, ThirdParty, UdpStranger, accept, address,
    assert_not_amplified, run, serve, spawn, text, wait_until,
};
use roce::control::Protocol;
use serde_json::Value;

use super::common::requests::{self, Bench, first_line};
use super::packets::{REP, REQ, RTU, Request, management, message_of, rtu};

const TOKEN: [(&str, &str); 1] = [("ROCE_TOKEN", "correct-horse-battery")];

/// Request of a client of `roce ping` with a queue pair at an address.
fn ping_request(address: Ipv4Addr) -> String {
    requests::ping(&address.to_ipv6_mapped().to_string(), 0x11, 1000)
}

/// Asserts that an honest client is served.
#[track_caller]
fn serves_honest_client(server: &Server, env: &[(&str, &str)]) {
    let (port, to) = (server.port.to_string(), server.address.to_string());
    let output = run(&["bench", "send", "bw", "-s", "64", "-n", "50", "-p", &port, &to], env);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

/// Opens a connection as a client of a protocol does; returns the server's answer.
fn begin(stranger: &mut TcpStranger, protocol: Protocol) -> String {
    stranger.send(first_line(protocol).as_bytes()).unwrap();
    stranger.line().unwrap_or_default()
}

#[test]
fn third_party_gets_nothing_on_the_word_of_a_stranger() {
    let server = serve(10, &["--offer"], &[]);
    let third = ThirdParty::new(11);
    let gid = third.address;
    let requests = [
        (Protocol::Bench, Bench::new(gid, "send", "ud").request()),
        (Protocol::Bench, Bench { qps: 4, ..Bench::new(gid, "write", "rc") }.request()),
        (Protocol::Ping, ping_request(gid)),
        (Protocol::Offer, requests::offer(gid)),
        (Protocol::Mesh, requests::mesh(&[format!("{gid}:18515")])),
    ];
    for (protocol, request) in requests {
        let mut stranger = TcpStranger::connect(12, server.socket_address());
        assert_eq!(begin(&mut stranger, protocol), "open", "{protocol:?}");
        stranger.send(request.as_bytes()).unwrap();
        stranger.send(b"\"ready\"\n").unwrap();
        let answer = stranger.finish();
        assert!(answer.contains("error "), "{protocol:?}: {answer}");
        let received = Count { packets: 2, bytes: stranger.received.bytes };
        // A refusal has one line that names the reason and the cure.
        assert!(received.bytes <= 600, "{protocol:?}: {answer}");
    }
    third.assert_untouched();
    serves_honest_client(&server, &[]);
}

#[test]
fn proof_of_a_token_is_not_relayed() {
    let server = serve(20, &[], &TOKEN);
    let third = ThirdParty::new(21);
    // The stranger is a server to which a holder of the token talks.
    let rogue = TcpListener::bind((address(22), 0)).unwrap();
    let port = rogue.local_addr().unwrap().port().to_string();
    let (at, from) = (address(22).to_string(), format!("udp:{}", address(23)));
    for protocol in [Protocol::Bench, Protocol::Ping] {
        let args = ["ping", "-c", "1", "-d", &from, "-p", &port, &at];
        let holder = spawn(&args, &TOKEN);
        let mut client = accept(&rogue);
        let first = client.line().unwrap();
        let nonce = first.rsplit(' ').next().unwrap();
        let mut relay = TcpStranger::connect(22, server.socket_address());
        relay.send(format!("{} {nonce}\n", protocol.magic()).as_bytes()).unwrap();
        let challenge = relay.line().unwrap();
        assert!(challenge.starts_with("challenge "), "{challenge}");
        client.send(format!("{challenge}\n").as_bytes()).unwrap();
        let mut request = String::new();
        let proof = loop {
            let line = client.line().unwrap();
            if line.starts_with("proof ") {
                break line;
            }
            request += &format!("{line}\n");
        };
        // What the holder asks for, word by word, and something else.
        let relayed = if protocol == Protocol::Ping {
            request
        } else {
            Bench::new(third.address, "send", "ud").request()
        };
        relay.send(format!("{relayed}{proof}\n").as_bytes()).unwrap();
        let answer = relay.finish();
        assert!(answer.contains("error the client does not prove the token"), "{answer}");
        // The holder takes no server that cannot prove the token.
        client.send(b"welcome\n").unwrap();
        holder.wait_for("does not prove the token");
    }
    third.assert_untouched();
    serves_honest_client(&server, &TOKEN);
}

#[test]
fn client_with_a_token_takes_no_server_without_one() {
    let open = serve(30, &[], &[]);
    let (port, to) = (open.port.to_string(), open.address.to_string());
    let hosts = [format!("{to}:{port}"), format!("{}:{port}", address(31))];
    for args in [
        &["ping", "-c", "1", "-p", &port, &to][..],
        &["bench", "send", "bw", "-n", "5", "-p", &port, &to],
        &["mesh", "-c", "1", &hosts[0], &hosts[1]],
    ] {
        let output = run(args, &TOKEN);
        let said = text(&output);
        assert_ne!(output.status.code(), Some(0), "{args:?}: {said}");
        assert!(said.contains("asks for no token"), "{args:?}: {said}");
    }
    // Without a token in between, the same server serves.
    serves_honest_client(&open, &[]);
}

#[test]
fn old_proof_opens_no_second_connection() {
    let server = serve(40, &[], &TOKEN);
    let mut stranger = TcpStranger::connect(41, server.socket_address());
    let first = begin(&mut stranger, Protocol::Ping);
    let mut again = TcpStranger::connect(41, server.socket_address());
    let second = begin(&mut again, Protocol::Ping);
    assert!(first.starts_with("challenge ") && second.starts_with("challenge "));
    assert_ne!(first, second, "each connection has a nonce of its own");
    for proof in ["proof", &format!("proof {}", "0".repeat(64)), "welcome", "ready"] {
        let mut stranger = TcpStranger::connect(41, server.socket_address());
        begin(&mut stranger, Protocol::Ping);
        let hello = format!("{}{proof}\n", ping_request(address(41)));
        stranger.send(hello.as_bytes()).unwrap();
        let answer = stranger.finish();
        assert!(answer.starts_with("error ") && !answer.contains("responder"), "{answer}");
    }
    serves_honest_client(&server, &TOKEN);
}

#[test]
fn half_open_strangers_keep_no_client_out() {
    let server = serve(50, &["--max-clients", "8"], &[]);
    // More silent connections than there may be clients, from many addresses.
    let silent: Vec<TcpStranger> = (0..24)
        .map(|number| {
            let mut stranger = TcpStranger::connect(51 + number % 12, server.socket_address());
            if number % 3 > 0 {
                let _ = stranger.send(b"roce-bench 4 ");
            }
            stranger
        })
        .collect();
    for _ in 0..3 {
        serves_honest_client(&server, &[]);
    }
    drop(silent);
}

#[test]
fn lines_and_requests_that_are_too_large_are_refused() {
    let server = serve(70, &[], &[]);
    let long = format!("roce-bench 4 {}\n", "a".repeat(4000));
    let mut stranger = TcpStranger::connect(71, server.socket_address());
    let _ = stranger.send(long.as_bytes());
    assert!(stranger.finish().contains("error the client sent a line of more than 512 bytes"));
    let mut stranger = TcpStranger::connect(71, server.socket_address());
    begin(&mut stranger, Protocol::Bench);
    let many = Bench { qps: 1025, ..Bench::new(address(71), "send", "rc") };
    let _ = stranger.send(many.request().as_bytes());
    assert!(stranger.finish().contains("error more than 1024 queue pairs"));
    let mut stranger = TcpStranger::connect(71, server.socket_address());
    begin(&mut stranger, Protocol::Mesh);
    let targets = vec![format!("{}:1", address(71)); 1025];
    let _ = stranger.send(requests::mesh(&targets).as_bytes());
    assert!(stranger.finish().contains("error more than 1024 targets"));
    let mut stranger = TcpStranger::connect(71, server.socket_address());
    begin(&mut stranger, Protocol::Mesh);
    let _ = stranger.send(&vec![b'['; 300 << 10]);
    let answer = stranger.finish();
    // A connection that is closed with unread bytes is reset, and takes the answer with it.
    assert!(answer.contains("more than 262144 bytes") || answer.is_empty(), "{answer}");
    server.process.wait_for("more than 262144 bytes");
    serves_honest_client(&server, &[]);
}

/// Opens a run whose queue pairs the connection manager connects. Returns the port and the key.
fn meet(stranger: &mut TcpStranger, own: Ipv4Addr) -> (u16, Vec<u8>) {
    assert_eq!(begin(stranger, Protocol::BenchByCm), "open");
    stranger.send(Bench::new(own, "write", "rc").request().as_bytes()).unwrap();
    loop {
        let line = stranger.line().expect("the server answers");
        assert!(!line.starts_with("error"), "{line}");
        let message: Value = serde_json::from_str(&line).unwrap_or_default();
        let rendezvous = &message["rendezvous"];
        if let Some(key) = rendezvous["key"].as_array() {
            let number = |value: &Value| value.as_u64().unwrap();
            let key = key.iter().map(|byte| u8::try_from(number(byte)).unwrap()).collect();
            return (u16::try_from(number(&rendezvous["port"])).unwrap(), key);
        }
    }
}

/// Sends a REQ; returns the communication ID of the REP, if one comes.
pub fn request(udp: &mut UdpStranger, server: &Server, request: &Request<'_>) -> Option<u32> {
    let own = address_of(udp);
    udp.send(server.address, &management(own, server.address, REQ, &request.message()));
    while let Some(packet) = udp.receive(QUIET) {
        if let Some((REP, message)) = message_of(&packet) {
            return Some(u32::from_be_bytes(message[..4].try_into().unwrap()));
        }
    }
    None
}

fn address_of(udp: &UdpStranger) -> Ipv4Addr {
    match udp.socket.local_addr().unwrap().ip() {
        std::net::IpAddr::V4(address) => address,
        other => panic!("{other} is not of IPv4"),
    }
}

#[test]
fn request_for_a_connection_names_no_third_party() {
    let server = serve(80, &["-R"], &[]);
    let third = ThirdParty::new(81);
    let own = address(82);
    let mut udp = UdpStranger::new(82);
    for (gid, claimed) in
        [(third.address, own), (third.address, third.address), (own, third.address)]
    {
        let mut control = TcpStranger::connect(82, server.socket_address());
        let (port, key) = meet(&mut control, own);
        let private_data = [b"roce-qp\0", &key[..], &0_u32.to_be_bytes()].concat();
        let lie = Request {
            gid,
            claimed,
            to: server.address,
            port,
            comm_id: 0x1234_5678,
            ca_guid: 0x99,
            qpn: 0x1000,
            private_data: &private_data,
        };
        let answered = request(&mut udp, &server, &lie);
        if let Some(peer) = answered {
            udp.send(
                server.address,
                &management(own, server.address, RTU, &rtu(lie.comm_id, peer)),
            );
        }
        let _ = control.send(b"\"ready\"\n");
        drop(control);
        udp.drain();
    }
    third.assert_untouched();
    assert_not_amplified(udp.sent, udp.received);
    // An honest client is connected by the connection manager meanwhile.
    let (port, to) = (server.port.to_string(), server.address.to_string());
    wait_until("an honest client connects", || {
        let from = format!("udp:{}", address(83));
        let args =
            ["bench", "send", "bw", "-R", "-n", "20", "-s", "64", "-d", &from, "-p", &port, &to];
        run(&args, &[]).status.code() == Some(0)
    });
}

#[test]
fn stranger_does_not_end_a_server_for_one_client() {
    let server = serve(90, &["--once"], &[]);
    for bytes in [&b""[..], b"roce-bench 4 ", b"GET / HTTP/1.1\r\n\r\n", b"0000:000"] {
        let mut stranger = TcpStranger::connect(91, server.socket_address());
        stranger.send(bytes).unwrap();
        stranger.finish();
    }
    serves_honest_client(&server, &[]);
    server.process.wait_for("served 1 client");
}
