//! Requests that come before the expected one: they are held, the payload of a WRITE is written to
//! its place, and what is missing is reported.

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::super::recovery::ReceiveMode;
use super::super::super::reorder::Held;
use super::super::Failure;
use super::super::attr::Attributes;
use super::super::responses::{self, AckKind};
use super::receive::memory_domain;
use super::{Message, Rx};
use crate::verbs::Access;
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::batch::Batch;
use crate::wire::{OpcodeInfo, Operation, Packet, Psn};

impl Rx {
    /// Handles a request ahead of the expected PSN where such requests are held.
    pub(super) fn handle_early(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) {
        env.count(Counter::OutOfSequence);
        if self.rnr_sent {
            // The requester sends all of it once more.
            return;
        }
        if !self.early.as_ref().is_some_and(|early| early.holds(packet.bth().psn())) {
            let placed = self.place(packet, info, attr, env);
            let now = (env.now, &mut env.counters);
            env.reorder.hold(&mut self.early, self.epsn, packet, placed, now);
        }
        self.report_gap(attr, env);
    }

    /// Writes the payload of a WRITE to its place, if it belongs to the message whose first packet
    /// was executed last, and everything about it is right. What belongs to later messages waits:
    /// an earlier request may still fail, or invalidate their key.
    fn place(
        &self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &Env,
    ) -> Option<Held> {
        let Some(Message::Write { va, rkey, left, .. }) = self.message else { return None };
        let is_next = info.operation == Operation::Write && !info.position.begins();
        if env.config.receive != ReceiveMode::Place || !is_next {
            return None;
        }
        let ahead = packet.bth().psn().since(self.epsn).unsigned_abs();
        let offset = ahead.checked_mul(attr.mtu).filter(|offset| *offset < left)?;
        let len = (left - offset).min(attr.mtu);
        let ends = left - offset <= attr.mtu;
        let data = packet.data();
        if data.len() != len as usize || info.position.ends() != ends {
            return None;
        }
        let (pd, owner) = (memory_domain(packet, attr, env), attr.window_owner());
        let va = va.wrapping_add(offset.into());
        let access = Access::REMOTE_WRITE;
        let grant = env.keys.remote(Some(pd), owner, rkey, va, len.into(), access).ok()?;
        grant.region.write_payload(grant.offset, data).ok()?;
        Held::placed(packet)
    }

    /// Executes the requests that are next in sequence and are held.
    pub(super) fn execute_early(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        let before = self.epsn;
        loop {
            env.reorder.advance(&mut self.early, self.epsn, env.now);
            let psn = self.epsn;
            let Some(held) = self.early.as_mut().and_then(|early| early.take(psn)) else { break };
            let mut executed = Ok(());
            if let Some(packet) = held.packet()
                && let Some(info) = packet.info()
            {
                executed = self.execute(&packet, info, attr, env);
            }
            env.reorder.free(held);
            if let Err(fault) = executed {
                env.reorder.close(&mut self.early);
                return self.refuse(psn, fault, attr, env);
            }
        }
        if attr.is_selective() && self.epsn != before {
            self.forget_wrapped();
            self.responses.acknowledge(self.last_psn(), self.msn);
        }
        if self.early.is_some() && attr.is_selective() {
            self.report_gap(attr, env);
        }
        Ok(())
    }

    /// Reports what is missing, if it is a loss by now; otherwise when it has become one.
    fn report_gap(&mut self, attr: &Attributes, env: &mut Env) {
        let threshold = env.config.reorder;
        if let Some(early) = &mut self.early
            && let Some(last) = early.last()
        {
            let ahead = last.since(self.epsn).unsigned_abs();
            let is_old = env.now >= early.since.saturating_add(threshold.time);
            if ahead <= threshold.packets && !is_old {
                if !core::mem::replace(&mut early.armed, true) {
                    env.gap_checks.push(env.now.saturating_add(threshold.time), attr.slot);
                }
                return;
            }
            if attr.is_selective() {
                return self.responses.nak(self.epsn, self.msn, AckKind::Sack);
            }
        }
        if !self.nak_sent {
            self.nak_sent = true;
            let kind = AckKind::Nak(NakCode::PsnSequenceError);
            self.responses.nak(self.epsn, self.msn, kind);
        }
    }

    /// Takes a check of the gap's age; returns whether a response is to be sent.
    pub(in super::super) fn check_gap(&mut self, attr: &Attributes, env: &mut Env) -> bool {
        let Some(early) = &mut self.early else { return false };
        if !core::mem::take(&mut early.armed) {
            return false;
        }
        self.report_gap(attr, env);
        self.responses.is_pending()
    }

    /// Handles a SACK of READ responses: repeats those that are missing, if all are of one READ
    /// whose responder resource is there. The key is checked for each packet.
    pub(in super::super) fn handle_response_sack(
        &mut self,
        packet: &Packet<'_>,
        attr: &Attributes,
        env: &mut Env,
    ) {
        let Some(base) = packet.sack_eth().map(|sack| sack.base()) else { return };
        let psn = packet.bth().psn();
        env.count(Counter::SackReceived);
        if self.responses.is_backlogged(attr.max_dest_rd_atomic) {
            return env.count(Counter::Backlog);
        }
        match self.missing_part(psn, base, attr) {
            Some(response) => self.responses.push_repeated(psn, response),
            None => env.count(Counter::NoReplay),
        }
    }

    /// Sends the SACK that is the next response; returns whether it did. If the gap has closed
    /// meanwhile, an ACK is sent in its place by the caller.
    pub(super) fn transmit_sack(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> bool {
        let Some((psn, msn)) = self.responses.next_sack() else { return false };
        let base = psn.plus(1);
        let held = self.early.as_ref().filter(|_| psn == self.epsn);
        let bitmap = held.map(|early| early.bitmap_from(base));
        match bitmap {
            Some(bitmap) => {
                let aeth = (Answer::Nak(NakCode::PsnSequenceError), msn);
                responses::send_sack(psn, aeth, base, bitmap, attr, env, batch);
                self.responses.sack_sent();
                true
            }
            None => {
                let last = psn.plus(Psn::HALF * 2 - 1);
                self.responses.replace_sack(last);
                false
            }
        }
    }
}
