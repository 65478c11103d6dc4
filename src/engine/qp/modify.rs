//! State transitions of a queue pair.
//!
//! [`verbs::transition`](crate::verbs::transition) says which attributes a transition needs and
//! allows (S-01). This file checks their values against the port and the engine. Nothing changes
//! unless everything is valid.

use super::super::Engine;
use super::super::config::Config;
use super::super::env::Env;
use super::super::path::path_to;
use super::attr::Attributes;
use crate::verbs::{
    AhAttr, AttrMask, Connect, ConnectError, Endpoint, ModifyError, PortNum, QpAttr, QpHandle,
    QpState, QpType, bring_up, transition,
};
use crate::wire::{PKey, QKey};

/// ECN-capable transport, as the code point that senders use.
const ECT0: u8 = 2;

impl Engine {
    /// Changes the attributes of a queue pair that `mask` names. If the mask has the state, the
    /// queue pair enters `attr.qp_state`; otherwise it stays in its own.
    pub fn modify_qp(
        &mut self,
        handle: QpHandle,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        let (qp, env) = self.split_handle(handle).ok_or(ModifyError::NotFound)?;
        qp.modify(attr, mask, env)
    }

    /// Takes a queue pair from RESET or INIT to RTS, connected to a peer: of two engines, each
    /// connects its own to the other's. Without [`Connect::psn`], its first PSN is 0.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    ///
    /// use roce::engine::{Batch, Config, Engine, Received};
    /// use roce::time::Instant;
    /// use roce::verbs::{
    ///     Connect, Data, Endpoint, QpCap, QpCreate, QpInitAttr, QpType, RecvWr, SendOp, SendWr,
    ///     Wc, WrId,
    /// };
    /// use roce::wire::{Gid, Psn};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sides = Vec::new();
    /// for host in [1, 2] {
    ///     let gid = Gid::from(Ipv4Addr::new(192, 0, 2, host));
    ///     let mut engine = Engine::new(Config::new(gid), u64::from(host));
    ///     let (pd, cq) = (engine.create_pd()?, engine.create_cq(16)?);
    ///     let init =
    ///         QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: true };
    ///     let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    ///     let qp = engine.create_qp(pd, create)?;
    ///     let qpn = engine.qp_number(qp).ok_or("it was just made")?;
    ///     sides.push((engine, qp, cq, Endpoint { gid, qpn, psn: Psn::new(7) }));
    /// }
    /// let [(mut a, a_qp, a_cq, a_end), (mut b, b_qp, b_cq, b_end)] = sides.try_into().ok().unwrap();
    /// let how = Connect::default().psn(Psn::new(7));
    /// a.connect(a_qp, &b_end, &how)?;
    /// b.connect(b_qp, &a_end, &how)?;
    ///
    /// b.post_recv(b_qp, &RecvWr { id: WrId(1), sges: &[] })?;
    /// let send = SendOp::Send { imm: Some([1, 2, 3, 4]) };
    /// a.post_send(a_qp, &SendWr::new(WrId(2), send, Data::EMPTY), &[])?;
    /// // The packet goes one way, and its acknowledgement the other.
    /// let (now, mut batch) = (Instant::ZERO, Batch::new(16));
    /// let mut pass = |from: &mut Engine, to: &mut Engine| {
    ///     batch.clear();
    ///     from.poll_transmit(now, &mut batch);
    ///     for (path, bytes) in batch.iter() {
    ///         to.handle_packet(now, &Received::unchanged(path, bytes));
    ///     }
    /// };
    /// pass(&mut a, &mut b);
    /// pass(&mut b, &mut a);
    /// let mut done = [Wc::default()];
    /// assert_eq!((a.poll_cq(a_cq, &mut done), done[0].id), (1, WrId(2)));
    /// assert_eq!((b.poll_cq(b_cq, &mut done), done[0].id), (1, WrId(1)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(
        &mut self,
        qp: QpHandle,
        peer: &Endpoint,
        how: &Connect,
    ) -> Result<(), ConnectError> {
        self.agree_selective_repeat(qp, how.selective_repeat);
        self.bring_up(qp, QpState::Rts, &how.attributes(Some(peer)))
    }

    /// Agrees on selective repeat for a queue pair: its peer has said that it does the same, by
    /// whatever means connects them. Returns whether it is used: only where
    /// [`Config::recovery`](super::super::Config::recovery) has it, on reliable connections.
    /// Without it go-back-N is used, and nothing that a standard peer would not understand is sent.
    /// RESET ends it.
    pub fn agree_selective_repeat(&mut self, qp: QpHandle, agreed: bool) -> bool {
        let Some((qp, env)) = self.split_handle(qp) else { return false };
        qp.agree_selective_repeat(agreed, env)
    }

    /// Agrees that the packets of a queue pair are sprayed over [`Config::paths`] source ports, or
    /// that they go out of one, because its peer drops packets that come before others; by whatever
    /// means the peer has said it. Without an agreement they are sprayed. Returns whether they are.
    /// RESET ends it.
    ///
    /// [`Config::paths`]: super::super::Config::paths
    pub fn agree_spraying(&mut self, qp: QpHandle, agreed: bool) -> bool {
        let Some((qp, env)) = self.split_handle(qp) else { return false };
        qp.agree_spraying(agreed, env)
    }

    /// Whether selective repeat is used on a queue pair.
    pub fn is_selective(&self, qp: QpHandle) -> Option<bool> {
        Some(self.qps.get(qp.0)?.attr().is_selective())
    }

    /// Takes a queue pair from RESET or INIT to a later state up to RTS, each time with the
    /// attributes of `attr` that the transition requires.
    pub fn bring_up(
        &mut self,
        qp: QpHandle,
        to: QpState,
        attr: &QpAttr,
    ) -> Result<(), ConnectError> {
        let kind = self.qp_kind(qp).ok_or(ConnectError::NotFound)?;
        let from = self.qp_state(qp).ok_or(ConnectError::NotFound)?;
        bring_up(kind, from, to, attr, |attr, mask| self.modify_qp(qp, attr, mask))
    }

    /// Returns the attributes of a queue pair as they are.
    pub fn query_qp(&self, handle: QpHandle) -> Option<QpAttr> {
        Some(self.qps.get(handle.0)?.query())
    }

    /// Whether every work request of the send queue is acknowledged, or has failed.
    pub fn is_send_queue_empty(&self, handle: QpHandle) -> Option<bool> {
        Some(self.qps.get(handle.0)?.tx.is_empty())
    }
}

/// Checks a change of attributes; returns those that apply, and the state that is entered.
pub(super) fn check(
    qp: &Attributes,
    attr: &QpAttr,
    mask: AttrMask,
    env: &Env,
) -> Result<(AttrMask, QpState), ModifyError> {
    let mask = mask.difference(transition::ignored(qp.kind));
    let from = qp.state();
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != from {
        return Err(ModifyError::CurState { stated: attr.cur_qp_state, actual: from });
    }
    let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { from };
    transition::check(qp.kind, from, to, mask | AttrMask::STATE)?;
    // Rule: S-01.2.
    check_values(attr, mask, env)?;
    Ok((mask, to))
}

/// Checks that this port and this engine can serve every value.
fn check_values(attr: &QpAttr, mask: AttrMask, env: &Env) -> Result<(), ModifyError> {
    let limits = &env.config.limits;
    let pkeys = env.config.pkeys.len();
    let is_reachable =
        |ah: &AhAttr| ah.port_num == PortNum::FIRST && env.gid(ah.sgid_index).is_some();
    let checks = [
        (AttrMask::PKEY_INDEX, usize::from(attr.pkey_index) < pkeys),
        (AttrMask::PORT, attr.port_num == PortNum::FIRST),
        (AttrMask::AV, is_reachable(&attr.ah_attr)),
        (
            AttrMask::ALT_PATH,
            attr.alt_port_num == PortNum::FIRST
                && is_reachable(&attr.alt_ah_attr)
                && usize::from(attr.alt_pkey_index) < pkeys,
        ),
        (AttrMask::PATH_MTU, attr.path_mtu.bytes() <= env.config.port_mtu.bytes()),
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= limits.rd_atomic),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= limits.rd_atomic),
    ];
    match checks.into_iter().find(|(attribute, valid)| mask.contains(*attribute) && !valid) {
        Some((attribute, _)) => Err(ModifyError::Value(attribute)),
        None => Ok(()),
    }
}

impl Attributes {
    /// Derives the attributes that `Tx` and `Rx` use from those that the program set.
    pub(super) fn derive(&mut self, requested: &mut QpAttr, env: &Env) {
        if self.kind == QpType::Gsi {
            requested.qkey = QKey::GSI;
        }
        let (config, index) = (&env.config, usize::from(requested.pkey_index));
        self.pkey = config.pkeys.get(index).copied().unwrap_or(PKey::DEFAULT);
        (self.dest, self.timeout) = (requested.dest_qp_num, requested.timeout);
        (self.retry_cnt, self.rnr_retry) = (requested.retry_cnt, requested.rnr_retry);
        (self.max_rd_atomic, self.max_dest_rd_atomic) =
            (requested.max_rd_atomic, requested.max_dest_rd_atomic);
        (self.min_rnr_timer, self.qkey) = (requested.min_rnr_timer, requested.qkey);
        self.access = requested.qp_access_flags;
        self.mtu = u32::try_from(requested.path_mtu.bytes()).expect("an MTU is small");
        self.limit_window(u64::MAX, config);
        if let Some(path) = path_to(&requested.ah_attr, self.qpn, self.dest, env) {
            self.path = path;
            // A program that made its packets ECN-capable by itself keeps its code point.
            if self.kind.is_connected() && config.is_ect() && path.traffic_class & 3 == 0 {
                self.path.traffic_class |= ECT0;
            }
        }
    }

    /// Sets the windows to what the configuration allows, and congestion control: `bytes`.
    pub(super) fn limit_window(&mut self, bytes: u64, config: &Config) {
        let limit = u32::try_from(bytes.div_ceil(self.mtu.into())).unwrap_or(u32::MAX);
        self.window = (config.window_bytes / self.mtu).clamp(1, config.window_packets);
        self.window = self.window.min(limit.max(1));
        self.loss_window = (config.loss_window_bytes / self.mtu).clamp(1, self.window);
    }
}
