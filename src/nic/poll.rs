//! RX and TX from the threads of the program, by polls and posts.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::core::{Core, CoreGuard, Work};
use super::driver::{DeferredTx, STEADY, Word};
use super::shared::{RxGuard, Shared};
use super::timed_mutex::TimedGuard;
use crate::time::Instant;

/// Minimum number of completions of a poll that show a stream. Its sender's window is a few times
/// as large: ACKs that waited for further polls would stall the sender.
const STREAM: usize = 16;

/// One poll of so many reads the clock, runs timers and asks the kernel, whatever there is in
/// shared memory. Without the clock a poll that finds nothing takes 52 ns instead of 71. A busy
/// poller polls at least every 64 µs, so no timer is later than a fifth of a millisecond for it.
const FULL_POLLS: u64 = 4;

/// Result of receiving.
pub(super) struct Received {
    /// Whether packets had arrived.
    pub(super) packets: bool,
    /// Number of completions that were taken then.
    count: usize,
    /// Work that is left.
    pub(super) work: Work,
}

impl Shared {
    /// Drives RX and TX from the polling thread; `take` takes completions.
    ///
    /// If there are some, TX is deferred to the next poll: responses go out together with the
    /// requests that the program posts in its turn. Those to a stream go out at once. A poll that
    /// finds nothing takes the lock of the receiving half alone.
    pub(super) fn poll(&self, mut take: impl FnMut(&mut Core) -> usize) -> usize {
        let word = self.signals.load();
        if word.has_failed() {
            return 0;
        }
        let polls = self.polls.add();
        let ControlFlow::Continue(rx) = self.glance(polls, word) else { return 0 };
        let mut now = self.now();
        self.polls.touch(now);
        if let Some(rx) = &rx {
            rx.set_since(now);
        }
        if polls.is_multiple_of(STEADY) && !word.is_polled() {
            // Packets that this thread receives do not wake the progress thread, but it should
            // leave the NIC to it.
            self.signals.wake();
        }
        let deferred = word.deferred();
        if deferred == DeferredTx::Requests && self.take_deferred() {
            self.transmit_urgent(now);
        }
        let mut count = if self.hints.has_completions() { self.take(&mut take) } else { 0 };
        let mut work = self.hints.work(now);
        if count > 0 {
            drop(rx);
        } else {
            let rx = rx.or_else(|| self.rx.try_lock_or_wait(now, || self.now()));
            // A wait may have taken a time slice.
            now = rx.as_ref().map_or(now, TimedGuard::since);
            Received { count, work, .. } = self.receive(rx, now, work, take);
        }
        if count >= STREAM && work.has_tx {
            self.take_deferred();
            self.transmit(now);
        } else if count > 0 && work.has_tx {
            self.claim(polls);
            self.defer_or_transmit(match deferred {
                DeferredTx::Responses => DeferredTx::Requests,
                _ => DeferredTx::Responses,
            });
        } else if count == 0 && (self.take_deferred() || work.has_tx || self.is_tx_due(now)) {
            self.transmit(now);
        } else {
            // A packet may have started a timer without anything to send, as an RNR NAK does.
            self.signals.wake_before(work.deadline);
        }
        count
    }

    /// Takes completions that are there without receiving.
    fn take(&self, take: &mut impl FnMut(&mut Core) -> usize) -> usize {
        let mut core = self.core();
        core.keep_work();
        take(&mut core)
    }

    /// Looks whether there is anything to do for a poll, without the clock. Breaks if not, and
    /// returns the receiving half if it locked that.
    #[inline]
    fn glance(&self, polls: u64, word: Word) -> ControlFlow<(), Option<RxGuard<'_>>> {
        let has_work = self.hints.has_completions() || self.hints.has_tx() || word.has_deferred();
        if !word.is_polled() || has_work || polls.is_multiple_of(FULL_POLLS) {
            return ControlFlow::Continue(None);
        }
        // The time of the last full poll is near enough for a lock that is released at once.
        match self.rx.try_lock(self.polls.load().last) {
            Some(rx) if !rx.may_receive() => ControlFlow::Break(()),
            rx => ControlFlow::Continue(rx),
        }
    }

    /// Declares a busy poller to a progress thread that drives by itself: what this poll defers is
    /// not forgotten, because the progress thread decides anew at once.
    fn claim(&self, polls: u64) {
        if polls >= STEADY && !self.signals.load().is_polled() {
            // The poll that found something may have begun long ago.
            self.polls.touch(self.now());
            self.signals.claim();
        }
    }

    /// Whether the sending half held packets back that it wants to send by now.
    pub(super) fn is_tx_due(&self, now: Instant) -> bool {
        self.tx_deadline.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Takes what was deferred to the next poll: the caller transmits it. Returns whether there was
    /// anything.
    fn take_deferred(&self) -> bool {
        self.signals.take_deferred() != DeferredTx::None
    }

    /// Requests were posted by the holder of the core. They go out at once if they are
    /// [urgent](crate::engine::Engine::has_urgent_transmit), because a busy poller may compute before
    /// its next poll; others go out with that poll, or at once if there is no busy poller.
    pub(super) fn posted(&self, core: CoreGuard<'_>) {
        if core.engine.has_urgent_transmit() && self.signals.load().is_polled() {
            self.take_deferred();
            self.transmit_posted(core);
        } else {
            drop(core);
            self.defer_or_transmit(DeferredTx::Requests);
        }
    }

    /// Defers TX to the next poll while a poller drives, so that it goes out together with what
    /// else there is then; otherwise transmits.
    fn defer_or_transmit(&self, tx: DeferredTx) {
        if !self.signals.defer(tx) {
            self.transmit(self.now());
        }
    }

    /// A program requests a CQ event, and may not poll until it comes.
    pub(super) fn arm(&self) {
        self.polls.restart(0);
        self.signals.arm();
    }

    /// Receives what has arrived and runs expired timers, if there are any; then `take` takes
    /// completions.
    ///
    /// Without the receiving half it only runs timers: the thread that has it receives.
    pub(super) fn receive(
        &self,
        mut rx: Option<RxGuard<'_>>,
        now: Instant,
        work: Work,
        mut take: impl FnMut(&mut Core) -> usize,
    ) -> Received {
        let arrived = rx.as_mut().map_or(Ok(0), |rx| rx.receive(now));
        let held_back = rx.as_ref().and_then(|rx| rx.poll_timeout());
        if matches!(arrived, Ok(0)) && !work.is_due {
            return Received { packets: false, count: 0, work: work.or_at(held_back) };
        }
        let mut core = self.core();
        let mut packets = false;
        match (arrived, &rx) {
            (Ok(1..), Some(rx)) => {
                packets = true;
                rx.for_each_apart(&mut |packet| {
                    core.engine.handle_packet(now, packet);
                });
            }
            (Err(error), _) => self.fail(&mut core, &error),
            _ => {}
        }
        if core.is_due(now) {
            core.engine.handle_timeout(now);
        }
        core.deliver();
        let count = take(&mut core);
        drop(core);
        Received { packets, count, work: self.hints.work(now).or_at(held_back) }
    }
}
