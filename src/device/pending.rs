//! Work in flight: the memory of posted work requests, until they complete.
//!
//! Every work queue numbers its work requests, and the number is in the `wr_id` that the device
//! sees. A completion of the send queue completes all sends before it, too, which were not
//! signaled. Receives complete one by one: those of a queue pair in order, except that a flush may
//! report them out of order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Ah;
use super::memory::Memory;
use crate::table::Table;
use crate::verbs::{DeviceTag, Id, Sge, WcOpcode, WrId};

/// Marks a `wr_id` of this room.
const MARK: u64 = 1 << 63;
/// Number of bits of the sequence number in a `wr_id`. The id of the queue lies above.
const SEQUENCE_BITS: u32 = 31;
const SEQUENCE_MASK: u32 = (1 << SEQUENCE_BITS) - 1;

/// Maximum number of work queues of one completion queue.
const QUEUES_MAX: usize = crate::table::TABLE_MAX;

/// A work request in flight.
#[derive(Debug)]
pub(super) struct Entry {
    /// The id that the program gave it.
    pub(super) id: WrId,
    /// Opcode of its completion.
    pub(super) opcode: WcOpcode,
    pub(super) memory: Memory,
    /// The address handle that it uses, which must exist as long.
    #[expect(dead_code, reason = "it is held, not used")]
    pub(super) ah: Option<Ah>,
}

/// Entries that a completion completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The completed entry and all before: a send queue.
    All,
    /// The completed entry: a receive queue.
    One,
}

/// The work of one queue, oldest first.
#[derive(Debug)]
pub(super) struct Pending {
    entries: VecDeque<Option<Entry>>,
    /// Sequence number of the first entry.
    first: u32,
    order: Order,
    /// Scatter/gather entries of the work request that is being posted: allocated once.
    pub(super) sges: Vec<Sge>,
}

impl Pending {
    fn new(order: Order) -> Self {
        Self { entries: VecDeque::new(), first: 0, order, sges: Vec::new() }
    }

    /// Adds an entry; returns its sequence number.
    pub(super) fn push(&mut self, entry: Entry) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "far fewer work requests fit a queue")]
        let sequence = self.first.wrapping_add(self.entries.len() as u32) & SEQUENCE_MASK;
        self.entries.push_back(Some(entry));
        sequence
    }

    /// Removes the last entry, which was not posted; returns its memory.
    pub(super) fn pop(&mut self) -> Memory {
        self.entries.pop_back().flatten().map_or(Memory::None, |entry| entry.memory)
    }

    /// Removes what a completion completes, and passes it to `with`, the completion's own entry
    /// last.
    fn complete(&mut self, sequence: u32, mut with: impl FnMut(Entry, bool)) {
        let at = (sequence.wrapping_sub(self.first) & SEQUENCE_MASK) as usize;
        if at >= self.entries.len() {
            return;
        }
        match self.order {
            Order::All => {
                for index in 0..=at {
                    self.first = self.first.wrapping_add(1) & SEQUENCE_MASK;
                    if let Some(entry) = self.entries.pop_front().flatten() {
                        with(entry, index == at);
                    }
                }
            }
            Order::One => {
                if let Some(entry) = self.entries.get_mut(at).and_then(Option::take) {
                    with(entry, true);
                }
                while let Some(None) = self.entries.front() {
                    self.entries.pop_front();
                    self.first = self.first.wrapping_add(1) & SEQUENCE_MASK;
                }
            }
        }
    }
}

type Shared = Arc<Mutex<Pending>>;

/// The work queues that complete to one completion queue.
#[derive(Debug)]
pub(super) struct Queues(Mutex<Table<Shared>>);

/// A work queue, as long as its queue pair exists.
#[derive(Debug)]
pub(super) struct Queue {
    id: Id,
    pending: Shared,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Table::new(QUEUES_MAX, DeviceTag::NONE)))
    }

    fn table(&self) -> MutexGuard<'_, Table<Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a work queue; `None` if there are too many.
    pub(super) fn add(&self, order: Order) -> Option<Queue> {
        let pending = Arc::new(Mutex::new(Pending::new(order)));
        let id = self.table().insert(Arc::clone(&pending))?;
        Some(Queue { id, pending })
    }

    /// Forgets a work queue whose queue pair was destroyed.
    pub(super) fn remove(&self, queue: &Queue) {
        let removed = self.table().remove(queue.id);
        drop(removed);
    }

    /// Passes what a completion completes to `with`. Returns whether the `wr_id` is one of this
    /// room.
    pub(super) fn complete(&self, id: WrId, with: impl FnMut(Entry, bool)) -> bool {
        if id.0 & MARK == 0 {
            return false;
        }
        #[expect(clippy::cast_possible_truncation, reason = "parts of the number are meant")]
        let (index, sequence) = ((id.0 >> SEQUENCE_BITS) as u32, id.0 as u32 & SEQUENCE_MASK);
        let pending = self.table().get(Id::new(DeviceTag::NONE, index)).cloned();
        // A completion of a queue pair that was destroyed since completes nothing.
        if let Some(pending) = pending {
            lock(&pending).complete(sequence, with);
        }
        true
    }
}

impl Queue {
    pub(super) fn lock(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    /// The `wr_id` of a work request for the device.
    pub(super) fn wr_id(&self, sequence: u32) -> WrId {
        WrId(MARK | u64::from(self.id.index()) << SEQUENCE_BITS | u64::from(sequence))
    }
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &Queue, id: u64) -> WrId {
        let (opcode, memory, ah) = (WcOpcode::Send, Memory::None, None);
        let sequence = queue.lock().push(Entry { id: WrId(id), opcode, memory, ah });
        queue.wr_id(sequence)
    }

    fn complete(queues: &Queues, id: WrId) -> Vec<(u64, bool)> {
        let mut done = Vec::new();
        assert!(queues.complete(id, |entry, own| done.push((entry.id.0, own))));
        done
    }

    #[test]
    fn a_signaled_send_completes_unsignaled_ones_before_it() {
        let queues = Queues::new();
        let queue = queues.add(Order::All).unwrap();
        let ids: Vec<WrId> = (10..15).map(|id| push(&queue, id)).collect();
        assert_eq!(complete(&queues, ids[2]), [(10, false), (11, false), (12, true)]);
        assert_eq!(complete(&queues, ids[2]), [], "a completion counts once");
        assert_eq!(complete(&queues, ids[3]), [(13, true)]);
        assert_eq!(queue.lock().entries.len(), 1);
    }

    #[test]
    fn receives_complete_one_by_one_in_any_order() {
        let queues = Queues::new();
        let queue = queues.add(Order::One).unwrap();
        let ids: Vec<WrId> = (0..4).map(|id| push(&queue, id)).collect();
        for at in [2, 0, 3, 1] {
            assert_eq!(complete(&queues, ids[at]), [(at as u64, true)]);
        }
        assert_eq!(queue.lock().entries.len(), 0);
        let next = push(&queue, 9);
        assert_eq!(complete(&queues, next), [(9, true)]);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let queues = Queues::new();
        for order in [Order::All, Order::One] {
            let queue = queues.add(order).unwrap();
            queue.lock().first = SEQUENCE_MASK - 1;
            for id in 0..4 {
                let posted = push(&queue, id);
                assert_eq!(complete(&queues, posted), [(id, true)]);
            }
            assert_eq!(queue.lock().first, 2);
        }
    }

    #[test]
    fn completions_of_a_destroyed_queue_complete_nothing() {
        let queues = Queues::new();
        let queue = queues.add(Order::All).unwrap();
        let posted = push(&queue, 1);
        queues.remove(&queue);
        let reused = queues.add(Order::All).unwrap();
        assert_eq!(complete(&queues, posted), []);
        let posted = push(&reused, 2);
        assert_eq!(complete(&queues, posted), [(2, true)]);
        // A `wr_id` of the program's own is not of this room.
        assert!(!queues.complete(WrId(5), |_, _| panic!("completed")));
    }
}
