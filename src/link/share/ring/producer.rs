//! The end of a packet ring that sends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{SendFlags, send};

use super::record::{self, Bytes, HEAD_LEN, RecordHead};
use super::{Broken, CAPACITY, EXPRESS, EXPRESS_ROOM, Offer, RingMemory, bells};
use crate::memory::AccessError;

/// Bytes of packets that wait for room in the ring, at most. An engine has no more in flight to a
/// peer.
const BACKLOG_MAX: usize = 4 << 20;

/// Bytes after which records are published, so that the consumer works on them meanwhile.
const PUBLISH_LEN: u64 = 32 << 10;

/// Result of putting a packet into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Done,
    /// There is no room, nor in the backlog: the packet is lost.
    NoRoom,
    /// Its payload is not mapped any more: there is no packet.
    Unmapped,
}

/// The end of a packet ring that sends.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(super) memory: RingMemory,
    bell: OwnedFd,
    /// End of what is written, and of what of it is published.
    head: u64,
    published: u64,
    /// The last that was seen of the consumer's tail.
    tail: u64,
    /// The first record that is not published, if it is short, and its length.
    first: [u8; EXPRESS_ROOM],
    first_len: usize,
    /// Packets that wait for room, in order.
    backlog: VecDeque<(RecordHead, Box<[u8]>)>,
    backlog_len: usize,
}

impl Producer {
    /// Makes a ring; returns what the consumer is to be offered.
    pub(crate) fn new() -> io::Result<(Self, Offer)> {
        let (memory, file) = RingMemory::new()?;
        let (bell, consumers) = bells()?;
        let producer = Self {
            memory,
            bell,
            head: 0,
            published: 0,
            tail: 0,
            first: [0; EXPRESS_ROOM],
            first_len: 0,
            backlog: VecDeque::new(),
            backlog_len: 0,
        };
        Ok((producer, Offer { memory: file, bell: consumers }))
    }

    /// Returns the descriptor that is closed at the other end when the consumer drops the ring.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Whether the consumer reads the ring.
    #[inline]
    pub(crate) fn is_adopted(&self) -> bool {
        self.memory.words().is_adopted()
    }

    /// Whether packets wait for room.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Puts a packet in, behind those that wait. The consumer sees it once it is
    /// [published](Self::publish).
    #[inline]
    pub(crate) fn put(&mut self, head: &RecordHead, packet: Bytes<'_>) -> Result<Put, Broken> {
        if self.has_backlog() {
            return Ok(self.keep(head, packet));
        }
        match self.write(head, packet)? {
            Put::Done => {}
            Put::NoRoom => return Ok(self.keep(head, packet)),
            Put::Unmapped => return Ok(Put::Unmapped),
        }
        if self.head - self.published >= PUBLISH_LEN {
            self.publish();
        }
        Ok(Put::Done)
    }

    /// Moves packets that waited into the ring, as far as there is room; returns whether there was
    /// some.
    #[cold]
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        let before = self.backlog_len;
        while let Some((head, packet)) = self.backlog.pop_front() {
            if self.write(&head, (&*packet).into())? != Put::Done {
                self.backlog.push_front((head, packet));
                break;
            }
            self.backlog_len -= packet.len();
        }
        self.publish();
        Ok(self.backlog_len < before)
    }

    #[cold]
    fn keep(&mut self, head: &RecordHead, packet: Bytes<'_>) -> Put {
        if self.backlog_len + packet.len() > BACKLOG_MAX {
            return Put::NoRoom;
        }
        let Ok(packet) = packet.to_vec() else { return Put::Unmapped };
        self.backlog_len += packet.len();
        self.backlog.push_back((*head, packet));
        Put::Done
    }

    /// Publishes what was put in, and rings the bell if the consumer sleeps.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published == self.head {
            return;
        }
        let len = usize::try_from(self.head - self.published).unwrap_or(usize::MAX);
        self.published = self.head;
        let words = self.memory.words();
        if len == self.first_len
            && let Some(alone) = self.first.get(..len)
        {
            words.put_express(self.head, || self.memory.0.write(EXPRESS, alone));
        }
        if words.publish(self.head) {
            // If its buffer is full, the bell rings already.
            let _ = send(&self.bell, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        // The consumer's core has the lines of the next record, which is mostly as long.
        if len <= EXPRESS_ROOM {
            let (place, to_end) = RingMemory::place(self.head);
            self.memory.0.prefetch_to_write(place, len.min(to_end));
        }
    }

    /// Writes a record, if there is room.
    #[inline]
    fn write(&mut self, head: &RecordHead, packet: Bytes<'_>) -> Result<Put, Broken> {
        let len = RecordHead::record_len(packet.len());
        let (mut place, to_end) = RingMemory::place(self.head);
        let is_first = self.head == self.published;
        let skipped = if len > to_end { to_end } else { 0 };
        if !self.has_room(len + skipped)? {
            return Ok(Put::NoRoom);
        }
        if skipped > 0 {
            self.memory.0.write(place, &record::skip());
            self.head += skipped as u64;
            (place, _) = RingMemory::place(self.head);
        }
        if is_first {
            self.first_len = 0;
            if packet.payload.is_none()
                && let Some((start, rest)) = self.first.split_first_chunk_mut()
                && let Some(rest) = rest.get_mut(..packet.len())
            {
                *start = head.emit();
                rest.copy_from_slice(packet.packet);
                self.first_len = len;
            }
        }
        self.memory.0.write(place, &head.emit());
        if self.write_bytes(place + HEAD_LEN, packet).is_err() {
            return Ok(Put::Unmapped);
        }
        self.head += len as u64;
        Ok(Put::Done)
    }

    /// Writes the bytes of a packet to their place.
    #[inline]
    fn write_bytes(&self, place: usize, packet: Bytes<'_>) -> Result<(), AccessError> {
        let memory = &self.memory.0;
        let Some((start, payload)) = packet.payload else {
            memory.write(place, packet.packet);
            return Ok(());
        };
        let end = start + payload.len();
        memory.write(place, packet.packet.get(..start).unwrap_or_default());
        memory.write(place + end, packet.packet.get(end..).unwrap_or_default());
        // The next record is mostly as long. Lines that the consumer has yet to read stay with it.
        let len = RecordHead::record_len(packet.len());
        let is_free = self.head + 2 * len as u64 - self.tail <= CAPACITY as u64;
        memory.write_region(place + start, payload, if is_free { len } else { 0 })
    }

    /// Returns the number of bytes for records that are free. A consumer that says what cannot be
    /// makes none.
    #[inline]
    pub(crate) fn room(&mut self) -> usize {
        let tail = self.memory.words().handled();
        if tail.wrapping_sub(self.tail) <= self.published - self.tail {
            self.tail = tail;
        }
        CAPACITY.saturating_sub(usize::try_from(self.head - self.tail).unwrap_or(usize::MAX))
    }

    /// Whether `len` bytes are free.
    #[inline]
    fn has_room(&mut self, len: usize) -> Result<bool, Broken> {
        let fits = |used: u64| used + len as u64 <= CAPACITY as u64;
        if fits(self.head - self.tail) {
            return Ok(true);
        }
        let tail = self.memory.words().handled();
        // Between what it was and what is published.
        if tail.wrapping_sub(self.tail) > self.published - self.tail {
            return Err(Broken);
        }
        self.tail = tail;
        if !fits(self.head - self.tail) {
            // The consumer may not know of what is in it.
            self.publish();
            return Ok(false);
        }
        Ok(true)
    }
}
