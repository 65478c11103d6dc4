//! Parameters of a requester, as the first pass found them.

use core::time::Duration;

use crate::analysis::{End, FlowNumber};
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
    /// Whether the ends do selective repeat.
    pub(super) is_selective: bool,
}

impl Params {
    /// Returns what is known of an end of a connection.
    pub(super) fn new(survey: &Survey, (flow, end): (FlowNumber, End)) -> Self {
        let Some(connection) = survey.connection(flow) else { return Self::default() };
        let setup = &connection.setup;
        Self {
            mtu: setup.path_mtu.map(u32::from).or_else(|| connection.filled_mtu(end)),
            least_mtu: connection.least_mtu().max(connection.largest_full()),
            timeout: setup.ack_timeout.and_then(retransmission_timeout),
            retry_count: setup.retry_count,
            rnr_retry_count: setup.rnr_retry_counts[end],
            depth: setup.depths[end].filter(|&depth| depth > 0),
            start: setup.starting_psns[end],
            is_answered: connection.directions[end].is_answered,
            is_selective: survey.is_selective(flow),
        }
    }
}
