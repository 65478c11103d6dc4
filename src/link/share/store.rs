//! Descriptors that the members of an address share, kept in a message that no member takes out of
//! its socket.
//!
//! A member that needs one looks at the message and gets a copy of each; it closes those that it
//! does not need. So a member has few descriptors open, and what is shared exists for as long as
//! one member does.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::forward::{ForwardQueue, self_connected};
use super::steering::SLOTS;

/// Number of descriptors: the file of claims, the socket of queue pair 1, and for each slot a
/// socket and a forward queue.
const COUNT: usize = 2 + 2 * SLOTS as usize;

/// Descriptors that members share.
#[derive(Debug)]
pub(super) struct Contents {
    /// File on which slots are locked.
    pub(super) claims: OwnedFd,
    /// Socket that gets packets for queue pair 1.
    pub(super) gsi: OwnedFd,
    /// Socket of each slot.
    pub(super) sockets: Vec<OwnedFd>,
    /// Forward queue of each slot.
    pub(super) queues: Vec<OwnedFd>,
}

/// A socket whose only message has the [`Contents`].
#[derive(Debug)]
pub(super) struct Store(OwnedFd);

impl Store {
    /// Keeps descriptors. `own` is the socket of the first slot.
    pub(super) fn new(
        claims: BorrowedFd<'_>,
        gsi: BorrowedFd<'_>,
        own: BorrowedFd<'_>,
        others: &[OwnedFd],
        queues: &[ForwardQueue],
    ) -> io::Result<Self> {
        let others = others.iter().map(|fd| fd.as_fd());
        let queues = queues.iter().map(ForwardQueue::fd);
        let all: Vec<_> = [claims, gsi, own].into_iter().chain(others).chain(queues).collect();
        if all.len() != COUNT {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let socket = self_connected()?;
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(COUNT))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&all));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&socket, &[IoSlice::new(&[0])], &mut control, flags)?;
        Ok(Self(socket))
    }

    pub(super) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns a copy of each descriptor.
    pub(super) fn contents(&self) -> io::Result<Contents> {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(COUNT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(&self.0, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
        let mut all = Vec::with_capacity(COUNT);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                all.extend(rights);
            }
        }
        // Less if this process may not open so many.
        if all.len() != COUNT {
            return Err(rustix::io::Errno::MFILE.into());
        }
        let queues = all.split_off(2 + usize::from(SLOTS));
        let sockets = all.split_off(2);
        let mut first = all.into_iter();
        let missing = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (claims, gsi) = (first.next().ok_or_else(missing)?, first.next().ok_or_else(missing)?);
        Ok(Contents { claims, gsi, sockets, queues })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn contents_are_there_for_everyone_and_outlive_who_put_them_in() {
        let others: Vec<_> = (1..SLOTS).map(|_| descriptor()).collect();
        let queues: Vec<_> = (0..SLOTS).map(|_| ForwardQueue::new().unwrap()).collect();
        let [claims, gsi, own] = [(); 3].map(|()| descriptor());
        let [claims_fd, gsi_fd, own_fd] = [&claims, &gsi, &own].map(|fd| fd.as_fd());
        let store = Store::new(claims_fd, gsi_fd, own_fd, &others, &queues).unwrap();
        drop((others, queues, claims, gsi, own));
        let (first, second) = (store.contents().unwrap(), store.contents().unwrap());
        assert_eq!(first.sockets.len(), usize::from(SLOTS));
        rustix::io::write(&first.sockets[3], &5_u64.to_ne_bytes()).unwrap();
        let mut number = [0; 8];
        rustix::io::read(&second.sockets[3], &mut number).unwrap();
        assert_eq!(u64::from_ne_bytes(number), 5);
        let [one, other] = [first, second].map(|mut contents| contents.queues.swap_remove(7));
        assert!(ForwardQueue::from_fd(one).put(b"message"));
        let mut room = [0; super::super::forward::MESSAGE_MAX + 1];
        assert!(ForwardQueue::from_fd(other).take(&mut room).is_some());
    }
}
