//! Sockets at the port of RoCE that drop all they get, so that the kernel does not call the port
//! unreachable.
//!
//! One that is bound to no address does for all, and takes nothing from a program that is bound to
//! one. While another program has the port at some address and does not share it, there is one for
//! each of the link's own addresses instead. Where another program has the port, that does as well,
//! for as long as it lasts: when it is given up, it is taken.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::super::sys::ring;
use super::filter;
use crate::time::Instant;
use crate::wire::ROCE_PORT;

/// Interval of attempts to bind an address that another program has.
const RETRY: Duration = Duration::from_millis(100);

/// The sockets of a link.
#[derive(Debug)]
pub(in crate::link) struct Sinks {
    /// Sockets that have their addresses.
    held: Vec<Socket>,
    /// Sockets whose addresses another program has, or that do not exist yet. They were made with
    /// the others, so that all are in the same network, whichever thread tries again.
    waiting: Vec<(Socket, SocketAddr)>,
    /// Time of the next attempt.
    next: Instant,
}

impl Sinks {
    /// Opens the sockets for the addresses of an interface.
    pub(in crate::link) fn open(addresses: &[IpAddr], interface: u32) -> io::Result<Self> {
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)] {
            // A machine may know but one version of IP.
            let address = SocketAddr::new(any, ROCE_PORT);
            let Ok(socket) = udp_socket(address) else { continue };
            let sink = dropping(socket)?;
            sink.set_reuse_address(true)?;
            if bind(&sink, address)? {
                held.push(sink);
                continue;
            }
            for address in addresses.iter().filter(|address| address.is_ipv4() == any.is_ipv4()) {
                let address = with_port(*address, interface);
                let sink = dropping(udp_socket(address)?)?;
                if take(&sink, address)? {
                    held.push(sink);
                } else {
                    waiting.push((sink, address));
                }
            }
        }
        Ok(Self { held, waiting, next: Instant::ZERO })
    }

    /// Tries to take what another program had, if it is time to.
    pub(in crate::link) fn retry(&mut self, now: Instant) {
        if self.waiting.is_empty() || now < self.next {
            return;
        }
        self.next = now.saturating_add(RETRY);
        let (held, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|(sink, address)| matches!(take(sink, *address), Ok(true)));
        self.held.extend(held.into_iter().map(|(sink, _)| sink));
        self.waiting = waiting;
    }

    /// Returns the time of the next attempt, if there is one.
    pub(in crate::link) fn poll_timeout(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next)
    }
}

fn with_port(address: IpAddr, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, ROCE_PORT, 0, interface).into()
        }
        address => SocketAddr::new(address, ROCE_PORT),
    }
}

fn udp_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
}

/// Lets a socket drop all it gets.
fn dropping(socket: Socket) -> io::Result<Socket> {
    if socket.domain()? == Domain::IPV6 {
        socket.set_only_v6(true)?;
    }
    socket.attach_filter(&filter::NOTHING)?;
    socket.set_reuse_port(true)?;
    // Or the kernel takes trains apart before they are seen.
    ring::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    Ok(socket)
}

/// Gives a sink one address, beside other sinks only: of sockets with the same address the last to
/// come gets all, so it must not come after a program's. Later programs may share the address.
fn take(sink: &Socket, address: SocketAddr) -> io::Result<bool> {
    let bound = bind(sink, address)?;
    if bound {
        sink.set_reuse_address(true)?;
    }
    Ok(bound)
}

/// Gives a socket an address; whether it can have it now. Another program may have it, or it may be
/// new, or given for later.
fn bind(socket: &Socket, address: SocketAddr) -> io::Result<bool> {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable};
    match socket.bind(&address.into()) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), AddrInUse | AddrNotAvailable) => Ok(false),
        Err(error) => Err(error),
    }
}
