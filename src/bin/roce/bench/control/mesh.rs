//! A mesh: a client asks a server to probe other servers, and gets what became of the probes.
//!
//! Lines as in the protocol of `roce bench`:
//!
//! 1. The client sends a [`Task`]: `probe PATHS COUNT INTERVAL TIMEOUT` with the times in
//!    microseconds, a line `target ADDRESS PORT` for each server to be probed, and `end`.
//! 2. The server probes them, sends `alive` meanwhile, and then a [`Result`](TaskResult): lines
//!    `failed TARGET REASON`, `cell TARGET LABEL …`, `times TARGET LABEL KIND RANGE:COUNT …`, and
//!    `end`.
//! 3. The client sends `bye`.
//!
//! Only clients that know the token of a server may ask it, because it sends to others then; and a
//! target is sent no probe before it has agreed over a TCP connection, as for `roce ping`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use roce::control::limits::{ANSWER_WAIT, LINE_MAX};
use roce::ping::limits::{INTERVAL_MIN, PATHS_MAX, TIMEOUT_MAX};
use roce::ping::{Histogram, PathStats};

use super::lines::Control;
use super::messages::number;

/// Maximum number of targets of one server.
pub(crate) const TARGETS_MAX: usize = 1024;

/// Maximum number of probes on each path of a round.
pub(crate) const COUNT_MAX: u64 = 1_000_000;

/// Maximum number of probes a second of one server.
pub(crate) const RATE_MAX: u64 = 10_000;

/// Longest round.
pub(crate) const ROUND_MAX: Duration = Duration::from_secs(3600);

/// Number of targets that a server asks at once.
pub(crate) const AT_ONCE: usize = 32;

/// Time for a connection to a host of the mesh.
pub(crate) const OPEN_WAIT: Duration = Duration::from_secs(5);

/// Time that a server may take beyond what its task needs.
const SLACK: Duration = Duration::from_secs(10);

/// Probes that a server is to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) paths: usize,
    /// Probes on each path.
    pub(crate) count: u64,
    /// Time between two probes to a target.
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) targets: Vec<SocketAddr>,
}

impl Task {
    /// Checks that it is within the limits: whatever a client asks for, a server sends so much and
    /// no more.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=PATHS_MAX).contains(&self.paths), "1 to {PATHS_MAX} paths");
        ensure!((1..=COUNT_MAX).contains(&self.count), "1 to {COUNT_MAX} probes on a path");
        ensure!(self.targets.len() <= TARGETS_MAX, "at most {TARGETS_MAX} targets");
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

    /// Returns the time within which a server has done it, however many of its targets are dead.
    pub(crate) fn time_limit(&self) -> Duration {
        let rounds = u32::try_from(self.targets.len().div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
        let opening = (OPEN_WAIT + 2 * ANSWER_WAIT).saturating_mul(rounds);
        let probes = u32::try_from(self.count * self.paths as u64).unwrap_or(u32::MAX);
        let probing = self.interval.saturating_mul(probes).saturating_add(self.timeout);
        opening.saturating_add(probing).saturating_add(SLACK)
    }

    /// Returns the lines of the message.
    pub(crate) fn to_lines(&self) -> String {
        let (interval, timeout) = (self.interval.as_micros(), self.timeout.as_micros());
        let mut text = format!("probe {} {} {interval} {timeout}\n", self.paths, self.count);
        for target in &self.targets {
            let _ = writeln!(text, "target {} {}", target.ip(), target.port());
        }
        text.push_str("end\n");
        text
    }

    /// Receives the task of a client.
    pub(crate) fn read(control: &mut Control) -> anyhow::Result<Self> {
        let words = control.expect("probe")?;
        let [paths, count, interval, timeout] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'probe {words}' has not four numbers");
        };
        let micros = |word| number(word).map(Duration::from_micros);
        let mut task = Self {
            paths: number(paths)?,
            count: number(count)?,
            interval: micros(interval)?,
            timeout: micros(timeout)?,
            targets: Vec::new(),
        };
        loop {
            let line = control.line()?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["end"] => break,
                ["target", address, port] => {
                    let ip: IpAddr =
                        address.parse().with_context(|| format!("'{address}' is no address"))?;
                    ensure!(
                        !ip.is_multicast() && !ip.is_unspecified(),
                        "'{address}' is no address of a host"
                    );
                    task.targets.push(SocketAddr::new(ip, number(port)?));
                }
                _ => bail!("'{line}' instead of a target"),
            }
            ensure!(task.targets.len() <= TARGETS_MAX, "more than {TARGETS_MAX} targets");
        }
        task.check()?;
        Ok(task)
    }
}

/// Results of the probes of a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskResult {
    /// Targets that could not be probed, with the reason.
    pub(crate) failed: Vec<(usize, String)>,
    /// Statistics by target and path.
    pub(crate) cells: Vec<(usize, usize, PathStats)>,
}

/// The times of a path, by name.
type Times = (&'static str, fn(&mut PathStats) -> &mut Histogram);

const TIMES: [Times; 3] = [
    ("network", |stats| &mut stats.network),
    ("prober", |stats| &mut stats.prober),
    ("responder", |stats| &mut stats.responder),
];

impl TaskResult {
    /// Returns the lines of the message.
    pub(crate) fn to_lines(&self) -> String {
        let mut text = String::new();
        for (target, reason) in &self.failed {
            let reason: String =
                reason.chars().filter(|c| matches!(c, ' '..='~')).take(LINE_MAX / 2).collect();
            let _ = writeln!(text, "failed {target} {reason}");
        }
        for (target, path, stats) in &self.cells {
            let PathStats {
                answered,
                lost,
                lost_after_arrival,
                untimed,
                implausible,
                not_sent,
                ..
            } = stats;
            let _ = writeln!(
                text,
                "cell {target} {path} {answered} {lost} {lost_after_arrival} {untimed} {implausible} {not_sent}"
            );
            let mut stats = stats.clone();
            for (name, times) in TIMES {
                write_times(&mut text, &format!("times {target} {path} {name}"), times(&mut stats));
            }
        }
        text.push_str("end\n");
        text
    }

    /// Receives the result of a task.
    pub(crate) fn read(control: &mut Control, task: &Task) -> anyhow::Result<Self> {
        let mut result = Self::default();
        let (targets, cells) = (task.targets.len(), task.targets.len() * task.paths);
        loop {
            let line = control.line()?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["end"] => return Ok(result),
                ["failed", target, ..] => {
                    let target = number(target)?;
                    ensure!(target < targets, "'{line}' is of no target");
                    let reason = line.splitn(3, ' ').nth(2).unwrap_or_default();
                    result.failed.push((target, reason.to_owned()));
                    ensure!(result.failed.len() <= targets, "more failures than targets");
                }
                ["cell", target, path, ref counts @ ..] => {
                    let (target, path) = (number(target)?, number(path)?);
                    ensure!(target < targets && path < task.paths, "'{line}' is of no path");
                    result.cells.push((target, path, read_counts(counts, task.count)?));
                    ensure!(result.cells.len() <= cells, "more cells than paths");
                }
                ["times", _, _, name, ref ranges @ ..] => {
                    let (_, times) = TIMES
                        .iter()
                        .find(|(known, _)| *known == name)
                        .with_context(|| format!("'{name}' are no times"))?;
                    let (_, _, stats) = result.cells.last_mut().context("'times' of no cell")?;
                    read_times(times(stats), ranges, task.count)?;
                }
                _ => bail!("'{line}' instead of a result"),
            }
        }
    }
}

fn write_times(text: &mut String, begin: &str, times: &Histogram) {
    let mut line = String::new();
    for (range, count) in times.ranges() {
        if line.is_empty() {
            line.push_str(begin);
        }
        let _ = write!(line, " {range}:{count}");
        if line.len() > LINE_MAX - 32 {
            let _ = writeln!(text, "{line}");
            line.clear();
        }
    }
    if !line.is_empty() {
        let _ = writeln!(text, "{line}");
    }
}

fn read_counts(counts: &[&str], most: u64) -> anyhow::Result<PathStats> {
    let [answered, lost, lost_after_arrival, untimed, implausible, not_sent] = *counts else {
        bail!("a cell has six counts");
    };
    let count = |word: &str| -> anyhow::Result<u64> {
        let count = number(word)?;
        ensure!(count <= most, "{count} of {most} probes");
        Ok(count)
    };
    Ok(PathStats {
        answered: count(answered)?,
        lost: count(lost)?,
        lost_after_arrival: count(lost_after_arrival)?,
        untimed: count(untimed)?,
        implausible: count(implausible)?,
        not_sent: count(not_sent)?,
        ..PathStats::default()
    })
}

fn read_times(times: &mut Histogram, ranges: &[&str], most: u64) -> anyhow::Result<()> {
    for word in ranges {
        let (range, count) =
            word.split_once(':').with_context(|| format!("'{word}' is no range"))?;
        let (range, count) = (number(range)?, number(count)?);
        ensure!(times.add_counted(range, count), "there is no range {range}");
        ensure!(times.count() <= most, "more times than probes");
    }
    Ok(())
}
