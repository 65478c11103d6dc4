//! Headers of request packets.

use super::super::super::send_queue::SendWqe;
use super::super::attr::Attributes;
use crate::verbs::WrOpcode;
use crate::wire::batch::Draft;
use crate::wire::{
    AtomicEthRepr, Bits, FethRepr, Headers, IethRepr, ImmDtRepr, Opcode, Position, RethRepr,
    XrcethRepr,
};

/// Appends the extension headers that the opcode table lists, to packet `k` of a request.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn put_headers(
    draft: &mut Draft<'_>,
    wqe: &SendWqe,
    opcode: Opcode,
    k: u32,
    attr: &Attributes,
) {
    let headers = opcode.info().map_or(Headers::empty(), |info| info.headers);
    if headers.is_empty() {
        return;
    }
    let (va, rkey) = (wqe.remote_addr(), wqe.rkey());
    // Rule: P-16.1.
    if headers.contains(Headers::XRCETH) {
        draft.put(XrcethRepr { xrcsrq: wqe.srqn() }.emit().as_bytes());
    }
    if headers.contains(Headers::FETH) {
        let (placement, selectivity) = wqe.flush();
        draft.put(FethRepr { selectivity, placement }.emit().as_bytes());
    }
    if headers.contains(Headers::RETH) {
        // A READ requests only the part that is missing; other requests have the header in their
        // first packet.
        // Rule: P-02.2.
        let skipped = k * attr.mtu;
        let va = va.wrapping_add(u64::from(skipped));
        draft.put(RethRepr { va, rkey, dma_len: wqe.len() - skipped }.emit().as_bytes());
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        let (swap_or_add, compare) = (wqe.swap_or_add(), wqe.compare());
        draft.put(AtomicEthRepr { va, rkey, swap_or_add, compare }.emit().as_bytes());
    }
    if headers.contains(Headers::IMM_DT) {
        draft.put(ImmDtRepr { data: wqe.imm() }.emit().as_bytes());
    }
    if headers.contains(Headers::IETH) {
        draft.put(IethRepr { rkey }.emit().as_bytes());
    }
}

/// Position of packet `k` of `count` in its message.
#[inline]
pub(in super::super) fn position(k: u32, count: u32) -> Position {
    // Rule: T-10.
    match (k == 0, k + 1 == count) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// RC opcode of a request packet.
#[inline]
#[expect(clippy::indexing_slicing, reason = "both enumerations are smaller than the table")]
pub(super) fn request_opcode(opcode: WrOpcode, position: Position) -> Opcode {
    REQUESTS[opcode as usize][position as usize]
}

/// RC opcodes of request packets, by work request and position, from the tables of both. Work
/// requests without packets have rows that are not read.
#[expect(clippy::indexing_slicing, reason = "evaluated when compiling")]
static REQUESTS: [[Opcode; 4]; 16] = {
    let mut requests = [[Opcode::RC_SEND_ONLY; 4]; 16];
    let mut at = 0;
    while at < WrOpcode::ALL.len() {
        let info = WrOpcode::ALL[at].info();
        if let Some(operation) = info.operation {
            requests[info.opcode as usize] = Opcode::of_message(operation, info.trailer);
        }
        at += 1;
    }
    requests
};

/// Number of padding bytes after a payload of `len` bytes (W-50).
#[inline]
pub(in super::super) fn pad_for(len: u32) -> Bits<2> {
    // Rule: W-50.1.
    Bits::low(len.wrapping_neg())
}
