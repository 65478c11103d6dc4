//! Finds hosts that the network takes long to reach from all others.
//!
//! A host that is far away is not slow. So the times of a host are compared with those of the other
//! hosts of its rack, which are as far from everything as it is, and the times of a pair with those
//! of earlier rounds.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::latency::{is_slow, median_of};
use super::{Fault, Finding, Mesh, Symptom, Thresholds, counted, micros};
use crate::histogram::Histogram;

/// Share of the peers of a host, in percent, that see it slow if the host is the cause.
const PEERS_PERCENT: usize = 80;

/// Fewest other hosts of a rack to compare with.
const RACK_MIN: usize = 2;

/// Returns the median network time of each pair of hosts that has enough samples. Both directions
/// count as one pair.
pub(super) fn times_of_pairs(
    mesh: &Mesh,
    thresholds: &Thresholds,
) -> BTreeMap<(usize, usize), Duration> {
    let mut all: BTreeMap<(usize, usize), Histogram> = BTreeMap::new();
    for cell in &mesh.cells {
        all.entry(cell.pair()).or_default().merge(&cell.stats.network);
    }
    let enough = all.into_iter().filter(|(_, times)| times.count() >= thresholds.samples);
    enough.filter_map(|(pair, times)| Some((pair, times.median()?))).collect()
}

/// Finds hosts that are slow in all directions.
pub(super) fn find(mesh: &Mesh, thresholds: &Thresholds) -> Vec<Finding> {
    let times = times_of_pairs(mesh, thresholds);
    let mut findings = compare_with_racks(mesh, &times, thresholds);
    let known: BTreeSet<usize> =
        findings.iter().flat_map(|it: &Finding| it.hosts.clone()).collect();
    findings.extend(compare_with_earlier_rounds(mesh, &times, thresholds, &known));
    findings
}

/// Returns the times of a host with each of its peers.
fn times_of(
    times: &BTreeMap<(usize, usize), Duration>,
    host: usize,
) -> impl Iterator<Item = Duration> {
    times.iter().filter(move |((a, b), _)| *a == host || *b == host).map(|(_, time)| *time)
}

/// Returns the lower median: a single slow peer among two is no reason to call a host slow.
fn lower_median(times: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? / 2).copied()
}

fn compare_with_racks(
    mesh: &Mesh,
    times: &BTreeMap<(usize, usize), Duration>,
    thresholds: &Thresholds,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in 0..mesh.hosts.len() {
        let Some(rack) = mesh.rack(host) else { continue };
        let mates = (0..mesh.hosts.len()).filter(|mate| {
            *mate != host && mesh.rack(*mate) == Some(rack) && times_of(times, *mate).count() >= 2
        });
        let mates: Vec<Duration> =
            mates.filter_map(|mate| lower_median(times_of(times, mate))).collect();
        let (Some(own), Some(usual)) =
            (lower_median(times_of(times, host)), median_of(mates.iter().copied()))
        else {
            continue;
        };
        let peers = times_of(times, host).count();
        let is_long = |time: &Duration| is_slow(*time, usual, thresholds.slow_path, thresholds);
        let slow = times_of(times, host).filter(is_long).count();
        let all_around = peers >= 2 && slow * 100 >= peers * PEERS_PERCENT;
        if mates.len() < RACK_MIN || !is_long(&own) || !all_around {
            continue;
        }
        let evidence = format!(
            "the network takes {} to and from it, and {} to and from the rest of its rack, {rack} (medians; {slow} of \
             {} see it)",
            micros(own),
            micros(usual),
            counted(peers, "peer")
        );
        findings.push(finding(vec![host], evidence));
    }
    findings
}

/// Finds hosts most of whose pairs have become slow, worst first, apart from those in `known`. If
/// most pairs of the mesh have become slow, the finding is the network.
fn compare_with_earlier_rounds(
    mesh: &Mesh,
    times: &BTreeMap<(usize, usize), Duration>,
    thresholds: &Thresholds,
    known: &BTreeSet<usize>,
) -> Vec<Finding> {
    // Pairs that can be compared: how long they take now and took before.
    let mut open: BTreeMap<(usize, usize), (Duration, Duration)> = times
        .iter()
        .filter_map(|(pair, now)| Some((*pair, (*now, *mesh.usual.get(pair)?))))
        .filter(|((a, b), _)| !known.contains(a) && !known.contains(b))
        .collect();
    let is_long = |(now, usual): &(Duration, Duration)| {
        is_slow(*now, *usual, thresholds.slow_path, thresholds)
    };
    let slow_pairs = open.values().filter(|pair| is_long(pair)).count();
    let excess = |all: &mut dyn Iterator<Item = (Duration, Duration)>| {
        micros(median_of(all.map(|(now, usual)| now.saturating_sub(usual))).unwrap_or_default())
    };
    if open.len() >= 3 && slow_pairs * 100 >= open.len() * PEERS_PERCENT {
        let more = excess(&mut open.values().copied().filter(is_long));
        let evidence = format!(
            "the network takes {more} longer than in earlier rounds (median), between {slow_pairs} of {}",
            counted(open.len(), "pair of hosts")
        );
        return vec![Finding { fault: Fault::Network, ..finding(Vec::new(), evidence) }];
    }
    let mut findings = Vec::new();
    loop {
        let of = |host: usize| {
            let own = open.iter().filter(move |((a, b), _)| *a == host || *b == host);
            own.map(|(_, times)| *times).collect::<Vec<_>>()
        };
        let worst = (0..mesh.hosts.len())
            .map(|host| (host, of(host)))
            .map(|(host, own)| (own.iter().filter(|it| is_long(it)).count(), own, host))
            .filter(|(slow, own, _)| own.len() >= 2 && slow * 100 >= own.len() * PEERS_PERCENT)
            .max_by_key(|(slow, ..)| *slow);
        let Some((slow, own, host)) = worst else { return findings };
        let evidence = format!(
            "the network takes {} longer to and from it than in earlier rounds (median; {slow} of {} see it)",
            excess(&mut own.iter().copied()),
            counted(own.len(), "peer")
        );
        findings.push(finding(vec![host], evidence));
        open.retain(|(a, b), _| *a != host && *b != host);
    }
}

fn finding(hosts: Vec<usize>, evidence: String) -> Finding {
    let (fault, symptom) = (Fault::Nic, Symptom::Latency);
    Finding { fault, symptom, hosts, paths: Vec::new(), evidence }
}
