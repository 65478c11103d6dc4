//! The part of a mesh that a server does: it probes other servers for a client that is trusted.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use roce::device::Context as Nic;
use roce::ping::{Address, Event, PathStats, Pinger, ProbeQp, ProberConfig, Role, random_id};

use crate::bench::Token;
use crate::bench::control::Control;
use crate::bench::control::mesh::{Task, TaskResult};
use crate::bench::control::messages::address_of;
use crate::bench::control::probe::Hello;
use crate::bench::path::{check_addresses, is_this_host};
use crate::bench::tcp::{self, Tcp};
use crate::bench::watch::now;
use crate::output::counted;
use crate::ping::{ask, rate_of};

/// Number of servers that are asked at once.
const AT_ONCE: usize = 32;

/// How often the client is told that the server is alive.
const ALIVE: Duration = Duration::from_secs(1);

/// A target that has agreed to be probed, as long as its control connection lasts.
struct Target {
    index: usize,
    control: Control,
    address: Address,
}

/// Probes the targets of a task, and sends what became of it.
pub(crate) fn serve(
    nic: &Nic,
    gid_index: u8,
    token: Option<&Token>,
    task: &Task,
    control: &mut Control,
) -> anyhow::Result<String> {
    let qp = ProbeQp::new(nic, gid_index, Role::Prober).context("cannot create a prober")?;
    let mut result = TaskResult::default();
    let hello = Hello { prober: qp.address(), rate: rate_of(task.interval) };
    let mut targets = open_all(task, token, hello, &mut result, control)?;
    probe(qp, task, &targets, &mut result, control)?;
    for target in &mut targets {
        let _ = target.control.send("bye\n");
    }
    control.send(&result.to_lines())?;
    control.expect("bye")?;
    let (count, failed) = (targets.len(), result.failed.len());
    let failed = if failed > 0 { format!(", {failed} not reached") } else { String::new() };
    let (servers, paths) = (counted(count as u64, "server"), counted(task.paths as u64, "path"));
    Ok(format!("probed {servers} on {paths} each{failed}"))
}

/// Asks all targets for a responder, many at a time.
fn open_all(
    task: &Task,
    token: Option<&Token>,
    hello: Hello,
    result: &mut TaskResult,
    control: &mut Control,
) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    let all: Vec<(usize, SocketAddr)> = task.targets.iter().copied().enumerate().collect();
    for some in all.chunks(AT_ONCE) {
        control.send("alive\n")?;
        let opened = thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|&(index, to)| (index, scope.spawn(move || open(to, token, hello))))
                .collect();
            let join = |(index, thread): (usize, thread::ScopedJoinHandle<'_, _>)| {
                (index, thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        for (index, opened) in opened {
            match opened {
                Ok((control, address)) => targets.push(Target { index, control, address }),
                Err(error) => result.failed.push((index, format!("{error:#}"))),
            }
        }
    }
    Ok(targets)
}

/// Asks a target for a responder. It is sent no probe before it has agreed.
fn open(to: SocketAddr, token: Option<&Token>, hello: Hello) -> anyhow::Result<(Control, Address)> {
    let own = address_of(hello.prober.gid);
    let stream = Tcp::new(tcp::connect(Some(own), to, "roce serve")?, None)?;
    let mut control = Control::new(Box::new(stream), "the server");
    let address = ask(&mut control, token, hello)?;
    check_addresses(own, address_of(address.gid), is_this_host(to.ip()))?;
    Ok((control, address))
}

/// Probes all targets that have agreed.
fn probe(
    qp: ProbeQp,
    task: &Task,
    targets: &[Target],
    result: &mut TaskResult,
    control: &mut Control,
) -> anyhow::Result<()> {
    let addresses: Vec<Address> = targets.iter().map(|target| target.address).collect();
    let config = ProberConfig::new(random_id()?)
        .interval(task.interval)
        .timeout(task.timeout)
        .count(task.count * task.paths as u64)
        .paths(task.paths);
    let mut pinger = Pinger::new(qp, config, &addresses);
    let mut cells = vec![PathStats::default(); targets.len() * task.paths];
    let mut told: Instant = now();
    while !pinger.is_done() {
        let event = pinger.next(ALIVE).context("cannot probe")?;
        if let Some(Event::Ended { target, path, ending, .. }) = event
            && let Some(stats) = cells.get_mut(target * task.paths + path)
        {
            stats.add(&ending);
        }
        if told.elapsed() >= ALIVE {
            control.send("alive\n").context("the client is gone")?;
            told = now();
        }
    }
    for (at, stats) in cells.into_iter().enumerate() {
        if let Some(target) = targets.get(at / task.paths) {
            result.cells.push((target.index, at % task.paths, stats));
        }
    }
    Ok(())
}
