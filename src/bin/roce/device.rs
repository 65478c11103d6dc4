//! What `-d` names: the soft NIC to use.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Context, bail};
use roce::link::Link;
use roce::nic::SoftNic;

/// A device, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// A UDP socket on an address of this machine.
    Udp(IpAddr),
    /// A raw socket on an interface.
    Raw { interface: String, vlan: Option<u16> },
    /// A UDP socket on the first address of an interface.
    Soft(String),
}

/// What a device may be called, for messages.
const FORMS: &str = "udp:ADDRESS, raw:INTERFACE[.VLAN] or soft:INTERFACE";

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
            "raw" => parse_raw(rest),
            "soft" => Ok(Self::Soft(rest.to_owned())),
            _ => Err(format!("there is no device of the kind '{kind}'; a device is {FORMS}")),
        }
    }
}

/// `eth0`, or `eth0.100` for a VLAN.
fn parse_raw(text: &str) -> Result<Spec, String> {
    let Some((interface, vlan)) = text.rsplit_once('.') else {
        return Ok(Spec::Raw { interface: text.to_owned(), vlan: None });
    };
    match vlan.parse() {
        Ok(vlan @ 1..=4094) => Ok(Spec::Raw { interface: interface.to_owned(), vlan: Some(vlan) }),
        _ => Err(format!("'{vlan}' is not a VLAN: they are 1 to 4094")),
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp:{address}"),
            Self::Raw { interface, vlan: None } => write!(f, "raw:{interface}"),
            Self::Raw { interface, vlan: Some(vlan) } => write!(f, "raw:{interface}.{vlan}"),
            Self::Soft(interface) => write!(f, "soft:{interface}"),
        }
    }
}

/// Starts a NIC on a device.
pub(crate) fn start(spec: &Spec) -> anyhow::Result<SoftNic> {
    let link = open(spec).with_context(|| format!("-d {spec}"))?;
    SoftNic::start(link).with_context(|| format!("cannot start a NIC on {spec}"))
}

/// Opens the link of a device. This is the one place that knows which links there are.
fn open(spec: &Spec) -> anyhow::Result<Link> {
    match spec {
        Spec::Udp(_) | Spec::Soft(_) => bail!("this build has no links over UDP sockets yet"),
        Spec::Raw { .. } => bail!("this build has no links over raw sockets yet"),
    }
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
            ("raw:eth0.4095", "1 to 4094"),
            ("raw:eth0.", "1 to 4094"),
            ("mlx5_0:1", "no device of the kind 'mlx5_0'"),
        ] {
            let error = text.parse::<Spec>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
