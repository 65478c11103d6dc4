//! The engine, and where its events go.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::mailbox::Mailbox;
use crate::engine::{AsyncEvent, CqHandle, Engine, Event};
use crate::time::Instant;
use crate::verbs::EventType;

/// The engine behind its lock, and who waits for what.
pub(super) struct Core {
    pub(super) engine: Engine,
    /// Where the events of a completion queue go, if anywhere.
    pub(super) channels: BTreeMap<CqHandle, Arc<Mailbox<CqHandle>>>,
    pub(super) asynchronous: Arc<Mailbox<AsyncEvent>>,
    /// Where all events go instead, if somebody wants them.
    pub(super) sink: Option<Box<dyn Fn(Event) + Send>>,
    /// Why nothing can be sent or received any more.
    pub(super) broken: Option<(io::ErrorKind, String)>,
}

/// What there is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Whether a timer has gone off.
    pub(super) due: bool,
    /// Whether there may be something to send.
    pub(super) unsent: bool,
}

impl Core {
    /// What there is to do at `now`.
    pub(super) fn work(&self, now: Instant) -> Work {
        let due = self.engine.poll_timeout().is_some_and(|due| due <= now);
        Work { due, unsent: self.engine.has_transmit() }
    }

    /// Hands out events.
    pub(super) fn deliver(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.hand_out(event);
        }
    }

    /// Hands out an event of the port or the device, which the engine knows nothing of.
    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.hand_out(Event::Async(event));
    }

    fn hand_out(&self, event: Event) {
        if let Some(sink) = &self.sink {
            return sink(event);
        }
        match event {
            Event::Completion(cq) => {
                if let Some(channel) = self.channels.get(&cq) {
                    channel.put(cq);
                }
            }
            Event::Async(event) => self.asynchronous.put(event),
        }
    }

    /// Nothing can be sent or received any more: reports `DEVICE_FATAL`, and wakes all who wait for completions.
    pub(super) fn fail(&mut self, error: &io::Error) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some((error.kind(), error.to_string()));
        self.raise(AsyncEvent::Device(EventType::DeviceFatal));
        for (cq, channel) in &self.channels {
            channel.put(*cq);
        }
    }
}
