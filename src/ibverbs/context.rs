//! An open device: the tables of functions that the inline half of the API calls, and asynchronous
//! events.
//!
//! Programs hold an [`ibv_context`]; if its `abi_compat` is [`VERBS_ABI_IS_EXTENDED`] it is the end
//! of a [`verbs_context`], which grows at its beginning: its `sz` says from where on it is there.

use core::ffi::{c_int, c_uint, c_void};

use super::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use super::device::{
    ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input,
    ibv_values_ex,
};
use super::flow::{
    ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow, ibv_flow_action,
    ibv_flow_action_esp_attr, ibv_flow_attr,
};
use super::layout::{layouts, op};
use super::memory::{
    ibv_alloc_dm_attr, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td, ibv_td_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use super::qp::{ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr};
use super::srq::{ibv_srq, ibv_srq_init_attr_ex};
use super::sync::ibv_mutex;
use super::wq::{
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};
use super::wr::{ibv_ops_wr, ibv_recv_wr, ibv_send_wr, ibv_sge};

/// Value of [`ibv_context::abi_compat`] if the context is part of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

layouts! {
    /// The functions that programs call without asking the library. Those called `_compat` are not
    /// called any more.
    struct ibv_context_ops {
        _compat_query_device: op!(*mut ibv_context, *mut ibv_device_attr => c_int),
        _compat_query_port: op!(*mut ibv_context, u8, *mut c_void => c_int),
        _compat_alloc_pd: *mut c_void,
        _compat_dealloc_pd: *mut c_void,
        _compat_reg_mr: *mut c_void,
        _compat_rereg_mr: *mut c_void,
        _compat_dereg_mr: *mut c_void,
        alloc_mw: op!(*mut ibv_pd, c_uint => *mut ibv_mw),
        bind_mw: op!(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind => c_int),
        dealloc_mw: op!(*mut ibv_mw => c_int),
        _compat_create_cq: *mut c_void,
        poll_cq: op!(*mut ibv_cq, c_int, *mut ibv_wc => c_int),
        req_notify_cq: op!(*mut ibv_cq, c_int => c_int),
        _compat_cq_event: *mut c_void,
        _compat_resize_cq: *mut c_void,
        _compat_destroy_cq: *mut c_void,
        _compat_create_srq: *mut c_void,
        _compat_modify_srq: *mut c_void,
        _compat_query_srq: *mut c_void,
        _compat_destroy_srq: *mut c_void,
        post_srq_recv: op!(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
        _compat_create_qp: *mut c_void,
        _compat_query_qp: *mut c_void,
        _compat_modify_qp: *mut c_void,
        _compat_destroy_qp: *mut c_void,
        post_send: op!(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr => c_int),
        post_recv: op!(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
        _compat_create_ah: *mut c_void,
        _compat_destroy_ah: *mut c_void,
        _compat_attach_mcast: *mut c_void,
        _compat_detach_mcast: *mut c_void,
        _compat_async_event: *mut c_void,
    }

    /// An open device.
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: ibv_mutex,
        abi_compat: *mut c_void,
    }

    /// The part before an open device: functions that were added later, the newest first.
    struct verbs_context {
        query_port: op!(*mut ibv_context, u8, *mut ibv_port_attr, usize => c_int),
        advise_mr: op!(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32 => c_int),
        alloc_null_mr: op!(*mut ibv_pd => *mut ibv_mr),
        read_counters: op!(*mut ibv_counters, *mut u64, u32, u32 => c_int),
        attach_counters_point_flow:
            op!(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow => c_int),
        create_counters: op!(*mut ibv_context, *mut ibv_counters_init_attr => *mut ibv_counters),
        destroy_counters: op!(*mut ibv_counters => c_int),
        reg_dm_mr: op!(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint => *mut ibv_mr),
        alloc_dm: op!(*mut ibv_context, *mut ibv_alloc_dm_attr => *mut ibv_dm),
        free_dm: op!(*mut ibv_dm => c_int),
        modify_flow_action_esp: op!(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr => c_int),
        destroy_flow_action: op!(*mut ibv_flow_action => c_int),
        create_flow_action_esp:
            op!(*mut ibv_context, *mut ibv_flow_action_esp_attr => *mut ibv_flow_action),
        modify_qp_rate_limit: op!(*mut ibv_qp, *mut ibv_qp_rate_limit_attr => c_int),
        alloc_parent_domain: op!(*mut ibv_context, *mut ibv_parent_domain_init_attr => *mut ibv_pd),
        dealloc_td: op!(*mut ibv_td => c_int),
        alloc_td: op!(*mut ibv_context, *mut ibv_td_init_attr => *mut ibv_td),
        modify_cq: op!(*mut ibv_cq, *mut ibv_modify_cq_attr => c_int),
        post_srq_ops: op!(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr => c_int),
        destroy_rwq_ind_table: op!(*mut ibv_rwq_ind_table => c_int),
        create_rwq_ind_table:
            op!(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr => *mut ibv_rwq_ind_table),
        destroy_wq: op!(*mut ibv_wq => c_int),
        modify_wq: op!(*mut ibv_wq, *mut ibv_wq_attr => c_int),
        create_wq: op!(*mut ibv_context, *mut ibv_wq_init_attr => *mut ibv_wq),
        query_rt_values: op!(*mut ibv_context, *mut ibv_values_ex => c_int),
        create_cq_ex: op!(*mut ibv_context, *mut ibv_cq_init_attr_ex => *mut ibv_cq_ex),
        r#priv: *mut c_void,
        query_device_ex: op!(
            *mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize => c_int
        ),
        ibv_destroy_flow: op!(*mut ibv_flow => c_int),
        ABI_placeholder2: *mut c_void,
        ibv_create_flow: op!(*mut ibv_qp, *mut ibv_flow_attr => *mut ibv_flow),
        ABI_placeholder1: *mut c_void,
        open_qp: op!(*mut ibv_context, *mut ibv_qp_open_attr => *mut ibv_qp),
        create_qp_ex: op!(*mut ibv_context, *mut ibv_qp_init_attr_ex => *mut ibv_qp),
        get_srq_num: op!(*mut ibv_srq, *mut u32 => c_int),
        create_srq_ex: op!(*mut ibv_context, *mut ibv_srq_init_attr_ex => *mut ibv_srq),
        open_xrcd: op!(*mut ibv_context, *mut ibv_xrcd_init_attr => *mut ibv_xrcd),
        close_xrcd: op!(*mut ibv_xrcd => c_int),
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }

    /// An asynchronous event.
    struct ibv_async_event {
        element: ibv_async_event_element,
        event_type: c_uint,
    }

    /// The object that an asynchronous event concerns.
    union ibv_async_event_element in "struct ibv_async_event" at "element" {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        wq: *mut ibv_wq,
        port_num: c_int,
    }
}
