//! The receiving direction: records in the own ring.

use std::collections::VecDeque;

use super::Violation;
use super::frame::{HEADER, Header, Immediate, Kind, record_bytes};
use crate::memory::Region;

/// A WRITE that arrived and was not consumed.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    /// Offset in the ring.
    start: u32,
    len: u32,
    /// Length in the ring, with the bytes that were skipped before it.
    span: u32,
}

/// A record in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// Offset of its payload in the ring.
    pub(super) offset: u64,
    pub(super) len: usize,
}

#[derive(Debug)]
pub(super) struct Inbound {
    ring: Region,
    size: u32,
    writes_max: usize,
    /// Offset of the next WRITE, unless it wraps.
    position: u32,
    arrived: VecDeque<Arrived>,
    /// Bytes of the first one that were consumed.
    cursor: u32,
    /// Number of bytes of all WRITEs that arrived.
    bytes: u32,
    /// Number of WRITEs that were consumed since the beginning.
    consumed: u16,
    /// Value of `consumed` that the peer was told last.
    reported: u16,
    /// Bytes that were consumed since.
    unreported_bytes: u32,
    /// Whether no message follows.
    has_ended: bool,
    /// Whether the peer does not read any more, either.
    has_closed: bool,
}

impl Inbound {
    pub(super) fn new(ring: Region, size: u32, writes_max: u16) -> Self {
        Self {
            ring,
            size,
            writes_max: usize::from(writes_max),
            position: 0,
            arrived: VecDeque::with_capacity(usize::from(writes_max)),
            cursor: 0,
            bytes: 0,
            consumed: 0,
            reported: 0,
            unreported_bytes: 0,
            has_ended: false,
            has_closed: false,
        }
    }

    /// A WRITE of `len` bytes arrived.
    #[inline]
    pub(super) fn handle_write(&mut self, len: u32, imm: Immediate) -> Result<(), Violation> {
        let had_ended = self.has_ended;
        self.has_ended |= imm.is_end;
        if len == 0 {
            self.has_closed |= imm.is_end && imm.wraps;
            return Ok(());
        }
        if had_ended {
            return Err(Violation("it wrote after its end"));
        }
        let at_end = self.position == self.size;
        let start = if imm.wraps || at_end { 0 } else { self.position };
        let skipped = if imm.wraps { self.size - self.position } else { 0 };
        let fits = len <= self.size - start && len + skipped <= self.size - self.bytes;
        if !fits || self.arrived.len() == self.writes_max {
            return Err(Violation("it wrote more than there is room for"));
        }
        let span = len + skipped;
        self.position = start + len;
        self.bytes += span;
        self.arrived.push_back(Arrived { start, len, span });
        Ok(())
    }

    /// The first record that was not consumed.
    #[inline]
    pub(super) fn first(&self) -> Result<Option<Record>, Violation> {
        let Some(write) = self.arrived.front() else { return Ok(None) };
        let (at, left) = (u64::from(write.start + self.cursor), write.len - self.cursor);
        let mut header = [0; HEADER];
        let inside = left as usize >= HEADER && self.ring.read(at, &mut header).is_ok();
        let header = Header::parse(header).filter(|_| inside);
        let header = header.ok_or(Violation("a record has no valid header"))?;
        let len = header.len as usize;
        if len > left as usize - HEADER {
            return Err(Violation("a record is longer than its WRITE"));
        }
        Ok(Some(Record { kind: header.kind, offset: at + HEADER as u64, len }))
    }

    /// The first record is consumed, whose payload has `len` bytes.
    #[inline]
    pub(super) fn consume(&mut self, len: usize) {
        let Some(write) = self.arrived.front() else { return };
        let bytes = u32::try_from(record_bytes(len)).unwrap_or(u32::MAX);
        self.cursor = self.cursor.saturating_add(bytes);
        if self.cursor >= write.len {
            self.cursor = 0;
            self.bytes -= write.span;
            self.unreported_bytes = self.unreported_bytes.saturating_add(write.span);
            self.consumed = self.consumed.wrapping_add(1);
            self.arrived.pop_front();
        }
    }

    /// Whether the peer must be told what was consumed, lest it waits.
    #[inline]
    pub(super) fn is_credit_due(&self) -> bool {
        let unreported = usize::from(self.consumed.wrapping_sub(self.reported));
        unreported >= self.writes_max.div_ceil(2) || self.unreported_bytes >= self.size / 2
    }

    /// Tells the peer.
    #[inline]
    pub(super) fn report_consumed(&mut self) -> u16 {
        (self.reported, self.unreported_bytes) = (self.consumed, 0);
        self.consumed
    }

    /// Whether no message follows those that arrived.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the peer does not read any more, either.
    #[inline]
    pub(super) fn has_closed(&self) -> bool {
        self.has_closed
    }

    /// Whether no record waits to be consumed.
    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    pub(super) fn ring(&self) -> &Region {
        &self.ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    const PLAIN: Immediate = Immediate { consumed: 0, read: 0, wraps: false, is_end: false };

    fn inbound(buffer: &Buffer) -> Inbound {
        Inbound::new(buffer.region(), u32::try_from(buffer.len()).unwrap(), 4)
    }

    fn message(buffer: &Buffer, offset: usize, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap();
        buffer.write(offset, &Header { len, kind: Kind::Message }.emit()).unwrap();
        buffer.write(offset + HEADER, payload).unwrap();
    }

    #[test]
    fn several_records_of_one_write_are_consumed_in_order() {
        let buffer = Buffer::new(64);
        let mut inbound = inbound(&buffer);
        message(&buffer, 0, b"one");
        message(&buffer, 16, b"");
        message(&buffer, 24, b"three");
        inbound.handle_write(40, PLAIN).unwrap();
        for (offset, len) in [(8, 3), (24, 0), (32, 5)] {
            assert!(!inbound.is_credit_due());
            let record = inbound.first().unwrap().unwrap();
            assert_eq!((record.offset, record.len), (offset, len));
            inbound.consume(len);
        }
        assert!(inbound.is_empty() && inbound.is_credit_due(), "by bytes");
        assert_eq!((inbound.report_consumed(), inbound.is_credit_due()), (1, false));
        // The next one does not fit behind it.
        message(&buffer, 0, &[7; 24]);
        inbound.handle_write(32, Immediate { wraps: true, ..PLAIN }).unwrap();
        assert_eq!(inbound.first().unwrap().unwrap().len, 24);
    }

    #[test]
    fn what_a_peer_must_not_write_is_refused() {
        let buffer = Buffer::new(64);
        let wraps = Immediate { wraps: true, ..PLAIN };
        for writes in [&[(65, PLAIN)][..], &[(64, PLAIN), (8, PLAIN)], &[(40, PLAIN), (8, wraps)]] {
            let mut inbound = inbound(&buffer);
            let (last, before) = writes.split_last().unwrap();
            before.iter().for_each(|(len, imm)| inbound.handle_write(*len, *imm).unwrap());
            assert!(inbound.handle_write(last.0, last.1).is_err(), "{writes:?}");
        }
        let mut inbound = inbound(&buffer);
        inbound.handle_write(0, Immediate { is_end: true, ..PLAIN }).unwrap();
        assert!(inbound.has_ended() && inbound.handle_write(8, PLAIN).is_err());
    }

    #[test]
    fn records_are_checked_against_their_write() {
        let buffer = Buffer::new(64);
        for (len, payload) in [(4, 0), (16, 9), (8, 1)] {
            let mut inbound = inbound(&buffer);
            let header = Header { len: payload, kind: Kind::Message };
            buffer.write(0, &header.emit()).unwrap();
            inbound.handle_write(len, PLAIN).unwrap();
            inbound.first().unwrap_err();
        }
        let mut inbound = inbound(&Buffer::new(64));
        inbound.handle_write(16, PLAIN).unwrap();
        assert_eq!(inbound.first(), Err(Violation("a record has no valid header")));
    }
}
