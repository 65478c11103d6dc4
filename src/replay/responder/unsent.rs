//! Answers to requests that were not captured: the capture misses them, or they were not sent,
//! which only what comes later tells.

use core::time::Duration;

use super::World;
use super::answers::{Captured, undecided};
use super::rules;
use super::track::{State, Track};
use crate::observe::sequence::psn_of;
use crate::replay::Rule;
use crate::replay::judge::Sink;
use crate::replay::limits::OPEN_MAX;
use crate::replay::verdict::{Difference, Undecided, Verdict};
use crate::time::Instant;
use crate::wire::{Msn, Operation};

/// Retransmissions follow each other within this time.
const PASS: Duration = Duration::from_micros(10);

/// The shortest retransmission timeout, about.
const TIMEOUT: Duration = Duration::from_micros(500);

/// A verdict that waits for what the requester sends next.
#[derive(Debug)]
pub(super) struct Open {
    /// The packet is wrong if the requester sends this sequence number for the first time later.
    pub(super) unsent: u64,
    /// Otherwise all before this was executed, and this is the MSN, if it has one.
    pub(super) target: u64,
    pub(super) msn: Option<Msn>,
    pub(super) frame: u64,
    pub(super) time: Instant,
    /// Whether its MSN counts requests that were not captured.
    pub(super) is_counted: bool,
    /// Kind of answer, if it is no NAK.
    pub(super) needs: Option<Operation>,
    pub(super) difference: Box<Difference>,
}

impl Track {
    /// An answer says that a request arrived that was not captured: the capture misses it, or it
    /// was never sent, which only what comes later tells.
    pub(super) fn judge_unsent(
        &mut self,
        missing: u64,
        target: u64,
        it: &Captured<'_>,
        world: &mut World,
    ) -> Option<Verdict> {
        let rule = match it.info.operation {
            _ if it.is_nak() => &rules::NAK_PSN,
            Operation::Acknowledge => &rules::ACK_NOT_RECEIVED,
            _ if !it.info.position.begins() && self.has_unanswered() => &rules::RESPONSE_PSN,
            _ => &rules::RESPONSE_UNSOLICITED,
        };
        let is_beyond = self.top.is_none_or(|top| missing >= top);
        if !is_beyond {
            let is_captured = self.first.is_some_and(|first| missing >= first);
            if self.is_complete && is_captured && self.state == State::Known && !it.is_nak() {
                let found = format!("PSN {} was not sent", psn_of(missing));
                return Some(it.differs(rule, found, None, &[]));
            }
            if let Some(found) = self.contradicts_hole(missing, target, it) {
                return Some(it.differs(rule, found, None, &[]));
            }
            // What the missing requests wrote is unknown.
            world.memory.note_activity(self.host, it.frame);
            self.adopt(target, it.msn, world);
            return undecided(Undecided::MissingPackets);
        }
        let found = format!("PSN {} was not sent yet", psn_of(missing));
        self.wait_for((missing, target), rule, found, it, world)
    }

    /// An answer is wrong if the requester sends `unsent` for the first time later. Otherwise all
    /// before `target` was executed.
    pub(super) fn wait_for(
        &mut self,
        (unsent, target): (u64, u64),
        rule: &'static Rule,
        found: String,
        it: &Captured<'_>,
        world: &World,
    ) -> Option<Verdict> {
        if self.open.len() >= OPEN_MAX || world.is_crowded() {
            return undecided(Undecided::MissingPackets);
        }
        let msn = it.msn;
        // An MSN that counts what was not captured says that it was sent.
        let is_beyond = |msn: Msn| msn.since(self.msns.current) > 0 && !self.counts_ahead(msn);
        let is_counted = !self.msns.adopts && msn.is_some_and(is_beyond);
        let needs = (!it.is_nak()).then_some(it.info.operation);
        let captured = Some(it.packet.to_vec());
        let (expected, frames) = (None, Vec::new());
        let difference = Box::new(Difference { rule, found, captured, expected, frames });
        let (frame, time) = (it.frame, it.input.facts.time);
        let open = Open { unsent, target, msn, frame, time, is_counted, needs, difference };
        self.open.push(open);
        None
    }

    /// Whether the MSN of an answer says that the requests that were not captured, from `missing`
    /// on, were not executed: they are whole messages, and it does not count them.
    fn contradicts_hole(&self, missing: u64, target: u64, it: &Captured<'_>) -> Option<String> {
        let behind = self.pending.iter().find(|request| request.seq > missing)?;
        let msn = it.msn?;
        if self.is_message_open
            || self.in_message
            || self.msns.adopts
            || !behind.info.position.begins()
            || behind.seq > target
        {
            return None;
        }
        let executed = self.pending.iter().take_while(|request| request.seq < target);
        let least = 1 + executed.filter(|request| request.info.position.ends()).count();
        let counted = msn.since(self.msns.current);
        if i64::from(counted) >= i64::try_from(least).unwrap_or(i64::MAX) {
            return None;
        }
        let psn = psn_of(missing);
        Some(format!("MSN {msn}, after {}, does not count PSN {psn}", self.msns.current))
    }

    /// Packets that waited for what the requester sends next: it sends `seq` for the first time.
    pub(super) fn resolve_open(
        &mut self,
        (seq, span, operation): (u64, u64, Operation),
        now: Instant,
        world: &mut World,
        out: &mut dyn Sink,
    ) {
        if self.open.is_empty() {
            return;
        }
        // A packet that goes on where retransmissions stop, or that comes as late as one, may be a
        // retransmission, too.
        let since = |then: Instant| now.saturating_since(then);
        let (last, is_retransmission) = self.last_request;
        let is_pass = is_retransmission && since(last) < PASS;
        let is_sure = self.is_complete;
        if !is_sure && world.survey.is_incomplete(self.flow) {
            self.copies += 1;
        }
        let opens = core::mem::take(&mut self.open);
        // What the packets wait for was sent before and not captured, if one of them proves it.
        let is_proven = opens.iter().any(|open| {
            // It is what the answer answers, so it was sent before.
            let is_within = (seq..seq + span).contains(&open.unsent);
            let is_answered = match open.needs {
                Some(Operation::ReadResponse) => is_within && operation == Operation::ReadRequest,
                Some(Operation::AtomicAcknowledge) => {
                    is_within && matches!(operation, Operation::CompareSwap | Operation::FetchAdd)
                }
                // A NAK is answered by what it names.
                None => open.target == seq,
                _ => false,
            };
            is_answered || open.is_counted
        });
        for open in opens {
            // So late it may be a retransmission, and so soon it was on its way before.
            let is_late = since(open.time) >= TIMEOUT;
            let is_soon = since(open.time) < PASS;
            // Behind a NAK the requester goes back first, unless that was not captured.
            let is_ahead = open.needs.is_none() && !is_retransmission;
            let may_be_again =
                is_pass || is_late || is_soon || is_ahead || is_proven || self.copies > 0;
            if open.unsent >= seq && (is_sure || !may_be_again) {
                out.step(self.step(open.frame, Verdict::Different(open.difference)));
                continue;
            }
            // It was sent, and not captured: what the packet says is adopted.
            out.step(self.step(open.frame, Verdict::Undecided(Undecided::MissingPackets)));
            if open.target > self.epsn && self.state == State::Known {
                // What the missing requests wrote is unknown.
                world.memory.note_activity(self.host, open.frame);
                self.adopt(open.target, open.msn, world);
            }
        }
    }
}
