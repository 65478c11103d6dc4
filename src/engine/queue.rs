//! Work queues: what was posted and is not yet done.
//!
//! A send work request in a queue is one cache line. Its gather list, if it has more than one entry, and its inline
//! data lie in arrays beside the ring that were allocated with it; nothing is allocated when work is posted or done.

use crate::verbs::{
    Access, Data, LKey, MwBind, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, Target,
    UdTarget, WrId, WrOpcode,
};
use crate::wire::{Bits, Psn, QKey, Qpn, RKey, XrcSrqn};

/// A send work request, packed.
///
/// What a field holds depends on the operation; the accessors say it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct SendWqe {
    id: WrId,
    /// The first entry of the gather list; of inline data only the length counts.
    sge: Sge,
    /// The address at the peer; where a window begins; the target of a datagram.
    place: u64,
    /// What to swap in or add; the length of a window; immediate data and address handle.
    first: u64,
    /// What to compare with; the region of a window and its new key; the placement of a flush.
    second: u64,
    key: u32,
    len: u32,
    /// The opcode in four bits, the flags in four, and the number of a shared receive queue.
    what: u32,
    /// The number of gather entries in six bits, whether it was begun, whether it is done, and the first PSN.
    progress: u32,
}

const _: () = assert!(size_of::<SendWqe>() == 64, "a work request is one cache line");

const BEGUN: u32 = 1 << 25;
const DONE: u32 = 1 << 24;
const SGES_SHIFT: u32 = 26;

impl SendWqe {
    const EMPTY: Self = Self {
        id: WrId(0),
        sge: Sge { addr: 0, length: 0, lkey: LKey::new(0) },
        place: 0,
        first: 0,
        second: 0,
        key: 0,
        len: 0,
        what: 0,
        progress: 0,
    };

    /// Packs a request whose data has `len` bytes. The caller has checked that the queue pair can take it.
    fn pack(wr: &SendWr<'_>, flags: SendFlags, len: u32) -> Self {
        let sges = match wr.data {
            Data::Gather(sges) if !flags.contains(SendFlags::INLINE) => sges,
            Data::Gather(_) | Data::Inline(_) => &[],
        };
        let (srqn, ah, place) = match wr.target {
            Target::Peer => (0, 0, 0),
            Target::Xrc(srqn) => (srqn.get(), 0, 0),
            Target::Ud(UdTarget { ah, qpn, qkey }) => {
                (0, ah.0, u64::from(qpn.get()) << 32 | u64::from(qkey.get()))
            }
        };
        let mut wqe = Self {
            id: wr.id,
            sge: sges.first().copied().unwrap_or_default(),
            place,
            first: u64::from(ah) << 32,
            len,
            what: wr.opcode().code() | (flags.bits() & 15) << 4 | srqn << 8,
            progress: u32::try_from(sges.len()).expect("the number was checked") << SGES_SHIFT,
            ..Self::EMPTY
        };
        wqe.pack_op(&wr.op);
        wqe
    }

    fn pack_op(&mut self, op: &SendOp) {
        if let Some((addr, rkey)) = op.remote() {
            (self.place, self.key) = (addr, rkey.get());
        }
        if let Some(imm) = op.imm() {
            self.first |= u64::from(u32::from_be_bytes(imm));
        }
        match *op {
            SendOp::CompareSwap { compare, swap, .. } => {
                (self.first, self.second) = (swap, compare)
            }
            SendOp::FetchAdd { add, .. } => self.first = add,
            SendOp::Flush { placement, level, .. } => {
                self.second = u64::from(level.code()) << 4 | u64::from(placement.bits());
            }
            SendOp::SendWithInv { rkey } | SendOp::LocalInv { rkey } => self.key = rkey.get(),
            SendOp::BindMw { mw, rkey, bind } => {
                (self.place, self.first, self.key) = (bind.addr, bind.length, mw.get());
                self.second = u64::from(bind.mr.get()) << 32 | u64::from(rkey.get());
                self.sge.addr = u64::from(bind.access.bits());
            }
            SendOp::Send { .. }
            | SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::AtomicWrite { .. } => {}
        }
    }

    pub(super) fn id(&self) -> WrId {
        self.id
    }

    #[inline]
    pub(super) fn opcode(&self) -> WrOpcode {
        WrOpcode::from_code(self.what & 15).expect("it was packed from one")
    }

    #[inline]
    pub(super) fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate(self.what >> 4 & 15)
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn srqn(&self) -> XrcSrqn {
        XrcSrqn::new(self.what >> 8)
    }

    /// The address at the peer.
    #[inline]
    pub(super) fn remote_addr(&self) -> u64 {
        self.place
    }

    /// The key to the peer's memory, or one to invalidate.
    #[inline]
    pub(super) fn rkey(&self) -> RKey {
        RKey::new(self.key)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    pub(super) fn imm(&self) -> [u8; 4] {
        (self.first as u32).to_be_bytes()
    }

    pub(super) fn swap_or_add(&self) -> u64 {
        self.first
    }

    pub(super) fn compare(&self) -> u64 {
        self.second
    }

    /// The placement and the selectivity of a flush.
    #[expect(clippy::cast_possible_truncation, reason = "a few bits are meant")]
    pub(super) fn flush(&self) -> (Bits<4>, Bits<2>) {
        (Bits::low(self.second as u32), Bits::low(self.second as u32 >> 4))
    }

    /// The target of a datagram: address handle, queue pair, key.
    #[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
    pub(super) fn ud_target(&self) -> (u32, Qpn, QKey) {
        let (qpn, qkey) = ((self.place >> 32) as u32, self.place as u32);
        ((self.first >> 32) as u32, Qpn::new(qpn), QKey::new(qkey))
    }

    /// The window to bind: its key now, its new key, and what it shall show.
    #[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
    pub(super) fn mw_bind(&self) -> (RKey, RKey, MwBind) {
        let bind = MwBind {
            mr: LKey::new((self.second >> 32) as u32),
            addr: self.place,
            length: self.first,
            access: Access::from_bits_truncate(self.sge.addr as u32),
        };
        (RKey::new(self.key), RKey::new(self.second as u32), bind)
    }

    /// Whether its first packet was sent.
    #[inline]
    pub(super) fn is_begun(&self) -> bool {
        self.progress & BEGUN != 0
    }

    /// Whether it needs no answer any more.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.progress & DONE != 0
    }

    /// The PSN of its first packet, once it was begun.
    #[inline]
    pub(super) fn psn(&self) -> Psn {
        Psn::new(self.progress)
    }

    #[inline]
    pub(super) fn begin(&mut self, psn: Psn) {
        self.progress = self.progress & !0xff_ffff | psn.get() | BEGUN;
    }

    #[inline]
    pub(super) fn finish(&mut self) {
        self.progress |= DONE;
    }

    /// How many PSNs it takes: one a packet, of the request or, for a read, of the answer; none if it stays at home.
    #[inline]
    pub(super) fn psns(&self, mtu: u32) -> u32 {
        match self.opcode() {
            WrOpcode::LocalInv | WrOpcode::BindMw => 0,
            WrOpcode::AtomicCmpAndSwp
            | WrOpcode::AtomicFetchAndAdd
            | WrOpcode::AtomicWrite
            | WrOpcode::Flush => 1,
            _ => packets(self.len, mtu),
        }
    }
}

/// How many packets a message of `len` bytes takes: at least one.
#[inline]
pub(super) fn packets(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// How long a ring for so many is. Numbers that count up for ever wrap at 2^32, which the length must divide.
fn ring_size(depth: usize) -> usize {
    if depth == 0 { 0 } else { depth.next_power_of_two() }
}

/// The send queue of a queue pair: a ring.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// A power of two, so that numbers that count up for ever stay in step with it when they wrap.
    ring: Box<[SendWqe]>,
    /// How many requests it takes, which may be fewer.
    depth: usize,
    /// Gather lists of more than one entry, so many a request.
    sges: Box<[Sge]>,
    sges_each: usize,
    /// Inline data, so much a request.
    inline: Box<[u8]>,
    inline_each: usize,
    /// The oldest request that is not completed; counts up for ever, as `tail` does.
    head: u32,
    tail: u32,
}

/// Where the data of a request are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    Inline(&'a [u8]),
    Gather(&'a [Sge]),
}

impl SendQueue {
    pub(super) fn new(depth: u32, max_sge: u32, max_inline: u32) -> Self {
        let depth = depth as usize;
        let size = ring_size(depth);
        let sges_each = if max_sge > 1 { max_sge as usize } else { 0 };
        let inline_each = max_inline as usize;
        Self {
            ring: vec![SendWqe::EMPTY; size].into_boxed_slice(),
            depth,
            sges: vec![Sge::default(); size * sges_each].into_boxed_slice(),
            sges_each,
            inline: vec![0; size * inline_each].into_boxed_slice(),
            inline_each,
            head: 0,
            tail: 0,
        }
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(super) fn is_full(&self) -> bool {
        self.tail.wrapping_sub(self.head) as usize >= self.depth
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize % self.ring.len()
    }

    /// The request number `index`, which lies between head and tail.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &SendWqe {
        &self.ring[self.slot(index)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut SendWqe {
        let slot = self.slot(index);
        &mut self.ring[slot]
    }

    /// Puts a request in. It was checked, and `inline` holds the bytes of one that is inline.
    pub(super) fn push(
        &mut self,
        wr: &SendWr<'_>,
        flags: SendFlags,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        let slot = self.slot(self.tail);
        let len = u32::try_from(wr.message_len()).expect("the length was checked");
        self.ring[slot] = SendWqe::pack(wr, flags, len);
        match (inline, wr.data) {
            (Some(bytes), _) => {
                self.inline[slot * self.inline_each..][..bytes.len()].copy_from_slice(bytes);
            }
            (None, Data::Gather(sges)) if sges.len() > 1 => {
                self.sges[slot * self.sges_each..][..sges.len()].copy_from_slice(sges);
            }
            (None, _) => {}
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Where the data of request number `index` are.
    #[inline]
    pub(super) fn source(&self, index: u32) -> Source<'_> {
        let slot = self.slot(index);
        let wqe = &self.ring[slot];
        let sges = (wqe.progress >> SGES_SHIFT) as usize;
        if wqe.flags().contains(SendFlags::INLINE) {
            return Source::Inline(&self.inline[slot * self.inline_each..][..wqe.len as usize]);
        }
        Source::Gather(match sges {
            0 => &[],
            1 => core::slice::from_ref(&wqe.sge),
            _ => &self.sges[slot * self.sges_each..][..sges],
        })
    }

    /// Takes the oldest request out.
    #[inline]
    pub(super) fn pop(&mut self) -> SendWqe {
        debug_assert!(!self.is_empty());
        let wqe = *self.get(self.head);
        self.head = self.head.wrapping_add(1);
        wqe
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// A queue of receive work requests, of a queue pair or shared.
///
/// A request that a message has begun to fill is out of the queue, but keeps its place until it is completed.
#[derive(Debug)]
pub(super) struct RecvQueue {
    ids: Box<[WrId]>,
    counts: Box<[u32]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    /// Posted requests in order, by place: a ring, its length a power of two.
    fifo: Box<[u32]>,
    head: u32,
    tail: u32,
    free: Vec<u32>,
}

/// A receive work request that a message has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken(u32);

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Self {
        let size = depth as usize;
        Self {
            ids: vec![WrId(0); size].into_boxed_slice(),
            counts: vec![0; size].into_boxed_slice(),
            sges: vec![Sge::default(); size * max_sge as usize].into_boxed_slice(),
            max_sge: max_sge as usize,
            fifo: vec![0; ring_size(size)].into_boxed_slice(),
            head: 0,
            tail: 0,
            free: (0..depth).rev().collect(),
        }
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.ids.len()).expect("it was made with so many")
    }

    pub(super) fn max_sge(&self) -> u32 {
        u32::try_from(self.max_sge).expect("it was made with so many")
    }

    /// Puts a request in.
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        wr.check(self.max_sge())?;
        let place = self.free.pop().ok_or(PostError::QueueFull)?;
        let at = place as usize;
        self.ids[at] = wr.id;
        self.counts[at] = u32::try_from(wr.sges.len()).expect("checked");
        self.sges[at * self.max_sge..][..wr.sges.len()].copy_from_slice(wr.sges);
        let end = self.tail as usize % self.fifo.len();
        self.fifo[end] = place;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// The request that would be taken next.
    pub(super) fn peek(&self) -> Option<Taken> {
        (self.head != self.tail).then(|| Taken(self.fifo[self.head as usize % self.fifo.len()]))
    }

    /// Takes the oldest request for a message.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let taken = self.peek()?;
        self.head = self.head.wrapping_add(1);
        Some(taken)
    }

    /// The buffers of a request that was taken.
    #[inline]
    pub(super) fn sges(&self, taken: Taken) -> &[Sge] {
        let at = taken.0 as usize;
        &self.sges[at * self.max_sge..][..self.counts[at] as usize]
    }

    /// How many bytes the buffers of a request hold.
    pub(super) fn room(&self, taken: Taken) -> u64 {
        self.sges(taken).iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Gives the place of a request back, now that it is completed.
    pub(super) fn release(&mut self, taken: Taken) -> WrId {
        self.free.push(taken.0);
        self.ids[taken.0 as usize]
    }

    /// Forgets everything that waits.
    pub(super) fn clear(&mut self) {
        while let Some(taken) = self.take() {
            self.release(taken);
        }
    }

    /// The same queue with room for `depth` requests, unless more are in it.
    pub(super) fn resized(&self, depth: u32) -> Option<Self> {
        if depth < self.len() || self.free.len() + self.len() as usize != self.ids.len() {
            return None;
        }
        let mut queue = Self::new(depth, self.max_sge());
        for index in 0..self.len() {
            let place = self.fifo[self.head.wrapping_add(index) as usize % self.fifo.len()];
            let wr = RecvWr { id: self.ids[place as usize], sges: self.sges(Taken(place)) };
            queue.push(&wr).ok()?;
        }
        Some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_queue_keeps_its_order_when_its_count_wraps() {
        let mut queue = SendQueue::new(3, 1, 0);
        (queue.head, queue.tail) = (u32::MAX - 1, u32::MAX - 1);
        let wr = |id| SendWr::new(WrId(id), SendOp::Send { imm: None }, Data::EMPTY);
        for id in 0..3 {
            queue.push(&wr(id), SendFlags::empty(), None).unwrap();
        }
        assert_eq!(queue.push(&wr(3), SendFlags::empty(), None), Err(PostError::QueueFull));
        assert_eq!([queue.pop().id(), queue.pop().id(), queue.pop().id()], [0, 1, 2].map(WrId));
    }

    #[test]
    fn a_receive_queue_keeps_its_order_when_its_count_wraps() {
        let mut queue = RecvQueue::new(3, 0);
        (queue.head, queue.tail) = (u32::MAX - 1, u32::MAX - 1);
        for id in 0..3 {
            queue.push(&RecvWr { id: WrId(id), sges: &[] }).unwrap();
        }
        for id in 0..3 {
            let taken = queue.take().unwrap();
            assert_eq!(queue.release(taken), WrId(id));
        }
    }

    #[test]
    fn flags_that_mean_nothing_here_do_not_spill_into_the_target() {
        let target = Target::Xrc(XrcSrqn::new(0x4));
        let op = SendOp::Send { imm: None };
        let wr = SendWr { target, ..SendWr::new(WrId(1), op, Data::EMPTY) };
        let wqe = SendWqe::pack(&wr, SendFlags::all(), 0);
        assert_eq!(wqe.srqn(), XrcSrqn::new(0x4));
    }
}
