//! Structures of shared receive queues, as `infiniband/verbs.h` declares them.

use core::ffi::{c_uint, c_void};

use super::context::ibv_context;
use super::cq::ibv_cq;
use super::layout::layouts;
use super::memory::{ibv_pd, ibv_xrcd};
use super::sync::{ibv_cond, ibv_mutex};

layouts! {
    /// A shared receive queue.
    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: ibv_mutex,
        cond: ibv_cond,
        events_completed: u32,
    }

    /// Attributes of a shared receive queue.
    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// Attributes of a new shared receive queue.
    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// Capacity of tag matching.
    struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// Attributes of a new shared receive queue of any type.
    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }
}
