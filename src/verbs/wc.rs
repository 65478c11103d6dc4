//! Work completions: `ibv_wc`.

use super::{WcFlags, WcOpcode, WcStatus, WrId};
use crate::wire::{Qpn, RKey};

/// A work completion: `ibv_wc`.
///
/// Two of them fill a cache line. The local identifiers of InfiniBand, which mean nothing on
/// Ethernet, and time stamps, which only extended completion queues have, are not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Identifier of the work request.
    pub id: WrId,
    /// Number of bytes that were received, read, or, where the device says so, sent.
    pub byte_len: u32,
    /// Immediate data or a key; the flags say which.
    extra: [u8; 4],
    /// The queue pair whose work it was.
    pub qp_num: Qpn,
    /// The queue pair that sent a datagram.
    pub src_qp: Qpn,
    /// The partition it came through, by its index; of the general services queue pair only.
    pub pkey_index: u16,
    /// Error code of the vendor.
    pub vendor_err: u16,
    /// Status. Unless it is success, only this, `id`, `qp_num` and `vendor_err` mean anything to a
    /// program.
    pub status: WcStatus,
    /// Opcode.
    pub opcode: WcOpcode,
    flags: WcFlags,
    /// The service level of a datagram; on Ethernet, with which header it came: 10 for IPv4, 9 for
    /// IPv6.
    pub sl: u8,
}

const _: () = assert!(size_of::<Wc>() <= 32, "two completions fill a cache line");

impl Wc {
    /// A completion with this status and opcode, and nothing else to tell.
    #[inline]
    pub const fn new(id: WrId, status: WcStatus, opcode: WcOpcode, qp_num: Qpn) -> Self {
        Self {
            id,
            byte_len: 0,
            extra: [0; 4],
            qp_num,
            src_qp: Qpn::new(0),
            pkey_index: 0,
            vendor_err: 0,
            status,
            opcode,
            flags: WcFlags::empty(),
            sl: 0,
        }
    }

    /// Returns the completion with this number of bytes.
    #[inline]
    #[must_use]
    pub const fn with_byte_len(mut self, byte_len: u32) -> Self {
        self.byte_len = byte_len;
        self
    }

    /// Returns the completion with immediate data, in the order it came; it cannot have a key as
    /// well.
    #[inline]
    #[must_use]
    pub const fn with_imm(mut self, imm: [u8; 4]) -> Self {
        self.extra = imm;
        self.flags = self.flags.difference(WcFlags::WITH_INV).union(WcFlags::WITH_IMM);
        self
    }

    /// Returns the completion with a key that the peer invalidated; it cannot have immediate data
    /// as well.
    #[inline]
    #[must_use]
    pub const fn with_invalidated(mut self, rkey: RKey) -> Self {
        self.extra = rkey.get().to_ne_bytes();
        self.flags = self.flags.difference(WcFlags::WITH_IMM).union(WcFlags::WITH_INV);
        self
    }

    /// Returns the completion as that of a datagram from `src_qp`, whose buffer begins with a
    /// network header.
    #[inline]
    #[must_use]
    pub const fn with_datagram(mut self, src_qp: Qpn) -> Self {
        self.src_qp = src_qp;
        self.flags = self.flags.union(WcFlags::GRH);
        self
    }

    /// Returns the flags.
    #[inline]
    pub const fn flags(&self) -> WcFlags {
        self.flags
    }

    /// The immediate data, in the order it came.
    #[inline]
    pub const fn imm(&self) -> Option<[u8; 4]> {
        if self.flags.contains(WcFlags::WITH_IMM) { Some(self.extra) } else { None }
    }

    /// Returns the key that the peer invalidated.
    #[inline]
    pub const fn invalidated(&self) -> Option<RKey> {
        if self.flags.contains(WcFlags::WITH_INV) {
            Some(RKey::new(u32::from_ne_bytes(self.extra)))
        } else {
            None
        }
    }

    /// The four bytes that `ibv_wc` has for either, as they lie in memory there.
    #[inline]
    pub const fn imm_or_rkey(&self) -> [u8; 4] {
        self.extra
    }

    /// Whether the work was done.
    #[inline]
    pub const fn is_success(&self) -> bool {
        self.status.is_success()
    }
}

impl Default for Wc {
    /// An empty place for a completion to be polled into.
    fn default() -> Self {
        Self::new(WrId(0), WcStatus::Success, WcOpcode::Send, Qpn::new(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_and_a_key_exclude_each_other() {
        let wc = Wc::new(WrId(7), WcStatus::Success, WcOpcode::Recv, Qpn::new(0x11));
        assert_eq!((wc.imm(), wc.invalidated(), wc.flags()), (None, None, WcFlags::empty()));
        let imm = wc.with_invalidated(RKey::new(1)).with_imm(*b"roce");
        assert_eq!((imm.imm(), imm.invalidated()), (Some(*b"roce"), None));
        assert_eq!(imm.flags(), WcFlags::WITH_IMM);
        let key = RKey::new(0x0102_0304);
        let inv = imm.with_invalidated(key).with_byte_len(12);
        assert_eq!((inv.imm(), inv.invalidated()), (None, Some(key)));
        assert_eq!(inv.imm_or_rkey(), 0x0102_0304_u32.to_ne_bytes());
        assert_eq!((inv.id, inv.byte_len, inv.qp_num), (WrId(7), 12, Qpn::new(0x11)));
    }

    #[test]
    fn a_datagram_keeps_its_immediate_data() {
        let wc = Wc::default().with_imm([0, 0, 0, 9]).with_datagram(Qpn::GSI);
        assert_eq!(wc.flags(), WcFlags::GRH | WcFlags::WITH_IMM);
        assert_eq!((wc.src_qp, wc.imm()), (Qpn::GSI, Some([0, 0, 0, 9])));
    }
}
