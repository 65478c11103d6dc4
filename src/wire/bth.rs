//! The base transport header, with which every packet above the network layer begins.

use super::Layer;
use super::layout::header;
use super::num::{Bits, PKey, Psn, Qpn};
use super::opcode::Opcode;

header! {
    /// Base transport header.
    pub struct Bth, BthRepr, BthLayout: Layer::Bth, 12 bytes {
        // Rules: W-51.5, T-11, T-12, T-15.
        /// Opcode.
        opcode: Opcode = 8,
        /// Asks the receiver to raise a solicited event.
        solicited: bool = 1,
        /// The migration state: set in the migrated state.
        migreq: bool = 1,
        /// Number of pad bytes after the payload.
        pad: Bits<2> = 2,
        /// The version of the transport headers, 0.
        tver: Bits<4> = 4,
        /// The partition.
        pkey: PKey = 16,
        /// Forward explicit congestion notification.
        fecn: bool = 1,
        /// Backward explicit congestion notification.
        becn: bool = 1,
        ~resv6 = 6,
        /// The queue pair the packet is for.
        dest_qp: Qpn = 24,
        /// Asks for an acknowledgement.
        ack_req: bool = 1,
        ~resv7 = 7,
        /// The packet sequence number.
        psn: Psn = 24,
    }
}

impl BthRepr {
    /// A header with this opcode, queue pair and sequence number, in the default partition, no flag
    /// set.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        // Rule: T-54.
        Self {
            opcode,
            solicited: false,
            migreq: false,
            pad: Bits::low(0),
            tver: Bits::low(0),
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Returns the bytes of the header, as [`emit`](Self::emit) does, put together in two numbers:
    /// every packet has one.
    #[inline(always)]
    pub(crate) fn to_bytes(self) -> [u8; Bth::LEN] {
        let flags = u32::from(self.solicited) << 7
            | u32::from(self.migreq) << 6
            | self.pad.get() << 4
            | self.tver.get();
        let marks = u32::from(self.fecn) << 7 | u32::from(self.becn) << 6;
        let first = u64::from(self.opcode.0) << 56
            | u64::from(flags) << 48
            | u64::from(self.pkey.get()) << 32
            | u64::from(marks) << 24
            | u64::from(self.dest_qp.get());
        let last = u32::from(self.ack_req) << 31 | self.psn.get();
        let mut bytes = [0; Bth::LEN];
        let (head, tail) = bytes.split_at_mut(size_of::<u64>());
        head.copy_from_slice(&first.to_be_bytes());
        tail.copy_from_slice(&last.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    /// RC SEND ONLY, solicited, migrated, two pad bytes, BECN, reserved bits set, QP 0x11, PSN
    /// 16777210.
    const BYTES: [u8; 12] =
        [0x04, 0xe0, 0xff, 0xff, 0x50, 0x00, 0x00, 0x11, 0x81, 0xff, 0xff, 0xfa];

    #[test]
    fn deconstruct() {
        // Rule: T-12.
        let bth = Bth::ref_from_bytes(&BYTES).unwrap();
        assert_eq!(bth.opcode(), Opcode::RC_SEND_ONLY);
        assert!(bth.solicited() && bth.migreq() && bth.becn() && !bth.fecn() && bth.ack_req());
        assert_eq!(bth.pad().get(), 2);
        assert_eq!(bth.pkey(), PKey::DEFAULT);
        assert_eq!(bth.dest_qp(), Qpn::new(0x11));
        assert_eq!(bth.psn(), Psn::new(16_777_210));
        assert_eq!(Bth::LAYOUT.resv6.read(&BYTES), Some(0x10));
        assert_eq!(Bth::LAYOUT.resv7.read(&BYTES), Some(1));
    }

    #[test]
    fn construct_sends_reserved_bits_as_zero() {
        // Rule: T-54.
        let repr = BthRepr {
            solicited: true,
            migreq: true,
            pad: Bits::low(2),
            becn: true,
            ack_req: true,
            ..BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(16_777_210))
        };
        let mut expected = BYTES;
        expected[4] = 0x40;
        expected[8] = 0x80;
        assert_eq!(repr.emit().as_bytes(), &expected);
        assert_eq!(repr.emit().repr(), repr);
        let fecn = BthRepr { migreq: false, tver: Bits::low(9), fecn: true, ..repr };
        for repr in [repr, fecn, BthRepr { solicited: false, becn: false, ack_req: false, ..fecn }]
        {
            assert_eq!(&repr.to_bytes(), repr.emit().as_bytes());
        }
    }
}
