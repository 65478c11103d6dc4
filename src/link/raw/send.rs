//! The half of a raw link that sends: packets sealed, behind whole headers, trains as one frame.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use socket2::{Domain, Protocol, Socket, Type};

use super::super::Sender;
use super::super::interface::{Interface, address_of};
use super::super::sys::ring::{self, VNET_LEN};
use super::neighbor::Neighbors;
use crate::time::Instant;
use crate::wire::{
    Batch, Bits, EtherType, Ethernet, EthernetRepr, Ipv6, MacAddr, Path, PathHeaders, Prefixes,
    Train, Udp, Vlan, VlanRepr, checksum,
};

/// Maximum number of packets of one frame.
const SEGMENTS_MAX: usize = 128;

/// The most bytes of one frame, behind its UDP header.
const RUN_MAX: usize = 64_000;

/// Maximum number of frames that are sent with one system call.
const FRAMES_MAX: usize = ring::FRAMES_MAX;

/// The longest headers of a frame.
const HEADERS_MAX: usize = VNET_LEN + Ethernet::LEN + Vlan::LEN + Ipv6::LEN + Udp::LEN;

/// The half that sends.
#[derive(Debug)]
pub(in crate::link) struct RawSender {
    socket: Socket,
    mac: MacAddr,
    loopback: bool,
    vlan: Option<u16>,
    neighbors: Neighbors,
    /// Sockets for packets to neighbors that are not known yet.
    ip: Option<IpSockets>,
    /// ICRC prefixes.
    prefixes: Prefixes,
    /// The identification of the next packet.
    id: u16,
    /// The priority that frames have within this machine.
    priority: u8,
    /// Whether the kernel takes frames of several packets.
    trains: bool,
    /// Headers of the frames that are being sent; kept for their memory.
    headers: Vec<FrameHeaders>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    /// Packets that went through the kernel, which looked for the neighbor.
    through_kernel: u64,
    /// Packets to unknown neighbors.
    unresolved: u64,
    /// Packets that the network refused.
    refused: u64,
}

/// Packets of one length that go one way, but for the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    path: &'a Path,
    /// Hardware address, or `None` if the kernel is to find it.
    mac: Option<MacAddr>,
    /// The packets, with their ICRCs.
    bytes: &'a [u8],
    /// Offset in their train.
    start: usize,
    end: usize,
    /// Length of each packet.
    segment: usize,
    /// The identification of the first.
    id: u16,
}

impl<'a> Run<'a> {
    fn len(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.max(1))
    }

    /// Whether a further packet, of `len` bytes, may be its last, if there are at most so many
    /// together.
    fn takes(&self, len: usize, together: usize) -> bool {
        let now = self.end - self.start;
        let whole = now.is_multiple_of(self.segment.max(1));
        whole && len <= self.segment && now + len <= RUN_MAX && now / self.segment.max(1) < together
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
        neighbors: Neighbors,
        ip: Option<IpSockets>,
    ) -> Self {
        Self {
            socket,
            mac: interface.mac.unwrap_or(MacAddr([0; 6])),
            loopback: interface.loopback,
            vlan,
            neighbors,
            ip,
            prefixes: Prefixes::new(&Path::NOWHERE),
            id: 0,
            priority: 0,
            trains: true,
            headers: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Seals a train, and cuts it into runs.
    fn seal<'a>(&mut self, now: Instant, mut train: Train<'a>, runs: &mut Vec<Run<'a>>) {
        let path = train.path;
        let mac = self.neighbor(now, path);
        let together = if self.trains && mac.is_some() { SEGMENTS_MAX } else { 1 };
        let (first, mut at, is_ipv4) = (runs.len(), 0, path.is_ipv4());
        self.prefixes.set_path(path);
        train.for_each_mut(|packet| {
            let (id, len) = (self.id, packet.len());
            self.id = id.wrapping_add(1);
            let prefix = self.prefixes.of(len);
            if is_ipv4 {
                prefix.with_identification(id).seal(packet);
            } else {
                prefix.seal(packet);
            }
            let start = at;
            at += len;
            match runs.get_mut(first..).and_then(|runs| runs.last_mut()) {
                Some(run) if run.takes(len, together) => run.end = at,
                _ => runs.push(Run { path, mac, bytes: &[], start, end: at, segment: len, id }),
            }
        });
        let bytes: &'a [u8] = train.bytes;
        for run in runs.iter_mut().skip(first) {
            run.bytes = bytes.get(run.start..run.end).unwrap_or_default();
        }
    }

    /// Seals a train of one packet, which is a run.
    fn seal_one<'a>(&mut self, now: Instant, mut train: Train<'a>) -> Run<'a> {
        let (path, id) = (train.path, self.id);
        self.id = id.wrapping_add(1);
        let mac = self.neighbor(now, path);
        self.prefixes.set_path(path);
        train.for_each_mut(|packet| {
            let prefix = self.prefixes.of(packet.len());
            if path.is_ipv4() { prefix.with_identification(id) } else { prefix }.seal(packet);
        });
        let bytes: &'a [u8] = train.bytes;
        Run { path, mac, bytes, start: 0, end: bytes.len(), segment: bytes.len(), id }
    }

    /// Returns the hardware address for packets of a path, or `None` if the kernel is to find it.
    fn neighbor(&mut self, now: Instant, path: &Path) -> Option<MacAddr> {
        match self.loopback.then_some(self.mac) {
            // The kernel gives those on this machine their copies.
            None if self.ip.is_some() && path.destination.is_multicast() => None,
            own => own.or_else(|| self.neighbors.find(now, path.destination)),
        }
    }

    /// Gives what is sent next the priority of a service level.
    #[cold]
    fn set_priority(&mut self, level: u8) {
        self.priority = level;
        let ip = self.ip.iter().flat_map(|ip| [Some(&ip.v4), ip.v6.as_ref()]).flatten();
        for socket in ip.chain([&self.socket]) {
            // There are eight, as on a VLAN. Who may open these sockets may set any.
            let priority = i32::from(level & 7);
            let _ = ring::set_option(socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority);
        }
    }

    /// Sends a train.
    pub(in crate::link) fn send_train(&mut self, now: Instant, train: Train<'_>) -> io::Result<()> {
        let mut runs = Vec::new();
        self.seal(now, train, &mut runs);
        self.send_runs(&runs)
    }

    /// Sends runs. Those that go one way stay in order: whole stretches go by frames, or through
    /// the kernel.
    fn send_runs(&mut self, runs: &[Run<'_>]) -> io::Result<()> {
        let kind = |run: &Run<'_>| (run.mac.is_some(), run.path.sl);
        let mut stretches = runs.chunk_by(|a, b| kind(a) == kind(b));
        stretches.try_for_each(|stretch| self.send_stretch(stretch))
    }

    /// Sends runs of one service level whose neighbors are known, or runs whose are not.
    fn send_stretch(&mut self, runs: &[Run<'_>]) -> io::Result<()> {
        let Some(first) = runs.first() else { return Ok(()) };
        if first.path.sl != self.priority {
            self.set_priority(first.path.sl);
        }
        if first.mac.is_some() {
            self.send_frames(runs)
        } else {
            runs.iter().try_for_each(|run| self.send_through_kernel(run))
        }
    }

    /// Sends runs whose neighbors are known.
    fn send_frames(&mut self, mut runs: &[Run<'_>]) -> io::Result<()> {
        while let Some((first, rest)) = runs.split_first() {
            let some = runs.get(..FRAMES_MAX).unwrap_or(runs);
            match self.send_some(some) {
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

    /// Sends as many runs as one system call takes; an error speaks of the first.
    fn send_some(&mut self, runs: &[Run<'_>]) -> io::Result<usize> {
        if let [run] = runs {
            let headers = self.headers(run);
            let frame = [[IoSlice::new(headers.bytes()), IoSlice::new(run.bytes)]];
            return ring::send_frames(&self.socket, &frame);
        }
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        headers.extend(runs.iter().map(|run| self.headers(run)));
        let mut pieces = [[IoSlice::new(&[]); 2]; FRAMES_MAX];
        for (pieces, (headers, run)) in pieces.iter_mut().zip(headers.iter().zip(runs)) {
            *pieces = [IoSlice::new(headers.bytes()), IoSlice::new(run.bytes)];
        }
        let sent = ring::send_frames(&self.socket, pieces.get(..runs.len()).unwrap_or_default());
        self.headers = headers;
        sent
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

    /// Leaves packets to the kernel, which looks for the neighbor.
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

/// Whether an error means that the interface is gone for good.
pub(in crate::link) fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EBADF))
}

impl Sender for RawSender {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        if batch.len() == 1 {
            let only = batch.trains_mut().next().map(|train| self.seal_one(now, train));
            return only.map_or(Ok(()), |run| self.send_stretch(&[run]));
        }
        let mut runs = Vec::with_capacity(batch.len());
        for train in batch.trains_mut() {
            self.seal(now, train, &mut runs);
        }
        self.send_runs(&runs)
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
#[derive(Debug)]
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

    /// Says that the frame is to be taken apart, and the UDP checksum of each packet to be
    /// completed, which the kernel insists on.
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
pub(in crate::link) struct IpSockets {
    v4: Socket,
    /// A machine may know no IPv6.
    v6: Option<Socket>,
    index: u32,
}

impl IpSockets {
    pub(in crate::link) fn new(interface: &str, index: u32) -> io::Result<Self> {
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

    pub(in crate::link) fn send(&self, path: &Path, id: u16, packet: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::PATH;

    #[test]
    fn a_run_ends_with_a_shorter_packet_or_when_it_is_full() {
        let run = |segment: usize, end: usize| Run {
            path: &PATH,
            mac: None,
            bytes: &[],
            start: 0,
            end,
            segment,
            id: 0,
        };
        assert!(run(1000, 2000).takes(1000, 128));
        assert!(run(1000, 2000).takes(20, 128));
        assert!(!run(1000, 2000).takes(1004, 128), "longer");
        assert!(!run(1000, 2020).takes(20, 128), "behind a shorter one");
        assert!(!run(1000, 2000).takes(1000, 2), "too many");
        assert!(!run(1000, 64_000).takes(1000, 128), "too long");
    }

    #[test]
    fn a_run_is_its_packets() {
        let bytes: Vec<u8> = (0..50).collect();
        let (start, end) = (0, 50);
        let run =
            Run { path: &PATH, mac: None, bytes: &bytes, start, end, segment: 20, id: 0xffff };
        let singles: Vec<_> = run.singles().map(|run| (run.id, run.bytes[0], run.len())).collect();
        assert_eq!(run.len(), 3);
        assert_eq!(singles, [(0xffff, 0, 1), (0, 20, 1), (1, 40, 1)]);
    }
}
