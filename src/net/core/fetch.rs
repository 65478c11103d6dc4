//! A large message that is read from the peer's memory, in chunks.

use std::collections::VecDeque;

use super::frame::Source;
use crate::memory::Region;
use crate::verbs::SendOp;
use crate::wire::RKey;

/// A READ of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Destination in the own memory.
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// Memory that chunks are read into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    /// Offset in the own memory.
    pub(super) offset: u32,
    /// Bytes of a chunk.
    pub(super) chunk: u32,
    /// Number of chunks.
    pub(super) chunks: usize,
}

#[derive(Debug)]
pub(super) struct Fetch {
    source: Source,
    /// Bytes that READs were posted for.
    requested: u64,
    /// READs in flight, oldest first.
    inflight: VecDeque<Chunk>,
    /// Number of READs that were posted.
    count: usize,
    /// Bytes that arrived.
    pub(super) message: Vec<u8>,
}

impl Fetch {
    /// Begins a message; its memory grows with what arrives.
    pub(super) fn new(source: Source, message: Vec<u8>) -> Self {
        Self { source, requested: 0, inflight: VecDeque::new(), count: 0, message }
    }

    /// The next READ, if there is one left and memory for it.
    pub(super) fn poll_chunk(&mut self, landing: Landing) -> Option<(SendOp, Chunk)> {
        let left = self.source.len - self.requested;
        if left == 0 || self.inflight.len() == landing.chunks {
            return None;
        }
        let len = u32::try_from(left).unwrap_or(u32::MAX).min(landing.chunk);
        let slot = u32::try_from(self.count % landing.chunks).unwrap_or_default();
        let chunk = Chunk { offset: landing.offset + slot * landing.chunk, len };
        let remote_addr = self.source.addr.wrapping_add(self.requested);
        self.requested += u64::from(len);
        self.count += 1;
        self.inflight.push_back(chunk);
        Some((SendOp::Read { remote_addr, rkey: RKey::new(self.source.rkey) }, chunk))
    }

    /// The oldest READ has completed.
    pub(super) fn handle_chunk(&mut self, memory: &Region) {
        if let Some(chunk) = self.inflight.pop_front() {
            let (offset, len) = (u64::from(chunk.offset), chunk.len as usize);
            let copied = memory.append_to(offset, len, &mut self.message);
            copied.expect("chunks lie within the own memory");
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.message.len() as u64 == self.source.len
    }
}
