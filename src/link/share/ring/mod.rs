//! Packet rings: packets from one NIC to another through memory that both have mapped.
//!
//! A ring has one [`Producer`] and one [`Consumer`], in two processes of one user. The producer
//! makes it and offers it to the consumer, which adopts it or not. Between them there is also a
//! pair of sockets: a byte on it is the bell, which is rung only when the consumer sleeps; and when
//! one end closes it, by dropping the ring or by ending however it does, the other learns of it.
//!
//! ```text
//! | words, express | record | record |   free   | record | record |  rest |
//!                                    ^ head     ^ tail             skipped
//! ```
//!
//! A packet is in one piece: where it does not fit before the end of the memory, the rest is
//! skipped. The ICRC is not computed: nothing between the two could change a packet.
//!
//! A short record that is published alone is also put behind the head, in the two cache lines that
//! the consumer polls: the [express](words) record. It saves the consumer a transfer from the other
//! core, of some 110 ns, one after the other, for each line of the record.
//!
//! Nothing in a ring is trusted: a head is copied, then checked, and a payload is bytes whatever
//! they are. An end that finds the ring broken drops it, and packets go through the kernel.

mod consumer;
mod producer;
mod record;
mod under_test;
mod words;

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) use consumer::Consumer;
pub(crate) use producer::{Producer, Put};
pub(crate) use record::{Bytes, RecordHead};
pub use under_test::RingUnderTest;

use self::words::RingWords;
use crate::link::sys::shared_memory::{SharedMemory, WORD_STRIDE};

/// Bytes for records. With 4 KiB packets, between two cores of a Xeon, a ring of 256 KiB carries
/// 12 GB/s, one of 512 KiB or more 8, because it leaves the caches, and one of 64 KiB 6.
const CAPACITY: usize = 256 << 10;

/// Offset of the records.
const RECORDS: usize = 4096;

/// Offset and room of the express record, behind the head and the word for it.
const EXPRESS: usize = 16;
const EXPRESS_ROOM: usize = WORD_STRIDE - EXPRESS;

const _: () = assert!(words::COUNT * WORD_STRIDE <= RECORDS, "words are before the records");
const _: () = assert!(CAPACITY.is_multiple_of(record::HEAD_LEN), "a head fits before the end");

/// Descriptors of a ring for its consumer.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) memory: OwnedFd,
    pub(crate) bell: OwnedFd,
}

/// Reason for which an end drops a ring: the other end wrote what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Memory of a ring.
#[derive(Debug)]
struct RingMemory(SharedMemory);

impl RingMemory {
    fn new() -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = SharedMemory::new(c"roce packets", RECORDS + CAPACITY)?;
        Ok((Self(memory), file))
    }

    fn map(file: &OwnedFd) -> io::Result<Self> {
        use std::os::fd::AsFd as _;
        SharedMemory::map(file.as_fd(), RECORDS + CAPACITY).map(Self)
    }

    #[inline]
    fn words(&self) -> RingWords<'_> {
        RingWords {
            head: self.0.word(0),
            express: self.0.word_beside(0),
            tail: self.0.word(1),
            asleep: self.0.word(2),
            adopted: self.0.word(3),
        }
    }

    /// Returns the place of a position, and the number of bytes from there to the end.
    #[inline]
    fn place(position: u64) -> (usize, usize) {
        #[expect(clippy::cast_possible_truncation, reason = "less than the capacity")]
        let at = (position % CAPACITY as u64) as usize;
        (RECORDS + at, CAPACITY - at)
    }
}

/// Makes the pair of sockets of a ring.
fn bells() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests;
