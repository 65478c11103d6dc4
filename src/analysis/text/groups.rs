//! Groups of findings, and the matrix of hosts, as text.

use super::paint::{Paint, Style, columns, pad, wrap};
use super::report::WRAP_WIDTH;
use crate::analysis::groups::{HOSTS_MAX, HostMatrix, MatrixCell};
use crate::analysis::{Groups, Report};
use crate::decode::address_text;

/// Connections from which on a report counts them by kind and shows a matrix of hosts.
const FLEET_MIN: usize = 32;

/// Hosts from which on a report has a matrix.
const MATRIX_HOSTS_MIN: usize = 3;

/// Columns of a cell of the matrix.
const CELL_WIDTH: usize = 5;

/// Appends which hosts, paths, DSCPs and times stand out, and the matrix of hosts.
pub(super) fn write_groups(report: &Report, style: &Style, out: &mut String) {
    let Groups { outstanding, bursts, kinds, .. } = &report.groups;
    if !outstanding.is_empty() || !bursts.is_empty() {
        out.push_str("What stands out:\n");
        for group in outstanding {
            let (subject, text) = (group.subject.text(), group.text());
            write_item(&subject, Paint::Bad, &format!(": {text}"), style, out);
            write_indented(group.subject.advice(), "    ", style, out);
            if let Some(example) = group.examples.first() {
                write_indented(&format!("For example connection #{example}."), "    ", style, out);
            }
        }
        for burst in bursts {
            let text = burst.text(report.capture.first_time);
            write_item("", Paint::Warn, &text, style, out);
        }
        out.push('\n');
    }
    if report.connections.len() < FLEET_MIN || report.findings.is_empty() {
        return;
    }
    if !kinds.is_empty() {
        out.push_str("Connections by what was found:\n");
        for kind in kinds {
            write_item("", Paint::Strong, &kind.text(), style, out);
        }
        out.push('\n');
    }
    write_matrix(report, style, out);
}

/// Appends an item of a list, whose head is painted.
fn write_item(head: &str, paint: Paint, text: &str, style: &Style, out: &mut String) {
    let width = style.width.unwrap_or(WRAP_WIDTH).saturating_sub(2).max(20);
    for (number, line) in wrap(&format!("{head}{text}"), width).iter().enumerate() {
        match line.strip_prefix(head) {
            Some(rest) if number == 0 => {
                out.push_str("  ");
                style.put(Some(paint), head, out);
                out.extend([rest, "\n"]);
            }
            _ => out.extend([if number == 0 { "  " } else { "    " }, line, "\n"]),
        }
    }
}

fn write_indented(text: &str, indent: &str, style: &Style, out: &mut String) {
    let width = style.width.unwrap_or(WRAP_WIDTH).saturating_sub(indent.len()).max(20);
    for line in wrap(text, width) {
        out.extend([indent, &line, "\n"]);
    }
}

/// Appends the matrix of the worst hosts, as many as the width has room for.
fn write_matrix(report: &Report, style: &Style, out: &mut String) {
    if report.matrix.len() < MATRIX_HOSTS_MIN {
        return;
    }
    let labels = report.matrix.hosts.iter().map(|host| columns(&address_text(*host)));
    let label_width = labels.max().unwrap_or(0) + 5;
    let room = style.width.unwrap_or(WRAP_WIDTH).saturating_sub(label_width) / CELL_WIDTH;
    // One column is that of all other hosts.
    let hosts_max = room.saturating_sub(1).clamp(MATRIX_HOSTS_MIN - 1, HOSTS_MAX);
    let matrix = HostMatrix::new(&report.connections, &report.findings, hosts_max);
    let intro = "Connections with findings in % of those between two hosts, worst hosts first (rows request, \
                 columns respond; · no connection):";
    write_indented(intro, "", style, out);
    let len = matrix.len();
    pad("", label_width, out);
    for column in 0..len {
        let heading = match matrix.hosts.get(column) {
            Some(_) => format!("{}", column + 1),
            None => "rest".into(),
        };
        out.push_str(&format!("{heading:>CELL_WIDTH$}"));
    }
    out.push('\n');
    for row in 0..len {
        let label = match matrix.hosts.get(row) {
            Some(host) => format!("{:>3} {}", row + 1, address_text(*host)),
            None => format!("    {} more", matrix.other_hosts),
        };
        out.push_str(&label);
        pad(&label, label_width, out);
        for column in 0..len {
            let (text, paint) = cell_text(matrix.cell(row, column));
            pad(&text, CELL_WIDTH, out);
            style.put(Some(paint), &text, out);
        }
        out.push('\n');
    }
    out.push('\n');
}

/// The affected share of a cell's connections in percent.
fn cell_text(cell: Option<&MatrixCell>) -> (String, Paint) {
    let Some(cell) = cell else { return ("·".into(), Paint::Dim) };
    match cell.affected * 100 / cell.connections.max(1) {
        _ if cell.affected == 0 => ("0".into(), Paint::Dim),
        0 => ("<1".into(), Paint::Dim),
        percent @ 50.. => (percent.to_string(), Paint::Bad),
        percent => (percent.to_string(), Paint::Warn),
    }
}
