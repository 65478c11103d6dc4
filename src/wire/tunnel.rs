//! Headers of tunnels that carry whole frames or IP packets: how overlays and mirroring switches
//! move RoCE.

use super::Layer;
use super::ethernet::EtherType;
use super::layout::header;
use super::num::Bits;

header! {
    /// VXLAN header (RFC 7348), with the group policy extension.
    pub struct Vxlan, VxlanRepr, VxlanLayout: Layer::Vxlan, 8 bytes {
        /// Whether a group policy is given.
        has_group_policy: bool = 1,
        ~reserved_1 = 3,
        /// Whether the VNI is valid: always, in a VXLAN packet.
        has_vni: bool = 1,
        ~reserved_2 = 4,
        /// Whether the receiver must not learn the source address.
        dont_learn: bool = 1,
        ~reserved_3 = 2,
        /// Whether the group policy was applied.
        policy_applied: bool = 1,
        ~reserved_4 = 3,
        /// Group policy ID.
        group_policy: u16 = 16,
        /// VXLAN network identifier.
        vni: Bits<24> = 24,
        ~reserved_5 = 8,
    }
}

header! {
    /// Geneve header (RFC 8926), without its options.
    pub struct Geneve, GeneveRepr, GeneveLayout: Layer::Geneve, 8 bytes {
        /// Version: 0.
        version: Bits<2> = 2,
        /// Length of the options, in units of four bytes.
        options_len: Bits<6> = 6,
        /// Whether the packet is a control message.
        oam: bool = 1,
        /// Whether an option must be understood.
        critical: bool = 1,
        ~reserved_1 = 6,
        /// EtherType of the inner packet.
        protocol: EtherType = 16,
        /// Virtual network identifier.
        vni: Bits<24> = 24,
        ~reserved_2 = 8,
    }
}

impl Geneve {
    /// Returns the length of the header with its options.
    pub fn header_len(&self) -> usize {
        Self::LEN + 4 * self.options_len().get() as usize
    }
}

header! {
    /// GRE header (RFC 2784, RFC 2890), without its optional words.
    pub struct Gre, GreRepr, GreLayout: Layer::Gre, 4 bytes {
        /// Whether a checksum follows.
        has_checksum: bool = 1,
        /// Whether a source route follows: obsolete since RFC 2784.
        has_routing: bool = 1,
        /// Whether a key follows.
        has_key: bool = 1,
        /// Whether a sequence number follows.
        has_sequence: bool = 1,
        ~reserved = 9,
        /// Version: 0, or 1 for PPTP.
        version: Bits<3> = 3,
        /// EtherType of the inner packet.
        protocol: EtherType = 16,
    }
}

impl Gre {
    /// Length of each optional word: checksum with its offset, key, sequence number.
    const WORD_LEN: usize = 4;

    /// Returns the length of the header with the optional words that its flags announce.
    pub fn header_len(&self) -> usize {
        let words = [self.has_checksum(), self.has_key(), self.has_sequence()];
        Self::LEN + Self::WORD_LEN * words.into_iter().filter(|&set| set).count()
    }

    /// Returns the offset of the key in the header, if it has one.
    pub fn key_at(&self) -> Option<usize> {
        let before = usize::from(self.has_checksum());
        self.has_key().then_some(Self::LEN + Self::WORD_LEN * before)
    }

    /// Returns the offset of the sequence number in the header, if it has one.
    pub fn sequence_at(&self) -> Option<usize> {
        let before = usize::from(self.has_checksum()) + usize::from(self.has_key());
        self.has_sequence().then_some(Self::LEN + Self::WORD_LEN * before)
    }
}

header! {
    /// ERSPAN header of type II.
    pub struct Erspan2, Erspan2Repr, Erspan2Layout: Layer::Erspan2, 8 bytes {
        /// Version: 1 for type II.
        version: Bits<4> = 4,
        /// VLAN of the mirrored frame.
        vlan: Bits<12> = 12,
        /// Class of service of the mirrored frame.
        cos: Bits<3> = 3,
        /// Trunk encapsulation of the mirrored frame.
        encapsulation: Bits<2> = 2,
        /// Whether the mirrored frame was cut.
        truncated: bool = 1,
        /// Mirroring session.
        session: Bits<10> = 10,
        ~reserved = 12,
        /// Port of the mirroring switch.
        index: Bits<20> = 20,
    }
}

header! {
    /// ERSPAN header of type III, without its platform-specific subheader.
    pub struct Erspan3, Erspan3Repr, Erspan3Layout: Layer::Erspan3, 12 bytes {
        /// Version: 2 for type III.
        version: Bits<4> = 4,
        /// VLAN of the mirrored frame.
        vlan: Bits<12> = 12,
        /// Class of service of the mirrored frame.
        cos: Bits<3> = 3,
        /// Integrity of the mirrored frame: good, bad, short or oversized.
        integrity: Bits<2> = 2,
        /// Whether the mirrored frame was cut.
        truncated: bool = 1,
        /// Mirroring session.
        session: Bits<10> = 10,
        /// Time at the mirroring switch, in units of `granularity`.
        timestamp: u32 = 32,
        /// Security group tag.
        security_group: u16 = 16,
        /// Whether the mirrored bytes are an Ethernet frame.
        is_ethernet: bool = 1,
        /// Type of the mirrored frame: 0 for Ethernet, 2 for IP.
        frame_type: Bits<5> = 5,
        /// Hardware identifier of the mirroring engine.
        hardware: Bits<6> = 6,
        /// Whether the frame was mirrored when it left the switch.
        egress: bool = 1,
        /// Granularity of the time stamp.
        granularity: Bits<2> = 2,
        /// Whether a platform-specific subheader follows.
        has_subheader: bool = 1,
    }
}

impl Erspan3 {
    /// Length of the platform-specific subheader.
    const SUBHEADER_LEN: usize = 8;

    /// Returns the length of the header with its subheader.
    pub fn header_len(&self) -> usize {
        Self::LEN + if self.has_subheader() { Self::SUBHEADER_LEN } else { 0 }
    }
}

header! {
    /// An entry of an MPLS label stack (RFC 3032).
    pub struct Mpls, MplsRepr, MplsLayout: Layer::Mpls, 4 bytes {
        /// Label.
        label: Bits<20> = 20,
        /// Traffic class.
        traffic_class: Bits<3> = 3,
        /// Whether this is the last entry of the stack.
        bottom: bool = 1,
        /// Time to live.
        ttl: u8 = 8,
    }
}

/// UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;

/// UDP port that Linux gave VXLAN before it had one of its own; some overlays still use it.
pub const VXLAN_LINUX_PORT: u16 = 8472;

/// UDP port of Geneve.
pub const GENEVE_PORT: u16 = 6081;

/// IP protocol number of IPv4 in IP.
pub const PROTOCOL_IPV4: u8 = 4;

/// IP protocol number of IPv6 in IP.
pub const PROTOCOL_IPV6: u8 = 41;

/// IP protocol number of GRE.
pub const PROTOCOL_GRE: u8 = 47;

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tunnel {
    /// VXLAN.
    Vxlan,
    /// Geneve.
    Geneve,
    /// GRE that carries IP or MPLS packets.
    Gre,
    /// GRE that carries Ethernet frames: GRETAP, and NVGRE if it has a key.
    GreTap,
    /// ERSPAN, type I: GRE with an EtherType of its own and no further header.
    Erspan1,
    /// ERSPAN, type II.
    Erspan2,
    /// ERSPAN, type III.
    Erspan3,
    /// An IP packet in an IP packet.
    IpInIp,
    /// An MPLS label stack.
    Mpls,
}

impl Tunnel {
    /// Returns the name of the tunnel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "VXLAN",
            Self::Geneve => "Geneve",
            Self::Gre => "GRE",
            Self::GreTap => "GRETAP",
            Self::Erspan1 => "ERSPAN I",
            Self::Erspan2 => "ERSPAN II",
            Self::Erspan3 => "ERSPAN III",
            Self::IpInIp => "IP in IP",
            Self::Mpls => "MPLS",
        }
    }
}
