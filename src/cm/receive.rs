//! Checks of an arriving MAD, and its dispatch to a connection.

use super::counters::Counter;
use super::message::{self, BASE_VERSION, CLASS_VERSION, SEND};
use super::table::{ConnectionId, DeviceId};
use super::{Manager, Transmit};
use crate::time::Instant;
use crate::verbs::AhAttr;
use crate::wire::Gid;
use crate::wire::cm::{CommId, Lap, Message, PortSpace, ServiceId};
use crate::wire::mad::{MAD_LEN, Mad, MadHeader, MgmtClass};

/// A MAD that came to queue pair 1 with its Q_Key.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The device.
    pub device: DeviceId,
    /// Address of the sender, to which answers go.
    pub source: Gid,
    /// Address of the device to which it was sent.
    pub destination: Gid,
    /// The traffic class it traveled with, which answers have, too.
    pub traffic_class: u8,
    /// The MAD.
    pub mad: &'a [u8],
}

/// Treatment of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The MAD was accepted, and changed the state.
    Accepted,
    /// The MAD was refused, with an answer or without, and counted.
    Refused(Counter),
}

/// Addressee of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// Any process with a listener on this port.
    Listener(PortSpace, u16),
    /// The process that has this comm id.
    CommId(CommId),
    /// The connection with this comm id, if the message is a DREQ.
    Disconnect(CommId),
}

/// A message that no id of this manager knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// Addressee.
    pub addressee: Addressee,
    /// The address that it was sent to.
    pub destination: Gid,
    /// The answer, if no process claims it.
    pub answer: Transmit,
}

/// The listener that a service id names. One of another kind has none, and port 0 stands for that.
pub(super) fn listener_of(service: ServiceId) -> Addressee {
    let (space, port) = service.to_rdma_cm().unwrap_or((PortSpace::TCP, 0));
    Addressee::Listener(space, port)
}

/// The connection that a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The connection.
    Connection(ConnectionId),
    /// No connection has these comm ids.
    Unknown,
    /// The comm ids are those of another peer's connection. The sender gets the same answer as for
    /// unknown ones, so that it does not learn which exist.
    Foreign,
}

impl Found {
    /// Returns the connection, or the counter of the message: `unknown` if no connection has its
    /// comm ids.
    pub(super) fn or(self, unknown: Counter) -> Result<ConnectionId, Counter> {
        match self {
            Self::Connection(name) => Ok(name),
            Self::Unknown => Err(unknown),
            Self::Foreign => Err(Counter::WrongSource),
        }
    }
}

/// A MAD whose envelope is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) device: DeviceId,
    pub(super) source: Gid,
    pub(super) destination: Gid,
    /// The way back.
    pub(super) ah: AhAttr,
    pub(super) header: &'a MadHeader,
}

impl Manager {
    /// Takes a MAD in, which came at `now`.
    pub fn handle_mad(&mut self, now: Instant, received: &Received<'_>) -> Disposition {
        self.counters.add(Counter::Received);
        match self.accept_mad(now, received, true) {
            Ok(()) => Disposition::Accepted,
            Err(reason) => {
                self.counters.add(reason);
                Disposition::Refused(reason)
            }
        }
    }

    /// Takes a MAD in; a request may wait for its listener if it has not done so before.
    pub(super) fn accept_mad(
        &mut self,
        now: Instant,
        received: &Received<'_>,
        may_wait: bool,
    ) -> Result<(), Counter> {
        if received.mad.len() != MAD_LEN {
            return Err(Counter::BadLength);
        }
        let mad = Mad::parse(received.mad).map_err(|_| Counter::BadLength)?;
        let header = mad.header;
        if header.base_version() != BASE_VERSION {
            return Err(Counter::BadBaseVersion);
        }
        if header.class() != MgmtClass::CM {
            return Err(Counter::BadClass);
        }
        if header.class_version() != CLASS_VERSION {
            return Err(Counter::BadClassVersion);
        }
        if header.method().get() != SEND || header.response() {
            return Err(Counter::BadMethod);
        }
        let message = mad.cm().map_err(|_| Counter::BadLength)?;
        let message = message.ok_or(Counter::UnknownAttribute)?;
        // An answer goes to the source: it must be one peer.
        if received.source.is_multicast() || received.source == Gid::default() {
            return Err(Counter::BadAddress);
        }
        let device = self.devices.get(received.device).ok_or(Counter::NoDevice)?;
        let index = device.gid_index(received.destination).ok_or(Counter::BadAddress)?;
        let ah = AhAttr {
            traffic_class: received.traffic_class,
            port_num: device.port_num,
            ..AhAttr::new(received.source, index)
        };
        let Received { device, source, destination, .. } = *received;
        let arrival = Arrival { device, source, destination, ah, header };
        if may_wait && let Some(done) = self.handle_early(now, received, &arrival, &message) {
            return done;
        }
        self.dispatch(now, &arrival, message)
    }

    fn dispatch(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        message: Message<'_>,
    ) -> Result<(), Counter> {
        match message {
            Message::Req(req) => self.handle_req(now, arrival, req),
            Message::Rep(rep) => self.handle_rep(now, arrival, rep),
            Message::Rtu(rtu) => self.handle_rtu(arrival, rtu),
            Message::Mra(mra) => self.handle_mra(now, arrival, mra),
            Message::Rej(rej) => self.handle_rej(now, arrival, rej),
            Message::Dreq(dreq) => self.handle_dreq(now, arrival, dreq),
            Message::Drep(drep) => self.handle_drep(now, arrival, drep),
            Message::SidrReq(req) => self.handle_sidr_req(arrival, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(arrival, rep),
            Message::Lap(lap) => self.handle_lap(arrival, lap),
            Message::Apr(_) => Err(Counter::AlternatePath),
        }
    }

    /// Answers a message for which there is no connection.
    pub(super) fn answer(&mut self, arrival: &Arrival<'_>, mad: [u8; MAD_LEN]) {
        self.transmit(arrival.device, arrival.ah, mad);
    }

    /// Answers a message for an unknown connection, if this manager does so at its address.
    pub(super) fn answer_unknown(
        &mut self,
        arrival: &Arrival<'_>,
        addressee: Addressee,
        mad: [u8; MAD_LEN],
    ) {
        let Some(device) = self.devices.get(arrival.device) else { return };
        if !device.answers_unknown {
            return;
        }
        if !device.is_shared {
            return self.answer(arrival, mad);
        }
        if self.unclaimed.len() >= self.config.limits.transmits {
            self.counters.add(Counter::TransmitQueueFull);
            return;
        }
        let Arrival { device, destination, ah, .. } = *arrival;
        let answer = Transmit { device, ah, mad };
        self.unclaimed.push_back(Unclaimed { addressee, destination, answer });
    }

    /// The next message that no id of this manager knows, on a device whose addresses it shares
    /// with other processes. The caller sends the answer if it is not another's, either. New ones
    /// come with MADs.
    #[must_use]
    pub fn poll_unclaimed(&mut self) -> Option<Unclaimed> {
        self.unclaimed.pop_front()
    }

    /// Finds the connection with this own comm id and this comm id of the peer's, `None` if the
    /// peer's is not known yet. A message finds it only from the address of the connection's peer:
    /// comm ids can be guessed, and prove nothing alone.
    pub(super) fn find(
        &self,
        arrival: &Arrival<'_>,
        local: CommId,
        remote: Option<CommId>,
    ) -> Found {
        let entry = |name: ConnectionId| Some((name, self.connections.get(name)?));
        let found = self.by_local_id.get(&local.0).and_then(|name| entry(*name));
        match found.filter(|(_, connection)| connection.remote_id == remote) {
            None => Found::Unknown,
            Some((_, connection)) if connection.ah.dgid != arrival.source => Found::Foreign,
            Some((name, _)) => Found::Connection(name),
        }
    }

    /// Alternate paths do not exist on RoCE: a LAP is refused.
    fn handle_lap(&mut self, arrival: &Arrival<'_>, lap: &Lap) -> Result<(), Counter> {
        let found = self.find(arrival, lap.remote_comm_id(), Some(lap.local_comm_id()));
        found.or(Counter::AlternatePath)?;
        self.answer(arrival, message::apr_to(arrival.header, lap));
        Err(Counter::AlternatePath)
    }
}
