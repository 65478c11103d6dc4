//! The headers between BTH and payload. Which of them a packet has, its opcode says: see
//! [`opcode`](super::opcode).

use super::Layer;
use super::aeth::Syndrome;
use super::layout::header;
use super::num::{Bits, EeContext, Msn, Psn, QKey, Qpn, RKey, XrcSrqn};

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
        // Rule: T-18.
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
        /// Selectivity level: 0 a range, 1 the whole memory region.
        selectivity: Bits<2> = 2,
        /// Placement type: bit 0 global visibility, bit 1 persistence.
        placement: Bits<4> = 4,
    }
}

header! {
    /// RDMA extended transport header: which memory of the peer.
    pub struct Reth, RethRepr, RethLayout: Layer::Reth, 16 bytes {
        // Rule: T-28.
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
        // Rules: T-29, T-61.
        /// The virtual address.
        va: u64 = 64,
        /// The remote key.
        rkey: RKey = 32,
        /// Value to swap in, or to add.
        swap_or_add: u64 = 64,
        /// Value to compare with.
        compare: u64 = 64,
    }
}

header! {
    /// Acknowledge extended transport header.
    pub struct Aeth, AethRepr, AethLayout: Layer::Aeth, 4 bytes {
        // Rule: T-27.
        /// Syndrome: kind of answer.
        syndrome: Syndrome = 8,
        /// Message sequence number: number of requests that the responder has completed.
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

header! {
    /// Selective acknowledge extended transport header. The payload behind it is a bitmap: the most
    /// significant bit of its first byte stands for the base PSN, the next for the PSN after it.
    /// Everything from the BTH's PSN to the base PSN is missing. A responder sends it for requests,
    /// with the AETH of a NAK; a requester for READ responses, with that of an ACK.
    pub struct SackEth, SackEthRepr, SackEthLayout: Layer::SackEth, 4 bytes {
        /// PSN of the bitmap's first bit.
        base: Psn = 24,
        /// Length of the bitmap in words of 64 bits: 1 to 4.
        words: Bits<8> = 8,
    }
}

header! {
    /// The payload of a congestion notification, of which nothing is used yet.
    pub struct Cnp, CnpRepr, CnpLayout: Layer::Payload, 16 bytes {
        ~reserved = 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::view;

    /// The header that these bytes are is `repr`, and `repr` is emitted as these bytes with
    /// reserved ones zero.
    macro_rules! assert_both_ways {
        ($header:ty, $bytes:expr, $emitted:expr, $repr:expr) => {
            assert_eq!(view::<$header>(&$bytes, 0).unwrap().repr(), $repr);
            assert_eq!($repr.emit().as_bytes(), &$emitted);
        };
        ($header:ty, $bytes:expr, $repr:expr) => {
            assert_both_ways!($header, $bytes, $bytes, $repr)
        };
    }

    #[test]
    fn numbers_are_read_most_significant_byte_first() {
        // Rules: T-27, T-28.
        let bytes: [u8; 28] = core::array::from_fn(|at| at.to_le_bytes()[0] + 1);
        let (va, rkey) = (0x0102_0304_0506_0708, RKey::new(0x090a_0b0c));
        let (swap_or_add, compare) = (0x0d0e_0f10_1112_1314, 0x1516_1718_191a_1b1c);
        assert_both_ways!(AtomicEth, bytes, AtomicEthRepr { va, rkey, swap_or_add, compare });
        let [reth @ .., _, _, _, _, _, _, _, _, _, _, _, _] = bytes;
        assert_both_ways!(Reth, reth, RethRepr { va, rkey, dma_len: 0x0d0e_0f10 });
        let original = 0x0102_0304_0506_0708;
        assert_both_ways!(AtomicAckEth, [1, 2, 3, 4, 5, 6, 7, 8], AtomicAckEthRepr { original });
        let aeth = AethRepr { syndrome: Syndrome(0x62), msn: Msn::new(0x01_0203) };
        assert_both_ways!(Aeth, [0x62, 1, 2, 3], aeth);
        assert_both_ways!(Ieth, [1, 2, 3, 4], IethRepr { rkey: RKey::new(0x0102_0304) });
        assert_both_ways!(ImmDt, *b"roce", ImmDtRepr { data: *b"roce" });
    }

    #[test]
    fn reserved_bits_are_ignored_and_sent_as_zero() {
        // Rule: T-18.
        let ee_context = EeContext::new(0x01_0203);
        assert_both_ways!(Rdeth, [0xff, 1, 2, 3], [0, 1, 2, 3], RdethRepr { ee_context });
        let xrcsrq = XrcSrqn::new(0x01_0203);
        assert_both_ways!(Xrceth, [0xff, 1, 2, 3], [0, 1, 2, 3], XrcethRepr { xrcsrq });
        let deth = DethRepr { qkey: QKey::GSI, src_qp: Qpn::GSI };
        let (bytes, emitted) = ([0x80, 1, 0, 0, 0xff, 0, 0, 1], [0x80, 1, 0, 0, 0, 0, 0, 1]);
        assert_both_ways!(Deth, bytes, emitted, deth);
        let feth = FethRepr { selectivity: Bits::low(1), placement: Bits::low(3) };
        assert_both_ways!(Feth, [0xff, 0xff, 0xff, 0xd3], [0, 0, 0, 0x13], feth);
    }
}
