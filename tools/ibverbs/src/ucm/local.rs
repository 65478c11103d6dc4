//! Destinations that mean this host: the unspecified address, and loopback.
//!
//! For the kernel all of them are any RDMA device of the host, which all processes share. The
//! address of a soft NIC is one process's. So a NIC at the loopback address is looked for, in this
//! process and in others; without one, the destination is an own NIC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use roce::link::Spec;

use super::Process;
use super::devices::can_have;
use crate::call::{Failed, Result};
use crate::device::Device;
use crate::events::lock;

/// The address to connect to for a destination that a program names. `is_ipv4` is the family that
/// the id is bound to.
pub(super) fn destination(
    process: &Process,
    named: SocketAddr,
    is_ipv4: Option<bool>,
) -> Result<SocketAddr> {
    let candidates = loopback_addresses(named.ip(), is_ipv4);
    let Some(first) = candidates.first() else { return Ok(named) };
    let now = process.service.now();
    for candidate in &candidates {
        let is_own = process.command(|manager, _| Ok(manager.device_at(*candidate).is_some()))?;
        if is_own || !lock(&process.presence).is_absent(now, *candidate) {
            return Ok(SocketAddr::new(*candidate, named.port()));
        }
    }
    // Where NICs have addresses of 127.0.0.0/8, one that a program names is that NIC's, whether it
    // is there or not. `::1` is no more than the name of this host.
    let is_of_nic = named.is_ipv4() && !named.ip().is_unspecified();
    let is_named = |spec| can_have(spec, *first) || is_of_nic && is_on_loopback(spec);
    if Device::list()?.iter().any(|device| is_named(&device.spec)) {
        return Ok(SocketAddr::new(*first, named.port()));
    }
    let own = own_address(process, &candidates)?;
    Ok(SocketAddr::new(own.unwrap_or(*first), named.port()))
}

/// The loopback addresses that a destination may mean, the likeliest first; none if it is another
/// address.
fn loopback_addresses(named: IpAddr, is_ipv4: Option<bool>) -> Vec<IpAddr> {
    let (v4, v6) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST));
    let all = match named {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![v4, v6],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![v6, v4],
        // Only this address was asked for: all of 127.0.0.0/8 can be NICs.
        IpAddr::V4(ip) if ip.is_loopback() => vec![named],
        // What a resolver gives for `localhost`, where the server may have the address of the other
        // family.
        IpAddr::V6(ip) if ip.is_loopback() => vec![v6, v4],
        _ => Vec::new(),
    };
    all.into_iter().filter(|ip| is_ipv4.is_none_or(|is_ipv4| ip.is_ipv4() == is_ipv4)).collect()
}

/// Whether a device is on the loopback interface.
fn is_on_loopback(spec: &Spec) -> bool {
    spec.find_interface().is_some_and(|interface| interface.loopback)
}

/// An address of the first device of this process that has one of the families of `candidates`.
fn own_address(process: &Process, candidates: &[IpAddr]) -> Result<Option<IpAddr>> {
    for device in Device::list()? {
        let Ok(id) = process.nics.open(process, device, None) else { continue };
        let found = process.command(|manager, _| {
            let device = manager.device(id).ok_or(Failed::ENODEV)?;
            let mut own = device.addresses.iter().map(|(address, _)| *address);
            Ok(own.find(|own| candidates.iter().any(|other| own.is_ipv4() == other.is_ipv4())))
        })?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_and_loopback_addresses_mean_this_host() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let of = |named: &str, is_ipv4| {
            let all = loopback_addresses(ip(named), is_ipv4).into_iter();
            all.map(|ip| ip.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("0.0.0.0", None), ["127.0.0.1", "::1"]);
        assert_eq!(of("::", None), ["::1", "127.0.0.1"]);
        assert_eq!(of("::1", None), ["::1", "127.0.0.1"]);
        assert_eq!(of("::1", Some(false)), ["::1"]);
        assert_eq!(of("127.0.0.9", None), ["127.0.0.9"]);
        assert!(of("10.0.0.1", None).is_empty() && of("fd00::1", None).is_empty());
    }
}
