//! Parse errors, with the position and the reason.

use core::fmt;

use thiserror::Error;

/// A header, or another part of a frame, as errors and the decoder name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named by the header it stands for")]
pub enum Layer {
    Erf,
    Null,
    Sll,
    Sll2,
    Ethernet,
    ServiceVlan,
    Vlan,
    Lrh,
    Grh,
    Ipv4,
    Ipv6,
    Ipv6Extension,
    Udp,
    Vxlan,
    Geneve,
    Gre,
    Erspan1,
    Erspan2,
    Erspan3,
    Mpls,
    Bth,
    Rdeth,
    Deth,
    Xrceth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    ImmDt,
    Ieth,
    SackEth,
    Payload,
    Pad,
    Icrc,
    Vcrc,
    Mad,
    MadBody,
    Cm,
    IpCm,
}

impl Layer {
    /// Returns the usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Erf => "ERF",
            Self::Null => "loopback",
            Self::Sll => "SLL",
            Self::Sll2 => "SLL2",
            Self::Ethernet => "Ethernet",
            Self::ServiceVlan => "service VLAN",
            Self::Vlan => "VLAN",
            Self::Lrh => "LRH",
            Self::Grh => "GRH",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension",
            Self::Udp => "UDP",
            Self::Vxlan => "VXLAN",
            Self::Geneve => "Geneve",
            Self::Gre => "GRE",
            Self::Erspan1 => "ERSPAN I",
            Self::Erspan2 => "ERSPAN II",
            Self::Erspan3 => "ERSPAN III",
            Self::Mpls => "MPLS",
            Self::Bth => "BTH",
            Self::Rdeth => "RDETH",
            Self::Deth => "DETH",
            Self::Xrceth => "XRCETH",
            Self::Feth => "FETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::ImmDt => "ImmDt",
            Self::Ieth => "IETH",
            Self::SackEth => "SackETH",
            Self::Payload => "payload",
            Self::Pad => "pad",
            Self::Icrc => "ICRC",
            Self::Vcrc => "VCRC",
            Self::Mad => "MAD",
            Self::MadBody => "MAD body",
            Self::Cm => "CM",
            Self::IpCm => "IP CM",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reason for which a frame could not be read further. What came before it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the layer needs.
    #[error("{layer}: need {needed} bytes at offset {offset}, have {have}")]
    Truncated {
        /// Layer that does not fit.
        layer: Layer,
        /// Offset of the layer, from the start of the parsed bytes.
        offset: usize,
        /// Number of bytes that it needs.
        needed: usize,
        /// Number of bytes that are left.
        have: usize,
    },
    /// A field says something that cannot be.
    #[error("{layer}: {field} is {value} at offset {offset}")]
    Field {
        /// Layer of the field.
        layer: Layer,
        /// Offset of the layer.
        offset: usize,
        /// The field's name.
        field: &'static str,
        /// Value.
        value: u64,
    },
}

impl ParseError {
    /// The layer that could not be read.
    pub const fn layer(&self) -> Layer {
        match self {
            Self::Truncated { layer, .. } | Self::Field { layer, .. } => *layer,
        }
    }

    /// Returns the error with an offset that counts from `start` bytes before.
    #[must_use]
    pub(crate) const fn shifted_by(mut self, start: usize) -> Self {
        match &mut self {
            Self::Truncated { offset, .. } | Self::Field { offset, .. } => *offset += start,
        }
        self
    }
}
