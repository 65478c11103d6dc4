//! Packets to and from NICs of this user on this machine, through rings in shared memory.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::bind::HOP_LIMIT;
use super::interface_of;
use super::receive::{Ancillary, Arrival};
use crate::link::interface::address_of;
use crate::link::share::{
    Backlog, Bytes, Member, Neighbors, Offer, Put, RecordHead, RingAnswer, RingRequest, Rings,
    Source, Visit,
};
use crate::memory::SharedBytes;
use crate::time::Instant;
use crate::wire::batch::Outbound;
use crate::wire::{Gid, ICRC_ROOM, Path, Qpn, Received};

/// Rings to neighbors: the sending half puts packets in, the receiving half opens and closes them.
pub(super) type SharedNeighbors = Arc<Mutex<Neighbors>>;

/// Time after the last packet from a ring, or from the kernel, for which more are expected there.
const ACTIVE: Duration = Duration::from_micros(50);

/// Shortest and longest interval at which the kernel is asked while packets come from rings alone:
/// a system call takes longer than all else that a receive does. It doubles while nothing comes.
const KERNEL_INTERVAL_MIN: Duration = Duration::from_micros(5);
const KERNEL_INTERVAL_MAX: Duration = Duration::from_micros(40);

/// Maximum number of visits whose answers are awaited.
const VISITS_MAX: usize = 64;

/// Sources of packets that a receive polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Kernel,
    Rings,
    Both,
}

/// The receiving half's part of shared memory.
pub(super) struct SharedMemory {
    own: Gid,
    neighbors: SharedNeighbors,
    rings: Rings,
    visits: Vec<(u32, Visit)>,
    next_visit: u32,
    activity: Activity,
    /// Common facts of the last packets.
    last: RefCell<Option<Common>>,
}

/// Times by which a receive chooses its sources.
#[derive(Debug, Default)]
struct Activity {
    /// Time until which more packets are expected from rings, and from the kernel.
    rings_until: Instant,
    kernel_until: Instant,
    /// Time at which the kernel is asked next, and the interval after that.
    ask_at: Instant,
    interval: Duration,
    /// Whether the last receive polled the rings alone, and found nothing.
    is_idle: bool,
}

impl Activity {
    /// Whether the kernel is to be asked at `now`.
    #[inline]
    fn asks_kernel(&self, now: Instant) -> bool {
        now >= self.rings_until || now < self.kernel_until || now >= self.ask_at
    }

    /// The kernel is asked at `now`.
    #[inline]
    fn ask_kernel(&mut self, now: Instant) {
        self.interval = (self.interval * 2).clamp(KERNEL_INTERVAL_MIN, KERNEL_INTERVAL_MAX);
        self.ask_at = now.saturating_add(self.interval);
    }

    /// Packets came from the kernel at `now`.
    #[inline]
    fn came_from_kernel(&mut self, now: Instant) {
        (self.kernel_until, self.interval) = (now.saturating_add(ACTIVE), KERNEL_INTERVAL_MIN);
    }
}

/// Common facts of packets from a ring.
struct Common {
    from: Gid,
    to: Gid,
    /// With the length of one of them.
    head: RecordHead,
    arrival: Arrival,
    /// IP headers of packets that came lately.
    headers: [HeaderOfLength; HEADERS],
}

/// Number of IP headers that are kept, by the length of their packets: a SEND and the ACKs beside
/// it have one each.
const HEADERS: usize = 4;

/// IP header of packets of one length.
#[derive(Clone, Copy)]
struct HeaderOfLength {
    /// Length from the BTH through the ICRC, or 0.
    packet_len: u16,
    len: usize,
    bytes: [u8; 40],
}

fn lock(neighbors: &Mutex<Neighbors>) -> MutexGuard<'_, Neighbors> {
    neighbors.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedMemory {
    pub(super) fn new(own: Gid, neighbors: SharedNeighbors, rings: Rings) -> Self {
        Self {
            own,
            neighbors,
            rings,
            visits: Vec::new(),
            next_visit: 0,
            activity: Activity::default(),
            last: RefCell::default(),
        }
    }

    pub(super) fn counters(&self) -> [(&'static str, u64); 4] {
        self.rings.counters()
    }

    /// Returns the number of packets from rings whose ICRC was wrong.
    pub(super) fn bad_icrc(&self) -> u64 {
        self.rings.bad_icrc()
    }

    /// Adopts a ring that a neighbor offers.
    pub(super) fn adopt(&mut self, offer: Offer, source: Gid) {
        self.rings.adopt(offer, source);
    }

    /// The NIC shares its address from now on.
    pub(super) fn share_own(&self, qpns: crate::verbs::QpnShare) {
        lock(&self.neighbors).share_own(qpns);
    }

    /// Returns the sources that a receive at `now` polls.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant) -> Turn {
        if self.rings.is_empty() {
            return Turn::Kernel;
        }
        let has_new = self.rings.look_at_new();
        if !self.activity.asks_kernel(now) && !has_new {
            return Turn::Rings;
        }
        self.activity.ask_kernel(now);
        Turn::Both
    }

    /// Whether a receive is likely to find something: false if the last one polled the rings alone
    /// and found nothing, and there is still nothing in them.
    #[inline]
    pub(super) fn may_receive(&self) -> bool {
        !self.activity.is_idle || self.rings.has_packets()
    }

    /// Takes packets from the rings, instead of those of the call before; returns their number.
    /// `from_kernel` is the number of packets that this receive got from the kernel, if it is the
    /// kernel's `turn`, too.
    ///
    /// A neighbor sends through the kernel until its ring is adopted. So the first packets of a
    /// ring are taken once the kernel, asked after they were there, has none: they would overtake
    /// others, which UC takes for a loss.
    #[inline]
    pub(super) fn take(&mut self, now: Instant, turn: Turn, from_kernel: usize) -> usize {
        if from_kernel > 0 {
            self.activity.came_from_kernel(now);
        }
        let count = self.rings.take(from_kernel == 0);
        if count > 0 {
            self.activity.rings_until = now.saturating_add(ACTIVE);
        }
        self.activity.is_idle = count == 0 && turn == Turn::Rings;
        count
    }

    /// Passes each packet that was taken to `each`, as it arrives at the address `to`.
    #[inline]
    pub(super) fn for_each(&self, to: Gid, each: &mut dyn FnMut(&Received<'_>)) {
        let mut last = self.last.borrow_mut();
        self.rings.for_each(|from, head, packet| {
            Common::of(&mut last, from, to, head).pass(packet, None, each);
        });
    }

    /// Passes each packet that was taken to `each`, as [`for_each`](Self::for_each) does, but with
    /// payload where it is.
    #[inline]
    pub(super) fn for_each_apart(&self, to: Gid, each: &mut dyn FnMut(&Received<'_>)) {
        let mut last = self.last.borrow_mut();
        self.rings.for_each_apart(|from, head, packet, payload| {
            Common::of(&mut last, from, to, head).pass(packet, payload, each);
        });
    }

    /// Announces that the NIC sleeps until a bell rings; returns whether it may.
    pub(super) fn announce_sleep(&mut self) -> bool {
        self.rings.announce_sleep()
    }

    /// Ends the sleep that was announced: neighbors need not wake the NIC.
    pub(super) fn end_sleep(&self) {
        self.rings.end_sleep();
    }

    /// Serves neighbors, and the sending half.
    pub(super) fn serve(&mut self, source: Source, member: &Member) {
        match source {
            Source::Bell(number) => self.rings.silence(number),
            Source::Producer(number) => lock(&self.neighbors).closed(number),
            Source::Request => {
                let requests = lock(&self.neighbors).take_requests();
                requests.into_iter().for_each(|request| self.serve_request(request, member));
            }
            Source::Visit(number) => {
                let its = |(visit, _): &(u32, Visit)| *visit == number;
                if let Some(at) = self.visits.iter().position(its) {
                    let (_, visit) = self.visits.swap_remove(at);
                    let _ = member.events().remove(visit.fd());
                    self.answer(visit.request(), visit.finish(self.own));
                }
            }
            Source::Listener | Source::Gsi | Source::Queue => {}
        }
    }

    fn answer(&self, request: RingRequest, answer: RingAnswer) {
        lock(&self.neighbors).answer(request, answer);
    }

    fn serve_request(&mut self, request: RingRequest, member: &Member) {
        let has_room = lock(&self.neighbors).has_room_for_ring() && self.visits.len() < VISITS_MAX;
        if !has_room {
            return self.answer(request, RingAnswer::NoMembers);
        }
        if request.address == self.own {
            return self.answer(request, member.offer_ring(self.own, request));
        }
        let address = address_of(request.address);
        let visit = member.namespace().run(|| {
            let interface = interface_of(address, None).map_err(std::io::Error::other)?;
            Ok(Visit::new(request, address, interface.index))
        });
        match visit {
            Err(_) => self.answer(request, RingAnswer::Remote),
            Ok(None) => self.answer(request, RingAnswer::NoMembers),
            Ok(Some(visit)) => {
                let number = self.next_visit;
                self.next_visit = number.wrapping_add(1);
                if member.events().add(visit.fd(), Source::Visit(number)).is_err() {
                    return self.answer(request, RingAnswer::NoMembers);
                }
                self.visits.push((number, visit));
            }
        }
    }
}

impl Common {
    #[cold]
    fn new(from: Gid, to: Gid, head: &RecordHead) -> Self {
        let ancillary = Ancillary {
            traffic_class: head.traffic_class,
            flow_label: head.flow_label.get(),
            hop_limit: head.hop_limit,
            ..Ancillary::default()
        };
        let arrival = Arrival::new(address_of(from), head.source_port, to, &ancillary);
        let none = HeaderOfLength { packet_len: 0, len: 0, bytes: [0; 40] };
        Self { from, to, head: *head, arrival, headers: [none; HEADERS] }
    }

    /// Returns those of a packet, which are mostly those of the last.
    #[inline]
    fn of<'a>(last: &'a mut Option<Self>, from: Gid, to: Gid, head: &RecordHead) -> &'a mut Self {
        let is_same = last.as_ref().is_some_and(|common| {
            common.from == from && common.head == RecordHead { len: common.head.len, ..*head }
        });
        if !is_same {
            *last = None;
        }
        last.get_or_insert_with(|| Self::new(from, to, head))
    }

    /// Passes a packet on.
    #[inline]
    fn pass(
        &mut self,
        packet: &[u8],
        payload: Option<SharedBytes<'_>>,
        each: &mut dyn FnMut(&Received<'_>),
    ) {
        let Self { from, to, arrival, headers, .. } = self;
        let payload_len = payload.map_or(0, |payload| payload.len());
        let len = packet.len() + payload_len + ICRC_ROOM;
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        let header = &mut headers[usize::from(len / 4) % HEADERS];
        if header.packet_len != len {
            header.len = arrival.header.put(len, 0, &mut header.bytes).len();
            header.packet_len = len;
        }
        each(&Received {
            source: *from,
            destination: *to,
            source_port: arrival.port,
            ecn: arrival.ecn,
            network: header.bytes.get(..header.len).unwrap_or_default(),
            packet,
            payload,
        });
    }
}

/// The sending half's part of shared memory, while it sends a batch.
pub(super) struct ToNeighbors<'a> {
    now: Instant,
    neighbors: MutexGuard<'a, Neighbors>,
}

impl<'a> ToNeighbors<'a> {
    #[inline]
    pub(super) fn new(now: Instant, neighbors: &'a SharedNeighbors) -> Self {
        let mut neighbors = lock(neighbors);
        if neighbors.has_backlog() {
            neighbors.flush(now);
        }
        Self { now, neighbors }
    }

    /// Puts a packet into the ring of the NIC that has its queue pair, if there is one.
    #[inline]
    pub(super) fn put(&mut self, path: &Path, qpn: Qpn, packet: &Outbound<'_>) -> Option<Put> {
        if matches!(qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST) {
            return None;
        }
        let is_icrc_wrong = packet.icrc_flips != 0;
        let packet = Bytes::of(packet)?;
        let hop_limit = if path.hop_limit == 0 { HOP_LIMIT } else { path.hop_limit };
        let head = RecordHead::new(path, hop_limit, packet.len(), is_icrc_wrong);
        self.neighbors.put(self.now, path.destination, qpn, &head, packet)
    }

    /// Publishes what was put in. Returns whether packets wait for room, and the number of bytes
    /// that there is room for.
    #[inline]
    pub(super) fn finish(mut self) -> (Backlog, usize) {
        self.neighbors.publish(self.now);
        (self.neighbors.backlog(self.now), self.neighbors.room(self.now))
    }

    pub(super) fn counters(&self) -> [(&'static str, u64); 4] {
        self.neighbors.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::thread::sleep;

    use super::*;
    use crate::capture::Reader;
    use crate::link::{Link, udp};
    use crate::wire::{Batch, Bits, Bth, Frame, IcrcVerdict, ROCE_PORT, view};

    fn open(last: u8, uses_shared_memory: bool) -> Link {
        let mut options = udp::Options::new(IpAddr::from([127, 47, 33, last]));
        options.uses_shared_memory = uses_shared_memory;
        udp::open(&options).unwrap()
    }

    /// Opens a second link at the address of the first, which admits it.
    fn join(first: &mut Link, last: u8) -> Link {
        std::thread::scope(|scope| {
            let second = scope.spawn(|| open(last, true));
            while !second.is_finished() {
                first.receiver.serve_members().unwrap();
                sleep(Duration::from_millis(1));
            }
            second.join().unwrap()
        })
    }

    fn counter(link: &Link, name: &str) -> u64 {
        let counters = link.sender.counters().into_iter().chain(link.receiver.counters());
        counters.filter(|(its, _)| *its == name).map(|(_, count)| count).sum()
    }

    fn path(from: &Link, to: &Link) -> Path {
        Path {
            source: from.port.gids[0],
            destination: to.port.gids[0],
            source_port: 0xc001,
            traffic_class: 2,
            hop_limit: 9,
            sl: 0,
            flow_label: Bits::ZERO,
        }
    }

    /// A packet with a number, to a queue pair of a link.
    fn packet(to: &Link, number: u32) -> Vec<u8> {
        let qpns = to.port.sharing.qpns();
        let qpn = (2..).map(Qpn::new).find(|qpn| qpns.contains(*qpn)).unwrap();
        [&[4, 0, 0xff, 0xff][..], &qpn.get().to_be_bytes(), &number.to_be_bytes(), &[0; 8]].concat()
    }

    /// Sends packets from one link to another, both of which serve others meanwhile; checks that
    /// all arrive in order.
    fn exchange(from: &mut Link, to: &mut Link, count: u32) {
        let path = path(from, to);
        let mut expected = 0;
        for number in 0..count {
            let mut batch = Batch::new(1);
            assert!(batch.push(&path, &packet(to, number)));
            from.sender.send(Instant::from_nanos(number.into()), &mut batch).unwrap();
            for link in [&mut *from, &mut *to] {
                link.receiver.serve_members().unwrap();
            }
            while to.receiver.receive(Instant::from_nanos(number.into())).unwrap() > 0 {
                to.receiver.for_each(&mut |received| {
                    assert_eq!(view::<Bth>(received.packet, 0).unwrap().psn().get(), expected);
                    assert_eq!((received.source, received.ecn), (path.source, 2));
                    assert_eq!(received.network[8], 9, "the hop limit");
                    expected += 1;
                });
            }
        }
        assert_eq!(expected, count);
    }

    #[test]
    fn packets_at_one_address_go_through_memory_once_the_ring_is_adopted() {
        let mut first = open(1, true);
        let mut second = join(&mut first, 1);
        exchange(&mut first, &mut second, 1000);
        exchange(&mut second, &mut first, 1000);
        for link in [&first, &second] {
            let [sent, received] =
                ["shm_packets_sent", "shm_packets_received"].map(|name| counter(link, name));
            assert!((900..1000).contains(&sent), "{sent}: the first ones went through the kernel");
            assert!((900..1000).contains(&received), "{received}");
        }
    }

    #[test]
    fn poller_looks_at_the_rings_alone_while_nothing_else_is_due() {
        let at = |ns| Instant::from_nanos(1_000_000_000 + ns);
        let mut first = open(5, true);
        assert!(first.receiver.may_receive(), "without rings the kernel is to be asked");
        let mut second = join(&mut first, 5);
        exchange(&mut first, &mut second, 100);
        let path = path(&first, &second);
        let [next, last] = [100, 101].map(|number| packet(&second, number));
        let mut send = |packet: &[u8]| {
            let mut batch = Batch::new(1);
            assert!(batch.push(&path, packet));
            first.sender.send(at(0), &mut batch).unwrap();
        };
        let receiver = &mut second.receiver;
        send(&next);
        assert!(receiver.may_receive());
        assert_eq!(receiver.receive(at(0)).unwrap(), 1);
        assert!(receiver.may_receive(), "there may be more");
        assert_eq!(receiver.receive(at(1)).unwrap(), 0);
        assert!(!receiver.may_receive());
        send(&last);
        assert!(receiver.may_receive(), "a packet is in the ring");
        assert_eq!(receiver.receive(at(2)).unwrap(), 1);
        let quiet = u64::try_from(ACTIVE.as_nanos()).unwrap() + 2;
        assert_eq!(receiver.receive(at(quiet)).unwrap(), 0);
        assert!(receiver.may_receive(), "packets come from the kernel as likely");
    }

    #[test]
    fn packets_between_addresses_go_through_memory() {
        let (mut first, mut second) = (open(2, true), open(3, true));
        exchange(&mut first, &mut second, 1000);
        assert!(counter(&first, "shm_packets_sent") > 900);
        // Its address is free again, although its neighbor is there.
        drop(second);
        let alone = std::net::UdpSocket::bind("127.47.33.3:4791");
        assert!(alone.is_ok(), "{alone:?}");
    }

    #[test]
    fn packets_go_through_the_kernel_when_a_side_does_not_use_memory() {
        let (mut first, mut second) = (open(4, true), open(5, false));
        exchange(&mut first, &mut second, 100);
        exchange(&mut second, &mut first, 100);
        assert_eq!(counter(&first, "shm_packets_sent"), 0);
        assert_eq!(counter(&first, "shm_packets_received"), 0);
        assert_eq!(counter(&second, "shm_packets_received"), 0);
    }

    #[test]
    fn packets_go_through_the_kernel_again_when_the_neighbor_has_gone() {
        let mut first = open(6, true);
        let mut second = join(&mut first, 6);
        exchange(&mut first, &mut second, 100);
        assert_eq!(counter(&first, "shm_rings_to_neighbors"), 1);
        drop(second);
        first.receiver.serve_members().unwrap();
        assert_eq!(counter(&first, "shm_rings_to_neighbors"), 0);
        // The next one has the slot of the one before.
        let mut third = join(&mut first, 6);
        let before = counter(&first, "shm_packets_sent");
        exchange(&mut first, &mut third, 100);
        assert!(counter(&first, "shm_packets_sent") > before);
    }

    /// A capture in memory.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn taps_write_the_icrc_that_shared_memory_leaves_out() {
        let sinks = [(); 2].map(|()| Sink::default());
        let tap = |link, sink: &Sink| crate::link::tap::tap(link, sink.clone(), Instant::ZERO);
        let mut first = tap(open(7, true), &sinks[0]).unwrap();
        let mut second = tap(open(8, true), &sinks[1]).unwrap();
        exchange(&mut first, &mut second, 200);
        assert!(counter(&first, "shm_packets_sent") > 100);
        drop((first, second));
        for Sink(capture) in sinks {
            let capture = capture.lock().unwrap();
            let mut reader = Reader::new(&capture[..]).unwrap();
            let mut count = 0;
            while let Some(record) = reader.next().unwrap() {
                let frame = Frame::parse(record.link, record.data, ROCE_PORT);
                assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok));
                count += 1;
            }
            assert_eq!(count, 200);
        }
    }
}
