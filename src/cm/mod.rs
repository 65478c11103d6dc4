//! The connection manager, sans IO: what `rdma_cm` and `ib_cm` are in Linux, as a state machine.
//!
//! A [`Manager`] is told everything and asks nothing of the system: commands of programs, MADs that came to queue pair 1,
//! and the time. It answers with MADs to transmit, events, questions and the next deadline. On the wire it is Linux's
//! `ib_cm` on RoCEv2; towards programs it has the shape of `/dev/infiniband/rdma_cm`, so that a program, a fake of that
//! file and a simulation drive the same code. The same seed and the same inputs give the same bytes.
//!
//! Methods are of four kinds:
//!
//! | kind | methods | |
//! |---|---|---|
//! | commands | `create_id`, `bind`, `resolve_addr`, `connect`, `listen`, `accept`, … | what a program wants |
//! | `handle_*` | [`handle_mad`](Manager::handle_mad), [`handle_timeout`](Manager::handle_timeout), [`handle_resolution`](Manager::handle_resolution) | what happened |
//! | `poll_*` | [`poll_transmit`](Manager::poll_transmit), [`poll_event`](Manager::poll_event), [`poll_readable`](Manager::poll_readable), [`poll_query`](Manager::poll_query), [`poll_unclaimed`](Manager::poll_unclaimed), [`poll_timeout`](Manager::poll_timeout) | what there is to do |
//! | getters | `id_state`, `path`, `qp_attr`, `counters`, `usage`, … | |
//!
//! After any command or `handle_*`, every `poll_*` may have something new.
//!
//! A manager never touches a QP. [`qp_attr`](Manager::qp_attr) says what an id's QP must be set to, as `rdma_init_qp_attr`
//! does; the caller applies it: before [`accept`](Manager::accept), and after a CONNECT_RESPONSE before
//! [`establish`](Manager::establish). Nor does it look up a route: [`resolve_addr`](Manager::resolve_addr) becomes a
//! [`Query`], which the caller answers.
//!
//! | command of `/dev/infiniband/rdma_cm` | method |
//! |---|---|
//! | CREATE_ID, DESTROY_ID, MIGRATE_ID | [`create_id`](Manager::create_id), [`destroy_id`](Manager::destroy_id), [`migrate_id`](Manager::migrate_id) |
//! | BIND_IP, BIND, LISTEN | [`bind`](Manager::bind), [`listen`](Manager::listen) |
//! | RESOLVE_IP, RESOLVE_ADDR, RESOLVE_ROUTE | [`resolve_addr`](Manager::resolve_addr), [`resolve_route`](Manager::resolve_route) |
//! | QUERY_ROUTE, QUERY | [`source`](Manager::source), [`destination`](Manager::destination), [`device_of`](Manager::device_of), [`path`](Manager::path) |
//! | CONNECT, ACCEPT, REJECT, DISCONNECT | [`connect`](Manager::connect), [`accept`](Manager::accept) (without parameters [`establish`](Manager::establish)), [`reject`](Manager::reject), [`disconnect`](Manager::disconnect) |
//! | INIT_QP_ATTR, SET_OPTION, NOTIFY | [`qp_attr`](Manager::qp_attr), [`set_option`](Manager::set_option), [`notify`](Manager::notify) |
//! | JOIN_IP_MCAST, JOIN_MCAST, LEAVE_MCAST | [`join`](Manager::join), [`leave`](Manager::leave) |
//! | GET_EVENT, `poll`, `close` | [`poll_event`](Manager::poll_event), [`poll_readable`](Manager::poll_readable), [`close_channel`](Manager::close_channel) |
//!
//! ```text
//!   program ── commands ─►┌───────────────┐─ poll_event ──► program (one queue for each channel)
//!                         │  ids  spaces  │─ poll_query ──► caller: which device reaches this address?
//!   QP 1 ──── handle_mad ►│  connections  │─ poll_transmit ► QP 1
//!   clock ─ handle_timeout►│ timers        │─ poll_timeout ─► clock
//!                         └───────────────┘
//! ```
//!
//! # States of a connection
//!
//! A row is a state, with the inputs that it takes and where they lead. Commands begin with Send, messages with Recv;
//! `GiveUp` is the last retransmission unanswered, `Expire` the end of timewait. What is not there is refused: a command
//! fails with EINVAL, a message is counted. A test compares this table with the declared one.
//!
//! | state | transitions |
//! |---|---|
//! | `Idle` | SendReq → ReqSent; RecvReq → ReqRcvd; SendSidrReq → SidrReqSent; RecvSidrReq → SidrReqRcvd |
//! | `ReqSent` | RecvRep → RepRcvd; RecvMraOfReq → MraReqRcvd; RecvRej, SendRej, GiveUp → Idle; RecvRejStale → Timewait |
//! | `MraReqRcvd` | RecvRep → RepRcvd; RecvRej, SendRej, GiveUp → Idle; RecvRejStale → Timewait |
//! | `ReqRcvd` | SendRep → RepSent; RecvRej → Idle; SendRej, RecvRejStale → Timewait |
//! | `RepSent` | RecvRtu, CommEst → Established; RecvMraOfRep → MraRepRcvd; RecvDreq → DreqRcvd; RecvRej, GiveUp → Idle; SendRej, RecvRejStale → Timewait |
//! | `MraRepRcvd` | RecvRtu, CommEst → Established; RecvDreq → DreqRcvd; RecvRej, GiveUp → Idle; SendRej, RecvRejStale → Timewait |
//! | `RepRcvd` | SendRtu → Established; SendRej → Idle; RecvRej, RecvRejStale → Timewait |
//! | `Established` | SendDreq → DreqSent; RecvDreq → DreqRcvd; RecvRej, RecvRejStale → Timewait |
//! | `DreqSent` | RecvDrep, RecvDreq, RecvRej, RecvRejStale, GiveUp → Timewait |
//! | `DreqRcvd` | SendDrep, RecvDrep → Timewait |
//! | `Timewait` | Expire → Idle |
//! | `SidrReqSent` | RecvSidrRep, GiveUp → Idle |
//! | `SidrReqRcvd` | SendSidrRep → Timewait |
//!
//! # Where it differs from Linux, and why
//!
//! Each difference is within the specification, and Linux as a peer understands it.
//!
//! - A DREQ is retransmitted also when its id was destroyed: Linux sends it once, and a lost one leaves the peer connected.
//! - Crossing DREQs: this side answers at once. In Linux both sides wait for their programs.
//! - An unanswered REQ or REP is given up with a REJ 4 (§12.6.7), and a REP or RTU for an unknown connection gets a REJ 6:
//!   otherwise a lost REJ leaves one side connected alone.
//! - A refused REQ and an answered SIDR_REQ are remembered for a while, so that a duplicate gets the same answer. In Linux
//!   it is a new request.
//! - A LAP for a connection is refused by an APR with status 2; Linux ignores it.
//! - Timers may be shorter ([`Retransmission`]), and no peer can make them longer than [`limits`] says.
//! - Whether the way back to a requester leaves by the interface where the REQ came in is for the caller to check.
//! - Multicast groups of IPv6 work.
//!
//! | file | holds |
//! |---|---|
//! | `state` | both state machines; the connection's as one table |
//! | `id`, `connection`, `device`, `table` | the objects and their names |
//! | `address` | bind, listen, resolve, options |
//! | `space` | port spaces, conflicts, wildcards |
//! | `request` | REQ: connect, and the checks of a request |
//! | `reply` | REP, RTU, MRA: accept, establish |
//! | `reject` | REJ in both directions |
//! | `disconnect` | DREQ, DREP, timewait, destroying an id |
//! | `sidr` | services resolved for datagrams |
//! | `multicast` | groups |
//! | `receive` | the way in: what a MAD must be before it is looked at |
//! | `message`, `private_data`, `path` | MADs, the IP header, paths and their times |
//! | `attributes` | what a QP must be set to |
//! | `timers` | deadlines and schedules of retransmission |
//! | `event`, `error`, `counters` | events of programs, errors of commands, names for everything refused |
//! | `config`, [`limits`] | parameters and every bound |
//!
//! # Examples
//!
//! Two managers, and the messages carried by hand:
//!
//! ```
//! use roce::cm::{Config, ConnParam, Device, EventKind, Manager, Received, Resolution};
//! use roce::time::Instant;
//! use roce::verbs::QpType;
//! use roce::wire::{Gid, Qpn, cm::PortSpace};
//!
//! let (here, there) = ("10.9.0.1".parse()?, "10.9.0.2".parse()?);
//! let now = Instant::ZERO;
//! let mut server = Manager::new(Config::default(), 1);
//! let server_device = server.add_device(Device::new(1, there)).unwrap();
//! let server_channel = server.create_channel()?;
//! let listener = server.create_id(server_channel, 0, PortSpace::TCP, QpType::Rc)?;
//! server.bind(listener, "10.9.0.2:7174".parse()?)?;
//! server.listen(listener, 0)?;
//!
//! let mut client = Manager::new(Config::default(), 2);
//! let device = client.add_device(Device::new(2, here)).unwrap();
//! let channel = client.create_channel()?;
//! let id = client.create_id(channel, 0, PortSpace::TCP, QpType::Rc)?;
//! client.resolve_addr(now, id, None, "10.9.0.2:7174".parse()?, core::time::Duration::from_secs(2))?;
//! let query = client.poll_query().unwrap();
//! client.handle_resolution(query.token, Ok(Resolution { device, source: here, hop_limit: 64, mtu: None }));
//! assert_eq!(client.poll_event(channel).unwrap().kind, EventKind::AddrResolved);
//! client.resolve_route(id, core::time::Duration::from_secs(2))?;
//! assert_eq!(client.poll_event(channel).unwrap().kind, EventKind::RouteResolved);
//! client.connect(now, id, &ConnParam { qpn: Qpn::new(0x11), ..ConnParam::default() })?;
//!
//! let req = client.poll_transmit().unwrap();
//! let (source, destination) = (Gid([0; 16]), req.ah.dgid);
//! # let source = match here { std::net::IpAddr::V4(v4) => Gid::from(v4), _ => source };
//! let received = Received { device: server_device, source, destination, traffic_class: 0, mad: &req.mad };
//! server.handle_mad(now, &received);
//! assert_eq!(server.poll_event(server_channel).unwrap().kind, EventKind::ConnectRequest);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod address;
mod attributes;
mod config;
mod connection;
mod counters;
mod device;
mod disconnect;
mod error;
mod event;
mod id;
pub mod limits;
mod message;
mod multicast;
mod path;
mod private_data;
mod receive;
mod reject;
mod reply;
mod request;
mod sidr;
mod space;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod timers;

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};

pub use address::{Query, Resolution, ResolveToken};
pub use config::{Config, Retransmission, UDP_Q_KEY};
pub use counters::{Counter, Counters};
pub use device::Device;
pub use disconnect::Destroyed;
pub use error::Error;
pub use event::{ConnEvent, Ece, Event, EventKind, EventParam, UdEvent};
pub use id::IdOption;
pub use limits::Limits;
pub use message::{MadBytes, RejectReason};
pub use multicast::{Group, JoinMode};
pub use path::PathRecord;
pub use private_data::{PrivateData, private_data_len};
pub use receive::{Addressee, Disposition, Received, Unclaimed};
pub use request::ConnParam;
pub use state::{IdState, State};
pub use table::{ChannelId, CmId, DeviceId};

use crate::secret::SecretRandom;
pub use crate::secret::Seed;
use crate::time::Instant;
use crate::verbs::{AhAttr, Errno, QpType};
use crate::wire::cm::{CommId, PortSpace};
use connection::Connection;
use id::Id;
use space::Spaces;
use state::Input;
use table::{ConnectionId, Table};
use timers::{Owner, Timers};

/// A MAD to transmit from queue pair 1 to queue pair 1, with Q_Key 0x80010000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// From which device.
    pub device: DeviceId,
    /// The way.
    pub ah: AhAttr,
    /// The MAD.
    pub mad: MadBytes,
}

/// How much of everything a manager holds; a manager without ids and with an expired timewait holds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named by what it counts")]
pub struct Usage {
    pub ids: usize,
    pub connections: usize,
    pub lingering: usize,
    pub bindings: usize,
    pub timers: usize,
    pub events: usize,
    pub transmits: usize,
    pub queries: usize,
    /// Entries by which messages find connections.
    pub index_entries: usize,
}

/// An event channel.
#[derive(Debug, Default)]
struct Channel {
    events: VecDeque<Event>,
    /// Whether it is in the list of those that became readable.
    is_readable: bool,
}

/// A connection manager. See the [module](self).
#[derive(Debug)]
pub struct Manager {
    config: Config,
    random: SecretRandom,
    devices: Table<DeviceId, Device>,
    channels: Table<ChannelId, Channel>,
    ids: Table<CmId, Id>,
    connections: Table<ConnectionId, Connection>,
    spaces: Spaces,
    /// Connections by the own comm id.
    by_local_id: BTreeMap<u32, ConnectionId>,
    /// By the peer's CA GUID and comm id.
    by_remote_id: BTreeMap<(u64, u32), ConnectionId>,
    /// By the peer's CA GUID and QPN.
    by_remote_qpn: BTreeMap<(u64, u32), ConnectionId>,
    /// By the peer's address and SIDR request.
    by_sidr: BTreeMap<([u8; 16], u32), ConnectionId>,
    /// Connections that belong to no id, the oldest first.
    lingering: BTreeMap<u64, ConnectionId>,
    /// How many there ever were.
    lingered: u64,
    timers: Timers,
    transmits: VecDeque<Transmit>,
    queries: VecDeque<Query>,
    unclaimed: VecDeque<Unclaimed>,
    /// How many there ever were.
    queried: u64,
    readable: VecDeque<ChannelId>,
    counters: Counters,
    /// The next comm id, if they have a prefix.
    next_comm_id: Option<u32>,
}

impl Manager {
    /// A manager without devices. Its comm ids, PSNs and ephemeral ports follow from `seed`, which in a live process is
    /// secret: 128 bits from the operating system ([`Seed::from_bytes`]).
    pub fn new(config: Config, seed: impl Into<Seed>) -> Self {
        let limits = config.limits;
        Self {
            random: SecretRandom::new(seed.into()),
            devices: Table::new(limits.devices),
            channels: Table::new(limits.channels),
            ids: Table::new(limits.ids),
            connections: Table::new(limits.ids.saturating_add(limits.lingering)),
            spaces: Spaces::default(),
            by_local_id: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            by_sidr: BTreeMap::new(),
            lingering: BTreeMap::new(),
            lingered: 0,
            timers: Timers::default(),
            transmits: VecDeque::new(),
            queries: VecDeque::new(),
            unclaimed: VecDeque::new(),
            queried: 0,
            readable: VecDeque::new(),
            counters: Counters::default(),
            next_comm_id: None,
            config,
        }
    }

    /// What it was told when it was made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How often everything happened that is counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How much it holds.
    pub fn usage(&self) -> Usage {
        Usage {
            ids: self.ids.len(),
            connections: self.connections.len(),
            lingering: self.lingering.len(),
            bindings: self.spaces.len(),
            timers: self.timers.len(),
            events: self.channels.iter().map(|(_, channel)| channel.events.len()).sum(),
            transmits: self.transmits.len(),
            queries: self.queries.len(),
            index_entries: self.by_local_id.len()
                + self.by_remote_id.len()
                + self.by_remote_qpn.len()
                + self.by_sidr.len(),
        }
    }

    /// How many messages wait for an answer and are retransmitted until it comes.
    pub fn unanswered(&self) -> usize {
        self.connections.iter().filter(|(_, entry)| entry.state.is_retransmitting()).count()
    }

    /// Adds a device. Wildcard listeners hear on it at once.
    pub fn add_device(&mut self, device: Device) -> Result<DeviceId, Error> {
        self.devices.insert(device).ok_or(Error::Exhausted("devices"))
    }

    /// The device with this name.
    pub fn device(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(device)
    }

    /// The device with this name, to give it another address or another say about unknown connections.
    pub fn device_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(device)
    }

    /// Every address and port that an id listens at. It is the same as long as
    /// [`listener_generation`](Self::listener_generation) is.
    pub fn listeners(&self) -> impl Iterator<Item = (PortSpace, SocketAddr)> {
        self.spaces.all_listeners()
    }

    /// Changes with the set of listeners.
    pub fn listener_generation(&self) -> u64 {
        self.spaces.listener_generation()
    }

    /// Every device, by name.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.devices.iter()
    }

    /// The device that has this address.
    pub fn device_at(&self, address: core::net::IpAddr) -> Option<DeviceId> {
        self.devices.iter().find(|(_, device)| device.has(address)).map(|(name, _)| name)
    }

    /// Removes a device. Its connections end without a message; each of its ids gets DEVICE_REMOVAL, and is to be
    /// destroyed.
    pub fn remove_device(&mut self, device: DeviceId) -> Result<(), Error> {
        self.devices.remove(device).ok_or(Error::NotFound("device"))?;
        let on_it = |(name, connection): (ConnectionId, &Connection)| {
            (connection.device == device).then_some(name)
        };
        for connection in self.connections.iter().filter_map(on_it).collect::<Vec<_>>() {
            self.free(connection);
        }
        let ids = self.ids.iter().filter(|(_, id)| id.device == Some(device));
        for id in ids.map(|(name, _)| name).collect::<Vec<_>>() {
            self.cancel_query(id);
            if let Some(entry) = self.ids.get_mut(id) {
                entry.state = IdState::DeviceRemoved;
            }
            self.deliver(id, EventKind::DeviceRemoval, 0, EventParam::None);
        }
        Ok(())
    }

    /// Creates an event channel.
    pub fn create_channel(&mut self) -> Result<ChannelId, Error> {
        self.channels.insert(Channel::default()).ok_or(Error::Exhausted("channels"))
    }

    /// Closes an event channel, and destroys all of its ids, as the kernel does when the file is closed or the process
    /// ends; what was left of each.
    pub fn close_channel(
        &mut self,
        now: Instant,
        channel: ChannelId,
    ) -> Result<Vec<(CmId, Destroyed)>, Error> {
        self.channels.get(channel).ok_or(Error::NotFound("channel"))?;
        let ids = self.ids.iter().filter(|(_, id)| id.channel == channel);
        let ids: Vec<_> = ids.map(|(name, _)| name).collect();
        // Destroying a listener rejects the requests that its program has not taken.
        let destroyed = ids.into_iter().filter_map(|id| Some((id, self.destroy_id(now, id).ok()?)));
        let destroyed = destroyed.collect();
        self.channels.remove(channel);
        self.readable.retain(|name| *name != channel);
        Ok(destroyed)
    }

    /// Closes everything: for the end of a process. What is there to transmit then is all that peers will be told, unless
    /// the caller waits for the rest of it.
    pub fn shutdown(&mut self, now: Instant) -> Vec<(CmId, Destroyed)> {
        let channels: Vec<_> = self.channels.iter().map(|(name, _)| name).collect();
        let closed =
            channels.into_iter().filter_map(|channel| self.close_channel(now, channel).ok());
        closed.flatten().collect()
    }

    /// Creates an id. `context` is what the program knows it by, and is in its events. In the IB port space the program
    /// chooses the QP type; elsewhere it follows from the space.
    pub fn create_id(
        &mut self,
        channel: ChannelId,
        context: u64,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<CmId, Error> {
        self.channels.get(channel).ok_or(Error::NotFound("channel"))?;
        let qp_type = id::qp_type_of(space, qp_type)?;
        let mut id = Id::new(channel, context, space, qp_type);
        id.psn = self.random_psn();
        self.ids.insert(id).ok_or(Error::Exhausted("ids"))
    }

    /// Moves an id and its queued events to another channel; how many of its events the program took.
    pub fn migrate_id(&mut self, id: CmId, channel: ChannelId) -> Result<u32, Error> {
        self.channels.get(channel).ok_or(Error::NotFound("channel"))?;
        let entry = self.ids.get_mut(id).ok_or(Error::NotFound("id"))?;
        let (old, reported) = (entry.channel, entry.events_reported);
        entry.channel = channel;
        if old == channel {
            return Ok(reported);
        }
        let Some(from) = self.channels.get_mut(old) else { return Ok(reported) };
        // Requests go with their listener.
        let moves = |event: &Event| event.listener.unwrap_or(event.id) == id;
        let (moved, kept) = from.events.drain(..).partition::<VecDeque<_>, _>(moves);
        from.events = kept;
        for event in moved {
            if event.listener.is_some()
                && let Some(requested) = self.ids.get_mut(event.id)
            {
                requested.channel = channel;
            }
            self.push(channel, event);
        }
        Ok(reported)
    }

    /// The state of an id.
    pub fn id_state(&self, id: CmId) -> Option<IdState> {
        self.ids.get(id).map(|id| id.state)
    }

    /// The state of an id's connection; `None` if it has none, or no longer.
    pub fn connection_state(&self, id: CmId) -> Option<State> {
        Some(self.connections.get(self.ids.get(id)?.connection?)?.state)
    }

    /// The comm ids of an id's connection, the own one first.
    pub fn comm_ids(&self, id: CmId) -> Option<(CommId, CommId)> {
        let connection = self.connections.get(self.ids.get(id)?.connection?)?;
        Some((connection.local_id, connection.remote_id_or_zero()))
    }

    /// Whether an id may bind what others have bound (`RDMA_OPTION_ID_REUSEADDR`).
    pub fn reuses_address(&self, id: CmId) -> bool {
        self.ids.get(id).is_some_and(|id| id.reuse)
    }

    /// The address that an id is bound to.
    pub fn source(&self, id: CmId) -> Option<SocketAddr> {
        self.ids.get(id)?.source
    }

    /// The peer's address.
    pub fn destination(&self, id: CmId) -> Option<SocketAddr> {
        self.ids.get(id)?.destination
    }

    /// The device that an id is on.
    pub fn device_of(&self, id: CmId) -> Option<DeviceId> {
        self.ids.get(id)?.device
    }

    /// The path to an id's peer.
    pub fn path(&self, id: CmId) -> Option<&PathRecord> {
        self.ids.get(id)?.path.as_ref()
    }

    /// The port space of an id.
    pub fn port_space(&self, id: CmId) -> Option<PortSpace> {
        Some(self.ids.get(id)?.space)
    }

    /// The type of an id's QP.
    pub fn qp_type(&self, id: CmId) -> Option<QpType> {
        Some(self.ids.get(id)?.qp_type)
    }

    /// The channel of an id.
    pub fn channel_of(&self, id: CmId) -> Option<ChannelId> {
        Some(self.ids.get(id)?.channel)
    }

    /// The next MAD to transmit. New ones come with commands, MADs and time.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next question to the caller. New ones come with [`resolve_addr`](Self::resolve_addr).
    #[must_use]
    pub fn poll_query(&mut self) -> Option<Query> {
        self.queries.pop_front()
    }

    /// A channel that became readable since it was last returned here, or since its last event was taken. New ones come
    /// with commands, MADs and time.
    #[must_use]
    pub fn poll_readable(&mut self) -> Option<ChannelId> {
        loop {
            let name = self.readable.pop_front()?;
            if let Some(channel) = self.channels.get_mut(name)
                && core::mem::take(&mut channel.is_readable)
                && !channel.events.is_empty()
            {
                return Some(name);
            }
        }
    }

    /// The next event of a channel. New ones come with commands, MADs and time.
    #[must_use]
    pub fn poll_event(&mut self, channel: ChannelId) -> Option<Event> {
        let event = self.channels.get_mut(channel)?.events.pop_front()?;
        if let Some(listener) = event.listener {
            self.leave_backlog(event.id);
            if let Some(listener) = self.ids.get_mut(listener) {
                listener.events_reported += 1;
            }
        } else if let Some(id) = self.ids.get_mut(event.id) {
            id.events_reported += 1;
        }
        Some(event)
    }

    /// Whether a channel has an event.
    pub fn is_readable(&self, channel: ChannelId) -> bool {
        self.channels.get(channel).is_some_and(|channel| !channel.events.is_empty())
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next; `None` if never. It changes with commands,
    /// MADs and time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(owner) = self.timers.pop(now) {
            match owner {
                Owner::Connection(name) => {
                    let Some(connection) = self.connections.get_mut(name) else { continue };
                    connection.deadline = None;
                    match connection.state {
                        State::Timewait => self.expire(name),
                        state if state.is_retransmitting() => self.retransmit(now, name),
                        _ => {}
                    }
                }
                Owner::Id(id) => self.resolution_timed_out(id),
            }
        }
    }

    /// Sends a connection's message once more, or gives up.
    fn retransmit(&mut self, now: Instant, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        match connection.schedule.fire(now) {
            None => self.give_up(now, name),
            Some(next) => {
                let message = connection.message;
                self.set_deadline(name, Some(next));
                self.counters.add(Counter::Retransmitted);
                if let Some(message) = message {
                    self.transmit_on(name, message);
                }
            }
        }
    }

    /// Ends what was not answered.
    fn give_up(&mut self, now: Instant, name: ConnectionId) {
        let Some(connection) = self.connections.get(name) else { return };
        let (before, owner) = (connection.state, connection.owner);
        let Some(after) = self.step(name, Input::GiveUp) else { return };
        self.counters.add(Counter::TimedOut);
        let status = -Errno::ETIMEDOUT.0;
        if after == State::Timewait {
            self.enter_timewait(now, name);
            self.disconnected(owner, status);
            return;
        }
        if before != State::SidrReqSent {
            self.send_timeout_rej(name);
        }
        self.free(name);
        if let Some(id) = owner {
            self.deliver_connected(id, EventKind::Unreachable, status, EventParam::None);
        }
    }

    /// A new connection, found by its own comm id, which cannot be guessed.
    fn insert_connection(&mut self, mut connection: Connection) -> Option<ConnectionId> {
        let local_id = self.random_comm_id();
        connection.local_id = local_id;
        let owner = connection.owner;
        let name = self.connections.insert(connection)?;
        self.by_local_id.insert(local_id.0, name);
        if let Some(id) = owner.and_then(|id| self.ids.get_mut(id)) {
            id.connection = Some(name);
            id.connected_once = true;
        }
        Some(name)
    }

    /// Gives all comm ids from now on this upper half: managers of several processes that share an address tell their
    /// messages by it. The lower half counts, because a random one would soon be one that peers still remember. The first
    /// call decides.
    pub fn set_comm_id_prefix(&mut self, prefix: u16) {
        self.next_comm_id.get_or_insert_with(|| u32::from(prefix) << 16 | 1);
    }

    /// A comm id that is not 0 and not in use.
    fn random_comm_id(&mut self) -> CommId {
        loop {
            #[expect(clippy::cast_possible_truncation, reason = "a comm id has 32 bits")]
            let random = self.random.next() as u32;
            let number = match &mut self.next_comm_id {
                // With very many, a free one with the prefix would be hard to find.
                Some(next) if self.by_local_id.len() < 1 << 15 => {
                    let number = *next;
                    *next = number & 0xffff_0000 | number.wrapping_add(1) & 0xffff;
                    number
                }
                _ => random,
            };
            if number != 0 && !self.by_local_id.contains_key(&number) {
                return CommId(number);
            }
        }
    }

    fn random_psn(&mut self) -> crate::wire::Psn {
        #[expect(clippy::cast_possible_truncation, reason = "a PSN has 24 bits")]
        crate::wire::Psn::new(self.random.next() as u32)
    }

    /// Changes the state of a connection by the table; its new state, or `None` if it refuses the input.
    fn step(&mut self, name: ConnectionId, input: Input) -> Option<State> {
        let connection = self.connections.get_mut(name)?;
        connection.state = connection.state.after(input)?;
        Some(connection.state)
    }

    fn set_deadline(&mut self, name: ConnectionId, deadline: Option<Instant>) {
        if let Some(connection) = self.connections.get_mut(name) {
            self.timers.set(Owner::Connection(name), &mut connection.deadline, deadline);
        }
    }

    /// Sends a connection's message, and retransmits it until the state changes.
    fn send_reliably(&mut self, now: Instant, name: ConnectionId, message: MadBytes) {
        let policy = self.config.retransmission;
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.message = Some(message);
        let first = connection.schedule.start(now, policy);
        self.set_deadline(name, Some(first));
        self.transmit_on(name, message);
    }

    /// Sends a message to a connection's peer.
    fn transmit_on(&mut self, name: ConnectionId, mad: MadBytes) {
        if let Some(connection) = self.connections.get(name) {
            self.transmit(connection.device, connection.ah, mad);
        }
    }

    fn transmit(&mut self, device: DeviceId, ah: AhAttr, mad: MadBytes) {
        if self.transmits.len() >= self.config.limits.transmits {
            self.counters.add(Counter::TransmitQueueFull);
            return;
        }
        self.counters.add(Counter::Sent);
        self.transmits.push_back(Transmit { device, ah, mad });
    }

    /// Queues an event for an id, if the program knows it already.
    fn deliver(&mut self, id: CmId, kind: EventKind, status: i32, param: EventParam) {
        self.deliver_with_ece(id, kind, status, param, Ece::default());
    }

    fn deliver_with_ece(
        &mut self,
        id: CmId,
        kind: EventKind,
        status: i32,
        param: EventParam,
        ece: Ece,
    ) {
        let Some(entry) = self.ids.get(id) else { return };
        if !entry.is_reported {
            self.counters.add(Counter::EventBeforeAccept);
            return;
        }
        let (channel, context) = (entry.channel, entry.context);
        self.push(channel, Event { kind, id, listener: None, context, status, param, ece });
    }

    /// Queues an event that only an id in state Connect gets.
    fn deliver_connected(&mut self, id: CmId, kind: EventKind, status: i32, param: EventParam) {
        if self.id_state(id) == Some(IdState::Connect) {
            self.deliver(id, kind, status, param);
        }
    }

    fn push(&mut self, name: ChannelId, event: Event) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.events.push_back(event);
        if !channel.is_readable {
            channel.is_readable = true;
            self.readable.push_back(name);
        }
    }

    /// Whether a command that raises an event finds room for it.
    fn require_event_room(&self, id: CmId) -> Result<(), Error> {
        let channel = self.ids.get(id).ok_or(Error::NotFound("id"))?.channel;
        let queued = self.channels.get(channel).map_or(0, |channel| channel.events.len());
        if queued >= self.config.limits.events { Err(Error::Exhausted("events")) } else { Ok(()) }
    }

    /// The request for this id is no longer in the channel.
    fn leave_backlog(&mut self, id: CmId) {
        let listener = self.ids.get_mut(id).and_then(|id| id.queued_at.take());
        if let Some(listener) = listener.and_then(|listener| self.ids.get_mut(listener)) {
            listener.backlog.queued = listener.backlog.queued.saturating_sub(1);
        }
    }

    /// Forgets a connection.
    fn free(&mut self, name: ConnectionId) {
        self.set_deadline(name, None);
        self.forget_remote_qpn(name);
        let Some(connection) = self.connections.remove(name) else { return };
        self.by_local_id.remove(&connection.local_id.0);
        connection.keys.id.map(|key| self.by_remote_id.remove(&key));
        connection.keys.sidr.map(|key| self.by_sidr.remove(&key));
        connection.lingering.map(|serial| self.lingering.remove(&serial));
        if let Some(id) = connection.owner.and_then(|id| self.ids.get_mut(id)) {
            id.connection = None;
        }
    }

    /// The peer's QP may be connected anew.
    fn forget_remote_qpn(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        if let Some(key) = connection.keys.qpn.take() {
            self.by_remote_qpn.remove(&key);
        }
    }
}
