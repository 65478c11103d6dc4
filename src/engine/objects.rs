//! Creating and destroying objects.

use super::Engine;
use super::config::OBJECT_BYTES;
use super::cq::Cq;
use super::env::Env;
use super::qp::Qp;
use super::recv_queue::RecvQueue;
use super::send_queue::SendQueue;
use super::srq::Srq;
use crate::memory::AccessError;
use crate::verbs::{
    Access, AhAttr, AhHandle, CqHandle, CreateError, DestroyError, Id, KeyError, MrAttr, MrHandle,
    MwHandle, MwType, PdHandle, PortNum, QpCap, QpCreate, QpHandle, QpState, QpType, Sge, SrqAttr,
    SrqCreate, SrqHandle, XrcdHandle,
};
use crate::wire::{Psn, Qpn, RKey, XrcSrqn};

/// QPNs with a meaning of their own.
const RESERVED_QPNS: [Qpn; 3] = [Qpn::SMI, Qpn::GSI, Qpn::MULTICAST];

/// Inline data of a send on queue pair 1: a MAD.
const GSI_INLINE: u64 = 256;

impl Engine {
    /// Creates a protection domain.
    pub fn create_pd(&mut self) -> Result<PdHandle, CreateError> {
        self.pds.insert(()).map(PdHandle).ok_or(CreateError::Full)
    }

    /// Destroys a protection domain that no object uses.
    pub fn destroy_pd(&mut self, pd: PdHandle) -> Result<(), DestroyError> {
        self.pds.get(pd.0).ok_or(DestroyError::NotFound)?;
        let used = self.env.keys.count_of(pd) > 0
            || self.qps.iter().any(|qp| qp.attr().pd == pd)
            || self.env.srqs.iter().any(|srq| srq.pd == pd)
            || self.env.ahs.iter().any(|(owner, _)| *owner == pd);
        if used {
            return Err(DestroyError::Busy);
        }
        self.pds.remove(pd.0);
        Ok(())
    }

    /// Registers memory.
    pub fn register(&mut self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError> {
        self.pds.get(pd.0).ok_or(KeyError::NoPd)?;
        self.env.keys.register(pd, attr)
    }

    /// Changes the protection domain, the memory or the access rights of a region, as given. Its
    /// keys stay.
    pub fn reregister(
        &mut self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        attr: Option<MrAttr>,
        access: Option<Access>,
    ) -> Result<(), KeyError> {
        if pd.is_some_and(|pd| self.pds.get(pd.0).is_none()) {
            return Err(KeyError::NoPd);
        }
        self.env.keys.reregister(mr, pd, attr, access)
    }

    /// Faults in on-demand memory, as if it were written or read. `None` if the key gives the
    /// protection domain no access.
    pub fn prefetch(&self, pd: PdHandle, sge: Sge, write: bool) -> Option<Result<(), AccessError>> {
        self.env.keys.fault_in(pd, sge, write)
    }

    /// Deregisters a region.
    pub fn deregister(&mut self, mr: MrHandle) -> Result<(), KeyError> {
        self.env.keys.deregister(mr)
    }

    /// Creates a memory window.
    pub fn create_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError> {
        self.pds.get(pd.0).ok_or(KeyError::NoPd)?;
        self.env.keys.allocate(pd, kind)
    }

    /// Destroys a memory window.
    pub fn destroy_mw(&mut self, mw: MwHandle) -> Result<(), KeyError> {
        self.env.keys.deallocate(mw)
    }

    /// Returns the current key of a memory window.
    pub fn mw_key(&self, mw: MwHandle) -> Option<RKey> {
        self.env.keys.window_key(mw)
    }

    /// Creates a completion queue for `capacity` completions.
    pub fn create_cq(&mut self, capacity: usize) -> Result<CqHandle, CreateError> {
        if capacity == 0 || capacity > self.env.config.limits.cqes {
            return Err(CreateError::TooLarge("the number of completions"));
        }
        let bytes = Cq::bytes(capacity).saturating_add(OBJECT_BYTES);
        self.promise(bytes, |engine| {
            engine.env.cqs.insert(Cq::new(capacity)?).map(CqHandle).ok_or(CreateError::Full)
        })
    }

    /// Creates an object that takes up to `bytes` when it is in use.
    pub(super) fn promise<T>(
        &mut self,
        bytes: u64,
        make: impl FnOnce(&mut Self) -> Result<T, CreateError>,
    ) -> Result<T, CreateError> {
        self.env.promised.take(bytes)?;
        make(self).inspect_err(|_| self.env.promised.give_back(bytes))
    }

    /// Resizes a completion queue, to no less than what is in it.
    pub fn resize_cq(&mut self, cq: CqHandle, capacity: usize) -> Result<(), CreateError> {
        let limit = self.env.config.limits.cqes;
        let known = self.env.cqs.get(cq.0).ok_or(CreateError::NotFound("completion queue"))?;
        if capacity == 0 || capacity > limit {
            return Err(CreateError::TooLarge("the number of completions"));
        }
        if capacity < known.len() {
            return Err(CreateError::Invalid(
                "more completions are in the queue than it would hold",
            ));
        }
        let (before, after) = (known.bytes_for(known.capacity), known.bytes_for(capacity));
        // Only the difference counts: a queue can always shrink.
        self.promise(after.saturating_sub(before), |engine| {
            let cq =
                engine.env.cqs.get_mut(cq.0).ok_or(CreateError::NotFound("completion queue"))?;
            Ok(cq.resize(capacity)?)
        })?;
        self.env.promised.give_back(before.saturating_sub(after));
        Ok(())
    }

    /// Destroys a completion queue that no queue uses.
    pub fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), DestroyError> {
        let known = self.env.cqs.get(cq.0).ok_or(DestroyError::NotFound)?;
        if known.users > 0 {
            return Err(DestroyError::Busy);
        }
        self.env.promised.give_back(OBJECT_BYTES + known.bytes_for(known.capacity));
        self.env.completions -= known.len();
        self.env.cqs.remove(cq.0);
        Ok(())
    }

    /// Creates an XRC domain.
    pub fn create_xrcd(&mut self) -> Result<XrcdHandle, CreateError> {
        self.xrcds.insert(()).map(XrcdHandle).ok_or(CreateError::Full)
    }

    /// Destroys an XRC domain that no object uses.
    pub fn destroy_xrcd(&mut self, xrcd: XrcdHandle) -> Result<(), DestroyError> {
        self.xrcds.get(xrcd.0).ok_or(DestroyError::NotFound)?;
        let in_srq = |srq: &Srq| srq.xrc.is_some_and(|(domain, _)| domain == xrcd);
        if self.env.srqs.iter().any(in_srq)
            || self.qps.iter().any(|qp| qp.attr().xrcd == Some(xrcd))
        {
            return Err(DestroyError::Busy);
        }
        self.xrcds.remove(xrcd.0);
        Ok(())
    }

    /// Creates a shared receive queue.
    pub fn create_srq(
        &mut self,
        pd: PdHandle,
        create: SrqCreate,
    ) -> Result<SrqHandle, CreateError> {
        self.pds.get(pd.0).ok_or(CreateError::NotFound("protection domain"))?;
        let limits = self.env.config.limits;
        if create.max_wr == 0 || create.max_wr > limits.wrs || create.max_sge > limits.sges {
            return Err(CreateError::TooLarge("the size of the queue"));
        }
        if let Some((xrcd, cq)) = create.xrc {
            self.xrcds.get(xrcd.0).ok_or(CreateError::NotFound("XRC domain"))?;
            self.env.cqs.get(cq.0).ok_or(CreateError::NotFound("completion queue"))?;
        }
        let queue = RecvQueue::new(create.max_wr, create.max_sge);
        let SrqCreate { limit, xrc, .. } = create;
        let srq =
            Srq { handle: SrqHandle(Id::new(self.env.device, 0)), pd, queue, limit, xrc, users: 0 };
        let bytes = srq.bytes();
        let id = self.promise(bytes, |engine| {
            engine.env.srqs.insert_where(srq, |number| number != 0).ok_or(CreateError::Full)
        })?;
        let handle = SrqHandle(id);
        if let Some(srq) = self.env.srqs.get_mut(id) {
            srq.handle = handle;
        }
        if let Some((_, cq)) = create.xrc {
            self.use_cq(cq, true);
        }
        Ok(handle)
    }

    /// Returns the number of an XRC shared receive queue on the wire.
    pub fn srq_number(&self, srq: SrqHandle) -> XrcSrqn {
        XrcSrqn::new(self.env.srqs.number(srq.0))
    }

    /// Returns the attributes of a shared receive queue. Its limit is 0 once the event was raised.
    pub fn query_srq(&self, srq: SrqHandle) -> Option<SrqAttr> {
        let Srq { queue, limit, .. } = self.env.srqs.get(srq.0)?;
        Some(SrqAttr { max_wr: queue.depth(), max_sge: queue.max_sge(), srq_limit: *limit })
    }

    /// Changes the size, the limit or both of a shared receive queue.
    pub fn modify_srq(
        &mut self,
        srq: SrqHandle,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), CreateError> {
        let max = self.env.config.limits.wrs;
        let Env { srqs, promised, .. } = &mut self.env;
        let srq = srqs.get_mut(srq.0).ok_or(CreateError::NotFound("shared receive queue"))?;
        let depth = max_wr.unwrap_or_else(|| srq.queue.depth());
        if depth == 0 || depth > max || limit.unwrap_or(srq.limit) > depth {
            return Err(CreateError::TooLarge("the size or the limit of the queue"));
        }
        if max_wr.is_some() {
            let after = RecvQueue::bytes(depth, srq.queue.max_sge()) + OBJECT_BYTES;
            let before = srq.bytes();
            let queue = srq.queue.resized(depth)?;
            // Only the difference counts: a queue can always shrink.
            promised.take(after.saturating_sub(before))?;
            promised.give_back(before.saturating_sub(after));
            srq.queue = queue;
        }
        srq.limit = limit.unwrap_or(srq.limit);
        Ok(())
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, handle: SrqHandle) -> Result<(), DestroyError> {
        let srq = self.env.srqs.get(handle.0).ok_or(DestroyError::NotFound)?;
        if srq.users > 0 {
            return Err(DestroyError::Busy);
        }
        self.env.promised.give_back(srq.bytes());
        if let Some(Srq { xrc: Some((_, cq)), .. }) = self.env.srqs.remove(handle.0) {
            self.use_cq(cq, false);
        }
        Ok(())
    }

    /// Creates an address handle.
    pub fn create_ah(&mut self, pd: PdHandle, attr: AhAttr) -> Result<AhHandle, CreateError> {
        self.pds.get(pd.0).ok_or(CreateError::NotFound("protection domain"))?;
        if attr.port_num != PortNum::FIRST {
            return Err(CreateError::NotFound("port"));
        }
        if self.env.gid(attr.sgid_index).is_none() {
            return Err(CreateError::NotFound("GID of the port"));
        }
        self.env.ahs.insert((pd, attr)).map(AhHandle).ok_or(CreateError::Full)
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&mut self, ah: AhHandle) -> Result<(), DestroyError> {
        let id = self.env.ahs.tagged(ah.0);
        self.env.ahs.remove(id).map(drop).ok_or(DestroyError::NotFound)
    }

    /// Makes room for queue pair 1, with these queues and all that belongs to it, beside what a
    /// program may create: its [limits](super::Config::limits) stay as they are. Once is enough.
    pub fn reserve_gsi(&mut self, sends: u32, receives: u32) {
        if core::mem::replace(&mut self.is_gsi_reserved, true) {
            return;
        }
        self.pds.raise_limit(1);
        self.qps.raise_limit(1);
        self.env.cqs.raise_limit(2);
        self.env.ahs.raise_limit(sends as usize);
        self.env.keys.raise_limit();
        let cap = QpCap { max_send_wr: sends, max_recv_wr: receives, ..QpCap::ORDINARY };
        let cqs = Cq::bytes(sends as usize) + Cq::bytes(receives as usize);
        let queues = SendQueue::bytes(sends, &cap) + RecvQueue::bytes(receives, cap.max_recv_sge);
        self.env
            .promised
            .raise_limit(cqs + queues + GSI_INLINE * u64::from(sends) + 8 * OBJECT_BYTES);
    }

    /// Creates a queue pair, in RESET.
    pub fn create_qp(&mut self, pd: PdHandle, create: QpCreate) -> Result<QpHandle, CreateError> {
        self.check_qp(pd, &create)?;
        let QpCreate { send_cq, recv_cq, srq, .. } = create;
        let qp = Qp::new(pd, &create, self.env.config.advertise_credits);
        let bytes = qp.bytes();
        let id = self.promise(bytes, |engine| {
            let share = engine.env.config.qpns;
            let is_usable = |number| {
                let qpn = Qpn::new(number);
                share.contains(qpn) && !RESERVED_QPNS.contains(&qpn)
            };
            engine.qps.insert_where(qp, is_usable).ok_or(CreateError::Full)
        })?;
        let (handle, slot, number) = (QpHandle(id), self.qps.slot_of(id), self.qps.number(id));
        let gsi = create.init.qp_type == QpType::Gsi;
        if let (Some(qp), Some(slot)) = (self.qps.get_mut(id), slot) {
            qp.set_numbers(handle, slot, if gsi { Qpn::GSI } else { Qpn::new(number) });
        }
        if gsi {
            self.gsi = Some(handle);
        }
        self.use_cq(send_cq, true);
        self.use_cq(recv_cq, true);
        if let Some(srq) = srq.and_then(|srq| self.env.srqs.get_mut(srq.0)) {
            srq.users += 1;
        }
        Ok(handle)
    }

    fn check_qp(&self, pd: PdHandle, create: &QpCreate) -> Result<(), CreateError> {
        let QpCreate { init, send_cq, recv_cq, srq, xrcd } = create;
        self.pds.get(pd.0).ok_or(CreateError::NotFound("protection domain"))?;
        self.env.cqs.get(send_cq.0).ok_or(CreateError::NotFound("completion queue"))?;
        self.env.cqs.get(recv_cq.0).ok_or(CreateError::NotFound("completion queue"))?;
        if srq.is_some_and(|srq| self.env.srqs.get(srq.0).is_none()) {
            return Err(CreateError::NotFound("shared receive queue"));
        }
        let (cap, limits) = (init.cap, self.env.config.limits);
        // Rule: T-49.
        if cap.max_send_wr > limits.wrs || cap.max_recv_wr > limits.wrs {
            return Err(CreateError::TooLarge("the number of work requests"));
        }
        if cap.max_send_sge > limits.sges || cap.max_recv_sge > limits.sges {
            return Err(CreateError::TooLarge("the number of scatter/gather entries"));
        }
        if cap.max_inline_data > limits.inline {
            return Err(CreateError::TooLarge("the inline data"));
        }
        match init.qp_type {
            QpType::RawPacket if self.env.config.frame_max > 0 && srq.is_none() => Ok(()),
            QpType::RawPacket | QpType::Driver => {
                Err(CreateError::Invalid("the device has no queue pairs of this type"))
            }
            QpType::Gsi if self.gsi.is_some() => {
                Err(CreateError::Invalid("the GSI queue pair exists already"))
            }
            QpType::XrcRecv if xrcd.is_none_or(|xrcd| self.xrcds.get(xrcd.0).is_none()) => {
                Err(CreateError::NotFound("XRC domain"))
            }
            QpType::Uc | QpType::XrcSend | QpType::XrcRecv if srq.is_some() => Err(
                CreateError::Invalid("queue pairs of this type cannot use a shared receive queue"),
            ),
            _ => Ok(()),
        }
    }

    /// Returns the QPN of a queue pair.
    pub fn qp_number(&self, qp: QpHandle) -> Option<Qpn> {
        self.qps.get(qp.0).map(|qp| qp.attr().qpn)
    }

    /// Returns the queue pair with a QPN.
    pub fn qp_by_number(&self, qpn: Qpn) -> Option<QpHandle> {
        let qp = self.qps.at(self.slot_of_qpn(qpn)?)?;
        (qp.attr().qpn == qpn).then_some(qp.attr().handle)
    }

    /// Returns a random initial PSN for a queue pair, for a caller that has no other: always the
    /// same for one queue pair.
    pub fn initial_psn(&self, qp: QpHandle) -> Option<Psn> {
        let random = self.env.psns.of(self.qp_number(qp)?.get().into());
        #[expect(clippy::cast_possible_truncation, reason = "24 bits are wanted")]
        Some(Psn::new(random as u32))
    }

    /// Returns the QPNs of all queue pairs.
    pub fn qp_numbers(&self) -> impl Iterator<Item = Qpn> {
        self.qps.iter().map(|qp| qp.attr().qpn)
    }

    /// Returns the type of a queue pair.
    pub fn qp_kind(&self, qp: QpHandle) -> Option<QpType> {
        self.qps.get(qp.0).map(|qp| qp.attr().kind)
    }

    /// Returns the state of a queue pair.
    pub fn qp_state(&self, qp: QpHandle) -> Option<QpState> {
        self.qps.get(qp.0).map(|qp| qp.state())
    }

    /// Destroys a queue pair, unless it is attached to a multicast group. Posted work is discarded.
    pub fn destroy_qp(&mut self, handle: QpHandle) -> Result<(), DestroyError> {
        let qp = self.qps.get(handle.0).ok_or(DestroyError::NotFound)?;
        if qp.is_in_group() {
            return Err(DestroyError::Busy);
        }
        let attr = qp.attr();
        let (send_cq, recv_cq, srq, slot) = (attr.send_cq, attr.recv_cq, attr.srq, attr.slot);
        self.env.promised.give_back(qp.bytes());
        if qp.is_congested() {
            self.congested.retain(|other| *other != slot);
        }
        // The next queue pair in this slot is scheduled on its own.
        if qp.may_be_active() {
            self.env.active.retain(|other| *other != slot);
        }
        if qp.is_held() {
            self.env.held.remove(slot);
        }
        if let Some((qp, env)) = self.split_handle(handle) {
            qp.release(env);
        }
        self.qps.remove(handle.0);
        if self.gsi == Some(handle) {
            self.gsi = None;
        }
        self.use_cq(send_cq, false);
        self.use_cq(recv_cq, false);
        if let Some(srq) = srq.and_then(|srq| self.env.srqs.get_mut(srq.0)) {
            srq.users -= 1;
        }
        Ok(())
    }

    pub(super) fn use_cq(&mut self, cq: CqHandle, begins: bool) {
        if let Some(cq) = self.env.cqs.get_mut(cq.0) {
            cq.users = if begins { cq.users + 1 } else { cq.users - 1 };
        }
    }
}
