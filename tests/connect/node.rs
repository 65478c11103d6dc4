//! A manager with one device and one channel, and what tests do with it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use roce::cm::{
    ChannelId, CmId, Config, ConnParam, Device, DeviceId, Disposition, Error, Event, EventKind,
    Manager, Received, Resolution, Transmit,
};
use roce::time::Instant;
use roce::verbs::{Errno, QpType};
use roce::wire::cm::{Message, PortSpace};
use roce::wire::mad::Mad;
use roce::wire::{Gid, Qpn};

pub const SECOND: Duration = Duration::from_secs(1);

pub fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from(v4),
        IpAddr::V6(v6) => Gid::from(v6),
    }
}

/// The address of a GID that maps an IPv4 address, or is an IPv6 one.
pub fn address(gid: Gid) -> IpAddr {
    match gid.to_ipv4() {
        Some(v4) => v4.into(),
        None => std::net::Ipv6Addr::from(gid.0).into(),
    }
}

pub fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

pub struct Node {
    pub manager: Manager,
    pub device: DeviceId,
    pub channel: ChannelId,
    pub address: IpAddr,
}

impl Node {
    pub fn new(seed: u64, device: Device) -> Self {
        Self::with_config(Config::default(), seed, device)
    }

    pub fn with_config(config: Config, seed: u64, device: Device) -> Self {
        let address = device.addresses[0].0;
        let mut manager = Manager::new(config, seed);
        let device = manager.add_device(device).unwrap();
        let channel = manager.create_channel().unwrap();
        Self { manager, device, channel, address }
    }

    /// The node 10.9.0.`last`, whose GUID is that number.
    pub fn at(last: u8) -> Self {
        Self::new(last.into(), Device::new(last.into(), Ipv4Addr::new(10, 9, 0, last).into()))
    }

    pub fn create(&mut self, space: PortSpace) -> CmId {
        self.manager.create_id(self.channel, 0, space, QpType::Rc).unwrap()
    }

    pub fn listen(&mut self, space: PortSpace, port: u16) -> CmId {
        let id = self.create(space);
        self.manager.bind(id, SocketAddr::new(self.address, port)).unwrap();
        self.manager.listen(id, 0).unwrap();
        id
    }

    /// Answers every question: this node's device reaches everything.
    pub fn resolve(&mut self) {
        while let Some(query) = self.manager.poll_query() {
            let (device, source) = (self.device, self.address);
            let way = Resolution { device, source, hop_limit: 64, mtu: None };
            assert!(self.manager.handle_resolution(query.token, Ok(way)));
        }
    }

    /// An id whose route to `to` is resolved.
    pub fn routed(&mut self, now: Instant, space: PortSpace, to: SocketAddr) -> CmId {
        let id = self.create(space);
        self.route(now, id, to).unwrap();
        id
    }

    pub fn route(&mut self, now: Instant, id: CmId, to: SocketAddr) -> Result<(), Error> {
        self.manager.resolve_addr(now, id, None, to, SECOND)?;
        self.resolve();
        assert_eq!(self.event().kind, EventKind::AddrResolved);
        self.manager.resolve_route(id, SECOND)?;
        assert_eq!(self.event().kind, EventKind::RouteResolved);
        Ok(())
    }

    /// An id that sent a request to `to`, from QP `qpn`.
    pub fn connect(&mut self, now: Instant, space: PortSpace, to: SocketAddr, qpn: u32) -> CmId {
        let id = self.routed(now, space, to);
        let param = ConnParam { qpn: Qpn::new(qpn), ..ConnParam::default() };
        self.manager.connect(now, id, &param).unwrap();
        id
    }

    pub fn accept(&mut self, now: Instant, id: CmId, qpn: u32) {
        let param = ConnParam { qpn: Qpn::new(qpn), ..ConnParam::default() };
        self.manager.accept(now, id, 0, &param).unwrap();
    }

    /// The next event, which must be there.
    pub fn event(&mut self) -> Event {
        self.manager.poll_event(self.channel).expect("there is an event")
    }

    /// Asserts that there is no event.
    #[track_caller]
    pub fn quiet(&mut self) {
        assert_eq!(self.manager.poll_event(self.channel), None);
    }

    pub fn sent(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.manager.poll_transmit()).collect()
    }

    /// The only message there is to send.
    #[track_caller]
    pub fn only(&mut self) -> [u8; 256] {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{:?}", sent.iter().map(|t| words(&t.mad)).collect::<Vec<_>>());
        sent[0].mad
    }

    pub fn receive(&mut self, now: Instant, from: IpAddr, mad: &[u8]) -> Disposition {
        let (device, source, destination) = (self.device, gid(from), gid(self.address));
        let received = Received { device, source, destination, traffic_class: 0, mad };
        self.manager.handle_mad(now, &received)
    }

    /// Lets time pass until `now`, in order.
    pub fn advance(&mut self, now: Instant) {
        while let Some(at) = self.manager.poll_timeout().filter(|at| *at <= now) {
            self.manager.handle_timeout(at);
        }
    }
}

/// Carries everything that one node has to say to the other; their names.
pub fn carry(now: Instant, from: &mut Node, to: &mut Node) -> Vec<&'static str> {
    let source = from.address;
    let sent = from.sent();
    for transmit in &sent {
        assert_eq!(transmit.ah.dgid, gid(to.address));
        to.receive(now, source, &transmit.mad);
    }
    sent.iter().map(|transmit| name(&transmit.mad)).collect()
}

/// Returns the name of a message.
pub fn name(mad: &[u8]) -> &'static str {
    Mad::parse(mad).unwrap().header.attribute().cm_name().unwrap()
}

/// The message in a line.
pub fn words(mad: &[u8]) -> String {
    Mad::parse(mad).unwrap().to_string()
}

/// The message of a MAD.
pub fn message(mad: &[u8]) -> Message<'_> {
    Mad::parse(mad).unwrap().cm().unwrap().unwrap()
}

/// Connects a node to another's listener; both ids. Their QPs are 0x100 and 0x200.
pub fn establish(now: Instant, client: &mut Node, server: &mut Node, port: u16) -> (CmId, CmId) {
    let to = SocketAddr::new(server.address, port);
    let active = client.connect(now, PortSpace::TCP, to, 0x100);
    assert_eq!(carry(now, client, server), ["REQ"]);
    let request = server.event();
    assert_eq!(request.kind, EventKind::ConnectRequest);
    server.accept(now, request.id, 0x200);
    assert_eq!(carry(now, server, client), ["REP"]);
    assert_eq!(client.event().kind, EventKind::ConnectResponse);
    client.manager.establish(active).unwrap();
    assert_eq!(carry(now, client, server), ["RTU"]);
    assert_eq!(server.event().kind, EventKind::Established);
    (active, request.id)
}

/// Has the client of a [`pair`] send a request to the server, which takes it; both ids.
pub fn request(client: &mut Node, server: &mut Node) -> (CmId, CmId) {
    let to = SocketAddr::new(server.address, 7);
    let active = client.connect(ms(0), PortSpace::TCP, to, 1);
    assert_eq!(carry(ms(0), client, server), ["REQ"]);
    (active, server.event().id)
}

/// Two hosts, of which the second listens.
pub fn pair() -> (Node, Node) {
    let (client, mut server) = (Node::at(1), Node::at(2));
    server.listen(PortSpace::TCP, 7);
    (client, server)
}

/// Checks that a call fails with EINVAL.
pub fn einval<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert_eq!(result.unwrap_err().errno(), Errno::EINVAL);
}
