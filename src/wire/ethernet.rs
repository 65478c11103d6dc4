//! Ethernet and its VLAN tags.

use core::fmt;

use super::Layer;
use super::layout::{header, whole_field};
use super::num::{Bits, MacAddr};

header! {
    /// Ethernet header.
    pub struct Ethernet, EthernetRepr, EthernetLayout: Layer::Ethernet, 14 bytes {
        /// Destination address.
        destination: MacAddr = 48,
        /// Source address.
        source: MacAddr = 48,
        /// EtherType of the payload.
        ethertype: EtherType = 16,
    }
}

header! {
    /// A VLAN tag (802.1Q, or the outer one of 802.1ad), without the EtherType before it.
    pub struct Vlan, VlanRepr, VlanLayout: Layer::Vlan, 4 bytes {
        /// The priority.
        priority: Bits<3> = 3,
        /// Whether the frame may be dropped first.
        drop_eligible: bool = 1,
        /// The VLAN.
        vid: Bits<12> = 12,
        /// EtherType of the payload.
        ethertype: EtherType = 16,
    }
}

/// EtherType: protocol after an Ethernet header or a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// RoCE version 1: a GRH.
    pub const ROCE_V1: Self = Self(0x8915);
    /// An MPLS label stack.
    pub const MPLS: Self = Self(0x8847);
    /// An MPLS label stack of a multicast packet.
    pub const MPLS_MULTICAST: Self = Self(0x8848);
    /// An Ethernet frame in a tunnel (transparent Ethernet bridging).
    pub const ETHERNET_FRAME: Self = Self(0x6558);
    /// ERSPAN of type I or II in GRE.
    pub const ERSPAN: Self = Self(0x88be);
    /// ERSPAN of type III in GRE.
    pub const ERSPAN_3: Self = Self(0x22eb);
    /// A VLAN tag.
    pub const VLAN: Self = Self(0x8100);
    /// The outer of two VLAN tags.
    pub const SERVICE_VLAN: Self = Self(0x88a8);
    /// The outer of two VLAN tags, before it had a number of its own.
    pub const OLD_SERVICE_VLAN: Self = Self(0x9100);

    /// Whether a VLAN tag follows.
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN | Self::OLD_SERVICE_VLAN)
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("IPv4"),
            Self::IPV6 => f.write_str("IPv6"),
            Self::ROCE_V1 => f.write_str("RoCE"),
            Self::MPLS | Self::MPLS_MULTICAST => f.write_str("MPLS"),
            Self(0x0806) => f.write_str("ARP"),
            Self(0x88cc) => f.write_str("LLDP"),
            Self(0x8808) => f.write_str("MAC control"),
            Self(other) => write!(f, "ethertype {other:#06x}"),
        }
    }
}

whole_field!(EtherType(u16));
