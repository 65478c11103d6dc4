//! Parameters of a requester: from the connection manager, and from the first pass.

use core::time::Duration;

use crate::analysis::{CmFacts, End, FlowNumber, PacketFacts};
use crate::observe::agreement::{Agreement, Agreements};
use crate::observe::timing::retransmission_timeout;
use crate::replay::Survey;
use crate::wire::Psn;

/// Parameters that a requester must keep to, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Params {
    /// Bytes of the path MTU.
    pub(super) mtu: Option<u32>,
    /// Longest payload that was captured, if the path MTU is not known.
    pub(super) least_mtu: u32,
    /// Retransmission timeout.
    pub(super) timeout: Option<Duration>,
    pub(super) retry_count: Option<u8>,
    /// 7: for ever.
    pub(super) rnr_retry_count: Option<u8>,
    /// READs and ATOMICs that may be in flight.
    pub(super) depth: Option<u8>,
    pub(super) start: Option<Psn>,
    /// Whether the capture has responses to this requester.
    pub(super) is_answered: bool,
}

/// Agreements of the connection manager.
#[derive(Debug, Default)]
pub(super) struct Book {
    agreements: Agreements,
}

impl Book {
    /// Takes a message of the connection manager.
    pub(super) fn handle_cm(&mut self, packet: &PacketFacts, cm: &CmFacts) {
        self.agreements.handle(packet, cm);
    }

    /// Returns what is known of the requester that sends `packet`: end `sender` of connection
    /// `flow`.
    pub(super) fn params(
        &self,
        survey: &Survey,
        (flow, sender): (FlowNumber, End),
        packet: &PacketFacts,
    ) -> Params {
        let mut params = Params::default();
        if let Some(connection) = survey.connection(flow) {
            params.mtu = connection.filled_mtu(sender);
            params.least_mtu = connection.least_mtu().max(connection.largest_full());
            params.is_answered = connection.directions[sender].is_answered;
        }
        let Some((agreement, is_active)) = self.agreement_of(packet) else { return params };
        let (setup, own) = (&agreement.setup, usize::from(!is_active));
        params.mtu = setup.path_mtu.map(u32::from).or(params.mtu);
        params.timeout = setup.ack_timeout.and_then(retransmission_timeout);
        params.retry_count = setup.retry_count;
        params.rnr_retry_count = agreement.rnr_retry_counts[own];
        params.depth = agreement.depths[own].filter(|&depth| depth > 0);
        params.start = setup.starting_psns[own];
        params
    }

    /// Returns the agreement on the queue pair that a packet is for, and whether the sender is the
    /// active side.
    fn agreement_of(&self, packet: &PacketFacts) -> Option<(&Agreement, bool)> {
        let qpn = packet.dest_qp.get();
        let agreement = self.agreements.get(self.agreements.of_qp(packet.destination, qpn)?)?;
        let Agreement { active, passive, passive_qp, .. } = *agreement;
        let is_active = (passive, passive_qp) == (packet.destination, Some(qpn));
        let sender = if is_active { active } else { passive };
        (sender == packet.source).then_some((agreement, is_active))
    }
}
