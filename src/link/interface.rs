//! Interfaces of this machine, and RoCE ports on them.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::sys;
use super::sys::interface::{Address, entries, mtu};
use crate::verbs::Mtu;
use crate::wire::{Gid, MacAddr};

/// An interface of this machine, or of the network namespace that the calling thread is in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Name: `eth0`.
    pub name: String,
    /// Index, which is the scope of a link-local address.
    pub index: u32,
    /// Ethernet address, if it is of that kind.
    pub mac: Option<MacAddr>,
    /// The longest IP packet that it carries.
    pub mtu: usize,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether there is a link: a cable with a device at its other end.
    pub carrier: bool,
    /// Whether it leads nowhere but to this machine.
    pub loopback: bool,
    /// Addresses: those of IPv4, then those of IPv6.
    pub addresses: Vec<IpAddr>,
}

/// Every interface, by index.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let entries = entries()?;
    let any = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    let mut interfaces = Vec::new();
    for entry in &entries {
        let Address::Link(index, kind, bytes) = entry.address else { continue };
        let is = |flag| entry.flags & u32::try_from(flag).unwrap_or(0) != 0;
        let mac = (kind == libc::ARPHRD_ETHER).then_some(MacAddr(bytes));
        let same = entries.iter().filter(|other| other.name == entry.name);
        let addresses = same.filter_map(|other| match other.address {
            Address::Ip(address) => Some(address),
            Address::Link(..) => None,
        });
        let mut addresses: Vec<IpAddr> = addresses.collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        // An interface that is gone by now is none.
        let Ok(mtu) = mtu(any.as_fd(), &entry.name) else { continue };
        interfaces.push(Interface {
            name: entry.name.clone(),
            index: u32::try_from(index).unwrap_or(0),
            mac,
            mtu,
            up: is(libc::IFF_UP),
            carrier: is(libc::IFF_LOWER_UP),
            loopback: is(libc::IFF_LOOPBACK),
            addresses,
        });
    }
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

impl Interface {
    /// The identifiers of RoCEv2 that a NIC on this interface has, by index, as the kernel fills
    /// the table of an RDMA device: first the one made of the Ethernet address, which is there
    /// whether an address is or not, then the addresses of IPv4 and of IPv6. None is there twice.
    ///
    /// An unprivileged link uses one of them, its own.
    pub fn gids(&self) -> Vec<Gid> {
        let mut gids: Vec<Gid> = self.mac.map(default_gid).into_iter().collect();
        for address in &self.addresses {
            let gid = gid(*address);
            if !gids.contains(&gid) {
                gids.push(gid);
            }
        }
        gids
    }

    /// The largest payload whose packets fit, whatever headers they have; `None` if not even the
    /// smallest does.
    pub fn verbs_mtu(&self) -> Option<Mtu> {
        Mtu::for_ethernet(self.mtu)
    }
}

/// Returns the speed of the interface with this name in Mb/s; `None` if it has none, as loopback.
pub fn speed(name: &str) -> Option<u32> {
    let any = Socket::new(Domain::UNIX, Type::DGRAM, None).ok()?;
    sys::interface::speed(any.as_fd(), name)
}

/// The identifier that stands for an address. An address of IPv4 is mapped into one of IPv6.
pub fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The address that an identifier stands for.
pub(super) fn address_of(gid: Gid) -> IpAddr {
    match gid.to_ipv4() {
        Some(address) => address.into(),
        None => Ipv6Addr::from(gid.0).into(),
    }
}

/// Lets an interface be in a multicast group while this socket is there.
pub(super) fn join(socket: &Socket, group: IpAddr, interface: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
        }
        IpAddr::V6(group) => socket.join_multicast_v6(&group, interface),
    }
}

/// Joins a multicast group on an interface; the membership lasts as long as the returned socket.
pub(super) fn membership(group: Gid, interface: u32) -> io::Result<Socket> {
    let address = address_of(group);
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let member = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    join(&member, address, interface)?;
    Ok(member)
}

/// The identifier that is made of an Ethernet address: link-local, with its EUI-64.
pub fn default_gid(mac: MacAddr) -> Gid {
    let [a, b, c, d, e, f] = mac.0;
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Whether an address means something only together with an interface.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if Ipv6Addr::is_unicast_link_local(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let interfaces = interfaces().unwrap();
        let lo = interfaces.iter().find(|interface| interface.loopback).unwrap();
        assert_eq!((lo.name.as_str(), lo.mac), ("lo", None));
        assert!(lo.index > 0 && lo.mtu >= 1500, "{lo:?}");
        assert!(lo.addresses.contains(&[127, 0, 0, 1].into()), "{lo:?}");
        assert_eq!(lo.verbs_mtu(), Some(Mtu::M4096));
        assert_eq!(lo.gids()[0].to_string(), "::ffff:127.0.0.1");
        assert!(interfaces.is_sorted_by_key(|interface| interface.index));
    }

    #[test]
    fn the_table_of_gids_is_that_of_the_kernel() {
        let interface = Interface {
            name: "eth0".into(),
            index: 2,
            mac: Some(MacAddr([0x52, 0x54, 0x00, 0x12, 0x34, 0x56])),
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            addresses: ["192.0.2.1", "fe80::5054:ff:fe12:3456", "2001:db8::1"]
                .map(|address| address.parse().unwrap())
                .to_vec(),
        };
        let gids: Vec<_> = interface.gids().iter().map(Gid::to_string).collect();
        assert_eq!(gids, ["fe80::5054:ff:fe12:3456", "::ffff:192.0.2.1", "2001:db8::1"]);
        assert_eq!(interface.verbs_mtu(), Some(Mtu::M1024));
        assert_eq!(Interface { mtu: 300, ..interface }.verbs_mtu(), None);
    }

    #[test]
    fn only_ipv6_addresses_of_one_link_are_link_local() {
        for (address, expected) in [
            ("fe80::1", true),
            ("febf::1", true),
            ("fec0::1", false),
            ("::1", false),
            ("169.254.0.1", false),
        ] {
            assert_eq!(is_link_local(address.parse().unwrap()), expected, "{address}");
        }
    }
}
