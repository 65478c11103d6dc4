//! The connection manager of a real RNIC: that of the system, through `librdmacm`.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backend::{Backend, Event, Id};
use super::deadline::Deadline;
use super::error::Error;
use super::nics::address_of;
use crate::cm::{self, ConnParam, private_data_len};
use crate::device::Device as _;
use crate::rdma_nic::{CallError, RdmaNic, SystemId};
use crate::verbs::{AttrMask, Errno, QpAttr, QpState};
use crate::wire::Gid;

/// The system's connection manager, for one device.
#[derive(Debug)]
pub(super) struct System(Arc<RdmaNic>);

impl System {
    pub(super) fn start(nic: Arc<RdmaNic>) -> io::Result<Self> {
        nic.check_cm()?;
        Ok(Self(nic))
    }
}

impl From<CallError> for Error {
    fn from(CallError { call, errno }: CallError) -> Self {
        Self::System { call, error: errno }
    }
}

impl Backend for System {
    fn create_id(&self) -> Result<Box<dyn Id>, Error> {
        Ok(Box::new(self.0.create_cm_id()?))
    }

    fn addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let gids = self.0.gids();
        let mut addresses: Vec<IpAddr> =
            gids.into_iter().filter(|gid| *gid != Gid::default()).map(address_of).collect();
        // A link-local address means nothing without its interface: it is taken when there is no
        // other.
        addresses.sort_by_key(|address| match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => Ipv6Addr::is_unicast_link_local(v6),
        });
        Ok(addresses)
    }
}

/// Checks how much private data there is before it goes to C.
fn check_data(data: &[u8], max: usize) -> Result<(), Error> {
    let len = data.len();
    if len > max { Err(cm::Error::PrivateData { len, max }.into()) } else { Ok(()) }
}

impl Id for SystemId {
    fn listen(&self, at: SocketAddr) -> Result<(), Error> {
        Ok(Self::listen(self, at)?)
    }

    fn source(&self) -> Option<SocketAddr> {
        let [source, _] = self.addresses();
        source
    }

    fn destination(&self) -> Option<SocketAddr> {
        let [_, destination] = self.addresses();
        destination
    }

    fn wait(&self, deadline: Deadline) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.poll_event()? {
                return Ok(Event {
                    kind: event.kind,
                    status: event.status,
                    private_data: event.private_data,
                    responder_resources: event.responder_resources,
                    initiator_depth: event.initiator_depth,
                    request: event.request.map(|id| Box::new(id) as Box<dyn Id>),
                });
            }
            let remaining = deadline.remaining();
            if remaining.is_some_and(|time| time.is_zero()) {
                return Err(Error::Timeout);
            }
            let timeout = remaining.and_then(|time| Timespec::try_from(time).ok());
            match poll(
                &mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)],
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(Error::System { call: "poll", error: Errno(error.raw_os_error()) });
                }
            }
        }
    }

    fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        to: SocketAddr,
        tos: Option<u8>,
        timeout: Duration,
    ) -> Result<(), Error> {
        if let Some(tos) = tos {
            self.set_tos(tos)?;
        }
        // A source that is link-local is one of the interface that leads to the peer.
        let source = match (source, to) {
            (Some(SocketAddr::V6(mut source)), SocketAddr::V6(to)) => {
                if source.ip().is_unicast_link_local() {
                    source.set_scope_id(to.scope_id());
                }
                Some(source.into())
            }
            (source, _) => source,
        };
        Ok(Self::resolve_addr(self, source, to, timeout)?)
    }

    fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        Ok(Self::resolve_route(self, timeout)?)
    }

    fn connect(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        check_data(param.private_data, private_data_len::REQ)?;
        Ok(Self::connect(self, param)?)
    }

    fn qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        Ok(Self::qp_attr(self, state)?)
    }

    fn establish(&self) -> Result<(), Error> {
        Ok(Self::establish(self)?)
    }

    fn accept(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        check_data(param.private_data, private_data_len::REP)?;
        Ok(Self::accept(self, param)?)
    }

    fn notify_established(&self) -> Result<(), Error> {
        // The kernel's manager retransmits its REP for as long as it waits.
        Ok(())
    }

    fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        check_data(private_data, private_data_len::REJ)?;
        Ok(Self::reject(self, private_data)?)
    }

    fn disconnect(&self) -> Result<(), Error> {
        Ok(Self::disconnect(self)?)
    }
}
