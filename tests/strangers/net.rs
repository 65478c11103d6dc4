//! Strangers against a listener of `roce::net`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use roce::device::Context;
use roce::link::udp;
use roce::net::{Config, Endpoint, Listener};
use roce::nic::SoftNic;

use super::harness::{
    LONG, QUIET, TcpStranger, ThirdParty, UdpStranger, address, assert_not_amplified, wait_until,
};
use super::packets::{REP, REQ, RTU, Request, management, message_of, rtu, sealed};

/// Bytes of an honest exchange.
const HELLO: &[u8] = b"hello";

fn endpoint(number: u16) -> Endpoint {
    let link = udp::open(&udp::Options::new(address(number).into())).unwrap();
    let config = Config::default().connect_timeout(LONG).linger(LONG);
    Endpoint::new(Arc::new(SoftNic::start(link).unwrap())).unwrap().with(config)
}

/// An echo server that counts the connections it accepted, and an honest client of it.
struct Echo {
    at: SocketAddr,
    accepted: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    client: Endpoint,
}

impl Echo {
    fn start(listener: Listener, client: Endpoint) -> Self {
        let at = listener.local_addr().unwrap();
        let (accepted, is_stopped) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, stop) = (Arc::clone(&accepted), Arc::clone(&is_stopped));
        let serve = move || {
            while !stop.load(Ordering::SeqCst) {
                let Ok(connection) = listener.accept_timeout(Duration::from_millis(20)) else {
                    continue;
                };
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut message = Vec::new();
                    while let Ok(true) = connection.recv_timeout(&mut message, LONG) {
                        let _ = connection.try_send(&message);
                    }
                    connection.abort();
                });
            }
        };
        let thread = Some(std::thread::spawn(serve));
        Self { at, accepted, is_stopped, thread, client }
    }

    fn at(numbers: [u16; 2]) -> Self {
        let [server, client] = numbers.map(endpoint);
        Self::start(server.listen((address(numbers[0]), 0)).unwrap(), client)
    }

    fn address(&self) -> Ipv4Addr {
        match self.at {
            SocketAddr::V4(at) => *at.ip(),
            SocketAddr::V6(at) => panic!("{at} is of this suite"),
        }
    }

    /// An honest client connects and is answered.
    #[track_caller]
    fn assert_honest(&self) {
        let connection = self.client.connect(self.at).unwrap();
        connection.send(HELLO).unwrap();
        let mut answer = Vec::new();
        assert!(connection.recv_timeout(&mut answer, LONG).unwrap());
        assert_eq!(answer, HELLO);
        connection.close().unwrap();
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Returns a peer's description of its ring.
fn hello(log: u8, writes: u16) -> Vec<u8> {
    let mut bytes = vec![b'r', b'N', 1, log];
    bytes.extend(writes.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(0x1_0000_u64.to_le_bytes());
    bytes.extend(0x77_u32.to_le_bytes());
    bytes
}

fn request<'a>(from: Ipv4Addr, echo: &Echo, number: u32, private_data: &'a [u8]) -> Request<'a> {
    Request {
        gid: from,
        claimed: from,
        to: echo.address(),
        port: echo.at.port(),
        comm_id: 0x5000_0000 | number,
        ca_guid: 0x1234,
        qpn: 0x4000 + number,
        private_data,
    }
}

fn send_request(stranger: &mut UdpStranger, from: Ipv4Addr, request: &Request<'_>) {
    let packet = management(from, request.to, REQ, &request.message());
    stranger.send(request.to, &packet);
}

/// Waits for the REP to a request. Returns its message.
fn reply(stranger: &mut UdpStranger, request: &Request<'_>) -> Vec<u8> {
    loop {
        let packet = stranger.receive(LONG).expect("a REP comes");
        if let Some((REP, message)) = message_of(&packet)
            && message[4..8] == request.comm_id.to_be_bytes()
        {
            return message.to_vec();
        }
    }
}

fn send_rtu(stranger: &mut UdpStranger, from: Ipv4Addr, request: &Request<'_>, reply: &[u8]) {
    let peer = u32::from_be_bytes(*reply.first_chunk().unwrap());
    let message = rtu(request.comm_id, peer);
    stranger.send(request.to, &management(from, request.to, RTU, &message));
}

#[test]
fn half_open_requests_hold_up_no_other() {
    let echo = Echo::at([0x0210, 0x0211]);
    let (mut stranger, from) = (UdpStranger::new(0x0212), address(0x0212));
    let hello = hello(16, 64);
    for number in 0..100 {
        let request = request(from, &echo, number, &hello);
        send_request(&mut stranger, from, &request);
        if number % 25 == 0 {
            echo.assert_honest();
        }
    }
    echo.assert_honest();
    assert_eq!(echo.accepted(), 5, "the honest ones, and no other");
    let answered = stranger.drain();
    assert_not_amplified(stranger.sent, answered);
}

#[test]
fn requests_in_the_name_of_another_reach_no_third_party() {
    let echo = Echo::at([0x0214, 0x0215]);
    let (mut stranger, from) = (UdpStranger::new(0x0216), address(0x0216));
    let third = ThirdParty::new(0x0217);
    let hello = hello(16, 64);
    for number in 0..10 {
        let mut request = request(from, &echo, number, &hello);
        if number % 2 == 0 {
            request.gid = third.address;
        }
        if number % 3 == 0 {
            request.claimed = third.address;
        }
        if number % 6 != 1 && number % 6 != 5 {
            send_request(&mut stranger, from, &request);
        }
    }
    echo.assert_honest();
    third.assert_untouched();
    let answered = stranger.drain();
    assert_not_amplified(stranger.sent, answered);
}

#[test]
fn replayed_requests_make_one_connection() {
    let echo = Echo::at([0x0218, 0x0219]);
    let (mut stranger, from) = (UdpStranger::new(0x021a), address(0x021a));
    let hello = hello(16, 64);
    let request = request(from, &echo, 1, &hello);
    send_request(&mut stranger, from, &request);
    let rep = reply(&mut stranger, &request);
    for _ in 0..5 {
        send_request(&mut stranger, from, &request);
        send_rtu(&mut stranger, from, &request, &rep);
    }
    wait_until("the stranger is accepted", || echo.accepted() == 1);
    send_request(&mut stranger, from, &request);
    echo.assert_honest();
    assert_eq!(echo.accepted(), 2);
    let answered = stranger.drain();
    assert_not_amplified(stranger.sent, answered);
}

#[test]
fn rings_that_are_too_large_size_no_memory() {
    let echo = Echo::at([0x021c, 0x021d]);
    let (mut stranger, from) = (UdpStranger::new(0x021e), address(0x021e));
    // 64 MiB and 16,384 WRITEs, more than the listener's own 512 KiB and 512.
    let (most, more) = (hello(26, 1 << 14), hello(27, 64));
    for number in 0..20 {
        let request = request(from, &echo, number, &most);
        send_request(&mut stranger, from, &request);
        let rep = reply(&mut stranger, &request);
        send_rtu(&mut stranger, from, &request, &rep);
    }
    wait_until("the stranger is accepted", || echo.accepted() == 20);
    // One that no peer has is refused.
    let request = request(from, &echo, 99, &more);
    send_request(&mut stranger, from, &request);
    stranger.drain();
    echo.assert_honest();
    assert_eq!(echo.accepted(), 21);
    assert_not_amplified(stranger.sent, stranger.received);
}

#[test]
fn records_that_lie_end_their_own_connection_alone() {
    let echo = Echo::at([0x0220, 0x0221]);
    let (mut stranger, from) = (UdpStranger::new(0x0222), address(0x0222));
    let hello = hello(16, 64);
    // Longer than its WRITE; of no kind; a message of 2^64 bytes to be read; what was not consumed.
    let long = [0, 0, 0, 0x80, 1, 0, 0, 0];
    let unknown = [4, 0, 0, 0, 9, 0, 0, 0];
    let mut large = vec![20, 0, 0, 0, 2, 0, 0, 0];
    large.extend([0xff; 16]);
    large.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    let empty = [0, 0, 0, 0, 1, 0, 0, 0];
    let lies: [(&[u8], u32); 4] = [(&long, 0), (&unknown, 0), (&large, 0), (&empty, 0xfffc_ffff)];
    for (number, (record, immediate)) in (0..).zip(lies) {
        let request = request(from, &echo, number, &hello);
        send_request(&mut stranger, from, &request);
        let rep = reply(&mut stranger, &request);
        send_rtu(&mut stranger, from, &request, &rep);
        let packet = write_with_immediate(from, &request, &rep, record, immediate);
        stranger.send(request.to, &packet);
        echo.assert_honest();
    }
    let answered = stranger.drain();
    assert_not_amplified(stranger.sent, answered);
}

/// A WRITE with immediate data to the start of the ring that a REP tells of.
fn write_with_immediate(
    from: Ipv4Addr,
    request: &Request<'_>,
    rep: &[u8],
    record: &[u8],
    immediate: u32,
) -> Vec<u8> {
    let (qpn, psn, ring) = (&rep[12..15], &rep[20..23], &rep[36..56]);
    let mut body = vec![0x0b, 0x40, 0xff, 0xff, 0];
    body.extend(qpn);
    body.push(0x80);
    body.extend(psn);
    // Address and key are little-endian in a hello, and big-endian in the RETH.
    body.extend(ring[8..16].iter().rev());
    body.extend(ring[16..20].iter().rev());
    body.extend(u32::try_from(record.len()).unwrap().to_be_bytes());
    body.extend(immediate.to_be_bytes());
    body.extend(record);
    sealed(from, request.to, super::harness::ROCE_PORT, &body)
}

#[test]
fn slow_and_half_open_peers_over_tcp_hold_up_no_other() {
    let over_tcp = |number: u16| {
        let link = udp::open(&udp::Options::new(address(number).into())).unwrap();
        Endpoint::over_tcp(Context::new(SoftNic::start(link).unwrap())).unwrap()
    };
    let [server, client] = [0x0224, 0x0225].map(over_tcp);
    let echo = Echo::start(server.listen((address(0x0224), 0)).unwrap(), client);
    let mut strangers = Vec::new();
    for number in 0..20 {
        let mut stranger = TcpStranger::connect(0x0226, echo.at);
        // GID, QPN, PSN, MTU, hello: all of it from every second one, that then says no more.
        let mut offer = address(0x0226).to_ipv6_mapped().octets().to_vec();
        offer.extend([0, 0, 0x40, 0, 0, 0, 0, 7, 4, 0]);
        offer.extend(hello(16, 64));
        offer.resize(26 + 56, 0);
        offer.truncate(if number % 2 == 0 { offer.len() } else { 9 });
        stranger.send(&offer).unwrap();
        strangers.push(stranger);
    }
    std::thread::sleep(QUIET);
    for _ in 0..3 {
        echo.assert_honest();
    }
    assert_eq!(echo.accepted(), 3);
}
