//! `roce conform`: runs scenarios and reports the findings.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roce::conform::deviation::Table;
use roce::conform::expand::Instance;
use roce::conform::judge::{Finding, Judge, Pair, Record, Reference};
use roce::conform::report::{self, Style, Summary};
use roce::conform::{Side, fits, scenario};
use roce::control::limits::CONNECT_WAIT;
use roce::control::tcp;

use super::{Role, RunArgs, agent};
use crate::outfile::WholeFile;
use crate::output::say;
use crate::progress::can_draw;
use crate::resolve::resolve;
use crate::{device, outfile, output};

pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
    let instances = instances(&args)?;
    let mut out = output::stdout();
    if args.list {
        list(&instances, &mut out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let read: Vec<_> =
        args.scenario.iter().chain(&args.reference).chain(&args.deviations).cloned().collect();
    for (flag, path) in [("--junit", &args.junit), ("--record", &args.record)] {
        path.as_deref().map_or(Ok(()), |path| outfile::check_report(flag, path, &read))?;
    }
    let style = Style { color: !args.json && args.color.wanted(), verbose: args.verbose };
    let mut ended = Ended::default();
    let bar = progress(instances.len());
    for event in start(&args, instances)? {
        match event {
            Event::Begun(name) => bar.set_message(name),
            Event::Found(finding) => {
                let mut text = String::new();
                report::text(&finding, style, &mut text);
                if !args.json && !text.is_empty() {
                    bar.suspend(|| out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
                }
                ended.findings.push(*finding);
                bar.inc(1);
            }
            Event::Played(gone) => {
                ended.gone.extend(gone);
                ended.recorded.get_or_insert(ended.findings.len());
                bar.set_position(0);
            }
            Event::Ended(Ok(())) => break,
            // A run that ended before any finding has an error and no report.
            Event::Ended(Err(error)) if ended.findings.is_empty() => return Err(error),
            Event::Ended(Err(error)) => {
                ended.stopped = Some((format!("{error:#}"), crate::could_not()));
                break;
            }
            Event::Interrupted => {
                ended.stopped = Some(("interrupted".to_owned(), ExitCode::from(INTERRUPTED)));
                break;
            }
        }
    }
    bar.finish_and_clear();
    conclude(&args, &ended, &mut out)
}

/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Event of a run of scenarios.
enum Event {
    /// An instance was begun.
    Begun(String),
    /// An instance was run.
    Found(Box<Finding>),
    /// All instances were run with the device in one role: the known deviations that were not
    /// found, each as scenario and reason.
    Played(Vec<(String, String)>),
    /// The run has ended, or cannot continue.
    Ended(Result<()>),
    /// Ctrl-C.
    Interrupted,
}

/// Result of a run.
#[derive(Default)]
struct Ended {
    findings: Vec<Finding>,
    /// Known deviations that were not found, each as scenario and reason.
    gone: Vec<(String, String)>,
    /// Number of findings of the first role, to be recorded.
    recorded: Option<usize>,
    /// Reason for which the run ended early, and the exit status.
    stopped: Option<(String, ExitCode)>,
}

/// Runs the instances in a thread, so that Ctrl-C does not wait for the one that is being run.
fn start(args: &RunArgs, instances: Vec<Instance>) -> Result<Receiver<Event>> {
    let (sender, events) = channel();
    let interrupted = sender.clone();
    ctrlc::set_handler(move || drop(interrupted.send(Event::Interrupted)))
        .context("cannot wait for Ctrl-C")?;
    let args = args.clone();
    std::thread::spawn(move || {
        let work = AssertUnwindSafe(|| work(&args, &instances, &sender));
        let panicked = |_| Err(anyhow::anyhow!("a scenario panicked, which is a bug of roce"));
        let ended = catch_unwind(work).unwrap_or_else(panicked);
        let _ = sender.send(Event::Ended(ended));
    });
    Ok(events)
}

fn work(args: &RunArgs, instances: &[Instance], events: &Sender<Event>) -> Result<()> {
    for &side in args.role.sides() {
        // Two soft NICs in memory have the same findings in either role.
        if side == Side::Responder && args.device.is_none() && args.role == Role::Both {
            break;
        }
        let mut judge = judge(args, side)?;
        for instance in instances {
            events.send(Event::Begun(instance.name.clone()))?;
            let finding = judge.run(instance).with_context(|| instance.name.clone())?;
            events.send(Event::Found(Box::new(finding)))?;
        }
        events.send(Event::Played(judge.gone()))?;
    }
    Ok(())
}

/// Returns the instances that the arguments select.
fn instances(args: &RunArgs) -> Result<Vec<Instance>> {
    let mut all = Vec::new();
    for path in &args.scenario {
        let text = read(path)?;
        all.extend(scenario::read(&path.display().to_string(), &text)?);
    }
    if args.scenario.is_empty() {
        all = scenario::built_in()?;
    }
    if !args.filter.is_empty() {
        all.retain(|it| args.filter.iter().any(|glob| fits(glob, &it.name)));
        ensure!(!all.is_empty(), "--filter: no scenario matches; `roce conform --list` lists them");
    }
    Ok(all)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn list(instances: &[Instance], out: &mut impl Write) -> Result<()> {
    let mut last = "";
    for instance in instances {
        if last != instance.scenario.name {
            last = &instance.scenario.name;
            writeln!(out, "{last}: {}", instance.scenario.about)?;
        }
        if instance.name != instance.scenario.name {
            writeln!(out, "    {}", instance.name)?;
        }
    }
    Ok(out.flush()?)
}

/// Returns the judge for the device's role.
fn judge(args: &RunArgs, plays: Side) -> Result<Judge> {
    let pair = pair(args)?;
    let reference = match &args.reference {
        Some(path) => {
            let record = serde_json::from_str(&read(path)?);
            let record =
                record.with_context(|| format!("{} is not a recorded run", path.display()))?;
            Reference::Recorded(record)
        }
        None => Reference::Live(Box::new(Pair::in_memory()?)),
    };
    let mut tables = [None, None];
    for (side, (table, name)) in
        Side::BOTH.into_iter().zip(tables.iter_mut().zip(pair.names(plays)))
    {
        *table = match &args.deviations {
            Some(path) if side == plays => {
                Some(Table::read(&path.display().to_string(), &read(path)?)?)
            }
            _ => Table::of(&name)?,
        };
    }
    Ok(Judge::new(pair, plays, reference, tables))
}

fn pair(args: &RunArgs) -> Result<Pair> {
    let Some(spec) = &args.device else {
        ensure!(
            args.host.is_none(),
            "-d DEVICE is needed: the local device to run with {}",
            args.host.as_deref().unwrap_or_default()
        );
        return Ok(Pair::in_memory()?);
    };
    let own = agent(spec, args.gid_index, args.wire.as_ref(), args.rdma_cm)?;
    match (&args.peer, &args.host) {
        (Some(peer), _) => Ok(Pair::local(own, agent(peer, None, None, args.rdma_cm)?)?),
        (None, Some(host)) => {
            let from = device::address_of(&*own.device, args.gid_index);
            let stream = connect(host, args.port, from).with_context(|| {
                format!(
                    "cannot connect to {host}, TCP port {}; start there: roce conform serve -d DEVICE -p {0}",
                    args.port
                )
            })?;
            let token = args.token.get()?;
            Pair::remote(own, stream, token.as_ref(), args.any_gid.any_gid)
                .with_context(|| host.clone())
        }
        (None, None) => anyhow::bail!(
            "{spec} needs a peer: --peer DEVICE on this machine, or HOST with roce conform serve"
        ),
    }
}

/// Connects to a server, from the address of the device if this host has it: the server sends
/// packets only to the address that connects.
fn connect(host: &str, port: u16, from: Option<IpAddr>) -> Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for to in resolve(host, port)? {
        match tcp::connect(from, to, CONNECT_WAIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Returns the traces with the device in its first role: the reference of a later `--reference`.
fn recorded(ended: &Ended) -> Record {
    let findings = &ended.findings;
    let count = ended.recorded.unwrap_or(findings.len());
    let traces: BTreeMap<_, _> =
        findings.iter().take(count).map(|it| (it.name.clone(), it.trace.clone())).collect();
    let devices = findings.first().map(|it| it.devices.clone()).unwrap_or_default();
    Record { devices, traces }
}

fn progress(len: usize) -> ProgressBar {
    if !can_draw() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(len as u64), ProgressDrawTarget::stderr());
    bar.with_style(
        ProgressStyle::with_template("{pos}/{len} {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// Writes the files and prints the summary, also of a run that ended early. Returns the exit
/// status.
fn conclude(args: &RunArgs, ended: &Ended, out: &mut impl Write) -> Result<ExitCode> {
    let Ended { findings, gone, stopped, .. } = ended;
    let why = stopped.as_ref().map(|(why, _)| why.as_str());
    if let Some(path) = &args.record {
        write(path, &serde_json::to_string(&recorded(ended))?)?;
    }
    if let Some(path) = &args.junit {
        write(path, &report::junit(findings, why))?;
    }
    let summary = Summary::of(findings);
    if args.json {
        writeln!(out, "{}", report::json(findings, gone, why))?;
    } else {
        for (scenario, reason) in gone {
            writeln!(out, "gone        {scenario}  {reason}")?;
        }
        writeln!(out, "{summary}")?;
    }
    out.flush()?;
    if let Some((why, status)) = stopped {
        say!("stopped before the end: {why}");
        return Ok(*status);
    }
    Ok(if summary.differences > 0 {
        ExitCode::FAILURE
    } else if summary.agreed + summary.known == 0 {
        crate::could_not()
    } else {
        ExitCode::SUCCESS
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    WholeFile::write(format!("cannot write {}", path.display()), path, text.as_bytes())
}
