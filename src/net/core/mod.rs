//! A message connection as a state machine: told completions and commands, it yields work to post.
//!
//! Each side has a ring, into which its peer WRITEs records: a header and a message. The WRITEs
//! carry immediate data, so that each completes a receive, which has no buffer. One WRITE may carry
//! many records. The immediate data tells how many WRITEs its sender has consumed in the opposite
//! direction: these are the credits. A peer that does not read gets no more than its ring holds. A
//! side that consumed half of its ring without a WRITE of its own tells so by an empty WRITE.
//!
//! A message that is larger than a quarter of the ring stays in its sender's memory. A record tells
//! where, and the receiver READs it in chunks when its program wants it. The immediate data counts
//! the large messages that were read, too.
//!
//! The core uses memory and the words of verbs, and no device: tests drive it over two engines and
//! a simulated network.
//!
//! | file | holds |
//! |---|---|
//! | `frame.rs` | record headers and immediate data |
//! | `outbound.rs` | room in the peer's ring |
//! | `queue.rs`, `post.rs` | messages on their way out, and the next work request |
//! | `inbound.rs` | records in the own ring |
//! | `fetch.rs` | a large message that is read |

mod fetch;
pub(crate) mod frame;
mod inbound;
mod outbound;
mod post;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::limits::{CHUNKS, CONTROLS_MAX, OPERATIONS_MAX, SENDS_BESIDE};
use crate::memory::Region;
use crate::verbs::{PostError, SendOp, Wc, WcStatus, WrId};
use crate::wire::RKey;
use fetch::{Fetch, Landing};
use frame::{Immediate, Kind, READ_MASK, Source};
use inbound::Inbound;
use outbound::{Outbound, Room};
pub(crate) use queue::{Unconsumed, emit_record};

/// Marks the id of a receive.
const RECEIVE: u64 = 1 << 63;

/// Number of work requests of which one at least is signaled.
const SIGNAL_EVERY: u32 = 32;

/// Messages of at least this part of the ring are not copied into it.
const EAGER_PART: u32 = 4;

/// The peer did what the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// Failure of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A work request failed.
    Status(WcStatus),
    /// The peer did what the protocol does not allow.
    Violation(&'static str),
    /// The device did not take a work request.
    Post(PostError),
}

/// The ring of the peer, as it told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRing {
    pub(crate) addr: u64,
    pub(crate) rkey: RKey,
    pub(crate) size: u32,
    /// Number of WRITEs that it has receives for.
    pub(crate) writes: u16,
    /// Maximum number of bytes of a ring of the other side that its side uses.
    pub(crate) send_max: u32,
}

/// The own memory.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    /// The ring, which the peer writes.
    pub(crate) ring: Region,
    pub(crate) ring_size: u32,
    /// Staging memory: as many bytes as are used of the peer's ring, and room for chunks behind.
    pub(crate) staging: Region,
    pub(crate) chunk: u32,
    /// Number of WRITEs that receives are posted for.
    pub(crate) writes: u16,
    /// Maximum number of bytes of the peer's ring that are used.
    pub(crate) send_max: u32,
}

impl OwnMemory {
    /// Bytes of staging memory for a peer's ring of `ring` bytes.
    pub(crate) fn staging_bytes(ring: u32, chunk: u32) -> usize {
        ring as usize + CHUNKS * chunk as usize
    }
}

/// Number of receives for a window of `writes` WRITEs.
pub(crate) fn receives(writes: u16) -> u32 {
    u32::from(writes) + u32::from(CONTROLS_MAX)
}

/// Number of sends for a window of `writes` WRITEs.
pub(crate) fn sends(writes: u16) -> usize {
    usize::from(writes) + SENDS_BESIDE
}

/// The local data of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// No data.
    None,
    /// A part of the staging memory.
    Staging { offset: u32, len: u32 },
    /// A record of which the payload was lent, and lies elsewhere. The rest is in the staging
    /// memory.
    Lent { offset: u32, len: u32, payload: u32, number: u64 },
    /// The caller's memory: the record that it asked to post at once.
    Caller,
    /// The memory of an operation.
    Operation(u64),
}

/// A work request to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    pub(crate) id: WrId,
    pub(crate) op: SendOp,
    pub(crate) local: Local,
    pub(crate) is_signaled: bool,
}

/// Records that lie one behind the other, and go in one WRITE.
#[derive(Clone, Copy, Debug)]
struct Records {
    /// Position of the first byte.
    start: u64,
    /// Offset in the ring.
    offset: u32,
    len: u32,
    /// Number of messages in them. A large message, which the peer reads, is not in its record.
    messages: u32,
    wraps: bool,
}

impl Records {
    fn new(room: Room, len: u32, messages: u32) -> Self {
        Self { start: room.start, offset: room.offset, len, messages, wraps: room.wraps }
    }

    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// An operation that waits to be posted.
#[derive(Clone, Copy, Debug)]
enum Out {
    Records(Records),
    /// One record, whose payload was lent.
    Lent {
        records: Records,
        payload: u32,
        number: u64,
    },
    /// An operation of the program.
    Operation(SendOp, u64),
}

/// An operation that is posted and has not completed.
#[derive(Clone, Copy, Debug)]
enum Inflight {
    /// A WRITE to the ring, up to a position.
    Records(u64),
    /// A record whose payload was lent.
    Lent(u64),
    /// A part of a large message.
    Chunk,
    Operation,
    /// An empty WRITE.
    Control,
}

/// Result of an attempt to take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Message,
    /// No message is there.
    Nothing,
    /// No message will come.
    End,
}

/// The state of a connection. See the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    peer: PeerRing,
    outbound: Outbound,
    inbound: Inbound,
    staging: Region,
    landing: Landing,
    message_max: u64,
    /// Position from which on queued messages are kept.
    kept_from: u64,
    outbox: VecDeque<Out>,
    inflight: VecDeque<Inflight>,
    inflight_max: usize,
    /// Number of the next work request; the oldest in flight has this less their number.
    sequence: u64,
    /// Number behind the last work request that carries something, and behind the last that is
    /// signaled.
    needed_end: u64,
    signaled_end: u64,
    unsignaled: u32,
    unsignaled_bytes: u32,
    /// Receives to post.
    receives_due: u32,
    fetch: Option<Fetch>,
    /// Number of large messages that were read since the beginning.
    read: u16,
    read_told: u16,
    /// Number of the own large messages that the peer has read since the beginning, and of those
    /// that it has not.
    peer_read: u16,
    unread: u16,
    operations_begun: u64,
    operations_done: u64,
    lent_begun: u64,
    lent_done: u64,
    end: End,
    is_probe_due: bool,
    failure: Option<Failure>,
}

/// The end of the own messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Open,
    /// The peer is to be told that no message follows.
    Finishing,
    Finished,
    /// The peer is to be told that this side does not read any more, either.
    Closing,
    Closed,
}

impl Core {
    pub(crate) fn new(own: OwnMemory, peer: PeerRing, message_max: u64) -> Self {
        let OwnMemory { ring, ring_size, staging, chunk, writes, send_max } = own;
        let inflight_max = sends(peer.writes);
        // Each side uses of the other's ring as much as it said, and so both know where it wraps.
        let ring_size = ring_size.min(peer.send_max);
        let peer = PeerRing { size: peer.size.min(send_max), ..peer };
        Self {
            peer,
            outbound: Outbound::new(peer.size, peer.writes),
            inbound: Inbound::new(ring, ring_size, writes),
            staging,
            landing: Landing { offset: peer.size, chunk, chunks: CHUNKS },
            message_max,
            kept_from: 0,
            outbox: VecDeque::with_capacity(inflight_max),
            inflight: VecDeque::with_capacity(inflight_max),
            inflight_max,
            sequence: 0,
            needed_end: 0,
            signaled_end: 0,
            unsignaled: 0,
            unsignaled_bytes: 0,
            receives_due: receives(writes),
            fetch: None,
            read: 0,
            read_told: 0,
            peer_read: 0,
            unread: 0,
            operations_begun: 0,
            operations_done: 0,
            lent_begun: 0,
            lent_done: 0,
            end: End::Open,
            is_probe_due: false,
            failure: None,
        }
    }

    // Getters.

    /// Returns the failure, if the connection has failed.
    #[inline]
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Maximum number of bytes of a message that is copied into the ring.
    #[inline]
    pub(crate) fn eager_max(&self) -> usize {
        (self.peer.size / EAGER_PART) as usize - frame::HEADER
    }

    /// Number of operations that have completed since the beginning. They complete in order.
    #[inline]
    pub(crate) fn operations_done(&self) -> u64 {
        self.operations_done
    }

    /// Number of lent payloads that were sent since the beginning: the NIC does not read them
    /// again. They are sent in order.
    #[inline]
    pub(crate) fn lent_done(&self) -> u64 {
        self.lent_done
    }

    /// Whether the peer has received every lent payload, and has read every large message.
    pub(crate) fn has_delivered_lent(&self) -> bool {
        self.unread == 0 && self.lent_done == self.lent_begun
    }

    /// Number of the own large messages that the peer has not read. It reads them in order.
    #[inline]
    pub(crate) fn unread(&self) -> u16 {
        self.unread
    }

    /// Whether everything that was queued is posted and is known to have completed. What only tells
    /// of credits does not count: it may stay in flight, not signaled.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_flushed() && self.first_inflight() >= self.needed_end
    }

    /// Number of the oldest work request in flight.
    fn first_inflight(&self) -> u64 {
        self.sequence - self.inflight.len() as u64
    }

    /// Whether everything that was queued is posted.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty() && !matches!(self.end, End::Finishing | End::Closing)
    }

    /// Whether the peer's NIC has all messages, and that this side is closed; and the peer has read
    /// all large messages.
    pub(crate) fn is_closed_and_delivered(&self) -> bool {
        // A peer that has closed reads no large message any more.
        let is_read = self.unread == 0 || self.has_peer_closed();
        self.end == End::Closed && self.is_idle() && is_read
    }

    /// Number of messages that the peer is not known to have: its NIC has not acknowledged them, or
    /// its program has not read them where they are large.
    pub(crate) fn undelivered(&self) -> usize {
        let queued = self.outbox.iter().map(|out| match out {
            Out::Records(records) | Out::Lent { records, .. } => records.messages as usize,
            Out::Operation(..) => 0,
        });
        queued.sum::<usize>() + self.outbound.unacknowledged() + usize::from(self.unread)
    }

    /// Number of work requests in flight.
    #[inline]
    pub(crate) fn inflight(&self) -> usize {
        self.inflight.len()
    }

    /// Whether an attempt to take a message would have something to return, or the connection has
    /// failed.
    pub(crate) fn is_readable(&self) -> bool {
        self.failure.is_some() || !self.inbound.is_empty() || self.inbound.has_ended()
    }

    /// Whether the peer does not read any more, either.
    #[inline]
    pub(crate) fn has_peer_closed(&self) -> bool {
        self.inbound.has_closed()
    }

    /// Whether a message would be posted at once if there is room for it.
    #[inline]
    pub(crate) fn may_post(&self) -> bool {
        self.outbox.is_empty()
            && self.failure.is_none()
            && self.inflight.len() < self.inflight_max
            && self.outbound.has_credit_for(1)
    }

    /// Whether a message would be posted at once, together with the records that wait, if the ring
    /// has room for it: it joins their WRITE, or goes in one of its own.
    #[inline]
    pub(crate) fn may_post_behind(&self) -> bool {
        self.outbox.len() == 1
            && self.failure.is_none()
            && self.inflight.len() + 2 <= self.inflight_max
            && self.outbound.has_credit_for(2)
    }

    /// Whether [`finish`](Self::finish) was called.
    pub(crate) fn is_finished(&self) -> bool {
        self.end != End::Open
    }

    /// Bytes of the peer's ring that are in use.
    pub(crate) fn ring_used(&self) -> u64 {
        self.outbound.used()
    }

    // Commands.

    /// Queues an operation on the peer's memory; returns its number, unless too many wait.
    pub(crate) fn operate(&mut self, op: SendOp) -> Option<u64> {
        if self.operations_begun - self.operations_done >= OPERATIONS_MAX as u64 {
            return None;
        }
        let number = self.operations_begun;
        self.operations_begun += 1;
        self.outbox.push_back(Out::Operation(op, number));
        Some(number)
    }

    /// Tells the peer, behind all messages, that no other follows.
    pub(crate) fn finish(&mut self) {
        self.end = self.end.max(End::Finishing);
    }

    /// Tells the peer the same, and that this side does not read any more.
    pub(crate) fn close(&mut self) {
        self.end = self.end.max(End::Closing);
    }

    /// Has the peer's NIC show that it is there, unless signaled work in flight does so anyway.
    pub(crate) fn probe(&mut self) {
        self.is_probe_due = self.first_inflight() >= self.signaled_end;
    }

    /// Moves the next message to `out`, whose contents are replaced.
    #[inline]
    pub(crate) fn take(&mut self, out: &mut Vec<u8>) -> Taken {
        match self.try_take(out) {
            Ok(taken) => taken,
            Err(Violation(what)) => {
                self.fail(Failure::Violation(what));
                Taken::Nothing
            }
        }
    }

    fn try_take(&mut self, out: &mut Vec<u8>) -> Result<Taken, Violation> {
        if self.fetch.as_ref().is_some_and(Fetch::is_complete) {
            let fetch = self.fetch.take().expect("it was there");
            *out = fetch.message;
            self.inbound.consume(Source::BYTES);
            self.read = self.read.wrapping_add(1);
            return Ok(Taken::Message);
        }
        if self.fetch.is_some() {
            return Ok(Taken::Nothing);
        }
        let Some(record) = self.inbound.first()? else {
            return Ok(if self.inbound.has_ended() { Taken::End } else { Taken::Nothing });
        };
        match record.kind {
            Kind::Message => {
                out.clear();
                let copied = self.inbound.ring().append_to(record.offset, record.len, out);
                copied.map_err(|_| Violation("a record is outside of the ring"))?;
                self.inbound.consume(record.len);
                Ok(Taken::Message)
            }
            Kind::Rendezvous => {
                let mut bytes = [0; Source::BYTES];
                let is_whole = record.len == bytes.len()
                    && self.inbound.ring().read(record.offset, &mut bytes).is_ok();
                let source = Source::parse(&bytes);
                if !is_whole || source.len > self.message_max || source.len == 0 {
                    return Err(Violation("a large message is larger than allowed"));
                }
                out.clear();
                self.fetch = Some(Fetch::new(source, std::mem::take(out)));
                Ok(Taken::Nothing)
            }
        }
    }

    // Completions.

    /// A work request has completed.
    #[inline]
    pub(crate) fn handle_completion(&mut self, wc: &Wc) {
        if !wc.is_success() {
            return self.fail(Failure::Status(wc.status));
        }
        let handled = if wc.id.0 & RECEIVE == 0 {
            self.handle_sent(wc.id.0);
            Ok(())
        } else {
            self.handle_received(wc)
        };
        if let Err(Violation(what)) = handled {
            self.fail(Failure::Violation(what));
        }
    }

    /// Fails the connection.
    pub(crate) fn fail(&mut self, failure: Failure) {
        // The first failure is the cause; work that is flushed follows.
        if self.failure.is_none_or(|first| first == Failure::Status(WcStatus::WrFlushErr)) {
            self.failure = Some(failure);
        }
    }

    /// A send has completed, and all before it.
    fn handle_sent(&mut self, sequence: u64) {
        let first = self.first_inflight();
        let Some(count) = sequence.checked_sub(first).map(|before| before + 1) else { return };
        for _ in 0..count {
            match self.inflight.pop_front() {
                Some(Inflight::Records(end)) => self.outbound.complete(end),
                Some(Inflight::Lent(end)) => {
                    self.outbound.complete(end);
                    self.lent_done += 1;
                }
                Some(Inflight::Chunk) => {
                    if let Some(fetch) = &mut self.fetch {
                        fetch.handle_chunk(&self.staging);
                    }
                }
                Some(Inflight::Operation) => self.operations_done += 1,
                Some(Inflight::Control) => {}
                None => return,
            }
        }
    }

    fn handle_received(&mut self, wc: &Wc) -> Result<(), Violation> {
        self.receives_due += 1;
        let imm = wc.imm().ok_or(Violation("it sent what is no WRITE with immediate data"))?;
        let imm = Immediate::parse(imm);
        self.outbound.handle_consumed(imm.consumed)?;
        let read = imm.read.wrapping_sub(self.peer_read) & READ_MASK;
        if read > self.unread {
            return Err(Violation("it read more large messages than there are"));
        }
        self.peer_read = imm.read;
        self.unread -= read;
        self.inbound.handle_write(wc.byte_len, imm)
    }
}

/// The id of every receive.
pub(crate) const fn receive_id() -> WrId {
    WrId(RECEIVE)
}
