//! Frames on their way through the middlebox.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::fault::{Effect, Reordering};
use crate::log::Direction;
use crate::packet::Packet;

/// Maximum number of frames that are held at a time.
const HELD_MAX: usize = 1 << 16;

/// Time after which a packet departs although too few others have passed it.
const HOLD_MAX: Duration = Duration::from_millis(50);

/// A frame that departs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) direction: Direction,
    pub(crate) frame: Vec<u8>,
    /// The packet in it, with its number, if it is one of RoCEv2.
    pub(crate) packet: Option<(u64, Packet)>,
    pub(crate) copies: u32,
    pub(crate) fault: &'static str,
}

impl Due {
    /// Whether another packet of the same direction arrived later.
    fn is_passed_by(&self, other: &Self) -> bool {
        let numbers = [self, other].map(|due| due.packet.as_ref().map(|(number, _)| *number));
        self.direction == other.direction && numbers[0].is_some() && numbers[0] < numbers[1]
    }
}

/// Orders by time, then by arrival.
#[derive(Debug, PartialEq, Eq)]
struct Timed {
    at: Instant,
    number: u64,
    due: Due,
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A packet that others pass.
#[derive(Debug)]
struct Waiting {
    /// Number of packets that have yet to pass it.
    left: u32,
    until: Instant,
    due: Due,
}

/// Frames that have arrived and not departed.
#[derive(Debug, Default)]
pub(crate) struct Held {
    timed: BinaryHeap<Reverse<Timed>>,
    waiting: Vec<Waiting>,
    arrived: u64,
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.timed.is_empty() && self.waiting.is_empty()
    }

    /// Time at which the next frame departs, if no other does before.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let timed = self.timed.peek().map(|Reverse(it)| it.at);
        timed.into_iter().chain(self.waiting.iter().map(|it| it.until)).min()
    }

    /// Keeps a frame until it departs. Returns whether there was room.
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        direction: Direction,
        frame: &[u8],
        packet: Option<(u64, Packet)>,
        effect: &Effect,
    ) -> bool {
        if self.timed.len() + self.waiting.len() >= HELD_MAX {
            return false;
        }
        let (copies, fault) = (1 + u32::from(effect.duplicated), effect.name());
        let due = Due { direction, frame: frame.to_vec(), packet, copies, fault };
        let mut at = now + effect.delay;
        match effect.reordering {
            Some(Reordering::Packets(left)) => {
                let until = at + HOLD_MAX;
                self.waiting.push(Waiting { left, until, due });
                return true;
            }
            Some(Reordering::Time(time)) => at += time,
            None => {}
        }
        self.arrived += 1;
        self.timed.push(Reverse(Timed { at, number: self.arrived, due }));
        true
    }

    /// Returns the next frame that departs.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Due> {
        if let Some(at) = self.waiting.iter().position(|it| it.left == 0 || it.until <= now) {
            return Some(self.waiting.remove(at).due);
        }
        self.timed.peek().filter(|Reverse(it)| it.at <= now)?;
        let Reverse(Timed { due, .. }) = self.timed.pop()?;
        let passed = self.waiting.iter_mut().filter(|it| it.due.is_passed_by(&due));
        passed.for_each(|it| it.left = it.left.saturating_sub(1));
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(effects: &[Effect]) -> (Held, Instant) {
        let (mut held, now) = (Held::default(), Instant::now());
        for (number, effect) in (0..).zip(effects) {
            let packet = Packet::of(&crate::packet::tests::frame()).unwrap();
            held.hold(now, Direction::There, &[number], Some((number.into(), packet)), effect);
        }
        (held, now)
    }

    fn order(held: &mut Held, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| held.take(now)).map(|due| due.frame[0]).collect()
    }

    #[test]
    fn packet_is_held_until_others_have_passed() {
        let late = Effect { reordering: Some(Reordering::Packets(2)), ..Effect::default() };
        let plain = Effect::default;
        let (mut all, now) = held(&[late.clone(), plain(), plain(), plain()]);
        assert_eq!(order(&mut all, now), [1, 2, 0, 3]);
        // Those that arrived before it do not pass it.
        let (mut all, now) = held(&[plain(), plain(), late.clone(), plain(), plain()]);
        assert_eq!(order(&mut all, now), [0, 1, 3, 4, 2]);
        // If none comes, it departs in the end.
        let (mut alone, now) = held(&[late]);
        assert_eq!(order(&mut alone, now), []);
        let end = alone.next_due().unwrap();
        assert_eq!(order(&mut alone, end), [0]);
        assert!(alone.is_empty());
    }

    #[test]
    fn packet_is_held_for_a_time() {
        let time = Duration::from_millis(1);
        let late = Effect { reordering: Some(Reordering::Time(time)), ..Effect::default() };
        let (mut all, now) = held(&[late, Effect::default()]);
        assert_eq!(order(&mut all, now), [1]);
        assert_eq!(order(&mut all, now + time), [0]);
    }

    #[test]
    fn delay_keeps_the_order() {
        let delayed = Effect { delay: Duration::from_millis(5), ..Effect::default() };
        let (mut all, now) = held(&[delayed.clone(), delayed]);
        assert_eq!(order(&mut all, now), []);
        assert_eq!(order(&mut all, now + Duration::from_millis(5)), [0, 1]);
    }
}
