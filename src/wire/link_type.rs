//! Link-layer header types of the tcpdump registry: the meaning of a captured packet's first byte.

use core::fmt;

/// The kind of header a captured packet starts with, as registered at
/// <https://www.tcpdump.org/linktypes.html>.
///
/// A reader keeps numbers it does not know, so that a decoder can name what it cannot decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: an address family in the byte order of the capturing host, then the packet.
    pub const NULL: Self = Self(0);
    /// Ethernet, from the destination address on.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6 without a link header, by the number most systems give it in memory
    /// (`DLT_RAW`).
    ///
    /// A file should hold [`LinkType::RAW`] instead; some programs wrote their own system's number.
    pub const RAW_DLT: Self = Self(12);
    /// [`LinkType::RAW_DLT`] by the number that OpenBSD gives it.
    pub const RAW_OPENBSD: Self = Self(14);
    /// IPv4 or IPv6 without a link header; the version field tells which.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: an address family in network byte order, then the packet.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture, as `tcpdump -i any` wrote it before 2020.
    pub const LINUX_SLL: Self = Self(113);
    /// Endace ERF records, each with a time stamp and a type of its own.
    pub const ERF: Self = Self(197);
    /// IPv4 without a link header.
    pub const IPV4: Self = Self(228);
    /// IPv6 without a link header.
    pub const IPV6: Self = Self(229);
    /// Native InfiniBand, from the local route header on.
    pub const INFINIBAND: Self = Self(247);
    /// Linux "cooked" capture, version 2, which also tells the interface.
    pub const LINUX_SLL2: Self = Self(276);

    /// Whether packets begin with an IP header.
    pub const fn is_raw_ip(self) -> bool {
        matches!(self, Self::RAW | Self::RAW_DLT | Self::RAW_OPENBSD | Self::IPV4 | Self::IPV6)
    }

    /// The registry's name, if it is one of the types this crate knows.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NULL => "NULL",
            Self::ETHERNET => "ETHERNET",
            Self::RAW_DLT | Self::RAW_OPENBSD | Self::RAW => "RAW",
            Self::LOOP => "LOOP",
            Self::LINUX_SLL => "LINUX_SLL",
            Self::ERF => "ERF",
            Self::IPV4 => "IPV4",
            Self::IPV6 => "IPV6",
            Self::INFINIBAND => "INFINIBAND",
            Self::LINUX_SLL2 => "LINUX_SLL2",
            Self(_) => return None,
        })
    }
}

impl fmt::Display for LinkType {
    /// The registry's name, or `link type 147`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&format!("link type {}", self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_the_name_or_the_number() {
        assert_eq!(LinkType(1).to_string(), "ETHERNET");
        assert_eq!(LinkType(12).to_string(), "RAW");
        assert_eq!(LinkType(276).to_string(), "LINUX_SLL2");
        assert_eq!(LinkType(147).to_string(), "link type 147");
        assert_eq!(format!("{:>9}|", LinkType::IPV4), "     IPV4|");
    }
}
