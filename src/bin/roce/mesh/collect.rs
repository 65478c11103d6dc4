//! One round of a mesh: every host is asked to probe its targets, and tells what became of it.

use std::thread;

use anyhow::Context;
use roce::control::{Channel, ControlError, Protocol, Tcp, Token, tcp};
use roce::ping::ProberConfig;
use roce::ping::mesh::{Cell, Failed, Mesh};
use roce::wire::source_port;

use super::hosts::{Host, Pairs};
use crate::bench::control::mesh::{Message, OPEN_WAIT, Task, TaskResult};

/// The stack of a thread that waits for a host.
const STACK_BYTES: usize = 256 << 10;

/// Adds a round to earlier ones. Hosts that did not probe are those of the last round.
pub(crate) fn add(all: &mut Mesh, round: Mesh) {
    for cell in round.cells {
        let key = |it: &Cell| (it.from, it.to, it.source_port);
        match all.cells.iter_mut().find(|it| key(it) == key(&cell)) {
            Some(known) => known.stats.merge(&cell.stats),
            None => all.cells.push(cell),
        }
    }
    (all.silent, all.refused, all.failed) = (round.silent, round.refused, round.failed);
}

/// Returns a mesh of hosts that have not probed yet.
pub(crate) fn empty(hosts: &[Host]) -> Mesh {
    let mut mesh = Mesh::new(hosts.iter().map(|host| host.name.clone()));
    mesh.racks = hosts.iter().map(|host| host.rack.clone()).collect();
    mesh
}

/// Asks all hosts at once; `task` is what each is asked for, but for its targets.
pub(crate) fn round(
    hosts: &[Host],
    pairs: &Pairs,
    task: &Task,
    token: Option<&Token>,
    round: u64,
) -> Mesh {
    let targets: Vec<Vec<usize>> =
        (0..hosts.len()).map(|from| pairs.targets(from, hosts.len(), round)).collect();
    let results = thread::scope(|scope| {
        let ask = |(host, targets): (&Host, &Vec<usize>)| {
            let at = targets.iter().filter_map(|&to| Some(hosts.get(to)?.at)).collect();
            let (task, host) = (Task { targets: at, ..task.clone() }, host.clone());
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, move || ask(&host, &task, token))
        };
        let threads: Vec<_> = hosts.iter().zip(&targets).map(ask).collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
            }
            Err(error) => Err(error.into()),
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let labels = ProberConfig::new(0).paths(task.paths).flow_labels;
    let mut all = empty(hosts);
    for (from, (result, targets)) in results.into_iter().zip(&targets).enumerate() {
        match result {
            Err(error) => {
                let hosts = if is_refusal(&error) { &mut all.refused } else { &mut all.silent };
                hosts.push((from, format!("{error:#}")));
            }
            Ok(TaskResult { failed, cells }) => {
                let to = |target: usize| targets.get(target).copied();
                let failed = failed.into_iter();
                all.failed.extend(
                    failed.filter_map(|(it, reason)| Some(Failed { from, to: to(it)?, reason })),
                );
                all.cells.extend(cells.into_iter().filter_map(|(target, path, stats)| {
                    let source_port = source_port(*labels.get(path)?);
                    Some(Cell { from, to: to(target)?, source_port, stats })
                }));
            }
        }
    }
    all
}

/// Whether a host answered, and refused the task.
fn is_refusal(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(ControlError::is_refusal)
}

/// Sends a task to one host, and returns its result.
fn ask(host: &Host, task: &Task, token: Option<&Token>) -> anyhow::Result<TaskResult> {
    if task.targets.is_empty() {
        return Ok(TaskResult::default());
    }
    let stream = tcp::connect(None, host.at, OPEN_WAIT)
        .with_context(|| format!("cannot connect to {}; is roce serve running there?", host.at))?;
    // A host that says that it is alive, and nothing else, is given up as well.
    let mut control = Channel::to_server(Tcp::new(stream, Some(task.time_limit()))?)?;
    control.open(Protocol::Mesh, token, task)?;
    let result = TaskResult::receive(&mut control, task)?;
    control.send(&Message::Bye)?;
    Ok(result)
}
