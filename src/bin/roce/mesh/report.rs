//! Report of a mesh, as text and as JSON.

use roce::ping::PathStats;
use roce::ping::mesh::{Cell, Failed, Fault, Finding, Mesh, Symptom, Thresholds, diagnose};
use serde_json::{Value, json};

use crate::output::counted;
use crate::ping::show::{share, stats_to_json};

/// Report of a mesh.
pub(crate) struct Report<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) findings: Vec<Finding>,
    pub(crate) rounds: u64,
}

impl<'a> Report<'a> {
    /// Concludes from the results of `rounds` rounds, and from the differences of the last one from
    /// earlier ones.
    pub(crate) fn new(mesh: &'a Mesh, latest: &[Finding], rounds: u64) -> Self {
        let mut findings = diagnose(mesh, &Thresholds::default());
        let key = |it: &Finding| (it.fault, it.symptom, it.hosts.clone());
        for finding in latest {
            let is_of_rounds = matches!(finding.fault, Fault::Nic | Fault::Network)
                && finding.symptom == Symptom::Latency;
            if is_of_rounds && !findings.iter().any(|it| key(it) == key(finding)) {
                findings.push(finding.clone());
            }
        }
        Self { mesh, findings, rounds }
    }

    /// Whether all hosts probed, were answered, and nothing is wrong.
    pub(crate) fn is_good(&self) -> bool {
        let answered = self.mesh.cells.iter().any(|cell| cell.stats.answered > 0);
        self.findings.is_empty() && answered
    }

    /// Returns the statistics of all probes.
    pub(crate) fn all(&self) -> PathStats {
        self.sum(|_| true)
    }

    /// Returns the statistics of the probes of some cells.
    pub(crate) fn sum(&self, of: impl Fn(&Cell) -> bool) -> PathStats {
        let mut all = PathStats::default();
        self.mesh.cells.iter().filter(|cell| of(cell)).for_each(|it| all.merge(&it.stats));
        all
    }

    /// The round in a line.
    pub(crate) fn headline(&self) -> String {
        let (all, hosts) = (self.all(), self.mesh.hosts.len());
        let findings = match self.findings.len() {
            0 if all.answered > 0 => "no findings".to_owned(),
            0 => "nothing is known of the network".to_owned(),
            count if all.answered > 0 => counted(count as u64, "finding"),
            count => {
                format!("nothing is known of the network, {}", counted(count as u64, "finding"))
            }
        };
        let silent = self.mesh.silent.len();
        let silent = if silent > 0 { format!(", {silent} silent") } else { String::new() };
        let refused = self.mesh.refused.len();
        let refused = if refused > 0 { format!(", {refused} refusing") } else { String::new() };
        let probes = counted(all.sent(), "probe");
        let lost = if all.sent() > 0 { format!(", {} lost", share(&all)) } else { String::new() };
        format!("{hosts} hosts{silent}{refused}, {probes}{lost}, {findings}")
    }

    /// Returns the report as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let mesh = self.mesh;
        let cells = mesh.cells.iter().map(|cell| {
            let mut object = stats_to_json(&cell.stats);
            object["from"] = json!(mesh.name(cell.from));
            object["to"] = json!(mesh.name(cell.to));
            object["source_port"] = json!(cell.source_port);
            object
        });
        let findings = self.findings.iter().map(|finding| {
            let hosts = finding.hosts.iter().map(|&host| mesh.name(host));
            let paths = finding.paths.iter().filter_map(|&at| {
                let Cell { from, to, source_port, .. } = mesh.cells.get(at)?;
                let (from, to) = (mesh.name(*from), mesh.name(*to));
                Some(json!({ "from": from, "to": to, "source_port": source_port }))
            });
            json!({
                "fault": finding.fault.name(),
                "symptom": finding.symptom.name(),
                "hosts": hosts.collect::<Vec<_>>(),
                "paths": paths.collect::<Vec<_>>(),
                "evidence": finding.evidence,
            })
        });
        let reasons = |hosts: &[(usize, String)]| -> Vec<Value> {
            let reason = |(host, why): &_| json!({ "host": mesh.name(*host), "reason": why });
            hosts.iter().map(reason).collect()
        };
        let failed = self.mesh.failed.iter().map(|Failed { from, to, reason }| {
            json!({ "from": mesh.name(*from), "to": mesh.name(*to), "reason": reason })
        });
        json!({
            "hosts": mesh.hosts,
            "rounds": self.rounds,
            "findings": findings.collect::<Vec<_>>(),
            "silent": reasons(&mesh.silent),
            "refused": reasons(&mesh.refused),
            "failed": failed.collect::<Vec<_>>(),
            "cells": cells.collect::<Vec<_>>(),
        })
    }
}
