//! Frames spread over several receive queues: by a hash of their addresses and ports, so that each flow stays in its
//! order and many processors share the work.

use super::config::OBJECT_BYTES;
use super::env::Env;
use super::queue::RecvQueue;
use super::sge::scatter_into;
use super::{Counter, Engine};
use crate::verbs::{
    CqHandle, CreateError, DestroyError, FrameHeaders, PdHandle, PostError, QpCap, QpCreate,
    QpHandle, QpInitAttr, QpState, QpType, RecvWr, Spread, Wc, WcOpcode, WcStatus, WqHandle,
    WqState,
};
use crate::wire::Qpn;

/// A receive queue without a queue pair.
#[derive(Debug)]
pub(super) struct Wq {
    pd: PdHandle,
    cq: CqHandle,
    /// What its completions are called by.
    number: Qpn,
    state: WqState,
    queue: RecvQueue,
}

impl Wq {
    pub(super) fn is_in(&self, pd: PdHandle) -> bool {
        self.pd == pd
    }

    /// How many bytes it takes when it is used as it may be.
    fn bytes(&self) -> u64 {
        OBJECT_BYTES + RecvQueue::bytes(self.queue.depth(), self.queue.max_sge())
    }
}

impl Engine {
    /// Makes a receive queue, in the state RESET. It is for queue pairs that spread frames.
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

    /// The number by which completions of a receive queue are told from others.
    pub fn wq_number(&self, wq: WqHandle) -> Option<Qpn> {
        self.env.wqs.get(wq.0).map(|wq| wq.number)
    }

    /// Brings a receive queue into another state. In RESET what was posted is forgotten, in ERR it is flushed.
    pub fn modify_wq(&mut self, handle: WqHandle, state: WqState) -> Result<(), CreateError> {
        let wq = self.env.wqs.get_mut(handle.0).ok_or(CreateError::NotFound("receive queue"))?;
        match (wq.state, state) {
            (WqState::Err, WqState::Ready) => {
                return Err(CreateError::Invalid("a queue in error is reset first"));
            }
            (_, WqState::Reset) => wq.queue.clear(),
            (_, WqState::Ready | WqState::Err) => {}
        }
        wq.state = state;
        self.env.flush_wq(handle);
        Ok(())
    }

    /// Unmakes a receive queue that no queue pair spreads frames over.
    pub fn destroy_wq(&mut self, handle: WqHandle) -> Result<(), DestroyError> {
        let wq = self.env.wqs.get(handle.0).ok_or(DestroyError::NotFound)?;
        let (cq, bytes) = (wq.cq, wq.bytes());
        let uses = |spread: &Spread| spread.queues.contains(&handle);
        if self.qps.iter().any(|qp| qp.spread().is_some_and(uses)) {
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

    /// Makes a queue pair of raw packets that receives only, into several queues. It is ready at once.
    pub fn create_spread_qp(
        &mut self,
        pd: PdHandle,
        cq: CqHandle,
        spread: Spread,
    ) -> Result<QpHandle, CreateError> {
        let known = |queue: &WqHandle| self.env.wqs.get(queue.0).is_some();
        if !spread.queues.len().is_power_of_two() || !spread.queues.iter().all(known) {
            return Err(CreateError::NotFound("receive queue"));
        }
        let init =
            QpInitAttr { qp_type: QpType::RawPacket, cap: QpCap::default(), sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = self.create_qp(pd, create)?;
        if let Some((qp, _)) = self.split_handle(qp) {
            qp.set_spread(spread);
        }
        Ok(qp)
    }
}

impl Env {
    /// Completes what is posted to a queue in error.
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

    /// Puts a frame into the queue that its hash leads to.
    pub(super) fn spread_frame(
        &mut self,
        spread: &Spread,
        frame: &[u8],
        headers: &FrameHeaders<'_>,
    ) -> Result<(), Counter> {
        let mask = spread.queues.len().wrapping_sub(1);
        let at = spread.hash.of(headers) as usize & mask;
        let handle = *spread.queues.get(at).ok_or(Counter::NoReceive)?;
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
        let heard = self.complete(cq, wc, false);
        if !heard || status != WcStatus::Success {
            if let Some(wq) = self.wqs.get_mut(handle.0) {
                wq.state = WqState::Err;
            }
            self.flush_wq(handle);
        }
        Ok(())
    }
}
