//! Structures of queue pairs, as `infiniband/verbs.h` declares them.

use core::ffi::{c_int, c_uint, c_void};

use super::address::{ibv_ah, ibv_ah_attr};
use super::context::ibv_context;
use super::cq::ibv_cq;
use super::layout::{layouts, op};
use super::memory::{ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_xrcd};
use super::srq::ibv_srq;
use super::sync::{ibv_cond, ibv_mutex};
use super::wq::ibv_rwq_ind_table;
use super::wr::{ibv_data_buf, ibv_sge};

layouts! {
    /// A queue pair.
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: ibv_mutex,
        cond: ibv_cond,
        events_completed: u32,
    }

    /// A queue pair whose work requests are built by calls of `ibv_wr_*`.
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: op!(*mut ibv_qp_ex, u32, u64, u64, u64),
        wr_atomic_fetch_add: op!(*mut ibv_qp_ex, u32, u64, u64),
        wr_bind_mw: op!(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
        wr_local_inv: op!(*mut ibv_qp_ex, u32),
        wr_rdma_read: op!(*mut ibv_qp_ex, u32, u64),
        wr_rdma_write: op!(*mut ibv_qp_ex, u32, u64),
        wr_rdma_write_imm: op!(*mut ibv_qp_ex, u32, u64, u32),
        wr_send: op!(*mut ibv_qp_ex),
        wr_send_imm: op!(*mut ibv_qp_ex, u32),
        wr_send_inv: op!(*mut ibv_qp_ex, u32),
        wr_send_tso: op!(*mut ibv_qp_ex, *mut c_void, u16, u16),
        wr_set_ud_addr: op!(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
        wr_set_xrc_srqn: op!(*mut ibv_qp_ex, u32),
        wr_set_inline_data: op!(*mut ibv_qp_ex, *mut c_void, usize),
        wr_set_inline_data_list: op!(*mut ibv_qp_ex, usize, *const ibv_data_buf),
        wr_set_sge: op!(*mut ibv_qp_ex, u32, u64, u32),
        wr_set_sge_list: op!(*mut ibv_qp_ex, usize, *const ibv_sge),
        wr_start: op!(*mut ibv_qp_ex),
        wr_complete: op!(*mut ibv_qp_ex => c_int),
        wr_abort: op!(*mut ibv_qp_ex),
        wr_atomic_write: op!(*mut ibv_qp_ex, u32, u64, *const c_void),
        wr_flush: op!(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
    }

    /// Sizes of a queue pair's queues.
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// Attributes of a new queue pair.
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }

    /// Configuration of receive-side scaling.
    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// Attributes of a new queue pair of any type. Begins with the fields of `ibv_qp_init_attr`.
    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    /// Attributes by which an XRC receive queue pair is opened.
    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }

    /// Attributes of a queue pair.
    struct ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    /// Limit of the send rate.
    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
}
