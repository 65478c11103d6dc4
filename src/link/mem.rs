//! A network in memory, with faults by chance or by rule, in virtual time.
//!
//! It is a state machine as the engine is: packets are put in with the time, and come out when theirs has come. What
//! happens to a packet on the way is decided by a seeded generator, so the same seed gives the same decisions, or by a
//! [`Rule`] that names the packet. Packets travel as they would on a wire, from the IP header to the ICRC.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub use super::impairment::{Action, Faults, Rule};
use super::impairment::{Arrival, Decision, Impairments};
use crate::time::Instant;
use crate::wire::{Gid, Path, flip};

/// A packet that has arrived: from the IP header to the ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When.
    pub time: Instant,
    /// For whom.
    pub to: Gid,
    /// The packet.
    pub bytes: Vec<u8>,
}

/// The network.
#[derive(Debug)]
pub struct Network {
    impairments: Impairments,
    sent: u64,
    on_the_way: BinaryHeap<OnTheWay>,
}

#[derive(Debug)]
struct OnTheWay(Delivery, u64);

impl Network {
    /// A network with these faults, whose chances follow from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self { impairments: Impairments::new(faults, seed), sent: 0, on_the_way: BinaryHeap::new() }
    }

    /// Adds a fault rule.
    pub fn add_rule(&mut self, rule: Rule) {
        self.impairments.add_rule(rule);
    }

    /// Puts a packet in: from its BTH to the room for its ICRC, which is sealed.
    pub fn send(&mut self, now: Instant, path: &Path, packet: &mut [u8]) {
        let headers = path.seal(packet);
        let (ip, udp) = headers.as_bytes();
        let mut bytes = Vec::with_capacity(ip.len() + udp.len() + packet.len());
        bytes.extend_from_slice(ip);
        bytes.extend_from_slice(udp);
        bytes.extend_from_slice(packet);
        let to = path.destination;
        let decision = self.impairments.decide(now, to, packet, bytes.len());
        let Decision::Arrives(Arrival { time, again, corrupt, mark, .. }) = decision else {
            return;
        };
        if let Some(chance) = corrupt {
            let bits = bytes.len() as u64 * 8;
            flip(&mut bytes, u32::try_from(chance % bits).unwrap_or(0));
        }
        if mark {
            set_marks(&mut bytes);
        }
        if let Some(time) = again {
            self.put(Delivery { time, to, bytes: bytes.clone() });
        }
        self.put(Delivery { time, to, bytes });
    }

    /// The next time at which a packet arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.on_the_way.peek().map(|OnTheWay(delivery, _)| delivery.time)
    }

    /// The next packet that has arrived by `now`.
    #[must_use]
    pub fn poll_delivery(&mut self, now: Instant) -> Option<Delivery> {
        if self.poll_timeout()? > now {
            return None;
        }
        let OnTheWay(delivery, _) = self.on_the_way.pop()?;
        self.impairments.arrived(delivery.to);
        Some(delivery)
    }

    fn put(&mut self, delivery: Delivery) {
        self.sent += 1;
        self.on_the_way.push(OnTheWay(delivery, self.sent));
    }
}

/// Sets both bits of explicit congestion notification; no ICRC covers them.
fn set_marks(bytes: &mut [u8]) {
    match bytes {
        [first, second, ..] if *first >> 4 == 4 => *second |= 3,
        [first, second, ..] if *first >> 4 == 6 => *second |= 0x30,
        _ => {}
    }
}

impl PartialEq for OnTheWay {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OnTheWay {}

impl PartialOrd for OnTheWay {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OnTheWay {
    /// The earliest is the greatest, for a heap that gives the greatest first; of several, the one sent first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0.time, other.1).cmp(&(self.0.time, self.1))
    }
}
