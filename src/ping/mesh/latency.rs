//! Latency: hosts that take long, and paths that are slower than others of the same pair.
//!
//! How far two hosts are from each other is not known, so that the times of a path are compared
//! with those of the other paths of the same pair alone. What a host takes itself does not depend
//! on the distance: it is compared with what other hosts take.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    Cell, Fault, Finding, Mesh, Symptom, Thresholds, counted, micros, path_hosts, path_of, ports_of,
};
use crate::histogram::Histogram;

/// Task of a host in a probe.
struct Duty {
    name: &'static str,
    /// The times of a cell.
    times: fn(&Cell) -> &Histogram,
    /// The host that took them.
    host: fn(&Cell) -> usize,
}

const DUTIES: [Duty; 2] = [
    Duty { name: "to answer", times: |cell| &cell.stats.responder, host: |cell| cell.to },
    Duty {
        name: "to send probes and to see answers",
        times: |cell| &cell.stats.prober,
        host: |cell| cell.from,
    },
];

/// Names hosts that take much longer than others.
pub(super) fn find_slow_hosts(mesh: &Mesh, thresholds: &Thresholds) -> Vec<Finding> {
    let mut evidence: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for duty in &DUTIES {
        let medians = medians(mesh, duty, thresholds);
        for (&host, &median) in &medians {
            let others = medians.iter().filter(|(other, _)| **other != host);
            let Some(usual) = median_of(others.map(|(_, time)| *time)) else { continue };
            if !is_slow(median, usual, thresholds.slow_host, thresholds) {
                continue;
            }
            let cells = mesh.cells.iter().filter(|cell| (duty.host)(cell) == host);
            let cells: Vec<&Cell> = cells.filter(|it| (duty.times)(it).count() > 0).collect();
            let slow = cells.iter().filter(|cell| {
                let own = (duty.times)(cell).median();
                own.is_some_and(|own| is_slow(own, usual, thresholds.slow_host, thresholds))
            });
            let peers = |cells: &mut dyn Iterator<Item = &&Cell>| {
                cells.map(|cell| cell.peer_of(host)).collect::<BTreeSet<_>>().len()
            };
            let (slow, all) = (peers(&mut slow.into_iter()), peers(&mut cells.iter()));
            evidence.entry(host).or_default().push(format!(
                "takes {} {}, other hosts {} (medians; {slow} of {all} peers see it)",
                micros(median),
                duty.name,
                micros(usual)
            ));
        }
    }
    let findings = evidence
        .into_iter()
        .map(|(host, evidence)| finding(Fault::Host, vec![host], Vec::new(), evidence.join("; ")));
    findings.collect()
}

/// The median of each host that has enough times.
fn medians(mesh: &Mesh, duty: &Duty, thresholds: &Thresholds) -> BTreeMap<usize, Duration> {
    let mut all: BTreeMap<usize, Histogram> = BTreeMap::new();
    for cell in &mesh.cells {
        all.entry((duty.host)(cell)).or_default().merge((duty.times)(cell));
    }
    let enough = all.into_iter().filter(|(_, times)| times.count() >= thresholds.samples);
    enough.filter_map(|(host, times)| Some((host, times.median()?))).collect()
}

pub(super) fn median_of(times: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

pub(super) fn is_slow(
    time: Duration,
    usual: Duration,
    more: Duration,
    thresholds: &Thresholds,
) -> bool {
    time > usual.saturating_add(more)
        && time.as_secs_f64() > usual.as_secs_f64() * thresholds.slow_factor
}

/// Names paths that are slower than others of the same pair.
pub(super) fn find_slow_paths(mesh: &Mesh, thresholds: &Thresholds) -> Vec<Finding> {
    let usable = |cell: &Cell| cell.stats.network.count() >= thresholds.samples;
    // The fastest path of each pair.
    let mut best: BTreeMap<(usize, usize), Duration> = BTreeMap::new();
    for cell in mesh.cells.iter().filter(|cell| usable(cell)) {
        let Some(median) = cell.stats.network.median() else { continue };
        best.entry(cell.pair()).and_modify(|it| *it = median.min(*it)).or_insert(median);
    }
    let is_bad = |cell: &Cell| {
        // Nearly all times of a slow path are longer than what is usual on the other: a busy host
        // slows only some.
        let (low, best) = (cell.stats.network.percentile(10.0), best.get(&cell.pair()));
        let Some((low, best)) = low.zip(best.copied()) else { return false };
        is_slow(low, best, thresholds.slow_path, thresholds)
    };
    let cells = mesh.cells.iter().enumerate().filter(|(_, cell)| usable(cell));
    let bad: Vec<usize> = cells.filter(|(_, cell)| is_bad(cell)).map(|(at, _)| at).collect();
    let of = |at: &usize| mesh.cells.get(*at);
    let excess = |cell: &Cell| {
        let usual = best.get(&cell.pair()).copied().unwrap_or_default();
        cell.stats.network.median().unwrap_or_default().saturating_sub(usual)
    };
    let Some(worst) = bad.iter().filter_map(of).max_by_key(|cell| excess(cell)) else {
        return Vec::new();
    };
    let pairs: BTreeSet<_> = bad.iter().filter_map(of).map(Cell::pair).collect();
    let typical = median_of(bad.iter().filter_map(of).map(excess)).unwrap_or_default();
    let evidence = format!(
        "the network takes {} longer on {} of {} paths between {} than on the best path of the same pair \
         (median; source ports {}); worst is {} with {} longer",
        micros(typical),
        bad.len(),
        mesh.cells.iter().filter(|cell| pairs.contains(&cell.pair())).count(),
        counted(pairs.len(), "pair of hosts"),
        ports_of(mesh, &bad),
        path_of(mesh, worst),
        micros(excess(worst))
    );
    vec![finding(Fault::Path, path_hosts(mesh, &bad), bad, evidence)]
}

fn finding(fault: Fault, hosts: Vec<usize>, paths: Vec<usize>, evidence: String) -> Finding {
    Finding { fault, symptom: Symptom::Latency, hosts, paths, evidence }
}
