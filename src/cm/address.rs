//! Operations on the addresses of an id: bind, listen, resolve; and its options.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use super::error::Error;
use super::event::{EventKind, EventParam};
use super::id::{Backlog, IdOption, Resolving};
use super::path::PathRecord;
use super::space::Binding;
use super::state::IdState;
use super::table::{CmId, DeviceId};
use super::timers::Owner;
use super::{Id, Manager};
use crate::time::Instant;
use crate::verbs::{Errno, Mtu, QpType};
use crate::wire::cm::PortSpace;

/// Token that matches an answer to its [`Query`]. An answer to a query that is no longer open is
/// ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResolveToken {
    id: CmId,
    serial: u64,
}

/// A query to the caller for the device and the local address that reach a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Token for the answer.
    pub token: ResolveToken,
    /// The id that resolves the address.
    pub id: CmId,
    /// The source address, if the program chose one.
    pub source: Option<IpAddr>,
    /// The address to reach.
    pub destination: SocketAddr,
    /// The type of service, if the program chose one.
    pub tos: Option<u8>,
}

/// The answer to a [`Query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The device.
    pub device: DeviceId,
    /// Local address.
    pub source: IpAddr,
    /// The hop limit of the route.
    pub hop_limit: u8,
    /// The MTU of the port at the destination, which is known if the destination is on this host.
    /// The path MTU is the smaller of this and the device's.
    pub mtu: Option<Mtu>,
}

/// Returns the unspecified address of the same family.
fn wildcard_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl Manager {
    fn id_mut(&mut self, id: CmId) -> Result<&mut Id, Error> {
        self.ids.get_mut(id).ok_or(Error::NotFound("id"))
    }

    pub(super) fn id(&self, id: CmId) -> Result<&Id, Error> {
        self.ids.get(id).ok_or(Error::NotFound("id"))
    }

    /// Binds an id to an address of a device, or to a wildcard; port 0 stands for an ephemeral
    /// port.
    pub fn bind(&mut self, id: CmId, address: SocketAddr) -> Result<(), Error> {
        self.bind_unless(id, address, |_| false)
    }

    /// Binds an id as [`bind`](Self::bind) does, but to no ephemeral port that `is_taken`, because
    /// another manager of the address listens there.
    pub(crate) fn bind_unless(
        &mut self,
        id: CmId,
        address: SocketAddr,
        is_taken: impl Fn(SocketAddr) -> bool,
    ) -> Result<(), Error> {
        self.bind_for(id, address, None, &is_taken)
    }

    fn bind_for(
        &mut self,
        id: CmId,
        address: SocketAddr,
        destination: Option<SocketAddr>,
        is_taken: &dyn Fn(SocketAddr) -> bool,
    ) -> Result<(), Error> {
        let chance = self.random.next();
        let bind_v6_only = self.config.bind_v6_only;
        let entry = self.id(id)?;
        entry.require(IdState::Idle)?;
        if entry.space == PortSpace::IPOIB {
            return Err(Error::Argument("port space: IP over InfiniBand on Ethernet"));
        }
        if let SocketAddr::V6(v6) = address
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            return Err(Error::Argument("link-local address without a scope"));
        }
        let listens_at = self.bound_address(address);
        let device = match listens_at.ip() {
            ip if ip.is_unspecified() => None,
            ip => Some(self.device_at(ip).ok_or(Error::NoDevice)?),
        };
        let family_only = entry.family_only.unwrap_or_else(|| address.is_ipv4() || bind_v6_only);
        let binding = Binding {
            id,
            address: listens_at.ip(),
            reuse: entry.reuse,
            family_only,
            destination,
            listening: false,
        };
        let (space, ports) = (entry.space, self.config.ephemeral_ports.clone());
        let is_taken = |port| is_taken(SocketAddr::new(listens_at.ip(), port));
        let port = self.spaces.bind(space, address.port(), binding, &ports, chance, &is_taken)?;
        let entry = self.id_mut(id)?;
        let mut source = address;
        source.set_port(port);
        entry.source = Some(source);
        entry.device = device;
        entry.owns_port = true;
        entry.state = IdState::AddrBound;
        Ok(())
    }

    /// Returns the address at which an id that is bound to `address` gets requests: a wildcard in
    /// place of a loopback address that no device has, if
    /// [`Config::loopback_is_wildcard`](super::Config) is set.
    pub fn bound_address(&self, address: SocketAddr) -> SocketAddr {
        let ip = address.ip();
        if !self.config.loopback_is_wildcard || !ip.is_loopback() || self.device_at(ip).is_some() {
            return address;
        }
        SocketAddr::new(wildcard_like(ip), address.port())
    }

    /// Lets an id take connection requests, of which at most `backlog` wait in its channel; 0
    /// stands for the limit, to which larger values are reduced. An id without an address is bound
    /// to 0.0.0.0 and an ephemeral port.
    pub fn listen(&mut self, id: CmId, backlog: u32) -> Result<(), Error> {
        if self.id(id)?.state == IdState::Idle {
            self.bind(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let entry = self.id(id)?;
        entry.require(IdState::AddrBound)?;
        let port = entry.source.ok_or(Error::Argument("address"))?.port();
        self.spaces.listen(entry.space, port, id)?;
        let limit = match backlog {
            0 => self.config.limits.backlog,
            backlog => backlog.min(self.config.limits.backlog),
        };
        let entry = self.id_mut(id)?;
        entry.backlog = Backlog { limit, ..Backlog::default() };
        entry.state = IdState::Listen;
        Ok(())
    }

    /// Resolves the device and the local address that reach `destination`: queues a [`Query`],
    /// which the caller answers with [`handle_resolution`](Self::handle_resolution). ADDR_RESOLVED
    /// or ADDR_ERROR follows, the latter also if no answer comes within `timeout`. An id that is
    /// not bound yet is bound to `source`, or to a wildcard.
    pub fn resolve_addr(
        &mut self,
        now: Instant,
        id: CmId,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.require_event_room(id)?;
        let entry = self.id(id)?;
        let bound = match entry.state {
            IdState::Idle => source.map(|source| source.is_ipv4()),
            IdState::AddrBound => entry.source.map(|source| source.is_ipv4()),
            state => return Err(Error::State(state)),
        };
        if bound.is_some_and(|is_ipv4| is_ipv4 != destination.is_ipv4()) {
            return Err(Error::Argument("address: the families differ"));
        }
        if destination.ip().is_unspecified() {
            return Err(Error::Argument("destination address"));
        }
        if entry.state == IdState::Idle {
            let any = wildcard_like(destination.ip());
            self.bind_for(
                id,
                source.unwrap_or_else(|| SocketAddr::new(any, 0)),
                Some(destination),
                &|_| false,
            )?;
        }
        self.queried += 1;
        let serial = self.queried;
        let entry = self.id_mut(id)?;
        entry.state = IdState::AddrQuery;
        entry.destination = Some(destination);
        // An id that is bound to a wildcard has no device yet.
        let wanted = entry.source.filter(|_| entry.device.is_some()).map(|source| source.ip());
        let (space, port, tos) = (entry.space, entry.source.map_or(0, |s| s.port()), entry.tos);
        entry.resolving = Some(Resolving { serial, deadline: None });
        self.spaces.update(space, port, id, |binding| binding.destination = Some(destination));
        self.set_id_deadline(id, Some(now.saturating_add(timeout)));
        let token = ResolveToken { id, serial };
        self.queries.push_back(Query { token, id, source: wanted, destination, tos });
        Ok(())
    }

    fn set_id_deadline(&mut self, id: CmId, deadline: Option<Instant>) {
        if let Some(resolving) = self.ids.get_mut(id).and_then(|id| id.resolving.as_mut()) {
            self.timers.set(Owner::Id(id), &mut resolving.deadline, deadline);
        }
    }

    /// Cancels the query of an id.
    pub(super) fn cancel_query(&mut self, id: CmId) {
        self.set_id_deadline(id, None);
        if let Some(entry) = self.ids.get_mut(id) {
            entry.resolving = None;
        }
        self.queries.retain(|query| query.id != id);
    }

    /// Whether a query is still open: its id exists, it was not answered and has not timed out.
    pub fn is_resolving(&self, token: ResolveToken) -> bool {
        let is_open =
            |entry: &Id| entry.resolving.is_some_and(|query| query.serial == token.serial);
        self.ids.get(token.id).is_some_and(is_open)
    }

    /// Handles the answer to a [`Query`]: a device and an address, or an error. Returns whether the
    /// query was still open.
    pub fn handle_resolution(
        &mut self,
        token: ResolveToken,
        answer: Result<Resolution, Errno>,
    ) -> bool {
        let id = token.id;
        if !self.is_resolving(token) {
            return false;
        }
        self.cancel_query(id);
        match answer.and_then(|resolution| self.apply_resolution(id, resolution)) {
            Ok(()) => self.deliver(id, EventKind::AddrResolved, 0, EventParam::None),
            Err(errno) => self.resolution_failed(id, errno),
        }
        true
    }

    /// Assigns the device and the local address that reach its destination to an id.
    fn apply_resolution(&mut self, id: CmId, resolution: Resolution) -> Result<(), Errno> {
        let device = self.devices.get(resolution.device).ok_or(Errno::ENODEV)?;
        if !device.has(resolution.source) {
            return Err(Errno::ENODEV);
        }
        let entry = self.ids.get_mut(id).ok_or(Errno::ENOENT)?;
        if entry.device.is_some_and(|bound| bound != resolution.device) {
            return Err(Errno::ENODEV);
        }
        if let Some(source) = &mut entry.source
            && entry.device.is_none()
        {
            source.set_ip(resolution.source);
        }
        entry.device = Some(resolution.device);
        entry.hop_limit = resolution.hop_limit;
        entry.peer_mtu = resolution.mtu;
        entry.state = IdState::AddrResolved;
        let (space, port) = (entry.space, entry.source.map_or(0, |source| source.port()));
        let address = entry.source.map_or(resolution.source, |source| source.ip());
        self.spaces.update(space, port, id, |binding| binding.address = address);
        Ok(())
    }

    pub(super) fn resolution_timed_out(&mut self, id: CmId) {
        if let Some(resolving) = self.ids.get_mut(id).and_then(|id| id.resolving.as_mut()) {
            resolving.deadline = None;
        }
        self.cancel_query(id);
        self.resolution_failed(id, Errno::ETIMEDOUT);
    }

    fn resolution_failed(&mut self, id: CmId, errno: Errno) {
        if let Some(entry) = self.ids.get_mut(id) {
            entry.state = IdState::AddrBound;
        }
        self.deliver(id, EventKind::AddrError, -errno.0, EventParam::None);
    }

    /// Resolves the path to the destination. On RoCE the path follows from the addresses, so
    /// ROUTE_RESOLVED is delivered at once.
    pub fn resolve_route(&mut self, id: CmId, timeout: Duration) -> Result<(), Error> {
        if timeout.is_zero() {
            return Err(Error::Argument("timeout"));
        }
        self.require_event_room(id)?;
        let entry = self.id(id)?;
        entry.require(IdState::AddrResolved)?;
        let device = entry.device.and_then(|device| self.devices.get(device));
        let device = device.ok_or(Error::NoDevice)?;
        let (Some(source), Some(destination)) = (entry.source, entry.destination) else {
            return Err(Error::Argument("address"));
        };
        let life_time = match entry.ack_timeout {
            Some(timeout) => timeout.saturating_sub(1),
            None => self.config.packet_life_time,
        };
        let path = PathRecord {
            hop_limit: entry.hop_limit,
            mtu: entry.peer_mtu.map_or(device.mtu, |mtu| mtu.min(device.mtu)),
            traffic_class: entry.tos.unwrap_or(0),
            packet_life_time: life_time,
            ..PathRecord::new(device, source, destination)
        };
        self.take_path(id, path)
    }

    fn take_path(&mut self, id: CmId, path: PathRecord) -> Result<(), Error> {
        let entry = self.id_mut(id)?;
        entry.path = Some(path);
        entry.state = IdState::RouteResolved;
        self.deliver(id, EventKind::RouteResolved, 0, EventParam::None);
        Ok(())
    }

    /// Sets an option of an id.
    pub fn set_option(&mut self, id: CmId, option: IdOption) -> Result<(), Error> {
        let entry = self.id_mut(id)?;
        match option {
            IdOption::Tos(tos) => entry.tos = Some(tos),
            IdOption::ReuseAddr(reuse) => {
                let is_allowed = match entry.state {
                    IdState::Idle => true,
                    IdState::Listen => false,
                    _ => reuse,
                };
                if !is_allowed {
                    return Err(Error::State(entry.state));
                }
                entry.reuse = reuse;
            }
            IdOption::AfOnly(family_only) => {
                if !matches!(entry.state, IdState::Idle | IdState::AddrBound) {
                    return Err(Error::State(entry.state));
                }
                entry.family_only = Some(family_only);
            }
            IdOption::AckTimeout(timeout) => {
                if !matches!(entry.qp_type, QpType::Rc | QpType::XrcSend) {
                    return Err(Error::Argument("QP type: it has no ACK timeout"));
                }
                entry.ack_timeout = Some(timeout.min(31));
            }
            IdOption::Path(path) => {
                entry.require(IdState::AddrResolved)?;
                self.require_event_room(id)?;
                return self.take_path(id, path);
            }
        }
        let (space, reuse, family_only) = (entry.space, entry.reuse, entry.family_only);
        if entry.owns_port
            && let Some(source) = entry.source
        {
            self.spaces.update(space, source.port(), id, |binding| {
                binding.reuse = reuse;
                binding.family_only = family_only.unwrap_or(binding.family_only);
            });
        }
        Ok(())
    }
}
