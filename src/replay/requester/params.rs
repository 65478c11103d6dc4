//! What a requester must keep to: what the connection manager agreed, and what the first pass over the capture found.

use std::collections::{HashMap, VecDeque};

use super::limits::SETUPS_MAX;
use crate::analysis::{CmFacts, Connection, FlowNumber, PacketFacts, Pairing};
use crate::replay::Survey;
use crate::wire::mad::AttributeId;
use crate::wire::{Gid, Psn, Qpn};

/// What a requester must keep to, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Params {
    /// Bytes of the path MTU.
    pub(super) mtu: Option<u32>,
    /// If it is not known: the longest payload that was captured.
    pub(super) least_mtu: u32,
    /// The retransmission timeout in nanoseconds.
    pub(super) timeout: Option<u64>,
    pub(super) retry_count: Option<u8>,
    /// 7: for ever.
    pub(super) rnr_retry_count: Option<u8>,
    /// READs and ATOMICs that may be in flight.
    pub(super) depth: Option<u8>,
    pub(super) start: Option<Psn>,
    /// Whether the capture has responses to this requester.
    pub(super) is_answered: bool,
}

/// One connection that the connection manager made.
#[derive(Clone, Copy, Debug)]
struct Setup {
    active: (Gid, Qpn),
    passive: Gid,
    /// Where the passive side begins to send, and the active side.
    starts: [Option<Psn>; 2],
    mtu: Option<u32>,
    timeout: Option<u64>,
    retry_count: Option<u8>,
    /// Of REQ and REP: each for its receiver.
    rnr_retry_counts: [Option<u8>; 2],
    /// READs and ATOMICs of the active side and of the passive side.
    depths: [Option<u8>; 2],
}

/// What the first pass found out about a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Bytes of the path MTU, for the requests of each end.
    mtus: [Option<u32>; 2],
    /// The path MTU is at least this, if the connection is paired rightly.
    least_mtu: u32,
    /// Whether the requests of each end have responses.
    is_answered: [bool; 2],
}

/// What is known of all connections.
#[derive(Debug, Default)]
pub(super) struct Book {
    flows: HashMap<FlowNumber, Flow>,
    /// By the active side's address and communication ID.
    open: HashMap<(Gid, u32), Setup>,
    order: VecDeque<(Gid, u32)>,
    /// By host and queue pair; whether it is the passive one.
    by_qp: HashMap<(Gid, Qpn), (Setup, bool)>,
    qp_order: VecDeque<(Gid, Qpn)>,
}

/// The path MTU that packets fill: those of the end itself, or the responses to it. What the analysis guesses from PSNs
/// behind READs, or from a peer that may be another's, a capture with gaps makes wrong.
fn mtu_of(connection: &Connection, end: usize, is_paired: bool) -> Option<u32> {
    let is_mtu = |payload: &u32| payload.is_power_of_two() && (256..=4096).contains(payload);
    let [own, responses] = connection.directions.get(end)?.full_payload;
    let other = Some(responses).filter(|payload| is_paired && is_mtu(payload));
    Some(own).filter(is_mtu).or(other)
}

/// The largest payload of a packet in either direction that fills the path MTU.
fn largest(connection: &Connection) -> u32 {
    let full = connection.directions.iter().flat_map(|direction| direction.full_payload);
    full.max().unwrap_or(0)
}

impl Book {
    pub(super) fn new(survey: &Survey) -> Self {
        let flows = survey.report.connections.iter().map(|connection| {
            let sides = connection.directions.each_ref();
            let is_paired = !matches!(connection.pairing, Pairing::Likely | Pairing::Unpaired)
                && !survey.ambiguous.contains(&connection.flow);
            let flow = Flow {
                mtus: [0, 1].map(|end| mtu_of(connection, end, is_paired)),
                least_mtu: survey.least_mtu(connection.flow).max(largest(connection)),
                is_answered: sides.map(|side| side.response_packets > 0),
            };
            (connection.flow, flow)
        });
        Self { flows: flows.collect(), ..Self::default() }
    }

    /// Takes a message of the connection manager.
    pub(super) fn handle_cm(&mut self, packet: &PacketFacts, cm: &CmFacts) {
        match cm.attribute {
            AttributeId::CM_REQ => self.handle_req(packet, cm),
            AttributeId::CM_REP => self.handle_rep(packet, cm),
            _ => {}
        }
    }

    fn handle_req(&mut self, packet: &PacketFacts, cm: &CmFacts) {
        let Some(qpn) = cm.qpn else { return };
        let timeout = cm.ack_timeout.filter(|&exponent| exponent > 0);
        let setup = Setup {
            active: (packet.source, qpn),
            passive: packet.destination,
            starts: [cm.starting_psn, None],
            mtu: cm.path_mtu.map(u32::from),
            timeout: timeout.map(|exponent| 4096u64 << exponent.min(31)),
            retry_count: cm.retry_count,
            rnr_retry_counts: [cm.rnr_retry_count, None],
            depths: [None, None],
        };
        let key = (packet.source, cm.local_comm_id);
        if self.open.insert(key, setup).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > SETUPS_MAX
            && let Some(old) = self.order.pop_front()
        {
            self.open.remove(&old);
        }
    }

    fn handle_rep(&mut self, packet: &PacketFacts, cm: &CmFacts) {
        let Some(setup) = self.open.get(&(packet.destination, cm.remote_comm_id)) else { return };
        let (Some(qpn), true) = (cm.qpn, setup.passive == packet.source) else { return };
        let mut setup = *setup;
        setup.starts[1] = cm.starting_psn;
        setup.rnr_retry_counts[1] = cm.rnr_retry_count;
        // What the passive side accepts, and what it will have in flight itself.
        setup.depths = [cm.responder_resources, cm.initiator_depth];
        for (key, is_passive) in [(setup.active, false), ((packet.source, qpn), true)] {
            if self.by_qp.insert(key, (setup, is_passive)).is_none() {
                self.qp_order.push_back(key);
            }
        }
        while self.qp_order.len() > 2 * SETUPS_MAX
            && let Some(old) = self.qp_order.pop_front()
        {
            self.by_qp.remove(&old);
        }
    }

    /// What is known of the requester that sends `packet`: end `sender` of connection `flow`.
    pub(super) fn params(&self, flow: FlowNumber, sender: u8, packet: &PacketFacts) -> Params {
        let flow = self.flows.get(&flow).copied().unwrap_or_default();
        let mut params = Params {
            mtu: flow.mtus[usize::from(sender.min(1))],
            least_mtu: flow.least_mtu,
            is_answered: flow.is_answered[usize::from(sender.min(1))],
            ..Params::default()
        };
        let Some((setup, is_active)) = self.setup_of(packet) else { return params };
        let own = usize::from(!is_active);
        params.mtu = setup.mtu.or(params.mtu);
        params.timeout = setup.timeout;
        params.retry_count = setup.retry_count;
        params.rnr_retry_count = setup.rnr_retry_counts[usize::from(is_active)];
        params.depth = setup.depths[own].filter(|&depth| depth > 0);
        params.start = setup.starts[usize::from(is_active)];
        params
    }

    /// The set-up of the queue pair that a packet is for, and whether the sender is the active side.
    fn setup_of(&self, packet: &PacketFacts) -> Option<(Setup, bool)> {
        let &(setup, is_passive) = self.by_qp.get(&(packet.destination, packet.dest_qp))?;
        let peer = if is_passive { setup.active.0 } else { setup.passive };
        (peer == packet.source).then_some((setup, is_passive))
    }
}
