//! The sending half: packets are sent in runs that the kernel segments (UDP GSO); each ICRC is for
//! the IP header that its segment will have.

use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;

use super::bind::{HOP_LIMIT, unbound_socket};
use super::priority::Priorities;
use super::shared_memory::{SharedNeighbors, ToNeighbors};
use crate::link::Sender;
use crate::link::share::{Backlog, Put};
use crate::link::sys::socket::{self, Control, Name, Outgoing};
use crate::time::Instant;
use crate::wire::batch::Outbound;
use crate::wire::{Batch, Bth, Gid, Path, Prefixes, Qpn, ROCE_PORT, flip_icrc, view};

/// Maximum number of segments of a GSO send. Newer kernels allow twice as many, which gains
/// nothing.
const SEGMENTS_MAX: usize = 64;

/// Maximum number of bytes of a run: that of a UDP datagram.
const RUN_MAX: usize = 65_507;

/// Time to wait for room in the send buffer before packets count as lost.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Room in shared memory below which packets are held back: a quarter of a ring, which its consumer
/// empties in the time that it takes to fill the next quarter.
const ROOM_MIN: usize = 64 << 10;

/// Time after which held back packets are tried again.
const ROOM_INTERVAL: Duration = Duration::from_micros(2);

pub(super) struct UdpSender {
    local: SocketAddr,
    /// The index of the interface.
    scope: u32,
    gid: Gid,
    sockets: Sockets,
    prefixes: Prefixes,
    /// Runs that are being sent; kept for its capacity.
    runs: Vec<Run>,
    /// Runs that the kernel did not segment.
    uncut: Vec<usize>,
    /// Whether the kernel segments runs.
    cuts: bool,
    priorities: Priorities,
    /// NICs to which packets go through shared memory.
    neighbors: Option<SharedNeighbors>,
    /// Packets that wait for room in shared memory.
    backlog: Backlog,
    /// Number of bytes that there is room for in shared memory, and when that was so.
    room: usize,
    sent_at: Instant,
    /// Whether packets to neighbors get an ICRC, too.
    seals_all: bool,
    counters: Counters,
}

/// Packets that are sent by one call: of one length, except that the last may be shorter.
struct Run {
    /// Range of its packets in the batch.
    start: usize,
    end: usize,
    /// Length of all packets but the last.
    length: usize,
    packets: usize,
    /// The destination QPN of all of them: where several processes share an address, the kernel
    /// looks at that of the first alone.
    qpn: Qpn,
    socket: usize,
    path: Path,
    to: Name,
    control: Control,
}

impl Run {
    /// Whether a packet of this length may follow that begins at `at`.
    fn takes(&self, at: usize, len: usize, qpn: Qpn) -> bool {
        at == self.end
            && self.packets < SEGMENTS_MAX
            && qpn == self.qpn
            && len <= self.length
            && self.end - self.start == self.packets * self.length
            && self.end - self.start + len <= RUN_MAX
    }
}

#[derive(Default)]
struct Counters {
    offered: u64,
    calls: u64,
    waits: u64,
    uncut: u64,
    refused: [u64; REFUSALS.len()],
}

/// Errors with which the kernel refuses a packet, and their counters. The last is for any other
/// error.
const REFUSALS: [(&str, &[i32]); 10] = [
    ("refused_too_long", &[libc::EMSGSIZE]),
    ("refused_unreachable", &[libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ENETDOWN, libc::ENODEV]),
    ("refused_forbidden", &[libc::EPERM, libc::EACCES]),
    ("refused_by_peer", &[libc::ECONNREFUSED]),
    ("refused_address", &[libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT, libc::EINVAL]),
    ("refused_no_memory", &[libc::ENOBUFS, libc::ENOMEM]),
    ("refused_no_room", &[libc::EAGAIN]),
    ("refused_foreign_source", &[]),
    ("refused_unmapped", &[]),
    ("refused_otherwise", &[]),
];

/// Index of `refused_foreign_source`.
const FOREIGN_SOURCE: usize = 7;

/// Index of `refused_unmapped`.
const UNMAPPED: usize = 8;

/// Sockets to send from: the one on port 4791, and others, so that flows have different source
/// ports.
struct Sockets {
    main: Arc<Socket>,
    others: Vec<Other>,
    /// Flow of the last lookup, with its socket and port: saves two divisions a packet.
    last: Option<(u16, (usize, u16))>,
}

enum Other {
    /// No flow uses it yet. It was created together with the main socket, to be in the same network
    /// namespace whichever thread sends; it is bound to a port when it is needed.
    Unbound(Socket),
    /// Bound to this port.
    Bound(Socket, u16),
    /// The port was in use: its flows use the main socket.
    Taken,
}

impl Sockets {
    /// Returns the socket of a flow, and its port. All packets of a flow use the same socket, so
    /// they stay in order. If there are more flows than sockets, they are distributed evenly.
    #[inline]
    fn of_flow(&mut self, source_port: u16, local: SocketAddr) -> (usize, u16) {
        match self.last {
            Some((flow, found)) if flow == source_port => found,
            _ => {
                let found = self.look_up(source_port, local);
                self.last = Some((source_port, found));
                found
            }
        }
    }

    fn look_up(&mut self, source_port: u16, local: SocketAddr) -> (usize, u16) {
        let index = usize::from(source_port).checked_rem(self.others.len()).unwrap_or(0);
        let Some(other) = self.others.get_mut(index).filter(|_| source_port >= 0xc000) else {
            return (0, ROCE_PORT);
        };
        if let Other::Unbound(_) = other
            && let Other::Unbound(socket) = std::mem::replace(other, Other::Taken)
        {
            let mut local = local;
            local.set_port(source_port);
            if socket.bind(&local.into()).is_ok() {
                *other = Other::Bound(socket, source_port);
            }
        }
        (if matches!(other, Other::Bound(..)) { index + 1 } else { 0 }, self.port_of(source_port))
    }

    /// Returns the present source port of a flow.
    fn port_of(&self, source_port: u16) -> u16 {
        let index = usize::from(source_port).checked_rem(self.others.len()).unwrap_or(0);
        match self.others.get(index).filter(|_| source_port >= 0xc000) {
            Some(Other::Bound(_, port)) => *port,
            _ => ROCE_PORT,
        }
    }

    fn fd(&self, index: usize) -> BorrowedFd<'_> {
        match index.checked_sub(1).and_then(|index| self.others.get(index)) {
            Some(Other::Bound(socket, _)) => socket.as_fd(),
            _ => self.main.as_fd(),
        }
    }
}

/// Opens a socket that receives nothing.
fn sending_socket(local: SocketAddr, interface: u32) -> io::Result<Socket> {
    let socket = unbound_socket(local, interface)?;
    socket.set_recv_buffer_size(0)?;
    Ok(socket)
}

impl UdpSender {
    pub(super) fn new(
        main: Arc<Socket>,
        local: SocketAddr,
        scope: u32,
        gid: Gid,
        ports: usize,
    ) -> Self {
        // As large as the system allows.
        let others = (0..ports).map_while(|_| sending_socket(local, scope).ok());
        let others = others.map(Other::Unbound);
        Self {
            local,
            scope,
            gid,
            sockets: Sockets { main, others: others.collect(), last: None },
            prefixes: Prefixes::new(&Path::NOWHERE),
            runs: Vec::new(),
            uncut: Vec::new(),
            cuts: true,
            priorities: Priorities::default(),
            neighbors: None,
            backlog: Backlog::None,
            room: usize::MAX,
            sent_at: Instant::ZERO,
            seals_all: false,
            counters: Counters::default(),
        }
    }

    pub(super) fn with_neighbors(mut self, neighbors: Option<SharedNeighbors>) -> Self {
        self.neighbors = neighbors;
        self
    }

    /// Puts the packets of a batch that are for neighbors into their rings, divides the others into
    /// runs, and adds to each the ICRC for its position in the run.
    fn seal(&mut self, batch: &mut Batch, mut neighbors: Option<&mut ToNeighbors<'_>>) {
        let Self { sockets, prefixes, runs, priorities, counters, .. } = self;
        let (cuts, seals_all, scope) = (self.cuts, self.seals_all, self.scope);
        runs.clear();
        let mut end = 0;
        for mut train in batch.trains_mut() {
            let (start, len) = (end, train.bytes.len());
            end += len;
            if train.path.source != self.gid {
                counters.refuse(FOREIGN_SOURCE, train.len());
                continue;
            }
            let (socket, source_port) = sockets.of_flow(train.path.source_port, self.local);
            let path = Path { source_port, ..*train.path };
            if seals_all {
                prefixes.set_path(&path);
            }
            // Packets to neighbors need none of it.
            let mut through_kernel: Option<Way> = None;
            let refused = &mut counters.refused;
            let (mut at, first) = (start, runs.len());
            train.for_each_outbound(|outbound| {
                let len = outbound.bytes.len();
                let (here, behind) = (at, at + len);
                at = behind;
                let qpn = view::<Bth>(outbound.bytes, 0).map_or(Qpn::SMI, Bth::dest_qp);
                let put =
                    neighbors.as_mut().and_then(|neighbors| neighbors.put(&path, qpn, &outbound));
                if let Some(put) = put {
                    if put == Put::Unmapped {
                        refused[UNMAPPED] += 1;
                    } else if seals_all {
                        let Outbound { bytes: packet, icrc_flips: flips, .. } = outbound;
                        prefixes.of(len).seal(packet);
                        flip_icrc(packet, flips);
                    }
                    return;
                }
                let way = through_kernel.get_or_insert_with(|| {
                    prefixes.set_path(&path);
                    let mut way = Way::new(&path, scope);
                    priorities.put(&path, &mut way.control);
                    way
                });
                let run = runs.get_mut(first..).and_then(|runs| runs.last_mut());
                let run = run.filter(|run| cuts && run.takes(here, len, qpn));
                let prefix = prefixes.of(len);
                let prefix = if way.numbered {
                    let place = run.as_ref().map_or(0, |run| run.packets);
                    prefix.with_identification(u16::try_from(place).unwrap_or(0))
                } else {
                    prefix
                };
                if outbound.seal(&prefix).is_none() {
                    refused[UNMAPPED] += 1;
                    return;
                }
                match run {
                    Some(run) => {
                        run.packets += 1;
                        run.end = behind;
                    }
                    None => runs.push(Run {
                        start: here,
                        end: behind,
                        length: len,
                        packets: 1,
                        qpn,
                        socket,
                        path,
                        to: way.to,
                        control: way.control,
                    }),
                }
            });
        }
        for run in runs.iter_mut().filter(|run| run.packets > 1) {
            let length = u16::try_from(run.length).unwrap_or(u16::MAX);
            run.control.put(libc::SOL_UDP, libc::UDP_SEGMENT, &length.to_ne_bytes());
        }
    }

    /// Sends the runs that go through one socket.
    fn flush(&mut self, socket: usize, bytes: &mut [u8]) -> io::Result<()> {
        let mine = self.runs.iter().enumerate().filter(|(_, run)| run.socket == socket);
        let messages = mine.clone().map(|(_, run)| Outgoing {
            to: &run.to,
            control: &run.control,
            bytes: bytes.get(run.start..run.end).unwrap_or_default(),
        });
        self.uncut.clear();
        let (fd, counters, uncut) = (self.sockets.fd(socket), &mut self.counters, &mut self.uncut);
        hand_over(fd, counters, messages, |counters, index, error| {
            let Some((at, run)) = mine.clone().nth(index) else { return };
            match error.raw_os_error() {
                // Errors of a kernel or driver that does not segment.
                Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP) if run.packets > 1 => {
                    uncut.push(at)
                }
                _ => counters.refuse(reason(error), run.packets),
            }
        })?;
        for index in 0..self.uncut.len() {
            self.send_apart(index, bytes)?;
        }
        Ok(())
    }

    /// Sends the packets of a run that the kernel did not segment one by one. If that succeeds, GSO
    /// is not used any more.
    fn send_apart(&mut self, index: usize, bytes: &mut [u8]) -> io::Result<()> {
        let Some(run) = self.uncut.get(index).and_then(|&index| self.runs.get(index)) else {
            return Ok(());
        };
        let bytes = bytes.get_mut(run.start..run.end).unwrap_or_default();
        self.prefixes.set_path(&run.path);
        for (place, packet) in (0..).zip(bytes.chunks_mut(run.length)) {
            let prefix = self.prefixes.of(packet.len());
            let is_ipv4 = run.path.is_ipv4();
            let before = if is_ipv4 { prefix.with_identification(place) } else { prefix };
            // An ICRC that the fault injector made wrong stays wrong.
            let wrong = before.difference(packet).unwrap_or(0).swap_bytes();
            prefix.seal(packet);
            flip_icrc(packet, wrong);
        }
        let mut way = Way::new(&run.path, self.scope);
        self.priorities.put(&run.path, &mut way.control);
        let (to, control) = (&way.to, &way.control);
        let messages = bytes.chunks(run.length).map(|bytes| Outgoing { to, control, bytes });
        let (fd, counters, mut refused) = (self.sockets.fd(run.socket), &mut self.counters, 0);
        hand_over(fd, counters, messages, |counters, _, error| {
            refused += 1;
            counters.refuse(reason(error), 1);
        })?;
        self.counters.uncut += 1;
        self.cuts &= refused == run.packets;
        Ok(())
    }
}

impl Sender for UdpSender {
    fn source_port(&self, path: &Path) -> u16 {
        self.sockets.port_of(path.source_port)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.backlog {
            Backlog::None if self.room < ROOM_MIN => {
                Some(self.sent_at.saturating_add(ROOM_INTERVAL))
            }
            Backlog::None => None,
            Backlog::Moving { again } | Backlog::Stalled { again } => Some(again),
        }
    }

    fn takes_references(&self) -> bool {
        // What is not mapped is refused by the engine, whose queue pair learns of it, once it
        // copies payload itself.
        self.counters.refused[UNMAPPED] == 0
    }

    fn seal_all(&mut self) {
        self.seals_all = true;
    }

    fn room(&self) -> usize {
        match self.backlog {
            Backlog::Moving { .. } => 0,
            _ if self.room < ROOM_MIN => 0,
            _ => self.room,
        }
    }

    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        self.counters.offered += batch.len() as u64;
        match self.neighbors.take() {
            Some(shared) => {
                let mut neighbors = ToNeighbors::new(now, &shared);
                self.seal(batch, Some(&mut neighbors));
                (self.backlog, self.room) = neighbors.finish();
                self.sent_at = now;
                self.neighbors = Some(shared);
            }
            None => self.seal(batch, None),
        }
        if self.runs.is_empty() {
            return Ok(());
        }
        let bytes = batch.bytes_mut();
        // Mostly all runs go through one socket: looking for the others takes 600 instructions.
        let mut next = self.runs.iter().map(|run| run.socket).min();
        while let Some(socket) = next {
            self.flush(socket, bytes)?;
            next = self.runs.iter().map(|run| run.socket).filter(|other| *other > socket).min();
        }
        Ok(())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        let refused: u64 = counters.refused.iter().sum();
        let ports = self.sockets.others.iter().filter(|other| matches!(other, Other::Bound(..)));
        let mut all = vec![
            ("packets_sent", counters.offered - refused),
            ("send_calls", counters.calls),
            ("send_waits", counters.waits),
            ("runs_not_cut", counters.uncut),
            ("source_ports", ports.count() as u64 + 1),
        ];
        if let Some(neighbors) = &self.neighbors {
            all.extend(ToNeighbors::new(Instant::ZERO, neighbors).counters());
        }
        all.extend(REFUSALS.iter().zip(counters.refused).map(|((name, _), count)| (*name, count)));
        all
    }
}

/// Sends messages in order; waits while there is no room. A message that the kernel refuses is
/// reported, and lost.
fn hand_over<'a>(
    fd: BorrowedFd<'_>,
    counters: &mut Counters,
    mut messages: impl Iterator<Item = Outgoing<'a>> + Clone,
    mut refused: impl FnMut(&mut Counters, usize, &io::Error),
) -> io::Result<()> {
    let mut done = 0;
    while messages.clone().next().is_some() {
        counters.calls += 1;
        let passed = match socket::send(fd, messages.clone()) {
            Ok(sent) => sent.max(1),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => 0,
                Some(libc::EAGAIN) => {
                    counters.waits += 1;
                    let room = socket::wait_for_room(fd, ROOM_TIMEOUT)?;
                    if !room {
                        refused(counters, done, &error);
                    }
                    usize::from(!room)
                }
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(error),
                _ => {
                    refused(counters, done, &error);
                    1
                }
            },
        };
        done += passed;
        if let Some(last) = passed.checked_sub(1) {
            messages.nth(last);
        }
    }
    Ok(())
}

/// Returns the counter of an error.
fn reason(error: &io::Error) -> usize {
    let code = error.raw_os_error().unwrap_or(0);
    REFUSALS.iter().position(|(_, codes)| codes.contains(&code)).unwrap_or(REFUSALS.len() - 1)
}

impl Counters {
    fn refuse(&mut self, reason: usize, packets: usize) {
        if let Some(refused) = self.refused.get_mut(reason) {
            *refused += packets as u64;
        }
    }
}

/// Destination of a run.
struct Way {
    to: Name,
    /// Traffic class and hop limit, if they differ from those of the socket.
    control: Control,
    /// Whether its IP headers have an identification.
    numbered: bool,
}

impl Way {
    fn new(path: &Path, scope: u32) -> Self {
        let (to, numbered) = match path.destination.to_ipv4() {
            Some(address) => (SocketAddr::new(address.into(), ROCE_PORT), true),
            None => (of_ipv6(path.destination, scope), false),
        };
        let (level, class, hops) = if numbered {
            (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        };
        let mut control = Control::new();
        let mut put = |kind, value: u8| control.put(level, kind, &i32::from(value).to_ne_bytes());
        if path.traffic_class != 0 {
            put(class, path.traffic_class);
        }
        // A hop limit of 0 means that none was requested: such a packet would not leave the host.
        if !matches!(path.hop_limit, 0 | HOP_LIMIT) {
            put(hops, path.hop_limit);
        }
        Self { to: Name::new(to), control, numbered }
    }
}

/// Returns the scope of an IPv6 GID: link-local and multicast addresses are on the interface of the
/// link.
fn of_ipv6(gid: Gid, scope: u32) -> SocketAddr {
    SocketAddrV6::new(gid.0.into(), ROCE_PORT, 0, scope).into()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::link::Receiver;
    use crate::link::udp::bind::{bound_socket, prepare_to_receive};
    use crate::link::udp::receive::UdpReceiver;
    use crate::link::udp::{Groups, IcrcCheck};
    use crate::wire::{Bits, Ipv4};

    #[test]
    fn packets_go_one_by_one_where_the_kernel_cuts_no_runs() {
        let addresses = [Ipv4Addr::new(127, 47, 100, 1), Ipv4Addr::new(127, 47, 100, 2)];
        let [here, there] = addresses.map(|address| SocketAddr::new(address.into(), ROCE_PORT));
        let [own, peer] = addresses.map(Gid::from);
        let (out, into) = (bound_socket(here, 0).unwrap(), bound_socket(there, 0).unwrap());
        // Without UDP checksums the kernel refuses to segment.
        socket::set_option(out.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let room = prepare_to_receive(&into, there, 1 << 20).unwrap();
        let mut sender = UdpSender::new(Arc::new(out), here, 0, own, 0);
        let mut receiver = {
            let groups = Groups::new(there, 0, 1 << 20);
            UdpReceiver::new(Arc::new(into), peer, IcrcCheck::Verify, room, groups).unwrap()
        };
        let path = Path {
            source: own,
            destination: peer,
            source_port: 0xc000,
            traffic_class: 1,
            hop_limit: 3,
            sl: 0,
            flow_label: Bits::ZERO,
        };
        for round in 1..=2 {
            let mut batch = Batch::new(100);
            (0..99).for_each(|_| assert!(batch.push(&path, &[round; 64])));
            assert!(batch.push(&path, &[round; 32]));
            sender.send(Instant::ZERO, &mut batch).unwrap();
            let mut count = 0;
            while receiver.receive(Instant::ZERO).unwrap() > 0 {
                receiver.for_each(&mut |received| {
                    let header = view::<Ipv4>(received.network, 0).unwrap();
                    assert_eq!((header.id(), header.ttl(), received.ecn), (0, 3, 1));
                    count += 1;
                });
            }
            assert_eq!(count, 100);
        }
        assert_eq!(sender.counters.uncut, 2, "the two runs of the first batch");
        assert_eq!(sender.counters().first(), Some(&("packets_sent", 200)));
    }

    #[test]
    fn a_run_ends_with_a_shorter_packet_or_when_it_is_full() {
        let to = Name::new(SocketAddr::from(([192, 0, 2, 1], ROCE_PORT)));
        let path = Path {
            source: Gid([0; 16]),
            destination: Gid([0; 16]),
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            sl: 0,
            flow_label: Bits::ZERO,
        };
        let run = |length, packets, bytes: usize| Run {
            start: 100,
            end: 100 + bytes,
            length,
            packets,
            qpn: Qpn::new(5),
            socket: 0,
            path,
            to,
            control: Control::new(),
        };
        let qpn = Qpn::new(5);
        assert!(run(1040, 1, 1040).takes(100 + 1040, 1040, qpn));
        assert!(!run(1040, 1, 1040).takes(100 + 1040, 1040, Qpn::new(6)), "of another queue pair");
        assert!(run(1040, 1, 1040).takes(100 + 1040, 20, qpn));
        assert!(!run(1040, 1, 1040).takes(100 + 1040, 1044, qpn), "a longer one");
        assert!(!run(1040, 2, 1060).takes(100 + 1060, 20, qpn), "after a shorter one");
        assert!(run(16, 63, 63 * 16).takes(100 + 63 * 16, 16, qpn));
        assert!(!run(16, 64, 64 * 16).takes(100 + 64 * 16, 16, qpn), "64 are enough");
        assert!(
            !run(4112, 15, 15 * 4112).takes(100 + 15 * 4112, 4112, qpn),
            "longer than a datagram"
        );
        assert!(run(4112, 15, 15 * 4112).takes(100 + 15 * 4112, 3827, qpn), "just as long");
    }
}
