//! A NIC at an address that it may share with others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, recv, sockopt};
use socket2::Socket;

use super::claims::{self, Claim};
use super::events::{Events, Source};
use super::forward::{self, ForwardQueue, MESSAGE_MAX, Message};
use super::namespace::Namespace;
use super::neighbors::{Neighbors, RingAnswer, RingRequest};
use super::rendezvous::{
    Membership, Rendezvous, RendezvousError, admit, find_members, next_joiner,
};
use super::rings::Rings;
use super::steering::{Multiplier, SLOTS, program};
use super::store::{Contents, Store};
use super::user_secret::{SecretError, UserSecret};
use crate::link::sys::socket::attach_steering;
use crate::link::{AddressFds, UserShare};
use crate::verbs::QpnShare;
use crate::wire::{Gid, Received};

/// Reason for which a NIC does not share an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// Processes of this user have no secret to find each other by.
    #[error(transparent)]
    NoSecret(#[from] SecretError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error("{SLOTS} programs are at this address, which is as many as can be")]
    Full,
    #[error("a program that does not share it has the address")]
    Taken,
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Opens a socket for an address on an interface, without binding it.
pub(crate) type OpenSocket = fn(SocketAddr, u32) -> io::Result<Socket>;

/// Joiners that are admitted at a time.
const JOINERS_MAX: usize = 64;

/// Datagrams that are removed from the socket of a slot without a member.
const STALE_MAX: usize = 1 << 16;

/// Time to wait for an address whose last member is just going.
const LEAVING_INTERVAL: Duration = Duration::from_millis(1);
const LEAVING_TRIES: u32 = 100;

/// Address of a NIC, and the function that opens sockets for it.
#[derive(Clone, Copy, Debug)]
struct At {
    local: SocketAddr,
    interface: u32,
    open: OpenSocket,
}

/// A NIC at an address.
pub(crate) struct Member {
    at: At,
    multiplier: Multiplier,
    qpns: QpnShare,
    /// File of claims.
    claims: OwnedFd,
    claim: Arc<Claim>,
    listener: OwnedFd,
    namespace: Namespace,
    events: Events,
    /// `None` as long as the NIC is alone.
    group: Option<Group>,
    address_fds: AddressFds,
    /// Reused for messages.
    message: Vec<u8>,
}

/// State of an address that the NIC shares.
struct Group {
    store: Store,
    gsi: OwnedFd,
    queue: ForwardQueue,
    /// Forward queues of others, by slot: those that were needed.
    others: Vec<Option<ForwardQueue>>,
}

/// Result of forwarding a packet to all other members.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarded {
    /// Number of members that got the packet.
    pub(crate) count: u64,
    /// Number of members whose forward queue was full.
    pub(crate) no_room: u64,
}

/// Joins the members of an address, or becomes the first. Returns the NIC's socket, bound.
pub(crate) fn join(
    local: SocketAddr,
    interface: u32,
    open: OpenSocket,
) -> Result<(Socket, Member), JoinError> {
    let at = At { local, interface, open };
    let mut result = Err(JoinError::Taken);
    // Members of an address may have come to it by any of the secrets.
    for secret in UserSecret::all()? {
        result = join_by(&secret, at);
        if !matches!(result, Err(JoinError::Taken)) {
            break;
        }
    }
    result
}

/// Joins the members of an address that are found by a secret, or becomes the first.
fn join_by(secret: &UserSecret, at: At) -> Result<(Socket, Member), JoinError> {
    match find_members(secret, at.local.ip(), at.interface)? {
        Rendezvous::First { listener, was_another } => {
            let tries = if was_another { LEAVING_TRIES } else { 0 };
            let multiplier = random_multiplier()?;
            let socket = first_socket(at, multiplier, tries)?;
            let claims = claims::create()?;
            let claim = Claim::new(claims.as_fd())?.ok_or(JoinError::Full)?;
            Ok((socket, Member::new(at, multiplier, claims, claim, listener)?))
        }
        Rendezvous::Others(membership) => join_others(at, membership),
    }
}

fn random_multiplier() -> io::Result<Multiplier> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(Multiplier::new(u32::from_ne_bytes(random)))
}

/// Opens the socket of one that is alone at an address. A socket that does not share its port makes
/// sure that no other has it; beside that one it becomes the first of a group.
fn first_socket(at: At, multiplier: Multiplier, mut tries: u32) -> Result<Socket, JoinError> {
    let guard = (at.open)(at.local, at.interface)?;
    while let Err(error) = guard.bind(&at.local.into()) {
        match error.kind() {
            io::ErrorKind::AddrInUse if tries > 0 => std::thread::sleep(LEAVING_INTERVAL),
            io::ErrorKind::AddrInUse => return Err(JoinError::Taken),
            _ => return Err(error.into()),
        }
        tries -= 1;
    }
    guard.set_reuse_port(true)?;
    let socket = bind_shared(at)?;
    attach_steering(socket.as_fd(), &program(multiplier))?;
    Ok(socket)
}

/// Opens a socket in the group of those at an address.
fn bind_shared(at: At) -> io::Result<Socket> {
    let socket = (at.open)(at.local, at.interface)?;
    socket.set_reuse_port(true)?;
    socket.bind(&at.local.into())?;
    Ok(socket)
}

fn join_others(at: At, membership: Membership) -> Result<(Socket, Member), JoinError> {
    let Membership { multiplier, listener, store } = membership;
    let Contents { claims, gsi, mut sockets, mut queues } = store.contents()?;
    let claim = Claim::new(claims.as_fd())?.ok_or(JoinError::Full)?;
    discard_unclaimed(&claim, &sockets, &queues);
    let slot = claim.slot();
    let socket = sockets.swap_remove(slot.into());
    let queue = ForwardQueue::from_fd(queues.swap_remove(slot.into()));
    let mut member = Member::new(at, multiplier, claims, claim, listener)?;
    member.enter(Group::new(store, gsi, queue))?;
    Ok((socket.into(), member))
}

/// Discards packets and forwarded messages that wait in this member's slot and in free slots, and
/// gives their sockets the least room.
fn discard_unclaimed(own: &Claim, sockets: &[OwnedFd], queues: &[OwnedFd]) {
    for (slot, (socket, queue)) in (0..SLOTS).zip(sockets.iter().zip(queues)) {
        own.while_free(slot, || {
            discard(socket.as_fd());
            discard(queue.as_fd());
        });
    }
}

/// Removes what is in a socket, and leaves it the least room that there is.
fn discard(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_recv_buffer_size(socket, 0);
    let mut room = [0; 1];
    let mut more = || recv(socket, &mut room[..], RecvFlags::DONTWAIT).is_ok();
    (0..STALE_MAX).take_while(|_| more()).for_each(drop);
}

impl Group {
    fn new(store: Store, gsi: OwnedFd, queue: ForwardQueue) -> Self {
        Self { store, gsi, queue, others: (0..SLOTS).map(|_| None).collect() }
    }

    /// Puts a message into the queue of a slot; returns whether it is there.
    fn forward(&mut self, slot: u8, message: &[u8]) -> bool {
        let Some(known) = self.others.get_mut(usize::from(slot)) else { return false };
        if known.is_none() {
            let contents = self.store.contents().ok();
            let fd = contents.map(|mut contents| contents.queues.swap_remove(slot.into()));
            *known = fd.map(ForwardQueue::from_fd);
        }
        known.as_ref().is_some_and(|queue| queue.put(message))
    }
}

impl Member {
    fn new(
        at: At,
        multiplier: Multiplier,
        claims: OwnedFd,
        claim: Claim,
        listener: OwnedFd,
    ) -> io::Result<Self> {
        let events = Events::new()?;
        events.add(&listener, Source::Listener)?;
        let address_fds = AddressFds::default();
        [listener.as_fd(), claim.fd()].into_iter().for_each(|fd| address_fds.add(fd));
        Ok(Self {
            at,
            multiplier,
            qpns: multiplier.share(claim.slot()),
            claims,
            claim: Arc::new(claim),
            listener,
            namespace: Namespace::current(),
            events,
            group: None,
            address_fds,
            message: Vec::new(),
        })
    }

    /// Shares the address from now on.
    fn enter(&mut self, group: Group) -> io::Result<()> {
        self.events.add(&group.gsi, Source::Gsi)?;
        self.events.add(group.queue.fd(), Source::Queue)?;
        let fds = [group.store.fd(), group.gsi.as_fd()];
        fds.into_iter().for_each(|fd| self.address_fds.add(fd));
        self.group = Some(group);
        Ok(())
    }

    /// Returns its share of the address.
    pub(crate) fn share(&self) -> UserShare {
        UserShare::new(self.qpns, Arc::clone(&self.claim))
    }

    /// Returns the QPNs of its slot.
    pub(crate) fn qpns(&self) -> QpnShare {
        self.qpns
    }

    /// Returns what the NIC waits for besides packets at its socket.
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// Returns the two ends of rings of a NIC with this address.
    pub(crate) fn rings(&self, own: Gid) -> io::Result<(Neighbors, Rings)> {
        let address_fds = self.address_fds.clone();
        let mut neighbors = Neighbors::new(own, self.events.clone(), address_fds.clone())?;
        if self.is_shared() {
            neighbors.share_own(self.qpns);
        }
        Ok((neighbors, Rings::new(self.events.clone(), address_fds)))
    }

    /// Returns the descriptors that hold the address, besides the NIC's socket.
    pub(crate) fn address_fds(&self) -> &AddressFds {
        &self.address_fds
    }

    /// Whether others may be at the address.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// Returns the socket that gets packets for queue pair 1, if it is not that of the NIC.
    pub(crate) fn gsi(&self) -> Option<BorrowedFd<'_>> {
        self.group.as_ref().map(|group| group.gsi.as_fd())
    }

    /// Admits joiners. `own` is the NIC's socket.
    pub(crate) fn admit(&mut self, own: BorrowedFd<'_>) -> io::Result<()> {
        for _ in 0..JOINERS_MAX {
            let joiner = match next_joiner(self.listener.as_fd()) {
                Ok(Some(joiner)) => joiner,
                Ok(None) => break,
                Err(error) => {
                    // No descriptor is left. The joiner would wake this process again and again.
                    self.events.remove(&self.listener)?;
                    return Err(error);
                }
            };
            if self.group.is_none() {
                let group = self.namespace.run(|| self.open_to_others(own))?;
                self.enter(group)?;
            }
            if let Some(group) = &self.group {
                admit(&joiner, self.multiplier, self.listener.as_fd(), &group.store);
            }
        }
        Ok(())
    }

    /// Opens what the members of an address share. The order in which sockets are bound is that of
    /// the group, in which the NIC's own is the first.
    fn open_to_others(&self, own: BorrowedFd<'_>) -> io::Result<Group> {
        let bind = || bind_shared(self.at);
        let gsi = OwnedFd::from(bind()?);
        let others = (1..SLOTS)
            .map(|_| {
                let socket = bind()?;
                // No member receives there yet.
                sockopt::set_socket_recv_buffer_size(&socket, 0)?;
                Ok(OwnedFd::from(socket))
            })
            .collect::<io::Result<Vec<OwnedFd>>>()?;
        let mut queues =
            (0..SLOTS).map(|_| ForwardQueue::new()).collect::<io::Result<Vec<ForwardQueue>>>()?;
        let store = Store::new(self.claims.as_fd(), gsi.as_fd(), own, &others, &queues)?;
        Ok(Group::new(store, gsi, queues.swap_remove(0)))
    }

    /// Forwards a packet to the member of a slot; returns whether its forward queue had room.
    pub(crate) fn forward(&mut self, slot: u8, packet: &Received<'_>) -> bool {
        forward::write(packet, &mut self.message);
        self.group.as_mut().is_some_and(|group| group.forward(slot, &self.message))
    }

    /// Forwards a packet to all other members.
    pub(crate) fn forward_to_all(&mut self, packet: &Received<'_>) -> Forwarded {
        forward::write(packet, &mut self.message);
        let mut passed = Forwarded::default();
        let Some(group) = &mut self.group else { return passed };
        let others: Vec<u8> = self.claim.others().collect();
        for slot in others {
            let is_passed = group.forward(slot, &self.message);
            *(if is_passed { &mut passed.count } else { &mut passed.no_room }) += 1;
        }
        passed
    }

    /// Removes what waits in its slot, so that the next member there does not get it. `own` is the
    /// NIC's socket.
    pub(crate) fn leave(&self, own: BorrowedFd<'_>) {
        if let Some(group) = &self.group {
            discard(own);
            discard(group.queue.fd());
        }
    }

    /// Takes a message out of the NIC's queue.
    pub(crate) fn take<'a>(&self, room: &'a mut [u8; MESSAGE_MAX + 1]) -> Option<Message<'a>> {
        self.group.as_ref()?.queue.take(room)
    }

    /// Offers a ring to a member of the NIC's own address.
    pub(crate) fn offer_ring(&self, own: Gid, request: RingRequest) -> RingAnswer {
        let contents = self.group.as_ref().and_then(|group| group.store.contents().ok());
        contents.map_or(RingAnswer::NoMembers, |contents| {
            super::visit::offer_ring(own, request, self.qpns, contents)
        })
    }

    /// Returns the network namespace of the address.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (local, slot) = (self.at.local, self.qpns.slot());
        f.debug_struct("Member").field("local", &local).field("slot", &slot).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::wire::Qpn;

    fn open(local: SocketAddr, _: u32) -> io::Result<Socket> {
        let socket = Socket::new(socket2::Domain::for_address(local), socket2::Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    fn at(last: u8) -> SocketAddr {
        ([127, 47, 32, last], 4791).into()
    }

    /// A joiner comes, and is admitted by a member.
    fn come(local: SocketAddr, host: &Socket, member: &mut Member) -> (Socket, Member) {
        std::thread::scope(|scope| {
            let guest = scope.spawn(move || join(local, 1, open));
            while !guest.is_finished() {
                member.admit(host.as_fd()).unwrap();
                std::thread::yield_now();
            }
            guest.join().unwrap().unwrap()
        })
    }

    /// A packet to a QPN: its BTH.
    fn bth(qpn: u32) -> Vec<u8> {
        [&[4, 0, 0xff, 0xff][..], &qpn.to_be_bytes(), &[0; 12]].concat()
    }

    #[test]
    fn packets_go_to_the_socket_of_their_qpn_and_mads_to_one_that_all_have() {
        let local = at(1);
        let (first, mut host) = join(local, 1, open).unwrap();
        assert!(!host.is_shared() && host.gsi().is_none());
        let (second, guest) = come(local, &first, &mut host);
        assert!(host.is_shared() && guest.is_shared());
        assert_eq!([host.qpns().slot(), guest.qpns().slot()], [0, 1]);
        let sender = UdpSocket::bind("127.47.32.100:0").unwrap();
        let has = |fd: BorrowedFd<'_>| recv(fd, &mut [0; 20][..], RecvFlags::DONTWAIT).is_ok();
        let mut counts = [0; 3];
        for qpn in 1..2000 {
            sender.send_to(&bth(qpn), local).unwrap();
            let expected = match Qpn::new(qpn) {
                Qpn::GSI => [false, false, true],
                qpn => [host.qpns().contains(qpn), guest.qpns().contains(qpn), false],
            };
            let found = [first.as_fd(), second.as_fd(), guest.gsi().unwrap()].map(has);
            assert_eq!(found, expected, "{qpn:#x}");
            counts = std::array::from_fn(|at| counts[at] + u32::from(found[at]));
        }
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn no_mad_is_lost_while_an_address_is_opened_to_others() {
        // Fewer than the buffer of a socket has room for.
        const WAITING_MAX: usize = 100;
        let local = at(6);
        let (first, mut host) = join(local, 1, open).unwrap();
        let take_all = |fd: BorrowedFd<'_>| {
            std::iter::repeat_with(|| recv(fd, &mut [0; 20][..], RecvFlags::DONTWAIT).is_ok())
                .take_while(|is_taken| *is_taken)
                .count()
        };
        let (is_open, received) = (AtomicBool::new(false), AtomicUsize::new(0));
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let socket = UdpSocket::bind("127.47.32.100:0").unwrap();
                let mut sent = 0;
                while !is_open.load(Relaxed) {
                    if sent < received.load(Relaxed) + WAITING_MAX {
                        socket.send_to(&bth(Qpn::GSI.get()), local).unwrap();
                        sent += 1;
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
                sent
            });
            let guest = scope.spawn(|| join(local, 1, open));
            while !guest.is_finished() {
                host.admit(first.as_fd()).unwrap();
                let taken = take_all(first.as_fd()) + host.gsi().map_or(0, take_all);
                received.fetch_add(taken, Relaxed);
            }
            guest.join().unwrap().unwrap();
            is_open.store(true, Relaxed);
            sender.join().unwrap()
        });
        let last = take_all(first.as_fd()) + host.gsi().map_or(0, take_all);
        assert_eq!(received.into_inner() + last, sent);
    }

    #[test]
    fn slot_of_one_that_has_gone_is_empty_for_the_next() {
        let local = at(2);
        let (first, mut host) = join(local, 1, open).unwrap();
        let (second, guest) = come(local, &first, &mut host);
        let qpn = (2..).find(|qpn| guest.qpns().contains(Qpn::new(*qpn))).unwrap();
        let sender = UdpSocket::bind("127.47.32.100:0").unwrap();
        sender.send_to(&bth(qpn), local).unwrap();
        let mad = Received {
            source: Gid([1; 16]),
            destination: Gid([2; 16]),
            source_port: 4791,
            ecn: 0,
            network: &[0; 20],
            packet: &[0; 100],
            payload: None,
        };
        assert_eq!(host.forward_to_all(&mad).count, 1);
        // Killed: nothing is removed by itself.
        drop((second, guest));
        assert_eq!(host.forward_to_all(&mad).count, 0);
        let (third, next) = come(local, &first, &mut host);
        assert_eq!(next.qpns().slot(), 1);
        assert!(recv(&third, &mut [0; 20][..], RecvFlags::DONTWAIT).is_err());
        assert!(next.take(&mut [0; MESSAGE_MAX + 1]).is_none());
        assert!(host.forward(1, &mad));
        assert!(next.take(&mut [0; MESSAGE_MAX + 1]).is_some());
    }

    #[test]
    fn address_of_one_that_does_not_share_it_is_taken() {
        let local = at(3);
        let holder = UdpSocket::bind(local).unwrap();
        assert!(matches!(join(local, 1, open), Err(JoinError::Taken)));
        drop(holder);
        let _shared = join(local, 1, open).unwrap();
        assert!(UdpSocket::bind(local).is_err());
    }

    #[test]
    fn there_are_no_more_members_than_slots() {
        let local = at(4);
        let (first, mut host) = join(local, 1, open).unwrap();
        let _guests: Vec<_> = (1..SLOTS).map(|_| come(local, &first, &mut host)).collect();
        std::thread::scope(|scope| {
            let guest = scope.spawn(|| join(local, 1, open));
            while !guest.is_finished() {
                host.admit(first.as_fd()).unwrap();
            }
            assert!(matches!(guest.join().unwrap(), Err(JoinError::Full)));
        });
    }

    #[test]
    fn nothing_is_left_of_members_that_have_gone() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = count();
        for _ in 0..3 {
            let (first, mut host) = join(at(5), 1, open).unwrap();
            let guest = come(at(5), &first, &mut host);
            drop((first, host, guest));
        }
        // Other tests of this process open some, too, and close them.
        let is_back = |_| {
            std::thread::sleep(LEAVING_INTERVAL);
            count() < before + 100
        };
        assert!((0..5000).any(is_back), "{before} {}", count());
    }
}
