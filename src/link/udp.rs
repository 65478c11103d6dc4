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
//! NICs of one user at one address, in up to 64 processes, each have a socket there: the kernel
//! finds the one of a packet by its destination QPN. Other users are refused. Between NICs of one
//! user on one machine, at any of its addresses, packets do not go through the kernel once the two
//! have found each other: see [`Options::uses_shared_memory`].
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

mod bind;
mod groups;
mod members;
mod priority;
mod receive;
mod send;
mod shared_memory;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex};

use self::bind::{Bound, bind, prepare_to_receive};
use self::groups::Groups;
use self::members::Members;
use self::receive::UdpReceiver;
#[doc(hidden)]
pub use self::receive::sound_packets;
use self::send::UdpSender;
use self::shared_memory::{SharedMemory, SharedNeighbors};
use super::interface::{Interface, gid, interfaces, is_link_local};
use super::monitor::{Addresses, InterfaceMonitor};
use super::share::Member;
use super::{Link, OpenError, Port, PortMonitor, Sharing};
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
    /// Whether other NICs of this user can be at the same address, in this process and in others:
    /// those that share it, too.
    pub is_shared: bool,
    /// Whether packets to and from NICs of this user on this machine go through shared memory: if
    /// both use it and share their addresses.
    pub uses_shared_memory: bool,
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
    /// the interface, room for 8 MiB, shared, with shared memory.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address: address.to_canonical(),
            interface: None,
            icrc: IcrcCheck::default(),
            source_ports: 16,
            mtu: None,
            receive_buffer: RECEIVE_BUFFER,
            is_shared: true,
            uses_shared_memory: true,
        }
    }
}

/// Size of a receive buffer, unless another is asked for.
const RECEIVE_BUFFER: usize = 8 << 20;

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
    let Bound { socket, member } = bind(local, &interface, options.is_shared)?;
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
    let sharing = match &member {
        Some(member) => Sharing::User(member.share()),
        None => Sharing::Exclusive,
    };
    let (members, neighbors) = members(member, gid, options.uses_shared_memory)
        .map_err(system("prepare shared memory"))?;
    let receiver = UdpReceiver::new(Arc::clone(&socket), gid, options.icrc, room, groups)
        .map_err(system("allocate room for packets"))?
        .with_members(members);
    let sender = UdpSender::new(socket, local, interface.index, gid, ports);
    Ok(Link {
        sender: Box::new(sender.with_neighbors(neighbors)),
        receiver: Box::new(receiver),
        port: Port {
            name: format!("udp:{address}"),
            gids: vec![gid],
            mtu,
            interface: Some(interface.name),
            sharing,
        },
        frames: None,
        monitor: monitor(interface.index, address, options.mtu, (vec![gid], mtu)),
    })
}

/// Returns what the halves of a link need to serve other NICs, and to send to neighbors.
fn members(
    member: Option<Member>,
    gid: Gid,
    uses_shared_memory: bool,
) -> io::Result<(Option<Members>, Option<SharedNeighbors>)> {
    let Some(member) = member else { return Ok((None, None)) };
    if !uses_shared_memory {
        return Ok((Some(Members::new(member, None)), None));
    }
    let (neighbors, rings) = member.rings(gid)?;
    let neighbors = Arc::new(Mutex::new(neighbors));
    let memory = SharedMemory::new(gid, Arc::clone(&neighbors), rings);
    Ok((Some(Members::new(member, Some(memory))), Some(neighbors)))
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
