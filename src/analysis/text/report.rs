//! A report for people: findings first, then the connections.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use super::groups::write_groups;
use super::paint::{Paint, Style, wrap};
use super::table::{Align, Cell, Column, write_table};
use super::units::{bytes, count, counted, duration, rate, shell_word};
use crate::analysis::row::{Row, SortBy};
use crate::analysis::{
    CaptureFacts, Connection, Endpoint, Finding, FindingKind, Pairing, Report, RetransmissionCause,
    service_name,
};
use crate::decode::{Printable, address_text};

/// Frames that a finding's line names; its command names them too.
const FRAMES_SHOWN: usize = 8;

/// Maximum width of lines if that of the terminal is not known.
pub(super) const WRAP_WIDTH: usize = 100;

/// Style of a report for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportStyle {
    /// Width and colors.
    pub style: Style,
    /// The order of the connections.
    pub sort: SortBy,
    /// The most findings and the most connections that are listed; nothing lists all.
    pub rows_max: Option<usize>,
}

impl ReportStyle {
    /// Appends the report.
    pub fn write(&self, report: &Report, out: &mut String) {
        let style = &self.style;
        write_capture(&report.capture, style, out);
        for sentence in report.capture.kind.sentences() {
            write_wrapped(&sentence, style, out);
        }
        out.push('\n');
        if report.capture.packets == 0 {
            out.push_str("No RoCE packets: there is nothing to analyze.\n");
            return;
        }
        write_groups(report, style, out);
        self.write_findings(report, out);
        out.push('\n');
        self.write_connections(report, out);
        write_totals(report, style, out);
        write_tunnels(report, style, out);
        let limits = &report.beyond_limits;
        if limits.packets + limits.connections + limits.messages > 0 {
            let text = format!(
                "Beyond the limits of the analysis, and not in these figures: {}, {}, {}.",
                counted(limits.packets, "packet"),
                counted(limits.connections, "connection"),
                counted(limits.messages, "message"),
            );
            write_wrapped(&text, style, out);
        }
    }

    fn write_findings(&self, report: &Report, out: &mut String) {
        if report.findings.is_empty() {
            out.push_str("No findings.\n");
            return;
        }
        let total = report.findings.len();
        out.push_str(&format!("{}, worst first:\n", counted(total as u64, "finding")));
        let files = report.capture.files.iter().map(|file| shell_word(&file.name));
        let files = files.collect::<Vec<_>>().join(" ");
        let shown = self.rows_max.unwrap_or(total);
        for (index, finding) in report.findings.iter().take(shown).enumerate() {
            write_finding(index + 1, finding, &files, &self.style, out);
        }
        if total > shown {
            let hidden = counted((total - shown) as u64, "more finding");
            out.push_str(&format!("… {hidden}, see --json, --html or --top 0.\n"));
        }
    }

    fn write_connections(&self, report: &Report, out: &mut String) {
        if report.connections.is_empty() {
            out.push_str("No connections.\n");
            return;
        }
        let order = match self.sort {
            SortBy::Trouble => "worst first",
            SortBy::Bytes => "most bytes first",
            SortBy::Number => "in the order of their first packets",
        };
        let total = report.connections.len() as u64;
        out.push_str(&format!("{}, {order}:\n", counted(total, "connection")));
        let mut sorted = self.sort.sorted(&report.connections, &report.findings);
        let hidden = self.rows_max.map_or(0, |most| sorted.len().saturating_sub(most));
        sorted.truncate(sorted.len() - hidden);
        let rows: Vec<_> = sorted.iter().map(|(connection, row)| cells(connection, row)).collect();
        write_table(COLUMNS, LEAD_COLUMNS, &rows, &self.style, out);
        if hidden > 0 {
            let hidden = counted(hidden as u64, "more connection");
            out.push_str(&format!("… {hidden}; --top 0 lists all.\n"));
        }
    }
}

/// Writes the files, the times and the amount of the capture.
fn write_capture(capture: &CaptureFacts, style: &Style, out: &mut String) {
    let span = capture.duration_nanos();
    let rate = rate(capture.bytes, span).map_or_else(String::new, |rate| format!(", {rate}"));
    let what = format!(
        "{}, {}, {} in {}{rate}",
        counted(capture.frames, "frame"),
        counted(capture.packets, "RoCE packet"),
        bytes(capture.bytes),
        duration(span)
    );
    if let [file] = capture.files.as_slice() {
        write_wrapped(&format!("{}: {what}", Printable(&file.name)), style, out);
        return;
    }
    write_wrapped(&format!("{}: {what}", counted(capture.files.len() as u64, "file")), style, out);
    for file in &capture.files {
        let name = Printable(&file.name);
        out.push_str(&format!("  {name}: {}", counted(file.frames, "frame")));
        if file.seen_elsewhere > 0 {
            let elsewhere = count(file.seen_elsewhere);
            // Frames with several packets.
            let has_trains = capture.kind.trains.frames > 0;
            let what = if has_trains { "of their packets" } else { "of them" };
            out.push_str(&format!(", {elsewhere} {what} in another file too"));
        }
        out.push('\n');
    }
}

fn write_wrapped(text: &str, style: &Style, out: &mut String) {
    for line in wrap(text, style.width.unwrap_or(usize::MAX)) {
        out.extend([line.as_str(), "\n"]);
    }
}

fn write_finding(number: usize, finding: &Finding, files: &str, style: &Style, out: &mut String) {
    let label = format!("{number:>3}. ");
    let indent = " ".repeat(label.len());
    let width = style.width.unwrap_or(WRAP_WIDTH).saturating_sub(label.len()).max(20);
    out.push_str(&label);
    let kind = finding.kind.title();
    style.put(Some(paint_of(finding.kind)), kind, out);
    if let Some(flow) = finding.flow {
        out.push_str(&format!(", connection #{flow}"));
    }
    out.push('\n');
    for line in wrap(&Printable(&finding.text).to_string(), width) {
        out.extend([indent.as_str(), &line, "\n"]);
    }
    for line in wrap(finding.kind.advice(), width) {
        out.extend([indent.as_str(), &line, "\n"]);
    }
    let Some(command) = show_command(finding, files) else { return };
    out.push_str(&indent);
    style.put(Some(Paint::Dim), &command, out);
    out.push('\n');
}

/// The command line that shows the frames of a finding.
fn show_command(finding: &Finding, files: &str) -> Option<String> {
    let frames = finding.frames.iter().take(FRAMES_SHOWN).map(u64::to_string).collect::<Vec<_>>();
    match frames.as_slice() {
        [] => None,
        [one] => Some(format!("roce decode -Y 'frame.number == {one}' {files}")),
        all => Some(format!("roce decode -Y 'frame.number in {{{}}}' {files}", all.join(", "))),
    }
}

fn paint_of(kind: FindingKind) -> Paint {
    match kind.severity() {
        0 => Paint::Bad,
        1 => Paint::Warn,
        _ => Paint::Strong,
    }
}

const fn left(heading: &'static str) -> Column {
    Column { heading, align: Align::Left }
}

const fn right(heading: &'static str) -> Column {
    Column { heading, align: Align::Right }
}

/// The columns of the table; [`cells`] fills them.
const COLUMNS: &[Column] = &[
    right("#"),
    left("ends"),
    left("service"),
    right("MTU"),
    right("packets"),
    right("messages"),
    right("goodput"),
    right("retrans"),
    right("lost"),
    right("NAK"),
    right("RNR"),
    right("p50"),
    right("p99"),
];

/// The columns that say which connection it is.
const LEAD_COLUMNS: usize = 4;

fn cells(connection: &Connection, row: &Row) -> Vec<Cell> {
    let bad = |number: u64, paint| match number {
        0 => Cell::painted("0", Paint::Dim),
        _ => Cell::painted(count(number), paint),
    };
    let latency = |nanos: u64| match row.latency.count {
        0 => Cell::painted("–", Paint::Dim),
        _ => Cell::plain(duration(nanos)),
    };
    let goodput = rate(row.goodput_bytes, connection.duration_nanos());
    let messages = if row.failed > 0 {
        Cell::painted(format!("{} ({} failed)", count(row.messages), count(row.failed)), Paint::Bad)
    } else {
        Cell::plain(count(row.messages))
    };
    vec![
        Cell::plain(connection.flow.to_string()),
        Cell::plain(ends_text(connection)),
        Cell::plain(service_name(connection.service)),
        Cell::plain(connection.path_mtu.map_or_else(|| "–".into(), |mtu| mtu.to_string())),
        Cell::plain(count(row.packets)),
        messages,
        goodput.map_or_else(|| Cell::painted("–", Paint::Dim), Cell::plain),
        bad(row.retransmissions, Paint::Warn),
        bad(row.lost, Paint::Bad),
        bad(row.naks, Paint::Bad),
        bad(row.rnr_naks, Paint::Warn),
        latency(row.latency.p50),
        latency(row.latency.p99),
    ]
}

/// Both ends of a connection.
pub(crate) fn ends_text(connection: &Connection) -> String {
    let arrow = match connection.pairing {
        Pairing::Datagram | Pairing::Unpaired => "→",
        _ => "↔",
    };
    let [a, b] = &connection.ends;
    format!("{} {arrow} {}", end_text(a), end_text(b))
}

/// An end: its address and queue pair.
pub(crate) fn end_text(end: &Endpoint) -> String {
    let address = address_text(end.address);
    match end.qpn {
        Some(qpn) => format!("{address} {:#x}", qpn.get()),
        None => format!("{address} ?"),
    }
}

/// Packets, and those of the capture that are not counted among them.
fn packets_text(packets: u64, duplicates: u64) -> String {
    let packets = counted(packets, "packet");
    match duplicates {
        0 => packets,
        _ => format!("{packets} ({} not counted)", counted(duplicates, "duplicate")),
    }
}

/// Tunnels that a report names at the most.
const TUNNELS_MAX: usize = 8;

/// Tunnels that carry connections, those with the most of them first.
fn write_tunnels(report: &Report, style: &Style, out: &mut String) {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for tunnel in report.connections.iter().filter_map(|connection| connection.tunnel) {
        *counts.entry(tunnel.to_string()).or_default() += 1;
    }
    if counts.is_empty() {
        return;
    }
    let mut tunnels: Vec<_> = counts.into_iter().collect();
    tunnels.sort_by_key(|(_, connections)| Reverse(*connections));
    let others = tunnels.len().saturating_sub(TUNNELS_MAX);
    tunnels.truncate(TUNNELS_MAX);
    let named = tunnels
        .iter()
        .map(|(tunnel, connections)| format!("{tunnel} ({})", counted(*connections, "connection")));
    let mut named: Vec<String> = named.collect();
    if others > 0 {
        named.push(format!("{} more", count(others as u64)));
    }
    write_wrapped(&format!("In tunnels: {}.", named.join(", ")), style, out);
}

fn write_totals(report: &Report, style: &Style, out: &mut String) {
    let all = &report.totals.all;
    let row = Row::new(core::slice::from_ref(all));
    let mut parts = vec![
        packets_text(row.packets, all.duplicate_packets),
        counted(row.messages, "message"),
        format!("{} of payload", bytes(row.goodput_bytes)),
    ];
    let by_cause: Vec<_> = RetransmissionCause::ALL
        .into_iter()
        .map(|cause| (cause, all.retransmissions.of(cause).packets))
        .filter(|(_, packets)| *packets > 0)
        .map(|(cause, packets)| match cause {
            RetransmissionCause::Spurious | RetransmissionCause::Unexplained => {
                format!("{} {}", count(packets), cause.title())
            }
            _ => format!("{} by {}", count(packets), cause.title()),
        })
        .collect();
    if !by_cause.is_empty() {
        let total = counted(row.retransmissions, "packet");
        parts.push(format!("{total} retransmitted ({})", by_cause.join(", ")));
    }
    for (number, noun) in [
        (row.lost, "lost packet"),
        (all.reordered, "reordered packet"),
        (row.naks, "NAK"),
        (row.rnr_naks, "RNR NAK"),
        (row.ce_marked, "CE mark"),
        (row.cnps, "CNP"),
        (all.icrc_errors, "ICRC failure"),
    ] {
        if number > 0 {
            parts.push(counted(number, noun));
        }
    }
    let text = format!("In all: {}.", parts.join(", "));
    write_wrapped(&text, style, out);
}
