//! WQs: receive queues that RSS distributes frames over. A WQ is a raw packet queue pair that has a
//! receive queue alone.

use crate::engine::Engine;
use crate::verbs::{
    AttrMask, CqHandle, CreateError, DestroyError, PdHandle, PortNum, PostError, QpAttr, QpCap,
    QpCreate, QpHandle, QpInitAttr, QpState, QpType, RecvWr, codes,
};
use crate::wire::Qpn;

use super::Steering;

/// A WQ: a receive queue without a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WqHandle(pub(super) QpHandle);

codes! {
    /// The state of a WQ: `ibv_wq_state`.
    WqState, "IBV_WQS_" {
        /// Receives nothing. Posted receives were discarded.
        Reset = 0, "RESET", "reset";
        /// Receives.
        Ready = 1, "RDY", "ready";
        /// Posted receives are flushed.
        Err = 2, "ERR", "error";
    }
}

impl Steering {
    /// Creates a WQ, in RESET.
    pub fn create_wq(
        &mut self,
        engine: &mut Engine,
        pd: PdHandle,
        cq: CqHandle,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<WqHandle, CreateError> {
        let cap = QpCap { max_recv_wr: max_wr, max_recv_sge: max_sge, ..QpCap::default() };
        engine.create_qp(pd, raw_packet(cap, cq)).map(WqHandle)
    }

    /// Returns the number in the completions of a WQ.
    pub fn wq_number(&self, engine: &Engine, wq: WqHandle) -> Option<Qpn> {
        engine.qp_number(wq.0)
    }

    /// Changes the state of a WQ. In RESET posted receives are discarded, in ERR they are flushed.
    pub fn modify_wq(
        &mut self,
        engine: &mut Engine,
        wq: WqHandle,
        state: WqState,
    ) -> Result<(), CreateError> {
        let now = engine.qp_state(wq.0).ok_or(CreateError::NotFound("receive queue"))?;
        let through: &[QpState] = match (now, state) {
            (_, WqState::Reset) => &[QpState::Reset],
            (QpState::Reset, WqState::Ready) => &[QpState::Init, QpState::Rtr],
            (QpState::Reset, WqState::Err) => &[QpState::Init, QpState::Err],
            (QpState::Err, WqState::Ready) => {
                return Err(CreateError::Invalid("a receive queue in ERR must be reset first"));
            }
            (QpState::Err, WqState::Err) | (_, WqState::Ready) => &[],
            (_, WqState::Err) => &[QpState::Err],
        };
        for &qp_state in through {
            let attr = QpAttr { qp_state, port_num: PortNum::FIRST, ..QpAttr::default() };
            let port = if qp_state == QpState::Init { AttrMask::PORT } else { AttrMask::empty() };
            let changed = engine.modify_qp(wq.0, &attr, AttrMask::STATE | port);
            changed
                .map_err(|_| CreateError::Invalid("the receive queue cannot change its state"))?;
        }
        Ok(())
    }

    /// Destroys a WQ that is in no indirection table.
    pub fn destroy_wq(&mut self, engine: &mut Engine, wq: WqHandle) -> Result<(), DestroyError> {
        if self.is_in_table(wq) {
            return Err(DestroyError::Busy);
        }
        engine.destroy_qp(wq.0)
    }

    /// Posts a receive to a WQ.
    pub fn post_wq_recv(
        engine: &mut Engine,
        wq: WqHandle,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        engine.post_recv(wq.0, wr).map_err(|error| match error {
            PostError::UnknownQp => PostError::UnknownReceiveQueue,
            error => error,
        })
    }
}

/// Attributes of a raw packet queue pair.
pub(super) fn raw_packet(cap: QpCap, cq: CqHandle) -> QpCreate {
    let init = QpInitAttr { qp_type: QpType::RawPacket, cap, sq_sig_all: false };
    QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None }
}
