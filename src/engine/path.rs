//! The way to a peer.

use super::env::Env;
use crate::verbs::AhAttr;
use crate::wire::{Path, Qpn};

/// The way to the peer that an address handle names, or `None` if its index names no identifier of ours.
pub(super) fn path_to(ah: &AhAttr, local: Qpn, remote: Qpn, env: &Env) -> Option<Path> {
    Some(Path {
        source: env.gid(ah.sgid_index)?,
        destination: ah.dgid,
        source_port: source_port(ah.flow_label.get(), local, remote),
        traffic_class: ah.traffic_class,
        hop_limit: ah.hop_limit,
        sl: u8::try_from(ah.sl.get()).unwrap_or(0),
        flow_label: ah.flow_label,
    })
}

/// The UDP source port of a flow: from its label, or if it has none from the queue pairs at its ends. Both ends
/// come to the same.
fn source_port(label: u32, local: Qpn, remote: Qpn) -> u16 {
    // Rule: T-02.
    let label = if label != 0 {
        label
    } else {
        let mut v = u64::from(local.get()) * u64::from(remote.get());
        v ^= v >> 20;
        v ^= v >> 40;
        u32::try_from(v & 0xf_ffff).unwrap_or(0)
    };
    u16::try_from((label & 0x3fff) ^ (label >> 14 & 0x3f)).unwrap_or(0) | 0xc000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_those_of_linux() {
        // Rule: T-02.
        let port = |label, a, b| source_port(label, Qpn::new(a), Qpn::new(b));
        assert_eq!(port(0, 0x11, 0x12), 0xc132);
        assert_eq!(port(0, 0x45, 0x48), 0xd368);
        assert_eq!(port(0, 0xabc123, 0x456), 0xc354);
        assert_eq!(port(0x04000, 0, 0), 0xc001);
        assert_eq!(port(0x12345, 0, 0), 0xe341);
        assert_eq!(port(0xfffff, 0, 0), 0xffc0);
    }
}
