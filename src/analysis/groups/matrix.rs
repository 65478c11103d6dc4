//! Traffic and trouble by source and destination host.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::connection::{Connection, Direction};
use crate::analysis::finding::{Finding, KindSet};
use crate::analysis::serialize;
use crate::analysis::statistics::Distribution;
use crate::wire::Gid;

/// Maximum number of hosts of a matrix in JSON and on a page. The others are summed.
pub(crate) const HOSTS_MAX: usize = 32;

/// Requests by source and destination host: the worst hosts one by one, all others together.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct HostMatrix {
    /// The hosts with the most affected connections, the worst first.
    #[serde(serialize_with = "serialize::address_list")]
    pub hosts: Vec<Gid>,
    /// Number of all other hosts, which have the index after the last of `hosts`.
    pub other_hosts: u64,
    /// Cells with connections, by row and column.
    pub cells: Vec<MatrixCell>,
}

/// Requests of one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MatrixCell {
    /// The requester's index in [`HostMatrix::hosts`].
    pub source: u16,
    /// The responder's index.
    pub destination: u16,
    /// Connections on which the source requests something, and attempts to connect.
    pub connections: u64,
    /// Connections with findings about these requests.
    pub affected: u64,
    /// Packets of these requests and of their responses.
    pub packets: u64,
    /// Packets that were retransmitted.
    pub retransmitted: u64,
    /// Packets that were lost.
    pub lost: u64,
}

/// Requests of one host to another, before they are put into a matrix.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairFacts {
    pub(crate) connections: u64,
    pub(crate) affected: u64,
    pub(crate) packets: u64,
    pub(crate) retransmitted: u64,
    pub(crate) lost: u64,
    pub(crate) latency: Distribution,
}

impl PairFacts {
    fn add(&mut self, direction: &Direction, kinds: KindSet) {
        self.connections += 1;
        self.affected += u64::from(!kinds.is_empty());
        self.packets += direction.request_packets + direction.response_packets;
        self.retransmitted += direction.retransmitted_packets();
        self.lost += direction.lost_requests + direction.lost_responses;
    }

    /// A place in the order of trouble, the worst last.
    fn trouble(&self) -> (u64, u64, u64, u64) {
        (self.affected, self.lost, self.retransmitted, self.packets)
    }
}

/// Two addresses: requester and responder.
type Pair = [[u8; 16]; 2];

/// The sums of all pairs of hosts.
fn pairs(connections: &[Connection], findings: &[Finding]) -> BTreeMap<Pair, PairFacts> {
    let mut pairs: BTreeMap<Pair, PairFacts> = BTreeMap::new();
    for connection in connections {
        let [a, b] = connection.ends.each_ref().map(|end| end.address.0);
        let sides = [[a, b], [b, a]].into_iter().zip(&connection.directions);
        for ((hosts, direction), kinds) in sides.zip(connection.findings) {
            if direction.request_packets + direction.response_packets > 0 || !kinds.is_empty() {
                pairs.entry(hosts).or_default().add(direction, kinds);
            }
        }
    }
    for finding in findings.iter().filter(|finding| finding.flow.is_none()) {
        if let Some([a, b]) = finding.hosts {
            let kinds = KindSet::of(finding.kind);
            pairs.entry([a.0, b.0]).or_default().add(&Direction::default(), kinds);
        }
    }
    pairs
}

/// The pairs of hosts with the most trouble, at most `most`, with their latencies.
pub(crate) fn worst_pairs(
    connections: &[Connection],
    findings: &[Finding],
    most: usize,
) -> (Vec<([Gid; 2], PairFacts)>, usize) {
    let mut worst: Vec<_> = pairs(connections, findings).into_iter().collect();
    worst.sort_by_key(|(hosts, facts)| (core::cmp::Reverse(facts.trouble()), *hosts));
    let all = worst.len();
    worst.truncate(most);
    let places: BTreeMap<Pair, usize> =
        worst.iter().enumerate().map(|(at, (hosts, _))| (*hosts, at)).collect();
    for connection in connections {
        let [a, b] = connection.ends.each_ref().map(|end| end.address.0);
        for (hosts, direction) in [[a, b], [b, a]].iter().zip(&connection.directions) {
            let place = places.get(hosts).and_then(|&at| worst.get_mut(at));
            if let Some((_, facts)) = place.filter(|_| direction.latency.count() > 0) {
                facts.latency.merge(&direction.latency);
            }
        }
    }
    (worst.into_iter().map(|(hosts, facts)| (hosts.map(Gid), facts)).collect(), all)
}

impl HostMatrix {
    /// The matrix of a report with at most `hosts_max` hosts one by one.
    pub(crate) fn new(connections: &[Connection], findings: &[Finding], hosts_max: usize) -> Self {
        let pairs = pairs(connections, findings);
        let mut trouble: BTreeMap<[u8; 16], [u64; 4]> = BTreeMap::new();
        for (hosts, facts) in &pairs {
            let (affected, lost, retransmitted, packets) = facts.trouble();
            let is_loop = hosts[0] == hosts[1];
            for host in hosts.iter().take(if is_loop { 1 } else { 2 }) {
                let sums = trouble.entry(*host).or_default();
                for (sum, count) in sums.iter_mut().zip([affected, lost, retransmitted, packets]) {
                    *sum += count;
                }
            }
        }
        let mut hosts: Vec<_> = trouble.into_iter().collect();
        hosts.sort_by_key(|(host, sums)| (core::cmp::Reverse(*sums), *host));
        let other_hosts = hosts.len().saturating_sub(hosts_max);
        hosts.truncate(hosts_max);
        let index: BTreeMap<_, u16> = hosts.iter().map(|(host, _)| *host).zip(0u16..).collect();
        let others = u16::try_from(hosts.len()).unwrap_or(u16::MAX);
        let mut cells: BTreeMap<(u16, u16), MatrixCell> = BTreeMap::new();
        for (pair, facts) in &pairs {
            let [source, destination] =
                pair.map(|host| index.get(&host).copied().unwrap_or(others));
            let cell = cells.entry((source, destination)).or_default();
            (cell.source, cell.destination) = (source, destination);
            cell.connections += facts.connections;
            cell.affected += facts.affected;
            cell.packets += facts.packets;
            cell.retransmitted += facts.retransmitted;
            cell.lost += facts.lost;
        }
        Self {
            hosts: hosts.into_iter().map(|(host, _)| Gid(host)).collect(),
            other_hosts: other_hosts as u64,
            cells: cells.into_values().collect(),
        }
    }

    /// Number of rows and columns, the one of all other hosts included.
    pub fn len(&self) -> usize {
        self.hosts.len() + usize::from(self.other_hosts > 0)
    }

    /// Whether there are no hosts.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The cell of a row and a column, if there are connections in it.
    pub fn cell(&self, source: usize, destination: usize) -> Option<&MatrixCell> {
        let wanted = (source, destination);
        let place = |cell: &MatrixCell| (usize::from(cell.source), usize::from(cell.destination));
        self.cells.binary_search_by_key(&wanted, place).ok().and_then(|at| self.cells.get(at))
    }
}
