//! Queue pairs that the connection manager connects: `roce conform -R`.
//!
//! The connection manager makes each connection of an instance: REQ, REP and RTU. What a scenario
//! says of its queue pairs (first PSN, MTU, timers, access) holds none the less: they are taken
//! from RESET to RTS by that afterwards, and compared as always. Packets of queue pair 1 are no
//! part of what is compared. The responder listens at a port of its own for each instance, which it
//! tells the requester with its objects.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::control::Reach;
use super::now;
use super::objects::{Objects, Stop};
use crate::connect::{Connection, ConnectionManager, Listener, Options};
use crate::verbs::{AttrMask, QpAttr, QpState, QpType};

/// Maximum time of establishing one connection.
const CONNECT_WAIT: Duration = Duration::from_secs(20);

/// Role of one side while the connection manager connects its queue pairs.
pub(super) enum CmRole<'a> {
    /// The requester, which connects.
    Requester(&'a ConnectionManager),
    /// The responder, which listens.
    Responder(Listener),
}

fn address_of(reach: &Reach) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(reach.gid.0)).to_canonical()
}

/// Returns the private data of a REQ: the instance, and the index of the queue pair.
fn private_data(own: &Reach, at: usize) -> Vec<u8> {
    let number = own.qps.get(at).map_or(0, |(qpn, _)| qpn.get());
    format!("roce-conform {at} {number:#x}").into_bytes()
}

fn failed(error: impl std::fmt::Display) -> Stop {
    Stop::trouble("connection manager", error)
}

impl<'a> CmRole<'a> {
    /// Prepares to connect the queue pairs of a side, if they are reliable ones, and says so in its
    /// reach.
    pub(super) fn new(
        manager: &'a ConnectionManager,
        side: super::Side,
        objects: &Objects,
        own: &mut Reach,
    ) -> Result<Option<Self>, Stop> {
        if objects.kind != QpType::Rc {
            return Ok(None);
        }
        let (role, port) = match side {
            super::Side::Requester => (Self::Requester(manager), 0),
            super::Side::Responder => {
                let at = SocketAddr::new(address_of(own), 0);
                let listener = manager.listen(at).map_err(failed)?;
                let port = listener.local_addr().map_err(failed)?.port();
                (Self::Responder(listener), port)
            }
        };
        own.cm_port = Some(port);
        Ok(Some(role))
    }

    /// Connects the queue pairs, in their order, and takes them back to RESET. The connections last
    /// until they are dropped.
    pub(super) fn connect(
        &self,
        objects: &Objects,
        own: &Reach,
        theirs: &Reach,
    ) -> Result<Vec<Connection>, Stop> {
        let mut connections = Vec::new();
        for (at, qp) in objects.qps.iter().enumerate() {
            let mut options = Options { timeout: CONNECT_WAIT, ..Options::default() };
            let connected = match self {
                Self::Requester(manager) => {
                    let port = theirs.cm_port.unwrap_or_default();
                    let data = private_data(own, at);
                    options.private_data = &data;
                    let to = SocketAddr::new(address_of(theirs), port);
                    manager.connect(qp.handle(), to, &options)
                }
                Self::Responder(listener) => {
                    let expected = private_data(theirs, at);
                    let until = now() + CONNECT_WAIT;
                    // A request of another program or host is rejected when it is dropped.
                    let request = loop {
                        let left = until.saturating_duration_since(now());
                        let request = listener.accept_timeout(left).map_err(failed)?;
                        if request.private_data().starts_with(&expected)
                            && request.peer_addr().ip().to_canonical() == address_of(theirs)
                        {
                            break request;
                        }
                    };
                    request.accept(qp.handle(), &options)
                }
            };
            connections.push(connected.map_err(failed)?);
            let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
            qp.modify(&attr, AttrMask::STATE).map_err(failed)?;
        }
        Ok(connections)
    }
}
