//! Whole frames on one interface, with every header in hand.
//!
//! A packet socket sees what arrives from the Ethernet header on, so the whole ICRC is checked, and
//! sends what it is given to the last bit: hop limit, traffic class, flow label, VLAN and priority.
//! Several programs can share one address and one port, each with queue pairs of its own. It needs
//! the capability `CAP_NET_RAW`, or a network namespace of one's own.
//!
//! - Frames arrive in a ring that is shared with the kernel: looking whether there is one takes no
//!   system call. The kernel may join packets of a flow into one frame of up to 64 KiB, which is
//!   taken apart here, each packet with the identification that it had.
//! - Trains of packets of one length leave as one frame, which the kernel or the network card takes
//!   apart.
//! - A filter lets only RoCE packets for the link's own addresses through, and of these only those
//!   for the queue pairs that it was told of, if they are no more than
//!   [`CHOSEN_MAX`](super::CHOSEN_MAX). So several programs that share an address do not wake each
//!   other. Frames that the kernel has put together from several packets of one flow pass or fail
//!   by their first; a flow is of one source port, which queue pairs of two programs seldom share.
//! - The kernel would answer packets to a port without a listener. So there is a UDP socket at the
//!   port of RoCE, which drops all that it gets: see `sink`.
//! - Hardware addresses are the kernel's: see `neighbor`. On a VLAN that the link tags by itself
//!   there is no kernel to ask: there, neighbors are given. The interface of a VLAN that the
//!   kernel has (`eth0.5`) needs none of this.
//!
//! - The service level of a path is the priority in the tag of a VLAN that the link tags by itself,
//!   and within this machine: the mapping of a VLAN's interface (`egress-qos-map`) makes it one on
//!   the wire.
//! - Packets to multicast groups go through the kernel, which copies them to the members on this
//!   machine. A link that is a member also receives what leaves its interface, so that it gets
//!   copies of packets that this machine sends, its own included. On a VLAN that the link tags by
//!   itself, members on this machine get no copies, and the kernel announces membership to switches
//!   outside of the VLAN alone.
//!
//! - The kernel carries packets to an address of this host over `lo`, whatever their interface. So
//!   a link takes in packets for its addresses from `lo` as well: a program reaches its own
//!   address, and programs that share an interface reach each other.

// Only the command and its tests use it: no promise is made about it.
#[doc(hidden)]
pub mod bump;
mod filter;
mod frames;
pub(super) mod neighbor;
pub(super) mod packets;
mod receive;
pub(super) mod send;
pub(super) mod sink;

use std::io;
use std::net::IpAddr;

use socket2::Socket;

use self::filter::Filter;
use self::frames::RawFrames;
use self::neighbor::{Kernel, Neighbors};
#[doc(hidden)]
pub use self::packets::sound_packets;
use self::receive::RawReceiver;
use self::send::RawSender;
use self::sink::Sinks;
use super::interface::{Interface, gid, interfaces};
use super::monitor::{Addresses, InterfaceMonitor};
use super::sys::ring::{self, Ring};
use super::{Link, OpenError, Port, PortMonitor, Sharing};
use crate::verbs::Mtu;
use crate::wire::MacAddr;

/// Configuration of a raw link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The name of its interface.
    pub interface: String,
    /// The addresses that it answers to, which its GIDs follow from. If there are none, all of the
    /// interface.
    pub addresses: Vec<IpAddr>,
    /// The VLAN of its frames, which are tagged with it and with their service level as priority; 0
    /// is the priority alone. If there is none, they have no tag.
    pub vlan: Option<u16>,
    /// Hardware addresses that are known and need not be asked for.
    pub neighbors: Vec<(IpAddr, MacAddr)>,
    /// Number of frames of the receive ring. Each takes 68 KiB of memory.
    pub frames: usize,
}

impl Config {
    /// A link on an interface, with all its addresses, and without a VLAN.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            addresses: Vec::new(),
            vlan: None,
            neighbors: Vec::new(),
            frames: FRAMES,
        }
    }
}

/// Default number of frames of the receive ring: half a millisecond of small ones, or 32 MiB.
const FRAMES: usize = 510;

/// Maximum number of addresses of one link.
pub(super) const ADDRESSES_MAX: usize = 16;

/// Opens a raw link.
pub fn open(config: &Config) -> Result<Link, OpenError> {
    let fail = |what| {
        let interface = config.interface.clone();
        move |source| OpenError::System { what, interface, source }
    };
    if let Some(vlan) = config.vlan.filter(|vlan| *vlan > 4094) {
        return Err(OpenError::VlanOutOfRange(vlan));
    }
    let (interface, loopback) = find_interface(config)?;
    let addresses = addresses_of(config, &interface)?;
    let too_short =
        || OpenError::MtuTooSmall { interface: interface.name.clone(), mtu: interface.mtu };
    let mtu = Mtu::for_ethernet(interface.mtu).ok_or_else(too_short)?;

    let socket = packet_socket(config)?;
    let filter = Filter::new(addresses.clone(), &interface, loopback);
    // The filter is there before the first frame is.
    filter.attach(&socket).map_err(fail("set the filter"))?;
    let option = libc::PACKET_IGNORE_OUTGOING;
    ring::set_option(&socket, libc::SOL_PACKET, option, 1).map_err(fail("ignore sent frames"))?;
    let ring = Ring::new(socket, config.frames).map_err(fail("make the ring of frames"))?;
    let sinks = Sinks::open(&addresses, interface.index).map_err(fail("hold the port of RoCE"))?;
    let bind_index = filter.bind_index();
    ring::bind(ring.socket(), bind_index, true).map_err(fail("bind a packet socket"))?;
    let gids: Vec<_> = addresses.iter().map(|address| gid(*address)).collect();
    let receiver = RawReceiver::new(ring, gids.clone(), config.vlan, filter, sinks);

    let sender = sender(config, &interface)?;
    let port = Port {
        name: format!("raw:{}", interface.name),
        gids,
        mtu,
        interface: Some(interface.name.clone()),
        sharing: Sharing::Everyone,
    };
    let sockets = [packet_socket(config)?, packet_socket(config)?];
    let frames = RawFrames::new(sockets, &interface).map_err(fail("prepare for frames"))?;
    let (sender, receiver) = (Box::new(sender), Box::new(receiver));
    let monitor = monitor(config, interface.index, &port);
    Ok(Link { sender, receiver, port, frames: Some(Box::new(frames)), monitor })
}

/// Follows the interface of a link. A sandbox may forbid it: then nothing is announced.
fn monitor(config: &Config, index: u32, port: &Port) -> Option<Box<dyn PortMonitor>> {
    let addresses = match &config.addresses[..] {
        [] => Addresses::All(ADDRESSES_MAX),
        given => Addresses::Fixed(given.to_vec()),
    };
    let now = (port.gids.clone(), port.mtu);
    let monitor = InterfaceMonitor::new(index, addresses, None, now).ok()?;
    Some(Box::new(monitor))
}

/// The interface of a link, and the index of the loopback interface if that is another one.
pub(super) fn find_interface(config: &Config) -> Result<(Interface, Option<u32>), OpenError> {
    let interface = config.interface.clone();
    let all = interfaces().map_err(OpenError::Interfaces)?;
    let names = all.iter().map(|interface| interface.name.clone()).collect();
    let loopback = all.iter().find(|found| found.loopback).map(|loopback| loopback.index);
    let found = all.into_iter().find(|found| found.name == interface);
    let found = found.ok_or(OpenError::NoInterface { name: interface, interfaces: names })?;
    let loopback = loopback.filter(|index| *index != found.index);
    Ok((found, loopback))
}

/// The addresses of a link.
pub(super) fn addresses_of(
    config: &Config,
    interface: &Interface,
) -> Result<Vec<IpAddr>, OpenError> {
    let given = &config.addresses;
    let addresses = if given.is_empty() { interface.addresses.clone() } else { given.clone() };
    match addresses.len() {
        0 => Err(OpenError::NoAddress(interface.name.clone())),
        1..=ADDRESSES_MAX => Ok(addresses),
        count => Err(OpenError::TooManyAddresses { count, max: ADDRESSES_MAX }),
    }
}

/// A packet socket, for which the program needs a capability.
fn packet_socket(config: &Config) -> Result<Socket, OpenError> {
    ring::packet_socket().map_err(|source| {
        let interface = config.interface.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => OpenError::Privilege { interface },
            _ => OpenError::System { what: "open a packet socket", interface, source },
        }
    })
}

/// The half that sends, by a packet socket of its own.
pub(super) fn sender(config: &Config, interface: &Interface) -> Result<RawSender, OpenError> {
    let fail = |what| {
        let interface = config.interface.clone();
        move |source| OpenError::System { what, interface, source }
    };
    let socket = packet_socket(config)?;
    ring::bind(&socket, interface.index, false).map_err(fail("bind a packet socket"))?;
    // The kernel's neighbors are those without a VLAN.
    let ask = !interface.loopback && config.vlan.unwrap_or(0) == 0;
    let kernel = if ask {
        let kernel = Kernel::new(interface.index).map_err(fail("ask for neighbors"))?;
        let ip = send::IpSockets::new(&interface.name, interface.index);
        Some((kernel, ip.map_err(fail("open a raw IP socket"))?))
    } else {
        None
    };
    let (kernel, ip) = kernel.unzip();
    let neighbors = Neighbors::new(kernel, &config.neighbors);
    Ok(RawSender::new(socket, interface, config.vlan, neighbors, ip))
}
