//! Unix sockets between processes of this machine, and the user at their other end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, UCred, socket_with, sockopt};
use rustix::process::{Uid, geteuid};

/// Creates a socket that keeps the boundaries of messages, and does not block.
pub(crate) fn local_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Returns the credentials of the process at the other end of a connection: those at the time when
/// it connected, or began to listen.
pub(crate) fn peer_of(socket: impl AsFd) -> Option<UCred> {
    sockopt::socket_peercred(socket).ok()
}

/// Whether a user is the one of this process.
pub(crate) fn is_own_user(uid: Uid) -> bool {
    uid == geteuid()
}
