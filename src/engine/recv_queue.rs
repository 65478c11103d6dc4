//! Receive queues: receive work requests that are posted and not completed.
//!
//! The slots of a queue are allocated when the first work request is posted.

use super::allocation::{NoMemory, array};
use crate::memory::prefetch;
use crate::verbs::{CreateError, PostError, RecvWr, Sge, WrId};

/// Queue of receive work requests, of a queue pair or shared.
///
/// A request that a message has begun to fill is out of the queue, but keeps its slot until it is
/// completed: those of a shared queue complete in any order. So slots are chained: those in the
/// queue, and those that are free.
#[derive(Debug)]
pub(super) struct RecvQueue {
    /// Empty until the first request is posted.
    slots: Box<[RecvWqe]>,
    /// Scatter lists of more than one entry: `max_sge` for each request.
    sges: Box<[Sge]>,
    max_sge: u32,
    /// Maximum number of requests.
    depth: u32,
    head: u32,
    tail: u32,
    len: u32,
    free: u32,
    /// Number of requests that messages have taken.
    taken: u32,
}

/// A receive WQE.
#[derive(Clone, Copy, Debug)]
struct RecvWqe {
    id: WrId,
    /// First entry of the scatter list.
    sge: Sge,
    sges: u32,
    /// Slot of the next request, or of the next free slot.
    next: u32,
}

const _: () = assert!(size_of::<RecvWqe>() == 32, "two receives are one cache line");

/// End of a chain.
const END: u32 = u32::MAX;

/// Slot of a receive work request that a message has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecvSlot(u32);

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Self {
        let (slots, sges) = (Box::default(), Box::default());
        let (head, tail, free) = (END, END, END);
        Self { slots, sges, max_sge, depth, head, tail, len: 0, free, taken: 0 }
    }

    /// Number of bytes of a queue for `depth` requests of this size when it is in use.
    pub(super) fn bytes(depth: u32, max_sge: u32) -> u64 {
        let lists = if max_sge > 1 { max_sge as usize } else { 0 };
        u64::from(depth) * (size_of::<RecvWqe>() + lists * size_of::<Sge>()) as u64
    }

    /// Allocates the slots, all of them free.
    #[cold]
    fn allocate(&mut self) -> Result<(), NoMemory> {
        let empty = RecvWqe { id: WrId(0), sge: Sge::default(), sges: 0, next: END };
        let mut slots = array(empty, self.depth as usize)?;
        for (slot, next) in slots.iter_mut().zip(1..self.depth) {
            slot.next = next;
        }
        if self.max_sge > 1 {
            self.sges = array(Sge::default(), self.depth as usize * self.max_sge as usize)?;
        }
        (self.slots, self.free) = (slots, if self.depth > 0 { 0 } else { END });
        Ok(())
    }

    /// Number of requests in the queue.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Maximum number of scatter entries of a request.
    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Adds a request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        wr.check(self.max_sge)?;
        if self.slots.is_empty() {
            self.allocate()?;
        }
        let at = self.free;
        let slot = self.slots.get_mut(at as usize).ok_or(PostError::QueueFull)?;
        self.free = slot.next;
        *slot = RecvWqe {
            id: wr.id,
            sge: wr.sges.first().copied().unwrap_or_default(),
            sges: u32::try_from(wr.sges.len()).expect("checked"),
            next: END,
        };
        if wr.sges.len() > 1 {
            self.sges[at as usize * self.max_sge as usize..][..wr.sges.len()]
                .copy_from_slice(wr.sges);
        }
        match self.slots.get_mut(self.tail as usize) {
            Some(last) => last.next = at,
            None => self.head = at,
        }
        self.tail = at;
        self.len += 1;
        Ok(())
    }

    /// Prefetches the request that would be taken next.
    #[inline]
    pub(super) fn prefetch(&self) {
        if let Some(next) = self.slots.get(self.head as usize) {
            prefetch(next, size_of::<RecvWqe>());
        }
    }

    /// Prefetches the slot of the next request that is posted.
    #[inline]
    pub(super) fn prefetch_free(&self) {
        if let Some(free) = self.slots.get(self.free as usize) {
            prefetch(free, size_of::<RecvWqe>());
        }
    }

    /// Returns the request that would be taken next.
    pub(super) fn peek(&self) -> Option<RecvSlot> {
        (self.head != END).then_some(RecvSlot(self.head))
    }

    /// Removes the oldest request for a message.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn take(&mut self) -> Option<RecvSlot> {
        let at = self.head;
        self.head = self.slots.get(at as usize)?.next;
        if self.head == END {
            self.tail = END;
        }
        self.len -= 1;
        self.taken += 1;
        Some(RecvSlot(at))
    }

    /// Returns the buffers of a request that was taken.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn sges(&self, taken: RecvSlot) -> &[Sge] {
        let slot = &self.slots[taken.0 as usize];
        match slot.sges {
            1 => core::slice::from_ref(&slot.sge),
            count => self.listed_sges(taken, count as usize),
        }
    }

    /// Returns the buffers of a request that has other than one.
    #[inline(never)]
    fn listed_sges(&self, taken: RecvSlot, count: usize) -> &[Sge] {
        if count == 0 {
            &[]
        } else {
            &self.sges[taken.0 as usize * self.max_sge as usize..][..count]
        }
    }

    /// Number of bytes that the buffers of a request hold.
    pub(super) fn room(&self, taken: RecvSlot) -> u64 {
        self.sges(taken).iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Frees the slot of a request that is completed; returns its id.
    #[inline]
    pub(super) fn release(&mut self, taken: RecvSlot) -> WrId {
        let slot = &mut self.slots[taken.0 as usize];
        slot.next = self.free;
        self.free = taken.0;
        self.taken -= 1;
        slot.id
    }

    /// Discards all requests in the queue.
    pub(super) fn clear(&mut self) {
        while let Some(taken) = self.take() {
            self.release(taken);
        }
    }

    /// Returns the same queue for `depth` requests, unless more are in it or messages have taken
    /// some.
    pub(super) fn resized(&self, depth: u32) -> Result<Self, CreateError> {
        if depth < self.len || self.taken > 0 {
            return Err(CreateError::Invalid(
                "more work requests are in the queue than it would hold, or messages have taken some",
            ));
        }
        let mut queue = Self::new(depth, self.max_sge);
        let mut at = self.head;
        while let Some(slot) = self.slots.get(at as usize) {
            let wr = RecvWr { id: slot.id, sges: self.sges(RecvSlot(at)) };
            queue.push(&wr).map_err(|_| CreateError::NoMemory)?;
            at = slot.next;
        }
        Ok(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_whatever_order_slots_are_freed_in() {
        let mut queue = RecvQueue::new(3, 0);
        let mut next = 0;
        let mut post = |queue: &mut RecvQueue| {
            next += 1;
            queue.push(&RecvWr { id: WrId(next), sges: &[] })
        };
        (0..3).for_each(|_| post(&mut queue).unwrap());
        assert_eq!(post(&mut queue), Err(PostError::QueueFull));
        let (first, second) = (queue.take().unwrap(), queue.take().unwrap());
        assert!(queue.resized(3).is_err(), "two are taken");
        assert_eq!(post(&mut queue), Err(PostError::QueueFull), "they keep their slots");
        assert_eq!(queue.release(second), WrId(2));
        post(&mut queue).unwrap();
        assert_eq!(queue.release(first), WrId(1));
        post(&mut queue).unwrap();
        let larger = queue.resized(4).unwrap();
        for mut queue in [queue, larger] {
            let order = std::iter::from_fn(|| queue.take().map(|taken| queue.release(taken)));
            assert_eq!(order.collect::<Vec<_>>(), [3, 6, 7].map(WrId));
        }
    }
}
