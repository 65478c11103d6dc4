//! `roce devices`: the soft NICs that this machine could offer, and the real ones that it has.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use roce::device::Device;
use roce::link;
use roce::link::interface::{Interface, gid, interfaces};
use roce::rdma_nic::RdmaNic;
use roce::verbs::{Mtu, PortState};
use roce::wire::Gid;
use serde::{Serialize, Serializer};

use super::device::Spec;
use crate::output;

/// List the soft NICs that this machine can offer and its RDMA devices
///
/// For every network interface: its state, its MTU and RDMA MTU, its GIDs, and the values of `-d`
/// for soft NICs on it. Then the same for every RDMA device that libibverbs lists. What is
/// unavailable is listed with the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce devices                       # all
  roce devices lo                    # one interface or RDMA device
  roce devices --json | jq .         # as JSON

`udp:ADDRESS` needs no privilege; programs of one user share an address. `raw:INTERFACE` needs CAP_NET_RAW; programs of
all users share an address. `xdp:INTERFACE` goes past the kernel and needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; one
program has the interface. `tap:NAME@ADDRESS/PREFIX` is a host of its own at the other end of a TAP device, and needs
/dev/net/tun and CAP_NET_ADMIN, unless the device is the user's. `verbs:NAME` is an RDMA device of the kernel (an RNIC, or rxe) and needs libibverbs.")]
pub(crate) struct Args {
    /// Only this interface or RDMA device
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// A NIC that can be opened, or the reason why it cannot.
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
    SilentRnic {
        rnic: String,
        devices: Vec<Offer>,
    },
    NoRnics {
        rnic: (),
        devices: [Offer; 0],
        missing: String,
    },
}

#[derive(Serialize)]
struct IndexedGid {
    index: usize,
    gid: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
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
    let real: Vec<Real> = real.into_iter().map(Real::ask).collect();
    let mut out = output::lines();
    if args.json {
        let none = missing.map(|missing| Entry::NoRnics { rnic: (), devices: [], missing });
        let entries = all.iter().map(entry).chain(real.iter().map(Real::entry)).chain(none);
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
    Ok(ExitCode::SUCCESS)
}

/// A real RNIC, and its attributes or why they cannot be queried.
struct Real {
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

impl Real {
    fn ask(name: String) -> Self {
        let ask = || {
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
        Self { attributes: ask(), name }
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

/// The state of the port, in the words of `ibv_devinfo`.
fn state(interface: &Interface) -> &'static str {
    match (interface.up, interface.carrier) {
        (true, true) => "PORT_ACTIVE",
        (true, false) => "PORT_DOWN (no carrier)",
        (false, _) => "PORT_DOWN (interface down)",
    }
}

/// The address that an identifier stands for.
fn meaning(of: Gid, interface: &Interface) -> String {
    let address = interface.addresses.iter().find(|address| gid(**address) == of);
    address.map_or_else(
        || "  (from the Ethernet address)".to_owned(),
        |address| format!("  ({address})"),
    )
}

/// Every soft NIC of an interface; each is opened to see whether it can be.
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
                    .map(|error| format!("{:#}", anyhow::Error::new(error)))
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
