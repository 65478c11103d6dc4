//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::ibverbs::convert::bind_mw;
use roce::ibverbs::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use roce::nic::SoftNic;
use roce::verbs::{Data, Device as _, MwHandle, MwType, SendFlags, SendOp, SendWr, WrId};
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
    /// The key that it has when all that was posted is done. What C sees is the program's: one that posts the binding
    /// itself may set the new key there before or after.
    key: Arc<AtomicU32>,
}

/// The binding of a window that is to be posted.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    key: Arc<AtomicU32>,
    new: u32,
}

impl Posted {
    /// # Safety
    ///
    /// The window must be null, or one.
    pub(crate) unsafe fn new(mw: *const ibv_mw, new: u32) -> Result<Self> {
        // SAFETY: the caller vouches for it.
        Ok(Self { key: Arc::clone(&unsafe { Mw::of(mw) }?.key), new })
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.key, &other.key)
    }

    /// The key that it has until then.
    pub(crate) fn old_key(&self) -> RKey {
        RKey::new(self.key.load(Ordering::Relaxed))
    }

    /// The key that it has from then on.
    pub(crate) fn new_key(&self) -> RKey {
        RKey::new(self.new)
    }

    /// The operation, of a window that has the key `mw` until then.
    ///
    /// # Safety
    ///
    /// The region must be null, or one.
    pub(crate) unsafe fn bind(&self, mw: RKey, info: &ibv_mw_bind_info) -> Result<SendOp> {
        // SAFETY: the caller vouches for it.
        Ok(unsafe { bind_mw(mw, self.new_key(), info) }?)
    }

    /// It was posted.
    pub(crate) fn done(&self) {
        self.key.store(self.new, Ordering::Relaxed);
    }
}

objects! { Mw: ibv_mw; }

/// Makes a memory window.
pub(crate) unsafe extern "C" fn alloc(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::of(pd) }?;
        let mw_type = MwType::from_code(kind).ok_or(Failed::EINVAL)?;
        let handle = domain.nic.create_mw(domain.handle, mw_type)?;
        let rkey = domain.nic.mw_key(handle).map_or(0, RKey::get);
        let c = ibv_mw { context: domain.context(), pd, rkey, handle: next_number(), r#type: kind };
        let (nic, key) = (Arc::clone(&domain.nic), Arc::new(AtomicU32::new(rkey)));
        Ok(Mw { c: UnsafeCell::new(c), nic, handle, key }.give())
    })
}

/// Unmakes a memory window.
pub(crate) unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let window = unsafe { Mw::of(mw) }?;
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
        let queue_pair = unsafe { Qp::of(qp.cast()) }?;
        // SAFETY: the program says that it is one.
        let window = unsafe { Mw::of(mw) }?;
        // SAFETY: the program hands it over.
        let bind = unsafe { given(bind) }?;
        let rkey = window.key.load(Ordering::Relaxed);
        let next = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
        let posted = Posted { key: Arc::clone(&window.key), new: next };
        // SAFETY: the program says that it is one.
        let op = unsafe { posted.bind(RKey::new(rkey), &bind.bind_info) }?;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        let wr = SendWr { flags, ..SendWr::new(WrId(bind.wr_id), op, Data::EMPTY) };
        queue_pair.nic.post_all(|poster| poster.send(queue_pair.handle, &wr))?;
        posted.done();
        // SAFETY: programs only read it, and not while they bind it.
        unsafe { (*window.c.get()).rkey = next };
        Ok(())
    })
}
