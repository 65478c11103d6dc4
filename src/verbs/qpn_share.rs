//! The share of QPNs that one NIC has, among several NICs at an address.

use crate::wire::Qpn;

/// Bits of a QPN.
const QPN_BITS: u32 = 24;
const QPN_MASK: u32 = (1 << QPN_BITS) - 1;

/// QPNs that a NIC may give its queue pairs. Several NICs at one address divide all QPNs among
/// them; otherwise a NIC may use each.
///
/// A QPN is multiplied by an odd number, and the highest bits of the product, modulo 2^24, are its
/// slot. So the QPNs of a slot are spread over the whole range, and a host that does not know the
/// number cannot tell which they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnShare {
    multiplier: u32,
    slot_bits: u32,
    slot: u8,
}

impl QpnShare {
    /// All QPNs.
    pub const ALL: Self = Self { multiplier: 1, slot_bits: 0, slot: 0 };

    /// The QPNs of a slot; there are `1 << slot_bits`, at most 256.
    pub(crate) const fn of_slot(multiplier: u32, slot_bits: u32, slot: u8) -> Self {
        assert!(multiplier % 2 == 1, "an even number would give two QPNs one product");
        assert!(slot_bits <= 8, "a slot is a byte");
        Self { multiplier: multiplier & QPN_MASK, slot_bits, slot }
    }

    /// Returns the slot of a QPN.
    #[inline]
    pub(crate) fn slot_of(self, qpn: Qpn) -> u8 {
        let product = qpn.get().wrapping_mul(self.multiplier) & QPN_MASK;
        #[expect(clippy::cast_possible_truncation, reason = "at most eight bits are left")]
        {
            (product >> (QPN_BITS - self.slot_bits)) as u8
        }
    }

    /// Returns the slot of this share.
    pub(crate) fn slot(self) -> u8 {
        self.slot
    }

    /// Whether QPNs are divided into the same slots as in another share.
    pub(crate) fn is_same_division(self, other: Self) -> bool {
        (self.multiplier, self.slot_bits) == (other.multiplier, other.slot_bits)
    }

    /// Whether the NIC may use a QPN.
    #[inline]
    pub fn contains(self, qpn: Qpn) -> bool {
        self.slot_of(qpn) == self.slot
    }

    /// Returns the number of QPNs in the share.
    pub fn count(self) -> usize {
        1 << (QPN_BITS - self.slot_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_qpn_is_in_one_slot_and_slots_are_equal() {
        let share = QpnShare::of_slot(0x9e_3779, 6, 0);
        let mut counts = std::collections::BTreeMap::new();
        for qpn in 0..=QPN_MASK {
            *counts.entry(share.slot_of(Qpn::new(qpn))).or_insert(0) += 1;
        }
        assert_eq!(counts, (0..64).map(|slot| (slot, share.count())).collect());
    }

    #[test]
    fn without_slots_all_qpns_are_in_it() {
        let qpns = [0, 1, 0x12_3456, 0xff_ffff].map(Qpn::new);
        assert!(qpns.into_iter().all(|qpn| QpnShare::ALL.contains(qpn)));
        assert_eq!(QpnShare::ALL.count(), 1 << 24);
    }
}
