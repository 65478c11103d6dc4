//! The amount of state over all connections, and the bounds that follow from it.

use super::limits::{
    ALL_HISTORY_MAX, ALL_MESSAGES_MAX, ALL_PACKETS_MAX, CROWDED_ENDPOINTS, CROWDED_MAX,
    HISTORY_MAX, INFLIGHT_MESSAGES_MAX, INFLIGHT_PACKETS_MAX, INTERVALS_MAX_CROWDED,
};
use super::series::Series;

/// State that is kept over all connections, from which follows how much each direction of a
/// connection may keep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    pub(super) packets: usize,
    pub(super) messages: usize,
    endpoints: usize,
    /// Acknowledged request packets that a direction may remember.
    history_max: usize,
    /// Messages that were forgotten to make room.
    pub(super) forgotten_messages: u64,
}

impl Budget {
    /// Request packets that a direction may remember.
    pub(super) fn packets_max(&self) -> usize {
        if self.packets < ALL_PACKETS_MAX { INFLIGHT_PACKETS_MAX } else { CROWDED_MAX }
    }

    /// Messages that a direction may remember.
    pub(super) fn messages_max(&self) -> usize {
        if self.messages < ALL_MESSAGES_MAX { INFLIGHT_MESSAGES_MAX } else { CROWDED_MAX }
    }

    /// Endpoints that are followed.
    pub(super) fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// Notes how many endpoints are followed.
    pub(super) fn set_endpoints(&mut self, endpoints: usize) {
        self.endpoints = endpoints;
        let part = ALL_HISTORY_MAX / endpoints.max(1);
        self.history_max = part.clamp(CROWDED_MAX, HISTORY_MAX);
    }

    /// Acknowledged request packets that a direction may remember.
    pub(super) fn history_max(&self) -> usize {
        self.history_max
    }

    /// Intervals of a connection's series.
    pub(super) fn intervals_max(&self) -> usize {
        if self.endpoints < CROWDED_ENDPOINTS {
            Series::INTERVALS_MAX
        } else {
            INTERVALS_MAX_CROWDED
        }
    }
}
