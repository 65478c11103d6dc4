//! Responses that come before others: they are held, the data of a READ are written to their place.

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::super::recovery::ReceiveMode;
use super::super::super::reorder::Held;
use super::super::Failure;
use super::super::attr::Attributes;
use super::Tx;
use super::response::ResponseOutcome;
use crate::verbs::WrOpcode;
use crate::wire::{Operation, Packet, Psn};

impl Tx {
    /// Handles that the request at the head of the queue lacks its response, while the responder
    /// has executed everything before `psn`.
    pub(super) fn response_missing(
        &mut self,
        psn: Psn,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        if env.config.receive == ReceiveMode::InOrder {
            env.count(Counter::ImpliedNak);
            return self.retry(attr, env);
        }
        let (una, now) = (self.una, env.now);
        let gaps = self.open_gaps(attr, env);
        gaps.note_executed(psn);
        let threshold = env.config.reorder;
        let is_old = now >= gaps.since.saturating_add(threshold.time);
        let is_lost = psn.since(una).unsigned_abs() > threshold.packets || is_old;
        if is_lost && attr.is_selective() {
            gaps.note_lost(una);
        } else if is_lost {
            env.count(Counter::ImpliedNak);
            return self.retry(attr, env);
        }
        Ok(())
    }

    /// Holds a response that came before others.
    pub(super) fn hold_response(&mut self, packet: &Packet<'_>, attr: &Attributes, env: &mut Env) {
        let una = self.una;
        let psn = packet.bth().psn();
        if self.gaps.as_ref().is_some_and(|gaps| gaps.holds(psn)) {
            return env.count(Counter::Duplicate);
        }
        let placed = self.place_response(packet, psn, attr, env);
        let Some(gaps) = &mut self.gaps else { return };
        let now = (env.now, &mut env.counters);
        env.reorder.hold(&mut gaps.responses, una, packet, placed, now);
    }

    /// Writes the data of a response to the READ at the head of the queue to their place, if they
    /// are what that READ waits for.
    fn place_response(
        &self,
        packet: &Packet<'_>,
        psn: Psn,
        attr: &Attributes,
        env: &Env,
    ) -> Option<Held> {
        if env.config.receive != ReceiveMode::Place || self.sq.is_empty() {
            return None;
        }
        let wqe = self.sq.get(self.sq.head());
        let is_its = packet.info()?.operation == Operation::ReadResponse
            && wqe.opcode() == WrOpcode::RdmaRead
            && wqe.is_begun()
            && wqe.contains(psn, attr.mtu);
        if !is_its {
            return None;
        }
        let offset = psn.since(wqe.psn()).unsigned_abs() * attr.mtu;
        let len = wqe.len().saturating_sub(offset).min(attr.mtu);
        if packet.payload_len() != len as usize {
            return None;
        }
        self.scatter_to_head(offset.into(), packet.data(), attr, env).ok()?;
        Held::placed(packet)
    }

    /// Takes the responses that are held and next in sequence.
    #[inline]
    pub(super) fn take_early(
        &mut self,
        outcome: ResponseOutcome,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<ResponseOutcome, Failure> {
        if self.gaps.is_some() {
            self.take_all_early(attr, env)?;
        }
        Ok(outcome)
    }

    fn take_all_early(&mut self, attr: &Attributes, env: &mut Env) -> Result<(), Failure> {
        loop {
            let una = self.una;
            let Some(gaps) = &mut self.gaps else { return Ok(()) };
            gaps.advance(una, env.now);
            env.reorder.advance(&mut gaps.responses, una, env.now);
            let executed = gaps.executed();
            if let Some(held) = gaps.responses.as_mut().and_then(|held| held.take(una)) {
                let taken = match held.packet() {
                    Some(packet) => self.take_response(&packet, una, attr, env),
                    None => Ok(()),
                };
                env.reorder.free(held);
                taken?;
            } else if executed.since(una) > 0 && !self.head_lacks_response() {
                self.acknowledge_before(executed, attr, env)?;
            }
            if self.una == una {
                break;
            }
        }
        self.end_recovery(env);
        Ok(())
    }
}
