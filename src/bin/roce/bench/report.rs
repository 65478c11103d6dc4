//! Results, as perftest prints them or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use super::bandwidth::rate;
use super::control::messages::Counted;
use super::control::plan::{Connection, Extent, Metric, Plan};
use super::histogram::Bucket;
use super::session::{Arrived, Counts, RETRIES, Setting, Step};
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

/// The rate at which messages arrived, of both ways together, if it is known.
fn arrival_rate(plan: &Plan, step: &Step) -> Option<f64> {
    let [there, here] = step.arrived(plan);
    let rate = |arrived: Arrived| rate(arrived.messages, Duration::from_nanos(arrived.nanos));
    Some(rate(there?) + rate(here?))
}

/// Whether only the receiver notices lost messages, because the service does not acknowledge.
fn is_lossy(plan: &Plan) -> bool {
    plan.metric == Metric::Bw && plan.connection != Connection::Rc
}

/// The line above results.
pub(crate) fn heading(plan: &Plan, unit: Unit) -> String {
    match plan.metric {
        Metric::Bw => {
            let unit = unit.name();
            let mut line = format!(
                " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
            );
            if is_lossy(plan) {
                let _ = write!(line, "   BW received[{unit}]   Lost");
            }
            line
        }
        Metric::Lat => " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    \
             t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
            .to_owned(),
    }
}

/// A line of results.
pub(crate) fn row(plan: &Plan, step: &Step, unit: Unit) -> String {
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
    let mut line = format!(
        " {:<10} {:<14} {:<18.2} {:<20.2} {:.6}",
        step.size,
        messages,
        bandwidth(peak),
        bandwidth(average),
        average / 1e6
    );
    if is_lossy(plan) {
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let received = arrival_rate(plan, step).map(|rate| format!("{:.2}", bandwidth(rate)));
        let lost = step.lost(plan).map(|lost| lost.to_string());
        let _ = write!(line, "        {:<21} {}", or_unknown(received), or_unknown(lost));
    }
    line
}

/// How often each latency was measured, a line for each range of times.
pub(crate) fn histogram(buckets: &[Bucket]) -> String {
    const WIDTH: u64 = 40;
    let (all, most) = buckets
        .iter()
        .fold((0, 1), |(all, most), bucket| (all + bucket.count, bucket.count.max(most)));
    let mut text = " from[usec]   to[usec]     #messages      cumulative[%]".to_owned();
    let mut within = 0;
    for bucket in buckets {
        within += bucket.count;
        let bar = "#".repeat(usize::try_from(bucket.count * WIDTH / most).unwrap_or(0));
        let line = format!(
            "\n {:<12.3} {:<12.3} {:<14} {:<13.3} {bar}",
            bucket.from,
            bucket.to,
            bucket.count,
            percent(within, all)
        );
        text.push_str(line.trim_end());
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "a part of a hundred")]
fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

/// What should be known about a step besides its numbers.
pub(crate) fn remark(plan: &Plan, step: &Step) -> Option<String> {
    let wrong = step.wrong();
    let sent = step.outcome.own.messages + step.outcome.peer.messages;
    let mut remarks = Vec::new();
    match step.lost(plan) {
        Some(0) => {}
        Some(lost) if step.is_all_lost(plan) => {
            remarks.push(format!("all {lost} messages were lost: nothing arrived"));
        }
        Some(lost) => remarks.push(format!("{lost} of {sent} messages were lost")),
        None if step.peer_saw.is_some() => {
            remarks.push("the receiver does not tell how many messages arrived".to_owned());
        }
        None => {}
    }
    if wrong > 0 {
        remarks.push(format!("{wrong} have not the content that was sent"));
    }
    (!remarks.is_empty()).then(|| format!("{} bytes: {}", step.size, remarks.join(", ")))
}

/// What should be known about a whole run: retransmissions and drops.
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

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All was measured.
    Whole,
    /// Ctrl-C.
    Interrupted,
    /// An error.
    Failed(String),
}

/// Everything as one JSON object. A run that did not end has no counters of the peer.
pub(crate) fn to_json(setting: &Setting, steps: &[Step], counts: &Counts, end: &End) -> String {
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
    match end {
        End::Whole => {}
        End::Interrupted => field("interrupted", true.to_string()),
        End::Failed(error) => field("error", quoted(error)),
    }
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
        let bucket =
            |bucket: &Bucket| format!("[{:.3},{:.3},{}]", bucket.from, bucket.to, bucket.count);
        let buckets: Vec<String> = times.histogram.iter().map(bucket).collect();
        field("histogram_us", format!("[{}]", buckets.join(",")));
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
        let null = || "null".to_owned();
        if is_lossy(plan) {
            let received = arrival_rate(plan, step).map(|rate| rate * bytes);
            for (name, unit) in [("MiB_per_s", Unit::Megabytes), ("Gbit_per_s", Unit::Gigabits)] {
                let value = received.map_or_else(null, |rate| format!("{:.4}", unit.of(rate)));
                field(&format!("bw_received_{name}"), value);
            }
        }
        let lost = step.lost(plan);
        field("received_messages", lost.map_or_else(null, |lost| (messages - lost).to_string()));
        field("lost_messages", lost.map_or_else(null, |lost| lost.to_string()));
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
