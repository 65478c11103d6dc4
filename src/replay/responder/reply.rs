//! Answers of the engine.

use crate::wire::aeth::{Answer, Syndrome};
use crate::wire::{
    AethRepr, AtomicAckEthRepr, Bits, BthRepr, Msn, OpcodeInfo, Operation, PKey, Packet, Psn, Qpn,
};

/// An answer of the engine, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) info: &'static OpcodeInfo,
    pub(super) psn: Psn,
    pub(super) aeth: Option<(Syndrome, Msn)>,
    pub(super) payload_len: u32,
}

impl Reply {
    /// Parses a packet.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let packet = Packet::parse(packet).ok()?;
        let payload_len = u32::try_from(packet.payload_len()).ok()?;
        let aeth = packet.aeth().map(|aeth| (aeth.syndrome(), aeth.msn()));
        Some(Self { info: packet.info()?, psn: packet.bth().psn(), aeth, payload_len })
    }

    /// Whether it accepts the request.
    pub(super) fn is_positive(&self) -> bool {
        self.aeth.is_none_or(|(syndrome, _)| matches!(syndrome.answer(), Answer::Ack(_)))
    }

    /// Returns the packet to `dest`, with an MSN that counts `offset` more, and this payload.
    pub(super) fn packet(
        &self,
        dest: Qpn,
        pkey: Option<PKey>,
        offset: u32,
        payload: &[u8],
    ) -> Vec<u8> {
        let bth = BthRepr::new(self.info.opcode, dest, self.psn);
        // Two bits: the rest does not count.
        let pad = Bits::low(u32::try_from(payload.len()).unwrap_or(0).wrapping_neg());
        let bth = BthRepr { pkey: pkey.unwrap_or(PKey::DEFAULT), pad, ..bth };
        let mut out = bth.emit().as_bytes().to_vec();
        if let Some((syndrome, msn)) = self.aeth {
            let msn = msn.plus(offset);
            out.extend_from_slice(AethRepr { syndrome, msn }.emit().as_bytes());
        }
        if self.info.operation == Operation::AtomicAcknowledge {
            out.extend_from_slice(AtomicAckEthRepr { original: 0 }.emit().as_bytes());
        }
        out.extend_from_slice(payload);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }
}
