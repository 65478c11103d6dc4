//! One round of a mesh: every host is asked to probe its targets, and tells what became of it.

use std::thread;

use roce::ping::ProberConfig;
use roce::ping::mesh::{Cell, Mesh};
use roce::wire::source_port;

use super::hosts::{Host, Pairs};
use crate::bench::Token;
use crate::bench::control::Control;
use crate::bench::control::mesh::{Task, TaskResult};
use crate::bench::control::messages::{self, Protocol};
use crate::bench::tcp::{self, Tcp};

/// The stack of a thread that waits for a host.
const STACK_BYTES: usize = 256 << 10;

/// What became of a round, or of several.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) mesh: Mesh,
    /// Hosts that did not probe, with the reason.
    pub(crate) silent: Vec<(usize, String)>,
    /// Pairs that were not probed, with the reason.
    pub(crate) failed: Vec<(usize, usize, String)>,
}

impl Collected {
    /// Adds another round.
    pub(crate) fn add(&mut self, other: Self) {
        for cell in other.mesh.cells {
            let key = |it: &Cell| (it.from, it.to, it.source_port);
            match self.mesh.cells.iter_mut().find(|it| key(it) == key(&cell)) {
                Some(known) => known.stats.merge(&cell.stats),
                None => self.mesh.cells.push(cell),
            }
        }
        (self.silent, self.failed) = (other.silent, other.failed);
    }
}

/// Asks all hosts at once; `task` is what each is asked for, but for its targets.
pub(crate) fn round(
    hosts: &[Host],
    pairs: &Pairs,
    task: &Task,
    token: Option<&Token>,
    round: u64,
) -> Collected {
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
    let mut all = Collected::default();
    all.mesh.hosts = hosts.iter().map(|host| host.name.clone()).collect();
    for (from, (result, targets)) in results.into_iter().zip(&targets).enumerate() {
        match result {
            Err(error) => all.silent.push((from, format!("{error:#}"))),
            Ok(TaskResult { failed, cells }) => {
                let to = |target: usize| targets.get(target).copied();
                let failed = failed.into_iter().filter_map(|(it, why)| Some((from, to(it)?, why)));
                all.failed.extend(failed);
                all.mesh.cells.extend(cells.into_iter().filter_map(|(target, path, stats)| {
                    let source_port = source_port(*labels.get(path)?);
                    Some(Cell { from, to: to(target)?, source_port, stats })
                }));
            }
        }
    }
    all
}

/// Asks one host.
fn ask(host: &Host, task: &Task, token: Option<&Token>) -> anyhow::Result<TaskResult> {
    if task.targets.is_empty() {
        return Ok(TaskResult::default());
    }
    let stream = Tcp::new(tcp::connect(None, host.at, "roce serve")?, None)?;
    let mut control = Control::new(Box::new(stream), "the server");
    let prove = token.map(|token| |nonce: &str| token.proof(nonce));
    let prove = prove.as_ref().map(|prove| prove as &dyn Fn(&str) -> String);
    messages::introduce_as(Protocol::Mesh, &mut control, prove)?;
    control.send(&task.to_lines())?;
    let result = TaskResult::read(&mut control, task)?;
    control.send("bye\n")?;
    Ok(result)
}
