//! Packet socket of the middlebox on one interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _, bind,
    recvfrom, send, setsockopt, socket, sockopt,
};

/// Maximum length of a frame. Offloads that make longer frames must be switched off.
pub(crate) const FRAME_MAX: usize = 1 << 16;

/// Size of the receive buffer of the socket, for frames that arrive while the middlebox is busy.
const RECEIVE_BUFFER: usize = 64 << 20;

/// Type of frames that this host sends itself (`PACKET_OUTGOING`).
const OUTGOING: u8 = 4;

/// A socket that receives and sends whole frames of an interface.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Interface {
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no interface {name}"));
        let address = getifaddrs()?
            .filter(|it| it.interface_name == name)
            .find_map(|it| it.address.and_then(|address| address.as_link_addr().copied()))
            .ok_or_else(missing)?;
        debug_assert_eq!(address.family(), Some(AddressFamily::Packet));
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        // Without CAP_NET_ADMIN, the buffer is limited to net.core.rmem_max.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        bind(socket.as_raw_fd(), &address)?;
        let this = Self { socket };
        // Frames that arrived before the socket was bound may be of another interface.
        while this.receive(&mut [0; 1])?.is_some() {}
        Ok(this)
    }

    /// Receives a frame, if one has arrived, and returns its length. Skips frames of this host.
    pub(crate) fn receive(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), frame) {
                Ok((_, Some(from))) if from.pkttype() == OUTGOING => {}
                Ok((len, _)) => return Ok(Some(len)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a frame; returns whether the interface took it.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
            Ok(_) => Ok(true),
            Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EMSGSIZE | Errno::ENETDOWN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
