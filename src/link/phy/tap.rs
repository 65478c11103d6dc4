//! A TAP device as the network of a soft NIC.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use socket2::{Domain, Socket, Type};

use super::{Config, Wake, open_with_health};
use crate::link::interface::interfaces;
use crate::link::sys::tun;
use crate::link::{Cidr, Link, OpenError};
use crate::wire::{Ethernet, MacAddr};

/// The other end of a TAP device.
#[derive(Debug)]
pub(super) struct TapDevice {
    file: File,
    capabilities: DeviceCapabilities,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    /// Whether `leaving` holds a frame that the kernel had no room for.
    is_pending: bool,
    health: Arc<Health>,
}

/// Failures of a device, for the counters of its link.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Frames that the kernel refused: its interface is down.
    pub(super) refused: AtomicU64,
    /// Number of the error by which the device has gone; 0 if it has not.
    pub(super) gone: AtomicI32,
}

/// Opens the TAP device of this name as a link: a host of its own, with these addresses and a
/// link-local one, on a cable to the kernel's interface. A device that is made for it lasts as long
/// as the link, and is switched on; the kernel's end has no address yet.
///
/// The hardware address of the link is computed from that of the kernel's interface.
pub fn open_tap(name: &str, addresses: &[Cidr]) -> Result<Link, OpenError> {
    let fail = |what| move |source| OpenError::System { what, interface: name.to_owned(), source };
    let file = tun::open_tun().map_err(|source| OpenError::Tun { path: tun::TUN, source })?;
    let was_there = find(name)?.is_some();
    tun::attach(&file, name).map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied => OpenError::TapPrivilege { name: name.to_owned() },
        ErrorKind::ResourceBusy => OpenError::TapInUse { name: name.to_owned() },
        _ => fail("open a TAP device")(source),
    })?;
    let interface = find(name)?;
    let gone = || fail("find the TAP device")(ErrorKind::NotFound.into());
    let (mac, mtu) = interface.ok_or_else(gone)?;
    if !was_there {
        let any = Socket::new(Domain::UNIX, Type::DGRAM, None).map_err(fail("open a socket"))?;
        tun::set_up(any.as_fd(), name).map_err(fail("switch the TAP device on"))?;
    }
    let wake =
        Wake::Descriptor(file.as_fd().try_clone_to_owned().map_err(fail("wait for frames"))?);
    let mut config = Config::new(format!("tap:{name}"), neighbor_of(mac), wake);
    config.addresses = addresses.iter().map(|at| (at.address, at.prefix)).collect();
    let health = Arc::new(Health::default());
    let device = TapDevice::new(file, mtu, Arc::clone(&health));
    open_with_health(device, config, Some(health))
}

/// The hardware address and the MTU of an interface, if there is one of this name.
fn find(name: &str) -> Result<Option<(MacAddr, usize)>, OpenError> {
    let all = interfaces().map_err(OpenError::Interfaces)?;
    let found = all.into_iter().find(|interface| interface.name == name);
    Ok(found.and_then(|found| Some((found.mac?, found.mtu))))
}

/// The hardware address at the other end of an interface's cable: administered locally, and another
/// one.
fn neighbor_of(mac: MacAddr) -> MacAddr {
    let [a, b, c, d, e, f] = mac.0;
    MacAddr([(a | 2) & !1, b, c, d, e, f ^ 1])
}

impl TapDevice {
    fn new(file: File, mtu: usize, health: Arc<Health>) -> Self {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = mtu + Ethernet::LEN;
        let arrived = vec![0; capabilities.max_transmission_unit];
        Self { file, capabilities, arrived, leaving: Vec::new(), is_pending: false, health }
    }
}

impl Device for TapDevice {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let Self { file, arrived, leaving, is_pending, health, .. } = self;
        match (&*file).read(arrived) {
            Ok(len) => {
                let rx = RxToken(arrived.get(..len).unwrap_or_default());
                Some((rx, TxToken { file, leaving, is_pending, health }))
            }
            Err(error) => {
                health.note(&error);
                None
            }
        }
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        let Self { file, leaving, is_pending, health, .. } = self;
        let mut token = TxToken { file, leaving, is_pending, health };
        if *token.is_pending {
            token.write();
        }
        (!*token.is_pending).then_some(token)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

impl Health {
    /// Notes an error of a read or a write, if it is for good.
    fn note(&self, error: &io::Error) {
        // The interface was deleted.
        if let Some(number @ (libc::EBADFD | libc::EBADF | libc::ENODEV)) = error.raw_os_error() {
            self.gone.store(number, Ordering::Relaxed);
        }
    }
}

/// A frame that has arrived.
#[derive(Debug)]
pub(super) struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Room for a frame.
#[derive(Debug)]
pub(super) struct TxToken<'a> {
    file: &'a File,
    leaving: &'a mut Vec<u8>,
    is_pending: &'a mut bool,
    health: &'a Health,
}

impl TxToken<'_> {
    fn write(&mut self) {
        *self.is_pending = false;
        match { self.file }.write(self.leaving) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => *self.is_pending = true,
            Err(error) => {
                self.health.note(&error);
                self.health.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, write: F) -> R {
        if *self.is_pending {
            // Only a token of `receive` gets here, which the caller does not send by.
            self.health.refused.fetch_add(1, Ordering::Relaxed);
            return write(&mut vec![0; len]);
        }
        self.leaving.clear();
        self.leaving.resize(len, 0);
        let result = write(self.leaving);
        self.write();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_address_is_another_one_and_of_one_host() {
        for mac in [[0, 1, 2, 3, 4, 5], [0xff; 6], [2, 0, 0, 0, 0, 0]].map(MacAddr) {
            let neighbor = neighbor_of(mac);
            assert_ne!(neighbor, mac);
            assert_eq!(neighbor.0[0] & 3, 2, "administered locally, and no group's");
        }
    }
}
