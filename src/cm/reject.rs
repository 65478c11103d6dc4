//! REJ, in both directions. A REJ is never answered.

use super::Manager;
use super::connection::Answer;
use super::counters::Counter;
use super::error::Error;
use super::event::{EventKind, EventParam};
use super::message::{self, RejectDetail, RejectReason, Rejected, SidrStatus};
use super::private_data::{self, PrivateData, private_data_len};
use super::receive::Arrival;
use super::state::{Input, State};
use super::table::{CmId, ConnectionId};
use crate::time::Instant;
use crate::wire::cm::{CommId, Rej};

impl Manager {
    /// Rejects a request, or a reply that the program cannot use, with data for the peer's program.
    /// For datagrams, whose reason is always the same, sends a SIDR_REP.
    pub fn reject(
        &mut self,
        now: Instant,
        id: CmId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let entry = self.id(id)?;
        let is_datagram = entry.is_datagram();
        let name = self.connection_of(id)?;
        if is_datagram {
            return self.reject_datagram(now, name, private_data);
        }
        let private_data = private_data::field(&[], private_data, private_data_len::REJ)?;
        let detail = RejectDetail { private_data, ..RejectDetail::NONE };
        self.send_rej(now, name, reason, &detail)
    }

    /// Rejects what the peer last said, or tells it that this side gives up.
    pub(super) fn send_rej(
        &mut self,
        now: Instant,
        name: ConnectionId,
        reason: RejectReason,
        detail: &RejectDetail,
    ) -> Result<(), Error> {
        let before = self.connections.get(name).map(|connection| connection.state);
        let after = self.step(name, Input::SendRej).ok_or(Error::Connection)?;
        let connection = self.connections.get_mut(name).ok_or(Error::Connection)?;
        let rejected = match before {
            Some(State::ReqRcvd) => Rejected::Req,
            Some(State::RepRcvd) => Rejected::Rep,
            _ => Rejected::Other,
        };
        let ids = (connection.local_id, connection.remote_id_or_zero());
        let rej = message::rej(connection.transaction, ids, rejected, reason as u16, detail);
        connection.answer = match rejected {
            Rejected::Req => Answer::ToRequest(rej),
            _ => Answer::ToRtu(rej),
        };
        self.transmit_on(name, rej);
        if after == State::Timewait {
            self.hold_answer(now, name);
        } else {
            self.free(name);
        }
        Ok(())
    }

    /// An RTU came for a connection that is over: if this side rejected it, the peer did not hear.
    pub(super) fn answer_late_rtu(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.allowance = None;
        if let (State::Timewait, Answer::ToRtu(rej)) = (connection.state, connection.answer) {
            self.transmit_on(name, rej);
        }
    }

    /// Tells the peer that this side waits no longer (§12.6.7, reason 4): by the CA GUID, since the
    /// peer's comm id may not be known.
    pub(super) fn send_timeout_rej(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get(name) else { return };
        let Some(device) = self.devices.get(connection.device) else { return };
        let ids = (connection.local_id, connection.remote_id_or_zero());
        let detail = RejectDetail::info(&device.guid.to_be_bytes());
        let (transaction, reason) = (connection.transaction, RejectReason::Timeout as u16);
        let rej = message::rej(transaction, ids, Rejected::Other, reason, &detail);
        self.transmit_on(name, rej);
    }

    pub(super) fn handle_rej(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        rej: &Rej,
    ) -> Result<(), Counter> {
        let name = self.find_rejected(arrival, rej)?;
        let input = if rej.reason() == RejectReason::StaleConnection as u16 {
            Input::RecvRejStale
        } else {
            Input::RecvRej
        };
        let owner = self.connections.get(name).and_then(|connection| connection.owner);
        let after = self.step(name, input).ok_or(Counter::UnexpectedRej)?;
        if after == State::Timewait {
            self.enter_timewait(now, name);
        } else {
            self.free(name);
        }
        if let Some(id) = owner {
            let data = PrivateData::of(&rej.private_data());
            let status = i32::from(rej.reason());
            self.deliver_connected(id, EventKind::Rejected, status, EventParam::refused(data));
        }
        Ok(())
    }

    /// Refuses a connection on behalf of an absent peer: ends what [`connect`](Self::connect) began
    /// as a host does at which nothing listens, by REJECTED with reason 8, or for datagrams by
    /// UNREACHABLE with status 1.
    pub fn refuse_absent(&mut self, id: CmId) -> Result<(), Error> {
        let is_datagram = self.id(id)?.is_datagram();
        let name = self.connection_of(id)?;
        let state = self.connections.get(name).map(|connection| connection.state);
        if !matches!(state, Some(State::ReqSent | State::SidrReqSent)) {
            return Err(Error::Connection);
        }
        self.free(name);
        if is_datagram {
            let param = EventParam::datagram(PrivateData::of(&[0; private_data_len::SIDR_REP]));
            let status = i32::from(SidrStatus::UnsupportedService as u8);
            self.deliver_connected(id, EventKind::Unreachable, status, param);
        } else {
            let param = EventParam::refused(PrivateData::of(&[0; private_data_len::REJ]));
            let status = i32::from(RejectReason::InvalidServiceId as u16);
            self.deliver_connected(id, EventKind::Rejected, status, param);
        }
        Ok(())
    }

    /// Finds the connection that a REJ is about. One for a timeout comes from a peer that may not
    /// know this side's comm id; one of a REQ comes from a peer whose comm id this side does not
    /// know.
    fn find_rejected(&self, arrival: &Arrival<'_>, rej: &Rej) -> Result<ConnectionId, Counter> {
        let (own, peer) = (rej.remote_comm_id(), rej.local_comm_id());
        if rej.reason() == RejectReason::Timeout as u16 && own == CommId(0) {
            return self.find_abandoned(arrival, rej).ok_or(Counter::UnknownRej);
        }
        let is_of_req = rej.message_rejected().get() == Rejected::Req as u32;
        let peer = (!is_of_req).then_some(peer);
        self.find(arrival, own, peer).or(Counter::UnknownRej)
    }

    /// Finds the request whose sender waits for no answer any longer, by the sender's GUID and comm
    /// id: it has not seen the comm id of this side, so the request is not established.
    fn find_abandoned(&self, arrival: &Arrival<'_>, rej: &Rej) -> Option<ConnectionId> {
        let ari = rej.ari();
        let guid = u64::from_be_bytes(*ari.first_chunk()?);
        let key = (arrival.source.0, guid, rej.local_comm_id().0);
        let name = *self.by_remote_id.get(&key)?;
        let state = self.connections.get(name)?.state;
        matches!(state, State::ReqRcvd | State::RepSent | State::MraRepRcvd).then_some(name)
    }

    /// Remembers an answer for as long as duplicates of what it answers may come.
    pub(super) fn hold_answer(&mut self, now: Instant, name: ConnectionId) {
        self.forget_remote_qpn(name);
        let until = now.saturating_add(self.config.answer_hold);
        self.set_deadline(name, Some(until));
    }
}
