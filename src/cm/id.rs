//! Ids, which programs hold.

use core::net::SocketAddr;

use super::Manager;
use super::error::Error;
use super::half_open::SourceQueue;
use super::multicast::Membership;
use super::path::PathRecord;
use super::state::{IdState, State};
use super::table::{ChannelId, CmId, ConnectionId, DeviceId};
use crate::time::Instant;
use crate::verbs::{Mtu, QpType};
use crate::wire::Psn;
use crate::wire::cm::{CommId, PortSpace};

/// An option of an id: `rdma_set_option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// The type of service, which becomes the traffic class.
    Tos(u8),
    /// Whether others may bind the same address.
    ReuseAddr(bool),
    /// Whether a wildcard takes requests of its own address family alone.
    AfOnly(bool),
    /// The ACK timeout of the QP, as a code.
    AckTimeout(u8),
    /// The path, in place of `resolve_route`.
    Path(PathRecord),
}

/// A question to the caller about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolving {
    pub(super) serial: u64,
    pub(super) deadline: Option<Instant>,
}

/// A listener's part of an id.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) limit: u32,
    /// Requests in the channel that the program has not taken.
    pub(super) queue: SourceQueue<CmId>,
}

/// An id.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) channel: ChannelId,
    pub(super) context: u64,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) state: IdState,
    pub(super) device: Option<DeviceId>,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    /// Whether the source's port is the id's in its port space. Ids of requests share their
    /// listener's.
    pub(super) owns_port: bool,
    pub(super) hop_limit: u8,
    /// The largest MTU of the port at the destination, if that is known.
    pub(super) peer_mtu: Option<Mtu>,
    pub(super) tos: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuse: bool,
    pub(super) family_only: Option<bool>,
    pub(super) path: Option<PathRecord>,
    /// The first PSN that the peer sends.
    pub(super) psn: Psn,
    pub(super) connection: Option<ConnectionId>,
    /// Whether there ever was a connection.
    pub(super) connected_once: bool,
    /// Whether the program knows the id well enough for events: not before it accepted a request.
    pub(super) is_reported: bool,
    /// The listener whose request for this id is still in the channel, and its number in the
    /// backlog.
    pub(super) queued_at: Option<(CmId, u64)>,
    pub(super) backlog: Backlog,
    pub(super) resolving: Option<Resolving>,
    pub(super) groups: Vec<Membership>,
    /// Number of events that the program took.
    pub(super) events_reported: u32,
}

impl Id {
    pub(super) fn new(channel: ChannelId, context: u64, space: PortSpace, qp_type: QpType) -> Self {
        Self {
            channel,
            context,
            space,
            qp_type,
            state: IdState::Idle,
            device: None,
            source: None,
            destination: None,
            owns_port: false,
            hop_limit: 64,
            peer_mtu: None,
            tos: None,
            ack_timeout: None,
            reuse: false,
            family_only: None,
            path: None,
            psn: Psn::new(0),
            connection: None,
            connected_once: false,
            is_reported: true,
            queued_at: None,
            backlog: Backlog::default(),
            resolving: None,
            groups: Vec::new(),
            events_reported: 0,
        }
    }

    /// Whether it exchanges datagrams, so that it resolves services instead of connecting.
    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    pub(super) fn require(&self, state: IdState) -> Result<(), Error> {
        if self.state == state { Ok(()) } else { Err(Error::State(self.state)) }
    }
}

/// The type of QP that a port space stands for; of the IB space it is the program's choice.
pub(super) fn qp_type_of(space: PortSpace, wanted: QpType) -> Result<QpType, Error> {
    match space {
        PortSpace::TCP => Ok(QpType::Rc),
        PortSpace::UDP | PortSpace::IPOIB => Ok(QpType::Ud),
        PortSpace::IB => match wanted {
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend | QpType::XrcRecv => Ok(wanted),
            _ => Err(Error::Argument("QP type")),
        },
        _ => Err(Error::Argument("port space")),
    }
}

impl Manager {
    /// Creates an id. `context` is what the program knows it by, and is in its events. In the IB
    /// port space the program chooses the QP type; elsewhere it follows from the space.
    pub fn create_id(
        &mut self,
        channel: ChannelId,
        context: u64,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<CmId, Error> {
        self.channels.get(channel).ok_or(Error::NotFound("channel"))?;
        let qp_type = qp_type_of(space, qp_type)?;
        let mut id = Id::new(channel, context, space, qp_type);
        id.psn = self.random_psn();
        self.ids.insert(id).ok_or(Error::Exhausted("ids"))
    }

    /// The state of an id.
    pub fn id_state(&self, id: CmId) -> Option<IdState> {
        self.ids.get(id).map(|id| id.state)
    }

    /// The state of an id's connection; `None` if it has none, or no longer.
    pub fn connection_state(&self, id: CmId) -> Option<State> {
        Some(self.connections.get(self.ids.get(id)?.connection?)?.state)
    }

    /// The comm ids of an id's connection, the own one first.
    pub fn comm_ids(&self, id: CmId) -> Option<(CommId, CommId)> {
        let connection = self.connections.get(self.ids.get(id)?.connection?)?;
        Some((connection.local_id, connection.remote_id_or_zero()))
    }

    /// The address that an id is bound to.
    pub fn source(&self, id: CmId) -> Option<SocketAddr> {
        self.ids.get(id)?.source
    }

    /// The peer's address.
    pub fn destination(&self, id: CmId) -> Option<SocketAddr> {
        self.ids.get(id)?.destination
    }

    /// The device that an id is on.
    pub fn device_of(&self, id: CmId) -> Option<DeviceId> {
        self.ids.get(id)?.device
    }

    /// The path to an id's peer.
    pub fn path(&self, id: CmId) -> Option<&PathRecord> {
        self.ids.get(id)?.path.as_ref()
    }

    /// The port space of an id.
    pub fn port_space(&self, id: CmId) -> Option<PortSpace> {
        Some(self.ids.get(id)?.space)
    }

    /// The type of an id's QP.
    pub fn qp_type(&self, id: CmId) -> Option<QpType> {
        Some(self.ids.get(id)?.qp_type)
    }

    /// The channel of an id.
    pub fn channel_of(&self, id: CmId) -> Option<ChannelId> {
        Some(self.ids.get(id)?.channel)
    }
}
