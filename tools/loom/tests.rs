//! The shared word under the C11 memory model: every interleaving of two or three threads.
//!
//! The numbers are those of the [word's](super::word) reasons why no wake-up is lost.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::word::{DeferredTx, SharedWord, SleepKind};
use crate::time::Instant;

/// Checks every interleaving with at most three preemptions: threads that take turns in finding the
/// TX lock taken could go on for ever.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// The doorbell: a flag that a thread can wait for, as an eventfd is.
struct Doorbell {
    is_readable: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn new() -> Self {
        Self { is_readable: Mutex::new(false), changed: Condvar::new() }
    }

    fn ring_if(&self, must_ring: bool) {
        if must_ring {
            *self.is_readable.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    /// Waits for the doorbell. Without an end: loom reports a wake-up that is lost as a deadlock.
    fn wait(&self) {
        let mut is_readable = self.is_readable.lock().unwrap();
        while !*is_readable {
            is_readable = self.changed.wait(is_readable).unwrap();
        }
        *is_readable = false;
    }
}

/// State that the threads of a model share.
struct Model {
    word: SharedWord,
    doorbell: Doorbell,
    /// Number of requests that are posted and not sent, behind the core lock.
    unsent: Mutex<u32>,
    /// The TX lock, which no thread waits for: whether it is taken.
    tx: AtomicBool,
    /// The next deadline, behind the core lock.
    deadline: Mutex<Option<Instant>>,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: SharedWord::new(),
            doorbell: Doorbell::new(),
            unsent: Mutex::new(0),
            tx: AtomicBool::new(false),
            deadline: Mutex::new(None),
        })
    }

    fn post(&self) {
        *self.unsent.lock().unwrap() += 1;
    }

    /// Transmits as `Shared::try_send` does.
    fn transmit(&self) {
        while self.try_tx() {
            *self.unsent.lock().unwrap() = 0;
            self.tx.store(false, Ordering::Release);
            if !self.word.tx_released().has_tx_pending() {
                return;
            }
        }
    }

    fn try_tx(&self) -> bool {
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        let try_lock = || self.tx.compare_exchange(false, true, success, failure).is_ok();
        try_lock() || {
            self.word.tx_blocked();
            try_lock()
        }
    }

    fn unsent(&self) -> u32 {
        *self.unsent.lock().unwrap()
    }
}

#[test]
fn deferred_tx_is_transmitted_by_the_poster_or_the_progress_thread() {
    // (1)
    model(|| {
        let model = Model::new();
        assert!(model.word.try_sleep(SleepKind::Polled));
        let poster = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.post();
                if !model.word.defer(DeferredTx::Requests) {
                    model.transmit();
                }
            })
        };
        model.word.awake();
        model.word.take_over();
        model.word.take_deferred();
        model.transmit();
        poster.join().unwrap();
        assert_eq!(model.unsent(), 0);
    });
}

#[test]
fn deferred_tx_is_taken_by_one_thread() {
    // (1)
    model(|| {
        let model = Model::new();
        assert!(model.word.try_sleep(SleepKind::Polled));
        assert!(model.word.defer(DeferredTx::Responses));
        let poller = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.word.take_deferred() != DeferredTx::None)
        };
        let here = model.word.take_deferred() != DeferredTx::None;
        assert!(here ^ poller.join().unwrap());
    });
}

#[test]
fn wake_token_ends_the_sleep() {
    // (2)
    model(|| {
        let model = Model::new();
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.doorbell.ring_if(model.word.wake()))
            })
            .collect();
        if model.word.try_sleep(SleepKind::UntilDue(None)) {
            model.doorbell.wait();
            assert!(model.word.awake());
        }
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

#[test]
fn stop_is_seen_by_a_thread_that_sleeps_again_and_again() {
    // (2)
    model(|| {
        let model = Model::new();
        let stopper = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.doorbell.ring_if(model.word.wake());
                model.doorbell.ring_if(model.word.stop());
            })
        };
        while !model.word.load().is_ending() {
            if model.word.try_sleep(SleepKind::UntilDue(None)) {
                model.doorbell.wait();
                model.word.awake();
            }
        }
        stopper.join().unwrap();
    });
}

#[test]
fn earlier_deadline_is_seen_or_wakes() {
    // (3)
    model(|| {
        let model = Model::new();
        let (early, late) = (Instant::from_nanos(1 << 10), Instant::from_nanos(1 << 20));
        *model.deadline.lock().unwrap() = Some(late);
        let sender = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                *model.deadline.lock().unwrap() = Some(early);
                if model.word.load().sleeps_past(early) {
                    model.doorbell.ring_if(model.word.wake());
                }
            })
        };
        let deadline = *model.deadline.lock().unwrap();
        if model.word.try_sleep(SleepKind::UntilDue(deadline)) {
            let again = *model.deadline.lock().unwrap();
            if deadline.min(again) != Some(early) {
                // It would sleep for too long.
                model.doorbell.wait();
            }
            model.word.awake();
        }
        sender.join().unwrap();
    });
}

#[test]
fn thread_that_finds_the_tx_lock_taken_is_not_forgotten() {
    // (4)
    model(|| {
        let model = Model::new();
        let other = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.post();
                model.transmit();
            })
        };
        model.post();
        model.transmit();
        other.join().unwrap();
        assert_eq!(model.unsent(), 0);
    });
}

#[test]
fn armed_program_is_not_left_to_a_poller() {
    // (5)
    for kind in [SleepKind::Polled, SleepKind::Briefly] {
        armed_program_ends_a_sleep(kind);
    }
}

fn armed_program_ends_a_sleep(kind: SleepKind) {
    model(move || {
        let model = Model::new();
        let program = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.doorbell.ring_if(model.word.arm()))
        };
        // The progress thread decided before the program requested the event.
        if model.word.try_sleep(kind) {
            model.doorbell.wait();
            assert!(model.word.awake());
        }
        program.join().unwrap();
    });
}

#[test]
fn claim_wakes_the_progress_thread_for_what_is_deferred() {
    // (6)
    model(|| {
        let model = Model::new();
        let poller = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.post();
                model.doorbell.ring_if(model.word.claim());
                if !model.word.defer(DeferredTx::Responses) {
                    model.transmit();
                }
            })
        };
        // The progress thread drives by itself: it transmits and sleeps until it is woken, and
        // takes over again.
        model.word.take_over();
        model.word.take_deferred();
        model.transmit();
        if model.word.try_sleep(SleepKind::UntilDue(None)) {
            model.doorbell.wait();
            model.word.awake();
        }
        model.word.take_over();
        model.word.take_deferred();
        model.transmit();
        poller.join().unwrap();
        assert_eq!(model.unsent(), 0);
    });
}
