//! Agreements that the connection manager makes: which queue pairs belong together, and how they
//! shall behave.

use std::collections::VecDeque;

use serde::{Serialize, Serializer};

use super::fold_map::FoldMap;
use super::packet::{CmFacts, PacketFacts};
use crate::wire::mad::AttributeId;
use crate::wire::{Gid, Psn};

/// Agreements that are remembered. The oldest are forgotten.
pub(crate) const AGREEMENTS_MAX: usize = 16_384;

/// Terms that the connection manager negotiated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Setup {
    /// The frame of the REQ (or SIDR REQ).
    pub request_frame: Option<u64>,
    /// The frame of the REP (or SIDR REP).
    pub reply_frame: Option<u64>,
    /// The frame of the DREQ.
    pub disconnect_frame: Option<u64>,
    /// The port that the application connected to.
    pub application_port: Option<u16>,
    /// The path MTU in bytes.
    pub path_mtu: Option<u16>,
    /// The retransmission timeout's exponent: 4.096 µs × 2^n.
    pub ack_timeout: Option<u8>,
    /// Retransmissions without an answer before the requester gives up.
    pub retry_count: Option<u8>,
    /// Retransmissions after RNR NAKs before the requester gives up; 7 means for ever.
    pub rnr_retry_count: Option<u8>,
    /// First PSN of each end.
    #[serde(serialize_with = "serialize_psns")]
    pub starting_psns: [Option<Psn>; 2],
    /// RNR retry counts that the active side and the passive side shall keep to.
    #[serde(skip)]
    pub(crate) rnr_retry_counts: [Option<u8>; 2],
    /// READs and ATOMICs that the active side and the passive side may have in flight.
    #[serde(skip)]
    pub(crate) depths: [Option<u8>; 2],
}

fn serialize_psns<S: Serializer>(value: &[Option<Psn>; 2], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(value.map(|psn| psn.map(Psn::get)))
}

/// One attempt to connect, and what it agreed.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    pub(crate) active: Gid,
    pub(crate) passive: Gid,
    pub(crate) active_qp: Option<u32>,
    pub(crate) passive_qp: Option<u32>,
    active_id: u32,
    passive_id: Option<u32>,
    pub(crate) setup: Setup,
    /// Number of REQs that were captured.
    pub(crate) requests: u32,
    /// Whether something came back.
    pub(crate) is_answered: bool,
    /// The frame and the reason of a refusal, and whether the active side refused.
    pub(crate) refusal: Option<(u64, u16, bool)>,
    pub(crate) is_datagram: bool,
}

/// A queue pair that begins a new connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewQp {
    pub(crate) host: Gid,
    pub(crate) peer: Gid,
    pub(crate) qpn: u32,
    /// Frame of the REQ. The network may deliver packets of the new connection before the REP, but
    /// none before the REQ was sent.
    pub(crate) request_frame: u64,
}

/// All agreements, by the ends and by the communication IDs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agreements {
    list: VecDeque<Agreement>,
    /// The number of the first in `list`.
    base: u32,
    by_qp: FoldMap<(u128, u32), u32>,
    by_id: FoldMap<(u128, u32), u32>,
}

/// An address as a number, for the tables.
fn number(gid: Gid) -> u128 {
    u128::from_le_bytes(gid.0)
}

impl Agreements {
    pub(crate) fn get(&self, id: u32) -> Option<&Agreement> {
        self.list.get(id.wrapping_sub(self.base) as usize)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Agreement> {
        self.list.get_mut(id.wrapping_sub(self.base) as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Agreement> {
        self.list.iter()
    }

    /// Returns the number of the agreement on the queue pair `qpn` of `host`.
    pub(crate) fn of_qp(&self, host: Gid, qpn: u32) -> Option<u32> {
        if self.by_qp.is_empty() {
            return None;
        }
        self.by_qp.get(&(number(host), qpn)).copied()
    }

    /// Handles a message. Returns the queue pair that begins a new connection, if one does.
    pub(crate) fn handle(&mut self, packet: &PacketFacts, cm: &CmFacts) -> Option<NewQp> {
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
            rnr_retry_counts: [None, cm.rnr_retry_count],
            ..Setup::default()
        };
        let id = self.push(Agreement {
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
        let (host, peer, request_frame) = (packet.source, packet.destination, packet.frame);
        Some(NewQp { host, peer, qpn, request_frame })
    }

    fn handle_reply(&mut self, packet: &PacketFacts, cm: &CmFacts) -> Option<NewQp> {
        let key = (number(packet.destination), cm.remote_comm_id);
        let &id = self.by_id.get(&key)?;
        let agreement = self.get_mut(id)?;
        let is_new = agreement.passive_id.is_none() && agreement.passive == packet.source;
        if !is_new {
            return None;
        }
        agreement.is_answered = true;
        agreement.passive_id = Some(cm.local_comm_id);
        agreement.passive_qp = cm.qpn.map(|qpn| qpn.get());
        agreement.setup.reply_frame = Some(packet.frame);
        agreement.setup.starting_psns[0] = cm.starting_psn;
        agreement.setup.rnr_retry_counts[0] = cm.rnr_retry_count;
        // What the passive side accepts, and what it will have in flight itself.
        agreement.setup.depths = [cm.responder_resources, cm.initiator_depth];
        let qpn = agreement.passive_qp?;
        let request_frame = agreement.setup.request_frame.unwrap_or(packet.frame);
        self.by_id.insert((number(packet.source), cm.local_comm_id), id);
        self.by_qp.insert((number(packet.source), qpn), id);
        Some(NewQp { host: packet.source, peer: packet.destination, qpn, request_frame })
    }

    fn handle_other(&mut self, packet: &PacketFacts, cm: &CmFacts) {
        let by_sender = (number(packet.source), cm.local_comm_id);
        let by_receiver = (number(packet.destination), cm.remote_comm_id);
        let known = self.by_id.get(&by_receiver).or_else(|| self.by_id.get(&by_sender));
        let Some(&id) = known else { return };
        let Some(agreement) = self.get_mut(id) else { return };
        agreement.is_answered |= packet.source == agreement.passive;
        match cm.attribute {
            AttributeId::CM_REJ => {
                let reason = cm.reject_reason.unwrap_or(0);
                let by_active = packet.source == agreement.active;
                agreement.refusal.get_or_insert((packet.frame, reason, by_active));
            }
            AttributeId::CM_SIDR_REP => {
                agreement.setup.reply_frame.get_or_insert(packet.frame);
                if let Some(reason) = cm.reject_reason {
                    agreement.refusal.get_or_insert((packet.frame, reason, false));
                }
            }
            AttributeId::CM_DREQ => {
                agreement.setup.disconnect_frame.get_or_insert(packet.frame);
            }
            _ => {}
        }
    }

    fn push(&mut self, agreement: Agreement) -> u32 {
        if self.list.len() >= AGREEMENTS_MAX
            && let Some(old) = self.list.pop_front()
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
        self.list.push_back(agreement);
        let count = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.base.wrapping_add(count - 1)
    }
}
