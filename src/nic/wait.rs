//! Wait policy: a thread that waits for an event drives the NIC itself for a while before it
//! sleeps, if its last waits were short.
//!
//! One of the threads that sleep in [`EventQueue`](super::EventQueue) listens: it wakes for
//! packets, and receives them by itself, so that a message wakes its program at once and not after
//! the progress thread. A round trip to a program that sleeps takes a fifth less time. While a
//! thread drives or listens, packets do not wake the [progress thread](super::packet_watch), but
//! those that it leaves do.
//!
//! A sleeping thread costs two wake-ups for each message, the progress thread's and then its own,
//! and 20 µs on both sides of a ping-pong. A thread that drives meanwhile needs neither, and takes
//! no more processor time than the wake-ups would have taken as long as events come soon. Where
//! they do not, it tries ever more rarely.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::core::Work;
use super::event_queue::which_readable;
use super::shared::Shared;
use crate::time::Instant;

/// Maximum time for which a waiting thread drives the NIC before it sleeps: longer than the round
/// trip to a peer that has to be woken first.
const DRIVE_MAX: Duration = Duration::from_micros(50);

/// Maximum number of waits that only sleep, after waits in which driving was in vain. Their number
/// doubles each time.
const SLEEPS_MAX: u8 = 128;

/// Maximum number of receives at the end, while packets keep coming.
const LAST_RECEIVES_MAX: usize = 4;

/// Decides for a thread that waits whether it drives first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WaitPolicy {
    /// Number of waits to come that only sleep, and how many it was to be the last time.
    sleeps: u8,
    last_sleeps: u8,
}

thread_local! {
    static POLICY: Cell<WaitPolicy> = const { Cell::new(WaitPolicy::NEW) };
}

impl WaitPolicy {
    const NEW: Self = Self { sleeps: 0, last_sleeps: 0 };

    /// A wait begins; returns whether the thread drives first.
    fn begin(&mut self) -> bool {
        let drives = self.sleeps == 0;
        self.sleeps = self.sleeps.saturating_sub(1);
        drives
    }

    /// The thread has driven; `found` tells whether an event came meanwhile.
    fn end(&mut self, found: bool) {
        self.last_sleeps =
            if found { 0 } else { self.last_sleeps.saturating_mul(2).clamp(1, SLEEPS_MAX) };
        self.sleeps = self.last_sleeps;
    }
}

/// The one thread that wakes for packets beside the progress thread.
struct Listening<'a>(&'a AtomicBool);

impl<'a> Listening<'a> {
    /// Begins to listen, unless another thread does.
    fn begin(has_listener: &'a AtomicBool) -> Option<Self> {
        (!has_listener.swap(true, Ordering::Relaxed)).then_some(Self(has_listener))
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Shared {
    /// Drives the NIC until there is an event, but not for long; returns whether there is one. Does
    /// nothing if the thread should rather sleep at once.
    pub(super) fn drive_until(&self, mut has_event: impl FnMut() -> bool) -> bool {
        if has_event() {
            return true;
        }
        let mut policy = POLICY.get();
        let drives = policy.begin() && !self.signals.has_failed();
        let mut found = false;
        if drives {
            found = self.drive(&mut has_event);
            policy.end(found);
        }
        POLICY.set(policy);
        found
    }

    fn drive(&self, has_event: &mut impl FnMut() -> bool) -> bool {
        let start = self.now();
        let pause = self.pause_packet_watch();
        // The progress thread has announced that it sleeps. Neighbors need not wake it meanwhile.
        if let Some(mut rx) = self.rx.try_lock(start) {
            rx.end_sleep();
        }
        let end = start.saturating_add(DRIVE_MAX);
        let mut now = start;
        let found = loop {
            self.receive_and_transmit(now);
            if has_event() {
                break true;
            }
            now = self.now();
            if now >= end {
                break false;
            }
        };
        drop(pause);
        self.announce_sleep();
        found || has_event()
    }

    /// Sleeps until `event` may be readable, and receives packets meanwhile; returns false after
    /// `timeout`. A signal ends the sleep, too, and so does the end of the NIC. Returns `None` if
    /// the thread should sleep without listening for packets.
    pub(super) fn listen(
        &self,
        event: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> io::Result<Option<bool>> {
        let deadline = timeout.map(|timeout| self.now().saturating_add(timeout));
        let Some(_listening) = Listening::begin(&self.has_listener) else { return Ok(None) };
        // Packets that this thread leaves wake the progress thread when the pause ends.
        let _pause = self.pause_packet_watch();
        loop {
            let word = self.signals.load();
            // A busy poller receives by itself.
            if word.is_polled() || word.is_ending() {
                return Ok(None);
            }
            let left = deadline.map(|deadline| deadline.saturating_since(self.now()));
            let members = self.members_fd().unwrap_or(event);
            let fds = [event, self.ended.as_fd(), members, self.rx_fd().as_fd()];
            let [has_event, has_ended, is_called, packets, _] = which_readable(&fds, left)?;
            if has_event || has_ended {
                return Ok(Some(true));
            }
            if !is_called && !packets {
                return Ok(Some(false));
            }
            if is_called {
                self.serve_members();
            }
            self.receive_and_transmit(self.now());
            // The producer that rang the bell rings no more until this is announced again.
            self.announce_sleep();
        }
    }

    /// Receives what has arrived, and transmits responses; returns whether packets had arrived.
    fn receive_and_transmit(&self, now: Instant) -> bool {
        let rx = self.rx.try_lock_or_wait(now, || self.now());
        if rx.is_none() {
            return false;
        }
        // The progress thread has the timers.
        let received = self.receive(rx, now, Work::NONE, |_| 0);
        if received.work.has_tx || self.is_tx_due(now) {
            self.transmit(now);
        } else {
            self.signals.wake_before(received.work.deadline);
        }
        received.packets
    }

    /// Announces again that the progress thread sleeps, which is told of packets that come from now
    /// on. Those that came before are received.
    fn announce_sleep(&self) {
        for _ in 0..LAST_RECEIVES_MAX {
            if self.receiver().prepare_to_sleep() {
                return;
            }
            self.receive_and_transmit(self.now());
        }
        self.signals.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of waits in which a thread drives, of `waits`, if it never gets an event.
    fn drives_in_vain(policy: &mut WaitPolicy, waits: u32) -> u32 {
        let mut count = 0;
        for _ in 0..waits {
            if policy.begin() {
                policy.end(false);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn one_waiting_thread_at_a_time_wakes_for_packets() {
        let has_listener = AtomicBool::new(false);
        let first = Listening::begin(&has_listener);
        assert!(first.is_some());
        assert!(Listening::begin(&has_listener).is_none());
        drop(first);
        assert!(Listening::begin(&has_listener).is_some());
    }

    #[test]
    fn thread_whose_waits_are_short_always_drives() {
        let mut policy = WaitPolicy::NEW;
        for _ in 0..1000 {
            assert!(policy.begin());
            policy.end(true);
        }
    }

    #[test]
    fn thread_whose_waits_are_long_rarely_drives() {
        let mut policy = WaitPolicy::NEW;
        assert!(drives_in_vain(&mut policy, 255) <= 9);
        assert!(drives_in_vain(&mut policy, 12_900) <= 101);
    }

    #[test]
    fn one_short_wait_is_enough_to_drive_again() {
        let mut policy = WaitPolicy::NEW;
        drives_in_vain(&mut policy, 1000);
        while !policy.begin() {}
        policy.end(true);
        assert_eq!(policy, WaitPolicy::NEW);
    }
}
