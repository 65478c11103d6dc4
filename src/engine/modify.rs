//! A queue pair's way through its states.
//!
//! Which attributes a transition needs and takes stands in [`verbs::transition`](crate::verbs::transition). What is
//! checked here besides is what only the engine knows; nothing changes unless everything is right.

use super::Engine;
use super::peer_port::PeerPort;
use super::qp::{Env, Qp};
use super::requester::Requester;
use super::responder::Responder;
use super::route::route_of;
use crate::verbs::{
    AhAttr, AttrMask, ModifyError, PortNum, QpAttr, QpHandle, QpState, QpType, transition,
};
use crate::wire::{PKey, QKey};

impl Engine {
    /// Changes a queue pair: the attributes of `attr` that `mask` names. To what state, `attr.qp_state` says if the
    /// mask has it; otherwise it stays in its own.
    pub fn modify_qp(
        &mut self,
        handle: QpHandle,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        let (qp, env) = self.split_handle(handle).ok_or(ModifyError::NotFound)?;
        let mask = mask.difference(transition::ignored(qp.kind));
        let from = qp.state();
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != from {
            return Err(ModifyError::CurState { stated: attr.cur_qp_state, actual: from });
        }
        let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { from };
        transition::check(qp.kind, from, to, mask | AttrMask::STATE)?;
        // Rule: S-01.2.
        qp.check_values(attr, mask, env)?;
        qp.take_attributes(attr, mask, env);
        qp.enter(from, to, env);
        Ok(())
    }

    /// The attributes of a queue pair as they are.
    pub fn query_qp(&self, handle: QpHandle) -> Option<QpAttr> {
        let qp = self.qps.get(handle.0)?;
        let mut attr = qp.attr;
        (attr.qp_state, attr.cur_qp_state) = (qp.state(), qp.state());
        attr.cap = qp.init.cap;
        attr.sq_draining = qp.state() == QpState::Sqd && qp.req.draining;
        attr.sq_psn = qp.req.next;
        attr.rq_psn = qp.resp.epsn;
        Some(attr)
    }
}

impl Qp {
    /// Whether every value is one that this port and this engine can serve.
    fn check_values(&self, attr: &QpAttr, mask: AttrMask, env: &Env) -> Result<(), ModifyError> {
        let limits = &env.config.limits;
        let wrong = |attribute: AttrMask| Err(ModifyError::Value(attribute));
        if mask.contains(AttrMask::PKEY_INDEX)
            && usize::from(attr.pkey_index) >= env.config.pkeys.len()
        {
            return wrong(AttrMask::PKEY_INDEX);
        }
        if mask.contains(AttrMask::PORT) && attr.port_num != PortNum::FIRST {
            return wrong(AttrMask::PORT);
        }
        let reaches =
            |ah: &AhAttr| ah.port_num == PortNum::FIRST && env.gid(ah.sgid_index).is_some();
        if mask.contains(AttrMask::AV) && !reaches(&attr.ah_attr) {
            return wrong(AttrMask::AV);
        }
        if mask.contains(AttrMask::ALT_PATH)
            && !(attr.alt_port_num == PortNum::FIRST
                && reaches(&attr.alt_ah_attr)
                && usize::from(attr.alt_pkey_index) < env.config.pkeys.len())
        {
            return wrong(AttrMask::ALT_PATH);
        }
        if mask.contains(AttrMask::PATH_MTU) && attr.path_mtu.bytes() > env.config.port_mtu.bytes()
        {
            return wrong(AttrMask::PATH_MTU);
        }
        if mask.contains(AttrMask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > limits.rd_atomic {
            return wrong(AttrMask::MAX_QP_RD_ATOMIC);
        }
        if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > limits.rd_atomic
        {
            return wrong(AttrMask::MAX_DEST_RD_ATOMIC);
        }
        Ok(())
    }

    /// Takes over the attributes that the mask names.
    fn take_attributes(&mut self, new: &QpAttr, mask: AttrMask, env: &Env) {
        self.attr.apply(new, mask & !AttrMask::STATE);
        if mask.contains(AttrMask::RQ_PSN) {
            self.resp.epsn = new.rq_psn;
        }
        if mask.contains(AttrMask::SQ_PSN) {
            self.req.start_at(new.sq_psn);
        }
        self.derive(env);
    }

    /// What follows from the attributes.
    pub(super) fn derive(&mut self, env: &Env) {
        let index = usize::from(self.attr.pkey_index);
        self.pkey = env.config.pkeys.get(index).copied().unwrap_or(PKey::DEFAULT);
        (self.dest, self.timeout) = (self.attr.dest_qp_num, self.attr.timeout);
        self.mtu = u32::try_from(self.attr.path_mtu.bytes()).expect("an MTU is small");
        let config = &env.config;
        self.window = (config.window_bytes / self.mtu).clamp(1, config.window_packets);
        if let Some(route) = route_of(&self.attr.ah_attr, self.qpn, self.attr.dest_qp_num, env) {
            self.route = route;
        }
        if self.kind == QpType::Gsi {
            self.attr.qkey = QKey::GSI;
        }
    }

    /// Enters a state.
    fn enter(&mut self, from: QpState, to: QpState, env: &mut Env) {
        if to != QpState::Sqd {
            // Who leaves before the queue has drained is not told of a later time.
            self.attr.en_sqd_async_notify = false;
        }
        match to {
            QpState::Reset => self.reset(env),
            QpState::Err => {
                // Who fails by itself still sends its refusal; who is put there says no more.
                self.resp.forget_owed();
                self.fail(env);
            }
            QpState::Sqd if from != QpState::Sqd => {
                self.set_state(to);
                self.req.draining = true;
                self.check_drained(env);
            }
            _ => {
                self.set_state(to);
                self.schedule(env);
            }
        }
    }

    /// Forgets the receive work request that a message has begun to fill.
    pub(super) fn release_begun(&mut self, env: &mut Env) {
        if let Some((taken, srq)) = self.resp.abandon()
            && let Some(queue) = self.recv_queue(srq, env)
        {
            queue.release(taken);
        }
    }

    /// Back to the beginning: whatever was posted is forgotten, without completions, and so are completions that nobody
    /// has looked at. What is polled afterwards is of the queue pair's new life.
    fn reset(&mut self, env: &mut Env) {
        // Rule: S-02.3.
        self.release_begun(env);
        for cq in [self.send_cq, self.recv_cq] {
            if let Some(cq) = env.cqs.get_mut(cq.0) {
                cq.forget(self.qpn);
            }
        }
        env.flows.leave(&mut self.share, &mut env.active);
        self.sq.clear();
        self.rq.clear();
        self.timer.clear();
        self.port = PeerPort::default();
        let fresh = QpAttr { cap: self.attr.cap, ..QpAttr::default() };
        self.attr = fresh;
        self.set_state(QpState::Reset);
        self.req = Requester::new();
        self.req.cursor = self.sq.tail();
        self.resp = Responder::new(env.config.advertise_credits);
    }
}
