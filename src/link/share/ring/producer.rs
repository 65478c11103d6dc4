//! The end of a packet ring that sends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{SendFlags, send};

use super::record::{self, HEAD_LEN, RecordHead};
use super::{Broken, CAPACITY, Offer, RingMemory, bells};

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
    pub(crate) fn put(&mut self, head: &RecordHead, packet: &[u8]) -> Result<Put, Broken> {
        if self.has_backlog() || !self.write(head, packet)? {
            return Ok(self.keep(head, packet));
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
            if !self.write(&head, &packet)? {
                self.backlog.push_front((head, packet));
                break;
            }
            self.backlog_len -= packet.len();
        }
        self.publish();
        Ok(self.backlog_len < before)
    }

    #[cold]
    fn keep(&mut self, head: &RecordHead, packet: &[u8]) -> Put {
        if self.backlog_len + packet.len() > BACKLOG_MAX {
            return Put::NoRoom;
        }
        self.backlog_len += packet.len();
        self.backlog.push_back((*head, packet.into()));
        Put::Done
    }

    /// Publishes what was put in, and rings the bell if the consumer sleeps.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published == self.head {
            return;
        }
        self.published = self.head;
        if self.memory.words().publish(self.head) {
            // If its buffer is full, the bell rings already.
            let _ = send(&self.bell, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Writes a record; returns whether there was room.
    #[inline]
    fn write(&mut self, head: &RecordHead, packet: &[u8]) -> Result<bool, Broken> {
        let len = RecordHead::record_len(packet.len());
        let (mut place, to_end) = RingMemory::place(self.head);
        let skipped = if len > to_end { to_end } else { 0 };
        if !self.has_room(len + skipped)? {
            return Ok(false);
        }
        if skipped > 0 {
            self.memory.0.write(place, &record::skip());
            self.head += skipped as u64;
            (place, _) = RingMemory::place(self.head);
        }
        self.memory.0.write(place, &head.emit());
        self.memory.0.write(place + HEAD_LEN, packet);
        self.head += len as u64;
        Ok(true)
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
