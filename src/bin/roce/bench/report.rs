//! Results, as perftest prints them or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use super::bandwidth::rate;
use super::exchange::Counted;
use super::plan::{Extent, Metric, Plan};
use super::session::{Counts, RETRIES, Setting, Step};
use crate::output::quoted;

/// What bandwidth is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 2^20 bytes a second, which perftest calls MB.
    #[default]
    Megabytes,
    /// 10^9 bits a second.
    Gigabits,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Megabytes => "MB/sec",
            Self::Gigabits => "Gb/sec",
        }
    }

    fn of(self, bytes_per_second: f64) -> f64 {
        match self {
            Self::Megabytes => bytes_per_second / f64::from(1 << 20),
            Self::Gigabits => bytes_per_second * 8.0 / 1e9,
        }
    }
}

/// The rates of a step, of both ways if both were used.
#[derive(Clone, Copy, Debug)]
struct Rates {
    messages: u64,
    /// Messages a second.
    average: f64,
    peak: f64,
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn rates(step: &Step) -> Rates {
    let ways = [step.outcome.own, step.outcome.peer];
    let average = ways.map(|way| rate(way.messages, Duration::from_nanos(way.nanos)));
    Rates {
        messages: ways.iter().map(|way| way.messages).sum(),
        average: average.iter().sum(),
        peak: ways.iter().map(|way| way.peak as f64).sum(),
    }
}

/// The line above results.
pub(crate) fn heading(plan: &Plan, unit: Unit) -> String {
    match plan.metric {
        Metric::Bw => {
            let unit = unit.name();
            format!(
                " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
            )
        }
        Metric::Lat => " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    \
             t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
            .to_owned(),
    }
}

/// A line of results.
pub(crate) fn row(step: &Step, unit: Unit) -> String {
    if let Some(times) = &step.latency {
        return format!(
            " {:<10} {:<14} {:<14.2} {:<12.2} {:<18.2} {:<14.2} {:<15.2} {:<22.2} {:.2}",
            step.size,
            times.count,
            times.min,
            times.max,
            times.typical,
            times.average,
            times.deviation,
            times.p99,
            times.p999
        );
    }
    let Rates { messages, average, peak } = rates(step);
    let bandwidth = |rate: f64| unit.of(rate * f64::from(step.size));
    format!(
        " {:<10} {:<14} {:<18.2} {:<20.2} {:.6}",
        step.size,
        messages,
        bandwidth(peak),
        bandwidth(average),
        average / 1e6
    )
}

/// What should be known about a step besides its numbers.
pub(crate) fn remark(plan: &Plan, step: &Step) -> Option<String> {
    let (wrong, lost) = (step.wrong(), step.lost(plan));
    let mut remarks = Vec::new();
    if lost > 0 {
        let sent = step.outcome.own.messages + step.outcome.peer.messages;
        remarks.push(format!("{lost} of {sent} messages were lost"));
    }
    if wrong > 0 {
        remarks.push(format!("{wrong} did not arrive as they were sent"));
    }
    (!remarks.is_empty()).then(|| format!("{} bytes: {}", step.size, remarks.join(", ")))
}

/// What should be known about a whole run: what was sent again, and what got lost on the way.
pub(crate) fn remark_on_counts(counts: &Counts) -> Option<String> {
    let sides = [("here", &counts.own), ("at the server", &counts.peer)];
    let mut remarks = Vec::new();
    for (side, counted) in sides {
        for (name, count) in counted.iter().filter(|(name, count)| *count > 0 && is_trouble(name)) {
            remarks.push(format!("{name} {count} {side}"));
        }
    }
    (!remarks.is_empty()).then(|| remarks.join(", "))
}

/// Whether a counter that is not zero says that something went wrong.
fn is_trouble(name: &str) -> bool {
    name == RETRIES || name.contains("drop") || name.contains("bad_icrc")
}

/// Everything as one JSON object.
pub(crate) fn to_json(setting: &Setting, steps: &[Step], counts: &Counts) -> String {
    let plan = &setting.plan;
    let mut text = String::from("{");
    let mut field = |name: &str, value: String| {
        let comma = if text.len() > 1 { "," } else { "" };
        let _ = write!(text, "{comma}{}:{value}", quoted(name));
    };
    field("test", quoted(plan.op.name()));
    field("metric", quoted(plan.metric.name()));
    field("connection", quoted(plan.connection.name()));
    field("device", quoted(&setting.device));
    field("gid", quoted(&setting.gid.to_string()));
    field("peer_gid", quoted(&setting.peer_gid.to_string()));
    field("mtu", plan.mtu.to_string());
    field("qps", plan.qps.to_string());
    field("tx_depth", plan.tx_depth.to_string());
    field("bidirectional", plan.bidirectional.to_string());
    field("verified", plan.verify.to_string());
    match plan.extent {
        Extent::Iterations(count) => field("iterations_per_qp", count.to_string()),
        Extent::Seconds(seconds) => field("duration_s", seconds.to_string()),
    }
    let results: Vec<String> = steps.iter().map(|step| result(plan, step)).collect();
    field("results", format!("[{}]", results.join(",")));
    let counters =
        format!("{{\"local\":{},\"peer\":{}}}", object(&counts.own), object(&counts.peer));
    field("counters", counters);
    text.push('}');
    text
}

fn result(plan: &Plan, step: &Step) -> String {
    let mut text = format!("{{\"bytes\":{}", step.size);
    let mut field = |name: &str, value: String| {
        let _ = write!(text, ",{}:{value}", quoted(name));
    };
    if let Some(times) = &step.latency {
        field("iterations", times.count.to_string());
        for (name, time) in [
            ("t_min_us", times.min),
            ("t_max_us", times.max),
            ("t_typical_us", times.typical),
            ("t_avg_us", times.average),
            ("t_stdev_us", times.deviation),
            ("t_p99_us", times.p99),
            ("t_p99_9_us", times.p999),
        ] {
            field(name, format!("{time:.3}"));
        }
    } else {
        let Rates { messages, average, peak } = rates(step);
        let bytes = f64::from(step.size);
        field("iterations", messages.to_string());
        for unit in [Unit::Megabytes, Unit::Gigabits] {
            let name = if unit == Unit::Megabytes { "MiB_per_s" } else { "Gbit_per_s" };
            field(&format!("bw_peak_{name}"), format!("{:.4}", unit.of(peak * bytes)));
            field(&format!("bw_average_{name}"), format!("{:.4}", unit.of(average * bytes)));
        }
        field("msg_rate_Mpps", format!("{:.6}", average / 1e6));
        field("lost_messages", step.lost(plan).to_string());
    }
    field("wrong", step.wrong().to_string());
    text.push('}');
    text
}

fn object(counted: &Counted) -> String {
    let fields: Vec<String> =
        counted.iter().map(|(name, count)| format!("{}:{count}", quoted(name))).collect();
    format!("{{{}}}", fields.join(","))
}
