//! Path to a peer.

use super::env::Env;
use crate::verbs::AhAttr;
use crate::wire::{self, Bits, Path, Qpn};

/// Returns the path to the peer of an address handle, or `None` if its `sgid_index` names no GID of
/// this port.
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

/// Returns the UDP source port of a flow: from its flow label, or if that is 0 from the QPNs, with
/// the same result at both ends.
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
    wire::source_port(Bits::low(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_match_linux() {
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
