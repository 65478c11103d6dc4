//! Attributes of a device and its ports: plain data, named as in C.

use core::fmt;

use bitflags::bitflags;

use super::codes::{codes, names};
use super::{Mtu, limits};

codes! {
    /// Kind of a device: `ibv_node_type`.
    NodeType, "IBV_NODE_" {
        /// A channel adapter; a RoCE NIC is one, too.
        Ca = 1, "CA", "InfiniBand channel adapter";
        /// A switch.
        Switch = 2, "SWITCH", "InfiniBand switch";
        /// A router.
        Router = 3, "ROUTER", "InfiniBand router";
        /// An iWARP NIC.
        Rnic = 4, "RNIC", "iWARP NIC";
        /// A Cisco usNIC.
        Usnic = 5, "USNIC", "usNIC";
        /// A Cisco usNIC over UDP.
        UsnicUdp = 6, "USNIC_UDP", "usNIC UDP";
        /// Unspecified kind.
        Unspecified = 7, "UNSPECIFIED", "unspecified";
    }
}

codes! {
    /// Transport protocol of a device: `ibv_transport_type`.
    TransportType, "IBV_TRANSPORT_" {
        /// The transport of InfiniBand; RoCE's as well.
        Ib = 0, "IB", "InfiniBand";
        /// iWARP.
        Iwarp = 1, "IWARP", "iWARP";
        /// Cisco usNIC.
        Usnic = 2, "USNIC", "usNIC";
        /// Cisco usNIC over UDP.
        UsnicUdp = 3, "USNIC_UDP", "usNIC UDP";
        /// Unspecified protocol.
        Unspecified = 4, "UNSPECIFIED", "unspecified";
    }
}

codes! {
    /// Against whom atomic operations are atomic: `ibv_atomic_cap`.
    AtomicCap, "IBV_ATOMIC_" {
        /// No atomic operations.
        None = 0, "NONE", "NONE";
        /// Against other queue pairs of the device.
        Hca = 1, "HCA", "HCA";
        /// Against the processors as well.
        Glob = 2, "GLOB", "GLOB";
    }
}

codes! {
    /// The state of a port: `ibv_port_state`.
    PortState, "IBV_PORT_" {
        /// No change.
        Nop = 0, "NOP", "no state change (NOP)";
        /// No link.
        Down = 1, "DOWN", "down";
        /// A link, not configured.
        Init = 2, "INIT", "init";
        /// Configured.
        Armed = 3, "ARMED", "armed";
        /// The port passes all packets.
        Active = 4, "ACTIVE", "active";
        /// The link is lost for a while.
        ActiveDefer = 5, "ACTIVE_DEFER", "active defer";
    }
}

codes! {
    /// The physical state of a port, with the words of `ibv_devinfo` for it.
    PhysState, "IB_PORT_PHYS_STATE_" {
        /// Asleep.
        Sleep = 1, "SLEEP", "SLEEP";
        /// Looking for a link.
        Polling = 2, "POLLING", "POLLING";
        /// Switched off.
        Disabled = 3, "DISABLED", "DISABLED";
        /// Agreeing on a link.
        PortConfigurationTraining =
            4, "PORT_CONFIGURATION_TRAINING", "PORT_CONFIGURATION TRAINNING";
        /// The link is up.
        LinkUp = 5, "LINK_UP", "LINK_UP";
        /// Recovering a link.
        LinkErrorRecovery = 6, "LINK_ERROR_RECOVERY", "LINK_ERROR_RECOVERY";
        /// Under test.
        PhyTest = 7, "PHY_TEST", "PHY TEST";
    }
}

codes! {
    /// Link layer of a port.
    LinkLayer, "IBV_LINK_LAYER_" {
        /// Unknown.
        Unspecified = 0, "UNSPECIFIED", "Unspecified";
        /// InfiniBand.
        Infiniband = 1, "INFINIBAND", "InfiniBand";
        /// Ethernet.
        Ethernet = 2, "ETHERNET", "Ethernet";
    }
}

codes! {
    /// Encapsulation of packets from a global identifier: `ibv_gid_type`, with the texts of sysfs.
    GidType, "IBV_GID_TYPE_" {
        /// InfiniBand packets.
        Ib = 0, "IB", "IB";
        /// Ethernet frames with a GRH.
        RoceV1 = 1, "ROCE_V1", "RoCE v1";
        /// UDP datagrams.
        RoceV2 = 2, "ROCE_V2", "RoCE v2";
    }
}

bitflags! {
    /// Capabilities of a device: `ibv_device_cap_flags`, and above bit 31 those that only extended
    /// queries report.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCaps: u64 {
        /// Queues can be resized.
        const RESIZE_MAX_WR = 1;
        /// Packets of a wrong partition are counted.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Packets with a wrong queue key are counted.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packets can be multicast.
        const RAW_MULTI = 1 << 3;
        /// Connections can migrate to another path.
        const AUTO_PATH_MIG = 1 << 4;
        /// A queue pair can change its port.
        const CHANGE_PHY_PORT = 1 << 5;
        /// A datagram's port is checked against its queue pair's.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// A program may say what state it believes a queue pair has.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down.
        const SHUTDOWN_PORT = 1 << 8;
        /// A port's initialization can be chosen.
        const INIT_TYPE = 1 << 9;
        /// An event tells when a port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// The device knows the GUID of its system image.
        const SYS_IMAGE_GUID = 1 << 11;
        /// A responder tells a requester when it is not ready.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// A completion queue can notify after several completions.
        const N_NOTIFY_CQ = 1 << 14;
        /// The device has memory windows.
        const MEM_WINDOW = 1 << 17;
        /// Checksums of datagrams are done by the device.
        const UD_IP_CSUM = 1 << 18;
        /// The device has extended reliable connections.
        const XRC = 1 << 20;
        /// Keys can be invalidated, by oneself and by a peer.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// The device has memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// The device has memory windows of type 2B.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Checksums on connections are done by the device.
        const RC_IP_CSUM = 1 << 25;
        /// Checksums of raw packets are done by the device.
        const RAW_IP_CSUM = 1 << 26;
        /// Flows can be steered.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// Raw packets can be received with their checksum.
        const RAW_SCATTER_FCS = 1 << 34;
        /// Writes can be padded to the end of a cache line.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// A peer can flush to where everybody sees it.
        const FLUSH_GLOBAL = 1 << 38;
        /// A peer can flush to where it survives.
        const FLUSH_PERSISTENT = 1 << 39;
        /// Eight bytes can be written at once.
        const ATOMIC_WRITE = 1 << 40;
    }
}
names!(DeviceCaps, "IBV_DEVICE_");

bitflags! {
    /// Capabilities of a port: those of `ibv_port_cap_flags` that mean something on Ethernet. The
    /// others keep their bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortCaps: u32 {
        /// The port answers connection management.
        const CM_SUP = 1 << 16;
        /// The port can be reinitialized.
        const REINIT_SUP = 1 << 18;
        /// The port answers device management requests.
        const DEVICE_MGMT_SUP = 1 << 19;
        /// The port answers requests of vendors' classes.
        const VENDOR_CLASS_SUP = 1 << 20;
        /// The global identifiers of the port are IP addresses.
        const IP_BASED_GIDS = 1 << 26;

        const _ = !0;
    }
}
names!(PortCaps, "IBV_PORT_");

/// A globally unique identifier: of a device, or of the box it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 8]);

impl fmt::Display for Guid {
    /// Writes the GUID as `ibv_devinfo` does: `0202:c9ff:fe12:3456`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.0;
        write!(f, "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}:{h:02x}{i:02x}")
    }
}

/// Attributes of a device: `ibv_device_attr`, without those of reliable datagrams and fast memory
/// regions, which no device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The version of its firmware, in ASCII, filled up with zeros; see
    /// [`firmware`](Self::firmware).
    pub fw_ver: [u8; 64],
    /// The device.
    pub node_guid: Guid,
    /// GUID of the system that the device is part of.
    pub sys_image_guid: Guid,
    /// The largest memory region, in bytes.
    pub max_mr_size: u64,
    /// The page sizes it knows, one bit for each.
    pub page_size_cap: u64,
    /// Number of the vendor.
    pub vendor_id: u32,
    /// Number of the part, assigned by the vendor.
    pub vendor_part_id: u32,
    /// The version of the hardware.
    pub hw_ver: u32,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests of a queue.
    pub max_qp_wr: u32,
    /// Capabilities.
    pub device_cap_flags: DeviceCaps,
    /// Maximum number of scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Maximum number of scatter/gather elements of a READ.
    pub max_sge_rd: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of completions of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of READs and ATOMICs of its peer that a queue pair can have in flight.
    pub max_qp_rd_atom: u32,
    /// Maximum number of READs and ATOMICs of peers in flight, over all queue pairs.
    pub max_res_rd_atom: u32,
    /// Maximum number of READs and ATOMICs of its own that a queue pair can have in flight.
    pub max_qp_init_rd_atom: u32,
    /// Scope of atomicity of ATOMICs.
    pub atomic_cap: AtomicCap,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Maximum number of multicast groups.
    pub max_mcast_grp: u32,
    /// Maximum number of queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of queue pairs in all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of work requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter/gather elements of a work request of a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of partition keys of a port.
    pub max_pkeys: u16,
    /// Maximum delay of an acknowledgement, as the code of an [`AckTimeout`](super::AckTimeout).
    pub local_ca_ack_delay: u8,
    /// Number of ports.
    pub phys_port_cnt: u8,
}

impl DeviceAttr {
    /// The version of its firmware, as far as it is text.
    pub fn firmware(&self) -> &str {
        let text = self.fw_ver.split(|&byte| byte == 0).next().unwrap_or_default();
        let valid = text.utf8_chunks().next();
        valid.map_or("", |chunk| chunk.valid())
    }
}

impl Default for DeviceAttr {
    /// A device with one port that can do nothing yet.
    fn default() -> Self {
        Self {
            fw_ver: [0; 64],
            node_guid: Guid::default(),
            sys_image_guid: Guid::default(),
            max_mr_size: 0,
            page_size_cap: 0,
            vendor_id: 0,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: 0,
            max_qp_wr: 0,
            device_cap_flags: DeviceCaps::empty(),
            max_sge: 0,
            max_sge_rd: 0,
            max_cq: 0,
            max_cqe: 0,
            max_mr: 0,
            max_pd: 0,
            max_qp_rd_atom: 0,
            max_res_rd_atom: 0,
            max_qp_init_rd_atom: 0,
            atomic_cap: AtomicCap::None,
            max_mw: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            max_ah: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        }
    }
}

/// Attributes of a port: `ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// State of the port.
    pub state: PortState,
    /// Maximum MTU of the port.
    pub max_mtu: Mtu,
    /// Current MTU.
    pub active_mtu: Mtu,
    /// Length of the table of global identifiers.
    pub gid_tbl_len: u32,
    /// Capabilities.
    pub port_cap_flags: PortCaps,
    /// The longest message, in bytes.
    pub max_msg_sz: u32,
    /// Number of packets that were dropped because of their partition key.
    pub bad_pkey_cntr: u32,
    /// Number of packets that were dropped because of their queue key.
    pub qkey_viol_cntr: u32,
    /// Length of the table of partition keys.
    pub pkey_tbl_len: u16,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The subnet manager's local identifier; 0 on Ethernet.
    pub sm_lid: u16,
    /// Number of bits of a local identifier that select a path; 0 on Ethernet.
    pub lmc: u8,
    /// Number of virtual lanes, as a code.
    pub max_vl_num: u8,
    /// The service level to the subnet manager; 0 on Ethernet.
    pub sm_sl: u8,
    /// Maximum time of a packet on the subnet, as the code of an [`AckTimeout`](super::AckTimeout).
    pub subnet_timeout: u8,
    /// Initialization by the subnet manager; 0 on Ethernet.
    pub init_type_reply: u8,
    /// Number of lanes of the link, as a code: 1 is one, 2 four, 4 eight, 8 twelve, 16 two.
    pub active_width: u8,
    /// Speed of a lane in Gbit/s, as a code: 1 is 2.5, 2 5, 4 10, 8 10, 16 14, 32 25, 64 50, 128
    /// 100.
    pub active_speed: u8,
    /// State of the physical link.
    pub phys_state: PhysState,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Whether every address needs a global identifier (`IBV_QPF_GRH_REQUIRED`), as on Ethernet.
    pub grh_required: bool,
}

/// Rate of a link: its lanes and the speed of each, as [`PortAttr`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    /// Code of the number of lanes: [`PortAttr::active_width`].
    pub width: u8,
    /// Code of the speed of a lane: [`PortAttr::active_speed`].
    pub speed: u8,
}

impl LinkRate {
    /// Rates by the largest Ethernet speed, in Mb/s, that each stands for: those of Linux's
    /// `ib_get_eth_speed`.
    const OF_ETHERNET: [(u32, Self); 8] = [
        (1_000, Self { width: 1, speed: 1 }),
        (10_000, Self { width: 1, speed: 8 }),
        (20_000, Self { width: 2, speed: 2 }),
        (25_000, Self { width: 1, speed: 32 }),
        (40_000, Self { width: 2, speed: 8 }),
        (50_000, Self { width: 1, speed: 64 }),
        (100_000, Self { width: 2, speed: 32 }),
        (200_000, Self { width: 2, speed: 64 }),
    ];

    /// Rate of an Ethernet link with this speed in Mb/s. A link without a speed, such as loopback,
    /// is as fast as the processor: it counts as 40 Gb/s.
    pub fn of_ethernet(speed: Option<u32>) -> Self {
        let speed = speed.unwrap_or(40_000);
        let mut rates = Self::OF_ETHERNET.into_iter();
        let found = rates.find(|(fastest, _)| speed <= *fastest);
        found.map_or(Self { width: 2, speed: 128 }, |(_, rate)| rate)
    }
}

impl fmt::Display for LinkRate {
    /// Prints the rate as sysfs does: `2.5 Gb/sec (1X SDR)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = match self.width {
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 1,
        };
        let (tenths, name) = match self.speed {
            2 => (50, "DDR"),
            4 => (100, "QDR"),
            8 => (100, "FDR10"),
            16 => (140, "FDR"),
            32 => (250, "EDR"),
            64 => (500, "HDR"),
            128 => (1000, "NDR"),
            _ => (25, "SDR"),
        };
        let half = if tenths * lanes % 10 == 0 { "" } else { ".5" };
        write!(f, "{}{half} Gb/sec ({lanes}X {name})", tenths * lanes / 10)
    }
}

impl Default for PortAttr {
    /// An Ethernet port that is down.
    fn default() -> Self {
        Self {
            state: PortState::Down,
            max_mtu: Mtu::M4096,
            active_mtu: Mtu::default(),
            gid_tbl_len: 0,
            port_cap_flags: PortCaps::CM_SUP.union(PortCaps::IP_BASED_GIDS),
            max_msg_sz: MAX_MSG_SZ,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: 1,
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width: 1,
            active_speed: 1,
            phys_state: PhysState::Disabled,
            link_layer: LinkLayer::Ethernet,
            grh_required: true,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "limits asserts that it fits")]
const MAX_MSG_SZ: u32 = limits::MESSAGE_BYTES_MAX as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_speeds_have_the_rates_of_linux() {
        for (speed, text) in [
            (Some(100), "2.5 Gb/sec (1X SDR)"),
            (Some(10_000), "10 Gb/sec (1X FDR10)"),
            (Some(25_000), "25 Gb/sec (1X EDR)"),
            (None, "40 Gb/sec (4X FDR10)"),
            (Some(100_000), "100 Gb/sec (4X EDR)"),
            (Some(400_000), "400 Gb/sec (4X NDR)"),
        ] {
            assert_eq!(LinkRate::of_ethernet(speed).to_string(), text);
        }
    }

    #[test]
    fn firmware_is_read_to_its_zero_and_as_far_as_it_is_text() {
        let mut attr = DeviceAttr::default();
        assert_eq!(attr.firmware(), "");
        attr.fw_ver[..9].copy_from_slice(b"16.35.1\0x");
        assert_eq!(attr.firmware(), "16.35.1");
        attr.fw_ver[2] = 0xff;
        assert_eq!(attr.firmware(), "16");
        attr.fw_ver = [b'a'; 64];
        assert_eq!(attr.firmware().len(), 64);
    }

    #[test]
    fn a_guid_prints_as_ibv_devinfo_has_it() {
        let guid = Guid([0x02, 0x02, 0xc9, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        assert_eq!(guid.to_string(), "0202:c9ff:fe12:3456");
    }
}
