//! Completion queues.

use std::collections::VecDeque;

use crate::time::Instant;
use crate::verbs::Wc;
use crate::wire::Qpn;

/// For what completion an event was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Armed {
    #[default]
    Not,
    /// For a solicited one, or an error.
    Solicited,
    /// For any.
    Any,
}

#[derive(Debug)]
pub(super) struct Cq {
    pub(super) queue: VecDeque<Wc>,
    /// When each of them came, if somebody wants to know.
    stamps: Option<VecDeque<Instant>>,
    pub(super) capacity: usize,
    pub(super) armed: Armed,
    /// Whether a completion was lost for lack of room; nothing enters any more.
    pub(super) overrun: bool,
    /// How many queue pairs and shared receive queues complete here.
    pub(super) users: u32,
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    Quietly,
    /// And the event that was asked for is due.
    WithEvent,
    /// It was lost, the first one to be.
    Overrun,
    /// It was lost, as others before.
    Lost,
}

impl Cq {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(capacity),
            stamps: None,
            capacity,
            armed: Armed::Not,
            overrun: false,
            users: 0,
        }
    }

    /// Puts a completion in. One that failed counts as solicited.
    #[inline]
    pub(super) fn push(&mut self, wc: Wc, solicited: bool, now: Instant) -> Delivered {
        if self.overrun {
            return Delivered::Lost;
        }
        if self.queue.len() >= self.capacity {
            self.overrun = true;
            return Delivered::Overrun;
        }
        let wanted = match self.armed {
            Armed::Not => false,
            Armed::Solicited => solicited || !wc.is_success(),
            Armed::Any => true,
        };
        self.queue.push_back(wc);
        if let Some(stamps) = &mut self.stamps {
            stamps.push_back(now);
        }
        if !wanted {
            return Delivered::Quietly;
        }
        self.armed = Armed::Not;
        Delivered::WithEvent
    }

    /// Moves completions out, oldest first; returns how many.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut [Wc]) -> usize {
        let count = self.queue.len().min(out.len());
        for (slot, wc) in out.iter_mut().zip(self.queue.drain(..count)) {
            *slot = wc;
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.drain(..count);
        }
        count
    }

    /// From now on it is known when each completion came.
    pub(super) fn keep_time(&mut self, now: Instant) {
        self.stamps.get_or_insert_with(|| self.queue.iter().map(|_| now).collect());
    }

    /// Moves the oldest completion out, and tells when it came if that is known.
    pub(super) fn poll_timed(&mut self) -> Option<(Wc, Option<Instant>)> {
        let wc = self.queue.pop_front()?;
        Some((wc, self.stamps.as_mut().and_then(VecDeque::pop_front)))
    }

    /// Forgets the completions of a queue pair.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        if let Some(stamps) = &mut self.stamps {
            let mut of_others = self.queue.iter().map(|wc| wc.qp_num != qpn);
            stamps.retain(|_| of_others.next().unwrap_or(false));
        }
        self.queue.retain(|wc| wc.qp_num != qpn);
    }

    /// Asks for an event; a request for any completion is not weakened by a later one for solicited ones.
    pub(super) fn arm(&mut self, armed: Armed) {
        self.armed = self.armed.max(armed);
    }
}
