//! Frames of any protocol, as queue pairs of raw packets send and receive them.
//!
//! The tag of a VLAN that the interface takes off is not seen, nor are frames to others' hardware
//! addresses that it does not let pass.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

use super::super::Frames;
use super::super::interface::Interface;
use super::super::sys::ring;

/// The longest header of a frame: Ethernet's with the tag of a VLAN.
const HEADER_MAX: usize = 18;

/// The longest frame that the kernel makes of several that arrived.
const ARRIVED_MAX: usize = 1 << 16;

/// A packet socket that sends, and one that hears nothing unless it is told to.
#[derive(Debug)]
pub(super) struct RawFrames {
    sender: Socket,
    receiver: Socket,
    interface: u32,
    len_max: usize,
    is_loopback: bool,
}

impl RawFrames {
    /// Creates the frames of two packet sockets.
    pub(super) fn new(sockets: [Socket; 2], on: &Interface) -> io::Result<Self> {
        let (interface, is_loopback) = (on.index, on.loopback);
        for socket in &sockets {
            ring::set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 0)?;
            ring::bind(socket, interface, false)?;
        }
        let [sender, receiver] = sockets;
        ring::set_option(&receiver, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        receiver.set_nonblocking(true)?;
        let len_max = on.mtu.saturating_add(HEADER_MAX);
        Ok(Self { sender, receiver, interface, len_max, is_loopback })
    }
}

impl Frames for RawFrames {
    fn len_max(&self) -> usize {
        self.len_max
    }

    fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.sender.send(frame).map(drop)
    }

    fn listen(&self, listen: bool) -> io::Result<()> {
        ring::bind(&self.receiver, self.interface, listen)
    }

    fn receive(&self, frame: &mut Vec<u8>) -> io::Result<bool> {
        frame.resize(ARRIVED_MAX, 0);
        match (&self.receiver).read(frame) {
            Ok(len) => {
                frame.truncate(len);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    fn is_echoing(&self) -> bool {
        self.is_loopback
    }
}
