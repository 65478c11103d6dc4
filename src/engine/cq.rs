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
#[derive(Clone, Copy, Debug)]
struct Cqe {
    wc: Wc,
    /// Send queue slot that it frees.
    slot: Option<SendSlot>,
}

/// Ring of completions.
///
/// A `VecDeque` builds each completion elsewhere and moves it: 40 instructions more.
#[derive(Debug, Default)]
struct Ring {
    /// Slots that were ever used.
    slots: Vec<Cqe>,
    /// Number of slots that there is memory for.
    room: usize,
    /// Slot of the oldest completion.
    head: usize,
    len: usize,
}

impl Ring {
    fn with_room(room: usize) -> Result<Self, NoMemory> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(room)?;
        Ok(Self { slots, room, head: 0, len: 0 })
    }

    /// Adds a completion, for which there must be room.
    #[inline(always)]
    fn push(&mut self, cqe: Cqe) {
        debug_assert!(self.len < self.room, "the queue is checked before");
        let mut at = self.head + self.len;
        if at >= self.room {
            at -= self.room;
        }
        self.len += 1;
        match self.slots.get_mut(at) {
            Some(slot) => *slot = cqe,
            None => self.slots.push(cqe),
        }
    }

    /// Removes the oldest completion.
    #[inline(always)]
    fn pop(&mut self) -> Option<&Cqe> {
        if self.len == 0 {
            return None;
        }
        let at = self.head;
        self.head = if at + 1 == self.room { 0 } else { at + 1 };
        self.len -= 1;
        self.slots.get(at)
    }

    /// Moves the completions to a ring with `room` slots, not fewer than there are completions.
    fn resize(&mut self, room: usize) -> Result<(), NoMemory> {
        let mut resized = Self::with_room(room)?;
        while let Some(cqe) = self.pop() {
            resized.push(*cqe);
        }
        *self = resized;
        Ok(())
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    queue: Ring,
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
        let queue = Ring::with_room(capacity)?;
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
        self.queue.len
    }

    /// Resizes it to `capacity` completions, not fewer than are in it.
    pub(super) fn resize(&mut self, capacity: usize) -> Result<(), NoMemory> {
        if let Some(stamps) = &mut self.stamps {
            stamps.try_reserve_exact(capacity.saturating_sub(stamps.len()))?;
        }
        self.queue.resize(capacity.max(self.queue.len))?;
        if let Some(stamps) = &mut self.stamps
            && capacity < self.capacity
        {
            stamps.shrink_to(capacity);
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
        if self.queue.len >= self.capacity {
            self.overrun = true;
            return Delivered::Overrun;
        }
        let wanted = match self.armed {
            Armed::Not => false,
            // Rules: V-02.2, V-02.3, Q-16.
            Armed::Solicited => solicited || !wc.is_success(),
            Armed::Any => true,
        };
        self.queue.push(Cqe { wc, slot });
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
        let count = out.len().min(self.queue.len);
        for to in out.iter_mut().take(count) {
            let Some(Cqe { wc, slot }) = self.queue.pop() else { break };
            *to = *wc;
            if let Some(slot) = *slot
                && let Some(before) = freed.replace(slot)
                && before.qp != slot.qp
            {
                release(before);
            }
        }
        if let Some(slot) = freed {
            release(slot);
        }
        if self.queue.len == 0 {
            // The next completion is stored where this one was, which is in a cache: a queue for
            // many completions would be walked through from one end to the other.
            self.queue.head = 0;
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
            stamps.resize(self.queue.len, now);
            self.stamps = Some(stamps);
        }
        Ok(())
    }

    /// Removes the oldest completion, with the slot that it frees and its time stamp.
    pub(super) fn poll_timed(&mut self) -> Option<(Wc, Option<SendSlot>, Option<Instant>)> {
        let Cqe { wc, slot } = *self.queue.pop()?;
        Some((wc, slot, self.stamps.as_mut().and_then(VecDeque::pop_front)))
    }

    /// Discards the completions of a queue pair.
    pub(super) fn discard(&mut self, qpn: Qpn) {
        // Each completion is removed once, and added again if it stays.
        for _ in 0..self.queue.len {
            let stamp = self.stamps.as_mut().and_then(VecDeque::pop_front);
            let Some(cqe) = self.queue.pop().copied() else { break };
            if cqe.wc.qp_num != qpn {
                self.queue.push(cqe);
                if let (Some(stamps), Some(stamp)) = (&mut self.stamps, stamp) {
                    stamps.push_back(stamp);
                }
            }
        }
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
    fn order_is_kept_when_the_ring_wraps_and_is_resized() {
        let mut cq = Cq::new(3).unwrap();
        let mut next = 0;
        let mut push = |cq: &mut Cq| {
            next += 1;
            let wc = Wc::new(WrId(next), WcStatus::Success, WcOpcode::Send, Qpn::new(16));
            cq.push(wc, None, false, Instant::ZERO)
        };
        let poll = |cq: &mut Cq, count: usize| {
            let mut out = [Wc::default(); 8];
            let count = cq.poll(&mut out[..count], |_| {});
            out[..count].iter().map(|wc| wc.id.0).collect::<Vec<_>>()
        };
        (0..3).for_each(|_| assert_eq!(push(&mut cq), Delivered::Quietly));
        assert_eq!(poll(&mut cq, 2), [1, 2]);
        (0..2).for_each(|_| assert_eq!(push(&mut cq), Delivered::Quietly));
        cq.discard(Qpn::new(17));
        cq.resize(5).unwrap();
        (0..2).for_each(|_| assert_eq!(push(&mut cq), Delivered::Quietly));
        assert_eq!(push(&mut cq), Delivered::Overrun);
        assert_eq!(poll(&mut cq, 8), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn shrinking_queue_frees_its_memory() {
        let mut cq = Cq::new(4096).unwrap();
        cq.enable_timestamps(Instant::ZERO).unwrap();
        for _ in 0..3 {
            cq.push(Wc::default(), None, false, Instant::ZERO);
        }
        cq.resize(3).unwrap();
        assert!(cq.queue.slots.capacity() < 64, "{}", cq.queue.slots.capacity());
        assert!(cq.stamps.as_ref().unwrap().capacity() < 64);
        assert_eq!(cq.poll(&mut [Wc::default(); 8], |_| {}), 3);
    }
}
