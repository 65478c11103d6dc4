//! The NICs that the manager uses. They are opened at need: an address that is bound, a destination
//! that is resolved or a listener on every address says which. They stay open, as librdmacm leaves
//! its devices open.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use roce::cm::DeviceId;
use roce::link::Spec;
use roce::link::interface::Interface;
use roce::link::route::Route;
use roce::nic::SoftNic;

use super::Process;
use crate::call::{Failed, Result};
use crate::device::Device;
use crate::events::lock;

/// The index of a device that has none.
pub(super) const NO_INDEX: u32 = u32::MAX;

/// The NICs of a process that its manager uses.
#[derive(Debug, Default)]
pub(super) struct Nics {
    open: Mutex<BTreeMap<DeviceId, (&'static Device, Arc<SoftNic>)>>,
    /// Held while one is opened.
    opening: Mutex<()>,
}

impl Nics {
    /// The device of a NIC.
    pub(super) fn device(&self, id: DeviceId) -> Option<&'static Device> {
        lock(&self.open).get(&id).map(|(device, _)| *device)
    }

    /// The NIC of a device.
    pub(super) fn nic(&self, id: DeviceId) -> Option<Arc<SoftNic>> {
        lock(&self.open).get(&id).map(|(_, nic)| Arc::clone(nic))
    }

    fn find(&self, device: &'static Device) -> Option<DeviceId> {
        let open = lock(&self.open);
        open.iter().find(|(_, (known, _))| std::ptr::eq(*known, device)).map(|(id, _)| *id)
    }

    /// Opens a device, at this address if it can choose.
    pub(super) fn open(
        &self,
        process: &Process,
        device: &'static Device,
        at: Option<IpAddr>,
    ) -> Result<DeviceId> {
        let _opening = lock(&self.opening);
        if let Some(open) = self.find(device) {
            return Ok(open);
        }
        let nic = device.open_at(at)?;
        crate::sysfs::refresh();
        let id = process
            .service
            .add_nic(&nic)
            .map_err(|error| crate::env::failed(&error, libc::ENODEV))?;
        lock(&self.open).insert(id, (device, nic));
        Ok(id)
    }

    /// Opens the device that has this address; fails with `ENODEV` if none has, and with
    /// `EADDRINUSE` if another program uses it.
    pub(super) fn open_at(&self, process: &Process, address: IpAddr) -> Result<()> {
        let is_open = || process.command(|manager, _| Ok(manager.device_at(address).is_some()));
        if is_open()? {
            return Ok(());
        }
        let mut why = Failed::ENODEV;
        for device in Device::list()?.into_iter().filter(|device| can_have(&device.spec, address)) {
            match self.open(process, device, Some(address)) {
                Ok(_) if is_open()? => return Ok(()),
                Ok(_) => {}
                Err(failed) => why = failed,
            }
        }
        Err(why)
    }

    /// Opens every device; fails if none can be opened.
    pub(super) fn open_all(&self, process: &Process) -> Result<()> {
        let mut why = Some(Failed::ENODEV);
        for device in Device::list()? {
            match self.open(process, device, None) {
                Ok(_) => why = None,
                Err(failed) => why = why.map(|_| failed),
            }
        }
        why.map_or(Ok(()), Err)
    }

    /// Opens the device from which an address is reached, unless the program chose its source. If
    /// there is none, the manager says so by an event.
    pub(super) fn open_towards(
        &self,
        process: &Process,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<()> {
        let route = process.service.route_to(destination, source).map_err(|_| Failed::ENODEV)?;
        let route =
            route.map_err(|error| Failed(error.raw_os_error().unwrap_or(libc::ENETUNREACH)))?;
        if source.is_some() {
            return Ok(());
        }
        let is_ipv4 = destination.is_ipv4();
        let wish = route.source.filter(|source| !source.is_loopback() || !is_ipv4);
        let devices = Device::list()?;
        if devices.iter().all(|device| self.find(device).is_some()) {
            return Ok(());
        }
        let on_route = devices.iter().filter(|device| is_on_route(&device.spec, &route));
        let others = devices.iter().filter(|_| route.is_local);
        for (device, wish) in on_route
            .clone()
            .map(|device| (*device, wish))
            .chain(on_route.map(|device| (*device, None)))
            .chain(others.map(|device| (*device, None)))
        {
            let wish = wish.filter(|wish| can_have(&device.spec, *wish));
            if let Ok(id) = self.open(process, device, wish)
                && process.command(|manager, _| {
                    let device = manager.device(id).ok_or(Failed::ENODEV)?;
                    Ok(device.addresses.iter().any(|(own, _)| own.is_ipv4() == is_ipv4))
                })?
            {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a device can be opened at an address.
pub(super) fn can_have(spec: &Spec, address: IpAddr) -> bool {
    let has = |interface: Interface| {
        interface.addresses.contains(&address)
            || interface.loopback && address.is_loopback() && address.is_ipv4()
    };
    match spec {
        Spec::Udp(own) => *own == address,
        Spec::Soft(_) | Spec::Raw(_) | Spec::Xdp(_) => spec.find_interface().is_some_and(has),
        Spec::Tap { addresses, .. } => addresses.iter().any(|own| own.address == address),
    }
}

/// Whether a device is on the interface of a route.
fn is_on_route(spec: &Spec, route: &Route) -> bool {
    spec.find_interface().is_some_and(|interface| interface.index == route.interface)
}
