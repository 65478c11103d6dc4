//! The passive side: listeners and requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Event, Id};
use super::connection::Connection;
use super::deadline::Deadline;
use super::error::Error;
use super::manager::{Options, Shared, failure};
use crate::cm::{EventKind, PrivateData};
use crate::verbs::QpHandle;
use crate::wire::Psn;

/// Takes requests for connections. Dropping it refuses those that were not taken; connections live
/// on.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    id: Box<dyn Id>,
}

/// Time after which requests are looked at, where the system does not tell of events.
const LOOK: Duration = Duration::from_millis(2);

/// Interval at which the queue pair of an accepted request is looked at for data.
const LOOK_FOR_DATA: Duration = Duration::from_millis(50);

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

    /// Lets events of this listener also wake threads that wait for `other`, where the system
    /// reports events.
    pub(crate) fn join(&self, other: &Self) {
        if let Some(waker) = other.id.waker() {
            self.id.set_waker(waker);
        }
    }

    /// Returns a number that changes with each request, and each event of those that were answered
    /// and are not yet connected; `None` if the system does not tell.
    pub(crate) fn rings(&self) -> Option<u64> {
        Some(self.id.waker()?.rings())
    }

    /// Takes the next request, if there is one.
    pub(crate) fn try_accept(&self) -> Result<Option<Request>, Error> {
        match self.next(Deadline::now()) {
            Err(Error::Timeout) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Waits until [`rings`](Self::rings) is another number than `seen`, but not longer than
    /// `timeout`; where there is no such number, for a moment.
    pub(crate) fn wait_ring(&self, seen: Option<u64>, timeout: Duration) {
        match (self.id.waker(), seen) {
            (Some(waker), Some(seen)) => {
                waker.wait(seen, Deadline::after(timeout));
            }
            _ => std::thread::sleep(timeout.min(LOOK)),
        }
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
        self.begin_accept(qp, options)?.wait()
    }

    /// Answers the request as [`accept`](Self::accept) does, and does not wait for the peer: a peer
    /// that never gets ready holds up no other.
    pub fn begin_accept(self, qp: QpHandle, options: &Options<'_>) -> Result<Accepting, Error> {
        let Self { shared, id, private_data, peer, offered, .. } = self;
        let qpn = shared.nic.qp_number(qp).ok_or(Error::NoQp)?;
        let deadline = Deadline::after(options.timeout);
        shared.prepare(qp)?;
        let mut param = shared.accept_param(options, qpn, offered);
        // Before the REP: the peer may send as soon as it has that.
        param.selective_repeat = shared.connect_qp(&*id, qp, Some(&param))?;
        let first_psn = shared.nic.query_qp(qp).ok_or(Error::NoQp)?.rq_psn;
        id.accept(&param)?;
        Ok(Accepting { shared, id: Some(id), qp, private_data, peer, deadline, first_psn })
    }

    /// Rejects the request, with at most 148 bytes for the peer's program.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(private_data)
    }
}

/// A request that was answered, and whose peer is not known to be ready: a half-open connection.
/// Dropping it ends it.
#[derive(Debug)]
pub struct Accepting {
    shared: Arc<Shared>,
    /// The id, until the outcome is known.
    id: Option<Box<dyn Id>>,
    qp: QpHandle,
    private_data: PrivateData,
    peer: SocketAddr,
    deadline: Deadline,
    /// The first PSN that the peer sends.
    first_psn: Psn,
}

impl Accepting {
    /// Returns the address that the peer connects from.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Waits until the peer is ready.
    pub fn wait(mut self) -> Result<Connection, Error> {
        let id = self.id.as_ref().ok_or(Error::Timeout)?;
        let event = loop {
            match id.wait(self.deadline.within(LOOK_FOR_DATA)) {
                Err(Error::Timeout) if !self.deadline.has_passed() => self.look_for_data(&**id),
                event => break event?,
            }
        };
        self.finish(&event)
    }

    /// Returns the connection if the peer is ready, and `None` if it is not yet. Fails once it is
    /// too late.
    pub fn poll(&mut self) -> Result<Option<Connection>, Error> {
        let id = self.id.as_ref().ok_or(Error::Timeout)?;
        self.look_for_data(&**id);
        match id.wait(Deadline::now()) {
            Ok(event) => self.finish(&event).map(Some),
            Err(Error::Timeout) if !self.deadline.has_passed() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes data that the queue pair received for the RTU: that may be lost, and the peer does not
    /// know.
    fn look_for_data(&self, id: &dyn Id) {
        let psn = self.shared.nic.query_qp(self.qp).map(|attr| attr.rq_psn);
        if psn.is_some_and(|psn| psn != self.first_psn) {
            // The RTU may have come meanwhile.
            let _ = id.notify_established();
        }
    }

    fn finish(&mut self, event: &Event) -> Result<Connection, Error> {
        let id = self.id.take().ok_or(Error::Timeout)?;
        id.leave_listener();
        let has_ended = match event.kind {
            EventKind::Established => false,
            // The DREQ of a peer that disconnects at once overtook its RTU.
            EventKind::Disconnected => true,
            _ => return Err(failure(event, self.peer)),
        };
        let (shared, private_data) = (Arc::clone(&self.shared), self.private_data);
        Ok(Connection::new(shared, id, self.qp, private_data, has_ended))
    }
}
