//! A link over an ordinary UDP socket on port 4791, for which no privilege is needed.
//!
//! It stands for one address of this machine, of IPv4 or IPv6, and that is its only GID: the kernel
//! lets the socket send from this address alone, and gives it what is sent to this address alone.
//!
//! The ICRC covers headers that the kernel writes, so they are made to be known. A socket that is
//! not connected and never fragments sends IPv4 headers with identification 0, and with *i* in the
//! *i*-th packet of a train that the kernel cuts apart; each packet is sealed for the one that it
//! will have. The source port is that of the socket: a flow gets one of a few sockets, whose ports
//! differ, so that a network with many ways can tell flows apart.
//!
//! The ICRC covers the IP header, which the kernel removes. Of IPv6 it passes on every field. Of
//! IPv4 it hides the identification, so the link looks for the one that makes the ICRC right
//! ([`Identification`](crate::wire::icrc::Identification)): of damaged packets one in 65 536 is
//! taken for sound. An IPv4 header that has options or allows fragments is not what RoCE sends, and
//! its packets are refused.
//!
//! The service level of a path is the priority of its packets within this machine, up to 6, or 7
//! with a capability; the mapping of a VLAN's interface (`egress-qos-map`) makes it one on the
//! wire. Flow labels of IPv6 are the kernel's to choose, and no ICRC covers them.
//!
//! Multicast groups have sockets of their own, which programs on one machine share: a socket with
//! one address gets what is sent to that address. The kernel tells the network who is in a group,
//! and gives those on the machine of the sender their copies.
//!
//! ```no_run
//! use roce::link::udp;
//!
//! let link = udp::open(&udp::Options::new([192, 0, 2, 1].into()))?;
//! println!("{} with an MTU of {}", link.port.name, link.port.mtu);
//! # Ok::<(), roce::link::OpenError>(())
//! ```

mod groups;
mod priority;
mod receive;
mod send;

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use self::groups::Groups;
use self::receive::UdpReceiver;
#[doc(hidden)]
pub use self::receive::sound_packets;
use self::send::UdpSender;
use super::interface::{Interface, gid, interfaces, is_link_local};
use super::monitor::{Addresses, InterfaceMonitor};
use super::sys::socket::{option, set_option};
use super::{Link, OpenError, Port, PortMonitor};
use crate::verbs::Mtu;
use crate::wire::{Gid, ROCE_PORT};

/// Options of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The address of this machine that it stands for.
    pub address: IpAddr,
    /// The interface that the address is on, if that is not clear: a link-local address may be on
    /// several.
    pub interface: Option<String>,
    /// Treatment of the ICRC of a packet that arrives.
    pub icrc: IcrcCheck,
    /// Number of source ports, besides 4791 itself, that tell flows apart; 0 to 64.
    pub source_ports: usize,
    /// The largest payload of a packet, instead of what fits the interface's MTU.
    pub mtu: Option<Mtu>,
    /// Size of the receive buffer, if the system allows it.
    pub receive_buffer: usize,
}

/// Treatment of the ICRC of a packet that arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IcrcCheck {
    /// The ICRC is checked as far as the kernel tells what it covers, and a packet is dropped if it
    /// is wrong.
    #[default]
    Verify,
    /// The ICRC is ignored. For senders that do not know their IP header, and for measurements.
    Trust,
}

impl Options {
    /// Default options for an address of this machine: ICRCs checked, 16 source ports, the MTU of
    /// the interface, room for 8 MiB.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address: address.to_canonical(),
            interface: None,
            icrc: IcrcCheck::default(),
            source_ports: 16,
            mtu: None,
            receive_buffer: 8 << 20,
        }
    }
}

/// The most source ports that a link uses.
const SOURCE_PORTS_MAX: usize = 64;

/// Opens a link.
pub fn open(options: &Options) -> Result<Link, OpenError> {
    let address = options.address.to_canonical();
    let interface = interface_of(address, options.interface.as_deref())?;
    let local = match address {
        IpAddr::V6(ip) if is_link_local(address) => {
            SocketAddrV6::new(ip, ROCE_PORT, 0, interface.index).into()
        }
        _ => SocketAddr::new(address, ROCE_PORT),
    };
    let fits = interface.verbs_mtu();
    let too_small =
        || OpenError::MtuTooSmall { interface: interface.name.clone(), mtu: interface.mtu };
    let mtu = options.mtu.or(fits).ok_or_else(too_small)?;
    let socket = bound_socket(local, interface.index)
        .map_err(|error| open_error(error, address, &interface))?;
    let system = |what| {
        let interface = interface.name.clone();
        move |source| OpenError::System { what, interface, source }
    };
    let room = prepare_to_receive(&socket, local, options.receive_buffer)
        .map_err(system("prepare a socket to receive"))?;
    let socket = Arc::new(socket);
    let ports = options.source_ports.min(SOURCE_PORTS_MAX);
    let gid = gid(address);
    let groups = Groups::new(local, interface.index, options.receive_buffer);
    let receiver = UdpReceiver::new(Arc::clone(&socket), gid, options.icrc, room, groups)
        .map_err(system("allocate room for packets"))?;
    Ok(Link {
        sender: Box::new(UdpSender::new(socket, local, interface.index, gid, ports)),
        receiver: Box::new(receiver),
        port: Port {
            name: format!("udp:{address}"),
            gids: vec![gid],
            mtu,
            interface: Some(interface.name),
            is_shared: false,
        },
        frames: None,
        monitor: monitor(interface.index, address, options.mtu, (vec![gid], mtu)),
    })
}

/// Follows the interface of a link that stands for one address. A sandbox may forbid it: then
/// nothing is announced.
fn monitor(
    interface: u32,
    address: IpAddr,
    fixed_mtu: Option<Mtu>,
    now: (Vec<Gid>, Mtu),
) -> Option<Box<dyn PortMonitor>> {
    let addresses = Addresses::Fixed(vec![address]);
    let monitor = InterfaceMonitor::new(interface, addresses, fixed_mtu, now).ok()?;
    Some(Box::new(monitor))
}

/// The interface that has an address.
fn interface_of(address: IpAddr, name: Option<&str>) -> Result<Interface, OpenError> {
    if address.is_unspecified() || address.is_multicast() {
        return Err(OpenError::NotOneHost(address));
    }
    let mut all = interfaces().map_err(OpenError::Interfaces)?;
    if let Some(name) = name {
        let names = all.iter().map(|interface| interface.name.clone()).collect();
        all.retain(|interface| interface.name == name);
        if all.is_empty() {
            return Err(OpenError::NoInterface { name: name.into(), interfaces: names });
        }
    }
    let has = |interface: &Interface| {
        // All of 127.0.0.0/8 is this machine's, though only one address is written down.
        let looped = matches!(address, IpAddr::V4(address) if address.is_loopback());
        interface.addresses.contains(&address) || looped && interface.loopback
    };
    let mut having: Vec<Interface> = all.iter().filter(|it| has(it)).cloned().collect();
    if having.len() > 1 && name.is_none() && is_link_local(address) {
        let interfaces = having.into_iter().map(|interface| interface.name).collect();
        return Err(OpenError::Ambiguous { address, interfaces });
    }
    if having.is_empty() {
        let addresses = all.into_iter().flat_map(|interface| interface.addresses).collect();
        return Err(OpenError::NotLocal { address, addresses });
    }
    Ok(having.swap_remove(0))
}

/// A socket with this address and port that sends headers which are known beforehand.
fn bound_socket(local: SocketAddr, interface: u32) -> io::Result<Socket> {
    let socket = unbound_socket(local, interface)?;
    match socket.bind(&local.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => share_with_sinks(&socket, local)?,
        bound => bound?,
    }
    Ok(socket)
}

/// Binds a socket beside the sinks of raw links, which hold the port with `SO_REUSEADDR`. The
/// socket has that option only while it is bound, so the next link at its address finds the port in
/// use. Two links that have it at the same time would share the port with each other:
/// [`bind_guard`] lets one of them bind at a time.
fn share_with_sinks(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    let _guard = bind_guard(local)?;
    socket.set_reuse_address(true)?;
    socket.bind(&local.into())?;
    socket.set_reuse_address(false)
}

/// Holds TCP port 4791 of the link's address, which one socket per address and network namespace
/// can, and which is released however a process ends. Another user can hold it for good, and then
/// the address counts as taken; but that user could take the UDP port of the address as well. A
/// name outside the address, such as that of an abstract socket or of a file, would let one user
/// block all addresses.
fn bind_guard(local: SocketAddr) -> io::Result<Socket> {
    let guard = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
    if local.is_ipv6() {
        guard.set_only_v6(true)?;
    }
    let mut tries = 0..GUARD_TRIES;
    loop {
        match guard.bind(&local.into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries.next().is_some() => {
                std::thread::sleep(GUARD_INTERVAL);
            }
            bound => return bound.map(|()| guard),
        }
    }
}

/// Interval and number of attempts to get the guard while another link binds, which takes
/// microseconds.
const GUARD_INTERVAL: Duration = Duration::from_millis(1);
const GUARD_TRIES: u32 = 500;

/// Opens the socket before it has its address. What it sends to groups leaves by this interface.
fn unbound_socket(local: SocketAddr, interface: u32) -> io::Result<Socket> {
    let domain = Domain::for_address(local);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    match local {
        SocketAddr::V4(local) => {
            socket.set_multicast_if_v4(local.ip())?;
            socket.set_multicast_ttl_v4(HOP_LIMIT.into())?;
            set_option(socket.as_fd(), libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set_option(socket.as_fd(), libc::SOL_IP, libc::IP_TTL, HOP_LIMIT.into())?;
        }
        SocketAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_multicast_if_v6(interface)?;
            socket.set_multicast_hops_v6(HOP_LIMIT.into())?;
            let never = libc::IPV6_PMTUDISC_DO;
            set_option(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, never)?;
            set_option(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_DONTFRAG, 1)?;
            set_option(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
        }
    }
    ask_for(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER);
    Ok(socket)
}

/// Hop limit of a packet whose path has none.
const HOP_LIMIT: u8 = 64;

/// Size of the send buffer, if the system allows it.
const SEND_BUFFER: usize = 4 << 20;

/// Lets a socket tell what arrives with which headers, many packets at once; returns how many bytes
/// it has room for.
fn prepare_to_receive(socket: &Socket, local: SocketAddr, room: usize) -> io::Result<usize> {
    let fd = socket.as_fd();
    if local.is_ipv6() {
        // Traffic class and flow label in one.
        set_option(fd, libc::SOL_IPV6, libc::IPV6_FLOWINFO, 1)?;
        set_option(fd, libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        // The checksum of UDP is 0 in RoCE, in IPv6 too.
        set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    } else {
        set_option(fd, libc::SOL_IP, libc::IP_RECVTOS, 1)?;
        set_option(fd, libc::SOL_IP, libc::IP_RECVTTL, 1)?;
    }
    set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    // Without it packets come one by one, which is slow but right.
    let _ = set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    ask_for(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, room);
    let room = option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(usize::try_from(room).unwrap_or(0))
}

/// Asks for room: beyond the system's limit if it may, else up to the limit.
fn ask_for(socket: &Socket, beyond: c_int, within: c_int, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // The system cuts to its limit what it is asked for; less room than wished for is no error.
    let _ = set_option(socket.as_fd(), libc::SOL_SOCKET, beyond, bytes)
        .or_else(|_| set_option(socket.as_fd(), libc::SOL_SOCKET, within, bytes));
}

/// Returns the error of a socket that could not be bound to an address that the interface has.
fn open_error(source: io::Error, address: IpAddr, interface: &Interface) -> OpenError {
    match source.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse { address },
        io::ErrorKind::AddrNotAvailable => {
            OpenError::Tentative { address, interface: interface.name.clone() }
        }
        io::ErrorKind::PermissionDenied => OpenError::Forbidden { what: "a UDP socket", source },
        _ => {
            let interface = interface.name.clone();
            OpenError::System { what: "open a UDP socket", interface, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as LocalAddr, UnixDatagram};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn bind_beside_a_sink_does_not_depend_on_names_of_other_users() {
        let name = LocalAddr::from_abstract_name("roce shares a port").unwrap();
        let _squatted = UnixDatagram::bind_addr(&name);
        let local = SocketAddr::from(([127, 47, 101, 2], ROCE_PORT));
        let sink = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        sink.set_reuse_address(true).unwrap();
        sink.bind(&local.into()).unwrap();
        // The guard of another address is held for good.
        let elsewhere = bind_guard(SocketAddr::from(([127, 47, 101, 3], ROCE_PORT))).unwrap();
        drop(bound_socket(local, 0).unwrap());
        drop(elsewhere);
        // While the guard of this one is held, the address counts as taken.
        let _held = bind_guard(local).unwrap();
        assert_eq!(bound_socket(local, 0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn of_several_that_share_an_address_with_a_raw_link_one_has_it() {
        let local = SocketAddr::from(([127, 47, 101, 1], ROCE_PORT));
        let sink = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        sink.set_reuse_address(true).unwrap();
        sink.bind(&local.into()).unwrap();
        let (having, had) = (AtomicU32::new(0), AtomicU32::new(0));
        let try_often = || {
            for _ in 0..3000 {
                match bound_socket(local, 0) {
                    Ok(_socket) => {
                        assert_eq!(having.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                        had.fetch_add(1, Ordering::SeqCst);
                        having.fetch_sub(1, Ordering::SeqCst);
                    }
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse),
                }
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(try_often)));
        });
        assert!(had.load(Ordering::SeqCst) > 0);
    }
}
