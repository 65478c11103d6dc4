//! Implementation of [`Device`] for an RNIC: each method is a call of `libibverbs`.
#![allow(unsafe_code, reason = "calls of libibverbs")]

use core::any::Any;
use core::ffi::c_int;
use std::io;
use std::sync::{Arc, PoisonError};

use super::RdmaNic;
use super::context::PORT;
use super::errors::{check, key_not_destroyed, not_destroyed, not_made};
use super::events::Completions;
use super::object::Made;
use super::sysfs;
use crate::device::sealed::Sealed;
use crate::device::{Channel, Device, Events};
use crate::ibverbs::{ibv_comp_channel, ibv_gid, ibv_qp_attr, ibv_qp_init_attr};
use crate::time::Instant;
use crate::verbs::{
    AhAttr, AhHandle, AsyncEvent, AttrMask, CqHandle, CreateError, DestroyError, DeviceAttr, Errno,
    KeyError, ModifyError, MrAttr, MrHandle, MwHandle, MwType, Notify, PdHandle, PortAttr,
    PostError, QpAttr, QpCreate, QpHandle, QpState, QpType, RecvWr, SendWr, SrqCreate, SrqHandle,
    Wc, XrcdHandle, transition,
};
use crate::wire::{Gid, Psn, Qpn, RKey, XrcSrqn};

impl Sealed for RdmaNic {}

impl RdmaNic {
    /// The channel, if it is one of this device.
    fn own_channel(&self, channel: &Channel) -> Result<Arc<Made<ibv_comp_channel>>, CreateError> {
        const ANOTHERS: CreateError = CreateError::Invalid("the channel is another device's");
        let channel: Arc<dyn Any + Send + Sync> = channel.0.clone();
        let channel = channel.downcast::<Completions>().map_err(|_| ANOTHERS)?;
        if !Arc::ptr_eq(channel.0.context(), &self.context) {
            return Err(ANOTHERS);
        }
        Ok(Arc::clone(&channel.0))
    }
}

impl Device for RdmaNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn query_device(&self) -> io::Result<DeviceAttr> {
        self.context.query_device()
    }

    fn query_port(&self) -> io::Result<PortAttr> {
        self.context.query_port()
    }

    fn gids(&self) -> Vec<Gid> {
        self.context.gids()
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        sysfs::statistics(&self.context.directory, PORT)
    }

    fn broken(&self) -> Option<io::Error> {
        self.context.broken()
    }

    fn async_events(&self) -> &dyn Events<AsyncEvent> {
        &self.asynchronous
    }

    fn create_pd(&self) -> Result<PdHandle, CreateError> {
        self.make_pd()
    }

    fn destroy_pd(&self, pd: PdHandle) -> Result<(), DestroyError> {
        self.pds.destroy(pd.0)
    }

    fn register_region(&self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError> {
        self.make_mr(pd, attr)
    }

    fn deregister(&self, mr: MrHandle) -> Result<(), KeyError> {
        self.mrs.destroy(mr.id).map_err(key_not_destroyed)
    }

    fn create_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError> {
        self.make_mw(pd, kind)
    }

    fn mw_key(&self, mw: MwHandle) -> Option<RKey> {
        let mws = self.mws.read();
        let key = mws.get(mw.0)?.facts.key.lock().unwrap_or_else(PoisonError::into_inner);
        Some(RKey::new(*key))
    }

    fn destroy_mw(&self, mw: MwHandle) -> Result<(), KeyError> {
        self.mws.destroy(mw.0).map_err(key_not_destroyed)
    }

    fn create_cq(&self, capacity: usize) -> Result<CqHandle, CreateError> {
        self.make_cq(capacity, None)
    }

    fn create_channel(&self) -> io::Result<Channel> {
        Ok(Channel(Arc::new(self.make_channel()?)))
    }

    fn create_cq_on(&self, capacity: usize, channel: &Channel) -> Result<CqHandle, CreateError> {
        self.make_cq(capacity, Some(self.own_channel(channel)?))
    }

    fn create_timed_cq_on(
        &self,
        capacity: usize,
        channel: &Channel,
    ) -> Result<CqHandle, CreateError> {
        self.make_timed_cq(capacity, self.own_channel(channel)?)
    }

    fn poll_cq_timed(&self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        self.poll_timed(cq)
    }

    fn request_notify(&self, cq: CqHandle, notify: Notify) {
        self.arm(cq, notify);
    }

    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DestroyError> {
        self.cqs.destroy(cq.0)
    }

    #[inline]
    fn poll_cq(&self, cq: CqHandle, out: &mut [Wc]) -> usize {
        self.poll(cq, out)
    }

    fn create_xrcd(&self) -> Result<XrcdHandle, CreateError> {
        self.make_xrcd()
    }

    fn destroy_xrcd(&self, xrcd: XrcdHandle) -> Result<(), DestroyError> {
        self.xrcds.destroy(xrcd.0)
    }

    fn create_srq(&self, pd: PdHandle, create: SrqCreate) -> Result<SrqHandle, CreateError> {
        self.make_srq(pd, create)
    }

    fn modify_srq(
        &self,
        srq: SrqHandle,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), CreateError> {
        let srqs = self.srqs.read();
        let srq = srqs.get(srq.0).ok_or(CreateError::NotFound("shared receive queue"))?;
        self.set_srq(srq, max_wr, limit).map_err(not_made)
    }

    fn srq_number(&self, srq: SrqHandle) -> XrcSrqn {
        XrcSrqn::new(self.srqs.read().get(srq.0).map_or(0, |srq| srq.facts.number))
    }

    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DestroyError> {
        self.srqs.destroy(srq.0)
    }

    fn create_ah(&self, pd: PdHandle, attr: AhAttr) -> Result<AhHandle, CreateError> {
        self.make_ah(pd, attr)
    }

    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DestroyError> {
        self.ahs.destroy(ah.0)
    }

    fn create_qp(&self, pd: PdHandle, create: QpCreate) -> Result<QpHandle, CreateError> {
        self.make_qp(pd, create)
    }

    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        let modified = {
            let qps = self.qps.read();
            let qp = qps.get(qp.0).ok_or(ModifyError::NotFound)?;
            let mut attr = ibv_qp_attr::from(attr);
            let modify = self.context.library.modify_qp;
            // SAFETY: the queue pair is held, and the attributes are there until this returns.
            let code = unsafe { modify(qp.at(), &raw mut attr, mask.bits().cast_signed()) };
            check(code)
        };
        modified.map_err(|errno| self.modify_error(qp, attr, mask, errno))
    }

    fn query_qp(&self, qp: QpHandle) -> Option<QpAttr> {
        // The rate is nothing that can be asked.
        self.ask(qp, AttrMask::all() - AttrMask::RATE_LIMIT)?.to_all()
    }

    fn qp_number(&self, qp: QpHandle) -> Option<Qpn> {
        self.qps.read().get(qp.0).map(|qp| Qpn::new(qp.facts.number))
    }

    fn initial_psn(&self, qp: QpHandle) -> Option<Psn> {
        let random = self.psns.of(self.qp_number(qp)?.get().into());
        #[expect(clippy::cast_possible_truncation, reason = "24 bits are wanted")]
        Some(Psn::new(random as u32))
    }

    fn qp_kind(&self, qp: QpHandle) -> Option<QpType> {
        self.qps.read().get(qp.0).map(|qp| qp.facts.kind)
    }

    fn qp_state(&self, qp: QpHandle) -> Option<QpState> {
        QpState::from_code(self.ask(qp, AttrMask::STATE)?.qp_state)
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<(), DestroyError> {
        self.qps.destroy(qp.0)
    }

    fn attach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), CreateError> {
        let attach = self.context.library.attach_mcast;
        let done = self.change_group(qp, group, attach);
        done.ok_or(CreateError::NotFound("queue pair"))?.map_err(not_made)
    }

    fn detach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), DestroyError> {
        let detach = self.context.library.detach_mcast;
        let done = self.change_group(qp, group, detach);
        done.ok_or(DestroyError::NotFound)?.map_err(not_destroyed)
    }

    #[inline]
    fn post_sends(&self, qp: QpHandle, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_send_list(qp, wrs)
    }

    #[inline]
    fn post_recvs(&self, qp: QpHandle, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_recv_list(qp, wrs)
    }

    #[inline]
    fn post_srq_recv(&self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_shared(srq, wr)
    }
}

/// `ibv_attach_mcast` or `ibv_detach_mcast`.
type ChangeGroup = unsafe extern "C" fn(*mut crate::ibverbs::ibv_qp, *const ibv_gid, u16) -> c_int;

impl RdmaNic {
    /// Asks a queue pair for some of its attributes.
    fn ask(&self, qp: QpHandle, mask: AttrMask) -> Option<ibv_qp_attr> {
        let qps = self.qps.read();
        let qp = qps.get(qp.0)?;
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let query = self.context.library.query_qp;
        let mask = mask.bits().cast_signed();
        // SAFETY: the queue pair is held, and there is room for both answers.
        let code = unsafe { query(qp.at(), &raw mut attr, mask, &raw mut init) };
        check(code).ok()?;
        Some(attr)
    }

    /// Returns the error for a queue pair that could not be modified: what the table of states says
    /// against it, or else the kernel's number.
    fn modify_error(
        &self,
        qp: QpHandle,
        attr: &QpAttr,
        mask: AttrMask,
        errno: Errno,
    ) -> ModifyError {
        let refused = ModifyError::Refused(errno);
        let (Some(kind), Some(from)) = (self.qp_kind(qp), self.qp_state(qp)) else {
            return refused;
        };
        let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { from };
        transition::check(kind, from, to, mask).err().unwrap_or(refused)
    }

    fn change_group(
        &self,
        qp: QpHandle,
        group: Gid,
        change: ChangeGroup,
    ) -> Option<Result<(), Errno>> {
        let qps = self.qps.read();
        let qp = qps.get(qp.0)?;
        let group = ibv_gid::from(group);
        // SAFETY: the queue pair is held, and the identifier is there until this returns.
        let code = unsafe { change(qp.at(), &raw const group, 0) };
        Some(check(code))
    }
}
