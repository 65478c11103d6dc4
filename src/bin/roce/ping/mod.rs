//! `roce ping`: UD probes to a host, with what the network took and what either host took.

mod session;
pub(crate) mod show;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use roce::device::Context as Nic;
use roce::ping::limits::{INTERVAL_MIN, PATHS_MAX, TIMEOUT_MAX};
use roce::ping::{Pinger, ProbeQp, ProberConfig, Role, random_id};

use self::session::Session;
pub(crate) use self::session::{ResponderRequest, ask, rate_of};
use self::show::Show;
use crate::bench::control::probe::Hello;
use crate::bench::reach::{Family, reach};
use crate::bench::{AnyGidArgs, ReachArgs, TokenArgs};
use crate::device::SharedMemoryArgs;
use crate::output::{counted, remark};
use crate::{interrupt, output};

/// Maximum time of one wait for events.
const ROUND: Duration = Duration::from_millis(100);

/// Source ports that a soft NIC on UDP sockets tells apart.
const UDP_PATHS_MAX: usize = 16;

/// Probe a host by UD datagrams, and tell network, prober and responder apart
///
/// On the host runs roce serve, from which the queue pair that answers is learnt over TCP. Each
/// probe is answered twice: at once, and again with how long the first answer took the host. From
/// six time stamps follow the round trip time of the network alone, what this host took (prober),
/// and what the other one took (responder). The time stamps of completions are those of the NIC
/// where it has them; a soft NIC has.
///
/// --paths sweeps UDP source ports, by which switches choose among equal paths. A path that loses
/// or is slow while others are not is a bad link or switch, and neither host.
///
/// Ctrl-C prints the summary. Exit status: 0 if a probe was answered, also after Ctrl-C, 1 if none
/// was, 2 on errors.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Host on which a server (roce serve) runs.
    #[arg(value_name = "HOST")]
    host: String,

    #[command(flatten)]
    reach: ReachArgs<SharedMemoryArgs>,

    /// Stop after COUNT probes.
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Seconds between two probes, at least 0.0001.
    #[arg(short = 'i', long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "1")]
    interval: Duration,

    /// Seconds after which a probe is lost, at most 60.
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "1")]
    timeout: Duration,

    /// Take COUNT paths in turn, each with a UDP source port of its own: 1 to 64; at most 16 on a
    /// soft NIC over UDP.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    paths: usize,

    /// Print nothing but the summary.
    #[arg(short = 'q', long)]
    quiet: bool,

    /// Print a JSON object at the end.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    token: TokenArgs,

    #[command(flatten)]
    any_gid: AnyGidArgs,
}

const EXAMPLES: &str = "\
Examples:
  roce serve                              (on the host 10.0.0.1)
  roce ping 10.0.0.1                      (on another)
  roce ping -c 100 -i 0.01 --paths 8 10.0.0.1
  roce ping -d verbs:mlx5_0 --json -c 10 10.0.0.1
  roce serve -d udp:127.0.0.1 & roce ping 127.0.0.1";

/// Seconds with decimals.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds, such as 1 or 0.01".to_owned())
}

/// Checks what the options of probes have in common.
pub(crate) fn check(paths: usize, interval: Duration, timeout: Duration) -> anyhow::Result<()> {
    ensure!((1..=PATHS_MAX).contains(&paths), "--paths: 1 to {PATHS_MAX}");
    ensure!(interval >= INTERVAL_MIN, "-i: at least {} seconds", INTERVAL_MIN.as_secs_f64());
    ensure!(timeout <= TIMEOUT_MAX, "-W: at most {} seconds", TIMEOUT_MAX.as_secs());
    Ok(())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    check(args.paths, args.interval, args.timeout)?;
    let token = args.token.get()?;
    let stopped = interrupt::catch()?;
    let reached = reach(&args.host, &args.reach.with_all(), Family::Same)?;
    let nic = Nic::from(reached.nic);
    ensure!(
        args.paths <= UDP_PATHS_MAX || !nic.name().starts_with("udp:"),
        "--paths: {} tells {UDP_PATHS_MAX} source ports apart; use fewer, or -d raw:INTERFACE",
        nic.name()
    );
    let server: IpAddr = reached.stream.peer()?;
    let qp = ProbeQp::new(&nic, reached.gid_index, Role::Prober).context("cannot probe")?;
    let mut config = ProberConfig::new(random_id()?)
        .interval(args.interval)
        .timeout(args.timeout)
        .paths(args.paths);
    config.count = args.count;
    let labels = config.flow_labels.clone();
    let hello = Hello { prober: qp.address(), rate: rate_of(args.interval) };
    let request = ResponderRequest { token, hello, any_gid: args.any_gid.any_gid };
    let (mut session, target) = Session::open(reached.stream, request)?;
    if !args.json {
        let paths = counted(args.paths as u64, "path");
        remark(&format!("probing {server} from {}, {paths}", nic.name()));
    }
    let lines = !args.quiet && !args.json;
    let mut show = Show::new(output::stdout(), server, &labels, lines);
    let mut pinger = Pinger::new(qp, config, &[target]);
    while !stopped.load(Ordering::SeqCst) && !pinger.is_done() {
        if let Some(event) = pinger.next(ROUND).context("cannot probe")? {
            show.event(&event)?;
        }
        if let Some(target) = session.check() {
            pinger.set_target(0, target);
        }
    }
    let times = if pinger.has_device_times() { "nic" } else { "program" };
    let summary = show.summary(nic.name(), times, pinger.counters());
    session.close();
    show.end(&summary, args.json)?;
    Ok(if summary.all.answered > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
