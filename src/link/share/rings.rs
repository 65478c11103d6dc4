//! Rings from neighbors: what other NICs of this user on this machine send through memory.

use std::cell::RefCell;

use super::events::{Events, Source};
use super::ring::{Consumer, Offer, RecordHead};
use crate::link::AddressFds;
use crate::memory::SharedBytes;
use crate::wire::{Gid, PACKET_MAX};

/// Maximum number of rings from neighbors.
const RINGS_MAX: usize = 256;

/// Rings from neighbors.
#[derive(Debug)]
pub(crate) struct Rings {
    rings: Vec<(u32, Consumer)>,
    next_number: u32,
    /// Whether nothing was taken from some of them yet.
    has_untouched: bool,
    /// Room for a packet, which is copied out of its ring before it is checked.
    room: RefCell<Box<[u8]>>,
    events: Events,
    address_fds: AddressFds,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    packets: u64,
    broken: u64,
    refused: u64,
    bad_icrc: u64,
}

impl Rings {
    pub(super) fn new(events: Events, address_fds: AddressFds) -> Self {
        Self {
            rings: Vec::new(),
            next_number: 0,
            has_untouched: false,
            room: RefCell::new(vec![0; PACKET_MAX].into()),
            events,
            address_fds,
            counters: Counters::default(),
        }
    }

    pub(crate) fn counters(&self) -> [(&'static str, u64); 4] {
        let Counters { packets, broken, refused, .. } = self.counters;
        [
            ("shm_packets_received", packets),
            ("shm_broken_from_neighbors", broken),
            ("shm_refused", refused),
            ("shm_rings_from_neighbors", self.rings.len() as u64),
        ]
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Adopts a ring. One that is refused is dropped, of which its producer learns.
    pub(crate) fn adopt(&mut self, offer: Offer, source: Gid) {
        let number = self.next_number;
        let adopted = Some(offer).filter(|_| self.rings.len() < RINGS_MAX).and_then(|offer| {
            let ring = Consumer::adopt(offer, source).ok()?;
            self.events.add(ring.fd(), Source::Bell(number)).ok()?;
            Some(ring)
        });
        match adopted {
            Some(ring) => {
                self.next_number = number.wrapping_add(1);
                self.address_fds.add(ring.fd());
                self.rings.push((number, ring));
                self.has_untouched = true;
            }
            None => self.counters.refused += 1,
        }
    }

    /// The bell of a ring rings, or its producer has gone.
    pub(crate) fn silence(&mut self, number: u32) {
        if let Some((_, ring)) = self.rings.iter_mut().find(|(its, _)| *its == number)
            && !ring.silence()
        {
            let _ = self.events.remove(ring.fd());
        }
    }

    /// Marks the rings from which nothing was taken yet and in which packets wait; returns whether
    /// there is one. The next take may begin with the rings that are marked.
    #[inline]
    pub(crate) fn look_at_new(&mut self) -> bool {
        self.has_untouched
            && self.rings.iter_mut().fold(false, |any, (_, ring)| any | ring.look_at_new())
    }

    /// Whether packets wait in some ring.
    #[inline]
    pub(crate) fn has_packets(&self) -> bool {
        self.rings.iter().any(|(_, ring)| ring.has_packets())
    }

    pub(crate) fn bad_icrc(&self) -> u64 {
        self.counters.bad_icrc
    }

    /// Takes packets from the rings, instead of those of the call before; returns their number.
    /// New rings are left out, except those that were [marked](Self::look_at_new) if `begins`.
    #[inline]
    pub(crate) fn take(&mut self, begins: bool) -> usize {
        let (mut count, mut is_one_over) = (0, false);
        let mut has_untouched = false;
        for (_, ring) in &mut self.rings {
            if !ring.is_new() || begins && ring.may_begin() {
                match ring.take() {
                    Ok(taken) => count += taken,
                    Err(_) => ring.set_broken(),
                }
            }
            self.counters.bad_icrc += ring.take_bad_icrc();
            is_one_over |= ring.is_over();
            has_untouched |= ring.is_new();
        }
        self.has_untouched = has_untouched;
        if is_one_over {
            self.drop_ended();
        }
        self.counters.packets += count as u64;
        count
    }

    #[cold]
    fn drop_ended(&mut self) {
        let Self { rings, events, address_fds, counters, .. } = self;
        rings.retain(|(_, ring)| {
            // What was taken of it is still to be handled.
            let is_kept = !ring.is_over() || ring.has_taken();
            if !is_kept {
                counters.broken += u64::from(ring.is_broken());
                // Closing it is not enough: a forked child may have a copy.
                let _ = events.remove(ring.fd());
                address_fds.remove(ring.fd());
            }
            is_kept
        });
    }

    /// Passes each packet that was taken to `each`, with the address that it comes from.
    #[inline]
    pub(crate) fn for_each(&self, mut each: impl FnMut(Gid, &RecordHead, &[u8])) {
        let mut room = self.room.borrow_mut();
        for (_, ring) in &self.rings {
            ring.for_each(&mut room, |head, packet| each(ring.source(), head, packet));
        }
    }

    /// Passes each packet that was taken to `each`, as [`for_each`](Self::for_each) does. Of one
    /// with much payload only the headers are copied out of its ring before.
    #[inline]
    pub(crate) fn for_each_apart(
        &self,
        mut each: impl FnMut(Gid, &RecordHead, &[u8], Option<SharedBytes<'_>>),
    ) {
        let mut room = self.room.borrow_mut();
        for (_, ring) in &self.rings {
            let source = ring.source();
            ring.for_each_apart(&mut room, |head, packet, payload| {
                each(source, head, packet, payload);
            });
        }
    }

    /// Announces that the NIC sleeps until a bell rings; returns whether it may.
    pub(crate) fn announce_sleep(&mut self) -> bool {
        self.rings.iter_mut().all(|(_, ring)| ring.announce_sleep())
    }

    /// Ends the sleep that was announced: no producer need ring its bell.
    pub(crate) fn end_sleep(&self) {
        self.rings.iter().for_each(|(_, ring)| ring.end_sleep());
    }
}
