//! The socket of an address: shared with other NICs of this user, or the only one.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::link::interface::Interface;
use crate::link::share::{self, JoinError, Member, RendezvousError};
use crate::link::sys::socket::{option, set_option};
use crate::link::{Holder, OpenError};

/// The socket of a NIC, bound to its address, and its membership there, if it shares it.
pub(super) struct Bound {
    pub(super) socket: Socket,
    pub(super) member: Option<Member>,
}

/// Binds the socket of a NIC. Where NICs cannot find each other, or another program has the
/// address, it does not share it.
pub(super) fn bind(
    local: SocketAddr,
    interface: &Interface,
    is_shared: bool,
) -> Result<Bound, OpenError> {
    let address = local.ip();
    let alone = || {
        let socket = bound_socket(local, interface.index);
        let socket = socket.map_err(|error| open_error(error, address, interface))?;
        Ok(Bound { socket, member: None })
    };
    if !is_shared {
        return alone();
    }
    match share::join(local, interface.index, shared_socket) {
        Ok((socket, member)) => Ok(Bound { socket, member: Some(member) }),
        Err(JoinError::Full) => Err(OpenError::InUse { address, holder: Holder::Full }),
        Err(JoinError::Rendezvous(RendezvousError::NoAnswer)) => {
            Err(OpenError::InUse { address, holder: Holder::Silent })
        }
        Err(_) => alone(),
    }
}

/// Opens a socket that is to be bound beside others of the same address.
fn shared_socket(local: SocketAddr, interface: u32) -> io::Result<Socket> {
    let socket = unbound_socket(local, interface)?;
    prepare_to_receive(&socket, local, super::RECEIVE_BUFFER)?;
    Ok(socket)
}

/// A socket with this address and port that sends headers which are known beforehand.
pub(super) fn bound_socket(local: SocketAddr, interface: u32) -> io::Result<Socket> {
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
pub(super) fn unbound_socket(local: SocketAddr, interface: u32) -> io::Result<Socket> {
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
pub(super) const HOP_LIMIT: u8 = 64;

/// Size of the send buffer, if the system allows it.
const SEND_BUFFER: usize = 4 << 20;

/// Lets a socket tell what arrives with which headers, many packets at once; returns how many bytes
/// it has room for.
pub(super) fn prepare_to_receive(
    socket: &Socket,
    local: SocketAddr,
    room: usize,
) -> io::Result<usize> {
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
        io::ErrorKind::AddrInUse => OpenError::InUse { address, holder: Holder::find(address) },
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
    use crate::wire::ROCE_PORT;

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
