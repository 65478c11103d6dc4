//! Domains of extended reliable connections.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use roce::ibverbs::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};
use roce::nic::SoftNic;
use roce::verbs::{Device as _, XrcdHandle};

use crate::call::{Failed, code, pointer};
use crate::context::Context;
use crate::object::{Object, given, objects};

/// A domain.
#[repr(C)]
pub(crate) struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    nic: Arc<SoftNic>,
    pub(crate) handle: XrcdHandle,
}

objects! { Xrcd: ibv_xrcd; }

/// Makes a domain. One that shall be shared through a file is this program's alone.
pub(crate) unsafe extern "C" fn open(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(|| {
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask != needed {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program says that it is open.
        let nic = Arc::clone(&unsafe { Context::of(context) }?.nic);
        let handle = nic.create_xrcd()?;
        Ok(Xrcd { c: UnsafeCell::new(ibv_xrcd { context }), nic, handle }.give())
    })
}

/// Unmakes a domain.
pub(crate) unsafe extern "C" fn close(xrcd: *mut ibv_xrcd) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Xrcd::of(xrcd) }?;
        domain.nic.destroy_xrcd(domain.handle)?;
        // SAFETY: and that it does not need it any more.
        unsafe { Xrcd::take(xrcd) }.map(drop)
    })
}
