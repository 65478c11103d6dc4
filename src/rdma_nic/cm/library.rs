//! The functions of `librdmacm`, which is loaded at its first use.
#![allow(unsafe_code, reason = "functions of librdmacm, found by name")]

use core::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;

use super::super::library::{functions, load};
use super::address::Storage;
use crate::ibverbs::{ibv_qp_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};

/// File name of the library, with the version of its ABI.
const NAME: &str = "librdmacm.so.1";

functions! {
    /// The loaded library.
    CmLibrary
    always {
        create_event_channel = b"rdma_create_event_channel" () -> *mut rdma_event_channel;
        destroy_event_channel = b"rdma_destroy_event_channel" (*mut rdma_event_channel);
        create_id = b"rdma_create_id"
            (*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, u32) -> c_int;
        destroy_id = b"rdma_destroy_id" (*mut rdma_cm_id) -> c_int;
        migrate_id = b"rdma_migrate_id" (*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        set_option = b"rdma_set_option"
            (*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        bind_addr = b"rdma_bind_addr" (*mut rdma_cm_id, *mut Storage) -> c_int;
        listen = b"rdma_listen" (*mut rdma_cm_id, c_int) -> c_int;
        resolve_addr = b"rdma_resolve_addr"
            (*mut rdma_cm_id, *mut Storage, *mut Storage, c_int) -> c_int;
        resolve_route = b"rdma_resolve_route" (*mut rdma_cm_id, c_int) -> c_int;
        connect = b"rdma_connect" (*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        establish = b"rdma_establish" (*mut rdma_cm_id) -> c_int;
        accept = b"rdma_accept" (*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        reject = b"rdma_reject" (*mut rdma_cm_id, *const c_void, u8) -> c_int;
        disconnect = b"rdma_disconnect" (*mut rdma_cm_id) -> c_int;
        init_qp_attr = b"rdma_init_qp_attr"
            (*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        get_cm_event = b"rdma_get_cm_event"
            (*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        ack_cm_event = b"rdma_ack_cm_event" (*mut rdma_cm_event) -> c_int;
    }
    later {}
}

impl CmLibrary {
    /// Returns the system's library. It is never unloaded, because it keeps devices open.
    pub(super) fn of_system() -> io::Result<&'static Self> {
        static LOADED: OnceLock<Result<CmLibrary, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Self::bind(load(NAME, "librdmacm1")?, NAME));
        loaded.as_ref().map_err(|reason| io::Error::new(io::ErrorKind::NotFound, reason.clone()))
    }
}
