//! The table of connections: one row per connection, with what each of its two ends requested.

use roce::analysis::{Connection, Direction, Distribution, Report, service_name};
use roce::decode::address_text;

use super::column::{Column, Kind};
use super::row::{Cell, Definition};
use super::table::{Rows, Table};

/// The columns of the connection itself.
pub(super) static COLUMNS: [Definition<Connection>; 21] = [
    Definition::new("flow", Kind::Int, |connection| connection.flow.0.into()),
    Definition::new("connection", Kind::Text, |connection| connection.key().into()),
    Definition::new("service", Kind::Text, |connection| service_name(connection.service).into()),
    Definition::new("pairing", Kind::Text, |connection| {
        let name = serde_json::to_value(connection.pairing).ok();
        name.and_then(|name| name.as_str().map(str::to_owned)).into()
    }),
    Definition::new("a_address", Kind::Text, |connection| address(connection, 0)),
    Definition::new("a_qpn", Kind::Int, |connection| qpn(connection, 0)),
    Definition::new("b_address", Kind::Text, |connection| address(connection, 1)),
    Definition::new("b_qpn", Kind::Int, |connection| qpn(connection, 1)),
    Definition::new("a_dscp", Kind::Int, |connection| connection.ends[0].dscp.into()),
    Definition::new("b_dscp", Kind::Int, |connection| connection.ends[1].dscp.into()),
    Definition::new("path_mtu", Kind::Int, |connection| connection.path_mtu.into()),
    Definition::new("application_port", Kind::Int, |connection| {
        connection.setup.as_ref().and_then(|setup| setup.application_port).into()
    }),
    Definition::new("retry_count", Kind::Int, |connection| {
        connection.setup.as_ref().and_then(|setup| setup.retry_count).into()
    }),
    Definition::new("rnr_retry_count", Kind::Int, |connection| {
        connection.setup.as_ref().and_then(|setup| setup.rnr_retry_count).into()
    }),
    Definition::new("ack_timeout", Kind::Int, |connection| {
        connection.setup.as_ref().and_then(|setup| setup.ack_timeout).into()
    }),
    Definition::new("first_frame", Kind::Int, |connection| connection.first_frame.into()),
    Definition::new("first_time", Kind::Time, |connection| connection.first_time.as_nanos().into()),
    Definition::new("first_time_epoch", Kind::Int, |connection| {
        connection.first_time.as_nanos().into()
    }),
    Definition::new("last_frame", Kind::Int, |connection| connection.last_frame.into()),
    Definition::new("last_time", Kind::Time, |connection| connection.last_time.as_nanos().into()),
    Definition::new("last_time_epoch", Kind::Int, |connection| {
        connection.last_time.as_nanos().into()
    }),
];

/// The columns of what one end requested: once with `a_` and once with `b_` before their names.
static DIRECTION: [Definition<Direction>; 37] = [
    Definition::new("request_packets", Kind::Int, |requests| requests.request_packets.into()),
    Definition::new("response_packets", Kind::Int, |requests| requests.response_packets.into()),
    Definition::new("wire_bytes", Kind::Int, |requests| requests.wire_bytes.into()),
    Definition::new("goodput_bytes", Kind::Int, |requests| requests.goodput_bytes.into()),
    Definition::new("messages", Kind::Int, |requests| {
        requests.operations.iter().map(|all| all.messages).sum::<u64>().into()
    }),
    Definition::new("messages_completed", Kind::Int, |requests| {
        requests.operations.iter().map(|all| all.completed).sum::<u64>().into()
    }),
    Definition::new("messages_failed", Kind::Int, |requests| {
        requests.operations.iter().map(|all| all.failed).sum::<u64>().into()
    }),
    Definition::new("retransmitted_packets", Kind::Int, |requests| {
        requests.retransmissions.total().packets.into()
    }),
    Definition::new("retransmitted_bytes", Kind::Int, |requests| {
        requests.retransmissions.total().bytes.into()
    }),
    Definition::new("retransmission_wait_ns", Kind::Int, |requests| {
        requests.retransmissions.total().wait_nanos.into()
    }),
    Definition::new("timeouts", Kind::Int, |requests| {
        requests.retransmissions.timeout.rewinds.into()
    }),
    Definition::new("retransmitted_by_timeout", Kind::Int, |requests| {
        requests.retransmissions.timeout.packets.into()
    }),
    Definition::new("retransmitted_by_sequence_nak", Kind::Int, |requests| {
        requests.retransmissions.sequence_nak.packets.into()
    }),
    Definition::new("retransmitted_by_implied_nak", Kind::Int, |requests| {
        requests.retransmissions.implied_nak.packets.into()
    }),
    Definition::new("retransmitted_unexplained", Kind::Int, |requests| {
        requests.retransmissions.unexplained.packets.into()
    }),
    Definition::new("retransmitted_spurious", Kind::Int, |requests| {
        requests.retransmissions.spurious.packets.into()
    }),
    Definition::new("retransmitted_by_rnr", Kind::Int, |requests| {
        requests.retransmissions.rnr.packets.into()
    }),
    Definition::new("lost_requests", Kind::Int, |requests| requests.lost_requests.into()),
    Definition::new("lost_responses", Kind::Int, |requests| requests.lost_responses.into()),
    Definition::new("duplicate_packets", Kind::Int, |requests| requests.duplicate_packets.into()),
    Definition::new("reordered", Kind::Int, |requests| requests.reordered.into()),
    Definition::new("not_captured", Kind::Int, |requests| requests.not_captured.into()),
    Definition::new("naks", Kind::Int, |requests| requests.naks.iter().sum::<u64>().into()),
    Definition::new("rnr_naks", Kind::Int, |requests| requests.rnr_naks.into()),
    Definition::new("rnr_wait_ns", Kind::Int, |requests| requests.rnr_wait_nanos.into()),
    Definition::new("acks", Kind::Int, |requests| requests.acks.into()),
    Definition::new("packets_per_ack", Kind::Float, |requests| {
        Some(requests.packets_per_ack).filter(|ratio| ratio.is_finite()).into()
    }),
    Definition::new("least_credits", Kind::Int, |requests| requests.least_credits.into()),
    Definition::new("read_atomic_depth", Kind::Int, |requests| requests.read_atomic_depth.into()),
    Definition::new("ce_marked", Kind::Int, |requests| requests.ce_marked.into()),
    Definition::new("cnps", Kind::Int, |requests| requests.cnps.into()),
    Definition::new("latency_p50_ns", Kind::Int, |requests| p50(&requests.latency)),
    Definition::new("latency_p99_ns", Kind::Int, |requests| p99(&requests.latency)),
    Definition::new("latency_max_ns", Kind::Int, |requests| max(&requests.latency)),
    Definition::new("rtt_p50_ns", Kind::Int, |requests| p50(&requests.rtt)),
    Definition::new("rtt_p99_ns", Kind::Int, |requests| p99(&requests.rtt)),
    Definition::new("icrc_errors", Kind::Int, |requests| requests.icrc_errors.into()),
];

/// Prefixes of the columns of an end's requests, in the order of the ends.
const ENDS: [&str; 2] = ["a_", "b_"];

/// Columns without rows.
pub(super) fn columns() -> Rows {
    let mut columns: Vec<_> = COLUMNS.iter().map(|own| Column::new(own.name, own.kind)).collect();
    for end in ENDS {
        let of_end =
            |column: &Definition<_>| Column::new(format!("{end}{}", column.name), column.kind);
        columns.extend(DIRECTION.iter().map(of_end));
    }
    Rows::new(columns)
}

/// Writes the rows of all connections.
pub(super) fn write(report: &Report, table: &mut Table) -> anyhow::Result<()> {
    let mut rows = columns();
    for connection in &report.connections {
        let own = COLUMNS.iter().map(|column| (column.value)(connection));
        let of_ends = connection
            .directions
            .iter()
            .flat_map(|requests| DIRECTION.iter().map(move |column| (column.value)(requests)));
        rows.add_cells(own.chain(of_ends));
        if rows.len() >= ROWS {
            table.append(&mut rows)?;
        }
    }
    table.append(&mut rows)
}

/// Number of rows that are handed to the table at once.
const ROWS: usize = 1024;

fn address(connection: &Connection, end: usize) -> Cell {
    connection.ends.get(end).map(|end| address_text(end.address)).into()
}

fn qpn(connection: &Connection, end: usize) -> Cell {
    connection.ends.get(end).and_then(|end| end.qpn).map(|qpn| qpn.get()).into()
}

fn p50(values: &Distribution) -> Cell {
    some(values).map(|values| values.percentiles().p50).into()
}

fn p99(values: &Distribution) -> Cell {
    some(values).map(|values| values.percentiles().p99).into()
}

fn max(values: &Distribution) -> Cell {
    some(values).map(|values| values.percentiles().max).into()
}

/// Returns the distribution if it has values.
fn some(values: &Distribution) -> Option<&Distribution> {
    Some(values).filter(|values| values.count() > 0)
}
