//! Strangers against the connection manager itself, through `roce::connect`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use roce::cm::{CmId, Counter};
use roce::connect::{Connection, ConnectionManager, Listener, Options};
use roce::device::Device;
use roce::link::udp;
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, CqHandle, Data, PdHandle, QpHandle, QpState, QpType, RecvWr, SendOp, SendWr, Sge, WrId,
};

use super::harness::{LONG, QUIET, ThirdParty, UdpStranger, address, assert_not_amplified};
use super::packets::{REP, REQ, RTU, Request, management, message_of, rtu, sealed};

/// Attributes of MRA, REJ, DREQ and DREP.
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;

/// A NIC with a connection manager.
struct Node {
    manager: ConnectionManager,
    pd: PdHandle,
    cq: CqHandle,
    address: Ipv4Addr,
}

impl Node {
    fn start(number: u16) -> Self {
        let address = address(number);
        let link = udp::open(&udp::Options::new(address.into())).unwrap();
        let nic = Arc::new(SoftNic::start(link).unwrap());
        let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(64).unwrap());
        Self { manager: ConnectionManager::start(nic).unwrap(), pd, cq, address }
    }

    fn nic(&self) -> &dyn Device {
        &**self.manager.nic()
    }

    fn qp(&self) -> QpHandle {
        self.nic().create_simple_qp(self.pd, self.cq, QpType::Rc).unwrap()
    }

    fn listen(&self) -> (Listener, SocketAddr) {
        let listener = self.manager.listen((self.address, 0).into()).unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    fn count(&self, counter: Counter) -> u64 {
        let service = self.manager.service().unwrap();
        service.command(|manager, _| manager.counters().get(counter)).unwrap()
    }

    /// Returns the comm ids of its connections, the own one first.
    fn comm_ids(&self) -> Vec<(u32, u32)> {
        let service = self.manager.service().unwrap();
        let all = service.command(|manager, _| {
            let ids = (0..256).filter_map(|number| manager.comm_ids(CmId::from_number(number)));
            ids.map(|(own, peer)| (own.0, peer.0)).collect()
        });
        all.unwrap()
    }

    fn guid(&self) -> u64 {
        let service = self.manager.service().unwrap();
        let guid = |manager: &mut roce::cm::Manager| manager.devices().next().unwrap().1.guid;
        service.command(|manager, _| guid(manager)).unwrap()
    }
}

/// Two nodes with an established connection.
struct Pair {
    server: Node,
    client: Node,
    listener: Listener,
    at: SocketAddr,
    accepted: Connection,
    connection: Connection,
    /// Receive buffer of the server.
    buffer: Buffer,
}

fn options() -> Options<'static> {
    let mut options = Options::default();
    options.timeout = LONG;
    options
}

impl Pair {
    fn connect(numbers: [u16; 2]) -> Self {
        let [server, client] = numbers.map(Node::start);
        let (listener, at) = server.listen();
        let (server_qp, client_qp) = (server.qp(), client.qp());
        let (accepted, connection) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let request = listener.accept_timeout(LONG).unwrap();
                assert_eq!(request.peer_addr().ip(), client.address);
                request.accept(server_qp, &options()).unwrap()
            });
            let connection = client.manager.connect(client_qp, at, &options()).unwrap();
            (accepting.join().unwrap(), connection)
        });
        Self { server, client, listener, at, accepted, connection, buffer: Buffer::new(64) }
    }

    /// Asserts that neither side has ended, and that a message arrives.
    #[track_caller]
    fn assert_connected(&self) {
        let Self { server, client, accepted, connection, buffer, .. } = self;
        assert!(!accepted.wait_disconnected(QUIET).unwrap(), "the server's side has ended");
        assert!(!connection.wait_disconnected(Duration::ZERO).unwrap(), "the client's has ended");
        let mr = server.nic().register(server.pd, buffer, Access::LOCAL_WRITE).unwrap();
        let sges = [Sge { addr: buffer.addr(), length: 64, lkey: mr.lkey() }];
        server.nic().post_recv(accepted.qp(), &RecvWr { id: WrId(1), sges: &sges }).unwrap();
        let send = SendWr::new(WrId(2), SendOp::Send { imm: None }, Data::Inline(b"honest"));
        client.nic().post_send(connection.qp(), &send).unwrap();
        assert!(client.nic().wait_cq(client.cq).unwrap().is_success());
        assert_eq!(server.nic().wait_cq(server.cq).unwrap().byte_len, 6);
        assert_eq!(server.nic().qp_state(accepted.qp()), Some(QpState::Rts));
    }
}

/// A request of the stranger with its own number and address.
fn request(from: Ipv4Addr, to: SocketAddr, number: u32) -> Request<'static> {
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    Request {
        gid: from,
        claimed: from,
        to: *to.ip(),
        port: to.port(),
        comm_id: number,
        ca_guid: 0x77,
        qpn: 0x1000 + number,
        private_data: &[],
    }
}

/// A message that begins with two comm ids.
fn ids(own: u32, peer: u32, rest: &[u8]) -> Vec<u8> {
    [&own.to_be_bytes()[..], &peer.to_be_bytes(), rest].concat()
}

#[test]
fn messages_from_a_wrong_source_end_no_connection() {
    let pair = Pair::connect([801, 802]);
    let mut stranger = UdpStranger::new(803);
    let own = address(803);
    // The stranger knows everything but has not the address.
    for node in [&pair.server, &pair.client] {
        let before = node.count(Counter::WrongSource);
        let mut sent = 0;
        for (local, remote) in node.comm_ids() {
            for reason in [4_u8, 10, 28] {
                for rejected in [0, 1, 2] {
                    let rest = [rejected << 6, 8 << 1, 0, reason];
                    let message = ids(remote, local, &rest);
                    stranger.send(node.address, &management(own, node.address, REJ, &message));
                    sent += u64::from(rejected > 0);
                }
            }
            for attribute in [MRA, REP, RTU, DREQ, DREP] {
                let message = ids(remote, local, &[1 << 6, 8 << 3, 0, 0]);
                stranger.send(node.address, &management(own, node.address, attribute, &message));
                sent += 1;
            }
        }
        assert!(sent > 0, "there is a connection");
        stranger.drain();
        assert!(node.count(Counter::WrongSource) - before >= sent - 1, "each has its counter");
    }
    pair.assert_connected();
    assert_not_amplified(stranger.sent, stranger.received);
}

#[test]
fn request_in_the_name_of_a_peer_makes_nothing_stale() {
    let pair = Pair::connect([805, 806]);
    let qpn = pair.client.nic().qp_number(pair.connection.qp()).unwrap().get();
    let known = pair.client.comm_ids();
    for (number, comm_id) in [(807, known[0].0), (808, 0x5555)] {
        let (own, mut stranger) = (address(number), UdpStranger::new(number));
        let stolen =
            Request { comm_id, ca_guid: pair.client.guid(), qpn, ..request(own, pair.at, 1) };
        let packet = management(own, pair.server.address, REQ, &stolen.message());
        stranger.send(pair.server.address, &packet);
        // It is a request of the stranger's own, which a program may refuse.
        let peer = pair.listener.accept_timeout(LONG).unwrap().peer_addr().ip();
        assert_eq!(peer, own);
        stranger.drain();
        assert_not_amplified(stranger.sent, stranger.received);
    }
    assert_eq!(pair.server.count(Counter::StaleReq), 0);
    pair.assert_connected();
}

#[test]
fn request_that_names_another_address_is_refused() {
    let server = Node::start(810);
    let (listener, at) = server.listen();
    let third = ThirdParty::new(811);
    let mut stranger = UdpStranger::new(812);
    let own = address(812);
    let lies = [
        Request { gid: third.address, ..request(own, at, 1) },
        Request { claimed: third.address, ..request(own, at, 2) },
        Request { gid: third.address, claimed: third.address, ..request(own, at, 3) },
    ];
    for lie in lies {
        stranger.send(server.address, &management(own, server.address, REQ, &lie.message()));
        let answer = stranger.receive(LONG).unwrap();
        let (attribute, message) = message_of(&answer).unwrap();
        assert_eq!(attribute, REJ, "{lie:?}");
        assert!([12, 28].contains(&message[11]), "{lie:?}: reason {}", message[11]);
    }
    assert_eq!(server.count(Counter::ForeignGid), 1);
    assert_eq!(server.count(Counter::BadIpHeader), 2);
    assert!(listener.accept_timeout(QUIET).is_err(), "no program sees them");
    third.assert_untouched();
    stranger.drain();
    assert!(stranger.received.bytes <= stranger.sent.bytes);
}

#[test]
fn half_open_requests_keep_no_honest_client_out() {
    let server = Node::start(815);
    let (listener, at) = server.listen();
    let mut stranger = UdpStranger::new(816);
    let own = address(816);
    let mut half_open = Vec::new();
    for number in 0..40 {
        let packet = request(own, at, number).message();
        stranger.send(server.address, &management(own, server.address, REQ, &packet));
        let request = listener.accept_timeout(LONG).unwrap();
        half_open.push(request.begin_accept(server.qp(), &options()).unwrap());
    }
    // More than the backlog takes, for a program that does not ask for requests.
    for number in 40..3_000 {
        let packet = request(own, at, number).message();
        stranger.send(server.address, &management(own, server.address, REQ, &packet));
    }
    let client = Node::start(817);
    std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| client.manager.connect(client.qp(), at, &options()).unwrap());
        let honest = loop {
            let request = listener.accept_timeout(LONG).unwrap();
            if request.peer_addr().ip() == client.address {
                break request;
            }
        };
        let accepted = honest.accept(server.qp(), &options()).unwrap();
        assert_eq!(accepted.peer_addr(), connecting.join().unwrap().local_addr());
        assert!(accepted.wait_disconnected(LONG).unwrap());
    });
    for accepting in &mut half_open {
        assert!(accepting.poll().unwrap().is_none(), "no answer is no connection");
    }
    let service = server.manager.service().unwrap();
    let usage = service.command(|manager, _| manager.usage()).unwrap();
    assert!(usage.half_open <= 1024 + 40, "{usage:?}");
    stranger.drain();
    assert_not_amplified(stranger.sent, stranger.received);
}

#[test]
fn reply_to_a_silent_peer_is_not_amplified() {
    let server = Node::start(820);
    let (listener, at) = server.listen();
    let mut stranger = UdpStranger::new(821);
    let own = address(821);
    // The shortest response timeout, with as many retries as there are.
    let mut message = request(own, at, 1).message();
    message[47] = 0;
    message[51] = 0xf0;
    stranger.send(server.address, &management(own, server.address, REQ, &message));
    let request = listener.accept_timeout(LONG).unwrap();
    let failed = request.accept(server.qp(), &options());
    assert!(failed.is_err(), "it does not answer");
    stranger.drain();
    assert!((1..=3).contains(&stranger.received.packets), "{:?}", stranger.received);
    assert_not_amplified(stranger.sent, stranger.received);
}

#[test]
fn replayed_messages_change_nothing() {
    let pair = Pair::connect([825, 826]);
    let mut stranger = UdpStranger::new(827);
    let own = address(827);
    // A connection of its own, whose messages it then repeats.
    let message = request(own, pair.at, 9).message();
    let packet = management(own, pair.server.address, REQ, &message);
    stranger.send(pair.server.address, &packet);
    let request = pair.listener.accept_timeout(LONG).unwrap();
    let qp = pair.server.qp();
    let accepting = request.begin_accept(qp, &options()).unwrap();
    let reply = stranger.receive(LONG).unwrap();
    let (attribute, reply) = message_of(&reply).unwrap();
    assert_eq!(attribute, REP);
    let peer = u32::from_be_bytes(reply[..4].try_into().unwrap());
    let ready = management(own, pair.server.address, RTU, &rtu(9, peer));
    stranger.send(pair.server.address, &ready);
    let accepted = accepting.wait().unwrap();
    for _ in 0..20 {
        stranger.send(pair.server.address, &packet);
        stranger.send(pair.server.address, &ready);
    }
    stranger.drain();
    assert!(pair.listener.accept_timeout(QUIET).is_err(), "a replayed REQ is no new request");
    assert!(!accepted.wait_disconnected(Duration::ZERO).unwrap());
    // After the end, too.
    drop(accepted);
    for _ in 0..20 {
        stranger.send(pair.server.address, &ready);
    }
    stranger.drain();
    pair.assert_connected();
}

#[test]
fn comm_ids_are_guessed_by_no_neighbor() {
    let pair = Pair::connect([830, 831]);
    let mut stranger = UdpStranger::new(832);
    let own = address(832);
    // It learns comm ids of the server by requests of its own.
    let mut seen = Vec::new();
    for number in 0..64 {
        let packet = request(own, pair.at, number).message();
        stranger.send(pair.server.address, &management(own, pair.server.address, REQ, &packet));
        let request = pair.listener.accept_timeout(LONG).unwrap();
        drop(request);
        let answer = stranger.receive(LONG).unwrap();
        let (_, message) = message_of(&answer).unwrap();
        seen.push(u32::from_be_bytes(message[..4].try_into().unwrap()));
    }
    // Any two differ in both halves: neither is a prefix or a counter.
    let mut halves: [Vec<u32>; 2] =
        [0, 16].map(|shift| seen.iter().map(|id| id >> shift & 0xffff).collect());
    for half in &mut halves {
        half.sort_unstable();
        half.dedup();
        assert!(half.len() > 60, "{} of 64", half.len());
    }
    // What it would try: neighbors of the latest.
    let latest = *seen.last().unwrap();
    for distance in 1..2_000_u32 {
        let guess = latest.wrapping_sub(distance);
        let message = ids(guess, guess, &[2 << 6, 0, 0, 28]);
        let packet = management(own, pair.server.address, REJ, &message);
        stranger.send(pair.server.address, &packet);
    }
    stranger.drain();
    pair.assert_connected();
}

#[test]
fn datagrams_that_are_no_mads_are_dropped() {
    let pair = Pair::connect([835, 836]);
    let mut stranger = UdpStranger::new(837);
    let (own, to) = (address(837), pair.server.address);
    let mad = management(own, to, REQ, &request(own, pair.at, 1).message());
    let body = &mad[..mad.len() - 4];
    for len in [20, 24, 44, 100, 272, 276] {
        stranger.send(to, &sealed(own, to, 4791, &body[..len.min(272)]));
    }
    let mut long = body.to_vec();
    long.resize(4_000, 0xa5);
    stranger.send(to, &sealed(own, to, 4791, &long));
    stranger.drain();
    assert_eq!(stranger.received.packets, 0, "nothing answers them");
    assert!(pair.listener.accept_timeout(QUIET).is_err());
    pair.assert_connected();
}
