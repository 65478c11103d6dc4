//! Work requests that own their memory.

use thiserror::Error;

use super::context::Ah;
use super::memory::{Buf, Loan, Memory, MrSlice, RemoteSlice};
use crate::verbs::{PostError, SendFlags, SendOp, WrId};
use crate::wire::{QKey, Qpn};

/// The local data of a send: memory, or bytes that are copied when it is posted.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Registered memory.
    Memory(Memory),
    /// The bytes themselves, which are copied: few, and no memory to wait for.
    Inline(&'a [u8]),
}

impl<'a> Payload<'a> {
    pub(super) fn into_parts(self) -> (Memory, Option<&'a [u8]>) {
        match self {
            Self::Memory(memory) => (memory, None),
            Self::Inline(bytes) => (Memory::None, Some(bytes)),
        }
    }
}

impl From<Buf> for Payload<'_> {
    fn from(buf: Buf) -> Self {
        Self::Memory(buf.into())
    }
}

impl From<Loan> for Payload<'_> {
    fn from(loan: Loan) -> Self {
        Self::Memory(loan.into())
    }
}

impl From<MrSlice> for Payload<'_> {
    fn from(slice: MrSlice) -> Self {
        Self::Memory(slice.into())
    }
}

impl From<Memory> for Payload<'_> {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Inline(bytes)
    }
}

/// A send work request that owns its memory until it completes.
///
/// ```
/// use roce::device::Work;
/// use roce::verbs::SendFlags;
///
/// // Several of these make one doorbell: `qp.post(…)`. Only the last is reported.
/// let first = Work::send(1, b"first").unsignaled();
/// let last = Work::send(2, b"last");
/// assert!(!first.flags.contains(SendFlags::SIGNALED) && last.flags.contains(SendFlags::SIGNALED));
/// ```
#[derive(Debug)]
pub struct Work<'a> {
    /// The id that its completion has.
    pub id: WrId,
    /// The operation.
    pub op: SendOp,
    /// The local data.
    pub payload: Payload<'a>,
    /// Flags.
    pub flags: SendFlags,
    /// Destination of a datagram.
    pub target: Option<Destination>,
}

impl<'a> Work<'a> {
    /// A signaled work request of any operation.
    pub fn new(id: u64, op: SendOp, payload: impl Into<Payload<'a>>) -> Self {
        let flags = SendFlags::SIGNALED;
        Self { id: WrId(id), op, payload: payload.into(), flags, target: None }
    }

    /// A SEND.
    pub fn send(id: u64, payload: impl Into<Payload<'a>>) -> Self {
        Self::new(id, SendOp::Send { imm: None }, payload)
    }

    /// A WRITE to the beginning of `to`.
    pub fn write(id: u64, payload: impl Into<Payload<'a>>, to: RemoteSlice) -> Self {
        let op = SendOp::Write { remote_addr: to.addr, rkey: to.rkey, imm: None };
        Self::new(id, op, payload)
    }

    /// A READ from the beginning of `from` of as many bytes as `into` has.
    pub fn read(id: u64, from: RemoteSlice, into: impl Into<Memory>) -> Self {
        let op = SendOp::Read { remote_addr: from.addr, rkey: from.rkey };
        Self::new(id, op, into.into())
    }

    /// Adds immediate data to a SEND or a WRITE; other operations have none.
    #[must_use]
    pub fn with_imm(mut self, bytes: [u8; 4]) -> Self {
        if let SendOp::Send { imm } | SendOp::Write { imm, .. } = &mut self.op {
            *imm = Some(bytes);
        }
        self
    }

    /// Has its success not reported: its memory comes back with the next completion of the same
    /// send queue.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags -= SendFlags::SIGNALED;
        self
    }

    /// Sends a datagram there.
    #[must_use]
    pub fn to(mut self, ah: &Ah, qpn: Qpn, qkey: QKey) -> Self {
        self.target = Some(Destination { ah: ah.clone(), qpn, qkey });
        self
    }
}

/// Destination of a datagram.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Address handle of its port.
    pub ah: Ah,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Queue key.
    pub qkey: QKey,
}

/// A work request that was not posted, and its memory.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Refused {
    /// Reason for which it was not posted.
    #[source]
    pub error: PostError,
    /// The memory of what was not posted.
    pub memory: Memory,
    /// Number of work requests of the same call that were posted before.
    pub posted: usize,
}
