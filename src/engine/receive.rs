//! Receive work requests: where a message takes one, and how its bytes get there.

use super::pieces::scatter_into;
use super::qp::{Env, Qp};
use super::queue::{RecvQueue, Taken};
use super::responder::{Fault, INVALID};
use crate::verbs::{CqHandle, PdHandle, SrqHandle};
use crate::verbs::{EventType, QpType, WcStatus};
use crate::wire::Packet;
use crate::wire::aeth::NakCode;

impl Qp {
    /// A receive work request for a message.
    pub(super) fn take_receive(
        &mut self,
        packet: &Packet<'_>,
        env: &mut Env,
    ) -> Result<(Taken, Option<SrqHandle>), Fault> {
        if let Some(spare) = self.resp.spare.take() {
            return Ok(spare);
        }
        let srq = match self.kind {
            // Rule: P-16.2.
            QpType::XrcRecv => Some(self.xrc_srq(packet, env).ok_or(INVALID)?),
            _ => self.srq,
        };
        let queue = self.recv_queue(srq, env).ok_or(INVALID)?;
        let taken = queue.take().ok_or(Fault::NotReady)?;
        if let Some(handle) = srq {
            check_srq_limit(handle, env);
        }
        Ok((taken, srq))
    }

    /// The shared receive queue that a request of an extended connection names.
    fn xrc_srq(&self, packet: &Packet<'_>, env: &Env) -> Option<SrqHandle> {
        let place = env.srqs.find(packet.xrceth()?.xrcsrq().get())?;
        let srq = env.srqs.at(place)?;
        let (domain, _) = srq.xrc?;
        // Rule: P-16.3.
        (Some(domain) == self.xrcd).then_some(srq.handle)
    }

    /// The protection domain of the memory that a request reaches. An extended connection leads to the memory of the
    /// shared receive queue that each request names; one that names none stays in the queue pair's own domain.
    #[inline]
    pub(super) fn memory_domain(&self, packet: &Packet<'_>, env: &Env) -> PdHandle {
        if self.kind != QpType::XrcRecv {
            return self.pd;
        }
        let srq = self.xrc_srq(packet, env).and_then(|handle| env.srqs.get(handle.0));
        srq.map_or(self.pd, |srq| srq.pd)
    }

    /// The queue that receive work requests come from.
    pub(super) fn recv_queue<'q>(
        &'q mut self,
        srq: Option<SrqHandle>,
        env: &'q mut Env,
    ) -> Option<&'q mut RecvQueue> {
        match srq {
            None => Some(&mut self.rq),
            Some(handle) => env.srqs.get_mut(handle.0).map(|srq| &mut srq.queue),
        }
    }

    /// Where receives complete.
    pub(super) fn recv_cq_of(&self, srq: Option<SrqHandle>, env: &Env) -> CqHandle {
        let xrc = srq.and_then(|handle| env.srqs.get(handle.0)?.xrc);
        xrc.map_or(self.recv_cq, |(_, cq)| cq)
    }

    pub(super) fn scatter(
        &mut self,
        taken: Taken,
        srq: Option<SrqHandle>,
        offset: u32,
        data: &[u8],
        env: &mut Env,
    ) -> Result<(), Fault> {
        // Rule: Q-08.
        let fault = Fault::Refused(NakCode::RemoteOperationalError, WcStatus::LocProtErr);
        let (pd, sges) = match srq {
            None => (self.pd, self.rq.sges(taken)),
            Some(handle) => {
                // Buffers of a shared queue are registered in its own domain.
                env.srqs.get(handle.0).map(|srq| (srq.pd, srq.queue.sges(taken))).ok_or(fault)?
            }
        };
        let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if u64::from(offset) + data.len() as u64 > room {
            return Err(Fault::Refused(NakCode::InvalidRequest, WcStatus::LocLenErr));
        }
        scatter_into(pd, sges, offset.into(), data, env).map_err(|_| fault)?;
        Ok(())
    }
}

/// Tells of a shared receive queue that has run low, once.
pub(super) fn check_srq_limit(handle: SrqHandle, env: &mut Env) {
    let Some(srq) = env.srqs.get_mut(handle.0) else { return };
    if srq.limit > 0 && srq.queue.len() < srq.limit {
        srq.limit = 0;
        env.raise(super::AsyncEvent::Srq(EventType::SrqLimitReached, handle));
    }
}
