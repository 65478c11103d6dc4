//! Messages on their way out: each takes room in the peer's ring, and waits in the outbox until it
//! is posted.

use super::frame::{self, Header, Kind, Source, record_bytes};
use super::outbound::Kept;
use super::{Core, EAGER_PART, Local, Out, Post, Records};
use crate::net::limits::RENDEZVOUS_MAX;

/// Messages that the peer is not known to have consumed, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unconsumed {
    pub(crate) messages: Vec<Vec<u8>>,
    /// Number of the last of them that the peer's NIC has not acknowledged, either.
    pub(crate) unacknowledged: usize,
}

impl Core {
    /// Queues a message of several parts if there is room for it; it has at most
    /// [`eager_max`](Self::eager_max) bytes in all.
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.queue_record(Kind::Message, len, parts)
    }

    /// Returns the offset in the staging memory at which the payload of the next message of `len`
    /// bytes is to be written, if there is room for it.
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

    /// Has [`unconsumed`](Self::unconsumed) return messages only that are queued from now on.
    pub(crate) fn begin_keeping(&mut self) {
        self.kept_from = self.outbound.head();
    }

    /// The messages that the peer has not consumed, as far as is known, oldest first. They must
    /// have been queued: one that is posted at once, inline, and one that was lent, is not kept.
    pub(crate) fn unconsumed(&self) -> Unconsumed {
        let size = u64::from(self.peer.size);
        let queued = self.outbox.iter().filter_map(|out| match out {
            Out::Records(records) => Some(Kept::queued(records.start, records.len)),
            Out::Lent { .. } | Out::Operation(..) => None,
        });
        let mut found = Unconsumed::default();
        for kept in self.outbound.unconsumed().chain(queued) {
            let start = kept.start % size;
            let (mut at, end) = (start, start + u64::from(kept.len));
            while at < end {
                let mut header = [0; frame::HEADER];
                let is_read = self.staging.read(at, &mut header).is_ok();
                let Some(header) = Header::parse(header).filter(|_| is_read) else { break };
                let mut message = Vec::new();
                let payload = at + frame::HEADER as u64;
                let copied = self.staging.append_to(payload, header.len as usize, &mut message);
                let is_kept = kept.start + (at - start) >= self.kept_from;
                if header.kind == Kind::Message && copied.is_ok() && is_kept {
                    found.messages.push(message);
                    found.unacknowledged += usize::from(!kept.is_acknowledged());
                }
                at += record_bytes(header.len as usize) as u64;
            }
        }
        found
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

    /// Queues a message of `len` bytes whose payload is lent: it lies elsewhere, and stays as it is
    /// until [`lent_done`](Self::lent_done) is greater than the number that is returned. `None` if
    /// there is no room.
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
                last.messages += records.messages;
            }
            _ => self.outbox.push_back(Out::Records(records)),
        }
        true
    }

    /// Takes room for a record, and writes its header and the parts of its payload that are given
    /// to the staging memory.
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
        Some(Records::new(room, bytes, u32::from(kind == Kind::Message)))
    }

    /// Takes room for a message of `len` bytes and posts it at once, without staging: its record
    /// goes inline. `None` if something waits before it, or there is no room.
    #[inline]
    pub(crate) fn post_now(&mut self, len: usize) -> Option<Post> {
        let bytes = u32::try_from(record_bytes(len)).ok()?;
        let room = if self.may_post() { self.outbound.reserve(bytes)? } else { return None };
        Some(self.post_records(Records::new(room, bytes, 1), Local::Caller))
    }
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
