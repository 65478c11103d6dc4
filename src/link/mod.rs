//! Ways onto a network.
//!
//! A link carries the packets of one port: it puts IP and UDP headers before them and the ICRC behind them, and on the
//! way in checks both. Its two halves work side by side, so that one thread can send while another receives.
//!
//! | link | what it is |
//! |---|---|
//! | [`cable`] | two NICs of one process |
//! | [`mem`] | a simulated network, with seeded faults, in virtual time |
//! | [`udp`] | an ordinary UDP socket, for which no privilege is needed |
//! | [`raw`] | whole frames on one interface; needs the capability `CAP_NET_RAW` |
//!
//! And around any of them:
//!
//! | wrapper | what it does |
//! |---|---|
//! | [`fault`] | loses, duplicates, delays, reorders, corrupts and marks packets, by chance or by rule |
//! | [`tap`] | writes what passes into a capture |
//!
//! [`route`] tells from where and over what an address is reached, and [`interface`] what interfaces this machine has, and what a port on one of them would be.

use std::io;
use std::os::fd::BorrowedFd;

use crate::time::Instant;
use crate::verbs::Mtu;
use crate::wire::{Batch, Gid, Path, Qpn, Received};

mod cable;
#[cfg(target_os = "linux")]
mod error;
pub mod fault;
mod gid_table;
#[cfg(target_os = "linux")]
pub mod interface;
pub mod mem;
#[cfg(target_os = "linux")]
mod monitor;
#[cfg(target_os = "linux")]
mod named;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
pub mod raw;
#[cfg(target_os = "linux")]
pub mod route;
#[cfg(target_os = "linux")]
mod spec;
#[cfg(target_os = "linux")]
mod sys;
pub mod tap;
#[cfg(test)]
mod testing;
#[cfg(target_os = "linux")]
pub mod udp;

pub use cable::cable;
#[cfg(target_os = "linux")]
pub use error::OpenError;
pub use gid_table::{GidRow, GidTable};
#[cfg(target_os = "linux")]
pub use named::{NamedSpec, NamedSpecError};
#[cfg(target_os = "linux")]
pub use spec::{Spec, SpecError};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use sys::thread::on_stack;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use sys::thread::tests::without_threads;
#[cfg(target_os = "linux")]
pub(crate) use sys::thread::{Thread, involuntary_switches, spawn};

/// A thread, which takes signals as any other does elsewhere than on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) type Thread = std::thread::JoinHandle<()>;

/// Returns 0: how often a thread lost its core is not known elsewhere than on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn involuntary_switches() -> i64 {
    0
}

/// Starts a thread.
#[cfg(not(target_os = "linux"))]
pub(crate) fn spawn(
    name: &'static core::ffi::CStr,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    std::thread::Builder::new().name(name.to_string_lossy().into_owned()).spawn(run)
}

/// Starts a thread that nothing waits for, and that takes no signal of the program's.
#[doc(hidden)]
pub fn spawn_detached(
    name: &'static core::ffi::CStr,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    spawn(name, run).map(drop)
}

/// The most multicast groups that a link is in at once.
pub const GROUPS_MAX: usize = 64;

/// The most queue pairs that a link tells from those of others; with more, it takes in the packets of all.
pub const CHOSEN_MAX: usize = 128;

/// A way onto a network: its halves, and what it knows of its port.
pub struct Link {
    /// The half that sends.
    pub sender: Box<dyn Sender>,
    /// The half that receives.
    pub receiver: Box<dyn Receiver>,
    /// The port it stands for.
    pub port: Port,
    /// Frames of any protocol, if its interface gives and takes them.
    pub frames: Option<Box<dyn Frames>>,
    /// Follows what becomes of its port, if that can change.
    pub monitor: Option<Box<dyn PortMonitor>>,
}

/// Follows what becomes of a port: carrier, MTU, addresses.
pub trait PortMonitor: Send {
    /// What becomes readable when the port may have changed.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What the port is now. The descriptor is not readable any more afterwards, until the next change.
    fn status(&mut self) -> io::Result<&PortStatus>;
}

/// What can change of a port while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Whether packets can pass: its interface is up and has a carrier.
    pub is_active: bool,
    /// Its identifiers, by index. An index that has none is zero, and keeps its place.
    pub gids: Vec<Gid>,
    /// The largest payload whose packet fits into the network's MTU.
    pub mtu: Mtu,
}

/// Frames of any protocol on an interface, beside the packets of its link. Any thread may use it.
pub trait Frames: Send + Sync {
    /// The longest frame, from its Ethernet header on.
    fn len_max(&self) -> usize;

    /// Sends a frame, waiting while the network has no room.
    fn send(&self, frame: &[u8]) -> io::Result<()>;

    /// From now on frames arrive, or none any more.
    fn listen(&self, listen: bool) -> io::Result<()>;

    /// Takes in a frame that has arrived, without waiting, and puts it in the place of what `frame` holds; whether
    /// there was one.
    fn receive(&self, frame: &mut Vec<u8>) -> io::Result<bool>;

    /// What becomes readable when frames arrive.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether the frames that are sent arrive here again, as on the loopback interface.
    fn is_echoing(&self) -> bool {
        false
    }
}

/// What a link knows of its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// What it is called: `udp:192.0.2.1`, `raw:eth0`.
    pub name: String,
    /// Its identifiers, by index.
    pub gids: Vec<Gid>,
    /// The largest payload whose packet fits into the network's MTU.
    pub mtu: Mtu,
    /// The network interface, if there is one.
    pub interface: Option<String>,
}

impl Port {
    /// Whether other processes can have a port with the same addresses, and see the same packets: on raw links.
    pub fn is_shared(&self) -> bool {
        self.name.starts_with("raw:")
    }
}

/// The half of a link that sends.
pub trait Sender: Send {
    /// Seals the packets of a batch and sends them in order, waiting while the network has no room. A packet that the
    /// network refuses is as good as lost and is counted; an error means that nothing can be sent any more.
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()>;

    /// The UDP source port that packets on this path really have, where the link cannot choose.
    fn source_port(&self, path: &Path) -> u16 {
        path.source_port
    }

    /// When it wants to be called again, with an empty batch if there is nothing else: it holds packets back.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// What was counted, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The half of a link that receives.
pub trait Receiver: Send {
    /// Takes in what has arrived, without waiting, and checks it; returns how many packets are sound. Whatever was
    /// taken in before is forgotten. What is refused is counted.
    fn receive(&mut self, now: Instant) -> io::Result<usize>;

    /// The packets that were taken in, in order.
    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>));

    /// How many bytes may wait to be taken in, if the system is sparing with them.
    fn room(&self) -> Option<usize> {
        None
    }

    /// What becomes readable when packets arrive. It may be another one once a group was joined.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Joins a multicast group: its packets arrive too, and the network is told if it needs to be. Each member gets one copy of
    /// each packet to the group, from any NIC of any machine, this one too.
    ///
    /// Sockets are opened for it, in the network namespace of the calling thread. An error of kind
    /// [`Unsupported`](io::ErrorKind::Unsupported) means that the link's addresses are of another version of IP, and of
    /// kind [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) that it is in [`GROUPS_MAX`] groups.
    fn join(&mut self, _group: Gid) -> io::Result<()> {
        Ok(())
    }

    /// Ends that.
    fn leave(&mut self, _group: Gid) {}

    /// Says which queue pairs there are, if there are not too many, so that packets to others are not taken in where
    /// that is easily told. Until then, and with `None`, there may be any.
    fn choose(&mut self, _queue_pairs: Option<&[Qpn]>) {}

    /// Takes in packets for these identifiers from now on, where the link has several. Zero is none.
    fn set_gids(&mut self, _gids: &[Gid]) {}

    /// When it wants to be called again: it holds packets back.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// What was counted, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("port", &self.port).finish_non_exhaustive()
    }
}
