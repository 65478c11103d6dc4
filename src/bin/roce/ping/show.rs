//! Output of probes: a line for each, and a summary.

use crate::output::counted;
use std::fmt::Write as _;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use roce::histogram::Histogram;
use roce::ping::{Ending, Event, PathStats, ProberCounters};
use roce::wire::{Bits, source_port};
use serde_json::{Value, json};

/// Shows probes as they end.
pub(super) struct Show<W> {
    out: W,
    host: IpAddr,
    /// Paths: source port, and statistics of its probes.
    paths: Vec<(u16, PathStats)>,
    late: u64,
    lines: bool,
}

/// Summary of all probes.
pub(super) struct Summary {
    pub(super) all: PathStats,
    late: u64,
    device: String,
    times: &'static str,
    counters: ProberCounters,
}

/// The percentiles that are shown.
const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];

impl<W: Write> Show<W> {
    pub(super) fn new(out: W, host: IpAddr, labels: &[Bits<20>], lines: bool) -> Self {
        let paths = labels.iter().map(|&label| (source_port(label), PathStats::default()));
        Self { out, host, paths: paths.collect(), late: 0, lines }
    }

    pub(super) fn event(&mut self, event: &Event) -> anyhow::Result<()> {
        let text = match *event {
            Event::Ended { path, number, ending, .. } => {
                let Some((port, stats)) = self.paths.get_mut(path) else { return Ok(()) };
                stats.add(&ending);
                format!("{}: seq={number} port={port} {}", self.host, describe(&ending))
            }
            Event::Late { path, number, .. } => {
                self.late += 1;
                let port = self.paths.get(path).map_or(0, |(port, _)| *port);
                format!("{}: seq={number} port={port} late: counted as lost", self.host)
            }
            Event::Restarted { .. } => format!("{}: the responder has restarted", self.host),
        };
        if self.lines {
            writeln!(self.out, "{text}")?;
            self.out.flush()?;
        }
        Ok(())
    }

    pub(super) fn summary(
        &self,
        device: &str,
        times: &'static str,
        counters: &ProberCounters,
    ) -> Summary {
        let mut all = PathStats::default();
        self.paths.iter().for_each(|(_, stats)| all.merge(stats));
        let (late, device, counters) = (self.late, device.to_owned(), *counters);
        Summary { all, late, device, times, counters }
    }

    pub(super) fn end(&mut self, summary: &Summary, json: bool) -> anyhow::Result<()> {
        if json {
            writeln!(self.out, "{}", self.to_json(summary))?;
        } else {
            write!(self.out, "{}", self.to_text(summary))?;
        }
        Ok(self.out.flush()?)
    }

    fn to_text(&self, summary: &Summary) -> String {
        let Summary { all, late, .. } = summary;
        let mut text = format!("--- {} probe statistics ---\n", self.host);
        let _ = write!(
            text,
            "{}, {} answered, {} lost",
            counted(all.sent(), "probe"),
            all.answered,
            share(all)
        );
        for (count, what) in [
            (*late, "late"),
            (all.lost_after_arrival, "lost after they arrived"),
            (all.untimed, "without the responder's time"),
            (all.implausible, "with times that contradict each other"),
            (all.not_sent, "not sent"),
            (summary.counters.duplicates, "duplicate answers"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        text.push('\n');
        if all.network.count() > 0 {
            let _ = writeln!(
                text,
                "{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}  µs, completions timed by the {}",
                "", "min", "mean", "p50", "p90", "p99", "max", summary.times
            );
            for (name, times) in
                [("network", &all.network), ("prober", &all.prober), ("responder", &all.responder)]
            {
                let _ = write!(text, "{name:<10}");
                let [p50, p90, p99] = PERCENTILES.map(|percent| times.percentile(percent));
                for time in [times.min(), times.mean(), p50, p90, p99, times.max()] {
                    let _ = write!(text, "{:>10.1}", micros(time.unwrap_or_default()));
                }
                text.push('\n');
            }
        }
        if self.paths.len() > 1 {
            for (port, stats) in self.paths.iter().filter(|(_, stats)| stats.sent() > 0) {
                let (sent, lost) = (stats.sent(), share(stats));
                let _ = write!(text, "port {port}: {}, {lost} lost", counted(sent, "probe"));
                if let (Some(p50), Some(p99)) =
                    (stats.network.median(), stats.network.percentile(99.0))
                {
                    let (p50, p99) = (micros(p50), micros(p99));
                    let _ = write!(text, ", network p50 {p50:.1} p99 {p99:.1} µs");
                }
                text.push('\n');
            }
        }
        text
    }

    fn to_json(&self, summary: &Summary) -> Value {
        let paths = self.paths.iter().map(|(port, stats)| {
            let mut path = stats_to_json(stats);
            path["source_port"] = json!(port);
            path
        });
        let mut object = stats_to_json(&summary.all);
        object["host"] = json!(self.host.to_string());
        object["device"] = json!(summary.device);
        object["time_stamps"] = json!(summary.times);
        object["late"] = json!(summary.late);
        let ProberCounters {
            malformed,
            other_session,
            unknown,
            wrong_source,
            duplicates,
            restarts,
            ..
        } = summary.counters;
        object["packets"] = json!({
            "malformed": malformed,
            "other_session": other_session,
            "unknown": unknown,
            "wrong_source": wrong_source,
            "duplicates": duplicates,
        });
        object["restarts"] = json!(restarts);
        object["paths"] = paths.collect();
        object
    }
}

/// Returns statistics of probes as JSON.
pub(crate) fn stats_to_json(stats: &PathStats) -> Value {
    json!({
        "sent": stats.sent(),
        "answered": stats.answered,
        "lost": stats.lost,
        "lost_after_arrival": stats.lost_after_arrival,
        "untimed": stats.untimed,
        "implausible": stats.implausible,
        "not_sent": stats.not_sent,
        "network_us": times_to_json(&stats.network),
        "prober_us": times_to_json(&stats.prober),
        "responder_us": times_to_json(&stats.responder),
    })
}

fn times_to_json(times: &Histogram) -> Value {
    let us = |time: Option<Duration>| time.map(micros);
    if times.count() == 0 {
        return Value::Null;
    }
    let [p50, p90, p99] = PERCENTILES.map(|percent| us(times.percentile(percent)));
    json!({
        "min": us(times.min()),
        "mean": us(times.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": us(times.max()),
    })
}

fn describe(ending: &Ending) -> String {
    match ending {
        Ending::Answered(stamps) => match (stamps.network(), stamps.prober()) {
            (Some(network), Some(prober)) => format!(
                "network={:.1} prober={:.1} responder={:.1} µs",
                micros(network),
                micros(prober),
                micros(stamps.responder)
            ),
            _ => "answered; its times contradict each other".to_owned(),
        },
        Ending::Untimed { total } => {
            format!("total={:.1} µs, the responder's time is lost", micros(*total))
        }
        Ending::Lost { reached: true } => "lost on the way back".to_owned(),
        Ending::Lost { reached: false } => "lost".to_owned(),
        Ending::NotSent => "not sent: the NIC refused it".to_owned(),
    }
}

/// Microseconds, rounded to nanoseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e9).round() / 1e3
}

/// The share of lost probes, in words.
pub(crate) fn share(stats: &PathStats) -> String {
    stats.loss().map_or_else(|| "-".to_owned(), |loss| format!("{:.1} %", loss * 100.0))
}
