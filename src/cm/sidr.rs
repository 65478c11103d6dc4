//! SIDR: the QP and the Q_Key of a service for datagrams.

use super::Manager;
use super::config::UDP_Q_KEY;
use super::connection::{Answer, Connection, Negotiated};
use super::counters::Counter;
use super::error::Error;
use super::event::{Ece, EventKind, EventParam, UdEvent};
use super::message::{self, SidrStatus};
use super::path::duration;
use super::private_data::{self, PrivateData, private_data_len};
use super::receive::{Arrival, listener_of};
use super::request::ConnParam;
use super::state::{IdState, Input};
use super::table::{CmId, ConnectionId, DeviceId};
use super::timers::Schedule;
use crate::time::Instant;
use crate::verbs::{AhAttr, Errno, Mtu, QpType};
use crate::wire::cm::{IpCm, ServiceId, SidrRep, SidrReq, SidrReqRepr};
use crate::wire::mad::AttributeId;
use crate::wire::{Psn, QKey, Qpn};

impl Manager {
    /// A connection that only resolves a service.
    fn datagram(&self, owner: CmId, device: DeviceId, ah: AhAttr, qpn: Qpn) -> Connection {
        let interval = duration(self.config.response_timeout);
        let negotiated = Negotiated {
            qp_type: QpType::Ud,
            path_mtu: Mtu::default(),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            initiator_depth: 0,
            responder_resources: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ack_timeout: 0,
            selective_repeat: false,
        };
        let schedule = Schedule::new(interval, self.config.max_cm_retries);
        let connection = Connection::new(owner, device, ah, negotiated, schedule);
        Connection { local_qpn: qpn, ..connection }
    }

    /// Asks for the QP of a service.
    pub(super) fn connect_datagram(
        &mut self,
        now: Instant,
        id: CmId,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let entry = self.id(id)?;
        let (Some(path), Some(device)) = (entry.path, entry.device) else {
            return Err(Error::State(entry.state));
        };
        let (Some(source), Some(destination)) = (entry.source, entry.destination) else {
            return Err(Error::State(entry.state));
        };
        let header = private_data::ip_header(source, destination);
        let max = private_data_len::SIDR_REQ;
        let private_data = private_data::field(header.as_bytes(), param.private_data, max)?;
        let service_id = ServiceId::rdma_cm(entry.space, destination.port());
        let ah = path.ah(self.devices.get(device).ok_or(Error::NoDevice)?);
        let connection = self.datagram(id, device, ah, param.qpn);
        let name = self.insert_connection(connection).ok_or(Error::Exhausted("connections"))?;
        self.step(name, Input::SendSidrReq);
        let Some(connection) = self.connections.get_mut(name) else { return Ok(()) };
        let request = SidrReqRepr {
            request_id: connection.local_id,
            partition_key: path.pkey,
            service_id,
            private_data,
        };
        let transaction = message::transaction(connection.local_id);
        connection.transaction = transaction;
        let message = request.emit();
        let mad = message::mad(transaction, AttributeId::CM_SIDR_REQ, 0, message.as_bytes());
        if let Some(entry) = self.ids.get_mut(id) {
            entry.state = IdState::Connect;
        }
        self.send_reliably(now, name, mad);
        Ok(())
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        arrival: &Arrival<'_>,
        req: &SidrReq,
    ) -> Result<(), Counter> {
        let key = (arrival.source.0, req.request_id().0);
        if let Some(&known) = self.by_sidr.get(&key) {
            if let Some(Answer::ToRequest(rep)) = self.connections.get(known).map(|c| c.answer) {
                self.transmit_on(known, rep);
            }
            return Err(Counter::DuplicateSidrReq);
        }
        let request = match self.listener_for(arrival, req.service_id(), req.ip_cm()) {
            Ok(found) => found,
            Err(reason) => {
                let status = match reason {
                    Counter::NoListener => SidrStatus::UnsupportedService,
                    _ => SidrStatus::Rejected,
                };
                return Err(self.refuse_sidr(arrival, req, status, reason));
            }
        };
        let listener = request.0;
        if !self.ids.get(listener).is_some_and(|listener| listener.is_datagram()) {
            let (status, reason) = (SidrStatus::Rejected, Counter::BadTransport);
            return Err(self.refuse_sidr(arrival, req, status, reason));
        }
        self.make_room(listener, arrival.source)?;
        let id = self.insert_requested(request, arrival).ok_or(Counter::NoResources)?;
        let mut connection = self.datagram(id, arrival.device, arrival.ah, Qpn::new(0));
        connection.keys.sidr = Some(key);
        connection.transaction = arrival.header.transaction_id();
        connection.sidr = Some(*req);
        let Some(name) = self.insert_connection(connection) else {
            self.ids.remove(id);
            return Err(Counter::NoResources);
        };
        self.by_sidr.insert(key, name);
        self.step(name, Input::RecvSidrReq);
        let private = req.private_data();
        let data = PrivateData::of(private.get(IpCm::LEN..).unwrap_or_default());
        self.announce(listener, id, EventParam::datagram(data), Ece::default());
        Ok(())
    }

    /// Refuses a SIDR_REQ without an id.
    pub(super) fn refuse_sidr(
        &mut self,
        arrival: &Arrival<'_>,
        req: &SidrReq,
        status: SidrStatus,
        reason: Counter,
    ) -> Counter {
        let nothing = (Qpn::new(0), QKey::new(0));
        let transaction = arrival.header.transaction_id();
        let rep = message::sidr_rep(transaction, req, status, nothing, [0; 136]);
        if status == SidrStatus::UnsupportedService {
            self.answer_unknown(arrival, listener_of(req.service_id()), rep);
        } else {
            self.answer(arrival, rep);
        }
        reason
    }

    /// Tells the peer the program's QP.
    pub(super) fn accept_datagram(
        &mut self,
        now: Instant,
        name: ConnectionId,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let place = (param.qpn, UDP_Q_KEY);
        self.answer_datagram(now, name, SidrStatus::Valid, place, param.private_data)
    }

    /// Tells the peer that the program does not want to hear from it.
    pub(super) fn reject_datagram(
        &mut self,
        now: Instant,
        name: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let nothing = (Qpn::new(0), QKey::new(0));
        self.answer_datagram(now, name, SidrStatus::Rejected, nothing, private_data)
    }

    fn answer_datagram(
        &mut self,
        now: Instant,
        name: ConnectionId,
        status: SidrStatus,
        place: (Qpn, QKey),
        private_data: &[u8],
    ) -> Result<(), Error> {
        let private_data = private_data::field(&[], private_data, private_data_len::SIDR_REP)?;
        let connection = self.connections.get(name).ok_or(Error::Connection)?;
        let request = connection.sidr.ok_or(Error::Connection)?;
        let rep = message::sidr_rep(connection.transaction, &request, status, place, private_data);
        self.step(name, Input::SendSidrRep).ok_or(Error::Connection)?;
        if let Some(connection) = self.connections.get_mut(name) {
            connection.answer = Answer::ToRequest(rep);
        }
        self.transmit_on(name, rep);
        self.hold_answer(now, name);
        Ok(())
    }

    pub(super) fn handle_sidr_rep(
        &mut self,
        arrival: &Arrival<'_>,
        rep: &SidrRep,
    ) -> Result<(), Counter> {
        let name = self.find(arrival, rep.request_id(), None).or(Counter::UnknownSidrRep)?;
        self.step(name, Input::RecvSidrRep).ok_or(Counter::UnknownSidrRep)?;
        let connection = self.connections.get(name).ok_or(Counter::UnknownSidrRep)?;
        let (owner, ah) = (connection.owner, connection.qp_ah);
        self.free(name);
        let Some(id) = owner else { return Ok(()) };
        let private_data = PrivateData::of(&rep.private_data());
        if rep.status() != SidrStatus::Valid as u8 {
            let status = i32::from(rep.status());
            let param = EventParam::datagram(private_data);
            self.deliver_connected(id, EventKind::Unreachable, status, param);
        } else if rep.q_key() != UDP_Q_KEY {
            let status = -Errno::EINVAL.0;
            self.deliver_connected(id, EventKind::AddrError, status, EventParam::None);
        } else {
            let param = EventParam::Ud(UdEvent {
                private_data,
                ah: Some(ah),
                qpn: rep.qpn(),
                q_key: rep.q_key(),
                join_context: 0,
            });
            self.deliver_connected(id, EventKind::Established, 0, param);
        }
        Ok(())
    }
}
