//! Completion queues.

use std::collections::VecDeque;

use super::allocation::NoMemory;
use crate::time::Instant;
use crate::verbs::{QpHandle, Wc};
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

/// The work request of a send queue that a completion is about. Its slot, and those before it, are free when the
/// completion has been polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendSlot {
    pub(super) qp: QpHandle,
    pub(super) index: u32,
}

/// A completion that was not polled yet.
#[derive(Debug)]
struct Cqe {
    wc: Wc,
    /// What it frees, if it is of a send.
    slot: Option<SendSlot>,
}

#[derive(Debug)]
pub(super) struct Cq {
    queue: VecDeque<Cqe>,
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
    pub(super) fn new(capacity: usize) -> Result<Self, NoMemory> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(capacity)?;
        let (armed, overrun, users) = (Armed::Not, false, 0);
        Ok(Self { queue, stamps: None, capacity, armed, overrun, users })
    }

    /// How many bytes a queue for `capacity` completions takes, without time stamps.
    pub(super) fn bytes(capacity: usize) -> u64 {
        (capacity as u64).saturating_mul(size_of::<Cqe>() as u64)
    }

    /// How many bytes the time stamps of `capacity` completions take.
    pub(super) fn stamp_bytes(capacity: usize) -> u64 {
        (capacity as u64).saturating_mul(size_of::<Instant>() as u64)
    }

    /// Whether it is known when each completion came.
    pub(super) fn keeps_time(&self) -> bool {
        self.stamps.is_some()
    }

    /// How many bytes this queue takes if it is for `capacity` completions.
    pub(super) fn bytes_for(&self, capacity: usize) -> u64 {
        let stamps = if self.keeps_time() { Self::stamp_bytes(capacity) } else { 0 };
        Self::bytes(capacity).saturating_add(stamps)
    }

    /// How many completions wait to be polled.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Makes room for `capacity` completions, which are not fewer than wait.
    pub(super) fn resize(&mut self, capacity: usize) -> Result<(), NoMemory> {
        let more = capacity.saturating_sub(self.queue.len());
        self.queue.try_reserve_exact(more)?;
        if let Some(stamps) = &mut self.stamps {
            stamps.try_reserve_exact(more)?;
        }
        if capacity < self.capacity {
            self.queue.shrink_to(capacity);
            if let Some(stamps) = &mut self.stamps {
                stamps.shrink_to(capacity);
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Puts a completion in. One that failed counts as solicited.
    #[inline]
    pub(super) fn push(
        &mut self,
        wc: Wc,
        slot: Option<SendSlot>,
        solicited: bool,
        now: Instant,
    ) -> Delivered {
        if self.overrun {
            return Delivered::Lost;
        }
        if self.queue.len() >= self.capacity {
            self.overrun = true;
            return Delivered::Overrun;
        }
        let wanted = match self.armed {
            Armed::Not => false,
            // Rules: V-02.2, V-02.3, Q-16.
            Armed::Solicited => solicited || !wc.is_success(),
            Armed::Any => true,
        };
        self.queue.push_back(Cqe { wc, slot });
        if let Some(stamps) = &mut self.stamps {
            stamps.push_back(now);
        }
        if !wanted {
            return Delivered::Quietly;
        }
        // Rule: V-02.1.
        self.armed = Armed::Not;
        Delivered::WithEvent
    }

    /// Moves completions out, oldest first, and hands the slots that they free to `release`, of successive completions
    /// of one queue pair the last; returns how many.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut [Wc], mut release: impl FnMut(SendSlot)) -> usize {
        let count = self.queue.len().min(out.len());
        let mut freed: Option<SendSlot> = None;
        for (to, Cqe { wc, slot }) in out.iter_mut().zip(self.queue.drain(..count)) {
            *to = wc;
            if let Some(slot) = slot
                && let Some(before) = freed.replace(slot)
                && before.qp != slot.qp
            {
                release(before);
            }
        }
        freed.into_iter().for_each(release);
        if let Some(stamps) = &mut self.stamps {
            stamps.drain(..count);
        }
        count
    }

    /// From now on it is known when each completion came.
    pub(super) fn keep_time(&mut self, now: Instant) -> Result<(), NoMemory> {
        if self.stamps.is_none() {
            let mut stamps = VecDeque::new();
            stamps.try_reserve_exact(self.capacity)?;
            stamps.resize(self.queue.len(), now);
            self.stamps = Some(stamps);
        }
        Ok(())
    }

    /// Moves the oldest completion out, with the slot that it frees, and tells when it came if that is known.
    pub(super) fn poll_timed(&mut self) -> Option<(Wc, Option<SendSlot>, Option<Instant>)> {
        let Cqe { wc, slot } = self.queue.pop_front()?;
        Some((wc, slot, self.stamps.as_mut().and_then(VecDeque::pop_front)))
    }

    /// Forgets the completions of a queue pair.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        if let Some(stamps) = &mut self.stamps {
            let mut of_others = self.queue.iter().map(|cqe| cqe.wc.qp_num != qpn);
            stamps.retain(|_| of_others.next().unwrap_or(false));
        }
        self.queue.retain(|cqe| cqe.wc.qp_num != qpn);
    }

    /// Asks for an event; a request for any completion is not weakened by a later one for solicited ones.
    pub(super) fn arm(&mut self, armed: Armed) {
        // Rule: V-02.4.
        self.armed = self.armed.max(armed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_shrinks_frees_its_memory() {
        let mut cq = Cq::new(4096).unwrap();
        cq.keep_time(Instant::ZERO).unwrap();
        for _ in 0..3 {
            cq.push(Wc::default(), None, false, Instant::ZERO);
        }
        cq.resize(3).unwrap();
        assert!(cq.queue.capacity() < 64, "{}", cq.queue.capacity());
        assert!(cq.stamps.as_ref().unwrap().capacity() < 64);
        assert_eq!(cq.poll(&mut [Wc::default(); 8], |_| {}), 3);
    }
}
