//! Unreliable services: datagrams (UD), unreliable connections (UC), and congestion notifications.
//!
//! A datagram stands by itself: shape, Q_Key where the connection manager told it, multicast.
//! Packets of an unreliable connection are held against the order of PSNs and opcodes as those of a
//! reliable one ([`requester`](super::requester)), but nothing is acknowledged, and what is missing
//! stays missing.

pub mod limits;
pub(crate) mod rules;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use limits::QUEUE_PAIRS_MAX;

use super::judge::{Input, Judge};
use super::requester::shape::{self, Break};
use super::requester::{Requesters, step, verdict_of};
use super::{Sink, Subject, Survey, Undecided};
use crate::analysis::{PacketFacts, PacketRole};
use crate::wire::mad::AttributeId;
use crate::wire::{Gid, OpcodeInfo, Packet, QKey, Qpn, Service, cm};

/// Judges packets of the unreliable services, and congestion notifications.
#[derive(Debug)]
pub(super) struct Datagrams {
    connections: Requesters,
    /// Q_Keys that SIDR_REPs named, by host and queue pair.
    qkeys: HashMap<(Gid, Qpn), (QKey, u64)>,
    order: VecDeque<(Gid, Qpn)>,
    survey: Arc<Survey>,
}

impl Datagrams {
    /// Judges the packets of a capture that was surveyed, in one of `shards`.
    pub(super) fn new(survey: Arc<Survey>, shards: usize) -> Self {
        Self {
            connections: Requesters::of(&[Service::Uc], Arc::clone(&survey), shards),
            qkeys: HashMap::new(),
            order: VecDeque::new(),
            survey,
        }
    }

    /// Learns the Q_Key of a queue pair.
    fn handle_cm(&mut self, input: &Input<'_>) {
        let is_answer = |facts: &PacketFacts| {
            facts.cm.as_ref().is_some_and(|cm| cm.attribute == AttributeId::CM_SIDR_REP)
        };
        if !is_answer(input.facts) {
            return;
        }
        let packet = Packet::parse_cut(input.packet, input.packet.len()).0;
        let Some(Ok(mad)) = packet.and_then(|packet| packet.mad()) else { return };
        let Ok(Some(cm::Message::SidrRep(rep))) = mad.cm() else { return };
        if rep.status() != 0 {
            return;
        }
        let key = (input.facts.source, rep.qpn());
        if self.qkeys.insert(key, (rep.q_key(), input.facts.frame)).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > QUEUE_PAIRS_MAX
            && let Some(old) = self.order.pop_front()
        {
            self.qkeys.remove(&old);
        }
    }

    fn check_datagram(
        &self,
        input: &Input<'_>,
        info: &OpcodeInfo,
    ) -> Result<Option<Undecided>, Break> {
        let facts = input.facts;
        let Some(packet) = input.parse(info) else { return Ok(Some(Undecided::Cut)) };
        let Some(deth) = packet.deth() else { return Ok(Some(Undecided::Cut)) };
        shape::check(&packet, None).map_or(Ok(()), Err)?;
        let is_multicast = facts.destination.is_multicast();
        if is_multicast != (facts.dest_qp == Qpn::MULTICAST) {
            let what = if is_multicast { "a multicast" } else { "a unicast" };
            let found = format!("queue pair {} at {what} address", facts.dest_qp);
            return Err(Break::new(&rules::MULTICAST_QP, found));
        }
        if let Some(&(qkey, frame)) = self.qkeys.get(&(facts.destination, facts.dest_qp))
            && deth.qkey() != qkey
        {
            let found = format!("Q_Key {}, the SIDR_REP said {qkey}", deth.qkey());
            return Err(Break::new(&rules::QKEY, found).with_frame(frame));
        }
        Ok(None)
    }
}

/// Checks a congestion notification.
fn check_cnp(input: &Input<'_>) -> Result<Option<Undecided>, Break> {
    const PAYLOAD: usize = 16;
    let Some(packet) = Packet::parse_cut(input.packet, input.packet.len()).0 else {
        return Ok(Some(Undecided::Cut));
    };
    let bth = packet.bth();
    let wrong = |found: String| Err(Break::new(&rules::CNP_FORMAT, found));
    if bth.tver().get() != 0 || bth.solicited() || bth.ack_req() || bth.fecn() {
        return wrong("a flag beside BECN is set, or the header version is not 0".into());
    }
    if !bth.becn() {
        return wrong("BECN is 0".into());
    }
    if bth.psn().get() != 0 {
        return wrong(format!("PSN {}", bth.psn()));
    }
    if input.facts.payload_len as usize != PAYLOAD {
        return wrong(format!("{} bytes of payload", input.facts.payload_len));
    }
    if packet.payload().iter().any(|&byte| byte != 0) {
        return wrong("payload is not zero".into());
    }
    Ok(input.facts.is_cut.then_some(Undecided::Cut))
}

impl Judge for Datagrams {
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink) {
        self.connections.packet(input, out);
        let is_damaged = self.survey.is_damaged(input.facts);
        let Some(info) = input.facts.opcode.info() else { return };
        if !is_damaged {
            self.handle_cm(input);
        }
        let is_datagram = info.service == Service::Ud && input.note.role == PacketRole::Request;
        let is_cnp = input.note.role == PacketRole::Cnp;
        if !is_datagram && !is_cnp || input.destination.is_none() {
            return;
        }
        let checked = if is_damaged {
            Ok(Some(Undecided::Damaged))
        } else if is_cnp {
            check_cnp(input)
        } else {
            self.check_datagram(input, info)
        };
        out.step(step(input, Subject::Datagram, verdict_of(checked, input)));
    }

    fn finish(&mut self, out: &mut dyn Sink) {
        self.connections.finish(out);
    }
}
