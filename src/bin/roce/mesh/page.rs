//! A mesh as one HTML page without a script: findings, a heat map of pairs, tables of hosts and of
//! the worst paths.
//!
//! Everything that came from hosts or users is put into the page as text, and the page's
//! Content-Security-Policy allows nothing but its own style.

use std::fmt::Write as _;

use roce::decode::escape_markup;
use roce::histogram::Histogram;
use roce::ping::PathStats;
use roce::ping::mesh::{Cell, Fault};

use super::report::Report;
use super::text::{Heat, best};
use crate::ping::show::{micros, share};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");

/// Maximum number of paths in the table.
const PATHS_SHOWN: usize = 100;

/// The page of a report.
pub(super) fn render(report: &Report<'_>) -> String {
    let mut page = String::new();
    let mut rest = TEMPLATE;
    while let Some((before, slot)) = rest.split_once("{{") {
        page.push_str(before);
        let Some((name, after)) = slot.split_once("}}") else { break };
        match name {
            "style" => page.push_str(STYLE),
            "headline" => page.push_str(&escape_markup(&report.headline())),
            "tiles" => tiles(&mut page, report),
            "findings" => findings(&mut page, report),
            "map" => map(&mut page, report),
            "hosts" => hosts(&mut page, report),
            "paths" => paths(&mut page, report),
            other => unreachable!("the template has a slot {other}"),
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

fn tiles(page: &mut String, report: &Report<'_>) {
    let all = report.all();
    let p50 = time(&all.network, 50.0);
    let p99 = time(&all.network, 99.0);
    for (value, name) in [
        (report.mesh.hosts.len().to_string(), "hosts"),
        (all.sent().to_string(), "probes"),
        (share(&all), "lost"),
        (format!("{p50} µs"), "network, median"),
        (format!("{p99} µs"), "network, p99"),
        (report.findings.len().to_string(), "findings"),
    ] {
        let _ = writeln!(page, "<div class=\"tile\"><b>{}</b>{name}</div>", escape_markup(&value));
    }
}

fn findings(page: &mut String, report: &Report<'_>) {
    let mesh = report.mesh;
    for finding in &report.findings {
        let class = match finding.fault {
            Fault::Nic | Fault::Pair => "nic",
            Fault::Path | Fault::Network => "path",
            Fault::Host | Fault::Unresponsive => "host",
            Fault::Dead | Fault::Refusing | Fault::Unreachable => "silent",
        };
        let _ = writeln!(
            page,
            "<article class=\"finding {class}\"><h3>{}</h3><p>{}</p></article>",
            escape_markup(&finding.title(mesh)),
            escape_markup(&finding.evidence)
        );
    }
    if report.is_good() {
        page.push_str("<p class=\"good\">Nothing is wrong: no host and no path differs from the others.</p>\n");
    }
}

/// The class of a pair, which gives it its color.
fn class_of(heat: Heat) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 4")]
    let level = |share: f64| (share * 5.0).clamp(0.0, 4.0) as u8;
    match heat {
        Heat::None => "none".to_owned(),
        Heat::Lossy(loss) => format!("lossy{}", level(loss.sqrt())),
        Heat::Fine(heat) => format!("fine{}", level(heat)),
    }
}

fn map(page: &mut String, report: &Report<'_>) {
    let mesh = report.mesh;
    let (count, best) = (mesh.hosts.len(), best(report).unwrap_or_default());
    page.push_str("<table class=\"map\"><thead><tr><th></th>");
    for (to, name) in mesh.hosts.iter().enumerate() {
        let _ = write!(page, "<th title=\"{}\">{}</th>", escape_markup(name), to + 1);
    }
    page.push_str("</tr></thead><tbody>\n");
    for (from, name) in mesh.hosts.iter().enumerate() {
        let _ = write!(page, "<tr><th>{} {}</th>", escape_markup(name), from + 1);
        for to in 0..count {
            if from == to {
                page.push_str("<td class=\"self\"></td>");
                continue;
            }
            let stats = mesh.pair(from, to);
            let class = class_of(Heat::of(&stats, best));
            let text = if stats.lost > 0 { share(&stats).replace(" %", "") } else { String::new() };
            let title = format!("{} to {}: {}", name, mesh.name(to), figures(&stats));
            let _ = write!(
                page,
                "<td class=\"{class}\" title=\"{}\">{text}</td>",
                escape_markup(&title)
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table>\n");
    let legend = [
        ("fine0", format!("as fast as the best pair, {:.1} µs", micros(best))),
        ("fine2", "2.5 times as long".to_owned()),
        ("fine4", "6 times as long".to_owned()),
        ("lossy0", "some lost".to_owned()),
        ("lossy2", "a quarter lost".to_owned()),
        ("lossy4", "most lost".to_owned()),
    ];
    page.push_str("<p class=\"legend\">");
    for (class, text) in legend {
        let _ = write!(page, "<span class=\"key {class}\"></span>{text} ");
    }
    page.push_str("</p>\n");
}

fn figures(stats: &PathStats) -> String {
    if stats.sent() == 0 {
        return "not probed".to_owned();
    }
    format!(
        "{} probes, {} lost, network p50 {} µs, p99 {} µs, prober {} µs, responder {} µs",
        stats.sent(),
        share(stats),
        time(&stats.network, 50.0),
        time(&stats.network, 99.0),
        time(&stats.prober, 50.0),
        time(&stats.responder, 50.0)
    )
}

fn time(times: &Histogram, percent: f64) -> String {
    times.percentile(percent).map_or_else(|| "–".to_owned(), |it| format!("{:.1}", micros(it)))
}

fn hosts(page: &mut String, report: &Report<'_>) {
    for (host, name) in report.mesh.hosts.iter().enumerate() {
        let (from, to) = (report.sum(|cell| cell.from == host), report.sum(|cell| cell.to == host));
        let mut both = from.network.clone();
        both.merge(&to.network);
        let bad = report.findings.iter().any(|finding| finding.hosts.contains(&host));
        let _ = writeln!(
            page,
            "<tr{}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            if bad { " class=\"bad\"" } else { "" },
            host + 1,
            escape_markup(name),
            share(&from),
            share(&to),
            time(&both, 50.0),
            time(&both, 99.0),
            time(&from.prober, 50.0),
            time(&to.responder, 50.0)
        );
    }
}

/// The paths that lose most, then those that take longest.
fn paths(page: &mut String, report: &Report<'_>) {
    let mesh = report.mesh;
    let mut cells: Vec<&Cell> = mesh.cells.iter().filter(|cell| cell.stats.sent() > 0).collect();
    let key = |cell: &Cell| (cell.stats.loss().unwrap_or(0.0), cell.stats.network.median());
    cells.sort_by(|a, b| {
        let ((a_loss, a_time), (b_loss, b_time)) = (key(a), key(b));
        b_loss.total_cmp(&a_loss).then(b_time.cmp(&a_time))
    });
    for cell in cells.into_iter().take(PATHS_SHOWN) {
        let stats = &cell.stats;
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape_markup(mesh.name(cell.from)),
            escape_markup(mesh.name(cell.to)),
            cell.source_port,
            stats.sent(),
            share(stats),
            time(&stats.network, 50.0),
            time(&stats.network, 99.0)
        );
    }
}

#[cfg(test)]
mod tests {
    use roce::ping::mesh::{Finding, Mesh, Symptom};

    use super::*;

    #[test]
    fn text_of_hosts_is_no_markup() {
        let hostile = "<script>alert(1)</script>\"&";
        let mesh = Mesh::new([hostile.to_owned(), "b".to_owned()]);
        let finding = Finding {
            fault: Fault::Path,
            symptom: Symptom::Loss,
            hosts: vec![0],
            paths: Vec::new(),
            evidence: hostile.to_owned(),
        };
        let page = render(&Report { mesh: &mesh, findings: vec![finding], rounds: 1 });
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
        assert!(page.contains("default-src 'none'") && !page.contains("{{"));
    }
}
