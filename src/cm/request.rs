//! REQ: `connect`, and the checks of a request in the order of Linux's `cm_req_handler`.

use core::net::{IpAddr, SocketAddr};

use super::Manager;
use super::connection::{Answer, Connection, Negotiated, RemoteKeys};
use super::counters::Counter;
use super::device::gid_of;
use super::error::Error;
use super::event::{ConnEvent, Ece, Event, EventKind, EventParam};
use super::id::Id;
use super::limits::{RESPONSE_TIMEOUT_MAX, UNPROVEN_MESSAGES};
use super::message::{self, RejectDetail, RejectReason};
use super::path::{PathRecord, ack_timeout, duration};
use super::private_data::{self, PrivateData, parse_ip_header, private_data_len};
use super::receive::{Arrival, listener_of};
use super::state::{IdState, Input, State};
use super::table::{CmId, ConnectionId};
use super::timers::Schedule;
use crate::time::Instant;
use crate::verbs::{AhAttr, QpType};
use crate::wire::cm::{CommId, IpCm, Req, ReqRepr, ServiceId};
use crate::wire::mad::AttributeId;
use crate::wire::{Bits, EeContext, Gid, QKey, Qpn};

/// Parameters of a program's side of a connection: `rdma_conn_param`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// Data for the peer's program; see [`private_data_len`] for how much.
    pub private_data: &'a [u8],
    /// Number of its QP.
    pub qpn: Qpn,
    /// Whether the QP has a shared receive queue.
    pub srq: bool,
    /// READs and atomics of the peer that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// Whether it counts credits.
    pub flow_control: bool,
    /// Number of retries; at most 7.
    pub retry_count: u8,
    /// Number of retries while the peer is not ready; 7 sets no limit, and is the maximum.
    pub rnr_retry_count: u8,
    /// Options of an enhanced connection.
    pub ece: Ece,
    /// Whether the QP, which is RC, does selective repeat if its peer does it, too. Where it
    /// accepts, whether it uses it: see
    /// [`Manager::selective_repeat`](super::Manager::selective_repeat).
    pub selective_repeat: bool,
}

/// Returns the encoding of a QP type in a REQ: transport service type, and extended transport type.
fn transport_of(qp_type: QpType) -> Result<(u32, u32), Error> {
    match qp_type {
        QpType::Rc => Ok((0, 0)),
        QpType::Uc => Ok((1, 0)),
        QpType::XrcSend => Ok((3, 1)),
        _ => Err(Error::Argument("QP type: it cannot connect")),
    }
}

/// The QP type that the receiver of a REQ needs.
fn peer_qp_type(req: &Req) -> Option<QpType> {
    match (req.transport_service_type().get(), req.extended_transport_type().get()) {
        (0, _) => Some(QpType::Rc),
        (1, _) => Some(QpType::Uc),
        (3, 1) => Some(QpType::XrcRecv),
        _ => None,
    }
}

fn byte<const W: u32>(bits: Bits<W>) -> u8 {
    u8::try_from(bits.get()).unwrap_or(u8::MAX)
}

impl Manager {
    /// Connects an id whose route is resolved: sends a REQ, or for datagrams a SIDR_REQ.
    /// CONNECT_RESPONSE (of datagrams ESTABLISHED), REJECTED or UNREACHABLE follows.
    pub fn connect(&mut self, now: Instant, id: CmId, param: &ConnParam<'_>) -> Result<(), Error> {
        let entry = self.id(id)?;
        entry.require(IdState::RouteResolved)?;
        if entry.is_datagram() {
            return self.connect_datagram(now, id, param);
        }
        let (Some(path), Some(device_id)) = (entry.path, entry.device) else {
            return Err(Error::State(entry.state));
        };
        let device = self.devices.get(device_id).ok_or(Error::NoDevice)?;
        let (ah, qp_type, psn) = (path.ah(device), entry.qp_type, entry.psn);
        let mut req = self.req_for(entry, &path, param)?;
        let life = duration(path.packet_life_time);
        let interval = life * 2 + duration(self.config.response_timeout);
        let negotiated = Negotiated {
            qp_type,
            path_mtu: path.mtu,
            rq_psn: psn,
            sq_psn: Default::default(),
            initiator_depth: param.initiator_depth,
            responder_resources: param.responder_resources,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            ack_timeout: path.packet_life_time.saturating_add(1).min(31),
            selective_repeat: req.selective_repeat,
        };
        let schedule = Schedule::new(interval, self.config.max_cm_retries);
        let connection = Connection {
            local_qpn: param.qpn,
            ..Connection::new(id, device_id, ah, negotiated, schedule)
        };
        let name = self.insert_connection(connection).ok_or(Error::Exhausted("connections"))?;
        self.step(name, Input::SendReq);
        let Some(connection) = self.connections.get_mut(name) else { return Ok(()) };
        req.local_comm_id = connection.local_id;
        connection.transaction = message::transaction(connection.local_id);
        let (transaction, options) = (connection.transaction, param.ece.options);
        let mad = message::mad(transaction, AttributeId::CM_REQ, options, req.emit().as_bytes());
        if let Some(entry) = self.ids.get_mut(id) {
            entry.state = IdState::Connect;
        }
        self.send_reliably(now, name, mad);
        Ok(())
    }

    /// The REQ that an id sends, but for its comm id.
    fn req_for(
        &self,
        entry: &Id,
        path: &PathRecord,
        param: &ConnParam<'_>,
    ) -> Result<ReqRepr, Error> {
        let (Some(source), Some(destination)) = (entry.source, entry.destination) else {
            return Err(Error::State(entry.state));
        };
        let device = entry.device.and_then(|device| self.devices.get(device));
        let device = device.ok_or(Error::NoDevice)?;
        let header = private_data::ip_header(source, destination);
        let private_data =
            private_data::field(header.as_bytes(), param.private_data, private_data_len::REQ)?;
        let (transport, extended) = transport_of(entry.qp_type)?;
        // The initiator of an XRC connection has no responder, and no retries of one.
        let responds = entry.qp_type != QpType::XrcSend;
        let only_if_responds = |value: u8| if responds { value } else { 0 };
        let is_routed = path.hop_limit > 1;
        let lid = if is_routed { 0xffff } else { 0 };
        let timeout = u32::from(self.config.response_timeout);
        let local_ack_timeout = ack_timeout(device.ack_delay, path.packet_life_time);
        Ok(ReqRepr {
            local_comm_id: CommId(0),
            vendor_id: Bits::low(param.ece.vendor_id),
            service_id: ServiceId::rdma_cm(entry.space, destination.port()),
            local_ca_guid: device.guid,
            selective_repeat: param.selective_repeat && entry.qp_type == QpType::Rc,
            local_q_key: QKey::new(0),
            local_qpn: param.qpn,
            responder_resources: only_if_responds(param.responder_resources),
            local_eecn: EeContext::new(0),
            initiator_depth: param.initiator_depth,
            remote_eecn: EeContext::new(0),
            remote_cm_response_timeout: Bits::low(timeout),
            transport_service_type: Bits::low(transport),
            flow_control: param.flow_control,
            // Rule: C-01.2.
            starting_psn: entry.psn,
            local_cm_response_timeout: Bits::low(timeout),
            retry_count: Bits::low(u32::from(only_if_responds(param.retry_count.min(7)))),
            partition_key: path.pkey,
            path_mtu: Bits::low(path.mtu.code()),
            rdc_exists: false,
            rnr_retry_count: Bits::low(u32::from(only_if_responds(param.rnr_retry_count.min(7)))),
            max_cm_retries: Bits::low(u32::from(self.config.max_cm_retries)),
            srq: responds && param.srq,
            extended_transport_type: Bits::low(extended),
            primary_local_port_lid: lid,
            primary_remote_port_lid: lid,
            primary_local_port_gid: path.sgid,
            primary_remote_port_gid: path.dgid,
            primary_flow_label: path.flow_label,
            primary_packet_rate: Bits::low(u32::from(path.rate)),
            primary_traffic_class: path.traffic_class,
            primary_hop_limit: path.hop_limit,
            primary_sl: path.sl,
            primary_subnet_local: !is_routed,
            primary_local_ack_timeout: Bits::low(u32::from(local_ack_timeout)),
            alternate_local_port_lid: 0,
            alternate_remote_port_lid: 0,
            alternate_local_port_gid: Gid::default(),
            alternate_remote_port_gid: Gid::default(),
            alternate_flow_label: Bits::ZERO,
            alternate_packet_rate: Bits::ZERO,
            alternate_traffic_class: 0,
            alternate_hop_limit: 0,
            alternate_sl: Bits::ZERO,
            alternate_subnet_local: false,
            alternate_local_ack_timeout: Bits::ZERO,
            sap_supported: false,
            private_data,
        })
    }

    pub(super) fn handle_req(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        req: &Req,
    ) -> Result<(), Counter> {
        let key = |number: u32| (arrival.source.0, req.local_ca_guid(), number);
        if let Some(&known) = self.by_remote_id.get(&key(req.local_comm_id().0)) {
            self.answer_duplicate_req(arrival, req, known);
            return Err(Counter::DuplicateReq);
        }
        if let Some(&stale) = self.by_remote_qpn.get(&key(req.local_qpn().get())) {
            self.reject_req(arrival, req, RejectReason::StaleConnection, &RejectDetail::NONE);
            self.disconnect_stale(now, stale);
            return Err(Counter::StaleReq);
        }
        let listener = match self.listener_for(arrival, req.service_id(), req.ip_cm()) {
            Ok(found) => found,
            Err(Counter::NoListener) => return Err(self.refuse_unlistened_req(arrival, req)),
            // The GID is checked before the program's header.
            Err(reason) => return Err(self.refuse_req(arrival, req, reason)),
        };
        let checked = self.check_req(arrival, req, listener.0);
        let path = checked.map_err(|reason| self.refuse_req(arrival, req, reason))?;
        self.take_req(arrival, req, listener, path)
    }

    /// Rejects a request for which nothing listens.
    pub(super) fn refuse_unlistened_req(&mut self, arrival: &Arrival<'_>, req: &Req) -> Counter {
        let reason = RejectReason::InvalidServiceId;
        let rej = message::rej_of_req(arrival.header, req, reason, &RejectDetail::NONE);
        self.answer_unknown(arrival, listener_of(req.service_id()), rej);
        Counter::NoListener
    }

    /// Rejects a request for this reason.
    fn refuse_req(&mut self, arrival: &Arrival<'_>, req: &Req, reason: Counter) -> Counter {
        let device = self.devices.get(arrival.device);
        let wrong_gid =
            device.is_some_and(|device| device.gid_index(req.primary_remote_port_gid()).is_none());
        let reason = if wrong_gid { Counter::BadPrimaryGid } else { reason };
        let (code, detail) = match reason {
            Counter::ForeignGid | Counter::BadPrimaryGid | Counter::BadPartition => {
                let gid = device.map(|device| device.port_gid).unwrap_or_default();
                (RejectReason::InvalidGid, RejectDetail::info(&gid.0))
            }
            Counter::BadMtu => (RejectReason::InvalidMtu, RejectDetail::NONE),
            _ => (RejectReason::Consumer, RejectDetail::NONE),
        };
        self.reject_req(arrival, req, code, &detail);
        reason
    }

    fn reject_req(
        &mut self,
        arrival: &Arrival<'_>,
        req: &Req,
        reason: RejectReason,
        detail: &RejectDetail,
    ) {
        self.answer(arrival, message::rej_of_req(arrival.header, req, reason, detail));
    }

    /// A REQ that came before: what was answered is answered once more, and while the program
    /// decides, an MRA tells that it takes longer. A REP is repeated by its own timer.
    fn answer_duplicate_req(&mut self, arrival: &Arrival<'_>, req: &Req, known: ConnectionId) {
        let Some(connection) = self.connections.get_mut(known) else { return };
        if let Some(allowance) = &mut connection.allowance {
            *allowance = allowance.saturating_add(UNPROVEN_MESSAGES);
        }
        match (connection.state, connection.answer) {
            (State::ReqRcvd, _) => {
                let timeout = self.config.mra_timeout;
                let mra = message::mra(connection, message::Mraed::Req, timeout);
                self.transmit_on(known, mra);
            }
            (State::Timewait, Answer::ToRequest(rej)) => self.transmit_on(known, rej),
            (State::Timewait, _) => {
                let reason = RejectReason::StaleConnection;
                self.reject_req(arrival, req, reason, &RejectDetail::NONE);
            }
            _ => {}
        }
    }

    /// The listener for a service on the device where a request came in, and who asks for it at
    /// which address.
    pub(super) fn listener_for(
        &self,
        arrival: &Arrival<'_>,
        service: ServiceId,
        header: Option<&IpCm>,
    ) -> Result<(CmId, SocketAddr, SocketAddr), Counter> {
        let (space, port) = service.to_rdma_cm().ok_or(Counter::NoListener)?;
        let device = self.devices.get(arrival.device).ok_or(Counter::NoDevice)?;
        let here = |address: IpAddr| address.is_unspecified() || device.has(address);
        let listeners = self.spaces.listeners(space, port);
        let mut listeners = listeners.filter(|listener| here(listener.address)).peekable();
        if listeners.peek().is_none() {
            return Err(Counter::NoListener);
        }
        let parsed = header.and_then(parse_ip_header).ok_or(Counter::BadIpHeader)?;
        let (source, destination) = parsed;
        // Programs take the source for the peer's address: it must be that.
        if gid_of(source.ip()) != arrival.source || !device.has(destination) {
            return Err(Counter::BadIpHeader);
        }
        let found = listeners.find(|listener| listener.matches(destination));
        let found = found.ok_or(Counter::BadIpHeader)?;
        Ok((found.id, source, SocketAddr::new(destination, port)))
    }

    /// Whether the listener can take a request; the path back.
    fn check_req(
        &self,
        arrival: &Arrival<'_>,
        req: &Req,
        listener: CmId,
    ) -> Result<PathRecord, Counter> {
        let device = self.devices.get(arrival.device).ok_or(Counter::NoDevice)?;
        if device.gid_index(req.primary_remote_port_gid()).is_none() {
            return Err(Counter::BadPrimaryGid);
        }
        // The QP's packets go there. A REQ that could name any address would make this host send to
        // it.
        if req.primary_local_port_gid() != arrival.source {
            return Err(Counter::ForeignGid);
        }
        if !device.pkey.matches(req.partition_key()) {
            return Err(Counter::BadPartition);
        }
        let path = PathRecord::of_req(req).ok_or(Counter::BadMtu)?;
        let listener = self.ids.get(listener).ok_or(Counter::NoListener)?;
        if peer_qp_type(req) != Some(listener.qp_type) {
            return Err(Counter::BadTransport);
        }
        Ok(path)
    }

    /// Makes room for one more request of a listener in its backlog; whether there is some among
    /// the ids and in its channel.
    pub(super) fn make_room(&mut self, listener: CmId, source: Gid) -> Result<(), Counter> {
        self.limit_backlog(listener, source)?;
        let is_full = self.ids.is_full() || self.connections.is_full();
        if is_full || self.require_event_room(listener).is_err() {
            return Err(Counter::NoResources);
        }
        Ok(())
    }

    /// Makes an id for a request, in state Connect, with the listener's channel and context.
    pub(super) fn insert_requested(
        &mut self,
        (listener, peer, local): (CmId, SocketAddr, SocketAddr),
        arrival: &Arrival<'_>,
    ) -> Option<CmId> {
        let psn = self.random_psn();
        let entry = self.ids.get(listener)?;
        let mut id = Id::new(entry.channel, entry.context, entry.space, entry.qp_type);
        id.state = IdState::Connect;
        id.device = Some(arrival.device);
        id.source = Some(local);
        id.destination = Some(peer);
        id.tos = entry.tos;
        id.ack_timeout = entry.ack_timeout;
        id.psn = psn;
        id.is_reported = false;
        self.ids.insert(id)
    }

    /// Tells the listener's program of a request.
    pub(super) fn announce(&mut self, listener: CmId, id: CmId, param: EventParam, ece: Ece) {
        let Ok(connection) = self.connection_of(id) else { return };
        let source = self.connections.get(connection).map(|connection| connection.ah.dgid);
        let Some(entry) = self.ids.get_mut(listener) else { return };
        let number = entry.backlog.queue.insert(source.unwrap_or_default(), id);
        let (channel, context) = (entry.channel, entry.context);
        if let Some(entry) = self.ids.get_mut(id) {
            entry.queued_at = Some((listener, number));
        }
        self.enter_half_open(connection);
        let kind = EventKind::ConnectRequest;
        let listener = Some(listener);
        self.push(channel, Event { kind, id, listener, context, status: 0, param, ece });
    }

    fn take_req(
        &mut self,
        arrival: &Arrival<'_>,
        req: &Req,
        request: (CmId, SocketAddr, SocketAddr),
        path: PathRecord,
    ) -> Result<(), Counter> {
        let listener = request.0;
        self.make_room(listener, arrival.source)?;
        let device = self.devices.get(arrival.device).ok_or(Counter::NoDevice)?;
        let qp_ah = path.ah(device);
        let id = self.insert_requested(request, arrival).ok_or(Counter::NoResources)?;
        let Some(entry) = self.ids.get_mut(id) else { return Err(Counter::NoResources) };
        entry.path = Some(path);
        entry.tos = Some(path.traffic_class);
        let (qp_type, psn) = (entry.qp_type, entry.psn);
        let response = duration(byte(req.local_cm_response_timeout())).min(RESPONSE_TIMEOUT_MAX);
        let key = |number: u32| Some((arrival.source.0, req.local_ca_guid(), number));
        let keys = RemoteKeys {
            id: key(req.local_comm_id().0),
            qpn: key(req.local_qpn().get()),
            sidr: None,
        };
        // Messages go to where the REQ came from, on the path that it tells.
        let sgid_index = arrival.ah.sgid_index;
        let hop_limit = arrival.ah.hop_limit;
        let ah = AhAttr { dgid: arrival.source, sgid_index, hop_limit, ..qp_ah };
        let negotiated = Negotiated {
            qp_type,
            path_mtu: path.mtu,
            rq_psn: psn,
            sq_psn: req.starting_psn(),
            initiator_depth: req.responder_resources(),
            responder_resources: req.initiator_depth(),
            retry_count: byte(req.retry_count()),
            rnr_retry_count: byte(req.rnr_retry_count()),
            ack_timeout: path.packet_life_time.saturating_add(1).min(31),
            selective_repeat: req.selective_repeat() && qp_type == QpType::Rc,
        };
        let schedule = Schedule::new(response, byte(req.max_cm_retries()));
        let connection = Connection {
            qp_ah,
            remote_id: Some(req.local_comm_id()),
            remote_qpn: req.local_qpn(),
            keys,
            transaction: arrival.header.transaction_id(),
            allowance: Some(UNPROVEN_MESSAGES),
            ..Connection::new(id, arrival.device, ah, negotiated, schedule)
        };
        let Some(name) = self.insert_connection(connection) else {
            self.ids.remove(id);
            return Err(Counter::NoResources);
        };
        keys.id.map(|key| self.by_remote_id.insert(key, name));
        keys.qpn.map(|key| self.by_remote_qpn.insert(key, name));
        self.step(name, Input::RecvReq);
        let ece =
            Ece { vendor_id: req.vendor_id().get(), options: arrival.header.attribute_modifier() };
        self.announce(listener, id, EventParam::Conn(request_param(req)), ece);
        Ok(())
    }
}

/// Returns the parameters of a REQ as its receiver sees them: what the sender wants to initiate is
/// what the receiver serves.
fn request_param(req: &Req) -> ConnEvent {
    let private = req.private_data();
    ConnEvent {
        private_data: PrivateData::of(private.get(IpCm::LEN..).unwrap_or_default()),
        responder_resources: req.initiator_depth(),
        initiator_depth: req.responder_resources(),
        flow_control: req.flow_control(),
        retry_count: byte(req.retry_count()),
        rnr_retry_count: byte(req.rnr_retry_count()),
        srq: req.srq(),
        qpn: req.local_qpn(),
    }
}
