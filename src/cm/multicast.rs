//! Multicast groups. On RoCE no subnet administrator is asked: the group's GID and MAC follow from
//! its address, and a join is done as soon as it is asked for. The caller joins the group on the
//! network, and attaches the QP.

use core::net::IpAddr;

use super::Manager;
use super::config::UDP_Q_KEY;
use super::device::gid_of;
use super::error::Error;
use super::event::{EventKind, EventParam, UdEvent};
use super::private_data::PrivateData;
use super::state::IdState;
use super::table::CmId;
use crate::verbs::AhAttr;
use crate::wire::{Gid, MacAddr, Qpn};

/// A multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Address.
    pub address: IpAddr,
    /// GID.
    pub gid: Gid,
    /// The Ethernet address of its packets.
    pub mac: MacAddr,
}

impl Group {
    /// The group with this address, if it is one of a group.
    pub fn new(address: IpAddr) -> Option<Self> {
        if !address.is_multicast() {
            return None;
        }
        let mac = match address {
            // RFC 1112, 6.4: the low 23 bits.
            IpAddr::V4(v4) => {
                let [_, b, c, d] = v4.octets();
                MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            // RFC 2464, 7: the low 32 bits.
            IpAddr::V6(v6) => {
                let [.., a, b, c, d] = v6.octets();
                MacAddr([0x33, 0x33, a, b, c, d])
            }
        };
        Some(Self { address, gid: gid_of(address), mac })
    }
}

/// Role of a member of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum JoinMode {
    /// Sends and receives.
    #[default]
    FullMember,
    /// Only sends: its QP need not be attached.
    SendOnly,
}

/// An id's membership in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) group: Group,
    pub(super) mode: JoinMode,
}

impl Manager {
    /// Makes an id of the UDP port space a member of a group. MULTICAST_JOIN comes at once, with
    /// the way to the group and `join_context`. The caller joins the group that is returned on the
    /// network.
    pub fn join(
        &mut self,
        id: CmId,
        address: IpAddr,
        mode: JoinMode,
        join_context: u64,
    ) -> Result<Group, Error> {
        self.require_event_room(id)?;
        let group = Group::new(address).ok_or(Error::Argument("multicast address"))?;
        let limit = self.config.limits.groups;
        let entry = self.id(id)?;
        if !matches!(entry.state, IdState::AddrBound | IdState::AddrResolved) {
            return Err(Error::State(entry.state));
        }
        if !entry.is_datagram() {
            return Err(Error::Argument("port space: it has no multicast"));
        }
        if entry.groups.iter().any(|member| member.group == group) {
            return Err(Error::AddressInUse);
        }
        if entry.groups.len() >= limit {
            return Err(Error::Exhausted("groups"));
        }
        let device = entry.device.and_then(|device| self.devices.get(device));
        let device = device.ok_or(Error::NoDevice)?;
        let source = entry.source.ok_or(Error::NoDevice)?;
        let ah = AhAttr {
            hop_limit: entry.hop_limit,
            traffic_class: entry.tos.unwrap_or(0),
            port_num: device.port_num,
            ..AhAttr::new(group.gid, device.gid_index(gid_of(source.ip())).unwrap_or_default())
        };
        if let Some(entry) = self.ids.get_mut(id) {
            entry.groups.push(Membership { group, mode });
        }
        let param = EventParam::Ud(UdEvent {
            private_data: PrivateData::NONE,
            ah: Some(ah),
            qpn: Qpn::MULTICAST,
            q_key: UDP_Q_KEY,
            join_context,
        });
        self.deliver(id, EventKind::MulticastJoin, 0, param);
        Ok(group)
    }

    /// Ends a membership. The caller leaves the group that is returned on the network; its join
    /// event, if the program has not taken it, is dropped.
    pub fn leave(&mut self, id: CmId, address: IpAddr) -> Result<Group, Error> {
        let entry = self.ids.get_mut(id).ok_or(Error::NotFound("id"))?;
        let found = entry.groups.iter().position(|member| member.group.address == address);
        let at = found.ok_or(Error::AddressNotAvailable)?;
        let group = entry.groups.remove(at).group;
        let channel = entry.channel;
        if let Some(channel) = self.channels.get_mut(channel) {
            let is_join = |param: &EventParam| match param {
                EventParam::Ud(ud) => ud.ah.is_some_and(|ah| ah.dgid == group.gid),
                _ => false,
            };
            channel.events.retain(|event| {
                let kind = event.kind == EventKind::MulticastJoin;
                !(event.id == id && kind && is_join(&event.param))
            });
        }
        Ok(group)
    }

    /// The groups of an id, with what it does in each.
    pub fn groups(&self, id: CmId) -> impl Iterator<Item = (Group, JoinMode)> {
        let members = self.ids.get(id).map(|id| id.groups.as_slice()).unwrap_or_default();
        members.iter().map(|member| (member.group, member.mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_follows_from_its_address() {
        let group = |text: &str| Group::new(text.parse().unwrap());
        let v4 = group("239.129.2.3").unwrap();
        assert_eq!(v4.mac.to_string(), "01:00:5e:01:02:03");
        assert_eq!(v4.gid.to_string(), "::ffff:239.129.2.3");
        let v6 = group("ff02::1:ff00:1234").unwrap();
        assert_eq!(v6.mac.to_string(), "33:33:ff:00:12:34");
        assert_eq!(v6.gid.to_string(), "ff02::1:ff00:1234");
        assert_eq!((group("10.0.0.1"), group("fd00::1")), (None, None));
    }
}
