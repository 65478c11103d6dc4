//! The source address and the NIC that reach a destination.
//!
//! The kernel's route decides. A destination on this host is reachable at once; another one when the kernel knows the
//! hardware address of the next hop, as Linux's `rdma_cm` has it: a host that does not answer fails the resolution in
//! time, instead of the connection much later.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::cm::{DeviceId, Manager, Query, Resolution};
use crate::link::interface::{Interface, interfaces};
use crate::link::route::{Route, is_reachable, probe, route_to};
use crate::time::Instant;
use crate::verbs::{Errno, Mtu};

/// How often the kernel is asked whether it knows a neighbor by now.
const RECHECK: Duration = Duration::from_millis(10);

/// The hop limit of packets, as Linux has it.
const HOP_LIMIT: u8 = 64;

/// Resolutions that wait for a neighbor.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    pending: Vec<Pending>,
    recheck: Option<Instant>,
}

#[derive(Debug)]
struct Pending {
    query: Query,
    route: Route,
    resolution: Resolution,
}

/// The error number of a failed lookup.
fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::ENETUNREACH, Errno)
}

/// Chooses among the manager's devices.
fn choose(manager: &Manager, query: &Query) -> Result<(Resolution, Route), Errno> {
    let route = route_to(query.destination, query.source).map_err(|error| errno(&error))?;
    let found = match query.source.or(route.source) {
        Some(source) => manager.device_at(source).map(|device| (device, source)),
        None => None,
    };
    let found = match query.source {
        Some(_) => found,
        None => found.or_else(|| neighbor_device(manager, query.destination, &route)),
    };
    let (device, source) = found.ok_or(Errno::ENODEV)?;
    let mtu = if route.is_local { mtu_at(query.destination.ip()) } else { None };
    Ok((Resolution { device, source, hop_limit: HOP_LIMIT, mtu }, route))
}

/// The MTU of a port at an address of this host. The packets go by loopback, whose MTU says nothing: a port at `eth0`
/// takes no more than `eth0` carries. Any port of loopback itself takes the largest.
fn mtu_at(destination: IpAddr) -> Option<Mtu> {
    if destination.is_loopback() {
        return None;
    }
    let all = interfaces().unwrap_or_default();
    let found = all.iter().find(|interface| interface.addresses.contains(&destination));
    found.and_then(Interface::verbs_mtu)
}

/// The device to take when none has the address that the kernel would send from: one with an address of the same
/// interface, or for a destination on this host, any.
fn neighbor_device(
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
    // All of 127.0.0.0/8 is the loopback interface's: there is no need to ask which addresses that has.
    if destination.ip().is_loopback()
        && let Some(own) = own.iter().find(|(_, address)| address.is_loopback())
    {
        return Some(*own);
    }
    let on_interface: Vec<IpAddr> = match route.interface {
        0 => Vec::new(),
        index => {
            let all = interfaces().unwrap_or_default();
            let found = all.into_iter().find(|interface| interface.index == index);
            found.map(|interface| interface.addresses).unwrap_or_default()
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

impl Resolver {
    /// Answers the manager's questions, or begins to look for a neighbor.
    pub(super) fn answer(&mut self, manager: &mut Manager, now: Instant) {
        while let Some(query) = manager.poll_query() {
            match choose(manager, &query) {
                Err(error) => {
                    manager.handle_resolution(query.token, Err(error));
                }
                Ok((resolution, route)) => {
                    // If the kernel does not say, the connection will.
                    if is_reachable(&route).unwrap_or(true) {
                        manager.handle_resolution(query.token, Ok(resolution));
                    } else {
                        let _ = probe(query.destination);
                        self.pending.push(Pending { query, route, resolution });
                        self.recheck.get_or_insert_with(|| now.saturating_add(RECHECK));
                    }
                }
            }
        }
    }

    /// Looks for the neighbors once more, if it is time.
    pub(super) fn handle_timeout(&mut self, manager: &mut Manager, now: Instant) {
        if self.recheck.is_none_or(|at| at > now) {
            return;
        }
        self.pending.retain(|pending| {
            if !manager.is_resolving(pending.query.token) {
                return false;
            }
            let is_there = is_reachable(&pending.route).unwrap_or(true);
            if is_there {
                manager.handle_resolution(pending.query.token, Ok(pending.resolution));
            }
            !is_there
        });
        self.recheck = (!self.pending.is_empty()).then(|| now.saturating_add(RECHECK));
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.recheck
    }
}
