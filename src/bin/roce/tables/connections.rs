//! The table of connections: one row per connection, with what each of its two ends requested.

use roce::analysis::{Connection, Direction, Distribution, Report, service_name};
use roce::decode::address_text;

use super::column::{Column, Kind};
use super::row::{Cell, Definition, define_columns};
use super::table::{Rows, Table};

/// The columns of the connection itself.
pub(super) static COLUMNS: [Definition<Connection>; 21] = define_columns! { |connection|
    Int "flow": connection.flow.0;
    Text "connection": connection.key();
    Text "service": service_name(connection.service);
    Text "pairing": {
        let name = serde_json::to_value(connection.pairing).ok();
        name.and_then(|name| name.as_str().map(str::to_owned))
    };
    Text "a_address": address(connection, 0);
    Int "a_qpn": qpn(connection, 0);
    Text "b_address": address(connection, 1);
    Int "b_qpn": qpn(connection, 1);
    Int "a_dscp": connection.ends[0].dscp;
    Int "b_dscp": connection.ends[1].dscp;
    Int "path_mtu": connection.path_mtu;
    Int "application_port": connection.setup.as_ref().and_then(|setup| setup.application_port);
    Int "retry_count": connection.setup.as_ref().and_then(|setup| setup.retry_count);
    Int "rnr_retry_count": connection.setup.as_ref().and_then(|setup| setup.rnr_retry_count);
    Int "ack_timeout": connection.setup.as_ref().and_then(|setup| setup.ack_timeout);
    Int "first_frame": connection.first_frame;
    Time "first_time": connection.first_time.as_nanos();
    Int "first_time_epoch": connection.first_time.as_nanos();
    Int "last_frame": connection.last_frame;
    Time "last_time": connection.last_time.as_nanos();
    Int "last_time_epoch": connection.last_time.as_nanos();
};

/// The columns of what one end requested: once with `a_` and once with `b_` before their names.
static DIRECTION: [Definition<Direction>; 37] = define_columns! { |requests|
    Int "request_packets": requests.request_packets;
    Int "response_packets": requests.response_packets;
    Int "wire_bytes": requests.wire_bytes;
    Int "goodput_bytes": requests.goodput_bytes;
    Int "messages": requests.operations.iter().map(|all| all.messages).sum::<u64>();
    Int "messages_completed": requests.operations.iter().map(|all| all.completed).sum::<u64>();
    Int "messages_failed": requests.operations.iter().map(|all| all.failed).sum::<u64>();
    Int "retransmitted_packets": requests.retransmissions.total().packets;
    Int "retransmitted_bytes": requests.retransmissions.total().bytes;
    Int "retransmission_wait_ns": requests.retransmissions.total().wait_nanos;
    Int "timeouts": requests.retransmissions.timeout.rewinds;
    Int "retransmitted_by_timeout": requests.retransmissions.timeout.packets;
    Int "retransmitted_by_sequence_nak": requests.retransmissions.sequence_nak.packets;
    Int "retransmitted_by_implied_nak": requests.retransmissions.implied_nak.packets;
    Int "retransmitted_unexplained": requests.retransmissions.unexplained.packets;
    Int "retransmitted_spurious": requests.retransmissions.spurious.packets;
    Int "retransmitted_by_rnr": requests.retransmissions.rnr.packets;
    Int "lost_requests": requests.lost_requests;
    Int "lost_responses": requests.lost_responses;
    Int "duplicate_packets": requests.duplicate_packets;
    Int "reordered": requests.reordered;
    Int "not_captured": requests.not_captured;
    Int "naks": requests.naks.iter().sum::<u64>();
    Int "rnr_naks": requests.rnr_naks;
    Int "rnr_wait_ns": requests.rnr_wait_nanos;
    Int "acks": requests.acks;
    Float "packets_per_ack": Some(requests.packets_per_ack).filter(|ratio| ratio.is_finite());
    Int "least_credits": requests.least_credits;
    Int "read_atomic_depth": requests.read_atomic_depth;
    Int "ce_marked": requests.ce_marked;
    Int "cnps": requests.cnps;
    Int "latency_p50_ns": p50(&requests.latency);
    Int "latency_p99_ns": p99(&requests.latency);
    Int "latency_max_ns": max(&requests.latency);
    Int "rtt_p50_ns": p50(&requests.rtt);
    Int "rtt_p99_ns": p99(&requests.rtt);
    Int "icrc_errors": requests.icrc_errors;
};

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
