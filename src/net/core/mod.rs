//! A message connection as a state machine: told completions and commands, it yields work to post.
//!
//! Each side has a ring, into which its peer WRITEs records: a header and a message. The WRITEs carry immediate data, so that
//! each completes a receive, which has no buffer. One WRITE may carry many records. The immediate data tells how many WRITEs
//! its sender has consumed in the opposite direction: these are the credits. A peer that does not read gets no more than its
//! ring holds. A side that consumed half of its ring without a WRITE of its own tells so by an empty WRITE.
//!
//! A message that is larger than a quarter of the ring stays in its sender's memory. A record tells where, and the receiver
//! READs it in chunks when its program wants it. The immediate data counts the large messages that were read, too.
//!
//! The core uses memory and the words of verbs, and no device: tests drive it over two engines and a simulated network.
//!
//! | file | holds |
//! |---|---|
//! | `frame.rs` | record headers and immediate data |
//! | `outbound.rs` | room in the peer's ring |
//! | `inbound.rs` | records in the own ring |
//! | `fetch.rs` | a large message that is read |

mod fetch;
pub(crate) mod frame;
mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::limits::{CHUNKS, CONTROLS_MAX, OPERATIONS_MAX, RENDEZVOUS_MAX, SENDS_BESIDE};
use crate::memory::Region;
use crate::verbs::{PostError, SendOp, Wc, WcStatus, WrId};
use crate::wire::RKey;
use fetch::{Fetch, Landing};
use frame::{Header, Kind, READ_MASK, Source, Told, record_bytes};
use inbound::Inbound;
use outbound::{Outbound, Room};

/// Marks the id of a receive.
const RECEIVE: u64 = 1 << 63;

/// Number of work requests of which one at least is signaled.
const SIGNAL_EVERY: u32 = 32;

/// Messages of at least this part of the ring are not copied into it.
const EAGER_PART: u32 = 4;

/// The peer did what the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// Why a connection does not work any more.
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
}

/// The own memory.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    /// The ring, which the peer writes.
    pub(crate) ring: Region,
    pub(crate) ring_size: u32,
    /// As many bytes as the peer's ring has, and room for chunks behind.
    pub(crate) staging: Region,
    pub(crate) chunk: u32,
    /// Number of WRITEs that receives are posted for.
    pub(crate) writes: u16,
}

impl OwnMemory {
    /// Bytes of staging memory for a peer's ring of `ring` bytes.
    pub(crate) fn staging_bytes(ring: u32, chunk: u32) -> usize {
        ring as usize + CHUNKS * chunk as usize
    }
}

/// Number of receives for a window of so many WRITEs.
pub(crate) fn receives(writes: u16) -> u32 {
    u32::from(writes) + u32::from(CONTROLS_MAX)
}

/// Number of sends for a window of so many WRITEs.
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
    /// A record of which the payload was lent, and lies elsewhere. The rest is in the staging memory.
    Lent { offset: u32, len: u32, payload: u32, number: u64 },
    /// What the caller has at hand: the record that it asked to post at once.
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
    wraps: bool,
}

impl Records {
    fn new(room: Room, len: u32) -> Self {
        Self { start: room.start, offset: room.offset, len, wraps: room.wraps }
    }

    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// What waits to be posted.
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

/// What is posted and has not completed.
#[derive(Clone, Copy, Debug)]
enum Inflight {
    /// A WRITE to the ring, up to a position.
    Records(u64),
    /// The same, of a record whose payload was lent.
    Lent(u64),
    /// A part of a large message.
    Chunk,
    Operation,
    /// An empty WRITE.
    Control,
}

/// What became of an attempt to take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Message,
    /// None is there.
    Nothing,
    /// None will come.
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
    outbox: VecDeque<Out>,
    inflight: VecDeque<Inflight>,
    inflight_max: usize,
    /// Number of the next work request; the oldest in flight has this less their number.
    sequence: u64,
    /// Number behind the last work request that carries something, and behind the last that is signaled.
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
    /// Number of the own large messages that the peer has read since the beginning, and of those that it has not.
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
        let OwnMemory { ring, ring_size, staging, chunk, writes } = own;
        let inflight_max = sends(peer.writes);
        Self {
            peer,
            outbound: Outbound::new(peer.size, peer.writes),
            inbound: Inbound::new(ring, ring_size, writes),
            staging,
            landing: Landing { offset: peer.size, chunk, chunks: CHUNKS },
            message_max,
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

    /// Why it does not work any more.
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

    /// Number of lent payloads that were sent since the beginning: the NIC does not read them again. They are sent in order.
    #[inline]
    pub(crate) fn lent_done(&self) -> u64 {
        self.lent_done
    }

    /// Whether the peer has everything that was lent to be sent or read.
    pub(crate) fn has_returned_all(&self) -> bool {
        self.unread == 0 && self.lent_done == self.lent_begun
    }

    /// Number of the own large messages that the peer has not read. It reads them in order.
    #[inline]
    pub(crate) fn unread(&self) -> u16 {
        self.unread
    }

    /// Whether everything that was queued is posted and is known to have completed. What only tells of credits does not count:
    /// it may stay in flight, not signaled.
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

    /// Number of work requests in flight.
    #[inline]
    pub(crate) fn inflight(&self) -> usize {
        self.inflight.len()
    }

    /// Whether an attempt to take a message would have something to return, or the connection has failed.
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

    /// Whether a message would be posted at once together with the records that wait, if there is room for it: it joins them, or goes
    /// in a WRITE of its own.
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

    /// Queues a message of several parts if there is room for it; it has at most [`eager_max`](Self::eager_max) bytes in all.
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.queue_record(Kind::Message, len, parts)
    }

    /// Where the payload of the next message of `len` bytes is to be written in the staging memory, if there is room for it.
    pub(crate) fn find_room(&self, len: usize) -> Option<u64> {
        let room = self.outbound.find(u32::try_from(record_bytes(len)).ok()?)?;
        Some(u64::from(room.offset) + frame::HEADER as u64)
    }

    /// Writes to room that was found.
    pub(crate) fn fill(&self, at: u64, bytes: &[u8]) -> bool {
        self.staging.write(at, bytes).is_ok()
    }

    /// Queues the message whose payload lies where [`find_room`](Self::find_room) said.
    pub(crate) fn queue_in_place(&mut self, len: usize) -> bool {
        self.queue_record(Kind::Message, len, &[])
    }

    /// The messages that the peer has not consumed, as far as is known, oldest first. They must have been queued: one that is
    /// posted at once, inline, and one that was lent, is not kept.
    pub(crate) fn unconsumed(&self) -> Vec<Vec<u8>> {
        let size = u64::from(self.peer.size);
        let queued = self.outbox.iter().filter_map(|out| match out {
            Out::Records(records) => Some((records.start, records.len)),
            Out::Lent { .. } | Out::Operation(..) => None,
        });
        let mut messages = Vec::new();
        for (start, len) in self.outbound.unconsumed().chain(queued) {
            let (mut at, end) = (start % size, start % size + u64::from(len));
            while at < end {
                let mut header = [0; frame::HEADER];
                let is_read = self.staging.read(at, &mut header).is_ok();
                let Some(header) = Header::parse(header).filter(|_| is_read) else { break };
                let mut message = Vec::new();
                let payload = at + frame::HEADER as u64;
                let copied = self.staging.append_to(payload, header.len as usize, &mut message);
                if header.kind == Kind::Message && copied.is_ok() {
                    messages.push(message);
                }
                at += record_bytes(header.len as usize) as u64;
            }
        }
        messages
    }

    /// Queues the place of a large message, if there is room and not too many are unread.
    pub(crate) fn queue_rendezvous(&mut self, source: Source) -> bool {
        if self.unread == RENDEZVOUS_MAX {
            return false;
        }
        let queued = self.queue_record(Kind::Rendezvous, Source::BYTES, &[&source.emit()]);
        self.unread += u16::from(queued);
        queued
    }

    /// Queues a message of `len` bytes whose payload is lent: it lies elsewhere, and stays as it is until
    /// [`lent_done`](Self::lent_done) is greater than the number that is returned. `None` if there is no room.
    pub(crate) fn queue_lent(&mut self, len: usize) -> Option<u64> {
        let payload = u32::try_from(len).ok()?;
        let records = self.begin_record(Kind::Message, len, &[])?;
        let number = self.lent_begun;
        self.lent_begun += 1;
        self.outbox.push_back(Out::Lent { records, payload, number });
        Some(number)
    }

    fn queue_record(&mut self, kind: Kind, len: usize, parts: &[&[u8]]) -> bool {
        let Some(records) = self.begin_record(kind, len, parts) else { return false };
        let run_max = self.peer.size / EAGER_PART;
        match self.outbox.back_mut() {
            Some(Out::Records(last))
                if last.end() == records.start
                    && records.offset != 0
                    && last.len + records.len <= run_max =>
            {
                last.len += records.len;
            }
            _ => self.outbox.push_back(Out::Records(records)),
        }
        true
    }

    /// Takes room for a record, and writes its header and the parts of its payload that are given to the staging memory.
    fn begin_record(&mut self, kind: Kind, len: usize, parts: &[&[u8]]) -> Option<Records> {
        debug_assert!(len <= self.eager_max(), "larger messages are read by the peer");
        let (bytes, len) = (u32::try_from(record_bytes(len)).ok()?, u32::try_from(len).ok()?);
        let room = self.outbound.reserve(bytes)?;
        let mut at = u64::from(room.offset);
        let header = Header { len, kind }.emit();
        for part in [&header[..]].iter().chain(parts) {
            self.staging.write(at, part).expect("there is room in the staging memory");
            at += part.len() as u64;
        }
        Some(Records::new(room, bytes))
    }

    /// Takes room for a message of `len` bytes and posts it at once, without staging: its record goes inline. `None` if
    /// something waits before it, or there is no room.
    #[inline]
    pub(crate) fn post_now(&mut self, len: usize) -> Option<Post> {
        let bytes = u32::try_from(record_bytes(len)).ok()?;
        let room = if self.may_post() { self.outbound.reserve(bytes)? } else { return None };
        Some(self.post_records(Records::new(room, bytes), Local::Caller))
    }

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

    /// It does not work any more.
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
        let told = Told::parse(imm);
        self.outbound.handle_consumed(told.consumed)?;
        let read = told.read.wrapping_sub(self.peer_read) & READ_MASK;
        if read > self.unread {
            return Err(Violation("it read more large messages than there are"));
        }
        self.peer_read = told.read;
        self.unread -= read;
        self.inbound.handle_write(wc.byte_len, told)
    }

    // Polls.

    /// Number of receives to post, each without memory, by [`receive_id`]. May change after any completion.
    #[must_use]
    #[inline]
    pub(crate) fn poll_receives(&mut self) -> u32 {
        std::mem::take(&mut self.receives_due)
    }

    /// Number of receives that wait to be posted.
    #[inline]
    pub(crate) fn receives_due(&self) -> u32 {
        self.receives_due
    }

    /// The next work request to post. May change after any command or completion.
    #[must_use]
    #[inline]
    pub(crate) fn poll_post(&mut self) -> Option<Post> {
        if self.failure.is_some() || self.inflight.len() >= self.inflight_max {
            return None;
        }
        self.poll_chunk().or_else(|| self.poll_outbox()).or_else(|| self.poll_control())
    }

    fn poll_chunk(&mut self) -> Option<Post> {
        let (op, chunk) = self.fetch.as_mut()?.poll_chunk(self.landing)?;
        let local = Local::Staging { offset: chunk.offset, len: chunk.len };
        Some(self.post(op, local, Inflight::Chunk, true))
    }

    fn poll_outbox(&mut self) -> Option<Post> {
        let out = *self.outbox.front()?;
        if !matches!(out, Out::Operation(..)) && !self.outbound.has_credit_for(1) {
            return None;
        }
        self.outbox.pop_front();
        Some(match out {
            Out::Records(records) => {
                let Records { offset, len, .. } = records;
                self.post_records(records, Local::Staging { offset, len })
            }
            Out::Lent { records, payload, number } => {
                let Records { offset, len, .. } = records;
                self.post_records(records, Local::Lent { offset, len, payload, number })
            }
            Out::Operation(op, number) => {
                self.post(op, Local::Operation(number), Inflight::Operation, true)
            }
        })
    }

    fn poll_control(&mut self) -> Option<Post> {
        let (is_end, closes) = match self.end {
            End::Finishing if self.outbox.is_empty() => (true, false),
            End::Closing if self.outbox.is_empty() => (true, true),
            _ => (false, false),
        };
        if is_end {
            self.end = if closes { End::Closed } else { End::Finished };
        }
        if is_end || self.inbound.is_credit_due() || self.read != self.read_told {
            let told = self.tell(closes, is_end);
            let op = self.write_op(0, told);
            return Some(self.post(op, Local::None, Inflight::Control, is_end));
        }
        if std::mem::take(&mut self.is_probe_due) {
            // Without immediate data it takes no receive of the peer's.
            let op = SendOp::Write { remote_addr: self.peer.addr, rkey: self.peer.rkey, imm: None };
            return Some(self.post(op, Local::None, Inflight::Control, true));
        }
        None
    }

    /// What the peer is to be told with the next WRITE.
    #[inline]
    fn tell(&mut self, wraps: bool, is_end: bool) -> Told {
        self.read_told = self.read;
        Told { consumed: self.inbound.tell(), read: self.read & READ_MASK, wraps, is_end }
    }

    #[inline]
    fn write_op(&self, offset: u32, told: Told) -> SendOp {
        let remote_addr = self.peer.addr.wrapping_add(u64::from(offset));
        SendOp::Write { remote_addr, rkey: self.peer.rkey, imm: Some(told.emit()) }
    }

    #[inline]
    fn post_records(&mut self, records: Records, local: Local) -> Post {
        let end = records.end();
        let is_lent = matches!(local, Local::Lent { .. });
        self.outbound.post(end, is_lent);
        let told = self.tell(records.wraps, false);
        let op = self.write_op(records.offset, told);
        self.unsignaled_bytes += records.len;
        let is_due = self.unsignaled_bytes >= self.peer.size / (2 * EAGER_PART);
        // Who lent a payload waits for its completion.
        let what = if is_lent { Inflight::Lent(end) } else { Inflight::Records(end) };
        self.post(op, local, what, is_due || is_lent)
    }

    #[inline]
    fn post(&mut self, op: SendOp, local: Local, what: Inflight, must_signal: bool) -> Post {
        self.unsignaled += 1;
        let is_signaled = must_signal || self.unsignaled >= SIGNAL_EVERY;
        if is_signaled {
            (self.unsignaled, self.unsignaled_bytes) = (0, 0);
        }
        let id = WrId(self.sequence);
        self.sequence += 1;
        if is_signaled {
            self.signaled_end = self.sequence;
        }
        if must_signal || !matches!(what, Inflight::Control) {
            self.needed_end = self.sequence;
        }
        self.inflight.push_back(what);
        Post { id, op, local, is_signaled }
    }
}

/// The id of every receive.
pub(crate) const fn receive_id() -> WrId {
    WrId(RECEIVE)
}

/// Appends the record of a message to `out`, for [`Core::post_now`].
#[inline]
pub(crate) fn emit_record(parts: &[&[u8]], out: &mut [u8]) -> usize {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let header = Header { len: u32::try_from(len).unwrap_or(u32::MAX), kind: Kind::Message }.emit();
    let bytes = record_bytes(len);
    let mut rest = out;
    for part in [&header[..]].iter().chain(parts) {
        let Some((to, behind)) = rest.split_at_mut_checked(part.len()) else { return 0 };
        to.copy_from_slice(part);
        rest = behind;
    }
    bytes
}
