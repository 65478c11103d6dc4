//! Receive queues without a queue pair, and tables that spread packets over them.

use core::ffi::{c_int, c_uint, c_void};

use super::context::ibv_context;
use super::cq::ibv_cq;
use super::layout::{layouts, op};
use super::memory::ibv_pd;
use super::sync::{ibv_cond, ibv_mutex};
use super::wr::ibv_recv_wr;

layouts! {
    /// A work queue.
    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv: op!(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
        mutex: ibv_mutex,
        cond: ibv_cond,
        events_completed: u32,
        comp_mask: u32,
    }

    /// Attributes of a new work queue.
    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: c_uint,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    /// Changes of a work queue.
    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: c_uint,
        curr_wq_state: c_uint,
        flags: u32,
        flags_mask: u32,
    }

    /// A table of work queues.
    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    /// Attributes of a new indirection table.
    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }
}
