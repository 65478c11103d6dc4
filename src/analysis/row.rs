//! A row of the table of connections: both directions together.

use serde::Serialize;

use super::connection::{Connection, Direction};
use super::finding::Finding;
use super::statistics::Percentiles;
use crate::time::nanos;
use crate::wire::Service;

/// Cells of a connection in the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) failed: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) goodput_bytes: u64,
    pub(crate) retransmissions: u64,
    pub(crate) lost: u64,
    pub(crate) naks: u64,
    pub(crate) rnr_naks: u64,
    pub(crate) ce_marked: u64,
    pub(crate) cnps: u64,
    /// Latency in the direction with more messages.
    pub(crate) latency: Percentiles,
}

impl Row {
    /// The row of a connection. Without acknowledgements the latency of messages is not known.
    pub(crate) fn of(connection: &Connection) -> Self {
        let mut row = Self::new(&connection.directions);
        if !matches!(connection.service, Service::Rc | Service::Rd | Service::Xrc) {
            row.latency = Percentiles::default();
        }
        row
    }

    pub(crate) fn new(directions: &[Direction]) -> Self {
        let sum = |of: fn(&Direction) -> u64| directions.iter().map(of).sum::<u64>();
        let latency = directions.iter().map(|direction| direction.latency.percentiles());
        Self {
            packets: sum(|d| d.request_packets + d.response_packets),
            messages: sum(|d| d.operations.iter().map(|o| o.messages).sum()),
            failed: sum(|d| d.operations.iter().map(|o| o.failed).sum()),
            wire_bytes: sum(|d| d.wire_bytes),
            goodput_bytes: sum(|d| d.goodput_bytes),
            retransmissions: sum(Direction::retransmitted_packets),
            lost: sum(|d| d.lost_requests + d.lost_responses),
            naks: sum(|d| d.naks.iter().sum()),
            rnr_naks: sum(|d| d.rnr_naks),
            ce_marked: sum(|d| d.ce_marked),
            cnps: sum(|d| d.cnps),
            latency: latency.max_by_key(|latency| latency.count).unwrap_or_default(),
        }
    }
}

impl Direction {
    /// Retransmitted packets, for whatever cause.
    pub fn retransmitted_packets(&self) -> u64 {
        self.retransmissions.total().packets
    }
}

impl Connection {
    /// Nanoseconds from its first packet to its last.
    pub fn duration_nanos(&self) -> u64 {
        nanos(self.last_time.saturating_since(self.first_time))
    }
}

/// Order of the connections in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Connections with the worst findings first.
    #[default]
    Trouble,
    /// Connections with the most bytes on the wire first.
    Bytes,
    /// Ascending numbers, which is the order of their first packets.
    Number,
}

impl SortBy {
    /// The connections with their rows, in this order; `findings` are sorted worst first.
    pub(crate) fn sorted<'a>(
        self,
        connections: &'a [Connection],
        findings: &[Finding],
    ) -> Vec<(&'a Connection, Row)> {
        let mut rows: Vec<_> = connections.iter().map(|c| (c, Row::of(c))).collect();
        match self {
            Self::Number => {}
            Self::Bytes => rows.sort_by_key(|(_, row)| core::cmp::Reverse(row.wire_bytes)),
            Self::Trouble => {
                let mut ranks = std::collections::HashMap::new();
                for (rank, finding) in findings.iter().enumerate() {
                    ranks.entry(finding.flow).or_insert(rank);
                }
                rows.sort_by_cached_key(|(connection, row)| {
                    let rank = ranks.get(&Some(connection.flow)).copied();
                    let trouble = row.failed + row.lost + row.retransmissions + row.rnr_naks;
                    let order = (core::cmp::Reverse(trouble), core::cmp::Reverse(row.wire_bytes));
                    (rank.unwrap_or(usize::MAX), order, connection.flow)
                });
            }
        }
        rows
    }
}
