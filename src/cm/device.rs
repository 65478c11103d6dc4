//! Devices: what the manager must know of an RNIC.

use core::net::IpAddr;

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
    /// The CA GUID in messages. Peers take two connections of the same GUID and QPN for one that was lost, and end the older:
    /// no two processes may use the same, and a restarted one should have another.
    pub guid: u64,
    /// Its addresses, each with the index of its GID.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The GID with index 0, which a REJ for a wrong GID tells.
    pub port_gid: Gid,
    /// Its port.
    pub port_num: PortNum,
    /// The path MTU.
    pub mtu: Mtu,
    /// How long it takes to acknowledge, as a code (`local_ca_ack_delay`).
    pub ack_delay: u8,
    /// Its partition.
    pub pkey: PKey,
    /// Whether peers may FLUSH its memory.
    pub flush: bool,
    /// Whether it answers for everything that no id knows: REJ 8, REJ 6, SIDR_REP 1 and DREP. Of several managers on one
    /// address just one may.
    pub answers_unknown: bool,
    /// Whether managers of other processes have the same addresses. Then the caller decides about such an answer, because
    /// the message may be another's: see [`Manager::poll_unclaimed`](super::Manager::poll_unclaimed).
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
