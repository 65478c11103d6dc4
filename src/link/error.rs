//! Errors of opening a link.

use std::fmt::{self, Write as _};
use std::io;
use std::net::IpAddr;

use thiserror::Error;

use super::Holder;
use crate::verbs::Mtu;
use crate::wire::ROCE_PORT;

/// Error of opening a link.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces")]
    Interfaces(#[source] io::Error),
    /// No interface has this name.
    #[error("there is no interface {name}; this machine has {}", list(.interfaces))]
    NoInterface {
        /// Name that was given.
        name: String,
        /// Interfaces of this host.
        interfaces: Vec<String>,
    },
    /// No interface belongs to this VLAN.
    #[error(
        "there is no interface {under}.{vlan}; `ip link add link {under} name {under}.{vlan} type vlan id {vlan}` creates \
         it"
    )]
    NoVlan {
        /// The interface that it would be on.
        under: String,
        /// Number of the VLAN.
        vlan: String,
    },
    /// A VLAN has a number up to 4094.
    #[error("there is no VLAN {0}: the last is 4094")]
    VlanOutOfRange(u16),
    /// The interface has no address.
    #[error("{0} has no address; `ip address add 192.0.2.1/24 dev {0}` gives it one")]
    NoAddress(String),
    /// More addresses than a link can have.
    #[error("{count} addresses are more than the {max} of a link: name those that it is for")]
    TooManyAddresses {
        /// Number of addresses.
        count: usize,
        /// Maximum number of a link.
        max: usize,
    },
    /// The address is not that of one host.
    #[error("{0} is not the address of one host: name an address of this machine")]
    NotOneHost(IpAddr),
    /// No interface has the address.
    #[error("{address} is not an address of this machine, which has {}", list(.addresses))]
    NotLocal {
        /// The address.
        address: IpAddr,
        /// Addresses of this host.
        addresses: Vec<IpAddr>,
    },
    /// Several interfaces have the address.
    #[error("{address} is an address of {}: say which interface is meant", list(.interfaces))]
    Ambiguous {
        /// The address.
        address: IpAddr,
        /// The interfaces.
        interfaces: Vec<String>,
    },
    /// The address cannot be used yet.
    #[error(
        "{address} is not usable yet: the system still checks that no other host on {interface} has it; wait a second or two"
    )]
    Tentative {
        /// The address.
        address: IpAddr,
        /// Interface of the address.
        interface: String,
    },
    /// The port is used by others.
    #[error(
        "UDP port {ROCE_PORT} of {address} is taken by {holder}: {}, or use another address of this machine",
        .holder.cure()
    )]
    InUse {
        /// The address.
        address: IpAddr,
        /// Holder of the address.
        holder: Holder,
    },
    /// A raw link needs a capability.
    #[error(
        "raw:{interface} needs the capability CAP_NET_RAW: grant it with `setcap cap_net_raw+ep PROGRAM`, or run in a \
         network namespace of your own (`unshare -Urn`); `udp:ADDRESS` needs no privilege"
    )]
    Privilege {
        /// The interface.
        interface: String,
    },
    /// A variable of the environment has a value without meaning.
    #[error("{name}=`{value}` means nothing: {expected}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        expected: &'static str,
    },
    /// A TAP device needs a file of the system.
    #[error(
        "cannot open {path}: {source}; TAP devices need it: `modprobe tun`, in a container `--device {path}`, and the right to \
         read and write it"
    )]
    Tun {
        /// The file.
        path: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// A TAP device needs a capability, or another user has it.
    #[error(
        "tap:{name} needs the capability CAP_NET_ADMIN: run as root or in a network namespace of your own (`unshare -Urn`), or \
         have root make the device for you: `ip tuntap add dev {name} mode tap user $USER`"
    )]
    TapPrivilege {
        /// Name of the device.
        name: String,
    },
    /// Another program has a TAP device.
    #[error("another program has the TAP device {name}: end it, or use another name")]
    TapInUse {
        /// Name of the device.
        name: String,
    },
    /// A link by AF_XDP needs capabilities.
    #[error(
        "xdp:{interface} needs the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF of the initial user namespace, which \
         `unshare -Ur` does not give: run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM`; \
         raw:{interface} needs CAP_NET_RAW alone"
    )]
    XdpPrivilege {
        /// The interface.
        interface: String,
    },
    /// An interface has an XDP program.
    #[error(
        "{interface} has an XDP program already, {program}: end the program that it belongs to, or take it off with `ip link set dev \
         {interface} xdp off`"
    )]
    XdpProgram {
        /// The interface.
        interface: String,
        /// Name or number of the program.
        program: String,
    },
    /// A queue of an interface has a socket of AF_XDP.
    #[error("another program has a socket of AF_XDP on queue {queue} of {interface}: end it")]
    XdpQueue {
        /// The interface.
        interface: String,
        /// Number of the queue.
        queue: u32,
    },
    /// The program was built without a kind of link.
    #[error(
        "this program was built without {kind}: devices: build it with the feature `{feature}`"
    )]
    NotBuilt {
        /// Kind of link.
        kind: &'static str,
        /// Feature that it needs.
        feature: &'static str,
    },
    /// The system forbids an operation.
    #[error("the system forbids {what}: a sandbox or a security policy is in the way ({source})")]
    Forbidden {
        /// Operation that is forbidden.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// Not even the smallest packets fit.
    #[error(
        "{interface} has an MTU of {mtu}, too small for RoCE: raise it to {} or more",
        smallest_mtu()
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// MTU of the interface.
        mtu: usize,
    },
    /// The system refused an operation.
    #[error("cannot {what} on {interface}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// The interface.
        interface: String,
        /// Error of the system.
        source: io::Error,
    },
}

/// The smallest MTU of an interface that RoCE fits into.
const fn smallest_mtu() -> usize {
    Mtu::M256.bytes() + Mtu::KERNEL_HEADERS
}

/// Joins items to a list.
fn list(things: &[impl fmt::Display]) -> String {
    let mut list = String::new();
    for (index, thing) in things.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(list, "{comma}{thing}");
    }
    if list.is_empty() { "none".into() } else { list }
}
