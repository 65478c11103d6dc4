//! Functions that soft NICs do not support: each returns an error that says so.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::call::set_errno;

/// Says that the device cannot do it.
fn refuse() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Functions that fail as on a device that lacks what they are for. What they are called with does
/// not matter.
macro_rules! refused {
    (code: $($code:ident)* ; pointer: $($pointer:ident)* ; minus_one: $($minus_one:ident)* ;) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $code() -> c_int {
                refuse()
            }
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $pointer() -> *mut c_void {
                refuse();
                ptr::null_mut()
            }
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $minus_one() -> c_int {
                refuse();
                -1
            }
        )*
    };
}

refused! {
    code:
        ibv_query_ece ibv_set_ece
        ibv_dealloc_dmah ibv_free_buf ibv_query_port_speed
        _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
        ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr
        ibv_set_err_comp_cntr;
    pointer:
        ibv_reg_dmabuf_mr ibv_alloc_dmah ibv_reg_mr_ex
        ibv_alloc_buf ibv_reg_buf_mr ibv_create_comp_cntr;
    minus_one:
        ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd;
}

/// After a fork, a child shares no memory with its parent's NIC that it must not write: nothing is
/// to be prepared.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Whether that was asked for.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_uint {
    roce::ibverbs::IBV_FORK_UNNEEDED
}

/// A child shall not have this memory. Nothing pins it, so it may.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// A child may have this memory again.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
