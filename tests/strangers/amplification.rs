//! Bytes that leave for each byte of a stranger, for every protocol that listens.
//!
//! `cargo test --test strangers amplification -- --nocapture` prints the table of
//! `docs/security.md`.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use roce::control::Protocol;
use roce::group::{Config, Group, Hosts};
use roce::net::Listener;

use super::common::requests::{self, Bench, NONCE, first_line};
use super::harness::{
    AMPLIFICATION_MAX, Count, Server, TcpStranger, ThirdParty, UdpStranger, address, spawn,
};
use super::packets::{REQ, Request, management, sealed};

/// Bytes that a stranger sent, that came back to it, and that reached third parties.
struct Row {
    protocol: &'static str,
    attempt: &'static str,
    sent: Count,
    answered: Count,
    third: Count,
}

impl Row {
    fn ratio(&self) -> f64 {
        (self.answered.bytes + self.third.bytes) as f64 / self.sent.bytes as f64
    }
}

/// Time in which retransmissions of answers are counted.
const COUNTED: Duration = Duration::from_secs(6);

/// Sends datagrams, and counts the answers of the next seconds.
fn by_udp(number: u16, to: Ipv4Addr, packets: &[Vec<u8>]) -> (Count, Count) {
    let mut stranger = UdpStranger::new(number);
    packets.iter().for_each(|packet| stranger.send(to, packet));
    let until = std::time::Instant::now() + COUNTED;
    while std::time::Instant::now() < until {
        stranger.receive(Duration::from_millis(100));
    }
    (stranger.sent, stranger.received)
}

/// A REQ of a stranger, from its own address, with the names that it chooses.
fn request(own: Ipv4Addr, gid: Ipv4Addr, to: SocketAddr, private_data: &[u8]) -> Vec<u8> {
    let SocketAddr::V4(at) = to else { panic!("{to}") };
    let request = Request {
        gid,
        claimed: gid,
        to: *at.ip(),
        port: at.port(),
        comm_id: 0x2345_6789,
        ca_guid: 0x77,
        qpn: 0x1234,
        private_data,
    };
    management(own, *at.ip(), REQ, &request.message())
}

/// A REQ without an RTU to a listener, and one that names a third party.
fn by_requests(
    protocol: &'static str,
    number: u16,
    to: SocketAddr,
    private_data: &[u8],
    third: &ThirdParty,
) -> Vec<Row> {
    let SocketAddr::V4(at) = to else { panic!("{to}") };
    let attempts = [
        ("REQ without RTU", address(number)),
        ("REQ with the GID of a third party", third.address),
    ];
    let row = |(attempt, gid): (&'static str, Ipv4Addr)| {
        let before = third.received();
        let packet = request(address(number), gid, to, private_data);
        let (sent, answered) = by_udp(number, *at.ip(), &[packet]);
        let after = third.received();
        let third =
            Count { packets: after.packets - before.packets, bytes: after.bytes - before.bytes };
        Row { protocol, attempt, sent, answered, third }
    };
    attempts.into_iter().map(row).collect()
}

/// Sends text over TCP as a stranger, and measures the answer.
fn by_tcp(
    protocol: &'static str,
    attempt: &'static str,
    number: u16,
    to: SocketAddr,
    said: &str,
) -> Row {
    let mut stranger = TcpStranger::connect(number, to);
    stranger.send(said.as_bytes()).unwrap();
    stranger.finish();
    let (sent, answered) = (stranger.sent, stranger.received);
    Row { protocol, attempt, sent, answered, third: Count::default() }
}

fn connection_manager(third: &ThirdParty) -> Vec<Row> {
    let server = Server::start(address(710), &["-R"], &[]);
    let mut rows = by_requests("CM", 711, (server.address, 7).into(), &[], third);
    rows.iter_mut().for_each(|row| row.attempt = "REQ to a port without a listener");
    rows.truncate(1);
    // A packet for a queue pair that is none.
    let own = address(712);
    let body = [&[0x04, 0x40, 0xff, 0xff, 0, 0, 0, 99, 0x80, 0, 0, 1][..], &[7; 64]].concat();
    let (sent, answered) = by_udp(712, server.address, &[sealed(own, server.address, 4791, &body)]);
    let attempt = "SEND to a QPN that does not exist";
    rows.push(Row { protocol: "NIC", attempt, sent, answered, third: Count::default() });
    rows
}

fn net(third: &ThirdParty) -> Vec<Row> {
    let listener = Listener::bind((address(720), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || while listener.accept().is_ok() {});
    let hello = [&b"rN\x01\x10"[..], &64_u16.to_le_bytes(), &[0, 0], &[0; 12]].concat();
    by_requests("net", 721, at, &hello, third)
}

fn group(third: &ThirdParty) -> Vec<Row> {
    let hosts = [730, 731].map(|number| SocketAddr::from((address(number), 7000)));
    let hosts = Hosts::new(hosts).unwrap();
    let group = Group::open(&hosts, 0, &Config::default()).unwrap();
    let rows = by_requests("group", 732, hosts.get(0).unwrap(), &[0; 56], third);
    drop(group);
    rows
}

fn serve(third: &ThirdParty) -> Vec<Row> {
    let server = Server::start(address(740), &[], &[]);
    let (at, third) = (server.socket_address(), third.address);
    let plan = first_line(Protocol::Bench) + &Bench::new(third, "send", "ud").request();
    let gid = third.to_ipv6_mapped().to_string();
    let ping = first_line(Protocol::Ping) + &requests::ping(&gid, 0x11, 1000);
    let mesh = first_line(Protocol::Mesh) + &requests::mesh(&[format!("{third}:18515")]);
    let attempt = "request with the GID of a third party";
    vec![
        by_tcp("serve", attempt, 745, at, &plan),
        by_tcp("ping", attempt, 745, at, &ping),
        by_tcp("mesh", "probes of a third party", 745, at, &mesh),
    ]
}

fn conform() -> Vec<Row> {
    let server = Server::run(&["conform", "serve"], address(750), &[], &[]);
    let said = format!("roce-conform 3 {NONCE}\n\"scenarios\"\n");
    vec![by_tcp("conform serve", "opening", 751, server.socket_address(), &said)]
}

fn metrics() -> Vec<Row> {
    let at = format!("{}:0", address(760));
    let hosts = [1, 2].map(|port| format!("{}:{port}", address(760)));
    let args = ["mesh", "--metrics", &at, "--every", "1000", &hosts[0], &hosts[1]];
    let mesh = spawn(&args, &[]);
    let said = mesh.wait_for("/metrics\n");
    let (_, rest) = said.split_once("http://").unwrap();
    let at: SocketAddr = rest.split_once("/metrics").unwrap().0.parse().unwrap();
    vec![by_tcp("metrics", "another page", 761, at, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")]
}

#[test]
fn amplification_of_every_protocol_is_bounded() {
    // Side by side, because each counts for seconds; a third party each, to be told apart.
    let thirds = [741, 742, 743, 744].map(ThirdParty::new);
    let [of_manager, of_net, of_group, of_serve] = &thirds;
    let rows: Vec<Row> = thread::scope(|scope| {
        let by_udp = [
            scope.spawn(|| connection_manager(of_manager)),
            scope.spawn(|| net(of_net)),
            scope.spawn(|| group(of_group)),
        ];
        let by_tcp = [serve(of_serve), conform(), metrics()];
        let by_udp = by_udp.map(|rows| rows.join().unwrap());
        by_udp.into_iter().chain(by_tcp).flatten().collect()
    });
    println!(
        "| protocol | a stranger sends | bytes in | bytes out | to third parties | out per in |"
    );
    println!("|---|---|---|---|---|---|");
    for row in &rows {
        let Row { protocol, attempt, sent, answered, third } = row;
        println!(
            "| {protocol} | {attempt} | {} | {} | {} | {:.1} |",
            sent.bytes,
            answered.bytes,
            third.bytes,
            row.ratio()
        );
    }
    for row in &rows {
        let Row { protocol, attempt, sent, answered, third } = row;
        assert_eq!(*third, Count::default(), "{protocol}, {attempt}");
        // A TCP connection has proven its address, and gets a short refusal at least.
        let is_tcp = matches!(*protocol, "serve" | "ping" | "mesh" | "conform serve" | "metrics");
        let most = AMPLIFICATION_MAX * sent.bytes;
        assert!(answered.bytes <= most.max(if is_tcp { 600 } else { 0 }), "{protocol}, {attempt}");
    }
    thirds.iter().for_each(ThirdParty::assert_untouched);
}
