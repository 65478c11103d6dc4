//! The hosts of a mesh, and the pairs that probe each other.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::resolve;

/// Maximum number of hosts of a mesh.
pub(crate) const HOSTS_MAX: usize = 1024;

/// A host that runs `roce serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Name, as the user wrote it.
    pub(crate) name: String,
    pub(crate) at: SocketAddr,
    /// Rack: as the user says, or its subnet.
    pub(crate) rack: Option<String>,
}

/// Returns the subnet of an address, which is that of a rack where switches route.
fn subnet_of(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

/// Finds the hosts that are named, on the command line or in a file. If there are none, they are
/// those of the file of pairs.
pub(crate) fn find(
    named: &[String],
    file: Option<&Path>,
    pairs: Option<&Path>,
    port: u16,
) -> anyhow::Result<Vec<Host>> {
    let mut names = named.to_vec();
    let mut racks = BTreeMap::new();
    if let Some(path) = file {
        for line in lines_of("--hosts", path)? {
            let (name, rack) = match line.split_whitespace().collect::<Vec<_>>()[..] {
                [name] => (name, None),
                [name, rack] => (name, Some(rack)),
                _ => bail!("--hosts: '{line}' is not a host, or a host and its rack"),
            };
            racks.extend(rack.map(|rack| (name.to_owned(), rack.to_owned())));
            names.push(name.to_owned());
        }
    } else if let (true, Some(path)) = (names.is_empty(), pairs) {
        for [from, to] in pairs_of(path)? {
            names.extend([from, to]);
        }
        names.sort();
        names.dedup();
    }
    ensure!(
        names.len() >= 2,
        "a mesh has at least two hosts: name them, or a file (--hosts FILE, --pairs FILE)"
    );
    ensure!(names.len() <= HOSTS_MAX, "a mesh has at most {HOSTS_MAX} hosts");
    let mut hosts: Vec<Host> = Vec::new();
    for name in names {
        let at = resolve(&name, port)?;
        if let Some(same) = hosts.iter().find(|host| host.at == at) {
            bail!("'{}' and '{name}' are the same host, {at}", same.name);
        }
        let rack = racks.get(&name).cloned().unwrap_or_else(|| subnet_of(at.ip()));
        hosts.push(Host { name, at, rack: Some(rack) });
    }
    Ok(hosts)
}

/// The lines of a file, without comments.
fn lines_of(flag: &str, path: &Path) -> anyhow::Result<Vec<String>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("{flag} {}", path.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// The lines of a file of pairs.
fn pairs_of(path: &Path) -> anyhow::Result<Vec<[String; 2]>> {
    let lines = lines_of("--pairs", path)?;
    ensure!(!lines.is_empty(), "--pairs {}: there are none", path.display());
    let pairs = lines.iter().map(|line| {
        let [from, to] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("--pairs {}: '{line}' is not two hosts", path.display());
        };
        ensure!(from != to, "--pairs {}: '{line}' is the same host twice", path.display());
        Ok([from, to].map(str::to_owned))
    });
    pairs.collect()
}

/// `HOST`, `HOST:PORT`, or an address of IPv6, in brackets if a port follows.
fn resolve(name: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let bare = name.parse::<IpAddr>().is_ok() || !name.contains(':');
    let found = if bare { resolve::resolve(name, port) } else { resolve::resolve_with_port(name) };
    found?.into_iter().next().with_context(|| format!("'{name}' has no address"))
}

/// Pairs of hosts that are probed.
#[derive(Clone, Debug)]
pub(crate) enum Pairs {
    /// Each probes all others.
    All,
    /// Each probes this number of others, different ones in each round.
    Some(usize),
    /// Pairs of a list.
    Listed(Vec<(usize, usize)>),
}

impl Pairs {
    /// Reads the pairs of the options.
    pub(crate) fn read(
        file: Option<&PathBuf>,
        peers: Option<usize>,
        hosts: &[Host],
    ) -> anyhow::Result<Self> {
        let Some(path) = file else {
            return Ok(peers
                .filter(|peers| *peers < hosts.len() - 1)
                .map_or(Self::All, Self::Some));
        };
        let mut pairs = Vec::new();
        for [from, to] in pairs_of(path)? {
            let index = |name: &str| {
                let found = hosts.iter().position(|host| host.name == name);
                found.with_context(|| format!("--pairs: '{name}' is none of the hosts"))
            };
            let pair = (index(&from)?, index(&to)?);
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        Ok(Self::Listed(pairs))
    }

    /// Returns the hosts that a host probes in a round.
    pub(crate) fn targets(&self, from: usize, hosts: usize, round: u64) -> Vec<usize> {
        match self {
            Self::All => (0..hosts).filter(|to| *to != from).collect(),
            Self::Some(peers) => {
                // The next ones around the circle of hosts, further on in each round, so that all
                // pairs get their turn.
                let others = hosts - 1;
                let first = usize::try_from(round).unwrap_or(0).wrapping_mul(*peers) % others;
                (0..*peers).map(|n| (from + 1 + (first + n) % others) % hosts).collect()
            }
            Self::Listed(pairs) => {
                pairs.iter().filter(|(it, _)| *it == from).map(|(_, to)| *to).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_and_are_told_apart() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let hosts =
            find(&names(&["127.0.0.1", "127.0.0.1:7", "::1", "[::1]:8"]), None, None, 9).unwrap();
        let at: Vec<String> = hosts.iter().map(|host| host.at.to_string()).collect();
        assert_eq!(at, ["127.0.0.1:9", "127.0.0.1:7", "[::1]:9", "[::1]:8"]);
        for (wrong, word) in [
            (&["127.0.0.1"][..], "at least two"),
            (&["127.0.0.1", "127.0.0.1:9"], "the same host"),
            (&["127.0.0.1", "127.0.0.1:x"], "cannot find"),
        ] {
            let error = format!("{:#}", find(&names(wrong), None, None, 9).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn some_peers_become_all_in_time() {
        for (hosts, peers) in [(5, 2), (64, 6), (3, 1)] {
            let pairs = Pairs::Some(peers);
            for from in 0..hosts {
                let mut seen = std::collections::BTreeSet::new();
                for round in 0..hosts as u64 {
                    let targets = pairs.targets(from, hosts, round);
                    assert_eq!(targets.len(), peers);
                    assert!(targets.iter().all(|to| *to != from && *to < hosts));
                    seen.extend(targets);
                }
                assert_eq!(seen.len(), hosts - 1);
            }
        }
        assert_eq!(Pairs::All.targets(1, 4, 7), [0, 2, 3]);
        assert_eq!(Pairs::Listed(vec![(1, 0), (0, 2)]).targets(0, 3, 0), [2]);
    }
}
