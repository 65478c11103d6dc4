//! Connections for programs in Rust: a connection manager on one device, and calls that block.

use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, Event, Id};
use super::connection::Connection;
use super::deadline::Deadline;
use super::error::Error;
use super::linger::Linger;
use super::listener::Listener;
use super::soft::Soft;
use super::system::System;
use super::{CmService, Config};
use crate::cm::{ConnParam, EventKind};
use crate::device::{Context, Device};
use crate::nic::SoftNic;
use crate::rdma_nic::RdmaNic;
use crate::verbs::{AttrMask, Errno, QpAttr, QpHandle, QpState};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Qpn};

/// The receiver-not-ready timer of connected queue pairs: 0.64 ms. That of Linux, 655 ms, makes a
/// receive that is posted late costly.
const RNR_TIMER: RnrTimer = RnrTimer(Bits::low(12));

/// Options of one side of a connection. The default is what most programs want.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Data for the peer's program: at most 56 bytes to connect, 196 to accept, 148 to reject. The
    /// peer sees zeros behind it.
    pub private_data: &'a [u8],
    /// Maximum number of READs and atomics of the peer that are served at a time.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics in flight.
    pub initiator_depth: u8,
    /// Maximum number of retransmissions without progress; at most 7.
    pub retry_count: u8,
    /// Maximum number of retries after RNR NAKs; 7 sets no limit.
    pub rnr_retry_count: u8,
    /// Type of service: the traffic class of the connection's packets.
    pub tos: Option<u8>,
    /// Address of the device to connect from. Without one it is that of the route to the peer.
    pub source: Option<IpAddr>,
    /// Maximum time of the call.
    pub timeout: Duration,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            tos: None,
            source: None,
            timeout: Duration::from_secs(30),
        }
    }
}

impl<'a> Options<'a> {
    /// The default options, with data for the peer's program.
    pub fn with_private_data(private_data: &'a [u8]) -> Self {
        Self { private_data, ..Self::default() }
    }

    /// Returns the parameters for a message, with at most `most` READs and ATOMICs that are served,
    /// and in flight.
    fn param(&self, qpn: Qpn, most: [u8; 2]) -> ConnParam<'a> {
        let [serves, sends] = most;
        ConnParam {
            private_data: self.private_data,
            qpn,
            responder_resources: self.responder_resources.min(serves),
            initiator_depth: self.initiator_depth.min(sends),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ..ConnParam::default()
        }
    }
}

/// The connection manager of a device, for programs in Rust. See the [module](super).
///
/// Any number of threads may use it. It ends with its last listener or connection, and sends a DREQ
/// for each connection that is still established.
#[derive(Clone, Debug)]
pub struct ConnectionManager {
    shared: Arc<Shared>,
}

/// State that a manager, its listeners and its connections share.
#[derive(Debug)]
pub(super) struct Shared {
    backend: Box<dyn Backend>,
    pub(super) nic: Arc<dyn Device>,
    /// The most READs and atomics that a queue pair serves, and has in flight.
    rd_atomic_max: [u8; 2],
    pub(super) linger: Linger,
}

impl ConnectionManager {
    /// Starts a connection manager on a device: an `Arc` of one, or a [`Context`].
    ///
    /// A soft NIC gets one of its own; it can have one at a time. A real RNIC uses the system's,
    /// through `librdmacm`; the error says what is missing if that cannot be.
    pub fn start(device: impl Into<Context>) -> io::Result<Self> {
        let device = Arc::clone(device.into().shared());
        let any: Arc<dyn Any + Send + Sync> = Arc::<dyn Device>::clone(&device);
        match any.downcast::<SoftNic>() {
            Ok(nic) => Self::start_with(nic, Config::default()),
            Err(any) => match any.downcast::<RdmaNic>() {
                Ok(nic) => Self::new(Box::new(System::start(nic)?), device),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("{} has no connection manager", device.name()),
                )),
            },
        }
    }

    /// Starts a connection manager on a soft NIC, with other timers or bounds.
    pub fn start_with(nic: Arc<SoftNic>, config: Config) -> io::Result<Self> {
        let backend = Soft::start(&nic, config)?;
        Self::new(Box::new(backend), nic)
    }

    fn new(backend: Box<dyn Backend>, nic: Arc<dyn Device>) -> io::Result<Self> {
        let attr = nic.query_device()?;
        let rd_atomic_max = [attr.max_qp_rd_atom, attr.max_qp_init_rd_atom]
            .map(|most| u8::try_from(most).unwrap_or(u8::MAX));
        Ok(Self {
            shared: Arc::new(Shared { backend, nic, rd_atomic_max, linger: Linger::default() }),
        })
    }

    /// Returns its device.
    pub fn nic(&self) -> &Arc<dyn Device> {
        &self.shared.nic
    }

    /// Returns the service beneath, if the device is a soft NIC: its counters, for example.
    pub fn service(&self) -> Option<&CmService> {
        self.shared.backend.service()
    }

    /// Listens for requests at an address of the device, or all with a wildcard. Port 0 is one that
    /// is free.
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, Error> {
        let id = self.shared.backend.create_id()?;
        id.listen(address)?;
        Ok(Listener::new(Arc::clone(&self.shared), id))
    }

    /// Takes a queue pair to INIT: receives can be posted to it then, before the peer can send
    /// anything.
    pub fn prepare(&self, qp: QpHandle) -> Result<(), Error> {
        self.shared.prepare(qp)
    }

    /// Connects a reliable queue pair of the device, which is in RESET or
    /// [prepared](Self::prepare), to the peer that listens at an address.
    pub fn connect(
        &self,
        qp: QpHandle,
        to: SocketAddr,
        options: &Options<'_>,
    ) -> Result<Connection, Error> {
        let shared = &self.shared;
        let qpn = shared.nic.qp_number(qp).ok_or(Error::NoQp)?;
        let deadline = Deadline::after(options.timeout);
        shared.prepare(qp)?;
        let id = shared.backend.create_id()?;
        let source = match options.source {
            Some(source) => SocketAddr::new(source, 0),
            None => shared.source_for(to)?,
        };
        id.resolve_addr(Some(source), to, options.tos, options.timeout)?;
        expect(&*id, EventKind::AddrResolved, to, deadline)?;
        id.resolve_route(options.timeout)?;
        expect(&*id, EventKind::RouteResolved, to, deadline)?;
        let selective_repeat = shared.nic.offers_selective_repeat();
        let param = options.param(qpn, shared.rd_atomic_max);
        id.connect(&ConnParam { selective_repeat, ..param })?;
        let response = expect(&*id, EventKind::ConnectResponse, to, deadline)?;
        shared.connect_qp(&*id, qp, None)?;
        id.establish()?;
        Ok(Connection::new(Arc::clone(shared), id, qp, response.private_data, false))
    }
}

/// Waits for an event of this kind; another one is a failure.
fn expect(
    id: &dyn Id,
    kind: EventKind,
    peer: SocketAddr,
    deadline: Deadline,
) -> Result<Event, Error> {
    let event = id.wait(deadline)?;
    if event.kind == kind { Ok(event) } else { Err(failure(&event, peer)) }
}

impl Shared {
    /// The address of the device that a peer is reached from: the one that the kernel's route
    /// prefers, or the first of the same family.
    fn source_for(&self, to: SocketAddr) -> Result<SocketAddr, Error> {
        let preferred = self.backend.preferred_source(to);
        let mut same = self.backend.addresses()?;
        same.retain(|address| address.is_ipv4() == to.is_ipv4());
        let chosen =
            same.iter().find(|address| Some(**address) == preferred).or_else(|| same.first());
        let chosen = chosen.ok_or(Error::Unresolved { peer: to, error: Errno::ENODEV })?;
        Ok(SocketAddr::new(*chosen, 0))
    }

    pub(super) fn prepare(&self, qp: QpHandle) -> Result<(), Error> {
        match self.nic.qp_state(qp).ok_or(Error::NoQp)? {
            QpState::Init => Ok(()),
            _ => {
                let mask = AttrMask::STATE
                    | AttrMask::PKEY_INDEX
                    | AttrMask::PORT
                    | AttrMask::ACCESS_FLAGS;
                let attr = QpAttr { qp_state: QpState::Init, ..QpAttr::default() };
                self.modify(qp, &attr, mask)
            }
        }
    }

    pub(super) fn modify(&self, qp: QpHandle, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let state = attr.qp_state;
        self.nic.modify_qp(qp, attr, mask).map_err(|error| Error::Qp { state, error })
    }

    /// Takes a queue pair from INIT to RTS by what the connection manager knows of the peer. A REP
    /// that is about to be sent says how many READs and atomics there are. Returns whether the
    /// queue pair uses selective repeat, on which it agrees before it can send.
    pub(super) fn connect_qp(
        &self,
        id: &dyn Id,
        qp: QpHandle,
        reply: Option<&ConnParam<'_>>,
    ) -> Result<bool, Error> {
        let is_selective = self.nic.agree_selective_repeat(qp, id.selective_repeat());
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (mut attr, mask) = id.qp_attr(state)?;
            attr.min_rnr_timer = RNR_TIMER;
            if let Some(reply) = reply {
                attr.max_dest_rd_atomic = reply.responder_resources;
                attr.max_rd_atomic = reply.initiator_depth;
            }
            self.modify(qp, &attr, mask)?;
        }
        Ok(is_selective)
    }

    /// Returns the parameters by which this side accepts a request: no more READs and ATOMICs than
    /// the peer asks for, serves, and the device can do.
    pub(super) fn accept_param<'a>(
        &self,
        options: &Options<'a>,
        qpn: Qpn,
        offered: [u8; 2],
    ) -> ConnParam<'a> {
        let [serves, sends] = self.rd_atomic_max;
        let [wanted, served] = offered;
        options.param(qpn, [serves.min(wanted), sends.min(served)])
    }
}

/// Converts an event to an error.
pub(super) fn failure(event: &Event, peer: SocketAddr) -> Error {
    match event.kind {
        EventKind::AddrError | EventKind::RouteError => {
            Error::Unresolved { peer, error: Errno(event.status.wrapping_neg()) }
        }
        EventKind::Rejected => Error::Refused {
            reason: u16::try_from(event.status).unwrap_or(0),
            private_data: Box::new(event.private_data),
        },
        EventKind::DeviceRemoval => Error::NicClosed,
        EventKind::Disconnected => Error::Disconnected,
        _ => Error::Unreachable,
    }
}
