//! Follows the interface of a link: whether it has a carrier, its MTU, its addresses.
//!
//! The kernel announces each change on a netlink socket. Announcements may be lost when many
//! changes come at once, so they are not read: the state of the interface is queried again instead,
//! and compared with the last one.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::interface::{Interface, gid};
use super::netlink::{Announcements, Ask, Netlink, address, find_attribute, word};
use super::{PortMonitor, PortStatus};
use crate::verbs::Mtu;
use crate::wire::Gid;

/// Changes of interfaces and of their addresses:
/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const ANNOUNCED: u32 = 0x1 | 0x10 | 0x100;

/// Addresses of its interface that a link uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    /// All addresses, up to a maximum.
    All(usize),
    /// A list of addresses, each while the interface has it.
    Fixed(Vec<IpAddr>),
}

/// Follows one interface.
#[derive(Debug)]
pub(super) struct InterfaceMonitor {
    announcements: Announcements,
    questions: Netlink,
    /// The index of the interface.
    interface: u32,
    addresses: Addresses,
    /// The largest payload, if it does not follow the interface's MTU.
    fixed_mtu: Option<Mtu>,
    status: PortStatus,
}

impl InterfaceMonitor {
    /// Follows the interface with this index in the network namespace of the calling thread. Its
    /// port has the GIDs `gids` and the MTU `mtu` at first.
    pub(super) fn new(
        interface: u32,
        addresses: Addresses,
        fixed_mtu: Option<Mtu>,
        (gids, mtu): (Vec<Gid>, Mtu),
    ) -> io::Result<Self> {
        let announcements = Announcements::open(ANNOUNCED)?;
        let status = PortStatus { is_active: true, gids, addresses: Vec::new(), mtu };
        let questions = Netlink::open()?;
        Ok(Self { announcements, questions, interface, addresses, fixed_mtu, status })
    }
}

impl PortMonitor for InterfaceMonitor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.announcements.as_fd()
    }

    fn status(&mut self) -> io::Result<&PortStatus> {
        // An announcement after this makes the descriptor readable again.
        self.announcements.discard();
        let found = look_up(&mut self.questions, self.interface)?;
        self.status = next_status(&self.status, found.as_ref(), &self.addresses, self.fixed_mtu);
        Ok(&self.status)
    }
}

/// Returns what a port depends on of the interface with this index.
fn look_up(netlink: &mut Netlink, index: u32) -> io::Result<Option<Interface>> {
    let mut request = vec![0; 16];
    request.splice(4..8, index.to_ne_bytes());
    let mut found = None;
    netlink.ask(GET_LINK, Ask::One, &request, |answer| found = interface(answer, index))?;
    let Some(mut found) = found else { return Ok(None) };
    netlink.ask(GET_ADDRESS, Ask::All, &[0; 8], |answer| {
        if word(answer, 4) == Some(index) {
            found.addresses.extend(interface_address(answer));
        }
    })?;
    found.addresses.sort_by_key(IpAddr::is_ipv6);
    Ok(Some(found))
}

// Numbers of `linux/rtnetlink.h` and `linux/if_link.h`: types of a request and of its answer.
const GET_LINK: (u16, u16) = (18, 16);
const GET_ADDRESS: (u16, u16) = (22, 20);
const LINK_MTU: u16 = 4;
/// The address of an interface; on a point-to-point link, of its other end.
const ADDRESS: u16 = 1;
const LOCAL_ADDRESS: u16 = 2;

/// The interface that an answer is about, without its addresses.
fn interface(answer: &[u8], index: u32) -> Option<Interface> {
    let (header, attributes) = answer.split_at_checked(16)?;
    let flags = word(header, 8)?;
    let has = |flag| flags & u32::try_from(flag).unwrap_or(0) != 0;
    Some(Interface {
        name: String::new(),
        index,
        mac: None,
        mtu: find_attribute(attributes, LINK_MTU).and_then(|mtu| word(mtu, 0))? as usize,
        up: has(libc::IFF_UP),
        carrier: has(libc::IFF_LOWER_UP),
        loopback: has(libc::IFF_LOOPBACK),
        addresses: Vec::new(),
    })
}

/// The address that an answer is about.
fn interface_address(answer: &[u8]) -> Option<IpAddr> {
    let attributes = answer.get(8..)?;
    let local = find_attribute(attributes, LOCAL_ADDRESS);
    address(local.or_else(|| find_attribute(attributes, ADDRESS))?)
}

/// Returns the status of a port for the current state of its interface.
fn next_status(
    before: &PortStatus,
    interface: Option<&Interface>,
    addresses: &Addresses,
    fixed_mtu: Option<Mtu>,
) -> PortStatus {
    let has = |gid: Gid| interface.is_some_and(|interface| has_gid(interface, gid));
    let mut gids = before.gids.clone();
    match addresses {
        Addresses::Fixed(own) => {
            for (slot, address) in gids.iter_mut().zip(own) {
                *slot = Some(gid(*address)).filter(|gid| has(*gid)).unwrap_or_default();
            }
        }
        Addresses::All(most) => {
            for slot in gids.iter_mut().filter(|slot| !has(**slot)) {
                *slot = Gid::default();
            }
            let there = interface.map_or(&[][..], |interface| &interface.addresses);
            for new in there.iter().map(|address| gid(*address)) {
                insert(&mut gids, new, *most);
            }
        }
    }
    let fits = interface.and_then(Interface::verbs_mtu);
    PortStatus {
        is_active: interface.is_some_and(|interface| interface.up && interface.carrier),
        gids,
        addresses: interface.map_or_else(Vec::new, |interface| interface.addresses.clone()),
        mtu: fixed_mtu.or(fits).unwrap_or(before.mtu),
    }
}

/// Puts a GID into the first empty slot, as the kernel does, unless it is in the table already.
fn insert(gids: &mut Vec<Gid>, new: Gid, most: usize) {
    if gids.contains(&new) {
        return;
    }
    if let Some(slot) = gids.iter_mut().find(|slot| **slot == Gid::default()) {
        *slot = new;
    } else if gids.len() < most {
        gids.push(new);
    }
}

fn has_gid(interface: &Interface, wanted: Gid) -> bool {
    // All of 127.0.0.0/8 is on the loopback interface, though one address is listed.
    let looped = wanted.to_ipv4().is_some_and(|address| address.is_loopback());
    interface.addresses.iter().any(|address| gid(*address) == wanted)
        || looped && interface.loopback && interface.up
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(mtu: usize, addresses: &[&str]) -> Interface {
        Interface {
            name: "eth0".into(),
            index: 2,
            mac: None,
            mtu,
            up: true,
            carrier: true,
            loopback: false,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    fn gids(addresses: &[&str]) -> Vec<Gid> {
        let parse = |text: &&str| gid(text.parse().unwrap());
        addresses.iter().map(parse).collect()
    }

    fn status(addresses: &[&str]) -> PortStatus {
        PortStatus {
            is_active: true,
            gids: gids(addresses),
            addresses: Vec::new(),
            mtu: Mtu::M1024,
        }
    }

    const EMPTY: &str = "::";

    #[test]
    fn a_new_address_takes_the_first_empty_slot() {
        let all = Addresses::All(3);
        let eth0 = interface(1500, &["10.0.0.2", "10.0.0.3"]);
        let next = next_status(&status(&["10.0.0.1", "10.0.0.2"]), Some(&eth0), &all, None);
        assert_eq!(next.gids, gids(&["10.0.0.3", "10.0.0.2"]));
        let eth0 = interface(1500, &["10.0.0.3"]);
        let next = next_status(&next, Some(&eth0), &all, None);
        assert_eq!(next.gids, gids(&["10.0.0.3", EMPTY]));
        let eth0 = interface(1500, &["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        let next = next_status(&next, Some(&eth0), &all, None);
        let expected = gids(&["10.0.0.3", "10.0.0.4", "10.0.0.5"]);
        assert_eq!(next.gids, expected, "there is no fourth slot");
    }

    #[test]
    fn an_address_of_its_own_comes_back_to_its_slot() {
        let own = Addresses::Fixed(vec!["10.0.0.1".parse().unwrap()]);
        let without = interface(1500, &["10.0.0.2"]);
        let gone = next_status(&status(&["10.0.0.1"]), Some(&without), &own, None);
        assert_eq!(gone.gids, gids(&[EMPTY]));
        let with = interface(1500, &["10.0.0.2", "10.0.0.1"]);
        let back = next_status(&gone, Some(&with), &own, None);
        assert_eq!(back.gids, gids(&["10.0.0.1"]));
        assert_eq!((gone.addresses, back.addresses), (without.addresses, with.addresses));
    }

    #[test]
    fn state_and_mtu_follow_the_interface() {
        let all = Addresses::All(16);
        let before = status(&["10.0.0.1"]);
        let eth0 = interface(9000, &["10.0.0.1"]);
        assert_eq!(next_status(&before, Some(&eth0), &all, None).mtu, Mtu::M4096);
        assert_eq!(next_status(&before, Some(&eth0), &all, Some(Mtu::M512)).mtu, Mtu::M512);
        let down = Interface { carrier: false, ..eth0 };
        assert!(!next_status(&before, Some(&down), &all, None).is_active);
        let gone = next_status(&before, None, &all, None);
        assert_eq!(gone, PortStatus { is_active: false, ..status(&[EMPTY]) });
    }

    #[test]
    fn every_loopback_address_is_on_the_loopback_interface() {
        let lo = Interface { loopback: true, ..interface(65536, &["127.0.0.1"]) };
        assert!(has_gid(&lo, gid("127.9.9.9".parse().unwrap())));
        assert!(!has_gid(&Interface { up: false, ..lo }, gid("127.9.9.9".parse().unwrap())));
    }

    #[test]
    fn announcements_are_drained_before_the_interface_is_looked_at() {
        let (announcements, kernel) = Announcements::pair();
        let all = Addresses::All(3);
        let mut monitor = InterfaceMonitor {
            announcements,
            questions: Netlink::open().unwrap(),
            interface: 1,
            addresses: all,
            fixed_mtu: None,
            status: status(&[]),
        };
        for _ in 0..3 {
            kernel.send(&[0; 600]).unwrap();
        }
        monitor.status().unwrap();
        assert!(!monitor.announcements.discard(), "there are none left");
    }
}
