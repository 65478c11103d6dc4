//! Addresses of the sender and the receiver of a frame, whatever the network layer.

use super::Context;
use crate::wire::{Gid, Network};

impl Context<'_> {
    /// The addresses of sender and receiver as GIDs. A native InfiniBand frame without a GRH has
    /// its LIDs instead, in a form that [`address_text`] recognizes; a frame without any address
    /// has zeros.
    #[inline]
    pub fn addresses(&self) -> (Gid, Gid) {
        match (self.frame.network(), self.frame.lrh()) {
            (Some(network), _) => network_addresses(network),
            (None, Some(lrh)) => (lid_gid(lrh.slid()), lid_gid(lrh.dlid())),
            (None, None) => (Gid::default(), Gid::default()),
        }
    }
}

/// Returns the source and the destination address of a network layer.
#[inline]
pub(crate) fn network_addresses(network: &Network<'_>) -> (Gid, Gid) {
    match network {
        Network::Ipv4 { header, .. } => (header.source().into(), header.destination().into()),
        Network::Ipv6 { header, .. } => (header.source().into(), header.destination().into()),
        Network::Grh(grh) => (grh.sgid(), grh.dgid()),
    }
}

/// A LID in the place of a GID; no GID is all zeros but for its last two bytes and has this mark.
fn lid_gid(lid: u16) -> Gid {
    let [high, low] = lid.to_be_bytes();
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'l', b'i', b'd', 0, high, low])
}

/// An address of [`Context::addresses`] as people write it: IPv4, IPv6 or `lid 7`.
pub fn address_text(gid: Gid) -> String {
    match (gid.to_ipv4(), gid.0) {
        (Some(ipv4), _) => ipv4.to_string(),
        (None, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'l', b'i', b'd', 0, high, low]) => {
            format!("lid {}", u16::from_be_bytes([high, low]))
        }
        (None, _) => gid.to_string(),
    }
}
