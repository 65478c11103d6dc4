//! `roce devices`: the soft NICs that this machine could offer.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use roce::link::interface::{Interface, gid, interfaces};
use roce::wire::Gid;

use super::device::Spec;
use crate::output::quoted;

/// List the soft NICs that this machine could offer
///
/// For every network interface: its state, its MTU and the largest payload that RDMA packets can have on it, its GIDs,
/// and what to say to `-d` for a NIC on it. What cannot be used now is listed with what is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce devices                       # all of them
  roce devices lo                    # one interface
  roce devices --json | jq .         # for programs

`udp:ADDRESS` needs no privilege and has its address to itself. `raw:INTERFACE` needs CAP_NET_RAW; several programs can
share an address on it.")]
pub(crate) struct Args {
    /// Only this interface
    interface: Option<String>,

    /// An array of objects
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
    if let Some(name) = &args.interface {
        let names: Vec<String> = all.iter().map(|interface| interface.name.clone()).collect();
        all.retain(|interface| interface.name == *name);
        anyhow::ensure!(
            !all.is_empty(),
            "there is no interface `{name}`; there are: {}",
            names.join(", ")
        );
    }
    let mut out = io::stdout().lock();
    if args.json {
        let objects: Vec<String> = all.iter().map(json).collect();
        writeln!(out, "[{}]", objects.join(",\n "))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (number, interface) in all.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        describe(interface, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
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
            Some(missing) => writeln!(out, "  -d {spec}: not now: {missing}")?,
        }
    }
    Ok(())
}

/// The state of the port, in the words of `ibv_devinfo`.
fn state(interface: &Interface) -> &'static str {
    match (interface.up, interface.carrier) {
        (true, true) => "PORT_ACTIVE",
        (true, false) => "PORT_DOWN (no carrier)",
        (false, _) => "PORT_DOWN (switched off)",
    }
}

/// The address that an identifier stands for.
fn meaning(of: Gid, interface: &Interface) -> String {
    let address = interface.addresses.iter().find(|address| gid(**address) == of);
    address.map_or_else(
        || "  (of the Ethernet address)".to_owned(),
        |address| format!("  ({address})"),
    )
}

/// Every NIC that could be had on an interface; each is tried.
fn offers(interface: &Interface) -> Vec<Offer> {
    let udp = interface.addresses.iter().map(|address| Spec::Udp(*address));
    let specs = udp.chain([Spec::Raw(interface.name.clone())]);
    specs
        .map(|spec| {
            let missing = if !interface.up {
                Some(format!("{0} is switched off: `ip link set {0} up`", interface.name))
            } else {
                spec.open(Some(&interface.name))
                    .err()
                    .map(|error| format!("{:#}", anyhow::Error::new(error)))
            };
            Offer { spec, missing }
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
