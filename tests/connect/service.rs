//! The connection manager as a service on soft NICs, over sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use roce::cm::{
    ChannelId, CmId, ConnParam, Counter, DeviceId, Event, EventKind, Manager, Retransmission,
};
use roce::connect::{CmService, Config};
use roce::device::Device;
use roce::link::udp;
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::verbs::QpType;
use roce::wire::{Qpn, cm::PortSpace};

use crate::common::loopback::loopback;

/// Longer than anything takes on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);

/// A service with one NIC and one channel.
pub struct Node {
    service: CmService,
    nic: Option<SoftNic>,
    address: IpAddr,
    device: DeviceId,
    channel: ChannelId,
    rung: Arc<(Mutex<u64>, Condvar)>,
}

impl Node {
    fn start(address: &str) -> Self {
        Self::start_with(address, Config::default())
    }

    /// A node that gives up after two seconds.
    pub fn start_with_short_timers(address: &str) -> Self {
        let mut config = Config::default();
        config.manager.retransmission = Retransmission::Constant;
        (config.manager.response_timeout, config.manager.packet_life_time) = (17, 8);
        config.manager.max_cm_retries = 3;
        Self::start_with(address, config)
    }

    fn start_with(address: &str, config: Config) -> Self {
        let address: IpAddr = address.parse().unwrap();
        let nic = SoftNic::start(udp::open(&udp::Options::new(address)).unwrap()).unwrap();
        let rung = Arc::new((Mutex::new(0), Condvar::new()));
        let bell = Arc::clone(&rung);
        let service = CmService::start(config, move |_| {
            *bell.0.lock().unwrap() += 1;
            bell.1.notify_all();
        });
        let service = service.unwrap();
        let device = service.add_nic(&nic).unwrap();
        let channel = service.command(|manager, _| manager.create_channel().unwrap()).unwrap();
        Self { service, nic: Some(nic), address, device, channel, rung }
    }

    /// Ends without a word to its peers, as a process that is killed.
    fn kill(mut self) {
        self.nic = None;
    }

    pub fn run<R>(&self, run: impl FnOnce(&mut Manager, Instant) -> R) -> R {
        self.service.command(run).unwrap()
    }

    pub fn event(&self) -> Event {
        let (count, changed) = &*self.rung;
        loop {
            // Rings come with the manager locked, so it must not be called with this locked.
            let before = *count.lock().unwrap();
            if let Some(event) = self.run(|manager, _| manager.poll_event(self.channel)) {
                return event;
            }
            let count = count.lock().unwrap();
            let waited = changed.wait_timeout_while(count, WAIT, |count| *count == before);
            assert!(!waited.unwrap().1.timed_out(), "no event came");
        }
    }

    pub fn expect(&self, kind: EventKind) -> Event {
        let event = self.event();
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    fn create_id(&self) -> CmId {
        self.run(|manager, _| manager.create_id(self.channel, 0, PortSpace::TCP, QpType::Rc))
            .unwrap()
    }

    pub fn listen(&self, port: u16) -> CmId {
        let (id, address) = (self.create_id(), SocketAddr::new(self.address, port));
        self.run(|manager, _| manager.bind(id, address).and_then(|()| manager.listen(id, 0)))
            .unwrap();
        id
    }

    pub fn connect(&self, to: SocketAddr, data: &[u8]) -> CmId {
        let id = self.create_id();
        self.run(|manager, now| manager.resolve_addr(now, id, None, to, WAIT)).unwrap();
        self.expect(EventKind::AddrResolved);
        self.run(|manager, _| manager.resolve_route(id, WAIT)).unwrap();
        self.expect(EventKind::RouteResolved);
        let param = ConnParam { private_data: data, qpn: Qpn::new(0x11), ..ConnParam::default() };
        self.run(|manager, now| manager.connect(now, id, &param)).unwrap();
        id
    }
}

/// REQ, REP, RTU, DREQ and DREP over queue pairs 1 of two NICs.
fn connects_and_disconnects(here: &str, there: &str) {
    let (server, client) = (Node::start(there), Node::start(here));
    server.listen(7174);
    let id = client.connect(SocketAddr::new(server.address, 7174), b"question");
    let request = server.expect(EventKind::ConnectRequest);
    assert_eq!(&request.param.private_data()[..8], b"question");
    assert_eq!(server.run(|manager, _| manager.device_of(request.id)), Some(server.device));
    let param = ConnParam { private_data: b"answer", qpn: Qpn::new(0x22), ..ConnParam::default() };
    server.run(|manager, now| manager.accept(now, request.id, 0, &param)).unwrap();
    let response = client.expect(EventKind::ConnectResponse);
    assert_eq!(&response.param.private_data()[..6], b"answer");
    client.run(|manager, _| manager.establish(id)).unwrap();
    server.expect(EventKind::Established);
    server.run(|manager, now| manager.disconnect(now, request.id)).unwrap();
    client.expect(EventKind::Disconnected);
    client.run(|manager, now| manager.disconnect(now, id)).unwrap();
    server.expect(EventKind::Disconnected);
}

#[test]
fn two_nics_connect_over_ipv4() {
    connects_and_disconnects(&loopback(101, 1).to_string(), &loopback(101, 2).to_string());
}

#[test]
fn refused_service_is_reason_8() {
    let (server, client) =
        (Node::start(&loopback(102, 2).to_string()), Node::start(&loopback(102, 1).to_string()));
    client.connect(SocketAddr::new(server.address, 7174), b"");
    assert_eq!(client.expect(EventKind::Rejected).status, 8);
}

#[test]
fn program_sees_no_trace_of_queue_pair_1() {
    let node = Node::start(&loopback(103, 1).to_string());
    let nic = node.nic.as_ref().unwrap();
    let before = nic.query_device().unwrap();
    node.service.remove_nic(node.device).unwrap();
    assert_eq!(nic.query_device().unwrap(), before);
    // It was closed: the next service has it.
    let next = CmService::start(Config::default(), |_| {}).unwrap();
    next.add_nic(nic).unwrap();
    let other = CmService::start(Config::default(), |_| {}).unwrap();
    assert!(other.add_nic(nic).is_err());
}

#[test]
fn dropped_nic_is_removed_from_the_service() {
    let mut node = Node::start(&loopback(104, 1).to_string());
    let listener = node.listen(7174);
    node.nic = None;
    let event = node.expect(EventKind::DeviceRemoval);
    assert_eq!(event.id, listener);
    // The address is free at once.
    drop(udp::open(&udp::Options::new(node.address)).unwrap());
}

#[test]
fn shutdown_tells_peers() {
    let (server, client) =
        (Node::start(&loopback(105, 2).to_string()), Node::start(&loopback(105, 1).to_string()));
    server.listen(7174);
    let id = client.connect(SocketAddr::new(server.address, 7174), b"");
    let request = server.expect(EventKind::ConnectRequest);
    server.run(|manager, now| manager.accept(now, request.id, 0, &ConnParam::default())).unwrap();
    client.expect(EventKind::ConnectResponse);
    client.run(|manager, _| manager.establish(id)).unwrap();
    server.expect(EventKind::Established);
    client.service.shutdown(Duration::from_millis(250));
    server.expect(EventKind::Disconnected);
    assert!(client.service.command(|_, _| ()).is_err());
}

/// An established connection: the ids of the client and of the server.
fn establish(client: &Node, server: &Node) -> (CmId, CmId) {
    let id = client.connect(SocketAddr::new(server.address, 7174), b"");
    let request = server.expect(EventKind::ConnectRequest);
    server.run(|manager, now| manager.accept(now, request.id, 0, &ConnParam::default())).unwrap();
    client.expect(EventKind::ConnectResponse);
    client.run(|manager, _| manager.establish(id)).unwrap();
    assert_eq!(server.expect(EventKind::Established).id, request.id);
    (id, request.id)
}

/// A process that was killed says nothing. Its successor at the same address connects at once, with
/// the same QPN, and answers for the connections that it does not know.
#[test]
fn successor_of_a_killed_peer_connects_at_once() {
    let server = Node::start(&loopback(106, 2).to_string());
    server.listen(7174);
    let mut left = Vec::new();
    for _ in 0..3 {
        let client = Node::start(&loopback(106, 1).to_string());
        left.push(establish(&client, &server).1);
        client.kill();
    }
    let client = Node::start(&loopback(106, 1).to_string());
    let (_, request) = establish(&client, &server);
    for id in left {
        server.run(|manager, now| manager.disconnect(now, id)).unwrap();
        let event = server.expect(EventKind::Disconnected);
        assert_eq!((event.id, event.status), (id, 0));
        server.run(|manager, now| manager.destroy_id(now, id)).unwrap();
    }
    server.run(|manager, now| manager.disconnect(now, request)).unwrap();
    client.expect(EventKind::Disconnected);
}

/// The peer of a killed process is told of it, in each state in which it waits.
#[test]
fn killed_peer_is_noticed_in_every_state() {
    const TIMED_OUT: i32 = -110;
    let node = Node::start_with_short_timers(&loopback(107, 1).to_string());
    // REQ sent.
    let id = node.connect((loopback(107, 2), 7174).into(), b"");
    let event = node.expect(EventKind::Unreachable);
    assert_eq!((event.id, event.status), (id, TIMED_OUT));
    // REQ received, then REP sent: the REQ says how long its sender takes, so that it has to be
    // short there.
    node.listen(7174);
    let peer = Node::start_with_short_timers(&loopback(107, 2).to_string());
    peer.connect(SocketAddr::new(node.address, 7174), b"");
    let request = node.expect(EventKind::ConnectRequest);
    peer.kill();
    node.run(|manager, now| manager.accept(now, request.id, 0, &ConnParam::default())).unwrap();
    let event = node.expect(EventKind::Unreachable);
    assert_eq!((event.id, event.status), (request.id, TIMED_OUT));
    // Established, then DREQ sent.
    let peer = Node::start_with_short_timers(&loopback(107, 2).to_string());
    let (_, established) = establish(&peer, &node);
    peer.kill();
    node.run(|manager, now| manager.disconnect(now, established)).unwrap();
    let event = node.expect(EventKind::Disconnected);
    assert_eq!((event.id, event.status), (established, TIMED_OUT));
}

/// A burst of requests of many peers at once finds buffers: none has to be retransmitted.
#[test]
fn burst_of_a_thousand_requests_is_taken_at_once() {
    const REQUESTS: usize = 1000;
    let mut config = Config::default();
    // A retransmission comes after a minute, later than the test waits.
    config.manager.retransmission = Retransmission::Constant;
    config.manager.response_timeout = 24;
    let server = Node::start(&loopback(108, 2).to_string());
    let client = Node::start_with(&loopback(108, 1).to_string(), config);
    server.listen(7174);
    let to = SocketAddr::new(server.address, 7174);
    // All REQs leave with one command.
    client.run(|manager, now| {
        for number in 0..REQUESTS {
            let id = manager.create_id(client.channel, 0, PortSpace::TCP, QpType::Rc).unwrap();
            manager.resolve_addr(now, id, None, to, WAIT).unwrap();
            let query = manager.poll_query().unwrap();
            let (device, source) = (client.device, client.address);
            let way = roce::cm::Resolution { device, source, hop_limit: 64, mtu: None };
            manager.handle_resolution(query.token, Ok(way));
            manager.resolve_route(id, WAIT).unwrap();
            let qpn = Qpn::new(u32::try_from(0x100 + number).unwrap());
            let param = ConnParam { qpn, ..ConnParam::default() };
            manager.connect(now, id, &param).unwrap();
        }
    });
    for _ in 0..REQUESTS {
        server.expect(EventKind::ConnectRequest);
    }
    let sent = client.run(|manager, _| manager.counters().get(Counter::Retransmitted));
    assert_eq!(sent, 0);
}
