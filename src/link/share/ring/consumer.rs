//! The end of a packet ring that receives.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, recv};

use super::record::{Found, HEAD_LEN, RecordHead};
use super::{Broken, CAPACITY, EXPRESS, EXPRESS_ROOM, Offer, RECORDS, RingMemory};
use crate::memory::SharedBytes;
use crate::wire::{Bth, Gid, view};

/// Packets that are taken from a ring at a time, so that other rings have their turn.
const TAKE_MAX: usize = 32;

/// Length of packets whose payload is copied from the ring to where it goes: shorter ones are
/// copied as a whole sooner than they are taken apart.
const APART_MIN: usize = 1024;

/// Number of bytes that are freed at once. Each time, the producer's core loses the cache line of
/// the tail.
const FREE_LEN: u64 = 16 << 10;

/// Number of records by which the heads of long ones are fetched ahead. Each is in a line that the
/// producer's core has, and would be waited for alone: WRITEs of 1 MiB take a tenth less time.
/// The payload is not fetched ahead: the processor does that by itself within a page, and more of
/// it gains nothing.
const HEADS_AHEAD: usize = 8;

/// Bytes at the start of a record in which its headers are.
const START_LEN: usize = HEAD_LEN + HEADERS_MAX;

/// Place that stands for the express record.
const EXPRESS_PLACE: usize = 0;

/// Maximum length of the headers of a packet.
const HEADERS_MAX: usize = 64;

/// Returns the length of the headers at the start of a packet, if nothing but payload is behind
/// them.
#[inline]
fn header_len_before_payload(start: &[u8]) -> Option<usize> {
    let bth = view::<Bth>(start, 0).ok()?;
    let header_len = bth.opcode().info()?.header_len;
    (bth.pad().get() == 0 && header_len <= start.len()).then_some(header_len)
}

/// The end of a packet ring that receives.
#[derive(Debug)]
pub(crate) struct Consumer {
    memory: RingMemory,
    bell: OwnedFd,
    source: Gid,
    /// End of what is handled, which the producer knows.
    handled: u64,
    /// End of what is taken.
    taken_to: u64,
    /// Length of the record that was taken last.
    last_len: usize,
    /// Packets that are taken: their heads, and where they are.
    taken: Vec<(RecordHead, usize)>,
    /// Copy of the express record, if it was taken.
    express: [u8; EXPRESS_ROOM],
    /// Whether nothing was taken yet.
    is_new: bool,
    /// Whether packets waited at the last [`look_at_new`](Self::look_at_new).
    may_begin: bool,
    /// Whether the producer has gone.
    is_ended: bool,
    /// Whether the producer wrote what cannot be.
    is_broken: bool,
    /// Number of packets whose ICRC was to be wrong.
    bad_icrc: u64,
}

impl Consumer {
    /// Reads a ring from now on, whose packets come from `source`.
    pub(crate) fn adopt(offer: Offer, source: Gid) -> io::Result<Self> {
        let memory = RingMemory::map(&offer.memory)?;
        memory.words().adopt();
        Ok(Self {
            memory,
            bell: offer.bell,
            source,
            handled: 0,
            taken_to: 0,
            last_len: 0,
            taken: Vec::with_capacity(TAKE_MAX),
            express: [0; EXPRESS_ROOM],
            is_new: true,
            may_begin: false,
            is_ended: false,
            is_broken: false,
            bad_icrc: 0,
        })
    }

    /// Returns the descriptor that is readable when the bell rings, and closed at the other end
    /// when the producer has gone.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns the address of the producer's NIC.
    pub(crate) fn source(&self) -> Gid {
        self.source
    }

    /// Whether nothing was taken from it yet. What the producer sent through the kernel before is
    /// to be received first.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns whether nothing was taken yet and packets wait, and keeps the answer for
    /// [`may_begin`](Self::may_begin).
    #[cold]
    pub(crate) fn look_at_new(&mut self) -> bool {
        self.may_begin = self.is_new && self.has_packets();
        self.may_begin
    }

    /// Whether the first packets waited at the last [`look_at_new`](Self::look_at_new).
    #[inline]
    pub(crate) fn may_begin(&self) -> bool {
        self.may_begin
    }

    /// Whether packets wait in it.
    #[inline]
    pub(crate) fn has_packets(&self) -> bool {
        self.memory.words().published() != self.taken_to
    }

    /// Silences the bell; returns whether the producer is still there.
    pub(crate) fn silence(&mut self) -> bool {
        let is_there = match recv(&self.bell, &mut [0_u8; 64][..], RecvFlags::DONTWAIT) {
            Ok((len, _)) => len > 0,
            Err(error) => error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR,
        };
        self.is_ended |= !is_there;
        is_there
    }

    /// Whether nothing is to be taken from it any more: the producer has gone, and all that it sent
    /// was taken, or the ring is broken.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_broken || self.is_ended && !self.has_packets()
    }

    pub(crate) fn set_broken(&mut self) {
        self.is_broken = true;
        self.taken.clear();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns the number of packets that were dropped since the last call because their ICRC was
    /// to be wrong.
    #[inline]
    pub(crate) fn take_bad_icrc(&mut self) -> u64 {
        std::mem::take(&mut self.bad_icrc)
    }

    /// Whether packets are taken, and to be handled.
    pub(crate) fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Takes packets, instead of those of the call before; returns their number.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<usize, Broken> {
        self.forget_taken();
        // The second line of an express record comes with the first.
        self.memory.0.prefetch(EXPRESS_ROOM / 2 + EXPRESS, 1);
        let published = self.memory.words().published();
        if published == self.taken_to || self.is_broken {
            return Ok(0);
        }
        self.is_new = false;
        if self.take_express(published) {
            return Ok(1);
        }
        if published.wrapping_sub(self.taken_to) > CAPACITY as u64 {
            return Err(Broken);
        }
        while self.taken_to != published && self.taken.len() < TAKE_MAX {
            let (place, to_end) = RingMemory::place(self.taken_to);
            self.prefetch_head(place, published);
            let left = published - self.taken_to;
            let mut head = [0; HEAD_LEN];
            self.memory.0.read(place, &mut head);
            let len = match RecordHead::parse(&head).ok_or(Broken)? {
                Found::Skip => to_end,
                Found::Packet(head) => {
                    let len = RecordHead::record_len(head.len);
                    if len > to_end {
                        return Err(Broken);
                    }
                    if head.is_icrc_wrong {
                        self.bad_icrc += 1;
                    } else {
                        self.taken.push((head, place + HEAD_LEN));
                    }
                    len
                }
            };
            if len as u64 > left {
                return Err(Broken);
            }
            self.last_len = len;
            self.taken_to += len as u64;
        }
        Ok(self.taken.len())
    }

    /// Lets the caches fetch the head of the record that comes [`HEADS_AHEAD`] records after the
    /// one at `place`, if all are as long as the last.
    #[inline]
    fn prefetch_head(&self, place: usize, published: u64) {
        let ahead = HEADS_AHEAD * self.last_len;
        if self.last_len >= APART_MIN && self.taken_to + (ahead as u64) < published {
            let at = (place - RECORDS + ahead) % CAPACITY;
            self.memory.0.prefetch(RECORDS + at, START_LEN);
        }
    }

    /// Takes the express record, if it is what is new.
    #[inline]
    fn take_express(&mut self, published: u64) -> bool {
        let Self { memory, express, .. } = self;
        let len = published.wrapping_sub(self.taken_to);
        let is_short = len <= EXPRESS_ROOM as u64;
        if !is_short || !memory.words().take_express(published, || memory.0.read(EXPRESS, express))
        {
            return false;
        }
        let head = express.first_chunk().and_then(RecordHead::parse);
        let Some(Found::Packet(head)) = head else { return false };
        if RecordHead::record_len(head.len) as u64 != len || head.is_icrc_wrong {
            return false;
        }
        self.taken.push((head, EXPRESS_PLACE));
        self.taken_to = published;
        true
    }

    /// Goes on at another position, as if all before had been handled.
    pub(super) fn restart(&mut self, position: u64) {
        self.taken.clear();
        (self.handled, self.taken_to, self.is_broken) = (position, position, false);
    }

    /// Ends the use of the packets that were taken, and frees their room once it is [`FREE_LEN`].
    #[inline]
    fn forget_taken(&mut self) {
        self.taken.clear();
        if self.taken_to - self.handled >= FREE_LEN {
            self.give_back();
        }
    }

    /// Frees the room of the packets that were taken.
    #[inline]
    fn give_back(&mut self) {
        self.taken.clear();
        if self.handled != self.taken_to {
            self.handled = self.taken_to;
            self.memory.words().free(self.handled);
        }
    }

    #[inline]
    fn express_packet(&self, head: &RecordHead) -> &[u8] {
        self.express.get(HEAD_LEN..HEAD_LEN + head.len).unwrap_or_default()
    }

    /// Copies each packet that was taken to `room`, and passes it to `each`.
    #[inline]
    pub(crate) fn for_each(&self, room: &mut [u8], mut each: impl FnMut(&RecordHead, &[u8])) {
        for (head, place) in &self.taken {
            if *place == EXPRESS_PLACE {
                each(head, self.express_packet(head));
                continue;
            }
            let Some(packet) = room.get_mut(..head.len) else { continue };
            self.memory.0.read(*place, packet);
            each(head, packet);
        }
    }

    /// Passes each packet that was taken to `each`, as [`for_each`](Self::for_each) does, but of
    /// one with much payload only the headers are copied to `room`.
    #[inline]
    pub(crate) fn for_each_apart(
        &self,
        room: &mut [u8],
        mut each: impl FnMut(&RecordHead, &[u8], Option<SharedBytes<'_>>),
    ) {
        for (head, place) in &self.taken {
            if *place == EXPRESS_PLACE {
                each(head, self.express_packet(head), None);
                continue;
            }
            let Some(packet) = room.get_mut(..head.len) else { continue };
            if head.len < APART_MIN {
                self.memory.0.read(*place, packet);
                each(head, packet, None);
                continue;
            }
            let (headers, rest) = packet.split_at_mut(HEADERS_MAX.min(head.len));
            self.memory.0.read(*place, headers);
            match header_len_before_payload(headers) {
                Some(len) => {
                    let payload = self.memory.0.bytes(*place + len, head.len - len);
                    each(head, headers.get(..len).unwrap_or_default(), Some(payload));
                }
                None => {
                    self.memory.0.read(*place + headers.len(), rest);
                    each(head, packet, None);
                }
            }
        }
    }

    /// Announces that the consumer sleeps until the bell rings; returns whether it may.
    pub(crate) fn announce_sleep(&mut self) -> bool {
        self.give_back();
        self.memory.words().announce_sleep(self.taken_to)
    }

    /// Ends the sleep that was announced: the producer need not ring the bell.
    pub(crate) fn end_sleep(&self) {
        self.memory.words().end_sleep();
    }
}
