//! Creation of protection domains, regions, queues and queue pairs, by calls of `libibverbs`.
#![allow(unsafe_code, reason = "calls of libibverbs")]

use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;

use super::RdmaNic;
use super::context::{extended, op};
use super::errors::{check, last_errno, not_made, to_io};
use super::events::{Completions, never_block, to_c};
use super::object::{Made, Object, Pair, QpNeeds, Shared, Window};
use super::objects::Objects;
use super::timed::Timing;
use crate::ibverbs::{
    IBV_QP_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_ah_attr,
    ibv_comp_channel, ibv_mr, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd_init_attr,
};
use crate::memory::Region;
use crate::verbs::{
    AhAttr, AhHandle, CqHandle, CreateError, Errno, Id, KeyError, LKey, MrAttr, MrHandle, MwHandle,
    MwType, PdHandle, QpCreate, QpHandle, QpType, SrqAttrMask, SrqCreate, SrqHandle, SrqType,
    XrcdHandle,
};
use crate::wire::RKey;

/// Error of a device that lacks a function.
const UNSUPPORTED: CreateError = CreateError::Refused(Errno::EOPNOTSUPP);

/// The object of this name to build another on.
fn base<T: Object>(
    table: &Objects<T>,
    id: Id,
    what: &'static str,
) -> Result<Arc<Made<T>>, CreateError> {
    table.get(id).ok_or(CreateError::NotFound(what))
}

/// Returns the handle of a new object, or `full` if no handle was free.
pub(super) fn named<E>(made: Option<Result<Id, E>>, full: E) -> Result<Id, E> {
    made.unwrap_or(Err(full))
}

impl RdmaNic {
    pub(super) fn make_pd(&self) -> Result<PdHandle, CreateError> {
        let made = self.pds.make(|_| {
            // SAFETY: the device is open.
            let at = unsafe { (self.context.library.alloc_pd)(self.context.at()) };
            Made::new(&self.context, at, (), ()).map_err(not_made)
        });
        named(made, CreateError::Full).map(PdHandle)
    }

    pub(super) fn make_mr(&self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError> {
        if !attr.access.is_registrable() {
            return Err(KeyError::NeedsLocalWrite);
        }
        let length = attr.region.len() as u64;
        if attr.base.checked_add(length).is_none() {
            return Err(KeyError::TooLong);
        }
        let pd = self.pds.get(pd.0).ok_or(KeyError::NoPd)?;
        let mut keys = (LKey::new(0), RKey::new(0));
        let made = self.mrs.make(|_| {
            let at = self.register_memory(&pd, &attr).map_err(KeyError::Refused)?;
            if !at.is_null() {
                // SAFETY: it was just made, and nothing else has it yet.
                let mr = unsafe { *at };
                keys = (LKey::new(mr.lkey), RKey::new(mr.rkey));
            }
            Made::new(&self.context, at, keys.0, (Arc::clone(&pd), attr.region))
                .map_err(KeyError::Refused)
        });
        let id = named(made, KeyError::Full)?;
        Ok(MrHandle { id, lkey: keys.0, rkey: keys.1 })
    }

    /// Registers memory; what comes back is null if the device refuses. The caller keeps the
    /// region.
    fn register_memory(&self, pd: &Made<ibv_pd>, attr: &MrAttr) -> Result<*mut ibv_mr, Errno> {
        let MrAttr { region, base, access } = attr;
        if region.is_null() {
            let make = extended!(self.context, alloc_null_mr).ok_or(Errno::EOPNOTSUPP)?;
            // SAFETY: the protection domain is held.
            return Ok(unsafe { make(pd.at()) });
        }
        let addr = region_start(region);
        let bits: c_uint = access.bits();
        if let Some(make) = self.context.library.reg_mr_iova2 {
            // SAFETY: the protection domain is held, and the region, whose maker keeps its memory
            // in place until it is dropped, is so only after the memory was deregistered.
            return Ok(unsafe { make(pd.at(), addr, region.len(), *base, bits) });
        }
        if *base != region.addr() {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as above.
        Ok(unsafe {
            (self.context.library.reg_mr)(pd.at(), addr, region.len(), bits.cast_signed())
        })
    }

    pub(super) fn make_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError> {
        let pd = self.pds.get(pd.0).ok_or(KeyError::NoPd)?;
        let make = op!(self.context, alloc_mw).ok_or(KeyError::Refused(Errno::EOPNOTSUPP))?;
        let made = self.mws.make(|_| {
            // SAFETY: the protection domain is held.
            let at = unsafe { make(pd.at(), kind.code()) };
            if at.is_null() {
                return Err(KeyError::Refused(last_errno()));
            }
            // The header fills these in, not the driver.
            // SAFETY: it was just made, and nothing else has it yet.
            let mw = unsafe { &mut *at };
            mw.context = self.context.at();
            mw.pd = pd.at();
            mw.r#type = kind.code();
            let window = Window { kind, key: Mutex::new(mw.rkey) };
            Made::new(&self.context, at, window, Arc::clone(&pd)).map_err(KeyError::Refused)
        });
        named(made, KeyError::Full).map(MwHandle)
    }

    pub(super) fn make_channel(&self) -> io::Result<Completions> {
        // SAFETY: the device is open.
        let at = unsafe { (self.context.library.create_comp_channel)(self.context.at()) };
        let channel = Completions(Arc::new(Made::new(&self.context, at, (), ()).map_err(to_io)?));
        never_block(std::os::fd::AsFd::as_fd(&channel))?;
        Ok(channel)
    }

    pub(super) fn make_cq(
        &self,
        capacity: usize,
        channel: Option<Arc<Made<ibv_comp_channel>>>,
    ) -> Result<CqHandle, CreateError> {
        let cqe = c_int::try_from(capacity).map_err(|_| CreateError::TooLarge("the capacity"))?;
        let channel_at = channel.as_ref().map_or(null_mut(), |channel| channel.at());
        let made = self.cqs.make(|id| {
            // SAFETY: the device is open, the channel is held, and the name is never followed.
            let at = unsafe {
                (self.context.library.create_cq)(self.context.at(), cqe, to_c(id), channel_at, 0)
            };
            Made::new(&self.context, at, Timing::None, channel).map_err(not_made)
        });
        named(made, CreateError::Full).map(CqHandle)
    }

    pub(super) fn make_xrcd(&self) -> Result<XrcdHandle, CreateError> {
        let make = extended!(self.context, open_xrcd).ok_or(UNSUPPORTED)?;
        let made = self.xrcds.make(|_| {
            // Of this process alone, which has no file for it.
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: the device is open, and the attributes are there until this returns.
            let at = unsafe { make(self.context.at(), &raw mut attr) };
            Made::new(&self.context, at, (), ()).map_err(not_made)
        });
        named(made, CreateError::Full).map(XrcdHandle)
    }

    pub(super) fn make_srq(
        &self,
        pd: PdHandle,
        create: SrqCreate,
    ) -> Result<SrqHandle, CreateError> {
        let pd = base(&self.pds, pd.0, "protection domain")?;
        let attr = ibv_srq_attr { max_wr: create.max_wr, max_sge: create.max_sge, srq_limit: 0 };
        let xrc = match create.xrc {
            None => None,
            Some((xrcd, cq)) => Some((
                base(&self.xrcds, xrcd.0, "XRC domain")?,
                base(&self.cqs, cq.0, "completion queue")?,
            )),
        };
        let made = self.srqs.make(|id| {
            let (at, max_sge) = match &xrc {
                None => {
                    let mut init = ibv_srq_init_attr { srq_context: to_c(id), attr };
                    // SAFETY: the protection domain is held, and the attributes are there until
                    // this returns.
                    let at = unsafe { (self.context.library.create_srq)(pd.at(), &raw mut init) };
                    (at, init.attr.max_sge)
                }
                Some((xrcd, cq)) => {
                    let make = extended!(self.context, create_srq_ex).ok_or(UNSUPPORTED)?;
                    let mut init = ibv_srq_init_attr_ex {
                        srq_context: to_c(id),
                        attr,
                        comp_mask: IBV_SRQ_INIT_ATTR_TYPE
                            | IBV_SRQ_INIT_ATTR_PD
                            | IBV_SRQ_INIT_ATTR_XRCD
                            | IBV_SRQ_INIT_ATTR_CQ,
                        srq_type: SrqType::Xrc.code(),
                        pd: pd.at(),
                        xrcd: xrcd.at(),
                        cq: cq.at(),
                        ..ibv_srq_init_attr_ex::zeroed()
                    };
                    // SAFETY: the device is open, all that it is built on is held, and the
                    // attributes are there until this returns.
                    let at = unsafe { make(self.context.at(), &raw mut init) };
                    (at, init.attr.max_sge)
                }
            };
            let number = if xrc.is_some() && !at.is_null() { self.number_of(at) } else { 0 };
            let max_sge = max_sge.max(create.max_sge);
            let facts = Shared { max_sge, number };
            let made = Made::new(&self.context, at, facts, (pd, xrc)).map_err(not_made)?;
            if create.limit > 0 {
                self.set_srq(&made, None, Some(create.limit)).map_err(not_made)?;
            }
            Ok(made)
        });
        named(made, CreateError::Full).map(SrqHandle)
    }

    /// The number on the wire of a shared receive queue that was just made; zero if it has none.
    fn number_of(&self, srq: *mut ibv_srq) -> u32 {
        let mut number = 0;
        if let Some(get) = extended!(self.context, get_srq_num) {
            // SAFETY: the caller has just made it and nothing else has it yet; there is room for
            // the answer.
            let _: c_int = unsafe { get(srq, &raw mut number) };
        }
        number
    }

    pub(super) fn set_srq(
        &self,
        srq: &Made<ibv_srq>,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), Errno> {
        let mut mask = SrqAttrMask::empty();
        mask.set(SrqAttrMask::MAX_WR, max_wr.is_some());
        mask.set(SrqAttrMask::LIMIT, limit.is_some());
        let mut attr =
            ibv_srq_attr { max_wr: max_wr.unwrap_or(0), max_sge: 0, srq_limit: limit.unwrap_or(0) };
        let modify = self.context.library.modify_srq;
        // SAFETY: the queue is held, and the attributes are there until this returns.
        let code = unsafe { modify(srq.at(), &raw mut attr, mask.bits().cast_signed()) };
        check(code)
    }

    pub(super) fn make_ah(&self, pd: PdHandle, attr: AhAttr) -> Result<AhHandle, CreateError> {
        let pd = base(&self.pds, pd.0, "protection domain")?;
        let mut attr = ibv_ah_attr::from(attr);
        let made = self.ahs.make(|_| {
            // SAFETY: the protection domain is held, and the attributes are there until this
            // returns.
            let at = unsafe { (self.context.library.create_ah)(pd.at(), &raw mut attr) };
            Made::new(&self.context, at, (), Arc::clone(&pd)).map_err(not_made)
        });
        named(made, CreateError::Full).map(AhHandle)
    }

    pub(super) fn make_qp(&self, pd: PdHandle, create: QpCreate) -> Result<QpHandle, CreateError> {
        let kind = create.init.qp_type;
        if QpType::from_code(kind.code()).is_none() {
            return Err(CreateError::Invalid("a program cannot have a queue pair of this kind"));
        }
        let srq = create.srq.map(|srq| base(&self.srqs, srq.0, "shared receive queue"));
        let xrcd = create.xrcd.map(|xrcd| base(&self.xrcds, xrcd.0, "XRC domain"));
        let needs = QpNeeds {
            pd: base(&self.pds, pd.0, "protection domain")?,
            send_cq: base(&self.cqs, create.send_cq.0, "completion queue")?,
            recv_cq: base(&self.cqs, create.recv_cq.0, "completion queue")?,
            srq: srq.transpose()?,
            xrcd: xrcd.transpose()?,
        };
        let made = self.qps.make(|id| {
            let (at, cap) = match kind {
                QpType::XrcRecv => self.create_target(id, &create, &needs)?,
                _ => self.create_pair(id, &create, &needs),
            };
            if at.is_null() {
                return Err(not_made(last_errno()));
            }
            // SAFETY: it was just made, and nothing else has it yet.
            let number = unsafe { (*at).qp_num };
            let facts = Pair { kind, cap: cap.into(), number, shares: needs.srq.is_some() };
            Made::new(&self.context, at, facts, needs).map_err(not_made)
        });
        named(made, CreateError::Full).map(QpHandle)
    }

    /// Has C make a queue pair with a protection domain; null if the device refuses.
    fn create_pair(&self, id: Id, create: &QpCreate, needs: &QpNeeds) -> Created {
        let takes = create.init.qp_type.has_receive_queue();
        let mut init = ibv_qp_init_attr {
            qp_context: to_c(id),
            send_cq: needs.send_cq.at(),
            recv_cq: if takes { needs.recv_cq.at() } else { null_mut() },
            srq: needs.srq.as_ref().map_or(null_mut(), |srq| srq.at()),
            cap: create.init.cap.into(),
            qp_type: create.init.qp_type.code(),
            sq_sig_all: c_int::from(create.init.sq_sig_all),
        };
        // SAFETY: all that it is built on is held, and the attributes are there until this returns.
        let at = unsafe { (self.context.library.create_qp)(needs.pd.at(), &raw mut init) };
        (at, init.cap)
    }

    /// Has C make the receiving half of an extended reliable connection, which has an XRC domain
    /// instead.
    fn create_target(
        &self,
        id: Id,
        create: &QpCreate,
        needs: &QpNeeds,
    ) -> Result<Created, CreateError> {
        let xrcd = needs.xrcd.as_ref().ok_or(CreateError::Invalid("it needs an XRC domain"))?;
        let make = extended!(self.context, create_qp_ex).ok_or(UNSUPPORTED)?;
        let mut init = ibv_qp_init_attr_ex {
            qp_context: to_c(id),
            qp_type: create.init.qp_type.code(),
            comp_mask: IBV_QP_INIT_ATTR_XRCD,
            xrcd: xrcd.at(),
            ..ibv_qp_init_attr_ex::zeroed()
        };
        // SAFETY: all that it is built on is held, and the attributes are there until this returns.
        let at = unsafe { make(self.context.at(), &raw mut init) };
        Ok((at, init.cap))
    }
}

/// A queue pair as C returns it, and its sizes as they are.
type Created = (*mut ibv_qp, crate::ibverbs::ibv_qp_cap);

/// Returns the start address of a region, for C.
fn region_start(region: &Region) -> *mut core::ffi::c_void {
    // The address was exposed when it was asked for.
    core::ptr::with_exposed_provenance_mut(usize::try_from(region.addr()).unwrap_or(0))
}
