//! Running scenarios, and telling what came of it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roce::conform::deviation::Table;
use roce::conform::expand::Instance;
use roce::conform::judge::{Finding, Judge, Pair, Record, Reference};
use roce::conform::report::{self, Style, Summary};
use roce::conform::{Side, fits, scenario};
use socket2::{Domain, Socket, Type};

use super::{RunArgs, agent};
use crate::{device, output};

pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let instances = instances(args)?;
    let mut out = output::stdout();
    if args.list {
        list(&instances, &mut out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style { colour: !args.json && args.colour.wanted(), verbose: args.verbose };
    let (mut findings, mut gone, mut record) = (Vec::new(), Vec::new(), None);
    for &side in args.role.sides() {
        // Two soft NICs in memory are the same either way.
        if side == Side::Responder && args.device.is_none() && !findings.is_empty() {
            break;
        }
        let mut judge = judge(args, side)?;
        let bar = progress(instances.len());
        for instance in &instances {
            bar.set_message(instance.name.clone());
            let finding = judge.run(instance).with_context(|| instance.name.clone())?;
            let mut text = String::new();
            report::text(&finding, style, &mut text);
            if !args.json && !text.is_empty() {
                bar.suspend(|| out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
            }
            findings.push(finding);
            bar.inc(1);
        }
        bar.finish_and_clear();
        gone.extend(judge.gone());
        record.get_or_insert_with(|| recorded(&judge, &findings));
    }
    conclude(args, &findings, &gone, record, &mut out)
}

/// The scenarios that are asked for.
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
        ensure!(!all.is_empty(), "--filter: no scenario fits; `roce conform --list` lists them");
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

/// Who judges when the device here plays a side.
fn judge(args: &RunArgs, plays: Side) -> Result<Judge> {
    let pair = pair(args)?;
    let reference = match &args.reference {
        Some(path) => {
            let record = serde_json::from_str(&read(path)?);
            let record = record.with_context(|| format!("{} is no record", path.display()))?;
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
            "-d: which device shall play with {}?",
            args.host.as_deref().unwrap_or_default()
        );
        return Ok(Pair::in_memory()?);
    };
    let own = agent(spec, args.gid_index, args.wire.as_ref())?;
    match (&args.peer, &args.host) {
        (Some(peer), _) => Ok(Pair::local(own, agent(peer, None, None)?)?),
        (None, Some(host)) => {
            let from = device::address_of(&*own.device, args.gid_index);
            let stream = connect(host, args.port, from).with_context(|| {
                format!(
                    "cannot reach {host} on TCP port {}; there should run: roce conform serve -d DEVICE -p {0}",
                    args.port
                )
            })?;
            Pair::remote(own, stream).with_context(|| host.clone())
        }
        (None, None) => anyhow::bail!(
            "{spec} needs somebody to play with: --peer DEVICE here, or HOST with roce conform serve"
        ),
    }
}

/// Connects to a server, from the address of the device if there is a way: the server sends packets to no other.
fn connect(host: &str, port: u16, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let all: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let bound = all.iter().map(|to| (to, from.filter(|from| from.is_ipv4() == to.is_ipv4())));
    let unbound = all.iter().map(|to| (to, None));
    for (to, from) in bound.filter(|(_, from)| from.is_some()).chain(unbound) {
        match connect_from(*to, from) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_from(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(from) = from else { return TcpStream::connect(to) };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), CONNECT)?;
    Ok(socket.into())
}

/// How long a connection from the address of the device may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// What came of it, for others to be compared with.
fn recorded(judge: &Judge, findings: &[Finding]) -> Record {
    let traces: BTreeMap<_, _> =
        findings.iter().map(|it| (it.name.clone(), it.trace.clone())).collect();
    Record { devices: judge.names(), traces }
}

fn progress(len: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(len as u64), ProgressDrawTarget::stderr());
    bar.with_style(
        ProgressStyle::with_template("{pos}/{len} {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// Tells what all of it comes to.
fn conclude(
    args: &RunArgs,
    findings: &[Finding],
    gone: &[(String, String)],
    record: Option<Record>,
    out: &mut impl Write,
) -> Result<ExitCode> {
    if let (Some(path), Some(record)) = (&args.record, record) {
        write(path, &serde_json::to_string(&record)?)?;
    }
    if let Some(path) = &args.junit {
        write(path, &report::junit(findings))?;
    }
    let summary = Summary::of(findings);
    if args.json {
        writeln!(out, "{}", report::json(findings, gone))?;
    } else {
        for (scenario, reason) in gone {
            writeln!(out, "gone        {scenario}  {reason}")?;
        }
        writeln!(out, "{summary}")?;
    }
    out.flush()?;
    Ok(if summary.differences > 0 {
        ExitCode::FAILURE
    } else if summary.agreed + summary.known == 0 {
        crate::could_not()
    } else {
        ExitCode::SUCCESS
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
