//! Devices that `-d` names, soft NICs or RDMA devices, and the options of soft NICs.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use roce::device::Device;
use roce::engine::congestion::Settings;
use roce::engine::{ReceiveMode, Recovery, RecoveryOptions};
use roce::link::interface::gid;
use roce::link::{self, SpecError};
use roce::nic::SoftNic;
use roce::rdma_nic::RdmaNic;
use roce::wire::Gid;

/// Forms of devices, for help. `roce devices --help` says what each is and needs.
macro_rules! forms {
    () => {
        "udp:ADDRESS, raw:INTERFACE, soft:INTERFACE, xdp:INTERFACE, tap:NAME@ADDRESS/PREFIX or \
         verbs:NAME (`roce help devices` explains them)"
    };
    // A link of soft NICs, without an engine behind it.
    (links) => {
        "udp:ADDRESS, raw:INTERFACE, soft:INTERFACE, xdp:INTERFACE or tap:NAME@ADDRESS/PREFIX \
         (`roce help devices` explains them)"
    };
    // Devices of programs under `roce run`, whose library has no TAP devices.
    (programs) => {
        "udp:ADDRESS, raw:INTERFACE, soft:INTERFACE or xdp:INTERFACE (`roce help devices` explains \
         them)"
    };
}
pub(crate) use forms;

/// A device, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// A soft NIC.
    Soft(link::Spec),
    /// An RDMA device, by its name in libibverbs.
    Verbs(String),
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("verbs:").filter(|name| !name.is_empty()) {
            return Ok(Self::Verbs(name.to_owned()));
        }
        text.parse().map(Self::Soft).map_err(|error| match error {
            SpecError::Address(_) => error.to_string(),
            _ => format!("{error}, or verbs:NAME for an RDMA device"),
        })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Soft(spec) => spec.fmt(f),
            Self::Verbs(name) => write!(f, "verbs:{name}"),
        }
    }
}

/// Option of soft NICs: whether they use shared memory.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SharedMemoryArgs {
    /// Send packets to programs on this machine through the kernel, not through shared memory, as
    /// with ROCE_SHM=off.
    #[arg(long)]
    pub(crate) no_shm: bool,
}

impl From<SharedMemoryArgs> for SoftNicArgs {
    fn from(shared_memory: SharedMemoryArgs) -> Self {
        Self { shared_memory, ..Self::default() }
    }
}

/// Options of soft NICs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SoftNicArgs {
    #[command(flatten)]
    shared_memory: SharedMemoryArgs,

    #[command(flatten)]
    pub(crate) congestion: CongestionArgs,

    #[command(flatten)]
    recovery: RecoveryArgs,
}

/// Options of congestion control of soft NICs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CongestionArgs {
    /// Congestion control of soft NICs: none, dcqcn, timely, swift, hpcc or fixed:RATE, with
    /// parameters, as in dcqcn:rp_time_reset=300,rp_ai_rate=5 [default: none]
    #[arg(long, env = "ROCE_CC", hide_env = true, value_name = "NAME[:PARAMETERS]")]
    cc: Option<String>,

    /// Rules and parameters of dcqcn: paper or nvidia [default: paper]
    #[arg(long, env = "ROCE_CC_PROFILE", hide_env = true, value_name = "PROFILE")]
    cc_profile: Option<String>,

    /// Rate of the link in bit/s, at which --cc paces queue pairs from their first packet, such as
    /// 25G [default: no pacing before the first CNP]
    #[arg(long, env = "ROCE_LINE_RATE", hide_env = true, value_name = "RATE")]
    line_rate: Option<String>,

    /// Whether data is ECN-capable: ect0 or off [default: ect0 if --cc is on]
    #[arg(long, env = "ROCE_ECN", hide_env = true, value_name = "ECT")]
    ecn: Option<String>,

    /// CNPs that are sent: scope (qp, peer, port), interval, dscp, priority [default:
    /// scope=qp,interval=50us,dscp=48,priority=6]
    #[arg(long, env = "ROCE_CNP", hide_env = true, value_name = "OPTIONS")]
    cnp: Option<String>,
}

impl CongestionArgs {
    /// Returns the text of an option, if it is set.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match name {
            "cc" => self.cc.as_deref(),
            "cc-profile" => self.cc_profile.as_deref(),
            "line-rate" => self.line_rate.as_deref(),
            "ecn" => self.ecn.as_deref(),
            "cnp" => self.cnp.as_deref(),
            _ => None,
        }
        .filter(|text| !text.is_empty())
    }

    /// Parses the options.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        // The error begins with the name of the option.
        let read = Settings::read(|name| self.text(name).map(str::to_owned));
        read.map_err(|error| anyhow!("--{error}"))
    }
}

/// Value of an option, if it is set: an empty environment variable counts as unset.
#[derive(Clone, Copy, Debug)]
struct OrUnset<T>(Option<T>);

impl<T: FromStr> FromStr for OrUnset<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        (!text.is_empty()).then(|| text.parse()).transpose().map(Self)
    }
}

/// Reads a number of paths.
fn parse_paths(text: &str) -> Result<OrUnset<u8>, &'static str> {
    match text.parse() {
        Ok(OrUnset(Some(0))) | Err(_) => Err("a number of UDP source ports, 1 to 255"),
        Ok(paths) => Ok(paths),
    }
}

/// Options of soft NICs for recovery from loss, and for packets out of order.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct RecoveryArgs {
    /// Recovery from loss of soft NICs: go-back-N, or selective repeat with peers that do it, too
    /// [default: gbn]
    #[arg(long, value_name = "gbn|sr", env = "ROCE_RECOVERY", hide_env = true)]
    recovery: Option<OrUnset<Recovery>>,

    /// Packets that arrive before earlier ones: dropped, held, or held with their payload placed at
    /// once [default: in-order; buffer with --recovery sr or --paths]
    #[arg(long, value_name = "in-order|buffer|place", env = "ROCE_RECEIVE", hide_env = true)]
    receive: Option<OrUnset<ReceiveMode>>,

    /// Spray packets over this many UDP source ports, 1 to 255; the peer must have --paths or a
    /// --receive that holds packets, too [default: 1]
    #[arg(long, value_name = "N", env = "ROCE_PATHS", hide_env = true,
          value_parser = parse_paths)]
    paths: Option<OrUnset<u8>>,
}

impl RecoveryArgs {
    /// Returns the options that are set.
    pub(crate) fn options(&self) -> RecoveryOptions {
        RecoveryOptions {
            recovery: self.recovery.and_then(|it| it.0),
            receive: self.receive.and_then(|it| it.0),
            paths: self.paths.and_then(|it| it.0),
        }
    }

    /// Environment variables that pass these options to a program's library.
    pub(crate) fn variables(&self) -> [(&'static str, Option<String>); 3] {
        let RecoveryOptions { recovery, receive, paths } = self.options();
        [
            ("ROCE_RECOVERY", recovery.map(|it| it.to_string())),
            ("ROCE_RECEIVE", receive.map(|it| it.to_string())),
            ("ROCE_PATHS", paths.map(|it| it.to_string())),
        ]
    }
}

/// Starts a device.
pub(crate) fn start(spec: &Spec, soft: &SoftNicArgs) -> anyhow::Result<Arc<dyn Device>> {
    match spec {
        Spec::Soft(at) => {
            let settings = soft.congestion.settings()?;
            let link = if soft.shared_memory.no_shm {
                at.open_without_shared_memory()
            } else {
                at.open(None)
            };
            let link = link.with_context(|| format!("-d {spec}"))?;
            let recovery = soft.recovery.options();
            let nic = SoftNic::start_with(link, |config| {
                settings.apply(config);
                recovery.apply(config);
            });
            let nic = nic.with_context(|| format!("cannot start a NIC on {spec}"))?;
            // If this fails, `roce devices` does not show the NIC.
            let _ = nic.publish_status(&spec.to_string());
            Ok(Arc::new(nic))
        }
        Spec::Verbs(name) => {
            Ok(Arc::new(RdmaNic::open(name).with_context(|| format!("-d {spec}"))?))
        }
    }
}

/// Returns the IP address of a device that a connection can be made from or to: that of the named
/// GID, or else of the first GID for IPv4, or else of the first GID. A link-local address does not
/// count, because it means nothing without its interface.
pub(crate) fn address_of(device: &dyn Device, named: Option<u8>) -> Option<IpAddr> {
    let gids = device.gids();
    let first = || {
        let used = || gids.iter().filter(|gid| **gid != Gid::default());
        used().find(|gid| gid.to_ipv4().is_some()).or_else(|| used().next())
    };
    let gid = named.map_or_else(first, |index| gids.get(usize::from(index)))?;
    match gid.to_ipv4() {
        Some(address) => Some(address.into()),
        None => {
            Some(Ipv6Addr::from(gid.0)).filter(|it| !it.is_unicast_link_local()).map(Into::into)
        }
    }
}

/// Starts a soft NIC on an address of this host. If it is a loopback address that another program
/// has and does not share, takes the first one of 127.0.0.0/24 that is free.
pub(crate) fn start_at(address: IpAddr, soft: &SoftNicArgs) -> anyhow::Result<Arc<dyn Device>> {
    let at = |address| start(&Spec::Soft(link::Spec::Udp(address)), soft);
    let loopback = (1..=254).map(|last| IpAddr::from([127, 0, 0, last]));
    let others = loopback.filter(|_| address.is_loopback() && address.is_ipv4());
    let started = at(address);
    if !started.as_ref().is_err_and(is_in_use) {
        return started;
    }
    let free = others.map(at).find(|started| !started.as_ref().is_err_and(is_in_use));
    free.unwrap_or(started)
}

/// Whether the error is that another program has the address.
fn is_in_use(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<link::OpenError>();
    matches!(cause, Some(link::OpenError::InUse { .. }))
}

/// Returns the index of the GID of a device to use: the named one; otherwise that of `from`, the
/// address from which the other side is reached; otherwise the first of the same address family;
/// otherwise the first.
pub(crate) fn choose_gid(
    named: Option<u8>,
    device: &dyn Device,
    from: IpAddr,
) -> anyhow::Result<u8> {
    let gids = device.gids();
    let index = match named {
        Some(index) => usize::from(index),
        None => {
            let from = gid(from.to_canonical());
            let known = gids.iter().position(|gid| *gid == from);
            let is_there = |gid: &Gid| *gid != Gid::default();
            let family = |gid: &Gid| gid.to_ipv4().is_some();
            let alike =
                || gids.iter().position(|gid| is_there(gid) && family(gid) == family(&from));
            let first = || gids.iter().position(is_there);
            known.or_else(alike).or_else(first).with_context(|| {
                format!("{} has no address for RoCEv2; its interface needs one", device.name())
            })?
        }
    };
    match gids.get(index) {
        None => bail!("-x: {} has {} GIDs, counted from 0", device.name(), gids.len()),
        Some(gid) if *gid == Gid::default() => {
            bail!(
                "-x: GID {index} of {} is not for RoCEv2: `roce devices` lists those that are",
                device.name()
            )
        }
        Some(_) => Ok(u8::try_from(index)?),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use roce::link::cable;

    use super::*;

    #[test]
    fn wrong_congestion_control_names_its_option() {
        let wrong = Some("x".to_owned());
        for (option, args) in [
            ("--cc: ", CongestionArgs { cc: wrong.clone(), ..Default::default() }),
            ("--cc-profile: ", CongestionArgs { cc_profile: wrong.clone(), ..Default::default() }),
            ("--line-rate: ", CongestionArgs { line_rate: wrong.clone(), ..Default::default() }),
            ("--ecn: ", CongestionArgs { ecn: wrong.clone(), ..Default::default() }),
            ("--cnp: ", CongestionArgs { cnp: wrong.clone(), ..Default::default() }),
        ] {
            let error = args.settings().unwrap_err().to_string();
            assert!(error.starts_with(option), "{error}");
        }
    }

    #[test]
    fn devices_print_as_they_are_parsed() {
        for text in ["udp:10.0.0.1", "raw:eth0.100", "soft:lo", "verbs:mlx5_0"] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn unknown_device_is_refused_with_the_cure() {
        for (text, word) in [
            ("10.0.0.1", "verbs:NAME"),
            ("verbs:", "nothing follows 'verbs:'"),
            ("udp:eth0", "soft:eth0"),
            ("mlx5_0:1", "no device of the kind 'mlx5_0'"),
        ] {
            let error = text.parse::<Spec>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn gid_of_the_source_address_is_chosen() {
        let [near, far] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
        let (one, _other) = cable(near, far).unwrap();
        let nic = SoftNic::start(one).unwrap();
        let from = |address: &str| address.parse().unwrap();
        assert_eq!(choose_gid(None, &nic, from("192.0.2.1")).unwrap(), 0);
        assert_eq!(choose_gid(None, &nic, from("::ffff:192.0.2.1")).unwrap(), 0);
        assert_eq!(choose_gid(None, &nic, from("10.0.0.1")).unwrap(), 0, "the first");
        assert_eq!(choose_gid(Some(0), &nic, from("10.0.0.1")).unwrap(), 0);
        let error = choose_gid(Some(1), &nic, from("192.0.2.1")).unwrap_err().to_string();
        assert!(error.contains("-x") && error.contains("1 GIDs"), "{error}");
    }

    #[test]
    fn missing_rdma_device_is_named_with_the_cure() {
        let spec = Spec::Verbs("roce-none0".to_owned());
        let error = format!("{:#}", start(&spec, &SoftNicArgs::default()).unwrap_err());
        assert!(error.starts_with("-d verbs:roce-none0: "), "{error}");
        let cures = ["this machine has", "libibverbs1", "ib_uverbs"];
        assert!(cures.iter().any(|cure| error.contains(cure)), "{error}");
    }
}
