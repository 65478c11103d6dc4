//! Functions for programs that were linked with `libibverbs` 1.0, before 2007, whose structures
//! were others. They find a library without devices. `install` gives these functions the names that
//! they had.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::call::{quiet, set_errno};
use crate::object::answer;

macro_rules! old {
    (code: $($code:ident)* ; pointer: $($pointer:ident)* ; nothing: $($nothing:ident)* ;) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $code() -> c_int {
                set_errno(libc::EOPNOTSUPP);
                libc::EOPNOTSUPP
            }
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $pointer() -> *mut c_void {
                set_errno(libc::EOPNOTSUPP);
                ptr::null_mut()
            }
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $nothing() {}
        )*
    };
}

old! {
    code:
        old_ibv_attach_mcast old_ibv_close_device old_ibv_dealloc_pd old_ibv_dereg_mr
        old_ibv_destroy_ah old_ibv_destroy_cq old_ibv_destroy_qp old_ibv_destroy_srq
        old_ibv_detach_mcast old_ibv_get_async_event old_ibv_get_cq_event old_ibv_modify_qp
        old_ibv_modify_srq old_ibv_query_device old_ibv_query_gid old_ibv_query_pkey
        old_ibv_query_port old_ibv_query_qp old_ibv_query_srq old_ibv_resize_cq;
    pointer:
        old_ibv_alloc_pd old_ibv_create_ah old_ibv_create_cq old_ibv_create_qp old_ibv_create_srq
        old_ibv_get_device_guid old_ibv_get_device_name old_ibv_open_device old_ibv_reg_mr;
    nothing:
        old_ibv_ack_async_event old_ibv_ack_cq_events old_ibv_register_driver;
}

/// A list of no devices.
#[unsafe(no_mangle)]
unsafe extern "C" fn old_ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void {
    if !count.is_null() {
        // SAFETY: the program has room for a number there.
        quiet(|| unsafe { answer(count, 0) });
    }
    Box::into_raw(Box::new(ptr::null_mut()))
}

/// Destroys it.
#[unsafe(no_mangle)]
unsafe extern "C" fn old_ibv_free_device_list(list: *mut *mut c_void) {
    if !list.is_null() {
        // SAFETY: it was made as a box.
        drop(unsafe { Box::from_raw(list) });
    }
}
