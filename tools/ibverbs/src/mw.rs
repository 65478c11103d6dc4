//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use roce::device::Device as _;
use roce::ibverbs::convert::bind_mw;
use roce::ibverbs::{ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp};
use roce::nic::SoftNic;
use roce::verbs::{Data, MwHandle, MwType, SendFlags, SendWr, WrId};
use roce::wire::RKey;

use crate::call::{Failed, Result, code, pointer};
use crate::object::{Object, given, objects};
use crate::pd::{Pd, next_number};
use crate::qp::Qp;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    c: UnsafeCell<ibv_mw>,
    nic: Arc<SoftNic>,
    handle: MwHandle,
    /// The key that it was made with. Its upper 24 bits, the index, name the window for life; what
    /// C sees is the program's, which may set the key of a binding there before or after it posts
    /// it, whether or not it succeeds.
    first_key: RKey,
}

impl Mw {
    /// The window that a work request binds, by its index.
    ///
    /// # Safety
    ///
    /// It must be null, or one.
    pub(crate) unsafe fn index(mw: *const ibv_mw) -> Result<RKey> {
        // SAFETY: the caller vouches for it.
        Ok(unsafe { Self::of(mw) }?.first_key)
    }
}

objects! { Mw: ibv_mw; }

/// Makes a memory window.
pub(crate) unsafe extern "C" fn alloc(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::live(pd) }?;
        let mw_type = MwType::from_code(kind).ok_or(Failed::EINVAL)?;
        let handle = domain.nic.create_mw(domain.handle, mw_type)?;
        let rkey = domain.nic.mw_key(handle).map_or(0, RKey::get);
        let c = ibv_mw { context: domain.context(), pd, rkey, handle: next_number(), r#type: kind };
        let (nic, first_key) = (Arc::clone(&domain.nic), RKey::new(rkey));
        Ok(Mw { c: UnsafeCell::new(c), nic, handle, first_key }.give())
    })
}

/// Destroys a memory window.
pub(crate) unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let window = unsafe { Mw::to_destroy(mw) }?;
        window.nic.destroy_mw(window.handle)?;
        // SAFETY: and that it does not need it any more.
        unsafe { Mw::take(mw) }.map(drop)
    })
}

/// Binds a window of type 1, whose key becomes the next one.
pub(crate) unsafe extern "C" fn bind(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        // SAFETY: the program says that it is one.
        let window = unsafe { Mw::live(mw) }?;
        // SAFETY: the program hands it over.
        let bind = unsafe { given(bind) }?;
        // SAFETY: programs only read it, and not while they bind it.
        let rkey = unsafe { (*window.c.get()).rkey };
        let next = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
        // SAFETY: the program says that it is one.
        let op = unsafe { bind_mw(window.first_key, RKey::new(next), &bind.bind_info) }?;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        let wr = SendWr { flags, ..SendWr::new(WrId(bind.wr_id), op, Data::EMPTY) };
        queue_pair.nic.post_all(|poster| poster.send(queue_pair.handle, &wr))?;
        // SAFETY: programs only read it, and not while they bind it.
        unsafe { (*window.c.get()).rkey = next };
        Ok(())
    })
}
