//! The socket at which a NIC is asked for its status.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags, UCred, accept_with, bind, listen, send};

use crate::link::local_socket::{is_own_user, local_socket, peer_of};

/// Beginning of the names.
const PREFIX: &str = "roce-status-";

/// Numbers that are tried, if others have taken some.
const NUMBERS: u32 = 256;

/// Maximum number of processes that wait for an answer, and that are answered at once.
const BACKLOG: i32 = 16;

/// Name of a status socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Process that has it, as it says.
    pub(super) pid: u32,
    /// Number among the sockets of the process.
    pub(super) number: u32,
}

impl Name {
    /// Reads a name; `None` if it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (pid, number) = text.strip_prefix(PREFIX)?.split_once('-')?;
        let name = Self { pid: pid.parse().ok()?, number: number.parse().ok()? };
        (name.number < NUMBERS && name.text() == text).then_some(name)
    }

    fn text(self) -> String {
        format!("{PREFIX}{}-{}", self.pid, self.number)
    }

    pub(super) fn address(self) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new_abstract_name(self.text().as_bytes())?)
    }
}

/// The socket where the status of a NIC is asked for.
pub(in crate::nic) struct StatusSocket {
    listener: OwnedFd,
    device: String,
}

impl StatusSocket {
    /// Listens for questions about a NIC that its program knows as `device`.
    pub(in crate::nic) fn new(device: &str) -> io::Result<Self> {
        let pid = std::process::id();
        for number in 0..NUMBERS {
            let listener = local_socket()?;
            match bind(&listener, &Name { pid, number }.address()?) {
                Ok(()) => {}
                Err(Errno::ADDRINUSE) => continue,
                Err(error) => return Err(error.into()),
            }
            listen(&listener, BACKLOG)?;
            return Ok(Self { listener, device: device.to_owned() });
        }
        Err(Errno::ADDRINUSE.into())
    }

    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// Answers the processes that wait, if they may know. Does not wait for any of them.
    pub(super) fn answer(&self, status: impl Fn() -> String) {
        let mut answer = None;
        for _ in 0..BACKLOG {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(asker) = accept_with(&self.listener, flags) else { return };
            if peer_of(&asker).is_some_and(|asker| may_know(&asker)) {
                let answer = answer.get_or_insert_with(&status);
                let _ = send(&asker, answer.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whether a process may know the status of NICs of this user.
fn may_know(asker: &UCred) -> bool {
    asker.uid.is_root() || is_own_user(asker.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = Name { pid: 4711, number: 255 };
        assert_eq!(Name::parse(&name.text()), Some(name));
        for text in [
            "roce-status-1",
            "roce-status-1-256",
            "roce-status-01-1",
            "roce-status-1-+1",
            "roce-status--1-1",
            "roce-status-1-1 ",
            "roce 1-1",
        ] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }
}
