//! Backends of listeners and connections: the traits that every connection manager implements.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::error::Error;
use super::service::CmService;
use super::soft::Waiter;
use crate::cm::{ConnParam, EventKind, PrivateData};
use crate::link::route::route_to;
use crate::verbs::{AttrMask, QpAttr, QpState};

/// A connection manager of one device.
pub(super) trait Backend: fmt::Debug + Send + Sync {
    /// Creates an id for a listener or a reliable connection.
    fn create_id(&self) -> Result<Box<dyn Id>, Error>;

    /// Returns the address that the kernel would send from to a destination, if it prefers one.
    fn preferred_source(&self, to: SocketAddr) -> Option<IpAddr> {
        route_to(to, None).ok()?.source
    }

    /// Returns the addresses of the device.
    fn addresses(&self) -> Result<Vec<IpAddr>, Error>;

    /// Returns the service of a soft NIC.
    fn service(&self) -> Option<&CmService> {
        None
    }
}

/// An id with events of its own. Dropping it destroys it, which tells the peer.
pub(super) trait Id: fmt::Debug + Send + Sync {
    /// Binds it to an address, and listens there.
    fn listen(&self, at: SocketAddr) -> Result<(), Error>;

    /// Returns its own address and port, if it has one.
    fn source(&self) -> Option<SocketAddr>;

    /// Returns the address and port of the peer, if it has one.
    fn destination(&self) -> Option<SocketAddr>;

    /// Waits for the next event.
    fn wait(&self, deadline: Deadline) -> Result<Event, Error>;

    /// Returns what its events wake, and those of its requests until they
    /// [leave](Self::leave_listener) it; `None` if the system does not tell.
    fn waker(&self) -> Option<Arc<Waiter>> {
        None
    }

    /// Has its events wake this, where the system tells of them.
    fn set_waker(&self, _waker: Arc<Waiter>) {}

    /// The request of a listener is connected: the listener is not told of its events any more.
    fn leave_listener(&self) {}

    /// Resolves the address of a peer. The event is [`EventKind::AddrResolved`].
    fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        to: SocketAddr,
        tos: Option<u8>,
        timeout: Duration,
    ) -> Result<(), Error>;

    /// Resolves the route to it. The event is [`EventKind::RouteResolved`].
    fn resolve_route(&self, timeout: Duration) -> Result<(), Error>;

    /// Sends a REQ. The event is [`EventKind::ConnectResponse`].
    fn connect(&self, param: &ConnParam<'_>) -> Result<(), Error>;

    /// Returns what the queue pair must be set to for a state.
    fn qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error>;

    /// Whether the queue pair is to use selective repeat: its peer offers it, or has accepted it.
    fn selective_repeat(&self) -> bool {
        false
    }

    /// Sends the RTU.
    fn establish(&self) -> Result<(), Error>;

    /// Sends the REP. The event is [`EventKind::Established`].
    fn accept(&self, param: &ConnParam<'_>) -> Result<(), Error>;

    /// Tells that the queue pair of an accepted request has received data, which stands for the
    /// RTU. The event is [`EventKind::Established`].
    fn notify_established(&self) -> Result<(), Error>;

    /// Sends a REJ.
    fn reject(&self, private_data: &[u8]) -> Result<(), Error>;

    /// Sends a DREQ or a DREP. The event is [`EventKind::Disconnected`].
    fn disconnect(&self) -> Result<(), Error>;
}

/// An event of an id.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// 0, a negative error number, or the positive reason of a REJ.
    pub(super) status: i32,
    pub(super) private_data: PrivateData,
    /// READs and atomics of the peer that this side is asked to serve at a time.
    pub(super) responder_resources: u8,
    /// READs and atomics that the peer serves at a time.
    pub(super) initiator_depth: u8,
    /// The id of a request.
    pub(super) request: Option<Box<dyn Id>>,
}
