//! Soft NICs that run in other processes, with their counters and the rates of their queue pairs.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::Result;
use roce::decode::PrintableLines;
use roce::nic::status::{NicStatus, QpRate};
use roce::wire::Gid;
use serde::Serialize;

/// Number of counters in a line.
const COUNTERS_PER_LINE: usize = 3;

/// Output of `--json` for a NIC that runs.
#[derive(Serialize)]
pub(super) struct RunningNic {
    running: String,
    program: String,
    pid: u32,
    addresses: Vec<IpAddr>,
    qps: u64,
    controlled: Vec<Rate>,
    counters: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct Rate {
    qpn: u32,
    rate_bps: u64,
    target_bps: Option<u64>,
    alpha: Option<f64>,
    cuts: u64,
}

impl From<&NicStatus> for RunningNic {
    fn from(nic: &NicStatus) -> Self {
        let counters = nic.counters.iter().map(|(name, count)| (name.clone(), (*count).into()));
        Self {
            running: nic.device.clone(),
            program: program(nic.pid),
            pid: nic.pid,
            addresses: addresses(nic),
            qps: nic.qps,
            controlled: nic.controlled.iter().map(Rate::from).collect(),
            counters: counters.collect(),
        }
    }
}

impl From<&QpRate> for Rate {
    fn from(QpRate { qpn, state, .. }: &QpRate) -> Self {
        Self {
            qpn: qpn.get(),
            rate_bps: state.rate,
            target_bps: state.target,
            alpha: state.alpha.map(fraction),
            cuts: state.cuts,
        }
    }
}

/// Returns α of DCQCN as a fraction: a status has it in millionths.
pub(super) fn fraction(alpha: u32) -> f64 {
    f64::from(alpha) / 1e6
}

/// Returns the name of a process.
pub(super) fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "a program".to_owned(), |name| name.trim_end().to_owned())
}

/// Returns the addresses of a NIC, without link-local ones unless it has no others.
pub(super) fn addresses(nic: &NicStatus) -> Vec<IpAddr> {
    let all = nic.gids.iter().map(|gid| Ipv6Addr::from(gid.0).to_canonical());
    let is_own =
        |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let own: Vec<IpAddr> = all.clone().filter(is_own).collect();
    if own.is_empty() { all.collect() } else { own }
}

/// Whether a NIC has one of these GIDs. All loopback addresses count as one.
pub(super) fn is_at(nic: &NicStatus, gids: &[Gid]) -> bool {
    let is_loopback = |gid: &Gid| Ipv6Addr::from(gid.0).to_canonical().is_loopback();
    let on_loopback = gids.iter().any(is_loopback);
    nic.gids.iter().any(|gid| gids.contains(gid) || on_loopback && is_loopback(gid))
}

/// Describes a NIC and its queue pairs.
pub(super) fn describe(nic: &NicStatus, out: &mut dyn Write) -> Result<()> {
    let addresses: Vec<String> = addresses(nic).iter().map(IpAddr::to_string).collect();
    let (device, program) = (printable(&nic.device), printable(&program(nic.pid)));
    let (pid, addresses) = (nic.pid, addresses.join(", "));
    writeln!(out, "{program} (process {pid}) runs {device}: {addresses}")?;
    let controlled = match nic.controlled.len() {
        0 => String::new(),
        count => format!(", {count} slowed down by congestion control"),
    };
    writeln!(out, "  queue pairs: {}{controlled}", nic.qps)?;
    for QpRate { qpn, state, .. } in &nic.controlled {
        write!(out, "    {:#08x}  rate {}", qpn.get(), BitRate(state.rate))?;
        if let Some(target) = state.target {
            write!(out, ", target {}", BitRate(target))?;
        }
        if let Some(alpha) = state.alpha {
            write!(out, ", \u{3b1} {:.4}", fraction(alpha))?;
        }
        writeln!(out, ", cuts {}", state.cuts)?;
    }
    for line in nic.counters.chunks(COUNTERS_PER_LINE) {
        let counters = line.iter().map(|(name, count)| format!("{name} {count}"));
        writeln!(out, "  {}", counters.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn printable(text: &str) -> String {
    PrintableLines(text).to_string().replace('\n', " ")
}

/// A rate in bit/s, in the largest unit that fits.
struct BitRate(u64);

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
        let rate = self.0 as f64;
        match self.0 {
            u64::MAX => f.write_str("unlimited"),
            1_000_000_000.. => write!(f, "{:.3} Gb/s", rate / 1e9),
            _ => write!(f, "{:.3} Mb/s", rate / 1e6),
        }
    }
}
