//! A bump in the wire: whole frames between two interfaces, each of which can be looked at, lost or
//! held back.
//!
//! For devices whose packets cannot be intercepted otherwise, such as RNICs: the card's port is
//! cabled to `inner`, the network to `outer`, and the owner of the bump passes frames on. It needs
//! the capability `CAP_NET_RAW`. Frames that the kernel joined are taken apart, so that each packet
//! is one frame. VLAN tags are not passed on.

use std::io::{self, IoSlice, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use super::super::OpenError;
use super::super::sys::ring::{self, VNET_LEN};
use super::{Config, find_interface, packet_socket};
use crate::wire::{
    EtherType, Ethernet, Frame as View, Ipv4, Ipv6, LinkType, PROTOCOL_UDP, ROCE_PORT, Udp,
    checksum, view,
};

/// Room for the longest frame that the kernel makes, and what goes before it.
const FRAME_MAX: usize = 1 << 17;

/// Frames of UDP that were joined: `VIRTIO_NET_HDR_GSO_UDP_L4`.
const JOINED_UDP: u8 = 5;

/// Maximum number of frames that are taken from one side before the other has its turn.
const TURN: usize = 64;

/// Two interfaces, and what passes between them.
#[derive(Debug)]
pub struct Bump {
    inner: Socket,
    outer: Socket,
    buffer: Vec<u8>,
}

/// A frame on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whether it came in at `inner`, and goes out at `outer`.
    pub outbound: bool,
    /// Header of virtio for the kernel.
    vnet: [u8; VNET_LEN],
    /// Frame, from its Ethernet header on.
    bytes: Vec<u8>,
}

impl Bump {
    /// Opens a bump between two interfaces, on which nothing else should send.
    pub fn open(inner: &str, outer: &str) -> Result<Self, OpenError> {
        let buffer = vec![0; FRAME_MAX];
        Ok(Self { inner: open(inner)?, outer: open(outer)?, buffer })
    }

    /// Waits until frames have come, but not longer than this.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let ends = [self.inner.as_fd(), self.outer.as_fd()];
        let mut fds = ends.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what has come.
    pub fn receive(&mut self, each: &mut dyn FnMut(Frame)) -> io::Result<()> {
        for (mut socket, outbound) in [(&self.inner, true), (&self.outer, false)] {
            for _ in 0..TURN {
                let len = match socket.read(&mut self.buffer) {
                    Ok(len) => len,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An interface that goes down says so once; frames come again when it is up
                    // again.
                    Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => break,
                    Err(error) => return Err(error),
                };
                let got = self.buffer.get(..len).unwrap_or_default();
                let Some((vnet, bytes)) = got.split_first_chunk() else { continue };
                take_apart(Frame { outbound, vnet: *vnet, bytes: bytes.to_vec() }, each);
            }
        }
        Ok(())
    }

    /// Passes a frame on. One that the network refuses is as good as lost.
    pub fn send(&self, frame: &Frame) -> io::Result<()> {
        let socket = if frame.outbound { &self.outer } else { &self.inner };
        let pieces = [IoSlice::new(&frame.vnet), IoSlice::new(&frame.bytes)];
        match ring::send_frames(socket, &[pieces]) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok(()),
        }
    }
}

fn open(interface: &str) -> Result<Socket, OpenError> {
    let config = Config::new(interface);
    let fail = |what| {
        let interface = interface.to_owned();
        move |source| OpenError::System { what, interface, source }
    };
    let (found, _) = find_interface(&config)?;
    let socket = packet_socket(&config)?;
    let option = libc::PACKET_IGNORE_OUTGOING;
    ring::set_option(&socket, libc::SOL_PACKET, option, 1).map_err(fail("ignore sent frames"))?;
    ring::take_all(&socket, found.index).map_err(fail("take frames for others"))?;
    socket.set_nonblocking(true).map_err(fail("set up a packet socket"))?;
    ring::bind(&socket, found.index, true).map_err(fail("bind a packet socket"))?;
    Ok(socket)
}

impl Frame {
    /// The packet of RoCE in it, from its BTH to its last pad byte.
    pub fn packet(&self) -> Option<&[u8]> {
        let frame = View::parse(LinkType::ETHERNET, &self.bytes, ROCE_PORT);
        frame.packet().map(|packet| packet.bytes())
    }

    /// Changes a bit of the packet in it, so that its ICRC is wrong.
    pub fn corrupt(&mut self) {
        /// The last byte of the PSN.
        const PSN: usize = 11;
        let start = self.packet().map(|packet| packet.as_ptr().addr());
        let place = start.map(|start| start - self.bytes.as_ptr().addr() + PSN);
        if let Some(byte) = place.and_then(|place| self.bytes.get_mut(place)) {
            *byte ^= 1;
        }
    }
}

/// The frames that one was made of.
fn take_apart(frame: Frame, each: &mut dyn FnMut(Frame)) {
    let joined = frame.vnet[1] & 0x7f == JOINED_UDP;
    if !joined || segments(&frame, each).is_none() {
        each(frame);
    }
}

/// The packets that the kernel joined into one frame; nothing if it cannot be.
fn segments(frame: &Frame, each: &mut dyn FnMut(Frame)) -> Option<()> {
    let size = usize::from(u16::from_ne_bytes([frame.vnet[4], frame.vnet[5]]));
    let bytes = &frame.bytes;
    let ethernet = view::<Ethernet>(bytes, 0).ok()?;
    let ip = Ethernet::LEN;
    let network_len = match ethernet.ethertype() {
        EtherType::IPV4 if view::<Ipv4>(bytes, ip).ok()?.protocol() == PROTOCOL_UDP => Ipv4::LEN,
        EtherType::IPV6 if view::<Ipv6>(bytes, ip).ok()?.next_header() == PROTOCOL_UDP => Ipv6::LEN,
        _ => return None,
    };
    let headers = ip + network_len + Udp::LEN;
    let payload = bytes.get(headers..).filter(|_| size > 0)?;
    for (number, piece) in payload.chunks(size).enumerate() {
        let mut bytes = [bytes.get(..headers)?, piece].concat();
        let udp_len = u16::try_from(Udp::LEN + piece.len()).ok()?;
        // Without a checksum, which RoCE does not need.
        bytes.get_mut(ip + network_len + 4..)?.get_mut(..4)?.copy_from_slice(&[
            udp_len.to_be_bytes()[0],
            udp_len.to_be_bytes()[1],
            0,
            0,
        ]);
        if network_len == Ipv4::LEN {
            let header = bytes.get_mut(ip..ip + Ipv4::LEN)?;
            let total = u16::try_from(Ipv4::LEN).ok()?.checked_add(udp_len)?;
            let id = u16::from_be_bytes([*header.get(4)?, *header.get(5)?]);
            let id = id.wrapping_add(u16::try_from(number).ok()?);
            header.get_mut(2..4)?.copy_from_slice(&total.to_be_bytes());
            header.get_mut(4..6)?.copy_from_slice(&id.to_be_bytes());
            header.get_mut(10..12)?.fill(0);
            let sum = checksum([&*header]);
            header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        } else {
            bytes.get_mut(ip + 4..ip + 6)?.copy_from_slice(&udp_len.to_be_bytes());
        }
        each(Frame { outbound: frame.outbound, vnet: [0; VNET_LEN], bytes });
    }
    Some(())
}
