//! Completion queues: completions that wait to be polled, and the events that they raise.

use std::collections::VecDeque;

use super::allocation::NoMemory;
use crate::time::Instant;
use crate::verbs::{QpHandle, Wc};
use crate::wire::Qpn;

/// Completion that raises an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Armed {
    #[default]
    Not,
    /// A solicited one, or an error.
    Solicited,
    /// Any.
    Any,
}

/// Work request of a send queue that a completion belongs to. Polling the completion frees its
/// slot, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendSlot {
    pub(super) qp: QpHandle,
    pub(super) index: u32,
}

/// A completion in a queue.
#[derive(Debug)]
struct Cqe {
    wc: Wc,
    /// Send queue slot that it frees.
    slot: Option<SendSlot>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    queue: VecDeque<Cqe>,
    /// Time stamp of each completion, if they are recorded.
    stamps: Option<VecDeque<Instant>>,
    pub(super) capacity: usize,
    pub(super) armed: Armed,
    /// Whether it overran: a completion was lost, and no more are accepted.
    pub(super) overrun: bool,
    /// Number of queue pairs and receive queues that use it.
    pub(super) users: u32,
}

/// Result of adding a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    Quietly,
    /// The completion is added, and raises the event.
    WithEvent,
    /// The queue overruns: this is the first completion that is lost.
    Overrun,
    /// The queue overran before.
    Lost,
}

impl Cq {
    pub(super) fn new(capacity: usize) -> Result<Self, NoMemory> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(capacity)?;
        let (armed, overrun, users) = (Armed::Not, false, 0);
        Ok(Self { queue, stamps: None, capacity, armed, overrun, users })
    }

    /// Number of bytes of a queue for `capacity` completions, without time stamps.
    pub(super) fn bytes(capacity: usize) -> u64 {
        (capacity as u64).saturating_mul(size_of::<Cqe>() as u64)
    }

    /// Number of bytes of the time stamps of `capacity` completions.
    pub(super) fn stamp_bytes(capacity: usize) -> u64 {
        (capacity as u64).saturating_mul(size_of::<Instant>() as u64)
    }

    /// Whether time stamps are recorded.
    pub(super) fn has_timestamps(&self) -> bool {
        self.stamps.is_some()
    }

    /// Number of bytes of this queue if it is for `capacity` completions.
    pub(super) fn bytes_for(&self, capacity: usize) -> u64 {
        let stamps = if self.has_timestamps() { Self::stamp_bytes(capacity) } else { 0 };
        Self::bytes(capacity).saturating_add(stamps)
    }

    /// Number of completions to poll.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Resizes it to `capacity` completions, not fewer than are in it.
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

    /// Adds a completion. One in error counts as solicited.
    ///
    /// Inlined wherever a completion is made, so that it is written where it is polled: one that is
    /// put together elsewhere and moved costs 40 instructions, and waits for its own stores.
    #[inline(always)]
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

    /// Moves completions to `out`, oldest first, and passes the slots that they free to `release`,
    /// of successive completions of one queue pair the last; returns how many.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut [Wc], mut release: impl FnMut(SendSlot)) -> usize {
        let mut freed: Option<SendSlot> = None;
        let mut count = 0;
        for to in out {
            let Some(Cqe { wc, slot }) = self.queue.pop_front() else { break };
            *to = wc;
            count += 1;
            if let Some(slot) = slot
                && let Some(before) = freed.replace(slot)
                && before.qp != slot.qp
            {
                release(before);
            }
        }
        if let Some(slot) = freed {
            release(slot);
        }
        if self.queue.is_empty() {
            // The next completion is stored where this one was, which is in a cache: a queue for
            // many completions would be walked through from one end to the other.
            self.queue.clear();
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.drain(..count);
        }
        count
    }

    /// Records time stamps from now on.
    pub(super) fn enable_timestamps(&mut self, now: Instant) -> Result<(), NoMemory> {
        if self.stamps.is_none() {
            let mut stamps = VecDeque::new();
            stamps.try_reserve_exact(self.capacity)?;
            stamps.resize(self.queue.len(), now);
            self.stamps = Some(stamps);
        }
        Ok(())
    }

    /// Removes the oldest completion, with the slot that it frees and its time stamp.
    pub(super) fn poll_timed(&mut self) -> Option<(Wc, Option<SendSlot>, Option<Instant>)> {
        let Cqe { wc, slot } = self.queue.pop_front()?;
        Some((wc, slot, self.stamps.as_mut().and_then(VecDeque::pop_front)))
    }

    /// Discards the completions of a queue pair.
    pub(super) fn discard(&mut self, qpn: Qpn) {
        if let Some(stamps) = &mut self.stamps {
            let mut of_others = self.queue.iter().map(|cqe| cqe.wc.qp_num != qpn);
            stamps.retain(|_| of_others.next().unwrap_or(false));
        }
        self.queue.retain(|cqe| cqe.wc.qp_num != qpn);
    }

    /// Requests an event; a request for any completion is not weakened by a later one for solicited
    /// ones.
    pub(super) fn arm(&mut self, armed: Armed) {
        // Rule: V-02.4.
        self.armed = self.armed.max(armed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{WcOpcode, WcStatus, WrId};

    #[test]
    fn discard_keeps_completions_of_others_with_their_time_stamps() {
        let mut cq = Cq::new(8).unwrap();
        cq.enable_timestamps(Instant::ZERO).unwrap();
        for time in 0..4 {
            let qp_num = Qpn::new(if time % 2 == 0 { 16 } else { 17 });
            let wc = Wc::new(WrId(0), WcStatus::Success, WcOpcode::Send, qp_num);
            cq.push(wc, None, false, Instant::from_nanos(time));
        }
        cq.discard(Qpn::new(16));
        let left = std::iter::from_fn(|| cq.poll_timed());
        let left: Vec<_> =
            left.map(|(wc, _, time)| (wc.qp_num, time.unwrap().as_nanos())).collect();
        assert_eq!(left, [(Qpn::new(17), 1), (Qpn::new(17), 3)]);
    }

    #[test]
    fn shrinking_queue_frees_its_memory() {
        let mut cq = Cq::new(4096).unwrap();
        cq.enable_timestamps(Instant::ZERO).unwrap();
        for _ in 0..3 {
            cq.push(Wc::default(), None, false, Instant::ZERO);
        }
        cq.resize(3).unwrap();
        assert!(cq.queue.capacity() < 64, "{}", cq.queue.capacity());
        assert!(cq.stamps.as_ref().unwrap().capacity() < 64);
        assert_eq!(cq.poll(&mut [Wc::default(); 8], |_| {}), 3);
    }
}
