//! Structures of completions, completion queues and completion channels.

use core::ffi::{c_int, c_uint, c_void};

use super::context::ibv_context;
use super::layout::{layouts, op};
use super::memory::ibv_pd;
use super::sync::{ibv_cond, ibv_mutex};

layouts! {
    /// A completion.
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// A completion channel.
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    /// A completion queue.
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: ibv_mutex,
        cond: ibv_cond,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// A completion queue whose completions are read field by field.
    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: ibv_mutex,
        cond: ibv_cond,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: op!(*mut ibv_cq_ex, *mut ibv_poll_cq_attr => c_int),
        next_poll: op!(*mut ibv_cq_ex => c_int),
        end_poll: op!(*mut ibv_cq_ex),
        read_opcode: op!(*mut ibv_cq_ex => c_uint),
        read_vendor_err: op!(*mut ibv_cq_ex => u32),
        read_byte_len: op!(*mut ibv_cq_ex => u32),
        read_imm_data: op!(*mut ibv_cq_ex => u32),
        read_qp_num: op!(*mut ibv_cq_ex => u32),
        read_src_qp: op!(*mut ibv_cq_ex => u32),
        read_wc_flags: op!(*mut ibv_cq_ex => c_uint),
        read_slid: op!(*mut ibv_cq_ex => u32),
        read_sl: op!(*mut ibv_cq_ex => u8),
        read_dlid_path_bits: op!(*mut ibv_cq_ex => u8),
        read_completion_ts: op!(*mut ibv_cq_ex => u64),
        read_cvlan: op!(*mut ibv_cq_ex => u16),
        read_flow_tag: op!(*mut ibv_cq_ex => u32),
        read_tm_info: op!(*mut ibv_cq_ex, *mut ibv_wc_tm_info),
        read_completion_wallclock_ns: op!(*mut ibv_cq_ex => u64),
    }

    /// Attributes of polling; none are defined yet.
    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    /// Tag of a message.
    struct ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }

    /// Attributes of a new completion queue.
    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    /// Moderation of completion events.
    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    /// Changes of a completion queue.
    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }
}
