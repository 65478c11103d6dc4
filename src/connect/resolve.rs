//! The source address and the NIC that reach a destination.
//!
//! The kernel's route decides. A destination on this host is reachable at once; another one when
//! the kernel knows the hardware address of the next hop, as Linux's `rdma_cm` has it: a host that
//! does not answer fails the resolution in time, instead of the connection much later.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::cm::{DeviceId, Manager, Query, Resolution};
use crate::link::interface::Interface;
use crate::link::route::{Route, RouteCache, probe};
use crate::time::Instant;
use crate::verbs::{Errno, Mtu};

/// Interval at which the kernel is queried for a neighbor that it did not know.
const RECHECK: Duration = Duration::from_millis(10);

/// The hop limit of packets, as Linux has it.
const HOP_LIMIT: u8 = 64;

/// Cache of the kernel's routes, and resolutions that wait for a neighbor.
#[derive(Debug)]
pub(super) struct Resolver {
    /// Route cache; if it could not be opened, a look-up tries once more.
    routes: Option<RouteCache>,
    pending: Vec<Pending>,
    recheck: Option<Instant>,
}

#[derive(Debug)]
struct Pending {
    query: Query,
    resolution: Resolution,
}

/// The error number of a failed lookup.
fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::ENETUNREACH, Errno)
}

/// Chooses among the manager's devices.
fn choose(routes: &mut RouteCache, manager: &Manager, query: &Query) -> Result<Resolution, Errno> {
    let route = routes.route_to(query.destination, query.source).map_err(|error| errno(&error))?;
    let found = match query.source.or(route.source) {
        Some(source) => manager.device_at(source).map(|device| (device, source)),
        None => None,
    };
    let found = match query.source {
        Some(_) => found,
        None => found.or_else(|| neighbor_device(routes, manager, query.destination, &route)),
    };
    let (device, source) = found.ok_or(Errno::ENODEV)?;
    let mtu = if route.is_local { mtu_at(routes, query.destination.ip()) } else { None };
    Ok(Resolution { device, source, hop_limit: HOP_LIMIT, mtu })
}

/// The MTU of a port at an address of this host. The packets go by loopback, whose MTU says
/// nothing: a port at `eth0` takes no more than `eth0` carries. Any port of loopback itself takes
/// the largest.
fn mtu_at(routes: &mut RouteCache, destination: IpAddr) -> Option<Mtu> {
    if destination.is_loopback() {
        return None;
    }
    let all = routes.interfaces().unwrap_or_default();
    let found = all.iter().find(|interface| interface.addresses.contains(&destination));
    found.and_then(Interface::verbs_mtu)
}

/// The device to take when none has the address that the kernel would send from: one with an
/// address of the same interface, or for a destination on this host, any.
fn neighbor_device(
    routes: &mut RouteCache,
    manager: &Manager,
    destination: SocketAddr,
    route: &Route,
) -> Option<(DeviceId, IpAddr)> {
    let is_same_family = |address: &IpAddr| address.is_ipv4() == destination.is_ipv4();
    let mut own: Vec<(DeviceId, IpAddr)> = Vec::new();
    for (device, entry) in manager.devices() {
        let addresses = entry.addresses.iter().map(|(address, _)| *address);
        own.extend(addresses.filter(is_same_family).map(|address| (device, address)));
    }
    // All of 127.0.0.0/8 is the loopback interface's: there is no need to ask which addresses that
    // has.
    if destination.ip().is_loopback()
        && let Some(own) = own.iter().find(|(_, address)| address.is_loopback())
    {
        return Some(*own);
    }
    let on_interface: &[IpAddr] = match route.interface {
        0 => &[],
        index => {
            let all = routes.interfaces().unwrap_or_default();
            let found = all.iter().find(|interface| interface.index == index);
            found.map(|interface| &*interface.addresses).unwrap_or_default()
        }
    };
    let is_on_it = |address: IpAddr| {
        on_interface.contains(&address)
            || address.is_loopback() && on_interface.iter().any(IpAddr::is_loopback)
    };
    let same = own.iter().find(|(_, address)| is_on_it(*address));
    let any =
        || own.iter().find(|(_, address)| !address.is_loopback() || destination.ip().is_loopback());
    same.or_else(|| if route.is_local { any() } else { None }).copied()
}

/// Whether the next hop to the destination of a question is known. If the kernel does not say, the
/// connection will.
fn is_reachable(routes: &mut RouteCache, query: &Query) -> bool {
    routes.is_reachable(query.destination, query.source).unwrap_or(true)
}

impl Resolver {
    /// Opens a resolver in the network namespace of the calling thread.
    pub(super) fn new() -> Self {
        Self { routes: RouteCache::open().ok(), pending: Vec::new(), recheck: None }
    }

    /// The kernel's present routes.
    fn routes(&mut self) -> io::Result<&mut RouteCache> {
        match &mut self.routes {
            Some(routes) => {
                routes.refresh();
                Ok(routes)
            }
            none => Ok(none.insert(RouteCache::open()?)),
        }
    }

    /// Returns the route to an address, from `source` if that is given.
    pub(super) fn route_to(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> io::Result<Route> {
        self.routes()?.route_to(destination, source)
    }

    /// Answers the manager's questions, or begins to look for a neighbor.
    pub(super) fn answer(&mut self, manager: &mut Manager, now: Instant) {
        while let Some(query) = manager.poll_query() {
            let answer = match self.routes() {
                Err(error) => Err(errno(&error)),
                Ok(routes) => match choose(routes, manager, &query) {
                    Ok(resolution) if !is_reachable(routes, &query) => {
                        let _ = probe(query.destination);
                        self.pending.push(Pending { query, resolution });
                        self.recheck.get_or_insert_with(|| now.saturating_add(RECHECK));
                        continue;
                    }
                    chosen => chosen,
                },
            };
            manager.handle_resolution(query.token, answer);
        }
    }

    /// Looks for the neighbors once more, if it is time.
    pub(super) fn handle_timeout(&mut self, manager: &mut Manager, now: Instant) {
        if self.recheck.is_none_or(|at| at > now) {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|Pending { query, resolution }| {
            if !manager.is_resolving(query.token) {
                return false;
            }
            let is_there = self.routes().map_or(true, |routes| is_reachable(routes, query));
            if is_there {
                manager.handle_resolution(query.token, Ok(*resolution));
            }
            !is_there
        });
        self.pending = pending;
        self.recheck = (!self.pending.is_empty()).then(|| now.saturating_add(RECHECK));
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) wants to be called next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.recheck
    }
}
