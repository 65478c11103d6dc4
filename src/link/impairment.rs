//! What happens to a packet on the way: by chance, which a seeded generator rolls, or by rule.

use std::time::Duration;

use crate::random::Random;
use crate::time::Instant;
use crate::wire::{Bth, Gid, Psn, Qpn, view};

/// What a network does to packets by chance. Chances are in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// What is done to a packet by rule.
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

/// A fault rule: the packet to this queue pair with this PSN, when it passes for the nth time (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Decides over packets, one after the other. The same seed gives the same decisions for the same packets.
#[derive(Debug)]
pub(super) struct Impairments {
    faults: Faults,
    rules: Vec<(Rule, u32)>,
    random: Random,
    /// When the way to a receiver is free again, and how many packets wait for it.
    ways: Vec<(Gid, Instant, usize)>,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is lost.
    Lost,
    /// It is lost because too many wait already.
    QueueFull,
    /// It arrives.
    Arrives(Arrival),
}

/// How a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// When.
    pub(super) time: Instant,
    /// When it arrives once more, if it does.
    pub(super) again: Option<Instant>,
    /// Whether a bit changes, and a number that says which.
    pub(super) corrupt: Option<u64>,
    /// Whether it is marked.
    pub(super) mark: bool,
    /// Whether it is held back so that others pass it.
    pub(super) held: bool,
}

/// What chances and rules come to, before the way is looked at.
struct Cast {
    lost: bool,
    twice: bool,
    corrupt: bool,
    mark: bool,
    extra: Duration,
}

impl Impairments {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, rules: Vec::new(), random: Random::new(seed), ways: Vec::new() }
    }

    /// Adds a fault rule.
    pub(super) fn add_rule(&mut self, rule: Rule) {
        self.rules.push((rule, 0));
    }

    /// What happens to `packet`, from its BTH on, which is sent to `to` now and takes `wire_len` bytes of the way.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        to: Gid,
        packet: &[u8],
        wire_len: usize,
    ) -> Decision {
        let cast = self.cast(packet);
        if cast.lost {
            return Decision::Lost;
        }
        let corrupt = cast.corrupt.then(|| self.random.next());
        let Some(time) = self.arrival(now, to, wire_len) else { return Decision::QueueFull };
        let time = time.saturating_add(cast.extra);
        let again = cast.twice.then(|| time.saturating_add(self.faults.delay));
        let held = !cast.extra.is_zero();
        Decision::Arrives(Arrival { time, again, corrupt, mark: cast.mark, held })
    }

    /// A packet for `to` has arrived, and no longer waits.
    pub(super) fn arrived(&mut self, to: Gid) {
        if let Some(way) = self.ways.iter_mut().find(|(known, ..)| *known == to) {
            way.2 = way.2.saturating_sub(1);
        }
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

    fn cast(&mut self, packet: &[u8]) -> Cast {
        let Faults { loss, duplicate, reorder, corrupt, mark, delay, .. } = self.faults;
        let held_back = if delay.is_zero() { HELD_BACK } else { delay * 3 };
        let mut cast = Cast {
            lost: self.chance(loss),
            twice: self.chance(duplicate),
            corrupt: self.chance(corrupt),
            mark: self.chance(mark),
            extra: if self.chance(reorder) { held_back } else { Duration::ZERO },
        };
        let Ok(bth) = view::<Bth>(packet, 0) else { return cast };
        for (rule, passed) in &mut self.rules {
            if (rule.qp, rule.psn) != (bth.dest_qp(), bth.psn()) {
                continue;
            }
            *passed += 1;
            if *passed != rule.nth {
                continue;
            }
            match rule.action {
                Action::Drop => cast.lost = true,
                Action::Duplicate => cast.twice = true,
                Action::Delay(extra) => cast.extra += extra,
                Action::Corrupt => cast.corrupt = true,
                Action::Mark => cast.mark = true,
            }
        }
        cast
    }

    fn chance(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.random.next() % 1_000_000 < u64::from(millionths)
    }
}

/// How long a packet is held back that others are to pass, where packets take no time by themselves.
const HELD_BACK: Duration = Duration::from_micros(100);
