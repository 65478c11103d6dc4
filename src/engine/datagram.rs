//! Datagrams: UD, the general services queue pair, and multicast.

use super::pieces::{gather, scatter_into};
use super::qp::{Env, Qp};
use super::queue::SendWqe;
use super::receive::check_srq_limit;
use super::requester::{Step, pad_for};
use super::route::route_of;
use super::{Counter, Engine};
use crate::verbs::Id;
use crate::verbs::{EventType, QpState, SendFlags, Wc, WcOpcode, WcStatus, WrOpcode, limits};
use crate::wire::Received;
use crate::wire::batch::Batch;
use crate::wire::{BthRepr, DethRepr, Gid, ImmDtRepr, Ipv4, Opcode, Packet, Service};

/// The area before the payload in a datagram's receive buffer.
const GRH_LEN: usize = limits::GRH_BYTES as usize;

impl Qp {
    /// Sends a datagram.
    pub(super) fn send_datagram(
        &mut self,
        wqe: &SendWqe,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Step {
        let index = self.req.cursor;
        let (ah, qpn, qkey) = wqe.ud_target();
        // An address handle of another protection domain counts as none.
        let Some(&(_, ah)) = env.ahs.get(Id(ah)).filter(|(pd, _)| *pd == self.pd) else {
            self.fail_send(index, WcStatus::LocQpOpErr, env);
            return Step::Done;
        };
        // Rule: Q-14.
        if wqe.len() as usize > env.config.port_mtu.bytes() {
            self.fail_send(index, WcStatus::LocLenErr, env);
            return Step::Done;
        }
        let Some(route) = route_of(&ah, self.qpn, qpn, env) else {
            self.fail_send(index, WcStatus::LocQpOpErr, env);
            return Step::Done;
        };
        // A key with its highest bit set is nobody's to choose: the queue pair's own goes out instead.
        // Rule: Q-15.
        let controlled = qkey.get() >> 31 == 1;
        let qkey = if controlled { self.own_qkey() } else { qkey };
        let imm = (wqe.opcode() == WrOpcode::SendWithImm).then(|| ImmDtRepr { data: wqe.imm() });
        let opcode = imm.map_or(Opcode::UD_SEND_ONLY, |_| Opcode::UD_SEND_ONLY_WITH_IMMEDIATE);
        let psn = self.req.next;
        let solicited = wqe.flags().contains(SendFlags::SOLICITED);
        let (pkey, pad) = (self.pkey, pad_for(wqe.len()));
        let bth = BthRepr { solicited, pkey, pad, ..BthRepr::new(opcode, qpn, psn) };
        batch.set_path(&route);
        let mut draft = batch.draft();
        draft.put(bth.emit().as_bytes());
        draft.put(DethRepr { qkey, src_qp: self.qpn }.emit().as_bytes());
        if let Some(imm) = imm {
            draft.put(imm.emit().as_bytes());
        }
        let source = self.sq.source(index);
        let filled = gather(source, 0, wqe.len() as usize, draft.bytes(), self.pd, env);
        if filled.is_ok() {
            draft.finish();
        } else {
            drop(draft);
            self.fail_send(index, WcStatus::LocProtErr, env);
            return Step::Done;
        }
        env.count(Counter::Sent);
        self.sq.get_mut(index).begin(psn);
        self.sq.get_mut(index).finish();
        self.req.next = psn.plus(1);
        self.req.una = self.req.next;
        self.advance_cursor();
        self.retire(env);
        Step::Done
    }

    /// Takes a datagram in, or drops it without a word.
    pub(super) fn handle_datagram(
        &mut self,
        received: &Received<'_>,
        packet: &Packet<'_>,
        env: &mut Env,
    ) -> Result<(), Counter> {
        if !self.rules.requests {
            return Err(Counter::WrongState);
        }
        let bth = packet.bth();
        // Rule: P-15.2.
        if !self.accepts_pkey(bth.pkey(), env) {
            return Err(Counter::BadPKey);
        }
        let deth = packet.deth().ok_or(Counter::Truncated)?;
        // Rule: P-15.1.
        if deth.qkey() != self.own_qkey() {
            return Err(Counter::BadQKey);
        }
        if packet.payload_len() > env.config.port_mtu.bytes() {
            return Err(Counter::OverMtu);
        }
        // Rule: W-50.2.
        if usize::from(packet.pad_len()) != packet.payload_len().wrapping_neg() % 4 {
            return Err(Counter::BadPadding);
        }
        let len = GRH_LEN + packet.payload_len();
        let srq = self.srq;
        let queue = self.recv_queue(srq, env).ok_or(Counter::NoReceive)?;
        let next = queue.peek().ok_or(Counter::NoReceive)?;
        if queue.room(next) < len as u64 {
            // The sender is not told, and the buffer waits for a message that fits.
            return Err(Counter::TooLong);
        }
        let taken = queue.take().ok_or(Counter::NoReceive)?;
        if let Some(handle) = srq {
            check_srq_limit(handle, env);
        }
        let status = self.place_datagram(taken, received.network, packet.payload(), env);
        let id = self.recv_queue(srq, env).ok_or(Counter::NoReceive)?.release(taken);
        let byte_len = u32::try_from(len).unwrap_or(u32::MAX);
        let mut wc = Wc::new(id, status, WcOpcode::Recv, self.qpn)
            .with_byte_len(byte_len)
            .with_datagram(deth.src_qp());
        wc.sl = header_kind(received.network);
        if let Some(imm) = packet.imm_dt() {
            wc = wc.with_imm(imm.data());
        }
        self.complete_recv(wc, bth.solicited(), env);
        if status != WcStatus::Success && self.state() != QpState::Err {
            self.raise(EventType::QpFatal, env);
            self.fail(env);
        }
        Ok(())
    }

    /// The general services queue pair takes any partition of the port, others their own.
    fn accepts_pkey(&self, pkey: crate::wire::PKey, env: &Env) -> bool {
        match self.kind {
            crate::verbs::QpType::Gsi => env.config.pkeys.iter().any(|own| own.matches(pkey)),
            _ => self.pkey.matches(pkey),
        }
    }

    /// Puts network header and payload where the receive wants them.
    fn place_datagram(
        &mut self,
        taken: super::queue::Taken,
        network: &[u8],
        payload: &[u8],
        env: &mut Env,
    ) -> WcStatus {
        // Rule: P-15.3.
        let mut area = [0; GRH_LEN];
        // An IPv4 header fills the second half; what is before it means nothing.
        let start = GRH_LEN.saturating_sub(network.len());
        for (to, from) in area.iter_mut().skip(start).zip(network) {
            *to = *from;
        }
        let (pd, sges) = match self.srq {
            None => (self.pd, self.rq.sges(taken)),
            Some(handle) => match env.srqs.get(handle.0) {
                Some(srq) => (srq.pd, srq.queue.sges(taken)),
                None => return WcStatus::LocProtErr,
            },
        };
        let placed = scatter_into(pd, sges, 0, &area, env)
            .and_then(|_| scatter_into(pd, sges, GRH_LEN as u64, payload, env));
        if placed.is_ok() { WcStatus::Success } else { WcStatus::LocProtErr }
    }
}

/// With which header a datagram came: eight for UDP, and one for IPv6 or two for IPv4. Ethernet has no service levels;
/// ConnectX tells this in their place, and programs such as UCX read it there to know where in a buffer the address is.
fn header_kind(network: &[u8]) -> u8 {
    8 | if network.len() > Ipv4::LEN { 1 } else { 2 }
}

impl Engine {
    /// Hands a packet to every queue pair that is attached to its group.
    pub(super) fn accept_multicast(
        &mut self,
        received: &Received<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Counter> {
        if packet.info().is_none_or(|info| info.service != Service::Ud) {
            return Err(Counter::WrongService);
        }
        let Gid(group) = received.destination;
        // Rule: P-15.4.
        let members = self.groups.get(&group).map_or(0, Vec::len);
        if members == 0 {
            return Err(Counter::NoGroup);
        }
        for member in 0..members {
            let handle = self.groups.get(&group).and_then(|members| members.get(member)).copied();
            let Some((qp, env)) = handle.and_then(|handle| self.split_handle(handle)) else {
                continue;
            };
            // Each for itself: what one refuses, another may take.
            if let Err(reason) = qp.handle_datagram(received, packet, env) {
                env.count(reason);
            }
        }
        Ok(())
    }
}
