//! DREQ, DREP, timewait, and the end of an id.

use core::time::Duration;

use super::Manager;
use super::counters::Counter;
use super::error::Error;
use super::event::{EventKind, EventParam};
use super::limits::TIMEWAIT_MAX;
use super::message::{self, RejectDetail, RejectReason};
use super::multicast::Group;
use super::path::duration;
use super::receive::{Addressee, Arrival};
use super::state::{IdState, Input, State};
use super::table::{CmId, ConnectionId};
use crate::time::Instant;
use crate::wire::cm::{Drep, Dreq};

/// Remains of a destroyed id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Number of its events that the program took: it must acknowledge as many before it forgets
    /// the id.
    pub events_reported: u32,
    /// The groups that it was a member of, which the caller has to leave.
    pub groups: Vec<Group>,
}

impl Manager {
    /// Disconnects an id: sends a DREQ, or the DREP that the peer's DREQ waits for. DISCONNECTED
    /// follows if it was connected, and TIMEWAIT_EXIT. Where there is nothing to disconnect,
    /// nothing happens.
    pub fn disconnect(&mut self, now: Instant, id: CmId) -> Result<(), Error> {
        let entry = self.id(id)?;
        let Some(name) = entry.connection else {
            return if entry.connected_once { Ok(()) } else { Err(Error::State(entry.state)) };
        };
        if !self.send_dreq(now, name) {
            self.send_drep(now, name);
        }
        Ok(())
    }

    /// Sends a DREQ if the connection is established.
    fn send_dreq(&mut self, now: Instant, name: ConnectionId) -> bool {
        if self.step(name, Input::SendDreq).is_none() {
            return false;
        }
        let Some(connection) = self.connections.get(name) else { return false };
        let dreq = message::dreq(connection);
        self.send_reliably(now, name, dreq);
        true
    }

    /// Sends the DREP that a DREQ waits for.
    fn send_drep(&mut self, now: Instant, name: ConnectionId) {
        if self.step(name, Input::SendDrep).is_none() {
            return;
        }
        let Some(connection) = self.connections.get(name) else { return };
        let ids = (connection.local_id, connection.remote_id_or_zero());
        let drep = message::drep(connection.transaction, ids);
        self.transmit_on(name, drep);
        self.enter_timewait(now, name);
    }

    /// A message says that the peer knows nothing of a connection: ends it, as Linux does, with a
    /// DREQ.
    pub(super) fn disconnect_stale(&mut self, now: Instant, name: ConnectionId) {
        self.send_dreq(now, name);
    }

    pub(super) fn handle_dreq(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        dreq: &Dreq,
    ) -> Result<(), Counter> {
        let (own, peer) = (dreq.remote_comm_id(), dreq.local_comm_id());
        let found = self.find(arrival, own, Some(peer)).or(Counter::UnknownDreq);
        let name = found.inspect_err(|_| {
            let drep = message::drep_to(arrival.header, dreq);
            self.answer_unknown(arrival, Addressee::Disconnect(own), drep);
        })?;
        let Some(connection) = self.connections.get(name) else { return Err(Counter::UnknownDreq) };
        if dreq.remote_qpn_eecn() != connection.local_qpn {
            return Err(Counter::WrongDreqQpn);
        }
        let (before, owner) = (connection.state, connection.owner);
        match before {
            State::Timewait => {
                self.answer(arrival, message::drep_to(arrival.header, dreq));
                return Err(Counter::DuplicateDreq);
            }
            State::DreqRcvd => return Err(Counter::DuplicateDreq),
            _ => {}
        }
        let after = self.step(name, Input::RecvDreq).ok_or(Counter::UnexpectedDreq)?;
        self.set_deadline(name, None);
        if let Some(connection) = self.connections.get_mut(name) {
            connection.transaction = arrival.header.transaction_id();
            connection.message = None;
        }
        if after == State::Timewait {
            // Both sides disconnect at once: each has what it wants.
            self.answer(arrival, message::drep_to(arrival.header, dreq));
            self.enter_timewait(now, name);
        }
        self.disconnected(owner, 0);
        Ok(())
    }

    pub(super) fn handle_drep(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        drep: &Drep,
    ) -> Result<(), Counter> {
        let found = self.find(arrival, drep.remote_comm_id(), Some(drep.local_comm_id()));
        let name = found.or(Counter::UnknownDrep)?;
        self.step(name, Input::RecvDrep).ok_or(Counter::UnexpectedDrep)?;
        let owner = self.connections.get(name).and_then(|connection| connection.owner);
        self.enter_timewait(now, name);
        self.disconnected(owner, 0);
        Ok(())
    }

    /// Tells the program, once.
    pub(super) fn disconnected(&mut self, owner: Option<CmId>, status: i32) {
        let Some(id) = owner else { return };
        let Some(entry) = self.ids.get_mut(id) else { return };
        if entry.state == IdState::Connect {
            entry.state = IdState::Disconnect;
            self.deliver(id, EventKind::Disconnected, status, EventParam::None);
        }
    }

    /// Waits until no packet of the connection is in the network. The peer may connect its QP anew
    /// at once.
    pub(super) fn enter_timewait(&mut self, now: Instant, name: ConnectionId) {
        self.forget_remote_qpn(name);
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.message = None;
        let wait = duration(connection.negotiated.ack_timeout).min(TIMEWAIT_MAX);
        self.set_deadline(name, Some(now.saturating_add(wait.max(Duration::from_millis(1)))));
    }

    /// Timewait is over.
    pub(super) fn expire(&mut self, name: ConnectionId) {
        let owner = self.connections.get(name).and_then(|connection| connection.owner);
        self.step(name, Input::Expire);
        self.free(name);
        if let Some(id) = owner
            && self.id_state(id) == Some(IdState::Disconnect)
        {
            self.deliver(id, EventKind::TimewaitExit, 0, EventParam::None);
        }
    }

    /// Destroys an id, whatever its state; its peer is told. Its events that the program has not
    /// taken are dropped, and of a listener the requests that it has not taken are rejected.
    pub fn destroy_id(&mut self, now: Instant, id: CmId) -> Result<Destroyed, Error> {
        self.id(id)?;
        self.cancel_query(id);
        self.leave_backlog(id);
        for request in self.drop_events(id) {
            self.destroy_id(now, request)?;
        }
        if let Ok(name) = self.connection_of(id) {
            self.abandon(now, name);
        }
        let entry = self.ids.remove(id).ok_or(Error::NotFound("id"))?;
        if entry.owns_port
            && let Some(source) = entry.source
        {
            self.spaces.release(entry.space, source.port(), id);
        }
        let groups = entry.groups.iter().map(|member| member.group).collect();
        Ok(Destroyed { events_reported: entry.events_reported, groups })
    }

    /// Drops the queued events of an id; the ids of the requests among them.
    fn drop_events(&mut self, id: CmId) -> Vec<CmId> {
        let mut requests = Vec::new();
        let channel = self.ids.get(id).map(|entry| entry.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.events.retain(|event| {
                if event.listener == Some(id) {
                    requests.push(event.id);
                }
                event.id != id && event.listener != Some(id)
            });
        }
        requests
    }

    /// Ends a connection whose id is destroyed: sends what Linux sends then, and lets it linger
    /// until the peer has answered, or for its time at most.
    fn abandon(&mut self, now: Instant, name: ConnectionId) {
        let Some(connection) = self.connections.get(name) else { return };
        match connection.state {
            State::ReqSent | State::MraReqRcvd => {
                self.send_timeout_rej(name);
                self.free(name);
            }
            State::ReqRcvd | State::RepRcvd | State::RepSent | State::MraRepRcvd => {
                let none = RejectDetail::NONE;
                let _ = self.send_rej(now, name, RejectReason::Consumer, &none);
            }
            State::SidrReqRcvd => {
                let _ = self.reject_datagram(now, name, &[]);
            }
            State::Established => {
                self.send_dreq(now, name);
            }
            State::DreqRcvd => self.send_drep(now, name),
            State::DreqSent | State::Timewait => {}
            State::Idle | State::SidrReqSent => self.free(name),
        }
        self.linger(name);
    }

    /// Lets a connection go on without an id. If there are too many of them, the oldest is
    /// forgotten.
    fn linger(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        if let Some(id) = connection.owner.take().and_then(|id| self.ids.get_mut(id)) {
            id.connection = None;
        }
        self.lingered += 1;
        connection.lingering = Some(self.lingered);
        self.lingering.insert(self.lingered, name);
        while self.lingering.len() > self.config.limits.lingering {
            let Some((_, &oldest)) = self.lingering.first_key_value() else { return };
            self.counters.add(Counter::LingerEvicted);
            self.free(oldest);
        }
    }
}
