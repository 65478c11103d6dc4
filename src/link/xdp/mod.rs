//! Packets past the kernel, by AF_XDP.
//!
//! An XDP program on the interface takes UDP packets to port 4791 of the link's addresses before
//! the kernel sees them, and passes everything else on to it. Packets lie in memory that is shared
//! with the kernel: zero copy where the driver has it (which is untested, for want of such a card),
//! copied by the kernel elsewhere, as on a veth. Rings of descriptors tell which chunk of the
//! memory belongs to which side.
//!
//! - Each receive queue of the interface has a socket. With zero copy, packets are sent by the
//!   socket that the source port of their queue pair gives; which socket they arrive at is the
//!   card's choice.
//! - Without zero copy, packets are sent in trains by a packet socket, as [`raw`] does: the kernel
//!   takes frames of a ring one at a time.
//! - It needs `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`, the last in the initial user namespace:
//!   a namespace of `unshare -Urn` does not do.
//! - The program is attached by a link of BPF, which the kernel detaches when the process ends, in
//!   whatever way. An interface that has a program already is refused, and its program is named.
//! - A frame is one chunk, so the largest RDMA MTU is 2048.
//! - The kernel's routes and neighbors are asked as [`raw`] does; packets to multicast
//!   groups, and those to other addresses of this host, leave through the kernel as there. Packets
//!   to the link itself do not touch the interface.
#![forbid(unsafe_code)]

mod attach;
mod program;
mod receive;
mod send;
mod trains;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use self::attach::Attached;
use self::receive::XdpReceiver;
use self::send::XdpSender;
use self::trains::TrainSender;
use super::bell::Bell;
use super::interface::{Interface, gid};
use super::monitor::{Addresses, InterfaceMonitor};
use super::raw::neighbor::{Kernel, Neighbors};
use super::raw::send::IpSockets;
use super::raw::sink::Sinks;
use super::sys::xsk;
use super::{Link, OpenError, Port, PortMonitor, Sender, Sharing, raw};
use crate::verbs::Mtu;
use crate::wire::{Gid, MacAddr};

/// Configuration of a link by AF_XDP.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Name of its interface.
    pub interface: String,
    /// Addresses that it answers to, which its GIDs follow from. If there are none, all of the
    /// interface.
    pub addresses: Vec<IpAddr>,
    /// Hardware addresses that are known and need not be asked for.
    pub neighbors: Vec<(IpAddr, MacAddr)>,
    /// Time in microseconds for which a look at an empty socket drives its queue, instead of
    /// interrupts. With none, interrupts do.
    pub busy_poll: Option<u16>,
    /// Whether packets leave by the rings of AF_XDP even if the driver has no zero copy, instead of
    /// by a packet socket.
    pub always_rings: bool,
}

impl Config {
    /// A link on an interface, with all its addresses, without busy polling.
    pub fn new(interface: impl Into<String>) -> Self {
        let (addresses, neighbors) = (Vec::new(), Vec::new());
        let interface = interface.into();
        Self { interface, addresses, neighbors, busy_poll: None, always_rings: false }
    }
}

/// Maximum number of queues that are used. Packets that arrive at others go to the kernel, which
/// drops them.
pub const QUEUES_MAX: u32 = 64;

/// Number of times that a queue that is taken is asked for again, and the time between: 200 ms
/// together.
const QUEUE_TRIES: u32 = 20;
const QUEUE_INTERVAL: Duration = Duration::from_millis(10);

/// Largest RDMA MTU whose packets fit into a chunk.
const MTU_MAX: Mtu = Mtu::M2048;

const _: () = assert!(MTU_MAX.bytes() + Mtu::KERNEL_HEADERS + 14 <= xsk::CHUNK - xsk::HEADROOM);

/// Opens a link by AF_XDP.
pub fn open(config: &Config) -> Result<Link, OpenError> {
    let mut known = raw::Config::new(config.interface.clone());
    known.addresses.clone_from(&config.addresses);
    known.neighbors.clone_from(&config.neighbors);
    let (interface, _) = raw::find_interface(&known)?;
    let addresses = raw::addresses_of(&known, &interface)?;
    let fail = |what| {
        let name = config.interface.clone();
        move |source| failure(what, name, source)
    };
    let too_short =
        || OpenError::MtuTooSmall { interface: interface.name.clone(), mtu: interface.mtu };
    let mtu = Mtu::for_ethernet(interface.mtu).ok_or_else(too_short)?.min(MTU_MAX);
    let Some(mac) = interface.mac else {
        let source = io::Error::other("it is no Ethernet interface");
        return Err(fail("open a link by AF_XDP")(source));
    };
    let gids: Vec<_> = addresses.iter().map(|address| gid(*address)).collect();
    attach::refuse_other(&interface)?;
    let (rx, tx) = sockets(config, &interface)?;
    let attached = Attached::new(&interface, &rx, &gids)?;
    let sinks = Sinks::open(&addresses, interface.index).map_err(fail("hold the port of RoCE"))?;
    let bell = Bell::new(rx.iter().map(AsFd::as_fd)).map_err(fail("wait for frames"))?;
    let own = Arc::new(Own::new(gids.clone(), bell));
    let uses_rings = config.always_rings || rx.iter().any(|rx| xsk::is_zero_copy(rx.socket()));
    let sender: Box<dyn Sender> = if uses_rings {
        let kernel = Kernel::new(interface.index).map_err(fail("ask for neighbors"))?;
        let ip = IpSockets::new(&interface.name, interface.index);
        let ip = ip.map_err(fail("open a raw IP socket"))?;
        let neighbors = Neighbors::new(Some(kernel), &config.neighbors);
        Box::new(XdpSender::new(tx, mac, neighbors, ip, Arc::clone(&own)))
    } else {
        Box::new(TrainSender::new(raw::sender(&known, &interface)?, mac, Arc::clone(&own)))
    };
    let receiver = XdpReceiver::new(rx, attached, own, &interface, sinks, config.busy_poll);
    let port = Port {
        name: format!("xdp:{}", interface.name),
        gids,
        mtu,
        interface: Some(interface.name.clone()),
        sharing: Sharing::Exclusive,
    };
    let monitor = monitor(config, interface.index, &port);
    let receiver = Box::new(receiver);
    Ok(Link { sender, receiver, port, frames: None, monitor })
}

/// Whether the system lets this process use AF_XDP: a socket, a map and the program can be had.
pub fn check() -> Result<(), OpenError> {
    let fail = |what| move |source| failure(what, "INTERFACE".to_owned(), source);
    xsk::xdp_socket().map_err(fail("open a socket of AF_XDP"))?;
    attach::try_load().map_err(fail("load a program of XDP"))
}

/// Says what is in the way.
fn failure(what: &'static str, interface: String, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::XdpPrivilege { interface },
        _ => OpenError::System { what, interface, source },
    }
}

/// A socket for each receive queue of an interface, by its sides.
fn sockets(
    config: &Config,
    interface: &Interface,
) -> Result<(Vec<xsk::XskRx>, Vec<xsk::XskTx>), OpenError> {
    let fail = |what| move |source| failure(what, interface.name.clone(), source);
    let any = Socket::new(Domain::UNIX, Type::DGRAM, None).map_err(fail("open a socket"))?;
    let queues = super::sys::interface::receive_queues(any.as_fd(), &interface.name).unwrap_or(1);
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for queue in 0..queues.min(QUEUES_MAX) {
        let opened = open_queue(interface.index, queue);
        let (rx, tx) = opened.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS) => {
                let source = io::Error::other("16 MiB a queue exceed the limit of locked memory");
                failure("share memory", interface.name.clone(), source)
            }
            Some(libc::EBUSY) => OpenError::XdpQueue { interface: interface.name.clone(), queue },
            _ => failure("open a socket of AF_XDP", interface.name.clone(), source),
        })?;
        if let Some(micros) = config.busy_poll {
            xsk::prefer_busy_poll(rx.socket(), micros.into()).map_err(fail("poll queues"))?;
        }
        receivers.push(rx);
        senders.push(tx);
    }
    Ok((receivers, senders))
}

/// Opens a socket on a queue. It waits a while for one that is taken: the kernel frees the queue of
/// a socket that was closed a moment later.
fn open_queue(interface: u32, queue: u32) -> io::Result<(xsk::XskRx, xsk::XskTx)> {
    for _ in 0..QUEUE_TRIES {
        match xsk::open(interface, queue) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(QUEUE_INTERVAL);
            }
            opened => return opened,
        }
    }
    xsk::open(interface, queue)
}

/// Follows the interface of a link. A sandbox may forbid it: then nothing is announced.
fn monitor(config: &Config, index: u32, port: &Port) -> Option<Box<dyn PortMonitor>> {
    let addresses = match &config.addresses[..] {
        [] => Addresses::All(raw::ADDRESSES_MAX),
        given => Addresses::Fixed(given.to_vec()),
    };
    let now = (port.gids.clone(), port.mtu);
    let monitor = InterfaceMonitor::new(index, addresses, Some(port.mtu), now).ok()?;
    Some(Box::new(monitor))
}

/// Maximum number of frames to the link itself that wait.
const OWN_MAX: usize = 1024;

/// State that both halves share: the link's own addresses and groups, and frames to them.
#[derive(Debug)]
struct Own {
    state: Mutex<OwnState>,
    /// Wakes the NIC for such frames, beside those of the sockets.
    bell: Bell,
}

#[derive(Debug)]
struct OwnState {
    gids: Vec<Gid>,
    groups: Vec<Gid>,
    frames: VecDeque<Vec<u8>>,
}

impl Own {
    fn new(gids: Vec<Gid>, bell: Bell) -> Self {
        let state = OwnState { gids, groups: Vec::new(), frames: VecDeque::new() };
        Self { state: Mutex::new(state), bell }
    }

    /// Whether an address is the link's own.
    fn is_own(&self, address: Gid) -> bool {
        self.lock().gids.contains(&address)
    }

    /// Whether packets to an address come to the link itself, too.
    fn receives(&self, address: Gid) -> bool {
        let state = self.lock();
        if address.is_multicast() { &state.groups } else { &state.gids }.contains(&address)
    }

    fn lock(&self) -> MutexGuard<'_, OwnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
