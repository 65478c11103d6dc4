//! Times of queue pairs that come in order, because each is one fixed time after the call that adds
//! it: ends of delayed ACKs, checks of the age of gaps.

use std::collections::VecDeque;

use crate::table::SlotId;
use crate::time::Instant;

/// Times of queue pairs, earliest first.
#[derive(Debug, Default)]
pub(super) struct DueQueue(VecDeque<(Instant, SlotId)>);

impl DueQueue {
    /// Earliest time.
    #[inline]
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    /// Adds a time, not earlier than those before.
    pub(super) fn push(&mut self, at: Instant, slot: SlotId) {
        debug_assert!(self.0.back().is_none_or(|(last, _)| *last <= at), "times come in order");
        self.0.push_back((at, slot));
    }

    /// Removes the earliest time if it has come by `now`, or in any case if `now` is `None`.
    pub(super) fn pop(&mut self, now: Option<Instant>) -> Option<(Instant, SlotId)> {
        let next = self.next()?;
        if now.is_some_and(|now| next > now) {
            return None;
        }
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_removed_when_they_have_come() {
        let (at, mut queue) = (Instant::from_nanos, DueQueue::default());
        for (time, slot) in [(10, 1), (10, 2), (30, 1)] {
            queue.push(at(time), SlotId(slot));
        }
        assert_eq!((queue.next(), queue.pop(Some(at(9)))), (Some(at(10)), None));
        assert_eq!(queue.pop(Some(at(10))), Some((at(10), SlotId(1))));
        assert_eq!(queue.pop(Some(at(29))), Some((at(10), SlotId(2))));
        assert_eq!(queue.pop(Some(at(29))), None);
        assert_eq!(queue.pop(None), Some((at(30), SlotId(1))));
        assert_eq!((queue.next(), queue.pop(None)), (None, None));
    }
}
