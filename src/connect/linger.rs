//! Time that the end of a connection waits for what was posted.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::deadline::{Deadline, now};
use super::manager::Shared;
use crate::verbs::{QpHandle, QpState};

/// Time that a dropped connection waits until the peer has acknowledged what was posted to its
/// queue pair: several retransmission timeouts of half a second each, by which alone the loss of a
/// last packet is noticed.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// Shortest and longest time between two looks at a send queue.
const LOOKS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// The time that dropped connections of one manager wait. Their queue pairs drain at the same time,
/// so connections that are dropped one after the other wait together no longer than one.
#[derive(Debug, Default)]
pub(super) struct Linger(Mutex<Option<Burst>>);

/// Connections that are dropped one after the other.
#[derive(Clone, Copy, Debug)]
struct Burst {
    began: Instant,
    latest: Instant,
}

impl Linger {
    /// Returns until when a connection waits that is dropped now.
    pub(super) fn deadline(&self) -> Deadline {
        let mut burst = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now();
        let began = match *burst {
            Some(burst) if now.duration_since(burst.latest) < LINGER => burst.began,
            _ => now,
        };
        *burst = Some(Burst { began, latest: now });
        Deadline::after(LINGER.saturating_sub(now.duration_since(began)))
    }
}

impl Shared {
    /// Waits until every work request of the send queue is acknowledged, or has failed, but not
    /// beyond the deadline. A device that cannot tell is not waited for.
    pub(super) fn drain(&self, qp: QpHandle, deadline: Deadline) {
        let is_pending = || {
            self.nic.is_send_queue_empty(qp) == Some(false)
                && self.nic.qp_state(qp) == Some(QpState::Rts)
        };
        let [mut pause, longest] = LOOKS;
        while is_pending() && !deadline.has_passed() {
            thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_are_dropped_one_after_the_other_share_one_wait() {
        let linger = Linger::default();
        let first = linger.deadline().remaining().unwrap();
        thread::sleep(Duration::from_millis(20));
        let second = linger.deadline().remaining().unwrap();
        assert!(first <= LINGER && second + Duration::from_millis(20) <= first.max(LINGER));
    }
}
