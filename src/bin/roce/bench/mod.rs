//! `roce bench`: how fast it is, as perftest asks.

mod args;
mod bandwidth;
mod exchange;
mod latency;
pub(crate) mod pingpong;
mod pingpong_args;
mod plan;
mod report;
mod session;
mod side;
#[cfg(test)]
mod tests;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roce::link;

pub(crate) use args::{ReachArgs, parse_mtu};
pub(crate) use exchange::Control;
pub(crate) use plan::{Connection, Plan};
pub(crate) use session::server;

use self::args::TestArgs;
use self::plan::{Extent, Metric, Op};
use self::report::Unit;
use self::session::{Audience, ClientOptions, Setting, Step};
use crate::device::{self, Spec};
use crate::output;

/// Measure bandwidth and latency, as perftest does
///
/// Soft NICs or real ones on either side: on the other one runs roce serve. Letters and tables
/// are perftest's, and so are their meanings: bandwidth is counted in MB of 2^20 bytes, the
/// latency of send and write is half a round trip, t_typical is the median. BW peak is the
/// fastest hundredth of a second.
///
/// bench pingpong is a client of ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong, which
/// need no roce on the other side.
///
/// Exit status: 0 when all went well, 1 when --verify found wrong bytes, 2 when it could not be
/// measured.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    test: Test,
}

#[derive(Debug, Subcommand)]
enum Test {
    /// Messages that fill receives of the other side
    Send(TestArgs),
    /// Writes to the other side's memory
    Write(TestArgs),
    /// Reads of the other side's memory
    Read(TestArgs),
    /// Atomic additions in the other side's memory
    Atomic(TestArgs),
    Pingpong(pingpong_args::PingpongArgs),
}

const EXAMPLES: &str = "\
Examples:
  roce serve                                            (on the host 10.0.0.1)
  roce bench send bw 10.0.0.1                           (on another)
  roce bench write bw -a -q 4 -D 5 10.0.0.1
  roce bench send lat -c ud -s 64 -n 100000 --json 10.0.0.1
  roce bench read lat -d soft:eth0 10.0.0.1
  roce bench write bw -d verbs:mlx5_0 10.0.0.1          (a real RNIC; roce devices lists them)

On one machine, with two of its loopback addresses:
  roce serve -d udp:127.0.0.1
  roce bench send bw -d udp:127.0.0.2 127.0.0.1";

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.test {
        Test::Send(args) => measure(Op::Send, &args),
        Test::Write(args) => measure(Op::Write, &args),
        Test::Read(args) => measure(Op::Read, &args),
        Test::Atomic(args) => measure(Op::Atomic, &args),
        Test::Pingpong(args) => pingpong_args::run(&args),
    }
}

fn measure(op: Op, args: &TestArgs) -> anyhow::Result<ExitCode> {
    args.check(op)?;
    let stream = exchange::connect(&args.host, args.reach.port)?;
    let nic = device::start(&device_for(args.reach.device.as_ref(), &stream)?)?;
    let gid_index = device::choose_gid(args.reach.gid_index, &*nic, stream.local_addr()?.ip())?;
    let plan = args.plan(op, &*nic)?;
    let mut control = Control::new(stream, "the server")?;
    let options = ClientOptions { gid_index, mtu: args.mtu };
    let mut show = Show {
        out: output::stdout(),
        unit: args.unit(),
        json: args.json,
        steps: Vec::new(),
        setting: None,
    };
    let counts = session::client(&*nic, &mut control, &plan, options, &mut show)?;
    if let (true, Some(setting)) = (args.json, &show.setting) {
        writeln!(show.out, "{}", report::to_json(setting, &show.steps, &counts))?;
        show.out.flush()?;
    } else if let Some(remark) = report::remark_on_counts(&counts) {
        eprintln!("roce: {remark}");
    }
    let wrong = show.steps.iter().any(|step| step.wrong() > 0);
    Ok(if wrong { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// The device that was named, or else the address from which the other side is reached.
pub(crate) fn device_for(
    named: Option<&Spec>,
    stream: &std::net::TcpStream,
) -> anyhow::Result<Spec> {
    match named {
        Some(spec) => Ok(spec.clone()),
        None => Ok(Spec::Soft(link::Spec::Udp(stream.local_addr()?.ip().to_canonical()))),
    }
}

/// Shows results as they come, or keeps them for the end.
struct Show<W: Write> {
    out: W,
    unit: Unit,
    json: bool,
    steps: Vec<Step>,
    setting: Option<Setting>,
}

impl<W: Write> Audience for Show<W> {
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()> {
        self.setting = Some(setting.clone());
        if self.json {
            return Ok(());
        }
        let Setting { plan, device, peer_gid, .. } = setting;
        let (name, metric) = (plan.connection.name(), plan.metric.name());
        eprintln!(
            "roce: {name} {} {metric} from {device} to {peer_gid}: {} QP, MTU {}",
            plan.op.name(),
            plan.qps,
            plan.mtu
        );
        writeln!(self.out, "{}", report::heading(plan, self.unit))?;
        Ok(self.out.flush()?)
    }

    fn bar(&mut self, plan: &Plan, size: u32) -> ProgressBar {
        if !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let per_qp = if plan.metric == Metric::Bw { u64::from(plan.qps) } else { 1 };
        let (all, what) = match plan.extent {
            Extent::Iterations(count) => (count.saturating_mul(per_qp), "messages {eta}"),
            Extent::Seconds(seconds) => (seconds, "seconds"),
        };
        let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr());
        let style = format!("{size} bytes {{wide_bar}} {{pos}}/{{len}} {what}");
        bar.set_style(ProgressStyle::with_template(&style).expect("the template is valid"));
        bar
    }

    fn step(&mut self, plan: &Plan, step: &Step) -> anyhow::Result<()> {
        self.steps.push(*step);
        if !self.json {
            writeln!(self.out, "{}", report::row(step, self.unit))?;
            self.out.flush()?;
        }
        if let Some(remark) = report::remark(plan, step) {
            eprintln!("roce: {remark}");
        }
        Ok(())
    }
}
