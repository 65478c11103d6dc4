//! Multicast groups of datagram queue pairs.

use super::{Counter, Engine};
use crate::verbs::{CreateError, DestroyError, QpHandle, QpType};
use crate::wire::{Gid, Packet, Received, Service};

impl Engine {
    /// Attaches a datagram queue pair to a multicast group.
    pub fn attach_multicast(&mut self, handle: QpHandle, group: Gid) -> Result<(), CreateError> {
        let max = self.env.config.limits.group_members;
        let qp = self.qps.get_mut(handle.0).ok_or(CreateError::NotFound("queue pair"))?;
        if qp.attr().kind != QpType::Ud {
            return Err(CreateError::Invalid(
                "only UD queue pairs can be attached to a multicast group",
            ));
        }
        if !group.is_multicast() {
            return Err(CreateError::Invalid("a multicast address is in ff00::/8 or 224.0.0.0/4"));
        }
        let members = self.groups.entry(group.0).or_default();
        if members.contains(&handle) {
            return Ok(());
        }
        if members.len() >= max {
            return Err(CreateError::Full);
        }
        members.push(handle);
        qp.join_group();
        Ok(())
    }

    /// Detaches a queue pair from a multicast group.
    pub fn detach_multicast(&mut self, handle: QpHandle, group: Gid) -> Result<(), DestroyError> {
        let members = self.groups.get_mut(&group.0).ok_or(DestroyError::NotFound)?;
        let at = members.iter().position(|member| *member == handle);
        members.remove(at.ok_or(DestroyError::NotFound)?);
        if members.is_empty() {
            self.groups.remove(&group.0);
        }
        if let Some(qp) = self.qps.get_mut(handle.0) {
            qp.leave_group();
        }
        Ok(())
    }

    /// Whether any queue pair is attached to a multicast group.
    pub fn has_members(&self, group: Gid) -> bool {
        self.groups.contains_key(&group.0)
    }

    /// Delivers a packet to every queue pair that is attached to its group (P-15).
    pub(super) fn accept_multicast(
        &mut self,
        received: &Received<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Counter> {
        if packet.info().is_none_or(|info| info.service != Service::Ud) {
            return Err(Counter::WrongService);
        }
        let Gid(group) = received.destination;
        // Rule: P-15.4.
        let members = self.groups.get(&group).map_or(0, Vec::len);
        if members == 0 {
            return Err(Counter::NoGroup);
        }
        for member in 0..members {
            let handle = self.groups.get(&group).and_then(|members| members.get(member)).copied();
            let Some((qp, env)) = handle.and_then(|handle| self.split_handle(handle)) else {
                continue;
            };
            // Each queue pair checks the packet: one may accept what another drops.
            if let Err(reason) = qp.receive_datagram(received, packet, env) {
                env.count(reason);
            }
        }
        Ok(())
    }
}
