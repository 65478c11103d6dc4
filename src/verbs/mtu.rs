//! Path MTU: maximum payload of a packet.

use super::codes::codes;

codes! {
    /// A maximum transfer unit: `ibv_mtu`. It counts payload only, no header.
    #[derive(PartialOrd, Ord, Default)]
    Mtu, "IBV_MTU_" {
        /// 256 bytes.
        M256 = 1, "256", "256";
        /// 512 bytes.
        M512 = 2, "512", "512";
        /// 1024 bytes: the largest that fits an Ethernet of 1500.
        #[default]
        M1024 = 3, "1024", "1024";
        /// 2048 bytes.
        M2048 = 4, "2048", "2048";
        /// 4096 bytes.
        M4096 = 5, "4096", "4096";
    }
}

impl Mtu {
    /// Length of the headers of the longest packet as Linux counts it: IPv6 or GRH 40, UDP 8, BTH
    /// 12, XRCETH 4, AtomicETH 28, ICRC 4.
    pub(crate) const KERNEL_HEADERS: usize = 40 + 8 + 12 + 4 + 28 + 4;

    /// Returns the number of bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The MTU of exactly this number of bytes.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            256 => Some(Self::M256),
            512 => Some(Self::M512),
            1024 => Some(Self::M1024),
            2048 => Some(Self::M2048),
            4096 => Some(Self::M4096),
            _ => None,
        }
    }

    /// The largest unit of at most `bytes` bytes.
    pub const fn largest_within(bytes: usize) -> Option<Self> {
        match bytes {
            ..256 => None,
            256..512 => Some(Self::M256),
            512..1024 => Some(Self::M512),
            1024..2048 => Some(Self::M1024),
            2048..4096 => Some(Self::M2048),
            4096.. => Some(Self::M4096),
        }
    }

    /// The largest unit whose packets all fit an Ethernet of this MTU, as Linux reckons it for
    /// hardware (`iboe_get_mtu`).
    pub const fn for_ethernet(mtu: usize) -> Option<Self> {
        Self::largest_within(mtu.saturating_sub(Self::KERNEL_HEADERS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        let bytes: Vec<usize> = Mtu::ALL.iter().map(|mtu| mtu.bytes()).collect();
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        for bytes in 0..10_000 {
            let exact = Mtu::ALL.iter().copied().find(|mtu| mtu.bytes() == bytes);
            assert_eq!(Mtu::from_bytes(bytes), exact);
            let largest = Mtu::ALL.iter().copied().rfind(|mtu| mtu.bytes() <= bytes);
            assert_eq!(Mtu::largest_within(bytes), largest);
        }
    }

    #[test]
    fn headers_are_taken_off_an_ethernet_mtu() {
        assert_eq!(Mtu::for_ethernet(1500), Some(Mtu::M1024));
        assert_eq!(Mtu::for_ethernet(2200), Some(Mtu::M2048));
        assert_eq!(Mtu::for_ethernet(4200), Some(Mtu::M4096));
        assert_eq!(Mtu::for_ethernet(9000), Some(Mtu::M4096));
        assert_eq!(Mtu::for_ethernet(4192), Some(Mtu::M4096));
        assert_eq!(Mtu::for_ethernet(4191), Some(Mtu::M2048));
        assert_eq!(Mtu::for_ethernet(351), None);
        assert_eq!(Mtu::for_ethernet(0), None);
    }
}
