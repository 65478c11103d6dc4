//! Headers of request packets.

use super::super::super::send_queue::SendWqe;
use super::super::attr::Attributes;
use crate::verbs::{QpType, WrOpcode};
use crate::wire::batch::Draft;
use crate::wire::{
    AtomicEthRepr, Bits, FethRepr, IethRepr, ImmDtRepr, Opcode, Position, RethRepr, XrcethRepr,
};

/// Appends the extension headers of packet `k` of a request.
#[inline]
pub(super) fn put_headers(
    draft: &mut Draft<'_>,
    wqe: &SendWqe,
    position: Position,
    k: u32,
    attr: &Attributes,
) {
    // Rule: P-16.1.
    if attr.kind == QpType::XrcSend {
        draft.put(XrcethRepr { xrcsrq: wqe.srqn() }.emit().as_bytes());
    }
    let (va, rkey) = (wqe.remote_addr(), wqe.rkey());
    match wqe.opcode() {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm | WrOpcode::AtomicWrite
            if position.begins() =>
        {
            draft.put(RethRepr { va, rkey, dma_len: wqe.len() }.emit().as_bytes());
        }
        WrOpcode::RdmaRead => {
            // Only the part that is missing is requested.
            // Rule: P-02.2.
            let skipped = k * attr.mtu;
            let va = va.wrapping_add(u64::from(skipped));
            let reth = RethRepr { va, rkey, dma_len: wqe.len() - skipped };
            draft.put(reth.emit().as_bytes());
        }
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
            let (swap_or_add, compare) = (wqe.swap_or_add(), wqe.compare());
            let atomic = AtomicEthRepr { va, rkey, swap_or_add, compare };
            draft.put(atomic.emit().as_bytes());
        }
        WrOpcode::Flush => {
            let (placement, selectivity) = wqe.flush();
            draft.put(FethRepr { selectivity, placement }.emit().as_bytes());
            draft.put(RethRepr { va, rkey, dma_len: wqe.len() }.emit().as_bytes());
        }
        _ => {}
    }
    match wqe.opcode() {
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm if position.ends() => {
            draft.put(ImmDtRepr { data: wqe.imm() }.emit().as_bytes());
        }
        WrOpcode::SendWithInv if position.ends() => {
            draft.put(IethRepr { rkey }.emit().as_bytes());
        }
        _ => {}
    }
}

/// Position of packet `k` of `count` in its message.
pub(super) fn position(k: u32, count: u32) -> Position {
    // Rule: T-10.
    match (k == 0, k + 1 == count) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// RC opcode of a request packet.
pub(super) fn request_opcode(opcode: WrOpcode, position: Position) -> Opcode {
    use Position::{First, Last, Middle, Only};
    match (opcode, position) {
        (WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv, First) => {
            Opcode::RC_SEND_FIRST
        }
        (WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv, Middle) => {
            Opcode::RC_SEND_MIDDLE
        }
        (WrOpcode::SendWithImm, Last) => Opcode::RC_SEND_LAST_WITH_IMMEDIATE,
        (WrOpcode::SendWithImm, Only) => Opcode::RC_SEND_ONLY_WITH_IMMEDIATE,
        (WrOpcode::SendWithInv, Last) => Opcode::RC_SEND_LAST_WITH_INVALIDATE,
        (WrOpcode::SendWithInv, Only) => Opcode::RC_SEND_ONLY_WITH_INVALIDATE,
        (WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm, First) => Opcode::RC_RDMA_WRITE_FIRST,
        (WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm, Middle) => Opcode::RC_RDMA_WRITE_MIDDLE,
        (WrOpcode::RdmaWrite, Last) => Opcode::RC_RDMA_WRITE_LAST,
        (WrOpcode::RdmaWrite, Only) => Opcode::RC_RDMA_WRITE_ONLY,
        (WrOpcode::RdmaWriteWithImm, Last) => Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        (WrOpcode::RdmaWriteWithImm, Only) => Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        (WrOpcode::RdmaRead, _) => Opcode::RC_RDMA_READ_REQUEST,
        (WrOpcode::AtomicCmpAndSwp, _) => Opcode::RC_COMPARE_SWAP,
        (WrOpcode::AtomicFetchAndAdd, _) => Opcode::RC_FETCH_ADD,
        (WrOpcode::AtomicWrite, _) => Opcode::RC_ATOMIC_WRITE,
        (WrOpcode::Flush, _) => Opcode::RC_FLUSH,
        (_, Last) => Opcode::RC_SEND_LAST,
        (_, _) => Opcode::RC_SEND_ONLY,
    }
}

/// Number of padding bytes after a payload of `len` bytes (W-50).
#[inline]
pub(in super::super) fn pad_for(len: u32) -> Bits<2> {
    // Rule: W-50.1.
    Bits::low(len.wrapping_neg())
}
