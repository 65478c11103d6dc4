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

    /// Waits until a frame has arrived, or until `timeout` is over.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let ends = [self.inner.as_fd(), self.outer.as_fd()];
        let mut fds = ends.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives the frames that have arrived, up to a limit for each side.
    pub fn receive(&mut self, each: &mut dyn FnMut(Frame)) -> io::Result<()> {
        for (mut socket, outbound) in [(&self.inner, true), (&self.outer, false)] {
            for _ in 0..TURN {
                let len = match socket.read(&mut self.buffer) {
                    Ok(len) => len,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An interface that goes down reports it once; frames arrive again when it is
                    // up again.
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

    /// Passes a frame on. A frame that the network refuses counts as lost.
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
    /// Returns the RoCE packet in the frame, from its BTH to its last pad byte.
    pub fn packet(&self) -> Option<&[u8]> {
        let frame = View::parse(LinkType::ETHERNET, &self.bytes, ROCE_PORT);
        frame.packet().map(|packet| packet.bytes())
    }

    /// Changes a bit of the RoCE packet in the frame, so that its ICRC is wrong.
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

/// Passes on the frames that the kernel joined into `frame`, or `frame` itself if it is no joined
/// frame that can be taken apart.
fn take_apart(frame: Frame, each: &mut dyn FnMut(Frame)) {
    let joined = frame.vnet[1] & 0x7f == JOINED_UDP;
    match Some(&frame).filter(|_| joined).and_then(segments) {
        Some(frames) => frames.into_iter().for_each(each),
        None => each(frame),
    }
}

/// Returns each packet that the kernel joined into `frame`, in a frame of its own, or `None` if
/// `frame` cannot be taken apart.
fn segments(frame: &Frame) -> Option<Vec<Frame>> {
    let size = usize::from(u16::from_ne_bytes([frame.vnet[4], frame.vnet[5]]));
    let bytes = &frame.bytes;
    let ethernet = view::<Ethernet>(bytes, 0).ok()?;
    let ip = Ethernet::LEN;
    let network_len = match ethernet.ethertype() {
        EtherType::IPV4 if is_plain_udp(view(bytes, ip).ok()?) => Ipv4::LEN,
        EtherType::IPV6 if view::<Ipv6>(bytes, ip).ok()?.next_header() == PROTOCOL_UDP => Ipv6::LEN,
        _ => return None,
    };
    let udp = ip + network_len;
    let headers = udp + Udp::LEN;
    let is_roce = view::<Udp>(bytes, udp).ok()?.destination_port() == ROCE_PORT;
    let payload = bytes.get(headers..).filter(|_| size > 0)?;
    let pieces = payload.chunks(size).enumerate().map(|(number, piece)| {
        let mut bytes = [bytes.get(..headers)?, piece].concat();
        let udp_len = u16::try_from(Udp::LEN + piece.len()).ok()?.to_be_bytes();
        bytes.get_mut(udp + 4..udp + 6)?.copy_from_slice(&udp_len);
        bytes.get_mut(udp + 6..udp + 8)?.fill(0);
        if !is_roce {
            // RoCE needs none, and over IPv6 others do.
            let addresses = bytes.get(udp - if network_len == Ipv4::LEN { 8 } else { 32 }..udp)?;
            let sum = checksum([addresses, &[0, PROTOCOL_UDP], &udp_len, bytes.get(udp..)?]);
            let sum = if sum == 0 { 0xffff } else { sum };
            bytes.get_mut(udp + 6..udp + 8)?.copy_from_slice(&sum.to_be_bytes());
        }
        let udp_len = u16::from_be_bytes(udp_len);
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
        Some(Frame { outbound: frame.outbound, vnet: [0; VNET_LEN], bytes })
    });
    pieces.collect()
}

/// Whether a header without options is that of a whole UDP datagram.
fn is_plain_udp(header: &Ipv4) -> bool {
    header.protocol() == PROTOCOL_UDP && header.header_len() == Ipv4::LEN && !header.is_fragment()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with a UDP datagram of `payload` to `port`, which the kernel joined from pieces of
    /// four bytes.
    fn joined(network: &[u8], ethertype: [u8; 2], port: u16, payload: &[u8]) -> Frame {
        let mut vnet = [0; VNET_LEN];
        vnet[1] = JOINED_UDP;
        vnet[4..6].copy_from_slice(&4_u16.to_ne_bytes());
        let port = port.to_be_bytes();
        let udp = [0xc0, 0, port[0], port[1], 0, 0, 0, 0];
        let bytes = [&[2; 12][..], &ethertype, network, &udp, payload].concat();
        Frame { outbound: true, vnet, bytes }
    }

    fn apart(frame: Frame) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        take_apart(frame, &mut |frame| frames.push(frame.bytes));
        frames
    }

    const IPV4: [u8; 20] =
        [0x45, 0, 0, 0, 0, 7, 0, 0, 64, PROTOCOL_UDP, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];

    #[test]
    fn datagrams_that_the_kernel_joined_are_taken_apart() {
        let frames = apart(joined(&IPV4, [8, 0], ROCE_PORT, &[1, 2, 3, 4, 5, 6]));
        let ids = [7, 8];
        assert_eq!(frames.len(), 2);
        for ((frame, id), payload) in frames.iter().zip(ids).zip([&[1, 2, 3, 4][..], &[5, 6]]) {
            let (ip, udp) = (&frame[14..34], &frame[34..42]);
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), 28 + payload.len());
            assert_eq!(ip[4..6], [0, id]);
            assert_eq!(checksum([ip]), 0);
            assert_eq!(udp[4..], [0, 8 + u8::try_from(payload.len()).unwrap(), 0, 0]);
            assert_eq!(&frame[42..], payload);
        }
    }

    #[test]
    fn datagrams_that_are_not_roce_have_a_checksum() {
        let mut ipv6 = [0; 40];
        (ipv6[0], ipv6[6], ipv6[7], ipv6[23], ipv6[39]) = (0x60, PROTOCOL_UDP, 64, 1, 2);
        for frame in apart(joined(&ipv6, [0x86, 0xdd], 53, &[1, 2, 3, 4, 5])) {
            let length = u16::try_from(frame.len() - 54).unwrap().to_be_bytes();
            let pseudo = [&frame[22..54], &[0, PROTOCOL_UDP], &length].concat();
            assert_ne!(frame[60..62], [0, 0]);
            assert_eq!(checksum([&pseudo[..], &frame[54..]]), 0);
        }
    }

    #[test]
    fn what_cannot_be_taken_apart_is_passed_on_whole() {
        let mut with_options = [IPV4.as_slice(), &[1; 4]].concat();
        with_options[0] = 0x46;
        let frame = joined(&with_options, [8, 0], ROCE_PORT, &[1; 8]);
        assert_eq!(apart(frame.clone()), [frame.bytes]);
        let frame = joined(&IPV4[..10], [8, 0], ROCE_PORT, &[]);
        assert_eq!(apart(frame.clone()), [frame.bytes]);
    }
}
