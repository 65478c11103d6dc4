//! The table of findings: one row per finding, as in the report.

use roce::analysis::{Certainty, Connection, End, Endpoint, Finding, Report};
use roce::decode::address_text;

use super::column::Kind;
use super::row::{Cell, Definition, add_row, columns};
use super::table::{Rows, Table};

/// A finding and its connection.
pub(super) struct FindingRow<'a> {
    finding: &'a Finding,
    connection: Option<&'a Connection>,
}

/// The columns.
pub(super) fn definitions<'a>() -> [Definition<FindingRow<'a>>; 17] {
    [
        Definition::new("flow", Kind::Int, |row| row.finding.flow.map(|flow| flow.0).into()),
        Definition::new("connection", Kind::Text, |row| row.connection.map(Connection::key).into()),
        Definition::new("kind", Kind::Text, |row| row.finding.kind.name().into()),
        Definition::new("severity", Kind::Int, |row| row.finding.kind.severity().into()),
        Definition::new("is_proven", Kind::Bool, |row| {
            (row.finding.certainty == Certainty::Proven).into()
        }),
        Definition::new("requester", Kind::Text, |row| row.host(End::A)),
        Definition::new("requester_qpn", Kind::Int, |row| row.qpn(End::A)),
        Definition::new("responder", Kind::Text, |row| row.host(End::B)),
        Definition::new("responder_qpn", Kind::Int, |row| row.qpn(End::B)),
        Definition::new("dscp", Kind::Int, |row| row.end(End::A).and_then(|end| end.dscp).into()),
        Definition::new("time", Kind::Time, |row| row.nanos().into()),
        Definition::new("time_epoch", Kind::Int, |row| row.nanos().into()),
        Definition::new("cost_ns", Kind::Int, |row| row.finding.cost_nanos.into()),
        Definition::new("first_frame", Kind::Int, |row| row.finding.frames.first().copied().into()),
        Definition::new("frames", Kind::Text, |row| {
            let frames: Vec<_> = row.finding.frames.iter().map(u64::to_string).collect();
            Some(frames.join(" ")).filter(|text| !text.is_empty()).into()
        }),
        Definition::new("text", Kind::Text, |row| row.finding.text.clone().into()),
        Definition::new("advice", Kind::Text, |row| row.finding.kind.advice().into()),
    ]
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
