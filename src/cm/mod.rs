//! The connection manager as a state machine without IO: the counterpart of `rdma_cm` and `ib_cm`
//! in Linux.
//!
//! A [`Manager`] is told everything and asks nothing of the system: commands of programs, MADs that
//! came to queue pair 1, and the time. It answers with MADs to transmit, events, questions and the
//! next deadline. On the wire it is Linux's `ib_cm` on RoCEv2; towards programs it has the shape of
//! `/dev/infiniband/rdma_cm`, so that a program, a fake of that file and a simulation drive the
//! same code. The same seed and the same inputs give the same bytes.
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
//! A manager never touches a QP. [`qp_attr`](Manager::qp_attr) says what an id's QP must be set to,
//! as `rdma_init_qp_attr` does; the caller applies it: before [`accept`](Manager::accept), and
//! after a CONNECT_RESPONSE before [`establish`](Manager::establish). Nor does it look up a route:
//! [`resolve_addr`](Manager::resolve_addr) becomes a [`Query`], which the caller answers.
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
//! A row is a state, with the inputs that it takes and where they lead. Commands begin with Send,
//! messages with Recv; `GiveUp` is the last retransmission unanswered, `Expire` the end of
//! timewait. What is not there is refused: a command fails with EINVAL, a message is counted. A
//! test compares this table with the declared one.
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
//! - A DREQ is retransmitted also when its id was destroyed: Linux sends it once, and a lost one
//!   leaves the peer connected.
//! - Crossing DREQs: this side answers at once. In Linux both sides wait for their programs.
//! - An unanswered REQ or REP is given up with a REJ 4 (§12.6.7), and a REP or RTU for an unknown
//!   connection gets a REJ 6: otherwise a lost REJ leaves one side connected alone.
//! - A refused REQ and an answered SIDR_REQ are remembered for a while, so that a duplicate gets
//!   the same answer. In Linux it is a new request.
//! - A message finds a connection by its comm ids and by its source, which must be the peer's
//!   address; a REQ or REP that a stranger sends with a peer's GUID and QPN makes nothing stale.
//!   Linux looks at comm ids and GUIDs only.
//! - The primary path of a REQ, and the source in its IP header, must be where the REQ comes from:
//!   REJ 12 and 28.
//! - A peer that has not answered gets at most [`UNPROVEN_MESSAGES`](limits::UNPROVEN_MESSAGES)
//!   messages for each REQ. So that a lost RTU does no harm, the side that sent it repeats it a few
//!   times without being asked.
//! - Half-open requests are bounded in total and for each address; the oldest of the address that
//!   has the most gives way. So it does in a full backlog, where Linux drops the new one.
//! - A request for which nothing listens may wait for its listener for a moment
//!   ([`Config::listen_grace`]).
//! - A LAP for a connection is refused by an APR with status 2; Linux ignores it.
//! - Timers may be shorter ([`Retransmission`]), and no peer can make them longer than [`limits`]
//!   says. A shorter one does not retransmit while the peer answers what was sent before.
//! - Whether the way back to a requester leaves by the interface where the REQ came in is for the
//!   caller to check.
//! - Multicast groups of IPv6 work.
//! - If the program's QP does selective repeat, the REQ offers it, and the REP accepts it, by a bit
//!   that is reserved ([`selective_repeat`](Manager::selective_repeat)). Without it, the messages
//!   are Linux's.
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
//! | `receive`, `early` | the way in: what a MAD must be before it is looked at, and requests that wait for their listener |
//! | `half_open` | bounds of requests whose peer has not answered |
//! | `message`, `private_data`, `path` | MADs, the IP header, paths and their times |
//! | `attributes` | what a QP must be set to |
//! | `channel`, `transmit` | event channels; transmission and retransmission |
//! | `timers`, `loss` | deadlines and schedules of retransmission; which messages were lost |
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
mod channel;
mod config;
mod connection;
mod counters;
mod device;
mod disconnect;
mod early;
mod error;
mod event;
mod half_open;
mod id;
pub mod limits;
mod loss;
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
mod transmit;

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
pub use message::RejectReason;
pub use multicast::{Group, JoinMode};
pub use path::PathRecord;
pub use private_data::{PrivateData, private_data_len};
pub use receive::{Addressee, Disposition, Received, Unclaimed};
pub use request::ConnParam;
pub use state::{IdState, State};
pub use table::{ChannelId, CmId, DeviceId};
pub use transmit::Transmit;

use crate::secret::SecretRandom;
pub use crate::secret::Seed;
use crate::wire::cm::PortSpace;
use channel::Channel;
use connection::{Connection, RemoteKey};
use early::EarlyRequests;
use half_open::SourceQueue;
use id::Id;
use loss::Peers;
use space::Spaces;
use table::{ConnectionId, Table};
use timers::Timers;

/// Numbers of the objects that a manager holds; a manager without ids and with an expired timewait
/// holds none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named by what it counts")]
pub struct Usage {
    pub ids: usize,
    pub connections: usize,
    pub lingering: usize,
    pub bindings: usize,
    pub timers: usize,
    pub peers: usize,
    pub events: usize,
    pub transmits: usize,
    pub queries: usize,
    /// Requests that wait for their listener.
    pub early: usize,
    /// Requests that the program has not taken, or that it accepted and whose peer has not
    /// answered.
    pub half_open: usize,
    /// Entries by which messages find connections.
    pub index_entries: usize,
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
    /// Connections by the peer's comm id.
    by_remote_id: BTreeMap<RemoteKey, ConnectionId>,
    /// Connections by the peer's QPN.
    by_remote_qpn: BTreeMap<RemoteKey, ConnectionId>,
    /// Connections by the peer's address and SIDR request.
    by_sidr: BTreeMap<([u8; 16], u32), ConnectionId>,
    /// Connections that belong to no id, the oldest first.
    lingering: BTreeMap<u64, ConnectionId>,
    /// Number of lingering connections that there ever were.
    lingered: u64,
    timers: Timers,
    peers: Peers,
    transmits: VecDeque<Transmit>,
    queries: VecDeque<Query>,
    unclaimed: VecDeque<Unclaimed>,
    early: EarlyRequests,
    half_open: SourceQueue<ConnectionId>,
    /// Number of queries that there ever were.
    queried: u64,
    readable: VecDeque<ChannelId>,
    counters: Counters,
}

impl Manager {
    /// A manager without devices. Its comm ids, PSNs and ephemeral ports follow from `seed`, which
    /// in a live process is secret: 128 bits from the operating system ([`Seed::from_bytes`]).
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
            peers: Peers::default(),
            transmits: VecDeque::new(),
            queries: VecDeque::new(),
            unclaimed: VecDeque::new(),
            early: EarlyRequests::default(),
            half_open: SourceQueue::default(),
            queried: 0,
            readable: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the numbers of the objects that it holds.
    pub fn usage(&self) -> Usage {
        Usage {
            ids: self.ids.len(),
            connections: self.connections.len(),
            lingering: self.lingering.len(),
            bindings: self.spaces.len(),
            timers: self.timers.len(),
            peers: self.peers.len(),
            events: self.channels.iter().map(|(_, channel)| channel.events.len()).sum(),
            transmits: self.transmits.len(),
            queries: self.queries.len(),
            early: self.early.len(),
            half_open: self.half_open.len(),
            index_entries: self.by_local_id.len()
                + self.by_remote_id.len()
                + self.by_remote_qpn.len()
                + self.by_sidr.len(),
        }
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

    /// Whether an id may bind what others have bound (`RDMA_OPTION_ID_REUSEADDR`).
    pub fn reuses_address(&self, id: CmId) -> bool {
        self.ids.get(id).is_some_and(|id| id.reuse)
    }

    /// The next question to the caller. New ones come with [`resolve_addr`](Self::resolve_addr).
    #[must_use]
    pub fn poll_query(&mut self) -> Option<Query> {
        self.queries.pop_front()
    }
}
