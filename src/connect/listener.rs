//! The passive side: listeners and requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::connection::Connection;
use super::error::Error;
use super::manager::{Id, Options, private_data};
use crate::cm::{Event, EventKind, PrivateData, RejectReason};
use crate::device::Device as _;
use crate::time::Instant;
use crate::verbs::QpHandle;

/// Takes requests for connections. Dropping it refuses those that were not taken; connections live on.
#[derive(Debug)]
pub struct Listener {
    id: Id,
}

/// No address.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Listener {
    pub(super) fn new(id: Id) -> Self {
        Self { id }
    }

    /// Returns the address that it listens at, with its port.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        let number = self.id.number;
        let source = self.id.shared.service.command(|manager, _| manager.source(number))?;
        Ok(source.unwrap_or(NOWHERE))
    }

    /// Waits for the next request.
    pub fn accept(&self) -> Result<Request, Error> {
        self.next(Instant::from_nanos(u64::MAX))
    }

    /// Waits for the next request, but not longer than `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Request, Error> {
        self.next(self.id.shared.service.now().saturating_add(timeout))
    }

    fn next(&self, deadline: Instant) -> Result<Request, Error> {
        loop {
            let event = self.id.wait(deadline)?;
            match event.kind {
                EventKind::ConnectRequest => {
                    // It is gone if its peer gave up meanwhile.
                    if let Ok(id) = Id::of_request(&self.id.shared, event.id) {
                        return Ok(Request::new(id, &event));
                    }
                }
                EventKind::DeviceRemoval => return Err(Error::NicClosed),
                _ => {}
            }
        }
    }
}

/// A request for a connection, to be accepted or rejected. Dropping it rejects it.
#[derive(Debug)]
pub struct Request {
    id: Id,
    private_data: PrivateData,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Request {
    fn new(id: Id, event: &Event) -> Self {
        let number = id.number;
        let addresses = id.shared.service.command(|manager, _| {
            (
                manager.source(number).unwrap_or(NOWHERE),
                manager.destination(number).unwrap_or(NOWHERE),
            )
        });
        let (local, peer) = addresses.unwrap_or((NOWHERE, NOWHERE));
        Self { id, private_data: private_data(&event.param), local, peer }
    }

    /// Returns what the peer's program had to say: 56 bytes, with zeros behind its data.
    pub fn private_data(&self) -> &[u8] {
        self.private_data.as_slice()
    }

    /// Returns the address that the peer connects to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address that the peer connects from.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Accepts the request with a queue pair of the NIC, which is in RESET or
    /// [prepared](super::ConnectionManager::prepare). Returns when the peer is ready.
    pub fn accept(self, qp: QpHandle, options: &Options<'_>) -> Result<Connection, Error> {
        let Self { id, private_data, peer, .. } = self;
        let shared = &id.shared;
        let qpn = shared.nic.qp_number(qp).ok_or(Error::NoQp)?;
        let deadline = shared.service.now().saturating_add(options.timeout);
        shared.prepare(qp)?;
        id.connect_qp(qp)?;
        id.command(|manager, now, number| manager.accept(now, number, 0, &options.param(qpn)))?;
        let event = id.wait(deadline)?;
        match event.kind {
            EventKind::Established => Ok(Connection::accepted(id, qp, private_data, false)),
            // The DREQ of a peer that disconnects at once overtook its RTU.
            EventKind::Disconnected => Ok(Connection::accepted(id, qp, private_data, true)),
            _ => Err(id.failure(&event, peer)),
        }
    }

    /// Rejects the request, with at most 148 bytes for the peer's program.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        let reason = RejectReason::Consumer;
        self.id.command(|manager, now, number| manager.reject(now, number, reason, private_data))
    }
}
