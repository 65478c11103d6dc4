//! Answers on their way out, in the order in which they are owed.

use super::Counter;
use super::batch::Batch;
use super::keys::Refusal;
use super::qp::{Env, Qp};
use super::queue::packets;
use super::responder::{ACCESS, Owed, Owing};
use crate::verbs::Access;
use crate::wire::aeth::{Answer, Credits};
use crate::wire::{AethRepr, AtomicAckEthRepr, BthRepr, Msn, Opcode, Position, Psn};

impl Qp {
    /// Sends the next answer that is owed; whether there was one.
    pub(super) fn answer_next(&mut self, env: &mut Env<'_>, batch: &mut Batch) -> bool {
        if self.resp.cnp_owed {
            self.resp.cnp_owed = false;
            self.send_cnp(env, batch);
            return true;
        }
        let Some(owed) = self.resp.owed.front().copied() else { return false };
        match owed {
            Owed::Ack { psn, msn, answer } => {
                let answer = self.answer(answer);
                self.send_answer(Opcode::RC_ACKNOWLEDGE, psn, Some((answer, msn)), None, batch);
            }
            Owed::Atomic { psn, original, msn, .. } => {
                let answer = self.answer(Owing::Accepted);
                let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
                self.send_answer(opcode, psn, Some((answer, msn)), Some(original), batch);
            }
            Owed::Empty { psn, msn, .. } => {
                let answer = self.answer(Owing::Accepted);
                let opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
                self.send_answer(opcode, psn, Some((answer, msn)), None, batch);
            }
            Owed::Read { .. } => {
                if !self.send_read_data(owed, env, batch) {
                    return true;
                }
            }
        }
        env.count(Counter::Sent);
        self.resp.owed.pop_front();
        true
    }

    /// The syndrome of an acknowledgement.
    fn answer(&self, owing: Owing) -> Answer {
        match owing {
            Owing::Accepted if self.srq.is_none() && self.rq.depth() > 0 => {
                Answer::Ack(self.credits())
            }
            Owing::Accepted => Answer::Ack(Credits::UNLIMITED),
            Owing::NotReady => Answer::RnrNak(self.attr.min_rnr_timer),
            Owing::Refused(code) => Answer::Nak(code),
        }
    }

    fn credits(&self) -> Credits {
        if self.resp.advertise { Credits::advertise(self.rq.len()) } else { Credits::UNLIMITED }
    }

    fn send_answer(
        &self,
        opcode: Opcode,
        psn: Psn,
        aeth: Option<(Answer, Msn)>,
        original: Option<u64>,
        batch: &mut Batch,
    ) {
        let mut headers = [0; 24];
        let len = self.answer_headers(&mut headers, opcode, psn, aeth, original, 0);
        let pushed: Result<(), ()> = batch.push(&self.route, &headers[..len], 0, |_| Ok(()));
        debug_assert!(pushed.is_ok(), "an answer without data has nothing to fail");
    }

    fn answer_headers(
        &self,
        out: &mut [u8; 24],
        opcode: Opcode,
        psn: Psn,
        aeth: Option<(Answer, Msn)>,
        original: Option<u64>,
        payload: u32,
    ) -> usize {
        let pad = crate::wire::Bits::low(payload.wrapping_neg());
        let bth = BthRepr::new(self.opcode(opcode), self.attr.dest_qp_num, psn);
        let bth = BthRepr { pkey: self.pkey, pad, ..bth };
        out[..12].copy_from_slice(bth.emit().as_bytes());
        let mut len = 12;
        if let Some((answer, msn)) = aeth {
            let aeth = AethRepr { syndrome: answer.into(), msn };
            out[len..len + 4].copy_from_slice(aeth.emit().as_bytes());
            len += 4;
        }
        if let Some(original) = original {
            out[len..len + 8].copy_from_slice(AtomicAckEthRepr { original }.emit().as_bytes());
            len += 8;
        }
        len
    }

    /// Sends the next packet of data that was read; whether it was the last.
    fn send_read_data(&mut self, owed: Owed, env: &mut Env<'_>, batch: &mut Batch) -> bool {
        let Owed::Read { psn, va, rkey, len, sent, msn, counts } = owed else { return true };
        let count = packets(len, self.mtu);
        let offset = sent * self.mtu;
        let size = (len - offset).min(self.mtu);
        let (opcode, position) = match (sent == 0, sent + 1 == count) {
            (true, true) => (Opcode::RC_RDMA_READ_RESPONSE_ONLY, Position::Only),
            (true, false) => (Opcode::RC_RDMA_READ_RESPONSE_FIRST, Position::First),
            (false, true) => (Opcode::RC_RDMA_READ_RESPONSE_LAST, Position::Last),
            (false, false) => (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, Position::Middle),
        };
        let aeth = (position != Position::Middle).then(|| (self.answer(Owing::Accepted), msn));
        let mut headers = [0; 24];
        let at = psn.plus(sent);
        let header_len = self.answer_headers(&mut headers, opcode, at, aeth, None, size);
        let (pd, qpn, va) = (self.pd, self.owner(), va.wrapping_add(offset.into()));
        let filled = batch.push(&self.route, &headers[..header_len], size as usize, |out| {
            if out.is_empty() {
                return Ok(());
            }
            let grant = env.keys.remote(pd, qpn, rkey, va, size.into(), Access::REMOTE_READ)?;
            grant.region.read(grant.offset, out).map_err(|_| Refusal::Range)
        });
        if filled.is_err() && !counts {
            // Errors in answering again are nobody's business.
            self.resp.owed.pop_front();
            env.count(Counter::NoReplay);
            return false;
        }
        if filled.is_err() {
            // The memory has gone since it was asked for.
            self.resp.owed.clear();
            self.refuse(at, ACCESS, env);
            return false;
        }
        if position.ends() {
            return true;
        }
        env.count(Counter::Sent);
        if let Some(Owed::Read { sent, .. }) = self.resp.owed.front_mut() {
            *sent += 1;
        }
        false
    }

    /// Tells the peer that its packets met congestion.
    fn send_cnp(&self, env: &mut Env<'_>, batch: &mut Batch) {
        let bth = BthRepr::new(Opcode::CNP, self.attr.dest_qp_num, Psn::new(0));
        let bth = BthRepr { becn: true, pkey: self.pkey, ..bth };
        let payload = crate::wire::CnpRepr {}.emit();
        let pushed: Result<(), ()> =
            batch.push(&self.route, bth.emit().as_bytes(), payload.as_bytes().len(), |out| {
                out.copy_from_slice(payload.as_bytes());
                Ok(())
            });
        debug_assert!(pushed.is_ok(), "a notification has nothing to fail");
        env.count(Counter::CnpSent);
        env.count(Counter::Sent);
    }
}
