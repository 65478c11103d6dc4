//! The half of a raw link that sends: packets sealed, behind whole headers, trains as one frame.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use socket2::{Domain, Protocol, Socket, Type};

use super::super::Sender;
use super::super::sys::ring::{self, Interface, VNET_LEN};
use super::neighbour::{Neighbours, address_of};
use crate::time::Instant;
use crate::wire::{
    Batch, Bits, EtherType, Ethernet, EthernetRepr, Ipv6, MacAddr, Path, PathHeaders, Train, Udp,
    Vlan, VlanRepr, checksum,
};

/// The most packets of one frame.
const SEGMENTS_MAX: usize = 128;

/// The most bytes of one frame, behind its UDP header.
const RUN_MAX: usize = 64_000;

/// The longest headers of a frame.
const HEADERS_MAX: usize = VNET_LEN + Ethernet::LEN + Vlan::LEN + Ipv6::LEN + Udp::LEN;

/// The half that sends.
#[derive(Debug)]
pub(super) struct RawSender {
    socket: Socket,
    mac: MacAddr,
    loopback: bool,
    vlan: Option<u16>,
    neighbours: Neighbours,
    /// For packets to neighbours that are not known yet.
    ip: Option<IpSockets>,
    /// The identification of the next packet.
    id: u16,
    /// Whether the kernel takes frames of several packets.
    trains: bool,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    /// Packets that went through the kernel, which looked for the neighbour.
    through_kernel: u64,
    /// Packets to neighbours that nobody knows.
    unresolved: u64,
    /// Packets that the network refused.
    refused: u64,
}

/// Packets of one length that go one way, but for the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    path: &'a Path,
    /// To whom, or `None` if the kernel is to find out.
    mac: Option<MacAddr>,
    /// The packets, with their ICRCs.
    bytes: &'a [u8],
    /// How long each is.
    segment: usize,
    /// The identification of the first.
    id: u16,
}

impl<'a> Run<'a> {
    fn len(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.max(1))
    }

    /// Each packet as a run of its own.
    fn singles(self) -> impl Iterator<Item = Self> {
        let ids = (0..=u16::MAX).map(move |index| self.id.wrapping_add(index));
        let packets = self.bytes.chunks(self.segment.max(1)).zip(ids);
        packets.map(move |(bytes, id)| Self { bytes, segment: bytes.len(), id, ..self })
    }
}

impl RawSender {
    pub(super) fn new(
        socket: Socket,
        interface: &Interface,
        vlan: Option<u16>,
        neighbours: Neighbours,
        ip: Option<IpSockets>,
    ) -> Self {
        Self {
            socket,
            mac: interface.mac,
            loopback: interface.loopback,
            vlan,
            neighbours,
            ip,
            id: 0,
            trains: true,
            counts: Counts::default(),
        }
    }

    /// Seals a train, and cuts it into runs.
    fn seal<'a>(&mut self, now: Instant, mut train: Train<'a>, runs: &mut Vec<Run<'a>>) {
        let (path, mut id) = (train.path, self.id);
        let own = self.loopback.then_some(self.mac);
        let mac = own.or_else(|| self.neighbours.find(now, path.destination));
        let together = if self.trains && mac.is_some() { SEGMENTS_MAX } else { 1 };
        // Where each run ends, and how long its packets are.
        let first = runs.len();
        let mut run = Run { path, mac, bytes: &[], segment: 0, id };
        let (mut start, mut end, mut count) = (0, 0, 0);
        let mut cuts: Vec<(Run<'a>, usize, usize)> = Vec::new();
        let mut open = false;
        train.for_each_mut(|packet| {
            path.prefix_with_id(packet.len(), id).seal(packet);
            let fits = open
                && count < together
                && packet.len() <= run.segment
                && end - start + packet.len() <= RUN_MAX;
            if !fits {
                if end > start {
                    cuts.push((run, start, end));
                }
                (start, count) = (end, 0);
                run = Run { segment: packet.len(), id, ..run };
            }
            end += packet.len();
            count += 1;
            // A shorter one is the last.
            open = packet.len() == run.segment;
            id = id.wrapping_add(1);
        });
        if end > start {
            cuts.push((run, start, end));
        }
        self.id = id;
        let bytes: &'a [u8] = train.bytes;
        runs.extend(
            cuts.into_iter()
                .filter_map(|(run, start, end)| Some(Run { bytes: bytes.get(start..end)?, ..run })),
        );
        debug_assert!(runs.len() > first, "a train has packets");
    }

    /// Sends runs whose neighbours are known.
    fn send_frames(&mut self, mut runs: &[Run<'_>]) -> io::Result<()> {
        while let Some((first, rest)) = runs.split_first() {
            let headers: Vec<FrameHeaders> =
                runs.iter().take(AT_ONCE).map(|run| self.headers(run)).collect();
            let pieces: Vec<[IoSlice<'_>; 2]> = headers
                .iter()
                .zip(runs)
                .map(|(headers, run)| [IoSlice::new(headers.bytes()), IoSlice::new(run.bytes)])
                .collect();
            match ring::send_frames(&self.socket, &pieces) {
                Ok(count) => {
                    self.counts.frames += count as u64;
                    runs = runs.get(count.max(1)..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    // A kernel that cannot take frames apart says so at the first.
                    if first.len() > 1 && error.raw_os_error() == Some(libc::EINVAL) {
                        self.trains = false;
                        let singles: Vec<_> = first.singles().collect();
                        self.send_frames(&singles)?;
                    } else {
                        self.counts.refused += first.len() as u64;
                    }
                    runs = rest;
                }
            }
        }
        Ok(())
    }

    /// The headers of a run's frame.
    fn headers(&self, run: &Run<'_>) -> FrameHeaders {
        let mut headers = FrameHeaders { bytes: [0; _], len: VNET_LEN };
        let ip = run.path.headers_with_id(run.bytes.len(), run.id);
        let ethertype = match ip {
            PathHeaders::Ipv4(..) => EtherType::IPV4,
            PathHeaders::Ipv6(..) => EtherType::IPV6,
        };
        let destination = run.mac.unwrap_or(MacAddr([0; 6]));
        let outer = if self.vlan.is_some() { EtherType::VLAN } else { ethertype };
        let ethernet = EthernetRepr { destination, source: self.mac, ethertype: outer };
        headers.put(ethernet.emit().as_bytes());
        if let Some(vid) = self.vlan {
            let (priority, vid) = (Bits::low(run.path.sl.into()), Bits::low(vid.into()));
            let tag = VlanRepr { priority, drop_eligible: false, vid, ethertype };
            headers.put(tag.emit().as_bytes());
        }
        let (network, udp) = ip.as_bytes();
        headers.put(network);
        let udp_at = headers.len;
        headers.put(udp);
        if run.len() > 1 {
            headers.announce_segments(run.segment, udp_at, pseudo_sum(network, udp));
        }
        headers
    }

    /// Leaves packets to the kernel, which looks for the neighbour.
    fn send_through_kernel(&mut self, run: &Run<'_>) -> io::Result<()> {
        for run in run.singles() {
            let Some(ip) = &self.ip else {
                self.counts.unresolved += 1;
                continue;
            };
            match ip.send(run.path, run.id, run.bytes) {
                Ok(()) => self.counts.through_kernel += 1,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(_) => self.counts.refused += 1,
            }
        }
        Ok(())
    }
}

/// How many frames are sent with one system call.
const AT_ONCE: usize = 64;

/// Whether an error means that the interface is gone for good.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EBADF))
}

impl Sender for RawSender {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        let mut runs = Vec::with_capacity(batch.len());
        for train in batch.trains_mut() {
            self.seal(now, train, &mut runs);
        }
        // What goes one way stays in order: whole stretches go by frames, or through the kernel.
        for stretch in runs.chunk_by(|a, b| a.mac.is_some() == b.mac.is_some()) {
            if stretch.first().is_some_and(|run| run.mac.is_some()) {
                self.send_frames(stretch)?;
            } else {
                stretch.iter().try_for_each(|run| self.send_through_kernel(run))?;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counts { frames, through_kernel, unresolved, refused } = self.counts;
        vec![
            ("tx_frames", frames),
            ("tx_through_kernel", through_kernel),
            ("tx_unresolved", unresolved),
            ("tx_refused", refused),
        ]
    }
}

/// The headers of a frame, from the one that tells of segments on.
struct FrameHeaders {
    bytes: [u8; HEADERS_MAX],
    len: usize,
}

impl FrameHeaders {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn put(&mut self, header: &[u8]) {
        let end = self.len + header.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(header);
            self.len = end;
        }
    }

    /// Says that the frame is to be taken apart, and the UDP checksum of each packet to be completed, which the
    /// kernel insists on.
    fn announce_segments(&mut self, segment: usize, udp_at: usize, sum: u16) {
        const NEEDS_CHECKSUM: u8 = 1;
        const GSO_UDP_L4: u8 = 5;
        const CHECKSUM_AT: u16 = 6;
        let number = |n: usize| u16::try_from(n).unwrap_or(0).to_ne_bytes();
        let [h0, h1] = number(self.len - VNET_LEN);
        let [s0, s1] = number(segment);
        let [u0, u1] = number(udp_at - VNET_LEN);
        let [c0, c1] = CHECKSUM_AT.to_ne_bytes();
        let vnet = [NEEDS_CHECKSUM, GSO_UDP_L4, h0, h1, s0, s1, u0, u1, c0, c1];
        self.bytes.iter_mut().zip(vnet).for_each(|(place, byte)| *place = byte);
        let at = udp_at + usize::from(CHECKSUM_AT);
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// The sum over addresses, protocol and length that a UDP checksum begins with.
fn pseudo_sum(network: &[u8], udp: &[u8]) -> u16 {
    let addresses = if network.len() == Ipv6::LEN { 8.. } else { 12.. };
    let addresses = network.get(addresses).unwrap_or_default();
    let length = udp.get(4..6).unwrap_or_default();
    !checksum([addresses, length, &[0, crate::wire::PROTOCOL_UDP]])
}

/// Raw IP sockets, which send packets with the headers they have and find out where to.
#[derive(Debug)]
pub(super) struct IpSockets {
    v4: Socket,
    /// A machine may know no IPv6.
    v6: Option<Socket>,
    index: u32,
}

impl IpSockets {
    pub(super) fn new(interface: &str, index: u32) -> io::Result<Self> {
        // This protocol means that headers are included.
        let raw = Some(Protocol::from(libc::IPPROTO_RAW));
        let v4 = Socket::new(Domain::IPV4, Type::RAW, raw)?;
        v4.bind_device(Some(interface.as_bytes()))?;
        let v6 = Socket::new(Domain::IPV6, Type::RAW, raw).ok();
        if let Some(v6) = &v6 {
            v6.bind_device(Some(interface.as_bytes()))?;
        }
        Ok(Self { v4, v6, index })
    }

    fn send(&self, path: &Path, id: u16, packet: &[u8]) -> io::Result<()> {
        let headers = path.headers_with_id(packet.len(), id);
        let (ip, udp) = headers.as_bytes();
        let pieces = [IoSlice::new(ip), IoSlice::new(udp), IoSlice::new(packet)];
        match address_of(path.destination) {
            IpAddr::V4(address) => {
                self.v4.send_to_vectored(&pieces, &SocketAddr::from((address, 0)).into())?;
            }
            IpAddr::V6(address) => {
                let v6 = self.v6.as_ref().ok_or(io::ErrorKind::AddrNotAvailable)?;
                let scope = if address.is_unicast_link_local() { self.index } else { 0 };
                let to = SocketAddrV6::new(address, 0, 0, scope);
                v6.send_to_vectored(&pieces, &to.into())?;
            }
        }
        Ok(())
    }
}
