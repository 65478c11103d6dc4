//! Requests that were captured, and of which no answer tells yet what became of them.

use std::collections::VecDeque;

use super::target::Request;
use crate::time::Instant;
use crate::wire::{Bth, OpcodeInfo};

/// Bytes of the longest headers, from the BTH on.
const HEADERS_MAX: usize = 60;

/// A request packet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Sequence number, unwrapped.
    pub(super) seq: u64,
    /// Number of sequence numbers that it takes.
    pub(super) span: u64,
    /// Frame of the first transmission that was captured, and of the last.
    pub(super) frame: u64,
    pub(super) last_frame: u64,
    pub(super) time: Instant,
    /// Number of transmissions that were captured.
    pub(super) transmissions: u32,
    /// Whether it is a READ of which it is not known how many responses it has.
    pub(super) is_unsized: bool,
    /// Whether different requests came with its sequence number, so that it is not known which was
    /// executed.
    pub(super) is_disputed: bool,
    /// Whether any transmission asks for an acknowledgement.
    pub(super) ack_request: bool,
    pub(super) info: &'static OpcodeInfo,
    headers: [u8; HEADERS_MAX],
    headers_len: u8,
    pub(super) payload_len: u32,
    /// Address and key to which a WRITE packet writes, if its message's beginning was captured.
    pub(super) place: Option<(u64, u32)>,
    /// Payload of a WRITE, if it was captured whole and there was room for it.
    pub(super) payload: Option<Box<[u8]>>,
}

impl Pending {
    pub(super) fn new(
        seq: u64,
        span: u64,
        (frame, time): (u64, Instant),
        info: &'static OpcodeInfo,
        packet: &[u8],
        payload_len: u32,
    ) -> Option<Self> {
        let captured = packet.get(..info.header_len)?;
        let mut headers = [0; HEADERS_MAX];
        headers.get_mut(..captured.len())?.copy_from_slice(captured);
        let headers_len = u8::try_from(captured.len()).ok()?;
        Some(Self {
            seq,
            span,
            frame,
            last_frame: frame,
            time,
            transmissions: 1,
            is_unsized: false,
            is_disputed: false,
            ack_request: false,
            info,
            headers,
            headers_len,
            payload_len,
            place: None,
            payload: None,
        })
    }

    /// Whether a packet with the same sequence number is another request, and no retransmission.
    fn is_other(&self, again: &Self) -> bool {
        self.info.opcode != again.info.opcode
            || self.payload_len != again.payload_len
            || self.headers().get(Bth::LEN..) != again.headers().get(Bth::LEN..)
    }

    /// Bytes of payload that it holds.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, |payload| payload.len())
    }

    /// Returns a copy without payload.
    pub(super) fn without_payload(&self) -> Self {
        Self { payload: None, ..*self }
    }

    /// The sequence number behind it.
    pub(super) fn end(&self) -> u64 {
        self.seq + self.span
    }

    pub(super) fn headers(&self) -> &[u8] {
        self.headers.get(..usize::from(self.headers_len)).unwrap_or_default()
    }

    /// The request as the engine is given it.
    pub(super) fn request(&self) -> Request<'_> {
        Request {
            headers: self.headers(),
            info: self.info,
            payload_len: self.payload_len as usize,
            time: self.time,
        }
    }

    fn field<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.headers().get(at..at + N)?.try_into().ok()
    }

    /// Address, key and length of the RETH or AtomicETH, where there is one.
    pub(super) fn reth(&self) -> Option<(u64, u32, u32)> {
        use crate::wire::Headers;
        let headers = self.info.headers;
        if let Some(at) = headers.offset_of(Headers::RETH) {
            let (va, key, len) = (self.field(at)?, self.field(at + 8)?, self.field(at + 12)?);
            return Some((
                u64::from_be_bytes(va),
                u32::from_be_bytes(key),
                u32::from_be_bytes(len),
            ));
        }
        let at = headers.offset_of(Headers::ATOMIC_ETH)?;
        let (va, key) = (self.field(at)?, self.field(at + 8)?);
        Some((u64::from_be_bytes(va), u32::from_be_bytes(key), 8))
    }

    /// The key that a SEND invalidates.
    pub(super) fn invalidated(&self) -> Option<u32> {
        let at = self.info.headers.offset_of(crate::wire::Headers::IETH)?;
        self.field(at).map(u32::from_be_bytes)
    }

    /// Swap-or-add and compare operands of an ATOMIC.
    pub(super) fn operands(&self) -> Option<(u64, u64)> {
        let at = self.info.headers.offset_of(crate::wire::Headers::ATOMIC_ETH)?;
        let (swap, compare) = (self.field(at + 12)?, self.field(at + 20)?);
        Some((u64::from_be_bytes(swap), u64::from_be_bytes(compare)))
    }
}

/// Requests in the order of their sequence numbers, each once.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    queue: VecDeque<Pending>,
}

/// Result of adding a request.
#[derive(Debug)]
pub(super) enum Added {
    /// A new one.
    New,
    /// A known one, which was counted.
    Again,
    /// One in the place of another that the responder dropped, which held so many bytes of
    /// payload.
    Instead(usize),
    /// A part of a known READ.
    Part,
}

/// Requests that a NAK says the responder dropped: before this frame, from this sequence number
/// on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    pub(super) from: u64,
    pub(super) frame: u64,
}

impl PendingQueue {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn front(&self) -> Option<&Pending> {
        self.queue.front()
    }

    /// The last one, if it is a READ of which it is not known how many responses it has, and may
    /// have this sequence number.
    pub(super) fn unsized_until(&self, seq: u64) -> bool {
        self.queue.back().filter(|last| last.is_unsized).is_some_and(|last| {
            let length = last.reth().map_or(0, |(.., length)| u64::from(length));
            (last.seq..last.seq + length.div_ceil(256)).contains(&seq)
        })
    }

    pub(super) fn pop_front(&mut self) -> Option<Pending> {
        self.queue.pop_front()
    }

    /// Gives back memory that it does not need.
    pub(super) fn shrink(&mut self) {
        self.queue.shrink_to_fit();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.queue.iter()
    }

    /// Adds a request, or counts one more transmission of it.
    pub(super) fn add(&mut self, new: Pending, dropped: Option<Dropped>) -> Added {
        if let Some(last) = self.queue.back_mut().filter(|last| last.is_unsized)
            && new.seq > last.seq
        {
            last.span = new.seq - last.seq;
        }
        if self.queue.back().is_none_or(|last| last.end() <= new.seq) {
            self.queue.push_back(new);
            return Added::New;
        }
        let at = self.queue.partition_point(|known| known.seq < new.seq);
        if let Some(known) = self.queue.get_mut(at)
            && known.seq == new.seq
        {
            if known.is_other(&new) {
                let is_dropped = |it: Dropped| it.from <= known.seq && known.last_frame < it.frame;
                if dropped.is_some_and(is_dropped) {
                    let bytes = known.payload_bytes();
                    *known = new;
                    return Added::Instead(bytes);
                }
                known.is_disputed = true;
            }
            known.transmissions += 1;
            known.last_frame = new.frame;
            known.ack_request |= new.ack_request;
            return Added::Again;
        }
        let before = at.checked_sub(1).and_then(|at| self.queue.get(at));
        if before.is_some_and(|before| before.end() > new.seq) {
            return Added::Part;
        }
        self.queue.insert(at, new);
        Added::New
    }

    /// The first sequence number from `seq` on that no request has.
    pub(super) fn first_gap(&self, seq: u64) -> u64 {
        let mut gap = seq;
        for request in &self.queue {
            if request.seq > gap {
                break;
            }
            gap = gap.max(request.end());
        }
        gap
    }

    /// The request that has this sequence number.
    pub(super) fn find(&self, seq: u64) -> Option<&Pending> {
        let at = self.queue.partition_point(|known| known.end() <= seq);
        self.queue.get(at).filter(|known| known.seq <= seq)
    }
}
