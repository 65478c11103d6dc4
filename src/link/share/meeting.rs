//! How a process comes to the others at an address.
//!
//! The first one listens at the [name](Place::name) of the address. Whoever comes later connects
//! there, and gets an [`Invitation`]: the descriptors of all that the members share, the listener
//! among them. So any member that is awake lets others in, and the name is there as long as one of
//! them is. Both sides check that the other is of the same user; nothing is read from a visitor.

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
use super::steering::{Multiplier, SLOTS};

/// Names that are tried, if others have taken some.
const ATTEMPTS: u8 = 4;

/// Times that a name is tried: the last member may go while this process comes.
const TRIES: u32 = 16;

/// Time to wait for a member to let this process in. All of them may be stopped.
const ANSWER_WAIT: Duration = Duration::from_millis(500);

/// Visitors that wait to be let in.
const BACKLOG: i32 = 64;

/// Bytes of the key of envelopes.
pub(super) const KEY_LEN: usize = 16;

/// Bytes of an invitation: its version, the multiplier, the key.
const INVITATION_LEN: usize = 8 + KEY_LEN;

/// Version of what members share.
const VERSION: u32 = 1;

/// Descriptors of an invitation: the listener, the claims, the socket of queue pair 1, and that of
/// each slot.
const DESCRIPTORS: usize = 3 + SLOTS as usize;

/// Reason for which a process cannot join the others at an address.
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

/// What a process finds at an address.
pub(crate) enum Meeting {
    /// Nobody. Those who come find this listener.
    First(OwnedFd),
    /// Others, which let it in.
    Invited(Invitation),
}

/// What the members of an address share.
pub(crate) struct Invitation {
    pub(crate) multiplier: Multiplier,
    /// Key of envelopes between members.
    pub(crate) key: [u8; KEY_LEN],
    pub(crate) listener: OwnedFd,
    /// File on which slots are locked.
    pub(crate) claims: OwnedFd,
    /// Socket that gets packets for queue pair 1.
    pub(crate) gsi: OwnedFd,
    /// Socket of each slot.
    pub(crate) sockets: Vec<OwnedFd>,
}

impl Invitation {
    fn bytes(&self) -> [u8; INVITATION_LEN] {
        let mut bytes = [0; INVITATION_LEN];
        let (version, rest) = bytes.split_at_mut(4);
        let (multiplier, key) = rest.split_at_mut(4);
        version.copy_from_slice(&VERSION.to_ne_bytes());
        multiplier.copy_from_slice(&self.multiplier.get().to_ne_bytes());
        key.copy_from_slice(&self.key);
        bytes
    }

    fn parse(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk()?;
        let (multiplier, key) = rest.split_first_chunk()?;
        if u32::from_ne_bytes(*version) != VERSION || descriptors.len() != DESCRIPTORS {
            return None;
        }
        let multiplier = Multiplier::new(u32::from_ne_bytes(*multiplier));
        let mut descriptors = descriptors.into_iter();
        let [listener, claims, gsi] = [(); 3].map(|()| descriptors.next());
        Some(Self {
            multiplier,
            key: key.try_into().ok()?,
            listener: listener?,
            claims: claims?,
            gsi: gsi?,
            sockets: descriptors.collect(),
        })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let first = [&self.listener, &self.claims, &self.gsi].into_iter();
        first.chain(&self.sockets).map(|fd| fd.as_fd()).collect()
    }

    /// Lets in those who wait at the listener. Returns how many it were.
    pub(crate) fn admit(&self) -> io::Result<usize> {
        let mut count = 0;
        while let Some(visitor) = next_visitor(self.listener.as_fd())? {
            let descriptors = self.descriptors();
            let mut space =
                vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let bytes = self.bytes();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // A visitor that has gone is none.
            let sent = sendmsg(&visitor, &[IoSlice::new(&bytes)], &mut control, flags);
            count += usize::from(sent.is_ok());
        }
        Ok(count)
    }
}

/// Returns the next who waits at a listener, if there is one; others than this user are turned
/// away.
pub(crate) fn next_visitor(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
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
pub(crate) fn meet(place: &Place, address: IpAddr, interface: u32) -> Result<Meeting, MeetError> {
    for attempt in 0..ATTEMPTS {
        let name = place.name(address, interface, attempt);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        for _ in 0..TRIES {
            if let Some(listener) = listen_at(&name)? {
                return Ok(Meeting::First(listener));
            }
            match visit(&name)? {
                Answer::Invited(invitation) => return Ok(Meeting::Invited(*invitation)),
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

/// What comes of a visit.
enum Answer {
    Invited(Box<Invitation>),
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
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let len = match received {
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
            Ok(Answer::Invited(Box::new(invitation)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::tests::Folder;
    use super::*;

    fn descriptor() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    fn invitation(listener: OwnedFd) -> Invitation {
        Invitation {
            multiplier: Multiplier::new(0x123_4567),
            key: [7; KEY_LEN],
            listener,
            claims: descriptor(),
            gsi: descriptor(),
            sockets: (0..SLOTS).map(|_| descriptor()).collect(),
        }
    }

    fn first(place: &Place, address: IpAddr) -> OwnedFd {
        match meet(place, address, 1).unwrap() {
            Meeting::First(listener) => listener,
            Meeting::Invited(_) => panic!("nobody was there"),
        }
    }

    #[test]
    fn those_who_come_later_get_what_the_first_has_and_let_others_in() {
        let folder = Folder::new("meeting");
        let place = Place::open_in(&folder.0).unwrap();
        let address = IpAddr::from([127, 47, 31, 1]);
        let first = invitation(first(&place, address));
        let come = |member: &Invitation| {
            std::thread::scope(|scope| {
                let guest = scope.spawn(|| meet(&place, address, 1));
                while member.admit().unwrap() == 0 {
                    std::thread::yield_now();
                }
                match guest.join().unwrap().unwrap() {
                    Meeting::Invited(invitation) => invitation,
                    Meeting::First(_) => panic!("somebody is there"),
                }
            })
        };
        let second = come(&first);
        assert_eq!((second.multiplier, second.key), (first.multiplier, first.key));
        rustix::io::write(&second.sockets[3], &5_u64.to_ne_bytes()).unwrap();
        let mut number = [0; 8];
        rustix::io::read(&first.sockets[3], &mut number).unwrap();
        assert_eq!(u64::from_ne_bytes(number), 5);
        // The first goes, and the name stays.
        drop(first);
        let third = come(&second);
        drop((second, third));
        assert!(matches!(meet(&place, address, 1).unwrap(), Meeting::First(_)));
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
