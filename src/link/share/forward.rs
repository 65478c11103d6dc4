//! Forward queues, by which the members of an address pass packets to each other.
//!
//! The kernel steers a packet by its first BTH. A packet that it joined to one of another queue
//! pair, and a packet for queue pair 1, which all members have, come to one member and are
//! forwarded. A forward queue is a Unix socket that is connected to itself: a process that has its
//! descriptor can put a message in and take one out, and no other process can.
//!
//! [Rings](super::ring) are offered by it, too.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getsockname, recvmsg, send, sendmsg, socket_with, sockopt,
};

use super::ring::Offer;
use crate::wire::{Gid, PACKET_MAX, Received};

/// Bytes of a message before the packet: ECN bits, length of the network header, source port, both
/// addresses, network header.
const HEAD_LEN: usize = 2 + 2 + 16 + 16 + NETWORK_MAX;

/// Maximum length of a network header.
const NETWORK_MAX: usize = 40;

/// Maximum length of a message.
pub(crate) const MESSAGE_MAX: usize = HEAD_LEN + PACKET_MAX;

/// Room for messages that are not taken out, as the system counts it: some hundred MADs.
const ROOM: usize = 1 << 20;

/// Makes a socket that is connected to itself.
pub(super) fn self_connected() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    // The kernel chooses a name that is free.
    bind(&socket, &SocketAddrUnix::new_unnamed())?;
    connect(&socket, &getsockname(&socket)?)?;
    Ok(socket)
}

/// A queue of forwarded packets.
#[derive(Debug)]
pub(super) struct ForwardQueue(OwnedFd);

impl ForwardQueue {
    pub(super) fn new() -> io::Result<Self> {
        let socket = self_connected()?;
        // As much as the system allows.
        let _ = sockopt::set_socket_send_buffer_size(&socket, ROOM);
        Ok(Self(socket))
    }

    pub(super) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Puts a message in the queue; returns whether there was room.
    pub(super) fn put(&self, message: &[u8]) -> bool {
        send(&self.0, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }

    /// Offers a ring for packets from `source`; returns whether there was room.
    pub(super) fn put_offer(&self, source: Gid, offer: &Offer) -> bool {
        let descriptors = [offer.memory.as_fd(), offer.bell.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = [IoSlice::new(&OFFER), IoSlice::new(&source.0)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.0, &bytes, &mut control, flags).is_ok()
    }

    /// Takes a message out of the queue. Returns `None` if it is empty.
    pub(super) fn take<'a>(&self, room: &'a mut [u8; MESSAGE_MAX + 1]) -> Option<Message<'a>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(room)], &mut control, flags);
        let len = received.ok()?.bytes;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let bytes = room.get(..len).unwrap_or_default();
        Some(match read_offer(bytes, descriptors) {
            Some((source, offer)) => Message::Offer { source, offer },
            None if read(bytes).is_some() => Message::Packet(bytes),
            None => Message::Bad,
        })
    }
}

/// Number of descriptors of an offer.
const DESCRIPTORS: usize = 2;

/// First bytes of an offer, with the version of rings. No packet's message begins so.
const OFFER: [u8; 4] = [0xff, 0, 0, 1];

/// A message in a forward queue.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// A packet, to be [read](read).
    Packet(&'a [u8]),
    /// A ring for packets from an address.
    Offer { source: Gid, offer: Offer },
    /// A message that is neither.
    Bad,
}

fn read_offer(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<(Gid, Offer)> {
    let source = bytes.strip_prefix(&OFFER)?.try_into().ok()?;
    let [memory, bell]: [OwnedFd; DESCRIPTORS] = descriptors.try_into().ok()?;
    Some((Gid(source), Offer { memory, bell }))
}

/// Writes a packet as a message, in place of what `message` holds.
pub(crate) fn write(received: &Received<'_>, message: &mut Vec<u8>) {
    let (network, rest) = received.network.split_at(received.network.len().min(NETWORK_MAX));
    debug_assert!(rest.is_empty(), "a network header has 20 or 40 bytes");
    message.clear();
    message.push(received.ecn);
    message.push(u8::try_from(network.len()).unwrap_or(0));
    message.extend(received.source_port.to_be_bytes());
    message.extend(received.source.0);
    message.extend(received.destination.0);
    message.extend(network);
    message.resize(HEAD_LEN, 0);
    message.extend(received.packet);
}

/// Parses the message of a packet; returns `None` if it is malformed. The engine checks the packet
/// itself, as it checks every packet.
pub(crate) fn read(message: &[u8]) -> Option<Received<'_>> {
    let (&[ecn, network_len], rest) = message.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let (source, rest) = rest.split_first_chunk()?;
    let (destination, rest) = rest.split_first_chunk()?;
    let (network, packet) = rest.split_at_checked(NETWORK_MAX)?;
    let network = network.get(..network_len.into())?;
    if !matches!(network.len(), 20 | 40) || ecn > 3 || packet.len() > PACKET_MAX {
        return None;
    }
    Some(Received {
        source: Gid(*source),
        destination: Gid(*destination),
        source_port: u16::from_be_bytes(*port),
        ecn,
        network,
        packet,
        payload: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_is_read_as_it_was_written() {
        for network in [&[1; 20][..], &[2; 40]] {
            let received = Received {
                source: Gid([3; 16]),
                destination: Gid([4; 16]),
                source_port: 0xc123,
                ecn: 3,
                network,
                packet: &[9; 300],
                payload: None,
            };
            let mut message = vec![7; 5000];
            write(&received, &mut message);
            let queue = ForwardQueue::new().unwrap();
            assert!(queue.put(&message));
            let mut room = [0; MESSAGE_MAX + 1];
            let Some(Message::Packet(taken)) = queue.take(&mut room) else { panic!("a packet") };
            let read = read(taken).unwrap();
            assert_eq!((read.source, read.destination), (received.source, received.destination));
            assert_eq!((read.source_port, read.ecn), (0xc123, 3));
            assert_eq!((read.network, read.packet), (received.network, received.packet));
            assert!(queue.take(&mut room).is_none());
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let header = |ecn: u8, len: u8| [&[ecn, len][..], &[0; HEAD_LEN - 2], &[0; 12]].concat();
        assert!(read(&header(0, 20)).is_some());
        for message in [header(4, 20), header(0, 41), header(0, 0), vec![0; HEAD_LEN - 1], vec![]] {
            assert!(read(&message).is_none());
        }
        assert!(read(&vec![20; MESSAGE_MAX + 1]).is_none());
    }

    #[test]
    fn ring_is_offered_with_its_descriptors() {
        let queue = ForwardQueue::new().unwrap();
        let (producer, offer) = super::super::ring::Producer::new().unwrap();
        assert!(queue.put_offer(Gid([7; 16]), &offer));
        drop(offer);
        let mut room = [0; MESSAGE_MAX + 1];
        let taken = queue.take(&mut room);
        let Some(Message::Offer { source, offer }) = taken else { panic!("{taken:?}") };
        assert_eq!(source, Gid([7; 16]));
        super::super::ring::Consumer::adopt(offer, source).unwrap();
        assert!(producer.is_adopted());
        // Without descriptors it is no offer.
        assert!(queue.put(&[&OFFER[..], &[7; 16]].concat()));
        assert!(matches!(queue.take(&mut room), Some(Message::Bad)));
    }

    #[test]
    fn full_queue_takes_nothing_and_does_not_wait() {
        let queue = ForwardQueue::new().unwrap();
        let count = (0..1_000_000).take_while(|_| queue.put(&[0; 400])).count();
        assert!((64..1_000_000).contains(&count), "{count}");
        let mut room = [0; MESSAGE_MAX + 1];
        while queue.take(&mut room).is_some() {}
        assert!(queue.put(&[0; 400]));
    }
}
