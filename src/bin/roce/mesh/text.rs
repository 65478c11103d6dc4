//! A mesh in the terminal: a table of hosts, a heat map of pairs, and the findings.

use std::fmt::Write as _;
use std::time::Duration;

use roce::histogram::Histogram;
use roce::ping::PathStats;

use super::report::Report;
use crate::ping::show::{micros, share};

/// Appearance of a pair on the map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Heat {
    /// The pair was not probed.
    None,
    /// Share of its probes that is lost.
    Lossy(f64),
    /// Lossless; network time from 0, the shortest of all pairs, to 1, ten times as long.
    Fine(f64),
}

impl Heat {
    /// The heat of a pair, if the fastest pair takes `best`.
    pub(super) fn of(stats: &PathStats, best: Duration) -> Self {
        match (stats.loss(), stats.network.median()) {
            (None, _) => Self::None,
            (Some(loss), _) if loss > 0.0 => Self::Lossy(loss),
            (_, Some(median)) => {
                let times = median.as_secs_f64() / best.as_secs_f64().max(1e-9);
                Self::Fine(times.log10().clamp(0.0, 1.0))
            }
            (_, None) => Self::Fine(0.0),
        }
    }

    fn symbol(self) -> char {
        match self {
            Self::None => ' ',
            Self::Lossy(loss) if loss >= 1.0 => 'X',
            Self::Lossy(loss) => digit(loss * 10.0),
            Self::Fine(heat) if heat < 0.25 => '·',
            Self::Fine(heat) if heat < 0.5 => '░',
            Self::Fine(heat) if heat < 0.75 => '▒',
            Self::Fine(_) => '▓',
        }
    }

    /// Returns its color among the 256 of terminals.
    fn color(self) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Lossy(loss) if loss >= 0.1 => Some(196),
            Self::Lossy(_) => Some(208),
            Self::Fine(heat) if heat < 0.25 => Some(34),
            Self::Fine(heat) if heat < 0.5 => Some(112),
            Self::Fine(heat) if heat < 0.75 => Some(190),
            Self::Fine(_) => Some(220),
        }
    }
}

/// A digit from 1 to 9.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
fn digit(tenths: f64) -> char {
    char::from(b'0' + tenths.ceil().clamp(1.0, 9.0) as u8)
}

/// The whole report.
pub(super) fn render(report: &Report<'_>, color: bool) -> String {
    let mut text = String::new();
    hosts(&mut text, report);
    map(&mut text, report, color);
    let mesh = report.mesh;
    let _ = writeln!(text, "{}", report.headline());
    for finding in &report.findings {
        let words = finding.describe(mesh);
        let _ = match color {
            true => writeln!(text, "\x1b[31m{words}\x1b[0m"),
            false => writeln!(text, "{words}"),
        };
    }
    text
}

/// A row for each host: what it lost, and how long things took.
fn hosts(text: &mut String, report: &Report<'_>) {
    let mesh = report.mesh;
    let width = mesh.hosts.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(4);
    let _ = writeln!(
        text,
        "{:>4} {:<width$} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "host", "lost from", "lost to", "net p50", "net p99", "prober", "responder"
    );
    for (host, name) in mesh.hosts.iter().enumerate() {
        let (from, to) = (report.sum(|cell| cell.from == host), report.sum(|cell| cell.to == host));
        let mut both = from.network.clone();
        both.merge(&to.network);
        let _ = writeln!(
            text,
            "{:>4} {name:<width$} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            host + 1,
            share(&from),
            share(&to),
            time(&both, 50.0),
            time(&both, 99.0),
            time(&from.prober, 50.0),
            time(&to.responder, 50.0)
        );
    }
    text.push_str(
        "     times in µs; prober and responder: median of what the host itself took\n\n",
    );
}

fn time(times: &Histogram, percent: f64) -> String {
    times.percentile(percent).map_or_else(|| "-".to_owned(), |it| format!("{:.1}", micros(it)))
}

/// The shortest median of all pairs, if any probe was answered.
pub(super) fn best(report: &Report<'_>) -> Option<Duration> {
    let cells = report.mesh.cells.iter();
    cells.filter_map(|cell| cell.stats.network.median()).min()
}

/// A character for each pair, probers downwards.
fn map(text: &mut String, report: &Report<'_>, color: bool) {
    let count = report.mesh.hosts.len();
    if report.mesh.cells.is_empty() {
        return;
    }
    let best = best(report);
    let ones: String = (1..=count).map(|host| (host % 10).to_string()).collect();
    let _ = writeln!(text, "     {ones}  probes go from rows to columns");
    for from in 0..count {
        let _ = write!(text, "{:>4} ", from + 1);
        for to in 0..count {
            let heat = Heat::of(&report.mesh.pair(from, to), best.unwrap_or_default());
            let symbol = if from == to { '\\' } else { heat.symbol() };
            let _ = match heat.color().filter(|_| color) {
                Some(code) => write!(text, "\x1b[38;5;{code}m{symbol}\x1b[0m"),
                None => write!(text, "{symbol}"),
            };
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "     1-9 tenths of the probes lost, X all; · network as fast as the best pair{}, ░ 1.8, ▒ 3, ▓ 6 times as long\n",
        best.map_or_else(String::new, |best| format!(" ({:.1} µs)", micros(best)))
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_has_a_symbol_for_loss_before_time() {
        let best = Duration::from_micros(10);
        let mut stats = PathStats::default();
        assert_eq!(Heat::of(&stats, best).symbol(), ' ');
        stats.answered = 99;
        stats.network.add(Duration::from_micros(10));
        assert_eq!(Heat::of(&stats, best).symbol(), '·');
        let mut slow = stats.clone();
        slow.network.add(Duration::from_millis(1));
        slow.network.add(Duration::from_millis(1));
        assert_eq!(Heat::of(&slow, best).symbol(), '▓');
        for (lost, symbol) in [(1, '1'), (11, '1'), (12, '2'), (200, '7'), (9999, '9')] {
            stats.lost = lost;
            assert_eq!(Heat::of(&stats, best).symbol(), symbol, "{lost}");
        }
        stats.answered = 0;
        assert_eq!(Heat::of(&stats, best).symbol(), 'X');
    }
}
