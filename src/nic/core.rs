//! The engine, and the queues that its events go to.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::panicking;

use super::event_queue::EventQueue;
use super::failure::FailGuard;
use super::gsi::GsiEvents;
use crate::engine::{AsyncEvent, CqHandle, Engine, Event};
use crate::time::Instant;
use crate::verbs::EventType;

/// State that the core lock protects: the engine, and the event queues.
pub(super) struct Core {
    pub(super) engine: Engine,
    /// Steers the frames of raw packet queue pairs.
    pub(super) steering: crate::raw_eth::Steering,
    /// The completion channels of CQs that have one.
    pub(super) channels: BTreeMap<CqHandle, Arc<EventQueue<CqHandle>>>,
    pub(super) async_events: Arc<EventQueue<AsyncEvent>>,
    /// Gets the events of queue pair 1, if that is open.
    pub(super) gsi: Option<GsiEvents>,
    /// Gets all other events instead of the queues, if it is set.
    pub(super) sink: Option<Box<dyn Fn(Event) + Send>>,
    /// Failure of the NIC, once it has failed.
    pub(super) broken: Option<(io::ErrorKind, String)>,
    /// Read without the lock.
    pub(super) hints: Arc<Hints>,
}

/// State of the core as it was when the lock was released last, for threads that do not take it: a
/// poll that finds nothing needs no lock of the core.
///
/// The hints are updated when the lock is released, and before an event is delivered. So a thread
/// sees at least what its own calls did, and what led to the events that it has taken. Changes by
/// other threads meanwhile are for its next poll.
#[derive(Debug)]
pub(super) struct Hints {
    /// Whether there are completions in any queue.
    has_completions: AtomicBool,
    has_tx: AtomicBool,
    /// Next deadline of the engine, in nanoseconds; the largest number if there is none.
    deadline: AtomicU64,
}

impl Hints {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            has_completions: AtomicBool::new(false),
            has_tx: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
        })
    }

    #[inline]
    pub(super) fn has_completions(&self) -> bool {
        self.has_completions.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn has_tx(&self) -> bool {
        self.has_tx.load(Ordering::Relaxed)
    }

    /// Returns the next deadline of the engine.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = self.deadline.load(Ordering::Relaxed);
        (deadline != u64::MAX).then_some(Instant::from_nanos(deadline))
    }

    /// Returns what there is to do at `now`.
    #[inline]
    pub(super) fn work(&self, now: Instant) -> Work {
        let deadline = self.deadline();
        let is_due = deadline.is_some_and(|deadline| deadline <= now);
        Work { is_due, has_tx: self.has_tx(), deadline }
    }

    #[inline]
    fn update(&self, engine: &Engine) {
        let deadline = engine.poll_timeout().map_or(u64::MAX, Instant::as_nanos);
        self.deadline.store(deadline, Ordering::Relaxed);
        self.has_tx.store(engine.has_transmit(), Ordering::Relaxed);
        self.update_completions(engine);
    }

    #[inline]
    fn update_completions(&self, engine: &Engine) {
        self.has_completions.store(engine.has_completions(), Ordering::Relaxed);
    }
}

/// The core, locked. Its hints are updated when it is released.
pub(super) struct CoreGuard<'a> {
    core: FailGuard<'a, Core>,
    changes: Changes,
}

/// Hints that the holder of the core may have changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changes {
    All,
    Completions,
}

impl<'a> CoreGuard<'a> {
    #[inline]
    pub(super) fn new(core: FailGuard<'a, Core>) -> Self {
        Self { core, changes: Changes::All }
    }

    /// The holder has changed neither timers nor what is to be sent: it posted receives, or took
    /// completions. Asking the engine for its deadline takes 160 instructions.
    #[inline]
    pub(super) fn keep_work(&mut self) {
        self.changes = Changes::Completions;
    }
}

impl Drop for CoreGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // A half-changed engine is not asked.
        if panicking() {
            return;
        }
        match self.changes {
            Changes::All => self.core.hints.update(&self.core.engine),
            Changes::Completions => self.core.hints.update_completions(&self.core.engine),
        }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

/// Pending work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Whether a timer has expired.
    pub(super) is_due: bool,
    /// Whether there may be something to send.
    pub(super) has_tx: bool,
    /// Time at which there will be work.
    pub(super) deadline: Option<Instant>,
}

impl Work {
    pub(super) const NONE: Self = Self { is_due: false, has_tx: false, deadline: None };
    pub(super) const ALL: Self = Self { is_due: true, has_tx: true, deadline: None };

    /// Adds the work of another deadline.
    #[inline]
    pub(super) fn or_at(self, deadline: Option<Instant>) -> Self {
        Self { deadline: earlier(self.deadline, deadline), ..self }
    }
}

/// Returns the earlier of two deadlines, if there is one.
#[inline]
pub(super) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (only, None) | (None, only) => only,
    }
}

impl Core {
    /// Whether a timer has expired at `now`.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.engine.poll_timeout().is_some_and(|deadline| deadline <= now)
    }

    /// Whether there are raw frames to send.
    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        self.engine.has_frames()
    }

    /// Delivers the engine's events.
    #[inline]
    pub(super) fn deliver(&mut self) {
        if let Some(event) = self.engine.poll_event() {
            self.deliver_all(event);
        }
    }

    #[cold]
    fn deliver_all(&mut self, first: Event) {
        self.hints.update(&self.engine);
        let mut next = Some(first);
        while let Some(event) = next {
            self.deliver_event(event);
            next = self.engine.poll_event();
        }
    }

    /// Raises an event of the port or the device, which the engine does not know.
    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.deliver_event(Event::Async(event));
    }

    fn deliver_event(&self, event: Event) {
        if self.gsi.as_ref().is_some_and(|gsi| gsi.take(event)) {
            return;
        }
        if let Some(sink) = &self.sink {
            return sink(event);
        }
        match event {
            Event::Completion(cq) => {
                if let Some(channel) = self.channels.get(&cq) {
                    channel.push(cq);
                }
            }
            Event::Async(event) => self.async_events.push(event),
        }
    }

    /// Fails the NIC, which sends and receives no more: reports `DEVICE_FATAL`, and wakes all
    /// threads that wait for completions.
    pub(super) fn fail(&mut self, error: &io::Error) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some((error.kind(), error.to_string()));
        self.raise(AsyncEvent::Device(EventType::DeviceFatal));
        for (cq, channel) in &self.channels {
            channel.push(*cq);
        }
    }
}
