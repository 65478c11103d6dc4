//! Packets on the two links between the hosts, and what happens to them there.
//!
//! Unlike [`roce::link::mem::Network`], it tells what it did to each packet: a test that compares
//! captures with the truth is the owner of every packet, and notes what it likes with it (`N`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use roce::link::fault::Action;
use roce::time::Instant;
use roce::wire::{Gid, Path};

use super::frames::{corrupt, mark};

/// Time that a packet takes over each hop.
pub const HOP_DELAY: Duration = Duration::from_micros(2);

/// Delay of a copy that the network makes behind the packet.
const COPY_DELAY: Duration = Duration::from_nanos(700);

/// Nanoseconds per byte at 100 Gbit/s, in 1/100.
const NANOS_PER_100_BYTES: u64 = 8;

/// One of the two links of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hop {
    /// The link of A and the switch.
    A = 0,
    /// The link of the switch and B.
    B = 1,
}

impl Hop {
    /// The first hop of a host's packets.
    pub fn first_of(sender: usize) -> Self {
        if sender == 0 { Self::A } else { Self::B }
    }

    /// The second hop of a host's packets.
    pub fn second_of(sender: usize) -> Self {
        Self::first_of(1 - sender)
    }
}

/// A packet on its way.
#[derive(Clone)]
pub struct InFlight<N> {
    pub sender: usize,
    /// Point of arrival: 0 A, 1 the switch, 2 B; nothing before it has left its host.
    pub at: Option<usize>,
    pub is_copy: bool,
    pub is_corrupted: bool,
    pub is_marked: bool,
    /// Bytes from the IP header to the ICRC.
    pub bytes: Vec<u8>,
    pub note: N,
}

impl<N> InFlight<N> {
    /// A packet that has not left its host.
    pub fn new(sender: usize, bytes: Vec<u8>, note: N) -> Self {
        let (is_copy, is_corrupted, is_marked) = (false, false, false);
        Self { sender, at: None, is_copy, is_corrupted, is_marked, bytes, note }
    }
}

/// The packets between two hosts.
pub struct Wire<N> {
    in_flight: Vec<Option<InFlight<N>>>,
    arrivals: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Time from which the port of each host is free.
    free: [Instant; 2],
}

impl<N> Default for Wire<N> {
    fn default() -> Self {
        Self { in_flight: Vec::new(), arrivals: BinaryHeap::new(), free: [Instant::ZERO; 2] }
    }
}

impl<N: Clone> Wire<N> {
    /// Lets a packet arrive at a time.
    pub fn put(&mut self, time: Instant, packet: InFlight<N>) {
        self.arrivals.push(Reverse((time, self.in_flight.len())));
        self.in_flight.push(Some(packet));
    }

    /// Returns the time of the next arrival.
    pub fn next(&self) -> Option<Instant> {
        self.arrivals.peek().map(|Reverse((time, _))| *time)
    }

    /// Returns the next packet that has arrived by now.
    pub fn pop(&mut self, now: Instant) -> Option<InFlight<N>> {
        self.next().filter(|time| *time <= now)?;
        let Reverse((_, index)) = self.arrivals.pop()?;
        self.in_flight[index].take()
    }

    /// Returns the time at which a packet that a host sends now has left its port.
    pub fn leave(&mut self, from: usize, now: Instant, len: usize) -> Instant {
        let takes = Duration::from_nanos(len as u64 * NANOS_PER_100_BYTES / 100 + 10);
        let free = &mut self.free[from];
        *free = (*free).max(now).saturating_add(takes);
        *free
    }

    /// Sends a packet over a hop with these faults. `chance` is told each fault before it is done,
    /// and chooses the bit of a corruption. Returns whether the packet arrives.
    pub fn pass(
        &mut self,
        hop: Hop,
        time: Instant,
        mut packet: InFlight<N>,
        faults: &[Action],
        mut chance: impl FnMut(Action) -> usize,
    ) -> bool {
        let mut arrival = time.saturating_add(HOP_DELAY);
        let (mut is_lost, mut is_doubled) = (false, false);
        for &fault in faults {
            let chance = chance(fault);
            match fault {
                Action::Drop => is_lost = true,
                Action::Duplicate => is_doubled = true,
                Action::Delay(extra) => arrival = arrival.saturating_add(extra),
                Action::Corrupt => {
                    corrupt(&mut packet.bytes, chance);
                    packet.is_corrupted = true;
                }
                Action::Mark => {
                    mark(&mut packet.bytes);
                    packet.is_marked = true;
                }
                Action::Swap => unreachable!("no rule of these tests swaps packets"),
            }
        }
        if is_lost {
            return false;
        }
        packet.at = Some(match (packet.sender, hop) {
            (0, Hop::A) | (1, Hop::B) => 1,
            (0, Hop::B) => 2,
            _ => 0,
        });
        if is_doubled {
            let copy = InFlight { is_copy: true, ..packet.clone() };
            self.put(arrival.saturating_add(COPY_DELAY), copy);
        }
        self.put(arrival, packet);
        true
    }
}

/// The address of a host.
pub fn gid(number: u16, ipv6: bool) -> Gid {
    if ipv6 {
        Gid::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number))
    } else {
        Gid::from(Ipv4Addr::new(192, 0, 2, number as u8))
    }
}

/// A packet as it is on the wire, from the IP header to the ICRC.
pub fn sealed(path: &Path, packet: &mut [u8]) -> Vec<u8> {
    let headers = path.seal(packet);
    let (ip, udp) = headers.as_bytes();
    [ip, udp, packet].concat()
}
