//! A soft NIC on any device that smoltcp drives: TAP devices, DPDK ports, microcontrollers,
//! simulators.
//!
//! There is no kernel with addresses, routes and neighbors. smoltcp's interface has them: it
//! answers ARP, neighbor discovery and ping, looks for the hardware addresses of neighbors, and
//! tells switches which multicast groups the link is in. Packets of RoCE go past it, with every
//! header in hand, so the whole ICRC is checked.
//!
//! - Frames that are not RoCE for one of the link's addresses are smoltcp's; so are pings. A queue
//!   of 64 holds them: what does not fit is dropped and counted.
//! - Packets to a neighbor that is not known yet wait until smoltcp has found it, up to 512 of them
//!   and three seconds.
//! - Frames for which the device has no room wait, up to 512 of them.
//! - Packets to an address of the link itself, and copies of those to multicast groups that it is
//!   in, come back without touching the device.
//!
//! [`open_tap`] opens a TAP device: the soft NIC is then a host of its own, on a cable to the
//! kernel's interface. The command knows it as `tap:NAME`.
//!
//! ```
//! use roce::link::phy::smoltcp::phy::{Loopback, Medium};
//! use roce::link::phy::{self, Config, Wake};
//! use roce::nic::SoftNic;
//! use roce::wire::MacAddr;
//!
//! // Polled a thousand times a second while nothing else drives the NIC.
//! let wake = Wake::Every(std::time::Duration::from_millis(1));
//! let mut config = Config::new("sim:0", MacAddr([2, 0, 0, 0, 0, 1]), wake);
//! config.addresses = vec![("192.0.2.1".parse()?, 24)];
//! let link = phy::open(Loopback::new(Medium::Ethernet), config)?;
//! let nic = SoftNic::start(link)?;
//! # drop(nic);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod halves;
mod neighbors;
mod own;
mod queue;
mod stack;
mod tap;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use ::smoltcp;
use smoltcp::phy::{Device, Medium};

pub use self::tap::open_tap;

use self::halves::{PhyReceiver, PhySender};
use self::stack::Stack;
use self::tap::Health;
use super::bell::Bell;
use super::interface::{default_gid, gid};
use super::{Link, OpenError, Port, Sharing};
use crate::verbs::Mtu;
use crate::wire::MacAddr;

/// Configuration of a link on a device.
#[derive(Debug)]
#[non_exhaustive]
pub struct Config {
    /// Name of the port.
    pub name: String,
    /// Hardware address of the NIC.
    pub mac: MacAddr,
    /// Addresses with the lengths of their prefixes, at most [`ADDRESSES_MAX`]. The link-local
    /// address of IPv6 that the hardware address gives is added behind them.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routers for destinations outside of these prefixes: at most one of IPv4 and one of IPv6.
    pub gateways: Vec<IpAddr>,
    /// Source of wake-ups when frames have arrived.
    pub wake: Wake,
    /// Seed of smoltcp's random numbers.
    pub seed: u64,
}

impl Config {
    /// A device with this name and hardware address, and with the link-local address alone.
    pub fn new(name: impl Into<String>, mac: MacAddr, wake: Wake) -> Self {
        let (addresses, gateways) = (Vec::new(), Vec::new());
        Self { name: name.into(), mac, addresses, gateways, wake, seed: 0 }
    }
}

/// Way by which a NIC learns that frames have arrived.
#[derive(Debug)]
pub enum Wake {
    /// A descriptor that is readable while the device has frames.
    Descriptor(OwnedFd),
    /// The device has none, and is asked at this interval while no program polls.
    Every(Duration),
}

/// Maximum number of addresses of a link, its link-local one not included: smoltcp's table has
/// eight.
pub const ADDRESSES_MAX: usize = 7;

const _: () = assert!(ADDRESSES_MAX < smoltcp::config::IFACE_MAX_ADDR_COUNT);

/// Opens a link on a device.
pub fn open<D: Device + Send + 'static>(device: D, config: Config) -> Result<Link, OpenError> {
    open_with_health(device, config, None)
}

fn open_with_health<D: Device + Send + 'static>(
    mut device: D,
    config: Config,
    health: Option<Arc<Health>>,
) -> Result<Link, OpenError> {
    check_addresses(&config)?;
    let capabilities = device.capabilities();
    if capabilities.medium != Medium::Ethernet {
        let why = std::io::Error::other("the device carries no Ethernet frames");
        let what = "open a link";
        return Err(OpenError::System { what, interface: config.name, source: why });
    }
    let fail = |source| OpenError::System {
        what: "wait for frames",
        interface: config.name.clone(),
        source,
    };
    let mtu = capabilities.ip_mtu();
    let verbs_mtu = Mtu::for_ethernet(mtu)
        .ok_or_else(|| OpenError::MtuTooSmall { interface: config.name.clone(), mtu })?;
    let (bell, interval) = match &config.wake {
        Wake::Descriptor(fd) => (Bell::new([fd.as_fd()]), None),
        Wake::Every(interval) => (Bell::new([]), Some(*interval)),
    };
    let bell = Arc::new(bell.map_err(fail)?);
    let link_local = default_gid(config.mac);
    let gids = config.addresses.iter().map(|(address, _)| gid(*address)).chain([link_local]);
    let gids: Vec<_> = gids.collect();
    let port = Port {
        name: config.name.clone(),
        gids: gids.clone(),
        mtu: verbs_mtu,
        interface: None,
        sharing: Sharing::Exclusive,
    };
    let stack = Stack::new(&mut device, &config, gids, Arc::clone(&bell));
    let shared = Arc::new(Mutex::new((device, stack)));
    let frame_max = capabilities.max_transmission_unit;
    let sender = PhySender::new(Arc::clone(&shared), config.mac);
    let receiver = PhyReceiver::new(shared, bell, config.wake, interval, frame_max, health);
    let (sender, receiver) = (Box::new(sender), Box::new(receiver));
    Ok(Link { sender, receiver, port, frames: None, monitor: None })
}

/// Checks that every address is that of one host, and that there are not too many.
fn check_addresses(config: &Config) -> Result<(), OpenError> {
    let count = config.addresses.len();
    if count > ADDRESSES_MAX {
        return Err(OpenError::TooManyAddresses { count, max: ADDRESSES_MAX });
    }
    let is_host = |address: &IpAddr| {
        let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        !address.is_multicast() && !address.is_unspecified() && !is_broadcast
    };
    let all = config.addresses.iter().map(|(address, _)| address).chain(&config.gateways);
    let wrong = all.copied().find(|address| !is_host(address));
    wrong.map_or(Ok(()), |address| Err(OpenError::NotOneHost(address)))
}
