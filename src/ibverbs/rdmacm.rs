//! The C ABI of `librdmacm`: ids, events and the parameters of connections.
//!
//! The library creates ids and events; a program only reads them.

use core::ffi::{c_int, c_void};

use super::address::{ibv_ah_attr, ibv_gid};
use super::context::ibv_context;
use super::cq::{ibv_comp_channel, ibv_cq};
use super::layout::layouts;
use super::memory::ibv_pd;
use super::qp::ibv_qp;
use super::srq::ibv_srq;

/// The port space of reliable connections: `RDMA_PS_TCP`.
pub const RDMA_PS_TCP: u32 = 0x0106;

/// The level of options of an id: `RDMA_OPTION_ID`.
pub const RDMA_OPTION_ID: c_int = 0;

/// The option that sets the type of service: `RDMA_OPTION_ID_TOS`.
pub const RDMA_OPTION_ID_TOS: c_int = 0;

layouts! {
    /// An event channel.
    struct rdma_event_channel {
        fd: c_int,
    }

    /// The identifiers of a connection's two ports.
    struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: u16,
    }

    /// The two addresses of a connection.
    struct rdma_addr {
        src_storage: [u8; 128],
        dst_storage: [u8; 128],
        addr: rdma_ib_addr,
    }

    /// The way to a peer.
    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut c_void,
        num_paths: c_int,
    }

    /// A listener, or one end of a connection.
    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: u32,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: u32,
    }

    /// Parameters of a connection that the peer is told.
    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    /// Destination of datagrams.
    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    /// Parameters of an event.
    union rdma_cm_event_param in "struct rdma_cm_event" at "param" {
        conn: rdma_conn_param,
        ud: rdma_ud_param,
    }

    /// An event of an id.
    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: u32,
        status: c_int,
        param: rdma_cm_event_param,
    }
}
