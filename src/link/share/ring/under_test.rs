//! The consumer's end of a ring whose producer writes anything: for fuzzing.

use std::io;
use std::sync::atomic::Ordering;

use super::{CAPACITY, Consumer, EXPRESS, EXPRESS_ROOM, Producer, RECORDS};
use crate::wire::{Gid, PACKET_MAX};

/// A ring whose producer writes anything.
#[derive(Debug)]
pub struct RingUnderTest {
    producer: Producer,
    consumer: Consumer,
    room: Vec<u8>,
}

impl RingUnderTest {
    /// Makes a ring.
    pub fn new() -> io::Result<Self> {
        let (producer, offer) = Producer::new()?;
        let consumer = Consumer::adopt(offer, Gid([0; 16]))?;
        Ok(Self { producer, consumer, room: vec![0; PACKET_MAX] })
    }

    /// Empties the ring, whose next record is at a multiple of 16.
    pub fn restart(&mut self, position: u64) {
        let position = position & !15;
        self.set_express(0);
        self.set_head(position);
        self.consumer.restart(position);
    }

    /// Writes bytes to the memory for records, from `offset` on, as far as there is room.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let offset = offset % CAPACITY;
        let len = bytes.len().min(CAPACITY - offset);
        self.producer.memory.0.write(RECORDS + offset, bytes.get(..len).unwrap_or_default());
    }

    /// Writes the bytes of the express record, as far as there is room.
    pub fn write_express(&self, bytes: &[u8]) {
        let bytes = bytes.get(..bytes.len().min(EXPRESS_ROOM)).unwrap_or_default();
        self.producer.memory.0.write(EXPRESS, bytes);
    }

    /// Says which head publishes the express record.
    pub fn set_express(&self, head: u64) {
        self.producer.memory.words().express.store(head, Ordering::Release);
    }

    /// Publishes all before `head`, whatever is there.
    pub fn set_head(&self, head: u64) {
        self.producer.memory.words().head.store(head, Ordering::Release);
    }

    /// Takes packets, and passes each to `each`; returns their number, `None` if the ring is
    /// broken.
    pub fn take(&mut self, mut each: impl FnMut(&[u8])) -> Option<usize> {
        let count = self.consumer.take().ok()?;
        self.consumer.for_each(&mut self.room, |_, packet| each(packet));
        Some(count)
    }
}
