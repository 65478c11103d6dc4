//! Multicast groups: a socket for each, beside the one that has the link's own address.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use socket2::{Domain, Protocol, Socket, Type};

use super::prepare_to_receive;
use crate::link::GROUPS_MAX;
use crate::link::interface::{address_of, join};
use crate::wire::{Gid, ROCE_PORT};

/// The groups that a link is in.
pub(super) struct Groups {
    /// The address of the link.
    local: SocketAddr,
    /// The number of its interface.
    interface: u32,
    /// Size of a socket's receive buffer.
    room: usize,
    joined: Vec<Joined>,
    /// Number of the next group.
    next: u64,
    /// Readable when one of the sockets is, or the link's own; there from the first group on.
    all: Option<OwnedFd>,
    /// Numbers of the sockets that the last query reported as readable.
    readable: Vec<u64>,
}

struct Joined {
    group: Gid,
    number: u64,
    socket: Socket,
    /// Number of datagrams that were dropped because the buffer was full.
    overflowed: u64,
}

/// The number of the link's own socket.
const OWN: u64 = 0;

/// Maximum number of readable sockets of one query.
const ASKED: usize = 16;

impl Groups {
    pub(super) fn new(local: SocketAddr, interface: u32, room: usize) -> Self {
        let (joined, readable) = (Vec::new(), Vec::new());
        Self { local, interface, room, joined, next: OWN + 1, all: None, readable }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.joined.is_empty()
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.all.as_ref().map(AsFd::as_fd)
    }

    /// Joins a group. `own` is the link's own socket.
    pub(super) fn join(&mut self, group: Gid, own: BorrowedFd<'_>) -> io::Result<()> {
        if self.joined.iter().any(|joined| joined.group == group) {
            return Ok(());
        }
        if self.joined.len() >= GROUPS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let address = address_of(group);
        if address.is_ipv4() != self.local.is_ipv4() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let socket = self.socket(address)?;
        let all = match self.all.take() {
            Some(all) => all,
            None => {
                let all = epoll::create(CreateFlags::CLOEXEC)?;
                epoll::add(&all, own, EventData::new_u64(OWN), EventFlags::IN)?;
                all
            }
        };
        let all = self.all.insert(all);
        epoll::add(all, &socket, EventData::new_u64(self.next), EventFlags::IN)?;
        self.joined.push(Joined { group, number: self.next, socket, overflowed: 0 });
        self.next += 1;
        Ok(())
    }

    /// A socket that gets what is sent to a group on the link's interface, as others of the same
    /// group do.
    fn socket(&self, group: IpAddr) -> io::Result<Socket> {
        let address = match group {
            IpAddr::V4(_) => SocketAddr::new(group, ROCE_PORT),
            IpAddr::V6(group) => SocketAddrV6::new(group, ROCE_PORT, 0, self.interface).into(),
        };
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        // What others on this machine have joined, on other interfaces, is not for this link.
        if group.is_ipv4() {
            socket.set_multicast_all_v4(false)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_multicast_all_v6(false)?;
        }
        prepare_to_receive(&socket, self.local, self.room)?;
        socket.bind(&address.into())?;
        join(&socket, group, self.interface)?;
        Ok(socket)
    }

    /// Leaves a group. The kernel tells the network when the last socket has left.
    pub(super) fn leave(&mut self, group: Gid) {
        self.joined.retain(|joined| joined.group != group);
    }

    /// The next group for which something is there, and its socket. They have their turns, and so
    /// has the link's own, for which the answer is `None`, as it is when there is nothing.
    pub(super) fn next(&mut self) -> Option<(Gid, BorrowedFd<'_>)> {
        if self.readable.is_empty() {
            let mut events =
                [Event { flags: EventFlags::empty(), data: EventData::new_u64(OWN) }; ASKED];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let count = epoll::wait(self.all.as_ref()?, &mut events, Some(&at_once)).ok()?;
            self.readable.extend(events.iter().take(count).map(|event| event.data.u64()));
        }
        let number = self.readable.pop()?;
        let joined = self.joined.iter().find(|joined| joined.number == number)?;
        Some((joined.group, joined.socket.as_fd()))
    }

    /// Sets the number of datagrams to a group that were dropped so far.
    pub(super) fn overflowed(&mut self, group: Gid, count: u64) {
        if let Some(joined) = self.joined.iter_mut().find(|joined| joined.group == group) {
            joined.overflowed = joined.overflowed.max(count);
        }
    }

    /// Returns the number of dropped datagrams of all groups that the link is in.
    pub(super) fn total_overflowed(&self) -> u64 {
        self.joined.iter().map(|joined| joined.overflowed).sum()
    }
}
