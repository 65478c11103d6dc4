//! Findings by what they share: a host, a path, a direction of a path, a DSCP, a time.
//!
//! A thousand findings say little one by one. Each connection either has findings of a kind or has
//! none. A host (or path, or DSCP) is named if its share of connections with them stands out from
//! that of all others, by the rule of [`rule`]. The one that explains most is named first, and its
//! connections are set aside before the next is looked for, so that the peers of a bad host are not
//! named for its sake.

mod bursts;
mod matrix;
mod rule;
mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use self::rule::Split;
use super::connection::Connection;
use super::finding::{Finding, FindingKind, KindSet};
use super::report::CaptureFacts;
use super::{FlowNumber, serialize};
use crate::wire::Gid;

pub use self::bursts::Burst;
pub(crate) use self::matrix::{HOSTS_MAX, PairFacts, worst_pairs};
pub use self::matrix::{HostMatrix, MatrixCell};

/// Maximum number of groups that are named for one kind of finding.
const GROUPS_PER_KIND_MAX: usize = 8;

/// Maximum number of connections that a group names as examples.
const EXAMPLES_MAX: usize = 4;

/// Findings by what they share.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Groups {
    /// Hosts, paths and DSCPs whose connections have findings more often than all others, the worst
    /// first.
    pub outstanding: Vec<Group>,
    /// Times at which findings begin more often than traffic explains.
    pub bursts: Vec<Burst>,
    /// Connections with findings of each kind, the worst kind first.
    pub kinds: Vec<KindSummary>,
}

/// A host, a path or a DSCP that stands out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Group {
    /// The property that the connections share.
    #[serde(flatten)]
    pub subject: Subject,
    /// The kinds of findings by which it stands out, the worst first.
    pub shares: Vec<KindShare>,
    /// Some of the connections that are affected.
    pub examples: Vec<FlowNumber>,
}

/// A property that connections share. The first of two that explain the same findings is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "subject", rename_all = "snake_case")]
pub enum Subject {
    /// Two hosts, in both directions.
    Path {
        /// The hosts, the lower address first.
        #[serde(serialize_with = "serialize::addresses")]
        hosts: [Gid; 2],
    },
    /// Requests of one host to another.
    Direction {
        /// The requester and the responder.
        #[serde(serialize_with = "serialize::addresses")]
        hosts: [Gid; 2],
    },
    /// All connections of a host.
    Host {
        /// The host.
        #[serde(serialize_with = "serialize::address")]
        host: Gid,
    },
    /// All connections whose requests have this DSCP.
    Dscp {
        /// The code point.
        dscp: u8,
    },
}

/// Number of connections of a group that have findings of a kind, and of all other connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindShare {
    /// The kind.
    pub kind: FindingKind,
    /// Connections of the group that have findings of this kind.
    pub affected: u64,
    /// Connections of the group.
    pub connections: u64,
    /// Connections with such findings outside of all groups that stand out by this kind.
    pub rest_affected: u64,
    /// Connections outside of these groups.
    pub rest_connections: u64,
}

/// The connections with findings of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindSummary {
    /// The kind.
    pub kind: FindingKind,
    /// Connections with findings of this kind, attempts to connect included.
    pub affected: u64,
    /// All connections and attempts.
    pub connections: u64,
    /// Hosts of affected connections.
    pub hosts: u64,
    /// Affected connections that no group explains.
    pub unexplained: u64,
}

/// A connection, or an attempt to connect, as groups see it.
struct Unit {
    flow: Option<FlowNumber>,
    hosts: [Gid; 2],
    /// Whether each end requests something.
    requests: [bool; 2],
    dscp: Option<u8>,
    /// The kinds of findings about the requests of each end.
    kinds: [KindSet; 2],
}

impl Unit {
    fn of_connection(connection: &Connection) -> Self {
        let [a, b] = &connection.ends;
        let requests = connection.directions.each_ref().map(|one| one.request_packets > 0);
        let requester = if requests[0] || !requests[1] { a } else { b };
        Self {
            flow: Some(connection.flow),
            hosts: [a.address, b.address],
            requests,
            dscp: requester.dscp,
            kinds: connection.findings,
        }
    }

    /// An attempt to connect that became no connection.
    fn of_attempt(finding: &Finding) -> Option<Self> {
        let hosts = finding.hosts.filter(|_| finding.flow.is_none())?;
        let kinds = [KindSet::of(finding.kind), KindSet::default()];
        Some(Self { flow: None, hosts, requests: [true, false], dscp: None, kinds })
    }

    fn has(&self, kind: FindingKind) -> bool {
        self.kinds.iter().any(|kinds| kinds.contains(kind))
    }

    /// Groups that the connection belongs to, and whether it is affected there.
    fn subjects(&self, kind: FindingKind) -> impl Iterator<Item = (Subject, bool)> {
        let [a, b] = self.hosts;
        let is_affected = self.has(kind);
        let [of_a, of_b] = self.kinds.map(|kinds| kinds.contains(kind));
        let path = (a != b).then(|| (Subject::path(a, b), is_affected));
        let directions = [([a, b], self.requests[0], of_a), ([b, a], self.requests[1], of_b)];
        let directions = directions
            .into_iter()
            .filter(move |&(_, requests, _)| requests && a != b)
            .map(|(hosts, _, affected)| (Subject::Direction { hosts }, affected));
        let other = (a != b).then_some(b);
        let hosts = [Some(a), other].into_iter().flatten();
        let hosts = hosts.map(move |host| (Subject::Host { host }, is_affected));
        let dscp = self.dscp.map(|dscp| (Subject::Dscp { dscp }, is_affected));
        path.into_iter().chain(directions).chain(hosts).chain(dscp)
    }
}

impl Subject {
    fn path(a: Gid, b: Gid) -> Self {
        Self::Path { hosts: if a.0 <= b.0 { [a, b] } else { [b, a] } }
    }

    /// A place in an order that is the same in each run.
    fn order(&self) -> (u8, [u8; 16], [u8; 16]) {
        match *self {
            Self::Path { hosts: [a, b] } => (0, a.0, b.0),
            Self::Direction { hosts: [a, b] } => (1, a.0, b.0),
            Self::Host { host } => (2, host.0, [0; 16]),
            Self::Dscp { dscp } => (3, [dscp; 16], [0; 16]),
        }
    }
}

impl PartialOrd for Subject {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Subject {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl Groups {
    /// The groups of a report's findings.
    pub(super) fn new(
        capture: &CaptureFacts,
        connections: &[Connection],
        findings: &[Finding],
    ) -> Self {
        let connected = connections.iter().map(Unit::of_connection);
        let units: Vec<Unit> =
            connected.chain(findings.iter().filter_map(Unit::of_attempt)).collect();
        let mut groups = Self::of_units(&units);
        groups.bursts = bursts::of_findings(capture, findings);
        groups
    }

    fn of_units(units: &[Unit]) -> Self {
        let mut groups = Self::default();
        let all = units.iter().flat_map(|unit| unit.kinds);
        let kinds = all.fold(KindSet::default(), KindSet::union);
        for kind in kinds.iter().filter(|kind| kind.is_about_traffic()) {
            let (found, summary) = of_kind(units, kind);
            groups.kinds.push(summary);
            for (subject, share, examples) in found {
                match groups.outstanding.iter_mut().find(|group| group.subject == subject) {
                    Some(group) => group.shares.push(share),
                    None => {
                        let shares = vec![share];
                        groups.outstanding.push(Group { subject, shares, examples });
                    }
                }
            }
        }
        groups.outstanding.sort_by_key(|group| {
            let worst = group.shares.first();
            let affected = group.shares.iter().map(|share| share.affected).max();
            let severity = worst.map_or(u8::MAX, |share| share.kind.severity());
            (severity, core::cmp::Reverse(affected), group.subject)
        });
        groups
    }
}

/// The subjects that stand out by a kind, each with its share and examples.
type Outstanding = Vec<(Subject, KindShare, Vec<FlowNumber>)>;

/// The subjects that stand out by one kind of finding, and what is left.
fn of_kind(units: &[Unit], kind: FindingKind) -> (Outstanding, KindSummary) {
    let mut left: Vec<&Unit> = units.iter().collect();
    let mut found = Vec::new();
    while found.len() < GROUPS_PER_KIND_MAX {
        let Some((subject, split)) = most_outstanding(&left, kind) else { break };
        let belongs = |unit: &&Unit| unit.subjects(kind).find(|(one, _)| *one == subject);
        let affected = left.iter().filter(|unit| belongs(unit).is_some_and(|(_, has)| has));
        let examples = affected.filter_map(|unit| unit.flow).take(EXAMPLES_MAX).collect();
        left.retain(|unit| belongs(unit).is_none());
        found.push((subject, split, examples));
    }
    let is_affected = |unit: &&Unit| unit.has(kind);
    let rest_affected = left.iter().copied().filter(is_affected).count() as u64;
    let rest_connections = left.len() as u64;
    let share = |split: Split| {
        let Split { affected, connections, .. } = split;
        KindShare { kind, affected, connections, rest_affected, rest_connections }
    };
    let found = found.into_iter().map(|(subject, split, flows)| (subject, share(split), flows));
    let affected: Vec<_> = units.iter().filter(is_affected).collect();
    let hosts: BTreeSet<_> = affected.iter().flat_map(|unit| unit.hosts.map(|gid| gid.0)).collect();
    let summary = KindSummary {
        kind,
        affected: affected.len() as u64,
        connections: units.len() as u64,
        hosts: hosts.len() as u64,
        unexplained: rest_affected,
    };
    (found.collect(), summary)
}

/// The subject that explains most, if one stands out.
fn most_outstanding(units: &[&Unit], kind: FindingKind) -> Option<(Subject, Split)> {
    let connections = units.len() as u64;
    let affected = units.iter().filter(|unit| unit.has(kind)).count() as u64;
    if affected < rule::AFFECTED_MIN {
        return None;
    }
    let mut counts: BTreeMap<Subject, [u64; 2]> = BTreeMap::new();
    for unit in units {
        for (subject, is_affected) in unit.subjects(kind) {
            let [members, found] = counts.entry(subject).or_default();
            *members += 1;
            *found += u64::from(is_affected);
        }
    }
    let candidates = counts.len() as u64;
    let split = |[members, found]: [u64; 2]| Split {
        affected: found,
        connections: members,
        all_affected: affected,
        all_connections: connections,
    };
    let outstanding = counts
        .into_iter()
        .map(|(subject, counts)| (subject, split(counts)))
        .filter(|(_, split)| split.stands_out(candidates));
    // The first of those that explain the same.
    let weight = |(subject, split): &(Subject, Split)| {
        let is_direction = matches!(subject, Subject::Direction { .. });
        split.surprise() - if is_direction { rule::DIRECTION_MARGIN } else { 0.0 }
    };
    outstanding.reduce(|a, b| if weight(&b) > weight(&a) { b } else { a })
}

impl FindingKind {
    /// Whether it says something of a network, and not of the capture alone.
    const fn is_about_traffic(self) -> bool {
        !matches!(self, Self::BeyondLimits | Self::Delay)
    }
}
