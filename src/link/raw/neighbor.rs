//! Hardware addresses of neighbors, from the kernel, which knows the routes and its neighbors.
//!
//! While the kernel knows no address, packets are sent through a raw IP socket, complete with their
//! headers: it then finds the neighbor out, keeps the packets meanwhile, and loses none. From time
//! to time a packet goes this way again, so that the kernel sees whether the neighbor is still
//! there.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::super::interface::{address_of, gid};
use super::super::netlink::{
    Ask, Netlink, address, family, find_attribute, half, octets, push_attribute,
};
use crate::time::Instant;
use crate::wire::{Gid, MacAddr};

/// The most neighbors that are remembered. With more, all are forgotten and asked for anew.
const NEIGHBORS_MAX: usize = 1024;

/// Time for which an answer of the kernel holds.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// Time until the kernel is queried once more for a neighbor that it did not know.
const UNKNOWN_FOR: Duration = Duration::from_micros(100);

/// Hardware addresses of neighbors.
#[derive(Debug)]
pub(in crate::link) struct Neighbors {
    kernel: Option<Kernel>,
    /// Configured addresses, which hold for ever.
    fixed: Vec<(Gid, MacAddr)>,
    known: Vec<Neighbor>,
}

#[derive(Clone, Copy, Debug)]
struct Neighbor {
    gid: Gid,
    mac: Option<MacAddr>,
    until: Instant,
}

impl Neighbors {
    /// Creates the table of an interface. Without `kernel`, those that were given alone.
    pub(in crate::link) fn new(kernel: Option<Kernel>, fixed: &[(IpAddr, MacAddr)]) -> Self {
        let fixed = fixed.iter().map(|(address, mac)| (gid(*address), *mac)).collect();
        Self { kernel, fixed, known: Vec::new() }
    }

    /// The hardware address that leads to `gid`, or `None` if the packet is to be left to the
    /// kernel.
    pub(in crate::link) fn find(&mut self, now: Instant, gid: Gid) -> Option<MacAddr> {
        let at = self.known.iter().position(|known| known.gid == gid);
        if let Some(known) = at.and_then(|at| self.known.get(at)).filter(|known| now < known.until)
        {
            return known.mac;
        }
        self.find_anew(now, gid, at)
    }

    #[cold]
    fn find_anew(&mut self, now: Instant, gid: Gid, at: Option<usize>) -> Option<MacAddr> {
        let fixed = self.fixed.iter().find(|(known, _)| *known == gid).map(|(_, mac)| *mac);
        let certain = fixed.or_else(|| multicast_mac(gid));
        let (mac, holds_for) = match (certain, &mut self.kernel) {
            (Some(mac), _) => (Some(mac), KNOWN_FOR),
            (None, None) => (None, UNKNOWN_FOR),
            (None, Some(kernel)) => match kernel.neighbor(gid).unwrap_or(NextHop::Unknown) {
                NextHop::Mac(mac) => (Some(mac), KNOWN_FOR),
                NextHop::ThisHost => (None, KNOWN_FOR),
                NextHop::Unknown => (None, UNKNOWN_FOR),
            },
        };
        let until = now.saturating_add(holds_for);
        let found = Neighbor { gid, mac, until };
        let was_known = match at.and_then(|at| self.known.get_mut(at)) {
            Some(known) => std::mem::replace(known, found).mac.is_some(),
            None => {
                if self.known.len() >= NEIGHBORS_MAX {
                    self.known.clear();
                }
                self.known.push(found);
                false
            }
        };
        // What is only being renewed goes to the kernel once.
        mac.filter(|_| certain.is_some() || !was_known)
    }
}

/// The address of a group, which follows from the group.
pub(in crate::link) fn multicast_mac(gid: Gid) -> Option<MacAddr> {
    match address_of(gid) {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(MacAddr([0xff; 6])),
        IpAddr::V6(group) if group.is_multicast() => match group.octets() {
            [.., a, b, c, d] => Some(MacAddr([0x33, 0x33, a, b, c, d])),
        },
        _ => None,
    }
}

/// Next hop of a packet.
#[derive(Clone, Copy, Debug)]
enum NextHop {
    /// The neighbor with this hardware address.
    Mac(MacAddr),
    /// This host: the kernel must carry the packet.
    ThisHost,
    /// No route, or the neighbor is not known yet.
    Unknown,
}

/// The kernel's routes and neighbors, over a netlink socket.
#[derive(Debug)]
pub(in crate::link) struct Kernel {
    netlink: Netlink,
    index: u32,
}

/// The kernel's route to an address.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// Through this neighbor.
    Via(IpAddr),
    /// The address is one of this host.
    ThisHost,
}

// Numbers of `linux/rtnetlink.h` and `linux/neighbor.h`.
/// Message types of a request and of its answer.
const GET_ROUTE: (u16, u16) = (26, 24);
const GET_NEIGHBOR: (u16, u16) = (30, 28);
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
/// A gateway of another family than the destination.
const ROUTE_VIA: u16 = 18;
const ROUTE_UNICAST: u8 = 1;
const ROUTE_LOCAL: u8 = 2;
const NEIGHBOR_DESTINATION: u16 = 1;
const NEIGHBOR_MAC: u16 = 2;
/// States in which the hardware address holds: reachable, stale, delay, probe, no ARP, permanent.
const NEIGHBOR_VALID: u16 = 0xde;

impl Kernel {
    /// Asks about one interface.
    pub(in crate::link) fn new(index: u32) -> io::Result<Self> {
        Ok(Self { netlink: Netlink::open()?, index })
    }

    /// Returns the next hop of a packet to `gid`.
    fn neighbor(&mut self, gid: Gid) -> io::Result<NextHop> {
        let destination = address_of(gid);
        let hop = match self.route(destination)? {
            Some(Route::Via(hop)) => hop,
            Some(Route::ThisHost) => return Ok(NextHop::ThisHost),
            None => return Ok(NextHop::Unknown),
        };
        let mut body = vec![family(hop), 0, 0, 0];
        body.extend(self.index.to_ne_bytes());
        body.extend([0; 4]);
        push_attribute(&mut body, NEIGHBOR_DESTINATION, &octets(hop));
        let mut found = NextHop::Unknown;
        self.netlink.ask(GET_NEIGHBOR, Ask::One, &body, |answer| {
            let (header, attributes) = answer.split_at_checked(12).unwrap_or_default();
            let valid = half(header, 8).is_some_and(|state| state & NEIGHBOR_VALID != 0);
            let mac = find_attribute(attributes, NEIGHBOR_MAC).and_then(|mac| mac.try_into().ok());
            if let Some(mac) = mac.filter(|_| valid) {
                found = NextHop::Mac(MacAddr(mac));
            }
        })?;
        Ok(found)
    }

    /// The route to an address through this interface, if there is one.
    fn route(&mut self, destination: IpAddr) -> io::Result<Option<Route>> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        let mut body = vec![family(destination), bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        push_attribute(&mut body, ROUTE_DESTINATION, &octets(destination));
        push_attribute(&mut body, ROUTE_INTERFACE, &self.index.to_ne_bytes());
        let mut found = None;
        self.netlink.ask(GET_ROUTE, Ask::One, &body, |answer| {
            found = route(answer, destination);
        })?;
        Ok(found)
    }
}

/// The route that an answer is about.
fn route(answer: &[u8], destination: IpAddr) -> Option<Route> {
    let (header, attributes) = answer.split_at_checked(12)?;
    match header.get(7) {
        Some(&ROUTE_UNICAST) => {}
        Some(&ROUTE_LOCAL) => return Some(Route::ThisHost),
        _ => return None,
    }
    let via = find_attribute(attributes, ROUTE_VIA).and_then(|via| via.get(2..));
    match find_attribute(attributes, ROUTE_GATEWAY).or(via) {
        Some(gateway) => address(gateway).map(Route::Via),
        None => Some(Route::Via(destination)),
    }
}
