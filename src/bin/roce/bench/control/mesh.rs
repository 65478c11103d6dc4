//! Messages of `roce mesh`: a client asks a server to probe other servers, and gets statistics.
//!
//! 1. The client's request is a [`Task`].
//! 2. The server probes the targets, sends keep-alive messages meanwhile, and then sends its
//!    [results](TaskResult): a [`Message`] for each target that failed and for each path, and
//!    `end`.
//! 3. The client sends `bye`.
//!
//! Only clients that know the server's token may ask, because the server sends to other hosts for
//! them. A target gets no probe before it has agreed over a TCP connection, as for `roce ping`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{bail, ensure};
use roce::control::Channel;
use roce::control::limits::{ANSWER_WAIT, LINE_WAIT, REASON_MAX};
use roce::control::text::printable;
use roce::histogram::Histogram;
use roce::ping::PathStats;
use roce::ping::limits::{INTERVAL_MIN, PATHS_MAX, TIMEOUT_MAX};
use serde::{Deserialize, Serialize};

/// Maximum number of targets of one server.
pub(crate) const TARGETS_MAX: usize = 1024;

/// Maximum number of probes on each path of a round.
pub(crate) const COUNT_MAX: u64 = 1_000_000;

/// Maximum number of probes a second of one server.
pub(crate) const RATE_MAX: u64 = 10_000;

/// Maximum duration of a round.
pub(crate) const ROUND_MAX: Duration = Duration::from_secs(3600);

/// Maximum number of targets to which a server connects at the same time.
pub(crate) const AT_ONCE: usize = 32;

/// Maximum time to open a TCP connection to a host of the mesh.
pub(crate) const OPEN_WAIT: Duration = Duration::from_secs(5);

/// Time that a server may take beyond what its task needs.
const SLACK: Duration = Duration::from_secs(10);

/// Probes that a server is to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    pub(crate) paths: usize,
    /// Probes on each path.
    pub(crate) count: u64,
    /// Time between two probes to a target, in microseconds.
    #[serde(with = "micros")]
    pub(crate) interval: Duration,
    #[serde(with = "micros")]
    pub(crate) timeout: Duration,
    pub(crate) targets: Vec<SocketAddr>,
}

impl Task {
    /// Checks that the task is within the limits of what a server sends for any client.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=PATHS_MAX).contains(&self.paths), "1 to {PATHS_MAX} paths");
        ensure!((1..=COUNT_MAX).contains(&self.count), "1 to {COUNT_MAX} probes on a path");
        ensure!(self.targets.len() <= TARGETS_MAX, "more than {TARGETS_MAX} targets");
        let is_host = |ip: std::net::IpAddr| !ip.is_multicast() && !ip.is_unspecified();
        if let Some(other) = self.targets.iter().find(|target| !is_host(target.ip())) {
            bail!("'{}' is multicast or unspecified, not the address of a host", other.ip());
        }
        ensure!(self.interval >= INTERVAL_MIN, "an interval of at least {INTERVAL_MIN:?}");
        ensure!(self.timeout <= TIMEOUT_MAX, "a timeout of at most {TIMEOUT_MAX:?}");
        let rate = self.targets.len() as f64 / self.interval.as_secs_f64();
        ensure!(
            rate <= RATE_MAX as f64,
            "{rate:.0} probes a second; at most {RATE_MAX}: use a longer interval (-i), or fewer peers (--peers)"
        );
        let round = self.interval.as_secs_f64() * (self.count * self.paths as u64) as f64;
        ensure!(round <= ROUND_MAX.as_secs_f64(), "a round of at most {ROUND_MAX:?}");
        Ok(())
    }

    /// Returns the time within which a server has done the task, even if all its targets are dead.
    pub(crate) fn time_limit(&self) -> Duration {
        let rounds = u32::try_from(self.targets.len().div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
        let opening = (OPEN_WAIT + 2 * ANSWER_WAIT).saturating_mul(rounds);
        let probes = u32::try_from(self.count * self.paths as u64).unwrap_or(u32::MAX);
        let probing = self.interval.saturating_mul(probes).saturating_add(self.timeout);
        opening.saturating_add(probing).saturating_add(SLACK)
    }
}

/// Whole microseconds in messages.
mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}

/// A message after the opening.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// A target that could not be probed, and the reason.
    Failed { target: usize, reason: String },
    /// Statistics of a path.
    Path(Path),
    /// The server has sent all results.
    End,
    /// The client is done.
    Bye,
}

/// Statistics of a path to a target: the fields of [`PathStats`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Path {
    target: usize,
    path: usize,
    answered: u64,
    lost: u64,
    lost_after_arrival: u64,
    untimed: u64,
    implausible: u64,
    not_sent: u64,
    network: Times,
    prober: Times,
    responder: Times,
}

/// Times by range, as in a [`Histogram`]: number of the range, and count.
type Times = Vec<(u16, u64)>;

/// Results of the probes of a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskResult {
    /// Targets that could not be probed, with the reason.
    pub(crate) failed: Vec<(usize, String)>,
    /// Statistics by target and path.
    pub(crate) cells: Vec<(usize, usize, PathStats)>,
}

impl TaskResult {
    /// Sends all results.
    pub(crate) fn send(&self, control: &mut Channel) -> anyhow::Result<()> {
        for (target, reason) in &self.failed {
            let reason = printable(reason, REASON_MAX);
            control.send(&Message::Failed { target: *target, reason })?;
        }
        for (target, path, stats) in &self.cells {
            control.send(&Message::Path(Path::new(*target, *path, stats)))?;
        }
        Ok(control.send(&Message::End)?)
    }

    /// Receives the results of a task.
    pub(crate) fn receive(control: &mut Channel, task: &Task) -> anyhow::Result<Self> {
        const RESULT: &str = "a result";
        let mut result = Self::default();
        let targets = task.targets.len();
        let mut seen = vec![false; targets * task.paths];
        loop {
            match control.receive(LINE_WAIT, RESULT)? {
                Message::End => return Ok(result),
                Message::Failed { target, reason } => {
                    ensure!(target < targets, "there is no target {target}");
                    result.failed.push((target, printable(&reason, REASON_MAX)));
                    ensure!(result.failed.len() <= targets, "more failures than targets");
                }
                Message::Path(path) => {
                    let (target, number) = (path.target, path.path);
                    ensure!(
                        target < targets && number < task.paths,
                        "there is no path {number} of target {target}"
                    );
                    let seen = seen.get_mut(target * task.paths + number);
                    let is_new = seen.is_some_and(|seen| !core::mem::replace(seen, true));
                    ensure!(is_new, "path {number} of target {target} has two results");
                    result.cells.push((target, number, path.stats(task.count)?));
                }
                other @ Message::Bye => return Err(control.unexpected(&other, RESULT).into()),
            }
        }
    }
}

impl Path {
    fn new(target: usize, path: usize, stats: &PathStats) -> Self {
        let times = |times: &Histogram| times.buckets().map(|it| (it.range, it.count)).collect();
        Self {
            target,
            path,
            answered: stats.answered,
            lost: stats.lost,
            lost_after_arrival: stats.lost_after_arrival,
            untimed: stats.untimed,
            implausible: stats.implausible,
            not_sent: stats.not_sent,
            network: times(&stats.network),
            prober: times(&stats.prober),
            responder: times(&stats.responder),
        }
    }

    /// Returns the statistics. A count of more than `most`, the number of probes, is an error.
    fn stats(self, most: u64) -> anyhow::Result<PathStats> {
        let stats = PathStats {
            answered: self.answered,
            lost: self.lost,
            lost_after_arrival: self.lost_after_arrival,
            untimed: self.untimed,
            implausible: self.implausible,
            not_sent: self.not_sent,
            network: histogram(&self.network, most)?,
            prober: histogram(&self.prober, most)?,
            responder: histogram(&self.responder, most)?,
        };
        let counts = [stats.answered, stats.lost, stats.lost_after_arrival, stats.untimed];
        for count in counts.into_iter().chain([stats.implausible, stats.not_sent]) {
            ensure!(count <= most, "{count} of {most} probes");
        }
        Ok(stats)
    }
}

fn histogram(times: &Times, most: u64) -> anyhow::Result<Histogram> {
    let mut histogram = Histogram::default();
    for (range, count) in times {
        ensure!(histogram.add_counted(*range, *count), "there is no range {range}");
        ensure!(histogram.count() <= most, "more times than probes");
    }
    Ok(histogram)
}
