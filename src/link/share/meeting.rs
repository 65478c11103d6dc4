//! How a process comes to the others at an address.
//!
//! The first one listens at the [name](Place::name) of the address. Whoever comes later connects
//! there, and gets an [`Invitation`]: the listener, and the store of all that the members share. So
//! any member that is awake lets others in, and the name is there as long as one of them is. Both
//! sides check that the other is of the same user; nothing is read from a visitor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};

use super::place::Place;
use super::steering::Multiplier;
use super::store::Store;

/// Names that are tried, if others have taken some.
const ATTEMPTS: u8 = 4;

/// Times that a name is tried: the last member may go while this process comes.
const TRIES: u32 = 16;

/// Time to wait for a member to let this process in. All of them may be stopped.
const ANSWER_WAIT: Duration = Duration::from_millis(500);

/// Visitors that wait to be let in.
const BACKLOG: i32 = 64;

/// Bytes of an invitation: its version and the multiplier.
const INVITATION_LEN: usize = 8;

/// Version of what members share.
const VERSION: u32 = 1;

/// Descriptors of an invitation: the listener and the store.
const DESCRIPTORS: usize = 2;

/// Reason for which a process cannot meet others at an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeetError {
    #[error("the processes at this address do not answer: they are stopped, or of another version")]
    NoAnswer,
    #[error("another user has taken the names by which processes at this address meet")]
    Squatted,
    #[error("cannot meet other processes at this address")]
    System(#[from] io::Error),
}

impl From<Errno> for MeetError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Processes that a process finds at an address.
pub(super) enum Meeting {
    /// Nobody. Those who come find this listener.
    First {
        listener: OwnedFd,
        /// Whether somebody was there a moment ago, and may still have the address.
        was_another: bool,
    },
    /// Others, which let it in.
    Invited(Invitation),
}

/// What a process needs to become a member.
pub(super) struct Invitation {
    pub(super) multiplier: Multiplier,
    pub(super) listener: OwnedFd,
    pub(super) store: Store,
}

impl Invitation {
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

/// Invites a visitor. One that has gone is none.
pub(super) fn invite(
    visitor: &OwnedFd,
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
    let _ = sendmsg(visitor, &bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Returns the next who waits at a listener, if there is one; others than this user are turned
/// away.
pub(super) fn next_visitor(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(visitor) if is_own(visitor.as_fd()) => return Ok(Some(visitor)),
            Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the other end of a connection is a process of this user.
fn is_own(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid();
    sockopt::socket_peercred(socket).is_ok_and(|credentials| credentials.uid == own)
}

/// Looks for others at an address, and joins them.
pub(super) fn meet(place: &Place, address: IpAddr, interface: u32) -> Result<Meeting, MeetError> {
    for attempt in 0..ATTEMPTS {
        let name = place.name(address, interface, attempt);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        for tried in 0..TRIES {
            if let Some(listener) = listen_at(&name)? {
                return Ok(Meeting::First { listener, was_another: tried > 0 });
            }
            match visit(&name)? {
                Answer::Invited(invitation) => return Ok(Meeting::Invited(invitation)),
                Answer::Gone => {}
                Answer::Stranger => break,
            }
        }
    }
    Err(MeetError::Squatted)
}

/// Listens at a name, unless somebody does.
fn listen_at(name: &SocketAddrUnix) -> io::Result<Option<OwnedFd>> {
    let socket = unix_socket()?;
    match bind(&socket, name) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    listen(&socket, BACKLOG)?;
    Ok(Some(socket))
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Answer to a visit.
enum Answer {
    Invited(Invitation),
    /// The last member has gone, or was about to.
    Gone,
    /// Somebody else has the name.
    Stranger,
}

fn visit(name: &SocketAddrUnix) -> Result<Answer, MeetError> {
    let socket = unix_socket()?;
    match connect(&socket, name) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => return Ok(Answer::Gone),
        // As many wait as the listener has room for.
        Err(Errno::AGAIN) => return Err(MeetError::NoAnswer),
        Err(error) => return Err(error.into()),
    }
    if !is_own(socket.as_fd()) {
        return Ok(Answer::Stranger);
    }
    let wait = Timespec::try_from(ANSWER_WAIT).map_err(io::Error::other)?;
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    if poll(&mut polled, Some(&wait))? == 0 {
        return Err(MeetError::NoAnswer);
    }
    let mut bytes = [0; INVITATION_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let len = match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
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
        Some([]) | None => Ok(Answer::Gone),
        Some(bytes) => {
            let invitation = Invitation::parse(bytes, descriptors).ok_or(MeetError::NoAnswer)?;
            Ok(Answer::Invited(invitation))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::tests::Folder;
    use super::*;

    fn first(place: &Place, address: IpAddr) -> OwnedFd {
        match meet(place, address, 1).unwrap() {
            Meeting::First { listener, .. } => listener,
            Meeting::Invited(_) => panic!("nobody was there"),
        }
    }

    /// Somebody comes and is invited by who has this listener and this store.
    fn come(
        place: &Place,
        address: IpAddr,
        multiplier: Multiplier,
        listener: &OwnedFd,
        store: &Store,
    ) -> Invitation {
        std::thread::scope(|scope| {
            let guest = scope.spawn(|| meet(place, address, 1));
            let visitor = loop {
                match next_visitor(listener.as_fd()).unwrap() {
                    Some(visitor) => break visitor,
                    None => std::thread::yield_now(),
                }
            };
            invite(&visitor, multiplier, listener.as_fd(), store);
            match guest.join().unwrap().unwrap() {
                Meeting::Invited(invitation) => invitation,
                Meeting::First { .. } => panic!("somebody is there"),
            }
        })
    }

    #[test]
    fn those_who_come_later_get_what_the_first_has_and_let_others_in() {
        let folder = Folder::new("meeting");
        let place = Place::open_in(&folder.0).unwrap();
        let address = IpAddr::from([127, 47, 31, 1]);
        let listener = first(&place, address);
        let multiplier = Multiplier::new(0x12_3456);
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let store = Store::from_fd(eventfd);
        let second = come(&place, address, multiplier, &listener, &store);
        assert_eq!(second.multiplier, multiplier);
        rustix::io::write(second.store.fd(), &5_u64.to_ne_bytes()).unwrap();
        let mut number = [0; 8];
        rustix::io::read(store.fd(), &mut number).unwrap();
        assert_eq!(u64::from_ne_bytes(number), 5);
        // The first goes, and the name stays.
        drop((listener, store));
        let third = come(&place, address, multiplier, &second.listener, &second.store);
        drop((second, third));
        assert!(matches!(meet(&place, address, 1).unwrap(), Meeting::First { .. }));
    }

    #[test]
    fn members_that_do_not_answer_are_given_up() {
        let folder = Folder::new("silent");
        let place = Place::open_in(&folder.0).unwrap();
        let address = IpAddr::from([127, 47, 31, 2]);
        let _silent = first(&place, address);
        assert!(matches!(meet(&place, address, 1), Err(MeetError::NoAnswer)));
    }
}
