//! The calls of SnowRDMA: a layer over the calls of this library.
//!
//! What SnowRDMA has and this library has not: connections that are there before they are
//! connected, a buffer of fixed size on each side, a number beside a message, and callbacks.

pub mod connection;
pub mod server;
pub mod verbs;

pub(crate) use connection::RdmaConn;
pub(crate) use server::RdmaListener;

use std::ffi::c_char;

use super::call::roce_last_error;
use super::handles::Handle;

const OK: i32 = 0;
const ERR: i32 = -1;

/// Type that C has of a connection or a listener: a handle as a pointer, which points nowhere.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque([u8; 0]);

fn handle(pointer: *mut Opaque) -> Handle {
    Handle::try_from(pointer.addr()).unwrap_or_default()
}

fn pointer(handle: Handle) -> *mut Opaque {
    std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or_default())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaLastError() -> *const c_char {
    roce_last_error()
}
