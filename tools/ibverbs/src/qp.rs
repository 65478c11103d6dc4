//! Queue pairs.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use roce::device::Device as _;
use roce::ibverbs::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD,
    IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QPS_UNKNOWN, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_srq,
};
use roce::nic::SoftNic;
use roce::verbs::{
    AttrMask, CqHandle, PdHandle, QpCap, QpCreate, QpHandle, QpInitAttr, QpType, SrqHandle,
    transition,
};
use roce::wire::Qpn;

use crate::call::{Failed, Result, code, pointer};
use crate::context::Context;
use crate::cq::Cq;
use crate::events::{Acks, Routes};
use crate::object::{Object, answer, given, objects};
use crate::pd::{Pd, next_number};
use crate::query::{gid_index, gid_source};
use crate::srq::Srq;
use crate::wq;
use crate::wr_ex::{self, Builder};
use crate::xrc::{Domain, Receiver, Xrcd};

/// A queue pair, or one of several handles on one.
#[repr(C)]
pub(crate) struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) handle: QpHandle,
    pub(crate) kind: QpType,
    pub(crate) init: QpInitAttr,
    /// The protection domain that was made for it.
    own_pd: Option<PdHandle>,
    /// XRC domain in which others find it, and its number there.
    shared: Option<(Arc<Domain>, u32)>,
    /// Whether the program has destroyed it.
    destroyed: AtomicBool,
    /// Work requests that are being built.
    pub(crate) builder: Builder,
    /// The indexes in the GID table that the program gave for its path and its alternate path.
    gid_indexes: [AtomicU8; 2],
    routes: Arc<Routes>,
    /// Number of its asynchronous events that the context reported.
    pub(crate) events: Acks,
}

objects! { Qp: ibv_qp_ex; }

/// The completion queue that C names, if it names one.
unsafe fn cq_handle(cq: *mut ibv_cq, of: *mut ibv_context) -> Result<Option<CqHandle>> {
    // SAFETY: the caller vouches for it.
    let named = (!cq.is_null()).then(|| unsafe { Cq::live_in(cq.cast(), of) }).transpose()?;
    Ok(named.map(|cq| cq.handle))
}

/// The shared receive queue that C names, if it names one.
unsafe fn srq_handle(srq: *mut ibv_srq, of: *mut ibv_context) -> Result<Option<SrqHandle>> {
    // SAFETY: the caller vouches for it.
    let named = (!srq.is_null()).then(|| unsafe { Srq::live_in(srq, of) }).transpose()?;
    Ok(named.map(|srq| srq.handle))
}

/// The domain of extended reliable connections that C names, if it names one.
unsafe fn domain<'a>(
    init: &ibv_qp_init_attr_ex,
    open: &Context,
) -> Result<Option<&'a Arc<Domain>>> {
    if init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    Ok(Some(unsafe { Xrcd::domain_of(init.xrcd, open) }?))
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.destroyed.load(Ordering::Relaxed) {
            return;
        }
        let Some((domain, number)) = &self.shared else { return };
        // The device was closed with it left open. The NIC's queue pair is destroyed already,
        // unless another context has it.
        let _ = domain.receivers.close(number, || {
            if let Some(pd) = self.own_pd {
                // Nothing else was ever in it.
                let _ = self.nic.destroy_pd(pd);
            }
            Ok(())
        });
    }
}

impl Qp {
    /// Creates the structure that a program holds of a queue pair.
    fn hand_out(
        open: &Context,
        c: ibv_qp_ex,
        made: Receiver,
        shared: Option<Arc<Domain>>,
    ) -> *mut ibv_qp {
        let Receiver { handle, init, own_pd } = made;
        let number = c.qp_base.qp_num;
        let routes = Arc::clone(&open.device.routes);
        let qp = Self {
            c: UnsafeCell::new(c),
            nic: Arc::clone(&open.nic),
            handle,
            kind: init.qp_type,
            init,
            own_pd,
            shared: shared.map(|domain| (domain, number)),
            destroyed: AtomicBool::new(false),
            builder: Builder::default(),
            gid_indexes: Default::default(),
            routes: Arc::clone(&routes),
            events: Acks::default(),
        };
        let given: *mut ibv_qp = qp.give().cast();
        routes.add_qp(handle, given, &open.events);
        given
    }
}

/// Converts the attributes of a new queue pair.
unsafe fn plan(open: &Context, init: &ibv_qp_init_attr_ex) -> Result<QpCreate> {
    let qp_type = QpType::from_code(init.qp_type).ok_or(Failed::EINVAL)?;
    let able = qp_type != QpType::RawPacket || open.nic.has_raw_packets();
    if qp_type == QpType::Driver || !able {
        return Err(Failed::EOPNOTSUPP);
    }
    // SAFETY: the caller vouches for it.
    let mut send_cq = unsafe { cq_handle(init.send_cq, open.c()) }?;
    // SAFETY: the caller vouches for it.
    let mut recv_cq = unsafe { cq_handle(init.recv_cq, open.c()) }?;
    // SAFETY: the caller vouches for it.
    let mut srq = unsafe { srq_handle(init.srq, open.c()) }?;
    let spreads = init.comp_mask & IBV_QP_INIT_ATTR_IND_TABLE != 0;
    if matches!(qp_type, QpType::XrcSend | QpType::XrcRecv) || spreads {
        // What completes nothing need not say where; what C has there may be anything.
        recv_cq = Some(open.spare_cq()?);
        srq = None;
    }
    if qp_type == QpType::XrcRecv || spreads {
        send_cq = Some(open.spare_cq()?);
    }
    // SAFETY: the caller vouches for it.
    let xrcd = unsafe { domain(init, open) }?.map(|domain| domain.handle);
    let cap = QpCap::from(init.cap);
    Ok(QpCreate {
        init: QpInitAttr { qp_type, cap, sq_sig_all: init.sq_sig_all != 0 },
        send_cq: send_cq.ok_or(Failed::EINVAL)?,
        recv_cq: recv_cq.ok_or(Failed::EINVAL)?,
        srq,
        xrcd,
    })
}

/// The inline data that every send queue has room for: the size of a gather entry.
const INLINE_MIN: u32 = 16;

/// Makes a queue pair.
///
/// # Safety
///
/// The context must be open, and all that `init` names what it says.
unsafe fn create(context: *mut ibv_context, init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
    // SAFETY: the caller vouches for it.
    let open = unsafe { Context::of(context) }?;
    // SAFETY: the caller vouches for it.
    let mut plan = unsafe { plan(open, init) }?;
    let builds = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if builds {
        wr_ex::check(plan.init.qp_type, init.send_ops_flags)?;
        let inline = &mut plan.init.cap.max_inline_data;
        *inline = (*inline).max(wr_ex::inline_needed(init.send_ops_flags));
    }
    // As with other NICs, inline data takes the place of gather entries: what one of them needs
    // there is room for, and programs send as much without asking.
    if plan.init.cap.max_send_wr > 0 {
        let inline = &mut plan.init.cap.max_inline_data;
        *inline = (*inline).max(INLINE_MIN);
    }
    let calls = if builds { wr_ex::CALLS } else { ibv_qp_ex::zeroed() };
    let has_pd = init.comp_mask & IBV_QP_INIT_ATTR_PD != 0;
    // The receiving half of an extended reliable connection has no protection domain of its own:
    // memory is that of the shared receive queues. It is given one that nothing else is in.
    let pd = match has_pd {
        // SAFETY: the caller vouches for it.
        true => unsafe { Pd::live_in(init.pd, context) }?.handle,
        false if plan.init.qp_type == QpType::XrcRecv => open.nic.create_pd()?,
        false => return Err(Failed::EINVAL),
    };
    // SAFETY: the caller vouches for it.
    let shared = unsafe { domain(init, open) }?;
    // SAFETY: the caller vouches for it.
    let made = match unsafe { wq::spread(init) }? {
        None => open.nic.create_qp(pd, plan),
        Some(spread) => open.nic.create_rss_qp(pd, plan.recv_cq, spread),
    };
    let handle = match made {
        Ok(handle) => handle,
        Err(error) => {
            if !has_pd {
                let _ = open.nic.destroy_pd(pd);
            }
            return Err(error.into());
        }
    };
    let qp_base = ibv_qp {
        context,
        qp_context: init.qp_context,
        pd: if has_pd { init.pd } else { ptr::null_mut() },
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: next_number(),
        qp_num: open.nic.qp_number(handle).map_or(0, Qpn::get),
        qp_type: init.qp_type,
        ..ibv_qp::zeroed()
    };
    let made = Receiver { handle, init: plan.init, own_pd: (!has_pd).then_some(pd) };
    let shared = shared.filter(|_| plan.init.qp_type == QpType::XrcRecv).cloned();
    if let Some(domain) = &shared {
        // The NIC gives no number twice.
        domain.receivers.open(qp_base.qp_num, true, || Ok(made))?;
    }
    Ok(Qp::hand_out(open, ibv_qp_ex { qp_base, ..calls }, made, shared))
}

/// Makes a queue pair of the ordinary kinds.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let context = unsafe { Pd::live(pd) }?.context();
        // SAFETY: the program hands it over.
        let given = unsafe { given(init) }?;
        let extended = ibv_qp_init_attr_ex {
            qp_context: given.qp_context,
            send_cq: given.send_cq,
            recv_cq: given.recv_cq,
            srq: given.srq,
            cap: given.cap,
            qp_type: given.qp_type,
            sq_sig_all: given.sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd,
            ..ibv_qp_init_attr_ex::zeroed()
        };
        // SAFETY: as this function's.
        let qp = unsafe { create(context, &extended) }?;
        // SAFETY: it was just made.
        let cap = unsafe { Qp::live(qp.cast()) }?.init.cap;
        // SAFETY: the program has room for its sizes.
        unsafe { (*init).cap = cap.into() };
        Ok(qp)
    })
}

/// Makes a queue pair of any kind.
pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program hands it over.
        let given = unsafe { given(init) }?;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_IND_TABLE
            | IBV_QP_INIT_ATTR_RX_HASH
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let flagged =
            given.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && given.create_flags != 0;
        if given.comp_mask & !known != 0 || flagged {
            return Err(Failed::EOPNOTSUPP);
        }
        // SAFETY: as this function's.
        let qp = unsafe { create(context, given) }?;
        // SAFETY: it was just made.
        let cap = unsafe { Qp::live(qp.cast()) }?.init.cap;
        // SAFETY: the program has room for its sizes.
        unsafe { (*init).cap = cap.into() };
        Ok(qp)
    })
}

/// One more handle on the receiving half of an extended reliable connection, found by its number in
/// its domain.
pub(crate) unsafe extern "C" fn open(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        if attr.comp_mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(Failed::EOPNOTSUPP);
        }
        let of_kind = QpType::from_code(attr.qp_type) == Some(QpType::XrcRecv);
        if attr.comp_mask & needed != needed || !of_kind {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program says that it is one.
        let domain = Arc::clone(unsafe { Xrcd::domain_of(attr.xrcd, open) }?);
        let made = domain.receivers.open(attr.qp_num, false, || Err(Failed::EINVAL))?;
        let state = open.nic.query_qp(made.handle);
        let qp_base = ibv_qp {
            context,
            qp_context: if has_context { attr.qp_context } else { ptr::null_mut() },
            handle: next_number(),
            qp_num: attr.qp_num,
            state: state.map_or(IBV_QPS_UNKNOWN, |known| ibv_qp_attr::from(&known).qp_state),
            qp_type: attr.qp_type,
            ..ibv_qp::zeroed()
        };
        let c = ibv_qp_ex { qp_base, ..ibv_qp_ex::zeroed() };
        Ok(Qp::hand_out(open, c, made, Some(domain)))
    })
}

/// A queue pair as one whose work requests are built call by call, if it was made as such.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        // SAFETY: it was written when this was made.
        let extended = unsafe { (*queue_pair.c.get()).wr_start.is_some() };
        if extended { Ok(qp.cast()) } else { Err(Failed::EOPNOTSUPP) }
    })
}

/// Changes a queue pair: the attributes that the mask names.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        let mask = AttrMask::from_bits(mask.cast_unsigned()).ok_or(Failed::EINVAL)?;
        let mask = mask.difference(transition::ignored(queue_pair.kind));
        let mut new = attr.to_qp_attr(mask)?;
        let paths = [(AttrMask::AV, &mut new.ah_attr), (AttrMask::ALT_PATH, &mut new.alt_ah_attr)];
        let mut given = [None; 2];
        for ((bit, path), index) in paths.into_iter().zip(&mut given) {
            if mask.contains(bit) {
                let own = gid_source(&queue_pair.nic, path.sgid_index)?;
                *index = Some(std::mem::replace(&mut path.sgid_index, own));
            }
        }
        queue_pair.nic.modify_qp(queue_pair.handle, &new, mask)?;
        for (known, index) in queue_pair.gid_indexes.iter().zip(given) {
            if let Some(index) = index {
                known.store(index, Ordering::Relaxed);
            }
        }
        if mask.contains(AttrMask::STATE) {
            // SAFETY: programs only read it.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(())
    })
}

/// The attributes of a queue pair, and what it was made with.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        let known = queue_pair.nic.query_qp(queue_pair.handle).ok_or(Failed::EINVAL)?;
        let mut known = ibv_qp_attr::from(&known);
        let paths = [&mut known.ah_attr, &mut known.alt_ah_attr];
        for (path, given) in paths.into_iter().zip(&queue_pair.gid_indexes) {
            let (own, given) = (path.grh.sgid_index, given.load(Ordering::Relaxed));
            // Another handle on the queue pair may have set another path.
            let same = gid_source(&queue_pair.nic, given).is_ok_and(|source| source == own);
            path.grh.sgid_index = if same { given } else { gid_index(&queue_pair.nic, own) };
        }
        // SAFETY: the program has room for it.
        unsafe { answer(attr, known) }?;
        if AttrMask::from_bits_truncate(mask.cast_unsigned()).contains(AttrMask::STATE) {
            // SAFETY: programs only read it.
            unsafe { (*qp).state = known.qp_state };
        }
        // SAFETY: it was written when this was made, and programs leave it.
        let made = unsafe { *qp };
        let made = ibv_qp_init_attr {
            qp_context: made.qp_context,
            send_cq: made.send_cq,
            recv_cq: made.recv_cq,
            srq: made.srq,
            cap: known.cap,
            qp_type: made.qp_type,
            sq_sig_all: c_int::from(queue_pair.init.sq_sig_all),
        };
        // SAFETY: the program has room for it.
        unsafe { answer(init, made) }
    })
}

/// Whether data is written in order. A soft NIC copies it in the order of its packets, but lets
/// other threads look.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: u32,
    _flags: u32,
) -> c_int {
    0
}

/// Destroys a queue pair, or a handle on one that others stand for, after all its events were
/// acknowledged. What was posted to a queue pair that goes is forgotten.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::to_destroy(qp.cast()) }?;
        let destroy = || {
            queue_pair.nic.destroy_qp(queue_pair.handle)?;
            if let Some(pd) = queue_pair.own_pd {
                // Nothing else was ever in it.
                let _ = queue_pair.nic.destroy_pd(pd);
            }
            Ok(())
        };
        match &queue_pair.shared {
            Some((domain, number)) => domain.receivers.close(number, destroy)?,
            None => destroy()?,
        }
        queue_pair.destroyed.store(true, Ordering::Relaxed);
        queue_pair.routes.remove_qp(queue_pair.handle, qp);
        queue_pair.events.wait();
        // SAFETY: programs only read it.
        unsafe { (*qp).state = IBV_QPS_UNKNOWN };
        // SAFETY: and that it does not need it any more.
        unsafe { Qp::take(qp.cast()) }.map(drop)
    })
}
