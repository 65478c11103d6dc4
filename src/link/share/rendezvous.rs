//! Rendezvous: how a process becomes a member of an address.
//!
//! The first one listens at the [name](UserSecret::name) of the address. A joiner, which comes
//! later, connects there and gets a [`Membership`]: the listener, and the store of what members
//! share. So any member that is awake admits others, and the name is there as long as one of them
//! is. Both sides check that the other is of the same user; nothing is read from a joiner.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, accept_with, bind, connect,
    listen, recvmsg, sendmsg,
};

use super::super::local_socket::{is_own_user, local_socket, peer_of};
use super::steering::Multiplier;
use super::store::Store;
use super::user_secret::UserSecret;

/// Names that are tried, if others have taken some.
const ATTEMPTS: u8 = 4;

/// Times that a name is tried, and the time between two tries but the first: the last member may go
/// while this process comes, and one that comes just before may not listen yet.
const TRIES: u32 = 250;
const TRY_INTERVAL: Duration = Duration::from_millis(2);

/// Time to wait to be admitted: all members may be stopped, but on a busy machine one that is not
/// may get no processor for most of a second.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Joiners that wait to be admitted.
const BACKLOG: i32 = 64;

/// Bytes of a membership: its version and the multiplier.
const INVITATION_LEN: usize = 8;

/// Version of what members share.
const VERSION: u32 = 1;

/// Descriptors of a membership: the listener and the store.
const DESCRIPTORS: usize = 2;

/// Reason for which a process cannot find the members of an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RendezvousError {
    #[error("the processes at this address do not answer: they are stopped, or of another version")]
    NoAnswer,
    #[error("another user has taken the names of this address")]
    Squatted,
    #[error("cannot find the other processes at this address")]
    System(#[from] io::Error),
}

impl From<Errno> for RendezvousError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Members that a process finds at an address.
pub(super) enum Rendezvous {
    /// None. Joiners find this listener.
    First {
        listener: OwnedFd,
        /// Whether another process was there a moment ago, and may still have the address.
        was_another: bool,
    },
    /// Others, which admitted it.
    Others(Membership),
}

/// Description of what the members of an address share.
pub(super) struct Membership {
    pub(super) multiplier: Multiplier,
    pub(super) listener: OwnedFd,
    pub(super) store: Store,
}

impl Membership {
    fn parse(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk()?;
        let (multiplier, rest) = rest.split_first_chunk()?;
        if u32::from_ne_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let [listener, store]: [OwnedFd; DESCRIPTORS] = descriptors.try_into().ok()?;
        let multiplier = Multiplier::new(u32::from_ne_bytes(*multiplier));
        Some(Self { multiplier, listener, store: Store::from_fd(store) })
    }
}

/// Admits a joiner. One that has gone is ignored.
pub(super) fn admit(
    joiner: &OwnedFd,
    multiplier: Multiplier,
    listener: BorrowedFd<'_>,
    store: &Store,
) {
    let descriptors = [listener, store.fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let (version, multiplier) = (VERSION.to_ne_bytes(), multiplier.get().to_ne_bytes());
    let bytes = [IoSlice::new(&version), IoSlice::new(&multiplier)];
    let _ = sendmsg(joiner, &bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Returns the next joiner that waits at a listener, if there is one; those of other users are
/// refused.
pub(super) fn next_joiner(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(joiner) if is_own(joiner.as_fd()) => return Ok(Some(joiner)),
            Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the other end of a connection is a process of this user.
fn is_own(socket: BorrowedFd<'_>) -> bool {
    peer_of(socket).is_some_and(|peer| is_own_user(peer.uid))
}

/// Finds the members of an address.
pub(super) fn find_members(
    secret: &UserSecret,
    address: IpAddr,
    interface: u32,
) -> Result<Rendezvous, RendezvousError> {
    'names: for attempt in 0..ATTEMPTS {
        let name = secret.name(address, interface, attempt);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        for tried in 0..TRIES {
            if let Some(listener) = listen_at(&name)? {
                return Ok(Rendezvous::First { listener, was_another: tried > 0 });
            }
            match ask(&name)? {
                Answer::Others(membership) => return Ok(Rendezvous::Others(membership)),
                Answer::Gone if tried > 0 => std::thread::sleep(TRY_INTERVAL),
                Answer::Gone => {}
                Answer::Stranger => continue 'names,
            }
        }
        // At the next name, this process would not be found by those that come later.
        return Err(RendezvousError::NoAnswer);
    }
    Err(RendezvousError::Squatted)
}

/// Listens at a name, unless another process does.
fn listen_at(name: &SocketAddrUnix) -> io::Result<Option<OwnedFd>> {
    let socket = local_socket()?;
    match bind(&socket, name) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    listen(&socket, BACKLOG)?;
    Ok(Some(socket))
}

/// Answer of the members of an address.
enum Answer {
    Others(Membership),
    /// The last member has gone, or was about to.
    Gone,
    /// Another user has the name.
    Stranger,
}

/// Connects to the members of an address; `None` if there are none.
fn call(name: &SocketAddrUnix) -> Result<Option<OwnedFd>, RendezvousError> {
    let socket = local_socket()?;
    match connect(&socket, name) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::CONNREFUSED) => Ok(None),
        // As many wait as the listener has room for.
        Err(Errno::AGAIN) => Err(RendezvousError::NoAnswer),
        Err(error) => Err(error.into()),
    }
}

fn ask(name: &SocketAddrUnix) -> Result<Answer, RendezvousError> {
    let Some(socket) = call(name)? else { return Ok(Answer::Gone) };
    if !is_own(socket.as_fd()) {
        return Ok(Answer::Stranger);
    }
    let wait = Timespec::try_from(ANSWER_WAIT).map_err(io::Error::other)?;
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    if poll(&mut polled, Some(&wait))? == 0 {
        return Err(RendezvousError::NoAnswer);
    }
    Ok(read_answer(&socket)?.map_or(Answer::Gone, Answer::Others))
}

/// Reads the answer of the members; `None` if the last one has gone.
pub(super) fn read_answer(socket: &OwnedFd) -> Result<Option<Membership>, RendezvousError> {
    let mut bytes = [0; INVITATION_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let len = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    match bytes.get(..len) {
        Some([]) | None => Ok(None),
        Some(bytes) => {
            Membership::parse(bytes, descriptors).ok_or(RendezvousError::NoAnswer).map(Some)
        }
    }
}

/// Connects to the members of an address without waiting for their answer, which is to be
/// [read](read_answer) once the socket is readable; `None` if none is found by this secret.
pub(super) fn visit(
    secret: &UserSecret,
    address: IpAddr,
    interface: u32,
) -> Result<Option<OwnedFd>, RendezvousError> {
    for attempt in 0..ATTEMPTS {
        let name = secret.name(address, interface, attempt);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        match call(&name)? {
            Some(socket) if is_own(socket.as_fd()) => return Ok(Some(socket)),
            // Another user has the name.
            Some(_) => {}
            None => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::user_secret::tests::Folder;
    use super::*;

    fn first(secret: &UserSecret, address: IpAddr) -> OwnedFd {
        match find_members(secret, address, 1).unwrap() {
            Rendezvous::First { listener, .. } => listener,
            Rendezvous::Others(_) => panic!("the address was free"),
        }
    }

    /// A joiner comes and is admitted by a member with this listener and this store.
    fn come(
        secret: &UserSecret,
        address: IpAddr,
        multiplier: Multiplier,
        listener: &OwnedFd,
        store: &Store,
    ) -> Membership {
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| find_members(secret, address, 1));
            let joiner = loop {
                // One that does not listen yet cannot accept.
                match next_joiner(listener.as_fd()) {
                    Ok(Some(joiner)) => break joiner,
                    Ok(None) | Err(_) => std::thread::yield_now(),
                }
            };
            admit(&joiner, multiplier, listener.as_fd(), store);
            match joining.join().unwrap().unwrap() {
                Rendezvous::Others(membership) => membership,
                Rendezvous::First { .. } => panic!("there is a member"),
            }
        })
    }

    #[test]
    fn those_who_come_later_get_what_the_first_has_and_let_others_in() {
        let folder = Folder::new("rendezvous");
        let secret = UserSecret::open_in(&folder.0).unwrap();
        let address = IpAddr::from([127, 47, 31, 1]);
        let listener = first(&secret, address);
        let multiplier = Multiplier::new(0x12_3456);
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let store = Store::from_fd(eventfd);
        let second = come(&secret, address, multiplier, &listener, &store);
        assert_eq!(second.multiplier, multiplier);
        rustix::io::write(second.store.fd(), &5_u64.to_ne_bytes()).unwrap();
        let mut number = [0; 8];
        rustix::io::read(store.fd(), &mut number).unwrap();
        assert_eq!(u64::from_ne_bytes(number), 5);
        // The first goes, and the name stays.
        drop((listener, store));
        let third = come(&secret, address, multiplier, &second.listener, &second.store);
        drop((second, third));
        assert!(matches!(find_members(&secret, address, 1).unwrap(), Rendezvous::First { .. }));
    }

    #[test]
    fn member_that_does_not_listen_yet_is_waited_for() {
        let folder = Folder::new("early");
        let secret = UserSecret::open_in(&folder.0).unwrap();
        let address = IpAddr::from([127, 47, 31, 3]);
        let name = secret.name(address, 1, 0);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let listener = local_socket().unwrap();
        bind(&listener, &name).unwrap();
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (multiplier, store) = (Multiplier::new(7), Store::from_fd(eventfd));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The joiner finds the name meanwhile.
                std::thread::sleep(Duration::from_millis(30));
                listen(&listener, BACKLOG).unwrap();
            });
            let _ = come(&secret, address, multiplier, &listener, &store);
        });
    }

    #[test]
    fn members_that_do_not_answer_are_given_up() {
        let folder = Folder::new("silent");
        let secret = UserSecret::open_in(&folder.0).unwrap();
        let address = IpAddr::from([127, 47, 31, 2]);
        let _silent = first(&secret, address);
        assert!(matches!(find_members(&secret, address, 1), Err(RendezvousError::NoAnswer)));
    }
}
