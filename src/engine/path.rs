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

/// Returns the path of the next packet of a connection that is sprayed: its source port is one of
/// `Config::paths`, of which each is used equally often.
pub(super) fn sprayed(path: &Path, env: &mut Env) -> Path {
    let at = env.sprayed.wrapping_mul(0x9e37_79b1) >> 16;
    env.sprayed = env.sprayed.wrapping_add(1);
    let at = u16::try_from((at * u32::from(env.config.paths)) >> 16).unwrap_or(0);
    // Ports far apart, so that hashes of them differ.
    let port = path.source_port.wrapping_add(at.wrapping_mul(0x09e5));
    Path { source_port: 0xc000 | port & 0x3fff, ..*path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sprayed_packets_use_each_path_equally_often() {
        use crate::engine::Config;
        use crate::secret::{SecretRandom, Seed};
        use crate::verbs::DeviceTag;
        use crate::wire::Gid;
        for paths in [2, 4, 8, 100, 255] {
            let config = Config { paths, ..Config::new(Gid::default()) };
            let mut random = SecretRandom::new(Seed::from(1));
            let mut env = Env::new(config, DeviceTag::from_random(1), &mut random);
            let mut packets = std::collections::BTreeMap::new();
            for _ in 0..u32::from(paths) * 1000 {
                let port = sprayed(&Path::NOWHERE, &mut env).source_port;
                assert!(port >= 0xc000);
                *packets.entry(port).or_insert(0) += 1;
            }
            assert_eq!(packets.len(), usize::from(paths), "ports differ");
            assert!(packets.values().all(|count| (980..=1020).contains(count)), "{packets:?}");
        }
    }

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
