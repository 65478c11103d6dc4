//! Receive work requests: the queue that a message takes one from, and the buffers that its payload
//! is written to.

use super::super::super::env::Env;
use super::super::super::recv_queue::{RecvQueue, RecvSlot};
use super::super::super::sge::scatter_into;
use super::super::attr::Attributes;
use super::{Fault, INVALID, LENGTH, Rx};
use crate::memory::Payload;
use crate::verbs::{AsyncEvent, CqHandle, EventType, PdHandle, QpType, Sge, SrqHandle, WcStatus};
use crate::wire::Packet;
use crate::wire::aeth::NakCode;

impl Rx {
    /// Takes a receive work request for a message.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn take_receive(
        &mut self,
        packet: &Packet<'_>,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(RecvSlot, Option<SrqHandle>), Fault> {
        if let Some(spare) = self.spare.take() {
            return Ok(spare);
        }
        let srq = match attr.kind {
            // Rule: P-16.2.
            QpType::XrcRecv => Some(xrc_srq(packet, attr, env).ok_or(INVALID)?),
            _ => attr.srq,
        };
        let queue = self.recv_queue(srq, env).ok_or(INVALID)?;
        let taken = queue.take().ok_or(Fault::NotReady)?;
        if let Some(handle) = srq {
            check_srq_limit(handle, env);
        }
        Ok((taken, srq))
    }

    /// Returns the queue that receive work requests come from: a shared one, or its own.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in super::super) fn recv_queue<'q>(
        &'q mut self,
        srq: Option<SrqHandle>,
        env: &'q mut Env,
    ) -> Option<&'q mut RecvQueue> {
        match srq {
            None => Some(&mut self.rq),
            Some(handle) => env.srqs.get_mut(handle.0).map(|srq| &mut srq.queue),
        }
    }

    /// Returns the buffers of a receive work request, and the protection domain that they must be
    /// registered in. For a shared receive queue it is the domain of that queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in super::super) fn buffers<'q>(
        &'q self,
        taken: RecvSlot,
        srq: Option<SrqHandle>,
        attr: &Attributes,
        env: &'q Env,
    ) -> Option<(PdHandle, &'q [Sge])> {
        match srq {
            None => Some((attr.pd, self.rq.sges(taken))),
            Some(handle) => env.srqs.get(handle.0).map(|srq| (srq.pd, srq.queue.sges(taken))),
        }
    }

    /// Writes payload to the buffers of a receive work request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn scatter(
        &self,
        taken: RecvSlot,
        srq: Option<SrqHandle>,
        offset: u32,
        data: Payload<'_>,
        attr: &Attributes,
        env: &Env,
    ) -> Result<(), Fault> {
        // Rule: Q-08.
        let fault = Fault::Nak(NakCode::RemoteOperationalError, WcStatus::LocProtErr);
        let (pd, sges) = self.buffers(taken, srq, attr, env).ok_or(fault)?;
        let room = match sges {
            [sge] => u64::from(sge.length),
            sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        };
        if u64::from(offset) + data.len() as u64 > room {
            return Err(LENGTH);
        }
        scatter_into(pd, sges, offset.into(), data, env).map_err(|_| fault)?;
        Ok(())
    }
}

/// Returns the shared receive queue that an XRC request names (P-16).
fn xrc_srq(packet: &Packet<'_>, attr: &Attributes, env: &Env) -> Option<SrqHandle> {
    let slot = env.srqs.find(packet.xrceth()?.xrcsrq().get())?;
    let srq = env.srqs.at(slot)?;
    let (domain, _) = srq.xrc?;
    // Rule: P-16.3.
    (Some(domain) == attr.xrcd).then_some(srq.handle)
}

/// Returns the protection domain of the memory that a request accesses. For XRC it is that of the
/// shared receive queue which the request names; a request that names none stays in the domain of
/// the queue pair.
#[inline]
pub(super) fn memory_domain(packet: &Packet<'_>, attr: &Attributes, env: &Env) -> PdHandle {
    if attr.kind != QpType::XrcRecv {
        return attr.pd;
    }
    let srq = xrc_srq(packet, attr, env).and_then(|handle| env.srqs.get(handle.0));
    srq.map_or(attr.pd, |srq| srq.pd)
}

/// Returns the completion queue of receives: an XRC shared receive queue has its own.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn recv_cq_of(srq: Option<SrqHandle>, attr: &Attributes, env: &Env) -> CqHandle {
    let xrc = srq.and_then(|handle| env.srqs.get(handle.0)?.xrc);
    xrc.map_or(attr.recv_cq, |(_, cq)| cq)
}

/// Raises SRQ_LIMIT_REACHED when a shared receive queue falls below its limit, once.
pub(in super::super) fn check_srq_limit(handle: SrqHandle, env: &mut Env) {
    let Some(srq) = env.srqs.get_mut(handle.0) else { return };
    if srq.limit > 0 && srq.queue.len() < srq.limit {
        srq.limit = 0;
        env.raise(AsyncEvent::Srq(EventType::SrqLimitReached, handle));
    }
}
