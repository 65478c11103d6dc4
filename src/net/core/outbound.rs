//! The sending direction: room in the peer's ring.
//!
//! Positions count all bytes since the beginning, those that were skipped at the end of the ring
//! included. The staging memory has the size of the peer's ring, and each record lies at the same
//! offset in both. Room is free again when the peer has consumed the WRITE and the WRITE has
//! completed: until then the NIC may retransmit from it.

use std::collections::VecDeque;

use super::Violation;

/// Room for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Position of its first byte.
    pub(crate) start: u64,
    /// Offset in the ring.
    pub(crate) offset: u32,
    /// Whether it is at the start of the ring, although there was room behind the last.
    pub(crate) wraps: bool,
}

/// A WRITE to the peer's ring.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Position behind it.
    end: u64,
    /// Number of messages in it.
    messages: u32,
    /// Whether its payload is not in the staging memory.
    is_lent: bool,
}

/// Records in the staging memory that the peer is not known to have consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Position of the first byte.
    pub(super) start: u64,
    pub(super) len: u32,
    /// Whether the peer's NIC has them.
    is_acknowledged: bool,
}

impl Kept {
    /// Records that are not posted.
    pub(super) fn queued(start: u64, len: u32) -> Self {
        Self { start, len, is_acknowledged: false }
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }
}

#[derive(Debug)]
pub(super) struct Outbound {
    /// Bytes of the peer's ring.
    size: u32,
    /// Number of WRITEs that the peer has receives for.
    writes_max: usize,
    /// Position behind the last record.
    head: u64,
    /// Position up to which the peer consumed.
    consumed: u64,
    /// Position up to which WRITEs have completed.
    completed: u64,
    /// WRITEs that the peer did not consume.
    unconsumed: VecDeque<Write>,
    /// Number of consumed WRITEs that the peer reported last.
    reported: u16,
}

impl Outbound {
    pub(super) fn new(size: u32, writes_max: u16) -> Self {
        Self {
            size,
            writes_max: usize::from(writes_max),
            head: 0,
            consumed: 0,
            completed: 0,
            unconsumed: VecDeque::with_capacity(usize::from(writes_max)),
            reported: 0,
        }
    }

    /// Takes room for a record of `bytes`, if there is.
    #[inline]
    pub(super) fn reserve(&mut self, bytes: u32) -> Option<Room> {
        let room = self.find(bytes)?;
        self.head = room.start + u64::from(bytes);
        Some(room)
    }

    /// Returns the position of a record of `bytes`, if there is room for it.
    #[inline]
    pub(super) fn find(&self, bytes: u32) -> Option<Room> {
        let size = u64::from(self.size);
        let offset = self.head % size;
        let wraps = offset + u64::from(bytes) > size;
        let start = if wraps { self.head + size - offset } else { self.head };
        let end = start + u64::from(bytes);
        if end - self.consumed.min(self.completed) > size {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "an offset is less than the size")]
        let offset = if wraps { 0 } else { offset as u32 };
        Some(Room { start, offset, wraps })
    }

    /// Whether the peer has receives for this number of further WRITEs.
    #[inline]
    pub(super) fn has_credit_for(&self, writes: usize) -> bool {
        self.unconsumed.len() + writes <= self.writes_max
    }

    /// A WRITE that ends at a position is posted.
    #[inline]
    pub(super) fn post(&mut self, end: u64, messages: u32, is_lent: bool) {
        self.unconsumed.push_back(Write { end, messages, is_lent });
    }

    #[inline]
    pub(super) fn complete(&mut self, end: u64) {
        self.completed = end;
    }

    /// The peer told how many WRITEs it consumed since the beginning.
    #[inline]
    pub(super) fn handle_consumed(&mut self, count: u16) -> Result<(), Violation> {
        let more = usize::from(count.wrapping_sub(self.reported));
        if more > self.unconsumed.len() {
            return Err(Violation("it consumed more than was written"));
        }
        if let Some(last) = self.unconsumed.drain(..more).next_back() {
            self.consumed = last.end;
        }
        self.reported = count;
        Ok(())
    }

    /// Number of messages that were posted and that the peer is not known to have: its NIC has not
    /// acknowledged them.
    pub(super) fn unacknowledged(&self) -> usize {
        let unknown = self.unconsumed.iter().filter(|write| write.end > self.completed);
        unknown.map(|write| write.messages as usize).sum()
    }

    /// WRITEs from the staging memory that the peer has not consumed, as far as is known.
    pub(super) fn unconsumed(&self) -> impl Iterator<Item = Kept> {
        let size = u64::from(self.size);
        let mut position = self.consumed;
        self.unconsumed.iter().filter_map(move |&Write { end, is_lent, .. }| {
            // A WRITE lies within one turn of the ring; what is left of the turn before is skipped.
            let start = position.max((end - 1) / size * size);
            position = end;
            let len = u32::try_from(end - start).unwrap_or(u32::MAX);
            (!is_lent).then_some(Kept { start, len, is_acknowledged: end <= self.completed })
        })
    }

    /// Position behind the last record.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that are not free.
    pub(super) fn used(&self) -> u64 {
        self.head - self.consumed.min(self.completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_free_once_it_is_consumed_and_completed() {
        let mut out = Outbound::new(64, 4);
        for offset in [0, 24] {
            assert_eq!(out.reserve(24).unwrap().offset, offset);
            out.post(u64::from(offset) + 24, 2, false);
        }
        assert_eq!(out.reserve(24), None, "16 bytes are left at the end, and the start is in use");
        out.handle_consumed(1).unwrap();
        assert_eq!(out.reserve(24), None, "the NIC may retransmit");
        out.complete(24);
        let wrapped = Some(Room { start: 64, offset: 0, wraps: true });
        assert_eq!((out.find(24), out.reserve(24)), (wrapped, wrapped));
        out.post(88, 1, false);
        let kept = |start| Kept::queued(start, 24);
        assert_eq!(out.unconsumed().collect::<Vec<_>>(), [kept(24), kept(64)]);
        assert_eq!(out.unacknowledged(), 3);
        out.complete(48);
        assert_eq!((out.unacknowledged(), out.unconsumed().count()), (1, 2));
        assert_eq!(out.handle_consumed(4), Err(Violation("it consumed more than was written")));
        assert_eq!(out.used(), 64);
        out.handle_consumed(3).unwrap();
        assert_eq!(out.unacknowledged(), 0, "what was consumed has arrived");
    }

    #[test]
    fn a_record_that_ends_at_the_end_needs_no_wrap() {
        let mut out = Outbound::new(64, 1);
        assert!(out.reserve(64).is_some() && out.has_credit_for(1));
        out.post(64, 1, false);
        assert!(!out.has_credit_for(1));
        out.complete(64);
        out.handle_consumed(1).unwrap();
        assert_eq!(out.reserve(8), Some(Room { start: 64, offset: 0, wraps: false }));
    }
}
