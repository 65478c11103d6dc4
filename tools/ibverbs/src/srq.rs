//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use roce::device::Device as _;
use roce::ibverbs::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use roce::nic::SoftNic;
use roce::verbs::{CqHandle, SrqAttr, SrqAttrMask, SrqCreate, SrqHandle, SrqType, XrcdHandle};

use crate::call::{Failed, Result, code, pointer};
use crate::context::Context;
use crate::cq::Cq;
use crate::events::{Acks, Routes};
use crate::object::{Object, answer, given, objects};
use crate::pd::{Pd, next_number};
use crate::xrc::Xrcd;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    c: UnsafeCell<ibv_srq>,
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) handle: SrqHandle,
    kind: SrqType,
    routes: Arc<Routes>,
    /// Number of its asynchronous events that the context reported.
    pub(crate) events: Acks,
}

objects! { Srq: ibv_srq; }

/// Creates a shared receive queue. It has exactly the size that is asked for, so the program's
/// attributes need no update.
///
/// # Safety
///
/// No other thread may destroy the objects that `init` names meanwhile.
unsafe fn create(
    init: &ibv_srq_init_attr_ex,
    kind: SrqType,
    xrc: Option<(XrcdHandle, CqHandle)>,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller vouches for the protection domain.
    let domain = unsafe { Pd::live(init.pd) }?;
    // SAFETY: the device stays open until its protection domain is destroyed.
    let open = unsafe { Context::of(domain.context()) }?;
    let attr = SrqAttr::from(init.attr);
    // The limit is only set by `ibv_modify_srq`: a new queue has none.
    let create = SrqCreate { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0, xrc };
    let handle = domain.nic.create_srq(domain.handle, create)?;
    let c = ibv_srq {
        context: domain.context(),
        srq_context: init.srq_context,
        pd: init.pd,
        handle: next_number(),
        ..ibv_srq::zeroed()
    };
    let routes = Arc::clone(&open.device.routes);
    let srq = Srq {
        c: UnsafeCell::new(c),
        nic: Arc::clone(&domain.nic),
        handle,
        kind,
        routes: Arc::clone(&routes),
        events: Acks::default(),
    };
    let given = srq.give();
    routes.add_srq(handle, given, &open.events);
    Ok(given)
}

/// Creates a shared receive queue of the basic type.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the program passes null, or a structure that can be read.
        let ibv_srq_init_attr { srq_context, attr } = *unsafe { given(init) }?;
        let init = ibv_srq_init_attr_ex { srq_context, attr, pd, ..ibv_srq_init_attr_ex::zeroed() };
        // SAFETY: the program does not destroy these objects meanwhile.
        unsafe { create(&init, SrqType::Basic, None) }
    })
}

/// Creates a shared receive queue of any type: `ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the program does not close the device meanwhile.
        let open = unsafe { Context::of(context) }?;
        // SAFETY: the program passes null, or a structure that can be read.
        let init = unsafe { given(init) }?;
        let has = |flag| init.comp_mask & flag != 0;
        let known = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        let code = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { 0 };
        let kind = SrqType::from_code(code).ok_or(Failed::EINVAL)?;
        if kind == SrqType::Tm || init.comp_mask & !known != 0 {
            return Err(Failed::EOPNOTSUPP);
        }
        if !has(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program does not destroy the protection domain meanwhile.
        unsafe { Pd::live_in(init.pd, context) }?;
        let xrc = match kind {
            SrqType::Xrc if has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ) => {
                // SAFETY: the program does not close the XRC domain meanwhile.
                let xrcd = unsafe { Xrcd::domain_of(init.xrcd, open) }?.handle;
                // SAFETY: the program does not destroy the CQ meanwhile.
                let cq = unsafe { Cq::live_in(init.cq.cast(), context) }?.handle;
                Some((xrcd, cq))
            }
            SrqType::Xrc => return Err(Failed::EINVAL),
            SrqType::Basic | SrqType::Tm => None,
        };
        // SAFETY: the program does not destroy these objects meanwhile.
        unsafe { create(init, kind, xrc) }
    })
}

/// Changes the size of a shared receive queue, its limit, or both.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy the queue meanwhile.
        let queue = unsafe { Srq::live(srq) }?;
        // SAFETY: the program passes null, or a structure that can be read.
        let attr = SrqAttr::from(*unsafe { given(attr) }?);
        let mask = SrqAttrMask::from_bits(mask.cast_unsigned()).ok_or(Failed::EINVAL)?;
        let max_wr = mask.contains(SrqAttrMask::MAX_WR).then_some(attr.max_wr);
        let limit = mask.contains(SrqAttrMask::LIMIT).then_some(attr.srq_limit);
        Ok(queue.nic.modify_srq(queue.handle, max_wr, limit)?)
    })
}

/// Queries the attributes of a shared receive queue.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy the queue meanwhile.
        let queue = unsafe { Srq::live(srq) }?;
        let known = queue.nic.query_srq(queue.handle).ok_or(Failed::EINVAL)?;
        // SAFETY: the program passes null, or room for the answer.
        unsafe { answer(attr, known.into()) }
    })
}

/// Queries the number of an XRC shared receive queue: `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn number(srq: *mut ibv_srq, to: *mut u32) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy the queue meanwhile.
        let queue = unsafe { Srq::live(srq) }?;
        if queue.kind != SrqType::Xrc {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program passes null, or room for the answer.
        unsafe { answer(to, queue.nic.srq_number(queue.handle).get()) }
    })
}

/// Destroys a shared receive queue that no queue pair uses, and waits until all its events are
/// acknowledged.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy the queue meanwhile.
        let queue = unsafe { Srq::to_destroy(srq) }?;
        queue.nic.destroy_srq(queue.handle)?;
        queue.routes.remove_srq(queue.handle);
        queue.events.wait();
        // SAFETY: the program does not use the queue any more.
        unsafe { Srq::take(srq) }.map(drop)
    })
}
