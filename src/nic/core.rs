//! The engine, and the queues that its events go to.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::event_queue::EventQueue;
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
    pub(super) fn or_at(self, deadline: Option<Instant>) -> Self {
        let deadline = [self.deadline, deadline].into_iter().flatten().min();
        Self { deadline, ..self }
    }
}

impl Core {
    /// Returns what there is to do at `now`.
    pub(super) fn work(&self, now: Instant) -> Work {
        let deadline = self.engine.poll_timeout();
        let is_due = deadline.is_some_and(|deadline| deadline <= now);
        Work { is_due, has_tx: self.engine.has_transmit(), deadline }
    }

    /// Whether there are raw frames to send.
    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        self.engine.has_frames()
    }

    /// Delivers the engine's events.
    pub(super) fn deliver(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.deliver_event(event);
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
