//! The part of a mesh that a server does: it probes other servers for a client that is trusted.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use roce::control::limits::LINE_WAIT;
use roce::control::{Channel, Tcp, Token, tcp};
use roce::device::Context as Nic;
use roce::ping::{Address, Event, PathStats, Pinger, ProbeQp, ProberConfig, Role, random_id};

use crate::bench::control::mesh::{AT_ONCE, Message, OPEN_WAIT, Task, TaskResult};
use crate::bench::control::messages::address_of;
use crate::bench::control::probe::{Goodbye, Hello};
use crate::bench::path::{check_addresses, is_this_host};
use crate::bench::watch::now;
use crate::output::counted;
use crate::ping::{ResponderRequest, ask, rate_of};

/// Interval of keep-alive messages to the client.
const ALIVE: Duration = Duration::from_secs(1);

/// A target that has agreed to be probed, as long as its control connection lasts.
struct Target {
    index: usize,
    control: Channel,
    address: Address,
}

/// Conditions under which a server probes others.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub(crate) token: Option<Token>,
    /// Whether a responder may be at another address than its server.
    pub(crate) any_gid: bool,
}

/// Probes the targets of a task, and sends what became of it.
pub(crate) fn serve(
    nic: &Nic,
    gid_index: u8,
    conditions: Conditions,
    task: &Task,
    control: &mut Channel,
) -> anyhow::Result<String> {
    let qp = ProbeQp::new(nic, gid_index, Role::Prober).context("cannot create a prober")?;
    let mut result = TaskResult::default();
    let Conditions { token, any_gid } = conditions;
    let hello = Hello { prober: qp.address(), rate: rate_of(task.interval) };
    let request = ResponderRequest { token, hello, any_gid };
    let mut targets = open_all(task, &request, &mut result, control)?;
    probe(qp, task, &targets, &mut result, control)?;
    for target in &mut targets {
        let _ = target.control.send(&Goodbye::Bye);
    }
    result.send(control)?;
    match control.receive(LINE_WAIT, "bye")? {
        Message::Bye => {}
        other => return Err(control.unexpected(&other, "bye").into()),
    }
    let (count, failed) = (targets.len(), result.failed.len());
    let failed = if failed > 0 { format!(", {failed} not reached") } else { String::new() };
    let (servers, paths) = (counted(count as u64, "server"), counted(task.paths as u64, "path"));
    Ok(format!("probed {servers} on {paths} each{failed}"))
}

/// Asks all targets for a responder, many at a time. The client hears that this server is alive
/// while targets take their time: one that is dead must not make its probers look dead.
fn open_all(
    task: &Task,
    request: &ResponderRequest,
    result: &mut TaskResult,
    control: &mut Channel,
) -> anyhow::Result<Vec<Target>> {
    let (mut targets, mut failed) = (Vec::new(), Vec::new());
    let (next, count) = (AtomicUsize::new(0), task.targets.len());
    let told = thread::scope(|scope| {
        let (sender, opened) = channel();
        for _ in 0..AT_ONCE.min(count) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                let take = || next.fetch_add(1, Ordering::Relaxed);
                while let Some((index, to)) = target_at(task, take()) {
                    let opened = catch_unwind(AssertUnwindSafe(|| open(to, request)));
                    let opened = opened.unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
                    if sender.send((index, opened)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut told = now();
        control.send_alive()?;
        loop {
            match opened.recv_timeout(ALIVE) {
                Ok((index, Ok((control, address)))) => {
                    targets.push(Target { index, control, address });
                }
                Ok((index, Err(error))) => failed.push((index, format!("{error:#}"))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if told.elapsed() >= ALIVE {
                let sent = control.send_alive().context("the client is gone");
                // The threads end with the target that they are at.
                sent.inspect_err(|_| next.store(count, Ordering::Relaxed))?;
                told = now();
            }
        }
    });
    result.failed.append(&mut failed);
    told.map(|()| targets)
}

fn target_at(task: &Task, index: usize) -> Option<(usize, SocketAddr)> {
    Some((index, *task.targets.get(index)?))
}

/// Asks a target for a responder. It is sent no probe before it has agreed.
fn open(to: SocketAddr, request: &ResponderRequest) -> anyhow::Result<(Channel, Address)> {
    let own = address_of(request.hello.prober.gid);
    let stream = tcp::connect(Some(own), to, OPEN_WAIT)
        .with_context(|| format!("cannot connect to {to}; is roce serve running there?"))?;
    let mut control = Channel::to_server(Tcp::new(stream, None)?)?;
    let address = ask(&mut control, request)?;
    check_addresses(own, address_of(address.gid), is_this_host(to.ip()))?;
    Ok((control, address))
}

/// Probes all targets that have agreed.
fn probe(
    qp: ProbeQp,
    task: &Task,
    targets: &[Target],
    result: &mut TaskResult,
    control: &mut Channel,
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
            control.send_alive().context("the client is gone")?;
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
