//! The devices that a program shall have, checked before it starts: the program itself can only say
//! that it found none, or that one cannot be opened.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use roce::link::interface::{Interface, interfaces};
use roce::link::{Link, NamedSpec, NamedSpecError, OpenError, Spec, SpecError};

use crate::device::forms;

/// Reads a device. The library of programs has no TAP devices, which need another TCP/IP stack.
pub(super) fn parse(text: &str) -> Result<NamedSpec, String> {
    const FORMS: &str = concat!("a device for a program is ", forms!(programs));
    match text.parse() {
        Ok(NamedSpec { spec: Spec::Tap { .. }, .. }) => {
            Err(format!("programs have no TAP devices: {FORMS}"))
        }
        Err(NamedSpecError::Spec(SpecError::NoKind)) => Err(FORMS.to_owned()),
        Err(NamedSpecError::Spec(SpecError::Nothing(kind))) => {
            Err(format!("nothing follows '{kind}:'; {FORMS}"))
        }
        Err(NamedSpecError::Spec(SpecError::Kind(kind))) if kind == "verbs" => {
            Err(format!("an RDMA device of the kernel needs no `roce run`; {FORMS}"))
        }
        Err(NamedSpecError::Spec(SpecError::Kind(kind))) => {
            Err(format!("there is no device of the kind '{kind}'; {FORMS}"))
        }
        Err(other) => Err(other.to_string()),
        Ok(named) => Ok(named),
    }
}

/// Checks the devices that `--device` names: each must open, beside the others.
pub(super) fn check_named(named: &[NamedSpec]) -> Result<()> {
    NamedSpec::check_list(named).context("--device")?;
    let mut open = Vec::new();
    for device in named {
        open.extend(try_open(&device.spec).with_context(|| format!("--device {device}"))?);
    }
    Ok(())
}

/// Checks the devices that a program has without `--device`, and returns what the user should know
/// of them.
pub(super) fn check_default() -> Result<Vec<String>> {
    let devices = Spec::of_every_interface().context("cannot list the interfaces")?;
    let interfaces = interfaces().context("cannot list the interfaces")?;
    if devices.is_empty() {
        return Ok(vec![no_device(&interfaces)]);
    }
    let mut open = Vec::new();
    let mut remarks = vec![chosen(&devices, &interfaces)];
    let loopback = devices.iter().find(|spec| spec.is_any_of_loopback());
    let has_loopback = loopback.is_some_and(|spec| try_open(spec).is_ok());
    for (at, spec) in devices.iter().enumerate() {
        match try_open(spec) {
            Ok(link) => open.extend(link),
            Err(error) => {
                let is_ipv4 = spec.first_gid().is_ok_and(|gid| gid.to_ipv4().is_some());
                let falls_back = has_loopback && is_ipv4 && is_in_use(&error);
                let error = crate::output::chain(&anyhow::Error::new(error));
                remarks.push(if falls_back {
                    format!("roce{at} ({spec}) takes an address of loopback: {error}")
                } else {
                    format!(
                        "roce{at} ({spec}) will not open: {error}; choose devices with --device"
                    )
                });
            }
        }
    }
    Ok(remarks)
}

/// Opens a device, to be closed after all others were tried. Of loopback the program takes any
/// address: the one tried here is outside of those that it takes, and of this process alone, so it
/// is not in the way of another program. It is closed at once.
fn try_open(spec: &Spec) -> Result<Option<Link>, OpenError> {
    if !spec.is_any_of_loopback() {
        return spec.open(None).map(Some);
    }
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let probe = Ipv4Addr::new(127, 0x80 | high, middle, low);
    match Spec::Udp(IpAddr::V4(probe)).open(None) {
        // Loopback may have addresses of IPv6 alone.
        Err(error) if is_not_local(&error) => spec.open(None).map(Some),
        tried => tried.map(|_| None),
    }
}

fn is_in_use(error: &OpenError) -> bool {
    matches!(error, OpenError::InUse { .. })
}

fn is_not_local(error: &OpenError) -> bool {
    matches!(error, OpenError::NotLocal { .. })
}

/// Returns the reason for which there is no device, and what gives one.
fn no_device(interfaces: &[Interface]) -> String {
    let why: Vec<String> = interfaces
        .iter()
        .map(|interface| {
            let state = match (interface.up, interface.addresses.is_empty()) {
                (false, _) => "is down",
                (true, true) => "has no address",
                (true, false) => "is usable now",
            };
            format!("{} {state}", interface.name)
        })
        .collect();
    let why = if why.is_empty() { "there are no interfaces".to_owned() } else { why.join(", ") };
    format!(
        "the program finds no device: {why}; `ip link set lo up` gives it one on loopback, `ip address add` one on another \
         interface"
    )
}

/// Describes the devices that were chosen, their addresses, and whether they reach other hosts.
fn chosen(devices: &[Spec], interfaces: &[Interface]) -> String {
    let interface = |spec: &Spec| {
        interfaces.iter().find(|interface| spec.interface() == Some(interface.name.as_str()))
    };
    let is_loopback = |spec: &Spec| interface(spec).is_some_and(|interface| interface.loopback);
    let list: Vec<String> = devices
        .iter()
        .enumerate()
        .map(|(at, spec)| {
            let address = match interface(spec).and_then(|interface| interface.addresses.first()) {
                Some(first) => first.to_string(),
                None => "no address".to_owned(),
            };
            format!("roce{at} is {spec} ({address})")
        })
        .collect();
    let reach = match devices.iter().all(is_loopback) {
        true => {
            "; it reaches this host only: no other interface is up and has an address, for other hosts give one an address"
        }
        false => "; --device chooses others",
    };
    format!("{}{reach}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lo() -> Interface {
        interfaces().unwrap().into_iter().find(|it| it.loopback).unwrap()
    }

    #[test]
    fn empty_list_says_why_and_what_to_do() {
        let mut lo = lo();
        lo.up = false;
        let said = no_device(std::slice::from_ref(&lo));
        assert!(said.contains("lo is down") && said.contains("ip link set lo up"), "{said}");
        (lo.up, lo.addresses) = (true, Vec::new());
        assert!(no_device(&[lo]).contains("lo has no address"));
        assert!(no_device(&[]).contains("there are no interfaces"));
    }

    #[test]
    fn chosen_devices_are_named_with_their_addresses() {
        let (lo, mut eth) = (lo(), lo());
        (eth.name, eth.loopback) = ("eth9".to_owned(), false);
        eth.addresses = vec![[192, 0, 2, 1].into()];
        let [on_lo, on_eth] = ["soft:lo", "soft:eth9"].map(|spec| spec.parse::<Spec>().unwrap());
        let interfaces = [lo, eth];
        let said = chosen(&[on_eth, on_lo.clone()], &interfaces);
        let list = "roce0 is soft:eth9 (192.0.2.1), roce1 is soft:lo (127.0.0.1)";
        assert_eq!(said, format!("{list}; --device chooses others"));
        let said = chosen(&[on_lo], &interfaces);
        assert!(said.contains("this host only: no other interface"), "{said}");
    }
}
