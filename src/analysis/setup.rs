//! What the connection manager negotiates: which queue pairs belong together, and how they shall behave.

use std::collections::VecDeque;

use super::connection::Setup;
use super::limits::SETUPS_MAX;
use super::stream::FoldMap;
use super::{CmFacts, PacketFacts};
use crate::wire::Gid;
use crate::wire::mad::AttributeId;

/// One attempt to connect.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) active: Gid,
    pub(super) passive: Gid,
    pub(super) active_qp: Option<u32>,
    pub(super) passive_qp: Option<u32>,
    active_id: u32,
    passive_id: Option<u32>,
    pub(super) setup: Setup,
    /// How often the REQ was captured.
    pub(super) requests: u32,
    /// When something came back.
    pub(super) is_answered: bool,
    /// The frame and the reason of a refusal, and whether the active side refused.
    pub(super) refusal: Option<(u64, u16, bool)>,
    pub(super) is_datagram: bool,
}

/// A queue pair that begins a new connection: its host, its peer's host, its number.
pub(super) type NewQp = (Gid, Gid, u32);

/// All attempts, and how to find them.
#[derive(Clone, Debug, Default)]
pub(super) struct Setups {
    attempts: VecDeque<Attempt>,
    /// The number of the first of `attempts`.
    base: u32,
    by_qp: FoldMap<(u128, u32), u32>,
    by_id: FoldMap<(u128, u32), u32>,
}

/// An address as a number, for the tables.
fn number(gid: Gid) -> u128 {
    u128::from_le_bytes(gid.0)
}

impl Setups {
    pub(super) fn get(&self, id: u32) -> Option<&Attempt> {
        self.attempts.get(id.wrapping_sub(self.base) as usize)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Attempt> {
        self.attempts.get_mut(id.wrapping_sub(self.base) as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter()
    }

    /// The set-up of the queue pair `qpn` of `host`.
    pub(super) fn of_qp(&self, host: Gid, qpn: u32) -> Option<u32> {
        if self.by_qp.is_empty() {
            return None;
        }
        self.by_qp.get(&(number(host), qpn)).copied()
    }

    /// Handles a message. Returns the queue pair that begins a new connection, if one does.
    pub(super) fn handle(&mut self, packet: &PacketFacts, cm: &CmFacts) -> Option<NewQp> {
        match cm.attribute {
            AttributeId::CM_REQ | AttributeId::CM_SIDR_REQ => self.handle_request(packet, cm),
            AttributeId::CM_REP => self.handle_reply(packet, cm),
            _ => {
                self.handle_other(packet, cm);
                None
            }
        }
    }

    fn handle_request(&mut self, packet: &PacketFacts, cm: &CmFacts) -> Option<NewQp> {
        let key = (number(packet.source), cm.local_comm_id);
        if let Some(&id) = self.by_id.get(&key)
            && let Some(known) = self.get_mut(id)
            && !known.is_answered
            && known.passive == packet.destination
            && known.active_qp == cm.qpn.map(|qpn| qpn.get())
        {
            known.requests += 1;
            return None;
        }
        let active_qp = cm.qpn.map(|qpn| qpn.get());
        let setup = Setup {
            request_frame: Some(packet.frame),
            application_port: cm.application_port,
            path_mtu: cm.path_mtu,
            ack_timeout: cm.ack_timeout,
            retry_count: cm.retry_count,
            rnr_retry_count: cm.rnr_retry_count,
            starting_psns: [None, cm.starting_psn],
            ..Setup::default()
        };
        let id = self.push(Attempt {
            active: packet.source,
            passive: packet.destination,
            active_qp,
            passive_qp: None,
            active_id: cm.local_comm_id,
            passive_id: None,
            setup,
            requests: 1,
            is_answered: false,
            refusal: None,
            is_datagram: cm.attribute == AttributeId::CM_SIDR_REQ,
        });
        self.by_id.insert(key, id);
        let qpn = active_qp?;
        self.by_qp.insert((number(packet.source), qpn), id);
        Some((packet.source, packet.destination, qpn))
    }

    fn handle_reply(&mut self, packet: &PacketFacts, cm: &CmFacts) -> Option<NewQp> {
        let key = (number(packet.destination), cm.remote_comm_id);
        let &id = self.by_id.get(&key)?;
        let attempt = self.get_mut(id)?;
        let is_new = attempt.passive_id.is_none() && attempt.passive == packet.source;
        if !is_new {
            return None;
        }
        attempt.is_answered = true;
        attempt.passive_id = Some(cm.local_comm_id);
        attempt.passive_qp = cm.qpn.map(|qpn| qpn.get());
        attempt.setup.reply_frame = Some(packet.frame);
        attempt.setup.starting_psns[0] = cm.starting_psn;
        let qpn = attempt.passive_qp?;
        self.by_id.insert((number(packet.source), cm.local_comm_id), id);
        self.by_qp.insert((number(packet.source), qpn), id);
        Some((packet.source, packet.destination, qpn))
    }

    fn handle_other(&mut self, packet: &PacketFacts, cm: &CmFacts) {
        let by_sender = (number(packet.source), cm.local_comm_id);
        let by_receiver = (number(packet.destination), cm.remote_comm_id);
        let known = self.by_id.get(&by_receiver).or_else(|| self.by_id.get(&by_sender));
        let Some(&id) = known else { return };
        let Some(attempt) = self.get_mut(id) else { return };
        attempt.is_answered |= packet.source == attempt.passive;
        match cm.attribute {
            AttributeId::CM_REJ => {
                let reason = cm.reject_reason.unwrap_or(0);
                let by_active = packet.source == attempt.active;
                attempt.refusal.get_or_insert((packet.frame, reason, by_active));
            }
            AttributeId::CM_SIDR_REP => {
                attempt.setup.reply_frame.get_or_insert(packet.frame);
                if let Some(reason) = cm.reject_reason {
                    attempt.refusal.get_or_insert((packet.frame, reason, false));
                }
            }
            AttributeId::CM_DREQ => {
                attempt.setup.disconnect_frame.get_or_insert(packet.frame);
            }
            _ => {}
        }
    }

    fn push(&mut self, attempt: Attempt) -> u32 {
        if self.attempts.len() >= SETUPS_MAX
            && let Some(old) = self.attempts.pop_front()
        {
            let id = self.base;
            self.base = self.base.wrapping_add(1);
            for (host, qpn) in [(old.active, old.active_qp), (old.passive, old.passive_qp)] {
                let key = (number(host), qpn.unwrap_or(u32::MAX));
                if self.by_qp.get(&key) == Some(&id) {
                    self.by_qp.remove(&key);
                }
            }
            let ids = [(old.active, Some(old.active_id)), (old.passive, old.passive_id)];
            for key in ids.into_iter().filter_map(|(host, id)| Some((number(host), id?))) {
                if self.by_id.get(&key) == Some(&id) {
                    self.by_id.remove(&key);
                }
            }
        }
        self.attempts.push_back(attempt);
        let count = u32::try_from(self.attempts.len()).unwrap_or(u32::MAX);
        self.base.wrapping_add(count - 1)
    }
}

/// The retransmission timeout for an exponent: 4.096 µs × 2^n, at least (§9.7.6.1.3). 0: none.
pub(super) fn timeout_nanos(exponent: u8) -> u64 {
    if exponent == 0 { 0 } else { 4096u64 << exponent.min(31) }
}
