//! The path to a peer. On RoCE no subnet administrator is asked: it follows from the addresses.

use core::net::SocketAddr;
use core::time::Duration;

use super::device::{Device, gid_of};
use crate::verbs::{AhAttr, Mtu};
use crate::wire::cm::Req;
use crate::wire::{Bits, Gid, PKey};

/// A path: `ibv_sa_path_rec`, without what is the same of all paths on RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// The own GID.
    pub sgid: Gid,
    /// The peer's GID.
    pub dgid: Gid,
    /// The flow label.
    pub flow_label: Bits<20>,
    /// The hop limit.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The partition.
    pub pkey: PKey,
    /// The service level.
    pub sl: Bits<4>,
    /// The path MTU.
    pub mtu: Mtu,
    /// The rate, as `ibv_rate`; 0 is none in particular.
    pub rate: u8,
    /// Life time of a packet in the network, as a code.
    pub packet_life_time: u8,
}

/// The label of a flow whose IPv6 address carries none: 31 × source port + destination port, as
/// Linux makes it.
pub(super) fn flow_label(source: SocketAddr, destination: SocketAddr) -> Bits<20> {
    match destination {
        SocketAddr::V6(v6) if v6.flowinfo() != 0 => Bits::low(v6.flowinfo()),
        _ => Bits::low(u32::from(source.port()) * 31 + u32::from(destination.port())),
    }
}

impl PathRecord {
    /// The path from `source`, which is the device's, to `destination`.
    pub(super) fn new(device: &Device, source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            sgid: gid_of(source.ip()),
            dgid: gid_of(destination.ip()),
            flow_label: flow_label(source, destination),
            hop_limit: 64,
            traffic_class: 0,
            pkey: device.pkey,
            sl: Bits::ZERO,
            mtu: device.mtu,
            rate: 0,
            packet_life_time: 0,
        }
    }

    /// The path back that a REQ tells, if its MTU exists.
    pub(super) fn of_req(req: &Req) -> Option<Self> {
        let byte = |value: u32| u8::try_from(value).unwrap_or_default();
        Some(Self {
            sgid: req.primary_remote_port_gid(),
            dgid: req.primary_local_port_gid(),
            flow_label: req.primary_flow_label(),
            hop_limit: req.primary_hop_limit(),
            traffic_class: req.primary_traffic_class(),
            pkey: req.partition_key(),
            sl: req.primary_sl(),
            mtu: Mtu::from_code(req.path_mtu().get())?,
            rate: byte(req.primary_packet_rate().get()),
            packet_life_time: byte(req.primary_local_ack_timeout().get()).saturating_sub(1),
        })
    }

    /// The address handle for this path.
    pub fn ah(&self, device: &Device) -> AhAttr {
        AhAttr {
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            sl: self.sl,
            port_num: device.port_num,
            ..AhAttr::new(self.dgid, device.gid_index(self.sgid).unwrap_or_default())
        }
    }
}

/// The duration that the CM means by a code: 2^(code − 8) ms, at least one (`cm_convert_to_ms`).
pub(super) const fn duration(code: u8) -> Duration {
    let code = if code > 31 { 31 } else { code };
    Duration::from_millis(1 << code.saturating_sub(8))
}

/// The ACK timeout for a responder that takes `ack_delay` to acknowledge, over a path on which a
/// packet lives for `life_time` (`cm_ack_timeout`; §12.7.34).
#[expect(clippy::cast_possible_truncation, reason = "a timeout is a code of five bits")]
pub(super) const fn ack_timeout(ack_delay: u8, life_time: u8) -> u8 {
    let (delay, round_trip) = (ack_delay as u32, life_time as u32 + 1);
    let timeout = if round_trip >= delay {
        round_trip + (delay + 1 >= round_trip) as u32
    } else {
        delay + (round_trip + 1 >= delay) as u32
    };
    if timeout > 31 { 31 } else { timeout as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured on Linux: ACK delay 15 and life time 16 give 17, and with option ACK_TIMEOUT 14, so
    /// life time 13, 16.
    #[test]
    fn ack_timeout_is_the_kernels() {
        assert_eq!((ack_timeout(15, 16), ack_timeout(15, 13), ack_timeout(15, 18)), (17, 16, 19));
        assert_eq!((ack_timeout(15, 15), ack_timeout(15, 14), ack_timeout(15, 12)), (17, 16, 15));
        assert_eq!((ack_timeout(31, 31), ack_timeout(0, 0), ack_timeout(0, 31)), (31, 2, 31));
        assert_eq!(ack_timeout(255, 255), 31);
    }

    #[test]
    fn durations_are_the_kernels() {
        assert_eq!(duration(20), Duration::from_millis(4096));
        assert_eq!(duration(16), Duration::from_millis(256));
        assert_eq!(
            (duration(0), duration(8)),
            (Duration::from_millis(1), Duration::from_millis(1))
        );
        assert_eq!(duration(200), duration(31));
    }

    #[test]
    fn flow_label_is_the_kernels() {
        let from: SocketAddr = "10.9.0.1:58533".parse().unwrap();
        assert_eq!(flow_label(from, "10.9.0.2:7174".parse().unwrap()).get(), 0xbcc01);
        let labeled = core::net::SocketAddrV6::new("fd00::1".parse().unwrap(), 1, 0xabcde, 0);
        assert_eq!(flow_label(from, labeled.into()).get(), 0xabcde);
    }
}
