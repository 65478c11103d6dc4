//! The passive side: listeners and requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::backend::Id;
use super::connection::Connection;
use super::deadline::Deadline;
use super::error::Error;
use super::manager::{Options, Shared, failure};
use crate::cm::{EventKind, PrivateData};
use crate::verbs::QpHandle;

/// Takes requests for connections. Dropping it refuses those that were not taken; connections live on.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    id: Box<dyn Id>,
}

/// No address.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Listener {
    pub(super) fn new(shared: Arc<Shared>, id: Box<dyn Id>) -> Self {
        Self { shared, id }
    }

    /// Returns the address that it listens at, with its port.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        Ok(self.id.source().unwrap_or(NOWHERE))
    }

    /// Waits for the next request.
    pub fn accept(&self) -> Result<Request, Error> {
        self.next(Deadline::NEVER)
    }

    /// Waits for the next request, but not longer than `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Request, Error> {
        self.next(Deadline::after(timeout))
    }

    fn next(&self, deadline: Deadline) -> Result<Request, Error> {
        loop {
            let event = self.id.wait(deadline)?;
            if let Some(id) = event.request {
                return Ok(Request {
                    shared: Arc::clone(&self.shared),
                    local: id.source().unwrap_or(NOWHERE),
                    peer: id.destination().unwrap_or(NOWHERE),
                    id,
                    private_data: event.private_data,
                    offered: [event.responder_resources, event.initiator_depth],
                });
            }
            if event.kind == EventKind::DeviceRemoval {
                return Err(Error::NicClosed);
            }
        }
    }
}

/// A request for a connection, to be accepted or rejected. Dropping it rejects it.
#[derive(Debug)]
pub struct Request {
    shared: Arc<Shared>,
    id: Box<dyn Id>,
    private_data: PrivateData,
    local: SocketAddr,
    peer: SocketAddr,
    /// READs and atomics that the peer asks this side to serve, and that it serves.
    offered: [u8; 2],
}

impl Request {
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

    /// Accepts the request with a reliable queue pair of the device, which is in RESET or
    /// [prepared](super::ConnectionManager::prepare). Returns when the peer is ready.
    pub fn accept(self, qp: QpHandle, options: &Options<'_>) -> Result<Connection, Error> {
        let Self { shared, id, private_data, peer, offered, .. } = self;
        let qpn = shared.nic.qp_number(qp).ok_or(Error::NoQp)?;
        let deadline = Deadline::after(options.timeout);
        shared.prepare(qp)?;
        let param = shared.accept_param(options, qpn, offered);
        // Before the REP: the peer may send as soon as it has that.
        shared.connect_qp(&*id, qp, Some(&param))?;
        id.accept(&param)?;
        let event = id.wait(deadline)?;
        match event.kind {
            EventKind::Established => Ok(Connection::new(shared, id, qp, private_data, false)),
            // The DREQ of a peer that disconnects at once overtook its RTU.
            EventKind::Disconnected => Ok(Connection::new(shared, id, qp, private_data, true)),
            _ => Err(failure(&event, peer)),
        }
    }

    /// Rejects the request, with at most 148 bytes for the peer's program.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(private_data)
    }
}
