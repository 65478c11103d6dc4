//! Send queues: work requests that are posted and not completed.
//!
//! A send work request is one cache line in a ring. Its gather list, if it has more than one entry,
//! and its inline data lie in arrays that are allocated with the ring, when the first work request
//! is posted: a queue pair that is not used takes little memory, and after its first post nothing
//! is allocated.

use super::allocation::{NoMemory, array};
use crate::memory::prefetch;
use crate::verbs::{
    Access, AhHandle, Data, LKey, MwBind, PostError, QpCap, SendFlags, SendOp, SendWr, Sge, Target,
    UdTarget, WrId, WrInfo, WrOpcode,
};
use crate::wire::{Bits, Operation, Psn, QKey, Qpn, RKey, XrcSrqn};

/// A send WQE: a work request in one cache line. What a field holds depends on the operation; the
/// accessors say it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct SendWqe {
    id: WrId,
    /// First entry of the gather list.
    sge: Sge,
    /// Remote address; start of a window; destination of a datagram.
    addr: u64,
    /// Swap or add operand; length of a window; immediate data and address handle.
    first: u64,
    /// Compare operand; region of a window and its new key; placement of a FLUSH.
    second: u64,
    key: u32,
    len: u32,
    /// Opcode in four bits, flags in four, and the XRC SRQ number.
    kind: u32,
    /// Number of gather entries in six bits, whether it was begun, whether it is done, and the
    /// first PSN.
    progress: u32,
}

const _: () = assert!(size_of::<SendWqe>() == 64, "a work request is one cache line");

/// Properties of opcodes by number; reserved numbers are never packed.
static INFOS: [&WrInfo; 16] = {
    let mut infos = [WrOpcode::Driver1.info(); 16];
    let mut at = 0;
    while at < WrOpcode::ALL.len() {
        infos[WrOpcode::ALL[at].code() as usize] = WrOpcode::ALL[at].info();
        at += 1;
    }
    infos
};

/// SENDs and WRITEs, at the bits of their numbers.
const SENDS_AND_WRITES: u32 = {
    let (mut set, mut at) = (0, 0);
    while at < WrOpcode::ALL.len() {
        let info = WrOpcode::ALL[at].info();
        if matches!(info.operation, Some(Operation::Send | Operation::Write)) {
            set |= 1 << info.opcode.code();
        }
        at += 1;
    }
    set
};

/// Operations with responses of their own, other than ACKs, at the bits of their numbers.
const WITH_RESPONSES: u32 = {
    let (mut set, mut at) = (0, 0);
    while at < WrOpcode::ALL.len() {
        let info = WrOpcode::ALL[at].info();
        if let Some(operation) = info.operation
            && operation.response().is_own()
        {
            set |= 1 << info.opcode.code();
        }
        at += 1;
    }
    set
};

const BEGUN: u32 = 1 << 25;
const DONE: u32 = 1 << 24;
const SGES_SHIFT: u32 = 26;

impl SendWqe {
    const EMPTY: Self = Self {
        id: WrId(0),
        sge: Sge { addr: 0, length: 0, lkey: LKey::new(0) },
        addr: 0,
        first: 0,
        second: 0,
        key: 0,
        len: 0,
        kind: 0,
        progress: 0,
    };

    /// Packs a work request with `len` bytes of data, in place. The caller has checked it against
    /// the queue pair.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pack(&mut self, wr: &SendWr<'_>, info: &WrInfo, inline: bool, len: u32) {
        let sges = match wr.data {
            Data::Gather(sges) if !inline => sges,
            Data::Gather(_) | Data::Inline(_) => &[],
        };
        let inline = if inline { SendFlags::INLINE } else { SendFlags::empty() };
        let flags = ((wr.flags - SendFlags::INLINE) | inline).bits() & 15;
        (self.id, self.len) = (wr.id, len);
        self.sge = sges.first().copied().unwrap_or_default();
        self.kind = info.opcode.code() | flags << 4;
        self.progress = u32::try_from(sges.len()).expect("the number was checked") << SGES_SHIFT;
        (self.addr, self.first, self.second, self.key) = (0, 0, 0, 0);
        match wr.target {
            Target::Peer => {}
            Target::Xrc(srqn) => self.kind |= srqn.get() << 8,
            Target::Ud(UdTarget { ah, qpn, qkey }) => {
                self.first = u64::from(ah.0.index()) << 32;
                self.addr = u64::from(qpn.get()) << 32 | u64::from(qkey.get());
            }
        }
        self.pack_op(&wr.op);
    }

    #[inline]
    fn pack_op(&mut self, op: &SendOp) {
        let mut remote = |addr, rkey: RKey| (self.addr, self.key) = (addr, rkey.get());
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
                (self.addr, self.first, self.key) = (bind.addr, bind.length, mw.get());
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
        self.info().opcode
    }

    /// Properties of its opcode.
    #[inline]
    pub(super) fn info(&self) -> &'static WrInfo {
        INFOS[(self.kind & 15) as usize]
    }

    /// Whether it is a SEND or WRITE without a fence, and is not done.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        const FENCE: u32 = SendFlags::FENCE.bits() << 4;
        SENDS_AND_WRITES >> (self.kind & 15) & 1 == 1
            && self.kind & FENCE == 0
            && self.progress & DONE == 0
    }

    /// Whether it has a response of its own, other than an ACK.
    #[inline]
    pub(super) fn has_response(&self) -> bool {
        // Rule: Q-18.
        WITH_RESPONSES >> (self.kind & 15) & 1 == 1
    }

    #[inline]
    pub(super) fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate(self.kind >> 4 & 15)
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn srqn(&self) -> XrcSrqn {
        XrcSrqn::new(self.kind >> 8)
    }

    /// Remote address.
    #[inline]
    pub(super) fn remote_addr(&self) -> u64 {
        self.addr
    }

    /// R_Key of remote memory, or the key to invalidate.
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

    /// Placement and selectivity of a FLUSH.
    #[expect(clippy::cast_possible_truncation, reason = "a few bits are meant")]
    pub(super) fn flush(&self) -> (Bits<4>, Bits<2>) {
        (Bits::low(self.second as u32), Bits::low(self.second as u32 >> 4))
    }

    /// Destination of a datagram: address handle, QPN, Q_Key.
    #[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
    pub(super) fn ud_target(&self) -> (AhHandle, Qpn, QKey) {
        let (qpn, qkey) = ((self.addr >> 32) as u32, self.addr as u32);
        (AhHandle::from_c((self.first >> 32) as u32), Qpn::new(qpn), QKey::new(qkey))
    }

    /// Window to bind: its current key, its new key, and its range.
    #[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
    pub(super) fn mw_bind(&self) -> (RKey, RKey, MwBind) {
        let bind = MwBind {
            mr: LKey::new((self.second >> 32) as u32),
            addr: self.addr,
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

    /// Whether it is finished: it was executed locally, or its response came.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.progress & DONE != 0
    }

    /// PSN of its first packet, once it was begun.
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

    /// Number of its PSNs: one for each packet of the request or, for a READ, of the response; none
    /// if it is executed locally.
    #[cfg_attr(not(debug_assertions), inline(always))]
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

/// Number of packets of a message of `len` bytes: at least one.
#[inline]
pub(super) fn packets(len: u32, mtu: u32) -> u32 {
    // A division takes longer than all else here.
    debug_assert!(mtu.is_power_of_two());
    if len <= mtu { 1 } else { ((len - 1) >> mtu.trailing_zeros()) + 1 }
}

/// Length of a ring for `depth` requests. Indices wrap at 2^32, which the length must divide.
fn ring_size(depth: usize) -> usize {
    if depth == 0 { 0 } else { depth.next_power_of_two() }
}

/// Number of gather entries and of bytes of inline data in the extension of a WQE.
fn extension_sizes(cap: &QpCap) -> (usize, usize) {
    let sges = if cap.max_send_sge > 1 { cap.max_send_sge as usize } else { 0 };
    (sges, cap.max_inline_data as usize)
}

/// Send queue of a queue pair: a ring.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Empty until the first request is posted. Its length is a power of two, so that indices may
    /// wrap.
    ring: Box<[SendWqe]>,
    /// Index of the oldest request that is not completed. Indices count up and wrap.
    head: u32,
    tail: u32,
    /// Index of the oldest request whose slot is not free: its completion, or one behind it, was
    /// not polled. At most `head`.
    released: u32,
    /// Maximum number of requests, which may be less than the length of the ring.
    depth: u32,
    extension: Option<Box<WqeExtension>>,
}

/// WQE parts that do not fit the ring.
#[derive(Debug)]
struct WqeExtension {
    /// Gather lists of more than one entry: `sges_each` for each request.
    sges: Box<[Sge]>,
    sges_each: usize,
    /// Inline data: `inline_each` bytes for each request.
    inline: Box<[u8]>,
    inline_each: usize,
}

impl WqeExtension {
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

/// Data of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    Inline(&'a [u8]),
    Gather(&'a [Sge]),
}

impl SendQueue {
    pub(super) fn new(depth: u32) -> Self {
        Self { ring: Box::default(), head: 0, tail: 0, released: 0, depth, extension: None }
    }

    /// Number of bytes of a queue for `depth` requests of these sizes when it is in use.
    pub(super) fn bytes(depth: u32, cap: &QpCap) -> u64 {
        let (sges, inline) = extension_sizes(cap);
        let each = size_of::<SendWqe>() + sges * size_of::<Sge>() + inline;
        ring_size(depth as usize) as u64 * each as u64
    }

    /// Allocates the ring and the extension.
    #[cold]
    fn allocate(&mut self, cap: &QpCap) -> Result<(), NoMemory> {
        let size = ring_size(self.depth as usize);
        let (sges_each, inline_each) = extension_sizes(cap);
        if sges_each + inline_each > 0 {
            let sges = array(Sge::default(), size * sges_each)?;
            let inline = array(0, size * inline_each)?;
            self.extension = Some(Box::new(WqeExtension { sges, sges_each, inline, inline_each }));
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

    /// Whether all slots are free: the completions of all requests were polled.
    pub(super) fn is_free(&self) -> bool {
        self.tail == self.released
    }

    pub(super) fn is_full(&self) -> bool {
        self.tail.wrapping_sub(self.released) >= self.depth
    }

    /// Frees the slots through `index`: its completion was polled. A completion from before a reset
    /// frees nothing.
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

    /// Returns the request at `index`, between head and tail.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &SendWqe {
        &self.ring[self.slot(index)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut SendWqe {
        let slot = self.slot(index);
        &mut self.ring[slot]
    }

    /// Prefetches the request at `index`, if there is one.
    #[inline]
    pub(super) fn prefetch(&self, index: u32) {
        if let Some(wqe) = self.ring.get(index as usize & self.ring.len().wrapping_sub(1)) {
            prefetch(wqe, size_of::<SendWqe>());
        }
    }

    /// Adds a request for a message of `len` bytes. The caller has checked it against `cap`, which
    /// is always the same; `inline` holds the bytes of an inline request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn push(
        &mut self,
        wr: &SendWr<'_>,
        info: &WrInfo,
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
        self.ring[slot].pack(wr, info, inline.is_some(), len);
        if let Some(extension) = &mut self.extension {
            extension.keep(slot, inline, wr.data);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Appends a request whose operation the service of the queue pair lacks. Its opcode is that of
    /// drivers, which has no packets and which no work request has.
    pub(super) fn push_unsupported(&mut self, id: WrId, cap: &QpCap) -> Result<(), PostError> {
        let send = SendWr::new(id, SendOp::Send { imm: None }, Data::EMPTY);
        self.push(&send, send.opcode().info(), 0, None, cap)?;
        let slot = self.slot(self.tail.wrapping_sub(1));
        self.ring[slot].kind = WrOpcode::Driver1.code();
        Ok(())
    }

    /// Returns the data of the request at `index`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn source(&self, index: u32) -> Source<'_> {
        self.source_of(self.get(index), index)
    }

    /// Returns the data of `wqe`, the request at `index`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn source_of<'q>(&'q self, wqe: &'q SendWqe, index: u32) -> Source<'q> {
        let is_inline = wqe.flags().contains(SendFlags::INLINE);
        match (wqe.progress >> SGES_SHIFT) as usize {
            1 if !is_inline => Source::Gather(core::slice::from_ref(&wqe.sge)),
            count => self.extended_source(wqe.len, is_inline, index, count),
        }
    }

    /// Returns the data of a request that has other than one gather entry.
    #[inline(never)]
    fn extended_source(&self, len: u32, is_inline: bool, index: u32, count: usize) -> Source<'_> {
        let (slot, extension) = (self.slot(index), self.extension.as_ref());
        if is_inline {
            let bytes = extension.map_or(&[][..], |extension| extension.inline(slot, len as usize));
            return Source::Inline(bytes);
        }
        let sges = if count == 0 { None } else { extension };
        Source::Gather(sges.map_or(&[], |extension| extension.sges(slot, count)))
    }

    /// Returns the oldest request and its index.
    #[inline]
    pub(super) fn oldest(&self) -> (u32, &SendWqe) {
        debug_assert!(!self.is_empty());
        (self.head, self.get(self.head))
    }

    /// Removes the oldest request; returns it with its index. Its slot is not free yet.
    #[inline]
    pub(super) fn pop(&mut self) -> (u32, &SendWqe) {
        debug_assert!(!self.is_empty());
        let index = self.head;
        self.head = index.wrapping_add(1);
        (index, self.get(index))
    }

    /// Discards all requests, and frees all slots.
    pub(super) fn clear(&mut self) {
        (self.head, self.released) = (self.tail, self.tail);
    }

    /// Removes the newest requests, from index `tail` on. None of them was sent.
    pub(super) fn truncate(&mut self, tail: u32) {
        debug_assert!(self.tail.wrapping_sub(tail) <= self.tail.wrapping_sub(self.head));
        self.tail = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: &WrInfo = WrOpcode::Send.info();

    #[test]
    fn order_is_kept_when_indices_wrap() {
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
            queue.push(&wr(id), SEND, 0, None, &CAP).unwrap();
        }
        assert_eq!(queue.push(&wr(3), SEND, 0, None, &CAP), Err(PostError::QueueFull));
        let popped = [(); 3].map(|()| {
            let (index, wqe) = queue.pop();
            (index, *wqe)
        });
        assert_eq!(popped.map(|(_, wqe)| wqe.id()), [0, 1, 2].map(WrId));
        let indexes = popped.map(|(index, _)| index);
        assert_eq!(indexes, [u32::MAX - 1, u32::MAX, 0]);
        // A completed request keeps its slot until its completion is polled.
        assert_eq!(queue.push(&wr(3), SEND, 0, None, &CAP), Err(PostError::QueueFull));
        queue.release_through(indexes[1]);
        queue.push(&wr(3), SEND, 0, None, &CAP).unwrap();
        queue.push(&wr(4), SEND, 0, None, &CAP).unwrap();
        assert_eq!(queue.push(&wr(5), SEND, 0, None, &CAP), Err(PostError::QueueFull));
        // A completion from before a reset frees neither a request that is not completed nor one
        // that was discarded.
        queue.release_through(2);
        assert_eq!(queue.push(&wr(5), SEND, 0, None, &CAP), Err(PostError::QueueFull));
        queue.clear();
        queue.release_through(indexes[2]);
        (0..3).for_each(|id| queue.push(&wr(id), SEND, 0, None, &CAP).unwrap());
        assert_eq!(queue.push(&wr(3), SEND, 0, None, &CAP), Err(PostError::QueueFull));
    }

    #[test]
    fn unknown_flags_do_not_spill_into_the_target() {
        let target = Target::Xrc(XrcSrqn::new(0x4));
        let op = SendOp::Send { imm: None };
        let flags = SendFlags::all();
        let wr = SendWr { target, flags, ..SendWr::new(WrId(1), op, Data::EMPTY) };
        let mut wqe = SendWqe::EMPTY;
        wqe.pack(&wr, SEND, false, 0);
        assert_eq!(wqe.srqn(), XrcSrqn::new(0x4));
    }
}
