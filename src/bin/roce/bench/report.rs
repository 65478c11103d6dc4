//! Results, as perftest prints them or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::bandwidth::rate;
use super::control::messages::Counted;
use super::control::plan::{Connection, Extent, Metric, Plan};
use super::latency;
use super::session::{Arrived, Counts, RETRIES, Setting, Step};

/// Unit of bandwidth.
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

/// Rates of a step, summed over both directions.
#[derive(Clone, Copy, Debug)]
struct Rates {
    messages: u64,
    /// Messages a second.
    average: f64,
    peak: f64,
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn rates(step: &Step) -> Rates {
    let sides = [step.outcome.own, step.outcome.peer];
    let average = sides.map(|side| rate(side.messages, Duration::from_nanos(side.nanos)));
    Rates {
        messages: sides.iter().map(|side| side.messages).sum(),
        average: average.iter().sum(),
        peak: sides.iter().map(|side| side.peak as f64).sum(),
    }
}

/// Returns the rate at which messages arrived, summed over both directions, if it is known.
fn arrival_rate(plan: &Plan, step: &Step) -> Option<f64> {
    let [there, here] = step.arrived(plan);
    let rate = |arrived: Arrived| rate(arrived.messages, Duration::from_nanos(arrived.nanos));
    Some(rate(there?) + rate(here?))
}

/// Whether only the receiver notices lost messages, because the service does not acknowledge.
fn is_lossy(plan: &Plan) -> bool {
    plan.metric == Metric::Bw && plan.connection != Connection::Rc
}

/// Returns the heading of the table of results.
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

/// Returns the row of a step in the table of results.
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

/// Returns the histogram of latencies, a line for each range.
pub(crate) fn histogram(buckets: &[latency::Bucket]) -> String {
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

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

/// Returns a remark on a step in which messages were lost, wrong, or not counted.
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
            remarks.push("the receiver does not count the messages that arrive".to_owned());
        }
        None => {}
    }
    if wrong > 0 {
        remarks.push(format!("{wrong} with wrong content"));
    }
    (!remarks.is_empty()).then(|| format!("{} bytes: {}", step.size, remarks.join(", ")))
}

/// Returns the remark on a whole run: retransmissions and drops.
pub(crate) fn remark_on_counts(counts: &Counts) -> Option<String> {
    let sides = [("here", &counts.own), ("at the server", &counts.peer)];
    let (mut remarks, mut cures) = (Vec::new(), Vec::new());
    for (side, counted) in sides {
        for (name, count) in counted.iter().filter(|(name, count)| *count > 0 && is_trouble(name)) {
            remarks.push(format!("{name} {count} {side}"));
        }
        if counted.iter().any(|(name, count)| *count > 0 && name == WRONG_SOURCE_PORT) {
            cures.push(format!("packets of a peer with --paths need --receive buffer {side}"));
        }
    }
    remarks.append(&mut cures);
    (!remarks.is_empty()).then(|| remarks.join(", "))
}

/// Counter of packets from another source port than the connection's first packet.
const WRONG_SOURCE_PORT: &str = "drop_wrong_source_port";

/// Whether a counter counts something that went wrong.
fn is_trouble(name: &str) -> bool {
    name == RETRIES || name.contains("drop") || name.contains("bad_icrc")
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All was measured.
    Whole,
    /// Ctrl-C.
    Interrupted,
    /// An error.
    Failed(String),
}

/// Returns the report as one JSON object. A run that ended early has no counters of the peer.
pub(crate) fn to_json(
    setting: &Setting,
    steps: &[Step],
    counts: &Counts,
    end: &End,
) -> serde_json::Result<String> {
    let plan = &setting.plan;
    let (iterations, duration) = match plan.extent {
        Extent::Iterations(count) => (Some(count), None),
        Extent::Seconds(seconds) => (None, Some(seconds)),
    };
    serde_json::to_string(&Report {
        test: plan.op.name(),
        metric: plan.metric.name(),
        connection: plan.connection.name(),
        device: &setting.device,
        gid: setting.gid.to_string(),
        peer_gid: setting.peer_gid.to_string(),
        mtu: plan.mtu.bytes(),
        qps: plan.qps,
        tx_depth: plan.tx_depth,
        bidirectional: plan.bidirectional,
        verified: plan.verify,
        iterations_per_qp: iterations,
        duration_s: duration,
        results: steps.iter().map(|step| result(plan, step)).collect(),
        counters: Counters { local: &counts.own, peer: &counts.peer },
        interrupted: (*end == End::Interrupted).then_some(true),
        error: match end {
            End::Failed(error) => Some(error),
            End::Whole | End::Interrupted => None,
        },
    })
}

#[derive(Serialize)]
struct Report<'a> {
    test: &'a str,
    metric: &'a str,
    connection: &'a str,
    device: &'a str,
    gid: String,
    peer_gid: String,
    mtu: usize,
    qps: u32,
    tx_depth: u32,
    bidirectional: bool,
    verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    iterations_per_qp: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_s: Option<u64>,
    results: Vec<StepResult>,
    counters: Counters<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a String>,
}

#[derive(Serialize)]
struct Counters<'a> {
    #[serde(serialize_with = "object")]
    local: &'a Counted,
    #[serde(serialize_with = "object")]
    peer: &'a Counted,
}

/// Writes counters as an object.
fn object<S: Serializer>(counted: &Counted, out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(counted.iter().map(|(name, count)| (name, count)))
}

#[derive(Serialize)]
struct StepResult {
    bytes: u32,
    #[serde(flatten)]
    measured: Measured,
    wrong: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Measured {
    Latency(Latency),
    Bandwidth(Bandwidth),
}

#[derive(Serialize)]
struct Latency {
    iterations: u64,
    t_min_us: f64,
    t_max_us: f64,
    t_typical_us: f64,
    t_avg_us: f64,
    t_stdev_us: f64,
    t_p99_us: f64,
    t_p99_9_us: f64,
    /// Ranges: start, end, and number of messages.
    histogram_us: Vec<(f64, f64, u64)>,
}

#[derive(Serialize)]
struct Bandwidth {
    iterations: u64,
    #[serde(rename = "bw_peak_MiB_per_s")]
    peak_megabytes: f64,
    #[serde(rename = "bw_average_MiB_per_s")]
    average_megabytes: f64,
    #[serde(rename = "bw_peak_Gbit_per_s")]
    peak_gigabits: f64,
    #[serde(rename = "bw_average_Gbit_per_s")]
    average_gigabits: f64,
    #[serde(rename = "msg_rate_Mpps")]
    message_rate: f64,
    /// Only for services that do not retransmit; the rates are `null` if the receiver did not
    /// count.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    received: Option<ReceivedBandwidth>,
    received_messages: Option<u64>,
    lost_messages: Option<u64>,
}

#[derive(Serialize)]
struct ReceivedBandwidth {
    #[serde(rename = "bw_received_MiB_per_s")]
    megabytes: Option<f64>,
    #[serde(rename = "bw_received_Gbit_per_s")]
    gigabits: Option<f64>,
}

/// Rounds a number to `digits` decimal places.
fn rounded(number: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    (number * unit).round() / unit
}

fn result(plan: &Plan, step: &Step) -> StepResult {
    let measured = match &step.latency {
        Some(latency) => Measured::Latency(times(latency)),
        None => Measured::Bandwidth(bandwidth(plan, step)),
    };
    StepResult { bytes: step.size, measured, wrong: step.wrong() }
}

fn times(latency: &latency::Summary) -> Latency {
    let micros = |time| rounded(time, 3);
    let bucket = |bucket: &latency::Bucket| (micros(bucket.from), micros(bucket.to), bucket.count);
    Latency {
        iterations: latency.count,
        t_min_us: micros(latency.min),
        t_max_us: micros(latency.max),
        t_typical_us: micros(latency.typical),
        t_avg_us: micros(latency.average),
        t_stdev_us: micros(latency.deviation),
        t_p99_us: micros(latency.p99),
        t_p99_9_us: micros(latency.p999),
        histogram_us: latency.histogram.iter().map(bucket).collect(),
    }
}

fn bandwidth(plan: &Plan, step: &Step) -> Bandwidth {
    let Rates { messages, average, peak } = rates(step);
    let bytes = f64::from(step.size);
    let megabytes = |rate: f64| rounded(Unit::Megabytes.of(rate * bytes), 4);
    let gigabits = |rate: f64| rounded(Unit::Gigabits.of(rate * bytes), 4);
    let received = is_lossy(plan).then(|| {
        let rate = arrival_rate(plan, step);
        ReceivedBandwidth { megabytes: rate.map(megabytes), gigabits: rate.map(gigabits) }
    });
    let lost = step.lost(plan);
    Bandwidth {
        iterations: messages,
        peak_megabytes: megabytes(peak),
        average_megabytes: megabytes(average),
        peak_gigabits: gigabits(peak),
        average_gigabits: gigabits(average),
        message_rate: rounded(average / 1e6, 6),
        received,
        received_messages: lost.map(|lost| messages - lost),
        lost_messages: lost,
    }
}
