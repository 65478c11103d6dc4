//! Hosts that do not take part: dead ones, those that refuse, and those that others cannot reach.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fault, Finding, Mesh, Symptom, counted};

/// Names each host that is dead, refuses or is unreachable, once, however many others could not
/// reach it.
pub(super) fn find(mesh: &Mesh) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut failed: BTreeMap<(usize, usize), &str> =
        mesh.failed.iter().map(|it| ((it.from, it.to), it.reason.as_str())).collect();
    let silent = mesh.silent.iter().map(|it| (Fault::Dead, "did not probe", it));
    let refused = mesh.refused.iter().map(|it| (Fault::Refusing, "refused to probe", it));
    for (fault, verb, (host, reason)) in silent.chain(refused) {
        let evidence = format!("it {verb}: {reason}{}", seen_by_others(mesh, *host));
        findings.push(finding(fault, *host, evidence));
        failed.retain(|(_, to), _| to != host);
    }
    // A host that reaches none of several peers is to blame itself.
    for host in 0..mesh.hosts.len() {
        let own: Vec<&str> =
            failed.iter().filter(|((from, _), _)| *from == host).map(|(_, why)| *why).collect();
        let reached = mesh.cells.iter().any(|cell| cell.from == host);
        if own.len() >= 2 && !reached {
            let (count, why) = (own.len(), own.first().copied().unwrap_or_default());
            let evidence = format!("it reaches none of its {count} peers: {why}");
            findings.push(finding(Fault::Unreachable, host, evidence));
            failed.retain(|(from, _), _| *from != host);
        }
    }
    let targets: BTreeSet<usize> = failed.keys().map(|(_, to)| *to).collect();
    for host in targets {
        let why = failed.iter().find(|((_, to), _)| *to == host).map_or("", |(_, why)| *why);
        let from: Vec<&str> =
            failed.keys().filter(|(_, to)| *to == host).map(|(from, _)| mesh.name(*from)).collect();
        let named = match from[..] {
            [_] | [_, _] => from.join(" and "),
            _ => counted(from.len(), "host"),
        };
        let all = tried_by(mesh, host).len();
        let evidence = format!("{named}, of {all} that tried, could not probe it: {why}");
        findings.push(finding(Fault::Unreachable, host, evidence));
    }
    findings
}

/// Hosts that probed another or tried to.
fn tried_by(mesh: &Mesh, host: usize) -> BTreeSet<usize> {
    let probed = mesh.cells.iter().filter(|cell| cell.to == host).map(|cell| cell.from);
    probed.chain(mesh.failed.iter().filter(|it| it.to == host).map(|it| it.from)).collect()
}

/// Describes what other hosts saw of a host that did not probe.
fn seen_by_others(mesh: &Mesh, host: usize) -> String {
    let all = tried_by(mesh, host).len();
    let failed: BTreeSet<usize> =
        mesh.failed.iter().filter(|it| it.to == host).map(|it| it.from).collect();
    match (failed.len(), all) {
        (_, 0) => String::new(),
        (0, _) => "; it answers the probes of other hosts".to_owned(),
        (some, all) => format!("; {some} of {} could not probe it either", counted(all, "host")),
    }
}

fn finding(fault: Fault, host: usize, evidence: String) -> Finding {
    let symptom = Symptom::Silence;
    Finding { fault, symptom, hosts: vec![host], paths: Vec::new(), evidence }
}
