//! Receive-side scaling: `ibv_rx_hash_conf`, and the states of its receive queues.

use bitflags::bitflags;

use super::WqHandle;
use super::codes::{codes, names};
use super::flow::{FlowLayer, FrameHeaders};

codes! {
    /// The state of a receive queue without a queue pair: `ibv_wq_state`.
    WqState, "IBV_WQS_" {
        /// It takes nothing, and forgets what it had.
        Reset = 0, "RESET", "reset";
        /// It receives.
        Ready = 1, "RDY", "ready";
        /// What is posted is flushed.
        Err = 2, "ERR", "error";
    }
}

bitflags! {
    /// What of a frame is hashed: `ibv_rx_hash_fields`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFields: u64 {
        /// The source of IPv4.
        const SRC_IPV4 = 1;
        /// The destination of IPv4.
        const DST_IPV4 = 1 << 1;
        /// The source of IPv6.
        const SRC_IPV6 = 1 << 2;
        /// The destination of IPv6.
        const DST_IPV6 = 1 << 3;
        /// The source port of TCP.
        const SRC_PORT_TCP = 1 << 4;
        /// The destination port of TCP.
        const DST_PORT_TCP = 1 << 5;
        /// The source port of UDP.
        const SRC_PORT_UDP = 1 << 6;
        /// The destination port of UDP.
        const DST_PORT_UDP = 1 << 7;
    }
}
names!(RxHashFields, "IBV_RX_HASH_");

/// Where in which header each field lies, in the order in which they are hashed.
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

/// The hash of Toeplitz, which network cards spread frames by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// The key: four bytes more than are hashed, or zeros follow.
    pub key: Vec<u8>,
    /// What is hashed.
    pub fields: RxHashFields,
}

impl RxHash {
    /// The hash of a frame. What it does not have is left out.
    pub(crate) fn of(&self, frame: &FrameHeaders<'_>) -> u32 {
        let wanted = FIELDS.iter().filter(|(field, ..)| self.fields.contains(*field));
        let found = wanted.filter_map(|(_, layer, range)| frame.header(*layer)?.get(range.clone()));
        self.of_bytes(found.flatten().copied())
    }

    fn of_bytes(&self, bytes: impl Iterator<Item = u8>) -> u32 {
        // The key passes by, bit for bit; where there is a bit in the data, what is seen of the key counts.
        let mut key = self.key.iter().copied().chain(core::iter::repeat(0));
        let mut seen = key.by_ref().take(4).fold(0_u32, |seen, byte| seen << 8 | u32::from(byte));
        let mut hash = 0;
        for (byte, mut next) in bytes.zip(key) {
            for bit in (0..8).rev() {
                if byte >> bit & 1 == 1 {
                    hash ^= seen;
                }
                seen = seen << 1 | u32::from(next >> 7);
                next <<= 1;
            }
        }
        hash
    }
}

/// Receive-side scaling of a raw packet queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Indirection table; its length is a power of two, and a queue may be in it several times.
    pub queues: Vec<WqHandle>,
    /// Hash that selects the queue of a frame.
    pub hash: RxHash,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's verification suite for receive-side scaling.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn hashes_are_those_that_others_compute() {
        // From 66.9.149.187 to 161.142.100.80, from port 2794 to port 1766, of that suite.
        let hash = RxHash { key: KEY.to_vec(), fields: RxHashFields::all() };
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(hash.of_bytes(addresses.into_iter()), 0x323e_8fc2);
        let ports = [2794_u16, 1766].map(u16::to_be_bytes).concat();
        assert_eq!(hash.of_bytes(addresses.into_iter().chain(ports)), 0x51cc_c178);
        assert_eq!(hash.of_bytes(core::iter::empty()), 0);
    }
}
