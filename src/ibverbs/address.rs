//! Global identifiers, and the way to a peer.

use super::context::ibv_context;
use super::layout::layouts;
use super::memory::ibv_pd;

layouts! {
    /// A global identifier, in the order of the wire. In C it can be seen as two numbers, too, and
    /// is aligned like them.
    #[repr(align(8))]
    struct ibv_gid in "union ibv_gid" at "" {
        raw: [u8; 16],
    }

    /// A place in a port's table of global identifiers.
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// Fields of a GRH.
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// The network header at the beginning of a datagram's receive buffer; its numbers are in the
    /// order of the wire.
    struct ibv_grh {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    /// The way to a peer.
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// An address handle.
    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// Options beyond the protocol that two devices of one vendor agree on.
    struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }
}
