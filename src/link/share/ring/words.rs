//! The words by which the two ends of a packet ring agree.
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | head | producer | end of the records that are published, in bytes since the start |
//! | express | producer | head that publishes the express record, or 0 while that is written |
//! | tail | consumer | end of the records that are handled |
//! | asleep | consumer; both clear it | the consumer sleeps: the producer that clears it rings the bell |
//! | adopted | consumer | the consumer reads the ring |
//!
//! **No wake-up is lost.** The producer writes `head`, then reads `asleep`; the consumer writes
//! `asleep`, then reads `head`; a sequentially consistent fence is between the two on either side.
//! So the producer sees that the consumer sleeps, or the consumer sees the records.
//!
//! **The express record is whole.** The producer writes 0 to `express`, then the record, then the
//! new head to `express`, then `head`. The consumer reads `head`, finds the same number in
//! `express`, copies the record, and finds it there again: the record was not written anew in
//! between. Otherwise it takes the record from its place in the ring, where it is, too.
//!
//! Neither end believes the other: a distance between head and tail that is longer than the ring
//! means that the ring is broken.

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The words of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingWords<'a> {
    pub(super) head: &'a AtomicU64,
    pub(super) express: &'a AtomicU64,
    pub(super) tail: &'a AtomicU64,
    pub(super) asleep: &'a AtomicU64,
    pub(super) adopted: &'a AtomicU64,
}

/// Number of words of a ring, of which each but `express` has two cache lines.
pub(super) const COUNT: usize = 4;

/// The producer's side.
impl RingWords<'_> {
    /// Publishes the records before `head`. Returns whether the consumer sleeps, and the caller
    /// must ring its bell.
    #[inline]
    pub(super) fn publish(self, head: u64) -> bool {
        self.head.store(head, Ordering::Release);
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Puts in the express record, which `write` writes, and which publishing `head` publishes.
    #[inline]
    pub(super) fn put_express(self, head: u64, write: impl FnOnce()) {
        self.express.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        write();
        self.express.store(head, Ordering::Release);
    }

    /// Returns the end of the records that the consumer has handled: their room is free.
    #[inline]
    pub(super) fn handled(self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Whether the consumer reads the ring.
    #[inline]
    pub(super) fn is_adopted(self) -> bool {
        self.adopted.load(Ordering::Acquire) != 0
    }
}

/// The consumer's side.
impl RingWords<'_> {
    /// Reads the ring from now on.
    pub(super) fn adopt(self) {
        self.adopted.store(1, Ordering::Release);
    }

    /// Returns the end of the records that are published.
    #[inline]
    pub(super) fn published(self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Copies the express record by `read`, if it is what `head` published; returns whether it is
    /// whole.
    #[inline]
    pub(super) fn take_express(self, head: u64, read: impl FnOnce()) -> bool {
        if self.express.load(Ordering::Acquire) != head {
            return false;
        }
        read();
        fence(Ordering::Acquire);
        self.express.load(Ordering::Relaxed) == head
    }

    /// Frees the room of the records before `tail`.
    #[inline]
    pub(super) fn free(self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }

    /// Announces that the consumer sleeps until the bell rings. Returns whether it may: not if
    /// there are records behind `tail`.
    pub(super) fn announce_sleep(self, tail: u64) -> bool {
        self.asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.head.load(Ordering::Relaxed) == tail
    }

    /// Clears `asleep`: the consumer reads the ring before it announces sleep again.
    pub(super) fn end_sleep(self) {
        self.asleep.store(0, Ordering::Relaxed);
    }
}
