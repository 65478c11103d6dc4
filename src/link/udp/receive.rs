//! The half that receives: trains as the kernel joined them, each packet checked as far as its
//! headers are known.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use socket2::Socket;

use super::members::Members;
use super::shared_memory::{SharedMemory, Turn};
use super::{Groups, IcrcCheck};
use crate::link::interface::gid;
use crate::link::sys::socket::{Control, RecvBuffers};
use crate::link::{AddressFds, Receiver};
use crate::time::Instant;
use crate::wire::icrc::Identification;
use crate::wire::{
    Bits, Bth, Gid, ICRC_ROOM, Ipv4Repr, Ipv6Repr, PACKET_MAX, Path, Prefixes, Received, Udp,
};

pub(super) struct UdpReceiver {
    pub(super) socket: Arc<Socket>,
    gid: Gid,
    groups: Groups,
    /// Destination of the datagrams in the receive buffers: the link itself, or a group.
    to: Gid,
    buffers: RecvBuffers,
    /// Common facts of the packets of a datagram, by its index in the receive buffers.
    arrivals: Vec<Arrival>,
    /// The packets that are sound.
    packets: Vec<Location>,
    checker: Checker,
    counters: Counters,
    /// The other NICs at the address, if it is shared.
    pub(super) members: Option<Members>,
    /// Whether the kernel joined packets among those that were received last.
    has_trains: bool,
}

/// Takes datagrams apart and checks their packets.
struct Checker {
    check: IcrcCheck,
    prefixes: Prefixes,
    identifications: Identifications,
}

/// Common facts of packets that the kernel joined.
pub(super) struct Arrival {
    pub(super) from: Gid,
    pub(super) port: u16,
    pub(super) ecn: u8,
    pub(super) header: Header,
}

/// A header as it must have been, but for what differs from packet to packet.
pub(super) enum Header {
    /// IPv4 header without length, identification and checksum; and the sum of its words.
    Ipv4([u8; 20], u32),
    /// IPv6 header without length.
    Ipv6([u8; 40]),
}

/// Location of a packet.
struct Location {
    arrival: usize,
    start: usize,
    /// Length from its BTH through its ICRC.
    len: u16,
    /// The identification in its IPv4 header.
    id: u16,
}

#[derive(Default)]
struct Counters {
    packets: u64,
    calls: u64,
    bad_icrc: u64,
    too_short: u64,
    too_long: u64,
    truncated: u64,
    /// Number of datagrams that the kernel dropped because they were not received in time.
    overflowed: u64,
    room: u64,
}

impl UdpReceiver {
    pub(super) fn new(
        socket: Arc<Socket>,
        gid: Gid,
        check: IcrcCheck,
        room: usize,
        groups: Groups,
    ) -> io::Result<Self> {
        Ok(Self {
            socket,
            gid,
            groups,
            to: gid,
            buffers: RecvBuffers::new()?,
            arrivals: Vec::new(),
            packets: Vec::new(),
            checker: Checker::new(check),
            counters: Counters { room: room as u64, ..Counters::default() },
            members: None,
            has_trains: false,
        })
    }

    pub(super) fn with_members(mut self, members: Option<Members>) -> Self {
        self.members = members;
        self
    }

    /// Takes in what was sent to a group, if it is the turn of one; whether anything was.
    #[cold]
    fn receive_for_groups(&mut self) -> io::Result<bool> {
        let Some((group, socket)) = self.groups.next() else { return Ok(false) };
        match self.buffers.receive(socket) {
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(false),
                _ => return Err(error),
            },
        }
        self.to = group;
        let overflowed = std::mem::take(&mut self.counters.overflowed);
        self.check();
        // Each socket counts for itself.
        self.groups.overflowed(group, std::mem::replace(&mut self.counters.overflowed, overflowed));
        Ok(true)
    }

    /// Receives from another socket of the same address; returns whether anything came.
    pub(super) fn receive_beside(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        self.forget_arrived();
        match self.buffers.receive(socket) {
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(false),
                _ => return Err(error),
            },
        }
        self.to = self.gid;
        // Each socket counts for itself.
        let overflowed = self.counters.overflowed;
        self.check();
        self.counters.overflowed = overflowed;
        Ok(true)
    }

    /// Forgets the packets in the receive buffers.
    pub(super) fn forget_arrived(&mut self) {
        self.arrivals.clear();
        self.packets.clear();
    }

    /// Forgets the packets at these positions, in ascending order.
    pub(super) fn remove_arrived(&mut self, positions: &[usize]) {
        let (mut at, mut positions) = (0, positions.iter().peekable());
        self.packets.retain(|_| {
            let is_removed = positions.next_if(|position| **position == at).is_some();
            at += 1;
            !is_removed
        });
    }

    /// Passes each packet that is in the receive buffers to `each`, in order.
    pub(super) fn for_each_arrived(&self, each: &mut dyn FnMut(&Received<'_>)) {
        let mut room = [0; 40];
        for location in &self.packets {
            let Some(arrival) = self.arrivals.get(location.arrival) else { continue };
            let bytes = self.buffers.bytes(location.arrival);
            let end = location.start + usize::from(location.len) - ICRC_ROOM;
            each(&Received {
                source: arrival.from,
                destination: self.to,
                source_port: arrival.port,
                ecn: arrival.ecn,
                network: arrival.header.put(location.len, location.id, &mut room),
                packet: bytes.get(location.start..end).unwrap_or_default(),
                payload: None,
            });
        }
    }

    /// Takes apart what is in the receive buffers, and keeps what is sound.
    fn check(&mut self) {
        self.has_trains = false;
        for datagram in self.buffers.iter_mut() {
            let index = self.arrivals.len();
            let ancillary = Ancillary::new(datagram.control);
            self.has_trains |= ancillary.segment.is_some();
            self.counters.overflowed = self.counters.overflowed.max(ancillary.overflowed.into());
            let from = datagram.from.get().filter(|_| datagram.whole);
            // It keeps its place even if nothing of it is sound.
            let (source, source_port) = from.unwrap_or((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
            let arrival = Arrival::new(source, source_port, self.to, &ancillary);
            let ends = (arrival.from, self.to, source_port);
            self.arrivals.push(arrival);
            if from.is_none() {
                self.counters.truncated += 1;
                continue;
            }
            let sound =
                |start, len, id| self.packets.push(Location { arrival: index, start, len, id });
            self.checker.check(datagram.bytes, ancillary.segment, ends, &mut self.counters, sound);
        }
    }
}

impl Checker {
    fn new(check: IcrcCheck) -> Self {
        let prefixes = Prefixes::new(&Path::NOWHERE);
        Self { check, prefixes, identifications: Identifications::default() }
    }

    /// Takes a datagram apart into packets of the length `segment`, if the kernel joined several,
    /// and calls `sound` with where each sound one starts, its length with its ICRC, and its
    /// identification. The datagram's ends are its source, its destination and its source port.
    #[inline]
    fn check(
        &mut self,
        datagram: &mut [u8],
        segment: Option<usize>,
        (source, destination, source_port): (Gid, Gid, u16),
        counters: &mut Counters,
        mut sound: impl FnMut(usize, u16, u16),
    ) {
        self.prefixes.set_path(&Path {
            source,
            destination,
            source_port,
            traffic_class: 0,
            hop_limit: 0,
            sl: 0,
            flow_label: Bits::ZERO,
        });
        let has_identification = source.to_ipv4().is_some();
        let segment = segment.unwrap_or(datagram.len()).max(1);
        let mut end = 0;
        for packet in datagram.chunks_mut(segment) {
            let start = end;
            end += packet.len();
            let Some(len) = counters.size(packet.len()) else { continue };
            match self.identification(packet, has_identification) {
                Some(id) => sound(start, len, id),
                // Rule: Q-36.
                None => counters.bad_icrc += 1,
            }
        }
    }

    /// The identification of a packet's header, which of IPv6 counts as 0, or `None` if its ICRC is
    /// wrong.
    #[inline]
    fn identification(&mut self, packet: &mut [u8], has_identification: bool) -> Option<u16> {
        if self.check == IcrcCheck::Trust {
            return Some(0);
        }
        match self.prefixes.of(packet.len()).difference(packet)? {
            0 => Some(0),
            difference if has_identification => {
                self.identifications.of_length(packet.len()).find(difference)
            }
            _ => None,
        }
    }
}

/// The sound packets of a datagram, as a link finds them, by where they start and how long they are
/// with their ICRCs: for fuzzing.
#[doc(hidden)]
pub fn sound_packets(
    datagram: &mut [u8],
    segment: Option<usize>,
    ends: (Gid, Gid, u16),
) -> Vec<(usize, u16)> {
    let mut found = Vec::new();
    let sound = |start, len, _| found.push((start, len));
    let mut counters = Counters::default();
    Checker::new(IcrcCheck::Verify).check(datagram, segment, ends, &mut counters, sound);
    found
}

impl Counters {
    /// The length of a packet, if it is one that a packet can have.
    #[inline]
    fn size(&mut self, len: usize) -> Option<u16> {
        if len < Bth::LEN + ICRC_ROOM {
            self.too_short += 1;
            return None;
        }
        if len > PACKET_MAX + ICRC_ROOM {
            self.too_long += 1;
            return None;
        }
        u16::try_from(len).ok()
    }
}

impl UdpReceiver {
    #[inline]
    fn shared_memory_mut(&mut self) -> Option<&mut SharedMemory> {
        self.members.as_mut()?.shared_memory.as_mut()
    }

    /// Receives what came through the kernel.
    fn receive_from_kernel(&mut self) -> io::Result<()> {
        self.counters.calls += 1;
        if !self.groups.is_empty() && self.receive_for_groups()? {
            return Ok(());
        }
        self.to = self.gid;
        match self.buffers.receive(self.socket.as_fd()) {
            Ok(_) => {
                self.check();
                if self.has_trains && self.members.is_some() {
                    self.forward_strays();
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
        Ok(())
    }
}

impl Receiver for UdpReceiver {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.forget_arrived();
        let turn = self.shared_memory_mut().map_or(Turn::Kernel, |memory| memory.turn(now));
        if turn != Turn::Rings {
            self.receive_from_kernel()?;
        }
        let mut count = self.packets.len();
        if turn != Turn::Kernel
            && let Some(memory) = self.shared_memory_mut()
        {
            count += memory.take(now, turn, count);
        }
        count += self.members.as_mut().map_or(0, Members::hand_over);
        self.counters.packets += count as u64;
        Ok(count)
    }

    #[inline]
    fn may_receive(&self) -> bool {
        self.members.as_ref().is_none_or(Members::may_receive)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.for_each_arrived(each);
        if let Some(members) = &self.members {
            members.for_each(each);
            if let Some(memory) = &members.shared_memory {
                memory.for_each(self.gid, each);
            }
        }
    }

    fn for_each_apart(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.for_each_arrived(each);
        if let Some(members) = &self.members {
            members.for_each(each);
            if let Some(memory) = &members.shared_memory {
                memory.for_each_apart(self.gid, each);
            }
        }
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.shared_memory_mut().is_none_or(SharedMemory::announce_sleep)
    }

    fn end_sleep(&mut self) {
        if let Some(memory) = self.shared_memory_mut() {
            memory.end_sleep();
        }
    }

    fn room(&self) -> Option<usize> {
        usize::try_from(self.counters.room).ok()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.groups.fd().unwrap_or_else(|| self.socket.as_fd())
    }

    fn address_fds(&self) -> AddressFds {
        let fds = match &self.members {
            Some(members) => members.address_fds(),
            None => AddressFds::default(),
        };
        fds.add(self.socket.as_fd());
        fds
    }

    fn members_fd(&self) -> Option<BorrowedFd<'_>> {
        self.members.as_ref().map(Members::fd)
    }

    fn serve_members(&mut self) -> io::Result<()> {
        self.serve()
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.groups.join(group, self.socket.as_fd())
    }

    fn leave(&mut self, group: Gid) {
        self.groups.leave(group);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        let memory = self.members.as_ref().and_then(|members| members.shared_memory.as_ref());
        let from_rings = memory.map_or(0, SharedMemory::bad_icrc);
        let mut all = vec![
            ("packets_received", counters.packets),
            ("receive_calls", counters.calls),
            ("bad_icrc", counters.bad_icrc + from_rings),
            ("too_short", counters.too_short),
            ("too_long", counters.too_long),
            ("truncated", counters.truncated),
            ("overflowed", counters.overflowed + self.groups.total_overflowed()),
            ("receive_buffer", counters.room),
        ];
        all.extend(self.members.as_ref().into_iter().flat_map(Members::counters));
        all
    }
}

/// Control messages of a datagram, decoded.
#[derive(Default)]
pub(super) struct Ancillary {
    /// The length of each packet but the last, if several were joined.
    pub(super) segment: Option<usize>,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
    /// Number of datagrams that were dropped so far.
    pub(super) overflowed: u32,
}

impl Ancillary {
    fn new(control: &Control) -> Self {
        let mut ancillary = Self::default();
        for (level, kind, data) in control.iter() {
            let number = data.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
            let byte = number.and_then(|number| u8::try_from(number).ok()).unwrap_or(0);
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    ancillary.segment = number.and_then(|number| usize::try_from(number).ok());
                }
                (libc::SOL_IP, libc::IP_TOS) => {
                    ancillary.traffic_class = data.first().copied().unwrap_or(0);
                }
                (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                    ancillary.hop_limit = byte;
                }
                (libc::SOL_IPV6, libc::IPV6_FLOWINFO) => {
                    let info = data.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                    ancillary.flow_label = info & 0xf_ffff;
                    [_, _, _, ancillary.traffic_class] = (info >> 20).to_be_bytes();
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    ancillary.overflowed = number.unwrap_or(0).cast_unsigned();
                }
                _ => {}
            }
        }
        ancillary
    }
}

impl Arrival {
    pub(super) fn new(source: IpAddr, port: u16, to: Gid, ancillary: &Ancillary) -> Self {
        let class = u32::from(ancillary.traffic_class);
        let (dscp, ecn) = (Bits::low(class >> 2), Bits::low(class));
        let header = match (source, to.to_ipv4()) {
            (IpAddr::V4(source), Some(to)) => {
                let ttl = ancillary.hop_limit;
                let header = Ipv4Repr { dscp, ecn, ttl, ..Ipv4Repr::new(source, to) };
                let bytes = *header.emit().as_bytes();
                Header::Ipv4(bytes, sum_of_words(&bytes))
            }
            (source, _) => {
                let (flow_label, hop_limit) =
                    (Bits::low(ancillary.flow_label), ancillary.hop_limit);
                let header = Ipv6Repr::new(gid(source).0.into(), to.0.into());
                let header = Ipv6Repr { dscp, ecn, flow_label, hop_limit, ..header };
                Header::Ipv6(*header.emit().as_bytes())
            }
        };
        Self { from: gid(source), port, ecn: ancillary.traffic_class & 3, header }
    }
}

impl Header {
    /// The header of a packet with so many bytes from its BTH through its ICRC.
    #[inline]
    pub(super) fn put<'a>(&self, len: u16, id: u16, room: &'a mut [u8; 40]) -> &'a [u8] {
        #[expect(clippy::cast_possible_truncation, reason = "8 bytes")]
        let udp_len = len + Udp::LEN as u16;
        match self {
            Self::Ipv4(header, sum) => {
                let total_len = udp_len + 20;
                let mut sum = sum + u32::from(total_len) + u32::from(id);
                sum = (sum & 0xffff) + (sum >> 16);
                sum = (sum & 0xffff) + (sum >> 16);
                let [_, _, high, low] = (!sum).to_be_bytes();
                let mut header = *header;
                [header[2], header[3]] = total_len.to_be_bytes();
                [header[4], header[5]] = id.to_be_bytes();
                [header[10], header[11]] = [high, low];
                let (place, _) = room.split_at_mut(header.len());
                place.copy_from_slice(&header);
                place
            }
            Self::Ipv6(header) => {
                *room = *header;
                [room[4], room[5]] = udp_len.to_be_bytes();
                room
            }
        }
    }
}

/// The sum of the sixteen-bit words of a header.
fn sum_of_words(header: &[u8; 20]) -> u32 {
    header.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

/// Tables that find identifications, by length.
#[derive(Default)]
struct Identifications {
    kept: [Option<(usize, Box<Identification>)>; 4],
    /// Index of the entry that is replaced next.
    oldest: usize,
}

impl Identifications {
    #[inline]
    fn of_length(&mut self, len: usize) -> &Identification {
        let fits = |kept: &Option<(usize, _)>| matches!(kept, Some((same, _)) if *same == len);
        let at = self.kept.iter().position(fits).unwrap_or_else(|| {
            let at = self.oldest;
            self.oldest = (at + 1) % self.kept.len();
            self.kept[at] = Some((len, Box::new(Identification::of_length(len))));
            at
        });
        &self.kept[at].as_ref().expect("it was found or put there").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Ipv4, Ipv6, checksum, view};

    #[test]
    fn headers_are_put_together_again() {
        let ancillary = Ancillary { traffic_class: 0x62, hop_limit: 9, ..Ancillary::default() };
        let to = Gid::from(Ipv4Addr::new(192, 0, 2, 1));
        let arrival = Arrival::new([198, 51, 100, 7].into(), 0, to, &ancillary);
        for (len, id) in [(16, 0), (1044, 1), (4168, 0xffff)] {
            let mut room = [0; 40];
            let header = arrival.header.put(len, id, &mut room);
            assert_eq!((header.len(), checksum([header])), (20, 0));
            let header = view::<Ipv4>(header, 0).unwrap();
            assert_eq!((header.total_len(), header.id(), header.ttl()), (len + 28, id, 9));
            assert_eq!((header.dscp().get(), header.ecn().get()), (0x18, 2));
        }
        assert_eq!(arrival.ecn, 2);
    }

    #[test]
    fn headers_of_ipv6_have_their_flow_label() {
        let mut control = Control::new();
        control.put(libc::SOL_IPV6, libc::IPV6_FLOWINFO, &0x0631_2345_u32.to_be_bytes());
        control.put(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, &3_i32.to_ne_bytes());
        let ancillary = Ancillary::new(&control);
        let to = Gid::from(std::net::Ipv6Addr::LOCALHOST);
        let arrival = Arrival::new("2001:db8::1".parse().unwrap(), 0, to, &ancillary);
        let mut room = [0; 40];
        let header = view::<Ipv6>(arrival.header.put(64, 0, &mut room), 0).unwrap();
        assert_eq!((header.payload_len(), header.hop_limit()), (72, 3));
        assert_eq!((header.flow_label().get(), arrival.ecn), (0x1_2345, 3));
        assert_eq!(header.dscp().get(), 0x18);
    }
}
