//! The functions of `libibverbs`, found when they are needed; and how functions of such a library
//! are found.
#![allow(unsafe_code, reason = "functions of libibverbs, found by name")]

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

use crate::ibverbs::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

/// File name of the library, with the version of its ABI.
pub(super) const NAME: &str = "libibverbs.so.1";

/// Declares the functions of a library that are looked up: those that every version has, and those
/// that came later, which may be missing.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $library:ident
        always { $($name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)* }
        later { $($newer:ident = $newer_symbol:literal ($($newer_argument:ty),*) $(-> $newer_result:ty)?;)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(in crate::rdma_nic) struct $library {
            $(pub(in crate::rdma_nic) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(in crate::rdma_nic) $newer: Option<unsafe extern "C" fn($($newer_argument),*) $(-> $newer_result)?>,)*
            /// Keeps the functions where they are.
            _code: libloading::Library,
        }

        impl $library {
            /// Looks up every function.
            fn bind(code: libloading::Library, name: &str) -> Result<Self, String> {
                $(
                    // SAFETY: a function of this name has had this type since it exists; that is
                    // what the number in the library's name promises.
                    let $name = unsafe {
                        code.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol)
                    };
                    let $name = *$name.map_err(|_| $crate::rdma_nic::library::too_old(name, $symbol))?;
                )*
                $(
                    // SAFETY: as above.
                    let $newer = unsafe {
                        code.get::<unsafe extern "C" fn($($newer_argument),*) $(-> $newer_result)?>($newer_symbol)
                    };
                    let $newer = $newer.ok().map(|function| *function);
                )*
                Ok(Self { $($name,)* $($newer,)* _code: code })
            }
        }
    };
}

pub(super) use functions;

functions! {
    /// The library, loaded, with the functions that are not inline in its header.
    Library
    always {
        get_device_list = b"ibv_get_device_list" (*mut c_int) -> *mut *mut ibv_device;
        free_device_list = b"ibv_free_device_list" (*mut *mut ibv_device);
        get_device_guid = b"ibv_get_device_guid" (*mut ibv_device) -> u64;
        open_device = b"ibv_open_device" (*mut ibv_device) -> *mut ibv_context;
        close_device = b"ibv_close_device" (*mut ibv_context) -> c_int;
        query_device = b"ibv_query_device" (*mut ibv_context, *mut ibv_device_attr) -> c_int;
        query_port = b"ibv_query_port" (*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        get_async_event = b"ibv_get_async_event" (*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event = b"ibv_ack_async_event" (*mut ibv_async_event);
        alloc_pd = b"ibv_alloc_pd" (*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd = b"ibv_dealloc_pd" (*mut ibv_pd) -> c_int;
        reg_mr = b"ibv_reg_mr" (*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr = b"ibv_dereg_mr" (*mut ibv_mr) -> c_int;
        create_comp_channel = b"ibv_create_comp_channel" (*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel = b"ibv_destroy_comp_channel" (*mut ibv_comp_channel) -> c_int;
        create_cq = b"ibv_create_cq"
            (*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq = b"ibv_destroy_cq" (*mut ibv_cq) -> c_int;
        get_cq_event = b"ibv_get_cq_event"
            (*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events = b"ibv_ack_cq_events" (*mut ibv_cq, c_uint);
        create_srq = b"ibv_create_srq" (*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        modify_srq = b"ibv_modify_srq" (*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        destroy_srq = b"ibv_destroy_srq" (*mut ibv_srq) -> c_int;
        create_qp = b"ibv_create_qp" (*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp = b"ibv_modify_qp" (*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        query_qp = b"ibv_query_qp"
            (*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        destroy_qp = b"ibv_destroy_qp" (*mut ibv_qp) -> c_int;
        create_ah = b"ibv_create_ah" (*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        destroy_ah = b"ibv_destroy_ah" (*mut ibv_ah) -> c_int;
        attach_mcast = b"ibv_attach_mcast" (*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        detach_mcast = b"ibv_detach_mcast" (*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        get_device_name = b"ibv_get_device_name" (*mut ibv_device) -> *const c_char;
    }
    later {
        reg_mr_iova2 = b"ibv_reg_mr_iova2"
            (*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        query_gid_table = b"_ibv_query_gid_table"
            (*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    }
}

impl Library {
    /// The system's library. Once it is loaded it stays, as its drivers keep threads and handlers
    /// of their own.
    pub(super) fn of_system() -> io::Result<&'static Self> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Self::load(NAME));
        loaded.as_ref().map_err(|reason| io::Error::new(io::ErrorKind::NotFound, reason.clone()))
    }

    /// Loads a library of this name, or says what is missing.
    fn load(name: &str) -> Result<Self, String> {
        Self::bind(load(name, "libibverbs1")?, name)
    }
}

/// Loads `libibverbs` or `librdmacm` by this name, which comes with a package of Debian, or says
/// what is missing.
pub(super) fn load(name: &str, package: &str) -> Result<libloading::Library, String> {
    // SAFETY: what runs when either of them is loaded sets up its own data and nothing else.
    let code = unsafe { libloading::Library::new(name) };
    let others = package.trim_end_matches('1');
    code.map_err(|error| {
        format!(
            "cannot load {name}; it comes with the package {package} (Debian, Ubuntu) or rdma-core, {others} (others): \
             {error}"
        )
    })
}

/// Returns the message for a library that lacks a required function.
pub(super) fn too_old(name: &str, symbol: &[u8]) -> String {
    format!("{name} has no {}; rdma-core 23 or newer is needed", symbol.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named_with_its_package() {
        let error = Library::load("libibverbs-that-is-not-there.so.1").unwrap_err();
        for word in ["libibverbs-that-is-not-there.so.1", "libibverbs1", "rdma-core"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_library_that_is_another_is_found_out() {
        let error = Library::load("libc.so.6").unwrap_err();
        assert!(error.contains("libc.so.6 has no ibv_get_device_list"), "{error}");
    }
}
