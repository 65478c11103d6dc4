//! Turns at a device: one instance after the other, in the order in which they asked.
//!
//! The faults of an instance and the events of a device are for the device as a whole, so instances cannot share it.
//! While others wait, a turn lasts [`SHARE`] at most.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::now;

/// How long an instance may hold the device while others wait for it.
const SHARE: Duration = Duration::from_secs(10);

/// Who waits for a device. The first one has it.
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

/// The device is one's own until this is dropped.
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

    /// Waits for one's turn, for so long; `None` if it did not come.
    pub(super) fn wait(&self, within: Duration) -> Option<Turn<'_>> {
        let mut queue = self.lock();
        queue.issued += 1;
        let ticket = queue.issued;
        queue.tickets.push_back(ticket);
        let first = |queue: &mut Queue| queue.tickets.front() != Some(&ticket);
        let waited = self.moved.wait_timeout_while(queue, within, first);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.tickets.front() == Some(&ticket) {
            return Some(Turn { turns: self, ticket, since: now() });
        }
        queue.tickets.retain(|it| *it != ticket);
        None
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

    #[test]
    fn turns_are_taken_in_order_and_a_wait_ends() {
        let turns = Turns::default();
        let first = turns.wait(Duration::ZERO).unwrap();
        assert!(turns.wait(Duration::from_millis(1)).is_none(), "it is taken");
        assert_eq!(turns.lock().tickets.len(), 1, "who gave up does not stand in line");
        assert!(!first.is_over());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| turns.wait(Duration::from_secs(60)).is_some());
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
        assert!(turns.wait(Duration::ZERO).is_some());
    }
}
