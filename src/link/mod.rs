//! Links, by which a NIC sends and receives packets on a network.
//!
//! A link belongs to one port. It prepends IP and UDP headers, appends the ICRC, and checks both on
//! packets that arrive. Its halves are independent, so that one thread can send while another
//! receives.
//!
//! | link | what it is |
//! |---|---|
//! | [`cable`] | two NICs of one process |
//! | [`mem`] | a simulated network, with seeded faults, in virtual time |
//! | [`udp`] | an ordinary UDP socket, for which no privilege is needed |
//! | [`raw`] | whole frames on one interface; needs the capability `CAP_NET_RAW` |
//! | [`xdp`] | packets past the kernel, by AF_XDP; needs `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF` |
//! | `phy` | any device that smoltcp drives, TAP devices among them; with the feature `smoltcp` |
//!
//! Wrappers around any of them:
//!
//! | wrapper | what it does |
//! |---|---|
//! | [`fault`] | drops, duplicates, delays, reorders, corrupts and ECN-marks packets, by chance or by rule |
//! | [`tap`] | writes all packets to a capture |
//!
//! `route` looks up the source address and interface for a destination; [`interface`] lists the
//! interfaces of this machine, and the ports that links on them have.
//!
//! ```
//! use roce::link::Spec;
//! use roce::nic::SoftNic;
//!
//! // As the command line names it: `udp:ADDRESS`, `raw:INTERFACE`.
//! let spec: Spec = "udp:127.20.14.1".parse()?;
//! let link = spec.open(None)?;
//! assert_eq!(link.port.name, "udp:127.20.14.1");
//! let nic = SoftNic::start(link)?;
//! # drop(nic);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::time::Instant;
use crate::verbs::Mtu;
use crate::wire::{Batch, Gid, Path, Qpn, Received};

mod address_fds;
mod bell;
mod cable;
mod cidr;
mod error;
pub mod fault;
mod framing;
mod gid_table;
mod holder;
pub mod interface;
pub(crate) mod local_socket;
pub mod mem;
mod monitor;
mod named;
mod netlink;
#[cfg(feature = "smoltcp")]
pub mod phy;
pub mod raw;
// For `tools/ibverbs`: no promise is made about it.
#[doc(hidden)]
pub mod route;
mod share;
mod sharing;
mod spec;
mod sys;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod udp;
pub mod xdp;

pub use address_fds::AddressFds;
pub use cable::cable;
pub use cidr::Cidr;
pub use error::OpenError;
pub use gid_table::{GidRow, GidTable};
pub use holder::Holder;
pub use named::{NamedSpec, NamedSpecError};
#[doc(hidden)]
pub use share::RingUnderTest;
#[cfg(test)]
pub(crate) use share::claims_for_tests;
pub(crate) use share::{Claim, Listens, Role};
pub use sharing::{Sharing, UserShare};
pub use spec::{Spec, SpecError};
pub(crate) use sys::fork::ProcessMark;
#[doc(hidden)]
pub use sys::thread::on_stack;
#[cfg(test)]
pub(crate) use sys::thread::tests::without_threads;
pub(crate) use sys::thread::{Thread, involuntary_switches, spawn};

/// Whether NICs of this user can find each other, to share addresses; if not, the error says why.
pub fn can_share_addresses() -> io::Result<()> {
    share::UserSecret::all().map(drop).map_err(io::Error::other)
}

/// Starts a detached thread with signals blocked.
#[doc(hidden)]
pub fn spawn_detached(
    name: &'static core::ffi::CStr,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    spawn(name, run).map(drop)
}

/// Maximum number of multicast groups that a link is in at once.
pub const GROUPS_MAX: usize = 64;

/// Maximum number of queue pairs in a QPN filter; with more there is no filter.
pub const CHOSEN_MAX: usize = 128;

/// A link: its halves and its port.
pub struct Link {
    /// The half that sends.
    pub sender: Box<dyn Sender>,
    /// The half that receives.
    pub receiver: Box<dyn Receiver>,
    /// Port.
    pub port: Port,
    /// Frames of any protocol, if the link can send and receive them.
    pub frames: Option<Box<dyn Frames>>,
    /// Reports changes of the port, if it can change.
    pub monitor: Option<Box<dyn PortMonitor>>,
}

/// Reports changes of a port: carrier, MTU, addresses.
pub trait PortMonitor: Send {
    /// Returns a descriptor that becomes readable when the port may have changed.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the present status. The descriptor is then not readable until the next change.
    fn status(&mut self) -> io::Result<&PortStatus>;
}

/// Attributes of a port that can change while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Whether packets can pass: its interface is up and has a carrier.
    pub is_active: bool,
    /// GIDs by index; zero is an empty entry.
    pub gids: Vec<Gid>,
    /// All addresses of the interface, also those that are none of the port's GIDs.
    pub addresses: Vec<IpAddr>,
    /// Largest RDMA MTU whose packets fit into the MTU of the network.
    pub mtu: Mtu,
}

/// Frames of any protocol on an interface, beside the packets of its link. Any thread may use it.
pub trait Frames: Send + Sync {
    /// Returns the maximum length of a frame, from its Ethernet header on.
    fn len_max(&self) -> usize;

    /// Sends a frame; blocks while the network has no room.
    fn send(&self, frame: &[u8]) -> io::Result<()>;

    /// Starts or stops receiving frames.
    fn listen(&self, listen: bool) -> io::Result<()>;

    /// Receives a frame into `frame`, replacing its content, without blocking; returns whether
    /// there was one.
    fn receive(&self, frame: &mut Vec<u8>) -> io::Result<bool>;

    /// Returns a descriptor that becomes readable when frames arrive.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether sent frames are received by their sender, as on the loopback interface.
    fn is_echoing(&self) -> bool {
        false
    }
}

/// The port of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name: `udp:192.0.2.1`, `raw:eth0`.
    pub name: String,
    /// GIDs by index.
    pub gids: Vec<Gid>,
    /// Largest RDMA MTU whose packets fit into the MTU of the network.
    pub mtu: Mtu,
    /// The network interface, if there is one.
    pub interface: Option<String>,
    /// Other processes that can open a port with the same addresses.
    pub sharing: Sharing,
}

/// The half of a link that sends.
pub trait Sender: Send {
    /// Adds the ICRCs to the packets of a batch and sends them in order; blocks while the network
    /// has no room. A packet that the network refuses counts as lost. After an error nothing can be
    /// sent any more.
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()>;

    /// Returns the UDP source port of packets on this path: some links cannot choose it.
    fn source_port(&self, path: &Path) -> u16 {
        path.source_port
    }

    /// Returns the time at which [`send`](Self::send) must be called again, with an empty batch if
    /// there is nothing else: the link holds packets back.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Whether the packets of a batch may [reference](Batch::take_references) their payload. It is
    /// copied before [`send`](Self::send) returns.
    fn takes_references(&self) -> bool {
        false
    }

    /// Adds the ICRC from now on also to packets that go where none is needed: the caller looks at
    /// them once they are sent.
    fn seal_all(&mut self) {}

    /// Returns the number of bytes that the caller should send at most now. If it is zero, there
    /// will be room within microseconds.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Returns its counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The half of a link that receives.
pub trait Receiver: Send {
    /// Receives what has arrived, without blocking, and checks it; returns the number of valid
    /// packets. They replace those of the call before. Packets that are refused are counted.
    fn receive(&mut self, now: Instant) -> io::Result<usize>;

    /// Whether a [`receive`](Self::receive) is likely to find something. A poller that is told no
    /// calls it soon nevertheless, but not with every poll: packets may come from where this does
    /// not look.
    fn may_receive(&self) -> bool {
        true
    }

    /// Passes each packet of the last [`receive`](Self::receive) to `each`, in order.
    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>));

    /// Passes each packet of the last [`receive`](Self::receive) to `each`, in order, as
    /// [`for_each`](Self::for_each) does, but the payload of some is
    /// [elsewhere](Received::payload).
    fn for_each_apart(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.for_each(each);
    }

    /// Returns the size of the receive buffer in bytes, if it is limited.
    fn room(&self) -> Option<usize> {
        None
    }

    /// Returns a descriptor that becomes readable when packets arrive. After [`join`](Self::join)
    /// it may be another one.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the descriptors that hold the link's address.
    fn address_fds(&self) -> AddressFds {
        let fds = AddressFds::default();
        fds.add(self.fd());
        fds
    }

    /// Returns a descriptor that becomes readable when [`serve_members`](Self::serve_members) must
    /// be called, if other processes can be at the link's address.
    fn members_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Serves the other processes at the link's address: admits them, and takes the packets that
    /// they forward. These are among the packets of the next [`receive`](Self::receive).
    fn serve_members(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Announces that the caller sleeps until [`fd`](Self::fd) or
    /// [`members_fd`](Self::members_fd) is readable. Returns whether it may: not if packets wait
    /// of which neither descriptor tells.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    /// Ends the sleep that was [prepared](Self::prepare_to_sleep): the caller receives by itself,
    /// and the descriptors need not become readable until it prepares to sleep again.
    fn end_sleep(&mut self) {}

    /// Joins a multicast group, in the network too where it must be told. Each member gets one copy
    /// of each packet to the group, from any NIC of any machine, this one included.
    ///
    /// Sockets are opened for it, in the network namespace of the calling thread. An error of kind
    /// [`Unsupported`](io::ErrorKind::Unsupported) means that the link's addresses are of another
    /// version of IP, and of kind [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) that it is in
    /// [`GROUPS_MAX`] groups.
    fn join(&mut self, _group: Gid) -> io::Result<()> {
        Ok(())
    }

    /// Leaves a multicast group.
    fn leave(&mut self, _group: Gid) {}

    /// Whether the link can filter packets by their queue pair.
    fn has_qpn_filter(&self) -> bool {
        false
    }

    /// Sets the QPN filter: where the link [can filter](Self::has_qpn_filter), packets to other
    /// queue pairs are not received. `None`, and the initial state, is no filter: there are too
    /// many queue pairs for one, or any may exist.
    fn set_qpn_filter(&mut self, _queue_pairs: Option<&[Qpn]>) {}

    /// Receives packets for these GIDs from now on, if the link has several. Zero is an empty
    /// entry.
    fn set_gids(&mut self, _gids: &[Gid]) {}

    /// Returns the time at which [`receive`](Self::receive) must be called again: the link holds
    /// packets back.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns its counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Methods of a [`Receiver`] around another that only forward to it.
macro_rules! forward_to_receiver {
    ($inner:ident) => {
        fn room(&self) -> Option<usize> {
            self.$inner.room()
        }

        fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.$inner.fd()
        }

        fn address_fds(&self) -> crate::link::AddressFds {
            self.$inner.address_fds()
        }

        fn members_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.$inner.members_fd()
        }

        fn serve_members(&mut self) -> std::io::Result<()> {
            self.$inner.serve_members()
        }

        fn prepare_to_sleep(&mut self) -> bool {
            self.$inner.prepare_to_sleep()
        }

        fn end_sleep(&mut self) {
            self.$inner.end_sleep();
        }

        fn join(&mut self, group: crate::wire::Gid) -> std::io::Result<()> {
            self.$inner.join(group)
        }

        fn leave(&mut self, group: crate::wire::Gid) {
            self.$inner.leave(group);
        }

        fn has_qpn_filter(&self) -> bool {
            self.$inner.has_qpn_filter()
        }

        fn set_qpn_filter(&mut self, queue_pairs: Option<&[crate::wire::Qpn]>) {
            self.$inner.set_qpn_filter(queue_pairs);
        }

        fn set_gids(&mut self, gids: &[crate::wire::Gid]) {
            self.$inner.set_gids(gids);
        }
    };
}
pub(crate) use forward_to_receiver;

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("port", &self.port).finish_non_exhaustive()
    }
}
