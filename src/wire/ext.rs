//! The headers between BTH and payload. Which of them a packet has, its opcode says: see [`opcode`](super::opcode).

use super::Layer;
use super::aeth::Syndrome;
use super::layout::header;
use super::num::{Bits, EeContext, Msn, QKey, Qpn, RKey, XrcSrqn};

header! {
    /// Reliable datagram extended transport header.
    pub struct Rdeth, RdethRepr, RdethLayout: Layer::Rdeth, 4 bytes {
        ~resv8 = 8,
        /// The end-to-end context.
        ee_context: EeContext = 24,
    }
}

header! {
    /// Datagram extended transport header: whose packet it is, and the key to the queue.
    pub struct Deth, DethRepr, DethLayout: Layer::Deth, 8 bytes {
        /// The queue key.
        qkey: QKey = 32,
        ~resv8 = 8,
        /// The queue pair that sent the packet.
        src_qp: Qpn = 24,
    }
}

header! {
    /// XRC extended transport header: which shared receive queue a request is for.
    pub struct Xrceth, XrcethRepr, XrcethLayout: Layer::Xrceth, 4 bytes {
        ~resv8 = 8,
        /// The shared receive queue.
        xrcsrq: XrcSrqn = 24,
    }
}

header! {
    /// Flush extended transport header.
    pub struct Feth, FethRepr, FethLayout: Layer::Feth, 4 bytes {
        ~resv26 = 26,
        /// What is flushed: 0 a range, 1 the whole memory region.
        selectivity: Bits<2> = 2,
        /// How far: bit 0 global visibility, bit 1 persistence.
        placement: Bits<4> = 4,
    }
}

header! {
    /// RDMA extended transport header: which memory of the peer.
    pub struct Reth, RethRepr, RethLayout: Layer::Reth, 16 bytes {
        /// The virtual address.
        va: u64 = 64,
        /// The remote key.
        rkey: RKey = 32,
        /// The length of the whole message.
        dma_len: u32 = 32,
    }
}

header! {
    /// Atomic extended transport header.
    pub struct AtomicEth, AtomicEthRepr, AtomicEthLayout: Layer::AtomicEth, 28 bytes {
        /// The virtual address.
        va: u64 = 64,
        /// The remote key.
        rkey: RKey = 32,
        /// What to swap in, or to add.
        swap_or_add: u64 = 64,
        /// What to compare with.
        compare: u64 = 64,
    }
}

header! {
    /// Acknowledge extended transport header.
    pub struct Aeth, AethRepr, AethLayout: Layer::Aeth, 4 bytes {
        /// What kind of answer it is.
        syndrome: Syndrome = 8,
        /// How many requests the responder has completed.
        msn: Msn = 24,
    }
}

header! {
    /// Atomic acknowledge extended transport header.
    pub struct AtomicAckEth, AtomicAckEthRepr, AtomicAckEthLayout: Layer::AtomicAckEth, 8 bytes {
        /// The value before the operation.
        original: u64 = 64,
    }
}

header! {
    /// Immediate data: four bytes handed to the receiver as they are.
    pub struct ImmDt, ImmDtRepr, ImmDtLayout: Layer::ImmDt, 4 bytes {
        /// The bytes, in wire order.
        data: [u8; 4] = 32,
    }
}

header! {
    /// Invalidate extended transport header.
    pub struct Ieth, IethRepr, IethLayout: Layer::Ieth, 4 bytes {
        /// The key that shall no longer be valid.
        rkey: RKey = 32,
    }
}

/// The payload of a congestion notification: sixteen bytes, all reserved.
pub const CNP_PAYLOAD: [u8; 16] = [0; 16];
