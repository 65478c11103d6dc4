//! Whose hardware address frames go to: asked of the kernel, which knows the routes and its neighbours.
//!
//! While the kernel knows no address, packets are sent through a raw IP socket, complete with their headers: it then
//! finds the neighbour out, keeps the packets meanwhile, and loses none. From time to time a packet goes this way
//! again, so that the kernel sees whether the neighbour is still there.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::super::interface::{address_of, gid};
use crate::time::Instant;
use crate::wire::{Gid, MacAddr};

/// The most neighbours that are remembered. With more, all are forgotten and asked for anew.
const NEIGHBOURS_MAX: usize = 1024;

/// How long what the kernel said holds.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// How long until the kernel is asked again for what it did not know.
const UNKNOWN_FOR: Duration = Duration::from_micros(100);

/// Who is where.
#[derive(Debug)]
pub(super) struct Neighbours {
    kernel: Option<Kernel>,
    /// Those that were given, and hold for ever.
    fixed: Vec<(Gid, MacAddr)>,
    known: Vec<Neighbour>,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    gid: Gid,
    mac: Option<MacAddr>,
    until: Instant,
}

impl Neighbours {
    /// Those of an interface. Without `kernel`, those that were given alone.
    pub(super) fn new(kernel: Option<Kernel>, fixed: &[(IpAddr, MacAddr)]) -> Self {
        let fixed = fixed.iter().map(|(address, mac)| (gid(*address), *mac)).collect();
        Self { kernel, fixed, known: Vec::new() }
    }

    /// The hardware address that leads to `gid`, or `None` if the packet is to be left to the kernel.
    pub(super) fn find(&mut self, now: Instant, gid: Gid) -> Option<MacAddr> {
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
        let mac = certain.or_else(|| self.kernel.as_mut()?.neighbour(gid).ok().flatten());
        let until = now.saturating_add(if mac.is_some() { KNOWN_FOR } else { UNKNOWN_FOR });
        let found = Neighbour { gid, mac, until };
        let was_known = match at.and_then(|at| self.known.get_mut(at)) {
            Some(known) => std::mem::replace(known, found).mac.is_some(),
            None => {
                if self.known.len() >= NEIGHBOURS_MAX {
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
fn multicast_mac(gid: Gid) -> Option<MacAddr> {
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

/// The kernel's routes and neighbours, over a netlink socket.
#[derive(Debug)]
pub(super) struct Kernel {
    socket: Socket,
    index: u32,
    sequence: u32,
    answer: Vec<u8>,
}

/// The longest answer: one route or neighbour takes a few hundred bytes.
const ANSWER_MAX: usize = 8192;

// Numbers of `linux/netlink.h`, `linux/rtnetlink.h` and `linux/neighbour.h`.
const REQUEST: u16 = 1;
const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
const GET_NEIGHBOUR: u16 = 30;
const NEW_NEIGHBOUR: u16 = 28;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
/// A gateway of another family than the destination.
const ROUTE_VIA: u16 = 18;
const ROUTE_UNICAST: u8 = 1;
const NEIGHBOUR_DESTINATION: u16 = 1;
const NEIGHBOUR_MAC: u16 = 2;
/// States in which the hardware address holds: reachable, stale, delay, probe, no ARP, permanent.
const NEIGHBOUR_VALID: u16 = 0xde;

impl Kernel {
    /// Asks about one interface.
    pub(super) fn new(index: u32) -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::NETLINK_ROUTE)))?;
        // The kernel answers within the request; this is for the day that it does not.
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(Self { socket, index, sequence: 0, answer: Vec::new() })
    }

    /// The hardware address that leads to `gid`, if the kernel has one.
    fn neighbour(&mut self, gid: Gid) -> io::Result<Option<MacAddr>> {
        let destination = address_of(gid);
        let Some(hop) = self.next_hop(destination)? else { return Ok(None) };
        let mut body = vec![family(hop), 0, 0, 0];
        body.extend(self.index.to_ne_bytes());
        body.extend([0; 4]);
        attribute(&mut body, NEIGHBOUR_DESTINATION, &octets(hop));
        if !self.ask(GET_NEIGHBOUR, NEW_NEIGHBOUR, &body)? {
            return Ok(None);
        }
        let (header, attributes) = self.answer.split_at_checked(12).unwrap_or_default();
        let state =
            header.get(8..10).and_then(|state| state.try_into().ok()).map_or(0, u16::from_ne_bytes);
        let mac = find_attribute(attributes, NEIGHBOUR_MAC).and_then(|mac| mac.try_into().ok());
        Ok(mac.map(MacAddr).filter(|_| state & NEIGHBOUR_VALID != 0))
    }

    /// Who is next on the way to an address through this interface, if there is a way.
    fn next_hop(&mut self, destination: IpAddr) -> io::Result<Option<IpAddr>> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        let mut body = vec![family(destination), bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        attribute(&mut body, ROUTE_DESTINATION, &octets(destination));
        attribute(&mut body, ROUTE_INTERFACE, &self.index.to_ne_bytes());
        if !self.ask(GET_ROUTE, NEW_ROUTE, &body)? {
            return Ok(None);
        }
        let (header, attributes) = self.answer.split_at_checked(12).unwrap_or_default();
        if header.get(7) != Some(&ROUTE_UNICAST) {
            return Ok(None);
        }
        let via = find_attribute(attributes, ROUTE_VIA).and_then(|via| via.get(2..));
        match find_attribute(attributes, ROUTE_GATEWAY).or(via) {
            Some(gateway) => Ok(address(gateway)),
            None => Ok(Some(destination)),
        }
    }

    /// Asks, and keeps the answer's body; `false` if the kernel has none.
    fn ask(&mut self, kind: u16, wanted: u16, body: &[u8]) -> io::Result<bool> {
        const HEADER: usize = 16;
        self.sequence = self.sequence.wrapping_add(1);
        let len = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend(len.to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(REQUEST.to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend(body);
        self.socket.send(&request)?;
        // An answer that came too late for an earlier question is passed over.
        for _ in 0..8 {
            self.answer.resize(ANSWER_MAX, 0);
            let len = (&self.socket).read(&mut self.answer)?;
            self.answer.truncate(len);
            let word = |at: usize| -> u32 {
                let bytes = self.answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                u32::from_ne_bytes(bytes.unwrap_or_default())
            };
            if word(8) != self.sequence {
                continue;
            }
            let found = word(4) & 0xffff == u32::from(wanted);
            let len = (word(0) as usize).clamp(HEADER, self.answer.len().max(HEADER));
            self.answer.truncate(len);
            self.answer.drain(..HEADER.min(self.answer.len()));
            return Ok(found);
        }
        Ok(false)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "they are 2 and 10")]
fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Appends an attribute, padded.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).expect("an address is short");
    body.extend(len.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of a kind.
fn find_attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (header, _) = attributes.split_first_chunk::<4>()?;
        let [l0, l1, k0, k1] = *header;
        let (len, kind) = (usize::from(u16::from_ne_bytes([l0, l1])), u16::from_ne_bytes([k0, k1]));
        let value = attributes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}
