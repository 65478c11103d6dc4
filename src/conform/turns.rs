//! Turns at a device: one instance after the other, in the order in which they asked.
//!
//! The faults of an instance and the events of a device are for the device as a whole, so instances
//! cannot share it. While others wait, a turn lasts [`SHARE`] at most.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::now;
use super::play::CHECK_INTERVAL;

/// Maximum time for which an instance holds the device while others wait for it.
const SHARE: Duration = Duration::from_secs(10);

/// Queue of the clients of a device. The first one has it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    tickets: VecDeque<u64>,
    issued: u64,
}

/// Exclusive use of the device, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    ticket: u64,
    since: Instant,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a client's turn; `None` if it did not come within this time. Asks `is_gone` every
    /// [`CHECK_INTERVAL`] whether the client is gone, and waits no longer if it is.
    pub(super) fn wait(
        &self,
        within: Duration,
        mut is_gone: impl FnMut() -> bool,
    ) -> Option<Turn<'_>> {
        let until = now() + within;
        let mut queue = self.lock();
        queue.issued += 1;
        let ticket = queue.issued;
        queue.tickets.push_back(ticket);
        let mut gone = false;
        loop {
            if queue.tickets.front() == Some(&ticket) {
                return Some(Turn { turns: self, ticket, since: now() });
            }
            let left = until.saturating_duration_since(now());
            if gone || left.is_zero() {
                queue.tickets.retain(|it| *it != ticket);
                return None;
            }
            let waited = self.moved.wait_timeout(queue, left.min(CHECK_INTERVAL));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            gone = is_gone();
            queue = self.lock();
        }
    }
}

impl Turn<'_> {
    /// Whether others wait for the device.
    pub(super) fn is_contended(&self) -> bool {
        self.turns.lock().tickets.len() > 1
    }

    /// Whether the device has been held for long enough, because others wait for it.
    pub(super) fn is_over(&self) -> bool {
        self.since.elapsed() >= SHARE && self.is_contended()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().tickets.retain(|it| *it != self.ticket);
        self.turns.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> bool {
        false
    }

    #[test]
    fn a_client_that_is_gone_does_not_wait_for_its_turn() {
        let turns = Turns::default();
        let first = turns.wait(Duration::ZERO, here).unwrap();
        let mut asked = 0;
        let gone = || {
            asked += 1;
            asked == 2
        };
        assert!(turns.wait(Duration::from_secs(3600), gone).is_none());
        assert_eq!(asked, 2);
        assert!(!first.is_contended(), "it does not stand in line");
    }

    #[test]
    fn turns_are_taken_in_order_and_a_wait_ends() {
        let turns = Turns::default();
        let first = turns.wait(Duration::ZERO, here).unwrap();
        assert!(turns.wait(Duration::from_millis(1), here).is_none(), "it is taken");
        assert_eq!(turns.lock().tickets.len(), 1, "who gave up does not stand in line");
        assert!(!first.is_over());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| turns.wait(Duration::from_secs(60), here).is_some());
            while turns.lock().tickets.len() < 2 {
                std::thread::yield_now();
            }
            assert!(!first.is_over(), "its share is not used up");
            let late = Turn { since: first.since - SHARE, turns: &turns, ticket: first.ticket };
            assert!(late.is_over(), "others wait");
            drop(late);
            drop(first);
            assert!(second.join().unwrap());
        });
        assert!(turns.wait(Duration::ZERO, here).is_some());
    }
}
