//! `roce mesh`: hosts probe each other; outliers among hosts and paths are named.

pub(crate) mod agent;
mod collect;
mod hosts;
mod metrics;
mod page;
mod report;
mod text;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use roce::ping::mesh::{Thresholds, diagnose};

use self::hosts::Pairs;
use self::metrics::Metrics;
use self::report::Report;
use crate::bench::control::mesh::{COUNT_MAX, RATE_MAX, Task};
use crate::bench::watch::now;
use crate::bench::{PORT, TokenArgs};
use crate::output::{Color, remark};
use crate::ping::{check, parse_seconds};
use crate::resolve::parse_listen;
use crate::{interrupt, outfile, output};

/// Have hosts probe each other, and name a bad NIC, a bad path or a slow host
///
/// On every host runs roce serve. This command asks each of them to probe the others by UD
/// datagrams, as roce ping does, on several paths, and compares their reports: losses to
/// and from all peers of a host point to its NIC, losses on some source ports alone to a link or a
/// switch, long times in a host to the host itself.
///
/// A server sends probes for others only if it is told its token (ROCE_TOKEN, the same on all
/// hosts), and only to servers that agree: each is asked over TCP first.
///
/// With --metrics it goes on, and serves what it finds to Prometheus.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Hosts that run roce serve: HOST, or HOST:PORT.
    #[arg(value_name = "HOSTS")]
    named: Vec<String>,

    /// A file with more hosts, one in each line, with a name of its rack behind it if hosts of one
    /// subnet (/24, /64) are not a rack; # begins a comment.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,

    /// Probe the pairs that a file lists: two hosts in each line, the prober first [default: all
    /// pairs]. Without other hosts, the mesh has those of the file.
    #[arg(long, value_name = "FILE", conflicts_with = "peers")]
    pairs: Option<PathBuf>,

    /// Have each host probe COUNT others, different ones in each round [default: all].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    peers: Option<u16>,

    /// The TCP port of the servers, where a host names no other.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// Paths between two hosts, each with a UDP source port of its own, 1 to 16.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    paths: u16,

    /// Probes on each path in a round.
    #[arg(short = 'c', long, value_name = "COUNT", default_value_t = 20)]
    count: u64,

    /// Seconds between two probes of a pair.
    #[arg(short = 'i', long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "0.01")]
    interval: Duration,

    /// Seconds after which a probe is lost, at most 60.
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "0.5")]
    timeout: Duration,

    /// The most probes a second that one host sends, 1 to 10000: the interval grows with the number
    /// of its peers.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    rate: u64,

    /// Rounds; 0 is no end [default: 1, or no end with --metrics].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u64>,

    /// Seconds from one round to the next.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "10")]
    every: Duration,

    /// Print a JSON object at the end.
    #[arg(long)]
    json: bool,

    /// Write one HTML page that needs no network, anew after each round.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Serve metrics for Prometheus at http://ADDRESS/metrics.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    metrics: Option<SocketAddr>,

    /// Use of colors.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,

    #[command(flatten)]
    token: TokenArgs,
}

const EXAMPLES: &str = "\
Examples:
  export ROCE_TOKEN=$(cat token)
  roce serve -d soft:eth0                                 (on each host)
  roce mesh 10.0.0.1 10.0.0.2 10.0.0.3                    (on any)
  roce mesh --hosts fleet.txt --peers 8 --html mesh.html
  roce mesh --hosts fleet.txt --metrics 127.0.0.1:9464    (goes on; Prometheus scrapes it)";

impl Args {
    /// Returns the task of each host.
    fn task(&self, targets: usize) -> anyhow::Result<Task> {
        let paths = usize::from(self.paths);
        check(paths, self.interval, self.timeout)?;
        ensure!((1..=COUNT_MAX).contains(&self.count), "-c: 1 to {COUNT_MAX}");
        ensure!((1..=RATE_MAX).contains(&self.rate), "--rate: 1 to {RATE_MAX}");
        let spread = Duration::from_secs_f64(targets as f64 / self.rate as f64);
        let interval = self.interval.max(spread);
        let (count, timeout, targets) = (self.count, self.timeout, Vec::new());
        let task = Task { paths, count, interval, timeout, targets };
        task.check().context("this mesh")?;
        Ok(task)
    }

    fn rounds(&self) -> u64 {
        let rounds = self.rounds.unwrap_or_else(|| u64::from(self.metrics.is_none()));
        if rounds == 0 { u64::MAX } else { rounds }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let token = args.token.get()?;
    if let Some(path) = &args.html {
        let lists: Vec<_> = args.hosts.iter().chain(&args.pairs).cloned().collect();
        outfile::check_report("--html", path, &lists)?;
    }
    let hosts = hosts::find(&args.named, args.hosts.as_deref(), args.pairs.as_deref(), args.port)?;
    let pairs = Pairs::read(args.pairs.as_ref(), args.peers.map(usize::from), &hosts)?;
    let most = (0..hosts.len()).map(|from| pairs.targets(from, hosts.len(), 0).len()).max();
    let task = args.task(most.unwrap_or(0))?;
    let stopped = interrupt::catch()?;
    let metrics = args.metrics.map(|at| Metrics::serve(at, &hosts)).transpose()?;
    if let (Some(metrics), Some(_)) = (&metrics, args.metrics) {
        remark(&format!("metrics at http://{}/metrics", metrics.address()));
    }
    let mut all = collect::empty(&hosts);
    let mut latest = Vec::new();
    let mut out = output::stdout();
    let (rounds, mut done) = (args.rounds(), 0);
    while done < rounds && !stopped.load(Ordering::SeqCst) {
        let begun = now();
        let mut round = collect::round(&hosts, &pairs, &task, token.as_ref(), done);
        round.usual = all.times_of_pairs(&Thresholds::default());
        latest = diagnose(&round, &Thresholds::default());
        if let Some(metrics) = &metrics {
            metrics.add(&round, &latest);
        }
        collect::add(&mut all, round);
        done += 1;
        let report = Report::new(&all, &latest, done);
        if let Some(path) = &args.html {
            let page = page::render(&report);
            let named = format!("--html {}", path.display());
            outfile::WholeFile::write(named, path, page.as_bytes())?;
        }
        if rounds > 1 && !args.json {
            writeln!(out, "round {done}: {}", report.headline())?;
            out.flush()?;
        }
        if done < rounds {
            wait(args.every.saturating_sub(begun.elapsed()), stopped);
        }
    }
    let report = Report::new(&all, &latest, done);
    if args.json {
        writeln!(out, "{}", report.to_json())?;
    } else {
        write!(out, "{}", text::render(&report, args.color.wanted()))?;
    }
    out.flush()?;
    Ok(match stopped.load(Ordering::SeqCst) {
        true => ExitCode::from(interrupt::STATUS),
        false if report.is_good() => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Waits for the next round, or for Ctrl-C.
fn wait(time: Duration, stopped: &AtomicBool) {
    const PIECE: Duration = Duration::from_millis(100);
    let begun = now();
    while begun.elapsed() < time && !stopped.load(Ordering::SeqCst) {
        std::thread::sleep(PIECE.min(time));
    }
}
