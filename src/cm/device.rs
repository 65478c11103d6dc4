//! Devices: facts about an RNIC that the manager needs.

use core::net::IpAddr;

use super::Manager;
use super::connection::Connection;
use super::error::Error;
use super::event::{EventKind, EventParam};
use super::state::IdState;
use super::table::{ConnectionId, DeviceId};
use crate::verbs::{Mtu, PortNum};
use crate::wire::{Gid, PKey};

/// The GID of an IP address on RoCE.
pub(super) fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from(v4),
        IpAddr::V6(v6) => Gid::from(v6),
    }
}

/// An RNIC, as its connection manager sees it. It has one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The CA GUID in messages. Peers take two connections of the same GUID and QPN for one that
    /// was lost, and end the older: no two processes may use the same, and a restarted one should
    /// have another.
    pub guid: u64,
    /// Addresses, each with the index of its GID.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The GID with index 0, which a REJ for a wrong GID tells.
    pub port_gid: Gid,
    /// Port.
    pub port_num: PortNum,
    /// The path MTU.
    pub mtu: Mtu,
    /// Delay of acknowledgements, as a code (`local_ca_ack_delay`).
    pub ack_delay: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Whether peers may FLUSH its memory.
    pub flush: bool,
    /// Whether it answers for everything that no id knows: REJ 8, REJ 6, SIDR_REP 1 and DREP. Of
    /// several managers on one address just one may.
    pub answers_unknown: bool,
    /// Whether managers of other processes have the same addresses. Then the caller decides about
    /// such an answer, because the message may be another's: see
    /// [`Manager::poll_unclaimed`](super::Manager::poll_unclaimed).
    pub is_shared: bool,
}

impl Device {
    /// A device with this GUID and address, and otherwise as rxe on an Ethernet of 1500 bytes.
    pub fn new(guid: u64, address: IpAddr) -> Self {
        Self {
            guid,
            addresses: vec![(address, 1)],
            port_gid: gid_of(address),
            port_num: PortNum::FIRST,
            mtu: Mtu::M1024,
            ack_delay: 15,
            pkey: PKey::DEFAULT,
            flush: false,
            answers_unknown: true,
            is_shared: false,
        }
    }

    /// The index of the GID of an address, if it is the device's.
    pub(super) fn gid_index(&self, gid: Gid) -> Option<u8> {
        let found = self.addresses.iter().find(|(address, _)| gid_of(*address) == gid);
        found.map(|(_, index)| *index)
    }

    /// Whether the device has this address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }
}

impl Manager {
    /// Adds a device. Wildcard listeners hear on it at once.
    pub fn add_device(&mut self, device: Device) -> Result<DeviceId, Error> {
        self.devices.insert(device).ok_or(Error::Exhausted("devices"))
    }

    /// The device with this name.
    pub fn device(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(device)
    }

    /// The device with this name, to give it another address or another say about unknown
    /// connections.
    pub fn device_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(device)
    }

    /// Every device, by name.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.devices.iter()
    }

    /// The device that has this address.
    pub fn device_at(&self, address: IpAddr) -> Option<DeviceId> {
        self.devices.iter().find(|(_, device)| device.has(address)).map(|(name, _)| name)
    }

    /// Removes a device. Its connections end without a message; each of its ids gets
    /// DEVICE_REMOVAL, and is to be destroyed.
    pub fn remove_device(&mut self, device: DeviceId) -> Result<(), Error> {
        self.devices.remove(device).ok_or(Error::NotFound("device"))?;
        let on_it = |(name, connection): (ConnectionId, &Connection)| {
            (connection.device == device).then_some(name)
        };
        for connection in self.connections.iter().filter_map(on_it).collect::<Vec<_>>() {
            self.free(connection);
        }
        let ids = self.ids.iter().filter(|(_, id)| id.device == Some(device));
        for id in ids.map(|(name, _)| name).collect::<Vec<_>>() {
            self.cancel_query(id);
            if let Some(entry) = self.ids.get_mut(id) {
                entry.state = IdState::DeviceRemoved;
            }
            self.deliver(id, EventKind::DeviceRemoval, 0, EventParam::None);
        }
        Ok(())
    }
}
