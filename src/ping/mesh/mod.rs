//! Conclusions from the probes between the hosts of a fleet: a bad NIC, a bad path, a slow host.
//!
//! A [`Mesh`] holds what became of the probes between its hosts, by pair and path. [`diagnose`] is
//! a function of it, and of nothing else: it compares hosts with each other and the paths of a pair
//! with each other, and names what differs, with its evidence.
//!
//! | finding | is concluded from |
//! |---|---|
//! | bad NIC | a host loses probes to and from all its peers alike, on all source ports alike |
//! | bad path | some source ports of a pair lose probes or are slow while others of the same pair are not |
//! | slow host | a host takes long to answer, or to send and to see answers, while others do not |
//! | unresponsive host | a host loses the probes to it from all peers alike, and not its own, or the other way round |
//! | bad NIC (latency) | the network takes long between a host and all its peers, compared with the rest of its rack or with earlier rounds |
//! | slow network | the network takes longer between nearly all pairs than in earlier rounds |
//! | dead host | a host does not probe; said once, however many others could not reach it |
//! | unreachable host | some hosts could not ask another one, or one reaches none of its peers |
//! | bad pair | two hosts lose probes between them, and no third one tells which of them it is |
//!
//! ```
//! use std::time::Duration;
//! use roce::ping::mesh::{Cell, Fault, Mesh, Thresholds, diagnose};
//! use roce::ping::{Ending, PathStats};
//!
//! let mut mesh = Mesh::new(["a", "b", "c"].map(String::from));
//! for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
//!     let mut stats = PathStats { answered: 80, ..PathStats::default() };
//!     // Host c loses a fifth of all probes, to it and from it.
//!     if from == 2 || to == 2 {
//!         stats.lost = 20;
//!     }
//!     mesh.cells.push(Cell { from, to, source_port: 0xc001, stats });
//! }
//! let findings = diagnose(&mesh, &Thresholds::default());
//! assert_eq!(findings.len(), 1);
//! assert_eq!((findings[0].fault, &findings[0].hosts[..]), (Fault::Nic, &[2][..]));
//! println!("{}", findings[0].describe(&mesh));
//! ```

mod distance;
mod latency;
mod loss;
mod silence;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::sample::PathStats;

/// Statistics of the probes from one host to another on one path.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The prober: an index of the hosts.
    pub from: usize,
    /// The responder: an index of the hosts.
    pub to: usize,
    /// The UDP source port of the probes and of their answers, which tells paths apart.
    pub source_port: u16,
    /// Statistics of the probes.
    pub stats: PathStats,
}

impl Cell {
    fn has(&self, host: usize) -> bool {
        self.from == host || self.to == host
    }

    /// The other end.
    fn peer_of(&self, host: usize) -> usize {
        if self.from == host { self.to } else { self.from }
    }

    /// Returns its hosts, without their order.
    fn pair(&self) -> (usize, usize) {
        (self.from.min(self.to), self.from.max(self.to))
    }
}

/// Statistics of the probes between hosts.
#[derive(Clone, Debug, Default)]
pub struct Mesh {
    /// The names of the hosts.
    pub hosts: Vec<String>,
    /// The probes, by pair and path.
    pub cells: Vec<Cell>,
    /// Hosts that did not probe, with the reason.
    pub silent: Vec<(usize, String)>,
    /// Hosts that answered and refused to probe, with the reason.
    pub refused: Vec<(usize, String)>,
    /// Probes that could not even begin.
    pub failed: Vec<Failed>,
    /// Racks of the hosts, where they are known: hosts of one rack are as far from everything.
    pub racks: Vec<Option<String>>,
    /// Median network times of pairs in earlier rounds, the smaller index first.
    pub usual: BTreeMap<(usize, usize), Duration>,
}

/// A pair that could not be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The prober: an index of the hosts.
    pub from: usize,
    /// The host that it could not ask for a responder.
    pub to: usize,
    /// Reason, in words.
    pub reason: String,
}

impl Mesh {
    /// Hosts that have not probed each other yet.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        Self { hosts: hosts.into_iter().collect(), ..Self::default() }
    }

    /// Returns the rack of a host, if it is known.
    fn rack(&self, host: usize) -> Option<&str> {
        self.racks.get(host)?.as_deref()
    }

    /// Returns the median network times of the pairs that have enough of them, for later rounds to
    /// be compared with.
    pub fn times_of_pairs(&self, thresholds: &Thresholds) -> BTreeMap<(usize, usize), Duration> {
        distance::times_of_pairs(self, thresholds)
    }

    /// Returns the name of a host.
    pub fn name(&self, host: usize) -> &str {
        self.hosts.get(host).map_or("?", String::as_str)
    }

    /// Returns what became of all probes from one host to another.
    pub fn pair(&self, from: usize, to: usize) -> PathStats {
        let mut all = PathStats::default();
        let cells = self.cells.iter().filter(|cell| (cell.from, cell.to) == (from, to));
        cells.for_each(|cell| all.merge(&cell.stats));
        all
    }
}

/// Thresholds of findings. The defaults suit a data center.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Thresholds {
    /// Share of lost probes that is ordinary.
    pub ordinary_loss: f64,
    /// Share of lost probes below which a host is not called bad.
    pub loss: f64,
    /// Maximum additional network time, compared with the best path of the same pair.
    pub slow_path: Duration,
    /// Maximum additional time of a host, compared with others.
    pub slow_host: Duration,
    /// Maximum factor by which a path or a host takes longer than others.
    pub slow_factor: f64,
    /// Number of times that a median needs to be looked at.
    pub samples: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            ordinary_loss: 0.001,
            loss: 0.01,
            slow_path: Duration::from_micros(50),
            slow_host: Duration::from_micros(200),
            slow_factor: 3.0,
            samples: 5,
        }
    }
}

/// Faulty part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The NIC of a host, or its link to the network.
    Nic,
    /// A path among several between the same hosts: a link or a switch.
    Path,
    /// A host that takes long.
    Host,
    /// A host whose programs do not answer probes, or do not see the answers to their own.
    Unresponsive,
    /// Two hosts, or what is between them.
    Pair,
    /// The network between nearly all hosts.
    Network,
    /// A host that does not take part.
    Dead,
    /// A host that refuses to take part: it wants another token, or has too much to do.
    Refusing,
    /// A host that others cannot reach, or that reaches no others.
    Unreachable,
}

impl Fault {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nic => "bad NIC",
            Self::Path => "bad path",
            Self::Host => "slow host",
            Self::Unresponsive => "unresponsive host",
            Self::Pair => "bad pair",
            Self::Network => "slow network",
            Self::Dead => "dead host",
            Self::Refusing => "refusing host",
            Self::Unreachable => "unreachable host",
        }
    }
}

/// Symptom of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symptom {
    /// Probes are lost.
    Loss,
    /// High latency.
    Latency,
    /// No answer.
    Silence,
}

impl Symptom {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Latency => "latency",
            Self::Silence => "silence",
        }
    }
}

/// A fault with its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Faulty part.
    pub fault: Fault,
    /// Symptom.
    pub symptom: Symptom,
    /// The hosts it is about: the one that is bad, both of a pair, or, of bad paths, those that all
    /// of them lead to or come from. None if bad paths have no hosts in common.
    pub hosts: Vec<usize>,
    /// The bad paths, as indices of the cells.
    pub paths: Vec<usize>,
    /// Evidence, in words.
    pub evidence: String,
}

impl Finding {
    /// Returns it in words: what is bad, and the evidence.
    pub fn describe(&self, mesh: &Mesh) -> String {
        format!("{}: {}", self.title(mesh), self.evidence)
    }

    /// Returns what is bad, in words.
    pub fn title(&self, mesh: &Mesh) -> String {
        let names: Vec<&str> = self.hosts.iter().map(|&host| mesh.name(host)).collect();
        let subject = match (self.fault, names.len()) {
            (Fault::Path, count) => match pairs_of(mesh, &self.paths) {
                Some(pairs) => format!(" between {pairs}"),
                None if count == 0 => " with no hosts in common".to_owned(),
                None => format!(" at {}", names.join(", ")),
            },
            (_, 0) => String::new(),
            _ => format!(" {}", names.join(", ")),
        };
        format!("{}{subject}", self.fault.name())
    }
}

/// Compares the hosts and the paths of a mesh, and names what is bad, worst first.
pub fn diagnose(mesh: &Mesh, thresholds: &Thresholds) -> Vec<Finding> {
    let mut findings = silence::find(mesh);
    findings.extend(loss::find(mesh, thresholds));
    findings.extend(latency::find_slow_hosts(mesh, thresholds));
    findings.extend(distance::find(mesh, thresholds));
    findings.extend(latency::find_slow_paths(mesh, thresholds));
    findings
}

/// The hosts of bad paths: both of a single pair, or those that all of them have in common.
fn path_hosts(mesh: &Mesh, cells: &[usize]) -> Vec<usize> {
    let pairs: BTreeSet<(usize, usize)> =
        cells.iter().filter_map(|&at| mesh.cells.get(at)).map(Cell::pair).collect();
    match pairs.first() {
        Some(&(a, b)) if pairs.len() == 1 => vec![a, b],
        _ => common_hosts(mesh, cells),
    }
}

/// The pairs of cells in words, if there are few.
fn pairs_of(mesh: &Mesh, cells: &[usize]) -> Option<String> {
    let pairs: BTreeSet<(usize, usize)> =
        cells.iter().filter_map(|&at| mesh.cells.get(at)).map(Cell::pair).collect();
    let words = pairs.iter().map(|&(a, b)| format!("{} and {}", mesh.name(a), mesh.name(b)));
    (1..=PAIRS_SHOWN).contains(&pairs.len()).then(|| words.collect::<Vec<_>>().join(", "))
}

/// Maximum number of pairs that a finding names.
const PAIRS_SHOWN: usize = 3;

/// A count and what is counted; the plural is that of the first word.
fn counted(number: usize, noun: &str) -> String {
    match (number, noun.split_once(' ')) {
        (1, _) => format!("1 {noun}"),
        (_, Some((first, rest))) => format!("{number} {first}s {rest}"),
        (_, None) => format!("{number} {noun}s"),
    }
}

/// The fewest hosts, found greedily, that all these cells but one in twenty lead to or come from;
/// none if it takes more than half of all hosts.
fn common_hosts(mesh: &Mesh, cells: &[usize]) -> Vec<usize> {
    let mut open: Vec<&Cell> = cells.iter().filter_map(|&at| mesh.cells.get(at)).collect();
    let enough = open.len() / 20;
    let mut common = Vec::new();
    while open.len() > enough {
        let mut degree = vec![0_usize; mesh.hosts.len()];
        for host in open.iter().flat_map(|cell| [cell.from, cell.to]) {
            degree.get_mut(host).into_iter().for_each(|count| *count += 1);
        }
        // Of equals the first.
        let best = degree.iter().enumerate().rev().max_by_key(|(_, count)| **count);
        let Some((host, _)) = best else { break };
        common.push(host);
        open.retain(|cell| !cell.has(host));
        if common.len() * 2 > mesh.hosts.len() {
            return Vec::new();
        }
    }
    common.sort_unstable();
    common
}

/// The source ports of cells, in words: at most four.
fn ports_of(mesh: &Mesh, cells: &[usize]) -> String {
    let ports = cells.iter().filter_map(|&at| mesh.cells.get(at)).map(|cell| cell.source_port);
    let ports: BTreeSet<u16> = ports.collect();
    let shown: Vec<String> = ports.iter().take(4).map(u16::to_string).collect();
    let more = if ports.len() > shown.len() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A cell in words.
fn path_of(mesh: &Mesh, cell: &Cell) -> String {
    format!("{} to {} port {}", mesh.name(cell.from), mesh.name(cell.to), cell.source_port)
}

/// A share in words.
fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.001 {
        return "less than 0.1 %".to_owned();
    }
    format!("{:.1} %", share * 100.0)
}

/// A time in words.
pub(crate) fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}
