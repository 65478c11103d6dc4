//! Impairments of packets: by chance, which a seeded generator decides, or by rule.

use std::time::Duration;

use super::rule::{Action, Rule, Rules};
use crate::capture::Direction;
use crate::random::Random;
use crate::time::Instant;
use crate::wire::Gid;

/// Impairments by chance. Chances are in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Delay of every packet.
    pub delay: Duration,
    /// Maximum additional delay.
    pub jitter: Duration,
    /// Probability of loss, in parts per million.
    pub loss: u32,
    /// Probability of duplication, in parts per million.
    pub duplicate: u32,
    /// The chance that it is held back until others have passed.
    pub reorder: u32,
    /// The chance that a bit of it changes.
    pub corrupt: u32,
    /// The chance that it is marked: congestion experienced.
    pub mark: u32,
    /// Bandwidth in bits a second, for each receiver; 0 is no limit.
    pub bits_per_second: u64,
    /// Maximum number of packets that wait for a receiver before further ones are lost; 0 is no
    /// limit.
    pub queue: usize,
}

/// Decides over packets, one after the other. The same seed gives the same decisions for the same
/// packets.
#[derive(Debug)]
pub(in crate::link) struct Impairments {
    faults: Faults,
    rules: Rules,
    random: Random,
    /// Receivers, each with the time when its link is free, and the number of packets that wait for
    /// it.
    receivers: Vec<(Gid, Instant, usize)>,
}

/// Decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum Decision {
    /// The packet is lost.
    Lost(Loss),
    /// The packet arrives.
    Arrives(Arrival),
}

/// Cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum Loss {
    /// Chance.
    Chance,
    /// The rule with this number drops it.
    Rule(usize),
    /// The receiver's queue is full.
    QueueFull,
}

/// Arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) struct Arrival {
    /// Time of arrival.
    pub(in crate::link) time: Instant,
    /// Time of arrival of a duplicate.
    pub(in crate::link) again: Option<Instant>,
    /// Whether a bit changes, and a number that says which.
    pub(in crate::link) corrupt: Option<u64>,
    /// Whether it is marked.
    pub(in crate::link) mark: bool,
    /// Whether it is held back so that others pass it.
    pub(in crate::link) late: bool,
    /// Whether it arrives behind the next one.
    pub(in crate::link) swap: bool,
}

#[cfg(feature = "conform")]
impl Arrival {
    /// The arrival of a packet that no fault applies to.
    pub(in crate::link) fn at(time: Instant) -> Self {
        Self { time, again: None, corrupt: None, mark: false, late: false, swap: false }
    }
}

/// Result of chances and rules, before the receiver's queue is considered.
#[derive(Default)]
struct Impairment {
    lost: Option<Loss>,
    twice: bool,
    corrupt: bool,
    mark: bool,
    swap: bool,
    extra: Duration,
}

impl Impairments {
    pub(in crate::link) fn new(faults: Faults, rules: Rules, seed: u64) -> Self {
        Self { faults, rules, random: Random::new(seed), receivers: Vec::new() }
    }

    /// Adds a fault rule.
    pub(in crate::link) fn add_rule(&mut self, rule: Rule) {
        self.rules.add(rule);
    }

    /// Puts other rules in the place of those that there are.
    pub(super) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// The rules, and how often each did something.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Decides about `packet`, from its BTH on, which is sent to `to` now and takes `wire_len`
    /// bytes on the wire.
    pub(in crate::link) fn decide(
        &mut self,
        now: Instant,
        to: Gid,
        packet: &[u8],
        wire_len: usize,
    ) -> Decision {
        let impairment = self.by_chance();
        let impairment = self.by_rule(Direction::Outbound, packet, impairment);
        if let Some(loss) = impairment.lost {
            return Decision::Lost(loss);
        }
        let corrupt = impairment.corrupt.then(|| self.random.next());
        let Some(time) = self.arrival(now, to, wire_len) else {
            return Decision::Lost(Loss::QueueFull);
        };
        Decision::Arrives(self.arrives(time, corrupt, &impairment))
    }

    /// Decides by the rules alone about a packet that passes in this direction.
    pub(super) fn decide_by_rule(
        &mut self,
        now: Instant,
        direction: Direction,
        packet: &[u8],
    ) -> Decision {
        let impairment = self.by_rule(direction, packet, Impairment::default());
        if let Some(loss) = impairment.lost {
            return Decision::Lost(loss);
        }
        let corrupt = impairment.corrupt.then(|| self.random.next());
        Decision::Arrives(self.arrives(now, corrupt, &impairment))
    }

    fn arrives(&self, time: Instant, corrupt: Option<u64>, impairment: &Impairment) -> Arrival {
        let time = time.saturating_add(impairment.extra);
        let again = impairment.twice.then(|| time.saturating_add(self.faults.delay));
        let (mark, late, swap) = (impairment.mark, !impairment.extra.is_zero(), impairment.swap);
        Arrival { time, again, corrupt, mark, late, swap }
    }

    /// A packet for `to` has arrived, and no longer waits.
    pub(in crate::link) fn arrived(&mut self, to: Gid) {
        if let Some(receiver) = self.receivers.iter_mut().find(|(known, ..)| *known == to) {
            receiver.2 = receiver.2.saturating_sub(1);
        }
    }

    /// Returns the time at which a packet of `len` bytes arrives, or `None` if too many wait for
    /// its receiver.
    fn arrival(&mut self, now: Instant, to: Gid, len: usize) -> Option<Instant> {
        let jitter = u64::try_from(self.faults.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = if jitter == 0 { 0 } else { self.random.next() % jitter };
        let faults = self.faults;
        let at = match self.receivers.iter().position(|(known, ..)| *known == to) {
            Some(at) => at,
            None => {
                self.receivers.push((to, now, 0));
                self.receivers.len() - 1
            }
        };
        let (_, free, waiting) = self.receivers.get_mut(at)?;
        if faults.queue > 0 && *waiting >= faults.queue {
            return None;
        }
        *waiting += 1;
        let bits = len as u64 * 8;
        let busy = bits.saturating_mul(1_000_000_000).checked_div(faults.bits_per_second);
        *free = (*free).max(now).saturating_add(Duration::from_nanos(busy.unwrap_or(0)));
        Some(free.saturating_add(faults.delay).saturating_add(Duration::from_nanos(jitter)))
    }

    fn by_chance(&mut self) -> Impairment {
        let Faults { loss, duplicate, reorder, corrupt, mark, delay, .. } = self.faults;
        let held_back = if delay.is_zero() { HELD_BACK } else { delay * 3 };
        Impairment {
            lost: self.chance(loss).then_some(Loss::Chance),
            twice: self.chance(duplicate),
            corrupt: self.chance(corrupt),
            mark: self.chance(mark),
            swap: false,
            extra: if self.chance(reorder) { held_back } else { Duration::ZERO },
        }
    }

    fn by_rule(
        &mut self,
        direction: Direction,
        packet: &[u8],
        mut impairment: Impairment,
    ) -> Impairment {
        self.rules.pass(direction, packet, |number, action| match action {
            Action::Drop => impairment.lost = Some(Loss::Rule(number)),
            Action::Duplicate => impairment.twice = true,
            Action::Delay(extra) => impairment.extra += extra,
            Action::Swap => impairment.swap = true,
            Action::Corrupt => impairment.corrupt = true,
            Action::Mark => impairment.mark = true,
        });
        impairment
    }

    fn chance(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.random.next() % 1_000_000 < u64::from(millionths)
    }
}

/// Delay of a packet that others are to pass, where packets take no time by themselves.
const HELD_BACK: Duration = Duration::from_micros(100);
