//! Transmission and retransmission of messages.

use super::Manager;
use super::connection::Connection;
use super::counters::Counter;
use super::event::{EventKind, EventParam};
use super::limits::RTU_REPEATS;
use super::loss::Verdict;
use super::state::{Input, State};
use super::table::{ConnectionId, DeviceId};
use super::timers::{Due, Owner};
use crate::time::Instant;
use crate::verbs::{AhAttr, Errno};
use crate::wire::mad::MAD_LEN;

/// A MAD to transmit from queue pair 1 to queue pair 1, with Q_Key 0x80010000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Device that sends it.
    pub device: DeviceId,
    /// Path to the peer.
    pub ah: AhAttr,
    /// The MAD.
    pub mad: [u8; MAD_LEN],
}

impl Manager {
    /// Returns the next MAD to transmit. May have more after any command or `handle_*`.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called next. May
    /// change after any command or `handle_*`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.timers.next(), self.early.due()].into_iter().flatten().min()
    }

    /// Handles the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(owner) = self.timers.pop(now) {
            match owner {
                Owner::Connection(name) => {
                    let Some(connection) = self.connections.get_mut(name) else { continue };
                    connection.deadline = None;
                    match connection.state {
                        State::Timewait => self.expire(name),
                        State::RepRcvd | State::Established => self.repeat_rtu(now, name),
                        state if state.is_retransmitting() => self.retransmit(now, name),
                        _ => {}
                    }
                }
                Owner::Id(id) => self.resolution_timed_out(id),
            }
        }
        self.release_early(now);
    }

    /// The timer of a connection's message has expired: retransmits it, waits for an answer that is
    /// still to come, or gives up.
    pub(super) fn retransmit(&mut self, now: Instant, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        let Connection { schedule, transmission, message, ah, .. } = connection;
        let due = schedule.due(now);
        if due == Due::GiveUp {
            return self.give_up(now, name);
        }
        let verdict = self.peers.expired(ah.dgid, transmission);
        if due == Due::EarlyRetransmission && verdict == Verdict::Wait {
            let next = schedule.wait(now);
            self.counters.add(Counter::Waited);
            return self.set_deadline(name, Some(next));
        }
        self.peers.retransmitted(ah.dgid, transmission);
        let (next, message) = (schedule.sent(now), *message);
        let is_exhausted = connection.allowance == Some(0);
        self.set_deadline(name, Some(next));
        if is_exhausted {
            return self.counters.add(Counter::Unproven);
        }
        self.counters.add(Counter::Retransmitted);
        if let Some(message) = message {
            self.transmit_on(name, message);
        }
    }

    /// Gives up a message that was not answered.
    pub(super) fn give_up(&mut self, now: Instant, name: ConnectionId) {
        let Some(connection) = self.connections.get(name) else { return };
        let (before, owner) = (connection.state, connection.owner);
        let Some(after) = self.step(name, Input::GiveUp) else { return };
        self.counters.add(Counter::TimedOut);
        let status = -Errno::ETIMEDOUT.0;
        if after == State::Timewait {
            self.enter_timewait(now, name);
            self.disconnected(owner, status);
            return;
        }
        if before != State::SidrReqSent {
            self.send_timeout_rej(name);
        }
        self.free(name);
        if let Some(id) = owner {
            self.deliver_connected(id, EventKind::Unreachable, status, EventParam::None);
        }
    }

    pub(super) fn set_deadline(&mut self, name: ConnectionId, deadline: Option<Instant>) {
        if let Some(connection) = self.connections.get_mut(name) {
            self.timers.set(Owner::Connection(name), &mut connection.deadline, deadline);
        }
    }

    /// Sends a connection's message, and retransmits it until the state changes.
    pub(super) fn send_reliably(
        &mut self,
        now: Instant,
        name: ConnectionId,
        message: [u8; MAD_LEN],
    ) {
        let policy = self.config.retransmission;
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.message = Some(message);
        connection.transmission = self.peers.sent(connection.ah.dgid);
        let first = connection.schedule.start(now, policy);
        self.set_deadline(name, Some(first));
        self.transmit_on(name, message);
    }

    /// Sends a message to a connection's peer, unless that has not answered and has got enough.
    pub(super) fn transmit_on(&mut self, name: ConnectionId, mad: [u8; MAD_LEN]) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        match &mut connection.allowance {
            Some(0) => return self.counters.add(Counter::Unproven),
            Some(allowance) => *allowance -= 1,
            None => {}
        }
        let (device, ah) = (connection.device, connection.ah);
        self.transmit(device, ah, mad);
    }

    /// Begins to repeat the RTU of a connection that a REP answers at `now`.
    pub(super) fn start_rtu_repeats(&mut self, now: Instant, name: ConnectionId) {
        let policy = self.config.retransmission;
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.rtu_repeats = RTU_REPEATS;
        let first = connection.schedule.start(now, policy);
        self.set_deadline(name, Some(first));
    }

    /// Repeats an RTU, of which a peer that lost it and may send no more REPs could not tell. Waits
    /// for the program if that has not established the connection yet.
    fn repeat_rtu(&mut self, now: Instant, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        if connection.state == State::RepRcvd {
            let next = connection.schedule.postpone(now);
            return self.set_deadline(name, Some(next));
        }
        let left = connection.rtu_repeats.checked_sub(1);
        let (Some(rtu), Some(left)) = (connection.message, left) else { return };
        let next = connection.schedule.repeat(now);
        connection.rtu_repeats = left;
        self.set_deadline(name, (left > 0).then_some(next));
        self.counters.add(Counter::Retransmitted);
        self.transmit_on(name, rtu);
    }

    pub(super) fn transmit(&mut self, device: DeviceId, ah: AhAttr, mad: [u8; MAD_LEN]) {
        if self.transmits.len() >= self.config.limits.transmits {
            self.counters.add(Counter::TransmitQueueFull);
            return;
        }
        self.counters.add(Counter::Sent);
        self.transmits.push_back(Transmit { device, ah, mad });
    }
}
