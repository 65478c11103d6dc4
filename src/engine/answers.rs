//! Answers on their way out, in the order in which they are owed.

use super::Counter;
use super::keys::Refusal;
use super::owed::{Owed, Owing};
use super::qp::{Env, Qp};
use super::queue::packets;
use super::requester::pad_for;
use super::responder::ACCESS;
use crate::verbs::{Access, QpType};
use crate::wire::aeth::{Answer, Credits};
use crate::wire::batch::{Batch, Draft};
use crate::wire::{AethRepr, AtomicAckEthRepr, BthRepr, CnpRepr, Msn, Opcode, Position, Psn, RKey};

impl Qp {
    /// Sends the next answer that is owed; whether there was one.
    pub(super) fn answer_next(&mut self, env: &mut Env, batch: &mut Batch) -> bool {
        if self.resp.cnp_owed {
            self.resp.cnp_owed = false;
            self.send_cnp(env, batch);
            return true;
        }
        let Some(owed) = self.resp.owed.oldest().copied() else { return false };
        match owed {
            Owed::Ack { psn, msn, answer } => {
                self.resp.hold.end();
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
        self.resp.owed.pop();
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
        // Rule: P-13.3.
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
        let mut draft = batch.draft();
        self.put_answer(&mut draft, opcode, psn, aeth, 0);
        if let Some(original) = original {
            draft.put(AtomicAckEthRepr { original }.emit().as_bytes());
        }
        draft.finish();
    }

    /// Puts the headers of an answer with so many bytes of payload.
    fn put_answer(
        &self,
        draft: &mut Draft<'_>,
        opcode: Opcode,
        psn: Psn,
        aeth: Option<(Answer, Msn)>,
        payload: u32,
    ) {
        let bth = BthRepr::new(self.opcode(opcode), self.dest, psn);
        let bth = BthRepr { pkey: self.pkey, pad: pad_for(payload), ..bth };
        draft.put(bth.emit().as_bytes());
        if let Some((answer, msn)) = aeth {
            draft.put(AethRepr { syndrome: answer.into(), msn }.emit().as_bytes());
        }
    }

    /// Sends the next packet of data that was read; whether it was the last.
    fn send_read_data(&mut self, owed: Owed, env: &mut Env, batch: &mut Batch) -> bool {
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
        let at = psn.plus(sent);
        let mut draft = batch.draft();
        self.put_answer(&mut draft, opcode, at, aeth, size);
        let filled = self.append_read(va.wrapping_add(offset.into()), rkey, size, env, &mut draft);
        if filled.is_ok() {
            draft.finish();
        } else {
            drop(draft);
        }
        if filled.is_err() && !counts {
            // Errors in answering again are nobody's business.
            self.resp.owed.pop();
            env.count(Counter::NoReplay);
            return false;
        }
        if filled.is_err() {
            // The memory has gone since it was asked for.
            self.resp.owed.clear();
            // Rule: Q-13.
            self.refuse(at, ACCESS, env);
            return false;
        }
        if position.ends() {
            return true;
        }
        env.count(Counter::Sent);
        if let Some(Owed::Read { sent, .. }) = self.resp.owed.oldest() {
            *sent += 1;
        }
        false
    }

    /// Appends bytes that a peer may read.
    fn append_read(
        &self,
        va: u64,
        rkey: RKey,
        len: u32,
        env: &Env,
        draft: &mut Draft<'_>,
    ) -> Result<(), Refusal> {
        if len == 0 {
            return Ok(());
        }
        let needed = Access::REMOTE_READ;
        // Which domain the memory of an extended connection is in was known, and checked, when it was asked for.
        let pd = (self.kind != QpType::XrcRecv).then_some(self.pd);
        let grant = env.keys.remote(pd, self.owner(), rkey, va, len.into(), needed)?;
        let appended = grant.region.append_to(grant.offset, len as usize, draft.bytes());
        appended.map_err(|_| Refusal::Range)
    }

    /// Tells the peer that its packets met congestion.
    fn send_cnp(&self, env: &mut Env, batch: &mut Batch) {
        let bth = BthRepr::new(Opcode::CNP, self.dest, Psn::new(0));
        let bth = BthRepr { becn: true, pkey: self.pkey, ..bth };
        let mut draft = batch.draft();
        draft.put(bth.emit().as_bytes());
        draft.put(CnpRepr {}.emit().as_bytes());
        draft.finish();
        env.count(Counter::CnpSent);
        env.count(Counter::Sent);
    }
}
