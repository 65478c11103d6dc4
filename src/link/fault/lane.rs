//! One direction of a link with faults: packets go in, and come out when their time has come.

use super::chance::{Arrival, Decision, Loss};
use super::queue::Queue;
use super::{Counts, Effect, Injector, State};
use crate::capture::Direction;
use crate::time::Instant;
use crate::wire::Gid;

/// One direction of a link.
pub(crate) struct Lane<P> {
    injector: Injector,
    queue: Queue<Due<P>>,
}

/// A packet whose time has come.
#[derive(Clone, Debug)]
pub(crate) struct Due<P> {
    pub(crate) packet: P,
    /// Whether a bit changes, and a number that says which.
    pub(crate) corrupt: Option<u64>,
    /// Whether it is marked: congestion experienced.
    pub(crate) mark: bool,
    /// Receiver in whose queue it waited.
    to: Option<Gid>,
}

/// Destination of a packet, and its length on the wire.
pub(super) struct Outgoing {
    pub(super) to: Gid,
    pub(super) wire_len: usize,
}

impl<P: Clone> Lane<P> {
    /// A direction of a link that this injector decides over.
    pub(crate) fn new(injector: Injector) -> Self {
        Self { injector, queue: Queue::default() }
    }

    /// Takes in a packet that is sent: `bytes` from its BTH to its last pad byte. Returns the fault
    /// that lost it, if packets that are lost are kept.
    pub(super) fn send(
        &mut self,
        now: Instant,
        outgoing: &Outgoing,
        bytes: &[u8],
        packet: impl FnOnce() -> P,
    ) -> Option<String> {
        let mut state = self.injector.lock();
        let Outgoing { to, wire_len } = *outgoing;
        let decision = state.impairments.decide(now, to, bytes, wire_len);
        state.show(now, Direction::Outbound, bytes, &decision);
        match decision {
            Decision::Lost(loss) => {
                state.counts.lose(loss);
                state.keep_dropped.is_some().then(|| state.cause(loss))
            }
            Decision::Arrives(arrival) => {
                state.counts.add(&arrival);
                drop(state);
                self.put(now, packet(), &arrival, Some(to));
                None
            }
        }
    }

    /// Takes in a packet of which only rules decide.
    pub(crate) fn pass(
        &mut self,
        now: Instant,
        direction: Direction,
        bytes: &[u8],
        packet: impl FnOnce() -> P,
    ) {
        let mut state = self.injector.lock();
        let decision = state.impairments.decide_by_rule(now, direction, bytes);
        state.show(now, direction, bytes, &decision);
        match decision {
            Decision::Lost(loss) => state.counts.lose(loss),
            Decision::Arrives(arrival) => {
                state.counts.add(&arrival);
                drop(state);
                self.put(now, packet(), &arrival, None);
            }
        }
    }

    /// Queues a packet that no rule applies to.
    #[cfg(feature = "conform")]
    pub(crate) fn pass_untouched(&mut self, now: Instant, packet: P) {
        self.put(now, packet, &Arrival::at(now), None);
    }

    fn put(&mut self, now: Instant, packet: P, arrival: &Arrival, to: Option<Gid>) {
        let Arrival { corrupt, mark, .. } = *arrival;
        if !self.queue.put(now, Due { packet, corrupt, mark, to }, arrival) {
            let mut state = self.injector.lock();
            state.counts.overflow += 1;
            if let Some(to) = to {
                state.impairments.arrived(to);
            }
        }
    }

    /// The next packet whose time has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Due<P>> {
        let due = self.queue.pop(now)?.packet;
        if let Some(to) = due.to {
            self.injector.lock().impairments.arrived(to);
        }
        Some(due)
    }

    /// Returns the time at which the next packet is due.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        self.queue.timeout()
    }

    pub(super) fn injector(&self) -> &Injector {
        &self.injector
    }
}

impl State {
    /// Shows a packet, as it is before anything is done to it, and what will be done.
    fn show(&mut self, now: Instant, direction: Direction, bytes: &[u8], decision: &Decision) {
        let Some(observer) = &mut self.observer else { return };
        let effect = match decision {
            Decision::Lost(_) => Some(Effect::Dropped),
            Decision::Arrives(it) if it.corrupt.is_some() => Some(Effect::Corrupted),
            Decision::Arrives(it) if it.again.is_some() => Some(Effect::Duplicated),
            Decision::Arrives(it) if it.late || it.swap => Some(Effect::Reordered),
            Decision::Arrives(it) if it.mark => Some(Effect::Marked),
            Decision::Arrives(it) if it.time > now => Some(Effect::Delayed),
            Decision::Arrives(_) => None,
        };
        observer(direction, bytes, effect);
    }
}

impl Counts {
    fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Chance | Loss::Rule(_) => self.lost += 1,
            Loss::QueueFull => self.queue_full += 1,
        }
    }

    fn add(&mut self, arrival: &Arrival) {
        let Arrival { again, corrupt, mark, late, swap, .. } = arrival;
        self.reordered += u64::from(*late || *swap);
        self.corrupted += u64::from(corrupt.is_some());
        self.marked += u64::from(*mark);
        self.duplicated += u64::from(again.is_some());
    }
}
