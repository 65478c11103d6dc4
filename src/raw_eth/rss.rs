//! Receive-side scaling: frames are distributed over several WQs by a hash of their addresses and
//! ports, so that each flow stays in order and several processors share the work.
//! `ibv_rx_hash_conf`.

use bitflags::bitflags;

use super::WqHandle;
use super::flow::{FlowLayer, FrameHeaders};
use crate::verbs::names;

bitflags! {
    /// Fields of a frame that are hashed: `ibv_rx_hash_fields`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFields: u64 {
        /// IPv4 source address.
        const SRC_IPV4 = 1;
        /// IPv4 destination address.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source address.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination address.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
    }
}
names!(RxHashFields, "IBV_RX_HASH_");

/// Header and byte range of each field, in the order in which they are hashed.
const FIELDS: [(RxHashFields, FlowLayer, core::ops::Range<usize>); 8] = [
    (RxHashFields::SRC_IPV4, FlowLayer::Ipv4, 12..16),
    (RxHashFields::DST_IPV4, FlowLayer::Ipv4, 16..20),
    (RxHashFields::SRC_IPV6, FlowLayer::Ipv6, 8..24),
    (RxHashFields::DST_IPV6, FlowLayer::Ipv6, 24..40),
    (RxHashFields::SRC_PORT_TCP, FlowLayer::Tcp, 0..2),
    (RxHashFields::DST_PORT_TCP, FlowLayer::Tcp, 2..4),
    (RxHashFields::SRC_PORT_UDP, FlowLayer::Udp, 0..2),
    (RxHashFields::DST_PORT_UDP, FlowLayer::Udp, 2..4),
];

/// Toeplitz hash, by which network cards distribute frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// Key. If it is not at least four bytes longer than the hashed fields, zeros follow it.
    pub key: Vec<u8>,
    /// Fields that are hashed.
    pub fields: RxHashFields,
}

impl RxHash {
    /// Returns the hash of a frame. Fields that it does not have are left out.
    pub(super) fn of(&self, frame: &FrameHeaders<'_>) -> u32 {
        let fields = FIELDS.iter().filter(|(field, ..)| self.fields.contains(*field));
        let found = fields.filter_map(|(_, layer, range)| frame.header(*layer)?.get(range.clone()));
        self.of_bytes(found.flatten().copied())
    }

    fn of_bytes(&self, bytes: impl Iterator<Item = u8>) -> u32 {
        // A window of 32 bits slides over the key, one bit of data at a time; the windows at bits
        // that are set are XORed.
        let mut key = self.key.iter().copied().chain(core::iter::repeat(0));
        let mut window = key.by_ref().take(4).fold(0_u32, |seen, byte| seen << 8 | u32::from(byte));
        let mut hash = 0;
        for (byte, mut next) in bytes.zip(key) {
            for bit in (0..8).rev() {
                if byte >> bit & 1 == 1 {
                    hash ^= window;
                }
                window = window << 1 | u32::from(next >> 7);
                next <<= 1;
            }
        }
        hash
    }
}

/// RSS of a raw packet queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Indirection table; its length is a power of two, and a WQ may be in it several times.
    pub queues: Vec<WqHandle>,
    /// Hash that selects the WQ of a frame.
    pub hash: RxHash,
}

impl Rss {
    /// Returns the WQ of a frame.
    pub(super) fn select(&self, frame: &FrameHeaders<'_>) -> Option<WqHandle> {
        let mask = self.queues.len().wrapping_sub(1);
        self.queues.get(self.hash.of(frame) as usize & mask).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key of Microsoft's RSS verification suite.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn hashes_are_those_of_the_verification_suite() {
        // 66.9.149.187:2794 to 161.142.100.80:1766.
        let hash = RxHash { key: KEY.to_vec(), fields: RxHashFields::all() };
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(hash.of_bytes(addresses.into_iter()), 0x323e_8fc2);
        let ports = [2794_u16, 1766].map(u16::to_be_bytes).concat();
        assert_eq!(hash.of_bytes(addresses.into_iter().chain(ports)), 0x51cc_c178);
        assert_eq!(hash.of_bytes(core::iter::empty()), 0);
    }
}
