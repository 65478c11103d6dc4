//! `roce bench`: bandwidth and latency, with perftest's options and tables.

mod args;
mod bandwidth;
mod cm;
pub(crate) mod control;
mod latency;
pub(crate) mod path;
pub(crate) mod pingpong;
mod pingpong_args;
pub(crate) mod reach;
mod report;
mod session;
mod side;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
mod token;
pub(crate) mod watch;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::{Args as ClapArgs, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roce::control::{Channel, Protocol};
use roce::device::Context as Nic;

pub(crate) use args::{AnyGidArgs, PORT, ReachArgs, parse_bytes, parse_mtu};
pub(crate) use session::{ServerOptions, server};
pub(crate) use token::TokenArgs;

use self::args::TestArgs;
use self::control::plan::{Extent, Metric, Op, Plan};
use self::report::{End, Unit};
use self::session::{ClientOptions, Counts, Observer, Setting, Step};
use crate::output::say;
use crate::{interrupt, output};

/// Measure bandwidth and latency, as perftest does
///
/// Soft NICs or real ones on either side: on the other one runs roce serve. Options and tables
/// are perftest's, and so are their meanings: bandwidth is counted in MB of 2^20 bytes, the
/// latency of send and write is half a round trip, t_typical is the median. BW peak is the
/// fastest hundredth of a second.
///
/// bench pingpong is a client of ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong, which
/// need no roce on the other side.
///
/// With UC and UD messages get lost: BW average is the rate sent, BW received the rate that
/// arrived, counted at the receiver.
///
/// Ctrl-C ends a run early: what was measured until then is printed, also if the server fails.
///
/// Exit status: 0 when all went well, 1 when --verify found wrong bytes or no message arrived,
/// 2 when it could not be measured, 130 after Ctrl-C.
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
  roce bench send lat -R 10.0.0.1                       (connected by rdma_cm; the server is roce serve -R)

On one machine; both are at one address:
  roce serve -d udp:127.0.0.1
  roce bench send bw 127.0.0.1";

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
    let token = args.token.get()?;
    let interrupt = interrupt::catch()?;
    let reached = reach::reach(&args.host, &args.reach, reach::Family::Same)?;
    let nic = &Nic::from(reached.nic);
    let plan = args.plan(op, nic.device())?;
    let server = reached.stream.peer()?;
    let mut control = Channel::to_server(reached.stream)?;
    let manager = args.connection_manager(nic)?;
    let protocol = if manager.is_some() { Protocol::BenchByCm } else { Protocol::Bench };
    let options = ClientOptions {
        protocol,
        token: token.as_ref(),
        gid_index: reached.gid_index,
        mtu: args.mtu,
        server,
        any_gid: args.any_gid.any_gid,
        interrupt,
        manager: manager.as_ref(),
    };
    let mut show = Show {
        out: output::stdout(),
        unit: args.unit(),
        json: args.json,
        histogram: args.histogram,
        steps: Vec::new(),
        setting: None,
    };
    let result = session::client(nic, &mut control, &plan, options, &mut show);
    let interrupted = interrupt.load(Ordering::SeqCst);
    show.end(&result, interrupted)?;
    if interrupted {
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    result?;
    let wrong = show.steps.iter().any(|step| step.wrong() > 0 || step.is_all_lost(&plan));
    Ok(if wrong { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Shows results as they come, or keeps them for the end.
struct Show<W: Write> {
    out: W,
    unit: Unit,
    json: bool,
    histogram: bool,
    steps: Vec<Step>,
    setting: Option<Setting>,
}

impl<W: Write> Show<W> {
    /// Shows how the run ended, whether it went well or not.
    fn end(&mut self, result: &anyhow::Result<Counts>, interrupted: bool) -> anyhow::Result<()> {
        let end = match result {
            _ if interrupted => End::Interrupted,
            Ok(_) => End::Whole,
            Err(error) => End::Failed(format!("{error:#}")),
        };
        let none = Counts::default();
        let counts = result.as_ref().unwrap_or(&none);
        if let (true, Some(setting)) = (self.json, &self.setting) {
            writeln!(self.out, "{}", report::to_json(setting, &self.steps, counts, &end)?)?;
        } else if let Some(remark) = report::remark_on_counts(counts) {
            say!("{remark}");
        }
        self.out.flush()?;
        match (&end, result) {
            (End::Interrupted, Ok(_)) => say!("interrupted"),
            (End::Interrupted, Err(error)) => say!("interrupted; {error:#}"),
            _ => {}
        }
        Ok(())
    }
}

impl<W: Write> Observer for Show<W> {
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()> {
        self.setting = Some(setting.clone());
        let Setting { plan, device, peer_gid, .. } = setting;
        let (name, metric) = (plan.connection.name(), plan.metric.name());
        say!(
            "{name} {} {metric} from {device} to {peer_gid}: {} QP, MTU {}",
            plan.op.name(),
            plan.qps,
            plan.mtu
        );
        if !self.json {
            writeln!(self.out, "{}", report::heading(plan, self.unit))?;
        }
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
        self.steps.push(step.clone());
        if !self.json {
            writeln!(self.out, "{}", report::row(plan, step, self.unit))?;
            if let (true, Some(times)) = (self.histogram, &step.latency) {
                writeln!(self.out, "{}", report::histogram(&times.histogram))?;
            }
            self.out.flush()?;
        }
        if let Some(remark) = report::remark(plan, step) {
            say!("{remark}");
        }
        Ok(())
    }
}
