//! Receive-side scaling: frames are distributed over several receive queues by a hash of their addresses and ports, so
//! that each flow stays in order and several processors share the work.

use super::config::OBJECT_BYTES;
use super::env::Env;
use super::recv_queue::RecvQueue;
use super::sge::scatter_into;
use super::{Counter, Engine};
use crate::verbs::{
    CqHandle, CreateError, DestroyError, FrameHeaders, PdHandle, PostError, QpCap, QpCreate,
    QpHandle, QpInitAttr, QpState, QpType, RecvWr, Rss, Wc, WcOpcode, WcStatus, WqHandle, WqState,
};
use crate::wire::Qpn;

/// A receive queue without a queue pair.
#[derive(Debug)]
pub(super) struct Wq {
    pd: PdHandle,
    cq: CqHandle,
    /// Number in its completions.
    number: Qpn,
    state: WqState,
    queue: RecvQueue,
}

impl Wq {
    pub(super) fn is_in(&self, pd: PdHandle) -> bool {
        self.pd == pd
    }

    /// Number of bytes that it takes when it is in use.
    fn bytes(&self) -> u64 {
        OBJECT_BYTES + RecvQueue::bytes(self.queue.depth(), self.queue.max_sge())
    }
}

impl Engine {
    /// Creates a receive queue, in RESET, for queue pairs with RSS.
    pub fn create_wq(
        &mut self,
        pd: PdHandle,
        cq: CqHandle,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<WqHandle, CreateError> {
        self.pds.get(pd.0).ok_or(CreateError::NotFound("protection domain"))?;
        self.env.cqs.get(cq.0).ok_or(CreateError::NotFound("completion queue"))?;
        let limits = self.env.config.limits;
        if max_wr > limits.wrs || max_sge > limits.sges {
            return Err(CreateError::TooLarge("the size of the queue"));
        }
        let queue = RecvQueue::new(max_wr, max_sge);
        let wq = Wq { pd, cq, number: Qpn::new(0), state: WqState::Reset, queue };
        let bytes = wq.bytes();
        let id =
            self.promise(bytes, |engine| engine.env.wqs.insert(wq, &[0]).ok_or(CreateError::Full))?;
        let number = Qpn::new(self.env.wqs.number(id));
        if let Some(wq) = self.env.wqs.get_mut(id) {
            wq.number = number;
        }
        self.use_cq(cq, true);
        Ok(WqHandle(id))
    }

    /// Returns the number in the completions of a receive queue.
    pub fn wq_number(&self, wq: WqHandle) -> Option<Qpn> {
        self.env.wqs.get(wq.0).map(|wq| wq.number)
    }

    /// Changes the state of a receive queue. In RESET posted receives are discarded, in ERR they are flushed.
    pub fn modify_wq(&mut self, handle: WqHandle, state: WqState) -> Result<(), CreateError> {
        let wq = self.env.wqs.get_mut(handle.0).ok_or(CreateError::NotFound("receive queue"))?;
        match (wq.state, state) {
            (WqState::Err, WqState::Ready) => {
                return Err(CreateError::Invalid("a receive queue in ERR must be reset first"));
            }
            (_, WqState::Reset) => wq.queue.clear(),
            (_, WqState::Ready | WqState::Err) => {}
        }
        wq.state = state;
        self.env.flush_wq(handle);
        Ok(())
    }

    /// Destroys a receive queue that no queue pair uses.
    pub fn destroy_wq(&mut self, handle: WqHandle) -> Result<(), DestroyError> {
        let wq = self.env.wqs.get(handle.0).ok_or(DestroyError::NotFound)?;
        let (cq, bytes) = (wq.cq, wq.bytes());
        let uses = |rss: &Rss| rss.queues.contains(&handle);
        if self.qps.iter().any(|qp| qp.rss().is_some_and(uses)) {
            return Err(DestroyError::Busy);
        }
        self.env.wqs.remove(handle.0);
        self.env.promised.give_back(bytes);
        self.use_cq(cq, false);
        Ok(())
    }

    /// Posts a receive to a receive queue.
    pub fn post_wq_recv(&mut self, handle: WqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let wq = self.env.wqs.get_mut(handle.0).ok_or(PostError::UnknownReceiveQueue)?;
        if wq.state == WqState::Reset {
            return Err(PostError::WrongState(QpState::Reset));
        }
        wq.queue.push(wr)?;
        self.env.flush_wq(handle);
        Ok(())
    }

    /// Creates a raw packet queue pair that receives into several queues and does not send. It is ready at once.
    pub fn create_rss_qp(
        &mut self,
        pd: PdHandle,
        cq: CqHandle,
        rss: Rss,
    ) -> Result<QpHandle, CreateError> {
        let known = |queue: &WqHandle| self.env.wqs.get(queue.0).is_some();
        if !rss.queues.len().is_power_of_two() || !rss.queues.iter().all(known) {
            return Err(CreateError::NotFound("receive queue"));
        }
        let init =
            QpInitAttr { qp_type: QpType::RawPacket, cap: QpCap::default(), sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = self.create_qp(pd, create)?;
        if let Some((qp, _)) = self.split_handle(qp) {
            qp.set_rss(rss);
        }
        Ok(qp)
    }
}

impl Env {
    /// Flushes a receive queue in ERR.
    fn flush_wq(&mut self, handle: WqHandle) {
        loop {
            let Some(wq) = self.wqs.get_mut(handle.0) else { return };
            if wq.state != WqState::Err {
                return;
            }
            let Some(taken) = wq.queue.take() else { return };
            let id = wq.queue.release(taken);
            let wc = Wc::new(id, WcStatus::WrFlushErr, WcOpcode::Recv, wq.number);
            let cq = wq.cq;
            self.complete(cq, wc, false);
        }
    }

    /// Delivers a frame to the receive queue that its hash selects.
    pub(super) fn receive_by_rss(
        &mut self,
        rss: &Rss,
        frame: &[u8],
        headers: &FrameHeaders<'_>,
    ) -> Result<(), Counter> {
        let mask = rss.queues.len().wrapping_sub(1);
        let at = rss.hash.of(headers) as usize & mask;
        let handle = *rss.queues.get(at).ok_or(Counter::NoReceive)?;
        let wq = self.wqs.get_mut(handle.0).ok_or(Counter::NoReceive)?;
        if wq.state != WqState::Ready {
            return Err(Counter::WrongState);
        }
        let next = wq.queue.peek().ok_or(Counter::NoReceive)?;
        if wq.queue.room(next) < frame.len() as u64 {
            return Err(Counter::TooLong);
        }
        let taken = wq.queue.take().ok_or(Counter::NoReceive)?;
        let (pd, number, cq) = (wq.pd, wq.number, wq.cq);
        let sges = wq.queue.sges(taken).to_vec();
        let id = wq.queue.release(taken);
        let placed = scatter_into(pd, &sges, 0, frame, self);
        let status = if placed.is_ok() { WcStatus::Success } else { WcStatus::LocProtErr };
        let byte_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let wc = Wc::new(id, status, WcOpcode::Recv, number).with_byte_len(byte_len);
        let delivered = self.complete(cq, wc, false);
        if !delivered || status != WcStatus::Success {
            if let Some(wq) = self.wqs.get_mut(handle.0) {
                wq.state = WqState::Err;
            }
            self.flush_wq(handle);
        }
        Ok(())
    }
}
