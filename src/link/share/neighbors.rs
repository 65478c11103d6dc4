//! Neighbors: NICs of this user on this machine, to which packets go through [rings](super::ring).
//!
//! The sending half of a link looks up the ring of each packet. Where there is none it requests
//! one, and the packet goes through the kernel. The receiving half, whose thread can wait for
//! answers, makes the ring and offers it to the neighbor; packets go through it once it is adopted.
//! Packets go through the kernel again once the neighbor has dropped the ring or ended.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::events::{Events, Source};
use super::ring::{Bytes, Producer, Put, RecordHead};
use super::steering::SLOTS;
use crate::link::AddressFds;
use crate::time::Instant;
use crate::verbs::QpnShare;
use crate::wire::{Gid, Qpn};

/// Maximum number of rings to neighbors, each of which takes 260 KiB of memory.
const RINGS_MAX: usize = 64;

/// Maximum number of addresses that are kept. Packets to others go through the kernel.
const ADDRESSES_MAX: usize = 4096;

/// Time after which a ring is requested again where there was no neighbor.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which an address that is not on this machine is looked at again.
const REMOTE_INTERVAL: Duration = Duration::from_secs(60);

/// A time that does not come.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Time after which packets that wait for room in a ring are tried again.
const BACKLOG_INTERVAL: Duration = Duration::from_micros(20);

/// Time after which a ring that stays full is stalled: its consumer is stopped, or busy otherwise,
/// and holds up no packets to others any more.
const STALL_TIME: Duration = Duration::from_millis(1);

/// Packets that wait for room in rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backlog {
    None,
    /// Their consumers make room: they are to be tried again, and the sender waits with others.
    Moving {
        again: Instant,
    },
    /// Their consumers have made no room for a while: they are to be tried again.
    Stalled {
        again: Instant,
    },
}

/// Request for a ring to the NIC that has a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingRequest {
    pub(crate) address: Gid,
    pub(crate) qpn: Qpn,
}

/// Answer to a [`RingRequest`].
#[derive(Debug)]
pub(crate) enum RingAnswer {
    /// The ring is offered to the NIC of a slot.
    Offered { qpns: QpnShare, slot: u8, producer: Box<Producer> },
    /// No NIC has the slot of the queue pair.
    NoNeighbor { qpns: QpnShare, slot: u8 },
    /// No NIC of this user shares the address.
    NoMembers,
    /// The address is not on this machine.
    Remote,
}

/// Rings to neighbors.
#[derive(Debug)]
pub(crate) struct Neighbors {
    /// The first is that of the NIC itself.
    addresses: Vec<Address>,
    by_gid: HashMap<Gid, usize>,
    /// The address that was looked up last.
    last: (Gid, usize),
    /// Rings with packets that are not published.
    unpublished: Vec<Place>,
    /// Rings that were not adopted when this batch first needed them, and that it does not use.
    unadopted: Vec<Place>,
    /// Rings with packets that wait for room.
    backlogged: Vec<Backlogged>,
    /// The ring with the least room, and its room, of those that were used last.
    fullest: Option<(Backlogged, usize)>,
    requests: Vec<RingRequest>,
    /// Time of the last request.
    requested_at: Instant,
    /// Wakes the receiving half.
    wake: OwnedFd,
    events: Events,
    address_fds: AddressFds,
    next_number: u32,
    rings: usize,
    counters: Counters,
}

/// A slot at an address, by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: usize,
    slot: u8,
}

/// A ring with packets that wait for room.
#[derive(Clone, Copy, Debug)]
struct Backlogged {
    place: Place,
    /// Time at which its consumer made room last.
    moved_at: Instant,
}

#[derive(Debug)]
enum Address {
    /// A ring was requested, and nothing is known of the address yet.
    Requested,
    /// There is no neighbor, as far as is known until `again`.
    NoMembers { again: Instant },
    /// NICs of this user are there; their slots are found by `qpns`.
    Members { qpns: QpnShare, slots: Box<[Slot]> },
}

#[derive(Debug)]
enum Slot {
    Unknown,
    Requested,
    /// There is no ring until `again`.
    NoRing {
        again: Instant,
    },
    Ring {
        number: u32,
        producer: Box<Producer>,
        is_adopted: bool,
    },
}

#[derive(Debug, Default)]
struct Counters {
    packets: u64,
    no_room: u64,
    broken: u64,
}

impl Neighbors {
    pub(super) fn new(own: Gid, events: Events, address_fds: AddressFds) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        events.add(&wake, Source::Request)?;
        Ok(Self {
            addresses: vec![Address::NoMembers { again: NEVER }],
            by_gid: HashMap::from([(own, 0)]),
            last: (own, 0),
            unpublished: Vec::new(),
            unadopted: Vec::new(),
            backlogged: Vec::new(),
            fullest: None,
            requests: Vec::new(),
            requested_at: Instant::ZERO,
            wake,
            events,
            address_fds,
            next_number: 0,
            rings: 0,
            counters: Counters::default(),
        })
    }

    pub(crate) fn counters(&self) -> [(&'static str, u64); 4] {
        let Counters { packets, no_room, broken } = self.counters;
        [
            ("shm_packets_sent", packets),
            ("shm_no_room", no_room),
            ("shm_broken_to_neighbors", broken),
            ("shm_rings_to_neighbors", self.rings as u64),
        ]
    }

    /// The NIC shares its address from now on.
    pub(crate) fn share_own(&mut self, qpns: QpnShare) {
        let mut slots: Box<[Slot]> = (0..SLOTS).map(|_| Slot::Unknown).collect();
        // Its own packets go through the kernel.
        if let Some(own) = slots.get_mut(usize::from(qpns.slot())) {
            *own = Slot::NoRing { again: NEVER };
        }
        if let Some(address) = self.addresses.first_mut() {
            *address = Address::Members { qpns, slots };
        }
    }

    /// Puts a packet into the ring of the NIC that has its queue pair, if there is one. The packet
    /// is sent once all are [published](Self::publish).
    #[inline]
    pub(crate) fn put(
        &mut self,
        now: Instant,
        to: Gid,
        qpn: Qpn,
        head: &RecordHead,
        packet: Bytes<'_>,
    ) -> Option<Put> {
        let place = self.place(now, to, qpn)?;
        let Some(Slot::Ring { producer, is_adopted, .. }) = self.slot_mut(place) else {
            return None;
        };
        if !*is_adopted {
            // Until the batch ends, even if it is adopted meanwhile: packets through the kernel are
            // sent after those through rings, and would be overtaken.
            if self.unadopted.last() != Some(&place) {
                self.unadopted.push(place);
            }
            return None;
        }
        let put = producer.put(head, packet);
        let has_backlog = producer.has_backlog();
        match put {
            Ok(Put::Done) => self.counters.packets += 1,
            Ok(Put::NoRoom) => self.counters.no_room += 1,
            Ok(Put::Unmapped) => {}
            Err(_) => {
                self.counters.broken += 1;
                self.close(place, now.saturating_add(RETRY_INTERVAL));
                return None;
            }
        }
        if self.unpublished.last() != Some(&place) {
            self.unpublished.push(place);
        }
        if has_backlog && !self.backlogged.iter().any(|entry| entry.place == place) {
            self.backlogged.push(Backlogged { place, moved_at: now });
        }
        put.ok()
    }

    /// Ends a batch: publishes all packets that were put in.
    #[inline]
    pub(crate) fn publish(&mut self, now: Instant) {
        if !self.unadopted.is_empty() {
            self.look_for_adopted();
        }
        if self.unpublished.is_empty() {
            return self.look_at_fullest(now);
        }
        let mut fullest: Option<(Backlogged, usize)> = None;
        while let Some(place) = self.unpublished.pop() {
            if let Some(Slot::Ring { producer, .. }) = self.slot_mut(place) {
                producer.publish();
                let room = producer.room();
                if fullest.is_none_or(|(_, least)| room < least) {
                    fullest = Some((Backlogged { place, moved_at: now }, room));
                }
            }
        }
        self.fullest = fullest;
    }

    /// Looks which of the rings that this batch did not use are adopted: the next batch uses them.
    #[cold]
    fn look_for_adopted(&mut self) {
        while let Some(place) = self.unadopted.pop() {
            if let Some(Slot::Ring { producer, is_adopted, .. }) = self.slot_mut(place) {
                *is_adopted = producer.is_adopted();
            }
        }
    }

    /// Updates the room of the fullest ring.
    fn look_at_fullest(&mut self, now: Instant) {
        let Some((mut entry, before)) = self.fullest else { return };
        let Some(Slot::Ring { producer, .. }) = self.slot_mut(entry.place) else {
            self.fullest = None;
            return;
        };
        let room = producer.room();
        if room != before {
            entry.moved_at = now;
        }
        self.fullest = Some((entry, room));
    }

    /// Returns the number of bytes that fit into each ring that was used last. One whose consumer
    /// has made no room for a while does not count.
    #[inline]
    pub(crate) fn room(&self, now: Instant) -> usize {
        let moving =
            self.fullest.filter(|(entry, _)| now.saturating_since(entry.moved_at) < STALL_TIME);
        moving.map_or(usize::MAX, |(_, room)| room)
    }

    /// Whether packets wait for room.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlogged.is_empty()
    }

    /// Returns whether packets wait for room, and when they are to be tried again.
    #[inline]
    pub(crate) fn backlog(&self, now: Instant) -> Backlog {
        if self.backlogged.is_empty() {
            return Backlog::None;
        }
        let again = now.saturating_add(BACKLOG_INTERVAL);
        let is_moving = |entry: &Backlogged| now.saturating_since(entry.moved_at) < STALL_TIME;
        if self.backlogged.iter().any(is_moving) {
            Backlog::Moving { again }
        } else {
            Backlog::Stalled { again }
        }
    }

    /// Moves packets that wait into their rings, as far as there is room.
    #[cold]
    pub(crate) fn flush(&mut self, now: Instant) {
        let mut entries = std::mem::take(&mut self.backlogged);
        entries.retain_mut(|Backlogged { place, moved_at }| {
            let Some(Slot::Ring { producer, .. }) = self.slot_mut(*place) else { return false };
            match producer.flush() {
                Ok(true) => *moved_at = now,
                Ok(false) => {}
                Err(_) => {
                    self.counters.broken += 1;
                    self.close(*place, now.saturating_add(RETRY_INTERVAL));
                    return false;
                }
            }
            producer.has_backlog()
        });
        self.backlogged = entries;
    }

    #[inline]
    fn slot_mut(&mut self, place: Place) -> Option<&mut Slot> {
        match self.addresses.get_mut(place.address)? {
            Address::Members { slots, .. } => slots.get_mut(usize::from(place.slot)),
            _ => None,
        }
    }

    /// Returns the place of the NIC that has a queue pair, if it has a ring. Requests one if it is
    /// time to.
    #[inline]
    fn place(&mut self, now: Instant, to: Gid, qpn: Qpn) -> Option<Place> {
        if self.last.0 != to {
            self.last = (to, self.look_up(to)?);
        }
        let address = self.last.1;
        match self.addresses.get_mut(address)? {
            Address::Members { qpns, slots } => {
                let slot = qpns.slot_of(qpn);
                let state = slots.get_mut(usize::from(slot))?;
                match state {
                    Slot::Ring { .. } => return Some(Place { address, slot }),
                    Slot::Requested => return None,
                    Slot::NoRing { again } if *again > now => return None,
                    Slot::NoRing { .. } | Slot::Unknown => *state = Slot::Requested,
                }
            }
            Address::Requested => return None,
            Address::NoMembers { again } if *again > now => return None,
            state @ Address::NoMembers { .. } => *state = Address::Requested,
        }
        self.request(now, RingRequest { address: to, qpn });
        None
    }

    #[cold]
    fn look_up(&mut self, to: Gid) -> Option<usize> {
        if let Some(index) = self.by_gid.get(&to) {
            return Some(*index);
        }
        let index = self.addresses.len();
        if index == ADDRESSES_MAX || to.is_multicast() {
            return None;
        }
        self.addresses.push(Address::NoMembers { again: Instant::ZERO });
        self.by_gid.insert(to, index);
        Some(index)
    }

    #[cold]
    fn request(&mut self, now: Instant, request: RingRequest) {
        self.requested_at = now;
        self.requests.push(request);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Takes the requests, which the caller answers.
    pub(crate) fn take_requests(&mut self) -> Vec<RingRequest> {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        std::mem::take(&mut self.requests)
    }

    /// Whether there can be another ring.
    pub(crate) fn has_room_for_ring(&self) -> bool {
        self.rings < RINGS_MAX
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, request: RingRequest, answer: RingAnswer) {
        let Some(&address) = self.by_gid.get(&request.address) else { return };
        let now = self.requested_at;
        let again = now.saturating_add(RETRY_INTERVAL);
        let (qpns, slot, state) = match answer {
            RingAnswer::Remote | RingAnswer::NoMembers => {
                let is_remote = matches!(answer, RingAnswer::Remote);
                let interval = if is_remote { REMOTE_INTERVAL } else { RETRY_INTERVAL };
                let again = now.saturating_add(interval);
                self.set_empty(address, again);
                return;
            }
            RingAnswer::NoNeighbor { qpns, slot } => (qpns, slot, Slot::NoRing { again }),
            RingAnswer::Offered { qpns, slot, producer } => {
                let number = self.next_number;
                self.next_number = number.wrapping_add(1);
                let fd = producer.fd();
                if self.events.add(fd, Source::Producer(number)).is_err() {
                    (qpns, slot, Slot::NoRing { again })
                } else {
                    self.address_fds.add(fd);
                    self.rings += 1;
                    (qpns, slot, Slot::Ring { number, producer, is_adopted: false })
                }
            }
        };
        let Some(known) = self.addresses.get_mut(address) else { return };
        if !matches!(known, Address::Members { qpns: same, .. } if same.is_same_division(qpns)) {
            *known = Address::Members { qpns, slots: (0..SLOTS).map(|_| Slot::Unknown).collect() };
        }
        if let Some(slot) = self.slot_mut(Place { address, slot }) {
            *slot = state;
        }
    }

    /// No NIC is known to be at an address until `again`. That of the NIC itself stays as it is.
    fn set_empty(&mut self, address: usize, again: Instant) {
        match self.addresses.get_mut(address) {
            Some(known) if address > 0 => *known = Address::NoMembers { again },
            Some(Address::Members { slots, .. }) => {
                for slot in slots.iter_mut().filter(|slot| matches!(slot, Slot::Requested)) {
                    *slot = Slot::NoRing { again };
                }
            }
            _ => {}
        }
    }

    /// The consumer of a ring has gone.
    #[cold]
    pub(crate) fn closed(&mut self, number: u32) {
        let has = |slot: &Slot| matches!(slot, Slot::Ring { number: its, .. } if *its == number);
        let found = self.addresses.iter().enumerate().find_map(|(address, known)| match known {
            Address::Members { slots, .. } => {
                let slot = slots.iter().position(has)?;
                Some(Place { address, slot: u8::try_from(slot).ok()? })
            }
            _ => None,
        });
        let Some(place) = found else { return };
        // One that did not adopt it refused it.
        let refused = match self.slot_mut(place) {
            Some(Slot::Ring { producer, .. }) => !producer.is_adopted(),
            _ => false,
        };
        let again = self.requested_at.saturating_add(RETRY_INTERVAL);
        self.close(place, if refused { again } else { Instant::ZERO });
    }

    /// Drops a ring. There is none until `again`.
    #[cold]
    fn close(&mut self, place: Place, again: Instant) {
        let Some(slot) = self.slot_mut(place) else { return };
        let Slot::Ring { producer, .. } = std::mem::replace(slot, Slot::NoRing { again }) else {
            return;
        };
        // Closing it is not enough: a forked child may have a copy.
        let _ = self.events.remove(producer.fd());
        self.address_fds.remove(producer.fd());
        self.rings -= 1;
        // Once no ring to an address is left, others may be there, whose slots are found by another
        // number.
        let is_ring = |slot: &Slot| matches!(slot, Slot::Ring { .. });
        if let Some(Address::Members { slots, .. }) = self.addresses.get(place.address)
            && !slots.iter().any(is_ring)
        {
            self.set_empty(place.address, again);
        }
    }
}

impl Drop for Neighbors {
    fn drop(&mut self) {
        let _ = self.events.remove(self.wake.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::Consumer;
    use super::*;
    use crate::link::testing::PATH;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn ring_adopted_during_a_batch_is_used_from_the_next() {
        let fds = AddressFds::default();
        let mut neighbors =
            Neighbors::new(PATH.source, Events::new().unwrap(), fds.clone()).unwrap();
        let (packet, qpn) = ([4; 16], Qpn::new(7));
        let head = RecordHead::new(&PATH, 9, packet.len(), false);
        let put = |neighbors: &mut Neighbors| {
            neighbors.put(NOW, PATH.destination, qpn, &head, packet[..].into())
        };
        assert_eq!(put(&mut neighbors), None);
        let [request] = neighbors.take_requests()[..] else { panic!("one request") };
        let (producer, offer) = Producer::new().unwrap();
        let qpns = QpnShare::of_slot(1, 8, 0);
        let offered =
            RingAnswer::Offered { qpns, slot: qpns.slot_of(qpn), producer: producer.into() };
        neighbors.answer(request, offered);
        assert_eq!(put(&mut neighbors), None);
        // One half of the message is on its way through the kernel.
        let mut ring = Consumer::adopt(offer, PATH.source).unwrap();
        assert_eq!(put(&mut neighbors), None);
        neighbors.publish(NOW);
        assert_eq!(ring.take(), Ok(0));
        assert_eq!(put(&mut neighbors), Some(Put::Done));
        neighbors.publish(NOW);
        assert_eq!(ring.take(), Ok(1));
    }
}
