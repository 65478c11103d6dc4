//! The overview of a page, over all connections: groups that stand out, and the matrix of hosts.

use std::collections::HashMap;

use serde::Serialize;

use super::recorder::Members;
use crate::analysis::groups::{HOSTS_MAX, PairFacts, worst_pairs};
use crate::analysis::{
    Distribution, FlowNumber, Group, HostMatrix, KindSummary, Percentiles, Report,
};
use crate::decode::address_text;
use crate::observe::end::End;
use crate::wire::Gid;

/// Groups of findings, in words.
#[derive(Serialize)]
pub(super) struct GroupsData {
    outstanding: Vec<GroupData>,
    bursts: Vec<String>,
    kinds: Vec<String>,
}

#[derive(Serialize)]
struct GroupData {
    subject: String,
    severity: u8,
    text: String,
    advice: &'static str,
    examples: Vec<FlowNumber>,
    /// Search text that selects its connections in the table.
    search: String,
}

impl GroupsData {
    pub(super) fn new(report: &Report) -> Self {
        let groups = &report.groups;
        Self {
            outstanding: groups.outstanding.iter().map(group).collect(),
            bursts: groups.bursts.iter().map(|one| one.text(report.capture.first_time)).collect(),
            kinds: groups.kinds.iter().map(KindSummary::text).collect(),
        }
    }
}

fn group(group: &Group) -> GroupData {
    use crate::analysis::Subject;
    let search = match group.subject {
        Subject::Host { host } => format!("{} ", address_text(host)),
        Subject::Path { hosts: [a, b] } | Subject::Direction { hosts: [a, b] } => {
            format!("{} & {} ", address_text(a), address_text(b))
        }
        Subject::Dscp { dscp } => format!("dscp {dscp}"),
    };
    GroupData {
        subject: group.subject.text(),
        severity: group.shares.iter().map(|share| share.kind.severity()).min().unwrap_or(2),
        text: group.text(),
        advice: group.subject.advice(),
        examples: group.examples.clone(),
        search,
    }
}

/// The matrix of hosts: addresses, the number of other hosts, and cells of row, column and counts.
#[derive(Serialize)]
pub(super) struct MatrixData<'a> {
    hosts: Vec<String>,
    other_hosts: u64,
    cells: &'a [crate::analysis::MatrixCell],
}

impl<'a> MatrixData<'a> {
    pub(super) fn new(matrix: &'a HostMatrix) -> Self {
        Self {
            hosts: matrix.hosts.iter().map(|host| address_text(*host)).collect(),
            other_hosts: matrix.other_hosts,
            cells: &matrix.cells,
        }
    }
}

/// The pairs of hosts with the most trouble: latency of messages and bytes in flight.
#[derive(Serialize)]
pub(super) struct PairsData {
    pairs: Vec<PairData>,
    /// Pairs that are not among them.
    others: usize,
}

#[derive(Serialize)]
struct PairData {
    hosts: [String; 2],
    connections: u64,
    affected: u64,
    latency: Percentiles,
    inflight: Percentiles,
}

impl PairsData {
    pub(super) fn new(report: &Report, recorded: &[Members<'_>]) -> Self {
        let (worst, all) = worst_pairs(&report.connections, &report.findings, HOSTS_MAX);
        let mut inflight: HashMap<[Gid; 2], Distribution> =
            worst.iter().map(|(hosts, _)| (*hosts, Distribution::default())).collect();
        for (connection, members) in report.connections.iter().zip(recorded) {
            let [a, b] = connection.ends.each_ref().map(|end| end.address);
            for (requester, hosts) in End::BOTH.into_iter().zip(&[[a, b], [b, a]]) {
                if let Some(sum) = inflight.get_mut(hosts) {
                    members.inflight(requester).for_each(|sent| sum.merge(sent));
                }
            }
        }
        let others = all - worst.len();
        let pair = |(hosts, facts): ([Gid; 2], PairFacts)| PairData {
            hosts: hosts.map(address_text),
            connections: facts.connections,
            affected: facts.affected,
            latency: facts.latency.percentiles(),
            inflight: inflight
                .get(&hosts)
                .map_or_else(Percentiles::default, |sum| sum.percentiles()),
        };
        Self { pairs: worst.into_iter().map(pair).collect(), others }
    }
}
