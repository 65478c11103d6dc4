//! Structures of protection domains, memory regions and windows, and the domains of XRC and of
//! threads.

use core::ffi::{c_int, c_uint, c_void};

use super::context::ibv_context;
use super::layout::{layouts, op};

layouts! {
    /// A protection domain.
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// A memory region.
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// A memory window.
    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: c_uint,
    }

    /// Memory that a window opens.
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A request to bind a memory window of type 1.
    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    /// Memory of the device's own.
    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: op!(*mut ibv_dm, u64, *const c_void, usize => c_int),
        memcpy_from_dm: op!(*mut c_void, *mut ibv_dm, u64, usize => c_int),
        comp_mask: u32,
        handle: u32,
    }

    /// Attributes of an allocation of device memory.
    struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    /// A promise about which threads use what belongs to it.
    struct ibv_td {
        context: *mut ibv_context,
    }

    /// Attributes of a new thread domain.
    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    /// A domain of extended reliable connections.
    struct ibv_xrcd {
        context: *mut ibv_context,
    }

    /// Attributes by which an XRC domain is opened.
    struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    /// A protection domain with a thread domain and an allocator.
    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: op!(*mut ibv_pd, *mut c_void, usize, usize, u64 => *mut c_void),
        free: op!(*mut ibv_pd, *mut c_void, *mut c_void, u64),
        pd_context: *mut c_void,
    }

    /// Hints for the bus about who reads what the device writes.
    struct ibv_dmah {
        context: *mut ibv_context,
    }

    /// Attributes of such hints.
    struct ibv_dmah_init_attr {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }

    /// Attributes of a memory registration, extended.
    struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
    }
}
