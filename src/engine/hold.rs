//! Acknowledgements that are held back for a moment, because the next may do for both.
//!
//! Two programs that talk to each other, a message there and one back, mostly do not wait for acknowledgements: each
//! goes on when it is answered. Then one acknowledgement for several messages saves both sides the others. But a
//! program may as well wait for it before it goes on. So one is held back only behind a message to the same peer, for
//! [`ack_hold`](super::Config::ack_hold) at the longest, and what the peer does meanwhile tells which kind it is: if
//! nothing comes from it while its acknowledgement is held back, none is for a while, and for twice as long each time
//! that this happens again.

use std::collections::VecDeque;

use super::ids::Place;
use crate::time::Instant;

/// How many packets may come from a peer while its acknowledgement is held back.
const PACKETS_MAX: u8 = 16;

/// For how many messages nothing is held back at the most, because the peer waited when it was.
const SHY_MAX: u16 = 1023;

/// What a queue pair holds back, and whether it should.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hold {
    /// Until when, if an acknowledgement is held back.
    until: Option<Instant>,
    /// How many packets came meanwhile.
    packets: u8,
    /// For how many messages nothing is held back, and for how many it was last time.
    shy: u16,
    was_shy: u16,
}

impl Hold {
    /// Whether the acknowledgement that is owed may wait, and until when it does, of which `queue` is told.
    pub(super) fn begin(&mut self, until: Instant, place: Place, queue: &mut Queue) -> bool {
        if self.until.is_some() {
            return self.packets < PACKETS_MAX;
        }
        if self.shy > 0 {
            self.shy -= 1;
            return false;
        }
        (self.until, self.packets) = (Some(until), 0);
        queue.0.push_back((until, place));
        true
    }

    /// Whether something is held back.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// A request came that continues what came before.
    #[inline]
    pub(super) fn note_request(&mut self) {
        self.packets = self.packets.saturating_add(1);
    }

    /// What was held back has gone out, or is owed no longer.
    #[inline]
    pub(super) fn end(&mut self) {
        self.until = None;
    }

    /// The time is over at which it said `until`: whether it still held anything back.
    fn is_over(&mut self, until: Instant) -> bool {
        if self.until != Some(until) {
            return false;
        }
        self.until = None;
        if self.packets == 0 {
            self.was_shy = (2 * self.was_shy + 1).min(SHY_MAX);
            self.shy = self.was_shy;
        } else {
            self.was_shy = 0;
        }
        true
    }
}

/// Who holds something back, and until when, in this order: for all it is equally long.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<(Instant, Place)>);

impl Queue {
    /// When the next is over.
    #[inline]
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(|(until, _)| *until)
    }

    /// The next that is over by `now`, or any with `None`.
    pub(super) fn pop(&mut self, now: Option<Instant>) -> Option<(Instant, Place)> {
        let next = self.next()?;
        if now.is_some_and(|now| next > now) {
            return None;
        }
        self.0.pop_front()
    }
}

impl super::qp::Qp {
    /// The time is over at which it said `until`: what it still holds back goes out with its next turn.
    pub(super) fn hold_no_longer(&mut self, until: Instant, env: &mut super::qp::Env) {
        if self.resp.hold.is_over(until) && self.resp.owes() {
            self.resp.passed_over = true;
            self.schedule(env);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place(7);

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_peer_that_waits_is_soon_not_kept_waiting() {
        let (mut hold, mut queue) = (Hold::default(), Queue::default());
        let mut held = Vec::new();
        for message in 0..5000 {
            if hold.begin(at(message), PLACE, &mut queue) {
                held.push(message);
                let (until, place) = queue.pop(Some(at(message))).unwrap();
                assert_eq!((until, place), (at(message), PLACE));
                assert!(hold.is_over(until));
            }
        }
        assert_eq!(held, [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 2046, 3070, 4094]);
    }

    #[test]
    fn a_peer_that_goes_on_is_acknowledged_when_the_time_is_over_or_enough_came() {
        let (mut hold, mut queue) = (Hold::default(), Queue::default());
        for round in 1..100 {
            assert!(hold.begin(at(round * 10), PLACE, &mut queue));
            hold.note_request();
            assert!(hold.begin(at(round * 10 + 5), PLACE, &mut queue), "it is held back already");
            assert_eq!(queue.pop(Some(at(round * 10 - 1))), None);
            let (until, _) = queue.pop(Some(at(round * 10))).unwrap();
            assert!(hold.is_over(until));
        }
        assert!(hold.begin(at(5000), PLACE, &mut queue));
        (0..PACKETS_MAX).for_each(|_| hold.note_request());
        assert!(!hold.begin(at(5001), PLACE, &mut queue));
    }

    #[test]
    fn what_has_gone_out_is_not_held_back() {
        let (mut hold, mut queue) = (Hold::default(), Queue::default());
        assert!(hold.begin(at(10), PLACE, &mut queue));
        hold.end();
        let (until, _) = queue.pop(None).unwrap();
        assert!(!hold.is_over(until));
        assert_eq!(queue.next(), None);
    }
}
