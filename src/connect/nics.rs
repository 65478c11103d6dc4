//! The NICs of a service, as devices of the manager.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::cm::{Device, DeviceId, Manager, Received, Transmit};
use crate::device::Device as _;
use crate::nic::{Gsi, GsiDatagram, GsiSendError, SoftNic};
use crate::secret::Seed;
use crate::time::Instant;
use crate::wire::Gid;

/// The NICs of a service.
#[derive(Debug, Default)]
pub(super) struct Nics {
    open: BTreeMap<DeviceId, Arc<Gsi>>,
    /// Reused for each batch of MADs.
    batch: Vec<GsiDatagram>,
}

/// The address that a GID stands for.
pub(super) fn address_of(gid: Gid) -> IpAddr {
    gid.to_ipv4().map_or_else(|| Ipv6Addr::from(gid.0).into(), Into::into)
}

/// The addresses that the GIDs of a port stand for, each with its index. Zero is none.
fn addresses_of(gids: &[Gid]) -> Vec<(IpAddr, u8)> {
    let numbered = (0_u8..=u8::MAX).zip(gids);
    let present = numbered.filter(|(_, gid)| **gid != Gid::default());
    present.map(|(index, gid)| (address_of(*gid), index)).collect()
}

/// Describes a NIC to the manager. Its GUID is random: peers take two connections of the same GUID
/// and QPN for one.
pub(super) fn describe(nic: &SoftNic) -> std::io::Result<Device> {
    let gids = nic.gids();
    Ok(Device {
        guid: random_guid()?,
        addresses: addresses_of(&gids),
        port_gid: gids.first().copied().unwrap_or_default(),
        mtu: nic.query_port()?.active_mtu,
        is_shared: nic.port().sharing.is_shared(),
        ..Device::new(0, IpAddr::from([0; 4]))
    })
}

/// A random EUI-64 with the local bit set.
fn random_guid() -> std::io::Result<u64> {
    const LOCAL: u64 = 0x0200_0000_0000_0000;
    const GROUP: u64 = 0x0100_0000_0000_0000;
    let random = crate::secret::SecretRandom::new(Seed::from_system()?).next();
    Ok((random | LOCAL) & !GROUP)
}

impl Nics {
    pub(super) fn insert(&mut self, device: DeviceId, gsi: Gsi) {
        self.open.insert(device, Arc::new(gsi));
    }

    pub(super) fn remove(&mut self, device: DeviceId) -> Option<Arc<Gsi>> {
        self.open.remove(&device)
    }

    pub(super) fn remove_all(&mut self) -> Vec<Arc<Gsi>> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Gsi>> {
        self.open.values().cloned().collect()
    }

    /// Gives the manager the MADs that came, a batch of each NIC, and follows what became of the
    /// ports. A NIC that has more asks to be served once more.
    pub(super) fn receive(&mut self, manager: &mut Manager, now: Instant) {
        let mut closed = Vec::new();
        for (&device, gsi) in &self.open {
            if !gsi.is_readable() {
                continue;
            }
            self.batch.clear();
            gsi.receive(&mut self.batch);
            for datagram in &self.batch {
                let received = Received {
                    device,
                    source: datagram.source,
                    destination: datagram.destination,
                    traffic_class: datagram.traffic_class,
                    mad: datagram.mad(),
                };
                manager.handle_mad(now, &received);
            }
            if self.batch.is_empty() {
                if !gsi.is_open() {
                    closed.push(device);
                } else if let Some(entry) = manager.device_mut(device) {
                    // Woken without a datagram: the port has changed.
                    entry.addresses = addresses_of(&gsi.gids());
                }
            }
        }
        for device in closed {
            self.open.remove(&device);
            let _ = manager.remove_device(device);
        }
    }

    /// Queues a MAD on queue pair 1 of its NIC; whether it has to be tried once more later.
    pub(super) fn send(&self, transmit: &Transmit) -> Sent {
        let Some(gsi) = self.open.get(&transmit.device) else { return Sent::Dropped };
        match gsi.send(transmit.ah, &transmit.mad) {
            Ok(()) => Sent::Queued(Arc::clone(gsi)),
            Err(GsiSendError::Full) => Sent::Full(Arc::clone(gsi)),
            // As good as lost: the peer or a timer repeats it.
            Err(_) => Sent::Dropped,
        }
    }
}

/// Result of sending a MAD.
pub(super) enum Sent {
    /// The MAD is in the send queue.
    Queued(Arc<Gsi>),
    /// The send queue has no room.
    Full(Arc<Gsi>),
    /// The NIC is closed, or has lost the address that the MAD would come from.
    Dropped,
}
