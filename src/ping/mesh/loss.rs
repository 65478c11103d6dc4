//! Attribution of losses to hosts and paths.
//!
//! A NIC that drops packets drops those of all its peers and source ports at the same rate. A link
//! or a switch on one ECMP path drops packets of some pairs and source ports, and none of the
//! others. Dispersion distinguishes the two: the variance of the loss rates among a host's cells,
//! compared with the variance that chance alone causes. A bad NIC drops packets in both directions.
//! If only probes towards a host are lost, the host does not answer.

use std::collections::BTreeSet;

use super::{
    Cell, Fault, Finding, Mesh, Symptom, Thresholds, counted, path_hosts, path_of, percent,
    ports_of,
};

/// Maximum number of findings: what is behind them may be their consequence.
const FINDINGS_MAX: usize = 16;

/// Number of standard deviations that is not attributed to chance.
const SIGMAS: f64 = 6.0;

/// Sums over cells.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sent: f64,
    lost: f64,
}

impl Sum {
    #[expect(clippy::cast_precision_loss, reason = "counts of probes")]
    fn of(cell: &Cell) -> Self {
        Self { sent: cell.stats.sent() as f64, lost: cell.stats.lost as f64 }
    }

    fn over<'a>(cells: impl Iterator<Item = &'a Cell>) -> Self {
        cells.map(Self::of).fold(Self::default(), |all, one| Self {
            sent: all.sent + one.sent,
            lost: all.lost + one.lost,
        })
    }

    fn rate(self) -> f64 {
        if self.sent > 0.0 { self.lost / self.sent } else { 0.0 }
    }

    /// Whether there are more losses than are ordinary.
    fn is_bad(self, thresholds: &Thresholds) -> bool {
        let ordinary = self.sent * thresholds.ordinary_loss;
        self.lost > ordinary + SIGMAS * ordinary.sqrt() + 4.0 && self.rate() >= thresholds.loss
    }
}

/// A host that loses too many probes.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    host: usize,
    sum: Sum,
    peers: usize,
}

/// Names what loses probes.
pub(super) fn find(mesh: &Mesh, thresholds: &Thresholds) -> Vec<Finding> {
    let cells = mesh.cells.iter().enumerate();
    let mut open: Vec<usize> =
        cells.filter(|(_, cell)| cell.stats.sent() > 0).map(|(at, _)| at).collect();
    let mut findings = Vec::new();
    while findings.len() < FINDINGS_MAX {
        let suspects = suspects(mesh, &open, thresholds);
        let Some(worst) = suspects.first().copied() else { break };
        let finding = if is_uniform(mesh, &open, &suspects) {
            of_host(mesh, &open, worst)
        } else {
            match of_paths(mesh, &open, thresholds) {
                Some(finding) => finding,
                None => of_host(mesh, &open, worst),
            }
        };
        let explained: BTreeSet<usize> = finding.hosts.iter().copied().collect();
        let is_path = finding.fault == Fault::Path;
        open.retain(|at| {
            let Some(cell) = mesh.cells.get(*at) else { return false };
            let touches = explained.contains(&cell.from) || explained.contains(&cell.to);
            match is_path {
                // What is left of the losses of the same hosts has the same cause.
                true => !(finding.paths.contains(at) || touches && cell.stats.lost > 0),
                false => !touches,
            }
        });
        findings.push(finding);
    }
    findings
}

fn cells_of<'m>(mesh: &'m Mesh, open: &'m [usize]) -> impl Iterator<Item = &'m Cell> {
    open.iter().filter_map(|&at| mesh.cells.get(at))
}

/// The hosts that lose too much, worst first; of equals the one with more peers.
fn suspects(mesh: &Mesh, open: &[usize], thresholds: &Thresholds) -> Vec<Suspect> {
    let mut sums = vec![Sum::default(); mesh.hosts.len()];
    let mut peers = vec![BTreeSet::new(); mesh.hosts.len()];
    for cell in cells_of(mesh, open) {
        let own = Sum::of(cell);
        for host in [cell.from, cell.to] {
            let (Some(sum), Some(peers)) = (sums.get_mut(host), peers.get_mut(host)) else {
                continue;
            };
            sum.sent += own.sent;
            sum.lost += own.lost;
            peers.insert(cell.peer_of(host));
        }
    }
    let all = sums.into_iter().zip(peers).enumerate();
    let all = all.map(|(host, (sum, peers))| Suspect { host, sum, peers: peers.len() });
    let mut bad: Vec<Suspect> = all.filter(|it| it.sum.is_bad(thresholds)).collect();
    bad.sort_by(|a, b| b.sum.rate().total_cmp(&a.sum.rate()).then(b.peers.cmp(&a.peers)));
    bad
}

/// Whether the losses of the suspects are spread over their cells by chance alone. All suspects
/// that lose at least half as much as the worst are looked at together: if one link is the cause,
/// they all have it.
fn is_uniform(mesh: &Mesh, open: &[usize], suspects: &[Suspect]) -> bool {
    let Some(worst) = suspects.first() else { return true };
    let alike = suspects.iter().filter(|it| it.sum.rate() * 2.0 >= worst.sum.rate());
    // The cells of a single bad host are alike; those of its peers are not, because only some are
    // with the bad host.
    let own = dispersion(mesh, open, [worst].into_iter());
    let together = dispersion(mesh, open, alike);
    own.is_by_chance() && (together.is_by_chance() || explains_others(mesh, open, worst, suspects))
}

/// Whether without the cells of the worst host the others are no suspects of the same degree.
fn explains_others(mesh: &Mesh, open: &[usize], worst: &Suspect, suspects: &[Suspect]) -> bool {
    suspects.iter().skip(1).all(|other| {
        let rest = cells_of(mesh, open).filter(|it| it.has(other.host) && !it.has(worst.host));
        Sum::over(rest).rate() * 2.0 < worst.sum.rate()
    })
}

/// Dispersion of the losses of cells beyond what chance makes of one common rate.
#[derive(Clone, Copy, Debug, Default)]
struct Dispersion {
    chi_squared: f64,
    freedom: f64,
}

impl Dispersion {
    /// Whether chance explains it: the mean of chi-squared is its degrees of freedom, its variance
    /// twice that.
    fn is_by_chance(self) -> bool {
        self.chi_squared <= self.freedom + SIGMAS * (2.0 * self.freedom).sqrt()
    }
}

fn dispersion<'s>(
    mesh: &Mesh,
    open: &[usize],
    suspects: impl Iterator<Item = &'s Suspect>,
) -> Dispersion {
    let mut all = Dispersion::default();
    for (suspect, role) in suspects.flat_map(|suspect| ROLES.map(|role| (suspect, role))) {
        let cells = || cells_of(mesh, open).filter(|cell| role(cell) == suspect.host);
        let rate = Sum::over(cells()).rate();
        // Where nothing or all is lost, nothing differs.
        if !(f64::EPSILON..=0.98).contains(&rate) {
            continue;
        }
        let mut count = 0.0;
        for Sum { sent, lost } in cells().map(Sum::of) {
            let off = lost - sent * rate;
            all.chi_squared += off * off / (sent * rate * (1.0 - rate));
            count += 1.0;
        }
        all.freedom += f64::max(count - 1.0, 0.0);
    }
    all
}

/// The two roles of a host, each by whose it is in a cell.
const ROLES: [fn(&Cell) -> usize; 2] = [|cell| cell.from, |cell| cell.to];

/// Whether only one role of a host loses probes: of those that it sends, and of those that it
/// answers.
fn is_one_sided([from, to]: [Sum; 2]) -> bool {
    if from.sent == 0.0 || to.sent == 0.0 {
        return false;
    }
    let both = (from.lost + to.lost) / (from.sent + to.sent);
    let deviation = (both * (1.0 - both) * (1.0 / from.sent + 1.0 / to.sent)).sqrt();
    let (low, high) = (from.rate().min(to.rate()), from.rate().max(to.rate()));
    high - low > SIGMAS * deviation && high > 3.0 * low
}

/// The finding that a host is bad, or a pair if it has only one peer.
fn of_host(mesh: &Mesh, open: &[usize], worst: Suspect) -> Finding {
    let cells: Vec<&Cell> = cells_of(mesh, open).filter(|cell| cell.has(worst.host)).collect();
    let peers: BTreeSet<usize> = cells.iter().map(|cell| cell.peer_of(worst.host)).collect();
    let others = Sum::over(cells_of(mesh, open).filter(|cell| !cell.has(worst.host)));
    let rate = percent(worst.sum.rate());
    let ports: BTreeSet<u16> = cells.iter().map(|cell| cell.source_port).collect();
    if peers.len() < 2 {
        let hosts = [Some(worst.host), peers.first().copied()];
        let mut hosts: Vec<usize> = hosts.into_iter().flatten().collect();
        hosts.sort_unstable();
        let evidence = format!(
            "{rate} of {} probes between them are lost, on all of {} source ports alike; a third host would tell which \
             of the two it is",
            worst.sum.sent,
            ports.len()
        );
        return finding(Fault::Pair, hosts, Vec::new(), evidence);
    }
    let lossy: BTreeSet<usize> = cells
        .iter()
        .filter(|cell| cell.stats.lost > 0)
        .map(|cell| cell.peer_of(worst.host))
        .collect();
    let roles =
        ROLES.map(|role| Sum::over(cells.iter().copied().filter(|cell| role(cell) == worst.host)));
    if is_one_sided(roles) {
        let [from, to] = roles;
        let evidence = format!(
            "{} of {} probes to it are lost and {} of {} from it, with {} of {} peers, on all of {} source ports alike: its \
             NIC works, and its program does not {}",
            percent(to.rate()),
            to.sent,
            percent(from.rate()),
            from.sent,
            lossy.len(),
            peers.len(),
            ports.len(),
            if to.rate() > from.rate() { "answer" } else { "see answers" }
        );
        return finding(Fault::Unresponsive, vec![worst.host], Vec::new(), evidence);
    }
    let evidence = format!(
        "{rate} of {} probes to and from it are lost, with {} of {} peers, on all of {} source ports alike; all other \
         pairs lose {}",
        worst.sum.sent,
        lossy.len(),
        peers.len(),
        ports.len(),
        percent(others.rate())
    );
    finding(Fault::Nic, vec![worst.host], Vec::new(), evidence)
}

/// The finding that some paths are bad, if there are such.
fn of_paths(mesh: &Mesh, open: &[usize], thresholds: &Thresholds) -> Option<Finding> {
    let is_bad = |cell: &Cell| {
        let Sum { sent, lost } = Sum::of(cell);
        let ordinary = sent * thresholds.ordinary_loss;
        lost >= 2.0
            && lost > ordinary + SIGMAS * ordinary.sqrt() + 1.0
            && lost >= sent * thresholds.loss
    };
    let bad: Vec<usize> =
        open.iter().copied().filter(|&at| mesh.cells.get(at).is_some_and(is_bad)).collect();
    let pairs: BTreeSet<(usize, usize)> = cells_of(mesh, &bad).map(Cell::pair).collect();
    let good = cells_of(mesh, open).filter(|cell| pairs.contains(&cell.pair()) && !is_bad(cell));
    let (bad_sum, good_sum) = (Sum::over(cells_of(mesh, &bad)), Sum::over(good));
    let worst =
        cells_of(mesh, &bad).max_by(|a, b| Sum::of(a).rate().total_cmp(&Sum::of(b).rate()))?;
    let mut evidence = format!(
        "{} of {} probes are lost on {} of {} paths between {} (source ports {})",
        percent(bad_sum.rate()),
        bad_sum.sent,
        bad.len(),
        cells_of(mesh, open).filter(|cell| pairs.contains(&cell.pair())).count(),
        counted(pairs.len(), "pair of hosts"),
        ports_of(mesh, &bad),
    );
    if good_sum.sent > 0.0 {
        let rate = percent(good_sum.rate());
        evidence.push_str(&format!("; the other paths of the same pairs lose {rate}"));
    }
    let (path, rate) = (path_of(mesh, worst), percent(Sum::of(worst).rate()));
    evidence.push_str(&format!("; worst is {path} with {rate}"));
    let hosts = path_hosts(mesh, &bad);
    Some(finding(Fault::Path, hosts, bad, evidence))
}

fn finding(fault: Fault, hosts: Vec<usize>, paths: Vec<usize>, evidence: String) -> Finding {
    Finding { fault, symptom: Symptom::Loss, hosts, paths, evidence }
}
