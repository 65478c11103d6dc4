//! `roce devices`: the soft NICs that this machine could offer, and the real ones that it has.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use roce::device::Device;
use roce::link;
use roce::link::interface::{Interface, gid, interfaces};
use roce::rdma_nic::RdmaNic;
use roce::verbs::PortState;
use roce::wire::Gid;

use super::device::Spec;
use crate::output::quoted;

/// List the soft NICs that this machine can offer and its RDMA devices
///
/// For every network interface: its state, its MTU and RDMA MTU, its GIDs, and the values of `-d` for soft NICs on it.
/// Then the same for every RDMA device that libibverbs lists. What is unavailable is listed with the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce devices                       # all
  roce devices lo                    # one interface or RDMA device
  roce devices --json | jq .         # as JSON

`udp:ADDRESS` needs no privilege; one program at a time can use an address. `raw:INTERFACE` needs CAP_NET_RAW; several
programs can share an address. `verbs:NAME` is an RDMA device of the kernel (an RNIC, or rxe) and needs libibverbs.")]
pub(crate) struct Args {
    /// Only this interface or RDMA device
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// A NIC that could be had, and what is missing if it cannot.
struct Offer {
    spec: Spec,
    missing: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut all = interfaces().context("cannot list the interfaces")?;
    let (mut real, missing) = match RdmaNic::list() {
        Ok(devices) => (devices.into_iter().map(|device| device.name).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    // Who asks for one does not want to know about the others.
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
    let mut out = io::stdout().lock();
    if args.json {
        let none = missing.map(|reason| {
            format!("{{\"rnic\": null, \"devices\": [], \"missing\": {}}}", quoted(&reason))
        });
        let objects = all.iter().map(json).chain(real.iter().map(Real::json)).chain(none);
        writeln!(out, "[{}]", objects.collect::<Vec<String>>().join(",\n "))?;
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

/// A real RNIC, and what it says of itself or why it does not.
struct Real {
    name: String,
    said: io::Result<Said>,
}

struct Said {
    state: PortState,
    mtu: usize,
    firmware: String,
    /// Those for RoCEv2, with their indices.
    gids: Vec<(usize, Gid)>,
}

impl Real {
    fn ask(name: String) -> Self {
        let ask = || {
            let nic = RdmaNic::open(&name)?;
            let (device, port) = (nic.query_device()?, nic.query_port()?);
            let gids = nic.gids().into_iter().enumerate();
            Ok(Said {
                state: port.state,
                mtu: port.active_mtu.bytes(),
                firmware: device.firmware().to_owned(),
                gids: gids.filter(|(_, gid)| *gid != Gid::default()).collect(),
            })
        };
        Self { said: ask(), name }
    }

    fn spec(&self) -> Spec {
        Spec::Verbs(self.name.clone())
    }

    fn describe(&self, out: &mut dyn Write) -> Result<()> {
        let Said { state, mtu, firmware, gids } = match &self.said {
            Ok(said) => said,
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

    fn json(&self) -> String {
        let (name, device) = (quoted(&self.name), quoted(&self.spec().to_string()));
        let missing = |reason: &str| format!("[{{\"device\": {device}, \"missing\": {reason}}}]");
        let Said { state, mtu, firmware, gids } = match &self.said {
            Ok(said) => said,
            Err(error) => {
                let devices = missing(&quoted(&error.to_string()));
                return format!("{{\"rnic\": {name}, \"devices\": {devices}}}");
            }
        };
        let gids: Vec<String> = gids
            .iter()
            .map(|(at, gid)| format!("{{\"index\": {at}, \"gid\": \"{gid}\"}}"))
            .collect();
        format!(
            "{{\"rnic\": {name}, \"active\": {}, \"rdma_mtu\": {mtu}, \"firmware\": {}, \"gids\": [{}], \
             \"devices\": {}}}",
            *state == PortState::Active,
            quoted(firmware),
            gids.join(", "),
            missing("null")
        )
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

/// Every NIC that could be had on an interface; each is tried.
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

fn json(interface: &Interface) -> String {
    let gids: Vec<String> = interface.gids().iter().map(|gid| format!("\"{gid}\"")).collect();
    let offers: Vec<String> = offers(interface)
        .iter()
        .map(|Offer { spec, missing }| {
            let missing = missing.as_deref().map_or_else(|| "null".to_owned(), quoted);
            format!("{{\"device\": {}, \"missing\": {missing}}}", quoted(&spec.to_string()))
        })
        .collect();
    let mac = interface.mac.map_or_else(|| "null".to_owned(), |mac| format!("\"{mac}\""));
    let payload =
        interface.verbs_mtu().map_or_else(|| "null".to_owned(), |mtu| mtu.bytes().to_string());
    format!(
        "{{\"interface\": {}, \"active\": {}, \"mtu\": {}, \"rdma_mtu\": {payload}, \"mac\": {mac}, \"gids\": [{}], \
         \"devices\": [{}]}}",
        quoted(&interface.name),
        interface.up && interface.carrier,
        interface.mtu,
        gids.join(", "),
        offers.join(", ")
    )
}
