//! Functions of `libibverbs` that drivers use. Programs that were built with a driver's own
//! extensions load that driver, and it must find this; but it gets no device, because none here is
//! a driver's.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::call::set_errno;

/// Commands to a kernel that has no such device.
macro_rules! commands {
    ($($command:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $command() -> c_int {
                set_errno(libc::EOPNOTSUPP);
                libc::EOPNOTSUPP
            }
        )*
    };
}

commands! {
    execute_ioctl
    ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_comp_cntr
    ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm
    ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
    ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq
    ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_qp_attach_comp_cntr
    ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context ibv_cmd_query_device ibv_cmd_query_device_any
    ibv_cmd_query_device_ex ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed
    ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
    ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
}

/// Whether a driver may destroy objects of devices that were unplugged: it has none.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: bool = false;

/// A driver tells that it is there, by the function of its release.
macro_rules! registrations {
    ($($register:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $register(_driver: *const c_void) {}
        )*
    };
}

registrations! {
    verbs_register_driver_17 verbs_register_driver_18 verbs_register_driver_19
    verbs_register_driver_20 verbs_register_driver_21 verbs_register_driver_22
    verbs_register_driver_23 verbs_register_driver_24 verbs_register_driver_25
    verbs_register_driver_26 verbs_register_driver_27 verbs_register_driver_28
    verbs_register_driver_29 verbs_register_driver_30 verbs_register_driver_31
    verbs_register_driver_32 verbs_register_driver_33 verbs_register_driver_34
    verbs_register_driver_57 verbs_register_driver_58 verbs_register_driver_59
    verbs_register_driver_60 verbs_register_driver_61 verbs_register_driver_62
    verbs_register_driver_63 verbs_register_driver_64 verbs_register_driver_65
}

/// A driver's table of functions.
#[unsafe(no_mangle)]
extern "C" fn verbs_set_ops(_context: *mut c_void, _ops: *const c_void) {}

/// A driver's completion queue.
#[unsafe(no_mangle)]
extern "C" fn verbs_init_cq(
    _cq: *mut c_void,
    _context: *mut c_void,
    _channel: *mut c_void,
    _cq_context: *mut c_void,
) {
}

/// The end of a driver's context.
#[unsafe(no_mangle)]
extern "C" fn verbs_uninit_context(_context: *mut c_void) {}

/// A driver opens a device.
#[unsafe(no_mangle)]
extern "C" fn verbs_open_device(_device: *mut c_void, _private: *mut c_void) -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// A driver's context.
#[unsafe(no_mangle)]
extern "C" fn _verbs_init_and_alloc_context(
    _device: *mut c_void,
    _command: c_int,
    _size: usize,
    _place: *mut c_void,
    _driver: u32,
) -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Returns the number of attributes of a command that a kernel takes.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs(_count: c_uint, _command: *mut c_void) -> c_uint {
    0
}

/// Ignores a message that a driver logs.
#[unsafe(no_mangle)]
extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_void) {}

/// A file of a driver's device; whatever follows the format is not looked at.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file(
    _buffer: *mut c_void,
    _size: usize,
    _device: *mut c_void,
    _format: *const c_void,
) -> c_int {
    set_errno(libc::ENOENT);
    -1
}

/// Memory of a driver's buffers.
#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_alloc() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// A heap of a driver's buffers.
#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_cc_shared_init() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Memory that a driver never got.
#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_free(_buffer: *mut c_void) {}

/// A heap that a driver never got.
#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_destroy(_heap: *mut c_void) {}
