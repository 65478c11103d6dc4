//! The devices that a program shall have, checked before it starts: the program itself can only say that it found none, or
//! that one cannot be opened.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use roce::link::interface::{Interface, interfaces};
use roce::link::{Link, NamedSpec, OpenError, Spec};

/// Checks the devices that `--device` names: each must open, beside the others.
pub(super) fn check_named(named: &[NamedSpec]) -> Result<()> {
    NamedSpec::check_list(named).context("--device")?;
    let mut open = Vec::new();
    for device in named {
        open.extend(try_open(&device.spec).with_context(|| format!("--device {device}"))?);
    }
    Ok(())
}

/// Checks the devices that a program has without `--device`, and returns what the user should know of them.
pub(super) fn check_default() -> Result<Vec<String>> {
    let devices = Spec::of_every_interface().context("cannot list the interfaces")?;
    let interfaces = interfaces().context("cannot list the interfaces")?;
    if devices.is_empty() {
        return Ok(vec![no_device(&interfaces)]);
    }
    let mut open = Vec::new();
    let mut remarks = Vec::new();
    for (at, spec) in devices.iter().enumerate() {
        match try_open(spec) {
            Ok(link) => open.extend(link),
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                remarks.push(format!(
                    "roce{at} ({spec}) will not open: {error}; choose devices with --device"
                ));
            }
        }
    }
    remarks.extend(loopback_remark(&devices, &interfaces));
    Ok(remarks)
}

/// Opens a device, to be closed after all others were tried. Of loopback the program takes any address: the one tried here
/// is outside of those that it takes, and of this process alone, so it is not in the way of another program. It is closed
/// at once.
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

fn is_not_local(error: &OpenError) -> bool {
    matches!(error, OpenError::NotLocal { .. })
}

/// Why there is no device, and what gives one.
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

/// That the first device, which most programs take, reaches this host only, and which one reaches others.
fn loopback_remark(devices: &[Spec], interfaces: &[Interface]) -> Option<String> {
    let is_loopback = |spec: &&Spec| {
        let of_spec = |it: &&Interface| spec.interface() == Some(it.name.as_str());
        interfaces.iter().find(of_spec).is_some_and(|interface| interface.loopback)
    };
    let first = devices.first().filter(is_loopback)?;
    let beyond = devices.iter().find(|spec| !is_loopback(spec));
    Some(match beyond {
        Some(spec) => {
            format!("roce0 ({first}) reaches this host only; for other hosts use --device {spec}")
        }
        None => format!(
            "roce0 ({first}) reaches this host only, and no other interface is up and has an address; for other hosts \
             give one an address"
        ),
    })
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
    fn loopback_as_first_device_is_told_with_what_reaches_further() {
        let (lo, mut eth) = (lo(), lo());
        (eth.name, eth.loopback) = ("eth9".to_owned(), false);
        let [on_lo, on_eth] = ["soft:lo", "soft:eth9"].map(|spec| spec.parse::<Spec>().unwrap());
        let interfaces = [lo, eth];
        let said = loopback_remark(&[on_lo.clone(), on_eth.clone()], &interfaces).unwrap();
        assert!(said.contains("this host only") && said.contains("--device soft:eth9"), "{said}");
        let said = loopback_remark(std::slice::from_ref(&on_lo), &interfaces).unwrap();
        assert!(said.contains("no other interface"), "{said}");
        assert_eq!(loopback_remark(&[on_eth, on_lo], &interfaces), None);
    }
}
