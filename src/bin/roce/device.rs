//! What `-d` names: the soft NIC to use.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
use roce::link::interface::{Interface, interfaces};
use roce::link::{Link, raw, udp};
use roce::nic::SoftNic;
use roce::verbs::Device;

/// A device, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// A UDP socket on an address of this machine.
    Udp(IpAddr),
    /// A raw socket on an interface.
    Raw(String),
    /// A UDP socket on the first address of an interface.
    Soft(String),
}

/// What a device may be called, for messages.
const FORMS: &str = "udp:ADDRESS, raw:INTERFACE or soft:INTERFACE";

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(format!("a device is {FORMS}"));
        };
        if rest.is_empty() {
            return Err(format!("nothing follows '{kind}:'; a device is {FORMS}"));
        }
        match kind {
            "udp" => {
                let address = rest.trim_start_matches('[').trim_end_matches(']').parse();
                let address = address.map_err(|_| {
                    format!("'{rest}' is not an IP address; by interface it is soft:{rest}")
                })?;
                Ok(Self::Udp(address))
            }
            "raw" => Ok(Self::Raw(rest.to_owned())),
            "soft" => Ok(Self::Soft(rest.to_owned())),
            _ => Err(format!("there is no device of the kind '{kind}'; a device is {FORMS}")),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp:{address}"),
            Self::Raw(interface) => write!(f, "raw:{interface}"),
            Self::Soft(interface) => write!(f, "soft:{interface}"),
        }
    }
}

/// Starts a device.
pub(crate) fn start(spec: &Spec) -> anyhow::Result<Arc<dyn Device>> {
    let link = open(spec, None).with_context(|| format!("-d {spec}"))?;
    let nic = SoftNic::start(link).with_context(|| format!("cannot start a NIC on {spec}"))?;
    Ok(Arc::new(nic))
}

/// Opens the link of a device, whose address may be known to be on an interface. This is the one place that knows which
/// links there are.
pub(crate) fn open(spec: &Spec, on: Option<&str>) -> anyhow::Result<Link> {
    match spec {
        Spec::Udp(address) => {
            let mut options = udp::Options::new(*address);
            options.interface = on.map(ToOwned::to_owned);
            Ok(udp::open(&options)?)
        }
        Spec::Soft(name) => {
            let address = first_address(&find_interface(name)?)?;
            let mut options = udp::Options::new(address);
            options.interface = Some(name.clone());
            Ok(udp::open(&options)?)
        }
        Spec::Raw(name) => {
            find_interface(name)?;
            Ok(raw::open(&raw::Config::new(name))?)
        }
    }
}

fn find_interface(name: &str) -> anyhow::Result<Interface> {
    let all = interfaces().context("cannot list the interfaces")?;
    if let Some(found) = all.iter().find(|interface| interface.name == name) {
        return Ok(found.clone());
    }
    // Whoever asks for a VLAN that is not there wants to know how to have it.
    if let Some((under, vlan)) = name.rsplit_once('.')
        && all.iter().any(|interface| interface.name == under)
    {
        bail!(
            "there is no interface {name}; `ip link add link {under} name {name} type vlan id {vlan}` makes it"
        );
    }
    let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
    bail!("there is no interface {name}; this machine has {}", names.join(", "))
}

/// The first address of an interface that others can be reached from; a link-local one only if there is no other.
fn first_address(interface: &Interface) -> anyhow::Result<IpAddr> {
    let addresses = &interface.addresses;
    let far = |address: &&IpAddr| !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let found = addresses.iter().find(far).or_else(|| addresses.first());
    found.copied().with_context(|| {
        let name = &interface.name;
        format!("{name} has no address; `ip address add 192.0.2.1/24 dev {name}` gives it one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_print_as_they_are_written() {
        for text in ["udp:10.0.0.1", "udp:fe80::1", "raw:eth0", "raw:eth0.100", "soft:lo"] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
        let bracketed: Spec = "udp:[::1]".parse().unwrap();
        assert_eq!(bracketed, Spec::Udp("::1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_device_is_refused_with_the_cure() {
        for (text, word) in [
            ("10.0.0.1", "a device is udp:ADDRESS"),
            ("", "a device is"),
            ("udp:", "nothing follows"),
            ("udp:eth0", "soft:eth0"),
            ("raw:", "nothing follows"),
            ("mlx5_0:1", "no device of the kind 'mlx5_0'"),
        ] {
            let error = text.parse::<Spec>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_with_the_cure() {
        let vlan = find_interface("lo.5").unwrap_err().to_string();
        assert!(vlan.contains("ip link add link lo name lo.5 type vlan id 5"), "{vlan}");
        let none = find_interface("roce-none").unwrap_err().to_string();
        assert!(none.contains("this machine has") && none.contains("lo"), "{none}");
    }

    #[test]
    fn a_link_local_address_is_the_last_choice() {
        let mut lo = find_interface("lo").unwrap();
        let choice = |lo: &mut Interface, addresses: &[&str]| {
            lo.addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            first_address(lo).map(|address| address.to_string()).ok()
        };
        assert_eq!(choice(&mut lo, &["fe80::1", "2001:db8::1"]).as_deref(), Some("2001:db8::1"));
        assert_eq!(choice(&mut lo, &["fe80::1"]).as_deref(), Some("fe80::1"));
        assert_eq!(choice(&mut lo, &["10.0.0.1", "2001:db8::1"]).as_deref(), Some("10.0.0.1"));
        assert_eq!(choice(&mut lo, &[]), None);
    }
}
