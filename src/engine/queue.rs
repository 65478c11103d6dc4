//! Work queues: what was posted and is not yet done.
//!
//! A send work request in a queue is one cache line. Its gather list, if it has more than one entry, and its inline
//! data lie in arrays beside the ring that are allocated with it. That is when the first work request is posted: a queue
//! pair that is not used takes little memory, and after its first post nothing is allocated when work is posted or done.

use super::allocation::{NoMemory, array};
use crate::verbs::{
    Access, CreateError, Data, LKey, MwBind, PostError, QpCap, RecvWr, SendFlags, SendOp, SendWr,
    Sge, Target, UdTarget, WrId, WrOpcode,
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

/// The opcodes by their numbers, of which those that nobody has assigned are never packed.
const OPCODES: [WrOpcode; 16] = {
    let mut opcodes = [WrOpcode::Driver1; 16];
    let mut at = 0;
    while at < WrOpcode::ALL.len() {
        opcodes[WrOpcode::ALL[at].code() as usize] = WrOpcode::ALL[at];
        at += 1;
    }
    opcodes
};

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
    #[inline]
    fn pack(wr: &SendWr<'_>, inline: bool, len: u32) -> Self {
        let sges = match wr.data {
            Data::Gather(sges) if !inline => sges,
            Data::Gather(_) | Data::Inline(_) => &[],
        };
        let inline = if inline { SendFlags::INLINE } else { SendFlags::empty() };
        let flags = ((wr.flags - SendFlags::INLINE) | inline).bits() & 15;
        let mut wqe = Self {
            id: wr.id,
            sge: sges.first().copied().unwrap_or_default(),
            len,
            what: wr.opcode().code() | flags << 4,
            progress: u32::try_from(sges.len()).expect("the number was checked") << SGES_SHIFT,
            ..Self::EMPTY
        };
        match wr.target {
            Target::Peer => {}
            Target::Xrc(srqn) => wqe.what |= srqn.get() << 8,
            Target::Ud(UdTarget { ah, qpn, qkey }) => {
                wqe.first = u64::from(ah.0) << 32;
                wqe.place = u64::from(qpn.get()) << 32 | u64::from(qkey.get());
            }
        }
        wqe.pack_op(&wr.op);
        wqe
    }

    #[inline]
    fn pack_op(&mut self, op: &SendOp) {
        let mut remote = |addr, rkey: RKey| (self.place, self.key) = (addr, rkey.get());
        match *op {
            SendOp::Send { imm } => self.pack_imm(imm),
            SendOp::Write { remote_addr, rkey, imm } => {
                remote(remote_addr, rkey);
                self.pack_imm(imm);
            }
            SendOp::Read { remote_addr, rkey } | SendOp::AtomicWrite { remote_addr, rkey } => {
                remote(remote_addr, rkey);
            }
            SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
                remote(remote_addr, rkey);
                (self.first, self.second) = (swap, compare);
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                remote(remote_addr, rkey);
                self.first = add;
            }
            SendOp::Flush { remote_addr, rkey, placement, level, .. } => {
                remote(remote_addr, rkey);
                self.second = u64::from(level.code()) << 4 | u64::from(placement.bits());
            }
            SendOp::SendWithInv { rkey } | SendOp::LocalInv { rkey } => self.key = rkey.get(),
            SendOp::BindMw { mw, rkey, bind } => {
                (self.place, self.first, self.key) = (bind.addr, bind.length, mw.get());
                self.second = u64::from(bind.mr.get()) << 32 | u64::from(rkey.get());
                self.sge.addr = u64::from(bind.access.bits());
            }
        }
    }

    #[inline]
    fn pack_imm(&mut self, imm: Option<[u8; 4]>) {
        self.first |= imm.map_or(0, |imm| u64::from(u32::from_be_bytes(imm)));
    }

    pub(super) fn id(&self) -> WrId {
        self.id
    }

    #[inline]
    pub(super) fn opcode(&self) -> WrOpcode {
        OPCODES[(self.what & 15) as usize]
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

    /// Whether a PSN is one of its own, once it was begun.
    pub(super) fn contains(&self, psn: Psn, mtu: u32) -> bool {
        let offset = psn.since(self.psn());
        offset >= 0 && offset.unsigned_abs() < self.psns(mtu)
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

/// How many gather entries and how much inline data of a request lie beside the ring.
fn beside_sizes(cap: &QpCap) -> (usize, usize) {
    let sges = if cap.max_send_sge > 1 { cap.max_send_sge as usize } else { 0 };
    (sges, cap.max_inline_data as usize)
}

/// The send queue of a queue pair: a ring.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Empty until the first request is posted. A power of two, so that numbers that count up for ever stay in step
    /// with it when they wrap.
    ring: Box<[SendWqe]>,
    /// The oldest request that is not completed; counts up for ever, as `tail` does.
    head: u32,
    tail: u32,
    /// The oldest request whose slot is not free: its completion, or one behind it, was not polled. At most `head`.
    released: u32,
    /// How many requests it takes, which may be fewer than the ring has room for.
    depth: u32,
    beside: Option<Box<Beside>>,
}

/// What lies beside the ring, if requests may have more than fits into it.
#[derive(Debug)]
struct Beside {
    /// Gather lists of more than one entry, so many a request.
    sges: Box<[Sge]>,
    sges_each: usize,
    /// Inline data, so much a request.
    inline: Box<[u8]>,
    inline_each: usize,
}

impl Beside {
    fn sges(&self, slot: usize, count: usize) -> &[Sge] {
        &self.sges[slot * self.sges_each..][..count]
    }

    fn inline(&self, slot: usize, len: usize) -> &[u8] {
        &self.inline[slot * self.inline_each..][..len]
    }

    fn keep(&mut self, slot: usize, inline: Option<&[u8]>, data: Data<'_>) {
        if let Some(bytes) = inline {
            self.inline[slot * self.inline_each..][..bytes.len()].copy_from_slice(bytes);
        } else if let Data::Gather(sges) = data
            && sges.len() > 1
        {
            self.sges[slot * self.sges_each..][..sges.len()].copy_from_slice(sges);
        }
    }
}

/// Where the data of a request are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    Inline(&'a [u8]),
    Gather(&'a [Sge]),
}

impl SendQueue {
    pub(super) fn new(depth: u32) -> Self {
        Self { ring: Box::default(), head: 0, tail: 0, released: 0, depth, beside: None }
    }

    /// How many bytes a queue for `depth` requests of these sizes takes when it is used.
    pub(super) fn bytes(depth: u32, cap: &QpCap) -> u64 {
        let (sges, inline) = beside_sizes(cap);
        let each = size_of::<SendWqe>() + sges * size_of::<Sge>() + inline;
        ring_size(depth as usize) as u64 * each as u64
    }

    /// Allocates what the requests lie in.
    #[cold]
    fn allocate(&mut self, cap: &QpCap) -> Result<(), NoMemory> {
        let size = ring_size(self.depth as usize);
        let (sges_each, inline_each) = beside_sizes(cap);
        if sges_each + inline_each > 0 {
            let sges = array(Sge::default(), size * sges_each)?;
            let inline = array(0, size * inline_each)?;
            self.beside = Some(Box::new(Beside { sges, sges_each, inline, inline_each }));
        }
        self.ring = array(SendWqe::EMPTY, size)?;
        Ok(())
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
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
        self.tail.wrapping_sub(self.released) >= self.depth
    }

    /// A completion of request number `index` was polled: its slot is free, and so are those before it. One of an
    /// earlier life of the queue frees nothing.
    #[inline]
    pub(super) fn release_through(&mut self, index: u32) {
        let through = index.wrapping_add(1);
        if through.wrapping_sub(self.released) <= self.head.wrapping_sub(self.released) {
            self.released = through;
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.ring.len() - 1)
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

    /// Puts a request in for a message of `len` bytes. It was checked against the sizes `cap`, which are always the
    /// same, and `inline` holds the bytes of one that is inline.
    #[inline]
    pub(super) fn push(
        &mut self,
        wr: &SendWr<'_>,
        len: u64,
        inline: Option<&[u8]>,
        cap: &QpCap,
    ) -> Result<(), PostError> {
        // Rule: V-01.2.
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        if self.ring.is_empty() {
            self.allocate(cap)?;
        }
        let slot = self.slot(self.tail);
        let len = u32::try_from(len).expect("the length was checked");
        self.ring[slot] = SendWqe::pack(wr, inline.is_some(), len);
        if let Some(beside) = &mut self.beside {
            beside.keep(slot, inline, wr.data);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Where the data of request number `index` are.
    #[inline]
    pub(super) fn source(&self, index: u32) -> Source<'_> {
        let slot = self.slot(index);
        let wqe = &self.ring[slot];
        let beside = self.beside.as_ref();
        if wqe.flags().contains(SendFlags::INLINE) {
            let len = wqe.len as usize;
            return Source::Inline(beside.map_or(&[], |beside| beside.inline(slot, len)));
        }
        Source::Gather(match (wqe.progress >> SGES_SHIFT) as usize {
            0 => &[],
            1 => core::slice::from_ref(&wqe.sge),
            count => beside.map_or(&[], |beside| beside.sges(slot, count)),
        })
    }

    /// Takes the oldest request out, and tells its number. Its slot is not free yet.
    #[inline]
    pub(super) fn pop(&mut self) -> (u32, SendWqe) {
        debug_assert!(!self.is_empty());
        let index = self.head;
        self.head = index.wrapping_add(1);
        (index, *self.get(index))
    }

    /// Forgets everything; all slots are free.
    pub(super) fn clear(&mut self) {
        (self.head, self.released) = (self.tail, self.tail);
    }

    /// Takes back the newest requests, which nobody has seen yet: the next one is number `tail` again.
    pub(super) fn take_back(&mut self, tail: u32) {
        debug_assert!(self.tail.wrapping_sub(tail) <= self.tail.wrapping_sub(self.head));
        self.tail = tail;
    }
}

/// A queue of receive work requests, of a queue pair or shared.
///
/// A request that a message has begun to fill is out of the queue, but keeps its place until it is completed: of a
/// shared queue they complete in any order. So places are chained, those of the queue and those that are free.
#[derive(Debug)]
pub(super) struct RecvQueue {
    /// Empty until the first request is posted.
    places: Box<[RecvWqe]>,
    /// Scatter lists of more than one entry, so many a request.
    sges: Box<[Sge]>,
    max_sge: u32,
    /// How many requests it takes.
    depth: u32,
    head: u32,
    tail: u32,
    len: u32,
    free: u32,
    /// How many requests are being filled.
    taken: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
struct RecvWqe {
    id: WrId,
    /// The first entry of the scatter list.
    sge: Sge,
    sges: u32,
    /// The place of the request behind it, or of the next that is free.
    next: u32,
}

const _: () = assert!(size_of::<RecvWqe>() == 32, "two receives are one cache line");

/// The end of a chain.
const END: u32 = u32::MAX;

/// A receive work request that a message has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken(u32);

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Self {
        let (places, sges) = (Box::default(), Box::default());
        let (head, tail, free) = (END, END, END);
        Self { places, sges, max_sge, depth, head, tail, len: 0, free, taken: 0 }
    }

    /// How many bytes a queue for `depth` requests of this size takes when it is used.
    pub(super) fn bytes(depth: u32, max_sge: u32) -> u64 {
        let lists = if max_sge > 1 { max_sge as usize } else { 0 };
        u64::from(depth) * (size_of::<RecvWqe>() + lists * size_of::<Sge>()) as u64
    }

    /// Allocates what the requests lie in, all of it free.
    #[cold]
    fn allocate(&mut self) -> Result<(), NoMemory> {
        let empty = RecvWqe { id: WrId(0), sge: Sge::default(), sges: 0, next: END };
        let mut places = array(empty, self.depth as usize)?;
        for (place, next) in places.iter_mut().zip(1..self.depth) {
            place.next = next;
        }
        if self.max_sge > 1 {
            self.sges = array(Sge::default(), self.depth as usize * self.max_sge as usize)?;
        }
        (self.places, self.free) = (places, if self.depth > 0 { 0 } else { END });
        Ok(())
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// How many entries the scatter list of a request may have.
    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Puts a request in.
    #[inline]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        wr.check(self.max_sge)?;
        if self.places.is_empty() {
            self.allocate()?;
        }
        let at = self.free;
        let place = self.places.get_mut(at as usize).ok_or(PostError::QueueFull)?;
        self.free = place.next;
        *place = RecvWqe {
            id: wr.id,
            sge: wr.sges.first().copied().unwrap_or_default(),
            sges: u32::try_from(wr.sges.len()).expect("checked"),
            next: END,
        };
        if wr.sges.len() > 1 {
            self.sges[at as usize * self.max_sge as usize..][..wr.sges.len()]
                .copy_from_slice(wr.sges);
        }
        match self.places.get_mut(self.tail as usize) {
            Some(last) => last.next = at,
            None => self.head = at,
        }
        self.tail = at;
        self.len += 1;
        Ok(())
    }

    /// The request that would be taken next.
    pub(super) fn peek(&self) -> Option<Taken> {
        (self.head != END).then_some(Taken(self.head))
    }

    /// Takes the oldest request for a message.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Taken> {
        let at = self.head;
        self.head = self.places.get(at as usize)?.next;
        if self.head == END {
            self.tail = END;
        }
        self.len -= 1;
        self.taken += 1;
        Some(Taken(at))
    }

    /// The buffers of a request that was taken.
    #[inline]
    pub(super) fn sges(&self, taken: Taken) -> &[Sge] {
        let place = &self.places[taken.0 as usize];
        match place.sges {
            0 => &[],
            1 => core::slice::from_ref(&place.sge),
            count => &self.sges[taken.0 as usize * self.max_sge as usize..][..count as usize],
        }
    }

    /// How many bytes the buffers of a request hold.
    pub(super) fn room(&self, taken: Taken) -> u64 {
        self.sges(taken).iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Gives the place of a request back, now that it is completed.
    #[inline]
    pub(super) fn release(&mut self, taken: Taken) -> WrId {
        let place = &mut self.places[taken.0 as usize];
        place.next = self.free;
        self.free = taken.0;
        self.taken -= 1;
        place.id
    }

    /// Forgets everything that waits.
    pub(super) fn clear(&mut self) {
        while let Some(taken) = self.take() {
            self.release(taken);
        }
    }

    /// The same queue with room for `depth` requests, unless more are in it or some are being filled.
    pub(super) fn resized(&self, depth: u32) -> Result<Self, CreateError> {
        if depth < self.len || self.taken > 0 {
            return Err(CreateError::Invalid(
                "more work requests wait than the queue shall hold, or some are being filled",
            ));
        }
        let mut queue = Self::new(depth, self.max_sge);
        let mut at = self.head;
        while let Some(place) = self.places.get(at as usize) {
            let wr = RecvWr { id: place.id, sges: self.sges(Taken(at)) };
            queue.push(&wr).map_err(|_| CreateError::NoMemory)?;
            at = place.next;
        }
        Ok(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_queue_keeps_its_order_when_its_count_wraps() {
        const CAP: QpCap = QpCap {
            max_send_wr: 3,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let mut queue = SendQueue::new(CAP.max_send_wr);
        (queue.head, queue.tail, queue.released) = (u32::MAX - 1, u32::MAX - 1, u32::MAX - 1);
        let wr = |id| SendWr::new(WrId(id), SendOp::Send { imm: None }, Data::EMPTY);
        for id in 0..3 {
            queue.push(&wr(id), 0, None, &CAP).unwrap();
        }
        assert_eq!(queue.push(&wr(3), 0, None, &CAP), Err(PostError::QueueFull));
        let popped = [queue.pop(), queue.pop(), queue.pop()];
        assert_eq!(popped.map(|(_, wqe)| wqe.id()), [0, 1, 2].map(WrId));
        let indexes = popped.map(|(index, _)| index);
        assert_eq!(indexes, [u32::MAX - 1, u32::MAX, 0]);
        // What is completed keeps its slot until that is polled.
        assert_eq!(queue.push(&wr(3), 0, None, &CAP), Err(PostError::QueueFull));
        queue.release_through(indexes[1]);
        queue.push(&wr(3), 0, None, &CAP).unwrap();
        queue.push(&wr(4), 0, None, &CAP).unwrap();
        assert_eq!(queue.push(&wr(5), 0, None, &CAP), Err(PostError::QueueFull));
        // What is not completed, and what was forgotten, is not freed by a completion of an earlier life.
        queue.release_through(2);
        assert_eq!(queue.push(&wr(5), 0, None, &CAP), Err(PostError::QueueFull));
        queue.clear();
        queue.release_through(indexes[2]);
        (0..3).for_each(|id| queue.push(&wr(id), 0, None, &CAP).unwrap());
        assert_eq!(queue.push(&wr(3), 0, None, &CAP), Err(PostError::QueueFull));
    }

    #[test]
    fn a_receive_queue_keeps_its_order_whatever_order_places_come_back_in() {
        let mut queue = RecvQueue::new(3, 0);
        let mut next = 0;
        let mut post = |queue: &mut RecvQueue| {
            next += 1;
            queue.push(&RecvWr { id: WrId(next), sges: &[] })
        };
        (0..3).for_each(|_| post(&mut queue).unwrap());
        assert_eq!(post(&mut queue), Err(PostError::QueueFull));
        let (first, second) = (queue.take().unwrap(), queue.take().unwrap());
        assert!(queue.resized(3).is_err(), "two are being filled");
        assert_eq!(post(&mut queue), Err(PostError::QueueFull), "they keep their places");
        assert_eq!(queue.release(second), WrId(2));
        post(&mut queue).unwrap();
        assert_eq!(queue.release(first), WrId(1));
        post(&mut queue).unwrap();
        let larger = queue.resized(4).unwrap();
        for mut queue in [queue, larger] {
            let order = std::iter::from_fn(|| queue.take().map(|taken| queue.release(taken)));
            assert_eq!(order.collect::<Vec<_>>(), [3, 6, 7].map(WrId));
        }
    }

    #[test]
    fn flags_that_mean_nothing_here_do_not_spill_into_the_target() {
        let target = Target::Xrc(XrcSrqn::new(0x4));
        let op = SendOp::Send { imm: None };
        let flags = SendFlags::all();
        let wr = SendWr { target, flags, ..SendWr::new(WrId(1), op, Data::EMPTY) };
        let wqe = SendWqe::pack(&wr, false, 0);
        assert_eq!(wqe.srqn(), XrcSrqn::new(0x4));
    }
}
