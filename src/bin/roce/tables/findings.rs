//! The table of findings: one row per finding, as in the report.

use roce::analysis::{Certainty, Connection, End, Endpoint, Finding, Report};
use roce::decode::address_text;

use super::column::Kind;
use super::row::{Cell, Definition, add_row, columns, define_columns};
use super::table::{Rows, Table};

/// A finding and its connection.
pub(super) struct FindingRow<'a> {
    finding: &'a Finding,
    connection: Option<&'a Connection>,
}

/// The columns.
pub(super) fn definitions<'a>() -> [Definition<FindingRow<'a>>; 17] {
    define_columns! { |row|
        Int "flow": row.finding.flow.map(|flow| flow.0);
        Text "connection": row.connection.map(Connection::key);
        Text "kind": row.finding.kind.name();
        Int "severity": row.finding.kind.severity();
        Bool "is_proven": row.finding.certainty == Certainty::Proven;
        Text "requester": row.host(End::A);
        Int "requester_qpn": row.qpn(End::A);
        Text "responder": row.host(End::B);
        Int "responder_qpn": row.qpn(End::B);
        Int "dscp": row.end(End::A).and_then(|end| end.dscp);
        Time "time": row.nanos();
        Int "time_epoch": row.nanos();
        Int "cost_ns": row.finding.cost_nanos;
        Int "first_frame": row.finding.frames.first().copied();
        Text "frames": {
            let frames: Vec<_> = row.finding.frames.iter().map(u64::to_string).collect();
            Some(frames.join(" ")).filter(|text| !text.is_empty())
        };
        Text "text": row.finding.text.clone();
        Text "advice": row.finding.kind.advice();
    }
}

impl FindingRow<'_> {
    /// Host of the requester (A) or of the responder (B).
    fn host(&self, side: End) -> Cell {
        self.finding.hosts.map(|hosts| address_text(hosts[side])).into()
    }

    fn end(&self, side: End) -> Option<&Endpoint> {
        let requester = self.finding.requester?;
        Some(&self.connection?.ends[requester.exchanged_if(side == End::B)])
    }

    fn qpn(&self, side: End) -> Cell {
        self.end(side).and_then(|end| end.qpn).map(|qpn| qpn.get()).into()
    }

    fn nanos(&self) -> Option<u64> {
        self.finding.time.map(|time| time.as_nanos())
    }
}

/// Writes the rows of all findings.
pub(super) fn write(report: &Report, table: &mut Table) -> anyhow::Result<()> {
    let definitions = definitions();
    let mut rows: Rows = columns(&definitions);
    for finding in &report.findings {
        // Connections are in the order of their numbers.
        let find = |flow| report.connections.binary_search_by_key(&flow, |found| found.flow).ok();
        let place = finding.flow.and_then(find);
        let connection = place.and_then(|at| report.connections.get(at));
        add_row(&mut rows, &FindingRow { finding, connection }, &definitions);
    }
    table.append(&mut rows)
}
