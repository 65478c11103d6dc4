//! A network in memory, with faults by chance or by appointment, in virtual time.
//!
//! It is a state machine as the engine is: packets are put in with the time, and come out when theirs has come. What
//! happens to a packet on the way is decided by a seeded generator, so the same seed gives the same fate, or by a
//! [`Rule`] that names the packet. Packets travel as they would on a wire, from the IP header to the ICRC.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::random::Random;
use crate::time::Instant;
use crate::wire::{Bth, Gid, Path, Psn, Qpn, view};

/// What a network does to packets by chance. Chances are in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// How long a packet takes.
    pub delay: Duration,
    /// How much longer it may take, at the most.
    pub jitter: Duration,
    /// The chance that it is lost.
    pub loss: u32,
    /// The chance that it arrives twice.
    pub duplicate: u32,
    /// The chance that it is held back until others have passed.
    pub reorder: u32,
    /// The chance that a bit of it changes.
    pub corrupt: u32,
    /// The chance that it is marked: congestion experienced.
    pub mark: u32,
    /// How many bits a second pass, for each receiver; 0 is any number.
    pub bits_per_second: u64,
    /// How many packets wait for a receiver before further ones are lost; 0 is any number.
    pub queue: usize,
}

/// What is done to a packet by appointment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives so much later.
    Delay(Duration),
    /// A bit of it changes.
    Corrupt,
    /// It is marked: congestion experienced.
    Mark,
}

/// An appointment: the packet to this queue pair with this PSN, when it passes for the nth time (from 1).
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The queue pair that it is for.
    pub qp: Qpn,
    /// Its PSN.
    pub psn: Psn,
    /// Which time.
    pub nth: u32,
    /// What is done.
    pub action: Action,
}

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
    faults: Faults,
    rules: Vec<(Rule, u32)>,
    random: Random,
    sent: u64,
    on_the_way: BinaryHeap<OnTheWay>,
    /// When the way to a receiver is free again, and how many packets wait for it.
    ways: Vec<(Gid, Instant, usize)>,
}

#[derive(Debug)]
struct OnTheWay(Delivery, u64);

impl Network {
    /// A network with these faults, whose chances follow from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            rules: Vec::new(),
            random: Random::new(seed),
            sent: 0,
            on_the_way: BinaryHeap::new(),
            ways: Vec::new(),
        }
    }

    /// Makes an appointment.
    pub fn add_rule(&mut self, rule: Rule) {
        self.rules.push((rule, 0));
    }

    /// Puts a packet in: from its BTH to the room for its ICRC, which is sealed.
    pub fn send(&mut self, now: Instant, path: &Path, packet: &mut [u8]) {
        let headers = path.seal(packet);
        let (ip, udp) = headers.as_bytes();
        let mut bytes = Vec::with_capacity(ip.len() + udp.len() + packet.len());
        bytes.extend_from_slice(ip);
        bytes.extend_from_slice(udp);
        bytes.extend_from_slice(packet);
        let fate = self.fate(packet);
        if fate.lost {
            return;
        }
        if fate.corrupt {
            let bit = usize::try_from(self.random.next()).unwrap_or(0) % (bytes.len() * 8);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 0x80 >> (bit % 8);
            }
        }
        if fate.mark {
            mark(&mut bytes);
        }
        let Some(time) = self.arrival(now, path.destination, bytes.len()) else { return };
        let time = time.saturating_add(fate.extra);
        if fate.twice {
            let again = time.saturating_add(self.faults.delay);
            self.put(Delivery { time: again, to: path.destination, bytes: bytes.clone() });
        }
        self.put(Delivery { time, to: path.destination, bytes });
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
        if let Some(way) = self.ways.iter_mut().find(|(to, ..)| *to == delivery.to) {
            way.2 = way.2.saturating_sub(1);
        }
        Some(delivery)
    }

    fn put(&mut self, delivery: Delivery) {
        self.sent += 1;
        self.on_the_way.push(OnTheWay(delivery, self.sent));
    }

    /// When a packet of `len` bytes arrives, or `None` if there is no room for it on the way.
    fn arrival(&mut self, now: Instant, to: Gid, len: usize) -> Option<Instant> {
        let jitter = u64::try_from(self.faults.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = if jitter == 0 { 0 } else { self.random.next() % jitter };
        let faults = self.faults;
        let at = match self.ways.iter().position(|(known, ..)| *known == to) {
            Some(at) => at,
            None => {
                self.ways.push((to, now, 0));
                self.ways.len() - 1
            }
        };
        let (_, free, waiting) = self.ways.get_mut(at)?;
        if faults.queue > 0 && *waiting >= faults.queue {
            return None;
        }
        *waiting += 1;
        let bits = len as u64 * 8;
        let busy = bits.saturating_mul(1_000_000_000).checked_div(faults.bits_per_second);
        *free = (*free).max(now).saturating_add(Duration::from_nanos(busy.unwrap_or(0)));
        Some(free.saturating_add(faults.delay).saturating_add(Duration::from_nanos(jitter)))
    }

    /// What happens to a packet.
    fn fate(&mut self, packet: &[u8]) -> Fate {
        let Faults { loss, duplicate, reorder, corrupt, mark, delay, .. } = self.faults;
        let mut fate = Fate {
            lost: self.chance(loss),
            twice: self.chance(duplicate),
            corrupt: self.chance(corrupt),
            mark: self.chance(mark),
            extra: if self.chance(reorder) { delay * 3 } else { Duration::ZERO },
        };
        let Ok(bth) = view::<Bth>(packet, 0) else { return fate };
        for (rule, passed) in &mut self.rules {
            if (rule.qp, rule.psn) != (bth.dest_qp(), bth.psn()) {
                continue;
            }
            *passed += 1;
            if *passed != rule.nth {
                continue;
            }
            match rule.action {
                Action::Drop => fate.lost = true,
                Action::Duplicate => fate.twice = true,
                Action::Delay(extra) => fate.extra += extra,
                Action::Corrupt => fate.corrupt = true,
                Action::Mark => fate.mark = true,
            }
        }
        fate
    }

    fn chance(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.random.next() % 1_000_000 < u64::from(millionths)
    }
}

/// What happens to a packet.
struct Fate {
    lost: bool,
    twice: bool,
    corrupt: bool,
    mark: bool,
    extra: Duration,
}

/// Sets both bits of explicit congestion notification; no ICRC covers them.
fn mark(bytes: &mut [u8]) {
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
