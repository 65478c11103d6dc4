//! REP, RTU and MRA: `accept` and `establish`, and what they are answers to.

use super::Manager;
use super::counters::Counter;
use super::error::Error;
use super::event::{ConnEvent, Ece, EventKind, EventParam};
use super::limits::SERVICE_TIMEOUT_MAX;
use super::message::{self, Mraed, RejectDetail, RejectReason, Rejected};
use super::path::{ack_timeout, duration};
use super::private_data::{self, PrivateData, private_data_len};
use super::receive::{Addressee, Arrival, Found};
use super::request::ConnParam;
use super::state::{IdState, Input, State};
use super::table::{CmId, ConnectionId};
use crate::time::Instant;
use crate::verbs::{EventType, QpType};
use crate::wire::cm::{Mra, Rep, RepRepr, Rtu};
use crate::wire::mad::AttributeId;
use crate::wire::{Bits, EeContext, QKey, Qpn};

fn byte<const W: u32>(bits: Bits<W>) -> u8 {
    u8::try_from(bits.get()).unwrap_or(u8::MAX)
}

impl Manager {
    /// The connection of an id.
    pub(super) fn connection_of(&self, id: CmId) -> Result<ConnectionId, Error> {
        self.id(id)?.connection.ok_or(Error::Connection)
    }

    /// Accepts a request: sends a REP, or for datagrams a SIDR_REP. The QP must be ready to send
    /// before. `context` is what the program knows the id by from now on. ESTABLISHED follows,
    /// REJECTED or UNREACHABLE; for datagrams nothing. If it fails for what the program says, the
    /// peer is rejected with reason 28, as by Linux.
    pub fn accept(
        &mut self,
        now: Instant,
        id: CmId,
        context: u64,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let result = self.try_accept(now, id, context, param);
        if matches!(result, Err(Error::PrivateData { .. } | Error::Argument(_))) {
            let _ = self.reject(now, id, RejectReason::Consumer, &[]);
        }
        result
    }

    fn try_accept(
        &mut self,
        now: Instant,
        id: CmId,
        context: u64,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let entry = self.id(id)?;
        entry.require(IdState::Connect)?;
        let name = self.connection_of(id)?;
        if entry.is_datagram() {
            self.accept_datagram(now, name, param)?;
        } else {
            self.accept_connection(now, name, param)?;
        }
        if let Some(entry) = self.ids.get_mut(id) {
            entry.context = context;
            entry.is_reported = true;
        }
        Ok(())
    }

    fn accept_connection(
        &mut self,
        now: Instant,
        name: ConnectionId,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let connection = self.connections.get(name).ok_or(Error::Connection)?;
        if connection.state != State::ReqRcvd {
            return Err(Error::Connection);
        }
        let device = self.devices.get(connection.device).ok_or(Error::NoDevice)?;
        let private_data = private_data::field(&[], param.private_data, private_data_len::REP)?;
        let is_target = connection.negotiated.qp_type == QpType::XrcRecv;
        let selective_repeat = connection.negotiated.selective_repeat && param.selective_repeat;
        let [_, high, middle, low] = param.ece.vendor_id.to_be_bytes();
        // The target of an XRC connection has its number where an end-to-end context had it.
        let rep = RepRepr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id_or_zero(),
            local_q_key: QKey::new(0),
            local_qpn: if is_target { Qpn::new(0) } else { param.qpn },
            vendor_id_h: high,
            local_eecn: EeContext::new(if is_target { param.qpn.get() } else { 0 }),
            vendor_id_m: middle,
            // Rule: C-01.2.
            starting_psn: connection.negotiated.rq_psn,
            vendor_id_l: low,
            responder_resources: param.responder_resources,
            initiator_depth: if is_target { 0 } else { param.initiator_depth },
            target_ack_delay: Bits::low(u32::from(device.ack_delay)),
            failover_accepted: Bits::ZERO,
            flow_control: !is_target && param.flow_control,
            rnr_retry_count: Bits::low(u32::from(param.rnr_retry_count.min(7))),
            srq: is_target || param.srq,
            selective_repeat,
            local_ca_guid: device.guid,
            private_data,
        };
        let transaction = connection.transaction;
        let options = param.ece.options;
        let mad = message::mad(transaction, AttributeId::CM_REP, options, rep.emit().as_bytes());
        self.step(name, Input::SendRep).ok_or(Error::Connection)?;
        if let Some(connection) = self.connections.get_mut(name) {
            connection.local_qpn = param.qpn;
            connection.negotiated.initiator_depth = param.initiator_depth;
            connection.negotiated.responder_resources = param.responder_resources;
            connection.negotiated.selective_repeat = selective_repeat;
        }
        self.enter_half_open(name);
        self.send_reliably(now, name, mad);
        Ok(())
    }

    pub(super) fn handle_rep(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        rep: &Rep,
    ) -> Result<(), Counter> {
        let (own, peer) = (rep.remote_comm_id(), rep.local_comm_id());
        if let Found::Connection(name) = self.find(arrival, own, Some(peer)) {
            self.answer_duplicate_rep(name);
            return Err(Counter::DuplicateRep);
        }
        let name = self.find_requested(arrival, rep).inspect_err(|_| {
            let reason = RejectReason::InvalidCommId;
            let rej = message::rej_of_rep(arrival.header, rep, reason);
            self.answer_unknown(arrival, Addressee::CommId(own), rej);
        })?;
        let Some(connection) = self.connections.get(name) else { return Err(Counter::UnknownRep) };
        let is_initiator = connection.negotiated.qp_type == QpType::XrcSend;
        let qpn = if is_initiator { Qpn::new(rep.local_eecn().get()) } else { rep.local_qpn() };
        let key = |number: u32| (arrival.source.0, rep.local_ca_guid(), number);
        let (id_key, qpn_key) = (key(peer.0), key(qpn.get()));
        let stale = self.by_remote_qpn.get(&qpn_key).or_else(|| self.by_remote_id.get(&id_key));
        if let Some(&stale) = stale {
            let rej = message::rej_of_rep(arrival.header, rep, RejectReason::StaleConnection);
            self.answer(arrival, rej);
            self.disconnect_stale(now, stale);
            return Err(Counter::StaleRep);
        }
        self.by_remote_id.insert(id_key, name);
        self.by_remote_qpn.insert(qpn_key, name);
        self.step(name, Input::RecvRep);
        self.start_rtu_repeats(now, name);
        self.take_rep(name, rep, qpn, arrival);
        Ok(())
    }

    /// Finds the connection whose REQ a REP answers.
    fn find_requested(&self, arrival: &Arrival<'_>, rep: &Rep) -> Result<ConnectionId, Counter> {
        let found = self.find(arrival, rep.remote_comm_id(), None);
        let name = found.or(Counter::UnknownRep)?;
        let state = self.connections.get(name).map(|connection| connection.state);
        let waits = state.is_some_and(|state| state.after(Input::RecvRep).is_some());
        if waits { Ok(name) } else { Err(Counter::UnknownRep) }
    }

    /// Learns from a REP what the peer's side is, and tells the program.
    fn take_rep(&mut self, name: ConnectionId, rep: &Rep, qpn: Qpn, arrival: &Arrival<'_>) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.remote_id = Some(rep.local_comm_id());
        connection.remote_qpn = qpn;
        let key = |number: u32| Some((arrival.source.0, rep.local_ca_guid(), number));
        connection.keys.id = key(rep.local_comm_id().0);
        connection.keys.qpn = key(qpn.get());
        connection.message = None;
        let negotiated = &mut connection.negotiated;
        negotiated.sq_psn = rep.starting_psn();
        negotiated.initiator_depth = rep.responder_resources();
        negotiated.responder_resources = rep.initiator_depth();
        negotiated.rnr_retry_count = byte(rep.rnr_retry_count());
        // A REP that has the bit though its REQ had none means nothing.
        negotiated.selective_repeat &= rep.selective_repeat();
        let life_time = negotiated.ack_timeout.saturating_sub(1);
        negotiated.ack_timeout = ack_timeout(byte(rep.target_ack_delay()), life_time);
        let param = EventParam::Conn(ConnEvent {
            private_data: PrivateData::of(&rep.private_data()),
            responder_resources: rep.initiator_depth(),
            initiator_depth: rep.responder_resources(),
            flow_control: rep.flow_control(),
            retry_count: 0,
            rnr_retry_count: byte(rep.rnr_retry_count()),
            srq: rep.srq(),
            qpn,
        });
        let vendor = [0, rep.vendor_id_h(), rep.vendor_id_m(), rep.vendor_id_l()];
        let ece = Ece {
            vendor_id: u32::from_be_bytes(vendor),
            options: arrival.header.attribute_modifier(),
        };
        if let Some(id) = connection.owner {
            self.deliver_with_ece(id, EventKind::ConnectResponse, 0, param, ece);
        }
    }

    /// A REP that came before: its RTU was lost, or the program is still busy with its QP.
    fn answer_duplicate_rep(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get(name) else { return };
        let answer = match connection.state {
            State::Established => connection.message,
            State::RepRcvd => Some(message::mra(connection, Mraed::Rep, self.config.mra_timeout)),
            _ => None,
        };
        if let Some(answer) = answer {
            self.transmit_on(name, answer);
        }
    }

    /// Tells the peer that the QP is ready: sends the RTU, after a CONNECT_RESPONSE. No event
    /// follows.
    pub fn establish(&mut self, id: CmId) -> Result<(), Error> {
        self.id(id)?.require(IdState::Connect)?;
        let name = self.connection_of(id)?;
        self.step(name, Input::SendRtu).ok_or(Error::Connection)?;
        let Some(connection) = self.connections.get_mut(name) else { return Ok(()) };
        let rtu = message::rtu(connection);
        connection.message = Some(rtu);
        self.transmit_on(name, rtu);
        Ok(())
    }

    pub(super) fn handle_rtu(&mut self, arrival: &Arrival<'_>, rtu: &Rtu) -> Result<(), Counter> {
        let (own, peer) = (rtu.remote_comm_id(), rtu.local_comm_id());
        let found = self.find(arrival, own, Some(peer)).or(Counter::UnknownRtu);
        let name = found.inspect_err(|_| {
            let (transaction, reason) =
                (arrival.header.transaction_id(), RejectReason::InvalidCommId as u16);
            let none = RejectDetail::NONE;
            let rej = message::rej(transaction, (own, peer), Rejected::Other, reason, &none);
            self.answer_unknown(arrival, Addressee::CommId(own), rej);
        })?;
        if self.step(name, Input::RecvRtu).is_none() {
            self.answer_late_rtu(name);
            return Err(Counter::UnexpectedRtu);
        }
        self.established(name);
        Ok(())
    }

    /// The peer, or the first data of it, says that its QP is ready.
    fn established(&mut self, name: ConnectionId) {
        self.set_deadline(name, None);
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.message = None;
        if let Some(id) = connection.owner {
            self.deliver_connected(id, EventKind::Established, 0, EventParam::None);
        }
    }

    /// The program tells what its QP saw. Only [`EventType::CommEst`] means something: data came
    /// before the RTU.
    pub fn notify(&mut self, id: CmId, event: EventType) -> Result<(), Error> {
        if event != EventType::CommEst {
            return Err(Error::Argument("event"));
        }
        let name = self.connection_of(id)?;
        if self.connections.get(name).is_some_and(|c| c.state == State::Established) {
            return Err(Error::AlreadyConnected);
        }
        self.step(name, Input::CommEst).ok_or(Error::Connection)?;
        self.established(name);
        Ok(())
    }

    pub(super) fn handle_mra(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        mra: &Mra,
    ) -> Result<(), Counter> {
        let (own, peer) = (mra.remote_comm_id(), mra.local_comm_id());
        let (found, input) = match mra.message_mraed().get() {
            0 => (self.find(arrival, own, None), Input::RecvMraOfReq),
            1 => (self.find(arrival, own, Some(peer)), Input::RecvMraOfRep),
            _ => return Err(Counter::UnexpectedMra),
        };
        let name = found.or(Counter::UnknownMra)?;
        self.step(name, input).ok_or(Counter::UnexpectedMra)?;
        let Some(connection) = self.connections.get_mut(name) else { return Ok(()) };
        let service = duration(byte(mra.service_timeout())).min(SERVICE_TIMEOUT_MAX);
        let wait = service + duration(connection.negotiated.ack_timeout);
        let resume = connection.schedule.extend(now, wait, self.config.retransmission);
        self.set_deadline(name, Some(resume));
        Ok(())
    }
}
