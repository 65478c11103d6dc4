//! The kernel's routes and neighbors: from which address, over which interface and through which
//! neighbor an address is reached.
//!
//! Neither needs a privilege. [`route_to`] looks them up in the network namespace of the calling
//! thread. `RouteCache` remembers what it found, until the kernel announces a change.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::interface::{Interface, interfaces};
use super::netlink::{
    Announcements, Ask, Netlink, address, family, find_attribute, half, octets, push_attribute,
    word,
};

// Numbers of `linux/rtnetlink.h` and `linux/neighbor.h`.
/// Message types of a request and of its answer.
const GET_ROUTE: (u16, u16) = (26, 24);
const GET_NEIGHBOR: (u16, u16) = (30, 28);
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_SOURCE: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_PREFERRED_SOURCE: u16 = 7;
/// A gateway of another family than the destination.
const ROUTE_VIA: u16 = 18;
const ROUTE_UNICAST: u8 = 1;
const ROUTE_LOCAL: u8 = 2;
const ROUTE_MULTICAST: u8 = 5;
const NEIGHBOR_DESTINATION: u16 = 1;
/// States in which the hardware address holds: reachable, stale, delay, probe, no ARP, permanent.
const NEIGHBOR_VALID: u16 = 0xde;

/// The discard service, to which a datagram makes the kernel look for a neighbor.
const DISCARD_PORT: u16 = 9;

/// The route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address that packets come from, if the kernel prefers one.
    pub source: Option<IpAddr>,
    /// The index of the interface that they leave by.
    pub interface: u32,
    /// The neighbor that they go to; `None` if the destination is on this host, or a group.
    pub next_hop: Option<IpAddr>,
    /// Whether the destination is an address of this host.
    pub is_local: bool,
}

/// Returns the route to `destination`, from `source` if that is given. An address that cannot be
/// reached is the error of the kernel, mostly `ENETUNREACH`.
pub fn route_to(destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Route> {
    look_up_route(&mut Netlink::open()?, destination, source)
}

fn look_up_route(
    netlink: &mut Netlink,
    destination: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<Route> {
    let target = destination.ip();
    let bits = if target.is_ipv4() { 32 } else { 128 };
    let source_bits = if source.is_some() { bits } else { 0 };
    let mut body = vec![family(target), bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    push_attribute(&mut body, ROUTE_DESTINATION, &octets(target));
    if let Some(source) = source {
        push_attribute(&mut body, ROUTE_SOURCE, &octets(source));
    }
    if let SocketAddr::V6(v6) = destination
        && v6.scope_id() != 0
    {
        push_attribute(&mut body, ROUTE_INTERFACE, &v6.scope_id().to_ne_bytes());
    }
    let mut found = None;
    netlink.ask(GET_ROUTE, Ask::One, &body, |answer| {
        found = parse_route(answer, target);
    })?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
}

/// The route that an answer is about.
fn parse_route(answer: &[u8], destination: IpAddr) -> Option<Route> {
    let (header, attributes) = answer.split_at_checked(12)?;
    let kind = *header.get(7)?;
    if !matches!(kind, ROUTE_UNICAST | ROUTE_LOCAL | ROUTE_MULTICAST) {
        return None;
    }
    let via = find_attribute(attributes, ROUTE_VIA).and_then(|via| via.get(2..));
    let gateway = find_attribute(attributes, ROUTE_GATEWAY).or(via).and_then(address);
    let next_hop = (kind == ROUTE_UNICAST).then(|| gateway.unwrap_or(destination));
    let interface = find_attribute(attributes, ROUTE_INTERFACE);
    Some(Route {
        source: find_attribute(attributes, ROUTE_PREFERRED_SOURCE).and_then(address),
        interface: interface.and_then(|index| word(index, 0)).unwrap_or(0),
        next_hop: next_hop.filter(|hop| !hop.is_multicast()),
        is_local: kind == ROUTE_LOCAL,
    })
}

/// Whether the kernel knows the hardware address of a route's next hop. A route that needs none is
/// always reachable.
fn is_reachable(netlink: &mut Netlink, route: &Route) -> io::Result<bool> {
    let Some(hop) = route.next_hop else { return Ok(true) };
    let mut body = vec![family(hop), 0, 0, 0];
    body.extend(route.interface.to_ne_bytes());
    body.extend([0; 4]);
    push_attribute(&mut body, NEIGHBOR_DESTINATION, &octets(hop));
    let mut is_valid = false;
    let asked = netlink.ask(GET_NEIGHBOR, Ask::One, &body, |answer| {
        is_valid = half(answer, 8).is_some_and(|state| state & NEIGHBOR_VALID != 0);
    });
    match asked {
        Ok(()) => Ok(is_valid),
        // There is no such entry.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Changes of anything that a route depends on: `RTMGRP_LINK`, `RTMGRP_NEIGH`, and addresses,
/// routes and rules of IPv4 and of IPv6; and next hops that have a number (`RTNLGRP_NEXTHOP`).
const ANNOUNCED: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31;

/// Maximum number of routes that are remembered. A program that connects to more peers starts anew.
const ROUTES_MAX: usize = 1024;

/// Routes, neighbors and interfaces, as the kernel has them: what was looked up is valid until the
/// kernel announces a change of any of them, and [`refresh`](Self::refresh) notices. They are those
/// of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct RouteCache {
    netlink: Netlink,
    announcements: Announcements,
    routes: HashMap<(SocketAddr, Option<IpAddr>), Known>,
    interfaces: Option<Vec<Interface>>,
}

/// A cached route.
#[derive(Clone, Copy, Debug)]
struct Known {
    route: Route,
    /// Whether the kernel knew the hardware address of its next hop.
    is_reachable: bool,
}

impl RouteCache {
    /// Opens a cache in the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        let announcements = Announcements::open(ANNOUNCED)?;
        let netlink = Netlink::open()?;
        Ok(Self { netlink, announcements, routes: HashMap::new(), interfaces: None })
    }

    /// Returns the route as [`route_to`](fn@route_to) does.
    pub(crate) fn route_to(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> io::Result<Route> {
        self.look_up(destination, source).map(|known| known.route)
    }

    /// Whether the kernel knows the hardware address of the next hop of a route. A route that needs
    /// none is always reachable.
    pub(crate) fn is_reachable(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> io::Result<bool> {
        let Known { route, is_reachable } = self.look_up(destination, source)?;
        if is_reachable {
            return Ok(true);
        }
        let is_reachable = self::is_reachable(&mut self.netlink, &route)?;
        if let Some(known) = self.routes.get_mut(&key(destination, source)) {
            known.is_reachable = is_reachable;
        }
        Ok(is_reachable)
    }

    /// Every interface, by index.
    pub(crate) fn interfaces(&mut self) -> io::Result<&[Interface]> {
        match &mut self.interfaces {
            Some(known) => Ok(known),
            unknown => Ok(unknown.insert(interfaces()?)),
        }
    }

    fn look_up(&mut self, destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Known> {
        let key = key(destination, source);
        if let Some(known) = self.routes.get(&key) {
            return Ok(*known);
        }
        let route = look_up_route(&mut self.netlink, destination, source)?;
        let known = Known { route, is_reachable: route.next_hop.is_none() };
        if self.routes.len() >= ROUTES_MAX {
            self.routes.clear();
        }
        self.routes.insert(key, known);
        Ok(known)
    }

    /// Forgets everything if the kernel has announced a change. Called before a question that shall
    /// have the present answer.
    pub(crate) fn refresh(&mut self) {
        if self.announcements.discard() {
            self.routes.clear();
            self.interfaces = None;
        }
    }
}

/// Returns the key of a route: the destination without its port, and the source.
fn key(mut destination: SocketAddr, source: Option<IpAddr>) -> (SocketAddr, Option<IpAddr>) {
    destination.set_port(0);
    (destination, source)
}

/// Makes the kernel look for the next hop to `destination`: sends an empty datagram to its discard
/// port.
pub(crate) fn probe(destination: SocketAddr) -> io::Result<()> {
    let domain = Domain::for_address(destination);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    let mut target = destination;
    target.set_port(DISCARD_PORT);
    socket.send_to(&[], &target.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_local_and_reachable() {
        let mut cache = RouteCache::open().unwrap();
        for address in ["127.0.0.1:1", "127.3.2.1:1", "[::1]:1"] {
            let route = route_to(address.parse().unwrap(), None).unwrap();
            assert!(route.is_local && route.next_hop.is_none(), "{address}: {route:?}");
            assert!(route.interface > 0, "{address}: {route:?}");
            assert!(cache.is_reachable(address.parse().unwrap(), None).unwrap(), "{address}");
            let source = route.source.unwrap();
            assert!(source.is_loopback(), "{address}: {route:?}");
        }
        let source = [127, 0, 0, 2].into();
        let route = route_to("127.0.0.1:1".parse().unwrap(), Some(source)).unwrap();
        assert!(route.is_local);
    }

    #[test]
    fn routes_are_remembered_until_the_kernel_announces_a_change() {
        let (announcements, kernel) = Announcements::pair();
        let netlink = Netlink::open().unwrap();
        let mut cache =
            RouteCache { netlink, announcements, routes: HashMap::new(), interfaces: None };
        let (to, other_port) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        let route = cache.route_to(to, None).unwrap();
        assert_eq!(route, route_to(to, None).unwrap());
        let before = Route { interface: 77, ..route };
        cache.routes.insert(key(to, None), Known { route: before, is_reachable: true });
        cache.interfaces = Some(Vec::new());
        cache.refresh();
        assert_eq!(cache.route_to(other_port, None).unwrap(), before);
        assert!(cache.interfaces().unwrap().is_empty());
        let from = Some([127, 0, 0, 2].into());
        assert_ne!(cache.route_to(to, from).unwrap(), before, "another source, another route");
        kernel.send(&[0; 16]).unwrap();
        cache.refresh();
        assert_eq!(cache.route_to(to, None).unwrap(), route);
        assert!(!cache.interfaces().unwrap().is_empty());
    }

    #[test]
    fn answer_with_a_gateway_names_it_and_the_source() {
        let mut answer = vec![2, 32, 0, 0, 0, 0, 0, ROUTE_UNICAST, 0, 0, 0, 0];
        push_attribute(&mut answer, ROUTE_INTERFACE, &7_u32.to_ne_bytes());
        let to: IpAddr = [198, 51, 100, 1].into();
        let direct = Route { source: None, interface: 7, next_hop: Some(to), is_local: false };
        assert_eq!(parse_route(&answer, to), Some(direct));
        push_attribute(&mut answer, ROUTE_GATEWAY, &[192, 0, 2, 254]);
        push_attribute(&mut answer, ROUTE_PREFERRED_SOURCE, &[192, 0, 2, 1]);
        let routed = Route {
            source: Some([192, 0, 2, 1].into()),
            next_hop: Some([192, 0, 2, 254].into()),
            ..direct
        };
        assert_eq!(parse_route(&answer, to), Some(routed));
        // Prohibited, and cut off.
        answer[7] = 8;
        assert_eq!(parse_route(&answer, to), None);
        assert_eq!(parse_route(&answer[..11], to), None);
    }
}
