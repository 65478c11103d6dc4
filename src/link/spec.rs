//! Specification of a soft NIC as text: `udp:10.0.0.1`, `raw:eth0`, `soft:eth0`, `xdp:eth0`,
//! `tap:tap0@10.9.0.2/24`.
//!
//! ```
//! use roce::link::Spec;
//!
//! let spec: Spec = "udp:127.0.0.1".parse()?;
//! assert_eq!(spec.to_string(), "udp:127.0.0.1");
//! # Ok::<(), roce::link::SpecError>(())
//! ```

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use super::interface::{Interface, gid, interfaces, is_link_local};
use super::{Cidr, Link, OpenError, raw, udp, xdp};
use crate::wire::Gid;

/// A soft NIC, as a person writes it down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// A UDP socket on an address of this machine.
    Udp(IpAddr),
    /// A raw socket on an interface.
    Raw(String),
    /// A UDP socket on the first free address of an interface: the first that no other program has.
    /// On loopback 127.0.0.1 to 127.0.0.254 are tried, of which one only is listed.
    Soft(String),
    /// Sockets of AF_XDP on the queues of an interface.
    Xdp(String),
    /// A host of its own at the other end of a TAP device.
    Tap {
        /// Name of the kernel's interface.
        name: String,
        /// Addresses of the host, besides its link-local one.
        addresses: Vec<Cidr>,
    },
}

/// Error in the text of a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text has no colon.
    #[error("a device is {FORMS}")]
    NoKind,
    /// The text ends at the colon.
    #[error("nothing follows '{0}:'; a device is {FORMS}")]
    Nothing(String),
    /// The text has no valid address.
    #[error("'{0}' is not an IP address; by interface it is soft:{0}")]
    Address(String),
    /// A TAP device has something behind its name that is no list of addresses.
    #[error("'{0}' is no list of addresses with prefixes: tap:NAME@10.9.0.2/24+fd09::2/64")]
    TapAddresses(String),
    /// The kind is unknown.
    #[error("there is no device of the kind '{0}'; a device is {FORMS}")]
    Kind(String),
}

/// Forms of device names that this program can open, for messages.
#[cfg(feature = "smoltcp")]
const FORMS: &str =
    "udp:ADDRESS, raw:INTERFACE, soft:INTERFACE, xdp:INTERFACE or tap:NAME@ADDRESS/PREFIX";
#[cfg(not(feature = "smoltcp"))]
const FORMS: &str = "udp:ADDRESS, raw:INTERFACE, soft:INTERFACE or xdp:INTERFACE";

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) = text.split_once(':').ok_or(SpecError::NoKind)?;
        if rest.is_empty() {
            return Err(SpecError::Nothing(kind.to_owned()));
        }
        match kind {
            "udp" => {
                let address = rest.trim_start_matches('[').trim_end_matches(']').parse();
                address.map(Self::Udp).map_err(|_| SpecError::Address(rest.to_owned()))
            }
            "raw" => Ok(Self::Raw(rest.to_owned())),
            "soft" => Ok(Self::Soft(rest.to_owned())),
            "xdp" => Ok(Self::Xdp(rest.to_owned())),
            "tap" => tap(rest),
            _ => Err(SpecError::Kind(kind.to_owned())),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp:{address}"),
            Self::Raw(interface) => write!(f, "raw:{interface}"),
            Self::Soft(interface) => write!(f, "soft:{interface}"),
            Self::Xdp(interface) => write!(f, "xdp:{interface}"),
            Self::Tap { name, addresses } => {
                write!(f, "tap:{name}")?;
                let separators = ["@"].into_iter().chain(std::iter::repeat("+"));
                addresses.iter().zip(separators).try_for_each(|(at, mark)| write!(f, "{mark}{at}"))
            }
        }
    }
}

impl Spec {
    /// Returns the default devices: one on each interface that is up and has an address. Most
    /// programs take the first, which has to reach other hosts if any does: loopback comes after
    /// those with an address that other networks know, and before those that have link-local ones
    /// only.
    pub fn of_every_interface() -> io::Result<Vec<Self>> {
        let mut usable = interfaces()?;
        usable.retain(|interface| interface.up && !interface.addresses.is_empty());
        usable.sort_by_key(|interface| {
            let is_far = interface.addresses.iter().any(|address| !is_link_local(*address));
            (!is_far, interface.loopback)
        });
        Ok(usable.into_iter().map(|interface| Self::Soft(interface.name)).collect())
    }

    /// The one on loopback, if that is up and has an address.
    pub fn of_loopback() -> io::Result<Option<Self>> {
        let all = Self::of_every_interface()?;
        Ok(all.into_iter().find(Self::is_any_of_loopback))
    }

    /// Opens its link; its address may be known to be on an interface. This is the one place that
    /// knows which links there are.
    ///
    /// With `ROCE_SHM=off` in the environment, packets to programs on this machine go through the
    /// kernel, as all others do.
    pub fn open(&self, on: Option<&str>) -> Result<Link, OpenError> {
        let uses_shared_memory = variable("ROCE_SHM", "set it to on or off", switch)?;
        self.open_as(on, uses_shared_memory.unwrap_or(true))
    }

    /// Opens its link, by which packets to programs on this machine go through the kernel, as all
    /// others do.
    pub fn open_without_shared_memory(&self) -> Result<Link, OpenError> {
        self.open_as(None, false)
    }

    fn open_as(&self, on: Option<&str>, uses_shared_memory: bool) -> Result<Link, OpenError> {
        match self {
            Self::Udp(address) => {
                let mut options = udp::Options::new(*address);
                options.interface = on.map(ToOwned::to_owned);
                options.uses_shared_memory = uses_shared_memory;
                udp::open(&options)
            }
            Self::Soft(name) => open_first_free(&find_interface(name)?, uses_shared_memory),
            Self::Raw(name) => {
                find_interface(name)?;
                raw::open(&raw::Config::new(name))
            }
            Self::Xdp(name) => {
                find_interface(name)?;
                let mut config = xdp::Config::new(name);
                let expected = "set it to a number of microseconds";
                config.busy_poll =
                    variable("ROCE_XDP_BUSY_POLL", expected, |micros| micros.parse().ok())?;
                let rings = variable("ROCE_XDP_RINGS", "set it to on or off", switch)?;
                config.always_rings = rings.unwrap_or(false);
                xdp::open(&config)
            }
            Self::Tap { name, addresses } => open_tap(name, addresses),
        }
    }

    /// Whether it takes any address of loopback, of which one is always free unless another program
    /// has port 4791 of all addresses.
    pub fn is_any_of_loopback(&self) -> bool {
        matches!(self, Self::Soft(name) if find_interface(name).is_ok_and(|found| found.loopback))
    }

    /// The interface that it is on, if there is one with its name or its address.
    pub fn find_interface(&self) -> Option<Interface> {
        match self {
            Self::Raw(name) | Self::Soft(name) | Self::Xdp(name) => find_interface(name).ok(),
            // The interface is another host's end of the cable.
            Self::Tap { .. } => None,
            Self::Udp(address) => {
                let of_loopback = address.is_loopback() && address.is_ipv4();
                let has =
                    |it: &Interface| it.addresses.contains(address) || of_loopback && it.loopback;
                interfaces().ok()?.into_iter().find(has)
            }
        }
    }

    /// The GIDs that its port would have, without opening it, if its first address is free.
    pub fn gids(&self) -> Result<Vec<Gid>, OpenError> {
        match self {
            Self::Raw(name) | Self::Xdp(name) => Ok(find_interface(name)?.gids()),
            Self::Udp(_) | Self::Soft(_) => Ok(vec![self.first_gid()?]),
            Self::Tap { addresses, .. } => Ok(addresses.iter().map(|at| gid(at.address)).collect()),
        }
    }

    /// The interface that it names.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Udp(_) | Self::Tap { .. } => None,
            Self::Raw(name) | Self::Soft(name) | Self::Xdp(name) => Some(name),
        }
    }

    /// The first identifier that its port would have, without opening it, if the address is free.
    pub fn first_gid(&self) -> Result<Gid, OpenError> {
        match self {
            Self::Udp(address) => Ok(gid(*address)),
            Self::Soft(name) => Ok(gid(first_address(&find_interface(name)?)?)),
            Self::Raw(name) | Self::Xdp(name) => {
                let first = find_interface(name)?.gids().first().copied();
                first.ok_or_else(|| OpenError::NoAddress(name.clone()))
            }
            Self::Tap { name, addresses } => {
                let first = addresses.first().map(|at| gid(at.address));
                first.ok_or_else(|| OpenError::NoAddress(name.clone()))
            }
        }
    }
}

/// Reads the name of a TAP device and its addresses.
fn tap(text: &str) -> Result<Spec, SpecError> {
    let (name, list) = text.split_once('@').map_or((text, None), |(name, list)| (name, Some(list)));
    let list = list.into_iter().flat_map(|list| list.split('+'));
    let addresses = list.map(str::parse).collect::<Result<_, ()>>();
    let addresses = addresses.map_err(|()| SpecError::TapAddresses(text.to_owned()))?;
    match name {
        "" => Err(SpecError::Nothing("tap".to_owned())),
        name => Ok(Spec::Tap { name: name.to_owned(), addresses }),
    }
}

#[cfg(feature = "smoltcp")]
use super::phy::open_tap;

#[cfg(not(feature = "smoltcp"))]
fn open_tap(_: &str, _: &[Cidr]) -> Result<Link, OpenError> {
    Err(OpenError::NotBuilt { kind: "tap", feature: "smoltcp" })
}

fn find_interface(name: &str) -> Result<Interface, OpenError> {
    let all = interfaces().map_err(OpenError::Interfaces)?;
    if let Some(found) = all.iter().find(|interface| interface.name == name) {
        return Ok(found.clone());
    }
    // If a VLAN is missing, the message says how to create it.
    if let Some((under, vlan)) = name.rsplit_once('.')
        && all.iter().any(|interface| interface.name == under)
    {
        return Err(OpenError::NoVlan { under: under.to_owned(), vlan: vlan.to_owned() });
    }
    let there = all.into_iter().map(|interface| interface.name).collect();
    Err(OpenError::NoInterface { name: name.to_owned(), interfaces: there })
}

/// Returns the value of a variable of the environment, if it is set.
fn variable<T>(
    name: &'static str,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, OpenError> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    match parse(&value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(OpenError::Variable { name, value: value.into_owned(), expected }),
    }
}

/// Returns the position of a switch.
fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "1" | "yes" => Some(true),
        "off" | "0" | "no" => Some(false),
        _ => None,
    }
}

/// A link on the first free address of an interface. If there is none, the first one says why.
fn open_first_free(interface: &Interface, uses_shared_memory: bool) -> Result<Link, OpenError> {
    let first = first_address(interface)?;
    let open = |address| {
        let mut options = udp::Options::new(address);
        options.interface = Some(interface.name.clone());
        options.uses_shared_memory = uses_shared_memory;
        udp::open(&options)
    };
    let in_use = |link: &Result<Link, OpenError>| matches!(link, Err(OpenError::InUse { .. }));
    let link = open(first);
    if !in_use(&link) {
        return link;
    }
    let another = others(interface, first).map(open).find(|link| !in_use(link));
    another.unwrap_or(link)
}

/// The addresses of an interface besides this one, as far as they are of its kind.
fn others(interface: &Interface, first: IpAddr) -> impl Iterator<Item = IpAddr> {
    let listed = interface.addresses.iter().copied();
    let is_loopback = interface.loopback && first.is_loopback() && first.is_ipv4();
    let unlisted = is_loopback.then_some(1..=254).into_iter().flatten();
    let all = listed.chain(unlisted.map(|last| IpAddr::from([127, 0, 0, last])));
    all.filter(move |other| *other != first && other.is_ipv4() == first.is_ipv4())
}

/// The first address of an interface that others can be reached from; a link-local one only if
/// there is no other.
fn first_address(interface: &Interface) -> Result<IpAddr, OpenError> {
    let addresses = &interface.addresses;
    let far = |address: &&IpAddr| !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let found = addresses.iter().find(far).or_else(|| addresses.first());
    found.copied().ok_or_else(|| OpenError::NoAddress(interface.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_is_on_or_off_and_nothing_else() {
        assert_eq!(["on", "1", "yes"].map(switch), [Some(true); 3]);
        assert_eq!(["off", "0", "no"].map(switch), [Some(false); 3]);
        assert_eq!(["nope", "OFF", " off"].map(switch), [None; 3]);
    }

    #[test]
    fn devices_are_read_and_print_as_they_are_written() {
        let taps = ["tap:t0", "tap:t0@10.9.0.2/24", "tap:t0@10.9.0.2/24+fd09::2/64"];
        let others =
            ["udp:10.0.0.1", "udp:fe80::1", "raw:eth0", "raw:eth0.100", "soft:lo", "xdp:eth0"];
        for text in taps.into_iter().chain(others) {
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
            ("tap:", "nothing follows"),
            ("tap:@10.9.0.2/24", "nothing follows"),
            ("tap:t0@10.9.0.2", "tap:NAME@10.9.0.2/24"),
            ("tap:t0@", "no list of addresses"),
            ("mlx5_0:1", "no device of the kind 'mlx5_0'"),
        ] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
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
    fn second_program_on_an_interface_gets_its_next_address() {
        let lo = find_interface("lo").unwrap();
        let first = IpAddr::from([127, 0, 0, 1]);
        let next: Vec<IpAddr> = others(&lo, first).collect();
        assert_eq!((next.len(), next[0]), (253, IpAddr::from([127, 0, 0, 2])));
        let there = Interface { addresses: vec![first, "10.0.0.2".parse().unwrap()], ..lo };
        let there = Interface { loopback: false, ..there };
        assert_eq!(others(&there, first).collect::<Vec<_>>(), [IpAddr::from([10, 0, 0, 2])]);
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
