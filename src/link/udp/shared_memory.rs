//! Packets to and from NICs of this user on this machine, through rings in shared memory.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::bind::HOP_LIMIT;
use super::interface_of;
use super::receive::{Ancillary, Arrival};
use crate::link::interface::address_of;
use crate::link::share::{
    Backlog, Member, Neighbors, Offer, RecordHead, RingAnswer, RingRequest, Rings, Source, Visit,
};
use crate::time::Instant;
use crate::wire::{Gid, ICRC_ROOM, Path, Qpn, Received};

/// Rings to neighbors: the sending half puts packets in, the receiving half opens and closes them.
pub(super) type SharedNeighbors = Arc<Mutex<Neighbors>>;

/// Time after the last packet from a ring, or from the kernel, for which more are expected there.
const ACTIVE: Duration = Duration::from_micros(50);

/// Interval at which the kernel is asked while packets come from rings alone: a system call takes
/// longer than all else that a receive does.
const KERNEL_INTERVAL: Duration = Duration::from_micros(5);

/// Maximum number of visits whose answers are awaited.
const VISITS_MAX: usize = 64;

/// Where a receive looks for packets.
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
    /// What the packets that came last have in common.
    last: RefCell<Option<Common>>,
}

/// Times by which a receive decides where to look.
#[derive(Debug, Default)]
struct Activity {
    /// Time of the last packet from a ring, and from the kernel.
    ring: Instant,
    kernel: Instant,
    /// Time at which the kernel was asked last.
    asked: Instant,
}

impl Activity {
    /// Whether the kernel is to be asked at `now`.
    #[inline]
    fn asks_kernel(&self, now: Instant) -> bool {
        let is_within = |time: Instant, limit| now.saturating_since(time) < limit;
        !is_within(self.ring, ACTIVE)
            || is_within(self.kernel, ACTIVE)
            || !is_within(self.asked, KERNEL_INTERVAL)
    }
}

/// Common facts of packets from a ring.
struct Common {
    from: Gid,
    /// With the length of one of them.
    head: RecordHead,
    arrival: Arrival,
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

    /// Returns where a receive at `now` looks.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant) -> Turn {
        if self.rings.is_empty() {
            return Turn::Kernel;
        }
        if !self.activity.asks_kernel(now) && !self.rings.has_new() {
            return Turn::Rings;
        }
        self.activity.asked = now;
        Turn::Both
    }

    /// Takes packets from the rings, instead of those of the call before; returns their number.
    /// `from_kernel` is the number of packets that this receive got from the kernel: a neighbor may
    /// have sent them before its ring was adopted.
    #[inline]
    pub(super) fn take(&mut self, now: Instant, from_kernel: usize) -> usize {
        if from_kernel > 0 {
            self.activity.kernel = now;
            if self.rings.has_new() {
                self.rings.give_back();
                return 0;
            }
        }
        let count = self.rings.take();
        if count > 0 {
            self.activity.ring = now;
        }
        count
    }

    /// Passes each packet that was taken to `each`, as it arrives at the address `to`.
    #[inline]
    pub(super) fn for_each(&self, to: Gid, each: &mut dyn FnMut(&Received<'_>)) {
        let mut last = self.last.borrow_mut();
        let mut room = [0; 40];
        self.rings.for_each(|from, head, packet| {
            let is_same = |common: &&mut Common| {
                common.from == from && common.head == RecordHead { len: common.head.len, ..*head }
            };
            let common = match last.as_mut().filter(is_same) {
                Some(common) => common,
                None => last.insert(Common::new(from, to, head)),
            };
            let arrival = &common.arrival;
            let len = u16::try_from(packet.len() + ICRC_ROOM).unwrap_or(u16::MAX);
            each(&Received {
                source: from,
                destination: to,
                source_port: arrival.port,
                ecn: arrival.ecn,
                network: arrival.header.put(len, 0, &mut room),
                packet,
            });
        });
    }

    /// Announces that the NIC sleeps until a bell rings; returns whether it may.
    pub(super) fn announce_sleep(&mut self) -> bool {
        self.rings.announce_sleep()
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
        Self { from, head: *head, arrival }
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

    /// Puts a packet, with the room for its ICRC, into the ring of the NIC that has its queue pair;
    /// returns whether there is one.
    #[inline]
    pub(super) fn put(&mut self, path: &Path, qpn: Qpn, packet: &[u8], icrc_flips: u32) -> bool {
        if matches!(qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST) {
            return false;
        }
        let Some((packet, _)) = packet.split_last_chunk::<ICRC_ROOM>() else { return false };
        let hop_limit = if path.hop_limit == 0 { HOP_LIMIT } else { path.hop_limit };
        let head = RecordHead::new(path, hop_limit, packet.len(), icrc_flips != 0);
        self.neighbors.put(self.now, path.destination, qpn, &head, packet)
    }

    /// Publishes what was put in. Returns whether packets wait for room.
    #[inline]
    pub(super) fn finish(mut self) -> Backlog {
        self.neighbors.publish();
        self.neighbors.backlog(self.now)
    }

    pub(super) fn counters(&self) -> [(&'static str, u64); 4] {
        self.neighbors.counters()
    }
}
