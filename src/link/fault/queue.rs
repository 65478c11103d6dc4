//! Packets that are held back until their time has come.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use super::chance::Arrival;
use crate::time::Instant;

/// The most packets that are held back in one direction; further ones are lost and counted.
pub const HELD_MAX: usize = 1 << 16;

/// Maximum time that a packet waits for the one that is to pass it.
pub const SWAP_TIMEOUT: Duration = Duration::from_millis(50);

/// Packets of one direction, by the time at which they arrive.
#[derive(Debug)]
pub(in crate::link) struct Queue<P> {
    /// The earliest first; of several, the one put in first.
    held: BinaryHeap<Reverse<Held<P>>>,
    /// Waits for the next packet to pass it; its time is when it no longer does.
    overtaken: Option<Held<P>>,
    count: u64,
}

/// A packet that is held back.
#[derive(Debug)]
pub(in crate::link) struct Held<P> {
    pub(in crate::link) time: Instant,
    number: u64,
    pub(in crate::link) packet: P,
}

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self { held: BinaryHeap::new(), overtaken: None, count: 0 }
    }
}

impl<P: Clone> Queue<P> {
    /// Holds a packet until it arrives; whether there was room for all of it.
    pub(in crate::link) fn put(&mut self, now: Instant, packet: P, arrival: &Arrival) -> bool {
        let again = arrival.again.is_none_or(|time| self.push(time, packet.clone()));
        if arrival.swap && self.overtaken.is_none() {
            let time = now.max(arrival.time).saturating_add(SWAP_TIMEOUT);
            self.overtaken = Some(Held { time, number: 0, packet });
            return again;
        }
        let once = self.push(arrival.time, packet);
        let overtaken = self.overtaken.take_if(|_| !arrival.late);
        let behind = overtaken.is_none_or(|held| self.push(arrival.time, held.packet));
        again && once && behind
    }

    fn push(&mut self, time: Instant, packet: P) -> bool {
        let has_room = self.held.len() < HELD_MAX;
        if has_room {
            self.count += 1;
            self.held.push(Reverse(Held { time, number: self.count, packet }));
        }
        has_room
    }

    /// The next packet that has arrived by `now`.
    pub(in crate::link) fn pop(&mut self, now: Instant) -> Option<Held<P>> {
        if let Some(held) = self.overtaken.take_if(|held| held.time <= now) {
            self.push(held.time, held.packet);
        }
        let is_due = self.held.peek().is_some_and(|Reverse(next)| next.time <= now);
        is_due.then(|| self.held.pop()).flatten().map(|Reverse(held)| held)
    }

    /// The next time at which a packet arrives.
    pub(in crate::link) fn timeout(&self) -> Option<Instant> {
        let next = self.held.peek().map(|Reverse(held)| held.time);
        next.into_iter().chain(self.overtaken.as_ref().map(|held| held.time)).min()
    }
}

impl<P> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<P> Eq for Held<P> {}

impl<P> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}
