//! What a requester must keep to: what the connection manager agreed, and what the first pass over the capture found.

use std::collections::HashMap;

use crate::analysis::{CmFacts, Connection, FlowNumber, PacketFacts, Pairing};
use crate::observe::agreement::{Agreement, Agreements};
use crate::observe::timing::timeout_nanos;
use crate::replay::Survey;
use crate::wire::Psn;

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
    agreements: Agreements,
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
        self.agreements.handle(packet, cm);
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
        let Some((agreement, is_active)) = self.agreement_of(packet) else { return params };
        let (setup, own) = (&agreement.setup, usize::from(!is_active));
        params.mtu = setup.path_mtu.map(u32::from).or(params.mtu);
        params.timeout = setup.ack_timeout.filter(|&exponent| exponent > 0).map(timeout_nanos);
        params.retry_count = setup.retry_count;
        params.rnr_retry_count = agreement.rnr_retry_counts[own];
        params.depth = agreement.depths[own].filter(|&depth| depth > 0);
        params.start = setup.starting_psns[own];
        params
    }

    /// Returns the agreement on the queue pair that a packet is for, and whether the sender is the active side.
    fn agreement_of(&self, packet: &PacketFacts) -> Option<(&Agreement, bool)> {
        let qpn = packet.dest_qp.get();
        let agreement = self.agreements.get(self.agreements.of_qp(packet.destination, qpn)?)?;
        let Agreement { active, passive, passive_qp, .. } = *agreement;
        let is_active = (passive, passive_qp) == (packet.destination, Some(qpn));
        let sender = if is_active { active } else { passive };
        (sender == packet.source).then_some((agreement, is_active))
    }
}
