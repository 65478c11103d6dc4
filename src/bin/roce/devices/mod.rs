//! `roce devices`: lists the soft NICs that this machine can offer, the soft NICs that run, and the
//! RDMA devices.

mod metrics;
mod running;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use roce::device::Device;
use roce::link;
use roce::link::interface::{Interface, gid, interfaces};
use roce::nic::status::{NicStatus, Published, published};
use roce::rdma_nic::RdmaNic;
use roce::verbs::{Mtu, PortState};
use roce::wire::Gid;
use serde::{Serialize, Serializer};

use self::running::RunningNic;
use super::device::Spec;
use crate::output::{counted, remark};
use crate::resolve::parse_listen;
use crate::{interrupt, metrics_server, output};

/// Interval of checks for Ctrl-C.
const INTERRUPT_CHECK: Duration = Duration::from_millis(50);

/// List the soft NICs that this machine can offer and its RDMA devices
///
/// For every network interface: its state, its MTU and RDMA MTU, its GIDs, and the values of `-d`
/// for soft NICs on UDP and raw sockets. Then the same for every RDMA device that libibverbs lists.
/// A device that is unavailable is shown with the reason.
///
/// Then the soft NICs that run now, in programs of this user under `roce run` and in other `roce`
/// commands: counters, and rate, target, alpha and cuts of each queue pair that congestion control
/// slows down. As root, those of all users.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce devices                       # all
  roce devices lo                    # one interface or RDMA device
  roce devices --json | jq .         # as JSON
  roce devices --metrics 127.0.0.1:9465    # counters and rates of running NICs, for Prometheus

Devices, as -d, --device, --peer and --to name them:
  udp:ADDRESS              UDP socket on an address, which programs of one user share
  soft:INTERFACE           the same on the first address that no other user has
  raw:INTERFACE            whole frames; programs of all users share an address; needs CAP_NET_RAW
  xdp:INTERFACE            AF_XDP, past the kernel, for one program; needs CAP_NET_RAW,
                           CAP_NET_ADMIN and CAP_BPF
  tap:NAME@ADDRESS/PREFIX  a host of its own at the other end of a TAP device; not in roce run;
                           needs /dev/net/tun, and CAP_NET_ADMIN to make the device
  verbs:NAME               RDMA device of the kernel (an RNIC, or rxe); not in roce run, nor for
                           roce replay --to; needs libibverbs

`roce doctor` tells which of them can be used here.")]
pub(crate) struct Args {
    /// Only this interface or RDMA device
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    /// Serve counters and rates of the soft NICs that run, for Prometheus, at
    /// http://ADDRESS:PORT/metrics until Ctrl-C.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen,
          conflicts_with_all = ["name", "json"])]
    metrics: Option<SocketAddr>,
}

/// A device, with the reason if it cannot be opened.
#[derive(Serialize)]
struct Offer {
    #[serde(rename = "device", serialize_with = "text")]
    spec: Spec,
    missing: Option<String>,
}

/// Writes a value as its text.
fn text<S: Serializer>(value: &impl ToString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&value.to_string())
}

/// Output of `--json` for an interface or an RDMA device.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Interface {
        interface: String,
        active: bool,
        mtu: usize,
        rdma_mtu: Option<usize>,
        mac: Option<String>,
        gids: Vec<String>,
        devices: Vec<Offer>,
    },
    Rnic {
        rnic: String,
        active: bool,
        rdma_mtu: usize,
        firmware: String,
        gids: Vec<IndexedGid>,
        devices: Vec<Offer>,
    },
    /// An RDMA device whose attributes cannot be queried.
    SilentRnic {
        rnic: String,
        devices: Vec<Offer>,
    },
    /// RDMA devices cannot be listed.
    NoRnics {
        rnic: (),
        devices: [Offer; 0],
        missing: String,
    },
    Running(RunningNic),
}

#[derive(Serialize)]
struct IndexedGid {
    index: usize,
    gid: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(at) = args.metrics {
        return serve_metrics(at);
    }
    let mut all = interfaces().context("cannot list the interfaces")?;
    let (mut real, missing) = match RdmaNic::list() {
        Ok(devices) => (devices.into_iter().map(|device| device.name).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    // With a name, RDMA devices that cannot be listed are of no interest.
    let missing = missing.filter(|_| args.name.is_none());
    if let Some(name) = &args.name {
        let interfaces = all.iter().map(|interface| &interface.name);
        let names: Vec<String> = interfaces.chain(&real).cloned().collect();
        all.retain(|interface| interface.name == *name);
        real.retain(|device| device == name);
        anyhow::ensure!(
            !all.is_empty() || !real.is_empty(),
            "there is no interface or RDMA device `{name}`; there are: {}",
            names.join(", ")
        );
    }
    let running = running_on(&all, args.name.is_some())?;
    let real: Vec<RdmaDevice> = real.into_iter().map(RdmaDevice::query).collect();
    let mut out = output::lines();
    if args.json {
        let none = missing.map(|missing| Entry::NoRnics { rnic: (), devices: [], missing });
        let entries = all.iter().map(entry).chain(real.iter().map(RdmaDevice::entry)).chain(none);
        let running = running.iter().map(|nic| Entry::Running(nic.into()));
        let entries = entries.chain(running);
        serde_json::to_writer_pretty(&mut out, &entries.collect::<Vec<Entry>>())?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut separate = false;
    for interface in &all {
        if std::mem::replace(&mut separate, true) {
            writeln!(out)?;
        }
        describe(interface, &mut out)?;
    }
    for device in &real {
        if std::mem::replace(&mut separate, true) {
            writeln!(out)?;
        }
        device.describe(&mut out)?;
    }
    if let Some(reason) = missing {
        writeln!(out, "\nverbs: unavailable: {reason}")?;
    }
    for nic in &running {
        writeln!(out)?;
        running::describe(nic, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the soft NICs that run; with a name on the command line, only those on `interfaces`.
fn running_on(interfaces: &[Interface], is_named: bool) -> Result<Vec<NicStatus>> {
    let gids: Vec<Gid> = interfaces.iter().flat_map(Interface::gids).collect();
    let Published { mut nics, silent, unasked, .. } =
        published().context("cannot list the NICs that run")?;
    if silent > 0 {
        let nics = counted(silent as u64, "NIC");
        remark(&format!("{nics} did not answer in time: the program is stopped, or busy"));
    }
    if unasked > 0 {
        let sockets = counted(unasked as u64, "status socket");
        remark(&format!(
            "{sockets} not asked: at most 512 of this user are, and 64 of each other user"
        ));
    }
    nics.retain(|nic| !is_named || running::is_at(nic, &gids));
    Ok(nics)
}

fn serve_metrics(at: SocketAddr) -> Result<ExitCode> {
    let stopped = interrupt::catch()?;
    let address = metrics_server::start(at, metrics::RunningNics)?;
    remark(&format!("metrics at http://{address}/metrics"));
    while !stopped.load(Ordering::SeqCst) {
        std::thread::sleep(INTERRUPT_CHECK);
    }
    Ok(ExitCode::SUCCESS)
}

/// An RDMA device, with its attributes or the error of the query for them.
struct RdmaDevice {
    name: String,
    attributes: io::Result<Attributes>,
}

struct Attributes {
    state: PortState,
    mtu: usize,
    firmware: String,
    /// GIDs for RoCEv2, with their indices.
    gids: Vec<(usize, Gid)>,
}

impl RdmaDevice {
    fn query(name: String) -> Self {
        let query = || {
            let nic = RdmaNic::open(&name)?;
            let (device, port) = (nic.query_device()?, nic.query_port()?);
            let gids = nic.gids().into_iter().enumerate();
            Ok(Attributes {
                state: port.state,
                mtu: port.active_mtu.bytes(),
                firmware: device.firmware().to_owned(),
                gids: gids.filter(|(_, gid)| *gid != Gid::default()).collect(),
            })
        };
        Self { attributes: query(), name }
    }

    fn spec(&self) -> Spec {
        Spec::Verbs(self.name.clone())
    }

    fn describe(&self, out: &mut dyn Write) -> Result<()> {
        let Attributes { state, mtu, firmware, gids } = match &self.attributes {
            Ok(attributes) => attributes,
            Err(error) => return Ok(writeln!(out, "{}: unavailable: {error}", self.spec())?),
        };
        let firmware =
            if firmware.is_empty() { String::new() } else { format!(", firmware {firmware}") };
        let state = state.name().trim_start_matches("IBV_");
        writeln!(out, "{}: {state}, RDMA MTU {mtu}{firmware}", self.name)?;
        for (index, gid) in gids {
            writeln!(out, "  gid {index}  {gid}")?;
        }
        let missing = if gids.is_empty() { ": unavailable: it has no RoCEv2 GID" } else { "" };
        Ok(writeln!(out, "  -d {}{missing}", self.spec())?)
    }

    fn entry(&self) -> Entry {
        let rnic = self.name.clone();
        let offer = |missing| vec![Offer { spec: self.spec(), missing }];
        match &self.attributes {
            Ok(Attributes { state, mtu, firmware, gids }) => Entry::Rnic {
                rnic,
                active: *state == PortState::Active,
                rdma_mtu: *mtu,
                firmware: firmware.clone(),
                gids: gids
                    .iter()
                    .map(|(index, gid)| IndexedGid { index: *index, gid: gid.to_string() })
                    .collect(),
                devices: offer(None),
            },
            Err(error) => Entry::SilentRnic { rnic, devices: offer(Some(error.to_string())) },
        }
    }
}

fn describe(interface: &Interface, out: &mut dyn Write) -> Result<()> {
    let mtu = interface.verbs_mtu();
    let payload = mtu
        .map_or_else(|| "too small for RDMA".to_owned(), |mtu| format!("RDMA MTU {}", mtu.bytes()));
    let mac = interface.mac.map_or_else(String::new, |mac| format!(", {mac}"));
    writeln!(
        out,
        "{}: {}, MTU {} ({payload}){mac}",
        interface.name,
        state(interface),
        interface.mtu
    )?;
    for (index, gid) in interface.gids().iter().enumerate() {
        writeln!(out, "  gid {index}  {gid}{}", meaning(*gid, interface))?;
    }
    for Offer { spec, missing } in offers(interface) {
        match missing {
            None => writeln!(out, "  -d {spec}")?,
            Some(missing) => writeln!(out, "  -d {spec}: unavailable: {missing}")?,
        }
    }
    Ok(())
}

/// Returns the state of the port, in the words of `ibv_devinfo`.
fn state(interface: &Interface) -> &'static str {
    match (interface.up, interface.carrier) {
        (true, true) => "PORT_ACTIVE",
        (true, false) => "PORT_DOWN (no carrier)",
        (false, _) => "PORT_DOWN (interface down)",
    }
}

/// Returns the address that a GID stands for, in parentheses.
fn meaning(of: Gid, interface: &Interface) -> String {
    let address = interface.addresses.iter().find(|address| gid(**address) == of);
    address.map_or_else(
        || "  (from the Ethernet address)".to_owned(),
        |address| format!("  ({address})"),
    )
}

/// Returns every soft NIC of an interface, and opens each to see whether it can be opened.
fn offers(interface: &Interface) -> Vec<Offer> {
    let udp = interface.addresses.iter().map(|address| link::Spec::Udp(*address));
    let links = udp.chain([link::Spec::Raw(interface.name.clone())]);
    links
        .map(|at| {
            let missing = if !interface.up {
                Some(format!("{0} is down: `ip link set {0} up`", interface.name))
            } else {
                at.open(Some(&interface.name))
                    .err()
                    .map(|error| output::chain(&anyhow::Error::new(error)))
            };
            Offer { spec: Spec::Soft(at), missing }
        })
        .collect()
}

fn entry(interface: &Interface) -> Entry {
    Entry::Interface {
        interface: interface.name.clone(),
        active: interface.up && interface.carrier,
        mtu: interface.mtu,
        rdma_mtu: interface.verbs_mtu().map(Mtu::bytes),
        mac: interface.mac.map(|mac| mac.to_string()),
        gids: interface.gids().iter().map(Gid::to_string).collect(),
        devices: offers(interface),
    }
}
